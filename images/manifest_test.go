package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func goodManifest() Manifest {
	return Manifest{Version: 1, Size: 3 * 4096, ChunkSize: 8192, Chunks: []Chunk{
		{Offset: 0, Length: 8192, Zero: true},
		{Offset: 8192, Length: 4096, Digest: digestOf([]byte("x")), Stored: 20},
	}}
}

func TestManifestRules(t *testing.T) {
	if err := goodManifest().Validate(); err != nil {
		t.Fatalf("the good manifest: %v", err)
	}
	for name, spoil := range map[string]func(*Manifest){
		"version":        func(m *Manifest) { m.Version = 2 },
		"no size":        func(m *Manifest) { m.Size = 0 },
		"odd size":       func(m *Manifest) { m.Size-- },
		"huge size":      func(m *Manifest) { m.Size = 1 << 60 },
		"chunk size 0":   func(m *Manifest) { m.ChunkSize = 0 },
		"huge chunk":     func(m *Manifest) { m.ChunkSize = 1 << 40 },
		"missing chunk":  func(m *Manifest) { m.Chunks = m.Chunks[:1] },
		"extra chunk":    func(m *Manifest) { m.Chunks = append(m.Chunks, m.Chunks[1]) },
		"gap":            func(m *Manifest) { m.Chunks[1].Offset += 4096 },
		"past the end":   func(m *Manifest) { m.Chunks[1].Length += 4096 },
		"negative":       func(m *Manifest) { m.Chunks[0].Offset = -8192 },
		"path as digest": func(m *Manifest) { m.Chunks[1].Digest = "../../../../etc/shadow" },
		"upper case":     func(m *Manifest) { m.Chunks[1].Digest = strings.ToUpper(m.Chunks[1].Digest) },
		"no digest":      func(m *Manifest) { m.Chunks[1].Digest = "" },
		"zero digest":    func(m *Manifest) { m.Chunks[0].Digest = digestOf(nil) },
		"packed digest":  func(m *Manifest) { m.Chunks[1].Packed = "00" },
		"zero packed":    func(m *Manifest) { m.Chunks[0].Packed = digestOf(nil) },
		"stored":         func(m *Manifest) { m.Chunks[1].Stored = 1 << 40 },
	} {
		m := goodManifest()
		spoil(&m)
		if m.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestManifestDigestNamesContent(t *testing.T) {
	m := goodManifest()
	const want = "2f72b4a742a8e9245a80fe5fb9d8b6679c6386b59630a5ca2f8b57a4790364c8"
	if got := m.Digest(); got != want {
		t.Errorf("digest %s, want %s: digests are recorded in orders and must never change", got, want)
	}
	m.Chunks[1].Stored = 99
	if m.Digest() != want {
		t.Error("a hint changes the digest")
	}
	m.Chunks[1].Packed = digestOf([]byte("packed"))
	if m.Digest() == want {
		t.Error("a reader trusts the packed form, and yet another one has the same digest")
	}
	m.Chunks[1].Digest = digestOf([]byte("y"))
	if m.Digest() == want {
		t.Error("other content has the same digest")
	}
}

func TestParseManifest(t *testing.T) {
	m := goodManifest()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseManifest(data, m.Digest()); err != nil {
		t.Errorf("the good manifest: %v", err)
	}
	for name, try := range map[string]struct{ data, digest string }{
		"other digest": {string(data), digestOf(nil)},
		"truncated":    {string(data[:len(data)-2]), m.Digest()},
		"tampered":     {strings.Replace(string(data), digestOf([]byte("x")), digestOf([]byte("y")), 1), m.Digest()},
		"empty":        {"", m.Digest()},
	} {
		if _, err := ParseManifest([]byte(try.data), try.digest); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	data, _ := json.Marshal(goodManifest())
	f.Add(data)
	f.Add([]byte(`{"version":1,"size":-512,"chunk_size":4096,"chunks":[]}`))
	f.Add([]byte(`{"version":1,"size":9223372036854775296,"chunk_size":4096,"chunks":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Manifest
		if json.Unmarshal(data, &m) != nil || m.Validate() != nil {
			return
		}
		var at int64
		for _, c := range m.Chunks {
			if c.Offset != at || c.Length <= 0 {
				t.Fatalf("chunk at %d+%d after %d", c.Offset, c.Length, at)
			}
			at += c.Length
		}
		if at != m.Size {
			t.Fatalf("chunks end at %d of %d", at, m.Size)
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseManifest(again, m.Digest()); err != nil {
			t.Fatalf("round trip: %v", err)
		}
	})
}
