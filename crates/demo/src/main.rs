//! `remora-demo`: what `remora demo` shows, without the rest of the command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use remora::kernel::no_loader;
use remora_command::node::serve::Serve;
use remora_command::{command_line, failure, log, ways};
use remora_demo::{Demo, Part};

/// See it work: move a real file between two processes over RoCE v2, look things up near the data
#[derive(Debug, Parser)]
#[command(name = "remora-demo", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    demo: Demo,
    #[command(subcommand)]
    part: Option<Process>,
}

/// The processes that the demo starts: commands of `remora`, too.
#[derive(Debug, Subcommand)]
enum Process {
    #[command(hide = true)]
    Node(Serve),
    #[command(hide = true)]
    Ways(ways::Server),
    #[command(flatten)]
    Part(Part),
}

fn main() -> ExitCode {
    log::end_with_the_reader();
    log::start();
    let Cli { demo, part } = match command_line::parse("remora-demo") {
        Ok(line) => line,
        Err(status) => return status,
    };
    let done = match part {
        None => demo.run(),
        Some(Process::Node(node)) => node.run(no_loader),
        Some(Process::Ways(server)) => server.run(no_loader),
        Some(Process::Part(part)) => part.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report("remora-demo", &error),
    }
}
