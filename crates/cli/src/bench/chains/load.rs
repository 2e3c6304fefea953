//! Gets while writers keep the peer's processor busy (Figure 15).

use std::time::Instant;

use anyhow::Result;
use remora_sim::percentile;

use super::super::figure::{Figure, Point, Style};
use super::super::row::{Case, Run, Target};
use super::extent::Extent;
use super::gets::{Bucket, Get, Tables};
use crate::ways::Client;

/// The numbers of threads that write.
const WRITERS: [u64; 6] = [0, 1, 2, 4, 8, 16];
const VALUE: usize = 64;

/// What serves gets while the writers write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    /// The card, while its host's own thread sleeps.
    Card(Get),
    /// A thread that polls.
    Polling,
    /// A thread that sleeps until a request arrives.
    Event,
}

/// The figure that is taken of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Mean,
    /// The 99th percentile.
    Tail,
}

const WAYS: [(Server, Of, &str); 8] = [
    (Server::Card(Get::Chain), Of::Tail, "chain, p99"),
    (Server::Card(Get::Chain), Of::Mean, "chain, mean"),
    (Server::Polling, Of::Tail, "two-sided, polling, p99"),
    (Server::Polling, Of::Mean, "two-sided, polling, mean"),
    (Server::Event, Of::Tail, "two-sided, event, p99"),
    (Server::Card(Get::OneSided), Of::Tail, "one-sided (FaRM), p99"),
    (Server::Card(Get::Kernel), Of::Tail, "kernel, p99"),
    (Server::Card(Get::Read), Of::Tail, "READ, p99"),
];

/// A run of gets beside this many writers.
fn gets<'a>(
    client: &'a Client,
    tables: &'a Tables,
    (server, of): (Server, Of),
    writers: u64,
    extent: Extent,
) -> Run<'a> {
    let way = match server {
        Server::Card(way) => way,
        Server::Polling | Server::Event => Get::TwoSided(Bucket::First),
    };
    let mut get = tables.getter(client, way, VALUE);
    let mut samples = move || {
        let (start, mut samples) = (Instant::now(), Vec::with_capacity(extent.tail));
        while samples.len() < extent.tail && start.elapsed() < extent.patience {
            let begin = Instant::now();
            get()?;
            samples.push(begin.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(summary(of, samples))
    };
    Box::new(move || {
        client.with_writers(writers, || match server {
            Server::Polling => samples(),
            Server::Card(_) | Server::Event => client.asleep(&mut samples),
        })
    })
}

/// The figure of the samples, of which there is at least one.
fn summary(of: Of, mut samples: Vec<f64>) -> f64 {
    match of {
        Of::Mean => samples.iter().sum::<f64>() / samples.len() as f64,
        Of::Tail => {
            samples.sort_by(f64::total_cmp);
            percentile(&samples, 990).unwrap_or(f64::NAN)
        }
    }
}

/// The rows of gets under load.
pub(super) fn cases<'a>(
    client: &'a Client,
    tables: &'a Tables,
    extent: Extent,
) -> Result<[Case<'a>; 3]> {
    let run = |server, writers| gets(client, tables, (server, Of::Tail), writers, extent);
    let chain = Server::Card(Get::Chain);
    Ok([
        Case::latency(
            "get_p99_16_writers",
            "without writers",
            Target::AtMost(2.0),
            run(chain, 16),
            run(chain, 0),
        ),
        Case::latency(
            "get_p99_16_writers_two_sided",
            "two-sided, polling, 16 writers",
            Target::Any,
            run(chain, 16),
            run(Server::Polling, 16),
        ),
        Case::latency(
            "get_p99_16_writers_event",
            "two-sided, event, 16 writers",
            Target::Any,
            run(chain, 16),
            run(Server::Event, 16),
        ),
    ])
}

/// Figure 15.
pub(super) fn writers(client: &Client, tables: &Tables, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for writers in WRITERS {
        let way = |(server, of, _)| gets(client, tables, (server, of), writers, extent);
        let runs = extent.runs.min(3);
        points.push(Point::measure(writers.to_string(), runs, &mut WAYS.map(way))?);
    }
    let (none, all) = (&points[0], &points[points.len() - 1]);
    let here = format!(
        "with 16 writers the chain’s p99 is {:.1} × that without; the two-sided one’s, polling, is \
         {:.0} × the chain’s",
        all.median(0) / none.median(0),
        all.median(2) / all.median(0)
    );
    Ok(Figure {
        id: "fig15",
        origin: "RedN’s Figure 15",
        title: "Gets beside writers",
        about: "Values of 64 bytes are fetched, one after the other, while threads of the serving \
                process write values of their own, each to its own 10,000 keys, on the core that \
                also has the card. The card’s own thread serves chains, kernels and READs, before \
                all other threads (real-time priority, where the system allows it), while the \
                host’s thread sleeps; two-sided gets need the host’s thread. (The paper’s \
                writers are clients whose RPCs load the process’s CPU; its card has processors \
                that no other work uses.)",
        x: "writers",
        y: "latency",
        unit: "µs",
        style: Style::Log,
        ways: WAYS.map(|(.., name)| name.to_owned()).into(),
        points,
        paper: "mean and p99 stay below 7 µs; with 16 writers the two-sided p99 is 35 × as long",
        here,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_99th_of_a_hundred() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(summary(Of::Tail, samples.clone()), 99.0);
        assert_eq!(summary(Of::Mean, samples), 50.5);
        assert_eq!(summary(Of::Tail, vec![3.0]), 3.0);
    }
}
