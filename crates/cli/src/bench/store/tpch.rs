//! Rows of TPC-H.

use anyhow::{Context, Result};
use remora_store::select::Predicate;
use remora_store::select::plan::Plan;
use remora_store::select::rows::Rows;
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use tpchgen::generators::{LineItemGenerator, OrderGenerator};

const LINEITEM: &str = "orderkey i64\npartkey i64\nsuppkey i64\nlinenumber i32\n\
    quantity decimal(15,2)\nextendedprice decimal(15,2)\ndiscount decimal(15,2)\n\
    tax decimal(15,2)\nreturnflag char(1)\nlinestatus char(1)\nshipdate date\ncommitdate date\n\
    receiptdate date\nshipinstruct char(25)\nshipmode char(10)\ncomment char(44)\n";
/// The conditions of TPC-H's sixth query, which 2 % of the rows meet.
pub(super) const Q6: &str = "shipdate >= '1994-01-01' and shipdate < '1995-01-01' and \
    discount >= 0.05 and discount <= 0.07 and quantity < 24";
/// Eight conditions that all rows meet.
pub(super) const EIGHT: &str = "orderkey > 0 and partkey > 0 and suppkey > 0 and linenumber > 0 \
    and quantity > 0 and discount >= 0 and tax >= 0 and shipdate > '1990-01-01'";
/// The condition of TPC-H's thirteenth query, on comments.
pub(super) const Q13: &str = "comment like '%special%requests%'";

/// A table whose rows are values of a store.
pub(super) struct Table {
    schema: Schema,
    pub(super) bytes: Vec<u8>,
    /// Where each row ends.
    ends: Vec<usize>,
}

impl Table {
    fn new(schema: &str) -> Result<Table> {
        let schema = Schema::parse(schema).ok().context("the schema is wrong")?;
        Ok(Table { schema, bytes: Vec::new(), ends: Vec::new() })
    }

    fn push<'a>(&mut self, fields: impl Iterator<Item = &'a str>) -> Result<()> {
        self.schema.write_row(fields, &mut self.bytes).ok().context("a row does not fit")?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn row(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// A selection from the rows that meet a condition.
    pub(super) fn selection(&self, predicate: &str, output: Output) -> Result<Selection> {
        let predicate = Predicate::parse(predicate).ok().context("the predicate is wrong")?;
        let condition = predicate.bind(&self.schema, &[]).ok().context("a column is missing")?;
        let row_least = self.schema.fixed();
        Ok(Selection { row_least, condition, output, limit: u64::MAX })
    }

    pub(super) fn plan(&self, predicate: &str) -> Result<Plan> {
        Ok(Plan::new(&self.selection(predicate, Output::Whole)?)?)
    }
}

/// The table lineitem: rows of one length.
pub(super) struct Lineitem(pub(super) Table);

impl Lineitem {
    /// The rows of a scale factor.
    pub(super) fn generate(factor: f64) -> Result<Lineitem> {
        let mut table = Table::new(LINEITEM)?;
        for item in LineItemGenerator::new(factor, 1, 1).iter() {
            let item = item.to_string();
            table.push(item.trim_end_matches('|').split('|'))?;
        }
        Ok(Lineitem(table))
    }

    /// Bytes of a row.
    pub(super) fn row_len(&self) -> usize {
        self.0.schema.fixed().into()
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows::packed(&self.0.bytes, self.row_len())
    }
}

impl std::ops::Deref for Lineitem {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}

/// The comments of the table orders, a row each.
pub(super) fn comments(factor: f64) -> Result<Table> {
    let mut table = Table::new("comment text\n")?;
    for order in OrderGenerator::new(factor, 1, 1).iter() {
        let order = order.to_string();
        let comment = order.trim_end_matches('|').rsplit('|').next();
        table.push(comment.into_iter())?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_store::select::rows::Marks;

    #[test]
    fn as_many_rows_pass_as_the_benchmark_says() {
        let items = Lineitem::generate(0.002).unwrap();
        let mut marks = Marks::default();
        items.plan(Q6).unwrap().mark(&items.rows(), &mut marks);
        let share = marks.count() as f64 / items.count() as f64;
        assert!((0.01..0.03).contains(&share), "{share}");
        items.plan(EIGHT).unwrap().mark(&items.rows(), &mut marks);
        assert_eq!(marks.count(), items.count() as u64);
        let comments = comments(0.002).unwrap();
        let plan = comments.plan(Q13).unwrap();
        let plain = |row: &[u8]| {
            let row = std::str::from_utf8(row).unwrap();
            row.split_once("special").is_some_and(|(_, rest)| rest.contains("requests"))
        };
        assert!(
            (0..comments.count())
                .all(|i| { plan.is_match(comments.row(i)) == plain(comments.row(i)) })
        );
    }
}
