package main

import (
	"context"
	"fmt"
	"io"
	"os/user"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/network"
)

// taskCommand is work that waits for a person.
type taskCommand struct {
	List   taskList   `cmd:"" help:"List what waits for somebody, the oldest first."`
	Show   taskShow   `cmd:"" help:"Show what to do, step by step."`
	Done   taskDone   `cmd:"" help:"Say that a task is done: whoever waits for it goes on."`
	Refuse taskRefuse `cmd:"" help:"Say that a task will not be done, and why."`
}

type taskList struct {
	remote
	All bool `help:"Those that were done, refused or withdrawn too."`
}

// Run lists tasks.
func (k *taskList) Run(ctx context.Context, t *terminal) error {
	state := network.TaskOpen
	if k.All {
		state = ""
	}
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Tasks(ctx, state)
		if err != nil {
			return err
		}
		return k.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "TASK\tKIND\tSTATE\tOPENED\tWHAT")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.ID, x.Kind, x.State, moment(x.Opened), x.Title)
			}
		})
	})
}

type oneTask struct {
	remote
	Task string `arg:"" help:"The task."`
}

type taskShow struct{ oneTask }

// Run shows a task.
func (k *taskShow) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Task(ctx, k.Task)
		if err != nil {
			return err
		}
		return k.show(t, x, func(w io.Writer) {
			fmt.Fprintf(w, "task\t%s\nwhat\t%s\nabout\t%s\nstate\t%s\nopened\t%s\n", x.ID, x.Title, x.Subject, x.State, moment(x.Opened))
			if !x.Closed.IsZero() {
				fmt.Fprintf(w, "closed\t%s by %s\n", moment(x.Closed), dash(x.By))
			}
			if x.Note != "" {
				fmt.Fprintf(w, "note\t%s\n", x.Note)
			}
			for i, step := range x.Steps {
				fmt.Fprintf(w, "%d.\t%s\n", i+1, step)
			}
			if x.Check != "" {
				fmt.Fprintf(w, "then\t%s\n", x.Check)
			}
		})
	})
}

type taskDone struct {
	oneTask
	By   string `placeholder:"NAME" help:"Who has done it (default: you)."`
	Note string `placeholder:"TEXT" help:"What there is to say."`
}

// Run says that it is done.
func (k *taskDone) Run(ctx context.Context, t *terminal) error {
	return k.close(ctx, t, "done", k.By, k.Note)
}

type taskRefuse struct {
	oneTask
	By     string `placeholder:"NAME" help:"Who refuses (default: you)."`
	Reason string `required:"" placeholder:"TEXT" help:"Why: whoever waits for it reads it."`
}

// Run says that it will not be done.
func (k *taskRefuse) Run(ctx context.Context, t *terminal) error {
	return k.close(ctx, t, "refuse", k.By, k.Reason)
}

func (k *oneTask) close(ctx context.Context, t *terminal, verb, by, note string) error {
	if by == "" {
		if u, err := user.Current(); err == nil {
			by = u.Username
		}
	}
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.CloseTask(ctx, k.Task, verb, by, note)
		if err != nil {
			return err
		}
		return k.tell(t, x, "task %s is %s", x.ID, x.State)
	})
}
