//! The DMA engine: channels, what they are asked, and what hostile rings can do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use remora::dma::choose::{Bench, NoPath, chosen, measured};
use remora::dma::path::{Application, Path, PathError, PathKind};
use remora::dma::{Channel, *};
use remora::memory::Buffer;
use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(20);
const NEAR: u64 = 4 << 20;

fn engine() -> Engine {
    Engine::new(CardMemory::new(Sizes { near: 2 << 20, far: NEAR }).unwrap())
}

/// `len` bytes of which each place has its own, from one seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

fn buffer_of(bytes: &[u8]) -> Arc<Buffer> {
    let buffer = Arc::new(Buffer::new(bytes.len()).unwrap());
    buffer.write_at(0, bytes).unwrap();
    buffer
}

fn bytes_of(buffer: &Buffer, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.read_at(at as usize, &mut bytes).unwrap();
    bytes
}

fn run(engine: &mut Engine) {
    for _ in 0..100_000 {
        if !engine.step() {
            return;
        }
    }
    panic!("the engine never rests");
}

fn statuses(channel: &mut Channel) -> Vec<Status> {
    let mut outcomes = [Outcome { status: Status::Done, bytes: 0, end_of_packet: false }; 64];
    let (count, _) = channel.completed_status(&mut outcomes);
    outcomes[..count].iter().map(|outcome| outcome.status).collect()
}

#[test]
fn bytes_go_to_the_card_and_come_back() {
    let mut engine = engine();
    let source = pattern(1, 1 << 20);
    let (from, back) = (buffer_of(&source), buffer_of(&vec![0; 1 << 20]));
    let from = engine.grant_own(from, false).unwrap();
    let region = engine.grant_own(back.clone(), true).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut c2h = engine.open(ChannelOptions::new(Direction::CardToHost)).unwrap();
    let mut at = 0;
    for len in [1, 63, 64, 4096, 4097, 300_000, 600_000] {
        h2c.copy(from.at(at), Address::Card(at), len, Flags::empty()).unwrap();
        at += u64::from(len);
    }
    assert_eq!(h2c.completed(9).count, 0, "nothing is done before the doorbell");
    h2c.submit();
    run(&mut engine);
    let done = h2c.completed(5);
    assert_eq!((done.count, done.last, done.error_next), (5, Some(Index(4)), false));
    assert_eq!(h2c.completed(9).last, Some(Index(6)));
    let last = c2h.copy(Address::Card(0), region.at(0), at as u32, Flags::empty()).unwrap();
    c2h.submit();
    run(&mut engine);
    assert_eq!(c2h.completed(9).last, Some(last));
    assert!(bytes_of(&back, 0, at as usize) == source[..at as usize]);
    assert_eq!(engine.counters().bytes, 2 * at);
}

#[test]
fn segments_of_unequal_cut_are_one_operation() {
    let mut engine = engine();
    let source = pattern(2, 10_000);
    let region = engine.grant_own(buffer_of(&source), false).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard).depth(8)).unwrap();
    let host = |at, len| Segment { at: region.at(at), len };
    let card = |at, len| Segment { at: Address::Card(at), len };
    let (from, to) = ([host(0, 100), host(5000, 300)], [card(0, 50), card(8192, 350)]);
    let index = h2c.copy_sg(&from, &to, Flags::FENCE).unwrap();
    assert_eq!(index, Index(2), "three parts are whole on both sides");
    h2c.submit();
    run(&mut engine);
    assert_eq!(h2c.completed(9).last, Some(index));
    let there = engine.card().bytes();
    assert_eq!(bytes_of(there, 0, 50), source[..50]);
    let rest = [&source[50..100], &source[5000..5300]].concat();
    assert_eq!(bytes_of(there, 8192, 350), rest);

    let unequal = h2c.copy_sg(&from, &to[..1], Flags::empty());
    assert_eq!(unequal, Err(EnqueueError::Unequal { from: 400, to: 50 }));
    let many = vec![card(0, 1); 9];
    let full = h2c.copy_sg(&[host(0, 9)], &many, Flags::empty());
    assert_eq!(full, Err(EnqueueError::Full { depth: 8, wanted: 9 }));
}

