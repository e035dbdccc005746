#!/usr/bin/env bash
# Packs grpo_train with the shared libraries it needs, so that it runs on machines where none of them is installed.
# usage: tools/package.sh [--cuda] [cmake options, such as -DCMAKE_CUDA_ARCHITECTURES=80]
# The last line is the package's path: build/package/grpo_train-VERSION-ARCHITECTURE[-cuda].tar.gz. Its folder holds
# bin, lib, share and a link to the configs, and the demo runs in it: bin/grpo_train --config configs/demo_gtp2.yaml
# The program is built with preset portable (any x86-64 CPU with AVX2 and FMA); --cuda: preset portable-cuda.
# Left to the system: the C and C++ runtime (packed on Debian 12: glibc 2.34 and GCC 12's libstdc++ or newer) and, with
# --cuda, the driver, cuBLASLt and NCCL, which a run loads when it needs them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=portable
suffix=
if [[ "${1:-}" == --cuda ]]; then
  preset=portable-cuda
  suffix=-cuda
  CUDACXX=${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
  export CUDACXX
  if [[ ! -x "$CUDACXX" ]]; then
    echo "package: --cuda needs nvcc; it is neither on the PATH nor at $CUDACXX" >&2
    exit 1
  fi
  shift
fi

./tools/install_packages.sh
cmake --preset "$preset" "$@" >/dev/null
cmake --build --preset "$preset" --parallel "$(nproc)" --target grpo_train

version=$("build/$preset/grpo_train" --version)
name=grpo_train-${version#grpo_train }-$(uname -m)$suffix
folder=build/package/$name
rm -rf "$folder" "$folder.tar.gz"
cmake --install "build/$preset" --strip --prefix "$PWD/$folder" >/dev/null
ln -s share/grpo_train/configs "$folder/configs"
cp README.md LICENSE "$folder/"

# The licences of the libraries, from the Debian packages that they come from.
if command -v dpkg-query >/dev/null; then
  mkdir -p "$folder/share/doc/grpo_train"
  for library in "$folder"/lib/*; do
    file=$(basename "$library")
    package=$(dpkg-query -S "*/${file/#libgrpo_/lib}" 2>/dev/null | sed -n '1s/[:,].*//p')
    if [[ -z "$package" ]]; then
      echo "package: no Debian package has $file, so its licence is not in the package" >&2
      continue
    fi
    cp "/usr/share/doc/$package/copyright" "$folder/share/doc/grpo_train/$package.copyright"
  done
fi

# gzip, because every system can unpack it. The same files give the same bytes.
tar --create --directory build/package --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$(git log -1 --format=%ct 2>/dev/null || date +%s)" "$name" | gzip -n -9 >"$folder.tar.gz"

limit_mib=60
size=$(stat -c %s "$folder.tar.gz")
echo "package: $((size >> 10)) KiB"
if [[ -z "$suffix" && $size -gt $((limit_mib << 20)) ]]; then
  echo "package: more than $limit_mib MiB" >&2
  exit 1
fi
echo "$folder.tar.gz"
