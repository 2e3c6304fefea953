//! Selection beside its peers, on rows of TPC-H, on one core.
//!
//! `cargo bench -p remora-store --bench selection [-- FACTOR [FILE]]`: the scale factor of TPC-H,
//! 0.1 by default; orders' comments are written to the file, a line each, for other programs.
//! `REMORA_CPU=v2` or `v3` shows a lesser processor's figures.
//!
//! Both sides take turns, and each figure is the median of its rounds: machines are seldom idle.

use std::hint::black_box;
use std::time::Instant;

use remora_store::codec::Codec;
use remora_store::select::Predicate;
use remora_store::select::cpu;
use remora_store::select::plan::{Part, Plan};
use remora_store::select::rows::{Marks, Rows, Span};
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use tpchgen::generators::{LineItemGenerator, OrderGenerator};

const LINEITEM: &str = "orderkey i64\npartkey i64\nsuppkey i64\nlinenumber i32\n\
    quantity decimal(15,2)\nextendedprice decimal(15,2)\ndiscount decimal(15,2)\n\
    tax decimal(15,2)\nreturnflag char(1)\nlinestatus char(1)\nshipdate date\ncommitdate date\n\
    receiptdate date\nshipinstruct char(25)\nshipmode char(10)\ncomment char(44)\n";
const ORDERS: &str = "orderkey i64\ncustkey i64\norderstatus char(1)\ntotalprice decimal(15,2)\n\
    orderdate date\norderpriority char(15)\nclerk char(15)\nshippriority i32\ncomment text\n";
/// The conditions of TPC-H's sixth query.
const Q6: &str = "shipdate >= '1994-01-01' and shipdate < '1995-01-01' and discount >= 0.05 \
    and discount <= 0.07 and quantity < 24";
const ROUNDS: usize = 15;
/// Rows that are compressed together.
const TOGETHER: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let factor = arguments.next().map_or(0.1, |factor| factor.parse().expect("a scale factor"));
    println!("TPC-H, scale factor {factor}; instructions: {}", cpu::level());
    let orders: Vec<String> =
        OrderGenerator::new(factor, 1, 1).iter().map(|o| o.to_string()).collect();
    if let Some(file) = arguments.next() {
        let comments = orders.iter().map(|order| field(order, 8).to_owned() + "\n");
        std::fs::write(file, comments.collect::<String>()).expect("the file can be written");
    }
    let items = LineItemGenerator::new(factor, 1, 1);
    let schema = Schema::parse(LINEITEM).expect("the schema is well-formed");
    let mut bytes = Vec::new();
    for item in items.iter() {
        let item = item.to_string();
        let fields = item.trim_end_matches('|').split('|');
        schema.write_row(fields, &mut bytes).expect("the row fits");
    }
    let q6 = plan(&schema, Q6);
    compare(&bytes, &schema, &q6);
    like(&orders);
    lz4(&bytes, &schema, &q6);
    lz4_values(&bytes, &schema, &q6);
    conditions(&bytes, &schema);
}

fn field(line: &str, index: usize) -> &str {
    line.split('|').nth(index).expect("the line has this field")
}

fn plan(schema: &Schema, predicate: &str) -> Plan {
    let predicate = Predicate::parse(predicate).expect("the predicate is well-formed");
    let condition = predicate.bind(schema, &[]).expect("the columns exist");
    let output = Output::Whole;
    let selection = Selection { row_least: schema.fixed(), condition, output, limit: u64::MAX };
    Plan::new(&selection).expect("there is a plan")
}

/// The medians of both sides' times, in seconds, and their results.
fn beside<A, B>(mut ours: impl FnMut() -> A, mut peer: impl FnMut() -> B) -> (f64, f64, A, B) {
    let (mut times, mut results) = (vec![], None);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let a = black_box(ours());
        let middle = Instant::now();
        let b = black_box(peer());
        times.push(((middle - start).as_secs_f64(), middle.elapsed().as_secs_f64()));
        results = Some((a, b));
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (a, b) = results.expect("there are rounds");
    let (ours, peer) = times.into_iter().unzip();
    (median(ours), median(peer), a, b)
}

