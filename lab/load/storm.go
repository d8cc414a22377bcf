package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
	"github.com/u-root/u-root/pkg/cpio"
)

// maxFailures is how many failures a Result names.
const maxFailures = 5

// storm boots all machines at once, from the first DISCOVER of the firmware to the agent's hello. The interface has the addresses
// of all of them.
func (s Spec) storm(ctx context.Context) (Result, error) {
	w, err := openWire(s.Interface)
	if err != nil {
		return Result{}, err
	}
	defer w.close()
	ctx, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	noise, quiet := context.WithCancel(ctx)
	flooded := s.flood(noise, w)
	began := time.Now()
	var (
		mu           sync.Mutex
		total        Result
		waits, boots []time.Duration
		group        sync.WaitGroup
	)
	for n := range s.Count {
		group.Go(func() {
			b := &boot{Spec: s, n: n, asker: newAsker(w), began: time.Now()}
			err := b.run(ctx)
			took := time.Since(b.began)
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, b.waits...)
			total.Repeats += b.repeats
			total.Again += b.loader.repeats
			total.Bytes += b.bytes
			switch {
			case err == nil:
				total.Done++
				boots = append(boots, took)
			case len(total.Failures) < maxFailures:
				total.Failures = append(total.Failures, fmt.Sprintf("machine %d: %v", n, err))
			}
		})
	}
	group.Wait()
	total.Took = time.Since(began)
	quiet()
	total.Flooded = <-flooded
	total.DHCPMedian, total.DHCPTail, total.DHCPWorst = spread(waits)
	total.BootMedian, total.BootTail, total.BootWorst = spread(boots)
	return total, nil
}

// boot is one machine on its way from power-on to the agent.
type boot struct {
	Spec
	n int
	*asker
	loader tftpClient
	began  time.Time
	bytes  int64
}

// urls are what a script names.
var urls = regexp.MustCompile(`(?m)^(?:kernel|initrd)\b.*?(http://\S+)`)

func (b *boot) run(ctx context.Context) error {
	got, err := b.lease(ctx, firmware.template(true), MAC(b.n), uint32(b.n)<<1)
	if err != nil {
		return fmt.Errorf("firmware: %w", err)
	}
	local := netip.AddrFrom4(got.addr)
	if want := b.Addr(b.n); local != want {
		return fmt.Errorf("firmware got the address %s, %s is reserved", local, want)
	}
	b.loader = tftpClient{server: netip.AddrPortFrom(b.Server, 69), block: 1468}
	size, err := b.loader.fetch(ctx, local, got.file)
	if err != nil {
		return fmt.Errorf("loader: %w", err)
	}
	b.bytes += size
	// iPXE leaves the broadcast flag alone: the answer is a frame to the machine's own MAC address.
	if got, err = b.lease(ctx, ipxe.template(false), MAC(b.n), uint32(b.n)<<1|1); err != nil {
		return fmt.Errorf("iPXE: %w", err)
	}
	if a := netip.AddrFrom4(got.addr); a != local {
		return fmt.Errorf("iPXE got the address %s, the firmware %s", a, local)
	}
	client := b.client(local)
	defer client.CloseIdleConnections()
	script, err := b.get(ctx, client, got.file)
	if err != nil {
		return err
	}
	var last []byte
	for _, u := range urls.FindAllStringSubmatch(string(script), -1) {
		if last, err = b.get(ctx, client, u[1]); err != nil {
			return err
		}
	}
	if last == nil {
		return fmt.Errorf("it is told to boot something else: %q", script)
	}
	return b.hello(ctx, last, local)
}

// client gets files over one connection, as iPXE does, from the machine's address.
func (b *boot) client(local netip.Addr) *http.Client {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), Timeout: 10 * time.Second}
	return &http.Client{Transport: &http.Transport{DialContext: d.DialContext, MaxConnsPerHost: 1, DisableCompression: true}}
}

func (b *boot) get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("get %q: %w", url, err)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, res.Status)
	}
	body, err := io.ReadAll(res.Body)
	b.bytes += int64(len(body))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	return body, nil
}

// hello is the RAM disk: the real agent, up to the first thing that it is told to do.
func (b *boot) hello(ctx context.Context, archive []byte, local netip.Addr) error {
	file, err := fileIn(archive, strings.TrimPrefix(agent.BootPath, "/"))
	if err != nil {
		return err
	}
	config, err := agent.ParseBoot(file)
	if err != nil {
		return err
	}
	client, err := config.Client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	client.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), Timeout: 10 * time.Second}).DialContext
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	welcome := &welcome{mac: net.HardwareAddr(macOf(b.n)).String(), then: stop}
	if err := agent.Run(ctx, agent.Config{Boot: config, Hands: welcome, Client: client, Patience: b.For}); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if welcome.step != machine.StepInventory {
		return fmt.Errorf("hello: told to do %q", welcome.step)
	}
	return nil
}

func macOf(n int) []byte { m := MAC(n); return m[:] }

// welcome is the hands of an agent that is content with the first thing that it is told to do.
type welcome struct {
	mac  string
	then func()
	step machine.StepName
}

// Identity implements agent.Hands.
func (w *welcome) Identity(context.Context) (machine.Hello, error) {
	return machine.Hello{MACs: []string{w.mac}}, nil
}

// Do implements agent.Hands.
func (w *welcome) Do(_ context.Context, in machine.Instruction, _ func(done, total int64)) (any, error) {
	w.step = in.Step
	w.then()
	return nil, errors.New("this is all that was wanted")
}

// fileIn finds a file in a cpio archive.
func fileIn(archive []byte, name string) ([]byte, error) {
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(strings.NewReader(string(archive))))
	if err != nil {
		return nil, fmt.Errorf("read boot archive: %w", err)
	}
	for _, r := range records {
		if strings.TrimPrefix(r.Name, "/") == name {
			return io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
		}
	}
	return nil, fmt.Errorf("read boot archive: no %s", name)
}
