package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

const secret = "s3cr3t-token"

// authority makes a certificate authority and a certificate for 127.0.0.1, both valid from a moment on.
func authority(t *testing.T, from time.Time) (ca []byte, server tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: from, NotAfter: from.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: from.Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}), tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key}
}

// controller is a server that takes reports and answers as told.
type controller struct {
	*httptest.Server
	mu   sync.Mutex
	said []machine.Report
}

func newController(t *testing.T, cert tls.Certificate, answer func(n int, w http.ResponseWriter)) *controller {
	t.Helper()
	c := &controller{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/agent/v1/report" || r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var rep machine.Report
		if err := json.NewDecoder(r.Body).Decode(&rep); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		c.said = append(c.said, rep)
		n := len(c.said)
		c.mu.Unlock()
		answer(n, w)
	}))
	c.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates
	c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The real program on a machine with eight pretended cards, one of them lost: download folder as cloud-init makes it, report, removal.
func TestProgram(t *testing.T) {
	work := t.TempDir()
	program := filepath.Join(work, "program")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build validator: %v\n%s", err, out)
	}
	if out, err := exec.Command("sh", "../../lab/mocknvml/build.sh", filepath.Join(work, "nvml")).CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in library (needs gcc and perl): %v\n%s", err, out)
	}
	ca, cert := authority(t, time.Now().Add(-time.Minute))
	expect := machine.Expect{CardID: "10de:2b85", Count: 8, MACs: []string{"02:00:00:00:00:01"}, Disks: []machine.Disk{{Serial: "lab-1", Size: 4096}}}
	roots := map[string]string{
		"proc/meminfo": "MemTotal: 524288 kB\n", "proc/cpuinfo": "processor : 0\nmodel name : QEMU\n", "sys/module/x/y": "",
		"sys/block/vda/serial": "lab-1", "sys/block/vda/size": "8", "sys/block/vda/device/x": "",
		"sys/class/net/ens3/address": "02:00:00:00:00:01", "sys/class/net/ens3/device/x": "", "sys/class/net/ens3/type": "1",
		"kmsg": "5,0,0,-;Linux version 6.1\n",
	}
	for i := range 8 {
		d := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/", i+1)
		roots[d+"vendor"], roots[d+"device"], roots[d+"class"], roots[d+"config"] = "0x10de", "0x2b85", "0x030200", "\xde\x10\x85\x2b"
		expect.Accelerators = append(expect.Accelerators, machine.Accelerator{Slot: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: "10de", Device: "2b85"})
	}
	write(t, work, roots)

	run := func(t *testing.T, faults string, answer func(int, http.ResponseWriter)) (c *controller, dir, output string) {
		t.Helper()
		dir = filepath.Join(t.TempDir(), "bareyard")
		write(t, dir, map[string]string{"ca.pem": string(ca), "token": secret + "\n", "header": "Authorization: Bearer " + secret})
		write(t, work, map[string]string{"faults": faults})
		data, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "validate"), data, 0o700); err != nil {
			t.Fatal(err)
		}
		c = newController(t, cert, answer)
		cmd := exec.Command("./validate", "--server", c.URL, "--ca", "ca.pem", "--token-file", "token",
			"--sysfs", filepath.Join(work, "sys"), "--proc", filepath.Join(work, "proc"), "--kmsg", filepath.Join(work, "kmsg"))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(work, "nvml"), "MOCK_NVML_SYSFS="+filepath.Join(work, "sys"), "MOCK_NVML_FAULTS="+filepath.Join(work, "faults"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if strings.Contains(string(out), secret) {
			t.Error("the token is in the log")
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("something stays behind: %v", err)
		}
		return c, dir, string(out)
	}
	script := func(n int, w http.ResponseWriter) {
		in := machine.Instruction{Do: machine.DoFinish}
		switch n {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable) // a replica that is just going down
			return
		case 2:
			in.Do = machine.DoWait
		case 3:
			in = machine.Instruction{Do: machine.DoStep, Step: machine.StepValidate, Expect: &expect}
		}
		json.NewEncoder(w).Encode(in)
	}
	result := func(t *testing.T, c *controller) accelerator.Report {
		t.Helper()
		last := c.said[len(c.said)-1]
		if last.Step != machine.StepValidate || last.Phase != machine.Done {
			t.Fatalf("last report: %s %s %s", last.Step, last.Phase, last.Error)
		}
		r, err := accelerator.DecodeReport(last.Result)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	t.Run("good machine", func(t *testing.T) {
		c, _, out := run(t, "", script)
		r := result(t, c)
		if r.Blocks() || len(r.Cards) != 8 || r.Cards[7].Card.Name.Value != "NVIDIA GeForce RTX 5090" {
			r.WriteText(os.Stderr)
			t.Errorf("blocks: %s\n%s", r.Reason(), out)
		}
		if c.said[0].Step != machine.StepFirstBoot || c.said[0].Phase != machine.Done {
			t.Errorf("phones home with %+v", c.said[0])
		}
	})
	t.Run("lost card", func(t *testing.T) {
		c, _, _ := run(t, "0000:04:00.0 lost", script)
		if r := result(t, c); !r.Blocks() || r.Cards[3].Outcome != accelerator.Fail || r.Cards[3].Slot != "0000:04:00.0" || r.Cards[4].Outcome != accelerator.Pass {
			t.Errorf("%s, cards %+v", r.Reason(), r.Cards)
		}
	})
	t.Run("attempt is over", func(t *testing.T) {
		if c, _, _ := run(t, "", func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) }); len(c.said) != 1 {
			t.Errorf("%d reports after 410", len(c.said))
		}
	})
	cuda := filepath.Join(work, "libcuda.so.1")
	if out, err := exec.Command("gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", cuda, "-x", "c", "../../accelerator/burn/testdata/fakecuda.c").CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in for libcuda (needs gcc): %v\n%s", err, out)
	}
	runPlans(t, program, work, cuda)
	t.Run("print", func(t *testing.T) {
		out, err := exec.Command(program, "--print", "--sysfs", filepath.Join(work, "sys"), "--proc", filepath.Join(work, "proc"), "--kmsg", filepath.Join(work, "kmsg")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "8 cards on the PCI bus where none is expected") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

func TestClientTrust(t *testing.T) {
	ca, cert := authority(t, time.Now().Add(-time.Minute))
	other, _ := authority(t, time.Now().Add(-time.Minute))
	late, lateCert := authority(t, time.Now().Add(24*time.Hour)) // as a machine sees it whose clock is a day slow
	old, oldCert := authority(t, time.Now().Add(-24*time.Hour))
	dir := t.TempDir()
	write(t, dir, map[string]string{"token": secret, "ca": string(ca), "other": string(other), "late": string(late), "old": string(old), "empty": "\n"})
	answer := func(_ int, w http.ResponseWriter) { json.NewEncoder(w).Encode(machine.Instruction{Do: machine.DoWait}) }
	cases := []struct {
		name, ca string
		cert     tls.Certificate
		ok       bool
	}{
		{"its own authority", "ca", cert, true},
		{"another authority", "other", cert, false},
		{"clock is behind", "late", lateCert, true},
		{"certificate has run out", "old", oldCert, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := newController(t, c.cert, answer)
			client, err := newClient(server.URL, filepath.Join(dir, c.ca), filepath.Join(dir, "token"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.http.CloseIdleConnections()
			if _, err := client.post(t.Context(), machine.Report{}); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}

	t.Run("redirect", func(t *testing.T) {
		server := newController(t, cert, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		})
		client, err := newClient(server.URL, filepath.Join(dir, "ca"), filepath.Join(dir, "token"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.http.CloseIdleConnections()
		if _, err := client.post(t.Context(), machine.Report{}); err == nil || len(server.said) != 1 {
			t.Errorf("followed: %v", err)
		}
	})

	for _, url := range []string{"http://127.0.0.1:1", "127.0.0.1", "", "https://", "https://user:pw@host"} {
		if _, err := newClient(url, filepath.Join(dir, "ca"), filepath.Join(dir, "token")); err == nil || strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, files := range [][2]string{{"none", "token"}, {"token", "token"}, {"ca", "none"}, {"ca", "empty"}} {
		if _, err := newClient("https://h", filepath.Join(dir, files[0]), filepath.Join(dir, files[1])); err == nil {
			t.Errorf("took %v", files)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "are needed"},
		{[]string{"--server", "https://h"}, "are needed"},
		{[]string{"--nonsense"}, "not defined"},
		{[]string{"extra"}, "unexpected argument"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), c.args, &out, &out); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &out, &out); err != nil || out.String() != usage {
		t.Errorf("%v\n%s", err, out.String())
	}
}
