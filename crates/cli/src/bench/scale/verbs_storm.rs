//! A storm of connections between two processes, by a verbs program with RDMA CM: `storm.c`.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::c_program::CProgram;
use crate::bench::program::Program;

/// The program in C.
const SOURCE: &str = include_str!("storm.c");

/// The program, compiled.
#[derive(Debug)]
pub(super) struct VerbsStorm(CProgram);

impl VerbsStorm {
    /// Compiles the program against this machine's librdmacm.
    pub(super) fn compile() -> Result<VerbsStorm> {
        CProgram::compile("storm", SOURCE, &["-lrdmacm", "-libverbs"]).map(VerbsStorm)
    }

    /// Sets up `count` connections at once; the seconds until all are established.
    pub(super) fn run(&self, count: usize) -> Result<f64> {
        let ourselves = env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(ourselves);
        command.args(["run", "--"]).arg(self.0.path()).arg(count.to_string());
        let out = Program::start_on_any(command)?.succeed()?;
        out.trim().parse().with_context(|| format!("the storm printed no time: {out}"))
    }
}
