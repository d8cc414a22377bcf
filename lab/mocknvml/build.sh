#!/bin/sh
# Builds the stand-in for NVIDIA's libnvidia-ml.so.1: build.sh [FOLDER [CFLAG...]]
# The library goes to FOLDER/libnvidia-ml.so.1 (build/mocknvml without one), the folder FOLDER/etc holds files for the image's /etc.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
out=${1:-$repo/build/mocknvml}
[ $# -gt 0 ] && shift
header=$(cd "$repo" && go list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml
[ -f "$header/nvml.h" ] || { echo "build.sh: no nvml.h: run 'go mod download github.com/NVIDIA/go-nvml'" >&2; exit 1; }
command -v gcc >/dev/null || { echo "build.sh: no gcc: apt-get install gcc libc6-dev" >&2; exit 1; }
mkdir -p "$out/etc/mocknvml"
cp "$here/src/faults" "$out/etc/mocknvml/faults"
# go-nvml wraps the handle of a device in a struct of one pointer, to Go's liking; here it is NVIDIA's plain pointer again. The ABI is the same.
wrapped='struct nvmlDevice_st\* handle;'
grep -q "$wrapped" "$header/nvml.h" || { echo "build.sh: nvml.h declares nvmlDevice_t otherwise than known" >&2; exit 1; }
include=$(mktemp -d)
trap 'rm -rf "$include"' EXIT
perl -0pe 's/typedef struct\s*\{\s*struct nvmlDevice_st\* handle;\s*\} nvmlDevice_t;/typedef struct nvmlDevice_st *nvmlDevice_t;/' "$header/nvml.h" >"$include/nvml.h"
gcc -std=gnu11 -O1 -Wall -Wextra -Wno-deprecated-declarations -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 -I"$include" "$@" \
	-o "$out/libnvidia-ml.so.1.new" "$here/src/mocknvml.c"
mv "$out/libnvidia-ml.so.1.new" "$out/libnvidia-ml.so.1"
