package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// ErrPending is wrapped by the error of a driver whose work was handed to a person and is not confirmed yet. It is no failure:
// ask again later.
var ErrPending = errors.New("waits for somebody to do it")

// TaskState says how far a task is.
type TaskState string

// States of a task.
const (
	TaskOpen      TaskState = "open"
	TaskDone      TaskState = "done"      // a person has confirmed it
	TaskRefused   TaskState = "refused"   // a person will not do it, and says why
	TaskWithdrawn TaskState = "withdrawn" // not wanted any more: something else was asked for since
)

// Task is work that no driver can do: a person does it by its steps and confirms it.
type Task struct {
	ID      string    `json:"id"`      // the same for the same work on the same subject
	Kind    string    `json:"kind"`    // port, edge, rdns …: tasks of one kind and subject replace each other
	Subject string    `json:"subject"` // what it is done to: a machine's ID, a switch port, an address
	Title   string    `json:"title"`   // one line
	Steps   []string  `json:"steps"`   // exactly what to do, in order
	Check   string    `json:"check"`   // how to see that it is done
	Wanted  string    `json:"wanted"`  // the state that it brings about, as its driver writes it
	State   TaskState `json:"state"`
	Opened  time.Time `json:"opened"`
	Closed  time.Time `json:"closed,omitzero"`
	By      string    `json:"by,omitempty"`   // who confirmed it
	Note    string    `json:"note,omitempty"` // what they had to say
}

// TaskID names a task by what it is about: a driver that asks for the same thing again finds the same task.
func TaskID(kind, subject, wanted string) string {
	h := sha256.Sum256([]byte(strings.Join([]string{kind, subject, wanted}, "\x00")))
	return "t-" + hex.EncodeToString(h[:8])
}

// Tasks keeps tasks; answered by the database.
type Tasks interface {
	// Open makes a task open: it is inserted, or opened again when it was done or withdrawn. Every other open task of its
	// kind and subject is withdrawn in the same transaction. When it is open already nothing changes.
	Open(ctx context.Context, t Task) error
	// Latest returns, for each subject of a kind, the task that was opened last, whatever became of it.
	Latest(ctx context.Context, kind string) (map[string]Task, error)
}
