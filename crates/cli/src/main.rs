//! `remora`: a software RDMA card, from the command line.
//!
//! A command is the module of its name; `demo` is a crate of its own. The others: `verbs` is shared
//! by `run`, `doctor` and `bench verbs`; `remote` has the options of commands that connect to a
//! node, `sink` is where a command writes what it was asked for.

mod bench;
mod chain;
#[cfg(test)]
mod deployed_tests;
mod devinfo;
mod dma;
mod doctor;
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
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use remora_command::device::DeviceArgs;
use remora_command::node::serve::Serve;
use remora_command::{bound, child, command_line, draws, failure, log, output, stop, thread, ways};
use remora_demo as demo;

/// A software RDMA network card: memory nodes, transfers, measurements, simulations.
#[derive(Debug, Parser)]
#[command(
    name = "remora",
    version,
    propagate_version = true,
    after_help = "\
The exit status is 0 if all went well, 1 if what was tried has failed, 2 if the command line is
wrong, and 130 if a signal has ended the command before its work was done. (What serves or watches
until it is told to stop has done its work.) --json prints each document in a line."
)]
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
    /// The other ends of the demo
    #[command(flatten)]
    DemoPart(demo::Part),
    /// The far end of the same work done in several ways
    #[command(hide = true)]
    Ways(ways::Server),
    /// A program that ends with the process that has started it
    #[command(hide = true)]
    Bound(bound::Bound),
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

fn main() -> ExitCode {
    log::end_with_the_reader();
    log::start();
    let succeeded = |()| ExitCode::SUCCESS;
    let line: Cli = match command_line::parse("remora") {
        Ok(line) => line,
        Err(status) => return status,
    };
    let done = match line.command {
        Command::Run(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Devinfo(command) => command.run().map(succeeded),
        Command::Demo(command) => command.run().map(succeeded),
        Command::DemoPart(part) => part.run().map(succeeded),
        Command::Ways(command) => command.run(remora_wasm::load).map(succeeded),
        Command::Bound(command) => command.run().map(succeeded),
        Command::Node(command) => command.run(remora_wasm::load).map(succeeded),
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
    done.unwrap_or_else(|error| failure::report("remora", &error))
}
