//! UCX's transports within a machine, as `ucx_perftest` measures them.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bench::program::{Program, free_tcp_port, has_tcp_listener};
use crate::child::output_within;

/// The longest wait for a client to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that a measurement moves, about.
const VOLUME: usize = 128 << 20;

/// A transport of UCX, and how it puts data.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Transport {
    pub(in crate::bench) name: &'static str,
    layout: &'static str,
}

/// Shared memory of System V.
pub(in crate::bench) const SYSV: Transport = Transport { name: "sysv", layout: "short" };

/// The transports that need no network.
pub(in crate::bench) const TRANSPORTS: [Transport; 3] = [
    SYSV,
    Transport { name: "posix", layout: "short" },
    Transport { name: "cma", layout: "zcopy" },
];

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) enum What {
    /// A put and the answer to it, halved.
    Latency,
    /// Puts one after another.
    Puts,
}

/// Is `ucx_perftest` installed?
pub(in crate::bench) fn is_there() -> bool {
    let mut help = Command::new("ucx_perftest");
    help.arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    help.status().is_ok()
}

/// The middle time of a put of `len` bytes in µs, its ends pinned to a core each.
pub(in crate::bench) fn median_us(transport: Transport, what: What, len: usize) -> Result<f64> {
    let port = free_tcp_port()?;
    let times = (VOLUME / len).clamp(10, 20_000);
    let args = |core: &str| {
        let test = if what == What::Latency { "put_lat" } else { "put_bw" };
        let mut command = Command::new("ucx_perftest");
        command.args(["-d", "memory", "-x", transport.name, "-D", transport.layout, "-t", test]);
        command.args(["-s", &len.to_string(), "-n", &times.to_string(), "-w", "10"]);
        command.args(["-p", &port.to_string(), "-c", core]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut server = Program::start_on_any(args("1"))?;
    server.wait_until("listens", || has_tcp_listener(port))?;
    let output = output_within(PATIENCE, args("0").args(["-f", "-v", "127.0.0.1"]))
        .context("cannot run ucx_perftest")?;
    let text = String::from_utf8_lossy(&output.stdout);
    median_of(&text).with_context(|| {
        format!("ucx_perftest over {} with {len} bytes printed no figure", transport.name)
    })
}

/// The second field of the last line: the median of the latencies.
fn median_of(output: &str) -> Option<f64> {
    output.lines().last()?.split(',').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_stands_in_the_last_line() {
        let output = "iterations,50.0_percentile_lat,avg_lat\n 300,24.235,118.734\n";
        assert_eq!(median_of(output), Some(24.235));
        assert_eq!(median_of("UCX  ERROR\n"), None);
    }
}
