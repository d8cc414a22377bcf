package api

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/accelerator"
	reportdoc "github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Reports reads what validations found.
type Reports interface {
	Reports(ctx context.Context, f provisioner.ReportFilter) ([]provisioner.Verdict, error)
	Report(ctx context.Context, id string) (provisioner.Kept, error)
	ReportKeys(ctx context.Context) ([]ed25519.PublicKey, error)
}

// ReportKey is the public half of a key that reports are signed with.
type ReportKey struct {
	ID     string `json:"id" doc:"as a signed report names it"`
	Public string `json:"public" doc:"Ed25519, base64"`
}

func (s *Server) reportRoutes(api huma.API, mux *http.ServeMux) {
	route(s, api, http.MethodGet, "/v1/machines/{id}/reports", "machine-reports", "Reports of a machine, newest first", func(ctx context.Context, in *struct {
		MachinePath
		Plan  accelerator.Plan `query:"plan"`
		Limit int              `query:"limit" minimum:"0" maximum:"1000" doc:"100 if left out"`
	}) (*reply[[]provisioner.Verdict], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		m, err := s.Machines.Machine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		list, err := s.Reports.Reports(ctx, provisioner.ReportFilter{MachineID: m.ID, Plan: in.Plan, Limit: in.Limit})
		return &reply[[]provisioner.Verdict]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/orders/{id}/reports", "order-reports", "Reports of the machine of an order, newest first", func(ctx context.Context, in *OrderPath) (*reply[[]provisioner.Verdict], error) {
		o, err := s.ownOrder(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		f := provisioner.ReportFilter{OrderID: o.ID, MachineID: o.MachineID}
		if c, _ := caller(ctx); c.Role == Operator {
			f.MachineID = "" // those that failed the order too
		} else if o.MachineID == "" {
			return &reply[[]provisioner.Verdict]{[]provisioner.Verdict{}}, nil
		}
		list, err := s.Reports.Reports(ctx, f)
		return &reply[[]provisioner.Verdict]{list}, err
	})
	route(s, api, http.MethodGet, "/v1/report-keys", "list-report-keys", "Public keys that reports verify with", func(ctx context.Context, _ *struct{}) (*reply[[]ReportKey], error) {
		if _, err := caller(ctx); err != nil {
			return nil, err
		}
		keys, err := s.Reports.ReportKeys(ctx)
		out := []ReportKey{}
		for _, k := range keys {
			out = append(out, ReportKey{ID: reportdoc.KeyID(k), Public: base64.StdEncoding.EncodeToString(k)})
		}
		return &reply[[]ReportKey]{out}, err
	})
	// not huma's: one address, several forms
	mux.HandleFunc("GET /v1/reports/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.writeReport(w, r); err != nil {
			s.answer(w, nil, err)
		}
	})
}

// ownReport returns a report that is the caller's to read: an operator's any, a customer's those of the machine that his order has or had.
func (s *Server) ownReport(ctx context.Context, id string) (provisioner.Kept, error) {
	c, err := caller(ctx)
	if err != nil {
		return provisioner.Kept{}, err
	}
	k, err := s.Reports.Report(ctx, id)
	if err != nil || c.Role == Operator {
		return k, err
	}
	none := &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no report %q", id), Hint: "list those of an order with `bareyard report list --order ORDER`"}
	if k.OrderID == "" {
		return provisioner.Kept{}, none
	}
	o, err := s.Orders.Order(ctx, k.OrderID)
	if err != nil || o.Project != c.Project || o.MachineID != k.MachineID {
		return provisioner.Kept{}, none
	}
	return k, nil
}

// Forms of a report, by the suffix of its address and by what a client accepts.
const (
	formJSON  = ".json"
	formHTML  = ".html"
	formJUnit = ".xml"
)

func (s *Server) writeReport(w http.ResponseWriter, r *http.Request) error {
	id, form := r.PathValue("id"), formJSON
	accept := r.Header.Get("Accept")
	switch {
	case strings.Contains(accept, "text/html"):
		form = formHTML
	case strings.Contains(accept, "application/xml"), strings.Contains(accept, "text/xml"), strings.Contains(accept, "junit"):
		form = formJUnit
	}
	for _, suffix := range []string{formJSON, formHTML, formJUnit} {
		if name, ok := strings.CutSuffix(id, suffix); ok {
			id, form = name, suffix
		}
	}
	k, err := s.ownReport(r.Context(), id)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	switch form {
	case formHTML:
		err = reportdoc.HTML(&b, k.Report)
	case formJUnit:
		err = reportdoc.JUnit(&b, k.Report)
	default:
		b.Write(k.Body)
	}
	if err != nil {
		return err
	}
	s.writeDocument(w, form, b.Bytes())
	return nil
}

// writeDocument answers with a document in one of its forms. What is in it comes from machines that customers had in hand.
func (s *Server) writeDocument(w http.ResponseWriter, form string, body []byte) {
	kind := map[string]string{formJSON: "application/json", formHTML: "text/html; charset=utf-8", formJUnit: "application/xml"}[form]
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Vary", "Accept")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	if _, err := w.Write(body); err != nil {
		s.Logger.Debug("report not delivered", "err", err)
	}
}
