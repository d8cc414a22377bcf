package switchcli

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/scrapli/scrapligo/driver/network"
)

// dialect is how a family of switches is spoken to. They were written by the vendors' manuals; no real switch was used.
type dialect struct {
	platform   string // scrapligo's
	levels     map[string]*network.PrivilegeLevel
	exec       string         // the level at which a configuration is shown and saved
	refused    *regexp.Regexp // in the answer to a command that was not carried out
	show       string         // configuration of one port
	no         string         // takes a line back
	leave      string         // leaves the port's section
	commit     string         // makes a candidate configuration the running one; "" when lines act at once
	save       []exchange     // so that it survives a restart
	saved      *regexp.Regexp // in the answer to that
	rate       func(up, down int) []string
	unrate     []string
	ratesShown *regexp.Regexp // of the configuration of a port: up and down in kbit/s, in either order
}

// exchange is a line and what comes after it: a question, as a pattern, or the prompt when that is "".
type exchange struct{ say, question string }

// Words by which switches refuse: at the beginning of a line, as a description may hold them elsewhere.
var (
	refusedVRP   = regexp.MustCompile(`(?m)^\s*(Error:|Error \[|% ?\w|\^\s*$)`)
	refusedCisco = regexp.MustCompile(`(?mi)^\s*(% ?(invalid|incomplete|ambiguous|unknown|unrecognized|error|cannot|unavailable|access denied|authorization|permission|bad|not|could not|failed|user)|ERROR:|command authorization failed|command rejected)`)
)

// dialects returns every dialect by its name in the configuration.
func dialects() map[string]dialect {
	cisco := dialect{platform: "cisco_iosxe", exec: "privilege-exec", refused: refusedCisco, show: "show running-config interface %s", no: "no ", leave: "exit",
		save: []exchange{{"write memory", ""}}, saved: regexp.MustCompile(`\[OK\]`)}
	nxos := cisco
	nxos.platform, nxos.save, nxos.saved = "cisco_nxos", []exchange{{"copy running-config startup-config", ""}}, regexp.MustCompile(`(?i)copy complete|100%`)
	arista := cisco
	arista.platform, arista.saved = "arista_eos", regexp.MustCompile(`(?i)copy completed successfully`)
	ruijie := cisco
	ruijie.platform, ruijie.save, ruijie.saved = "ruijie_rjos", []exchange{{"write", ""}}, regexp.MustCompile(`(?i)\[OK\]`)
	// Its prompt in a port's section has a space, (config-if-GigabitEthernet 0/7)#, which scrapligo does not expect.
	ruijie.levels = map[string]*network.PrivilegeLevel{
		"exec":           {Name: "exec", Pattern: `(?im)^[\w.\-@/:]{1,63}>$`},
		"privilege-exec": {Name: "privilege-exec", Pattern: `(?im)^[\w.\-@/:]{1,63}#$`, PreviousPriv: "exec", Deescalate: "disable", Escalate: "enable", EscalateAuth: true, EscalatePrompt: `(?im)^(?:enable\s)?password:\s?$`},
		"configuration":  {Name: "configuration", Pattern: `(?im)^[\w.\-@/:]{1,63}\(config[\w.\-@/:+ ]{0,63}\)#$`, PreviousPriv: "privilege-exec", Deescalate: "end", Escalate: "configure terminal"},
	}
	ruijie.rate = func(up, down int) []string {
		return []string{fmt.Sprintf("rate-limit input %d 1024", up), fmt.Sprintf("rate-limit output %d 1024", down)}
	}
	ruijie.unrate = []string{"no rate-limit input", "no rate-limit output"}
	ruijie.ratesShown = regexp.MustCompile(`(?m)^\s*rate-limit (input|output) (\d+) `)

	h3c := dialect{platform: "hp_comware", exec: "exec", refused: refusedVRP, show: "display current-configuration interface %s", no: "undo ", leave: "quit",
		save: []exchange{{"save force", ""}}, saved: regexp.MustCompile(`(?i)successfully`)}
	h3c.rate = func(up, down int) []string {
		return []string{fmt.Sprintf("qos lr inbound cir %d", up), fmt.Sprintf("qos lr outbound cir %d", down)}
	}
	h3c.unrate = []string{"undo qos lr inbound", "undo qos lr outbound"}
	h3c.ratesShown = regexp.MustCompile(`(?m)^\s*qos lr (inbound|outbound) cir (\d+)`)
	huawei := h3c
	huawei.platform, huawei.save = "huawei_vrp", []exchange{{"save", `\[Y/N\]`}, {"y", ""}}
	ce := huawei // VRP 8 has a candidate configuration, and marks it in the prompt: [~sw1], or [*sw1] when it holds something
	ce.commit, ce.rate, ce.unrate, ce.ratesShown = "commit", nil, nil, nil
	ce.levels = map[string]*network.PrivilegeLevel{
		"exec":          {Name: "exec", Pattern: `(?im)^<[\w.\-@/:]{1,63}>$`},
		"configuration": {Name: "configuration", Pattern: `(?im)^\[[~*]?[\w.\-@/:]{1,63}\]$`, PreviousPriv: "exec", Deescalate: "quit", Escalate: "system-view"},
	}
	return map[string]dialect{"huawei": huawei, "huawei-ce": ce, "h3c": h3c, "ruijie": ruijie, "cisco-ios": cisco, "cisco-nxos": nxos, "arista": arista}
}

