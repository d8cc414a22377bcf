package api

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	reportdoc "github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Erasures reads the certificates of erasures.
type Erasures interface {
	Erasures(ctx context.Context, f provisioner.ErasureFilter) ([]machine.ErasureCertificate, error)
	Erasure(ctx context.Context, id string) (provisioner.KeptErasure, error)
}

// erasuresMost bounds a list.
const erasuresMost = 1000

func (s *Server) erasureRoutes(api huma.API, mux *http.ServeMux) {
	route(s, api, http.MethodGet, "/v1/erasures", "list-erasures", "Certificates of erasures, newest first", func(ctx context.Context, in *struct {
		Machine string `query:"machine" doc:"id or name"`
		Disk    string `query:"disk" doc:"serial number"`
		Limit   int    `query:"limit" minimum:"0" maximum:"1000" doc:"100 if left out"`
	}) (*reply[[]machine.ErasureCertificate], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		f := provisioner.ErasureFilter{Serial: in.Disk, Limit: in.Limit}
		if f.Limit == 0 {
			f.Limit = 100
		}
		if in.Machine != "" {
			m, err := s.Machines.Machine(ctx, in.Machine)
			if err != nil {
				return nil, err
			}
			f.MachineID = m.ID
		}
		list, err := s.Erasures.Erasures(ctx, f)
		return &reply[[]machine.ErasureCertificate]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/erasures", "order-erasures", "Certificates that say what became of an order's data when its machine came back", func(ctx context.Context, in *OrderPath) (*reply[[]machine.ErasureCertificate], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Erasures.Erasures(ctx, provisioner.ErasureFilter{OrderID: o.ID, Limit: erasuresMost})
		return &reply[[]machine.ErasureCertificate]{list}, err
	})
	// not huma's: one address, several forms
	mux.HandleFunc("GET /v1/erasures/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.writeErasure(w, r); err != nil {
			s.answer(w, nil, err)
		}
	})
}

// ownErasure returns a certificate that is the caller's to read: an operator's any, a customer's those of his orders' data.
func (s *Server) ownErasure(ctx context.Context, id string) (provisioner.KeptErasure, error) {
	c, err := caller(ctx)
	if err != nil {
		return provisioner.KeptErasure{}, err
	}
	k, err := s.Erasures.Erasure(ctx, id)
	if err != nil || c.Role == Operator {
		return k, err
	}
	if k.Order != "" {
		if o, err := s.Orders.Order(ctx, k.Order); err == nil && o.Project == c.Project {
			return k, nil
		}
	}
	return provisioner.KeptErasure{}, &machine.Error{Code: machine.NotFound, Message: "no certificate of erasure " + id, Hint: "list those of an order with `bareyard erasure list --order ORDER`"}
}

func (s *Server) writeErasure(w http.ResponseWriter, r *http.Request) error {
	id, form := r.PathValue("id"), formJSON
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		form = formHTML
	}
	for _, suffix := range []string{formJSON, formHTML} {
		if name, ok := strings.CutSuffix(id, suffix); ok {
			id, form = name, suffix
		}
	}
	k, err := s.ownErasure(r.Context(), id)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if form == formJSON {
		b.Write(k.Body)
	} else if err := reportdoc.ErasureHTML(&b, k.ErasureCertificate, k.Key); err != nil {
		return err
	}
	s.writeDocument(w, form, b.Bytes())
	return nil
}
