//! The promises of rdma_cm's manual pages, checked by C programs that are compiled against the
//! distribution's header.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::process;

use cm::{built, runs};

/// A client whose card has been given an address is seen at that address, as servers' access lists
/// and logs need it. One whose card has just any address of loopback is seen as over TCP.
#[test]
fn a_server_sees_the_address_that_its_client_was_given() {
    let Some(program) = built("cm/source", "rdma_cma.h") else { return };
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
    runs("cm/api", "rdma_cma.h");
}

#[test]
fn events_are_as_the_manual_says() {
    runs("cm/events", "rdma_cma.h");
}

#[test]
fn datagram_sockets_are_as_udp_ones() {
    runs("cm/datagram", "rsocket.h");
}

#[test]
fn calls_of_later_releases_do_what_their_manuals_say() {
    runs("cm/newer", "rsocket.h");
}
