package nvidia

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bareyard/bareyard/accelerator"
)

// ProbeArg is the first argument of a program that is to be a probe.
const ProbeArg = "nvidia-probe"

// message is what a probe says: before each call, what it is about to call and what it knows so far. When it dies, the last one tells in what.
type message struct {
	During  string                    `json:"during,omitempty"`
	Done    bool                      `json:"done,omitempty"`
	Fault   *accelerator.Fault        `json:"fault,omitempty"`
	Version accelerator.Value[string] `json:"version,omitzero"`
	Count   accelerator.Value[int64]  `json:"count,omitzero"`
	Card    accelerator.Card          `json:"card,omitzero"`
	Sample  *accelerator.Sample       `json:"sample,omitempty"` // of a card that is watched
}

// Doing returns the call under way.
func (m message) Doing() string { return m.During }

// Whole reports whether this is the whole answer.
func (m message) Whole() bool { return m.Done }

// Found returns what the probe says went wrong.
func (m message) Found() *accelerator.Fault { return m.Fault }

// Probe is the child's side: it answers the question in args, which follow ProbeArg, on descriptor 3 and returns the exit status.
// A main that uses a Reader calls it first: if len(os.Args) > 1 && os.Args[1] == nvidia.ProbeArg { os.Exit(nvidia.Probe(os.Args[2:])) }.
func Probe(args []string) int {
	out := os.NewFile(3, "answer")
	if out == nil || len(args) < 2 {
		fmt.Fprintln(os.Stderr, "this is for bareyard-validate itself to call")
		return 2
	}
	defer out.Close()
	p := &prober{name: args[0], out: json.NewEncoder(out)}
	switch {
	case args[1] == "system":
		p.system()
	case args[1] == "card" && len(args) == 3:
		index, err := strconv.Atoi(args[2])
		if err != nil {
			return 2
		}
		p.card(index)
	case args[1] == "watch" && len(args) == 4:
		every, err := time.ParseDuration(args[3])
		if err != nil || every <= 0 {
			return 2
		}
		p.watch(args[2], every)
	default:
		return 2
	}
	p.msg.Done = true
	if err := p.say(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// prober asks the library and keeps what it learned.
type prober struct {
	name string // of the library
	lib  nvml.Interface
	out  *json.Encoder
	msg  message

	quiet bool // says nothing before each call
}

func (p *prober) say() error {
	if err := p.out.Encode(p.msg); err != nil && err != io.ErrClosedPipe {
		return fmt.Errorf("say answer: %w", err)
	}
	return nil
}

// fail ends the probe with a fault.
func (p *prober) fail(kind accelerator.FaultKind, format string, a ...any) {
	if p.msg.Fault == nil {
		p.msg.Fault = &accelerator.Fault{Kind: kind, During: p.msg.During, Detail: fmt.Sprintf(format, a...)}
	}
}

// open loads the library and starts it. Every function is looked up before it is called, since a missing one ends the process.
func (p *prober) open() bool {
	p.msg.During = "dlopen"
	p.say()
	handle := dl.New(p.name, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := handle.Open(); err != nil {
		kind := accelerator.FaultRefused
		if strings.Contains(err.Error(), "cannot open shared object file") {
			kind = accelerator.FaultAbsent
		}
		p.fail(kind, "%v", err)
		return false
	}
	p.msg.During = "nvmlInit"
	if handle.Lookup("nvmlInit_v2") != nil && handle.Lookup("nvmlInit") != nil {
		p.fail(accelerator.FaultSymbol, "%s has no nvmlInit", p.name)
		return false
	}
	p.say()
	p.lib = nvml.New(nvml.WithLibraryPath(p.name))
	if ret := p.lib.Init(); ret != nvml.SUCCESS {
		p.fail(accelerator.FaultRefused, "%s", reason(ret))
		return false
	}
	return true
}

// call makes one call if the library has one of the symbols. A card that is lost is asked nothing more: every answer would be the same.
func (p *prober) call(f func() nvml.Return, symbols ...string) nvml.Return {
	if p.msg.Fault != nil {
		return nvml.ERROR_GPU_IS_LOST
	}
	p.msg.During = symbols[0]
	found := false
	for _, s := range symbols {
		found = found || p.lib.Extensions().LookupSymbol(s) == nil
	}
	if !found {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if !p.quiet {
		p.say()
	}
	ret := f()
	if ret == nvml.ERROR_GPU_IS_LOST {
		p.fail(accelerator.FaultLost, "%s", reason(ret))
	}
	return ret
}

// must makes a call without which nothing can be told.
func (p *prober) must(f func() nvml.Return, symbols ...string) bool {
	ret := p.call(f, symbols...)
	switch ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		p.fail(accelerator.FaultSymbol, "%s has no %s", p.name, symbols[0])
	default:
		p.fail(accelerator.FaultRefused, "%s", reason(ret))
	}
	return false
}

const source = "nvml"

// value turns an answer into a value: what card or driver do not have is unsupported, any other refusal is unreadable.
func value[T any](ret nvml.Return, v T, unit string) accelerator.Value[T] {
	switch ret {
	case nvml.SUCCESS:
		return accelerator.Measured(v, unit, source)
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return accelerator.Unsupported[T](source)
	}
	return accelerator.Unreadable[T](source, reason(ret))
}

// ask makes a call that gives one value.
func ask[T, U any](p *prober, unit string, get func() (T, nvml.Return), to func(T) U, symbols ...string) accelerator.Value[U] {
	var v T
	ret := p.call(func() (ret nvml.Return) { v, ret = get(); return ret }, symbols...)
	return value(ret, to(v), unit)
}

// reason puts a return code in words. The library's own words are not asked for: that would be one more call into it.
func reason(ret nvml.Return) string {
	words := map[nvml.Return]string{
		nvml.ERROR_UNINITIALIZED: "not initialised", nvml.ERROR_INVALID_ARGUMENT: "invalid argument", nvml.ERROR_NOT_SUPPORTED: "not supported",
		nvml.ERROR_NO_PERMISSION: "no permission", nvml.ERROR_NOT_FOUND: "not found", nvml.ERROR_INSUFFICIENT_SIZE: "insufficient size",
		nvml.ERROR_INSUFFICIENT_POWER: "power cables are not connected", nvml.ERROR_DRIVER_NOT_LOADED: "the kernel driver is not loaded",
		nvml.ERROR_TIMEOUT: "time-out", nvml.ERROR_IRQ_ISSUE: "interrupt trouble", nvml.ERROR_LIBRARY_NOT_FOUND: "library not found",
		nvml.ERROR_FUNCTION_NOT_FOUND: "function not found", nvml.ERROR_CORRUPTED_INFOROM: "InfoROM is corrupted",
		nvml.ERROR_GPU_IS_LOST: "the card is lost", nvml.ERROR_RESET_REQUIRED: "a reset is required",
		nvml.ERROR_OPERATING_SYSTEM: "the operating system blocks it", nvml.ERROR_LIB_RM_VERSION_MISMATCH: "library and kernel driver are of different versions",
		nvml.ERROR_IN_USE: "in use", nvml.ERROR_MEMORY: "out of memory", nvml.ERROR_NO_DATA: "no data", nvml.ERROR_UNKNOWN: "unknown error",
	}
	if w, ok := words[ret]; ok {
		return fmt.Sprintf("%s (NVML %d)", w, ret)
	}
	return fmt.Sprintf("NVML error %d", ret)
}
