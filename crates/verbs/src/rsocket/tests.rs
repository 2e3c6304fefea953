//! Streams whose peer does not keep to the protocol: two sockets of this process.

use core::ffi::{c_int, c_short};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::socket::Inner;
use super::{calls, iomap, poll, socket};
use crate::abi::IBV_QPS_RTS;
use crate::abi::rdma_cma::{RDMA_IOMAPSIZE, SOL_RDMA, any_address};
use crate::rdmacm::c_address;
use crate::sleep::OnSignal;

const LEN: u32 = size_of::<any_address>() as u32;

fn stream() -> c_int {
    match calls::rsocket(libc::AF_INET, libc::SOCK_STREAM, 0) {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        fd => fd,
    }
}

/// A socket that listens, and its address.
fn listener() -> (c_int, any_address) {
    let listener = stream();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (mut at, mut len) = (c_address::to_c(any), LEN);
    let place = (&raw mut at).cast::<libc::sockaddr>();
    // SAFETY: the address lives through the calls, and has as many bytes as they are told.
    unsafe {
        assert_eq!(calls::rbind(listener, place, LEN), 0);
        assert_eq!(calls::rlisten(listener, 1), 0);
        assert_eq!(calls::rgetsockname(listener, place, &mut len), 0);
    }
    (listener, at)
}

fn accept(listener: c_int) -> c_int {
    // SAFETY: no address is asked for.
    let server = unsafe { calls::raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
    assert!(server >= 0);
    server
}

fn connect(client: c_int, at: &any_address) -> c_int {
    // SAFETY: the address lives through the call, and has as many bytes as it is told.
    unsafe { calls::rconnect(client, std::ptr::from_ref(at).cast(), LEN) }
}

/// Two ends of a connection.
fn pair() -> (c_int, c_int) {
    let ((listener, at), client) = (listener(), stream());
    let accepted = thread::spawn(move || accept(listener));
    assert_eq!(connect(client, &at), 0);
    let server = accepted.join().unwrap();
    assert_eq!(calls::rclose(listener), 0);
    (client, server)
}

/// Sends messages of data, each with `length` bytes as it says, and with none in fact. The peer
/// takes them all.
fn send_empty(from: c_int, to: c_int, count: usize, length: u32) {
    let (from, to) = (socket::find(from).unwrap(), socket::find(to).unwrap());
    for _ in 0..count {
        loop {
            let mut inner = from.lock();
            let stream = inner.stream().unwrap();
            let sent = stream.pretend_to_send(length);
            stream.progress();
            drop(inner);
            to.lock().progress();
            if sent.is_ok() {
                break;
            }
        }
    }
}

fn send(fd: c_int, data: &[u8]) {
    // SAFETY: the data lives through the call.
    let sent = unsafe { calls::rsend(fd, data.as_ptr().cast(), data.len(), 0) };
    assert_eq!(sent, data.len() as isize);
}

/// Polls one socket; returns the call's result, and the events.
fn poll_for(fd: c_int, events: c_short, timeout_ms: c_int) -> (c_int, c_short) {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: there is one entry.
    let ready = unsafe { poll::rpoll(&mut entry, 1, timeout_ms) };
    (ready, entry.revents)
}

fn receive(fd: c_int) -> Result<Vec<u8>, Option<i32>> {
    let mut room = [0; 64];
    // SAFETY: there is as much room as the call is told.
    match unsafe { calls::rrecv(fd, room.as_mut_ptr().cast(), room.len(), 0) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error()),
        len => Ok(room[..len as usize].to_vec()),
    }
}

/// A thread that has found a socket may lock it only after another has closed it.
#[test]
fn a_closed_socket_has_no_descriptors() {
    let (client, server) = pair();
    let datagram = calls::rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    for fd in [client, server, datagram] {
        let socket = socket::find(fd).unwrap();
        assert!(!socket.lock().descriptors().is_empty());
        assert_eq!(calls::rclose(fd), 0);
        let mut inner = socket.lock();
        inner.arm();
        assert!(inner.descriptors().is_empty());
    }
}