/// Whatever a poll takes at a time, each failure among what is done stops it once.
#[test]
fn each_of_several_failures_is_found_in_its_place() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&[7; 100]), false).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard).depth(8)).unwrap();
    let fails = |index: u64| [2, 3, 7, 12, 23].contains(&index);
    let mut found = Vec::new();
    for round in 0..4 {
        for index in round * 8..(round + 1) * 8 {
            let at = if fails(index) { 99 } else { 0 };
            h2c.copy(region.at(at), Address::Card(0), 2, Flags::empty()).unwrap();
        }
        h2c.submit();
        run(&mut engine);
        let mut taken = 0;
        while taken < 8 {
            let done = h2c.completed(1 + round as usize * 3);
            taken += done.count;
            if done.error_next {
                found.push(round * 8 + taken as u64);
                let mut outcome =
                    [Outcome { status: Status::Done, bytes: 0, end_of_packet: false }];
                assert_eq!(h2c.completed_status(&mut outcome).0, 1);
                assert_eq!(outcome[0].status, Status::OutOfRange);
                taken += 1;
            }
        }
    }
    assert_eq!(found, [2, 3, 7, 12, 23]);
}

#[test]
fn the_parts_behind_a_failed_one_are_skipped() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&[7; 100]), false).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let from = [
        Segment { at: region.at(0), len: 10 },
        Segment { at: region.at(95), len: 10 },
        Segment { at: region.at(0), len: 10 },
    ];
    h2c.copy_sg(&from, &[Segment { at: Address::Card(0), len: 30 }], Flags::empty()).unwrap();
    h2c.copy(region.at(0), Address::Card(64), 10, Flags::empty()).unwrap();
    h2c.submit();
    run(&mut engine);
    let done = h2c.completed(9);
    assert_eq!((done.count, done.error_next), (1, true));
    assert_eq!(h2c.completed(9).count, 0, "a failed descriptor is passed by its status only");
    let expected = [Status::OutOfRange, Status::Skipped, Status::Done];
    assert_eq!(statuses(&mut h2c), expected);
    assert_eq!(bytes_of(engine.card().bytes(), 0, 30), [[7; 10], [0; 10], [0; 10]].concat());
    assert_eq!(engine.counters().failed, 2);
}

#[test]
fn fills_repeat_a_pattern() {
    let mut engine = engine();
    let host = buffer_of(&[0; 5000]);
    let region = engine.grant_own(host.clone(), true).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut c2h = engine.open(ChannelOptions::new(Direction::CardToHost)).unwrap();
    let pattern = u64::from_le_bytes(*b"remora!.");
    h2c.fill(pattern, Address::Card(3), 1001, Flags::empty()).unwrap();
    h2c.fill(pattern, Address::Card(NEAR), 1 << 20, Flags::empty()).unwrap();
    h2c.fill(pattern, region.at(0), 8, Flags::empty()).unwrap();
    c2h.fill(pattern, region.at(8), 16, Flags::FENCE).unwrap();
    h2c.submit();
    c2h.submit();
    run(&mut engine);
    assert_eq!(statuses(&mut h2c), [Status::Done, Status::Done, Status::Unsupported]);
    assert_eq!(statuses(&mut c2h), [Status::Done]);
    let there = engine.card().bytes();
    assert_eq!(bytes_of(there, 0, 19), b"\0\0\0remora!.remora!.");
    assert_eq!(bytes_of(there, 1003, 2), b"r\0", "1001 bytes are 125 patterns and a byte");
    assert_eq!(bytes_of(there, NEAR + (1 << 20) - 8, 9), b"remora!.\0");
    assert_eq!(bytes_of(&host, 0, 25), b"\0\0\0\0\0\0\0\0remora!.remora!.\0");
}

