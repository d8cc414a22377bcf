package accelerator

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// kernelLog judges what this boot's kernel log says about cards and the machine around them.
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
		c.Action, c.Advice = worst.Action(), worst.Class.Advice()
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

// nouveau judges that the free driver, which keeps NVIDIA's own from the cards, is not loaded.
func (j *judge) nouveau() Check {
	c := Check{ID: "host.nouveau", Required: j.vendor() == nvidiaVendor && j.expect.Count > 0, Outcome: Pass, Summary: "nouveau is not loaded"}
	n := j.facts.Host.Nouveau
	switch {
	case !n.Known():
		c.Outcome, c.Summary = Error, "the loaded modules could not be read: "+missing(n)
	case n.Value && c.Required:
		c.Outcome, c.Summary = Fail, "nouveau is loaded: it keeps the vendor's driver from the cards"
		c.Advice = "blacklist nouveau in the image"
	case n.Value:
		c.Outcome, c.Summary = Warn, "nouveau is loaded"
	}
	return c
}

func (j *judge) host() []Check {
	return []Check{j.hostCPU(), j.hostMemory(), j.hostDisks(), j.hostSMART(), j.hostNICs(), j.hostFabric(), j.hostClock(), j.hostCmdline()}
}

func (j *judge) hostCPU() Check {
	h := j.facts.Host
	c := Check{ID: "host.cpu", Outcome: Pass, Summary: fmt.Sprintf("%s, %s", printable(h.CPU.String()), plural(int(h.Cores.Value), "processor"))}
	if h.Cores == (Value[int64]{}) {
		c.Outcome, c.Summary = Skip, "processors were not read"
		return c
	}
	if !h.Cores.Known() {
		c.Outcome, c.Summary = Error, "processors could not be read: "+missing(h.Cores)
		return c
	}
	if h.Present.Known() && h.Online.Known() && h.Present.Value != h.Online.Value {
		c.add("", warned(ActNone, fmt.Sprintf("of processors %s only %s are online", h.Present.Value, h.Online.Value)))
	}
	if b := j.facts.Before; b != nil && b.Host.Throttles.Known() && h.Throttles.Known() {
		if n := delta(b.Host.Throttles.Value, h.Throttles.Value); n > 0 {
			c.add("", warned(ActNone, fmt.Sprintf("a processor throttled itself %d times during the load", n)))
			c.Advice = "check the fans and the heat sinks of the processors"
		}
	}
	return c
}

