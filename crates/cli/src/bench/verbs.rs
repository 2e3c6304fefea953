//! `remora bench verbs`: perftest and rdmacm-utils, unmodified, and an event-driven server, on
//! Remora's card, beside Remora's own measurements and beside plain sockets.
//!
//! Each program is started by `remora run`, both ends pinned to a core each, as the peers are.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::event_server::EventServer;
use super::program::{Program, free_tcp_port, has_tcp_listener};
use super::report::{Options, report};
use super::row::{Case, Run, Target};
use super::transport::{peer, writes};
use crate::verbs::libraries::Libraries;
use crate::verbs::program;

/// The programs that must be installed, and their packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("ib_write_lat", "perftest"),
    ("ib_write_bw", "perftest"),
    ("ib_send_bw", "perftest"),
    ("ucmatose", "rdmacm-utils"),
];
/// The number of queue pairs that `rdma_cm_1000` connects.
const CONNECTIONS: &str = "1000";

/// Measures verbs programs.
#[derive(Debug, Args)]
pub(super) struct Verbs {
    #[command(flatten)]
    pub(super) options: Options,
}

impl Verbs {
    pub(super) fn run(&self) -> Result<()> {
        all_is_there()?;
        let quick = self.options.quick;
        let event_server = EventServer::compile()?;
        let of_events = event_server.cases(if quick { "0.1" } else { "0.5" });
        let cases = cases(quick).into_iter().chain(of_events.map(|case| (case, 9)));
        let cases = cases.chain([(connections(), 3)]);
        let cases = cases.map(|(case, runs)| (case, if quick { runs.min(3) } else { runs }));
        let rows = self.options.measure_each(cases)?;
        report(&rows, "`ib_write_lat_8B`", &self.options)
    }
}

fn all_is_there() -> Result<()> {
    Libraries::find()?;
    let missing: Vec<&(&str, &str)> =
        PROGRAMS.iter().filter(|(name, _)| program::find(name.as_ref()).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    bail!(
        "{} not found; install the packages {} (Debian, Ubuntu: apt install {})",
        names.join(", "),
        packages.join(" and "),
        packages.join(" ")
    )
}

/// The rows that have a target, and how many runs each side of them gets.
fn cases(quick: bool) -> [(Case<'static>, usize); 3] {
    let iterations = |full: &'static str, fewer: &'static str| if quick { fewer } else { full };
    let seconds = if quick { "0.1" } else { "0.4" };
    let latency = Case {
        name: "ib_write_lat_8B",
        unit: "µs",
        peer: "remora perf write lat",
        target: Target::AtMost(1.1),
        // The columns: bytes, iterations, least, most, typical (the median) …
        ours: perftest("ib_write_lat -F -s 8 -n", iterations("20000", "2000"), 4),
        theirs: writes("lat --size 8", seconds, "median_us"),
    };
    let bandwidth = Case {
        name: "ib_write_bw_1MiB",
        unit: "Gb/s",
        peer: "remora perf write bw",
        target: Target::AtLeast(0.95),
        // The columns: bytes, iterations, peak, average, messages a second.
        ours: perftest("ib_write_bw -F --report_gbits -s 1048576 -n", iterations("2000", "400"), 3),
        theirs: writes("bw --size 1M --mtu 4096 --qps 1 --depth 128", seconds, "gbps"),
    };
    let rate = Case {
        name: "ib_send_bw_64B_16qp",
        unit: "Mmsg/s",
        peer: "UDP, a packet a call",
        target: Target::AtLeast(4.0),
        ours: perftest(
            "ib_send_bw -F --report_gbits -s 64 -q 16 -n",
            iterations("50000", "10000"),
            4,
        ),
        theirs: peer("udp-rate", seconds),
    };
    // Single runs of bandwidth, of either side, differ by a third.
    [(latency, 9), (bandwidth, 35), (rate, 9)]
}

/// The figure in `column` of the last line of numbers that a perftest client prints; the server is
/// the same program.
fn perftest(test: &'static str, iterations: &'static str, column: usize) -> Run<'static> {
    Box::new(move || perftest_with(&[], &format!("{test} {iterations}"), column))
}

/// As [`perftest`], once, with environment variables set.
pub(super) fn perftest_with(
    variables: &[(&str, &OsStr)],
    test: &str,
    column: usize,
) -> Result<f64> {
    let port = free_tcp_port()?;
    let mut args: Vec<String> = test.split(' ').map(String::from).collect();
    args.extend(["-p".into(), port.to_string()]);
    let mut server = Program::start_with(variables, 1, &args)?;
    server.wait_until("listens", || has_tcp_listener(port))?;
    args.push(Ipv4Addr::LOCALHOST.to_string());
    let out = Program::start_with(variables, 0, &args)?.succeed()?;
    server.succeed()?;
    last_row(&out)
        .get(column)
        .copied()
        .with_context(|| format!("`{}` printed no figure:\n{out}", args[0]))
}

/// The numbers of the last line of numbers.
fn last_row(text: &str) -> Vec<f64> {
    let numbers = |line: &str| -> Option<Vec<f64>> {
        let row: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        row.ok().filter(|row| !row.is_empty())
    };
    text.lines().rev().find_map(numbers).unwrap_or_default()
}

/// How long a thousand queue pairs take to be connected, used and disconnected through rdma_cm,
/// beside as many TCP connections, as a row without a target.
fn connections() -> Case<'static> {
    Case {
        name: "rdma_cm_1000",
        unit: "ms",
        peer: "1000 TCP connections",
        target: Target::Any,
        ours: Box::new(ucmatose),
        theirs: Box::new(tcp_connections),
    }
}

