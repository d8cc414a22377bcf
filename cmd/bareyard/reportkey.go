package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/postgres"
)

// reportKeyFile is this server's key for signing reports; the public half is beside it.
const reportKeyFile = "report.key"

// reportKey loads the key that this server signs reports with, or makes one, and sees to it that every server can verify with it.
func reportKey(ctx context.Context, dataDir string, db *postgres.DB) (ed25519.PrivateKey, error) {
	path := filepath.Join(dataDir, reportKeyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text, err = makeReportKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("load key of reports: %w", err)
	}
	wrong := &machine.Error{Code: machine.Invalid, Field: "data_dir", Message: path + " holds no Ed25519 key", Hint: "put the key back from a backup, or move the file away: a new key is made then, and older reports verify with the old one still"}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, wrong
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := k.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, wrong
	}
	public, _ := key.Public().(ed25519.PublicKey)
	open, err := publicPEM(public)
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(path+".pub", open, 0o644); err != nil {
		return nil, fmt.Errorf("write public key of reports: %w", err)
	}
	return key, db.KeepKey(ctx, public)
}

// makeReportKey makes a key and returns what the file then holds: another server of the same folder may have been quicker. The file is there whole, or
// not at all, whenever the machine loses its power.
func makeReportKey(path string) ([]byte, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	f, err := os.CreateTemp(filepath.Dir(path), "."+reportKeyFile+"-*") // readable by us alone
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); errors.Is(err, os.ErrExist) { // never over an old one
		return os.ReadFile(path)
	} else if err != nil {
		return nil, err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return text, errors.Join(folder.Sync(), folder.Close())
}

func publicPEM(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("write public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}
