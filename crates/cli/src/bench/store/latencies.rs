//! Single calls: the rows of latencies, by operation and size (Caribou's Figures 7a and 7b), and
//! gets beside one-sided READs and memcached (RedN's Figure 14 and Table 5).

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use remora_sim::percentile;
use remora_store::client::{Put, StoreClient};
use remora_store::select::Predicate;
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use remora_store::way::call::Condition;
use remora_store::way::connect::ClientOptions;

use super::super::figure::{Calls, Figure, Point, Style, add_said, each_us, median, median_us};
use super::super::row::{Case, Run, Spread, Target};
use super::bed::{Bed, Space, VALUE, figure, key, value};
use super::extent::{Extent, SHORTER};
use super::papers::{CARIBOU_DECOMPRESSION, REDN_GETS, TABLE_5};
use super::servers::{Getter, Memcached};
use super::tpch::{EIGHT, Lineitem};
use crate::draws::Pauses;
use crate::output;

pub(super) const ROWS: [&str; 5] =
    ["get_kernel_64B", "get_cached_64B", "get_chain_64B", "put_kernel_64B", "conditions_8"];
/// Keys that are asked for one after the other.
const HOT: u64 = 256;
/// Sizes of values in bytes, in Caribou's figures and in RedN's.
const SMALL: [usize; 4] = [16, 64, 256, 1024];
const LARGE: [usize; 5] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Keys of values of one size; their numbers begin here, times the size.
const OF_SIZE: u64 = 64;
const FIRST_OF_SIZE: u64 = 10_000_000;

/// A way to get a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Chain,
    Kernel,
    Cached,
    /// One-sided, with a place for one location: each get looks at the buckets first.
    Cold,
}

impl Way {
    fn client(self, bed: &Bed, space: Space) -> Result<StoreClient> {
        let locations = if self == Way::Cold { 1 } else { 1 << 16 };
        let tablespace = space as u16;
        bed.client_with(ClientOptions { locations, tablespace, ..ClientOptions::default() })
    }

    fn get(self, client: &mut StoreClient, key: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let found = match self {
            Way::Kernel => client.get(key, out)?,
            Way::Chain => client.get_by_chain(key, out)?,
            Way::Cached | Way::Cold => client.get_one_sided(key, out)?,
        };
        found.map(drop).context("a key that was put is not there")
    }

    /// Gets values of keys one after the other, after each was got once.
    fn calls<'a>(self, bed: &Bed, keys: Vec<u64>, calls: usize) -> Result<Calls<'a>> {
        let (mut client, mut out) = (self.client(bed, Space::First)?, Vec::new());
        for number in &keys {
            self.get(&mut client, &key(*number), &mut out)?;
        }
        Ok(Box::new(move || {
            each_us(calls, |i| self.get(&mut client, &key(keys[i % keys.len()]), &mut out))
        }))
    }
}

/// A run whose result is the median of `calls` calls.
fn timed<'a>(calls: usize, mut call: impl FnMut(usize) -> Result<()> + 'a) -> Run<'a> {
    Box::new(move || median_us(calls, &mut call))
}

/// One READ of as many bytes, of registered memory at the far end.
fn read(bed: &Bed, len: usize) -> impl FnMut(usize) -> Result<()> + '_ {
    let from = bed.far.ready.memory.addr;
    move |_| bed.far.read_many(1, u32::try_from(len)?, || from).map(drop)
}

/// A client of rows of lineitem, and eight conditions that all of them meet.
fn conditional(bed: &Bed) -> Result<(StoreClient, Vec<u8>, Vec<u8>)> {
    let rows = Lineitem::generate(0.001)?;
    let (name, row) = (b"a row of lineitem", rows.row(0));
    let mut client = bed.client(Space::First)?;
    client.put(name, row)?;
    let plan = rows.selection(EIGHT, Output::Whole)?.to_bytes()?;
    let mut out = Vec::new();
    let met = client.get_if(name, Condition::Predicate(&plan), &mut out)?;
    ensure!(met.is_some() && out == row, "a row does not meet conditions that all rows meet");
    Ok((client, name.to_vec(), plan))
}

