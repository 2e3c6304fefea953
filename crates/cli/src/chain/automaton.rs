//! `remora chain automaton`: Rule 110, which is Turing complete, computed by a chain.

use anyhow::{Result, bail};
use clap::Args;
use remora::offload::chain::card::ChainCard;
use remora::offload::chain::turing::{Compiled, Machine};
use serde_json::json;

use crate::output;

/// `remora chain automaton`.
#[derive(Debug, Args)]
pub(crate) struct Automaton {
    /// Wolfram's number of the rule
    #[arg(long, default_value_t = 110)]
    rule: u8,
    /// Cells of a row; the last one begins as 1
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(3..=2048))]
    cells: u16,
    /// Generations
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    generations: u32,
    /// Print a line of JSON for each generation
    #[arg(long)]
    json: bool,
}

impl Automaton {
    pub(crate) fn run(self) -> Result<()> {
        let cells = usize::from(self.cells);
        let mut row = vec![0; cells];
        row[cells - 1] = 1;
        let machine = Machine::automaton(self.rule);
        let tape = Machine::automaton_tape(&row);
        let compiled = machine.compile(&tape, 1);
        let mut card = ChainCard::new(&compiled.program, &[])?;
        let at = compiled.tape_addr(card.layout());
        let sweep = cells + 2;
        let mut plain = machine.start(&tape, 1);
        // The card computes alone; the steps are checked after they are done.
        let mut shadow = tape.clone();
        let mut stores = 0;
        self.show(0, &row)?;
        let (mut generation, mut checked) = (1, 0);
        while generation <= self.generations {
            for step in card.trace(4096) {
                for change in step.changes {
                    let cell = change.addr.checked_sub(at).map(|offset| offset as usize / 8);
                    let Some(cell) = cell.and_then(|cell| shadow.get_mut(cell)) else { continue };
                    *cell = Compiled::symbols(&change.after).first().copied().unwrap_or(u8::MAX);
                    machine.step(&mut plain);
                    if shadow != plain.tape {
                        bail!(
                            "after step {checked} the chain's tape differs from the interpreter's"
                        );
                    }
                    (stores, checked) = (stores + 1, checked + 1);
                    if stores == sweep && generation <= self.generations {
                        let shift = (generation % 2) as usize;
                        self.show(generation, &shadow[1 + shift..1 + shift + cells])?;
                        (stores, generation) = (0, generation + 1);
                    }
                }
            }
        }
        if !self.json {
            println!(
                "{} of the chain, each with the same tape as a plain interpreter",
                output::counted(checked, "step")
            );
        }
        Ok(())
    }

    fn show(&self, generation: u32, row: &[u8]) -> Result<()> {
        if self.json {
            return output::json_line(&json!({ "generation": generation, "cells": row }));
        }
        let line: String = row.iter().map(|cell| if *cell == 1 { '█' } else { ' ' }).collect();
        println!("{line}");
        Ok(())
    }
}
