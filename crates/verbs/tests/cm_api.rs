//! The promises of rdma_cm's manual pages, checked by C programs that are compiled against the
//! distribution's header.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::process::Command;
use std::{env, fs, process};

/// Compiles one of this folder's C programs and runs it. It exits with 0 if all its checks hold.
fn runs(source: &str, header: &str) {
    if !fs::exists(format!("/usr/include/rdma/{header}")).unwrap_or(false) {
        println!("skipped: rdma/{header} is not there (./ci.sh setup brings it)");
        assert!(env::var_os("CI").is_none(), "CI must have it installed");
        return;
    }
    let links = cm::links();
    let program = links.join(format!("{source}-{}", process::id()));
    // The libraries' symbols are resolved at run time: by these names, with their versions.
    let built = Command::new("cc")
        .args(["-Wall", "-o"])
        .arg(&program)
        .arg(format!("{}/tests/cm/{source}.c", env!("CARGO_MANIFEST_DIR")))
        .args([links.join("librdmacm.so.1"), links.join("libibverbs.so.1")])
        .arg("-lpthread")
        .status()
        .expect("a C compiler");
    assert!(built.success());
    let mut program = cm::Program::start(program.to_str().unwrap());
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_api_does_what_the_manual_says() {
    runs("api", "rdma_cma.h");
}

#[test]
fn events_are_as_the_manual_says() {
    runs("events", "rdma_cma.h");
}

#[test]
fn datagram_sockets_are_as_udp_ones() {
    runs("datagram", "rsocket.h");
}
