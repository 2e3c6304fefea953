#!/usr/bin/env bash
# Makes target/store-clients: clients of Redis and memcached in Go and for Node, by which
# crates/store/tests/front has its fronts tried. Does what it can where Go or npm is missing, and
# nothing for what is there already.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
folder=$(target_dir)/store-clients
iovalkey=0.4.0
mkdir -p "$folder"

source=crates/store/tests/front/clients
made=0
if type -P go >/dev/null; then
    # Go itself knows whether anything has changed.
    (cd "$source" && go build -mod=readonly -o "$folder/go-clients" .) || made=1
fi
if type -P npm >/dev/null &&
    ! grep -qs "\"version\": \"$iovalkey\"" "$folder/node_modules/iovalkey/package.json"; then
    echo '{"private": true}' >"$folder/package.json"
    npm install --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts \
        "iovalkey@$iovalkey" || made=1
fi
exit "$made"
