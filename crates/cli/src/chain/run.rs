//! `remora chain run`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use remora_command::seconds::seconds;

use super::outcome::Outcome;
use super::source::{load, set_up};
use crate::stop;

/// Polls between looks at the clock.
const POLLS: usize = 64;

/// `remora chain run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The program's text
    file: PathBuf,
    /// Stop the program after this many seconds, if it does not end by itself; Ctrl-C stops it too
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Print the outcome, or the mistakes in the text, as lines of JSON
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(crate) fn run(self) -> Result<()> {
        let source = load(&self.file, self.json)?;
        let (mut card, messages) = set_up(&source)?;
        let (stop, end) = (stop::on_signals()?, Instant::now().checked_add(self.seconds));
        let is_in_time = || end.is_none_or(|end| Instant::now() < end);
        let goes_on = || !stop.load(Ordering::Relaxed) && is_in_time();
        let mut rests = false;
        let mut answers = Vec::new();
        // The client sends a message when the one before is answered, or when the program comes to
        // rest.
        for message in messages.iter().map(Some).chain([None]) {
            rests = false;
            while !rests && goes_on() {
                rests = card.run(POLLS);
            }
            answers.extend(card.answers());
            if let Some(message) = message {
                card.send(message)?;
            }
        }
        let mut outcome = Outcome::of(&source, &mut card, rests);
        let text = |answer: &Vec<u8>| source.program.bytes_name(card.layout(), answer);
        outcome.answers.splice(0..0, answers.iter().map(text));
        if !self.json && !rests {
            eprintln!("stopped: the program had not come to rest");
        }
        outcome.print(self.json)
    }
}
