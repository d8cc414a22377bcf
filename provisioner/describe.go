package provisioner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Bounds of a text about differences.
const (
	mostDifferences = 12
	longestValue    = 60
)

// describe says in words what differs between two baselines: an account is one line, whatever its BMC tells of it.
func describe(was, is ipmi.Baseline, d []ipmi.Difference) []string {
	var out []string
	done := map[string]bool{}
	for _, x := range d {
		part := strings.Split(x.Path, "/")
		switch {
		case len(part) == 1 && strings.HasPrefix(x.Is, "unread: "):
			out = append(out, fmt.Sprintf("%s could be read before and cannot be now (%s)", subjectWords(part[0]), shown(strings.TrimPrefix(x.Is, "unread: "))))
		case part[0] == "users" && len(part) == 3:
			id := part[1]
			if !done[id] {
				done[id] = true
				out = append(out, describeUser(id, was.Facts, is.Facts, d)...)
			}
		default:
			out = append(out, describeFact(part, x))
		}
	}
	return out
}

func describeUser(id string, was, is map[string]string, d []ipmi.Difference) []string {
	at := "users/" + id + "/"
	_, had := was[at+"name"]
	_, has := is[at+"name"]
	switch {
	case !had:
		state := "enabled"
		if is[at+"enabled"] == "false" {
			state = "disabled"
		}
		return []string{fmt.Sprintf("user %q (id %s, %s, %s) appeared", shown(is[at+"name"]), shown(id), shown(is[at+"privilege"]), state)}
	case !has:
		return []string{fmt.Sprintf("user %q (id %s) is gone", shown(was[at+"name"]), shown(id))}
	}
	var out []string
	for _, x := range d {
		if what, ok := strings.CutPrefix(x.Path, at); ok {
			out = append(out, fmt.Sprintf("user %q (id %s): %s %s", shown(was[at+"name"]), shown(id), shown(what), change(x)))
		}
	}
	return out
}

func describeFact(part []string, x ipmi.Difference) string {
	name := shown(strings.Join(part[1:], " "))
	switch part[0] {
	case "firmware":
		return fmt.Sprintf("firmware %s %s", name, change(x))
	case "bios":
		return fmt.Sprintf("BIOS setting %s %s", name, change(x))
	case "lan":
		return fmt.Sprintf("LAN %s %s", name, change(x))
	}
	return fmt.Sprintf("%s %s", shown(strings.Join(part, " ")), change(x))
}

func change(x ipmi.Difference) string {
	switch {
	case x.Was == "":
		return "is now " + shown(x.Is)
	case x.Is == "":
		return "was " + shown(x.Was) + " and is gone"
	}
	return shown(x.Was) + " → " + shown(x.Is)
}

// shown is what can be shown of a text of a BMC, which a customer may have written.
func shown(s string) string {
	s = machine.CleanText(s)
	if len(s) > longestValue {
		s = s[:longestValue] + "…"
	}
	return s
}

func subjectWords(name string) string {
	if words, ok := map[string]string{"users": "accounts", "lan": "LAN settings", "boot": "boot settings", "services": "services", "media": "virtual media", "firmware": "firmware versions",
		"bios": "BIOS settings", "certificate": "the certificate", "channel": "channel access", "identity": "identity"}[name]; ok {
		return words
	}
	return shown(name)
}

// brief is a list as one text of bounded length.
func brief(list []string) string {
	if len(list) > mostDifferences {
		return strings.Join(list[:mostDifferences], "; ") + fmt.Sprintf("; and %d more", len(list)-mostDifferences)
	}
	return strings.Join(list, "; ")
}

// summary says what a baseline covers.
func summary(b ipmi.Baseline) string {
	users := map[string]bool{}
	for path := range b.Facts {
		if rest, ok := strings.CutPrefix(path, "users/"); ok {
			id, _, _ := strings.Cut(rest, "/")
			users[id] = true
		}
	}
	text := fmt.Sprintf("%s, %s", count(len(b.Facts), "fact"), count(len(users), "account"))
	var unread []string
	for name := range b.Unread {
		unread = append(unread, subjectWords(name))
	}
	if slices.Sort(unread); len(unread) > 0 {
		text += "; not told by this BMC: " + strings.Join(unread, ", ")
	}
	return text
}
