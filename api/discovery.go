package api

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Inbox reads machines that nobody has enrolled, and what the machines of a class have, to propose one.
type Inbox interface {
	Inbox(ctx context.Context, rejected bool) ([]machine.Found, error)
	Found(ctx context.Context, id string) (machine.Found, error) // by id or by a port's MAC address
	ClassFacts(ctx context.Context) (map[string]machine.ClassFacts, error)
	PutClassFacts(ctx context.Context, f machine.ClassFacts) error
}

// Approval is the body that enrols a discovered machine. What is left out is worked out from what was found on it.
type Approval struct {
	Name        string      `json:"name" minLength:"1" maxLength:"63"`
	Site        string      `json:"site,omitempty"`
	Rack        string      `json:"rack,omitempty"`
	Class       string      `json:"class" doc:"what it is sold as; proposals come with the discovered machine"`
	BMC         ApprovalBMC `json:"bmc"`
	BMCPassword string      `json:"bmc_password" doc:"kept encrypted, never shown again"`
	BootAddr    string      `json:"boot_addr,omitempty" doc:"reserved address on the provisioning network; the one that it had if left out"`

	ProvisionMAC  string `json:"provision_mac,omitempty" doc:"the port that it boots from; the one that it booted from if left out"`
	PublicMAC     string `json:"public_mac,omitempty" doc:"the port that carries its public address; the other one, or the only other one with a link, if left out"`
	ProvisionPort string `json:"provision_port,omitempty" doc:"the switch or bridge port that it is wired to"`
	PublicPort    string `json:"public_port,omitempty" doc:"likewise"`
	SystemDisk    string `json:"system_disk,omitempty" doc:"serial number of the disk that takes the image; the smallest of 16 GiB or more if left out"`

	Admit      bool `json:"admit,omitempty" doc:"vouch for it: straight to available, without an acceptance run"`
	NoBMCCheck bool `json:"no_bmc_check,omitempty" doc:"do not ask the BMC which machine it is in"`
}

// ApprovalBMC is how to reach the BMC of a discovered machine.
type ApprovalBMC struct {
	Protocol string `json:"protocol,omitempty" enum:"ipmi,redfish" doc:"ipmi if left out"`
	Address  string `json:"address,omitempty" doc:"the one that the BMC told the machine if left out"`
	Username string `json:"username"`
	CertPin  string `json:"cert_pin,omitempty" doc:"SHA-256 of its certificate, hex; Redfish over TLS"`
}

// ExpectedMachine is an entry of the enrolment list.
type ExpectedMachine struct {
	Line        int              `json:"line,omitempty" minimum:"0" doc:"where it stands in its file, to speak of it in errors"`
	Entry       machine.Expected `json:"entry"`
	BMCPassword string           `json:"bmc_password" doc:"kept encrypted, never shown again"`
}