/// The rows.
pub(super) fn cases(bed: &Bed, extent: Extent) -> Result<Vec<Case<'_>>> {
    let calls = (extent.calls * 3 / SHORTER).max(5);
    let run = |way: Way| -> Result<Run<'_>> {
        let mut run = way.calls(bed, (0..HOT.min(bed.keys)).collect(), calls)?;
        Ok(Box::new(move || run().map(|calls| median(&calls))))
    };
    let one_read = || timed(calls, read(bed, VALUE));
    let mut writer = bed.client(Space::First)?;
    let fresh = value(1, VALUE);
    let put = move |i: usize| Ok(writer.put(&key(i as u64 % HOT), &fresh).map(drop)?);
    let to = bed.far.ready.memory;
    let write = move |_| {
        let to = crate::ways::client::remote(to, to.addr);
        bed.far.write_all(std::iter::once((0, to, VALUE as u32, None))).map(drop)
    };
    let (mut with, name, plan) = conditional(bed)?;
    let (mut without, same) = (bed.client(Space::First)?, name.clone());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let with = move |_| {
        first.clear();
        let met = with.get_if(&name, Condition::Predicate(&plan), &mut first)?;
        met.map(drop).context("a row does not meet its conditions")
    };
    let without = move |_| {
        second.clear();
        without.get(&same, &mut second)?.map(drop).context("a row is not there")
    };
    let latency = |name, peer, limit, ours, theirs| {
        Case::latency(name, peer, Target::AtMost(limit), ours, theirs)
    };
    let [kernel, cached, chain, put_name, conditions] = ROWS;
    Ok(vec![
        latency(kernel, "one READ, 64 B", 1.15, run(Way::Kernel)?, one_read()),
        latency(cached, "one READ, 64 B", 1.1, run(Way::Cached)?, one_read()),
        latency(chain, "one READ, 64 B", 1.4, run(Way::Chain)?, one_read()),
        latency(
            put_name,
            "one WRITE, 64 B, acknowledged",
            1.3,
            timed(calls, put),
            timed(calls, write),
        ),
        latency(
            conditions,
            "the same get, without",
            1.1,
            timed(calls, with),
            timed(calls, without),
        ),
    ])
}

/// A condition on values as [`value`] makes them: the number is below `below`.
pub(super) fn below(below: u32) -> Result<Vec<u8>> {
    Ok(selection(&format!("n < {below}"), Output::Whole)?.to_bytes()?)
}

/// A selection from values as [`value`] makes them, of a number `n` and a `text`.
pub(super) fn selection(predicate: &str, output: Output) -> Result<Selection> {
    let schema = Schema::parse("n u32\ntext text\n").ok().context("the schema is wrong")?;
    let predicate = Predicate::parse(predicate).ok().context("the predicate is wrong")?;
    let condition = predicate.bind(&schema, &[]).ok().context("a column is missing")?;
    Ok(Selection { row_least: schema.fixed(), condition, output, limit: u64::MAX })
}

/// The keys of values of `len` bytes, which are put.
pub(super) fn of_size(bed: &Bed, space: Space, len: usize) -> Result<Vec<u64>> {
    let mut client = bed.client(space)?;
    let keys = (0..OF_SIZE).map(|i| FIRST_OF_SIZE * len as u64 + i).collect::<Vec<_>>();
    for number in &keys {
        client.put(&key(*number), &value(*number, len))?;
    }
    Ok(keys)
}

/// An operation of Figures 7a and 7b.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Read,
    Conditional,
    Update,
    Insert,
    Delete,
    /// From a tablespace whose values are compressed.
    Compressed,
}

impl Op {
    const ALL: [(Op, &str); 6] = [
        (Op::Read, "read"),
        (Op::Conditional, "conditional read"),
        (Op::Update, "update"),
        (Op::Insert, "insert"),
        (Op::Delete, "delete"),
        (Op::Compressed, "read, LZ4"),
    ];

