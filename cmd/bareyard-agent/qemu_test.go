package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/gpt"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/machine"
)

const (
	mib     = 1 << 20
	nonce   = "Zq9canary"
	mac     = "52:54:00:ba:4e:01"
	uuid    = "4c4c4544-0042-3510-8051-b4c04f4a4d31"
	patient = 4 * time.Minute // one emulated machine; quiet it takes 10 to 30 seconds
)

// controller is a server that leads one machine through steps.
type controller struct {
	mu      sync.Mutex // guards all below
	plan    []machine.Instruction
	hello   machine.Hello
	helloAt time.Time
	final   map[machine.StepName]machine.Report
	working int
}

func (c *controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var answer any
	switch r.URL.Path {
	case "/agent/v1/hello":
		if err := json.NewDecoder(r.Body).Decode(&c.hello); err != nil || c.hello.Nonce != nonce {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		c.helloAt = time.Now()
		answer = machine.Welcome{Token: "t", Instruction: c.plan[0]}
	case "/agent/v1/report":
		var report machine.Report
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil || r.Header.Get("Authorization") != "Bearer t" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		in := machine.Instruction{Do: machine.DoContinue}
		switch report.Phase {
		case machine.Working:
			c.working++
		case machine.Done:
			c.final[report.Step] = report
			c.plan = c.plan[1:]
			in = c.plan[0]
		case machine.Failed:
			c.final[report.Step] = report
			in = machine.Instruction{Do: machine.DoPowerOff}
		}
		answer = in
	}
	json.NewEncoder(w).Encode(answer)
}

// TestQEMU boots the real RAM disk on the real kernel: inventory, wipe, write, verify and configure, then erase and prove.
func TestQEMU(t *testing.T) {
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("boots emulated machines for minutes: set BAREYARD_QEMU=1")
	}
	for name, hint := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "sgdisk": "gdisk", "mtype": "mtools", "blkid": "util-linux"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: apt-get install %s", err, hint)
		}
	}
	kernel, initrd := buildRAMDisk(t)
	raw := image(t)
	store := httptest.NewServer(storeOf(t, raw))
	defer store.Close()

	for _, firmware := range []machine.Firmware{machine.BIOS, machine.UEFI} {
		t.Run(string(firmware), func(t *testing.T) {
			dir := t.TempDir()
			system := machine.Disk{Serial: "SYS-1", Size: 192 * mib, Role: machine.SystemDisk}
			data := machine.Disk{Serial: "DATA-1", Size: 96 * mib, Role: machine.DataDisk}
			for _, d := range []machine.Disk{system, data} {
				if err := os.WriteFile(filepath.Join(dir, d.Serial), bytes.Repeat([]byte("old data "), int(d.Size)/9+1)[:d.Size], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ref := storeRef(t, store)
			seed := map[string]string{"meta-data": "instance-id: j-1\n", "user-data": "#cloud-config\n"}
			c := &controller{final: map[machine.StepName]machine.Report{}, plan: []machine.Instruction{
				{Do: machine.DoStep, Step: machine.StepInventory},
				{Do: machine.DoStep, Step: machine.StepWipe, Disks: []machine.Disk{system}},
				{Do: machine.DoStep, Step: machine.StepWrite, Target: &system, Image: &ref},
				{Do: machine.DoStep, Step: machine.StepVerify, Target: &system, Image: &ref},
				{Do: machine.DoStep, Step: machine.StepConfigure, Target: &system, Configure: &machine.Configure{Seed: seed, Firmware: firmware, Label: "Bareyard debian-12"}},
				{Do: machine.DoStep, Step: machine.StepEraseAll, Disks: []machine.Disk{data}},
				{Do: machine.DoStep, Step: machine.StepProve, Disks: []machine.Disk{data}},
				{Do: machine.DoPowerOff},
			}}
			url, ca := serveTLS(t, c)
			boot, err := json.Marshal(agent.Boot{Server: url, CA: ca, Nonce: nonce, MAC: mac})
			if err != nil {
				t.Fatal(err)
			}
			console := bootMachine(t, dir, kernel, initrd, boot, firmware, system, data)
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Logf("%d signs of life; console:\n%s", c.working, console)

			if !c.helloAt.IsZero() && (c.hello.UUID != uuid || c.hello.Serial != "SN-1" || !slices.Equal(c.hello.MACs, []string{mac})) {
				t.Errorf("hello %+v", c.hello)
			}
			for _, s := range []machine.StepName{machine.StepInventory, machine.StepWipe, machine.StepWrite, machine.StepVerify, machine.StepConfigure, machine.StepEraseAll, machine.StepProve} {
				if r := c.final[s]; r.Phase != machine.Done {
					t.Errorf("step %s: %+v", s, r)
				}
			}
			if strings.Contains(console, nonce) {
				t.Error("the nonce is on the console (K09)")
			}
			if strings.Contains(console, "level=ERROR") || strings.Contains(console, "level=WARN") {
				t.Error("the agent complains")
			}
			checkInventory(t, c.final[machine.StepInventory].Result, firmware, system, data)
			checkDisks(t, dir, seed, raw, system, data)
			if up := helloUp(console); up == 0 || up > 40*time.Second {
				t.Errorf("hello after %v", up)
			}
		})
	}
}

// helloUp reads from the console how long after its start the kernel's agent was known to the server.
func helloUp(console string) time.Duration {
	m := regexp.MustCompile(`time=(\S+) level=INFO msg="the server knows`).FindStringSubmatch(console)
	if m == nil {
		return 0
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		return 0
	}
	return d
}

func checkInventory(t *testing.T, raw json.RawMessage, firmware machine.Firmware, want ...machine.Disk) {
	t.Helper()
	var inv machine.Inventory
	if err := json.Unmarshal(raw, &inv); err != nil {
		t.Fatal(err)
	}
	if inv.Firmware != firmware || inv.Cores != 1 || inv.Memory != 384*mib || inv.Kernel == "" || inv.CPU == "" || inv.Hardware.UUID != uuid || len(inv.Hardware.NICs) != 1 {
		t.Errorf("inventory %+v", inv)
	}
	found := map[string]int64{}
	for _, d := range inv.Hardware.Disks {
		found[d.Serial] = d.Size
	}
	for _, d := range want {
		if found[d.Serial] != d.Size {
			t.Errorf("disks %v, want %+v", found, d)
		}
	}
	if len(found) != len(want) {
		t.Errorf("disks %v", found)
	}
}

func checkDisks(t *testing.T, dir string, seed map[string]string, raw []byte, system, data machine.Disk) {
	t.Helper()
	path := filepath.Join(dir, system.Serial)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const first, last = 4 * mib, 63 * mib // between the partition tables, which configure changes
	if sha256.Sum256(got[first:last]) != sha256.Sum256(raw[first:last]) {
		t.Error("the system disk does not hold the image")
	}
	table, err := gpt.Parse(got[:gpt.Head])
	if err != nil {
		t.Fatal(err)
	}
	part, _ := table.Last()
	for name, want := range seed {
		out, err := exec.Command("mtype", "-i", fmt.Sprintf("%s@@%d", path, part.First*512), "::"+name).Output()
		if err != nil || string(out) != want {
			t.Errorf("%s holds %q, %v", name, out, err)
		}
	}
	if out, err := exec.Command("sgdisk", "-v", path).CombinedOutput(); err != nil || !strings.Contains(string(out), "No problems found") {
		t.Errorf("sgdisk -v: %v\n%s", err, out)
	}
	got, err = os.ReadFile(filepath.Join(dir, data.Serial))
	if err != nil || len(bytes.Trim(got, "\x00")) != 0 {
		t.Errorf("the data disk is not zero, %v", err)
	}
}

// bootMachine boots a machine until it powers itself off and returns its console.
func bootMachine(t *testing.T, dir, kernel, initrd string, boot []byte, firmware machine.Firmware, disks ...machine.Disk) string {
	t.Helper()
	archive, err := ramdisk.Archive(map[string][]byte{strings.TrimPrefix(agent.BootPath, "/"): boot})
	if err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile(initrd)
	if err != nil {
		t.Fatal(err)
	}
	both = append(both, make([]byte, -len(both)&3)...) // as loaders do
	joined := filepath.Join(dir, "initrd")
	if err := os.WriteFile(joined, append(both, archive...), 0o600); err != nil {
		t.Fatal(err)
	}
	console := filepath.Join(dir, "console")
	memory := "384"
	args := []string{"-machine", "q35,graphics=off", "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max", "-smp", "1", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", kernel, "-initrd", joined, "-append", "console=ttyS0 quiet mitigations=off panic=1",
		"-serial", "file:" + console, "-uuid", uuid, "-smbios", "type=1,serial=SN-1,uuid=" + uuid,
		"-netdev", "user,id=n0,net=10.0.2.0/24", "-device", "virtio-net-pci,netdev=n0,mac=" + mac + ",romfile="}
	for i, d := range disks {
		args = append(args, "-drive", fmt.Sprintf("if=none,id=d%d,format=raw,file=%s", i, filepath.Join(dir, d.Serial)))
		if i == 0 {
			args = append(args, "-device", fmt.Sprintf("virtio-blk-pci,drive=d%d,serial=%s", i, d.Serial))
		} else {
			args = append(args, "-device", "ahci,id=ahci", "-device", fmt.Sprintf("ide-hd,bus=ahci.0,drive=d%d,serial=%s", i, d.Serial))
		}
	}
	if firmware == machine.UEFI {
		vars, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.fd")
		if err != nil {
			t.Fatalf("%v: apt-get install ovmf", err)
		}
		own := filepath.Join(dir, "vars")
		if err := os.WriteFile(own, vars, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd", "-drive", "if=pflash,format=raw,unit=1,file="+own)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, "-m", memory)...).CombinedOutput()
	text, readErr := os.ReadFile(console)
	if err != nil || readErr != nil {
		t.Fatalf("the machine did not power itself off: %v, %v\n%s\n%s", err, readErr, out, text)
	}
	return string(text)
}

// serveTLS serves h where a guest of QEMU's user network finds it, and returns the URL and the CA.
func serveTLS(t *testing.T, h http.Handler) (url, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bareyard"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(10, 0, 2, 2)}}
	raw, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return guestURL(t, s), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
}

// guestURL returns the URL by which a guest reaches a server on this host's loopback.
func guestURL(t *testing.T, s *httptest.Server) string {
	t.Helper()
	return strings.Replace(s.URL, "127.0.0.1", "10.0.2.2", 1)
}

// image makes a disk of 64 MiB with a GPT as Debian's images have it, an ESP and noise.
func image(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raw")
	raw := make([]byte, 64*mib)
	for off := 20 * mib; off < 40*mib; off += mib {
		if _, err := io.ReadFull(rand.Reader, raw[off:off+mib/2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sgdisk", "-n14:2048:+4M", "-t14:ef02", "-n15:0:+8M", "-t15:ef00", "-n1:0:0", "-t1:8300", path).CombinedOutput(); err != nil {
		t.Fatalf("sgdisk: %v\n%s", err, out)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// imported keeps the digest with the handler.
type imported struct {
	http.Handler
	image machine.Image
}

func storeOf(t *testing.T, raw []byte) http.Handler {
	t.Helper()
	s := &images.Store{Dir: t.TempDir()}
	got, err := s.Import(t.Context(), images.Import{Name: "test", DefaultUser: "debian", Reader: bytes.NewReader(raw), Format: images.Raw, Unbootable: true})
	if err != nil {
		t.Fatal(err)
	}
	return imported{s.Handler(), got.Image}
}

func storeRef(t *testing.T, s *httptest.Server) machine.ImageRef {
	t.Helper()
	i := s.Config.Handler.(imported).image
	return machine.ImageRef{URL: guestURL(t, s), Digest: i.Digest, Size: i.Size}
}

// buildRAMDisk builds the agent and its RAM disk on the kernel of build/kernel.
func buildRAMDisk(t *testing.T) (kernel, initrd string) {
	t.Helper()
	const dir = "../../build/kernel"
	kernel = filepath.Join(dir, "vmlinuz")
	if _, err := os.Stat(kernel); errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v: make kernel", err)
	}
	binary := filepath.Join(t.TempDir(), "bareyard-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build agent: %v\n%s", err, out)
	}
	initrd = filepath.Join(t.TempDir(), "ramdisk")
	if err := ramdisk.Build(t.Context(), ramdisk.Options{KernelDir: dir, AgentBinary: binary, Out: initrd}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(initrd); err == nil {
		t.Logf("RAM disk of %d bytes", info.Size())
	}
	return kernel, initrd
}
