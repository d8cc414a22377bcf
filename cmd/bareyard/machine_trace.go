package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

type machineTrace struct {
	remote
	Machine string `arg:"" optional:"" help:"The machine, by name or id, or the MAC address of any port."`
	Boot    string `placeholder:"N" help:"Which boot, by its number (default: the newest)."`
	List    bool   `help:"List its boots."`
	Follow  bool   `help:"Go on showing what it asks, until Ctrl-C."`
	Unknown bool   `help:"List the ports that asked and are no machine's."`
}

// Run shows a boot.
func (m *machineTrace) Run(ctx context.Context, t *terminal) error {
	if m.Unknown == (m.Machine != "") {
		return &machine.Error{Code: machine.Invalid, Message: "say which machine", Hint: "name one, or a MAC address, or list the unknown with --unknown"}
	}
	if m.Follow && (m.Boot != "" || m.List || m.JSON) {
		return &machine.Error{Code: machine.Invalid, Field: "follow", Message: "--follow shows the newest boot as text", Hint: "leave out --boot, --list and --json"}
	}
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		switch {
		case m.Unknown:
			return m.list(t, func() ([]api.BootTrace, error) { return c.UnknownBoots(ctx) })
		case m.List:
			return m.list(t, func() ([]api.BootTrace, error) { return c.Boots(ctx, m.Machine) })
		case m.Follow:
			return m.follow(ctx, t, c)
		}
		number := m.Boot
		if number == "" {
			number = "latest"
		}
		b, err := c.Boot(ctx, m.Machine, number)
		if err != nil {
			return err
		}
		return m.show(t, b, func(w io.Writer) {
			bootHead(w, b.Boot)
			for _, l := range b.Lines {
				bootLine(w, b.Boot, l)
			}
			bootEnd(w, b)
		})
	})
}

func (m *machineTrace) list(t *terminal, ask func() ([]api.BootTrace, error)) error {
	boots, err := ask()
	if err != nil {
		return err
	}
	return m.show(t, boots, func(w io.Writer) {
		fmt.Fprintln(w, "BOOT\tMAC\tBEGAN\tTOOK\tVERDICT\tWHERE IT STANDS")
		for _, b := range boots {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", b.Number, b.MAC, b.Began.Local().Format("2006-01-02 15:04:05"), b.Ended.Sub(b.Began).Round(100*time.Millisecond), b.Diagnosis.Verdict, b.Diagnosis.Text)
		}
	})
}

// followPause is how often a boot is looked at.
const followPause = time.Second

// follow shows the newest boot as it goes on, and the next one after it.
func (m *machineTrace) follow(ctx context.Context, t *terminal, c *client.Client) error {
	var shown trace.Boot
	var said string
	for {
		b, err := c.Boot(ctx, m.Machine, "latest")
		switch code := machine.CodeOf(err); {
		case err == nil:
			if b.Number != shown.Number {
				bootHead(t.out, b.Boot)
				shown = trace.Boot{Number: b.Number, Began: b.Began}
				said = ""
			}
			if fresh := news(shown.Lines, b.Lines); len(fresh) > 0 {
				for _, l := range fresh {
					bootLine(t.out, b.Boot, l)
				}
				said = ""
			}
			shown.Lines = b.Lines
			if b.Diagnosis.Verdict != trace.UnderWay && b.Diagnosis.Code != said {
				said = b.Diagnosis.Code
				bootEnd(t.out, b)
			}
		case code != machine.NotFound && code != machine.Unavailable: // it has not booted yet; the server is being restarted
			return err
		}
		wait := time.NewTimer(followPause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		case <-wait.C:
		}
	}
}

// news are the lines that were not shown yet, or that have been said more often since.
func news(shown, now []trace.Line) []trace.Line {
	type key struct {
		at    time.Time
		asked string
	}
	times := map[key]int{}
	for _, l := range shown {
		times[key{l.At, l.Asked}] = l.Times
	}
	var fresh []trace.Line
	for _, l := range now {
		if n, ok := times[key{l.At, l.Asked}]; !ok || n != l.Times {
			fresh = append(fresh, l)
		}
	}
	return fresh
}

func bootHead(w io.Writer, b trace.Boot) {
	fmt.Fprintf(w, "boot %d of port %s, %s\n", b.Number, b.MAC, b.Began.Local().Format("2006-01-02 15:04:05"))
}

// bootLine is one exchange: seconds since the boot began, how, what was asked and what was answered.
func bootLine(w io.Writer, b trace.Boot, l trace.Line) {
	mark := " "
	if l.Outcome != trace.Answered && l.Outcome != trace.Probed {
		mark = "✗"
	}
	text := l.Asked
	if l.Proto != trace.BMC {
		text += " → " + answer(l)
	}
	if l.Times > 1 {
		text += fmt.Sprintf(" (%d times", l.Times)
		if d := l.Last.Sub(l.At).Round(100 * time.Millisecond); d > 0 {
			text += fmt.Sprintf(" in %s", d)
		}
		text += ")"
	}
	fmt.Fprintf(w, "%8.1f %s %-5s %s\n", l.At.Sub(b.Began).Seconds(), mark, l.Proto, text)
}

// answer is what became of a question.
func answer(l trace.Line) string {
	got := l.Got
	if l.Boots != "" {
		got += ", boot from " + map[string]string{trace.BootsDisk: "disk", trace.BootsAgent: "the network: the agent"}[l.Boots]
	}
	if l.Proto == trace.HTTP || l.Proto == trace.TFTP {
		switch {
		case l.Outcome == trace.Broken && l.Size > 0:
			got += fmt.Sprintf(", %s of %s", amount(l.Bytes), amount(l.Size))
		case l.Bytes > 0:
			got += ", " + amount(l.Bytes)
		}
		if l.Took >= 100*time.Millisecond && l.Times <= 1 {
			got += fmt.Sprintf(" in %.1f s", l.Took.Seconds())
		}
	}
	if f := l.DHCP; f != nil && f.Relay.IsValid() {
		got += fmt.Sprintf(", through relay %s %s", f.Relay, f.Circuit)
	}
	return strings.TrimSpace(got)
}

func amount(n int64) string {
	if n < 100_000 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

func bootEnd(w io.Writer, b api.BootTrace) {
	if b.Cut > 0 {
		fmt.Fprintf(w, "(%d lines in the middle were left out)\n", b.Cut)
	}
	fmt.Fprintf(w, "%s: %s\n", map[trace.Verdict]string{trace.Well: "well", trace.UnderWay: "now", trace.Stopped: "stopped"}[b.Diagnosis.Verdict], strings.TrimPrefix(b.Diagnosis.Text, "under way: "))
	if b.Diagnosis.Hint != "" {
		fmt.Fprintf(w, "look at: %s\n", b.Diagnosis.Hint)
	}
}
