package postgres

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/machine"
)

// Seal encrypts secrets at rest with AES-256-GCM; the keys are in a file outside the database. The first key seals; all open, so
// that nothing is ever sealed with a key that no file holds while the key is changed.
type Seal struct {
	aeads []cipher.AEAD
	keys  [][]byte // as written in the file
	path  string   // "" for a seal without a file
	fresh bool     // LoadSeal made the file
}

// NewSeal reads keys of 64 hex digits, one a line, the newest first.
func NewSeal(text []byte) (*Seal, error) {
	s := &Seal{}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if err := s.add(line); err != nil {
			return nil, err
		}
	}
	if len(s.aeads) == 0 {
		return nil, errors.New("key is not 64 hex digits")
	}
	return s, nil
}

func (s *Seal) add(text []byte) error {
	key, err := hex.DecodeString(string(text))
	if err != nil || len(key) != 32 {
		return errors.New("key is not 64 hex digits")
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return fmt.Errorf("make cipher: %w", err)
	}
	s.aeads, s.keys = append(s.aeads, aead), append(s.keys, text)
	return nil
}

// LoadSeal reads the key file that seals secrets, and makes it when it does not exist. A file that others can read or replace is
// refused: whoever has the key and a copy of the database has every password.
func LoadSeal(path string) (*Seal, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		text := newKey()
		if err := writeKeys(path, text); err != nil {
			return nil, fmt.Errorf("make key file: %w", err)
		}
		s, err := NewSeal(text)
		if err != nil {
			return nil, fmt.Errorf("make key file: %w", err)
		}
		s.path, s.fresh = path, true
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, keyFileError(path, fmt.Sprintf("is open to others (mode %04o)", mode), "chmod 600 "+path+"; if somebody else may have read it, follow with: bareyard serve --rekey")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, keyFileError(path, fmt.Sprintf("belongs to user %d, who could replace it", st.Uid), "chown it to the user that the server runs as")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	s, err := NewSeal(text)
	if err != nil {
		return nil, keyFileError(path, "holds no key of 64 hex digits", "put back the copy that was kept of it")
	}
	s.path = path
	return s, nil
}

func keyFileError(path, problem, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: "secret.key", Message: fmt.Sprintf("key file %s %s", path, problem), Hint: hint}
}

// Close seals a secret; purpose binds it to its place, so that a row copied elsewhere does not open.
func (s *Seal) Close(secret []byte, purpose string) []byte {
	return s.aeads[0].Seal(nil, nil, secret, []byte(purpose))
}

// Open opens what Close sealed for the same purpose.
func (s *Seal) Open(sealed []byte, purpose string) ([]byte, error) {
	for _, aead := range s.aeads {
		if secret, err := aead.Open(nil, nil, sealed, []byte(purpose)); err == nil {
			return secret, nil
		}
	}
	return nil, errors.New("open sealed secret: wrong key file, or not sealed for this place")
}

// newKey returns a line with a new key.
func newKey() []byte {
	raw := make([]byte, 32)
	rand.Read(raw)
	return []byte(hex.EncodeToString(raw) + "\n")
}

// writeKeys puts a key file in place, whole or not at all, and on the disk when it returns.
func writeKeys(path string, text []byte) error { return renameio.WriteFile(path, text, 0o600) }

// text is the key file's content.
func (s *Seal) text() []byte { return append(bytes.Join(s.keys, []byte("\n")), '\n') }

// checkSeal refuses a key file that does not open what the database holds. One that was just made is taken away again: it would
// only be in the way of the right one.
func (db *DB) checkSeal(ctx context.Context) error {
	for _, place := range sealedPlaces {
		var sealed []byte
		var key string
		err := db.pool.QueryRow(ctx, place.any()).Scan(&key, &sealed)
		if isNoRows(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sealed secret: %w", err)
		}
		if _, err := db.seal.Open(sealed, place.purpose+key); err == nil {
			return nil
		}
		if db.seal.fresh {
			if err := os.Remove(db.seal.path); err != nil {
				return fmt.Errorf("take back the new key file: %w", err)
			}
			return keyFileError(db.seal.path, "is missing, and the database holds secrets that were sealed with it", "put back the copy that was kept of it, or copy it from another server of this database")
		}
		return keyFileError(db.seal.path, "does not open the secrets in the database", "every server of one database needs the same key file: copy it from the server that made it")
	}
	return nil
}

// Rekey makes a new key, seals every secret of the database with it and forgets the old one. It returns how many secrets there
// are. Whenever it is cut short, the key file opens all of them, and it can be called again.
func (db *DB) Rekey(ctx context.Context) (n int, err error) {
	err = db.alone(ctx, func() error {
		next, err := NewSeal(append(newKey(), db.seal.text()...))
		if err != nil {
			return fmt.Errorf("make key: %w", err)
		}
		if err := db.changeSeal(next); err != nil {
			return err
		}
		if n, err = db.reseal(ctx); err != nil {
			return err
		}
		if next, err = NewSeal(next.keys[0]); err != nil {
			return fmt.Errorf("make key: %w", err)
		}
		return db.changeSeal(next)
	})
	return n, err
}

// changeSeal writes the key file and goes on with it.
func (db *DB) changeSeal(s *Seal) error {
	s.path = db.seal.path
	if err := writeKeys(s.path, s.text()); err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	db.seal = s
	return nil
}

// sealedPlace is a column that holds sealed secrets.
type sealedPlace struct {
	table, key, column string
	purpose            string // before the key
}

// sealedPlaces is every column that holds something sealed; a test finds those that are missing here.
var sealedPlaces = []sealedPlace{
	{"setting", "name", "value", "setting/"},
	{"machine", "id", "bmc_secret", "bmc/"},
	{"bmc", "machine_id", "next_secret", "bmc/"},
	{"expected", "name", "secret", "expected/"},
}

func (p sealedPlace) any() string {
	return strings.NewReplacer("TABLE", p.table, "KEY", p.key, "COLUMN", p.column).Replace(`SELECT KEY, COLUMN FROM TABLE WHERE COLUMN IS NOT NULL LIMIT 1`)
}
