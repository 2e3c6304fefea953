//! A program's text, and the card that runs it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use remora::offload::chain::card::ChainCard;
use remora::offload::chain::place::Span;
use remora::offload::chain::text::{Source, parse};

use crate::output;

/// As many mistakes are shown: a file that is no program has one in each line.
const SHOWN: usize = 20;

/// Reads a program; prints the first mistakes in it as a compiler would.
pub(super) fn load(path: &Path, json: bool) -> Result<Source> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = match parse(&text) {
        Ok(source) => return Ok(source),
        Err(wrong) => wrong,
    };
    let name = path.display().to_string();
    let shown = if json { wrong.len() } else { SHOWN };
    for mistake in wrong.iter().take(shown) {
        if json {
            let (line, column) = mistake.line_column(&text);
            let (message, help) = (&mistake.message, &mistake.help);
            output::json_line(&serde_json::json!({
                "file": name, "line": line, "column": column, "error": message, "help": help,
            }))?;
        } else {
            eprintln!("{}\n", mistake.render(&name, &text, output::has_colours()));
        }
    }
    if wrong.len() > shown {
        eprintln!("… and {} more\n", wrong.len() - shown);
    }
    let mistakes = if wrong.len() == 1 { "mistake" } else { "mistakes" };
    bail!("{name} has {} {mistakes}: it was not run", wrong.len())
}

/// A card with the program, and the messages that the client will send.
pub(super) fn set_up(source: &Source) -> Result<(ChainCard, Vec<Vec<u8>>)> {
    let card = ChainCard::new(&source.program, &[]).context("cannot set the program up")?;
    let message = |span: &Span| {
        let addr = source.program.address(card.layout(), span.at);
        card.bytes(addr, span.len as usize).to_vec()
    };
    let messages = source.requests.iter().map(message).collect();
    Ok((card, messages))
}
