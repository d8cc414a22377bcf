#!/bin/sh
# Compiles kernels.cu to ../kernels.ptx with Debian's clang (apt-get install clang-14); no CUDA toolkit. Run it after a change of the kernels, and
# raise Version in burn.go: rates and results are compared within one version only.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang++-14}
"$clang" -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_80 -Xclang -target-feature -Xclang +ptx70 -std=c++17 -O3 \
	-fno-exceptions -Wall -Wextra -S kernels.cu -o ../kernels.ptx.new
mv ../kernels.ptx.new ../kernels.ptx
grep -E '^\.(version|target)|\.entry' ../kernels.ptx
