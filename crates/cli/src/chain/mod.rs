//! `remora chain`: programs of work requests.
//!
//! - [`run`], [`trace`], [`automaton`], [`machine`]: its commands.
//! - [`source`]: a program's text, and the card that runs it; [`outcome`]: how it ended.

mod automaton;
mod machine;
mod outcome;
mod run;
mod source;
mod trace;

use anyhow::Result;
use clap::{Args, Subcommand};

/// `remora chain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora chain run examples/chains/search.chain
  remora chain trace examples/chains/hash_get.chain     each step
  remora chain trace examples/chains/hash_get.chain --svg hash_get.svg     and a drawing
  remora chain automaton --rule 110 --generations 16
  remora chain machine examples/chains/busy_beaver.json")]
pub(crate) struct Chain {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a program to its end, and print the places that it says to show
    Run(run::Run),
    /// Run a program step by step, print what was fetched and what each step changed, and draw it
    Trace(trace::Trace),
    /// Compute a cellular automaton (Rule 110, …) by a chain, and compare with a plain interpreter
    Automaton(automaton::Automaton),
    /// Run a Turing machine, given by its table, as a chain
    Machine(machine::TuringMachine),
}

impl Chain {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Run(run) => run.run(),
            What::Trace(trace) => trace.run(),
            What::Automaton(automaton) => automaton.run(),
            What::Machine(machine) => machine.run(),
        }
    }
}