/// Threads poll a socket and ask for its name while another closes it.
#[test]
fn a_socket_may_be_closed_while_others_use_it() {
    for _ in 0..20 {
        let (client, server) = pair();
        let ended = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut fd = libc::pollfd { fd: client, events: libc::POLLIN, revents: 0 };
                while !ended.load(Ordering::Relaxed) {
                    // SAFETY: there is one entry.
                    unsafe { poll::rpoll(&mut fd, 1, 1) };
                }
            });
            threads.spawn(|| {
                let mut at = any_address([0; size_of::<any_address>()]);
                while !ended.load(Ordering::Relaxed) {
                    let (place, mut len) = ((&raw mut at).cast(), LEN);
                    // SAFETY: there is as much room as the call is told.
                    unsafe { calls::rgetsockname(client, place, &mut len) };
                }
            });
            thread::sleep(Duration::from_millis(1));
            assert_eq!(calls::rclose(client), 0);
            ended.store(true, Ordering::Relaxed);
        });
        assert_eq!(calls::rclose(server), 0);
    }
}

/// No call but those for data takes the connection's events here.
#[test]
fn calls_for_data_see_that_a_connection_is_made() {
    let ((listener, at), client) = (listener(), stream());
    assert_eq!(calls::rfcntl(client, libc::F_SETFL, libc::O_NONBLOCK), 0);
    assert_eq!(connect(client, &at), -1);
    assert_eq!(receive(client), Err(Some(libc::EAGAIN)));
    let server = accept(listener);
    // SAFETY: the data lives through the call.
    while unsafe { calls::rsend(client, b"early".as_ptr().cast(), 5, 0) } != 5 {
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    }
    assert_eq!(receive(server), Ok(b"early".to_vec()));
    for fd in [client, server, listener] {
        assert_eq!(calls::rclose(fd), 0);
    }
}

/// The failure of a connection is told once, to whichever call waits for it.
#[test]
fn calls_for_data_see_that_a_connection_is_refused() {
    let ((listener, at), client) = (listener(), stream());
    assert_eq!(calls::rclose(listener), 0);
    assert_eq!(calls::rfcntl(client, libc::F_SETFL, libc::O_NONBLOCK), 0);
    assert_eq!(connect(client, &at), -1);
    assert_eq!(calls::rfcntl(client, libc::F_SETFL, 0), 0);
    assert_eq!(receive(client), Err(Some(libc::ECONNREFUSED)));
    assert_eq!(receive(client), Err(Some(libc::ENOTCONN)));
    assert_eq!(calls::rclose(client), 0);
}

fn send_to(from: c_int, to: SocketAddr, data: &[u8]) {
    let at = c_address::to_c(to);
    let (place, bytes) = ((&raw const at).cast(), data.as_ptr().cast());
    // SAFETY: the data and the address live through the call.
    let sent = unsafe { calls::rsendto(from, bytes, data.len(), 0, place, LEN) };
    assert_eq!(sent, data.len() as isize);
}

/// It stops the send queue of a queue pair for datagrams.
#[test]
fn a_datagram_socket_outlives_a_send_that_fails() {
    let [one, two] = [(); 2].map(|()| calls::rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (mut at, mut len) = (c_address::to_c(any), LEN);
    let place = (&raw mut at).cast::<libc::sockaddr>();
    // SAFETY: the address lives through the calls, and has as many bytes as they are told.
    let to = unsafe {
        assert_eq!(calls::rbind(two, place, LEN), 0);
        assert_eq!(calls::rgetsockname(two, place, &mut len), 0);
        c_address::from_c(place).unwrap().unwrap()
    };
    send_to(one, to, b"by UDP");
    assert_eq!(receive(two), Ok(b"by UDP".to_vec()));
    let socket = socket::find(one).unwrap();
    let knows_the_other = |inner: &mut Inner| inner.datagram().unwrap().towards(to).is_some();
    let mut inner = socket.wait(socket.lock(), false, OnSignal::GoOn, knows_the_other).unwrap();
    let (endpoint, way) = inner.datagram().unwrap().towards(to).unwrap();
    endpoint.fail_a_send(way);
    let state = |inner: &mut Inner| {
        let (endpoint, _) = inner.datagram().unwrap().towards(to).unwrap();
        endpoint.state_at_rest()
    };
    let rests = |inner: &mut Inner| state(inner).is_some();
    let mut inner = socket.wait(inner, false, OnSignal::GoOn, rests).unwrap();
    assert_eq!(state(&mut inner), Some(IBV_QPS_RTS));
    drop(inner);
    send_to(one, to, b"again");
    assert_eq!(receive(two), Ok(b"again".to_vec()));
    assert_eq!((calls::rclose(one), calls::rclose(two)), (0, 0));
}

/// A call that receives nothing says that the stream has ended.
#[test]
fn a_message_without_data_is_not_the_end_of_the_stream() {
    let (client, server) = pair();
    send_empty(client, server, 3, 0);
    send(client, b"hello");
    assert_eq!(receive(server), Ok(b"hello".to_vec()));
    // They count as read, so that the peer may go on sending.
    send_empty(client, server, 1000, 0);
    send(client, b"still there");
    assert_eq!(receive(server), Ok(b"still there".to_vec()));
    assert_eq!(calls::rclose(client), 0);
    assert_eq!(receive(server), Ok(Vec::new()));
    assert_eq!(calls::rclose(server), 0);
}

/// A thread waits for data, and another asks again and again whether there is any.
#[test]
fn a_call_that_waits_is_not_left_asleep_by_a_poll() {
    const BYTES: usize = 50;
    let (client, server) = pair();
    let ended = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut fd = libc::pollfd { fd: server, events: libc::POLLIN, revents: 0 };
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: there is one entry.
                assert!(unsafe { poll::rpoll(&mut fd, 1, 10) } >= 0);
            }
        });
        for _ in 0..BYTES {
            let waits = threads.spawn(|| receive(server));
            thread::sleep(Duration::from_millis(1));
            send(client, b"!");
            assert_eq!(waits.join().unwrap(), Ok(b"!".to_vec()));
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!((calls::rclose(client), calls::rclose(server)), (0, 0));
}

