//! Links between cards of one machine: how they are made, their order with UDP, their end.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, sendmsg, socket,
};

use super::super::rendezvous::Hello;
use super::super::ring::{Consumer, Producer};
use super::settle::{DATA, WAYS};
use super::*;
use crate::closer::tests::lingering;
use crate::memory::circle::sealed_file;

/// Not the port of RoCE, so that the tests do not meet a card that runs on this machine.
const PORT: u16 = 47_931;

/// An address that no other test has, of this process or another.
fn addr(host: u8) -> IpAddr {
    let process = std::process::id();
    IpAddr::from([127, 100 + (process >> 8) as u8 % 100, process as u8, host])
}

fn card(host: u8) -> Links {
    Links::new(addr(host), PORT, Vec::new(), false).unwrap()
}

/// Has the cards look a few times, in turn.
fn look(cards: &mut [&mut Links]) {
    for time in 1..6 {
        cards.iter_mut().for_each(|card| card.look(Time(time * 2_000_000_000), Looker::Thread));
    }
}

/// Two cards, of which the first has asked the second.
fn pair(hosts: [u8; 2]) -> [Links; 2] {
    let [mut a, mut b] = hosts.map(card);
    assert_eq!(a.way_to(addr(hosts[1])), None);
    look(&mut [&mut a, &mut b]);
    assert_eq!((a.len(), b.len()), (1, 1));
    a.socket_is_empty();
    b.socket_is_empty();
    [a, b]
}

fn put(card: &mut Links, to: u8, packet: &[u8]) -> Put {
    let link = card.way_to(addr(to)).expect("a link");
    card.put_group(link, 3, packet.len(), packet)
}

/// All packets that have come.
fn take(card: &mut Links) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while card.receive().is_some() {
        packets.extend(card.datagrams().map(|datagram| datagram.bytes.to_vec()));
    }
    packets
}

fn is_readable(card: &Links) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let fd = card.fd();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
}

#[test]
fn packets_go_both_ways_and_say_where_they_come_from() {
    let [mut a, mut b] = pair([1, 2]);
    assert_eq!(put(&mut a, 2, &[1; 100]), Put::Sent);
    assert_eq!(b.receive(), Some((1, false)));
    let datagrams: Vec<_> = b.datagrams().collect();
    assert_eq!((datagrams[0].src, datagrams[0].dst), (addr(1), addr(2)));
    assert_eq!((datagrams[0].src_port, datagrams[0].tos), (PORT, 3));
    put(&mut b, 1, &[2; 60]);
    assert_eq!(take(&mut a), [vec![2; 60]]);
    assert_eq!((a.counters.tx_packets, a.counters.rx_packets), (1, 1));
}

#[test]
fn cards_that_ask_each_other_at_once_settle_on_one_link() {
    let [mut a, mut b] = [3, 4].map(card);
    assert!(a.way_to(addr(4)).is_none() && b.way_to(addr(3)).is_none());
    // Both ask before either hears.
    a.look(Time(1), Looker::Thread);
    b.look(Time(1), Looker::Thread);
    look(&mut [&mut b, &mut a]);
    assert_eq!((a.len(), b.len(), a.pending.len(), b.pending.len()), (1, 1, 0, 0));
    for card in [&mut a, &mut b] {
        card.socket_is_empty();
    }
    put(&mut a, 4, &[1; 20]);
    put(&mut b, 3, &[2; 20]);
    assert_eq!((take(&mut a), take(&mut b)), (vec![vec![2; 20]], vec![vec![1; 20]]));
}

#[test]
fn only_addresses_of_this_machine_are_asked() {
    let mut a = Links::new(addr(5), PORT, vec!["192.0.2.5".parse().unwrap()], false).unwrap();
    for (to, here) in [("192.0.2.5", true), ("192.0.2.6", false), ("127.9.9.9", true)] {
        assert_eq!(a.way_to(to.parse().unwrap()), None);
        assert_eq!(a.peers.contains_key(&to.parse().unwrap()), here, "{to}");
    }
    assert!(a.way_to(addr(5)).is_none() && !a.peers.contains_key(&addr(5)), "itself");
}

#[test]
fn packets_of_a_new_link_wait_for_those_in_the_socket() {
    let [mut a, mut b] = [6, 7].map(card);
    a.way_to(addr(7));
    look(&mut [&mut a, &mut b]);
    put(&mut a, 7, &[1; 20]);
    assert!(b.any_fresh() && b.receive().is_none());
    b.socket_is_empty();
    assert_eq!(take(&mut b), [vec![1; 20]]);
}

