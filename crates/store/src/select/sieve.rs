//! A sieve: a selection at work on rows as they come, plain or compressed.

use std::ops::ControlFlow;

use super::aggregate::Aggregation;
use super::plan::{Part, Plan};
use super::rows::{Marks, Places, Rows, Span};
use super::selection::{Output, Selection};
use crate::codec::Codec;

/// What a sieve has done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sifted {
    /// Rows that were looked at.
    pub rows: u64,
    /// Rows that were selected.
    pub selected: u64,
    /// Values that were decompressed.
    pub decoded: u64,
    /// Values that could not be decompressed, or are not what was written once, and so were not
    /// selected.
    pub damaged: u64,
}

/// A selection at work. It allocates only until its buffers have grown.
#[derive(Clone, Debug)]
pub struct Sieve {
    output: Output,
    left: u64,
    aggregation: Option<Aggregation>,
    sifted: Sifted,
    marks: Marks,
    /// The parts of compressed rows that are plain.
    plain: Vec<Span>,
    row: Vec<u8>,
}

/// Values as they are stored, each a row.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Memory that holds values, and that nobody changes meanwhile.
    pub bytes: &'a [u8],
    /// Where each value lies in it.
    pub spans: &'a [Span],
    /// How each value is stored; those of values behind the last one are [`Codec::None`].
    pub codecs: &'a [Codec],
    /// The most bytes of a value.
    pub value_max: usize,
}

