package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/netboot/httpboot"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// mediaServer hands the disc of a boot to the BMC that inserts it. A disc's name says which boot it is for, and is signed: nobody but the
// BMC is told it, and it is good within that boot's window alone.
type mediaServer struct {
	iso  *ramdisk.ISO
	key  []byte
	base string
	mint func(ctx context.Context, machineID, jobID string, attempt int) ([]byte, error)
	log  *slog.Logger

	mu   sync.Mutex
	made map[string]archived // by the disc's name
}

// archived is the archive of a disc: a BMC reads a disc piece by piece, for as long as a boot takes.
type archived struct {
	archive []byte
	until   time.Time
}

// discLasts is how long a disc can be read on after its boot window was open. Its nonce is worth nothing by then.
const discLasts = time.Hour

// runMedia serves discs, if the configuration says so, and sees to it that none is left in a drive.
func runMedia(ctx context.Context, group *errgroup.Group, cfg config, engine *provisioner.Engine, db *postgres.DB, bmcs *ipmi.Controller, log *slog.Logger) error {
	engine.Drives, engine.Discs = bmcs, db
	group.Go(func() error { return engine.EmptyDrives(ctx, 30*time.Second) })
	if cfg.Boot.MediaListen == "" {
		return nil
	}
	iso, err := ramdisk.OpenISO(cfg.Boot.MediaISO) // open for as long as this server runs
	if err != nil {
		return &machine.Error{Code: machine.Invalid, Field: "boot.media_iso", Message: err.Error(), Hint: "make it with: bareyard ramdisk --iso FILE"}
	}
	key, err := db.Setting(ctx, "media-key", func() ([]byte, error) {
		key := make([]byte, 32)
		_, err := rand.Read(key)
		return key, err
	})
	if err != nil {
		return err
	}
	s := &mediaServer{iso: iso, key: key, base: "http://" + cfg.Boot.MediaListen, mint: engine.MintDisc, log: log, made: map[string]archived{}}
	engine.MediaURL = s.url
	l, err := net.Listen("tcp", cfg.Boot.MediaListen)
	if err != nil {
		return fmt.Errorf("listen for BMCs that fetch discs: %w", err)
	}
	serveHTTP(ctx, group, l, s)
	return nil
}

// url names the disc of a boot.
func (s *mediaServer) url(m machine.Machine, j machine.Job) string {
	name := fmt.Sprintf("%s.%s.%d.%d.%d", m.ID, j.ID, j.Attempt, j.Boots, j.Try)
	return s.base + "/media/" + name + "." + s.sign(name) + "/bareyard.iso"
}

func (s *mediaServer) sign(name string) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(name))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// ServeHTTP implements http.Handler.
func (s *mediaServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(path.Clean(r.URL.Path), "/media/")
	signed, file, _ := strings.Cut(rest, "/")
	dot := strings.LastIndexByte(signed, '.')
	if !ok || file != "bareyard.iso" || dot < 0 || !hmac.Equal([]byte(signed[dot+1:]), []byte(s.sign(signed[:dot]))) {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	archive, err := s.archive(r.Context(), signed[:dot], r.Method == http.MethodHead)
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, provisioner.ErrDenied) || machine.CodeOf(err) == machine.NotFound {
			status = http.StatusForbidden
		}
		s.log.Warn("disc not given", "from", r.RemoteAddr, "err", err)
		http.Error(w, http.StatusText(status), status)
		return
	}
	disc, err := s.iso.With(archive)
	if err != nil {
		s.log.Error("disc not given", "err", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+signed[dot+1:]+`"`)
	http.ServeContent(httpboot.NewSteady(w), r, "", s.iso.Made(), disc)
}

// archive is the archive of a disc, the same for as long as the disc is read. Who only asks how large a disc is mints no nonce.
func (s *mediaServer) archive(ctx context.Context, name string, sizeOnly bool) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock() // one at a time: a second nonce would make the first one void
	now := time.Now()
	for n, a := range s.made {
		if now.After(a.until) {
			delete(s.made, n)
		}
	}
	if a, ok := s.made[name]; ok || sizeOnly {
		return a.archive, nil
	}
	part := strings.Split(name, ".")
	attempt, err := strconv.Atoi(part[2])
	if err != nil {
		return nil, provisioner.ErrDenied
	}
	file, err := s.mint(ctx, part[0], part[1], attempt)
	if err != nil {
		return nil, err
	}
	archive, err := ramdisk.Archive(map[string][]byte{strings.TrimPrefix(agent.BootPath, "/"): file})
	if err != nil {
		return nil, err
	}
	s.made[name] = archived{archive, now.Add(discLasts)}
	s.log.Info("a BMC fetches the disc of a boot", "machine", part[0], "job", part[1], "attempt", attempt)
	return archive, nil
}
