package api

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
)

// NewMachine is the body that enrols a machine.
type NewMachine struct {
	Name        string           `json:"name" minLength:"1" maxLength:"63"`
	Site        string           `json:"site"`
	Rack        string           `json:"rack,omitempty"`
	Class       string           `json:"class"`
	Firmware    machine.Firmware `json:"firmware" enum:"bios,uefi"`
	Boot        machine.Boot     `json:"boot,omitempty" enum:"virtual-media" doc:"virtual-media: the BMC inserts an image, where there is no PXE"`
	Hardware    machine.Hardware `json:"hardware"`
	BMC         machine.BMC      `json:"bmc"`
	BMCPassword string           `json:"bmc_password" doc:"kept encrypted, never shown again"`
	BootAddr    netip.Addr       `json:"boot_addr" doc:"reserved address on the provisioning network"`
	Admit       bool             `json:"admit,omitempty" doc:"vouch for it: straight to available, without an acceptance run"`
}

// MachinePath is the machine in a path.
type MachinePath struct {
	ID string `path:"id" doc:"id or name"`
}

func (s *Server) machineRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/machines", "list-machines", "Machines", func(ctx context.Context, in *struct {
		State machine.State `query:"state"`
	}) (*reply[[]machine.Machine], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Machines.Machines(ctx, in.State)
		return &reply[[]machine.Machine]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/machines", "enroll-machine", "Record a machine", func(ctx context.Context, in *struct{ Body NewMachine }) (*reply[machine.Machine], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		b := in.Body
		m := machine.Machine{Name: b.Name, Site: b.Site, Rack: b.Rack, Class: b.Class, Firmware: b.Firmware, Boot: b.Boot, Hardware: b.Hardware, BMC: b.BMC, BootAddr: b.BootAddr}
		if err := machine.CheckRecord(m); err != nil {
			return nil, err
		}
		class, err := s.Engine.Shelf.Class(ctx, m.Class)
		if err != nil {
			return nil, err
		}
		if err := machine.CheckCards(m.Hardware, class); err != nil {
			return nil, err
		}
		if m, err = s.Engine.FirstUse(ctx, m); err != nil {
			return nil, err
		}
		m, err = s.Machines.Enroll(ctx, m, b.BMCPassword, b.Admit)
		return &reply[machine.Machine]{m}, err
	})
	route(s, api, http.MethodPut, "/v1/machines/{id}/boot", "set-machine-boot", "By which road a machine gets its RAM disk", func(ctx context.Context, in *struct {
		MachinePath
		Body struct {
			Boot machine.Boot `json:"boot,omitempty" enum:"virtual-media" doc:"virtual-media, or nothing for the network"`
		}
	}) (*reply[machine.Machine], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if err := s.Engine.SetRoad(ctx, m.ID, in.Body.Boot); err != nil {
			return nil, err
		}
		m, err = s.Machines.Machine(ctx, m.ID)
		return &reply[machine.Machine]{m}, err
	})
	s.machineRoute(api, http.MethodGet, "", "get-machine", "One machine", func(context.Context, machine.Machine) error { return nil })
	s.machineRoute(api, http.MethodPost, "/return", "return-machine", "Wipe a quarantined or parked machine and return it to stock", func(ctx context.Context, m machine.Machine) error {
		return s.Engine.Return(ctx, m.ID)
	})
	for verb, ev := range map[string]machine.Event{"park": machine.Park, "unpark": machine.Unpark, "retire": machine.Retire, "admit": machine.Admit, "quarantine": machine.Quarantine} {
		route(s, api, http.MethodPost, "/v1/machines/{id}/"+verb, verb+"-machine", "An operator's decision: "+verb, func(ctx context.Context, in *struct {
			MachinePath
			Body struct {
				Reason string `json:"reason" minLength:"3"`
			}
		}) (*reply[machine.Machine], error) {
			if err := operator(ctx); err != nil {
				return nil, err
			}
			m, err := s.Machines.Machine(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			if err := s.Engine.Move(ctx, m.ID, ev, in.Body.Reason); err != nil {
				return nil, err
			}
			m, err = s.Machines.Machine(ctx, m.ID)
			return &reply[machine.Machine]{m}, err
		})
	}
	route(s, api, http.MethodGet, "/v1/jobs", "list-jobs", "Jobs, newest first; of a report its schema and outcome", func(ctx context.Context, in *struct {
		Machine string `query:"machine" doc:"id of a machine"`
	}) (*reply[[]machine.Job], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Orders.Jobs(ctx, in.Machine, "")
		return &reply[[]machine.Job]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/jobs/{id}", "get-job", "One job, with its report", func(ctx context.Context, in *struct {
		ID string `path:"id"`
	}) (*reply[machine.Job], error) {
		j, err := s.Orders.Job(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if j.OrderID == "" {
			return &reply[machine.Job]{j}, operator(ctx)
		}
		o, err := s.ownOrder(ctx, j.OrderID)
		c, _ := caller(ctx) // ownOrder has looked
		return &reply[machine.Job]{shownJob(c, j, o.Address)}, err
	})
}

func (s *Server) machineRoute(api huma.API, method, suffix, id, summary string, fn func(context.Context, machine.Machine) error) {
	route(s, api, method, "/v1/machines/{id}"+suffix, id, summary, func(ctx context.Context, in *MachinePath) (*reply[machine.Machine], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		m, err := s.Machines.Machine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		if err := fn(ctx, m); err != nil {
			return nil, err
		}
		m, err = s.Machines.Machine(ctx, m.ID)
		return &reply[machine.Machine]{m}, err
	})
}
