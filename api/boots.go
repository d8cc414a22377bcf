package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/provisioner"
)

// Boots reads what machines asked while they booted.
type Boots interface {
	// Ports returns the MAC addresses of a machine by its id, name, or the MAC address of one of them.
	Ports(ctx context.Context, name string) ([]string, error)
	Boots(ctx context.Context, macs []string) ([]trace.Boot, error)
	StrangerBoots(ctx context.Context) ([]trace.Boot, error) // the newest of each port that is no machine's
}

// BootTrace is a boot and where it stands, in plain words.
type BootTrace struct {
	trace.Boot
	Diagnosis trace.Diagnosis `json:"diagnosis"`
}

// TracePath is the machine in the path of its boots.
type TracePath struct {
	ID string `path:"id" doc:"id or name of a machine, id of a discovered one, or the MAC address of any port"`
}

func (s *Server) bootRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/machines/{id}/boots", "list-boots", "Boots of a machine or of an unknown port, the newest first, without their lines", func(ctx context.Context, in *TracePath) (*reply[[]BootTrace], error) {
		list, err := s.boots(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].Lines = nil
		}
		return &reply[[]BootTrace]{list}, nil
	})
	route(s, api, http.MethodGet, "/v1/machines/{id}/boots/{number}", "get-boot", "One boot as a time line: each DHCP, TFTP and HTTP exchange, and where it stands", func(ctx context.Context, in *struct {
		TracePath
		Number string `path:"number" doc:"number of the boot, or latest"`
	}) (*reply[BootTrace], error) {
		list, err := s.boots(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			if in.Number == "latest" || strconv.FormatInt(b.Number, 10) == in.Number {
				return &reply[BootTrace]{b}, nil
			}
		}
		return nil, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no boot %q of %s is on record", in.Number, in.ID), Hint: "see what there is with `bareyard machine trace --list`"}
	})
	route(s, api, http.MethodGet, "/v1/boots/unknown", "list-unknown-boots", "The newest boot of each port that is no machine's", func(ctx context.Context, _ *struct{}) (*reply[[]BootTrace], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		boots, err := s.Boots.StrangerBoots(ctx)
		if err != nil {
			return nil, err
		}
		list := diagnosed(boots, false)
		for i := range list {
			list[i].Lines = nil
		}
		return &reply[[]BootTrace]{list}, nil
	})
}

// boots returns the boots of a machine, for operators.
func (s *Server) boots(ctx context.Context, id string) ([]BootTrace, error) {
	if err := operator(ctx); err != nil {
		return nil, err
	}
	macs, err := s.Boots.Ports(ctx, id)
	if err != nil {
		return nil, err
	}
	boots, err := s.Boots.Boots(ctx, macs)
	if err != nil {
		return nil, err
	}
	return diagnosed(boots, s.waiting(ctx, id)), nil
}

// waiting reports whether a job of the machine waits for the agent. What cannot be found out is no reason to show no trace.
func (s *Server) waiting(ctx context.Context, id string) bool {
	m, err := s.Machines.Machine(ctx, id)
	if err != nil || m.JobID == "" {
		return false
	}
	j, err := s.Orders.Job(ctx, m.JobID)
	return err == nil && provisioner.BootWindow(&j)
}

// diagnosed adds where each boot stands. Of several only the newest can be under way, or be waited for.
func diagnosed(boots []trace.Boot, waiting bool) []BootTrace {
	list := []BootTrace{}
	for i, b := range boots {
		c := trace.Context{Now: time.Now(), Waiting: waiting}
		if i > 0 {
			c = trace.Context{Now: b.Ended.Add(24 * time.Hour)}
		}
		list = append(list, BootTrace{b, trace.Diagnose(b, c)})
	}
	return list
}
