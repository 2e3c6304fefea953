//! `remora chain machine`: a Turing machine given by its table, computed by a chain.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use remora::offload::chain::card::ChainCard;
use remora::offload::chain::turing::{Action, Compiled, Machine, Move};
use serde::Deserialize;
use serde_json::json;

use crate::output;

/// `remora chain machine`.
#[derive(Debug, Args)]
pub(crate) struct TuringMachine {
    /// The machine: JSON with "table", "tape" and "head"
    file: PathBuf,
    /// Stop after this many steps, if the machine does not halt
    #[arg(long, default_value_t = 100_000)]
    steps: usize,
    /// Print the outcome as a line of JSON
    #[arg(long)]
    json: bool,
}

/// A machine, and the tape and head with which it starts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// The entries, by state and symbol.
    table: Vec<Vec<Entry>>,
    /// The symbols on the tape.
    tape: Vec<u8>,
    /// The cell at which it starts.
    head: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    write: u8,
    go: Direction,
    /// The next state; without one the machine halts.
    next: Option<u16>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Left,
    Right,
}

impl From<&Entry> for Action {
    fn from(entry: &Entry) -> Action {
        let go = match entry.go {
            Direction::Left => Move::Left,
            Direction::Right => Move::Right,
        };
        Action { write: entry.write, go, next: entry.next }
    }
}

impl TuringMachine {
    pub(crate) fn run(self) -> Result<()> {
        let path = self.file.display();
        let text = fs::read_to_string(&self.file).with_context(|| format!("cannot read {path}"))?;
        let description: Description = serde_json::from_str(&text)
            .with_context(|| format!("{path} does not describe a machine"))?;
        let Description { table, tape, head } = description;
        let table: Vec<Vec<_>> =
            table.iter().map(|row| row.iter().map(Action::from).collect()).collect();
        let symbols = table.first().map_or(0, Vec::len);
        let machine =
            Machine::new(table).with_context(|| format!("{path} does not describe a machine"))?;
        if let Some(symbol) = tape.iter().find(|symbol| usize::from(**symbol) >= symbols) {
            bail!(
                "{path}: the tape has a symbol {symbol}, and the table knows 0 to {}",
                symbols - 1
            );
        }
        if head >= tape.len() {
            bail!("{path}: the head is at {head}, beyond the tape's {} cells", tape.len());
        }
        let compiled = machine.compile(&tape, head);
        let mut card = ChainCard::new(&compiled.program, &[])?;
        let addr = compiled.tape_addr(card.layout());
        let mut plain = machine.start(&tape, head);
        let mut halted = false;
        while !halted && card.completions(compiled.ring) < self.steps as u64 {
            halted = !card.poll();
        }
        let steps = card.completions(compiled.ring);
        for _ in 0..steps {
            machine.step(&mut plain);
        }
        if let Some(failure) = card.failures().first() {
            let failure = compiled.program.failure(failure);
            bail!("after {steps} steps the head left the tape ({failure}): make it longer");
        }
        let symbols = Compiled::symbols(card.bytes(addr, compiled.tape.len as usize));
        // A machine that does not halt may have been stopped within a step.
        if halted && symbols != plain.tape {
            bail!("the chain's tape differs from the interpreter's");
        }
        if self.json {
            return output::json_line(
                &json!({ "steps": steps, "halted": halted, "tape": symbols }),
            );
        }
        let tape: Vec<String> = symbols.iter().map(u8::to_string).collect();
        let end = if halted { "halted" } else { "stopped" };
        println!(
            "{end} after {}, with the same tape as a plain interpreter",
            output::counted(steps, "step")
        );
        println!("{}", tape.join(" "));
        Ok(())
    }
}
