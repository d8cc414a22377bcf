package accelerator

import (
	"fmt"
	"slices"
	"strings"
)

// kernelLog judges what this boot's kernel log says about cards.
func (j *judge) kernelLog() Check {
	log := j.facts.Log
	c := Check{ID: "log.kernel", Required: true, Outcome: Pass}
	if log.Error != "" {
		c.Outcome, c.Summary = Error, "the kernel log could not be read"
		c.Evidence = []string{printable(log.Error)}
		return c
	}
	if log.Records == 0 {
		c.Outcome, c.Summary = Error, "the kernel log is empty"
		return c
	}
	worst, found := Verdict{Outcome: Pass}, 0
	for _, e := range log.Events {
		v := j.rules.Event(e)
		line := fmt.Sprintf("%s ×%d: %s", e.Text, e.Count, v.Text)
		c.Evidence = append(c.Evidence, line)
		if v.Outcome == Pass {
			continue
		}
		found++
		j.blame(e.Slot, c.ID, v.Outcome, e.Name()+": "+v.Text)
		if v.Outcome.rank() > worst.Outcome.rank() {
			worst = v
		}
	}
	c.Outcome = worst.Outcome
	c.Summary = fmt.Sprintf("no fault of a card in %d records of this boot", log.Records)
	if found > 0 {
		c.Summary = fmt.Sprintf("%s in this boot's log, the worst: %s", plural(found, "kind")+" of fault", worst.Text)
		c.Action = worst.Class.Action()
	}
	if log.Missed > 0 {
		c.Outcome = Worse(c.Outcome, Warn)
		c.Evidence = append(c.Evidence, fmt.Sprintf("%d records of this boot were overwritten before they could be read", log.Missed))
	}
	if log.Dropped > 0 {
		c.Outcome = Worse(c.Outcome, Error)
		c.Evidence = append(c.Evidence, fmt.Sprintf("%d more lines about cards were not kept", log.Dropped))
	}
	return c
}

// Name returns what people call an event, e.g. "XID 79".
func (e Event) Name() string {
	switch e.Kind {
	case EventXID:
		return fmt.Sprintf("XID %d", e.Code)
	case EventSXID:
		return fmt.Sprintf("SXID %d", e.Code)
	}
	return "kernel log"
}

// nouveau judges whether the free driver, which keeps the vendor's from the cards, is loaded.
func (j *judge) nouveau() Check {
	c := Check{ID: "host.nouveau", Required: j.vendor() == nvidiaVendor && j.expect.Count > 0, Outcome: Pass, Summary: "nouveau is not loaded"}
	n := j.facts.Host.Nouveau
	switch {
	case !n.Known():
		c.Outcome, c.Summary = Error, "the loaded modules could not be read: "+missing(n)
	case n.Value && c.Required:
		c.Outcome, c.Summary = Fail, "nouveau is loaded: it keeps the vendor's driver from the cards"
		c.Action = "blacklist nouveau in the image"
	case n.Value:
		c.Outcome, c.Summary = Warn, "nouveau is loaded"
	}
	return c
}

func (j *judge) host() []Check { return []Check{j.hostMemory(), j.hostDisks(), j.hostNICs()} }

func (j *judge) hostMemory() Check {
	c := Check{ID: "host.memory", Required: true, Outcome: Pass}
	h := j.facts.Host
	c.Summary = fmt.Sprintf("%d MiB", h.Memory.Value>>20)
	switch {
	case !h.Memory.Known():
		c.Outcome, c.Summary = Error, "memory could not be read: "+missing(h.Memory)
	case h.Memory.Value <= 0:
		c.Outcome, c.Summary, c.Action = Fail, "the machine reports no memory", "take the machine out"
	}
	for _, e := range h.EDAC {
		switch {
		case !e.Uncorrected.Known():
			c.Outcome = Worse(c.Outcome, Error)
			c.Evidence = append(c.Evidence, e.Name+": uncorrected errors: "+missing(e.Uncorrected))
		case e.Uncorrected.Value > 0:
			c.Outcome = Fail
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: %d uncorrected errors since boot", e.Name, e.Uncorrected.Value))
			c.Action = "take the machine out and find the memory module"
		case e.Corrected.Known() && e.Corrected.Value > 0:
			c.Outcome = Worse(c.Outcome, Warn)
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: %d corrected errors since boot", e.Name, e.Corrected.Value))
		}
	}
	if len(h.EDAC) == 0 {
		c.Evidence = append(c.Evidence, "no memory controller counts errors here")
	}
	return c
}

func (j *judge) hostDisks() Check {
	c := Check{ID: "host.disks", Required: true, Outcome: Pass}
	right := 0
	bad := func(o Outcome, format string, a ...any) {
		c.Outcome = Worse(c.Outcome, o)
		c.Evidence = append(c.Evidence, printable(fmt.Sprintf(format, a...)))
	}
	for _, want := range j.expect.Disks {
		i := slices.IndexFunc(j.facts.Host.Disks, func(d HostDisk) bool { return d.Serial.Known() && d.Serial.Value == want.Serial })
		switch {
		case i < 0:
			bad(Fail, "%s: recorded, not found", want.Serial)
		case !j.facts.Host.Disks[i].Size.Known():
			bad(Error, "%s: size: %s", want.Serial, missing(j.facts.Host.Disks[i].Size))
		case want.Size > 0 && j.facts.Host.Disks[i].Size.Value != want.Size:
			bad(Fail, "%s: has %d bytes, recorded %d", want.Serial, j.facts.Host.Disks[i].Size.Value, want.Size)
		default:
			right++
		}
	}
	for _, d := range j.facts.Host.Disks {
		known := false
		for _, want := range j.expect.Disks {
			known = known || d.Serial.Known() && d.Serial.Value == want.Serial
		}
		if !known {
			bad(Warn, "%s (%s): not recorded", d.Name, d.Serial)
		}
	}
	c.Summary = fmt.Sprintf("%d of %s recorded are there", right, plural(len(j.expect.Disks), "disk"))
	if c.Outcome != Pass {
		c.Action = "bring machine and record into line"
	}
	return c
}

func (j *judge) hostNICs() Check {
	c := Check{ID: "host.nics", Required: true, Outcome: Pass}
	right := 0
	for _, want := range j.expect.MACs {
		if slices.ContainsFunc(j.facts.Host.NICs, func(n HostNIC) bool { return n.MAC.Known() && strings.EqualFold(n.MAC.Value, want) }) {
			right++
			continue
		}
		c.Outcome = Fail
		c.Evidence = append(c.Evidence, want+": recorded, not found")
		c.Action = "bring machine and record into line"
	}
	c.Summary = fmt.Sprintf("%d of %s recorded are there", right, plural(len(j.expect.MACs), "port"))
	return c
}
