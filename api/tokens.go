package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bareyard/bareyard/machine"
)

func (s *Server) tokenRoutes(api huma.API) {
	route(s, api, http.MethodPost, "/v1/tokens", "create-token", "Make an API token; it is shown once", func(ctx context.Context, in *struct {
		Body struct {
			Role    Role   `json:"role" enum:"operator,customer"`
			Project string `json:"project,omitempty" doc:"the tenant; customers need one, operators have none"`
		}
	}) (*reply[struct {
		Token string `json:"token"`
	}], error) {
		if err := operator(ctx); err != nil {
			return nil, err
		}
		if (in.Body.Role == Customer) != (in.Body.Project != "") {
			return nil, &machine.Error{Code: machine.Invalid, Field: "project", Message: "a customer's token needs a project, an operator's has none", Hint: "give both role and project, or role operator alone"}
		}
		var out reply[struct {
			Token string `json:"token"`
		}]
		var err error
		out.Body.Token, err = s.Accounts.NewAPIToken(ctx, string(in.Body.Role), in.Body.Project)
		return &out, err
	})
}
