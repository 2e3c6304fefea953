#!/usr/bin/env bash
# Makes target/porcupine-judge, which says whether histories are linearizable (docs/testing.md), and
# has it judge the files that are named. Needs Go.
set -euo pipefail

# (The files are named from where the caller stands.)
root=$(dirname "${BASH_SOURCE[0]}")/..
# shellcheck source=scripts/toolchain.sh
source "$root/scripts/toolchain.sh"
judge=$(cd "$root" && target_dir)/porcupine-judge
mkdir -p "$(dirname "$judge")"
# Go itself knows whether anything has changed.
(cd "$root/scripts/porcupine" && go build -mod=readonly -o "$judge" .)
(($# == 0)) || exec "$judge" "$@"
