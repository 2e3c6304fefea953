//! `remora run`: starts a verbs program on Remora's card, with the variables of
//! [`crate::verbs::environment`].
//!
//! `exec` replaces this process by the program, so process id, standard streams, signals and exit
//! status are the program's own. Only the environment tells it of Remora.
//!
//! For a program that is linked to libibverbs in the ordinary way, `LD_LIBRARY_PATH` suffices. It
//! does not for one with an RPATH, nor for one that brings a renamed libibverbs along (Python
//! wheels do), perhaps in a library that it loads later. So the library is always preloaded too,
//! and its symbols go before those of any other copy. A program without verbs does not notice,
//! because no code of the library runs until it is called.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use remora::daemon::Observer;
use remora::message::{self, DaemonPlace, Kept, SOCKET_VARIABLE};

use crate::child;
use crate::verbs::environment::{Variables, Wishes};
use crate::verbs::libraries::Libraries;
use crate::verbs::program::{self, NoProgram, Reach};

/// The exit statuses by which a shell reports that it cannot start a program.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// `remora run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora run -- ibv_devinfo -v
  remora run -- ib_write_bw &  sleep 1;  remora run -- ib_write_bw localhost
  remora run --addr eth0 -- ib_send_lat 192.0.2.7       a card on the network, to a peer there
  remora run --keep store:2h -- ./server                on a shared card: outlives the program
  remora run --log why.log -- ./server                  what the card did, and why requests failed
  remora run --impair loss=1%,delay=20us -- ./server    on a bad network (docs/bad-networks.md)
  eval \"$(remora run --env)\"                            for all programs of this shell

The status is the program's own; 127: not found, 126: not executable, 1: Remora could not run it.")]
pub(crate) struct Run {
    /// IP address or interface for the program's card, or several, separated by commas [default:
    /// REMORA_ADDR, else a free address of 127.0.0.0/8]
    #[arg(long, value_name = "IP|INTERFACE")]
    addr: Option<String>,
    /// Append what the card does, and why requests fail, to a file; %p in its name becomes the
    /// process id
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// What happens to the card's packets, as in loss=1%,delay=20us+-5us,rate=10G; or @FILE, whose
    /// content may change meanwhile
    #[arg(long, value_name = "IMPAIRMENTS", conflicts_with = "keep")]
    impair: Option<String>,
    /// Keep what the program has on the card when it ends or is killed: its session is called
    /// NAME, and ends after TIME (60s, 5m, 2h) or by `remora nic evict NAME`; it needs `remora nic`
    #[arg(long, value_name = "NAME[:TIME]")]
    keep: Option<Kept>,
    /// A session of that name which a killed program has left ends, with all that it had, as the
    /// program opens the card
    #[arg(long, requires = "keep")]
    anew: bool,
    /// Set LD_LIBRARY_PATH only; programs that bring their own libibverbs then do not use Remora
    #[arg(long)]
    no_preload: bool,
    /// Print the variables as lines for a shell, and run nothing
    #[arg(long, conflicts_with = "program")]
    env: bool,
    /// Pin the program to the n-th core
    #[arg(long, hide = true, value_name = "N")]
    pin: Option<usize>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true)]
    #[arg(required_unless_present = "env", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    /// Runs the command. Returns only if the program could not be started.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let wishes = Wishes {
            addr: self.addr.as_deref(),
            log: self.log.as_deref(),
            impair: self.impair.as_deref(),
            no_preload: self.no_preload,
            keep: self.keep.as_ref(),
            anew: self.anew,
        };
        if self.keep.is_some() {
            Observer::connect(None).context("a session can be kept only by a daemon")?;
        }
        if let (Some(_), DaemonPlace::Named(socket)) = (&self.impair, message::place()) {
            bail!(
                "--impair is for a card of the program's own, but {SOCKET_VARIABLE} names the one \
                at {}: ask `remora nic impair` for a bad network there, or set \
                {SOCKET_VARIABLE}=off",
                socket.display()
            );
        }
        let variables = wishes.variables(&Libraries::find()?)?;
        if self.env {
            return print(&variables).map(|()| ExitCode::SUCCESS);
        }
        let (name, args) = self.program.split_first().context("name a program")?;
        let program = match program::find(name) {
            Ok(program) => program,
            Err(why) => return Ok(cannot_start(name, why)),
        };
        for concern in program.concerns() {
            let matters = match concern.reach {
                Reach::Never => true,
                Reach::OnlyPreloaded => self.no_preload,
                Reach::OnlyUnpreloaded => !self.no_preload,
            };
            if matters {
                eprintln!("remora: warning: {}; {}", concern.found, concern.advice);
            }
        }
        if let Some(core) = self.pin {
            child::pin(core)?;
        }
        let failed = Command::new(&program.path).arg0(name).args(args).envs(variables).exec();
        match failed.kind() {
            ErrorKind::PermissionDenied => Ok(cannot_start(name, NoProgram::NotExecutable)),
            ErrorKind::NotFound => {
                // The file exists, so its interpreter or dynamic linker does not.
                eprintln!(
                    "remora: cannot start {}: its interpreter or dynamic linker does not exist",
                    program.path.display()
                );
                Ok(ExitCode::from(NOT_FOUND))
            }
            _ => Err(failed).with_context(|| format!("cannot start {}", program.path.display())),
        }
    }
}

fn cannot_start(name: &OsStr, why: NoProgram) -> ExitCode {
    let name = name.to_string_lossy();
    let (status, reason) = match why {
        NoProgram::NotFound if name.contains('/') => (NOT_FOUND, "there is no such file"),
        NoProgram::NotFound => (NOT_FOUND, "no folder of PATH has it"),
        NoProgram::NotExecutable => (NOT_EXECUTABLE, "it may not be executed"),
    };
    eprintln!("remora: cannot start `{name}`: {reason}");
    ExitCode::from(status)
}

/// Prints the variables as lines that any shell of the Bourne family can evaluate.
fn print(variables: &Variables) -> Result<()> {
    for (name, value) in variables {
        let Some(value) = value.to_str() else {
            bail!("cannot print {name}: its value is not UTF-8: {}", value.to_string_lossy());
        };
        println!("export {name}='{}'", value.replace('\'', r"'\''"));
    }
    Ok(())
}
