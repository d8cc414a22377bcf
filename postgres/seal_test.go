package postgres

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
)

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	s, err := LoadSeal(path)
	if err != nil {
		t.Fatal(err)
	}
	sealed := s.Close([]byte("x"), "p")
	again, err := LoadSeal(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Open(sealed, "p"); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := again.Open(sealed, "elsewhere"); err == nil {
		t.Error("a secret opens in another place")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
	for name, spoil := range map[string]func() error{
		"open to others": func() error { return os.Chmod(path, 0o640) },
		"belongs to":     func() error { return errors.Join(os.Chmod(path, 0o600), os.Chown(path, 12345, 0)) },
		"holds no key":   func() error { return errors.Join(os.Chown(path, 0, 0), os.WriteFile(path, []byte("short\n"), 0o600)) },
	} {
		if os.Geteuid() != 0 && name == "belongs to" {
			continue
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		var me *machine.Error
		if _, err := LoadSeal(path); !errors.As(err, &me) || !strings.Contains(me.Message, name) || me.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, os.Geteuid(), -1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRekey changes the key of a database with secrets in it, cut short at each step, and with the wrong files around.
func TestRekey(t *testing.T) {
	url := startCluster(t, clusterDir(t)).URL()
	path := filepath.Join(t.TempDir(), "secret.key")
	open := func() (*DB, error) {
		seal, err := LoadSeal(path)
		if err != nil {
			return nil, err
		}
		return Open(t.Context(), url, seal, nil, Tuning{})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := open()
	must(err)
	must(db.PutClass(t.Context(), machine.Class{Name: "c", Currency: "CNY"}))
	m, err := db.Enroll(t.Context(), machine.Machine{Name: "n1", Class: "c", Firmware: machine.BIOS, BootAddr: netip.MustParseAddr("10.0.0.9"),
		BMC: machine.BMC{Protocol: "ipmi", Address: "x", Username: "u"}}, "old password", false)
	must(err)
	_, err = db.Propose(t.Context(), m.ID, "new password")
	must(err)
	_, err = db.Setting(t.Context(), "ca", func() ([]byte, error) { return []byte("a CA"), nil })
	must(err)

	whole := func(when string) {
		t.Helper()
		db, err := open()
		must(err)
		defer db.Close()
		s, err := db.Secrets(t.Context(), m.ID)
		must(err)
		ca, err := db.Setting(t.Context(), "ca", nil)
		must(err)
		if s.Current != "old password" || s.Next != "new password" || s.Username != "u" || string(ca) != "a CA" {
			t.Errorf("%s: %+v, %q", when, s, ca)
		}
	}
	whole("before")
	first, err := os.ReadFile(path)
	must(err)

	// A server that works keeps the key from being changed under it.
	leave, err := db.Serving(t.Context())
	must(err)
	if _, err := db.Rekey(t.Context()); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("rekeyed under a server's feet: %v", err)
	}
	leave()

	// Cut short after the file was written, and after the database was.
	next, err := NewSeal(append(newKey(), db.seal.text()...))
	must(err)
	must(db.changeSeal(next))
	whole("cut short after the file")
	_, err = db.reseal(t.Context())
	must(err)
	whole("cut short after the database")

	n, err := db.Rekey(t.Context())
	must(err)
	if n != 3 {
		t.Errorf("%d secrets, want 3", n)
	}
	whole("after")
	last, err := os.ReadFile(path)
	must(err)
	if len(strings.Fields(string(last))) != 1 || strings.Contains(string(first), strings.Fields(string(last))[0]) {
		t.Errorf("the key file holds %d keys", len(strings.Fields(string(last))))
	}

	// The old key opens nothing; a missing one is not replaced by a new one.
	must(os.WriteFile(path, first, 0o600))
	var me *machine.Error
	if _, err := open(); !errors.As(err, &me) || !strings.Contains(me.Message, "does not open") {
		t.Errorf("with the old key: %v", err)
	}
	must(os.Remove(path))
	if _, err := open(); !errors.As(err, &me) || !strings.Contains(me.Message, "is missing") || me.Hint == "" {
		t.Errorf("without a key: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a key that opens nothing was left in the way of the right one")
	}
	must(os.WriteFile(path, last, 0o600))
	whole("with the right one back")
	everySealedColumn(t, db)
	db.Close()
}

// everySealedColumn: what is kept as bytes is sealed and listed for a change of the key, or is listed here as no secret.
func everySealedColumn(t *testing.T, db *DB) {
	t.Helper()
	open := []string{"ticket.hash", "ticket.parent", "api_token.hash", "console_record.data", "visit.nonce", "visit.token",
		"report.body", "report_key.public", "acceptance_run.report", "erasure.body"}
	rows, err := db.pool.Query(t.Context(), `SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
		WHERE c.data_type = 'bytea' AND c.table_schema = 'public' AND c.table_name NOT LIKE 'river%'`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(columns) < 6 {
		t.Fatal(columns, err)
	}
	for _, c := range columns {
		sealed := slices.ContainsFunc(sealedPlaces, func(p sealedPlace) bool { return p.table+"."+p.column == c })
		if sealed == slices.Contains(open, c) {
			t.Errorf("column %s: is it sealed? Then add it to sealedPlaces, or `bareyard serve --rekey` loses it. Otherwise name it here", c)
		}
	}
}
