package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/provisioner"
)

// TestEventsSettled: whoever goes on from the last event that he saw does not miss one whose transaction ended later than that of a larger id.
func TestEventsSettled(t *testing.T) {
	db := openDB(t)
	kinds := func(settled bool) string {
		t.Helper()
		list, err := db.Events(t.Context(), provisioner.EventFilter{Settled: settled})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, ev := range list {
			all = append(all, ev.Kind)
		}
		return strings.Join(all, " ")
	}
	slow, err := db.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(t.Context()) }()
	if err := writeEvents(t.Context(), slow, []provisioner.Event{{At: time.Now(), Kind: "first"}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Note(t.Context(), provisioner.Event{At: time.Now(), Kind: "second"}); err != nil {
		t.Fatal(err)
	}
	if err := db.Note(t.Context(), provisioner.Event{At: time.Now().Add(-time.Hour), Kind: "old"}); err != nil {
		t.Fatal(err)
	}
	if all, settled := kinds(false), kinds(true); all != "second old" || settled != "old" {
		t.Errorf("before the first transaction ends: all %q, settled %q", all, settled)
	}
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if settled := kinds(true); settled != "first second old" {
		t.Errorf("afterwards: %q", settled)
	}
}
