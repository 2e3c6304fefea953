#!/usr/bin/env bash
# Makes target/judges-venv: the Python with scapy by which crates/nic/tests/judges.rs has packets
# dissected, and with the clients by which crates/store/tests/front has its fronts tried. Does
# nothing when it is there already.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
venv=$(target_dir)/judges-venv
scapy=2.6.1

redis=8.1.0
valkey=6.2.0
glide=2.6.0
pymemcache=4.0.0

is_there="
import importlib.metadata, sys
wanted = {
    'scapy': '$scapy',
    'redis': '$redis',
    'valkey': '$valkey',
    'valkey-glide-sync': '$glide',
    'pymemcache': '$pymemcache',
}
sys.exit(any(importlib.metadata.version(name) != version for name, version in wanted.items()))
"
if "$venv/bin/python" -c "$is_there" 2>/dev/null; then
    exit 0
fi
rm -rf "$venv"
mkdir -p "$(dirname "$venv")"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "scapy==$scapy" "redis==$redis" \
    "valkey==$valkey" "valkey-glide-sync==$glide" "pymemcache==$pymemcache"