func (j *judge) hostMemory() Check {
	c := Check{ID: "host.memory", Required: true, Outcome: Pass}
	h := j.facts.Host
	c.Summary = fmt.Sprintf("%d MiB", h.Memory.Value>>20)
	switch {
	case !h.Memory.Known():
		c.Outcome, c.Summary = Error, "memory could not be read: "+missing(h.Memory)
	case h.Memory.Value <= 0:
		c.Outcome, c.Summary, c.Action, c.Advice = Fail, "the machine reports no memory", ActReplace, "take the machine out"
	}
	for _, e := range h.EDAC {
		switch {
		case !e.Uncorrected.Known():
			c.add(e.Name, unread("uncorrected errors: "+missing(e.Uncorrected)))
		case e.Uncorrected.Value > 0:
			c.add(e.Name, failed(ActReplace, fmt.Sprintf("%d uncorrected errors since boot", e.Uncorrected.Value)))
			c.Advice = "take the machine out and find the memory module"
		case e.Corrected.Known() && e.Corrected.Value > 0:
			c.add(e.Name, warned(ActNone, fmt.Sprintf("%d corrected errors since boot", e.Corrected.Value)))
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
	bad := func(o Outcome, a Action, format string, args ...any) {
		c.add("", finding{o, a, fmt.Sprintf(format, args...)})
	}
	for _, want := range j.expect.Disks {
		i := slices.IndexFunc(j.facts.Host.Disks, func(d HostDisk) bool { return d.Serial.Known() && d.Serial.Value == want.Serial })
		switch {
		case i < 0:
			bad(Fail, ActReseat, "%s: recorded, not found", want.Serial)
		case !j.facts.Host.Disks[i].Size.Known():
			bad(Error, ActNone, "%s: size: %s", want.Serial, missing(j.facts.Host.Disks[i].Size))
		case want.Size > 0 && j.facts.Host.Disks[i].Size.Value != want.Size:
			bad(Fail, ActNone, "%s: has %d bytes, recorded %d", want.Serial, j.facts.Host.Disks[i].Size.Value, want.Size)
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
			bad(Warn, ActNone, "%s (%s): not recorded", d.Name, d.Serial)
		}
	}
	c.Summary = fmt.Sprintf("%d of %s recorded are there", right, plural(len(j.expect.Disks), "disk"))
	if c.Outcome != Pass {
		c.Advice = "bring machine and record into line"
	}
	return c
}

// hostSMART judges what disks say of their own health. Many cannot be asked (virtual ones, behind a RAID controller): that is no fault.
func (j *judge) hostSMART() Check {
	c := Check{ID: "host.smart", Outcome: Pass}
	asked, good := 0, 0
	for _, d := range j.facts.Host.Disks {
		if d.SMART == nil {
			continue
		}
		asked++
		f := j.smart(*d.SMART)
		if f.outcome == Pass {
			good++
			continue
		}
		c.add(d.Name+" ("+d.Serial.String()+")", f)
	}
	if asked == 0 {
		c.Outcome, c.Summary = Skip, "no disk could be asked for its health"
		return c
	}
	c.Summary = fmt.Sprintf("%d of %s call themselves healthy", good, plural(asked, "disk"))
	if c.Action == ActReplace {
		c.Advice = "exchange the disk before the machine is handed over"
	}
	return c
}

func (j *judge) smart(s SMART) finding {
	worn := func(text string) finding {
		if j.strict() {
			return failed(ActReplace, text+", and it is new")
		}
		return warned(ActNone, text)
	}
	switch {
	case s.Error != "":
		return unread(s.Error)
	case s.Passed.Known() && !s.Passed.Value:
		return failed(ActReplace, "says that it is failing")
	case s.Warning.Known() && s.Warning.Value&^2 != 0: // bit 1 is temperature alone
		return failed(ActReplace, "critical warning: "+nvmeWarning(s.Warning.Value))
	case s.Spare.Known() && s.SpareLeast.Known() && s.Spare.Value < s.SpareLeast.Value:
		return failed(ActReplace, fmt.Sprintf("%d %% of its spare blocks are left, %d at least", s.Spare.Value, s.SpareLeast.Value))
	case s.Pending.Known() && s.Pending.Value > 0:
		return failed(ActReplace, fmt.Sprintf("%d sectors could not be read", s.Pending.Value))
	case s.MediaErrors.Known() && s.MediaErrors.Value > 0:
		return worn(fmt.Sprintf("%d media errors in its life", s.MediaErrors.Value))
	case s.Used.Known() && s.Used.Value >= 100:
		return worn(fmt.Sprintf("%d %% of its life are used", s.Used.Value))
	case s.Warning.Known() && s.Warning.Value != 0:
		return warned(ActNone, "too hot or too cold")
	case s.Used.Known() && s.Used.Value >= 80:
		return warned(ActNone, fmt.Sprintf("%d %% of its life are used", s.Used.Value))
	}
	return fine()
}

// nvmeWarning names the bits of an NVMe critical warning (NVM Express base specification, SMART log).
func nvmeWarning(bits int64) string {
	var words []string
	for i, w := range []string{"spare blocks run out", "temperature", "reliability degraded", "read-only", "backup of the cache failed", "persistent memory unreliable"} {
		if bits&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	if bits>>6 != 0 {
		words = append(words, fmt.Sprintf("unknown bits %#x", bits))
	}
	return strings.Join(words, ", ")
}

func (j *judge) hostNICs() Check {
	c := Check{ID: "host.nics", Required: true, Outcome: Pass}
	right := 0
	for _, want := range j.expect.MACs {
		if slices.ContainsFunc(j.facts.Host.NICs, func(n HostNIC) bool { return n.MAC.Known() && strings.EqualFold(n.MAC.Value, want) }) {
			right++
			continue
		}
		c.add("", failed(ActReseat, want+": recorded, not found"))
		c.Advice = "bring machine and record into line"
	}
	c.Summary = fmt.Sprintf("%d of %s recorded are there", right, plural(len(j.expect.MACs), "port"))
	return c
}

// hostFabric judges InfiniBand and RoCE ports: among those of one model that are up, one that is slower than the others has a bad cable, and
// errors that come during a load are a bad link. A port that is down may have no cable on purpose: told, and not judged.
func (j *judge) hostFabric() Check {
	c := Check{ID: "host.fabric", Outcome: Pass}
	ports := j.facts.Host.Fabrics
	if len(ports) == 0 {
		c.Outcome, c.Summary = Skip, "no InfiniBand or RoCE port"
		return c
	}
	up := 0
	fastest := map[string]int64{}
	for _, p := range ports {
		if p.State.Value == "active" {
			up++
			fastest[p.Model.Value+p.Layer.Value] = max(fastest[p.Model.Value+p.Layer.Value], p.Rate.Value)
		}
	}
	for _, p := range ports {
		switch {
		case !p.State.Known():
			c.add(p.Name, unread("state: "+missing(p.State)))
		case p.State.Value == "init" || p.State.Value == "armed":
			c.add(p.Name, warned(ActNone, "has a link, and no subnet manager brought it up"))
		case p.State.Value != "active" && up > 0:
			c.add(p.Name, warned(ActReseat, "is "+p.State.Value+", others are up"))
		case p.State.Value != "active":
			c.Evidence = append(c.Evidence, p.Name+": is "+printable(p.State.Value))
		case p.Rate.Known() && p.Rate.Value < fastest[p.Model.Value+p.Layer.Value]:
			c.add(p.Name, failed(ActReseat, fmt.Sprintf("runs at %d Gbit/s, others of its kind at %d", p.Rate.Value, fastest[p.Model.Value+p.Layer.Value])))
		}
		if b := j.portBefore(p.Name); b != nil {
			for _, n := range []struct {
				what          string
				before, after Value[int64]
			}{{"symbol errors", b.Symbol, p.Symbol}, {"times down", b.Downed, p.Downed}} {
				if n.before.Known() && n.after.Known() && delta(n.before.Value, n.after.Value) > 0 {
					c.add(p.Name, failed(ActReseat, fmt.Sprintf("%d %s during the load", delta(n.before.Value, n.after.Value), n.what)))
				}
			}
		}
	}
	c.Summary = fmt.Sprintf("%d of %s are up", up, plural(len(ports), "port"))
	if c.Action == ActReseat {
		c.Advice = "clean or exchange the cable or the transceiver, and look at the switch's end"
	}
	return c
}

func (j *judge) portBefore(name string) *FabricPort {
	if j.facts.Before == nil {
		return nil
	}
	for i, p := range j.facts.Before.Host.Fabrics {
		if p.Name == name {
			return &j.facts.Before.Host.Fabrics[i]
		}
	}
	return nil
}

// hostClock warns of a clock that no service keeps: certificates, logs and everything that customers run over several machines depend on it.
func (j *judge) hostClock() Check {
	k := j.facts.Host.Clock
	c := Check{ID: "host.clock", Outcome: Pass, Summary: "a time service keeps the clock"}
	earliest := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case k.Now.IsZero():
		c.Outcome, c.Summary = Skip, "the clock was not read"
	case k.Now.Before(earliest):
		c.Outcome, c.Summary = Warn, "the clock says "+k.Now.UTC().Format(time.DateOnly)
		c.Advice = "start a time service in the image; an empty battery on the board shows so too"
	case k.Synced.Error != "":
		c.Outcome, c.Summary = Error, "the kernel does not tell: "+missing(k.Synced)
	case k.Synced.Known() && !k.Synced.Value:
		c.Outcome, c.Summary = Warn, "no time service keeps the clock yet"
		c.Advice = "start a time service in the image; shortly after a boot it may not have answered yet"
	}
	return c
}

// hostCmdline warns of what a kernel command line takes away from a machine.
func (j *judge) hostCmdline() Check {
	c := Check{ID: "host.cmdline", Outcome: Pass, Summary: "takes nothing away from the machine"}
	line := j.facts.Host.Cmdline
	if !line.Known() {
		c.Outcome, c.Summary = Skip, "the kernel command line was not read"
		return c
	}
	for word := range strings.FieldsSeq(line.Value) {
		key, _, _ := strings.Cut(word, "=")
		if why := costly(key, word); why != "" {
			c.add(word, warned(ActNone, why))
			c.Summary = "takes something away from the machine"
			c.Advice = "correct the image's kernel command line, if it is not meant so"
		}
	}
	return c
}

func costly(key, word string) string {
	switch key {
	case "mem":
		return "hides memory"
	case "maxcpus", "nr_cpus", "nosmp", "possible_cpus", "isolcpus":
		return "takes processors away"
	}
	switch word {
	case "pci=noaer":
		return "PCIe errors are not counted"
	case "mce=off", "mce=ignore_ce", "edac_report=off":
		return "memory errors are not counted"
	case "pci=nomsi", "nolapic", "noapic":
		return "slows interrupts down"
	}
	return ""
}

// bmc judges what the BMC layer put in.
func (j *judge) bmc() []Check {
	power, fans, sel := Check{ID: "host.power", Required: true, Outcome: Pass}, Check{ID: "host.fans", Required: true, Outcome: Pass}, Check{ID: "host.sel", Required: true, Outcome: Pass}
	b := j.facts.BMC
	all := []*Check{&power, &fans, &sel}
	switch {
	case b == nil:
		for _, c := range all {
			c.Outcome, c.Summary = Skip, "the BMC was not asked"
		}
	case b.Error != "":
		for _, c := range all {
			c.Outcome, c.Summary, c.Evidence = Error, "the BMC could not be asked", []string{printable(b.Error)}
		}
	default:
		j.supplies(&power, b.Supplies)
		j.fans(&fans, b.Fans)
		if b.LogError != "" {
			sel.Outcome, sel.Summary, sel.Evidence = Error, "the BMC's log could not be read", []string{printable(b.LogError)}
			break
		}
		j.sel(&sel, *b)
	}
	return []Check{power, fans, sel}
}

func (j *judge) supplies(c *Check, list []Supply) {
	good := 0
	for _, s := range list {
		name := printable(s.Name)
		switch {
		case !s.Present:
			c.add(name, warned(ActReseat, "is not there"))
		case s.Input.Known() && !s.Input.Value:
			c.add(name, failed(ActReseat, "has no mains"))
		case s.Healthy.Known() && !s.Healthy.Value:
			c.add(name, failed(ActReplace, "has failed"))
		case !s.Healthy.Known():
			c.add(name, unread(missing(s.Healthy)))
		default:
			good++
		}
	}
	c.Summary = fmt.Sprintf("%d of %s are healthy", good, plural(len(list), "power supply"))
	if len(list) == 0 {
		c.Outcome, c.Summary = Skip, "the BMC names no power supply"
	}
}

func (j *judge) fans(c *Check, list []Fan) {
	good := 0
	for _, f := range list {
		name := printable(f.Name)
		switch {
		case !f.Present:
			c.add(name, warned(ActReseat, "is not there"))
		case f.Healthy.Known() && !f.Healthy.Value:
			c.add(name, failed(ActReplace, "has failed"))
		case f.RPM.Known() && f.RPM.Value == 0:
			c.add(name, failed(ActReplace, "does not turn"))
		case !f.Healthy.Known() && !f.RPM.Known():
			c.add(name, unread(missing(f.Healthy)))
		default:
			good++
		}
	}
	c.Summary = fmt.Sprintf("%d of %s turn", good, plural(len(list), "fan"))
	if len(list) == 0 {
		c.Outcome, c.Summary = Skip, "the BMC names no fan"
	}
}

// mostEvidence is how many entries of a BMC's log a check quotes.
const mostEvidence = 200

// sel judges what the BMC logged since this boot began, as far as the log tells times; what is older was there before the tenant.
func (j *judge) sel(c *Check, b BMC) {
	asked := b.Taken // not the machine's clock, which may be wrong by hours
	if asked.IsZero() {
		asked = j.facts.Taken
	}
	since := asked.Add(-24 * time.Hour)
	if j.facts.Before != nil {
		since = asked.Add(-j.facts.Taken.Sub(j.facts.Before.Taken))
	}
	judged := 0
	var found []finding
	for _, e := range b.Events {
		line := fmt.Sprintf("%s %s: %s", e.At.UTC().Format(time.RFC3339), e.Sensor, e.Text)
		if e.At.Before(since) || !e.Asserted {
			continue
		}
		judged++
		switch severity := strings.ToLower(e.Severity); {
		case severity == "critical" && e.At.After(asked.Add(futureSlack)):
			found = append(found, warned(ActNone, line+" (the BMC's clock is ahead: it may be of any time)"))
		case severity == "critical":
			found = append(found, failed(ActNone, line))
		case severity == "warning":
			found = append(found, warned(ActNone, line))
		}
	}
	more := len(found) - mostEvidence
	if more > 0 { // the worst of them
		slices.SortStableFunc(found, func(a, b finding) int { return b.outcome.rank() - a.outcome.rank() })
		found = found[:mostEvidence]
	}
	for _, f := range found {
		c.add("", f)
	}
	if more > 0 {
		c.Evidence = append(c.Evidence, fmt.Sprintf("and %d more", more))
	}
	c.Summary = fmt.Sprintf("%s in the BMC's log are new, of %d", plural(judged, "entry"), len(b.Events))
	if b.Full {
		c.add("", warned(ActNone, "the log is full: what is new may be missing"))
		c.Advice = "save and clear the BMC's log"
	}
	if c.Outcome == Fail {
		c.Advice = "look at the part that the BMC names"
	}
}
