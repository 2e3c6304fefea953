#!/usr/bin/env bash
# Builds the examples of loaded kernels, from Rust, C and AssemblyScript, and prints the files.
#
#   scripts/guests.sh [FOLDER]      puts them into FOLDER, by default target/guests
#
# No compiler is told which features of WebAssembly to use. Exits with 77 if Rust's or C's is
# missing; without AssemblyScript's, its example is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

missing() {
    printf 'missing: %s; ./ci.sh setup installs it where it can be had\n' "$1" >&2
    exit 77
}

use_rust || missing "Rust"
[[ -d $(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null) ]] ||
    missing "Rust's target wasm32-unknown-unknown"
folder=${1:-$(target_dir)/guests}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
have clang || missing "clang"
have wasm-ld || missing "wasm-ld (package lld)"

# Cargo runs in the crate's own folder, for the target in its .cargo/config.toml. Flags that the
# caller has set are for this machine, not for WebAssembly.
(
    cd guest/rust
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u RUSTC_WRAPPER \
        cargo build --quiet --release --examples --target-dir "$folder/rust"
)
for example in get sum; do
    cp "$folder/rust/wasm32-unknown-unknown/release/examples/$example.wasm" "$folder/"
done

clang --target=wasm32 -std=c11 -Wall -Wextra -Werror -O2 -ffreestanding -nostdlib \
    -Wl,--no-entry -Wl,--strip-all -o "$folder/lines.wasm" guest/c/lines.c
printf '%s\n' "$folder"/{get,sum,lines}.wasm

asc=$(target_dir)/assemblyscript/node_modules/.bin/asc
[[ -x $asc ]] || asc=asc
if have "$asc"; then
    "$asc" guest/assemblyscript/tail.ts -O -o "$folder/tail.wasm"
    printf '%s\n' "$folder/tail.wasm"
else
    printf 'left out: tail.wasm, for lack of asc; scripts/assemblyscript.sh installs it\n' >&2
fi
