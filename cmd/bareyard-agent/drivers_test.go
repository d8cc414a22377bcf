package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const aliasText = `# Aliases extracted from modules themselves.
alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio_pci
alias virtio:d00000001v* virtio_net
alias virtio:d00000002v* virtio_blk
alias pci:v00008086d0000100Esv*sd*bc*sc*i* e1000
alias pci:v*d*sv*sd*bc01sc06i01* ahci
alias pci:v*d*sv*sd*bc01sc08i02* nvme
alias pci:v00008086d00002922sv*sd*bc*sc*i* ahci
alias scsi:t-0x00* sd_mod
alias acpi*:IPI0001:* ipmi_si
alias nonsense
`

const (
	virtioNIC  = "pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00"
	virtioDisk = "pci:v00001AF4d00001042sv00001AF4sd00001100bc01sc00i00"
	e1000NIC   = "pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00"
	ahciDisk   = "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01"
	otherAHCI  = "pci:v00001002d00004390sv00001002sd00004390bc01sc06i01"
)

// bench is a sysfs in which a driver brings new devices to light.
type bench struct {
	*drivers
	t      *testing.T
	brings map[string]string // module to the device that it brings

	mu     sync.Mutex // guards probed
	probed []string
}

func newBench(t *testing.T, brings map[string]string, devices ...string) *bench {
	t.Helper()
	file := filepath.Join(t.TempDir(), "modules.alias")
	if err := os.WriteFile(file, []byte(aliasText), 0o600); err != nil {
		t.Fatal(err)
	}
	aliases, err := readAliases(file)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, brings: brings}
	b.drivers = &drivers{sys: t.TempDir(), aliases: aliases, log: slog.New(slog.DiscardHandler), seen: map[string]bool{}, asked: map[string]bool{}, probe: b.load1}
	for _, id := range devices {
		b.plug(id)
	}
	return b
}

func (b *bench) load1(module string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probed = append(b.probed, module)
	if id, ok := b.brings[module]; ok {
		b.plug(id)
	}
	if module == "e1000" {
		return errors.New("no such device")
	}
	return nil
}

func (b *bench) plug(id string) {
	bus, _, _ := strings.Cut(id, ":")
	dir := filepath.Join(b.sys, "bus", bus, "devices", strings.ReplaceAll(id, ":", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "modalias"), []byte(id+"\n"), 0o600); err != nil {
		b.t.Error(err)
	}
}

func TestDriversFollowWhatComesToLight(t *testing.T) {
	b := newBench(t, map[string]string{"virtio_pci": "virtio:d00000002v00001AF4", "ahci": "scsi:t-0x00"}, virtioDisk, ahciDisk, e1000NIC)
	if err := b.load(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	slices.Sort(b.probed)
	if want := []string{"ahci", "e1000", "sd_mod", "virtio_blk", "virtio_pci"}; !slices.Equal(b.probed, want) {
		t.Errorf("loaded %v, want %v", b.probed, want)
	}
}

func TestDriversOfPortsComeFirst(t *testing.T) {
	b := newBench(t, map[string]string{"virtio_pci": "virtio:d00000001v00001AF4", "ahci": "scsi:t-0x00"}, ahciDisk, virtioNIC)
	if err := b.load(t.Context(), isPort); err != nil {
		t.Fatal(err)
	}
	if want := []string{"virtio_pci", "virtio_net"}; !slices.Equal(b.probed, want) {
		t.Errorf("loaded first %v, want %v", b.probed, want)
	}
	if err := b.load(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"virtio_pci", "virtio_net", "ahci", "sd_mod"}; !slices.Equal(b.probed, want) {
		t.Errorf("loaded %v, want %v", b.probed, want)
	}
}

func TestDriversStopWithTheirContext(t *testing.T) {
	b := newBench(t, nil, ahciDisk)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.load(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("load: %v", err)
	}
}

func TestAliasTable(t *testing.T) {
	b := newBench(t, nil)
	for id, want := range map[string][]string{
		virtioNIC: {"virtio_pci"}, e1000NIC: {"e1000"}, ahciDisk: {"ahci", "ahci"}, otherAHCI: {"ahci"},
		"virtio:d00000001v00001AF4": {"virtio_net"}, "scsi:t-0x05": nil, "": nil, "pci:": nil, "usb:v1D6Bp0002": nil,
	} {
		if got := b.aliases.match(id); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
}
