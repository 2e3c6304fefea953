//! Selection next to the data: rows of a core alone, in this process, and of a store on a card; and
//! scans by selectivity (Caribou's Figure 12).
//!
//! `scan_compare`, `scan_like` and `scan_lz4` are the selection itself, on rows that lie one behind
//! the other; their `_store` rows are whole scans of a store that has each row as a value.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use remora::memory::Buffer;
use remora_store::codec::Codec;
use remora_store::journal::Unlogged;
use remora_store::select::rows::{Marks, Rows, Span};
use remora_store::select::selection::Output;
use remora_store::store::{Options, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::call::{ANSWER_LEN, AnswerHead, Call, Operation};
use remora_store::way::clock::now_ms;
use remora_store::way::execute::execute;

use super::super::figure::{Figure, Point, add_said};
use super::super::row::{Case, Row, Run, Target, measure};
use super::bed::{Bed, Space, figure, key, value};
use super::duckdb::{self, DuckDb};
use super::extent::Extent;
use super::fronts::nothing;
use super::latencies::selection;
use super::papers::CARIBOU_NETWORK;
use super::tpch::{Lineitem, Q6, Q13, Table, comments};
use crate::child;
use crate::draws::Draws;

const LOCAL_ROWS: [&str; 6] = [
    "scan_compare",
    "scan_compare_store",
    "scan_like",
    "scan_like_store",
    "scan_lz4",
    "scan_lz4_store",
];
pub(super) const REMOTE_ROWS: [&str; 1] = ["scan_pushdown"];
/// Bytes that are copied from shared memory at a time. The C library copies from 8 KiB on by an
/// instruction that is slower on some processors, and what is longer leaves less room in the first
/// cache.
const PIECE: usize = 7 << 10;
/// Rows that are compressed together.
const TOGETHER: usize = 64;
/// The longest answer of a kernel, in bytes.
const ROOM: usize = 1 << 20;
/// Per cent of the rows that are selected.
const SELECTED: [u32; 5] = [0, 1, 10, 50, 100];
/// Bytes of the values that are scanned.
const SIZES: [(usize, Space); 2] = [(64, Space::Short), (1024, Space::Long)];

/// A row's sides: its name, its target, the peer's name, and both runs in GB/s.
type Sides<'a> = (&'static str, f64, &'static str, Run<'a>, Run<'a>);

/// GB/s of `bytes` in the time that `work` takes.
fn rate<'a>(bytes: usize, mut work: impl FnMut() -> Result<()> + 'a) -> Run<'a> {
    Box::new(move || {
        let start = Instant::now();
        work()?;
        Ok(bytes as f64 / start.elapsed().as_nanos() as f64)
    })
}

/// Adds the rows that are wanted and need no card.
pub(super) fn rows(
    is_wanted: &dyn Fn(&str) -> bool,
    extent: Extent,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let any = |names: &[&str]| names.iter().any(|name| is_wanted(name));
    if !any(&LOCAL_ROWS) {
        return Ok(());
    }
    let mut take = |sides: Vec<Sides<'_>>, runs: usize| -> Result<()> {
        for (name, target, peer, ours, theirs) in sides {
            if is_wanted(name) {
                let target = if target > 0.0 { Target::AtLeast(target) } else { Target::Any };
                let case = Case { name, unit: "GB/s", peer, target, ours, theirs };
                rows.push(measure(case, runs)?);
            }
        }
        Ok(())
    };
    child::on_core(0, || {
        let [compare, compare_store, like, like_store, lz4, lz4_store] = LOCAL_ROWS;
        if any(&[compare, compare_store, lz4, lz4_store]) {
            let items = Lineitem::generate(extent.factor)?;
            take(compares(&items)?, extent.runs)?;
            take(compressed(&items)?, extent.runs)?;
        }
        if any(&[like, like_store]) {
            let comments = comments(extent.factor)?;
            let duckdb = DuckDb::find(&comments)?;
            take(likes(&comments, duckdb.as_ref())?, extent.fronts)?;
        }
        Ok(())
    })
}

