// Package api is the HTTP side for operators, customers, agents and validators.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Accounts knows whose a token is.
type Accounts interface {
	APIToken(ctx context.Context, token string) (role, project string, err error)
	NewAPIToken(ctx context.Context, role, project string) (string, error)
}

// Machines reads and enrols machines.
type Machines interface {
	Machines(ctx context.Context, state machine.State) ([]machine.Machine, error)
	Machine(ctx context.Context, id string) (machine.Machine, error) // by id or name
	Enroll(ctx context.Context, m machine.Machine, bmcPassword string, admit bool) (machine.Machine, error)
}

// Orders reads orders and jobs.
type Orders interface {
	Order(ctx context.Context, id string) (machine.Order, error)
	Orders(ctx context.Context, project string) ([]machine.Order, error) // "" means all projects
	Job(ctx context.Context, id string) (machine.Job, error)
	Jobs(ctx context.Context, machineID, orderID string) ([]machine.Job, error)
}

// Log reads events. Listen calls fn whenever there are new ones, until ctx ends.
type Log interface {
	Events(ctx context.Context, f provisioner.EventFilter) ([]provisioner.Event, error)
	Listen(ctx context.Context, fn func()) error
}

// Catalogue is what is sold.
type Catalogue interface {
	Classes(ctx context.Context) ([]provisioner.ClassStock, error)
	PutClass(ctx context.Context, c machine.Class) error
	Lines(ctx context.Context) ([]provisioner.LineStock, error)
	PutLine(ctx context.Context, l network.Line, coolDown time.Duration) error
	AddAddresses(ctx context.Context, line string, r netip.Prefix) (int64, error)
}

// Shelf is the catalogue of images; their content is in a Store.
type Shelf interface {
	Images(ctx context.Context) ([]machine.Image, error)
	Image(ctx context.Context, name string) (machine.Image, error)
	PutImage(ctx context.Context, i machine.Image) error
}

// Server answers the API.
type Server struct {
	Accounts  Accounts
	Machines  Machines
	Orders    Orders
	Log       Log
	Catalogue Catalogue
	Shelf     Shelf
	Desk      Desk // BMCs and serial consoles
	Pools     Pools
	Addresses Addresses
	Ledger    Ledger
	Edges     Edges
	Inbox     Inbox
	Boots     Boots
	Tasks     Tasks
	Books     Books
	Reports   Reports
	Cards     Cards
	Erasures  Erasures

	Acceptances        Acceptances
	AcceptanceDefaults AcceptanceDefaults

	Store     *images.Store
	Engine    *provisioner.Engine
	Validator string // path of the bareyard-validate that installed machines fetch
	Logger    *slog.Logger
	Version   string

	wakes wakes
}

// Handler returns the routes for callers who show a token; for the socket of operators on this machine, use Trusted.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	cfg := huma.DefaultConfig("Bareyard", s.Version)
	cfg.DocsPath = "" // it loads JavaScript from elsewhere
	cfg.CreateHooks = nil
	cfg.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	cfg.Transformers = append(cfg.Transformers, withoutValues)
	api := humago.New(mux, cfg)
	s.catalogueRoutes(api)
	s.machineRoutes(api)
	s.bmcRoutes(api)
	s.biosRoutes(api)
	s.healthRoutes(api)
	s.discoveryRoutes(api)
	s.bootRoutes(api)
	s.orderRoutes(api)
	s.addressRoutes(api)
	s.networkRoutes(api)
	s.taskRoutes(api)
	s.trafficRoutes(api)
	s.eventRoutes(api)
	s.tokenRoutes(api)
	s.acceptanceRoutes(api)
	s.edgeRoutes(api)
	s.reportRoutes(api, mux)
	s.erasureRoutes(api, mux)
	s.validationRoutes(api)
	s.profileRoutes(api)
	s.imageRoutes(api, mux)
	s.agentRoutes(mux)
	s.consoleRoutes(api, mux)
	return s.identify(http.MaxBytesHandler(mux, maxBody))
}

// schemaName names a type in the API's description. What a BMC tells has names of its own: its inventory is not the machine's.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if strings.HasSuffix(t.PkgPath(), "/ipmi") {
		return "BMC" + name
	}
	return name
}

