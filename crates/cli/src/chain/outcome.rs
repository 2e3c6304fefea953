//! The outcome of a program.

use anyhow::{Result, bail};
use remora::offload::chain::card::ChainCard;
use remora::offload::chain::place::Span;
use remora::offload::chain::text::{self, Source};
use serde::Serialize;

use crate::output;

/// A place that the text says to show, and its value at the end.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    value: String,
}

/// The places to show, and the answers that the client received.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    shown: Vec<Shown>,
    pub(super) answers: Vec<String>,
    /// Requests that failed.
    failures: Vec<String>,
    /// The program came to rest by itself.
    rests: bool,
}

impl Outcome {
    pub(super) fn of(source: &Source, card: &mut ChainCard, rests: bool) -> Outcome {
        let (program, failed) = (&source.program, card.failures());
        let value = |span: &Span| {
            let addr = program.address(card.layout(), span.at);
            program.bytes_name(card.layout(), card.bytes(addr, span.len as usize))
        };
        let shown =
            |shown: &text::Shown| Shown { name: shown.name.clone(), value: value(&shown.span) };
        let failures = failed.iter().map(|failure| program.failure(failure)).collect();
        let shown = source.shown.iter().map(shown).collect();
        let answers = card.answers();
        let answers = answers.iter().map(|bytes| program.bytes_name(card.layout(), bytes));
        Outcome { shown, answers: answers.collect(), failures, rests }
    }

    /// Prints the outcome; a failed request is an error.
    pub(super) fn print(&self, json: bool) -> Result<()> {
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
