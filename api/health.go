package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Health reads what polling the machines' BMCs has shown.
type Health interface {
	Health(ctx context.Context, machineID string) (provisioner.Health, error)
	AllHealth(ctx context.Context) ([]provisioner.MachineHealth, error)
	LogEntries(ctx context.Context, machineID string, n int) ([]provisioner.LogEntry, error)
	Acknowledge(ctx context.Context, machineID string) (int, error)
}

// Acknowledged is how many critical entries of an event log were acknowledged.
type Acknowledged struct {
	Entries int `json:"entries"`
}

func (s *Server) healthRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/health", "list-health", "The health of all machines, as their BMCs see it; without the readings", func(ctx context.Context, _ *struct{}) (*reply[[]provisioner.MachineHealth], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Desk.Health.AllHealth(ctx)
		for i := range list {
			list[i].Readings = nil
		}
		return &reply[[]provisioner.MachineHealth]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/machines/{id}/health", "get-health", "A machine's sensors and health, as its BMC was last seen to say", func(ctx context.Context, in *MachinePath) (*reply[provisioner.Health], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		h, err := s.Desk.Health.Health(ctx, m.ID)
		return &reply[provisioner.Health]{h}, err
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/health", "read-health", "Read a machine's BMC now, whenever its turn would be", func(ctx context.Context, in *MachinePath) (*reply[provisioner.Health], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if s.Desk.ReadNow == nil {
			return nil, &machine.Error{Code: machine.Unavailable, Message: "this server reads no BMCs", Hint: "set bmc.poll in its configuration"}
		}
		if err := s.Desk.ReadNow(ctx, m); err != nil {
			return nil, err
		}
		h, err := s.Desk.Health.Health(ctx, m.ID)
		return &reply[provisioner.Health]{h}, err
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/health/acknowledge", "acknowledge-health", "Take note of the critical entries of a BMC's event log", func(ctx context.Context, in *MachinePath) (*reply[Acknowledged], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		n, err := s.Desk.Health.Acknowledge(ctx, m.ID)
		return &reply[Acknowledged]{Acknowledged{n}}, err
	})
	route(s, api, http.MethodGet, "/v1/machines/{id}/bmc/log", "get-bmc-log", "A BMC's event log as it was read, the newest first", func(ctx context.Context, in *struct {
		MachinePath
		Limit int `query:"limit" minimum:"1" maximum:"2000" default:"200"`
	}) (*reply[[]provisioner.LogEntry], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Desk.Health.LogEntries(ctx, m.ID, in.Limit)
		return &reply[[]provisioner.LogEntry]{list}, err
	})
}