#[test]
fn each_mistake_has_its_status_and_the_channel_goes_on() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&[7; 4096]), false).unwrap();
    let end = engine.card().bytes().len() as u64;
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut c2h = engine.open(ChannelOptions::new(Direction::CardToHost)).unwrap();
    let card = Address::Card;
    let unknown = RegionId(77).at(0);
    let huge = RegionId(region.0).at((1 << 48) - 1);
    for (src, dst) in [
        (region.at(4090), card(0)),
        (region.at(0), card(end - 7)),
        (region.at(0), card(u64::MAX >> 1)),
        (unknown, card(0)),
        (huge, card(0)),
        (region.at(0), region.at(8)),
        (region.at(0), card(end - 8)),
    ] {
        h2c.copy(src, dst, 8, Flags::empty()).unwrap();
    }
    c2h.copy(card(0), region.at(0), 8, Flags::empty()).unwrap();
    c2h.copy(region.at(0), card(0), 8, Flags::empty()).unwrap();
    h2c.submit();
    c2h.submit();
    run(&mut engine);
    let mut expected = [Status::OutOfRange; 7];
    expected[5..].copy_from_slice(&[Status::Unsupported, Status::Done]);
    assert_eq!(statuses(&mut h2c), expected);
    assert_eq!(statuses(&mut c2h), [Status::ReadOnly, Status::Unsupported]);

    let owner = Owner::default();
    assert!(engine.revoke(Owner(1), region).is_none(), "another owner's");
    assert_eq!(engine.revoke(owner, region).map(|back| back.bytes()), Some(4096));
    assert!(engine.revoke(owner, region).is_none());
    h2c.copy(region.at(0), card(0), 8, Flags::empty()).unwrap();
    h2c.submit();
    run(&mut engine);
    assert_eq!(statuses(&mut h2c), [Status::OutOfRange]);
    assert!(matches!(h2c.copy(card(0), card(0), 0, Flags::empty()), Err(EnqueueError::Length(0))));
    let beyond = RegionId(0).at(1 << 48);
    assert_eq!(h2c.copy(beyond, card(0), 8, Flags::empty()), Err(EnqueueError::Address(beyond)));
}

#[test]
fn a_ring_whose_index_was_overwritten_is_served_no_more_and_others_are() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&[7; 64]), false).unwrap();
    let mut hostile = engine.open(ChannelOptions::new(Direction::HostToCard).depth(4)).unwrap();
    let mut other = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    // Garbage within the ring is a refusal each.
    hostile.ring().bytes().write_at(512, &[0xff; 128]).unwrap();
    hostile.ring().bytes().store_u64(0, 4).unwrap();
    run(&mut engine);
    assert_eq!(engine.counters().invalid, 4);
    for index in [9, u64::MAX, 3] {
        hostile.ring().bytes().store_u64(0, index).unwrap();
        other.copy(region.at(0), Address::Card(0), 64, Flags::empty()).unwrap();
        other.submit();
        run(&mut engine);
        assert_eq!(statuses(&mut other), [Status::Done]);
        assert_eq!(hostile.halted(), Some(Halt::BadIndex));
    }
    assert_eq!(engine.counters().halted, 1);
    let refused = hostile.copy(region.at(0), Address::Card(0), 8, Flags::empty());
    assert_eq!(refused, Err(EnqueueError::Halted(Halt::BadIndex)));
}

#[test]
fn an_engine_that_claims_too_much_is_not_believed() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&[7; 64]), false).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard).depth(4)).unwrap();
    h2c.ring().bytes().store_u64(128, u64::MAX).unwrap();
    assert_eq!(h2c.completed(9).count, 0);
    h2c.copy(region.at(0), Address::Card(0), 64, Flags::empty()).unwrap();
    h2c.submit();
    assert_eq!(statuses(&mut h2c), [Status::Fault], "no outcome stands there");
}

