//! A DMA engine in one process that serves an application in another.
//!
//! The other process is this test's own file, started again: the test whose name it is given acts
//! as the other side if the environment says so, and does nothing otherwise.

#[path = "support/killed.rs"]
mod killed;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, thread};

use killed::Killed;
use remora::dma::choose::open;
use remora::dma::path::{Application, Mapping, PathKind};
use remora::dma::*;
use remora::memory::{Buffer, memfd};

/// Tells the other process what to open: the parent's descriptors, by number.
const VARIABLE: &str = "REMORA_TEST_DMA";
const TIMEOUT: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 20;

/// The other process, which ends with its owner.
fn other(test: &str, told: &str) -> Killed {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(VARIABLE, told);
    Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// A descriptor of the parent, opened anew.
fn of_parent(number: &str) -> Arc<OwnedFd> {
    let path = format!("/proc/{}/fd/{number}", std::os::unix::process::parent_id());
    let file = File::options().read(true).write(true).open(path).unwrap();
    Arc::new(file.into())
}

fn told() -> Option<Vec<String>> {
    Some(env::var(VARIABLE).ok()?.split(' ').map(Into::into).collect())
}

/// The child: the engine of a card, which serves the parent's ring over the parent's memory.
#[test]
fn engine_of_the_other_process() {
    let Some(told) = told() else { return };
    let card = CardMemory::new(Sizes { near: LEN as u64, far: LEN as u64 }).unwrap();
    let mut engine = Engine::new(card);
    let host = Buffer::map(of_parent(&told[0]).as_fd(), 0, LEN).unwrap();
    engine.grant(Owner::default(), Box::new(Mapping::own(Arc::new(host))), true).unwrap();
    for (place, direction) in [(1, Direction::HostToCard), (2, Direction::CardToHost)] {
        let ring = Ring::map(of_parent(&told[place]), 16).unwrap();
        engine.serve(Owner::default(), ring, ChannelOptions::new(direction), None).unwrap();
    }
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        if !engine.step() {
            thread::yield_now();
        }
    }
}

fn wait_for(channel: &mut Channel) -> Outcome {
    let until = Instant::now() + TIMEOUT;
    let mut outcome = [Outcome { status: Status::Fault, bytes: 0, end_of_packet: false }];
    while channel.completed_status(&mut outcome).0 == 0 {
        assert!(Instant::now() < until, "no completion came from the other process");
        thread::yield_now();
    }
    outcome[0]
}

#[test]
fn an_engine_in_another_process_serves_a_ring() {
    if told().is_some() {
        return;
    }
    let file = memfd::sealed("remora-test", LEN as u64).unwrap();
    let host = Buffer::map(file.as_fd(), 0, LEN).unwrap();
    let rings = [Ring::new(16).unwrap(), Ring::new(16).unwrap()];
    let numbers = [file.as_raw_fd(), rings[0].as_fd().as_raw_fd(), rings[1].as_fd().as_raw_fd()];
    let mut other = other("engine_of_the_other_process", &numbers.map(|n| n.to_string()).join(" "));
    let [to, from] = rings;
    let mut h2c = Channel::new(to, ChannelOptions::new(Direction::HostToCard), None, None);
    let mut c2h = Channel::new(from, ChannelOptions::new(Direction::CardToHost), None, None);
    let region = RegionId(0);
    for round in 0..100u8 {
        let bytes: Vec<u8> = (0..5000).map(|i| (i % 251) as u8 ^ round).collect();
        host.write_at(7, &bytes).unwrap();
        h2c.copy(region.at(7), Address::Card(64), 5000, Flags::empty()).unwrap();
        h2c.submit();
        assert_eq!(wait_for(&mut h2c).status, Status::Done);
        c2h.copy(Address::Card(64), region.at(100_000), 5000, Flags::empty()).unwrap();
        c2h.submit();
        assert_eq!(wait_for(&mut c2h).bytes, 5000);
        let mut back = vec![0; 5000];
        host.read_at(100_000, &mut back).unwrap();
        assert!(back == bytes, "round {round}");
    }
    // The other process judges what this one writes.
    h2c.ring().bytes().write_at(512, &[0xee; 16 * 32]).unwrap();
    h2c.copy(RegionId(9).at(0), Address::Card(0), 8, Flags::empty()).unwrap();
    h2c.submit();
    assert_eq!(wait_for(&mut h2c).status, Status::OutOfRange);
    c2h.ring().bytes().store_u64(0, u64::MAX).unwrap();
    let until = Instant::now() + TIMEOUT;
    while c2h.halted() != Some(Halt::BadIndex) {
        assert!(Instant::now() < until, "the other process goes on with an index that cannot be");
        thread::yield_now();
    }
    // Its death leaves the ring and the memory as they are.
    other.kill().unwrap();
    other.wait().unwrap();
    h2c.copy(region.at(0), Address::Card(0), 8, Flags::empty()).unwrap();
    h2c.submit();
    assert_eq!(h2c.completed(1).count, 0);
}