#[test]
fn a_card_that_sleeps_is_woken_and_one_that_has_packets_does_not_sleep() {
    let [mut a, mut b] = pair([8, 9]);
    look(&mut [&mut a, &mut b]);
    put(&mut a, 9, &[1; 20]);
    a.flush();
    assert!(!is_readable(&b), "it does not sleep");
    assert!(!b.arm(), "there is a packet");
    take(&mut b);
    assert!(b.arm() && !is_readable(&b));
    put(&mut a, 9, &[1; 20]);
    assert!(!is_readable(&b), "before the end of the batch");
    a.flush();
    assert!(is_readable(&b));
    b.look(Time(1), Looker::Loop);
    assert!(!is_readable(&b), "the call was read");
    put(&mut a, 9, &[1; 20]);
    a.flush();
    assert!(!is_readable(&b), "one call for each sleep");
    assert!(!b.arm() && take(&mut b).len() == 2 && b.arm());
    put(&mut a, 9, &[1; 20]);
    a.flush();
    assert!(is_readable(&b), "it sleeps again");
}

/// If another thread read the call, the one that sleeps would go on sleeping, and no peer would
/// call again.
#[test]
fn a_call_is_left_to_the_thread_that_sleeps() {
    let [mut a, mut b] = pair([21, 22]);
    b.sleep.asleep.store(true, Ordering::Relaxed);
    assert!(b.arm());
    put(&mut a, 22, &[1; 20]);
    a.flush();
    for looker in [Looker::Thread, Looker::BesideLoop] {
        b.look(Time(1), looker);
        assert!(is_readable(&b), "{looker:?}");
    }
    b.sleep.ends();
    b.look(Time(2), Looker::BesideLoop);
    assert!(is_readable(&b), "an event loop sleeps on it");
    b.look(Time(3), Looker::Thread);
    assert!(!is_readable(&b), "no thread sleeps any more");
    put(&mut a, 22, &[1; 20]);
    a.flush();
    assert!(!is_readable(&b) && take(&mut b).len() == 2);
}

#[test]
fn the_end_of_a_peer_is_heard_beside_a_thread_that_sleeps() {
    let [mut a, mut b] = pair([23, 24]);
    b.sleep.asleep.store(true, Ordering::Relaxed);
    assert!(b.arm());
    put(&mut a, 24, &[1; 20]);
    a.flush();
    drop(a);
    b.look(Time(1), Looker::Thread);
    assert_eq!((b.way_to(addr(23)), take(&mut b).len()), (None, 1));
}

#[test]
fn packets_that_were_sent_before_the_end_still_arrive() {
    let [mut a, mut b] = pair([10, 11]);
    (0..3).for_each(|i| assert_eq!(put(&mut a, 11, &[i; 500]), Put::Sent));
    drop(a);
    b.look(Time(1), Looker::Thread);
    assert_eq!((b.len(), b.way_to(addr(10))), (1, None), "no packet goes there any more");
    assert_eq!(take(&mut b), [[0; 500], [1; 500], [2; 500]]);
    b.look(Time(2), Looker::Thread);
    assert_eq!(b.len(), 0);
    // Another card at the same address is asked.
    let mut a = card(10);
    b.way_to(addr(10));
    look(&mut [&mut b, &mut a]);
    assert_eq!((a.len(), b.len()), (1, 1));
}

#[test]
fn a_ring_that_stays_full_loses_packets_after_a_while() {
    let [mut a, mut b] = pair([12, 13]);
    while put(&mut a, 13, &[1; 4000]) == Put::Sent {}
    assert_eq!(put(&mut a, 13, &[1; 4000]), Put::Full);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(put(&mut a, 13, &[1; 4000]), Put::Dropped);
    assert_eq!(a.counters.tx_dropped, 1);
    assert!(!take(&mut b).is_empty());
    assert_eq!(put(&mut a, 13, &[1; 4000]), Put::Sent);
}

/// A hostile process of this user at the other end: it has asked for a link, and may do what it
/// likes with the memory.
fn hostile(victim: &mut Links, from: u8) -> (OwnedFd, Producer, Consumer, [SharedMemory; 2]) {
    let connection = rendezvous::call(victim.addr, PORT).unwrap();
    let file = sealed_file(WAYS, DATA).unwrap();
    let hello = Hello { addr: addr(from), port: PORT, data: DATA as u32, sums: false };
    rendezvous::tell(connection.as_fd(), hello, Some(file.as_fd())).unwrap();
    look(&mut [victim]);
    victim.socket_is_empty();
    assert_eq!(victim.len(), 1);
    let map = |way| SharedMemory::map(&file, way, DATA).unwrap();
    (connection, Producer::new(map(0)), Consumer::new(map(1)), [map(0), map(1)])
}

