//! `remora doctor`: says why a verbs program cannot connect here, in plain words.
//!
//! It makes a list of [`check::Check`]s, each of which examines one thing, and says what it found,
//! whether that is well, and if not what to do. The checks change nothing and need no privilege;
//! where a check cannot see something, it says so.
//!
//! - [`library`]: whether a program loads this verbs library.
//! - [`machine`]: the firewall, what confines programs, and who listens.
//! - [`network`]: the card's address, port, GID, MTU and socket buffer.
//! - [`peer`]: whether a peer answers.

mod check;
mod library;
mod machine;
mod network;
mod peer;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{Cell, ContentArrangement};
use remora::environment::ADDR_VARIABLE;
use remora_command::node::address::written;
use serde::Serialize;

use crate::output;
use check::{Check, Status};

/// `remora doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora doctor                                   checks this machine
  remora doctor --addr eth0 192.0.2.7             also the way from eth0 to a peer
  remora doctor -- ./server --port 7              also whether this program finds Remora

The exit status is 1 if a check has failed: something keeps programs from connecting.")]
pub(crate) struct Doctor {
    /// Address or name of the machine to which a program here cannot connect
    #[arg(value_parser = written)]
    peer: Option<String>,
    /// The address or interface that the program's card has [default: REMORA_ADDR]
    #[arg(long, value_name = "IP|INTERFACE")]
    addr: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// A program that does not find Remora; it is examined, and not run
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    checks: Vec<Check>,
}

impl Doctor {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let variable = env::var(ADDR_VARIABLE).ok();
        let addr = self.addr.clone().or(variable).unwrap_or_default();
        let mut checks = library::look(&self.program);
        // Programs take the first card unless they are told otherwise.
        let first = addr.split(',').next().unwrap_or_default().trim();
        let card = network::look(first, &mut checks);
        for other in addr.split(',').skip(1).map(str::trim) {
            network::look(other, &mut checks);
        }
        if let Some(peer) = &self.peer {
            peer::look(peer, card.as_ref(), &mut checks);
        }
        machine::look(&mut checks);
        let healthy = checks.iter().all(|check| check.status != Status::Fail);
        let report = Report { healthy, checks };
        if self.json {
            output::json_line(&report)?;
        } else {
            print(&report);
        }
        Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn print(report: &Report) {
    let mut table = output::table(["", "what", "found"]);
    if let Ok(window) = rustix::termios::tcgetwinsize(std::io::stdout())
        && window.ws_col > 0
    {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(window.ws_col);
    }
    for check in &report.checks {
        let mark = match check.status {
            Status::Ok => "ok",
            Status::Note => "-",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        let text = match check.advice.as_str() {
            "" => check.found.clone(),
            advice => format!("{}\n→ {advice}", check.found),
        };
        table.add_row([Cell::new(mark), Cell::new(check.name), Cell::new(text)]);
    }
    println!("{table}");
    let count = |status| report.checks.iter().filter(|check| check.status == status).count();
    match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => println!("Nothing here keeps verbs programs from connecting."),
        (0, _) => println!("Nothing certain keeps verbs programs from connecting; see `warn`."),
        (n, _) => println!("Failed checks: {n}. They keep verbs programs from connecting."),
    }
}