// withoutValues keeps what was wrong in a request out of the answer that says so: it may be, or be beside, a password.
func withoutValues(_ huma.Context, _ string, v any) (any, error) {
	if e, ok := v.(*huma.ErrorModel); ok {
		for _, d := range e.Errors {
			d.Value = nil
		}
	}
	return v, nil
}

// maxBody bounds a request: an image upload is the largest.
const maxBody = 256 << 30

// Trusted wraps the API for a unix socket whose file mode lets only operators in.
func Trusted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, Caller{Role: Operator})))
	})
}

// Role is what a caller may do.
type Role string

// Roles of callers; agents and validators have routes of their own.
const (
	Operator Role = "operator"
	Customer Role = "customer" // own project only
)

// Caller is who asks.
type Caller struct {
	Role    Role
	Project string
}

type callerKey struct{}

// identify finds out who asks by the bearer token. Who shows none is nobody: the routes refuse him.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, known := r.Context().Value(callerKey{}).(Caller); !known {
			if token := bearer(r); token != "" {
				role, project, err := s.Accounts.APIToken(r.Context(), token)
				var unknown *machine.Error
				switch {
				case err == nil:
					r = r.WithContext(context.WithValue(r.Context(), callerKey{}, Caller{Role: Role(role), Project: project}))
				case !errors.As(err, &unknown): // agents' tokens are none of these
					s.Logger.Error("token not looked up", "err", err)
					s.answer(w, nil, &machine.Error{Code: machine.Unavailable, Message: "the server cannot look up tokens now", Hint: "try again in a minute; the server's log has the cause"})
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// operator refuses everybody else.
func operator(ctx context.Context) error {
	c, err := caller(ctx)
	if err != nil {
		return err
	}
	if c.Role != Operator {
		return &Problem{Status: http.StatusForbidden, Code: "forbidden", Detail: "this is for operators", Hint: "use an operator's token"}
	}
	return nil
}

// caller returns who asks, or refuses.
func caller(ctx context.Context) (Caller, error) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok {
		return c, &Problem{Status: http.StatusUnauthorized, Code: "unauthorized", Detail: "no valid token", Hint: "send `Authorization: Bearer TOKEN`, or use the server's unix socket"}
	}
	return c, nil
}

// own refuses what is not the caller's as if it did not exist.
func own(ctx context.Context, o machine.Order) error {
	c, err := caller(ctx)
	if err != nil {
		return err
	}
	if c.Role != Operator && c.Project != o.Project {
		return &machine.Error{Code: machine.NotFound, Message: "no such order", Hint: "list yours with `bareyard order list`"}
	}
	return nil
}

// Problem is an error as the API shows it (RFC 9457).
type Problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Field  string `json:"field,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// problem is the one place where an error becomes an HTTP status. An internal error is logged, and not shown.
func (s *Server) problem(err error) error {
	var p *Problem
	if err == nil || errors.As(err, &p) {
		return err
	}
	var me *machine.Error
	if !errors.As(err, &me) {
		s.Logger.Error("request failed", "err", err)
		return &Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "internal error", Hint: "the server's log has the cause"}
	}
	status := map[machine.Code]int{
		machine.Invalid: http.StatusUnprocessableEntity, machine.NotFound: http.StatusNotFound, machine.Conflict: http.StatusConflict,
		machine.Exhausted: http.StatusConflict, machine.Unavailable: http.StatusServiceUnavailable,
	}[me.Code]
	return &Problem{Status: status, Code: string(me.Code), Detail: me.Message, Field: me.Field, Hint: me.Hint}
}

// reply is a body and nothing else.
type reply[T any] struct{ Body T }

// route registers an operation whose errors go through problem.
func route[I, O any](s *Server, api huma.API, method, path, id, summary string, fn func(context.Context, *I) (*O, error)) {
	huma.Register(api, huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, MaxBodyBytes: 4 << 20, BodyReadTimeout: 30 * time.Second},
		func(ctx context.Context, in *I) (*O, error) {
			out, err := fn(ctx, in)
			return out, s.problem(err)
		})
}