fn ucmatose() -> Result<f64> {
    let port = free_tcp_port()?.to_string();
    let with = |more: &[&str]| {
        let args = ["ucmatose", "-c", CONNECTIONS, "-C", "1", "-p", &port];
        args.iter().chain(more).map(|arg| (*arg).to_owned()).collect::<Vec<String>>()
    };
    let mut server = Program::start(1, &with(&[]))?;
    server.wait_until("listens", || has_cm_listener(&port))?;
    let start = Instant::now();
    let client = Program::start(0, &with(&["-s", "127.0.0.1"]))?;
    let out = client.succeed()?;
    let elapsed = start.elapsed();
    let of_server = server.succeed()?;
    for out in [out, of_server] {
        ensure!(
            out.contains("return status 0"),
            "ucmatose could not connect {CONNECTIONS} queue pairs:\n{out}"
        );
    }
    Ok(elapsed.as_secs_f64() * 1e3)
}

/// The same number of TCP connections: connected, one byte sent each way, closed.
fn tcp_connections() -> Result<f64> {
    use std::io::{Read, Write};
    let count: usize = CONNECTIONS.parse()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen over TCP")?;
    let to = listener.local_addr()?;
    let start = Instant::now();
    let serve = move || -> std::io::Result<()> {
        for _ in 0..count {
            let (mut stream, _) = listener.accept()?;
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        Ok(())
    };
    let serving = crate::thread::spawn("tcp server", serve)?;
    for _ in 0..count {
        let mut stream = TcpStream::connect(to).context("cannot connect over TCP")?;
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
    }
    serving.join().ok().context("a thread panicked")??;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Does a process listen on this port of rdma_cm?
fn has_cm_listener(port: &str) -> bool {
    remora::unix_names::named("remora/cm/").unwrap_or_default().iter().any(|name| {
        let parts: Vec<&str> = name.rest.split('/').collect();
        // The parts: port space, port, address, card.
        parts.len() == 4 && parts[1] == port
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_in_the_last_line_of_numbers() {
        let text = " #bytes #iterations t_typical[usec]\n 2 10 1.5\n 8 1000 4.25\n------\n";
        assert_eq!(last_row(text), [8.0, 1000.0, 4.25]);
        assert!(last_row("nothing\n\n").is_empty());
    }

    #[test]
    fn a_port_without_a_listener_is_told() {
        assert!(!has_cm_listener("no port"));
    }

    #[test]
    fn a_thousand_tcp_connections_are_made() {
        assert!(tcp_connections().unwrap() > 0.0);
    }
}
