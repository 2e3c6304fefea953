//! `remora dma channels`: what the channels of an engine can do, and how fast they are here.

use std::collections::BTreeMap;
use std::hint;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use remora::daemon::{DmaClient, DmaStatus};
use remora::dma::choose::cost_of;
use remora::dma::path::Application;
use remora::dma::{
    Address, Capabilities, Channel, ChannelOptions, Direction, Flags, Interface, Mode, RegionId,
    Sizes,
};
use remora::memory::Buffer;
use remora::message::DmaChannelRow;
use serde::Serialize;

use super::daemon::{CardEngine, DaemonArgs, place_for};
use crate::output;

/// The size of a large copy in bytes.
const LARGE: u32 = 1 << 20;
/// The size of a small one.
const SMALL: u32 = 4 << 10;
/// The longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);
/// The stream that is measured: the last, which others will hardly have.
const STREAM: u16 = 63;

/// `remora dma channels`.
#[derive(Debug, Args)]
pub(super) struct Channels {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    channel: &'static str,
    interface: &'static str,
    mode: &'static str,
    /// Post to completion of 4 KiB.
    latency_us: f64,
    /// Copies of 1 MiB, one after another.
    gb_per_s: f64,
}

#[derive(Serialize)]
struct Output {
    channels: Vec<Row>,
    capabilities: Capabilities,
    /// Those that programs of this user have open at a daemon's engine, and what it has counted.
    open: Option<DmaStatusRow>,
}

#[derive(Serialize)]
struct DmaStatusRow {
    channels: Vec<DmaChannelRow>,
    counters: BTreeMap<String, u64>,
}

impl Channels {
    pub(super) fn run(self) -> Result<()> {
        let card = self.daemon.card()?;
        let status = card.as_ref().map(DmaClient::status).transpose()?;
        let bed = Bed::new(card)?;
        let mut rows = Vec::new();
        for direction in [Direction::HostToCard, Direction::CardToHost] {
            for interface in [Interface::MemoryMapped, Interface::Streaming(STREAM)] {
                for mode in [Mode::Polled, Mode::Interrupt] {
                    let options = ChannelOptions { direction, interface, mode, depth: 64 };
                    rows.push(measure(&bed, options)?);
                }
            }
        }
        let capabilities = Capabilities::of_engine();
        if self.json {
            let open = status.map(|DmaStatus { channels, counters }| DmaStatusRow {
                channels,
                counters: counters.into_iter().collect(),
            });
            return output::json_line(&Output { channels: rows, capabilities, open });
        }
        let headings = ["channel", "card’s end", "completions", "4 KiB, µs", "1 MiB, GB/s"];
        let mut table = output::table(headings);
        for row in rows {
            table.add_row([
                row.channel.to_owned(),
                row.interface.to_owned(),
                row.mode.to_owned(),
                format!("{:.2}", row.latency_us),
                format!("{:.1}", row.gb_per_s),
            ]);
        }
        output::align_right(&mut table, [3, 4]);
        println!("{table}");
        println!(
            "µs: the best from post to completion, by an engine with a thread; \
             a stream’s figure has both of its ends"
        );
        show(capabilities);
        if let Some(status) = status {
            show_open(&status);
        }
        Ok(())
    }
}

/// The channels that programs have open.
fn show_open(status: &DmaStatus) {
    if status.channels.is_empty() {
        println!("No program has a channel open at the daemon’s engine.");
        return;
    }
    let mut table = output::table(iter::once("process").chain(HEADINGS));
    for row in &status.channels {
        table.add_row(iter::once(row.pid.to_string()).chain(cells(row)));
    }
    output::align_right(&mut table, [0, 4, 5]);
    println!("{table}");
    let counters: Vec<_> =
        status.counters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    println!("the engine has counted: {}", counters.join(", "));
}

/// What [`cells`] are.
pub(crate) const HEADINGS: [&str; 6] =
    ["channel", "card’s end", "completions", "ring", "done", "state"];

/// A channel of a daemon's engine, as part of a table's row.
pub(crate) fn cells(row: &DmaChannelRow) -> [String; 6] {
    [
        if row.to_host { "c2h" } else { "h2c" }.into(),
        row.stream.map_or("memory".into(), |number| format!("stream {number}")),
        if row.interrupt { "interrupt" } else { "polled" }.into(),
        row.depth.to_string(),
        output::grouped(row.completed),
        row.halted.clone().unwrap_or_else(|| "served".into()),
    ]
}