/// A thread sends, and sleeps whenever it has no credits; another sleeps until there is data.
#[test]
fn a_send_is_not_left_asleep_by_a_poll() {
    const BYTES: usize = 16 << 20;
    let (client, server) = pair();
    thread::scope(|threads| {
        threads.spawn(|| {
            let (mut room, mut got) = (vec![0; 1 << 20], 0);
            while got < BYTES {
                // SAFETY: there is as much room as the call is told.
                let part = unsafe { calls::rrecv(server, room.as_mut_ptr().cast(), room.len(), 0) };
                got += usize::try_from(part).unwrap();
            }
            send(server, b"!");
        });
        threads.spawn(|| assert_eq!(poll_for(client, libc::POLLIN, -1), (1, libc::POLLIN)));
        send(client, &vec![7; BYTES]);
    });
    assert_eq!((calls::rclose(client), calls::rclose(server)), (0, 0));
}

/// Selects one socket for writing and for what is exceptional, without waiting; returns the call's
/// result, and whether the socket is in the sets.
fn select_for_writing(fd: c_int) -> (c_int, [bool; 2]) {
    // SAFETY: zeroes are a set; the sets and the time live through the calls.
    unsafe {
        let (mut sets, mut at_once) = (std::mem::zeroed::<[libc::fd_set; 2]>(), std::mem::zeroed());
        sets.iter_mut().for_each(|set| libc::FD_SET(fd, set));
        let [write, except] = &mut sets;
        let ready = poll::rselect(fd + 1, std::ptr::null_mut(), write, except, &mut at_once);
        (ready, [write, except].map(|set| libc::FD_ISSET(fd, set)))
    }
}

/// It would be told so at once if it did write.
#[test]
fn a_writer_that_polls_learns_that_its_peer_has_closed() {
    let (client, server) = pair();
    assert_eq!(select_for_writing(client), (1, [true, false]));
    send(server, b"unread");
    assert_eq!(calls::rclose(server), 0);
    let socket = socket::find(client).unwrap();
    let has_ended = |inner: &mut Inner| !inner.stream().unwrap().writable;
    drop(socket.wait(socket.lock(), false, OnSignal::GoOn, has_ended).unwrap());
    assert_eq!(poll_for(client, libc::POLLOUT, -1), (1, libc::POLLOUT));
    assert_eq!(select_for_writing(client), (1, [true, false]));
    assert_eq!(receive(client), Ok(b"unread".to_vec()));
    let (ready, events) = poll_for(client, libc::POLLOUT, -1);
    assert_eq!((ready, events), (1, libc::POLLOUT | libc::POLLHUP));
    assert_eq!(select_for_writing(client), (2, [true, true]));
    assert_eq!(calls::rclose(client), 0);
    assert_eq!(select_for_writing(libc::FD_SETSIZE as c_int - 1), (-1, [true, true]));
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
}

fn write_mapped(fd: c_int, data: &[u8], offset: libc::off_t) -> usize {
    // SAFETY: the data lives through the call.
    unsafe { iomap::riowrite(fd, data.as_ptr().cast(), data.len(), offset, 0) }
}

