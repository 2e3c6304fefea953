//! Two clients of one daemon: what stays within its card, beside shared memory without a card, and
//! verbs programs beside `remora perf`.

use std::time::Duration;

use anyhow::Result;
use remora::MEMORY_VARIABLE;

use super::super::daemon_process::Daemon;
use super::super::memory::live::{memcpy, ucx};
use super::super::row::{Case, Row, Run, Target};
use super::super::verbs::perftest_with;
use super::served::{PerfServer, attached};
use super::{Wanted, again, spare_core};
use crate::failure::told;
use crate::verbs::libraries::Libraries;
use crate::verbs::program;

const NAMES: [&str; 6] = [
    "local_write_lat_8B",
    "local_write_bw_1MiB",
    "ib_write_lat_8B_local",
    "ib_send_bw_64B_local",
    "ib_write_lat_8B_converted",
    "ib_send_bw_64B_converted",
];
/// What has perftest's buffers, which stay until it ends, mapped by the daemon: the last two rows.
const CONVERTED: &str = "convert,process_vm";
/// The programs of [`NAMES`]' last four rows, and their package.
const PERFTEST: [&str; 2] = ["ib_write_lat", "ib_send_bw"];

/// The rows of this file that are wanted.
pub(super) fn rows(wanted: &Wanted<'_>) -> Result<Vec<Row>> {
    if !wanted.any(&NAMES) {
        return Ok(Vec::new());
    }
    let daemon = Daemon::start(spare_core(0), "auto")?;
    let server = PerfServer::start(&daemon)?;
    let seconds = wanted.extent.seconds;
    let perf = |test: &str, figure: &'static str| -> Run<'_> {
        let test = format!("{test} --duration {seconds}");
        let (server, daemon) = (&server, &daemon);
        again(move || server.measure(daemon, &test, figure))
    };
    let mut cases = vec![latency(perf("write lat --size 8", "median_us")), {
        let mut gbps = perf("write bw --size 1M --mtu 4096 --qps 1 --depth 16", "gbps");
        Case {
            name: NAMES[1],
            unit: "GB/s",
            peer: "memcpy of one core",
            target: Target::AtLeast(0.8),
            ours: Box::new(move || Ok(gbps()? / 8.0)),
            // As ours: the mean of as long.
            theirs: memcpy(1 << 20, 1, Duration::from_secs_f64(seconds)),
        }
    }];
    if wanted.any(&NAMES[2..]) && has_perftest() {
        let [lat, rate] = wanted.extent.iterations;
        let program = |test: String, ways: &'static str| -> Run<'_> {
            let daemon = &daemon;
            again(move || {
                let socket = daemon.socket();
                let [attached] = attached(&socket);
                perftest_with(&[attached, (MEMORY_VARIABLE, ways.as_ref())], &test, 4)
            })
        };
        for (names, ways) in [(&NAMES[2..4], ""), (&NAMES[4..], CONVERTED)] {
            cases.push(Case::latency(
                names[0],
                "remora perf write lat",
                Target::AtMost(1.2),
                program(format!("ib_write_lat -F -s 8 -n {lat}"), ways),
                perf("write lat --size 8", "median_us"),
            ));
            cases.push(Case {
                name: names[1],
                unit: "Mmsg/s",
                peer: "remora perf send bw",
                target: Target::AtLeast(0.9),
                ours: program(format!("ib_send_bw -F --report_gbits -s 64 -n {rate}"), ways),
                theirs: perf("send bw --size 64 --qps 1", "mmsgps"),
            });
        }
    }
    wanted.measure(cases)
}

/// The latency of a WRITE, beside UCX's by shared memory where that is installed.
fn latency(ours: Run<'_>) -> Case<'_> {
    if !ucx::is_there() {
        let none = "ucx_perftest is not installed (Debian: ucx-utils)";
        return Case::latency(NAMES[0], none, Target::Any, ours, Box::new(|| Ok(f64::NAN)));
    }
    let theirs = again(|| ucx::median_us(ucx::SYSV, ucx::What::Latency, 8));
    Case::latency(NAMES[0], "ucx_perftest, sysv", Target::AtMost(3.0), ours, theirs)
}

/// Are the verbs programs and the libraries for them there? If not, says what to install.
fn has_perftest() -> bool {
    if let Err(error) = Libraries::find() {
        println!("the rows {} are left out: {}", NAMES[2..].join(" and "), told(&error));
        return false;
    }
    let missing = PERFTEST.iter().any(|name| program::find(name.as_ref()).is_err());
    if missing {
        println!(
            "{} are not installed (Debian: perftest): their rows are left out",
            NAMES[2..].join(" and ")
        );
    }
    !missing
}
