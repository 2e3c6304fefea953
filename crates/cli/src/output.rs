//! Tables and JSON, alike for every command.
//!
//! The rows of `remora bench` are made in [`crate::bench`]; what is general about printing them is
//! here.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use remora::Device;
use serde::Serialize;

/// An empty table with these column headings.
pub(crate) fn table<T: Into<comfy_table::Cell>>(headings: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.into_iter().map(Into::into).collect::<Vec<comfy_table::Cell>>());
    table
}

/// Aligns these columns as numbers are.
pub(crate) fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Prints what a device has counted on standard error, where it does not disturb results.
pub(crate) fn counters(device: &Device) {
    let mut rows = table(["counter", "value"]);
    for (name, value) in device.counters().iter().filter(|(_, value)| *value > 0) {
        rows.add_row([name.to_owned(), value.to_string()]);
    }
    align_right(&mut rows, [1]);
    eprintln!("{}\n{rows}", device.info().address);
}

/// Writes `value` to a file as JSON.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
