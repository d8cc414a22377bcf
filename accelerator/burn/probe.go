package burn

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/accelerator"
)

// Probe is the child's side: it carries out the order in args, which follow ProbeArg, tells how it goes on descriptor 3 and returns the exit
// status. A main that uses a Runner calls it first.
func Probe(args []string) int {
	out := os.NewFile(3, "answer")
	var o order
	if out == nil || len(args) != 1 || json.Unmarshal([]byte(args[0]), &o) != nil || len(o.Slots) == 0 {
		fmt.Fprintln(os.Stderr, "this is for the program itself to call")
		return 2
	}
	runtime.LockOSThread() // a context belongs to a thread
	p := &prober{order: o, out: json.NewEncoder(out)}
	p.msg.During = "dlopen"
	p.say()
	var fault *accelerator.Fault
	if p.cuda, fault = open(o.Library); fault != nil {
		p.msg.Fault = fault
	} else {
		pin(o.CPUs)
		p.do()
	}
	p.msg.Done = true
	p.say()
	return 0
}

// prober carries out an order.
type prober struct {
	order order
	out   *json.Encoder
	cuda  *cuda
	msg   message
	told  time.Time
}

func (p *prober) say() {
	if err := p.out.Encode(p.msg); err != nil {
		os.Exit(1) // nobody listens any more
	}
	p.told, p.msg.Rate = time.Now(), 0
}

// call makes a call and notes its fault; once there is one nothing more is called. quiet calls are those of the loops: what was said before names the test.
func (p *prober) call(name string, f func() int32) bool {
	p.msg.During = name
	p.say()
	return p.quiet(name, f)
}

func (p *prober) quiet(name string, f func() int32) bool {
	if p.msg.Fault != nil {
		return false
	}
	if code := f(); code != 0 {
		kind := accelerator.FaultRefused
		p.msg.Fault = &accelerator.Fault{Kind: kind, During: name, Detail: words(code)}
		if n := len(p.msg.Loads); n > 0 && !p.msg.Loads[n-1].Rate.Supported { // the test under way
			p.msg.Loads[n-1].Fault = p.msg.Fault
		}
		return false
	}
	return true
}

// card is a card with its context and its kernels.
type card struct {
	slot                   string
	device                 int32
	context                uintptr
	module                 uintptr
	burn, fill, check, sum uintptr
	sms                    int32
}

// open makes a card ready.
func (p *prober) open(slot string) (*card, bool) {
	c := &card{slot: slot}
	name := cstring(slot)
	if !p.call("cuDeviceGetByPCIBusId", func() int32 { return p.cuda.deviceByPCI(&c.device, &name[0]) }) ||
		!p.call("cuDeviceGetAttribute", func() int32 { return p.cuda.attribute(&c.sms, attributeSMs, c.device) }) ||
		!p.call("cuDevicePrimaryCtxRetain", func() int32 { return p.cuda.retain(&c.context, c.device) }) ||
		!p.call("cuCtxSetCurrent", func() int32 { return p.cuda.setCurrent(c.context) }) {
		return nil, false
	}
	text := append([]byte(nil), kernels...)
	text = append(text, 0)
	if !p.call("cuModuleLoadDataEx", func() int32 { return p.cuda.loadModule(&c.module, &text[0], 0, nil, nil) }) {
		return nil, false
	}
	for _, k := range []struct {
		name string
		into *uintptr
	}{{"burn", &c.burn}, {"fill", &c.fill}, {"check", &c.check}, {"sum", &c.sum}} {
		name := cstring(k.name)
		if !p.call("cuModuleGetFunction", func() int32 { return p.cuda.function(k.into, c.module, &name[0]) }) {
			return nil, false
		}
	}
	if c.sms <= 0 || c.sms > 4096 {
		p.msg.Fault = &accelerator.Fault{Kind: accelerator.FaultRefused, During: "cuDeviceGetAttribute", Detail: fmt.Sprintf("%d multiprocessors", c.sms)}
		return nil, false
	}
	return c, true
}

func cstring(s string) []byte { return append([]byte(s), 0) }

func (p *prober) do() {
	if !p.call("cuInit", func() int32 { return p.cuda.init(0) }) {
		return
	}
	if p.order.Do == "pairs" {
		p.pairs()
		return
	}
	c, ok := p.open(p.order.Slots[0])
	if !ok {
		return
	}
	switch p.order.Do {
	case "rates":
		p.readRate(c)
		p.copies(c)
	case "stress":
		p.pattern(c, time.Duration(p.order.Pattern*float64(time.Second)))
		p.burn(c, time.Duration(p.order.Burn*float64(time.Second)))
	}
}