#[test]
fn packets_go_through_a_stream() {
    let mut engine = engine();
    let source = pattern(3, 3 << 20);
    let back = buffer_of(&vec![0; 3 << 20]);
    let from = engine.grant_own(buffer_of(&source), false).unwrap();
    let to = engine.grant_own(back.clone(), true).unwrap();
    let card = Address::Card(0);
    let options = ChannelOptions::new(Direction::HostToCard).streaming(3);
    let mut h2c = engine.open(options).unwrap();
    let direction = Direction::CardToHost;
    let mut c2h = engine.open(ChannelOptions { direction, ..options }).unwrap();

    // A packet of two descriptors arrives in a longer one, and a longer packet in two.
    h2c.copy(from.at(0), card, 100, Flags::MORE).unwrap();
    h2c.copy(from.at(100), card, 50, Flags::empty()).unwrap();
    h2c.copy(from.at(150), card, 300, Flags::empty()).unwrap();
    for at in [0, 1000, 2000] {
        c2h.copy(card, to.at(at), 200, Flags::empty()).unwrap();
    }
    c2h.submit();
    run(&mut engine);
    assert_eq!(c2h.completed(9).count, 0, "nothing is in the stream");
    h2c.submit();
    run(&mut engine);
    assert_eq!(statuses(&mut h2c), [Status::Done; 3]);
    let mut outcomes = [Outcome { status: Status::Fault, bytes: 0, end_of_packet: false }; 3];
    assert_eq!(c2h.completed_status(&mut outcomes), (3, Some(Index(2))));
    let ends = outcomes.map(|outcome| (outcome.bytes, outcome.end_of_packet));
    assert_eq!(ends, [(150, true), (200, false), (100, true)]);
    let there = [bytes_of(&back, 0, 150), bytes_of(&back, 1000, 200), bytes_of(&back, 2000, 100)];
    assert!(there.concat() == source[..450]);

    // More than a stream holds waits for its reader.
    h2c.copy(from.at(0), card, 3 << 20, Flags::empty()).unwrap();
    h2c.submit();
    run(&mut engine);
    assert_eq!(h2c.completed(1).count, 0);
    c2h.copy(card, to.at(0), 3 << 20, Flags::empty()).unwrap();
    c2h.submit();
    run(&mut engine);
    assert_eq!((statuses(&mut h2c), statuses(&mut c2h)), (vec![Status::Done], vec![Status::Done]));
    assert!(bytes_of(&back, 0, 3 << 20) == source);
    assert!(engine.open(options.streaming(64)).is_err());
}

/// An engine with two channels into a stream and one out of it, and the places of their memory:
/// bytes to send, and room for what comes.
struct Streamed {
    engine: Engine,
    writers: [Channel; 2],
    reader: Channel,
    source: Vec<u8>,
    from: RegionId,
    to: RegionId,
    back: Arc<Buffer>,
}

impl Streamed {
    const LEN: usize = 3 << 20;

    fn new() -> Streamed {
        let mut engine = engine();
        let (source, back) = (pattern(4, Self::LEN), buffer_of(&vec![0; Self::LEN]));
        let from = engine.grant_own(buffer_of(&source), false).unwrap();
        let to = engine.grant_own(back.clone(), true).unwrap();
        let into = ChannelOptions::new(Direction::HostToCard).streaming(3);
        let out = ChannelOptions::new(Direction::CardToHost).streaming(3);
        let writers = [(); 2].map(|()| engine.open(into).unwrap());
        let reader = engine.open(out).unwrap();
        Streamed { engine, writers, reader, source, from, to, back }
    }

    fn puts(&mut self, writer: usize, at: usize, len: u32, flags: Flags) {
        let channel = &mut self.writers[writer];
        channel.copy(self.from.at(at as u64), Address::Card(0), len, flags).unwrap();
        channel.submit();
        run(&mut self.engine);
    }

    /// Closes the first writer.
    fn closes(&mut self) {
        let first = self.engine.channels().next().unwrap().id;
        assert!(self.engine.close(first));
        run(&mut self.engine);
    }

    /// Asks for `len` bytes; what came.
    fn takes(&mut self, len: u32) -> Vec<Outcome> {
        self.reader.copy(Address::Card(0), self.to.at(0), len, Flags::empty()).unwrap();
        self.reader.submit();
        self.came()
    }

    fn came(&mut self) -> Vec<Outcome> {
        run(&mut self.engine);
        let mut outcomes = [Outcome { status: Status::Fault, bytes: 0, end_of_packet: false }; 8];
        let (count, _) = self.reader.completed_status(&mut outcomes);
        outcomes[..count].to_vec()
    }

    fn holds(&self, at: usize, len: usize) -> bool {
        bytes_of(&self.back, 0, len) == self.source[at..at + len]
    }
}

fn whole(bytes: u32) -> Outcome {
    Outcome { status: Status::Done, bytes, end_of_packet: true }
}

