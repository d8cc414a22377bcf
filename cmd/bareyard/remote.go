package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/bareyard/bareyard/api/client"
)

// remote is how a command reaches a server.
type remote struct {
	Server string `env:"BAREYARD_SERVER" placeholder:"URL" help:"Server: unix:///path, or https://host:port with a token in BAREYARD_TOKEN (default: this machine's)."`
	CA     string `env:"BAREYARD_CA" placeholder:"FILE" help:"CA to trust, for https."`
	JSON   bool   `help:"Print JSON."`
}

func (r *remote) client() (*client.Client, error) {
	return client.New(cmp.Or(r.Server, "unix:///var/lib/bareyard/bareyard.sock"), os.Getenv("BAREYARD_TOKEN"), r.CA) // never an argument: everybody on the box reads those
}

// show prints a value as JSON when that was asked for, else by calling table.
func (r *remote) show(t *terminal, v any, table func(io.Writer)) error {
	if r.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// tell prints one line of what was done, or the value as JSON.
func (r *remote) tell(t *terminal, v any, format string, a ...any) error {
	return r.show(t, v, func(w io.Writer) { fmt.Fprintf(w, format+"\n", a...) })
}

// call runs fn with a client.
func (r *remote) call(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	c, err := r.client()
	if err != nil {
		return err
	}
	return fn(ctx, c)
}
