//! The promises of rdma_cm's manual pages, checked by C programs that are compiled against the
//! distribution's header.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

/// Compiles one of this folder's C programs; `None` if the header is not there.
fn built(source: &str, header: &str) -> Option<PathBuf> {
    if !fs::exists(format!("/usr/include/rdma/{header}")).unwrap_or(false) {
        println!("skipped: rdma/{header} is not there (./ci.sh setup brings it)");
        assert!(env::var_os("CI").is_none(), "CI must have it installed");
        return None;
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
    Some(program)
}

/// Runs one of the programs. It exits with 0 if all its checks hold.
fn runs(source: &str, header: &str) {
    let Some(program) = built(source, header) else { return };
    let mut program = cm::Program::start(program.to_str().unwrap());
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
}

/// A client whose card has been given an address is seen at that address, as servers' access lists
/// and logs need it. One whose card has just any address of loopback is seen as over TCP.
#[test]
fn a_server_sees_the_address_that_its_client_was_given() {
    let Some(program) = built("source", "rdma_cma.h") else { return };
    let program = program.display();
    let [high, low] = process::id().to_be_bytes()[2..] else { panic!("two bytes") };
    let own = format!("127.{}.{low}.95", 100 + high % 100);
    let server_own = format!("127.{}.{low}.94", 100 + high % 100);
    for (named, to, seen) in [
        (true, server_own.as_str(), own.as_str()),
        (true, "127.0.0.1", own.as_str()),
        (false, "127.0.0.1", "127.0.0.1"),
    ] {
        let (_alone, port) = (cm::alone(), cm::port());
        let mut server = cm::Program::start_with(&format!("{program} server {port}"), |command| {
            command.env("REMORA_ADDR", &server_own);
        });
        server.listens(port);
        let client = format!("{program} client {to} {port}");
        let mut client = cm::Program::start_with(&client, |command| {
            if named {
                command.env("REMORA_ADDR", &own);
            }
        });
        let (code, said) = client.end();
        assert_eq!((code, said), (Some(0), format!("client {seen}\n")), "{}", server.said());
        let (code, said) = server.end();
        assert_eq!((code, said), (Some(0), format!("client {seen}\nserver {to}\n")));
    }
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
