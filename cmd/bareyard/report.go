package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// reportCommand is what validations found.
type reportCommand struct {
	List   reportList   `cmd:"" help:"List the reports of an order or a machine, the newest first."`
	Show   reportShow   `cmd:"" help:"Show a report, or save it as a page, for a test server, or signed."`
	Verify reportVerify `cmd:"" help:"Say whether a saved report is as the server signed it."`
	Key    reportKeys   `cmd:"" help:"Print the public keys that reports verify with."`
}

type reportList struct {
	remote
	Order   string `placeholder:"ORDER" help:"Of this order's machine." xor:"of" required:""`
	Machine string `placeholder:"NAME" help:"Of this machine; for operators." xor:"of" required:""`
}

// Run lists reports.
func (r *reportList) Run(ctx context.Context, t *terminal) error {
	return r.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		var list []provisioner.Verdict
		if r.Order != "" {
			list, err = c.OrderReports(ctx, r.Order)
		} else {
			list, err = c.MachineReports(ctx, r.Machine, "")
		}
		if err != nil {
			return err
		}
		return r.show(t, list, func(w io.Writer) { showReports(w, list) })
	})
}

type machineReports struct {
	oneMachine
	Plan string `placeholder:"PLAN" help:"Of this plan alone: postboot, health, return or acceptance."`
}

// Run lists a machine's reports.
func (m *machineReports) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.MachineReports(ctx, m.Machine, m.Plan)
		if err != nil {
			return err
		}
		return m.show(t, list, func(w io.Writer) { showReports(w, list) })
	})
}

func showReports(w io.Writer, list []provisioner.Verdict) {
	fmt.Fprintln(w, "REPORT\tKEPT\tPLAN\tOUTCOME\tBLOCKS\tORDER\tWHY")
	for _, v := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", v.ID, moment(v.Kept), dash(string(v.Plan)), v.Outcome, yesNo(v.Blocks), dash(v.OrderID), v.Reason)
	}
}

type reportShow struct {
	remote
	Report string `arg:"" help:"The report."`
	HTML   string `name:"html" type:"path" placeholder:"FILE" help:"Save it as a page with plots."`
	JUnit  string `name:"junit" type:"path" placeholder:"FILE" help:"Save it as JUnit XML."`
	Signed string `name:"signed" type:"path" placeholder:"FILE" help:"Save it as the server signed it."`
}

// Run shows a report.
func (r *reportShow) Run(ctx context.Context, t *terminal) error {
	return r.call(ctx, func(ctx context.Context, c *client.Client) error {
		saved := false
		for form, file := range map[string]string{".html": r.HTML, ".xml": r.JUnit, ".json": r.Signed} {
			if file == "" {
				continue
			}
			text, err := c.ReportForm(ctx, r.Report, form)
			if err != nil {
				return err
			}
			if err := save(t, file, text); err != nil {
				return err
			}
			saved = true
		}
		if saved {
			return nil
		}
		text, err := c.ReportForm(ctx, r.Report, ".json")
		if err != nil {
			return err
		}
		rep, err := provisioner.OpenReport(text)
		if err != nil {
			return err
		}
		if r.JSON {
			e := json.NewEncoder(t.out)
			e.SetIndent("", "  ")
			return e.Encode(rep)
		}
		return rep.WriteText(t.out)
	})
}

// verifying is what commands share that verify a signature.
type verifying struct {
	remote
	Key string `type:"existingfile" placeholder:"FILE" help:"Public key, PEM (default: the server's keys)."`
}

// keys returns the keys of which one must have signed.
func (v *verifying) keys(ctx context.Context) (keys []ed25519.PublicKey, err error) {
	if v.Key != "" {
		key, err := publicKey(v.Key)
		return []ed25519.PublicKey{key}, err
	}
	err = v.call(ctx, func(ctx context.Context, c *client.Client) error {
		known, err := c.ReportKeys(ctx)
		keys = slices.Collect(maps.Values(known))
		return err
	})
	return keys, err
}

type reportVerify struct {
	verifying
	File string `arg:"" type:"existingfile" help:"A report as --signed saved it, or that of an acceptance run."`
}

// Run verifies a report.
func (r *reportVerify) Run(ctx context.Context, t *terminal) error {
	text, err := os.ReadFile(r.File)
	if err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	keys, err := r.keys(ctx)
	if err != nil {
		return err
	}
	if run, err := document.VerifyRun(text, keys...); err == nil {
		return r.tell(t, run, "the signature fits: acceptance run %s of %d machines, begun %s: %d passed, %d failed, %d incomplete", run.ID, len(run.Machines), run.Created.UTC().Format("2006-01-02 15:04:05 UTC"), run.Passed, run.Failed, run.Incomplete)
	}
	rep, err := document.Verify(text, keys...)
	if errors.Is(err, document.ErrUnsigned) {
		return &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: "save it with --signed; a run is signed when it ends, not while it is under way"}
	}
	if err != nil {
		return &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: "it was changed since it was signed, or signed by another site: do not trust it"}
	}
	return r.tell(t, rep, "the signature fits: report %s of machine %s, %s, taken %s", dash(rep.Subject.Report), dash(rep.Subject.Name), rep.Outcome, rep.Taken.UTC().Format("2006-01-02 15:04:05 UTC"))
}

func publicKey(file string) (ed25519.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if block, _ := pem.Decode(text); block != nil {
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if key, ok := k.(ed25519.PublicKey); err == nil && ok {
			return key, nil
		}
	}
	return nil, &machine.Error{Code: machine.Invalid, Field: "key", Message: file + " holds no public Ed25519 key", Hint: "`bareyard report key` prints it"}
}

type reportKeys struct{ remote }

// Run prints the public keys.
func (r *reportKeys) Run(ctx context.Context, t *terminal) error {
	return r.call(ctx, func(ctx context.Context, c *client.Client) error {
		keys, err := c.ReportKeys(ctx)
		if err != nil {
			return err
		}
		return r.show(t, keys, func(w io.Writer) {
			for _, id := range slices.Sorted(maps.Keys(keys)) {
				if text, err := publicPEM(keys[id]); err == nil {
					fmt.Fprintf(w, "# %s\n%s", id, text)
				}
			}
		})
	})
}
