package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// BMCs reads what is known of the machines' BMCs.
type BMCs interface {
	BMC(ctx context.Context, machineID string) (provisioner.BMC, error)
}

// BMCStatus is all that an operator may know of a machine's BMC: everything but its password.
type BMCStatus struct {
	Reach machine.BMC `json:"reach"`
	provisioner.BMC
}

// Credentials is the body that records a BMC's user and password.
type Credentials struct {
	Username  string `json:"username,omitempty" doc:"empty: the user on record"`
	Password  string `json:"password" minLength:"1" doc:"kept encrypted, never shown again"`
	Unchecked bool   `json:"unchecked,omitempty" doc:"record it without logging in with it"`
}

// BMCCheck is what a BMC made of the credentials on record.
type BMCCheck struct {
	Says string `json:"says"`
}

// TrustedCertificate is what became of a request to trust a certificate.
type TrustedCertificate struct {
	Was string `json:"was,omitempty" doc:"SHA-256 of the certificate that was trusted before"`
	Is  string `json:"is" doc:"SHA-256 of the certificate that is trusted now"`
}

func (s *Server) bmcRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/machines/{id}/bmc", "get-bmc", "What is known of a machine's BMC", func(ctx context.Context, in *MachinePath) (*reply[BMCStatus], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		b, err := s.Desk.BMCs.BMC(ctx, m.ID)
		return &reply[BMCStatus]{BMCStatus{Reach: m.BMC, BMC: b}}, err
	})
	route(s, api, http.MethodPut, "/v1/machines/{id}/bmc/credentials", "set-bmc-credentials", "Record the user and password of a BMC; a login with them is tried first", func(ctx context.Context, in *struct {
		MachinePath
		Body Credentials
	}) (*struct{}, error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return nil, s.Engine.SetCredentials(ctx, m.ID, in.Body.Username, in.Body.Password, in.Body.Unchecked)
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/bmc/rotate", "rotate-bmc", "Give a BMC a new random password", func(ctx context.Context, in *MachinePath) (*struct{}, error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return nil, s.Engine.Rotate(ctx, m.ID)
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/bmc/check", "check-bmc", "Log in to a BMC once with what is on record, also where it refused that before", func(ctx context.Context, in *MachinePath) (*reply[BMCCheck], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		says, err := s.Engine.CheckBMC(ctx, m.ID)
		return &reply[BMCCheck]{BMCCheck{Says: says}}, err
	})
	route(s, api, http.MethodGet, "/v1/machines/{id}/bmc/baseline", "get-bmc-baseline", "What a BMC was like at hand-over, and what differs", func(ctx context.Context, in *struct {
		MachinePath
		Now bool `query:"now" doc:"read the BMC now, rather than what was found at the last comparison"`
	}) (*reply[provisioner.Comparison], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		c, err := s.Engine.Baseline(ctx, m.ID, in.Now, false)
		return &reply[provisioner.Comparison]{c}, err
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/bmc/baseline", "accept-bmc-baseline", "Read a BMC now and accept it as it is", func(ctx context.Context, in *MachinePath) (*reply[provisioner.Comparison], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		c, err := s.Engine.Baseline(ctx, m.ID, true, true)
		return &reply[provisioner.Comparison]{c}, err
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/bmc/trust", "trust-bmc", "Trust the certificate that a BMC shows now", func(ctx context.Context, in *struct {
		MachinePath
		Body struct {
			SHA256 string `json:"sha256,omitempty" doc:"refuse any other certificate than this one, in hex"`
		}
	}) (*reply[TrustedCertificate], error) {
		m, err := s.operatorsMachine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		was, is, err := s.Engine.Trust(ctx, m.ID, in.Body.SHA256)
		return &reply[TrustedCertificate]{TrustedCertificate{Was: was, Is: is}}, err
	})
}

// operatorsMachine returns a machine to an operator, and nothing to anybody else.
func (s *Server) operatorsMachine(ctx context.Context, id string) (machine.Machine, error) {
	if err := operator(ctx); err != nil {
		return machine.Machine{}, err
	}
	return s.Machines.Machine(ctx, id)
}
