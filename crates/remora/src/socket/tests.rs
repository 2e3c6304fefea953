//! The UDP socket: groups of datagrams, addresses, and what the system refuses.

use super::*;

/// Not the port of RoCE, so that the tests do not meet a card that runs on this machine.
const CONFIG: Config = Config { port: 47_911, buffer: 1 << 20, tos: 0, marks: true };

fn to(socket: &Socket, tos: u8) -> Destination {
    Destination { addr: socket.addr(), tos, hop_limit: 0, from_port: 0 }
}

/// Receives until `wanted` datagrams have come: sender, traffic class, bytes.
fn receive(socket: &Socket, wanted: usize) -> Vec<(SocketAddr, u8, Vec<u8>)> {
    let mut batch = RecvBatch::new(2);
    let mut got = Vec::new();
    while got.len() < wanted {
        let count = socket.recv(&mut batch).unwrap();
        assert_eq!(batch.datagrams().count(), count);
        for d in batch.datagrams() {
            assert_eq!((d.dst, d.ip_id), (socket.addr(), None));
            got.push(((d.src, d.src_port).into(), d.tos, d.bytes.to_vec()));
        }
        std::thread::yield_now();
    }
    got
}

/// Sends groups from one socket to another, or to itself.
fn exchange(from: &mut Socket, peer: Option<&Socket>) {
    let sizes = [
        (0x6a, 4148_usize, 14 * 4148 + 100_usize),
        (0, 64, 64 * 64),
        (1, 16, 16),
        (0x6b, 1072, 1073),
    ];
    for (tos, segment, len) in sizes {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        from.send(to(peer.unwrap_or(from), tos), segment, &bytes).unwrap();
        let got = receive(peer.unwrap_or(from), len.div_ceil(segment));
        let sent: Vec<&[u8]> = bytes.chunks(segment).collect();
        assert_eq!(got.len(), sent.len());
        for ((src, seen, arrived), sent) in got.iter().zip(sent) {
            assert_eq!((*src, *seen), (SocketAddr::new(from.addr(), from.port()), tos));
            assert_eq!(arrived, sent);
        }
    }
}

#[test]
fn a_group_arrives_as_the_same_datagrams() {
    let mut a = Socket::bind_loopback(CONFIG).unwrap();
    let mut b = Socket::bind_loopback(CONFIG).unwrap();
    assert_ne!(a.addr(), b.addr());
    assert!(a.segmentation() && a.coalescing());
    exchange(&mut a, Some(&b));
    exchange(&mut b, Some(&a));
    exchange(&mut a, None);
}

#[test]
fn over_ipv6() {
    let config = Config { port: 47_912, ..CONFIG };
    match Socket::bind("::1".parse().unwrap(), config) {
        Ok(mut socket) => exchange(&mut socket, None),
        Err(error) => crate::skips::lacks(&format!("no IPv6 here: {error}")),
    }
}

/// RoCE peers send without a UDP checksum over IPv6.
#[test]
fn without_a_udp_checksum_over_ipv6() {
    let config = Config { port: 47_913, ..CONFIG };
    let socket = match Socket::bind("::1".parse().unwrap(), config) {
        Ok(socket) => socket,
        Err(error) => return crate::skips::lacks(&format!("no IPv6 here: {error}")),
    };
    let peer = UdpSocket::bind("[::1]:0").unwrap();
    sys::set_option(peer.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
    peer.send_to(b"bare", (socket.addr(), socket.port())).unwrap();
    // Then a datagram with a checksum, so that the test ends if the kernel drops the first.
    sys::set_option(peer.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 0).unwrap();
    peer.send_to(b"summed", (socket.addr(), socket.port())).unwrap();
    assert_eq!(receive(&socket, 1)[0].2, b"bare");
}

#[test]
fn without_coalescing_datagrams_arrive_one_by_one() {
    let mut a = Socket::bind_loopback(CONFIG).unwrap();
    let b = Socket::bind_loopback(CONFIG).unwrap();
    sys::set_option(b.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0).unwrap();
    exchange(&mut a, Some(&b));
}

#[test]
fn nothing_waits() {
    let socket = Socket::bind_loopback(CONFIG).unwrap();
    let mut batch = RecvBatch::new(0);
    assert_eq!(socket.recv(&mut batch).unwrap(), 0);
    assert!(batch.is_empty());
    assert!(socket.recv_buffer().unwrap() > 0 && socket.send_buffer().unwrap() > 0);
}

#[test]
fn datagrams_that_find_the_buffer_full_are_counted() {
    let config = Config { buffer: 4096, ..CONFIG };
    let mut socket = Socket::bind_loopback(config).unwrap();
    for _ in 0..100 {
        socket.send(to(&socket, 0), 1000, &[0; 1000]).unwrap();
    }
    let mut batch = RecvBatch::new(16);
    let mut arrived = 0;
    while let got @ 1.. = socket.recv(&mut batch).unwrap() {
        arrived += got;
    }
    assert!(arrived < 100);
    // The kernel tells the count beside the next datagram.
    socket.send(to(&socket, 0), 1000, &[0; 1000]).unwrap();
    assert_eq!(socket.recv(&mut batch).unwrap(), 1);
    assert_eq!(batch.counters().overflowed as usize, 100 - arrived);
    // Another socket's count is its own.
    let mut other = Socket::bind_loopback(config).unwrap();
    for socket in [&mut other, &mut socket] {
        socket.send(to(socket, 0), 1000, &[0; 1000]).unwrap();
        assert_eq!(socket.recv(&mut batch).unwrap(), 1);
        assert_eq!(batch.counters().overflowed as usize, 100 - arrived);
    }
}

#[test]
fn an_address_in_use_is_explained() {
    let first = Socket::bind_loopback(CONFIG).unwrap();
    let error = Socket::bind(first.addr(), CONFIG).unwrap_err();
    let BindError::InUse { addr, holder } = &error else { panic!("{error}") };
    assert_eq!(*addr, SocketAddr::new(first.addr(), CONFIG.port));
    let Holder::Process { pid, .. } = holder else { panic!("{error}") };
    assert_eq!(*pid, std::process::id());
}

#[test]
fn addresses_that_no_card_can_have() {
    let bind = |addr: &str, port| Socket::bind(addr.parse().unwrap(), Config { port, ..CONFIG });
    assert!(matches!(bind("0.0.0.0", 47_913), Err(BindError::Unspecified { .. })));
    assert!(matches!(bind("127.0.0.1", 0), Err(BindError::NoPort)));
    let foreign = bind("192.0.2.1", 47_913).unwrap_err();
    assert!(matches!(foreign, BindError::Refused { .. }), "{foreign}");
    assert!(matches!(Socket::bind_loopback(Config { port: 0, ..CONFIG }), Err(BindError::NoPort)));
}
