//! HyperLogLog by threads of the receiving CPU (StRoM's Figure 13a): the one that drives the card
//! takes its share of the messages, the others look at theirs wherever the system puts them.

use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, ensure};
use remora::MemoryRegion;
use remora::offload::kernel::builtin::hyperloglog::Sketch;

use super::agreed::PRECISION;

/// Bytes that are taken of a message at once: they stay in the first cache.
const PIECE: usize = 16 << 10;
/// Threads, at most.
const THREADS_MAX: usize = 32;

/// Where a message lies in a region: its first byte, and its bytes.
type Message = (MemoryRegion, usize, usize);

/// What a thread is told.
enum Ask {
    Look(Message),
    /// Give the sketch away, and begin a new one.
    Report,
}

/// A thread beside the one that drives the card.
struct Worker {
    asks: Sender<Ask>,
    reports: Receiver<Result<Sketch>>,
}

/// The threads, and what the first of them has seen.
pub(super) struct Sketchers {
    workers: Vec<Worker>,
    own: Sketch,
    /// How many take their share.
    threads: usize,
    /// Messages so far, since the last report.
    seen: usize,
}

impl Sketchers {
    /// Starts threads, one for each core that this process may use. They sleep until they are
    /// asked, and stay where this thread may run now: to be called before it is pinned.
    pub(super) fn start() -> Result<Sketchers> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (1..cores.min(THREADS_MAX)).map(|_| Worker::start());
        let workers = workers.collect::<Result<_>>()?;
        Ok(Sketchers { workers, own: Sketch::new(PRECISION), threads: 1, seen: 0 })
    }

    /// How many there are, the one that drives the card included.
    pub(super) fn len(&self) -> usize {
        1 + self.workers.len()
    }

    /// From now on so many take their share.
    pub(super) fn use_threads(&mut self, threads: u64) -> Result<()> {
        let fits = usize::try_from(threads).ok().filter(|n| (1..=self.len()).contains(n));
        self.threads = fits.with_context(|| format!("there are no {threads} threads"))?;
        Ok(())
    }

    /// Messages since the last report.
    pub(super) fn seen(&self) -> u64 {
        self.seen as u64
    }

    /// Sees to it that a message is looked at: the first in its turn by this thread.
    pub(super) fn look_at(&mut self, region: &MemoryRegion, at: usize, len: usize) -> Result<()> {
        let turn = self.seen % self.threads;
        self.seen += 1;
        match turn.checked_sub(1) {
            None => add(&mut self.own, &(region.clone(), at, len)),
            Some(other) => self.workers[other].ask(Ask::Look((region.clone(), at, len))),
        }
    }

    /// The sketch of all messages, when all have been looked at; and begins anew.
    pub(super) fn report(&mut self) -> Result<Sketch> {
        self.seen = 0;
        let mut all = core::mem::replace(&mut self.own, Sketch::new(PRECISION));
        let used = &self.workers[..self.threads - 1];
        used.iter().try_for_each(|worker| worker.ask(Ask::Report))?;
        for worker in used {
            let theirs = worker.reports.recv().context("a thread has ended")??;
            ensure!(all.merge(theirs.registers(), theirs.count()), "sketches that differ");
        }
        Ok(all)
    }
}

impl Worker {
    fn start() -> Result<Worker> {
        let (asks, asked) = mpsc::channel();
        let (report, reports) = mpsc::channel();
        let work = move || {
            let (mut sketch, mut result) = (Sketch::new(PRECISION), Ok(()));
            while let Ok(ask) = asked.recv() {
                match ask {
                    Ask::Look(message) => result = result.and_then(|()| add(&mut sketch, &message)),
                    Ask::Report => {
                        let seen = core::mem::replace(&mut sketch, Sketch::new(PRECISION));
                        let seen = core::mem::replace(&mut result, Ok(())).map(|()| seen);
                        if report.send(seen).is_err() {
                            return;
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("sketcher".into());
        thread.spawn(work).context("cannot start a thread")?;
        Ok(Worker { asks, reports })
    }

    fn ask(&self, ask: Ask) -> Result<()> {
        self.asks.send(ask).ok().context("a thread has ended")
    }
}

/// Adds the values of a message that has been written.
fn add(sketch: &mut Sketch, (region, at, len): &Message) -> Result<()> {
    let mut buffer = [0; PIECE];
    let (mut at, end) = (*at, at + len);
    while at < end {
        let piece = &mut buffer[..(end - at).min(PIECE)];
        region.read_at(at, piece)?;
        sketch.add_all(piece);
        at += piece.len();
    }
    Ok(())
}
