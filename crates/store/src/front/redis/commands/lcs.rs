//! `LCS`: what two strings have in common, in order.

use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::request::decimal;

/// The longest strings that are compared: the work is the product of both lengths, in bytes.
const CELLS: usize = 1 << 26;

/// The options of `LCS`.
#[derive(Default)]
struct Options {
    wants_len: bool,
    wants_runs: bool,
    with_lengths: bool,
    /// Shorter runs are not shown.
    least: i64,
}

impl Options {
    fn read(call: &Call<'_>) -> Result<Options, Wrong> {
        let (mut options, mut index) = (Options::default(), 3);
        while index < call.len() {
            match () {
                () if call.is(index, "idx") => options.wants_runs = true,
                () if call.is(index, "len") => options.wants_len = true,
                () if call.is(index, "withmatchlen") => options.with_lengths = true,
                () if call.is(index, "minmatchlen") => {
                    options.least = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
                }
                () => return Err(SYNTAX),
            }
            index += 1;
        }
        if options.wants_len && options.wants_runs {
            let wrong = "ERR If you want both the length and indexes, please just use IDX.";
            return Err(Wrong::Is(wrong));
        }
        Ok(options)
    }
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]`.
pub(crate) fn lcs(call: &mut Call<'_>) -> Done {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    call.value(call.at(1), &mut a)?;
    call.value(call.at(2), &mut b)?;
    let options = Options::read(call)?;
    let cells = lengths(&a, &b)?;
    let len = cells.last().map_or(0, |len| i64::from(*len));
    if options.wants_len {
        call.reply.integer(len);
        return Ok(());
    }
    let mut runs = runs(&a, &b, &cells);
    if !options.wants_runs {
        let common: Vec<_> = runs.iter().rev().map(|run| &a[run.a..run.a + run.len]).collect();
        call.reply.bulk(&common.concat());
        return Ok(());
    }
    runs.retain(|run| run.len as i64 >= options.least);
    call.reply.map(2);
    call.reply.bulk(b"matches");
    call.reply.array(runs.len());
    for run in runs {
        call.reply.array(2 + usize::from(options.with_lengths));
        for start in [run.a, run.b] {
            call.reply.array(2);
            call.reply.integer(start as i64);
            call.reply.integer((start + run.len - 1) as i64);
        }
        if options.with_lengths {
            call.reply.integer(run.len as i64);
        }
    }
    call.reply.bulk(b"len");
    call.reply.integer(len);
    Ok(())
}

/// For each pair of beginnings, those of `a` by rows, how much they have in common.
fn lengths(a: &[u8], b: &[u8]) -> Result<Vec<u32>, Wrong> {
    let width = b.len() + 1;
    let count = (a.len() + 1).saturating_mul(width);
    if count > CELLS {
        let wrong = "ERR Insufficient memory, failed allocating transient memory for LCS";
        return Err(Wrong::Is(wrong));
    }
    let mut cells = vec![0u32; count];
    for (row, x) in a.iter().enumerate() {
        for (column, y) in b.iter().enumerate() {
            let at = (row + 1) * width + column + 1;
            cells[at] = if x == y {
                cells[at - width - 1] + 1
            } else {
                cells[at - width].max(cells[at - 1])
            };
        }
    }
    Ok(cells)
}

/// Bytes that both strings have, one behind the other, from these places on.
struct Run {
    a: usize,
    b: usize,
    len: usize,
}

/// One longest string that both have, by its runs, from the last to the first.
fn runs(a: &[u8], b: &[u8], cells: &[u32]) -> Vec<Run> {
    let (width, mut runs) = (b.len() + 1, Vec::<Run>::new());
    let (mut row, mut column) = (a.len(), b.len());
    while row > 0 && column > 0 {
        let at = row * width + column;
        if a[row - 1] == b[column - 1] {
            match runs.last_mut() {
                Some(run) if (run.a, run.b) == (row, column) => {
                    *run = Run { a: row - 1, b: column - 1, len: run.len + 1 };
                }
                _ => runs.push(Run { a: row - 1, b: column - 1, len: 1 }),
            }
            (row, column) = (row - 1, column - 1);
        } else if cells[at - width] > cells[at - 1] {
            row -= 1;
        } else {
            column -= 1;
        }
    }
    runs
}
