//! The promises of rdma_cm's manual pages, asked for by a C program against the distribution's
//! header.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::process::Command;
use std::{env, fs, process};

#[test]
fn the_manual_is_kept() {
    if !fs::exists("/usr/include/rdma/rdma_cma.h").unwrap_or(false) {
        println!("skipped: rdma/rdma_cma.h is not there (./ci.sh setup brings it)");
        assert!(env::var_os("CI").is_none(), "CI is no place to skip this");
        return;
    }
    let links = cm::links();
    let program = links.join(format!("api-{}", process::id()));
    // The libraries' symbols are found when it runs: by those names, with their versions.
    let built = Command::new("cc")
        .args(["-Wall", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cm/api.c"))
        .args([links.join("librdmacm.so.1"), links.join("libibverbs.so.1")])
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let mut program = cm::Program::start(program.to_str().unwrap());
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
}
