package network_test

import (
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/network"
)

func TestCounterSince(t *testing.T) {
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(after time.Duration) time.Time { return base.Add(after) }
	exact := func(epoch time.Duration, read time.Duration, bytes uint64) network.Counter {
		return network.Counter{Machine: "m", Direction: network.Up, Bytes: bytes, Epoch: at(epoch).UnixNano(), At: at(read)}
	}
	rough := func(epoch, read time.Duration, bytes uint64) network.Counter {
		c := exact(epoch, read, bytes)
		c.Slack = 30 * time.Second
		return c
	}
	doubtful := func(c network.Counter) network.Counter { c.Doubt = "the dump was cut short"; return c }
	const five, day = 5 * time.Minute, 24 * time.Hour
	for name, tc := range map[string]struct {
		earlier, later network.Counter
		want           uint64
		doubt          string // a part of it
	}{
		"Grows":           {exact(-day, 0, 100), exact(-day, five, 350), 250, ""},
		"Idle":            {exact(-day, 0, 100), exact(-day, five, 100), 0, ""},
		"NewCount":        {exact(-day, 0, 100), exact(time.Minute, five, 70), 70, ""},
		"NewCountGrew":    {exact(-day, 0, 100), exact(time.Minute, five, 7000), 7000, ""},
		"NewCountAtOnce":  {exact(-day, 0, 100), exact(1, five, 7000), 7000, ""},
		"EpochAlmostSame": {exact(-day, 0, 100), exact(-day+1, five, 350), 0, "another count"},
		"Fell":            {exact(-day, 0, 100), exact(-day, five, 99), 0, "fell from 100 to 99"},
		"SameMoment":      {exact(-day, 0, 100), exact(-day, 0, 101), 0, "clock went back"},
		"ClockBack":       {exact(-day, 0, 100), exact(-day, -1, 101), 0, "clock went back"},
		"Doubt":           {exact(-day, 0, 100), doubtful(exact(-day, five, 350)), 0, "cut short"},
		"DoubtBefore":     {doubtful(exact(-day, 0, 100)), exact(-day, five, 350), 0, "cut short"},
		"RoughSame":       {rough(-day, 0, 100), rough(-day+20*time.Second, five, 350), 250, ""},
		"RoughReboot":     {rough(-day, 0, 1000), rough(time.Minute, five, 350), 350, ""},
		"RoughWrapped":    {rough(-day, 0, 1000), rough(time.Minute, five, 1200), 0, "did not fall"},
		"RoughOther":      {rough(-day, 0, 1000), rough(-time.Hour, five, 350), 0, "another count"},
	} {
		t.Run(name, func(t *testing.T) {
			got, doubt := tc.later.Since(tc.earlier)
			if got != tc.want || (doubt == "") != (tc.doubt == "") || !strings.Contains(doubt, tc.doubt) {
				t.Errorf("got %d, %q; want %d, %q", got, doubt, tc.want, tc.doubt)
			}
		})
	}
}

func TestTaskID(t *testing.T) {
	a := network.TaskID("port", "sw1:1", "open")
	if a != network.TaskID("port", "sw1:1", "open") || a == network.TaskID("port", "sw1:1o", "pen") || a == network.TaskID("edge", "sw1:1", "open") {
		t.Error("a task's name does not tell what it is about")
	}
}
