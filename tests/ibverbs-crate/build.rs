//! Finds the example `loopback` of the crate `ibverbs`.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .output()
        .expect("cargo can be run");
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let ibverbs = packages.iter().find(|package| package["name"] == "ibverbs").expect("ibverbs");
    let manifest = Path::new(ibverbs["manifest_path"].as_str().expect("its path"));
    let example = manifest.with_file_name("examples").join("loopback.rs");
    println!("cargo::rustc-env=IBVERBS_LOOPBACK_EXAMPLE={}", example.display());
    println!("cargo::rerun-if-changed=Cargo.lock");
}
