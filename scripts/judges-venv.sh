#!/bin/sh
# Makes target/judges-venv: the Python with scapy by which crates/nic/tests/judges.rs has packets
# dissected. Does nothing when it is there already.
set -eu

cd "$(dirname "$0")/.."
venv=target/judges-venv
scapy=2.6.1

if "$venv/bin/python" -c "import scapy; assert scapy.__version__ == '$scapy'" 2>/dev/null; then
    exit 0
fi
rm -rf "$venv"
mkdir -p target
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "scapy==$scapy"
