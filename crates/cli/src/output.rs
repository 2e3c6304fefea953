//! What commands print: tables for people, lines of JSON for scripts.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use remora::Device;
use serde::Serialize;

/// A plain table: columns in `right` (from 0) hold numbers.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints the counters of a device that are not zero, to standard error: standard output may be
/// data.
pub(crate) fn counters(device: &Device) {
    let mut table = table(&["counter", "value"], &[1]);
    for (name, value) in device.counters().iter().filter(|(_, value)| *value > 0) {
        table.add_row([name.to_owned(), grouped(value)]);
    }
    eprintln!("{table}");
}

/// Prints a line of JSON, at once.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).context("cannot print JSON")?;
    writeln!(out).and_then(|()| out.flush()).context("cannot print JSON")
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
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

/// Bytes in the largest unit of which there is at least one.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    let whole = count as f64 / (1u64 << (10 * unit)) as f64;
    if whole.fract() == 0.0 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole:.1} {}", UNITS[unit])
    }
}

/// Is there a person who looks at progress?
pub(crate) fn has_viewer() -> bool {
    io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        let grouped: Vec<String> = [0, 999, 1000, 1_234_567].map(grouped).into();
        assert_eq!(grouped, ["0", "999", "1 000", "1 234 567"]);
        let bytes: Vec<String> = [0, 1, 1023, 1536, 64 << 20, 1 << 50].map(bytes).into();
        assert_eq!(bytes, ["0 B", "1 B", "1023 B", "1.5 KiB", "64 MiB", "1024 TiB"]);
    }
}
