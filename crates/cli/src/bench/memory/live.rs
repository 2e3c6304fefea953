//! The paths of this machine, live: by size, beside each other, beside the `memcpy` of one core,
//! and beside UCX's transports.
//!
//! For paths, this process is the card's, pinned to the first core. The application is another
//! process, with its memory; where a path needs a thread there (the engine's, or a courier), that
//! is on the second core. For channels, this process is the application, and the card is a daemon's
//! on the second core. All that is copied begins at a page on both sides: on some processors the
//! library's `memcpy` takes twenty times as long for other distances, and ratios would be those of
//! luck.

mod attached;
pub(in crate::bench) mod ucx;

use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::dma::choose::open;
use remora::dma::path::{Application, Path, PathKind, Through, courier};
use remora::dma::{
    Address, CardMemory, Channel, ChannelOptions, Direction, Engine, Flags, MemoryKind, Service,
    Sizes,
};
use remora::memory::{Buffer, PageAligned};

use super::super::figure::{Figure, Point, Style};
use super::super::report::Options;
use super::super::row::{Case, Row, Run, Target, measure};
use crate::child::{self, Helper};
use crate::failure::told;
use crate::{dma, output};
use attached::Attached;
use ucx::{Transport, What};

/// What a user chooses about live measurements.
#[derive(Debug, Default, Args)]
pub(in crate::bench) struct Live {}

/// Sizes of copies in bytes.
const SIZES: [usize; 7] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20, LARGEST];
const QUICK: [usize; 3] = [8, 4 << 10, 1 << 20];
const LARGEST: usize = 16 << 20;
/// How long one side of a point or row is measured.
const WINDOW: Duration = Duration::from_millis(10);
/// A run of a row is the best of so many short windows, on either side: other processes of the
/// machine take whole milliseconds from one of them.
const WINDOWS: usize = 8;
const SHORT: Duration = Duration::from_millis(1);
/// The fewest times of which the middle one is taken.
const TIMES: usize = 5;
/// Descriptors of a channel's ring, and of one doorbell.
const DEPTH: u32 = 64;
const BATCH: usize = 16;
/// The longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);

impl Live {
    /// The rows whose names contain `options.only`.
    pub(in crate::bench) fn rows(&self, options: &Options) -> Result<Vec<Row>> {
        const NAMES: [&str; 4] =
            ["dma_h2c_4KiB", "dma_c2h_1MiB", "dma_h2c_4KiB_one_core", "dma_c2h_1MiB_one_core"];
        let is_wanted = |name: &str| options.wants(name);
        if !NAMES.into_iter().any(is_wanted) {
            return Ok(Vec::new());
        }
        let runs = if options.quick { 1 } else { 15 };
        let wanted = NAMES.into_iter().filter(|name| is_wanted(name));
        let (alone, attached): (Vec<_>, Vec<_>) =
            wanted.partition(|name| name.ends_with("one_core"));
        let mut rows = Vec::new();
        if !attached.is_empty() {
            let daemon = Attached::start(1 << 20)?;
            child::pin(0)?;
            for name in attached {
                let (direction, len) = copies_of(name);
                rows.push(row(name, Target::AtLeast(0.7), daemon.stream(direction, len)?, runs)?);
            }
        }
        // The daemon has gone: two engines with threads would take turns on the second core.
        if !alone.is_empty() {
            let sides = Sides::new()?;
            for name in alone {
                let (direction, len) = copies_of(name);
                rows.push(row(name, Target::Any, sides.stream(direction, len, true)?, runs)?);
            }
        }
        Ok(rows)
    }

    /// The figures whose names contain `options.only`.
    pub(super) fn figures(&self, options: &Options) -> Result<Vec<Figure>> {
        let ids = ["paths_time", "paths_rate", "ucx_time", "ucx_rate"];
        let wanted: Vec<_> = ids.into_iter().filter(|id| options.wants(id)).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let sides = Sides::new()?;
        let has_ucx = ucx::is_there();
        if !has_ucx {
            println!("ucx_perftest is not installed (Debian: ucx-utils): its ways are left out");
        }
        wanted
            .into_iter()
            .filter(|id| has_ucx || !id.starts_with("ucx"))
            .map(|id| figure(id, &sides, options).with_context(|| format!("cannot measure {id}")))
            .collect()
    }
}

/// What a row's name says: the direction of its copies, and their bytes.
fn copies_of(name: &str) -> (Direction, usize) {
    let to_card = name.contains("h2c");
    let direction = if to_card { Direction::HostToCard } else { Direction::CardToHost };
    (direction, if name.contains("4KiB") { 4 << 10 } else { 1 << 20 })
}

fn row(name: &'static str, target: Target, ours: Run<'_>, runs: usize) -> Result<Row> {
    let theirs = memcpy(copies_of(name).1, WINDOWS, SHORT);
    let peer = "memcpy of one core";
    measure(Case { name, unit: "GB/s", peer, target, ours, theirs }, runs)
}

