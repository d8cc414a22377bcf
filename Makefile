# Everything a developer runs. `make` alone prints this list; `make check` is exactly what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations # go-nvml wraps what NVIDIA has deprecated, at length
.DEFAULT_GOAL := help

VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)
STATIC  := CGO_ENABLED=0
FUZZTIME ?= 20s
# Simulated machines and QEMU share few cores: the tests' own deadlines bound a run, this only ends one that hangs.
TEST_TIMEOUT ?= 20m
E2E_TIMEOUT  ?= 40m
# The tests that boot QEMU machines; `make test` runs all the others.
E2E := ^(TestWholeLife|TestBadLuck|TestBMCs|TestNextBootFromDisk|TestGuestPowersOff|TestCards|TestQEMU.*)$$

BENCHES = $(shell sed -n 's/^\(bench-[a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

.PHONY: help deps build test lint vuln check e2e demo kernel lab-image mocknvml ramdisk bench $(BENCHES) fuzz clean

help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

deps: ## install the Debian packages of debian-packages.txt that are missing (root)
	@.ci/deps

build: ## bin/bareyard, bin/bareyard-agent (static), bin/bareyard-validate
	@mkdir -p bin
	go build -trimpath -ldflags "$(LDFLAGS)" -o bin/bareyard ./cmd/bareyard
	$(STATIC) go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o bin/bareyard-agent ./cmd/bareyard-agent
	CGO_ENABLED=1 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o bin/bareyard-validate ./cmd/bareyard-validate

test: ## every test but those that boot QEMU machines, under the race detector
	go test -race -timeout $(TEST_TIMEOUT) ./...

lint: ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt-ed:"; echo "$$bad"; exit 1; fi
	go vet ./...
	go tool staticcheck ./...

vuln: ## govulncheck, where its database answers
	@.ci/vuln

check: ## what CI runs: lint, vuln, build, test, e2e
	@.ci/stage lint $(MAKE) --no-print-directory lint
	@.ci/stage vuln $(MAKE) --no-print-directory vuln
	@.ci/stage build $(MAKE) --no-print-directory build
	@.ci/stage test $(MAKE) --no-print-directory test
	@.ci/stage e2e $(MAKE) --no-print-directory e2e

e2e: build lab-image ramdisk ## order, install and validate QEMU machines (root; no KVM needed)
	BAREYARD_QEMU=1 go test -count=1 -p 1 -timeout $(E2E_TIMEOUT) -run '$(E2E)' ./lab ./netboot ./cmd/bareyard-agent ./agent/disk

demo: deps build lab-image ramdisk ## a virtual data centre: order a machine and watch it being installed (root)
	bin/bareyard lab demo

kernel: ## build/kernel: Debian's kernel and modules for the RAM disk
	lab/image/kernel.sh

mocknvml: ## build/mocknvml: a library that answers as NVIDIA cards do
	lab/mocknvml/build.sh

iso: ramdisk ## build/ramdisk/bareyard.iso: the RAM disk on a disc, for machines that boot from virtual media
	bin/bareyard ramdisk --iso build/ramdisk/bareyard.iso

lab-image: kernel mocknvml ## build/lab-image: the Debian image that the lab installs
	lab/image/build.sh

ramdisk: build kernel ## build/ramdisk: the RAM disk with the agent
	bin/bareyard ramdisk

bench: ## every bench-…, one after the other, into build/bench.txt; all ratios at the end
	@mkdir -p build && : >build/bench.txt; failed=; \
	for b in $(BENCHES); do echo "=== $$b"; $(MAKE) --no-print-directory $$b | tee -a build/bench.txt || failed+=" $$b"; done; \
	echo "=== ratios"; grep -hE '^(ratio|storm|flood) ' build/bench.txt || true; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

bench-go: ## the benchmarks of Go packages, five times each
	go test -run '^$$' -bench . -benchmem -count 5 ./...

bench-bmc: ## poll 1,000 simulated BMCs from one process, and one beside ipmitool (five minutes)
	BAREYARD_BENCH=1 go test -run '^TestBenchBMC$$' -count=1 -v -timeout 15m ./ipmi | grep -E '^(bmc|ratio|FAIL|panic|    [a-z])'

bench-edge: ## an edge with 1 to 5,000 machines beside one rule for each, and 64 orders at once beside a plain lock (root)
	BAREYARD_BENCH=1 go test -run '^TestBench(Edge|Allocation)$$' -count=1 -p 1 -v -timeout 15m ./network/linuxedge ./provisioner | grep -E '^(ratio|FAIL|panic|---|    .*_test.go|  [a-z])'

bench-install: build lab-image ramdisk ## time whole installs on QEMU machines
	BAREYARD_QEMU=1 BAREYARD_BENCH=1 go test -run '^TestBenchInstall$$' -count=1 -v -timeout $(E2E_TIMEOUT) ./lab | grep -E '^(install|floor|ratio|FAIL|panic|  [a-z])'

bench-netboot: deps ## DHCP, TFTP and HTTP beside dnsmasq, Kea, tftpd-hpa and nginx (root)
	BAREYARD_BENCH=1 go test -run '^TestBenchNetboot$$' -count=1 -v -timeout $(E2E_TIMEOUT) ./lab | grep -E '^(ratio|storm|flood|FAIL|panic|---|    .*_test.go|  [a-z])'

fuzz: ## each fuzz target for FUZZTIME (20s)
	@.ci/fuzz $(FUZZTIME)

clean: ## remove bin and build
	rm -rf bin build