/// The same of channels of which the engine tells nothing now.
pub(crate) fn unknown() -> [String; 6] {
    let mut cells = [const { String::new() }; 6];
    cells[5] = "in a call".into();
    cells
}

fn show(can: Capabilities) {
    let mut table = output::table(["capability", ""]);
    let yes = |can: bool| if can { "yes" } else { "no" }.to_owned();
    for (name, value) in [
        ("scatter/gather", yes(can.scatter_gather)),
        ("fill", yes(can.fill)),
        ("fence", yes(can.fence)),
        ("streaming", yes(can.streaming)),
        ("interrupt (eventfd)", yes(can.interrupt)),
        ("completions in order", yes(can.in_order)),
        ("goes on after errors", yes(can.goes_on_after_errors)),
        ("bytes of a descriptor, at most", output::grouped(can.len_max.into())),
        ("descriptors of a ring, at most", output::grouped(can.depth_max.into())),
    ] {
        table.add_row([name.to_owned(), value]);
    }
    output::align_right(&mut table, [1]);
    println!("{table}");
}

/// What is measured: an engine, memory that it may reach, and a place on the card.
struct Bed {
    engine: CardEngine,
    region: RegionId,
    place: u64,
    memory: Arc<Buffer>,
}

impl Bed {
    fn new(daemon: Option<DmaClient>) -> Result<Bed> {
        let len = 2 * LARGE as usize;
        let (application, memory) = Application::of_this_process(len)?;
        memory.fill(1);
        let engine = CardEngine::new(daemon, Sizes { near: len as u64, far: 1 })?;
        let region = engine.grant(&application, &memory)?;
        let place = match &engine {
            CardEngine::Own(_) => engine.sizes().far,
            CardEngine::Daemons(card) => place_for(card, LARGE as usize)?.0,
        };
        Ok(Bed { engine, region, place, memory })
    }

    /// Brings what stands at the place on a daemon's card to where copies to it come from: programs
    /// use the card's memory without asking for pieces of it, too.
    fn fetch(&self) -> Result<()> {
        if let CardEngine::Daemons(card) = &self.engine {
            self.memory.copy_at(0, card.memory(), self.place as usize, LARGE as usize)?;
        }
        Ok(())
    }
}

/// A channel of this kind; for a stream, its other end too.
fn measure(bed: &Bed, options: ChannelOptions) -> Result<Row> {
    let mut channel = bed.engine.open(options)?;
    let other = match options.direction {
        Direction::HostToCard => Direction::CardToHost,
        Direction::CardToHost => Direction::HostToCard,
    };
    let other = ChannelOptions { direction: other, mode: Mode::Polled, ..options };
    let is_stream = options.interface != Interface::MemoryMapped;
    let mut other = if is_stream { Some(bed.engine.open(other)?) } else { None };
    bed.fetch()?;
    let (region, near) = (bed.region, Address::Card(bed.place));
    let (ours, theirs) = match options.direction {
        Direction::HostToCard => ((region.at(0), near), (near, region.at(LARGE.into()))),
        Direction::CardToHost => ((near, region.at(0)), (region.at(LARGE.into()), near)),
    };
    let mut once = |len: u32| -> Result<()> {
        if let Some(other) = &mut other {
            other.copy(theirs.0, theirs.1, len, Flags::empty())?;
            other.submit();
        }
        channel.copy(ours.0, ours.1, len, Flags::empty())?;
        channel.submit();
        if options.mode == Mode::Interrupt {
            channel.wait(PATIENCE)?;
        }
        take(&mut channel)?;
        other.as_mut().map_or(Ok(()), |other| take(other))
    };
    let small = cost_of(|| once(SMALL), SMALL as usize)?;
    let large = cost_of(|| once(LARGE), LARGE as usize)?;
    Ok(Row {
        channel: options.direction.name(),
        interface: if is_stream { "stream" } else { "memory" },
        mode: if options.mode == Mode::Polled { "polled" } else { "interrupt" },
        latency_us: small.latency_us,
        gb_per_s: large.gb_per_s,
    })
}

/// Polls until a descriptor is done.
fn take(channel: &mut Channel) -> Result<()> {
    let start = Instant::now();
    loop {
        for _ in 0..1 << 14 {
            let done = channel.completed(1);
            ensure!(!done.error_next, "a copy of the engine’s failed");
            if done.count == 1 {
                return Ok(());
            }
            hint::spin_loop();
        }
        if let Some(halt) = channel.halted() {
            return Err(halt.into());
        }
        ensure!(start.elapsed() < PATIENCE, "the engine’s thread does not answer");
        std::thread::yield_now();
    }
}
