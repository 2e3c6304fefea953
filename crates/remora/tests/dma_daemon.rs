//! The DMA engine of a daemon: channels between memory of its clients and the card's.

mod daemon;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use daemon::Daemon;
use daemon::until::until;
use remora::daemon::{DmaChannel, DmaClient, DmaError};
use remora::dma::path::{Application, Path, PathKind};
use remora::dma::*;
use remora::memory::Buffer;
use remora::message::{
    Answer, ClientRequest, DmaRequest, Hello, Loan, MessageSocket, decode, encode, greeting,
};

/// How long anything may take. Only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;

fn client(daemon: &Daemon) -> DmaClient {
    DmaClient::connect(Some(&daemon.socket)).unwrap()
}

/// The next outcome of a channel.
fn outcome(channel: &mut Channel) -> Outcome {
    let mut outcome = [Outcome { status: Status::Fault, bytes: 0, end_of_packet: false }];
    until("a completion", || channel.completed_status(&mut outcome).0 == 1);
    outcome[0]
}

fn copied(channel: &mut Channel, src: Address, dst: Address, len: u32) -> Status {
    channel.copy(src, dst, len, Flags::empty()).unwrap();
    channel.submit();
    outcome(channel).status
}

fn both(client: &DmaClient) -> (DmaChannel, DmaChannel) {
    let open = |direction| client.open(ChannelOptions::new(direction)).unwrap();
    (open(Direction::HostToCard), open(Direction::CardToHost))
}

/// Memory of this process with a pattern.
fn memory(seed: u8) -> (Application, Arc<Buffer>) {
    let (application, memory) = Application::of_this_process(LEN).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8 ^ seed).collect();
    memory.write_at(0, &bytes).unwrap();
    (application, memory)
}

