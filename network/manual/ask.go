package manual

import (
	"context"
	"fmt"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// ask opens a task unless it is what was asked for last, and answers with ErrPending until somebody has confirmed it.
func ask(ctx context.Context, tasks network.Tasks, t network.Task) error {
	latest, err := tasks.Latest(ctx, t.Kind)
	if err != nil {
		return err
	}
	return askAgain(ctx, tasks, t, latest[t.Subject])
}

// askAgain is ask for somebody who knows the task of the subject that was opened last.
func askAgain(ctx context.Context, tasks network.Tasks, t, last network.Task) error {
	switch {
	case last.ID == t.ID && last.State == network.TaskDone:
		return nil
	case last.ID == t.ID && last.State == network.TaskRefused:
		return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("task %s was refused: %s", t.ID, last.Note), Hint: "ask the operator"}
	case last.ID == t.ID && last.State == network.TaskOpen:
		return fmt.Errorf("task %s: %w", t.ID, network.ErrPending)
	}
	if err := tasks.Open(ctx, t); err != nil {
		return err
	}
	return fmt.Errorf("task %s: %w", t.ID, network.ErrPending)
}
