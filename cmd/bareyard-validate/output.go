package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
)

// save writes a report into a folder in each of its forms; signed with a key where there is one.
func save(dir string, r accelerator.Report, key ed25519.PrivateKey) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save report: %w", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save report: %w", err)
	}
	forms := map[string][]byte{"report.json": append(text, '\n')}
	for name, write := range map[string]func(io.Writer, accelerator.Report) error{"report.html": document.HTML, "report.xml": document.JUnit} {
		var b bytes.Buffer
		if err := write(&b, r); err != nil {
			return err
		}
		forms[name] = b.Bytes()
	}
	if key != nil {
		if forms["report.signed.json"], err = document.Sign(r, key); err != nil {
			return err
		}
	}
	for name, data := range forms {
		if err := renameio.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("save report: %w", err)
		}
	}
	return nil
}

// loadReport reads a report from a file; a signed one is taken without a look at its signature, which verify is for.
func loadReport(path string) (accelerator.Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return accelerator.Report{}, fmt.Errorf("read report: %w", err)
	}
	var s struct {
		Schema string          `json:"schema"`
		Report json.RawMessage `json:"report"`
	}
	if json.Unmarshal(data, &s) == nil && s.Schema == document.SignedSchema {
		data = s.Report
	}
	r, err := accelerator.DecodeReport(data)
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// loadJSON reads a file of one JSON value; a field that is not known is a mistake.
func loadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// asFound is what to expect of a machine of which nobody said anything: the cards that most of its slots have.
func asFound(bus accelerator.Bus) machine.Expect {
	var e machine.Expect
	count := map[string]int{}
	for _, c := range bus.Cards {
		count[c.ID()]++
		if n := count[c.ID()]; n > e.Count {
			e.CardID, e.Count = c.ID(), n
		}
	}
	return e
}

// makeKey writes a new key for signing reports, and its public half beside it.
func makeKey(path string) error {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	open, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // an old key is never overwritten: its reports could not be verified again
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	err = pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	return os.WriteFile(path+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}), 0o644)
}

func privateKey(path string) (ed25519.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	der, _ := pemBlock(data)
	k, err := x509.ParsePKCS8PrivateKey(der)
	if key, ok := k.(ed25519.PrivateKey); err == nil && ok {
		return key, nil
	}
	return nil, fmt.Errorf("read key: %s holds no Ed25519 key (bareyard-validate key FILE makes one)", path)
}

func publicKey(path string) (ed25519.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	der, _ := pemBlock(data)
	k, err := x509.ParsePKIXPublicKey(der)
	if key, ok := k.(ed25519.PublicKey); err == nil && ok {
		return key, nil
	}
	return nil, fmt.Errorf("read key: %s holds no public Ed25519 key", path)
}
