//! Tables and JSON, alike for every command.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{PathBufValueParser, TypedValueParser};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use remora::Device;
use serde::Serialize;

use crate::log;

/// An empty table with these column headings.
pub fn table<T: Into<comfy_table::Cell>>(headings: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.into_iter().map(Into::into).collect::<Vec<comfy_table::Cell>>());
    table
}

/// Aligns these columns to the right, as numbers are.
pub fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Prints a device's counters to standard error, so that they do not mix with results.
pub fn counters(device: &Device) {
    let mut rows = table(["counter", "value"]);
    for (name, value) in device.counters().iter().filter(|(_, value)| *value > 0) {
        rows.add_row([name.to_owned(), value.to_string()]);
    }
    align_right(&mut rows, [1]);
    eprintln!("{}\n{rows}", device.info().address);
}

/// Parses the name of a file that is written when all is done: that its folder is missing is told
/// before.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(format!("there is no folder {}", folder.display()))
        }
        _ => Ok(path),
    })
}

/// Writes `value` to a file as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Standard output, for what `println!` does not print. The process ends with its reader, as
/// [`log::end_with_the_reader`] says.
#[derive(Debug)]
pub struct Out(Stdout);

/// Standard output.
pub fn out() -> Out {
    Out(io::stdout())
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).inspect_err(log::end_if_nobody_reads)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().inspect_err(log::end_if_nobody_reads)
    }
}

/// Prints a document of JSON, as every command does: in a line. Flushes it.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    let mut out = BufWriter::new(out());
    json_line_to(&mut out, value).and_then(|()| out.flush()).context("cannot print JSON")
}

/// Writes a document of JSON as [`json_line`] prints it, one of many.
///
/// # Errors
/// It cannot be written.
pub fn json_line_to(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    to.write_all(b"\n")
}

/// A number with spaces between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// How many there are of what `one` names: `1 row`, `2 rows`.
pub fn counted(number: u64, one: &str) -> String {
    let ending = match one.as_bytes() {
        _ if number == 1 => "",
        [.., b'c' | b's', b'h'] | [.., b's' | b'x'] => "es",
        _ => "s",
    };
    format!("{} {one}{ending}", grouped(number))
}

/// A number of bytes, in the largest unit of which there is at least one.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    let whole = count as f64 / (1u64 << (10 * unit)) as f64;
    if whole.fract() == 0.0 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole:.1} {}", UNITS[unit])
    }
}

/// Is standard error a terminal, so that a person sees progress?
pub fn has_viewer() -> bool {
    io::stderr().is_terminal()
}

/// Does standard error show colours? (A person may want none: `NO_COLOR`.)
pub fn has_colours() -> bool {
    has_viewer() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let rows: Vec<String> = [0, 1, 2000].map(|number| counted(number, "row")).into();
        assert_eq!(rows, ["0 rows", "1 row", "2 000 rows"]);
        let switches: Vec<String> = [1, 2].map(|number| counted(number, "switch")).into();
        assert_eq!(switches, ["1 switch", "2 switches"]);
        assert_eq!(counted(0, "queue pair"), "0 queue pairs");
    }

    #[test]
    fn numbers_for_people() {
        let grouped: Vec<String> = [0, 999, 1000, 1_234_567].map(grouped).into();
        assert_eq!(grouped, ["0", "999", "1 000", "1 234 567"]);
        let bytes: Vec<String> = [0, 1, 1023, 1536, 64 << 20, 1 << 50].map(bytes).into();
        assert_eq!(bytes, ["0 B", "1 B", "1023 B", "1.5 KiB", "64 MiB", "1024 TiB"]);
    }
}