fn bytes(buffer: &Buffer, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.read_at(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_to_the_card_and_another_program_fetches_them() {
    let daemon = Daemon::start();
    let (application, memory) = memory(3);
    let sizes = {
        let first = client(&daemon);
        let region = first.grant(PathKind::Mapping, &application, false).unwrap();
        let (mut h2c, mut c2h) = both(&first);
        assert_eq!(copied(&mut h2c, region.at(7), Address::Card(0x1003), 500_000), Status::Done);
        assert_eq!(copied(&mut c2h, Address::Card(0x1003), region.at(0), 8), Status::ReadOnly);
        first.sizes()
    };
    // The first has gone; the card's memory is as it was.
    let second = client(&daemon);
    assert_eq!(second.sizes(), sizes);
    assert_eq!(bytes(second.memory(), 0x1003, 500_000), bytes(&memory, 7, 500_000));
    let (application, mine) = self::memory(0);
    let region = second.grant(PathKind::Mapping, &application, true).unwrap();
    let (_, mut c2h) = both(&second);
    assert_eq!(copied(&mut c2h, Address::Card(0x1003), region.at(0), 500_000), Status::Done);
    assert_eq!(bytes(&mine, 0, 500_000), bytes(&memory, 7, 500_000));
}

#[test]
fn a_sleeper_is_woken_and_an_idle_engine_too() {
    let daemon = Daemon::start();
    let client = client(&daemon);
    let mut channel = client.open(ChannelOptions::new(Direction::HostToCard).interrupt()).unwrap();
    for round in 0..20 {
        // Longer than the engine's patience now and then, so that it sleeps.
        thread::sleep(Duration::from_millis(round % 3));
        channel.fill(round, Address::Card(8 * round), 8, Flags::empty()).unwrap();
        channel.submit();
        channel.wait(PATIENCE).unwrap();
        assert_eq!(channel.completed(1).count, 1);
        assert_eq!(client.memory().load_u64(8 * round as usize).unwrap(), round);
    }
}

#[test]
fn a_stream_leads_from_one_program_to_another() {
    let daemon = Daemon::start();
    let (writer, reader) = (client(&daemon), client(&daemon));
    let (from, bytes_of_writer) = memory(1);
    let (to, bytes_of_reader) = memory(2);
    let put = writer.grant(PathKind::Mapping, &from, false).unwrap();
    let take = reader.grant(PathKind::Mapping, &to, true).unwrap();
    let stream = |direction| ChannelOptions::new(direction).streaming(5);
    let mut h2c = writer.open(stream(Direction::HostToCard)).unwrap();
    let mut c2h = reader.open(stream(Direction::CardToHost)).unwrap();
    c2h.copy(Address::Card(0), take.at(0), 5000, Flags::empty()).unwrap();
    c2h.submit();
    assert_eq!(copied(&mut h2c, put.at(100), Address::Card(0), 3000), Status::Done);
    let came = outcome(&mut c2h);
    assert_eq!((came.status, came.bytes, came.end_of_packet), (Status::Done, 3000, true));
    assert_eq!(bytes(&bytes_of_reader, 0, 3000), bytes(&bytes_of_writer, 100, 3000));
}

#[test]
fn half_a_packet_goes_with_the_program_that_ends() {
    let daemon = Daemon::start();
    let ((from, bytes_of_writer), (to, bytes_of_reader)) = (memory(1), memory(2));
    let stream = |direction| ChannelOptions::new(direction).streaming(5);
    let reader = client(&daemon);
    let take = reader.grant(PathKind::Mapping, &to, true).unwrap();
    let mut c2h = reader.open(stream(Direction::CardToHost)).unwrap();
    let writer = |len: u32, flags| {
        let client = client(&daemon);
        let put = client.grant(PathKind::Mapping, &from, false).unwrap();
        let mut h2c = client.open(stream(Direction::HostToCard)).unwrap();
        h2c.copy(put.at(0), Address::Card(0), len, flags).unwrap();
        h2c.submit();
        assert_eq!(outcome(&mut h2c).status, Status::Done);
        (client, h2c)
    };
    // It waits for the rest, and an engine that sleeps is woken to say that there is none.
    c2h.copy(Address::Card(0), take.at(0), 5000, Flags::empty()).unwrap();
    c2h.submit();
    let half = writer(3000, Flags::MORE);
    let source = bytes(&bytes_of_writer, 0, 3000);
    until("half is taken", || bytes(&bytes_of_reader, 0, 3000) == source);
    thread::sleep(Duration::from_millis(2));
    drop(half);
    let came = outcome(&mut c2h);
    assert_eq!((came.status, came.end_of_packet), (Status::Cut, false));
    drop(writer(2000, Flags::MORE));
    let _second = writer(1000, Flags::empty());
    assert_eq!(copied(&mut c2h, Address::Card(0), take.at(0), 1000), Status::Done);
    assert_eq!(bytes(&bytes_of_reader, 0, 1000), source[..1000]);
}

#[test]
fn memory_is_reached_by_each_path_that_waits_for_nobody() {
    let daemon = Daemon::start();
    let client = client(&daemon);
    let (application, memory) = memory(9);
    for (number, kind) in PathKind::ALL.into_iter().enumerate() {
        let path = client.through(kind, &application);
        if matches!(kind, PathKind::Pipe | PathKind::Udp) {
            assert!(matches!(path, Err(DmaError::Path(_))), "{kind}");
            continue;
        }
        let mut path = path.unwrap();
        assert_eq!(path.kind(), kind);
        let at = 4 * LEN * number;
        path.to_card(11, client.memory(), at, 300_000).unwrap();
        assert_eq!(bytes(client.memory(), at, 300_000), bytes(&memory, 11, 300_000), "{kind}");
        client.memory().store_u64(at, 77 + number as u64).unwrap();
        path.to_host(client.memory(), at, 800_000, 8).unwrap();
        assert_eq!(memory.load_u64(800_000).unwrap(), 77 + number as u64, "{kind}");
        assert!(path.to_card(LEN as u64 - 7, client.memory(), at, 8).is_err(), "{kind}: beyond");
    }
    let private = Buffer::new(4096).unwrap();
    let private = Application::of_buffer(&private);
    assert!(matches!(client.grant(PathKind::Mapping, &private, true), Err(DmaError::NoFile)));
}

#[test]
fn a_client_reaches_its_own_regions_only() {
    let daemon = Daemon::start();
    let (honest, thief) = (client(&daemon), client(&daemon));
    let (application, memory) = memory(4);
    let region = honest.grant(PathKind::Mapping, &application, true).unwrap();
    let (mut h2c, mut c2h) = both(&thief);
    assert_eq!(copied(&mut h2c, region.at(0), Address::Card(0), 8), Status::OutOfRange);
    assert_eq!(copied(&mut c2h, Address::Card(0), region.at(0), 8), Status::OutOfRange);
    assert!(thief.revoke(region).is_err());
    let (address, len) = honest.alloc(MemoryKind::Near, 5000).unwrap();
    assert_eq!(len, 8192);
    assert!(thief.free(address).is_err());
    // The other's piece is given to nobody else, until its holder gives it back or ends.
    let rest = thief.sizes().near - len;
    thief.alloc(MemoryKind::Near, rest).unwrap();
    assert!(thief.alloc(MemoryKind::Near, 1).is_err());
    drop(honest);
    until("the other's piece is free", || thief.alloc(MemoryKind::Near, 1).is_ok());
    assert_eq!(memory.load_u64(0).unwrap().to_le_bytes(), [4, 5, 6, 7, 0, 1, 2, 3]);
}

#[test]
fn what_a_client_has_ends_with_it() {
    let daemon = Daemon::start();
    let watcher = client(&daemon);
    assert_eq!(watcher.status().unwrap().channels, []);
    let (application, _memory) = memory(0);
    {
        let other = client(&daemon);
        other.grant(PathKind::Mapping, &application, true).unwrap();
        let (mut h2c, _c2h) = both(&other);
        h2c.fill(1, Address::Card(0), 8, Flags::empty()).unwrap();
        h2c.submit();
        assert_eq!(outcome(&mut h2c).status, Status::Done);
        let status = watcher.status().unwrap();
        let seen = status.channels.iter().map(|row| (row.to_host, row.completed));
        assert_eq!(seen.collect::<Vec<_>>(), [(false, 1), (true, 0)]);
        assert_eq!(status.channels[0].pid, std::process::id() as i32);
    }
    until("its channels are closed", || watcher.status().unwrap().channels.is_empty());
    // A channel closes by itself, too, and leaves room for others.
    for _ in 0..100 {
        drop(watcher.open(ChannelOptions::new(Direction::HostToCard)).unwrap());
    }
    let many: Vec<_> =
        (0..64).map(|_| watcher.open(ChannelOptions::new(Direction::HostToCard))).collect();
    assert!(many.iter().all(Result::is_ok));
    let refused = watcher.open(ChannelOptions::new(Direction::HostToCard)).unwrap_err();
    assert!(refused.to_string().contains("64 channels"), "{refused}");
}

#[test]
fn a_ring_that_cannot_be_ends_and_others_go_on() {
    let daemon = Daemon::start();
    let (hostile, honest) = (client(&daemon), client(&daemon));
    let broken = hostile.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    let (mut good, _) = both(&honest);
    broken.ring().bytes().store_u64(0, u64::MAX).unwrap();
    // The engine may sleep, and this writer rings no doorbell.
    good.fill(5, Address::Card(64), 8, Flags::empty()).unwrap();
    good.submit();
    assert_eq!(outcome(&mut good).status, Status::Done);
    until("the broken ring is halted", || {
        good.fill(5, Address::Card(64), 8, Flags::empty()).unwrap();
        good.submit();
        outcome(&mut good).status == Status::Done && broken.halted() == Some(Halt::BadIndex)
    });
    assert!(hostile.open(ChannelOptions::new(Direction::HostToCard).depth(3)).is_err());
    assert!(hostile.open(ChannelOptions::new(Direction::HostToCard).streaming(64)).is_err());
}

#[test]
fn channels_learn_that_the_daemon_has_ended() {
    let mut daemon = Daemon::start();
    let client = client(&daemon);
    let mut sleeper = client.open(ChannelOptions::new(Direction::HostToCard).interrupt()).unwrap();
    let (mut polled, _) = both(&client);
    daemon.end();
    until("the channel is halted", || polled.halted().is_some());
    let error = polled.fill(0, Address::Card(0), 8, Flags::empty()).unwrap_err();
    assert!(matches!(error, EnqueueError::Halted(Halt::Stopped)), "{error}");
    assert!(matches!(sleeper.wait(PATIENCE), Err(InterruptError::Halted(Halt::Stopped))));
    assert!(sleeper.fill(0, Address::Card(0), 8, Flags::empty()).is_err());
    assert!(client.status().is_err());
    // The card's memory stays mapped.
    client.memory().store_u64(0, 1).unwrap();
}

/// A client that speaks the protocol by hand.
struct Raw(MessageSocket);

impl Raw {
    fn connect(daemon: &Daemon) -> Raw {
        let raw = Raw(MessageSocket::connect(&daemon.socket).unwrap());
        let hello = Hello { observer: true, ..Hello::default() };
        assert_eq!(raw.exchange(&greeting(&hello), &[]), "Done");
        raw
    }

    /// Sends a message; returns the answer as text. What comes with it is closed.
    fn exchange(&self, message: &[u8], with: &[BorrowedFd<'_>]) -> String {
        self.0.send(message, with).unwrap();
        assert!(self.0.wait(Some(PATIENCE)).unwrap(), "no answer");
        let mut bytes = Vec::new();
        self.0.receive(&mut bytes).unwrap().expect("the daemon has hung up");
        format!("{:?}", decode::<Answer<'_>>(&bytes).unwrap())
    }
}

/// Descriptors of every wrong kind, and some of the right one.
fn descriptors() -> Vec<OwnedFd> {
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::empty()).unwrap();
    let sealed = remora::memory::memfd::sealed("sealed", 4096).unwrap();
    let [directory, null, zero, own] = ["/", "/dev/null", "/dev/zero", "/proc/self/mem"].map(open);
    vec![
        directory,
        null,
        zero,
        own,
        reader.into(),
        writer.into(),
        one.into(),
        other.into(),
        unsealed,
        sealed,
    ]
}

#[test]
fn requests_of_every_wrong_kind_are_answered_and_leave_nothing() {
    let daemon = Daemon::start();
    let honest = client(&daemon);
    let raw = Raw::connect(&daemon);
    let too_soon = DmaRequest::Alloc { near: true, len: 1 };
    assert!(raw.exchange(&encode(&ClientRequest::Dma(too_soon)), &[]).contains("was not opened"));
    assert!(raw.exchange(&encode(&ClientRequest::Dma(DmaRequest::Open)), &[]).contains("Card"));
    let files = descriptors();
    let mut draw = 1_u64;
    let mut next = |below: u64| {
        draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (draw >> 33) % below
    };
    let lengths = [0, 1, 4096, 4097, 1 << 30, 1 << 47, u64::MAX];
    let loans = [Loan::Sealed, Loan::File, Loan::Process, Loan::ProcessFile];
    let (mut refused, mut done) = (0, 0);
    for _ in 0..3000 {
        let len = lengths[next(7) as usize];
        let request = match next(7) {
            0 => DmaRequest::Grant {
                loan: loans[next(4) as usize],
                addr: lengths[next(7) as usize],
                len,
                writable: next(2) == 0,
            },
            1 => DmaRequest::Revoke(next(70_000) as u16),
            2 => DmaRequest::Channel {
                to_host: next(2) == 0,
                stream: (next(2) == 0).then(|| next(70) as u16),
                interrupt: next(2) == 0,
                depth: [0, 1, 2, 3, 64, 1 << 15, 1 << 16, u32::MAX][next(8) as usize],
            },
            3 => DmaRequest::Close(next(80) as u32),
            4 => DmaRequest::Alloc { near: next(2) == 0, len },
            5 => DmaRequest::Free(next(3) * 4096),
            _ => DmaRequest::List(next(100) as u32),
        };
        let count = [0, 0, 1, 1, 1, 3][next(6) as usize];
        let with: Vec<_> = (0..count).map(|_| files[next(10) as usize].as_fd()).collect();
        let answer = raw.exchange(&encode(&ClientRequest::Dma(request)), &with);
        match answer.split('(').next() {
            Some("Refused") => refused += 1,
            Some("Dma") => done += 1,
            _ => panic!("{answer}"),
        }
    }
    assert!(refused > 500 && done > 500, "{refused} refused, {done} done");
    drop(raw);
    until("its channels are closed", || honest.status().unwrap().channels.is_empty());
    let near = honest.sizes().near;
    until("its pieces are free", || honest.alloc(MemoryKind::Near, near).is_ok());
    let (mut h2c, _) = both(&honest);
    h2c.fill(3, Address::Card(0), 8, Flags::empty()).unwrap();
    h2c.submit();
    assert_eq!(outcome(&mut h2c).status, Status::Done);
}