// begin opens the record of a test; it is the last of the loads until the next one begins.
func (p *prober) begin(test string, c *card) *accelerator.Load {
	p.msg.Loads = append(p.msg.Loads, accelerator.Load{Test: test, Tool: Tool, Version: Version, Slot: c.slot})
	p.msg.During = test
	p.say()
	return &p.msg.Loads[len(p.msg.Loads)-1]
}

const (
	threads      = 256
	blocksPerSM  = 4
	flopsPerTile = 2 * 16 * 8 * 16 // of one mma.m16n8k16
	tiles        = 4               // in one iteration of the burn
	seed         = 0x5eed
)

// burn runs the same work again and again. Every warp computes the same, so that a word that differs is a wrong result, wherever it happened.
func (p *prober) burn(c *card, long time.Duration) {
	if p.msg.Fault != nil {
		return
	}
	l := p.begin(accelerator.TestBurn, c)
	blocks := uint32(c.sms) * blocksPerSM
	n := int(blocks) * threads
	var out uint64
	if !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&out, uint64(n)*4) }) {
		return
	}
	iterations, start := cmp.Or(p.order.Iterations, 1<<16), uint32(seed)
	got := make([]uint32, n)
	var want []uint32
	began, work, second, launches, inSecond := time.Now(), time.Duration(0), time.Now(), 0, 0
	flops := float64(blocks) * threads / 32 * float64(iterations) * tiles * flopsPerTile
	for p.msg.Fault == nil && (launches < 2 || time.Since(began) < long) {
		at := time.Now()
		if !p.quiet("cuMemsetD8", func() int32 { return p.cuda.set(out, 0, uint64(n)*4) }) || // a kernel that did nothing must not pass on the last one's words
			!p.quiet("cuLaunchKernel burn", func() int32 {
				return p.cuda.launch(c.burn, blocks, threads, unsafe.Pointer(&out), unsafe.Pointer(&iterations), unsafe.Pointer(&start))
			}) || !p.quiet("cuCtxSynchronize", p.cuda.synchronize) {
			break
		}
		if launches > 0 { // the first one warms up
			work += time.Since(at)
			inSecond++
		}
		launches++
		if !p.quiet("cuMemcpyDtoH", func() int32 { return p.cuda.toHost(unsafe.Pointer(&got[0]), out, uint64(n)*4) }) {
			break
		}
		if want == nil {
			want = usual(got)
			l.Result = digest(want)
		}
		p.compare(l, got, want, launches)
		if gone := time.Since(second); gone >= time.Second {
			p.msg.Rate = flops * float64(inSecond) / gone.Seconds() / 1e12
			l.Seconds = time.Since(began).Seconds()
			p.say()
			second, inSecond = time.Now(), 0
		}
	}
	l.Seconds = time.Since(began).Seconds()
	if p.msg.Fault == nil && work > 0 {
		l.Rate = accelerator.Measured(flops*float64(launches-1)/work.Seconds()/1e12, "TFLOPS", "cuda")
	}
	p.cuda.free(out)
}

// usual returns for each lane of a warp the word that most warps came to.
func usual(words []uint32) []uint32 {
	out := make([]uint32, 32)
	for lane := range out {
		votes := 0
		for i := lane; i < len(words); i += 32 { // the majority, if there is one, survives
			switch {
			case votes == 0:
				out[lane], votes = words[i], 1
			case words[i] == out[lane]:
				votes++
			default:
				votes--
			}
		}
	}
	return out
}

// digest names a result: equal on every card that computes right.
func digest(words []uint32) string {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, words) // a hash takes everything
	return fmt.Sprintf("%016x", h.Sum64())
}

func (p *prober) compare(l *accelerator.Load, got, want []uint32, launch int) {
	for i, w := range got {
		if w != want[i%32] {
			if l.Errors == 0 {
				l.Detail = fmt.Sprintf("launch %d, block %d, thread %d: %#08x, should be %#08x", launch, i/threads, i%threads, w, want[i%32])
			}
			l.Errors++
		}
	}
}

// chunk is memory of a card under test.
type chunk struct{ at, words, first uint64 }

// reserve keeps back what contexts of others need.
const reserve = 512 << 20

