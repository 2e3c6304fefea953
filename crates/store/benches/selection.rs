//! Selection beside its peers, on rows of TPC-H, on one core.
//!
//! `cargo bench -p remora-store --bench selection [-- FACTOR [FILE]]`: the scale factor of TPC-H,
//! 0.2 by default; orders' comments are written to the file, a line each, for other programs.
//! `REMORA_CPU=v2` or `v3` shows a lesser processor's figures.
//!
//! Both sides take turns by slices of a millisecond, and a figure is the median of them: machines
//! are seldom idle.

use std::hint::black_box;
use std::time::Instant;

use remora_offload::cpu;
use remora_store::codec::Codec;
use remora_store::select::Predicate;
use remora_store::select::plan::{Part, Plan};
use remora_store::select::plans::Plans;
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
const ROUNDS: usize = 5;
/// Bytes that are copied from shared memory at a time. The C library copies from 8 KiB on by an
/// instruction that is slower here, and what is longer leaves less room in the first cache.
const PIECE: usize = 7 << 10;
/// Rows that one side works on before it is the other's turn.
const SLICE: usize = 4096;
/// Rows that are compressed together.
const TOGETHER: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let factor = arguments.next().map_or(0.2, |factor| factor.parse().expect("a scale factor"));
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

/// The medians of the seconds that both sides take for a slice, of `slices` that they work on by
/// turns. They are half of the slices apart: neither finds in the cache what the other left there.
fn beside(slices: usize, mut ours: impl FnMut(usize), mut peer: impl FnMut(usize)) -> (f64, f64) {
    let (mut of_ours, mut of_peer) = (vec![], vec![]);
    for turn in 0..ROUNDS * slices {
        let start = Instant::now();
        ours(turn % slices);
        let middle = Instant::now();
        peer((turn + slices / 2) % slices);
        of_peer.push(middle.elapsed().as_secs_f64());
        of_ours.push((middle - start).as_secs_f64());
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    (median(of_ours), median(of_peer))
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
    let mut sums = [0u64; 8];
    for words in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

fn compare(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let len = usize::from(schema.fixed());
    let mut marks = Marks::default();
    let all = Rows::packed(bytes, len);
    plan.mark(&all, &mut marks);
    let (count, found) = (all.count(), marks.count());
    println!("{count} rows of {len} bytes; {:.1} % pass", 100.0 * found as f64 / count as f64);
    let slices: Vec<&[u8]> = bytes.chunks_exact(SLICE * len).collect();
    let peer = |slice: usize| _ = black_box(bare_read(slices[slice]));

    // As the store scans: a piece is copied from shared memory, and judged in the cache.
    let mut piece = vec![0; PIECE / len * len];
    let copied = |slice: usize| {
        for from in slices[slice].chunks(piece.len()) {
            let piece = &mut piece[..from.len()];
            piece.copy_from_slice(from);
            plan.mark(&Rows::packed(piece, len), &mut marks);
        }
    };
    report("scan_compare", SLICE * len, beside(slices.len(), copied, peer), "bare read");

    let mut marks = Marks::default();
    let in_place = |slice: usize| plan.mark(&Rows::packed(slices[slice], len), &mut marks);
    let times = beside(slices.len(), in_place, peer);
    report("scan_compare, in place", SLICE * len, times, "bare read");

    // What the instructions take, without the memory.
    let mut marks = Marks::default();
    let cached = |_: usize| {
        let piece = &bytes[..PIECE / len * len];
        (0..SLICE * len / piece.len())
            .for_each(|_| plan.mark(&Rows::packed(black_box(piece), len), &mut marks));
    };
    report("scan_compare, cached", SLICE * len, beside(slices.len(), cached, peer), "bare read");
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
    let mut marks = Marks::default();
    plan.mark(&Rows::listed(&bytes, &spans), &mut marks);
    let found = marks.count();
    let slices: Vec<&[Span]> = spans.chunks_exact(SLICE).collect();
    let ours = |slice: usize| plan.mark(&Rows::listed(&bytes, slices[slice]), &mut marks);
    let comments: Vec<&str> = orders.iter().map(|order| field(order, 8)).collect();
    let comments: Vec<&[&str]> = comments.chunks_exact(SLICE).collect();
    let peer = |slice: usize| {
        black_box(comments[slice].iter().filter(|comment| plain_like(comment)).count());
    };
    let times = beside(slices.len(), ours, peer);
    println!("{} orders, {text} bytes of comments; {found} match", orders.len());
    println!("  {:.1} ns a row", 1e9 * times.0 / SLICE as f64);
    report("scan_like", text * SLICE / orders.len(), times, "str::find");
}

fn plain_like(comment: &str) -> bool {
    comment.find("special").is_some_and(|at| comment[at + 7..].contains("requests"))
}

/// Rows that are compressed together, as the values of an archive.
fn lz4(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let len = usize::from(schema.fixed());
    let codec = Codec::Lz4 { head: 0 };
    let compress = |rows: &[u8]| {
        let mut stored = Vec::new();
        assert_eq!(codec.encode(rows, &mut stored), codec);
        stored
    };
    let values: Vec<Vec<u8>> = bytes.chunks_exact(TOGETHER * len).map(compress).collect();
    let stored: usize = values.iter().map(Vec::len).sum();
    let slices: Vec<&[Vec<u8>]> = values.chunks_exact(SLICE / TOGETHER).collect();
    let (mut rows, mut out) = (vec![0; TOGETHER * len], vec![0; TOGETHER * len]);
    let mut marks = Marks::default();
    let ours = |slice: usize| {
        for value in slices[slice] {
            codec.decode_into(value, &mut rows).expect("it was encoded");
            plan.mark(&Rows::packed(&rows, len), &mut marks);
        }
    };
    let peer = |slice: usize| {
        for value in slices[slice] {
            let done = lz4_flex::block::decompress_into(&value[4..], &mut out);
            black_box(done.expect("it was compressed"));
        }
    };
    let times = beside(slices.len(), ours, peer);
    println!("LZ4 of {TOGETHER} rows: {stored} of {} bytes", bytes.len());
    report("scan_lz4", SLICE * len, times, "lz4_flex");
}

/// Each row a value of its own: all compressed, and with the columns plain.
fn lz4_values(bytes: &[u8], schema: &Schema, plan: &Plan) {
    let len = usize::from(schema.fixed());
    let head = schema.column("shipinstruct").expect("the schema has it").offset;
    for head in [0, head] {
        let mut stored = 0;
        let mut encode = |row: &[u8]| {
            let mut value = Vec::new();
            let codec = Codec::Lz4 { head }.encode(row, &mut value);
            stored += value.len();
            (codec, value)
        };
        let values: Vec<(Codec, Vec<u8>)> = bytes.chunks_exact(len).map(&mut encode).collect();
        let slices: Vec<&[(Codec, Vec<u8>)]> = values.chunks_exact(SLICE).collect();
        let (mut out, mut rest) = (vec![0; len], vec![0; len]);
        let ours = |slice: usize| {
            for (codec, value) in slices[slice] {
                let plain = codec.plain_part(value);
                let head = plain.len() as u16;
                if plan.is_match_part(plain, Part::Head(head)) {
                    let row = &mut out[..codec.decoded_len(value, len).expect("it was encoded")];
                    codec.decode_into(value, row).expect("it was encoded");
                    black_box(plan.is_match_part(row, Part::Rest(head)));
                }
            }
        };
        let peer = |slice: usize| {
            for (codec, value) in slices[slice] {
                match codec {
                    Codec::None => rest[..value.len()].copy_from_slice(value),
                    _ => {
                        let block = &value[usize::from(head) + 4..];
                        let done = lz4_flex::block::decompress_into(block, &mut rest);
                        black_box(done.expect("it was compressed"));
                    }
                }
            }
        };
        let times = beside(slices.len(), ours, peer);
        println!("LZ4 of each row, {head} bytes plain: {stored} of {} bytes", bytes.len());
        report("scan_lz4, values", SLICE * len, times, "lz4_flex");
    }
}

/// What a conditional read of a row adds, from the bytes of the selection on.
fn conditions(bytes: &[u8], schema: &Schema) {
    const TIMES: usize = 10_000;
    let text = "orderkey > 0 and partkey > 0 and suppkey > 0 and linenumber > 0 and quantity > 0 \
        and discount >= 0 and tax >= 0 and shipdate > '1990-01-01'";
    let condition = Predicate::parse(text).expect("well-formed").bind(schema, &[]).expect("bound");
    let (row_least, output) = (schema.fixed(), Output::Whole);
    let selection = Selection { row_least, condition, output, limit: 1 };
    let sent = selection.to_bytes().expect("it is small");
    let row = &bytes[..schema.fixed().into()];
    let whole = |_| {
        for _ in 0..TIMES {
            let selection = Selection::parse(black_box(&sent)).expect("it was sent");
            let plan = Plan::new(&selection).expect("there is a plan");
            assert!(plan.is_match(black_box(row)));
        }
    };
    let mut plans = Plans::default();
    let planned = |_| {
        for _ in 0..TIMES {
            let planned = plans.get(black_box(&sent)).expect("it was sent");
            assert!(planned.plan.is_match(black_box(row)));
        }
    };
    let (whole, planned) = beside(1, whole, planned);
    let each = |seconds: f64| 1e9 * seconds / TIMES as f64;
    println!(
        "8 conditions on one row: {:.0} ns from {} bytes, {:.0} ns by a kept plan",
        each(whole),
        sent.len(),
        each(planned)
    );
}
