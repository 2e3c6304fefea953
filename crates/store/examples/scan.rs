//! How long a selection over a whole store takes, for a row: what `remora bench store` shows as
//! `scan_compare_store`, alone, for a profile.
//!
//! ```sh
//! cargo run --release -p remora-store --example scan -- 600000
//! ```

use std::time::Instant;

use remora::memory::Buffer;
use remora_store::journal::Unlogged;
use remora_store::select::Predicate;
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use remora_store::store::{Options, Store};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::call::{ANSWER_LEN, AnswerHead, Call, Operation};
use remora_store::way::execute::execute;

/// Numbers behind one another, as lineitem has them before its text.
const SCHEMA: &str = "a i64\nb i64\nc i64\nd i32\nquantity i64\ne i64\ndiscount i64\nf i64\ng u16\n\
    shipdate i32\nskip(87)\n";
/// About 2 % pass.
const WHERE: &str =
    "shipdate >= 400 and shipdate < 550 and discount >= 5 and discount <= 7 and quantity < 24";
/// Bytes of a row.
const ROW: usize = 153;
/// The longest answer, in bytes.
const ROOM: usize = 1 << 20;
const ROUNDS: usize = 20;

fn row(number: u64, row: &mut [u8; ROW]) {
    let draw = |salt: u64, most: u64| {
        let word = (number + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % most
    };
    row[28..36].copy_from_slice(&(draw(1 << 40, 50)).to_le_bytes());
    row[44..52].copy_from_slice(&(draw(1 << 50, 11)).to_le_bytes());
    row[62..66].copy_from_slice(&(draw(1 << 60, 1000) as u32).to_le_bytes());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: u64 = std::env::args().nth(1).map_or(Ok(600_000), |rows| rows.parse())?;
    let options = Options::new((rows * 562).max(32 << 20), 7);
    let memory = Buffer::with_huge_pages(options.memory_len() as usize)?;
    let store = Store::new(memory, Unlogged::default(), options)?;
    let space = store.create_tablespace(&TablespaceOptions::new("rows"))?;
    let mut value = [0; ROW];
    for number in 0..rows {
        row(number, &mut value);
        store.put(space, &number.to_be_bytes(), &value, 0, None, 1)?;
    }
    let schema = Schema::parse(SCHEMA)?;
    let condition = Predicate::parse(WHERE)?.bind(&schema, &[])?;
    let (row_least, output) = (schema.fixed(), Output::Columns(Vec::new()));
    let selection = Selection { row_least, condition, output, limit: u64::MAX }.to_bytes()?;
    let mut times = Vec::new();
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (start, mut cursor, mut selected, mut calls) = (Instant::now(), 0, 0, 0);
        loop {
            bytes.clear();
            out.clear();
            let (tablespace, value) = (space.0, &selection[..]);
            Call { tablespace, value, argument: cursor, ..Call::default() }.write(&mut bytes)?;
            execute(&store, Operation::Scan, &bytes, 1, ROOM, &mut out)
                .map_err(|status| format!("a scan ends with {status:?}"))?;
            let (head, _) = AnswerHead::parse(&out).ok_or("a scan answers nothing")?;
            assert!(out.len() >= ANSWER_LEN);
            selected += u64::from(head.value_len);
            calls += 1;
            cursor = head.version;
            if cursor == 0 {
                break;
            }
        }
        times.push((start.elapsed().as_nanos() as f64 / rows as f64, selected, calls));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ns, selected, calls) = times[times.len() / 2];
    println!(
        "{ns:.1} ns a row, {:.2} GB/s; {selected} of {rows} are selected, in {calls} calls",
        ROW as f64 / ns
    );
    Ok(())
}
