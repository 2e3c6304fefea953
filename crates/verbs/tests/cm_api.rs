//! The promises of rdma_cm's manual pages, checked by C programs that are compiled against the
//! distribution's header.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use cm::runs;

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
