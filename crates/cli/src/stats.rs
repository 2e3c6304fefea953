//! `remora stats`: the counters of a running node, read one-sided, or those of a store.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use remora::Device;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::client::{OpenRegionError, RemoteRegion};
use remora_command::node::server::NodeStats;
use remora_command::node::{DEFAULT_PORT, STATS_DOCUMENT};
use remora_store::way::door::PORT;

use crate::remote::RemoteArgs;
use crate::{output, stop, store};

/// `remora stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora stats 127.0.0.2              the counters that are not zero
  remora stats 127.0.0.2 --all        all counters
  remora stats 127.0.0.2 --memory     and what queue pairs, tables and buffers take
  remora stats 127.0.0.2 --watch      once a second, until Ctrl-C

Where no memory node listens, but a store does, these are the store's, with percentiles of its
operations, and with --memory its blocks by size. `remora store info` has more of it.")]
pub(crate) struct Stats {
    /// The node: HOST or HOST:PORT
    node: NodeAddress,
    /// Repeat once a second, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print a line of JSON each time
    #[arg(long)]
    json: bool,
    /// Show counters that are zero, too
    #[arg(long)]
    all: bool,
    /// Show what each structure of the card takes of memory, or a store's blocks of each size
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl Stats {
    pub(crate) fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let Some(source) = self.source()? else { return self.of_store(&stop) };
        let (device, region) = source;
        let mut before: Option<NodeStats> = None;
        loop {
            let now: NodeStats = region.read_document()?;
            if self.json {
                output::json_line(&now)?;
            } else {
                self.show(&now, before.as_ref());
            }
            before = Some(now);
            if !self.goes_on(&stop) {
                break;
            }
        }
        drop(region);
        self.remote.device.finish(&device);
        Ok(())
    }

    /// The node's counters; `None` if there is a store in its place.
    fn source(&self) -> Result<Option<(Device, RemoteRegion)>> {
        if self.node.port == PORT {
            return Ok(None);
        }
        let device = self.remote.open(self.node)?;
        let address = RegionAddress { node: self.node, name: STATS_DOCUMENT.into() };
        match self.remote.connect(&device, &address) {
            Ok(region) => Ok(Some((device, region))),
            Err(error) => match error.downcast_ref() {
                Some(OpenRegionError::NoListener(_)) if self.node.port == DEFAULT_PORT => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Waits for the next second; `false` at the end.
    fn goes_on(&self, stop: &AtomicBool) -> bool {
        let next = Instant::now() + Duration::from_secs(1);
        while self.watch && !stop.load(Ordering::Relaxed) && Instant::now() < next {
            thread::sleep(Duration::from_millis(50));
        }
        self.watch && !stop.load(Ordering::Relaxed)
    }

    /// The counters of a store.
    fn of_store(&self, stop: &AtomicBool) -> Result<()> {
        let node = NodeAddress { port: PORT, ..self.node };
        let mut before: Option<(Instant, store::Told)> = None;
        loop {
            let now = store::told(&self.remote, node)?;
            let at = Instant::now();
            if self.json {
                output::json_line(&now.to_flat_json())?;
            } else {
                self.clear();
                println!("Store {node}");
                let was = before.as_ref().map(|(_, was)| &was.counts);
                let elapsed = before.as_ref().map(|(then, _)| (at - *then).as_secs_f64());
                let rows = now.counts.iter().map(|(n, v)| (n, *v, was.and_then(|was| was.get(n))));
                println!("{}", self.counters(rows, elapsed));
                now.show_latencies();
                if self.memory {
                    now.show_classes();
                }
            }
            before = Some((at, now));
            if !self.goes_on(stop) {
                return Ok(());
            }
        }
    }

    fn clear(&self) {
        if self.watch && io::stdout().is_terminal() {
            // Clears the screen and starts at its top.
            print!("\x1b[H\x1b[2J");
        }
    }

    /// A table of counters: their names, values, and values `elapsed` seconds ago.
    fn counters<'a>(
        &self,
        rows: impl Iterator<Item = (&'a String, u64, Option<&'a u64>)>,
        elapsed: Option<f64>,
    ) -> comfy_table::Table {
        let elapsed = elapsed.filter(|seconds| *seconds > 0.0);
        let header: &[&str] = match elapsed {
            Some(_) => &["counter", "value", "a second"],
            None => &["counter", "value"],
        };
        let mut table = output::table(header.iter().copied());
        for (name, value, was) in rows.filter(|(_, value, _)| self.all || *value > 0) {
            let mut row = vec![name.clone(), output::grouped(value)];
            if let Some(seconds) = elapsed {
                let risen = value.saturating_sub(was.copied().unwrap_or(value));
                row.push(output::grouped((risen as f64 / seconds).round() as u64));
            }
            table.add_row(row);
        }
        output::align_right(&mut table, [1, 2]);
        table
    }

    fn show(&self, now: &NodeStats, before: Option<&NodeStats>) {
        self.clear();
        let up = Duration::from_millis(now.uptime_ms).as_secs();
        let others = output::counted(now.clients.saturating_sub(1) as u64, "other client");
        println!("Node {}, up for {up} s, {others} connected", now.node);
        let elapsed = before.map(|b| now.uptime_ms.saturating_sub(b.uptime_ms) as f64 / 1000.0);
        let none = BTreeMap::new();
        let (events, counters) = before.map_or((&none, &none), |b| (&b.events, &b.counters));
        let lists = [(&now.events, events), (&now.counters, counters)];
        let rows = lists
            .into_iter()
            .flat_map(|(list, old)| list.iter().map(move |(n, v)| (n, *v, old.get(n))));
        println!("{}", self.counters(rows, elapsed));
        for (peer, connections) in &now.dialects {
            println!("{}: {peer}", output::counted(*connections, "connection"));
        }
        if self.memory {
            show_memory(now);
        }
    }
}

fn show_memory(now: &NodeStats) {
    let mut table = output::table(["structure", "bytes"]);
    for (name, bytes) in &now.memory_bytes {
        table.add_row([name.clone(), output::grouped(*bytes)]);
    }
    output::align_right(&mut table, [1]);
    println!("{table}");
}
