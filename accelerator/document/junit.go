package document

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
)

type testSuite struct {
	XMLName   xml.Name   `xml:"testsuite"`
	Name      string     `xml:"name,attr"`
	Tests     int        `xml:"tests,attr"`
	Failures  int        `xml:"failures,attr"`
	Errors    int        `xml:"errors,attr"`
	Skipped   int        `xml:"skipped,attr"`
	Time      string     `xml:"time,attr"`
	Timestamp string     `xml:"timestamp,attr"`
	Cases     []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Failure *verdict `xml:"failure,omitempty"`
	Error   *verdict `xml:"error,omitempty"`
	Skipped *verdict `xml:"skipped,omitempty"`
	Out     string   `xml:"system-out,omitempty"`
}

type verdict struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes the checks of a report as a JUnit test suite. A warning passes and is told in the output; a required skip is an error, since it
// keeps the machine from being handed over and JUnit's own skip keeps nobody from anything.
func JUnit(w io.Writer, r accelerator.Report) error {
	return writeXML(w, suite(strings.TrimSuffix("bareyard.validation "+string(r.Plan), " "), r.Taken, r.Seconds, r.Checks))
}

func suite(name string, taken time.Time, seconds float64, checks []accelerator.Check) testSuite {
	s := testSuite{Name: name, Time: fmt.Sprintf("%.3f", seconds), Timestamp: taken.UTC().Format(time.RFC3339)}
	for _, c := range checks {
		area, name, ok := strings.Cut(c.ID, ".")
		if !ok {
			area, name = "check", c.ID
		}
		text := strings.Join(c.Evidence, "\n")
		if c.Action != "" && c.Action != accelerator.ActNone || c.Advice != "" {
			text = strings.TrimSpace(fmt.Sprintf("%s\ndo: %s %s", text, c.Action, c.Advice))
		}
		v := &verdict{Message: c.Summary, Text: text}
		t := testCase{Class: "bareyard." + area, Name: name}
		s.Tests++
		switch {
		case c.Outcome == accelerator.Pass || c.Outcome == accelerator.Warn || !c.Blocks() && c.Outcome == accelerator.Error:
			t.Out = strings.TrimSpace(fmt.Sprintf("%s: %s\n%s", c.Outcome, c.Summary, text))
		case c.Outcome == accelerator.Skip && !c.Required:
			t.Skipped = v
			s.Skipped++
		case c.Outcome == accelerator.Skip || c.Outcome == accelerator.Error:
			t.Error = v
			s.Errors++
		default:
			t.Failure = v
			s.Failures++
		}
		s.Cases = append(s.Cases, t)
	}
	return s
}

func writeXML(w io.Writer, v any) error {
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}
