//! `remora`: a software RDMA card, from the command line.
//!
//! A command is the module of its name. The others: `verbs` is shared by `run`, `doctor` and
//! `bench verbs`, and `ways` by the demo and the benches; `remote` has the options of commands that
//! connect to a node, `sink` is where a command writes what it was asked for, `child` starts other
//! processes of this program, `draws` makes random numbers, `folder` has temporary
//! files.

mod bench;
mod chain;
mod child;
mod demo;
#[cfg(test)]
mod deployed_tests;
mod devinfo;
mod dma;
mod doctor;
mod draws;
mod folder;
mod kernel;
mod mem;
mod nic;
mod perf;
mod remote;
mod run;
mod sim;
mod sink;
mod stats;
mod store;
mod verbs;
mod ways;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use remora::environment::LOG_VARIABLE;
use remora_cli::device::DeviceArgs;
use remora_cli::node::serve::Serve;
use remora_cli::{failure, output, stop, thread};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use verbs::environment::is_level;

/// A software RDMA network card: memory nodes, transfers, measurements, simulations.
#[derive(Debug, Parser)]
#[command(name = "remora", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a verbs program on Remora's card: any program for RDMA hardware, unmodified
    Run(run::Run),
    /// Say in plain words why a verbs program cannot connect here
    Doctor(doctor::Doctor),
    /// Show what the device offers, in the manner of ibv_devinfo
    Devinfo(devinfo::Devinfo),
    /// See it work: move a real file between two processes over RoCE v2, and compare with TCP
    Demo(demo::Demo),
    /// The other end of the demo's TCP copy
    #[command(hide = true)]
    DemoTcp(demo::TcpServer),
    /// The far end of the same work done in several ways
    #[command(hide = true)]
    Ways(ways::Server),
    /// Serve files and memory to other processes by one-sided READs and WRITEs
    Node(Serve),
    /// Serve one card to all programs of this user or machine; show and end their sessions
    Nic(nic::Nic),
    /// List the regions of a node, and read and write them by one-sided READs and WRITEs
    Mem(mem::Mem),
    /// Load kernels into a node's card while it runs, list, call and unload them
    Kernel(kernel::Kernel),
    /// Serve a key-value store near its data; read, write and search it
    Store(store::Store),
    /// Show the counters of a running node
    Stats(stats::Stats),
    /// Simulate random networks of cards, each from one seed, and check their behaviour
    Sim(sim::Sim),
    /// Simulate networks of any size from a file, and draw what happened
    World(world::World),
    /// Run, trace and draw programs of work requests
    Chain(chain::Chain),
    /// Move bytes between applications’ memory and a card’s, and measure the ways
    Dma(dma::Dma),
    /// Measure latency and bandwidth, in the manner of perftest
    Perf(perf::Perf),
    /// Measure Remora beside plain sockets and other baselines, in one run
    Bench(bench::Bench),
}

/// A program that reads the output may close the pipe early (`remora … | head -n 1`). The command
/// then ends quietly, as other commands do, without reporting a panic.
fn end_with_the_reader() {
    /// The exit status by which a shell reports that SIGPIPE has ended a program.
    const BY_SIGPIPE: i32 = 128 + 13;
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_pipe =
            |said: &str| said.starts_with("failed printing") && said.contains("os error 32");
        if panic.payload().downcast_ref::<String>().is_some_and(|said| is_pipe(said)) {
            std::process::exit(BY_SIGPIPE);
        }
        report(panic);
    }));
}

/// Logs to standard error as [`LOG_VARIABLE`] says; warnings by default.
fn start_log() {
    // A value that names a file is for the verbs library, and not a filter.
    let asked = std::env::var(LOG_VARIABLE).ok().filter(|value| is_level(value));
    let filter = asked.and_then(|value| value.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
}

fn main() -> ExitCode {
    end_with_the_reader();
    start_log();
    let succeeded = |()| ExitCode::SUCCESS;
    let done = match Cli::parse().command {
        Command::Run(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Devinfo(command) => command.run().map(succeeded),
        Command::Demo(command) => command.run().map(succeeded),
        Command::DemoTcp(command) => command.run().map(succeeded),
        Command::Ways(command) => command.run().map(succeeded),
        Command::Node(command) => command.run().map(succeeded),
        Command::Nic(command) => command.run().map(succeeded),
        Command::Mem(command) => command.run().map(succeeded),
        Command::Kernel(command) => command.run(),
        Command::Store(command) => command.run(),
        Command::Stats(command) => command.run().map(succeeded),
        Command::Sim(command) => command.run().map(succeeded),
        Command::World(command) => command.run(),
        Command::Chain(command) => command.run().map(succeeded),
        Command::Dma(command) => command.run().map(succeeded),
        Command::Perf(command) => command.run().map(succeeded),
        Command::Bench(command) => command.run().map(succeeded),
    };
    done.unwrap_or_else(|error| {
        eprintln!("remora: {}", failure::told(&error));
        ExitCode::FAILURE
    })
}