#[test]
fn half_a_packet_ends_with_its_channel() {
    for half in [100, Streamed::LEN as u32] {
        let mut streamed = Streamed::new();
        streamed.puts(0, 50, 7, Flags::empty());
        // A part of a packet; or a descriptor that waits for room in the stream.
        streamed.puts(0, 0, half, if half == 100 { Flags::MORE } else { Flags::empty() });
        streamed.closes();
        streamed.puts(1, 1000, 300, Flags::empty());
        assert_eq!(streamed.takes(500), [whole(7)], "what was whole stays");
        assert!(streamed.holds(50, 7));
        assert_eq!(streamed.takes(500), [whole(300)], "of {half} bytes before");
        assert!(streamed.holds(1000, 300));
    }
}

#[test]
fn a_reader_learns_that_the_rest_of_a_packet_does_not_come() {
    // It has taken a part by a descriptor of its own, or waits for more.
    for (asked, before, cut) in [(60, 1, 0), (500, 0, 100)] {
        let mut streamed = Streamed::new();
        streamed.puts(0, 0, 100, Flags::MORE);
        assert_eq!(streamed.takes(asked).len(), before);
        streamed.closes();
        let mut came = streamed.came();
        streamed.puts(1, 1000, 300, Flags::empty());
        if came.is_empty() {
            came = streamed.takes(500);
        }
        let failed = Outcome { status: Status::Cut, bytes: cut, end_of_packet: false };
        assert_eq!(came, [failed], "with {asked} bytes asked for");
        assert_eq!(streamed.takes(500), [whole(300)]);
        assert!(streamed.holds(1000, 300));
    }
}

/// What a writer has put in before one of its descriptors fails is no packet, and no part of its
/// next one; and others have their turn, though it posts nothing more.
#[test]
fn half_a_packet_ends_with_a_descriptor_that_fails() {
    let outside = Streamed::LEN;
    for goes_on in [true, false] {
        let mut streamed = Streamed::new();
        streamed.puts(0, 0, 100, Flags::MORE);
        streamed.puts(0, outside, 50, Flags::MORE);
        let mut expected = vec![Status::Done, Status::OutOfRange];
        if goes_on {
            streamed.puts(0, 200, 60, Flags::empty());
            expected.push(Status::Skipped);
        }
        assert_eq!(statuses(&mut streamed.writers[0]), expected);
        let writer = usize::from(!goes_on);
        streamed.puts(writer, 1000, 300, Flags::empty());
        assert_eq!(statuses(&mut streamed.writers[writer]), [Status::Done]);
        assert_eq!(streamed.takes(500), [whole(300)]);
        assert!(streamed.holds(1000, 300), "of writer {writer}");
    }
}

#[test]
fn segments_of_a_packet_are_put_in_all_or_none() {
    let mut streamed = Streamed::new();
    let segment = |at: usize| Segment { at: streamed.from.at(at as u64), len: 100 };
    let from = [segment(0), segment(Streamed::LEN), segment(100)];
    let onto = [Segment { at: Address::Card(0), len: 300 }];
    let writer = &mut streamed.writers[0];
    writer.copy_sg(&from, &onto, Flags::empty()).unwrap();
    writer.submit();
    run(&mut streamed.engine);
    let expected = [Status::Done, Status::OutOfRange, Status::Skipped];
    assert_eq!(statuses(&mut streamed.writers[0]), expected);
    streamed.puts(0, 1000, 300, Flags::empty());
    assert_eq!(streamed.takes(500), [whole(300)]);
    assert!(streamed.holds(1000, 300));
}

#[test]
fn a_packet_that_waits_for_room_ends_with_its_memory() {
    let mut streamed = Streamed::new();
    let (from, len) = (streamed.from, Streamed::LEN as u32);
    streamed.puts(0, 0, len, Flags::MORE);
    assert_eq!(statuses(&mut streamed.writers[0]), [], "it waits for room");
    streamed.engine.revoke(Owner::default(), from).unwrap();
    run(&mut streamed.engine);
    assert_eq!(statuses(&mut streamed.writers[0]), [Status::OutOfRange]);
    streamed.from = streamed.engine.grant_own(buffer_of(&streamed.source), false).unwrap();
    streamed.puts(1, 1000, 300, Flags::empty());
    assert_eq!(streamed.takes(500), [whole(300)]);
    assert!(streamed.holds(1000, 300));
}