fn figure(id: &'static str, sides: &Sides, options: &Options) -> Result<Figure> {
    let quantity = if id.ends_with("time") { Quantity::Time } else { Quantity::Rate };
    let with_ucx = id.starts_with("ucx");
    let sizes: &[usize] = if options.quick { &QUICK } else { &SIZES };
    let runs = if options.quick { 1 } else { 3 };
    let kinds: Vec<PathKind> =
        if with_ucx { vec![PathKind::Engine, PathKind::Mapping] } else { paths() };
    let mut ways: Vec<String> = kinds.iter().map(|kind| kind.name().into()).collect();
    ways.push("memcpy".into());
    let transports: &[Transport] = if with_ucx { &ucx::TRANSPORTS } else { &[] };
    ways.extend(transports.iter().map(|transport| format!("UCX {}", transport.name)));
    let mut points = Vec::new();
    for &len in sizes {
        let mut sides: Vec<Run<'_>> =
            kinds.iter().map(|kind| sides.copies(*kind, quantity, len)).collect::<Result<_>>()?;
        sides.push(Box::new(move || Ok(quantity.of(memcpy_us(len, WINDOW), len))));
        for transport in transports {
            let what = if quantity == Quantity::Time { What::Latency } else { What::Puts };
            sides.push(Box::new(move || {
                Ok(quantity.of(ucx::median_us(*transport, what, len)?, len))
            }));
        }
        points.push(Point::measure(output::bytes(len as u64), runs, &mut sides)?);
    }
    let last = points.last().context("a figure without points")?;
    let (engine, memcpy) = (last.median(0), last.median(kinds.len()));
    let (x, unit) = (points.last().map_or("", |point| point.x.as_str()), quantity.unit());
    let here = format!("at {x}: engine {engine:.1} {unit}, memcpy {memcpy:.1} {unit}");
    Ok(Figure {
        id,
        origin: "host-to-card memory access, this machine",
        title: match (quantity, with_ucx) {
            (Quantity::Time, false) => "The time of a copy to the card, by path",
            (Quantity::Rate, false) => "Copies to the card one after another, by path",
            (Quantity::Time, true) => "The time of a copy, beside UCX’s transports",
            (Quantity::Rate, true) => "Copies one after another, beside UCX’s transports",
        },
        about: match quantity {
            Quantity::Time => {
                "From the call to the last byte in the card’s memory; for the engine, from the \
                 doorbell to the completion, by a thread on another core. UCX’s figure is half of \
                 a put and its answer, and so has the time until the other side sees the bytes. \
                 Medians."
            }
            Quantity::Rate => {
                "Copies of one size one after another; the engine’s channel has several \
                 descriptors at a time, UCX’s put_bw one put behind another. Medians."
            }
        },
        x: "bytes of a copy",
        y: if quantity == Quantity::Time { "µs" } else { "GB/s" },
        unit,
        style: Style::Log,
        ways,
        points,
        paper: "the paper plots PCIe: see its own figures, in the simulator",
        here,
    })
}

/// The engine first, as Remora's way.
fn paths() -> Vec<PathKind> {
    let others = PathKind::ALL.into_iter().filter(|kind| *kind != PathKind::Engine);
    std::iter::once(PathKind::Engine).chain(others).collect()
}

/// What a figure shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quantity {
    Time,
    Rate,
}

impl Quantity {
    fn unit(self) -> &'static str {
        if self == Quantity::Time { "µs" } else { "GB/s" }
    }

    fn of(self, us: f64, len: usize) -> f64 {
        if self == Quantity::Time { us } else { len as f64 / us / 1e3 }
    }
}

/// The card's side, and the application's.
struct Sides {
    card: Arc<CardMemory>,
    service: Service,
    /// The application's memory for paths whose application is a thread of this process.
    memory: Arc<Buffer>,
    application: Application,
    _other: Helper,
}

impl Sides {
    fn new() -> Result<Sides> {
        // The other process and the engine's thread come first, on the second core; then this
        // thread takes the first.
        let (other, application) = dma::application::start(LARGEST)?;
        let sizes = Sizes { near: LARGEST as u64, far: 1 };
        let card = CardMemory::new(sizes).context("no memory for a card")?;
        let memory = Arc::new(Buffer::new(LARGEST)?);
        memory.fill(1);
        let engine = Engine::new(card.clone());
        let service = child::on_core(1, || Ok(Service::start(engine)?))?;
        child::pin(0)?;
        Ok(Sides { card, service, memory, application, _other: other })
    }

    fn near(&self) -> usize {
        self.card.range(MemoryKind::Near).start as usize
    }

    fn path(&self, kind: PathKind) -> Result<Box<dyn Path>> {
        Ok(match kind {
            PathKind::Engine => Box::new(Through::open(&self.service, self.memory.clone())?),
            PathKind::Pipe | PathKind::Udp => child::on_core(1, || {
                Ok(Box::new(courier::with_thread(kind, self.memory.clone())?))
            })?,
            _ => open(kind, &self.application)?,
        })
    }

