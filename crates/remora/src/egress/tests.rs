//! Packets on their way out: order, checksums, memory that fails, files that shrink.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_nic::wire::MAX_HEADER;
use remora_nic::wire::icrc::IcrcChecker;
use remora_nic::{Ecn, Memory, Path, Segment};

use super::*;
use crate::memory::tests::file_of;
use crate::memory::{Buffer, HostMemory};
use crate::socket::{Config, RecvBatch, Socket};

const CONFIG: Config = Config { port: 47_921, buffer: 4 << 20, tos: 0, marks: true };
const HEADER: [u8; 12] = [10, 0, 0xff, 0xff, 0, 0, 0, 17, 0x80, 0, 0, 1];

struct World {
    fabric: Fabric,
    peer: Socket,
    buffer: Buffer,
    memory: HostMemory,
    batch: TransmitBatch,
    header: [u8; 12],
}

impl World {
    fn new() -> World {
        let buffer = Buffer::new(1 << 16).unwrap();
        let bytes: Vec<u8> = (0..buffer.len()).map(|i| (i * 31 + i / 256) as u8).collect();
        buffer.write_at(0, &bytes).unwrap();
        World {
            fabric: Fabric::udp(Socket::bind_loopback(CONFIG).unwrap()),
            peer: Socket::bind_loopback(CONFIG).unwrap(),
            buffer,
            // SAFETY: the packets of these tests refer to the buffer, or to addresses that
            // are refused.
            memory: unsafe { HostMemory::new() },
            batch: TransmitBatch::new(),
            header: HEADER,
        }
    }

    /// Adds a packet whose payload lies at `offset`, in two pieces.
    fn push(&mut self, dst: IpAddr, tos: u8, offset: u64, len: u32) {
        let addr = self.buffer.addr() + offset;
        let half = len / 2;
        self.push_pieces(dst, tos, &[(addr, half), (addr + u64::from(half), len - half)]);
    }

    fn push_pieces(&mut self, dst: IpAddr, tos: u8, pieces: &[(u64, u32)]) {
        let mark = self.batch.mark();
        let segments = pieces.iter().map(|&(addr, len)| Segment { addr, len });
        self.batch.segments_mut().extend(segments);
        let len: u32 = pieces.iter().map(|p| p.1).sum();
        let path = Path {
            dst,
            src_port: 0xC000,
            traffic_class: tos & !3,
            hop_limit: 64,
            service_level: 0,
        };
        let pad = (len.next_multiple_of(4) - len) as u8;
        let header = self.header;
        self.batch.push(path, Ecn::from_tos(tos), mark, pad, |out: &mut [u8; MAX_HEADER]| {
            out[..header.len()].copy_from_slice(&header);
            header.len()
        });
    }

    fn send(&mut self, egress: &mut Egress) -> Progress {
        egress.send(&self.batch, &mut self.memory, &mut self.fabric, |_| {})
    }

