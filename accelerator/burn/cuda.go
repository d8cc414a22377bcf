package burn

import (
	_ "embed"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/bareyard/bareyard/accelerator"
)

//go:embed kernels.ptx
var kernels []byte

// cuda is the part of the CUDA driver API that a load needs. Handles are opaque numbers; device addresses are 64 bits wide.
type cuda struct {
	init         func(uint32) int32
	deviceByPCI  func(*int32, *byte) int32
	attribute    func(*int32, int32, int32) int32
	retain       func(*uintptr, int32) int32
	setCurrent   func(uintptr) int32
	synchronize  func() int32
	loadModule   func(*uintptr, *byte, uint32, unsafe.Pointer, unsafe.Pointer) int32
	function     func(*uintptr, uintptr, *byte) int32
	memory       func(*uint64, *uint64) int32
	alloc        func(*uint64, uint64) int32
	free         func(uint64) int32
	allocHost    func(*unsafe.Pointer, uint64) int32
	freeHost     func(unsafe.Pointer) int32
	toCard       func(uint64, unsafe.Pointer, uint64) int32
	toHost       func(unsafe.Pointer, uint64, uint64) int32
	set          func(uint64, uint8, uint64) int32
	launchKernel func(uintptr, uint32, uint32, uint32, uint32, uint32, uint32, uint32, uintptr, *unsafe.Pointer, *unsafe.Pointer) int32
	canAccess    func(*int32, int32, int32) int32
	enablePeer   func(uintptr, uint32) int32
	copyPeer     func(uint64, uintptr, uint64, uintptr, uint64) int32
}

// attributes of a device, of cuda.h.
const (
	attributeSMs = 16 // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

	errOutOfMemory = 2
	errPeerEnabled = 704
)

// symbols are the functions by their names in the library, with the version that is meant.
func (c *cuda) symbols() map[string]any {
	return map[string]any{
		"cuInit": &c.init, "cuDeviceGetByPCIBusId": &c.deviceByPCI, "cuDeviceGetAttribute": &c.attribute,
		"cuDevicePrimaryCtxRetain": &c.retain, "cuCtxSetCurrent": &c.setCurrent, "cuCtxSynchronize": &c.synchronize,
		"cuModuleLoadDataEx": &c.loadModule, "cuModuleGetFunction": &c.function, "cuMemGetInfo_v2": &c.memory,
		"cuMemAlloc_v2": &c.alloc, "cuMemFree_v2": &c.free, "cuMemAllocHost_v2": &c.allocHost, "cuMemFreeHost": &c.freeHost,
		"cuMemcpyHtoD_v2": &c.toCard, "cuMemcpyDtoH_v2": &c.toHost, "cuMemsetD8_v2": &c.set, "cuLaunchKernel": &c.launchKernel,
		"cuDeviceCanAccessPeer": &c.canAccess, "cuCtxEnablePeerAccess": &c.enablePeer, "cuMemcpyPeer": &c.copyPeer,
	}
}

// open loads the library. Every function is looked up first: calling one that is missing would end the process.
func open(library string) (*cuda, *accelerator.Fault) {
	lib, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		kind := accelerator.FaultRefused
		switch {
		case strings.Contains(err.Error(), "cannot open shared object file"):
			kind = accelerator.FaultAbsent
		case strings.Contains(err.Error(), "undefined symbol"):
			kind = accelerator.FaultSymbol
		}
		return nil, &accelerator.Fault{Kind: kind, During: "dlopen", Detail: err.Error()}
	}
	c := &cuda{}
	for name, into := range c.symbols() {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil || symbol == 0 {
			return nil, &accelerator.Fault{Kind: accelerator.FaultSymbol, During: "dlsym", Detail: library + " has no " + name}
		}
		purego.RegisterFunc(into, symbol)
	}
	return c, nil
}

// launch starts a kernel. Its arguments are pointers to values that live until the call returns.
func (c *cuda) launch(f uintptr, blocks, threads uint32, args ...unsafe.Pointer) int32 {
	var pin runtime.Pinner
	defer pin.Unpin()
	for _, a := range args {
		pin.Pin(a)
	}
	pin.Pin(&args[0])
	return c.launchKernel(f, blocks, 1, 1, threads, 1, 1, 0, 0, &args[0], nil)
}

// words puts the driver's error numbers into words. The library's own are not asked for: that would be one more call into it.
func words(code int32) string {
	known := map[int32]string{
		1: "invalid value", errOutOfMemory: "out of memory", 3: "not initialized", 4: "being shut down", 34: "stub library", 46: "device busy or unavailable",
		100: "no device", 101: "invalid device", 200: "invalid image", 201: "invalid context", 209: "no code for this card", 214: "uncorrectable memory error",
		218: "invalid PTX", 220: "NVLink error", 222: "the driver is too old for this PTX", 300: "invalid source", 304: "operating system call failed", 500: "not found",
		700: "illegal address", 701: "launch out of resources", 702: "launch timed out", 714: "hardware stack error", 716: "misaligned address",
		718: "invalid program counter", 719: "launch failed", 800: "not permitted", 801: "not supported",
		802: "system not yet initialized (is the fabric manager running?)", 803: "library and kernel driver are of different versions", 999: "unknown error",
	}
	if w, ok := known[code]; ok {
		return fmt.Sprintf("%s (CUDA error %d)", w, code)
	}
	return fmt.Sprintf("CUDA error %d", code)
}
