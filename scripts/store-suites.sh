#!/usr/bin/env bash
# Brings the sources of Redis and memcached, whose test suites judge crates/store, to
# target/store-suites. Does nothing when they are there already.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
folder=$(target_dir)/store-suites
[[ -e $folder/complete ]] && exit 0

# Lists of their own: the machine's may have no sources, and stay as they are.
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
mkdir -p "$lists/state/partial" "$lists/parts"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -e $list ]] || continue
    sed -nE 's/^deb (.*(debian|ubuntu).*)/deb-src \1/p' "$list" \
        >"$lists/parts/$(basename "$list")"
done
for list in /etc/apt/sources.list.d/*.sources; do
    [[ -e $list ]] || continue
    grep -qE '^Signed-By: .*(debian|ubuntu)-archive' "$list" || continue
    sed 's/^Types: .*/Types: deb-src/' "$list" >"$lists/parts/$(basename "$list")"
done
options=(-o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$lists/parts"
    -o "Dir::State::Lists=$lists/state" -qq)

rm -rf "$folder"
mkdir -p "$folder"
apt-get "${options[@]}" update
(cd "$folder" && apt-get "${options[@]}" source --download-only redis memcached)
for archive in "$folder"/*.orig.tar.*; do
    [[ $archive == *.asc ]] || tar -xf "$archive" -C "$folder"
done
# memcached's tests ask whether it was built, and then use the server that they are given.
for name in memcached memcached-debug; do
    ln -s "$(type -P true)" "$(echo "$folder"/memcached-*/)$name"
done
touch "$folder/complete"
