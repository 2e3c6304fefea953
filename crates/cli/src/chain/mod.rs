//! `remora chain`: programs of work requests.

mod automaton;
mod machine;
mod run;
mod trace;

use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use remora::offload::chain::card::ChainCard;
use remora::offload::chain::place::Span;
use remora::offload::chain::text::{Source, parse};
use serde::Serialize;

use crate::output;

/// `remora chain`.
#[derive(Debug, Args)]
pub(crate) struct Chain {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a program to its end, and show what it says to show
    Run(run::Run),
    /// Run a program step by step: what was fetched, what it changed in whom; and draw it
    Trace(trace::Trace),
    /// Compute a cellular automaton (Rule 110, …) by a chain, beside a plain interpreter
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

/// Reads a program; what is wrong with it is printed as a compiler would.
fn load(path: &Path, json: bool) -> Result<Source> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = match parse(&text) {
        Ok(source) => return Ok(source),
        Err(wrong) => wrong,
    };
    let name = path.display().to_string();
    for mistake in &wrong {
        if json {
            let (line, column) = mistake.line_column(&text);
            let (message, help) = (&mistake.message, &mistake.help);
            output::json_line(&serde_json::json!({
                "file": name, "line": line, "column": column, "error": message, "help": help,
            }))?;
        } else {
            eprintln!("{}\n", mistake.render(&name, &text, std::io::stderr().is_terminal()));
        }
    }
    let mistakes = if wrong.len() == 1 { "mistake" } else { "mistakes" };
    bail!("{name} has {} {mistakes}: it was not run", wrong.len())
}

/// What a program ends with.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    value: String,
}

/// What the text says to show, and the answers that its client received.
#[derive(Debug, Serialize)]
struct Outcome {
    shown: Vec<Shown>,
    answers: Vec<String>,
    /// Requests that ended with an error.
    failures: Vec<String>,
    /// It came to rest by itself.
    rests: bool,
}

impl Outcome {
    fn of(source: &Source, card: &mut ChainCard, rests: bool) -> Outcome {
        let (program, failed) = (&source.program, card.failures());
        let value = |span: &Span| {
            let addr = program.address(card.layout(), span.at);
            program.bytes_name(card.layout(), card.bytes(addr, span.len as usize))
        };
        let shown = |shown: &remora::offload::chain::text::Shown| Shown {
            name: shown.name.clone(),
            value: value(&shown.span),
        };
        let failures = failed
            .iter()
            .map(|(_, label, status)| format!("{}: {status}", program.title(*label)))
            .collect();
        let shown = source.shown.iter().map(shown).collect();
        let answers = card.answers();
        let answers = answers.iter().map(|bytes| program.bytes_name(card.layout(), bytes));
        Outcome { shown, answers: answers.collect(), failures, rests }
    }

    /// Prints it; a failed request is an error.
    fn print(&self, json: bool) -> Result<()> {
        if json {
            output::json_line(self)?;
        } else {
            for Shown { name, value } in &self.shown {
                println!("{name} = {value}");
            }
            for answer in &self.answers {
                println!("the client received {answer}");
            }
        }
        match self.failures.as_slice() {
            [] => Ok(()),
            [first, ..] => bail!("a request failed: {first}"),
        }
    }
}

/// A card with the program, and all the client's messages on their way.
fn set_up(source: &Source) -> Result<(ChainCard, Vec<Vec<u8>>)> {
    let card = ChainCard::new(&source.program, &[]).context("cannot set the program up")?;
    let message = |span: &Span| {
        let addr = source.program.address(card.layout(), span.at);
        card.bytes(addr, span.len as usize).to_vec()
    };
    let messages = source.requests.iter().map(message).collect();
    Ok((card, messages))
}