/// The child: an application with memory of its own, which it tells the parent of by a page.
#[test]
fn application_of_the_other_process() {
    let Some(told) = told() else { return };
    let page = Buffer::map(of_parent(&told[0]).as_fd(), 0, 4096).unwrap();
    let (application, memory) = Application::of_this_process(LEN).unwrap();
    memory.fill(7);
    memory.write_at(1000, b"of the other process").unwrap();
    page.store_u64(8, application.addr).unwrap();
    page.store_u64(16, application.file.as_ref().unwrap().as_raw_fd() as u64).unwrap();
    page.store_u64(0, 1).unwrap();
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        let mut word = [0; 8];
        memory.read_at(64, &mut word).unwrap();
        page.store_u64(24, u64::from_ne_bytes(word)).unwrap();
        thread::yield_now();
    }
}

#[test]
fn the_memory_of_another_process_is_reached_by_each_path() {
    if told().is_some() {
        return;
    }
    let file = memfd::sealed("remora-test", 4096).unwrap();
    let page = Buffer::map(file.as_fd(), 0, 4096).unwrap();
    let mut other = other("application_of_the_other_process", &file.as_raw_fd().to_string());
    let until = Instant::now() + TIMEOUT;
    while page.load_u64(0).unwrap() == 0 {
        assert!(Instant::now() < until, "the other process never told of its memory");
        thread::yield_now();
    }
    let pid = other.id() as i32;
    let number = page.load_u64(16).unwrap();
    let path = format!("/proc/{pid}/fd/{number}");
    let file = File::options().read(true).write(true).open(path).unwrap();
    let addr = page.load_u64(8).unwrap();
    let file = Some(Arc::new(OwnedFd::from(file)));
    let application = Application { pid, addr, len: LEN as u64, file };
    let card = Buffer::new(LEN).unwrap();
    let mut reached = Vec::new();
    for (number, kind) in PathKind::ALL.into_iter().enumerate() {
        let Ok(mut path) = open(kind, &application) else { continue };
        card.fill(0);
        path.to_card(1000, &card, 0, 20).unwrap();
        let mut bytes = [0; 20];
        card.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"of the other process", "{kind}");
        card.store_u64(64, number as u64 + 100).unwrap();
        path.to_host(&card, 64, 64, 8).unwrap();
        while page.load_u64(24).unwrap() != number as u64 + 100 {
            assert!(Instant::now() < until, "{kind}: the other process never saw it");
            thread::yield_now();
        }
        reached.push((kind, path));
    }
    assert!(reached.iter().any(|(kind, _)| *kind == PathKind::Mapping));
    other.kill().unwrap();
    other.wait().unwrap();
    for (kind, path) in &mut reached {
        // What needs the process fails by an error; what is a file outlives it.
        let lives = path.to_card(1000, &card, 0, 20).is_ok();
        assert_eq!(lives, matches!(kind, PathKind::Mapping | PathKind::Memfd), "{kind}");
    }
}