// Dialects lists the names of all dialects.
func Dialects() []string { return slices.Sorted(maps.Keys(dialects())) }

// portRE is what a port may be called: nothing else goes to a command line.
var portRE = regexp.MustCompile(`^[0-9]{0,3}[A-Za-z][A-Za-z-]{0,40} ?[0-9]+(/[0-9]+){0,4}([.:][0-9]+)?$`)

// descriptionRE is what a port may be described as.
var descriptionRE = regexp.MustCompile(`^[A-Za-z0-9._-]{1,60}$`)

// config is what a switch has configured at a port.
type config struct {
	shut        bool
	description string
	up, down    int // kbit/s; 0 when it is not limited
}

// parse reads the configuration of a port.
func (d dialect) parse(text string) (config, error) {
	var c config
	found := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(strings.ToLower(line), "interface "):
			found = true
		case line == "shutdown":
			c.shut = true
		case strings.HasPrefix(line, "description "):
			c.description = strings.Trim(strings.TrimPrefix(line, "description "), `"`)
		}
	}
	if !found {
		return c, fmt.Errorf("it shows no configuration of the port")
	}
	if d.ratesShown != nil {
		for _, m := range d.ratesShown.FindAllStringSubmatch(text, -1) {
			var kbit int
			if _, err := fmt.Sscan(m[2], &kbit); err != nil {
				return c, fmt.Errorf("it shows a rate of %q", m[2])
			}
			if strings.HasPrefix(m[1], "in") {
				c.up = kbit
			} else {
				c.down = kbit
			}
		}
	}
	return c, nil
}

// lines returns what turns one configuration into another, within the port's section: nothing when there is nothing to do. An
// open port is opened last, and a closed one closed first.
func (d dialect) lines(have, want config) []string {
	var out []string
	if want.shut && !have.shut {
		out = append(out, "shutdown")
	}
	if want.description != have.description {
		line := "description " + want.description
		if want.description == "" {
			line = d.no + "description"
		}
		out = append(out, line)
	}
	if d.rate != nil && (want.up != have.up || want.down != have.down) {
		if want.up == 0 && want.down == 0 {
			out = append(out, d.unrate...)
		} else {
			out = append(out, d.rate(want.up, want.down)...)
		}
	}
	if !want.shut && have.shut {
		out = append(out, d.no+"shutdown")
	}
	return out
}