    /// The UDP payload of a packet, without its ICRC.
    fn expected(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut payload = vec![0; len];
        self.buffer.read_at(offset, &mut payload).unwrap();
        let mut bytes = [&HEADER[..], &payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// Receives until `wanted` datagrams came; checks each ICRC and takes it off.
fn receive(socket: &Socket, wanted: usize) -> Vec<(u8, Vec<u8>)> {
    let mut batch = RecvBatch::new(4);
    let mut checker = IcrcChecker::new();
    let mut got = Vec::new();
    while got.len() < wanted {
        socket.recv(&mut batch).unwrap();
        for d in batch.datagrams() {
            let flow =
                Flow { src: d.src, dst: d.dst, src_port: d.src_port, dst_port: socket.port() };
            assert!(checker.check(&flow, None, d.bytes), "ICRC of packet {}", got.len());
            got.push((d.tos, d.bytes[..d.bytes.len() - ICRC_LEN].to_vec()));
        }
        std::thread::yield_now();
    }
    got
}

#[test]
fn packets_arrive_in_order_and_whole() {
    let mut world = World::new();
    let peer = world.peer.addr();
    // Three groups: of equal length with a shorter end, another traffic class, too long to follow.
    let packets = [(0, 0, 1024), (0, 1024, 1024), (0, 2048, 77), (0x62, 5, 1024), (0x62, 9, 1028)];
    for (tos, offset, len) in packets {
        world.push(peer, tos, offset, len);
    }
    let mut egress = Egress::new();
    assert_eq!(world.send(&mut egress), Progress { sent: 5, blocked: false });
    assert_eq!(egress.counters().groups, 3);
    let got = receive(&world.peer, 5);
    for ((tos, offset, len), got) in packets.into_iter().zip(got) {
        assert_eq!(got, (tos, world.expected(offset as usize, len as usize)));
    }
    // The same batch may be sent again.
    assert_eq!(world.send(&mut egress).sent, 5);
}

#[test]
fn groups_end_at_64_packets_and_at_65000_bytes() {
    let mut world = World::new();
    let peer = world.peer.addr();
    for i in 0..130 {
        world.push(peer, 0, i, 32);
    }
    for i in 0..17 {
        world.push(peer, 0, i, 4096);
    }
    let mut egress = Egress::new();
    let mut groups = Vec::new();
    let note = |sent: Sent<'_>| {
        groups.push(sent.datagrams().count());
        assert!(sent.datagrams().enumerate().all(|(i, (ip_id, _))| i == usize::from(ip_id)));
    };
    let progress = egress.send(&world.batch, &mut world.memory, &mut world.fabric, note);
    assert_eq!(progress, Progress { sent: 147, blocked: false });
    assert_eq!(groups, [64, 64, 2, 15, 2]);
    receive(&world.peer, 147);
}

#[test]
fn the_icrc_covers_the_place_in_the_group() {
    let mut world = World::new();
    let peer = world.peer.addr();
    (0..3).for_each(|i| world.push(peer, 0, i, 64));
    let check = |sent: Sent<'_>| {
        for (ip_id, bytes) in sent.datagrams() {
            assert!(IcrcChecker::new().check(&sent.flow, Some(ip_id), bytes));
            assert!(!IcrcChecker::new().check(&sent.flow, Some(ip_id + 1), bytes));
        }
    };
    Egress::new().send(&world.batch, &mut world.memory, &mut world.fabric, check);
}

#[test]
fn packets_whose_memory_fails_are_left_out() {
    let mut world = World::new();
    let peer = world.peer.addr();
    world.push_pieces(peer, 0, &[(0, 64)]);
    world.push(peer, 0, 0, 64);
    world.push_pieces(peer, 0, &[(1 << 63, 64)]);
    world.push(peer, 0, 64, 64);
    world.push_pieces(peer, 4, &[(0, 64)]);
    let mut egress = Egress::new();
    assert_eq!(world.send(&mut egress), Progress { sent: 2, blocked: false });
    let EgressCounters { memory_faults, groups, .. } = egress.counters();
    assert_eq!((memory_faults, groups), (3, 1));
    let got = receive(&world.peer, 2);
    assert_eq!(got[0].1, world.expected(0, 64));
    assert_eq!(got[1].1, world.expected(64, 64));
}

/// Memory that counts how often it is read.
struct Counted<'a>(&'a mut HostMemory, usize);

impl Gather for Counted<'_> {}

impl Memory for Counted<'_> {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        self.1 += 1;
        self.0.read(addr, dst)
    }
    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.0.write(addr, src)
    }
    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        self.0.compare_swap(addr, compare, swap)
    }
    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        self.0.fetch_add(addr, add)
    }
}

