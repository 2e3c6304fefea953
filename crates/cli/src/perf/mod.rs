//! `remora perf`: latency and bandwidth, in the manner of perftest.
//!
//! A client connects to `remora perf serve` by RDMA CM ([`session`]), with the test's [`plan`] as
//! private data. Queue pair numbers go over a control connection ([`control`]), so that a thousand
//! queue pairs cost two messages. Then [`latency`] or [`bandwidth`] runs, and [`verify`] compares
//! what has arrived with the [`pattern`],
//! and [`report`] makes the figures (median, p99) and prints them. [`serve`] is the other end.

mod bandwidth;
mod control;
mod latency;
mod pattern;
mod plan;
mod report;
mod serve;
mod session;
mod verify;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, value_parser};
use remora_command::node::address::{AddressError, NodeAddress};
use remora_command::seconds::seconds;

use crate::DeviceArgs;
use crate::child::{self, Helper};
use crate::failure::wrong_line;
use crate::remote::reaching;
use plan::{Mode, Plan, Until, Verb};
use serve::DEFAULT_PORT;
use session::Session;

/// `remora perf`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora perf write lat                                 between two processes of this machine
  remora perf read bw --size 1M --qps 4                 bandwidth of READs, on 4 queue pairs
  remora perf serve --bind eth0                         on one machine ...
  remora perf send lat --bind eth0 192.0.2.7            ... and on another, to the first

Every test ends with a check that all bytes have arrived.")]
pub(crate) struct Perf {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// RDMA WRITE; latency is a ping-pong in which each side polls memory for the last byte
    Write(Test),
    /// RDMA READ
    Read(Test),
    /// SEND; latency is a ping-pong of messages
    Send(Test),
    /// Fetch-and-add of 8 bytes
    Atomic(Test),
    /// Be the other end: serve clients until stopped
    Serve(serve::Serve),
}

/// One measurement.
#[derive(Clone, Debug, Args)]
struct Test {
    /// Latency or bandwidth
    #[arg(value_enum)]
    mode: Mode,
    /// A running `remora perf serve`: HOST or HOST:PORT [default: start one on this machine, and
    /// stop it at the end]
    #[arg(value_parser = address)]
    node: Option<NodeAddress>,
    /// Message size in bytes; K, M, G are accepted [default: 8 for lat, 64K for bw]
    #[arg(long, short, value_parser = plan::parse_message_size)]
    size: Option<u32>,
    /// Queue pairs (bw)
    #[arg(long, short, default_value_t = 1, value_parser = qps_in_range())]
    qps: u32,
    /// Messages of each queue pair [default: 1000 for lat, 5000 for bw]
    #[arg(long, short = 'n', conflicts_with = "duration")]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Seconds to run, instead of a number of messages
    #[arg(long, short = 'D', value_name = "S", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the link allows]
    #[arg(long, short, value_parser = plan::parse_mtu)]
    mtu: Option<remora::nic::qp::Mtu>,
    /// Messages in flight on each queue pair
    #[arg(long, short = 't', default_value_t = 128)]
    #[arg(value_parser = value_parser!(u32).range(1..=8192))]
    depth: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Let the system choose the cores of the two ends
    #[arg(long)]
    no_pin: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Perf {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Write(test) => test.run(Verb::Write),
            What::Read(test) => test.run(Verb::Read),
            What::Send(test) => test.run(Verb::Send),
            What::Atomic(test) => test.run(Verb::Atomic),
            What::Serve(serve) => serve.run(),
        }
    }
}

impl Test {
    fn run(&self, verb: Verb) -> Result<()> {
        let plan = self.plan(verb).map_err(wrong_line)?;
        let (server, node) = match self.node {
            Some(node) => (None, node.into()),
            None => self.start_server().map(|(server, node)| (Some(server), node))?,
        };
        if !self.no_pin && server.is_some() {
            child::pin(0)?;
        }
        let device = match self.node {
            Some(_) => reaching(&self.device, node.ip())?.open()?,
            None => self.device.open()?,
        };
        let outcome = self.measure(&device, plan, node);
        self.device.finish(&device);
        let result = outcome?;
        if let Some(server) = server {
            server.finish()?;
        }
        report::print(&result, self.json)
    }

    fn measure(
        &self,
        device: &remora::Device,
        plan: Plan,
        node: SocketAddr,
    ) -> Result<report::Outcome> {
        let mut session = Session::connect(device, plan, self.mtu, node)?;
        let until = self.until();
        let measured = match plan.mode {
            Mode::Lat => report::Measured::Latency(latency::measure(&mut session, until)?),
            Mode::Bw => report::Measured::Bandwidth(bandwidth::measure(&mut session, until)?),
        };
        verify::client(&mut session, measured.messages())?;
        let (mtu, lossy) = (session.mtu.bytes(), session.lossy);
        Ok(report::Outcome { plan, mtu, lossy, measured })
    }

    fn plan(&self, verb: Verb) -> Result<Plan> {
        let size = match (verb, self.size) {
            (Verb::Atomic, None | Some(8)) => 8,
            (Verb::Atomic, Some(_)) => {
                anyhow::bail!("an atomic works on 8 bytes: leave out --size")
            }
            (_, Some(size)) => size,
            (_, None) if self.mode == Mode::Lat => 8,
            (_, None) => 65_536,
        };
        let one = self.mode == Mode::Bw || self.qps == 1;
        ensure!(one, "latency is measured on one queue pair: leave out --qps");
        let plan = Plan { verb, mode: self.mode, size, qps: self.qps, depth: self.depth };
        plan.judge()?;
        Ok(plan)
    }

    fn until(&self) -> Until {
        let usual = if self.mode == Mode::Lat { 1000 } else { 5000 };
        match self.duration {
            Some(time) => Until::Elapsed(time),
            None => Until::Messages(self.iters.unwrap_or(usual)),
        }
    }

    /// Starts `remora perf serve` on an address of its own.
    fn start_server(&self) -> Result<(Helper, SocketAddr)> {
        let mut args: Vec<String> = ["perf", "serve", "--child"].map(String::from).into();
        if !self.no_pin {
            args.extend(["--pin".into(), "1".into()]);
        }
        if self.device.stats {
            args.push("--stats".into());
        }
        if self.device.bind.as_deref().is_some_and(is_ipv6) {
            args.extend(["--bind".into(), Ipv6Addr::LOCALHOST.to_string()]);
        }
        let mut server = Helper::start(args)?;
        let line = server.line()?;
        let node = line.strip_prefix(serve::LISTENING).and_then(|at| at.trim().parse().ok());
        let node = node.with_context(|| {
            format!("the other process printed `{line}` instead of its address")
        })?;
        Ok((server, node))
    }
}

/// Is it an address of IPv6? An interface has one of IPv4, too.
fn is_ipv6(bind: &str) -> bool {
    bind.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6())
}

/// The address of a running `remora perf serve`.
fn address(text: &str) -> Result<NodeAddress, AddressError> {
    NodeAddress::parse(text, DEFAULT_PORT)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    if !(0.001..=86_400.0).contains(&time.as_secs_f64()) {
        return Err("give between 0.001 and 86400 seconds".into());
    }
    Ok(time)
}

fn qps_in_range() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=i64::from(plan::QPS_MAX))
}