/// Reads all bytes, and does as little with them as can be.
fn bare_read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for words in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

fn compares(items: &Lineitem) -> Result<Vec<Sides<'_>>> {
    let (len, all) = (items.row_len(), items.bytes.len());
    let plan = items.plan(Q6)?;
    let mut marks = Marks::default();
    plan.mark(&items.rows(), &mut marks);
    let found = marks.count();
    // As a store scans: a piece is copied from shared memory, and judged in the cache.
    let mut piece = vec![0; PIECE / len * len];
    let copied = move || {
        let mut count = 0;
        for from in items.bytes.chunks(piece.len()) {
            let piece = &mut piece[..from.len()];
            piece.copy_from_slice(from);
            plan.mark(&Rows::packed(piece, len), &mut marks);
            count += marks.count();
        }
        ensure!(count == found, "{count} rows pass, not {found}");
        Ok(())
    };
    let read = || {
        rate(all, || {
            black_box(bare_read(&items.bytes));
            Ok(())
        })
    };
    let stored = Stored::new(items, Codec::None)?;
    let selection = items.selection(Q6, Output::Columns(Vec::new()))?.to_bytes()?;
    let [compare, compare_store, ..] = LOCAL_ROWS;
    Ok(vec![
        (compare, 0.6, "a bare read", rate(all, copied), read()),
        (
            compare_store,
            0.6,
            "a bare read",
            rate(all, move || stored.scan(&selection, found)),
            read(),
        ),
    ])
}

fn likes<'a>(comments: &'a Table, duckdb: Option<&'a DuckDb>) -> Result<Vec<Sides<'a>>> {
    let all = comments.bytes.len();
    let mut spans = Vec::with_capacity(comments.count());
    let mut start = 0;
    for index in 0..comments.count() {
        let len = comments.row(index).len() as u32;
        spans.push(Span { start, len });
        start += len;
    }
    let (plan, mut marks) = (comments.plan(Q13)?, Marks::default());
    plan.mark(&Rows::listed(&comments.bytes, &spans), &mut marks);
    let found = marks.count();
    let ours = move || {
        plan.mark(&Rows::listed(&comments.bytes, &spans), &mut marks);
        ensure!(marks.count() == found, "another number of comments matches");
        Ok(())
    };
    let (target, name) =
        if duckdb.is_some() { (1.5, "DuckDB, one thread") } else { (0.0, duckdb::MISSING) };
    let theirs = || -> Run<'a> {
        let Some(duckdb) = duckdb else { return nothing() };
        Box::new(move || Ok(all as f64 / duckdb.query_s(found)? / 1e9))
    };
    let stored = Stored::new(comments, Codec::None)?;
    let selection = comments.selection(Q13, Output::Columns(Vec::new()))?.to_bytes()?;
    let [_, _, like, like_store, ..] = LOCAL_ROWS;
    Ok(vec![
        (like, target, name, rate(all, ours), theirs()),
        (like_store, target, name, rate(all, move || stored.scan(&selection, found)), theirs()),
    ])
}