/// Sends pieces of 4 KiB that begin at these places of a file of 80 KiB, which is cut to `len`
/// after they are posted. Returns how many reads that took; checks that packets whose bytes are
/// left arrive, and that the others are faults.
fn reads_of_a_file(places: &[usize], len: usize) -> usize {
    let mut world = World::new();
    let peer = world.peer.addr();
    let bytes: Vec<u8> = (0..80 << 10).map(|i: usize| (i * 31 + i / 256) as u8).collect();
    let file = file_of(&bytes);
    let base = world.memory.add_file(file.try_clone().unwrap()).unwrap();
    for at in places {
        world.push_pieces(peer, 0, &[(base + *at as u64, 4096)]);
    }
    file.set_len(len as u64).unwrap();
    let mut egress = Egress::new();
    let mut memory = Counted(&mut world.memory, 0);
    let progress = egress.send(&world.batch, &mut memory, &mut world.fabric, |_| {});
    let there: Vec<_> = places.iter().filter(|at| **at + 4096 <= len).collect();
    assert_eq!(progress, Progress { sent: there.len(), blocked: false });
    assert_eq!(egress.counters().memory_faults, (places.len() - there.len()) as u64);
    let reads = memory.1;
    for (at, (_, got)) in there.iter().zip(receive(&world.peer, there.len())) {
        assert!(got[HEADER.len()..] == bytes[**at..][..4096], "the piece at {at}");
    }
    reads
}

#[test]
fn what_follows_in_a_file_is_read_at_once() {
    const WHOLE: usize = 80 << 10;
    let pieces: Vec<usize> = (0..20).map(|i| i * 4096).collect();
    assert_eq!(reads_of_a_file(&pieces, WHOLE), 2, "15 fill a group");
    assert_eq!(reads_of_a_file(&pieces[..1], WHOLE), 1);
    // The first three follow each other, and the last lies in what they read.
    assert_eq!(reads_of_a_file(&[9, 4105, 8201, 0, 0, 8192], WHOLE), 3);
    assert_eq!(reads_of_a_file(&[], WHOLE), 0);
}

/// Reading all at once fails, and then each packet is read alone.
#[test]
fn of_a_file_that_shrinks_the_rest_is_sent() {
    let pieces: Vec<usize> = (0..12).map(|i| i * 4096).collect();
    assert_eq!(reads_of_a_file(&pieces, 5 * 4096), 1 + 12);
    assert_eq!(reads_of_a_file(&pieces, 5 * 4096 - 1), 1 + 12);
    assert_eq!(reads_of_a_file(&pieces, 0), 1 + 12);
}

/// A group that begins with a packet left out still goes to one peer only.
#[test]
fn a_packet_left_out_takes_no_other_with_it() {
    let mut world = World::new();
    let (peer, other) = (world.peer.addr(), world.fabric.udp.addr());
    world.push_pieces(other, 0, &[(0, 64)]);
    world.push(peer, 0, 0, 64);
    let mut egress = Egress::new();
    assert_eq!(world.send(&mut egress), Progress { sent: 1, blocked: false });
    assert_eq!(receive(&world.peer, 1)[0].1, world.expected(0, 64));
}

/// Sends `world`'s batch by a call that fails with `failures`, one after another, then works.
/// Returns the lengths of what it accepted.
fn send_with_failures(
    world: &mut World,
    egress: &mut Egress,
    failures: &mut Vec<i32>,
) -> (Progress, Vec<usize>) {
    let mut accepted = Vec::new();
    let call = |_: &mut Fabric, _, _, bytes: &[u8]| match failures.pop() {
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => {
            accepted.push(bytes.len());
            Ok(Went::Udp)
        }
    };
    let World { batch, memory, fabric, .. } = world;
    let progress = egress.send_by(call, batch, memory, fabric, |_| {});
    (progress, accepted)
}

/// Two groups: three packets of 80 bytes and two of 144.
fn two_groups() -> World {
    let mut world = World::new();
    let peer = world.peer.addr();
    (0..3).for_each(|i| world.push(peer, 0, i, 64));
    (0..2).for_each(|i| world.push(peer, 0, i, 128));
    world
}

