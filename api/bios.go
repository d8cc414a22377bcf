package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// NewBIOSProfile is the body that replaces the firmware settings of a class.
type NewBIOSProfile struct {
	Attributes map[string]any     `json:"attributes" doc:"text, number, true or false, by the name that the BMC gives the setting; none: the class wants nothing"`
	Policy     machine.BIOSPolicy `json:"policy,omitempty" doc:"what becomes of a machine that does not take them: quarantine, which it is if left out, or warn"`
}

func (s *Server) biosRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/classes/{name}/bios", "get-class-bios", "Firmware settings that the machines of a class shall have", func(ctx context.Context, in *NamePath) (*reply[machine.BIOSProfile], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		p, err := s.Engine.ClassBIOS(ctx, in.Name)
		return &reply[machine.BIOSProfile]{p}, err
	})
	route(s, api, http.MethodPut, "/v1/classes/{name}/bios", "put-class-bios", "Replace them", func(ctx context.Context, in *struct {
		NamePath
		Body NewBIOSProfile
	}) (*reply[machine.BIOSProfile], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		p, err := s.Engine.PutClassBIOS(ctx, in.Name, machine.BIOSProfile{Attributes: in.Body.Attributes, Policy: in.Body.Policy})
		return &reply[machine.BIOSProfile]{p}, err
	})
	route(s, api, http.MethodGet, "/v1/machines/{id}/bios", "get-machine-bios", "Read a machine's firmware settings now, beside what its class wants", func(ctx context.Context, in *struct {
		MachinePath
		All bool `query:"all" doc:"those too that the class says nothing of"`
	}) (*reply[provisioner.MachineBIOS], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		b, err := s.Engine.BIOS(ctx, m.ID, in.All)
		return &reply[provisioner.MachineBIOS]{b}, err
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/bios", "apply-machine-bios", "Give a machine that nobody holds the firmware settings of its class: set, started into the RAM disk, read back", func(ctx context.Context, in *MachinePath) (*reply[machine.Job], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		j, err := s.Engine.ApplyBIOS(ctx, m.ID)
		return &reply[machine.Job]{j}, err
	})
}
