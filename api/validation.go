package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Cards reads and mends the record of where cards are, and keeps waivers.
type Cards interface {
	Card(ctx context.Context, serial string) (provisioner.CardHistory, error)
	ForgetCard(ctx context.Context, serial, who, why string) error
	Waivers(ctx context.Context, machineID string, all bool) ([]provisioner.Waiver, error)
	PutWaiver(ctx context.Context, w provisioner.Waiver) error
	WithdrawWaiver(ctx context.Context, id, who string) error
}

// NewWaiver is the body that makes a waiver.
type NewWaiver struct {
	Check string    `json:"check" doc:"as a report names it, e.g. card.ecc"`
	Card  string    `json:"card,omitempty" doc:"slot or serial number; the whole check if left out"`
	Who   string    `json:"who" doc:"who takes it on himself"`
	Why   string    `json:"why"`
	Until time.Time `json:"until" doc:"a year from now at most"`
}

func (s *Server) validationRoutes(api huma.API) {
	route(s, api, http.MethodPost, "/v1/machines/{id}/validate", "validate-machine", "Look at a machine that is available or quarantined, from the RAM disk", func(ctx context.Context, in *MachinePath) (*reply[machine.Job], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		m, err := s.Machines.Machine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		j, err := s.Engine.Examine(ctx, m.ID)
		return &reply[machine.Job]{j}, err
	})
	route(s, api, http.MethodGet, "/v1/cards/{serial}", "get-card", "Where a card is and was, and what each report said of it", func(ctx context.Context, in *struct {
		Serial string `path:"serial"`
	}) (*reply[provisioner.CardHistory], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		c, err := s.Cards.Card(ctx, in.Serial)
		return &reply[provisioner.CardHistory]{c}, err
	})
	route(s, api, http.MethodPost, "/v1/cards/{serial}/forget", "forget-card", "Take a card off its machine's record, after it was moved on purpose", func(ctx context.Context, in *struct {
		Serial string `path:"serial"`
		Body   struct {
			Who string `json:"who" minLength:"2" maxLength:"100"`
			Why string `json:"why" minLength:"3" maxLength:"500"`
		}
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		return nil, s.Cards.ForgetCard(ctx, in.Serial, machine.CleanText(in.Body.Who), machine.CleanText(in.Body.Why))
	})
	route(s, api, http.MethodPost, "/v1/machines/{id}/waivers", "make-waiver", "Let a check of a machine pass for a while", func(ctx context.Context, in *struct {
		MachinePath
		Body NewWaiver
	}) (*reply[provisioner.Waiver], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		m, err := s.Machines.Machine(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		b, now := in.Body, time.Now()
		w, err := provisioner.NewWaiver(provisioner.Waiver{MachineID: m.ID, Check: b.Check, Card: b.Card, Who: b.Who, Why: b.Why, Made: now, Until: b.Until}, now)
		if err != nil {
			return nil, err
		}
		return &reply[provisioner.Waiver]{w}, s.Cards.PutWaiver(ctx, w)
	})
	route(s, api, http.MethodGet, "/v1/waivers", "list-waivers", "Waivers", func(ctx context.Context, in *struct {
		Machine string `query:"machine" doc:"id or name; all machines if left out"`
		All     bool   `query:"all" doc:"those that are over, too"`
	}) (*reply[[]provisioner.Waiver], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		id := ""
		if in.Machine != "" {
			m, err := s.Machines.Machine(ctx, in.Machine)
			if err != nil {
				return nil, err
			}
			id = m.ID
		}
		list, err := s.Cards.Waivers(ctx, id, in.All)
		return &reply[[]provisioner.Waiver]{list}, err
	})
	route(s, api, http.MethodPost, "/v1/waivers/{id}/withdraw", "withdraw-waiver", "End a waiver before its time", func(ctx context.Context, in *struct {
		ID   string `path:"id"`
		Body struct {
			Who string `json:"who" minLength:"2" maxLength:"100"`
		}
	}) (*struct{}, error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		return nil, s.Cards.WithdrawWaiver(ctx, in.ID, machine.CleanText(in.Body.Who))
	})
}
