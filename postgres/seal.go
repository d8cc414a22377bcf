package postgres

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Seal encrypts secrets at rest with AES-256-GCM; the key is in a file outside the database.
type Seal struct{ aead cipher.AEAD }

// NewSeal reads a key of 64 hex digits.
func NewSeal(text []byte) (*Seal, error) {
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, errors.New("key is not 64 hex digits")
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return &Seal{aead: aead}, nil
}

// Close seals a secret; purpose binds it to its place, so that a row copied elsewhere does not open.
func (s *Seal) Close(secret []byte, purpose string) []byte {
	return s.aead.Seal(nil, nil, secret, []byte(purpose))
}

// Open opens what Close sealed for the same purpose.
func (s *Seal) Open(sealed []byte, purpose string) ([]byte, error) {
	secret, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	if err != nil {
		return nil, errors.New("open sealed secret: wrong key file, or not sealed for this place")
	}
	return secret, nil
}

func newKey(path string) ([]byte, error) {
	raw := make([]byte, 32)
	rand.Read(raw)
	text := []byte(hex.EncodeToString(raw) + "\n")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return text, errors.Join(f.Sync(), f.Close())
}