/// UC packets go to a socket that is not read for a while: all arrive in the end.
#[test]
fn unreliable_packets_wait_for_room_in_a_socket_of_this_machine() {
    const UC_WRITE_MIDDLE: u8 = 0x27;
    let mut world = World::new();
    let peer = world.peer.addr();
    if world.fabric.udp.queue_of(peer).is_none() {
        return crate::skips::lacks("this kernel does not tell (CONFIG_INET_UDP_DIAG)");
    }
    world.header[0] = UC_WRITE_MIDDLE;
    (0..64).for_each(|_| world.push(peer, 0, 0, 1024));
    let (mut egress, mut sent, mut got) = (Egress::new(), 0, 0);
    while !egress.is_paced() {
        let progress = world.send(&mut egress);
        assert_eq!(progress.blocked, egress.is_paced());
        sent += progress.sent;
        assert!(sent < 1_000_000, "it never fills");
    }
    let (mut batch, mut last) = (RecvBatch::new(4), Instant::now());
    while got < sent || egress.is_paced() {
        let came = world.peer.recv(&mut batch).unwrap();
        last = if came == 0 { last } else { Instant::now() };
        assert!(last.elapsed() < Duration::from_secs(10), "{sent} were sent and {got} came");
        got += came;
        sent += if egress.is_paced() { world.send(&mut egress).sent } else { 0 };
    }
    assert_eq!((got, sent % 64), (sent, 0));
}

#[test]
fn a_full_socket_loses_nothing() {
    let mut world = two_groups();
    let mut egress = Egress::new();
    for round in 1..=2 {
        let (progress, _) = send_with_failures(&mut world, &mut egress, &mut vec![libc::EAGAIN]);
        assert_eq!(progress, Progress { sent: 0, blocked: true });
        assert_eq!(egress.counters().socket_full, round);
    }
    let (progress, accepted) = send_with_failures(&mut world, &mut egress, &mut vec![]);
    assert_eq!(progress, Progress { sent: 5, blocked: false });
    assert_eq!(accepted, [240, 288]);
}

#[test]
fn a_refused_group_goes_packet_by_packet() {
    let mut world = two_groups();
    let mut egress = Egress::new();
    let (progress, accepted) = send_with_failures(&mut world, &mut egress, &mut vec![libc::EINVAL]);
    assert_eq!(progress, Progress { sent: 5, blocked: false });
    assert_eq!(accepted, [80, 80, 80, 288]);
    // A device that cuts no group is not asked again.
    let (_, accepted) = send_with_failures(&mut world, &mut egress, &mut vec![libc::EIO]);
    assert_eq!(accepted, [80, 80, 80, 144, 144]);
    assert_eq!(egress.counters().ungrouped, 2);
}

#[test]
fn packets_that_cannot_go_are_dropped_and_counted() {
    let mut world = two_groups();
    let mut egress = Egress::new();
    let mut failures = vec![libc::EHOSTUNREACH, libc::ECONNREFUSED];
    let (progress, accepted) = send_with_failures(&mut world, &mut egress, &mut failures);
    assert_eq!((progress.sent, accepted), (2, vec![288]));
    let EgressCounters { unreachable, icmp_errors, .. } = egress.counters();
    assert_eq!((unreachable, icmp_errors), (3, 1));
    let mut failures = vec![libc::EMSGSIZE; 4];
    let (progress, accepted) = send_with_failures(&mut world, &mut egress, &mut failures);
    assert_eq!((progress.sent, accepted), (2, vec![288]));
    assert_eq!(egress.counters().too_long, 3);
}

#[test]
fn a_peer_of_the_other_family_is_unreachable() {
    let mut world = World::new();
    world.push("::1".parse().unwrap(), 0, 0, 64);
    world.push("::1".parse().unwrap(), 0, 0, 64);
    let mut egress = Egress::new();
    assert_eq!(world.send(&mut egress), Progress { sent: 0, blocked: false });
    assert_eq!(egress.counters().unreachable, 2);
}