    /// Times each of `calls` calls on values of `len` bytes. What has to be put before a delete, or
    /// deleted after an insert, does not count.
    fn calls<'a>(self, bed: &Bed, len: usize, calls: usize) -> Result<Calls<'a>> {
        let space = if self == Op::Compressed { Space::Compressed } else { Space::First };
        let keys = of_size(bed, space, len)?;
        let (mut client, bytes, all) = (bed.client(space)?, value(1, len), below(1000)?);
        let spare = key(keys[0] + OF_SIZE);
        let absent = Put { condition: Condition::Absent, expires_ms: 0, ..Put::default() };
        let (mut pauses, mut out) = (Pauses::new(1), Vec::new());
        Ok(Box::new(move || {
            let mut times = Vec::with_capacity(calls);
            for i in 0..calls {
                let key = key(keys[i % keys.len()]);
                if self == Op::Delete {
                    client.put(&spare, &bytes)?;
                }
                out.clear();
                pauses.pause();
                let start = Instant::now();
                let done = match self {
                    Op::Read | Op::Compressed => client.get(&key, &mut out)?.is_some(),
                    Op::Conditional => {
                        let wanted = Condition::Predicate(&all);
                        client.get_if(&key, wanted, &mut out)?.is_some()
                    }
                    Op::Update => client.put(&key, &bytes)? > 0,
                    Op::Insert => client.put_with(&spare, &bytes, &absent)?.is_some(),
                    Op::Delete => client.delete(&spare)?,
                };
                times.push(start.elapsed().as_nanos() as f64 / 1e3);
                ensure!(done, "{self:?} was refused");
                if self == Op::Insert {
                    client.delete(&spare)?;
                }
            }
            Ok(times)
        }))
    }
}

/// Figures 7a and 7b.
pub(super) fn operations(bed: &Bed, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for len in SMALL {
        let mut ways = Vec::new();
        for (op, _) in Op::ALL {
            ways.push(op.calls(bed, len, extent.calls)?);
        }
        let mut ping = read(bed, len);
        ways.push(Box::new(move || each_us(extent.calls, &mut ping)));
        points.push(Point::of_calls(len.to_string(), extent.runs, &mut ways, median)?);
    }
    let middle = &points[SMALL.len() / 2];
    let to_get = |way: usize| middle.median(way) / middle.median(0);
    let here = format!(
        "as multiples of a read, at 256 B: conditional {:.2}, update {:.2}, insert {:.2}, delete \
         {:.2}, decompression {:.2}; a read is {:.2} of one READ",
        to_get(1),
        to_get(2),
        to_get(3),
        to_get(4),
        to_get(5),
        middle.median(0) / middle.median(6)
    );
    let mut lens = SMALL.iter();
    add_said(&mut points, |point| {
        let len = lens.next().copied().unwrap_or_default() as f64;
        point.median(0) * (1.0 + len * CARIBOU_DECOMPRESSION)
    });
    let said = "a read, by what decompression adds to Caribou’s";
    let ways = Op::ALL.iter().map(|(_, name)| *name).chain(["one READ", said]);
    Ok(Figure {
        origin: "Caribou’s Figures 7a and 7b",
        title: "Response times by operation",
        about: "One client, one call at a time, by kernel. One READ of as many bytes stands for \
                Caribou’s line of the ping time. Whiskers: the 1st and 99th percentile.",
        ways: ways.map(str::to_owned).collect(),
        paper: "no large differences between local operations, over a ping of 17–18 µs; \
                decompression adds 1.6 µs at 256 B (1.09 ×), replication 6 µs (1.3 ×: see `remora \
                bench cluster`)",
        here,
        ..figure("fig7", points)
    })
}

