package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// nodeName names this server among those that share a database: its host's name, for people, and what was drawn by lot when
// its data folder was made. It stays the same when the server is killed and started again.
func nodeName(dataDir string) (string, error) {
	path := filepath.Join(dataDir, "node")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		host, hostErr := os.Hostname()
		if hostErr != nil {
			return "", fmt.Errorf("name this server: %w", hostErr)
		}
		// Exclusively: of two servers that start at once on one folder, one is told.
		text = []byte(fmt.Sprintf("%.63s-%s\n", host, strings.ToLower(rand.Text()[:12])))
		err = writeNew(path, text)
	}
	if err != nil {
		return "", fmt.Errorf("name this server: %w", err)
	}
	name := strings.TrimSpace(string(text))
	if name == "" || len(name) > 100 || strings.ContainsAny(name, "\n\x00") {
		return "", fmt.Errorf("name this server: %s holds no name of 1 to 100 bytes: remove it", path)
	}
	return name, nil
}

// writeNew writes a file that must not be there yet, whole or not at all.
func writeNew(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