// pattern writes patterns to nearly all the free memory and reads them back, until the time is over, once round at least.
func (p *prober) pattern(c *card, long time.Duration) {
	l := p.begin(accelerator.TestPattern, c)
	var free, total uint64
	if !p.quiet("cuMemGetInfo", func() int32 { return p.cuda.memory(&free, &total) }) {
		return
	}
	room := free - min(free/2, max(free/20, reserve))
	size := min(cmp.Or(p.order.Chunk, 1<<30), room) &^ 15
	var chunks []chunk
	words := uint64(0)
	for size > 0 && words*4+size <= room {
		var at uint64
		code := p.cuda.alloc(&at, size)
		if code == errOutOfMemory && len(chunks) > 0 {
			break
		}
		if !p.quiet("cuMemAlloc", func() int32 { return code }) {
			return
		}
		chunks = append(chunks, chunk{at, size / 4, words})
		words += size / 4
	}
	defer func() {
		for _, k := range chunks {
			p.cuda.free(k.at)
		}
	}()
	var found uint64
	if !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&found, 32) }) {
		return
	}
	defer func() { p.cuda.free(found) }()
	blocks := uint32(c.sms) * 8
	began, work, moved := time.Now(), time.Duration(0), uint64(0)
	for round := uint32(0); p.msg.Fault == nil && (round == 0 || time.Since(began) < long); round++ {
		for pattern := range uint32(4) {
			start, at := uint32(seed)+round, time.Now()
			if !p.quiet("cuMemsetD8", func() int32 { return p.cuda.set(found, 0, 32) }) {
				return
			}
			for _, k := range chunks {
				if !p.quiet("cuLaunchKernel fill", func() int32 {
					return p.cuda.launch(c.fill, blocks, threads, unsafe.Pointer(&k.at), unsafe.Pointer(&k.words), unsafe.Pointer(&k.first), unsafe.Pointer(&pattern), unsafe.Pointer(&start))
				}) {
					return
				}
			}
			for _, k := range chunks { // after all of it was written: a wrong address line shows up as another's words
				if !p.quiet("cuLaunchKernel check", func() int32 {
					return p.cuda.launch(c.check, blocks, threads, unsafe.Pointer(&k.at), unsafe.Pointer(&k.words), unsafe.Pointer(&k.first), unsafe.Pointer(&pattern), unsafe.Pointer(&start), unsafe.Pointer(&found))
				}) {
					return
				}
			}
			var what [8]uint32
			if !p.quiet("cuCtxSynchronize", p.cuda.synchronize) || !p.quiet("cuMemcpyDtoH", func() int32 { return p.cuda.toHost(unsafe.Pointer(&what[0]), found, 32) }) {
				return
			}
			work += time.Since(at)
			moved += 2 * 4 * words
			if what[0] > 0 {
				if l.Errors == 0 {
					l.Detail = fmt.Sprintf("pattern %d, byte %#x: %#08x, should be %#08x", pattern, (uint64(what[1])|uint64(what[2])<<32)*4, what[3], what[4])
				}
				l.Errors += int64(what[0])
			}
			l.Bytes, l.Seconds = int64(4*words), time.Since(began).Seconds()
			if time.Since(p.told) > time.Second {
				p.say()
			}
		}
	}
	if work > 0 {
		l.Rate = accelerator.Measured(float64(moved)/work.Seconds()/1e9, "GB/s", "cuda")
	}
}

// sized returns how much of what is wanted fits into a quarter of the memory that is free on the current card; 0 after a fault.
func (p *prober) sized(want uint64) uint64 {
	var free, total uint64
	if !p.quiet("cuMemGetInfo", func() int32 { return p.cuda.memory(&free, &total) }) {
		return 0
	}
	size := min(want, free/4) &^ 15
	if size == 0 {
		p.msg.Fault = &accelerator.Fault{Kind: accelerator.FaultRefused, During: "cuMemGetInfo", Detail: fmt.Sprintf("%d bytes of memory are free", free)}
	}
	return size
}

// timed repeats something for long enough to be measured and returns how often, and the time that it took. It is done once before, to warm up.
func (p *prober) timed(name string, f func() int32) (int, time.Duration) {
	if !p.quiet(name, f) || !p.quiet("cuCtxSynchronize", p.cuda.synchronize) {
		return 0, 0
	}
	least := cmp.Or(p.order.Least, time.Second/2)
	began, n := time.Now(), 0
	for n == 0 || time.Since(began) < least {
		if !p.quiet(name, f) || !p.quiet("cuCtxSynchronize", p.cuda.synchronize) {
			return 0, 0
		}
		n++
	}
	return n, time.Since(began)
}

func (p *prober) rate(l *accelerator.Load, bytes uint64, name string, f func() int32) {
	n, took := p.timed(name, f)
	if n > 0 {
		l.Seconds = took.Seconds()
		l.Rate = accelerator.Measured(float64(n)*float64(bytes)/took.Seconds()/1e9, "GB/s", "cuda")
	}
}

// readRate measures how fast the card reads its own memory.
func (p *prober) readRate(c *card) {
	l := p.begin(accelerator.TestRead, c)
	size := p.sized(cmp.Or(p.order.Chunk, 1<<30))
	var at, sum uint64
	if size == 0 || !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&at, size) }) || !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&sum, 16) }) ||
		!p.quiet("cuMemsetD8", func() int32 { return p.cuda.set(at, 0x5a, size) }) {
		return
	}
	quads := size / 16
	p.rate(l, size, "cuLaunchKernel sum", func() int32 {
		return p.cuda.launch(c.sum, uint32(c.sms)*8, threads, unsafe.Pointer(&at), unsafe.Pointer(&quads), unsafe.Pointer(&sum))
	})
	p.cuda.free(at)
	p.cuda.free(sum)
}

