//! `remora nic`: one card for the processes of a machine.
//!
//! Without a further word, the command is the daemon; `status`, `evict` and `impair` ask one that
//! runs.

mod serve;
mod status;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use remora::daemon::Observer;
use remora::impair::Impairments;

use crate::failure::wrong_line;

/// `remora nic`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  remora nic --bind eth0                  serve this user's programs, until Ctrl-C
  remora run -- ib_send_bw -d remora0     a program that uses the card, in another terminal
  remora nic status --watch               who uses it, and how much
  remora nic evict ib_send_bw-4711        end a session, by its name or number
  remora nic impair loss=1%               lose packets, until: remora nic impair off

Programs of this user find the daemon by themselves; REMORA_NIC=PATH names another one's socket, and
REMORA_NIC=off gives a program a card of its own. A daemon for several users needs a policy
(--policy): see docs/nic.md."
)]
pub(crate) struct Nic {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the sessions of a running daemon
    Status(status::Status),
    /// End a session: its program is told, and what it has on the card is destroyed
    Evict(Evict),
    /// Have the card lose, delay or damage packets, as a bad network would
    Impair(Impair),
}

/// `remora nic evict`.
#[derive(Debug, Args)]
struct Evict {
    /// The session's name, or its number, as in %7: see `remora nic status`
    session: String,
    #[command(flatten)]
    socket: Socket,
}

/// `remora nic impair`.
#[derive(Debug, Args)]
struct Impair {
    /// What happens to packets, as in loss=1%,delay=20us+-5us (see docs/bad-networks.md); off: no
    /// more
    impairments: String,
    #[command(flatten)]
    socket: Socket,
}

impl Impair {
    fn run(self) -> Result<()> {
        // What is wrong with it is said here, without a daemon.
        self.impairments.parse::<Impairments>().map_err(wrong_line)?;
        Ok(self.socket.connect()?.impair(&self.impairments)?)
    }
}

/// Which daemon to ask.
#[derive(Debug, Args)]
struct Socket {
    /// The daemon's socket [default: REMORA_NIC, else this user's, else the machine's]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Socket {
    fn connect(&self) -> Result<Observer> {
        Ok(Observer::connect(self.socket.as_deref())?)
    }
}

impl Nic {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            None => self.serve.run(),
            Some(Command::Status(status)) => status.run(),
            Some(Command::Evict(evict)) => Ok(evict.socket.connect()?.evict(&evict.session)?),
            Some(Command::Impair(impair)) => impair.run(),
        }
    }
}