impl Sieve {
    /// A sieve for a selection.
    pub fn new(selection: &Selection) -> Sieve {
        let aggregation = match &selection.output {
            Output::Aggregates(aggregates) => Some(Aggregation::new(aggregates)),
            _ => None,
        };
        Sieve {
            output: selection.output.clone(),
            left: selection.limit,
            aggregation,
            sifted: Sifted::default(),
            marks: Marks::default(),
            plain: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Sifts rows by the selection's plan. Calls `each` with the number of each that is selected,
    /// and the row, unless aggregates are wanted. Breaks when the limit is reached.
    pub fn rows(
        &mut self,
        plan: &Plan,
        rows: &Rows<'_>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> ControlFlow<()> {
        plan.mark(rows, &mut self.marks);
        self.sifted.rows += rows.count() as u64;
        let marked = self.marks.count();
        if let Some(aggregation) = self.aggregation.as_mut().filter(|_| marked <= self.left) {
            aggregation.add_marked(rows, &self.marks);
            self.left -= marked;
            self.sifted.selected += marked;
            return self.next();
        }
        let marks = std::mem::take(&mut self.marks);
        let each_marked = marks.iter().try_for_each(|row| {
            self.next()?;
            self.select(row, rows.row(row), &mut each);
            ControlFlow::Continue(())
        });
        self.marks = marks;
        each_marked?;
        self.next()
    }

    /// Sifts values, each a row. A compressed one is decompressed only if what is plain of it lets
    /// it pass. Otherwise as [`Sieve::rows`].
    pub fn values(
        &mut self,
        plan: &Plan,
        values: &Stored<'_>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> ControlFlow<()> {
        let Some(head) = values.codecs.iter().filter_map(|codec| codec.head()).min() else {
            return self.rows(plan, &Rows::listed(values.bytes, values.spans), each);
        };
        let (mut plain, mut marks, mut row) =
            (std::mem::take(&mut self.plain), std::mem::take(&mut self.marks), Vec::new());
        std::mem::swap(&mut row, &mut self.row);
        plain.clear();
        plain.extend(values.spans.iter().enumerate().map(|(index, span)| {
            let len = values.codec(index).plain_part(span.of(values.bytes)).len() as u32;
            Span { start: span.start, len }
        }));
        let rows = Rows { bytes: values.bytes, places: Places::Listed(&plain) };
        marks.all(rows.count());
        plan.mark_part(&rows, Part::Head(head), &mut marks);
        self.sifted.rows += rows.count() as u64;
        let flow = marks.iter().try_for_each(|index| {
            self.next()?;
            let (codec, stored) = (values.codec(index), values.spans[index].of(values.bytes));
            let found = match codec {
                Codec::None => stored,
                _ => match self.decode(codec, stored, values.value_max, &mut row) {
                    Some(found) => found,
                    None => return ControlFlow::Continue(()),
                },
            };
            if plan.is_match_part(found, Part::Rest(head)) {
                self.select(index, found, &mut each);
            }
            ControlFlow::Continue(())
        });
        (self.plain, self.marks, self.row) = (plain, marks, row);
        flow?;
        self.next()
    }

    /// Sifts one value, stored in `bytes`. `is_whole` says whether they are what was written once,
    /// and is asked only of what would be selected.
    pub(crate) fn value(
        &mut self,
        plan: &Plan,
        (codec, bytes): (Codec, &[u8]),
        value_max: usize,
        is_whole: impl FnOnce() -> bool,
        mut each: impl FnMut(usize, &[u8]),
    ) -> ControlFlow<()> {
        self.next()?;
        self.sifted.rows += 1;
        let mut row = std::mem::take(&mut self.row);
        let found = match codec.head() {
            None => plan.is_match(bytes).then_some(bytes),
            Some(head) if plan.is_match_part(codec.plain_part(bytes), Part::Head(head)) => {
                let decoded = self.decode(codec, bytes, value_max, &mut row);
                decoded.filter(|found| plan.is_match_part(found, Part::Rest(head)))
            }
            Some(_) => None,
        };
        match found {
            Some(found) if is_whole() => self.select(0, found, &mut each),
            Some(_) => self.sifted.damaged += 1,
            None => {}
        }
        self.row = row;
        self.next()
    }

    /// Whether there may be a next row.
    #[inline]
    fn next(&self) -> ControlFlow<()> {
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    #[inline]
    fn select(&mut self, index: usize, row: &[u8], each: &mut impl FnMut(usize, &[u8])) {
        self.left -= 1;
        self.sifted.selected += 1;
        match &mut self.aggregation {
            Some(aggregation) => aggregation.add(row),
            None => each(index, row),
        }
    }

    /// The value that is stored, in `row`, which grows to the longest value.
    fn decode<'a>(
        &mut self,
        codec: Codec,
        stored: &[u8],
        value_max: usize,
        row: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        self.sifted.decoded += 1;
        let decoded = codec.decoded_len(stored, value_max).and_then(|len| {
            if row.len() < len {
                row.resize(len, 0);
            }
            codec.decode_into(stored, &mut row[..len]).map(|()| len)
        });
        if decoded.is_err() {
            self.sifted.damaged += 1;
        }
        decoded.ok().map(|len| &row[..len])
    }

    /// Appends what is wanted of a selected row: all of it, or its columns.
    #[inline]
    pub fn write(&self, row: &[u8], out: &mut Vec<u8>) {
        self.output.write(row, out);
    }

    /// The aggregates over the rows that were selected, if such are wanted.
    pub fn aggregation(&self) -> Option<&Aggregation> {
        self.aggregation.as_ref()
    }

    /// What was done so far.
    pub fn sifted(&self) -> Sifted {
        self.sifted
    }
}

impl Stored<'_> {
    #[inline]
    fn codec(&self, index: usize) -> Codec {
        self.codecs.get(index).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Predicate;
    use crate::select::schema::Schema;

    struct World {
        schema: Schema,
        bytes: Vec<u8>,
        spans: Vec<Span>,
        codecs: Vec<Codec>,
    }

    const NOTE: &str = "a note, a note, a note, a note, a note, a note, a note, a note ";

    /// Rows of id, price and note, every second one compressed.
    fn world(head: u16) -> World {
        let schema = Schema::parse("id u32\nprice decimal(9,2)\nnote text").unwrap();
        let (mut bytes, mut spans, mut codecs) = (vec![], vec![], vec![]);
        for id in 0..200 {
            let (id, price) = (id.to_string(), format!("{}.50", id % 10));
            let mut row = Vec::new();
            schema.write_row([&*id, &price, &(NOTE.to_owned() + &id)], &mut row).unwrap();
            let start = bytes.len();
            let codec = if codecs.len() % 2 == 1 { Codec::Lz4 { head } } else { Codec::None };
            codecs.push(codec.encode(&row, &mut bytes));
            spans.push(Span { start: start as u32, len: (bytes.len() - start) as u32 });
        }
        World { schema, bytes, spans, codecs }
    }

    fn selection(world: &World, predicate: &str, output: &str, limit: u64) -> (Selection, Plan) {
        let row_least = world.schema.fixed();
        let condition = Predicate::parse(predicate).unwrap().bind(&world.schema, &[]).unwrap();
        let output = Output::parse(output, &world.schema).unwrap();
        let selection = Selection { row_least, condition, output, limit };
        let plan = Plan::new(&selection).unwrap();
        (selection, plan)
    }

    fn stored(world: &World) -> Stored<'_> {
        let World { bytes, spans, codecs, .. } = world;
        Stored { bytes, spans, codecs, value_max: 1000 }
    }

    const WHERE: &str = "price < 3 and note like '%note 1%'";

    /// The ids that [`WHERE`] selects.
    fn wanted() -> Vec<usize> {
        let wanted = |id: &usize| id % 10 < 3 && id.to_string().starts_with('1');
        (0..200).filter(wanted).collect()
    }

    #[test]
    fn only_rows_that_may_be_selected_are_decompressed() {
        for (head, decoded) in [(8, 20), (0, 100)] {
            let world = world(head);
            let (selection, plan) = selection(&world, WHERE, "id", u64::MAX);
            let mut sieve = Sieve::new(&selection);
            let (mut found, mut out) = (vec![], vec![]);
            let mut rows = vec![];
            let flow = sieve.values(&plan, &stored(&world), |index, row| {
                found.push(index);
                rows.push(row.to_vec());
            });
            rows.iter().for_each(|row| sieve.write(row, &mut out));
            assert!(flow.is_continue());
            assert_eq!(found, wanted());
            let ids: Vec<u8> = wanted().iter().flat_map(|id| (*id as u32).to_le_bytes()).collect();
            assert_eq!(out, ids);
            let selected = wanted().len() as u64;
            assert_eq!(sieve.sifted(), Sifted { rows: 200, selected, decoded, damaged: 0 });
        }
    }

    #[test]
    fn a_limit_ends_the_scan() {
        let world = world(8);
        for limit in [0, 1, 7] {
            for output in ["*", "count"] {
                let (selection, plan) = selection(&world, WHERE, output, limit);
                let mut sieve = Sieve::new(&selection);
                let mut found = vec![];
                let flow = sieve.values(&plan, &stored(&world), |index, _| found.push(index));
                assert!(flow.is_break());
                assert_eq!(sieve.sifted().selected, limit);
                assert!(output == "count" || found == wanted()[..limit as usize]);
            }
        }
    }

    #[test]
    fn aggregates_are_over_plain_and_compressed_rows() {
        let world = world(4);
        let (selection, plan) = selection(&world, WHERE, "count, sum(price), max(id)", u64::MAX);
        let mut sieve = Sieve::new(&selection);
        let _ = sieve.values(&plan, &stored(&world), |_, _| panic!("no row is wanted"));
        let answers: Vec<_> =
            sieve.aggregation().unwrap().answers().map(|a| a.to_string()).collect();
        let sum: usize = wanted().iter().map(|id| id % 10 * 100 + 50).sum();
        assert_eq!(answers, [wanted().len().to_string(), sum.to_string(), "192".into()]);
    }

    #[test]
    fn a_damaged_value_is_counted_and_left_out() {
        let mut world = world(8);
        for index in [11, 13] {
            let span = world.spans[index];
            world.bytes[(span.start + 8) as usize..][..4].fill(0xFF);
        }
        world.spans[15].len = 3;
        let (selection, plan) = selection(&world, "true", "*", u64::MAX);
        let mut sieve = Sieve::new(&selection);
        let _ = sieve.values(&plan, &stored(&world), |_, _| {});
        assert_eq!((sieve.sifted().selected, sieve.sifted().damaged), (197, 2));
    }
}
