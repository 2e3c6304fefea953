//! HyperLogLog by threads of the receiving CPU (StRoM's Figure 13a): the thread that drives the
//! card takes its share of the messages; the others count theirs on cores that the system chooses.

use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, ensure};
use remora::MemoryRegion;
use remora::offload::kernel::builtin::hyperloglog::Sketch;

use super::agreed::PRECISION;

/// Bytes of a message taken at once, so that they stay in the first-level cache.
const PIECE: usize = 16 << 10;
/// The most threads.
const THREADS_MAX: usize = 32;

/// A message: its region, its first byte in the region, and its length.
type Message = (MemoryRegion, usize, usize);

/// A request to a thread.
enum Ask {
    Look(Message),
    /// Hand over the sketch, and begin a new one.
    Report,
}

/// A thread beside the one that drives the card.
struct Worker {
    asks: Sender<Ask>,
    reports: Receiver<Result<Sketch>>,
}

/// The threads, and the sketch of the first of them.
pub(super) struct Sketchers {
    workers: Vec<Worker>,
    own: Sketch,
    /// The number of threads that take a share.
    threads: usize,
    /// The number of messages since the last report.
    seen: usize,
}

impl Sketchers {
    /// Starts threads, one for each core that this process may use. They sleep until they are
    /// asked, and inherit the cores of this thread: call this before it is pinned.
    pub(super) fn start() -> Result<Sketchers> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (1..cores.min(THREADS_MAX)).map(|_| Worker::start());
        let workers = workers.collect::<Result<_>>()?;
        Ok(Sketchers { workers, own: Sketch::new(PRECISION), threads: 1, seen: 0 })
    }

    /// The number of threads, with the one that drives the card.
    pub(super) fn len(&self) -> usize {
        1 + self.workers.len()
    }

    /// Lets this many threads take a share from now on.
    pub(super) fn use_threads(&mut self, threads: u64) -> Result<()> {
        let fits = usize::try_from(threads).ok().filter(|n| (1..=self.len()).contains(n));
        self.threads = fits.with_context(|| format!("there are no {threads} threads"))?;
        Ok(())
    }

    /// Messages since the last report.
    pub(super) fn seen(&self) -> u64 {
        self.seen as u64
    }

    /// Has a message counted: the threads take turns, this one first.
    pub(super) fn look_at(&mut self, region: &MemoryRegion, at: usize, len: usize) -> Result<()> {
        let turn = self.seen % self.threads;
        self.seen += 1;
        match turn.checked_sub(1) {
            None => add(&mut self.own, &(region.clone(), at, len)),
            Some(other) => self.workers[other].ask(Ask::Look((region.clone(), at, len))),
        }
    }

    /// Waits until all messages are counted, returns their sketch, and begins a new one.
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
        crate::thread::spawn("sketcher", work)?;
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
