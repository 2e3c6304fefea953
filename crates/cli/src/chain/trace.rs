//! `remora chain trace`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use remora::offload::chain::card::Step;
use remora::offload::chain::picture::{Runs, svg};
use serde_json::json;

use super::outcome::Outcome;
use super::source::{load, set_up};
use crate::output;

/// `remora chain trace`.
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The program's text
    file: PathBuf,
    /// Draw the chain into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show at most this many steps
    #[arg(long, default_value_t = 1000)]
    steps: usize,
    /// Print steps and outcome, or the mistakes in the text, as lines of JSON
    #[arg(long)]
    json: bool,
}

impl Trace {
    pub(crate) fn run(self) -> Result<()> {
        let source = load(&self.file, self.json)?;
        let program = &source.program;
        let (mut card, messages) = set_up(&source)?;
        let mut steps = card.trace(self.steps);
        for message in &messages {
            card.send(message)?;
            steps.extend(card.trace(self.steps.saturating_sub(steps.len())));
        }
        let rests = steps.len() < self.steps;
        let told: Vec<[String; 3]> = steps
            .iter()
            .map(|step| {
                let place = program.step_label(step).map(|label| program.title(label));
                let queue = &program.queues()[step.queue.index()].name;
                let at = format!("{queue}[{}]", step.index);
                let place = place.filter(|name| *name != at && !name.starts_with(queue.as_str()));
                let name = place.map_or_else(|| at.clone(), |name| format!("{at} {name}"));
                let effects = program.effects(card.layout(), step).join("\n");
                [name, program.step_title(card.layout(), step), effects]
            })
            .collect();
        self.print(&told)?;
        if !rests && !self.json {
            eprintln!("the program goes on: give a larger --steps to see more");
        }
        if let Some(path) = &self.svg {
            self.draw(path, program, &steps)?;
        }
        if !self.json {
            let constructs: Vec<_> = program.constructs().collect();
            for (name, cost) in &constructs {
                println!("{name}: {cost}");
            }
            println!("all: {}", program.cost());
        }
        Outcome::of(&source, &mut card, rests).print(self.json)
    }

    fn print(&self, steps: &[[String; 3]]) -> Result<()> {
        if self.json {
            for (i, [request, element, effect]) in steps.iter().enumerate() {
                let effect: Vec<&str> = effect.lines().collect();
                let step = i + 1;
                output::json_line(&json!({
                    "step": step, "request": request, "fetched": element, "effect": effect,
                }))?;
            }
            return Ok(());
        }
        let mut table = output::table(["step", "request", "fetched", "effect"]);
        for (i, [request, element, effect]) in steps.iter().enumerate() {
            table.add_row([&(i + 1).to_string(), request, element, effect]);
        }
        output::align_right(&mut table, [0]);
        println!("{table}");
        Ok(())
    }

    fn draw(
        &self,
        path: &Path,
        program: &remora::offload::chain::program::Program,
        steps: &[Step],
    ) -> Result<()> {
        let name = self.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "chain".into());
        let picture = svg(program, &name, Some(&Runs::of(program, steps)));
        fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
        if !self.json {
            println!("drawn: {}", path.display());
        }
        Ok(())
    }
}
