# Sourced by scripts with their arguments, before they change folders: --help prints a script's first comment.
# shellcheck shell=bash
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit 0
fi