#[test]
fn a_reader_learns_that_a_writer_has_failed() {
    let mut streamed = Streamed::new();
    streamed.puts(0, 0, 100, Flags::MORE);
    assert_eq!(streamed.takes(500), [], "it waits for more");
    streamed.puts(0, Streamed::LEN, 50, Flags::empty());
    let failed = Outcome { status: Status::Cut, bytes: 100, end_of_packet: false };
    assert_eq!(streamed.came(), [failed]);
    streamed.puts(0, 1000, 300, Flags::empty());
    assert_eq!(streamed.takes(500), [whole(300)]);
    assert!(streamed.holds(1000, 300));
}

#[test]
fn a_descriptor_under_way_ends_with_the_region_that_it_names() {
    let mut streamed = Streamed::new();
    assert_eq!(streamed.takes(500), [], "it waits for a packet");
    let (owner, old) = (Owner::default(), streamed.to);
    streamed.engine.revoke(owner, old).unwrap();
    // Other memory gets the number at some time.
    let other = buffer_of(&[0; 4096]);
    loop {
        let region = streamed.engine.grant_own(other.clone(), true).unwrap();
        if region == old {
            break;
        }
        streamed.engine.revoke(owner, region).unwrap();
    }
    streamed.puts(0, 0, 100, Flags::empty());
    let failed = Outcome { status: Status::OutOfRange, bytes: 0, end_of_packet: false };
    assert_eq!(streamed.came(), [failed]);
    assert_eq!(bytes_of(&other, 0, 100), [0; 100]);
}

#[test]
fn what_is_posted_does_not_reach_what_is_granted_next() {
    let mut engine = engine();
    let first = engine.grant_own(buffer_of(&[7; 64]), false).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    h2c.copy(first.at(0), Address::Card(0), 64, Flags::empty()).unwrap();
    h2c.submit();
    engine.revoke(Owner::default(), first).unwrap();
    engine.grant_own(buffer_of(&[9; 64]), false).unwrap();
    run(&mut engine);
    assert_eq!(statuses(&mut h2c), [Status::OutOfRange]);
    assert_eq!(bytes_of(engine.card().bytes(), 0, 64), [0; 64]);
}

#[test]
fn all_numbers_of_regions_are_given() {
    let (mut engine, memory) = (engine(), buffer_of(&[7; 64]));
    for number in 0..1 << 15 {
        assert_eq!(engine.grant_own(memory.clone(), false).unwrap(), RegionId(number));
    }
    assert!(engine.grant_own(memory.clone(), false).is_err());
    engine.revoke(Owner::default(), RegionId(5)).unwrap();
    assert_eq!(engine.grant_own(memory, false).unwrap(), RegionId(5));
}

#[test]
fn packets_of_two_channels_do_not_mix() {
    let mut streamed = Streamed::new();
    streamed.puts(0, 0, 100, Flags::MORE);
    streamed.puts(1, 1000, 300, Flags::empty());
    streamed.puts(0, 100, 50, Flags::empty());
    assert_eq!(streamed.takes(500), [whole(150)]);
    assert!(streamed.holds(0, 150));
    assert_eq!(streamed.takes(500), [whole(300)]);
    assert!(streamed.holds(1000, 300));
}

#[test]
fn a_long_copy_holds_up_nobody() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&vec![7; 4 << 20]), false).unwrap();
    let mut long = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut short = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    long.copy(region.at(0), Address::Card(0), 4 << 20, Flags::empty()).unwrap();
    short.copy(region.at(0), Address::Card(NEAR), 8, Flags::empty()).unwrap();
    long.submit();
    short.submit();
    assert!(engine.step());
    assert_eq!((long.completed(1).count, short.completed(1).count), (0, 1));
    run(&mut engine);
    assert_eq!(long.completed(1).count, 1);
}

