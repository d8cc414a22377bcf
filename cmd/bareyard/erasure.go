package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// erasureCommand is what became of the data on disks.
type erasureCommand struct {
	List   erasureList   `cmd:"" help:"List certificates of erasures, the newest first."`
	Show   erasureShow   `cmd:"" help:"Show a certificate, or save it as a page to print, or signed."`
	Verify erasureVerify `cmd:"" help:"Say whether a saved certificate is as the server signed it."`
}

type erasureList struct {
	remote
	Order   string `placeholder:"ORDER" help:"Of this order's data." xor:"of"`
	Machine string `placeholder:"NAME" help:"Of this machine's disks; for operators." xor:"of"`
	Disk    string `placeholder:"SERIAL" help:"Of this disk, wherever it was; for operators." xor:"of"`
}

// Run lists certificates.
func (e *erasureList) Run(ctx context.Context, t *terminal) error {
	return e.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		var list []machine.ErasureCertificate
		if e.Order != "" {
			list, err = c.OrderErasures(ctx, e.Order)
		} else {
			list, err = c.Erasures(ctx, e.Machine, e.Disk)
		}
		if err != nil {
			return err
		}
		return e.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "CERTIFICATE\tAT\tMACHINE\tDISK\tRESULT\tLEVEL\tMETHOD\tORDER")
			for _, c := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, moment(c.At), c.Name, c.Serial, c.Result(), dash(string(c.Level)), dash(c.Method), dash(c.Order))
			}
		})
	})
}

type erasureShow struct {
	remote
	Certificate string `arg:"" help:"The certificate."`
	HTML        string `name:"html" type:"path" placeholder:"FILE" help:"Save it as a page to print."`
	Signed      string `name:"signed" type:"path" placeholder:"FILE" help:"Save it as the server signed it."`
}

// Run shows a certificate.
func (e *erasureShow) Run(ctx context.Context, t *terminal) error {
	return e.call(ctx, func(ctx context.Context, c *client.Client) error {
		text, err := c.ErasureForm(ctx, e.Certificate, ".json")
		if err != nil {
			return err
		}
		if e.HTML != "" {
			page, err := c.ErasureForm(ctx, e.Certificate, ".html")
			if err != nil {
				return err
			}
			if err := save(t, e.HTML, page); err != nil {
				return err
			}
		}
		if e.Signed != "" {
			if err := save(t, e.Signed, text); err != nil {
				return err
			}
		}
		if e.HTML != "" || e.Signed != "" {
			return nil
		}
		cert, key, err := document.OpenErasure(text)
		if err != nil {
			return err
		}
		if e.JSON {
			enc := json.NewEncoder(t.out)
			enc.SetIndent("", "  ")
			return enc.Encode(cert)
		}
		showErasure(t.out, cert, key)
		return nil
	})
}

func showErasure(w io.Writer, c machine.ErasureCertificate, key string) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, value)
		}
	}
	line("certificate", c.ID)
	line("disk", strings.TrimSpace(fmt.Sprintf("%s %s, %d bytes", c.Model, c.Serial, c.Size)))
	line("result", c.Result())
	line("level", string(c.Level))
	line("method", c.Method)
	for _, l := range c.Lacks {
		line("not used", l)
	}
	line("read back", fmt.Sprintf("%d bytes", c.Sampled))
	line("went wrong", c.Detail)
	line("at", moment(c.At))
	line("machine", fmt.Sprintf("%s (%s)", c.Name, c.Machine))
	line("order", c.Order)
	line("job", fmt.Sprintf("%s, attempt %d", c.Job, c.Attempt))
	line("signed with", key)
}

// save writes what a server gave into a file.
func save(t *terminal, file string, text []byte) error {
	if err := renameio.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("save %s: %w", file, err)
	}
	fmt.Fprintf(t.err, "%s is written\n", file)
	return nil
}

type erasureVerify struct {
	verifying
	File string `arg:"" type:"existingfile" help:"A certificate as --signed saved it."`
}

// Run verifies a certificate.
func (e *erasureVerify) Run(ctx context.Context, t *terminal) error {
	text, err := os.ReadFile(e.File)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	keys, err := e.keys(ctx)
	if err != nil {
		return err
	}
	c, err := document.VerifyErasure(text, keys...)
	if errors.Is(err, document.ErrUnsigned) {
		return &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: "save it with `bareyard erasure show --signed FILE`"}
	}
	if err != nil {
		return &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: "it was changed since it was signed, or signed by another site: do not trust it"}
	}
	return e.tell(t, c, "the signature fits: disk %s of machine %s, %s (%s), at %s", c.Serial, c.Name, c.Result(), dash(string(c.Level)), c.At.UTC().Format("2006-01-02 15:04:05 UTC"))
}