fn compressed(items: &Lineitem) -> Result<Vec<Sides<'_>>> {
    let (len, all) = (items.row_len(), items.bytes.len());
    let codec = Codec::Lz4 { head: 0 };
    let compress = |rows: &[u8]| {
        let mut stored = Vec::new();
        (codec.encode(rows, &mut stored), stored)
    };
    let archive: Vec<_> = items.bytes.chunks_exact(TOGETHER * len).map(compress).collect();
    let singles: Vec<_> = items.bytes.chunks_exact(len).map(compress).collect();
    let alone = |values: Vec<(Codec, Vec<u8>)>, room: usize| {
        let mut out = vec![0; room];
        rate(all, move || {
            for (codec, value) in &values {
                if *codec == Codec::None {
                    out[..value.len()].copy_from_slice(value);
                } else {
                    // The block's length is before it.
                    lz4_flex::block::decompress_into(&value[4..], &mut out)?;
                }
                black_box(&mut out);
            }
            Ok(())
        })
    };
    let (plan, mut marks) = (items.plan(Q6)?, Marks::default());
    let whole = archive.len() * TOGETHER * len;
    plan.mark(&Rows::packed(&items.bytes[..whole], len), &mut marks);
    let found = marks.count();
    let (values, mut rows) = (archive.clone(), vec![0; TOGETHER * len]);
    let ours = move || {
        let mut count = 0;
        for (codec, value) in &values {
            codec.decode_into(value, &mut rows)?;
            plan.mark(&Rows::packed(&rows, len), &mut marks);
            count += marks.count();
        }
        ensure!(count == found, "{count} rows pass, not {found}");
        Ok(())
    };
    let (stored, matching) = (Stored::new(items, codec)?, count_of(items, Q6)?);
    let selection = items.selection(Q6, Output::Columns(Vec::new()))?.to_bytes()?;
    let [.., lz4, lz4_store] = LOCAL_ROWS;
    Ok(vec![
        (lz4, 0.8, "lz4_flex alone", rate(all, ours), alone(archive, TOGETHER * len)),
        (
            lz4_store,
            0.8,
            "lz4_flex alone, row by row",
            rate(all, move || stored.scan(&selection, matching)),
            alone(singles, len),
        ),
    ])
}

/// How many rows meet a condition.
fn count_of(items: &Lineitem, predicate: &str) -> Result<u64> {
    let mut marks = Marks::default();
    items.plan(predicate)?.mark(&items.rows(), &mut marks);
    Ok(marks.count())
}

/// A store in this process whose values are the rows of a table.
struct Stored {
    store: Store<Buffer>,
    space: TablespaceId,
}

impl Stored {
    fn new(table: &Table, codec: Codec) -> Result<Stored> {
        let limit = (table.bytes.len() as u64 + table.count() as u64 * 128).max(16 << 20) * 2;
        let options = Options::new(limit, 7);
        // With huge pages, as the memory of a server.
        let memory = Buffer::with_huge_pages(options.memory_len() as usize)?;
        let store = Store::new(memory, Unlogged::default(), options)?;
        let space = TablespaceOptions { codec, ..TablespaceOptions::new("rows") };
        let space = store.create_tablespace(&space)?;
        for index in 0..table.count() {
            let key = (index as u64).to_be_bytes();
            store.put(space, &key, table.row(index), 0, None, now_ms())?;
        }
        Ok(Stored { store, space })
    }

    /// Carries out Scans from the first row to the last, as a client's calls do; `found` rows have
    /// to be selected.
    fn scan(&self, selection: &[u8], found: u64) -> Result<()> {
        let (mut cursor, mut selected) = (0, 0);
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        loop {
            bytes.clear();
            out.clear();
            let (tablespace, value) = (self.space.0, selection);
            Call { tablespace, value, argument: cursor, ..Call::default() }.write(&mut bytes)?;
            let done = execute(&self.store, Operation::Scan, &bytes, now_ms(), ROOM, &mut out);
            ensure!(done.is_ok() && out.len() >= ANSWER_LEN, "a scan failed: {done:?}");
            let (head, _) = AnswerHead::parse(&out).context("a scan answers nothing")?;
            selected += u64::from(head.value_len);
            cursor = head.version;
            if cursor == 0 {
                break;
            }
        }
        ensure!(selected == found, "a scan selects {selected} rows, not {found}");
        Ok(())
    }
}

