package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/images/ready"
	"github.com/bareyard/bareyard/machine"
)

type imageReady struct {
	JSON bool `help:"Print JSON."`
}

// Run lists the definitions. No server is asked.
func (i *imageReady) Run(_ context.Context, t *terminal) error {
	list, err := ready.Definitions()
	if err != nil {
		return err
	}
	r := remote{JSON: i.JSON}
	return r.show(t, list, func(w io.Writer) {
		fmt.Fprintln(w, "DEFINITION\tFAMILY\tUSER\tSIGNED\tADDRESS\tCHECKSUMS")
		for _, d := range list {
			fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\t%s\n", d.Name, d.Family, d.Version, d.User, yesNo(d.Signed), d.URL, d.Sums)
		}
	})
}

// fromDefinition fills in what a ready definition knows and no argument says. A file beside it is the definition's, fetched before.
func (i *imageImport) fromDefinition(u *client.Upload) error {
	if i.Ready == "" {
		if i.Name == "" || i.Source == "" {
			return &machine.Error{Code: machine.Invalid, Field: "file", Message: "an import needs a name and a file", Hint: "bareyard image import NAME FILE|URL, or --ready DEFINITION"}
		}
		return nil
	}
	d, err := ready.Find(i.Ready)
	if err != nil {
		return err
	}
	u.Name, i.Source = cmp.Or(u.Name, d.Name), cmp.Or(i.Source, d.URL)
	u.Family, u.Version, u.DefaultUser = cmp.Or(u.Family, d.Family), cmp.Or(u.Version, d.Version), cmp.Or(u.DefaultUser, d.User)
	if u.SHA256 == "" && u.SHA512 == "" {
		i.Sums = cmp.Or(i.Sums, d.Sums)
	}
	return nil
}
