package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Bounds on what a machine may send: it is not to be trusted.
const (
	maxHello  = 64 << 10
	maxReport = 4 << 20
)

// agentRoutes are for the RAM-disk agent and the validator. They take no API token: a nonce or the token of a job's
// attempt is all that opens them, and all that it opens.
func (s *Server) agentRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /agent/v1/hello", func(w http.ResponseWriter, r *http.Request) {
		var h machine.Hello
		if !s.read(w, r, maxHello, &h) {
			return
		}
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			s.answer(w, nil, provisioner.ErrDenied)
			return
		}
		welcome, err := s.Engine.Hello(r.Context(), h, from.Addr())
		s.answer(w, welcome, err)
	})
	mux.HandleFunc("POST /agent/v1/report", func(w http.ResponseWriter, r *http.Request) {
		var rep machine.Report
		if !s.read(w, r, maxReport, &rep) {
			return
		}
		in, err := s.Engine.Report(r.Context(), bearer(r), rep)
		s.answer(w, in, err)
	})
	mux.HandleFunc("GET /agent/v1/validator", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Engine.MayFetchValidator(r.Context(), bearer(r)); err != nil {
			s.answer(w, nil, err)
			return
		}
		http.ServeFile(w, r, s.Validator)
	})
}

func bearer(r *http.Request) string {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}
	return token
}

// read decodes a bounded request body, or answers why not.
func (s *Server) read(w http.ResponseWriter, r *http.Request, limit int64, into any) bool {
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(30 * time.Second)) // not every writer has one; then the server's own limits hold
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	_ = deadline.SetReadDeadline(time.Time{}) // or it would end the request while it is answered
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		s.answer(w, nil, &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("request cannot be read: %v", err), Hint: "send one JSON object"})
		return false
	}
	return true
}

// answer writes a value, or an error as an agent understands it: 410 for "you are not wanted any more", 401 for a
// refused nonce or token.
func (s *Server) answer(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	switch {
	case err == nil:
	case errors.Is(err, provisioner.ErrStale):
		status = http.StatusGone
		v = &Problem{Status: status, Code: "stale", Detail: err.Error()}
	case errors.Is(err, provisioner.ErrDenied):
		s.Logger.Warn("agent refused", "err", err)
		status = http.StatusUnauthorized
		v = &Problem{Status: status, Code: "denied", Detail: provisioner.ErrDenied.Error()}
	default:
		var p *Problem
		if !errors.As(s.problem(err), &p) {
			p = &Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "internal error"}
		}
		status, v = p.Status, p
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.Logger.Debug("answer not delivered", "err", err)
	}
}
