//! WRITEs from a client of one daemon to a client of another, by UDP, beside the same between two
//! cards of the programs' own.

use anyhow::Result;

use super::super::daemon_process::Daemon;
use super::super::row::{Case, Row, Run, Target};
use super::served::{PerfServer, embedded, perf};
use super::{Wanted, again, cores, spare_core};

const NAMES: [&str; 2] = ["daemon_write_lat_8B", "daemon_write_bw_1MiB"];
const PEER: &str = "cards of the programs’ own";
/// The cores that two programs and two daemons need.
pub(super) const CORES: usize = 4;

/// The rows of this file that are wanted.
pub(super) fn rows(wanted: &Wanted<'_>) -> Result<Vec<Row>> {
    if !wanted.any(&NAMES) {
        return Ok(Vec::new());
    }
    let [one, other] = [0, 1].map(|number| Daemon::start(spare_core(number), "udp"));
    let (one, other) = (one?, other?);
    let server = PerfServer::start(&other)?;
    let seconds = wanted.extent.seconds;
    let [latency, bandwidth] = [
        format!("write lat --size 8 --duration {seconds}"),
        format!("write bw --size 1M --mtu 4096 --qps 1 --depth 16 --duration {seconds}"),
    ];
    let ours = |test: &str, figure| -> Run<'_> {
        let test = test.to_owned();
        let (server, one) = (&server, &one);
        again(move || server.measure(one, &test, figure))
    };
    let theirs = |test: &str, figure| -> Run<'_> {
        let test = test.to_owned();
        again(move || perf(&embedded(), &test, figure))
    };
    // The latency asked for is that where the daemons have cores of their own.
    let at_most = if cores() < CORES { Target::Any } else { Target::AtMost(1.1) };
    wanted.measure([
        Case::latency(
            NAMES[0],
            PEER,
            at_most,
            ours(&latency, "median_us"),
            theirs(&latency, "median_us"),
        ),
        Case {
            name: NAMES[1],
            unit: "Gb/s",
            peer: PEER,
            target: Target::AtLeast(0.95),
            ours: ours(&bandwidth, "gbps"),
            theirs: theirs(&bandwidth, "gbps"),
        },
    ])
}
