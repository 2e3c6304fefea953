//! How soon another node serves when the primary is killed, and whether anything is lost.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::row::{Row, Spread, Target};
use super::Extent;
use super::bed::{Group, SHORT, front};
use super::load::{Ask, Load, Work};
use crate::draws::Draws;
use crate::failure::told;

/// The lease, and by how much longer the next acknowledged write may take, in ms.
const LEASE_MS: f64 = 500.0;
const MORE_MS: f64 = 100.0;
/// How long no write may be acknowledged at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two rounds of questions who serves.
const LOOK: Duration = Duration::from_millis(1);
/// Writes before the primary is killed, at least, and up to as many more.
const WRITES: u64 = 200;

pub(super) const ROWS: [&str; 2] = ["failover_ms", "lost"];

/// A client that writes one key after another, each until it is acknowledged.
struct Writer {
    fronts: Vec<SocketAddr>,
    load: Option<Load>,
    /// Which of the fronts took the last write.
    last: usize,
    written: u64,
}

impl Writer {
    fn work() -> Work {
        Work { keys: u64::MAX, value: 64 }
    }

    /// Writes the next key; a node that does not take it is not asked again before the others were.
    fn write(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.ask(Ask::Put, self.written).is_err() {
            ensure!(start.elapsed() < PATIENCE, "no node takes a write");
        }
        self.written += 1;
        Ok(())
    }

    fn ask(&mut self, ask: Ask, number: u64) -> Result<()> {
        let mut load = match self.load.take() {
            Some(load) => load,
            None => Load::connect(self.fronts[self.last], 1).inspect_err(|_| self.turn())?,
        };
        load.latency(ask, Writer::work(), number, 1).inspect_err(|_| self.turn())?;
        self.load = Some(load);
        Ok(())
    }

    /// Goes on to the next node.
    fn turn(&mut self) {
        self.last = (self.last + 1) % self.fronts.len();
        if self.last == 0 {
            std::thread::sleep(LOOK);
        }
    }

    /// How many of the acknowledged writes are not there.
    fn lost(&mut self) -> Result<u64> {
        let mut lost = 0;
        for number in 0..self.written {
            let start = Instant::now();
            loop {
                match self.ask(Ask::Get, number) {
                    Ok(()) => break,
                    // The answer to a key that is not there.
                    Err(error) if error.to_string().contains("$-1") => {
                        lost += 1;
                        break;
                    }
                    Err(error) => {
                        let in_time = start.elapsed() < PATIENCE;
                        ensure!(in_time, "nobody answers a read: {}", told(&error));
                    }
                }
            }
        }
        Ok(lost)
    }
}

/// Kills primaries of a group of three, each in the middle of writes, and starts a node in the
/// place of each.
pub(super) fn rows(extent: Extent) -> Result<[Row; 2]> {
    let mut group = Group::start(3, SHORT)?;
    let mut draws = Draws::new(11);
    let mut writer = Writer { fronts: Vec::new(), load: None, last: 0, written: 0 };
    let mut taken = Vec::with_capacity(extent.kills);
    for _ in 0..extent.kills {
        writer.fronts = group.nodes.iter().map(front).collect::<Result<_>>()?;
        (writer.last, writer.load) = (group.primary()?, None);
        for _ in 0..WRITES + draws.number() % WRITES {
            writer.write()?;
        }
        // The one that took the last write.
        let mut killed = group.nodes.remove(writer.last);
        let start = Instant::now();
        killed.process.kill()?;
        writer.write().context("after the primary was killed")?;
        taken.push(start.elapsed().as_secs_f64() * 1e3);
        group.add_node()?;
        // A node that was killed is lost when etcd has not heard of it for some seconds.
        let added = Instant::now();
        while !group.is_whole()? {
            ensure!(added.elapsed() < PATIENCE, "no node takes the place of one that was killed");
            writer.write()?;
        }
    }
    let lost = writer.lost()?;
    println!("{} writes were acknowledged while primaries were killed", writer.written);
    let within = Target::Within(LEASE_MS + MORE_MS);
    let failover = Row::beside(ROWS[0], "ms", Spread::of(taken), ("the lease", LEASE_MS), within);
    let lost = Spread::of(vec![lost as f64]);
    let lost = Row::beside(ROWS[1], "writes", lost, ("–", f64::NAN), Target::Within(0.0));
    Ok([failover, lost])
}