func (s *Server) discoveryRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/discovered", "list-discovered", "Machines that network-booted and that nobody has enrolled, the newest first", func(ctx context.Context, in *struct {
		Rejected bool `query:"rejected" doc:"those too that were rejected"`
	}) (*reply[[]machine.Found], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Inbox.Inbox(ctx, in.Rejected)
		if err != nil {
			return nil, err
		}
		return &reply[[]machine.Found]{list}, s.propose(ctx, list)
	})
	route(s, api, http.MethodGet, "/v1/discovered/{id}", "get-discovered", "One of them, by id or by the MAC address of a port", func(ctx context.Context, in *MachinePath) (*reply[machine.Found], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		f, err := s.Inbox.Found(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list := []machine.Found{f}
		err = s.propose(ctx, list)
		return &reply[machine.Found]{list[0]}, err
	})
	route(s, api, http.MethodPost, "/v1/discovered/{id}/approve", "approve-discovered", "Enrol a discovered machine", func(ctx context.Context, in *struct {
		MachinePath
		Body Approval
	}) (*reply[machine.Machine], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		a, err := in.Body.approval()
		if err != nil {
			return nil, err
		}
		f, err := s.Inbox.Found(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		m, err := s.Engine.Approve(ctx, f.ID, a)
		return &reply[machine.Machine]{m}, err
	})
	route(s, api, http.MethodPost, "/v1/discovered/{id}/reject", "reject-discovered", "Send a discovered machine away: it boots from its disk from now on", func(ctx context.Context, in *struct {
		MachinePath
		Body struct {
			Reason string `json:"reason" minLength:"3"`
			Forget bool   `json:"forget,omitempty" doc:"forget it instead: it is discovered anew when it boots again"`
		}
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		f, err := s.Inbox.Found(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return nil, s.Engine.Reject(ctx, f.ID, in.Body.Reason, in.Body.Forget)
	})
	s.expectedRoutes(api)
}

func (s *Server) expectedRoutes(api huma.API) {
	route(s, api, http.MethodGet, "/v1/expected", "list-expected", "The enrolment list: machines that are named and were not seen yet", func(ctx context.Context, _ *struct{}) (*reply[[]machine.Expected], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		list, err := s.Engine.List.Expected(ctx)
		return &reply[[]machine.Expected]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/expected", "expect-machines", "Name machines before they are seen; all of them, or none", func(ctx context.Context, in *struct {
		Body struct {
			List []ExpectedMachine `json:"list" maxItems:"10000"`
		}
	}) (*reply[provisioner.ExpectResult], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		var list []provisioner.Expectation
		for _, x := range in.Body.List {
			list = append(list, provisioner.Expectation{Expected: x.Entry, Password: x.BMCPassword, Line: x.Line})
		}
		done, err := s.Engine.Expect(ctx, list)
		return &reply[provisioner.ExpectResult]{done}, err
	})
	route(s, api, http.MethodDelete, "/v1/expected/{name}", "unexpect-machine", "Take an entry off the enrolment list", func(ctx context.Context, in *NamePath) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		return nil, s.Engine.List.Unexpect(ctx, in.Name)
	})
	route(s, api, http.MethodPut, "/v1/classes/{name}/facts", "put-class-facts", "What the machines of a class have beside their cards, to propose it for new ones", func(ctx context.Context, in *struct {
		NamePath
		Body struct {
			Memory   int64 `json:"memory" minimum:"0" doc:"bytes, at least; 0: it does not matter"`
			Disks    int   `json:"disks" minimum:"0" doc:"at least"`
			DiskSize int64 `json:"disk_size" minimum:"0" doc:"bytes of all disks together, at least"`
		}
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		if _, err := s.Engine.Shelf.Class(ctx, in.Name); err != nil {
			return nil, err
		}
		return nil, s.Inbox.PutClassFacts(ctx, machine.ClassFacts{Class: in.Name, Memory: in.Body.Memory, Disks: in.Body.Disks, DiskSize: in.Body.DiskSize})
	})
}

// propose adds the classes that each might be of.
func (s *Server) propose(ctx context.Context, list []machine.Found) error {
	if len(list) == 0 {
		return nil
	}
	stock, err := s.Catalogue.Classes(ctx)
	if err != nil {
		return err
	}
	facts, err := s.Inbox.ClassFacts(ctx)
	if err != nil {
		return err
	}
	var classes []machine.Class
	for _, c := range stock {
		classes = append(classes, c.Class)
	}
	for i := range list {
		list[i].Proposals = provisioner.Propose(list[i].Inventory, classes, facts)
	}
	return nil
}

func (b Approval) approval() (provisioner.Approval, error) {
	a := provisioner.Approval{Name: b.Name, Site: b.Site, Rack: b.Rack, Class: b.Class, BMCPassword: b.BMCPassword,
		BMC:          machine.BMC{Protocol: b.BMC.Protocol, Address: b.BMC.Address, Username: b.BMC.Username, CertPin: b.BMC.CertPin},
		ProvisionMAC: b.ProvisionMAC, PublicMAC: b.PublicMAC, ProvisionPort: b.ProvisionPort, PublicPort: b.PublicPort, SystemDisk: b.SystemDisk,
		Admit: b.Admit, SkipCheck: b.NoBMCCheck}
	if b.BootAddr == "" {
		return a, nil
	}
	addr, err := netip.ParseAddr(b.BootAddr)
	if err != nil {
		return a, &machine.Error{Code: machine.Invalid, Field: "boot_addr", Message: "boot_addr is not an address", Hint: "write it as 10.99.0.112, or leave it out"}
	}
	a.BootAddr = addr
	return a, nil
}