    /// Measures copies to the card by a path.
    fn copies(&self, kind: PathKind, quantity: Quantity, len: usize) -> Result<Run<'_>> {
        if kind == PathKind::Engine && quantity == Quantity::Rate {
            return self.stream(Direction::HostToCard, len, false);
        }
        let (card, near) = (self.card.clone(), self.near());
        Ok(Box::new(move || {
            // Set up for each run: a courier that looks for work all the time is in the way of the
            // other ways' threads.
            let mut path = match self.path(kind) {
                Ok(path) => path,
                Err(error) => {
                    tracing::warn!("the path {kind} is not possible here: {}", told(&error));
                    return Ok(f64::NAN);
                }
            };
            let us = median_us(len, WINDOW, || Ok(path.to_card(0, card.bytes(), near, len)?))?;
            Ok(quantity.of(us, len))
        }))
    }

    /// The rate of a polled channel in GB/s; the engine has a core of its own, or is driven by the
    /// thread that polls.
    fn stream(&self, direction: Direction, len: usize, alone: bool) -> Result<Run<'_>> {
        let mut own = Engine::new(self.card.clone());
        let options = ChannelOptions::new(direction).depth(DEPTH);
        let mut served = self.service.engine();
        let engine = if alone { &mut own } else { &mut *served };
        let region = engine.grant_own(self.memory.clone(), true)?;
        drop(served);
        let mut channel = if alone { own.open(options)? } else { self.service.open(options)? };
        let (host, near) = (region.at(0), Address::Card(self.near() as u64));
        let ends = match direction {
            Direction::HostToCard => (host, near),
            Direction::CardToHost => (near, host),
        };
        Ok(Box::new(move || {
            best_windows(&mut channel, ends, len, || if alone { own.step() } else { false })
        }))
    }
}

/// The best of some short windows; GB/s.
fn best_windows(
    channel: &mut Channel,
    ends: (Address, Address),
    len: usize,
    mut turn: impl FnMut() -> bool,
) -> Result<f64> {
    let mut best = 0.0_f64;
    for _ in 0..WINDOWS {
        best = best.max(window(channel, ends, len, &mut turn)?);
    }
    Ok(best)
}

/// Keeps a channel's ring full for a short while; GB/s.
fn window(
    channel: &mut Channel,
    (src, dst): (Address, Address),
    len: usize,
    mut turn: impl FnMut() -> bool,
) -> Result<f64> {
    let start = Instant::now();
    let (mut posted, mut done) = (0u64, 0u64);
    let mut elapsed = Duration::ZERO;
    while elapsed < SHORT || done < posted {
        if elapsed < SHORT && channel.room() >= BATCH {
            for _ in 0..BATCH {
                channel.copy(src, dst, len as u32, Flags::empty())?;
            }
            channel.submit();
            posted += BATCH as u64;
        }
        turn();
        let completed = channel.completed(DEPTH as usize);
        ensure!(!completed.error_next, "a copy failed");
        done += completed.count as u64;
        if completed.count == 0 {
            hint::spin_loop();
        }
        elapsed = start.elapsed();
        ensure!(elapsed < PATIENCE, "the engine’s thread does not answer");
    }
    Ok((done * len as u64) as f64 / elapsed.as_nanos() as f64)
}

/// The middle time in µs of copies of `len` bytes; short ones are timed several at a time.
fn median_us(len: usize, time: Duration, mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
    let batch = if len <= 64 << 10 { 16 } else { 1 };
    copy()?;
    let (start, mut times) = (Instant::now(), Vec::with_capacity(4096));
    while times.len() < TIMES || start.elapsed() < time {
        let before = Instant::now();
        for _ in 0..batch {
            copy()?;
        }
        times.push(before.elapsed().as_nanos() as f64 / 1e3 / f64::from(batch));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The library's copy, by this core alone.
fn memcpy_us(len: usize, time: Duration) -> f64 {
    let (mut from, mut to) = (PageAligned::new(len), PageAligned::new(len));
    from.fill(1);
    to.fill(2);
    let copy = || {
        to.copy_from_slice(hint::black_box(&from));
        hint::black_box(&mut to);
        Ok(())
    };
    median_us(len, time, copy).expect("a copy within a process does not fail")
}

/// The rate of the library's copy in GB/s: the best of so many windows.
pub(in crate::bench) fn memcpy(len: usize, windows: usize, window: Duration) -> Run<'static> {
    let (mut from, mut to) = (PageAligned::new(len), PageAligned::new(len));
    from.fill(1);
    to.fill(2);
    Box::new(move || {
        let mut best = 0.0_f64;
        for _ in 0..windows {
            let start = Instant::now();
            let mut copies = 0;
            while start.elapsed() < window {
                for _ in 0..BATCH {
                    to.copy_from_slice(hint::black_box(&from));
                    hint::black_box(&mut to);
                }
                copies += BATCH;
            }
            best = best.max((copies * len) as f64 / start.elapsed().as_nanos() as f64);
        }
        Ok(best)
    })
}