/// The row of a store on a card: the selected rows at the client, beside all rows and a selection
/// there.
pub(super) fn remote<'a>(bed: &'a Bed, extent: Extent) -> Result<Vec<Case<'a>>> {
    let items = Lineitem::generate(extent.remote_rows as f64 / 6_000_000.0)?;
    let count = items.count();
    let numbered = |number: u64| (number.to_be_bytes().to_vec(), items.row(number as usize).into());
    bed.load(Space::Lineitem, count as u64, numbered)?;
    let (selection, found) = (items.selection(Q6, Output::Whole)?, count_of(&items, Q6)?);
    let mut client = bed.client(Space::Lineitem)?;
    let pushed = move || {
        let start = Instant::now();
        let done = client.scan(Some(&selection), |_, row| _ = black_box(row))?;
        ensure!(done.rows == found, "{} rows came, not {found}", done.rows);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let (mut draws, mut marks, plan) = (Draws::new(5), Marks::default(), items.plan(Q6)?);
    let fetched = move || {
        let start = Instant::now();
        let (len, place) = (items.row_len(), bed.far.ready.memory);
        let lines = (place.len - len as u64) / 64;
        let from = || place.addr + draws.number() % lines * 64;
        bed.far.read_many(count, u32::try_from(len)?, from)?;
        plan.mark(&items.rows(), &mut marks);
        ensure!(marks.count() == found, "another number of rows passes");
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    Ok(vec![Case {
        name: REMOTE_ROWS[0],
        unit: "ms",
        peer: "a READ of each row, 8 at a time, then selecting",
        target: Target::AtMost(0.2),
        ours: Box::new(pushed),
        theirs: Box::new(fetched),
    }])
}

/// Figure 12.
pub(super) fn selectivity(bed: &Bed, extent: Extent) -> Result<Figure> {
    for (len, space) in SIZES {
        bed.load(space, bed.keys, |number| (key(number).into(), value(number, len)))?;
    }
    let mut points = Vec::new();
    for per_cent in SELECTED {
        let mut ways = Vec::new();
        for (len, space) in SIZES {
            let selection = selection(&format!("n < {}", per_cent * 10), Output::Whole)?;
            let (mut client, bytes) = (bed.client(space)?, bed.keys as usize * len);
            let expected = (0..bed.keys).filter(|n| n * 7 % 1000 < u64::from(per_cent) * 10);
            let expected = expected.count() as u64;
            ways.push(rate(bytes, move || {
                let done = client.scan(Some(&selection), |_, row| _ = black_box(row))?;
                ensure!(done.rows == expected, "{} rows came, not {expected}", done.rows);
                Ok(())
            }));
        }
        points.push(Point::measure(per_cent.to_string(), extent.runs, &mut ways)?);
    }
    let (first, last) = (&points[0], &points[points.len() - 1]);
    let here = format!(
        "{:.2} GB/s of values of 1 KiB if none is selected, {:.2} if all are: {:.2} of it",
        first.median(1),
        last.median(1),
        last.median(1) / first.median(1)
    );
    let (most, mut selected) = (first.median(1), SELECTED.iter());
    add_said(&mut points, |_| {
        let share = selected.next().map_or(0.0, |per_cent| f64::from(*per_cent) / 100.0);
        // Nothing that is selected, nothing to carry.
        most * (CARIBOU_NETWORK / share).min(1.0)
    });
    Ok(Figure {
        origin: "Caribou’s Figure 12",
        title: "Scans by selectivity",
        about: "A client scans a tablespace with a comparison; what is selected travels. Bytes of \
                values that were looked at a second. One core serves.",
        x: "rows that are selected, %",
        y: "scanned",
        unit: "GB/s",
        ways: ["values of 64 B", "values of 1 KiB", "1 KiB, by Caribou’s ratio"]
            .map(str::to_owned)
            .into(),
        paper: "close to 5 GB/s inside the card if few rows are selected, 1.25 GB/s (the network) \
                if many are: 0.25 of it",
        here,
        ..figure("fig12", points)
    })
}