#[test]
fn a_broken_ring_is_given_up_and_packets_go_by_udp() {
    let mut victim = card(14);
    let (_connection, mut out, _, [there, _]) = hostile(&mut victim, 15);
    let place = out.reserve(12, 100, 0).unwrap().unwrap();
    out.memory().write(place.at, &[7; 100]);
    out.show(place);
    // A length that cannot be, behind a good packet.
    let second = out.reserve(12, 100, 0).unwrap().unwrap();
    out.show(second);
    let word = there.data_word((second.at & !63).min(DATA - 64));
    word.store(word.load(Ordering::Relaxed) | 0xffff << 16, Ordering::Relaxed);
    assert!(victim.way_to(addr(15)).is_some());
    assert_eq!(take(&mut victim), [vec![7; 100]], "what came before is good");
    assert_eq!(victim.way_to(addr(15)), None);
    victim.look(Time(1), Looker::Thread);
    assert_eq!((victim.len(), victim.counters.broken), (0, 1));

    let mut victim = card(16);
    let (_connection, _, _, [_, back]) = hostile(&mut victim, 17);
    // It says that it has read what was never sent.
    back.word(0).store(1 << 40, Ordering::Relaxed);
    let mut last = Put::Sent;
    for _ in 0..DATA / 4000 {
        last = match victim.way_to(addr(17)) {
            Some(link) => victim.put_group(link, 0, 4000, &[1; 4000]),
            None => break,
        };
    }
    assert_eq!((last, victim.way_to(addr(17))), (Put::Broken, None));
    victim.look(Time(1), Looker::Thread);
    assert_eq!((victim.len(), victim.counters.broken), (0, 1));
}

#[test]
fn those_who_say_nonsense_or_pass_other_files_get_no_link() {
    let mut card = card(18);
    let data = DATA as u32;
    let hello = |from, data| Hello { addr: from, port: PORT, data, sums: false };
    let sealed = || Some(sealed_file(WAYS, DATA).unwrap());
    let open = memfd_create(c"open", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 10 << 20).unwrap();
    let elsewhere = "192.0.2.19".parse().unwrap();
    let wrong: Vec<(Hello, Option<OwnedFd>)> = vec![
        (hello(addr(19), data), None),
        (hello(addr(19), data), Some(open)),
        (hello(addr(19), data), Some(File::open("/dev/null").unwrap().into())),
        (hello(addr(19), data), Some(File::open("/").unwrap().into())),
        (hello(addr(19), data * 2), sealed()),
        (hello(addr(19), 0), sealed()),
        (hello(elsewhere, data), sealed()),
        (hello(addr(18), data), sealed()),
        (Hello { port: 1, ..hello(addr(19), data) }, sealed()),
    ];
    for (at, (hello, file)) in wrong.into_iter().enumerate() {
        let connection = rendezvous::call(addr(18), PORT).unwrap();
        rendezvous::tell(connection.as_fd(), hello, file.as_ref().map(AsFd::as_fd)).unwrap();
        look(&mut [&mut card]);
        assert_eq!((card.len(), card.pending.len()), (0, 0), "case {at}");
        let heard = rendezvous::hear(connection.as_fd(), &mut Vec::new()).unwrap();
        assert!(matches!(heard, rendezvous::Heard::Hello(Hello { data: 0, .. })), "{at}");
    }
    let silent = rendezvous::call(addr(18), PORT).unwrap();
    rendezvous::wake(silent.as_fd());
    let mute = rendezvous::call(addr(18), PORT).unwrap();
    card.look(Time(1), Looker::Thread);
    card.look(Time(2), Looker::Thread);
    assert_eq!((card.len(), card.pending.len()), (0, 1), "one has said nonsense, one nothing");
    card.look(Time::ZERO + Duration::from_secs(6), Looker::Thread);
    assert_eq!(card.pending.len(), 0, "nobody waits for ever");
    drop(mute);
}

#[test]
fn a_flood_of_callers_is_bounded() {
    let mut card = card(20);
    let mut callers = Vec::new();
    for _ in 0..400 {
        callers.extend(rendezvous::call(addr(20), PORT));
        card.look(Time(1), Looker::Thread);
    }
    assert!(card.pending.len() <= 256, "{}", card.pending.len());
    card.look(Time::ZERO + Duration::from_secs(6), Looker::Thread);
    assert_eq!(card.pending.len(), 0);
}

/// Another user's, or one that sends what no card does: it chooses what is closed with its
/// connection.
#[test]
fn nobody_waits_for_what_others_send_to_be_closed() {
    let (slow, _other) = lingering();
    let mut card = card(60);
    let name = format!("remora-fabric/{}/{PORT}", addr(60));
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let call = || {
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        connect(&socket, &name).unwrap();
        socket
    };
    let send = |socket: &OwnedFd, bytes: &[u8]| {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = SendAncillaryBuffer::new(&mut room);
        let both = [slow.as_fd(); 2];
        assert!(beside.push(SendAncillaryMessage::ScmRights(&both)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, SendFlags::empty()).unwrap();
    };
    // One that says no more, one that says nonsense, and a stranger.
    let (silent, wrong, strange) = (call(), call(), call());
    send(&silent, b"nonsense");
    card.look(Time(1), Looker::Thread);
    (0..3).for_each(|_| send(&wrong, &[0; 32]));
    card.user += 1;
    send(&strange, b"hello");
    Closer::default().close(slow);
    look(&mut [&mut card]);
    assert!(card.pending.is_empty() && !card.events.closer.is_idle());
    let waits = call();
    drop((card, waits));
}
