#!/usr/bin/env bash
# Builds and tests everything; the last lines are ctest's summary of preset cpu.
# usage: tools/test.sh [--all] [ctest options]
# Always: preset cpu, and where nvcc is found the CUDA build for sm_90 (compiled, not run).
# --all adds: the presets cpu-asan (with UBSan) and cpu-tsan with their tests, all CUDA architectures from sm_80
# on, the mutation tests, the portable build's bits, and the package in a bare Debian 12.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=0
if [[ "${1:-}" == --all ]]; then
  all=1
  shift
fi

stage() { printf '\n== %s\n' "$1"; }

build_preset() {  # PRESET [cmake options]
  local preset=$1
  shift
  stage "build, preset $preset"
  cmake --preset "$preset" "$@"
  cmake --build --preset "$preset" --parallel "$(nproc)"
}

# ThreadSanitizer of this compiler needs the address layout of a kernel without wide randomisation.
without_randomised_addresses() {
  if command -v setarch >/dev/null && setarch "$(uname -m)" -R true 2>/dev/null; then
    setarch "$(uname -m)" -R "$@"
  else
    "$@"
  fi
}

find_nvcc() {
  command -v nvcc && return
  local candidate
  for candidate in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if [[ -x "$candidate" ]]; then
      echo "$candidate"
      return
    fi
  done
}

stage "packages"
./tools/install_packages.sh

build_preset cpu

nvcc=$(find_nvcc)
if [[ -n "$nvcc" ]]; then
  architectures=90
  if [[ $all == 1 ]]; then
    architectures=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | awk '$1 >= 80' | paste -sd ';')
  fi
  build_preset cuda "-DCMAKE_CUDA_COMPILER=$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$architectures"
else
  echo "no nvcc: the CUDA build is skipped"
fi

if [[ $all == 1 ]]; then
  build_preset cpu-asan
  stage "tests, preset cpu-asan"
  ctest --preset cpu-asan --parallel "$(nproc)"
  build_preset cpu-tsan
  stage "tests, preset cpu-tsan"
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS:-}" \
    without_randomised_addresses ctest --preset cpu-tsan --parallel "$(nproc)"
  stage "mutation tests"
  ./tests/mutation/run.sh
  stage "bits of the portable build"
  ./tests/package/portable_bits.sh
  stage "package in a bare Debian 12"
  ./tests/package/debian_chroot.sh
fi

stage "tests, preset cpu"
ctest --preset cpu --parallel "$(nproc)" "$@"
