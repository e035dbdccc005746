#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need, when some are missing.
# usage: tools/install_packages.sh
# GRPO_SKIP_PACKAGES=1 skips the check, for machines where they come from elsewhere.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache patchelf pkg-config python3
  libgloo-dev libyaml-cpp-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev
  libsentencepiece-dev libre2-dev libpcre2-dev libicu-dev libxxhash-dev zlib1g-dev libgtest-dev
)

if [[ "${GRPO_SKIP_PACKAGES:-0}" == 1 ]]; then
  exit 0
fi
if ! command -v dpkg-query >/dev/null; then
  echo "install_packages: not a Debian system; needed, under Debian's names: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  if [[ "$status" != installed ]]; then
    missing+=("$package")
  fi
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

give_up() {
  echo "install_packages: $1; missing packages: ${missing[*]}" >&2
  echo "install_packages: install them with: apt-get install ${missing[*]}" >&2
  exit 1
}

as_root=()
if [[ "$(id -u)" != 0 ]]; then
  command -v sudo >/dev/null || give_up "not root, and there is no sudo"
  # Without a terminal sudo could not ask for a password.
  if [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; then
    give_up "sudo needs a password and there is no terminal to ask on"
  fi
  as_root=(sudo)
fi

echo "install_packages: installing ${missing[*]}"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends)
# The package lists of a fresh system are empty or old.
"${as_root[@]}" apt-get update -q || true
"${install[@]}" "${missing[@]}" || give_up "apt-get could not install (offline, or not permitted)"
