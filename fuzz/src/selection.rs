//! Selection: texts of predicates, the bytes that a client sends, and values that are compressed.

use remora_store::codec::Codec;
use remora_store::select::Predicate;
use remora_store::select::mistake::Mistake;
use remora_store::select::plan::{Part, Plan};
use remora_store::select::rows::{Marks, Rows, Span};
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use remora_store::select::sieve::{Sieve, Stored};

use crate::seeds::Seed;

/// The most bytes of a value.
const VALUE_MAX: usize = 1 << 16;
const SCHEMA: &str =
    "id u64\nprice decimal(9,2)\nday date\nflag char(1)\ncity char(12)\nsize i16\nnote text\n";

/// Reads the input as a schema, a predicate and a list of columns, with bytes of zero between them.
///
/// # Panics
/// If a mistake has no place in its text, or what was read has no bytes or other ones.
pub fn predicate(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut texts = text.splitn(3, '\0');
    let mut next = || texts.next().unwrap_or_default();
    let (schema_text, predicate_text, list) = (next(), next(), next());
    let schema = match Schema::parse(schema_text) {
        Ok(schema) => schema,
        Err(mistake) => return shown(&mistake, schema_text),
    };
    let condition = Predicate::parse(predicate_text)
        .and_then(|predicate| predicate.bind(&schema, &["7", "1994-01-31", "a%"]));
    let condition = match condition {
        Ok(condition) => condition,
        Err(mistake) => return shown(&mistake, predicate_text),
    };
    let output = match Output::parse(list, &schema) {
        Ok(output) => output,
        Err(mistake) => return shown(&mistake, list),
    };
    let limit = limit_of(&output);
    let selection = Selection { row_least: schema.fixed(), condition, output, limit };
    // Many long patterns are more than a message has.
    if let Ok(bytes) = selection.to_bytes() {
        assert_eq!(Selection::parse(&bytes), Ok(selection));
    }
}

/// Aggregates take no limit.
fn limit_of(output: &Output) -> u64 {
    if matches!(output, Output::Aggregates(_)) { u64::MAX } else { 3 }
}

fn shown(mistake: &Mistake, text: &str) {
    let (line, column) = mistake.line_column(text);
    assert!(line >= 1 && column >= 1 && mistake.at.end <= text.len(), "{mistake:?}");
    assert!(mistake.render("text", text).contains('^'));
}

/// Reads the input as the length of a selection, the selection, and rows to select from.
///
/// # Panics
/// If a selection is written otherwise than it was read, or its plan judges rows otherwise by
/// blocks, by parts and one by one.
pub fn selection(data: &[u8]) {
    let Some((len, rest)) = data.split_first_chunk() else { return };
    let Some((bytes, rows)) = rest.split_at_checked(u16::from_le_bytes(*len).into()) else {
        return;
    };
    let Ok(selection) = Selection::parse(bytes) else { return };
    assert_eq!(selection.to_bytes().as_deref(), Ok(bytes));
    let Ok(plan) = Plan::new(&selection) else { return };
    let len = usize::from(selection.row_least).max(1);
    check(&plan, &Rows::packed(rows, len), 3);
    // Rows that overlap, have gaps between them, and end outside.
    let place = |(index, byte): (usize, &u8)| Span {
        start: (index * len) as u32 + u32::from(*byte >> 5),
        len: (len as u32).wrapping_add(u32::from(*byte & 31)).wrapping_sub(2),
    };
    let spans: Vec<Span> = rows.iter().take(200).enumerate().map(place).collect();
    check(&plan, &Rows::listed(rows, &spans), u16::from(rows.first().copied().unwrap_or(0)));
    let codecs: Vec<Codec> = rows
        .iter()
        .map(|byte| Codec::from_u16(u16::from(*byte) << 8).unwrap_or_default())
        .collect();
    let mut sieve = Sieve::new(&selection);
    let (mut out, mut found) = (Vec::new(), 0);
    let values = Stored { bytes: rows, spans: &spans, codecs: &codecs, value_max: VALUE_MAX };
    let flow = sieve.values(&plan, &values, |_, row| {
        out.extend_from_slice(row);
        found += 1;
    });
    let sifted = sieve.sifted();
    assert!(sifted.selected <= selection.limit && found <= sifted.selected);
    assert_eq!(flow.is_break(), sifted.selected == selection.limit);
}

