//! Other programs that end with this process, however it ends.
//!
//! A signal that kills this process leaves it no time to end what it has started. The system does,
//! for a process that has asked to end with its parent. So this program, as the hidden command
//! `bound`, asks, and lets the other program take its place.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The hidden command `bound`.
#[derive(Debug, Args)]
pub struct Bound {
    /// The process with which the program ends
    parent: i32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

impl Bound {
    /// Becomes the program. Returns only if it cannot be started.
    ///
    /// # Errors
    /// There is no such program, or the parent has ended already.
    pub fn run(self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with a parent")?;
        ensure!(getppid() == Pid::from_raw(self.parent), "process {} has ended", self.parent);
        let (name, args) = self.program.split_first().context("name a program")?;
        let failed = Command::new(name).args(args).exec();
        Err(failed).with_context(|| format!("cannot start `{}`", name.display()))
    }
}

/// The same command, which ends with the thread that starts it: with this process, if that is the
/// main one. What becomes another user on its way does not.
///
/// # Errors
/// This program's own file cannot be found.
pub fn bound(command: &Command) -> Result<Command> {
    let ourselves = env::current_exe().context("cannot find this program's own file")?;
    let mut bound = Command::new(ourselves);
    bound.arg("bound").arg(process::id().to_string());
    bound.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    Ok(bound)
}
