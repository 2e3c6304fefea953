#!/usr/bin/env bash
# Makes target/assemblyscript: asc, the compiler for the kernel in guest/assemblyscript. Does
# nothing when it is there already.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
folder=$(target_dir)/assemblyscript
version=0.28.20

if [[ $("$folder/node_modules/.bin/asc" --version 2>/dev/null) == "Version $version" ]]; then
    exit 0
fi
rm -rf "$folder"
mkdir -p "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" "assemblyscript@$version"
