#!/usr/bin/env bash
# Builds the examples of loaded kernels, from Rust and from C, and prints the files.
#
#   scripts/guests.sh [FOLDER]      puts them into FOLDER, by default target/guests
#
# Exits with 77 if a compiler for WebAssembly is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

folder=${1:-$(target_dir)/guests}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

missing() {
    printf 'missing: %s; ./ci.sh setup installs it where it can be had\n' "$1" >&2
    exit 77
}

use_rust || missing "Rust"
[[ -d $(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null) ]] ||
    missing "Rust's target wasm32-unknown-unknown"
have clang || missing "clang"
have wasm-ld || missing "wasm-ld (package lld)"

# Cargo runs in the crate's own folder, for the flags in its .cargo/config.toml. Flags that the
# caller has set are for this machine, not for WebAssembly.
(
    cd guest/rust
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u RUSTC_WRAPPER \
        cargo build --quiet --release --examples --target-dir "$folder/rust"
)
for example in get sum; do
    cp "$folder/rust/wasm32-unknown-unknown/release/examples/$example.wasm" "$folder/"
done

clang --target=wasm32 -mcpu=mvp -std=c11 -Wall -Wextra -Werror -O2 -ffreestanding -nostdlib \
    -Wl,--no-entry -Wl,-z,stack-size=16384 -Wl,--strip-all \
    -o "$folder/lines.wasm" guest/c/lines.c
printf '%s\n' "$folder"/{get,sum,lines}.wasm
