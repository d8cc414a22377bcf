package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/network"
)

// Tasks is work for people.
type Tasks interface {
	Tasks(ctx context.Context, state network.TaskState) ([]network.Task, error) // "": all, open ones first
	Task(ctx context.Context, id string) (network.Task, error)
	CloseTask(ctx context.Context, id string, to network.TaskState, by, note string) (network.Task, error)
}

// TaskPath is the task in a path.
type TaskPath struct {
	ID string `path:"id"`
}

func (s *Server) taskRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/tasks", "list-tasks", "Work that waits for an operator, the oldest first, and then what was done", func(ctx context.Context, in *struct {
		State network.TaskState `query:"state" enum:"open,done,refused,withdrawn"`
	}) (*reply[[]network.Task], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Tasks.Tasks(ctx, in.State)
		return &reply[[]network.Task]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/tasks/{id}", "get-task", "One task", func(ctx context.Context, in *TaskPath) (*reply[network.Task], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		t, err := s.Tasks.Task(ctx, in.ID)
		return &reply[network.Task]{t}, err
	})
	for verb, to := range map[string]struct {
		state   network.TaskState
		summary string
	}{"done": {network.TaskDone, "Say that a task is done"}, "refuse": {network.TaskRefused, "Say that a task will not be done, and why"}} {
		route(s, api, http.MethodPost, "/v1/tasks/{id}/"+verb, verb+"-task", to.summary, func(ctx context.Context, in *struct {
			TaskPath
			Body struct {
				By   string `json:"by,omitempty" maxLength:"100" doc:"who has done it"`
				Note string `json:"note,omitempty" maxLength:"1000" doc:"what there is to say; a refusal needs it"`
			}
		}) (*reply[network.Task], error) {
			if err := operator(ctx); err != nil {
				return nil, err
			}
			if to.state == network.TaskRefused && in.Body.Note == "" {
				return nil, &Problem{Status: http.StatusUnprocessableEntity, Code: "invalid", Field: "note", Detail: "a refusal needs a reason", Hint: "say why: whoever waits for it reads it"}
			}
			t, err := s.Tasks.CloseTask(ctx, in.ID, to.state, in.Body.By, in.Body.Note)
			return &reply[network.Task]{t}, err
		})
	}
}