fn check(plan: &Plan, rows: &Rows<'_>, head: u16) {
    let (mut whole, mut parts) = (Marks::default(), Marks::default());
    plan.mark(rows, &mut whole);
    parts.all(rows.count());
    plan.mark_part(rows, Part::Head(head), &mut parts);
    plan.mark_part(rows, Part::Rest(head), &mut parts);
    assert_eq!(whole, parts);
    let one_by_one = (0..rows.count()).filter(|row| plan.is_match(rows.row(*row)));
    assert!(whole.iter().eq(one_by_one));
}

/// Reads the input as a codec and a stored value; then stores the input with that codec.
///
/// # Panics
/// If a value is longer than its limit, or is not what was stored.
pub fn codec(data: &[u8]) {
    let Some((number, stored)) = data.split_first_chunk() else { return };
    let Some(codec) = Codec::from_u16(u16::from_le_bytes(*number)) else { return };
    let mut out = vec![1];
    let decoded = codec.decode(stored, VALUE_MAX, &mut out);
    assert!(out.len() <= 1 + VALUE_MAX && (decoded.is_ok() || out.len() == 1));
    if decoded.is_ok() {
        assert!(out[1..].starts_with(codec.plain_part(stored)));
    }
    let (mut again, mut value) = (Vec::new(), Vec::new());
    let used = codec.encode(stored, &mut again);
    assert!(again.len() <= stored.len());
    assert_eq!(used.decode(&again, stored.len(), &mut value), Ok(()));
    assert_eq!(value, stored);
}

const PREDICATES: [(&str, &str, &str); 6] = [
    ("compare", "price < 24.5 and not (day >= '1994-01-31' or id != 7) and $1 <= size", "id, note"),
    ("like", "note like '%special%requests%' or city not like 'A_%' and note contains \"x\"", "*"),
    ("matches", "note matches '^[a-z]+ \\d{2,3}$' and flag between 'A' and 'R'", ""),
    ("parameters", "size = $1 and day < $2 and note like $3 and true or false", "count"),
    ("aggregates", "city >= 'Bonn'", "count, sum(price), min(day), max(size), distinct(note)"),
    ("mistake", "(price < 'ä' and nothing matches '(' or", "sum(note)"),
];

/// Schemas with predicates and lists of columns.
pub fn predicates() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = PREDICATES
        .iter()
        .map(|(name, predicate, list)| {
            let data = format!("{SCHEMA}\0{predicate}\0{list}").into();
            Seed { name: (*name).into(), data }
        })
        .collect();
    let schema = "a u8 # one\nskip(3)\nb decimal(19,2)\nc char(0)\n";
    seeds.push(Seed { name: "schema".into(), data: schema.into() });
    seeds
}

/// Selections with rows.
pub fn selections() -> Vec<Seed> {
    let schema = Schema::parse(SCHEMA).expect("it is well-formed");
    let mut rows = Vec::new();
    for (id, note) in ["no special requests", "a 12", "", "x special", "abc 345"].iter().enumerate()
    {
        let (id, price) = (id.to_string(), format!("{id}.25"));
        let fields = [&*id, &price, "1994-01-30", "B", "Bonn", &id, note];
        schema.write_row(fields, &mut rows).expect("it is a row");
    }
    let seed = |(name, predicate, list): &(&str, &str, &str)| {
        let predicate = Predicate::parse(predicate).ok()?;
        let condition = predicate.bind(&schema, &["7", "1994-01-31", "a%"]).ok()?;
        let output = Output::parse(list, &schema).ok()?;
        let limit = limit_of(&output);
        let selection = Selection { row_least: schema.fixed(), condition, output, limit };
        let bytes = selection.to_bytes().ok()?;
        let data = [&(bytes.len() as u16).to_le_bytes()[..], &bytes, &rows].concat();
        Some(Seed { name: (*name).into(), data })
    };
    PREDICATES.iter().filter_map(seed).collect()
}

/// Values as they are stored.
pub fn codecs() -> Vec<Seed> {
    let value = "a value, a value, a value, a value, a value, a value, a value";
    let seed = |(name, codec): (&str, Codec)| {
        let mut data = codec.to_u16().to_le_bytes().to_vec();
        codec.encode(value.as_bytes(), &mut data);
        Seed { name: name.into(), data }
    };
    let named = [
        ("none", Codec::None),
        ("lz4", Codec::Lz4 { head: 0 }),
        ("lz4-head", Codec::Lz4 { head: 9 }),
    ];
    let mut seeds: Vec<Seed> = named.into_iter().map(seed).collect();
    let mut bomb = seeds[1].data.clone();
    bomb[2..6].fill(0xFF);
    seeds.push(Seed { name: "bomb".into(), data: bomb });
    seeds
}