/// A peer may never map more.
#[test]
fn a_write_ends_where_the_peers_mapping_does() {
    let ((listener, at), client) = (listener(), stream());
    for fd in [listener, client] {
        assert_eq!(set_option(fd, SOL_RDMA as c_int, RDMA_IOMAPSIZE as c_int, 4), Ok(()));
    }
    let accepted = thread::spawn(move || accept(listener));
    assert_eq!(connect(client, &at), 0);
    let server = accepted.join().unwrap();
    let mut mapped = [0u8; 64];
    let place = mapped.as_mut_ptr().cast();
    assert_eq!(iomap::riomap(server, place, 64, libc::PROT_WRITE, 0, 0), 0);
    // What is sent after it tells the client that the mapping has come.
    send(server, b"!");
    assert_eq!(receive(client), Ok(b"!".to_vec()));
    assert_eq!(write_mapped(client, &[7; 64], 0), 64);
    assert_eq!(write_mapped(client, &[7; 64], 48), 16);
    assert_eq!(write_mapped(client, &[7; 64], 64), 0);
    assert_eq!(iomap::riounmap(server, place, 64), 0);
    for fd in [client, server, listener] {
        assert_eq!(calls::rclose(fd), 0);
    }
}

fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), Option<i32>> {
    // SAFETY: the value lives through the call, and has the size given.
    match unsafe { calls::rsetsockopt(fd, level, name, (&raw const value).cast(), 4) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error()),
    }
}

fn option(fd: c_int, level: c_int, name: c_int) -> c_int {
    let (mut value, mut len) = (-1, 4);
    // SAFETY: there is as much room as the call is told.
    let got = unsafe { calls::rgetsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    assert_eq!((got, len), (0, 4));
    value
}

#[test]
fn a_connected_socket_takes_the_options_that_tcp_takes() {
    let (client, server) = pair();
    for name in [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT] {
        assert_eq!(set_option(client, libc::IPPROTO_TCP, name, 5), Ok(()));
        assert_eq!(option(client, libc::IPPROTO_TCP, name), 5);
        assert_eq!(set_option(client, libc::IPPROTO_TCP, name, 0), Err(Some(libc::EINVAL)));
    }
    assert_eq!(set_option(client, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), Ok(()));
    assert_eq!(option(client, libc::SOL_SOCKET, libc::SO_REUSEADDR), 1);
    assert_eq!((calls::rclose(client), calls::rclose(server)), (0, 0));
}

#[test]
fn a_socket_that_is_kept_alive_asks_its_peer() {
    let (client, server) = pair();
    let socket = socket::find(client).unwrap();
    let mut inner = socket.lock();
    let asks = |inner: &mut Inner| {
        inner.progress();
        !inner.stream().unwrap().all_sent()
    };
    inner.options.keepalive_time = 0;
    while asks(&mut inner) {}
    assert!(!asks(&mut inner));
    inner.options.keepalive = 1;
    assert!(asks(&mut inner));
    inner.options.keepalive = 0;
    // The peer's card answers.
    while asks(&mut inner) {}
    assert!(!inner.stream().unwrap().failed);
    drop(inner);
    send(client, b"!");
    assert_eq!(receive(server), Ok(b"!".to_vec()));
    assert_eq!((calls::rclose(client), calls::rclose(server)), (0, 0));
}

/// What a peer sends beyond its credits is not remembered without end.
#[test]
fn a_peer_that_sends_more_than_it_may_loses_the_stream() {
    let (client, server) = pair();
    let credits = {
        let socket = socket::find(server).unwrap();
        let inner = socket.lock();
        inner.options.sizes.recv_queue as usize
    };
    send_empty(client, server, credits + 1, 1);
    let socket = socket::find(server).unwrap();
    let failed = |inner: &mut Inner| inner.stream().unwrap().failed;
    drop(socket.wait(socket.lock(), false, OnSignal::GoOn, failed).unwrap());
    // What came before is still read; then the stream is at its end.
    let mut got = 0;
    let end = loop {
        match receive(server) {
            Ok(data) if !data.is_empty() => got += data.len(),
            end => break end,
        }
    };
    assert_eq!((got, end), (credits, Err(Some(libc::ECONNRESET))));
    let error = || option(server, libc::SOL_SOCKET, libc::SO_ERROR);
    assert_eq!((error(), error()), (libc::ECONNRESET, 0));
    assert_eq!((calls::rclose(client), calls::rclose(server)), (0, 0));
}
