//! Gives the shared object the symbol versions that programs ask for: see `src/export.rs`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=versions.map");
    let dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={dir}/versions.map");
    // The library's threads and exit handlers run its code, so it must not be unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
