//! What a store says of itself.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use remora_command::node::address::NodeAddress;
use remora_store::client::StoreClient;
use remora_store::stats::Slow;
use remora_store::way::connect::ClientOptions;
use remora_store::way::info::{LatencyInfo, SpaceInfo};
use serde_json::{Value, json};

use super::{StoreAddress, tablespace};
use crate::output;
use crate::remote::RemoteArgs;

/// `remora store info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store info 127.0.0.2              counts, latencies, tablespaces
  remora store info 127.0.0.2 --classes    and what blocks of each size take
  remora store info 127.0.0.2 --slow       and the operations that took long
  remora store info 127.0.0.2 --json       all of it")]
pub(super) struct Info {
    #[command(flatten)]
    store: StoreAddress,
    /// Show counts that are zero, too
    #[arg(long)]
    all: bool,
    /// Show the blocks of each size
    #[arg(long)]
    classes: bool,
    /// List the operations that took long, the newest first
    #[arg(long)]
    slow: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
}

/// All of it.
pub(crate) struct Told {
    pub(crate) counts: BTreeMap<String, u64>,
    latencies: Vec<LatencyInfo>,
    spaces: Vec<SpaceInfo>,
    slow: Vec<Slow>,
}

impl Told {
    fn ask(client: &mut StoreClient) -> Result<Told> {
        Ok(Told {
            counts: client.counts()?.into_iter().collect(),
            latencies: client.latencies()?,
            spaces: client.tablespaces()?,
            slow: client.slow_operations()?,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let latency = |l: &LatencyInfo| {
            json!({
                "way": l.way.name(), "operation": l.op.name(), "count": l.count,
                "total_ns": l.total_ns, "p50_ns": l.p50_ns, "p99_ns": l.p99_ns,
                "p999_ns": l.p999_ns,
            })
        };
        let slow = |slow: &Slow| {
            json!({
                "id": slow.id, "at_s": slow.at_s, "took_us": slow.took_us, "peer": slow.peer,
                "name": slow.name, "arguments": words(slow),
            })
        };
        json!({
            "counts": self.counts,
            "latencies": self.latencies.iter().map(latency).collect::<Vec<_>>(),
            "tablespaces": self.spaces.iter().map(tablespace::to_json).collect::<Vec<_>>(),
            "slow": self.slow.iter().map(slow).collect::<Vec<_>>(),
        })
    }

    /// As JSON, with the counts beside the rest, and without slow operations.
    pub(crate) fn to_flat_json(&self) -> Value {
        let mut all = self.to_json();
        if let Some(object) = all.as_object_mut() {
            object.remove("counts");
            object.remove("slow");
            object.extend(self.counts.iter().map(|(name, value)| (name.clone(), (*value).into())));
        }
        all
    }

    /// Prints how long operations took, if there were any.
    pub(crate) fn show_latencies(&self) {
        if !self.latencies.is_empty() {
            println!("{}", latencies(&self.latencies));
        }
    }

    /// Prints the blocks of each size.
    pub(crate) fn show_classes(&self) {
        println!("{}", classes(&self.spaces));
    }
}

/// What a store says of itself.
pub(crate) fn told(remote: &RemoteArgs, node: NodeAddress) -> Result<Told> {
    let store = StoreAddress { node, remote: remote.clone() };
    store.with(&ClientOptions::default(), Told::ask)
}

impl Info {
    pub(super) fn run(self) -> Result<ExitCode> {
        let told = self.store.with(&ClientOptions::default(), Told::ask)?;
        if self.json {
            output::json_line(&told.to_json())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut counts = output::table(["count", "value"]);
        for (name, value) in told.counts.iter().filter(|(_, value)| self.all || **value > 0) {
            counts.add_row([name.clone(), output::grouped(*value)]);
        }
        output::align_right(&mut counts, [1]);
        println!("{counts}");
        told.show_latencies();
        println!("{}", tablespace::table(&told.spaces));
        if self.classes {
            told.show_classes();
        }
        if self.slow {
            show_slow(&told.slow);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn words(slow: &Slow) -> Vec<String> {
    slow.arguments.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn latencies(all: &[LatencyInfo]) -> comfy_table::Table {
    let headings = ["way in", "operation", "count", "mean µs", "p50 µs", "p99 µs", "p99.9 µs"];
    let mut table = output::table(headings);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
    for l in all {
        let mean = l.total_ns.checked_div(l.count).unwrap_or(0);
        table.add_row([
            l.way.name().to_owned(),
            l.op.name().to_owned(),
            output::grouped(l.count),
            us(mean),
            us(l.p50_ns),
            us(l.p99_ns),
            us(l.p999_ns),
        ]);
    }
    output::align_right(&mut table, 2..7);
    table
}

fn classes(all: &[SpaceInfo]) -> comfy_table::Table {
    let mut table = output::table(["tablespace", "block", "in use", "there are", "bytes"]);
    for (info, classes) in all {
        for class in classes {
            table.add_row([
                remora::printable(&info.options.name).to_string(),
                output::bytes(class.size),
                output::grouped(class.used),
                output::grouped(class.blocks),
                output::bytes(class.size * class.blocks),
            ]);
        }
    }
    output::align_right(&mut table, 1..5);
    table
}

fn show_slow(all: &[Slow]) {
    if all.is_empty() {
        println!("No operation took long.");
        return;
    }
    let mut table = output::table(["ago", "took ms", "what", "who"]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for slow in all {
        let ago = now.saturating_sub(Duration::from_secs(slow.at_s)).as_secs();
        let what = words(slow).join(" ");
        table.add_row([
            format!("{ago} s"),
            format!("{:.1}", slow.took_us as f64 / 1000.0),
            remora::printable(&what).to_string(),
            slow.peer.clone(),
        ]);
    }
    output::align_right(&mut table, [0, 1]);
    println!("{table}");
}
