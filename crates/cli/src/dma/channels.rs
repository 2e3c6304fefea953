//! `remora dma channels`: what the channels of an engine can do, and how fast they are here.

use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::dma::choose::cost_of;
use remora::dma::{
    Address, Capabilities, CardMemory, Channel, ChannelOptions, Direction, Engine, Flags,
    Interface, Kind, Mode, Service, Sizes,
};
use remora::memory::Buffer;
use serde::Serialize;

use crate::output;

/// The size of a large copy in bytes.
const LARGE: u32 = 1 << 20;
/// The size of a small one.
const SMALL: u32 = 4 << 10;
/// The longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);

/// `remora dma channels`.
#[derive(Debug, Args)]
pub(super) struct Channels {
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
}

impl Channels {
    pub(super) fn run(self) -> Result<()> {
        let mut rows = Vec::new();
        for direction in [Direction::HostToCard, Direction::CardToHost] {
            for interface in [Interface::MemoryMapped, Interface::Streaming(0)] {
                for mode in [Mode::Polled, Mode::Interrupt] {
                    let options = ChannelOptions { direction, interface, mode, depth: 64 };
                    rows.push(measure(options)?);
                }
            }
        }
        let capabilities = Capabilities::of_engine();
        if self.json {
            return output::json_line(&Output { channels: rows, capabilities });
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
        Ok(())
    }
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

/// A channel of this kind to an engine of its own; for a stream, its other end too.
fn measure(options: ChannelOptions) -> Result<Row> {
    let sizes = Sizes { near: 2 * u64::from(LARGE), far: 1 };
    let card = CardMemory::new(sizes).context("no memory for a card")?;
    let service = Service::start(Engine::new(card.clone())).context("cannot start an engine")?;
    let host = Arc::new(Buffer::new(2 * LARGE as usize)?);
    host.fill(1);
    let region = service.engine().grant_own(host, true)?;
    let mut channel = service.open(options)?;
    let other = match options.direction {
        Direction::HostToCard => Direction::CardToHost,
        Direction::CardToHost => Direction::HostToCard,
    };
    let other = ChannelOptions { direction: other, mode: Mode::Polled, ..options };
    let is_stream = options.interface != Interface::MemoryMapped;
    let mut other = if is_stream { Some(service.open(other)?) } else { None };
    let near = Address::Card(card.range(Kind::Near).start);
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
        other.as_mut().map_or(Ok(()), take)
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
        ensure!(start.elapsed() < PATIENCE, "the engine’s thread does not answer");
        std::thread::yield_now();
    }
}