#[test]
fn a_caller_that_wants_the_engine_waits_for_one_channel() {
    let mut engine = engine();
    let region = engine.grant_own(buffer_of(&vec![7; 4 << 20]), false).unwrap();
    let open = |_| engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut channels = [0, 1, 2].map(open);
    for channel in &mut channels {
        channel.copy(region.at(0), Address::Card(0), 1 << 20, Flags::empty()).unwrap();
        channel.submit();
    }
    // In four turns each channel moves its bytes, and none has two turns in a row.
    let done: Vec<u64> = (0..12)
        .map(|_| {
            assert!(engine.step_while(|| false));
            engine.counters().done
        })
        .collect();
    assert_eq!(done, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    assert!(!engine.step_while(|| false));
    assert!(channels.iter_mut().all(|channel| channel.completed(1).count == 1));
}

#[test]
fn a_sleeper_is_woken_by_an_engine_that_slept() {
    let service = Service::start(engine()).unwrap();
    let region = service.engine().grant_own(buffer_of(&[7; 64]), false).unwrap();
    let options = ChannelOptions::new(Direction::HostToCard).interrupt();
    let mut h2c = service.open(options).unwrap();
    for round in 0..200u64 {
        h2c.copy(region.at(0), Address::Card(round * 64), 64, Flags::empty()).unwrap();
        h2c.submit();
        h2c.wait(TIMEOUT).unwrap();
        assert_eq!(h2c.completed(1).last, Some(Index(round)));
        if round % 50 == 0 {
            // The engine's thread goes to sleep by itself, at some time.
            assert!(matches!(h2c.wait(Duration::from_millis(2)), Err(InterruptError::TimedOut)));
        }
    }
    let polled = service.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    assert!(matches!(polled.wait(TIMEOUT), Err(InterruptError::Polled)));
    drop(service);
    assert!(matches!(h2c.wait(TIMEOUT), Err(InterruptError::Halted(Halt::Stopped))));
}

/// Memory whose copies last as long as somebody likes.
#[derive(Debug)]
struct Silent(Arc<Mutex<()>>);

impl Path for Silent {
    fn kind(&self) -> PathKind {
        PathKind::Memfd
    }

    fn len(&self) -> u64 {
        64
    }

    fn to_card(&mut self, _: u64, _: &Buffer, _: usize, _: usize) -> Result<(), PathError> {
        drop(self.0.lock().unwrap());
        Ok(())
    }

    fn to_host(&mut self, _: &Buffer, _: usize, _: u64, _: usize) -> Result<(), PathError> {
        Ok(())
    }
}

#[test]
fn the_end_of_a_service_does_not_wait_for_a_call() {
    let service = Service::start(engine()).unwrap();
    let silence = Arc::new(Mutex::new(()));
    let silent = silence.lock().unwrap();
    let path = Box::new(Silent(silence.clone()));
    let region = service.engine().grant(Owner::default(), path, false).unwrap();
    let mut h2c = service.open(ChannelOptions::new(Direction::HostToCard).interrupt()).unwrap();
    h2c.copy(region.at(0), Address::Card(0), 64, Flags::empty()).unwrap();
    h2c.submit();
    while service.engine_within(Duration::ZERO).is_some() {
        std::thread::yield_now();
    }
    drop(service);
    assert_eq!((h2c.halted(), h2c.completed(1).count), (None, 0));
    // The engine ends behind the call.
    drop(silent);
    while h2c.halted().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(h2c.completed(1).count, 1);
}

#[test]
fn every_path_moves_the_same_bytes() {
    let bench = Bench::new(1 << 20).unwrap();
    let source = pattern(4, 1 << 20);
    let near = bench.card().range(MemoryKind::Near).start as usize;
    for kind in PathKind::ALL {
        let mut path = match bench.open(kind) {
            Ok(path) => path,
            Err(error) => {
                // A container may forbid one process to reach another's memory.
                assert!(matches!(kind, PathKind::ProcessVm | PathKind::ProcMem), "{kind}: {error}");
                continue;
            }
        };
        assert_eq!((path.kind(), path.len()), (kind, 1 << 20));
        bench.memory().write_at(0, &source).unwrap();
        for (at, len) in [(0, 1 << 20), (5, 4096), (100, 1), (4095, 300_001)] {
            path.to_card(at, bench.card().bytes(), near + 3, len).unwrap();
            let there = bytes_of(bench.card().bytes(), near as u64 + 3, len);
            assert!(there == source[at as usize..][..len], "{kind}: {len} from {at}");
        }
        bench.memory().fill(0);
        path.to_host(bench.card().bytes(), near + 3, 17, 300_001).unwrap();
        assert!(bytes_of(bench.memory(), 17, 300_001) == source[4095..304_096], "{kind}");
        let card = bench.card().bytes();
        assert!(path.to_card((1 << 20) - 4, card, near, 5).is_err(), "{kind}");
        assert!(path.to_host(card, card.len() - 4, 0, 5).is_err(), "{kind}");
    }
}

#[test]
fn a_path_is_chosen_of_those_that_work() {
    assert_eq!(measured().len(), PathKind::ALL.len());
    let best = chosen(None).unwrap();
    assert!(measured().iter().any(|path| path.kind == best && path.costs.is_ok()));
    assert_eq!(chosen(Some(PathKind::Udp)), Ok(PathKind::Udp));
    for path in measured().iter().filter(|path| path.costs.is_err()) {
        assert!(matches!(chosen(Some(path.kind)), Err(NoPath::Impossible { .. })), "{path}");
    }
}

#[test]
fn memory_without_a_file_has_fewer_paths() {
    let buffer = Buffer::new(4096).unwrap();
    let application = Application::of_buffer(&buffer);
    for kind in [PathKind::Mapping, PathKind::Memfd] {
        assert!(remora::dma::choose::open(kind, &application).is_err(), "{kind}");
    }
}

#[test]
fn a_path_behind_a_channel_fails_by_its_descriptors() {
    let mut engine = engine();
    let buffer = buffer_of(&pattern(5, 8192));
    let (application, memory) = Application::of_this_process(8192).unwrap();
    memory.write_at(0, &pattern(5, 8192)).unwrap();
    let path: Box<dyn Path> = remora::dma::choose::open(PathKind::Memfd, &application).unwrap();
    let region = engine.grant(Owner::default(), path, true).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let mut c2h = engine.open(ChannelOptions::new(Direction::CardToHost)).unwrap();
    h2c.copy(region.at(1), Address::Card(0), 8191, Flags::empty()).unwrap();
    h2c.submit();
    run(&mut engine);
    assert_eq!(statuses(&mut h2c), [Status::Done]);
    assert!(bytes_of(engine.card().bytes(), 0, 8191) == bytes_of(&buffer, 1, 8191));
    c2h.copy(Address::Card(0), region.at(0), 100, Flags::empty()).unwrap();
    c2h.fill(0, region.at(0), 8, Flags::empty()).unwrap();
    c2h.submit();
    run(&mut engine);
    assert_eq!(statuses(&mut c2h), [Status::Done, Status::Unsupported]);
    assert_eq!(bytes_of(&memory, 0, 100), pattern(5, 101)[1..]);

    // A process that is not there.
    let gone = Application { pid: i32::MAX, ..application };
    for kind in [PathKind::ProcessVm, PathKind::ProcMem] {
        assert!(remora::dma::choose::open(kind, &gone).is_err(), "{kind}");
    }
}

#[test]
fn device_memory_can_be_a_piece_of_card_memory() {
    let mut engine = engine();
    let piece = engine.card().alloc(MemoryKind::Near, 1 << 20).unwrap();
    let at = piece.address();
    let device = DeviceOptions::new().embedded().device_memory(piece).open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc_device_memory(4096, Access::all()).unwrap();
    let mut h2c = engine.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    // What the engine writes to the piece, a READ finds in device memory.
    h2c.fill(u64::from_le_bytes(*b"by DMA!!"), Address::Card(at), 4096, Flags::empty()).unwrap();
    h2c.submit();
    run(&mut engine);
    let there = domain.alloc(4096, Access::all()).unwrap();
    let (one, other) = (QueuePairOptions::new(), QueuePairOptions::new());
    let (one, other) = (domain.create_qp(&one).unwrap(), domain.create_qp(&other).unwrap());
    let params = ConnectionParams::new(device.info().mtu);
    one.connect(other.local(), &params).unwrap();
    other.connect(one.local(), &params).unwrap();
    one.read(there.slice(..64), memory.slice(..64).remote()).wait(TIMEOUT).unwrap();
    assert_eq!(there.slice(..16).to_vec().unwrap(), b"by DMA!!by DMA!!");
    // The piece is the device's until that closes.
    assert!(engine.card().alloc(MemoryKind::Near, 2 << 20).is_err());
    drop((one, other, there, memory, domain, device));
    assert!(engine.card().alloc(MemoryKind::Near, 2 << 20).is_ok());
}
