#!/usr/bin/env bash
# Makes target/porcupine-judge, which says whether histories are linearizable (docs/testing.md), and
# has it judge the files that are named. Needs Go.
set -euo pipefail

judge=$(dirname "$0")/../target/porcupine-judge
mkdir -p "$(dirname "$judge")"
judge=$(cd "$(dirname "$judge")" && pwd)/porcupine-judge
# Go itself knows whether anything has changed.
(cd "$(dirname "$0")/porcupine" && go build -mod=readonly -o "$judge" .)
(($# == 0)) || exec "$judge" "$@"