fn report(name: &str, bytes: usize, (ours, peer): (f64, f64), peer_name: &str) {
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    println!(
        "{name:<22} {:6.2} GB/s; {peer_name} {:6.2} GB/s: {:.2} x",
        rate(ours),
        rate(peer),
        peer / ours
    );
}

/// Reads all bytes, and does as little with them as can be.
fn bare_read(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<64>();
    let mut sums = [0u64; 8];
    for word in words {
        for (sum, part) in sums.iter_mut().zip(word.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*part);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

fn compare(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let rows = Rows::packed(bytes, schema.fixed().into());
    let mut marks = Marks::default();
    let ours = || {
        plan.mark(&rows, &mut marks);
        marks.count()
    };
    let (ours, peer, found, _) = beside(ours, || bare_read(bytes));
    let share = 100.0 * found as f64 / rows.count() as f64;
    println!("{} rows of {} bytes, {share:.1} % pass", rows.count(), schema.fixed());
    report("scan_compare", bytes.len(), (ours, peer), "bare read");
    // As items in memory: rows of their own, with other bytes between them.
    let stride = usize::from(schema.fixed()) + 40;
    let mut spread = Vec::new();
    let mut spans = Vec::new();
    for row in bytes.chunks(schema.fixed().into()) {
        spans.push(Span { start: spread.len() as u32 + 40, len: row.len() as u32 });
        spread.resize(spread.len() + 40, 0);
        spread.extend_from_slice(row);
    }
    assert_eq!(spread.len(), rows.count() * stride);
    let rows = Rows::listed(&spread, &spans);
    let ours = || {
        plan.mark(&rows, &mut marks);
        marks.count()
    };
    let (ours, peer, again, _) = beside(ours, || bare_read(&spread));
    assert_eq!(found, again);
    report("scan_compare, items", spread.len(), (ours, peer), "bare read");
}

fn like(orders: &[String]) {
    let schema = Schema::parse(ORDERS).expect("the schema is well-formed");
    let plan = plan(&schema, "comment like '%special%requests%'");
    let (mut bytes, mut spans, mut text) = (Vec::new(), Vec::new(), 0);
    for order in orders {
        let start = bytes.len() as u32;
        let fields = order.trim_end_matches('|').split('|');
        schema.write_row(fields, &mut bytes).expect("the row fits");
        spans.push(Span { start, len: bytes.len() as u32 - start });
        text += field(order, 8).len();
    }
    let rows = Rows::listed(&bytes, &spans);
    let mut marks = Marks::default();
    let ours = || {
        plan.mark(&rows, &mut marks);
        marks.count()
    };
    let comments: Vec<&str> = orders.iter().map(|order| field(order, 8)).collect();
    let (ours, peer, found, _) =
        beside(ours, || comments.iter().filter(|comment| plain_like(comment)).count());
    println!("{} orders, {text} bytes of comments, {found} match", rows.count());
    println!("  {:.1} ns a row", 1e9 * ours / rows.count() as f64);
    report("scan_like", text, (ours, peer), "str::find");
}

fn plain_like(comment: &str) -> bool {
    comment.find("special").is_some_and(|at| comment[at + 7..].contains("requests"))
}

/// Rows that are compressed together, as the values of an archive.
fn lz4(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let len = usize::from(schema.fixed());
    let codec = Codec::Lz4 { head: 0 };
    let values: Vec<Vec<u8>> = bytes
        .chunks(TOGETHER * len)
        .map(|rows| {
            let mut stored = Vec::new();
            assert_eq!(codec.encode(rows, &mut stored), codec);
            stored
        })
        .collect();
    let stored: usize = values.iter().map(Vec::len).sum();
    let (mut decoded, mut marks, mut out) = (Vec::new(), Marks::default(), vec![0; TOGETHER * len]);
    let ours = || {
        let mut found = 0;
        for value in &values {
            decoded.clear();
            codec.decode(value, TOGETHER * len, &mut decoded).expect("it was encoded");
            plan.mark(&Rows::packed(&decoded, len), &mut marks);
            found += marks.count();
        }
        found
    };
    let peer = || {
        values
            .iter()
            .map(|value| {
                lz4_flex::block::decompress_into(&value[4..], &mut out).expect("it was compressed")
            })
            .sum::<usize>()
    };
    let (ours, peer, _, _) = beside(ours, peer);
    println!("LZ4 of {TOGETHER} rows: {stored} of {} bytes", bytes.len());
    report("scan_lz4", bytes.len(), (ours, peer), "lz4_flex");
}

/// Each row a value of its own: all compressed, and with the columns plain.
fn lz4_values(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let len = usize::from(schema.fixed());
    let head = schema.column("shipinstruct").expect("the schema has it").offset;
    for head in [0, head] {
        let mut stored = Vec::new();
        let values: Vec<(Codec, Span)> = bytes
            .chunks(len)
            .map(|row| {
                let start = stored.len();
                let codec = Codec::Lz4 { head }.encode(row, &mut stored);
                (codec, Span { start: start as u32, len: (stored.len() - start) as u32 })
            })
            .collect();
        let value = |span: &Span| &stored[span.start as usize..][..span.len as usize];
        let mut out = Vec::new();
        let mut ours_out = Vec::new();
        let ours = || {
            let mut found = 0;
            for (codec, span) in &values {
                let value = value(span);
                let plain = codec.plain_part(value).len() as u16;
                if !plan.is_match_part(value, Part::Head(plain)) {
                    continue;
                }
                ours_out.clear();
                codec.decode(value, len, &mut ours_out).expect("it was encoded");
                found += u64::from(plan.is_match_part(&ours_out, Part::Rest(plain)));
            }
            found
        };
        let peer = || {
            let mut sum = 0;
            for (codec, span) in &values {
                out.clear();
                codec.decode(value(span), len, &mut out).expect("it was encoded");
                sum += out.len();
            }
            sum
        };
        let (ours, peer, found, _) = beside(ours, peer);
        println!(
            "LZ4 of each row, {head} bytes plain: {} of {} bytes; {found} match",
            stored.len(),
            bytes.len()
        );
        report("scan_lz4, values", bytes.len(), (ours, peer), "decoding all");
    }
}

/// What a conditional read of a row adds, from the bytes of the selection on.
fn conditions(bytes: &[u8], schema: &Schema) {
    let text = "orderkey > 0 and partkey > 0 and suppkey > 0 and linenumber > 0 and quantity > 0 \
        and discount >= 0 and tax >= 0 and shipdate > '1990-01-01'";
    let condition = Predicate::parse(text).expect("well-formed").bind(schema, &[]).expect("bound");
    let selection =
        Selection { row_least: schema.fixed(), condition, output: Output::Whole, limit: 1 };
    let sent = selection.to_bytes().expect("it is small");
    let row = &bytes[..schema.fixed().into()];
    const TIMES: usize = 10_000;
    let whole = || {
        (0..TIMES)
            .filter(|_| {
                let selection = Selection::parse(black_box(&sent)).expect("it was sent");
                Plan::new(&selection).expect("there is a plan").is_match(black_box(row))
            })
            .count()
    };
    let plan = Plan::new(&selection).expect("there is a plan");
    let planned = || (0..TIMES).filter(|_| plan.is_match(black_box(row))).count();
    let (whole, planned, ..) = beside(whole, planned);
    let each = |seconds: f64| 1e9 * seconds / TIMES as f64;
    println!(
        "8 conditions on one row: {:.0} ns from {} bytes, {:.0} ns by a plan",
        each(whole),
        sent.len(),
        each(planned)
    );
}