/// RedN's Figure 14.
pub(super) fn sizes(bed: &Bed, extent: Extent) -> Result<Figure> {
    let server = Memcached::start_peer()?;
    let mut points = Vec::new();
    for len in LARGE {
        let keys = of_size(bed, Space::First, len)?;
        let mut ways = Vec::new();
        for way in [Way::Chain, Way::Kernel, Way::Cached, Way::Cold] {
            let mut calls = way.calls(bed, keys.clone(), extent.calls / 2)?;
            ways.push(Box::new(move || calls().map(|calls| median(&calls))) as Run<'_>);
        }
        if let Some(server) = &server {
            let mut getter = Getter::connect(server.port(), &key(keys[0]), &value(keys[0], len))?;
            let calls = extent.calls / 2;
            ways.push(Box::new(move || bed.aside(|| median_us(calls, |_| getter.get()))));
        }
        points.push(Point::measure(output::bytes(len as u64), extent.runs, &mut ways)?);
    }
    let best = |way: usize| {
        let ratios = points.iter().map(|point| point.median(way) / point.median(0));
        ratios.fold(0.0, f64::max)
    };
    let two_sided = server.as_ref().map_or_else(
        || "; install memcached for the two-sided way".to_owned(),
        |_| format!(", and {:.1} × faster than memcached over TCP", best(4)),
    );
    let here = format!("chains are up to {:.1} × faster than one-sided{two_sided}", best(3));
    let names = ["chain", "kernel", "one-sided, cached", "one-sided, cold", "memcached over TCP"];
    let said =
        ["one-sided at most", "two-sided at most"].map(|name| format!("{name}, by RedN’s ratio"));
    let ways = names.iter().take(points[0].ways.len()).map(|name| (*name).to_owned()).chain(said);
    let ways = ways.collect();
    for ratio in REDN_GETS {
        add_said(&mut points, |point| point.median(0) * ratio);
    }
    Ok(Figure {
        origin: "RedN’s Figure 14",
        title: "Gets by size",
        about: "One get at a time. One-sided and cold is what RedN compares with: READs of the \
                buckets, then a READ of the item. memcached’s client polls, its server sleeps.",
        style: Style::Log,
        ways,
        paper: "chains are up to 1.7 × faster than one-sided, 2.6 × than two-sided (memcached by \
                a polling stack of sockets)",
        here,
        ..figure("fig14", points)
    })
}

/// Medians and 99th percentiles of gets of `len` bytes: by chain, and by kernel.
fn medians_and_tails(bed: &Bed, extent: Extent, len: usize) -> Result<[[Spread; 2]; 2]> {
    let keys = of_size(bed, Space::First, len)?;
    let mut ways = Vec::new();
    for way in [Way::Chain, Way::Kernel] {
        ways.push(way.calls(bed, keys.clone(), extent.calls * 2)?);
    }
    let mut runs = [const { (Vec::new(), Vec::new()) }; 2];
    for _ in 0..extent.runs {
        for (way, (medians, tails)) in ways.iter_mut().zip(&mut runs) {
            let mut calls = way()?;
            calls.sort_by(f64::total_cmp);
            let at = |per_mille| percentile(&calls, per_mille).context("no calls were made");
            medians.push(at(500)?);
            tails.push(at(990)?);
        }
    }
    Ok(runs.map(|(medians, tails)| [Spread::of(medians), Spread::of(tails)]))
}

/// RedN's Table 5: medians and 99th percentiles, beside two cards.
pub(super) fn beside_cards(bed: &Bed, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for (len, lines) in [(64, &TABLE_5[..2]), (4 << 10, &TABLE_5[2..])] {
        let [chain, kernel] = medians_and_tails(bed, extent, len)?;
        for (i, (x, redn, strom)) in lines.iter().enumerate() {
            let said = [redn, strom].map(|said| Spread::of(vec![*said]));
            let ways = vec![chain[i], kernel[i], said[0], said[1]];
            points.push(Point { x: (*x).to_owned(), ways });
        }
    }
    let growth = |way: usize| points[2].median(way) / points[0].median(way);
    let tail = |way: usize| points[1].median(way) / points[0].median(way);
    let here = format!(
        "4 KiB over 64 B: chain {:.2}, kernel {:.2}, RedN {:.2}, StRoM {:.2}; 99th percentile over \
         median at 64 B: {:.2}, {:.2}, {:.2}, {:.2}",
        growth(0),
        growth(1),
        growth(2),
        growth(3),
        tail(0),
        tail(1),
        tail(2),
        tail(3)
    );
    let ways = ["chain", "kernel", "RedN, as the paper says", "StRoM, as RedN’s paper says"];
    Ok(Figure {
        origin: "RedN’s Table 5",
        title: "Hash gets beside cards",
        about: "Gets from the store’s own table, which has memcached’s job. The cards are on \
                another network.",
        x: "value, and percentile",
        style: Style::Bars,
        ways: ways.map(str::to_owned).into(),
        paper: "RedN 5.7 µs at 64 B and 6.7 µs at 4 KB, StRoM 7 and 12 µs",
        here,
        ..figure("table5", points)
    })
}
