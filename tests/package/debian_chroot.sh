#!/usr/bin/env bash
# The package runs on a bare Debian 12, with its own libraries alone: --version, the demo, text scored with a
# byte-level BPE tokenizer to the same tokens and log-probabilities as here.
# usage: tests/package/debian_chroot.sh [PACKAGE.tar.gz]
# Makes the package when none is given. Needs root, debootstrap and a Debian mirror: DEBIAN_MIRROR, else the one that apt
# uses. Without them it says what it skipped and ends with 0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/usage.sh" "$@"

package=${1:-}
if [[ -n "$package" ]]; then
  package=$(realpath "$package")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

skip() {
  echo "debian_chroot: SKIPPED: the package on a bare Debian 12 ($1)"
  exit 0
}
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
[[ "$(id -u)" == 0 ]] || skip "not root"
unshare --mount true 2>/dev/null || skip "mounts are not permitted here"

if [[ -z "$package" ]]; then
  package=$PWD/$(./tools/package.sh | tail -n 1)
fi
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Release: bookworm' |
  head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/debian12
echo "debian_chroot: installing Debian 12 (minbase) from $mirror"
if ! debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/debootstrap.log" 2>&1; then
  tail -n 3 "$work/debootstrap.log" >&2
  skip "debootstrap failed"
fi

# A model with a tokenizer.json, and texts of several scripts.
mkdir -p "$root/opt/model"
tar --extract --gzip --file "$package" --directory "$root/opt"
folder=$(basename "$package" .tar.gz)
cp tests/data/golden/qwen2_tiny_untied/{config.json,model.safetensors} tests/data/golden/small_bpe/tokenizer.json \
  "$root/opt/model/"
python3 - tests/data/golden/small_bpe/tokenizer_cases.json "$root/opt/texts.jsonl" <<'END'
import json
import sys

def texts(node):
    if isinstance(node, dict):
        return [node["text"]] if isinstance(node.get("text"), str) else [t for n in node.values() for t in texts(n)]
    return [t for n in node for t in texts(n)] if isinstance(node, list) else []

with open(sys.argv[1], encoding="utf-8") as cases, open(sys.argv[2], "w", encoding="utf-8") as lines:
    found = [text for text in texts(json.load(cases)) if len(text) > 3]
    assert len(found) >= 5, "too few texts"
    lines.writelines(json.dumps({"text": text}) + "\n" for text in found)
END

cat >"$root/opt/try.sh" <<'END'
set -euo pipefail
cd "/opt/$1"
found=$(ldconfig -p | awk '{print $1}' | grep -xF "$(ls lib)" | paste -sd ' ' || true)
echo "of the package's libraries the system has: ${found:-none}"
# What dpkg and the core utilities themselves need. It must not be what the program loads.
if [[ "$(sed 's/libpcre2-8\.so\.0\|libz\.so\.1\| //g' <<<"$found")" != "" ]]; then
  echo "this Debian is not bare" >&2
  exit 1
fi
elsewhere=$(ldd bin/grpo_train | grep -F '=>' | grep -vF "=> /opt/$1/" |
  grep -vE 'lib(c|m|gcc_s|stdc[+][+])[.]so' || true)
if [[ -n "$elsewhere" ]]; then
  printf 'loaded from elsewhere than the package:\n%s\n' "$elsewhere" >&2
  exit 1
fi
bin/grpo_train --version
bin/grpo_train --config configs/demo_gtp2.yaml warm_start.num_steps=20 grpo.max_num_steps=3 >/opt/demo.log ||
  { cat /opt/demo.log; exit 1; }
tail -n 1 /opt/demo.log
bin/grpo_train score --model /opt/model --input /opt/texts.jsonl --output /opt/scored.jsonl
END
unshare --mount --pid --fork bash -euo pipefail -c '
  mount --make-rprivate /
  mount -t proc proc "$0/proc"
  mount --rbind /dev "$0/dev"
  exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 bash /opt/try.sh "$1"
' "$root" "$folder"

build/portable/grpo_train score --model "$root/opt/model" --input "$root/opt/texts.jsonl" --output "$work/scored.jsonl"
cmp "$work/scored.jsonl" "$root/opt/scored.jsonl"
echo "debian_chroot: $(wc -l <"$work/scored.jsonl") texts have the tokens and log-probabilities that they have here"