// copies measures copies from pinned host memory and back, and compares what came back.
func (p *prober) copies(c *card) {
	if p.msg.Fault != nil {
		return
	}
	l := p.begin(accelerator.TestToCard, c)
	size := p.sized(cmp.Or(p.order.Copy, 256<<20))
	var at uint64
	var host unsafe.Pointer
	if size == 0 || !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&at, size) }) || !p.quiet("cuMemAllocHost", func() int32 { return p.cuda.allocHost(&host, size) }) {
		return
	}
	words := unsafe.Slice((*uint32)(host), size/4)
	for i := range words {
		words[i] = uint32(i) * 2654435761
	}
	p.rate(l, size, "cuMemcpyHtoD", func() int32 { return p.cuda.toCard(at, host, size) })
	if p.msg.Fault != nil {
		return
	}
	clear(words)
	l = p.begin(accelerator.TestToHost, c)
	p.rate(l, size, "cuMemcpyDtoH", func() int32 { return p.cuda.toHost(host, at, size) })
	if p.msg.Fault == nil {
		verify(l, words)
	}
	p.cuda.freeHost(host)
	p.cuda.free(at)
}

// verify counts the words that arrived wrong.
func verify(l *accelerator.Load, words []uint32) {
	for i, w := range words {
		if want := uint32(i) * 2654435761; w != want {
			if l.Errors == 0 {
				l.Detail = fmt.Sprintf("byte %#x: %#08x, should be %#08x", i*4, w, want)
			}
			l.Errors++
		}
	}
}

// pairs copies from each card to each other. Without direct access the driver goes through the host's memory: measured all the same, and said.
func (p *prober) pairs() {
	size := cmp.Or(p.order.Copy, 256<<20)
	var cards []*card
	buffers := map[*card]uint64{}
	for _, slot := range p.order.Slots {
		c, ok := p.open(slot)
		if !ok {
			return
		}
		if size = min(size, p.sized(size)); size == 0 {
			return
		}
		var at uint64
		if !p.quiet("cuMemAlloc", func() int32 { return p.cuda.alloc(&at, size) }) {
			return
		}
		cards, buffers[c] = append(cards, c), at
	}
	host := make([]uint32, size/4)
	for _, from := range cards {
		for i := range host {
			host[i] = uint32(i) * 2654435761
		}
		if !p.quiet("cuCtxSetCurrent", func() int32 { return p.cuda.setCurrent(from.context) }) ||
			!p.quiet("cuMemcpyHtoD", func() int32 { return p.cuda.toCard(buffers[from], unsafe.Pointer(&host[0]), size) }) {
			return
		}
		for _, to := range cards {
			if to != from && !p.pair(from, to, buffers[from], buffers[to], size, host) {
				return
			}
		}
	}
}

func (p *prober) pair(from, to *card, source, target, size uint64, host []uint32) bool {
	l := p.begin(accelerator.TestPeer, from)
	l.Peer = to.slot
	var can int32
	if !p.quiet("cuCtxSetCurrent", func() int32 { return p.cuda.setCurrent(from.context) }) ||
		!p.quiet("cuDeviceCanAccessPeer", func() int32 { return p.cuda.canAccess(&can, from.device, to.device) }) {
		return false
	}
	if can != 0 {
		if code := p.cuda.enablePeer(to.context, 0); code != errPeerEnabled && !p.quiet("cuCtxEnablePeerAccess", func() int32 { return code }) {
			return false
		}
		l.Direct = true
	}
	p.rate(l, size, "cuMemcpyPeer", func() int32 { return p.cuda.copyPeer(target, to.context, source, from.context, size) })
	clear(host)
	if !p.quiet("cuCtxSetCurrent", func() int32 { return p.cuda.setCurrent(to.context) }) || !p.quiet("cuMemcpyDtoH", func() int32 { return p.cuda.toHost(unsafe.Pointer(&host[0]), target, size) }) {
		return false
	}
	verify(l, host)
	return true
}

// pin keeps the thread on processors near the card. Where the list is not understood, or the kernel refuses, it stays where it is.
func pin(list string) {
	var set unix.CPUSet
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last < first || last > 4095 {
			return
		}
		for cpu := first; cpu <= last; cpu++ {
			set.Set(cpu)
			n++
		}
	}
	if n > 0 {
		_ = unix.SchedSetaffinity(0, &set)
	}
}
