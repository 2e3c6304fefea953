//! From the names of a predicate to places in a row: a schema and parameters are put in.

use std::cell::Cell;

use remora::calendar::Day;

use super::condition::letters_key;
use super::condition::{Compare, Form, NumberAt, PATTERN_MAX, RowCondition, TextAt, TextTest};
use super::mistake::Mistake;
use super::parse::{self, Literal, Name, Predicate, Test, Tree, Value, Wanted};
use super::plan::{PlanError, REGEXES_MAX};
use super::regex::Regex;
use super::schema::{Column, Schema, Type};
use super::selection::{Aggregate, BytesAt, Output};
use super::text::is_automaton;
use super::value::Number;

/// Texts up to so many bytes are compared as numbers are.
const LETTERS_MAX: u16 = 8;

impl Predicate {
    /// Reads a predicate.
    ///
    /// # Errors
    /// The first mistake, with its place in the text.
    pub fn parse(text: &str) -> Result<Predicate, Mistake> {
        Ok(Predicate { tree: parse::parse(text)? })
    }

    /// The condition that the predicate is on rows of `schema`. `parameters` are the values of
    /// `$1`, `$2` and so on, each written as its column's values are, without quotes.
    ///
    /// # Errors
    /// The first mistake, with its place in the predicate's text.
    pub fn bind(&self, schema: &Schema, parameters: &[&str]) -> Result<RowCondition, Mistake> {
        Binder { schema, parameters, patterns: Cell::new(0) }.tree(&self.tree)
    }
}

struct Binder<'a> {
    schema: &'a Schema,
    parameters: &'a [&'a str],
    /// The tests so far that become automata.
    patterns: Cell<usize>,
}

/// A value as it is written: a number or text in the predicate, or a parameter, which is either.
enum Written<'a> {
    Number(Number),
    Text(&'a str),
    Parameter(&'a str),
}

impl Binder<'_> {
    fn tree(&self, tree: &Tree) -> Result<RowCondition, Mistake> {
        let each =
            |trees: &[Tree]| trees.iter().map(|one| self.tree(one)).collect::<Result<_, _>>();
        Ok(match tree {
            Tree::All(all) => RowCondition::All(each(all)?),
            Tree::Any(any) => RowCondition::Any(each(any)?),
            Tree::Not(not) => RowCondition::Not(Box::new(self.tree(not)?)),
            Tree::Constant(true) => RowCondition::ALWAYS,
            Tree::Constant(false) => RowCondition::NEVER,
            Tree::Test { column, test } => {
                let found = column_of(self.schema, column)?;
                match number_at(found) {
                    Some(number) => self.number(found, number, column, test)?,
                    None => self.text(found, test)?,
                }
            }
        })
    }

    fn written<'a>(&'a self, literal: &'a Literal) -> Result<Written<'a>, Mistake> {
        Ok(match &literal.value {
            Value::Number(number) => Written::Number(*number),
            Value::Text(text) => Written::Text(text),
            Value::Parameter(number) => {
                let given = self.parameters.get(number - 1);
                let says = || match self.parameters.len() {
                    0 => format!("there is no value for ${number}: none were given"),
                    count => format!("there is no value for ${number}: {count} were given"),
                };
                let given = given.ok_or_else(|| Mistake::new(literal.at.clone(), says()))?;
                Written::Parameter(given)
            }
        })
    }

    /// A test of a column of numbers or dates.
    fn number(
        &self,
        column: &Column,
        at: NumberAt,
        name: &Name,
        test: &Test,
    ) -> Result<RowCondition, Mistake> {
        let bound = |literal| self.bound(column, literal);
        match test {
            Test::Compare(compare, literal) => Ok(range(at, *compare, bound(literal)?)),
            Test::Between(least, most) => {
                let least = range(at, Compare::GreaterOrEqual, bound(least)?);
                Ok(both(least, range(at, Compare::LessOrEqual, bound(most)?)))
            }
            Test::Like(_) | Test::Contains(_) | Test::Matches(_) => {
                let says =
                    format!("`{}` is no text: compare it with =, <, > or between", name.name);
                Err(Mistake::new(name.at.clone(), says))
            }
        }
    }

    /// A value in the units of its column, rounded down, and whether it is exact.
    fn bound(&self, column: &Column, literal: &Literal) -> Result<(i128, bool), Mistake> {
        let wrong = |wanted: &str| {
            let says = format!("`{}` is compared with {wanted}", column.name);
            Mistake::new(literal.at.clone(), says)
        };
        if column.of == Type::Date {
            let date = match self.written(literal)? {
                Written::Text(text) | Written::Parameter(text) => Day::parse(text),
                Written::Number(_) => None,
            };
            let Day(days) = date.ok_or_else(|| wrong("a date, such as \"1994-01-31\""))?;
            return Ok((days.into(), true));
        }
        let number = match self.written(literal)? {
            Written::Number(number) => Some(number),
            Written::Parameter(text) => Number::parse(text.trim()),
            Written::Text(_) => None,
        };
        let scale = if let Type::Decimal { scale, .. } = column.of { scale } else { 0 };
        Ok(number.ok_or_else(|| wrong("a number, which has no quotes"))?.floor(scale.into()))
    }

    /// A test of a column of text.
    fn text(&self, column: &Column, test: &Test) -> Result<RowCondition, Mistake> {
        let text = match column.of {
            Type::Char { len } => TextAt { offset: column.offset, len: Some(len) },
            _ => TextAt { offset: column.offset, len: None },
        };
        let literal = |literal| self.pattern(column, literal);
        let test = match test {
            Test::Compare(compare, with) => {
                return Ok(compare_text(text, *compare, literal(with)?));
            }
            Test::Between(least, most) => {
                let least = compare_text(text, Compare::GreaterOrEqual, literal(least)?);
                return Ok(both(least, compare_text(text, Compare::LessOrEqual, literal(most)?)));
            }
            Test::Like(pattern) => {
                let test = TextTest::Like(literal(pattern)?.as_bytes().into());
                self.check(test, pattern)?
            }
            Test::Contains(part) => TextTest::Contains(literal(part)?.as_bytes().into()),
            Test::Matches(pattern) => {
                self.check(TextTest::Matches(literal(pattern)?.into()), pattern)?
            }
        };
        Ok(RowCondition::Text { text, test })
    }

    /// The test of a pattern, if it can be one. The node refuses it too; here the mistake has a
    /// place.
    fn check(&self, test: TextTest, pattern: &Literal) -> Result<TextTest, Mistake> {
        let refuse = |says: String| Mistake::new(pattern.at.clone(), says);
        if is_automaton(&test) {
            self.patterns.set(self.patterns.get() + 1);
        }
        if self.patterns.get() > REGEXES_MAX {
            return Err(refuse(PlanError::TooManyRegexes.to_string()));
        }
        if let TextTest::Matches(pattern) = &test {
            Regex::new(pattern).map_err(|error| refuse(error.to_string()))?;
        }
        Ok(test)
    }

    fn pattern<'a>(&'a self, column: &Column, literal: &'a Literal) -> Result<&'a str, Mistake> {
        let refuse = |says: String| Mistake::new(literal.at.clone(), says);
        let text = match self.written(literal)? {
            Written::Text(text) | Written::Parameter(text) => text,
            Written::Number(_) => {
                let says = format!("`{}` is text: put the value in quotes", column.name);
                return Err(refuse(says));
            }
        };
        if text.len() > PATTERN_MAX {
            return Err(refuse(format!("a text has at most {PATTERN_MAX} bytes here")));
        }
        if text.contains('\0') {
            return Err(refuse("a text has no bytes of zero".into()));
        }
        Ok(text)
    }
}

/// The column of this name.
fn column_of<'a>(schema: &'a Schema, name: &Name) -> Result<&'a Column, Mistake> {
    let says = || {
        let names = schema.names();
        format!("there is no column `{}`; the schema has {names}", name.name)
    };
    schema.column(&name.name).ok_or_else(|| Mistake::new(name.at.clone(), says()))
}

/// Where a column's numbers lie; `None` for text.
pub(super) fn number_at(column: &Column) -> Option<NumberAt> {
    let form = match column.of {
        Type::Integer { width, signed: false } => Form::Unsigned(width),
        Type::Integer { width, signed: true } | Type::Decimal { width, .. } => Form::Signed(width),
        Type::Date => Form::Signed(4),
        Type::Char { .. } | Type::Text => return None,
    };
    Some(NumberAt { offset: column.offset, form })
}

/// The numbers that compare so with a value, which was rounded down unless it is exact.
fn range(number: NumberAt, compare: Compare, (floor, exact): (i128, bool)) -> RowCondition {
    // Keys have the order of numbers, so a bound that no number reaches is the last key.
    let up_to = |most: i128| match number.key_of(most) {
        Some(most) => RowCondition::Within { number, least: i64::MIN, most },
        None if most < 0 => RowCondition::NEVER,
        None => RowCondition::ALWAYS,
    };
    match compare {
        Compare::Equal => match number.key_of(floor).filter(|_| exact) {
            Some(key) => RowCondition::Within { number, least: key, most: key },
            None => RowCondition::NEVER,
        },
        Compare::Less if exact => up_to(floor.saturating_sub(1)),
        Compare::Less | Compare::LessOrEqual => up_to(floor),
        Compare::NotEqual => contrary(range(number, Compare::Equal, (floor, exact))),
        Compare::Greater => contrary(range(number, Compare::LessOrEqual, (floor, exact))),
        Compare::GreaterOrEqual => contrary(range(number, Compare::Less, (floor, exact))),
    }
}

/// The condition that holds where another does not.
fn contrary(condition: RowCondition) -> RowCondition {
    match condition {
        RowCondition::Within { number, least: i64::MIN, most } if most < i64::MAX => {
            RowCondition::Within { number, least: most + 1, most: i64::MAX }
        }
        RowCondition::Within { number, least, most: i64::MAX } if least > i64::MIN => {
            RowCondition::Within { number, least: i64::MIN, most: least - 1 }
        }
        RowCondition::All(all) if all.is_empty() => RowCondition::NEVER,
        RowCondition::Any(any) if any.is_empty() => RowCondition::ALWAYS,
        other => RowCondition::Not(Box::new(other)),
    }
}

/// Both conditions.
fn both(one: RowCondition, other: RowCondition) -> RowCondition {
    RowCondition::All(vec![one, other])
}

/// The texts that compare so with `with`: short ones in a fixed place as numbers.
fn compare_text(text: TextAt, compare: Compare, with: &str) -> RowCondition {
    match text.len {
        Some(len) if len <= LETTERS_MAX && with.len() <= len.into() => {
            let number = NumberAt { offset: text.offset, form: Form::Letters(len as u8) };
            let key = letters_key(with.as_bytes());
            let within = |least, most| RowCondition::Within { number, least, most };
            match compare {
                Compare::Equal => within(key, key),
                Compare::NotEqual => contrary(within(key, key)),
                Compare::LessOrEqual => within(i64::MIN, key),
                Compare::Greater => contrary(within(i64::MIN, key)),
                Compare::GreaterOrEqual => within(key, i64::MAX),
                Compare::Less => contrary(within(key, i64::MAX)),
            }
        }
        _ => RowCondition::Text { text, test: TextTest::Compare(compare, with.as_bytes().into()) },
    }
}

impl Output {
    /// Reads a list of columns, or of aggregates: `count`, `sum(c)`, `min(c)`, `max(c)`,
    /// `distinct(c)`; `*` or nothing is the whole row.
    ///
    /// # Errors
    /// The first mistake, with its place in the text.
    pub fn parse(text: &str, schema: &Schema) -> Result<Output, Mistake> {
        if matches!(text.trim(), "" | "*") {
            return Ok(Output::Whole);
        }
        let wanted = parse::parse_list(text)?;
        // A column may be called `count`.
        let is_aggregate = |wanted: &Wanted| {
            wanted.of.is_some() || wanted.name.name == "count" && schema.column("count").is_none()
        };
        let first = wanted.first().is_some_and(is_aggregate);
        if let Some(other) = wanted.iter().find(|wanted| is_aggregate(wanted) != first) {
            let says = "a list has columns, or aggregates, but not both";
            return Err(Mistake::new(other.name.at.clone(), says));
        }
        if first {
            let aggregates = wanted.iter().map(|wanted| aggregate(wanted, schema));
            return Ok(Output::Aggregates(aggregates.collect::<Result<_, _>>()?));
        }
        let mut places = Vec::with_capacity(wanted.len());
        for Wanted { name, .. } in &wanted {
            let place = bytes_at(column_of(schema, name)?);
            if places.contains(&place) {
                let says = format!("`{}` is named twice", name.name);
                return Err(Mistake::new(name.at.clone(), says));
            }
            places.push(place);
        }
        Ok(Output::Columns(places))
    }
}

fn aggregate(wanted: &Wanted, schema: &Schema) -> Result<Aggregate, Mistake> {
    let Some(of) = &wanted.of else { return Ok(Aggregate::Count) };
    let column = column_of(schema, of)?;
    let number = || {
        let says = format!("`{}` is text, and has no {}", of.name, wanted.name.name);
        number_at(column).ok_or_else(|| Mistake::new(of.at.clone(), says))
    };
    match wanted.name.name.as_str() {
        "sum" => Ok(Aggregate::Sum(number()?)),
        "min" => Ok(Aggregate::Least(number()?)),
        "max" => Ok(Aggregate::Greatest(number()?)),
        "distinct" => Ok(Aggregate::Distinct(bytes_at(column))),
        _ => {
            let says = "there is no such aggregate: write count, sum(c), min(c), max(c) or \
                distinct(c)";
            Err(Mistake::new(wanted.name.at.clone(), says))
        }
    }
}

/// Where a column's bytes lie.
fn bytes_at(column: &Column) -> BytesAt {
    let len = if column.of == Type::Text { None } else { Some(column.of.width()) };
    BytesAt { offset: column.offset, len }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::select::plan::Plan;
    use crate::select::selection::Selection;

    const SCHEMA: &str = "id u8\nbig u64\nprice decimal(9,2)\nday date\nflag char(3)\n\
        city char(12)\nnote text";

    fn schema() -> Schema {
        Schema::parse(SCHEMA).unwrap()
    }

    fn bind(predicate: &str, parameters: &[&str]) -> Result<RowCondition, Mistake> {
        Predicate::parse(predicate)?.bind(&schema(), parameters)
    }

    /// Whether a predicate selects the row of these fields.
    fn selects(predicate: &str, parameters: &[&str], fields: &str) -> bool {
        let condition = bind(predicate, parameters).unwrap_or_else(|e| panic!("{predicate}: {e}"));
        let (row_least, output) = (schema().fixed(), Output::Whole);
        let plan = Plan::new(&Selection { row_least, condition, output, limit: 1 }).unwrap();
        let mut row = Vec::new();
        schema().write_row(fields.split('|'), &mut row).unwrap();
        plan.is_match(&row)
    }

    #[test]
    fn conditions_are_on_the_values_of_columns() {
        let row = "7|18446744073709551615|-0.05|1994-01-31|R|Aachen|some special requests";
        let cases = [
            ("id = 7 and 7 = id and id != 8 and id < 7.5 and id > -1 and id < 1000", true),
            ("id > 1000 or id = 7.5 or id = -1 or id < -1 or not id >= -300", false),
            ("big >= 18446744073709551615 and big > 1 and not big > 99999999999999999999", true),
            ("big < 18446744073709551615", false),
            ("price = -0.05 and price < 0 and price <= -0.045 and price > -0.055", true),
            ("price between -0.05 and 0 and price not between 0 and 1", true),
            ("day = '1994-01-31' and day < '1994-02-01' and day >= \"1970-01-01\"", true),
            ("day between '1993-01-01' and '1993-12-31'", false),
            ("flag = 'R' and flag < 'RA' and flag != '' and flag > 'A' and flag >= 'R'", true),
            ("flag = 'Rabcdef' or flag <= 'Q' or flag < 'R' or flag > 'R'", false),
            ("flag < 'Rabcdef'", true),
            ("city = 'Aachen' and city < 'B' and city like 'A%n' and city contains 'ache'", true),
            ("city between 'Aa' and 'Ab' and city matches '^A.*n$'", true),
            ("note like '%special%' and note not like 'special%' and note >= 'some'", true),
            ("true and not false", true),
        ];
        for (predicate, expected) in cases {
            assert_eq!(selects(predicate, &[], row), expected, "{predicate}");
        }
        let parameters = ["7", "1994-01-31", "R", "it's' or true or '"];
        assert!(selects("id = $1 and day = $2 and flag = $3 and price < $1", &parameters, row));
        assert!(!selects("note = $4", &parameters, row), "no predicate is read in a parameter");
    }

    #[test]
    fn mistakes_stand_where_they_are() {
        let refused = [
            ("prise < 2", "the schema has id, big, price", 0..5),
            ("price < '2'", "no quotes", 8..11),
            ("price < $1", "with a number", 8..10),
            ("id < $2", "1 were given", 5..7),
            ("day < 1994", "with a date", 6..10),
            ("day < '1994-02-30'", "with a date", 6..18),
            ("price like 'a'", "is no text", 0..5),
            ("note = 5", "in quotes", 7..8),
            ("note matches '('", "unclosed", 13..16),
        ];
        for (predicate, says, at) in refused {
            let mistake = bind(predicate, &["x"]).unwrap_err();
            assert!(mistake.says.contains(says), "{predicate}: {mistake}");
            assert_eq!(mistake.at, at, "{predicate}");
        }
        let long = format!("note = '{}'", "x".repeat(PATTERN_MAX + 1));
        assert!(bind(&long, &[]).unwrap_err().says.contains("at most 1024 bytes"));
    }

    /// None is made before they are counted: the last one is wrong, and nobody sees it.
    #[test]
    fn there_are_few_patterns() {
        for pattern in ["note matches 'a'", "city like '%a_'"] {
            let four = [pattern; 4].join(" and ");
            assert!(bind(&four, &[]).is_ok());
            let five = format!("{four} and city matches '('");
            let mistake = bind(&five, &[]).unwrap_err();
            assert!(mistake.says.contains("at most 4 patterns"), "{mistake}");
            assert_eq!(mistake.at, five.len() - 3..five.len());
        }
        assert!(bind(&[r"note like 'a\_%'"; 5].join(" and "), &[]).is_ok());
    }

    #[test]
    fn lists_have_columns_or_aggregates() {
        let parse = |list| Output::parse(list, &schema());
        assert_eq!(parse(" * "), Ok(Output::Whole));
        let note = BytesAt { offset: 32, len: None };
        let id = BytesAt { offset: 0, len: Some(1) };
        assert_eq!(parse("note, id"), Ok(Output::Columns(vec![note, id])));
        let day = NumberAt { offset: 13, form: Form::Signed(4) };
        let aggregates =
            vec![Aggregate::Count, Aggregate::Greatest(day), Aggregate::Distinct(note)];
        assert_eq!(parse("count, max(day), distinct(note)"), Ok(Output::Aggregates(aggregates)));
        let refused = [
            ("id, count", "not both", 4),
            ("sum(note)", "is text", 4),
            ("median(id)", "no such aggregate", 0),
            ("sum(x)", "no column `x`", 4),
            ("sum", "no column `sum`", 0),
            ("id, note, id", "`id` is named twice", 10),
        ];
        for (list, says, at) in refused {
            let mistake = parse(list).unwrap_err();
            assert!(mistake.says.contains(says), "{list}: {mistake}");
            assert_eq!(mistake.at.start, at, "{list}");
        }
    }

    proptest! {
        #[test]
        fn decimals_are_compared_exactly(
            cents in -300i64..300, value in -3000i64..3000, sign in 0usize..6,
            flip in any::<bool>(),
        ) {
            let written = |units: i64, scale: usize| {
                let unit = 10u64.pow(scale as u32);
                let sign = if units < 0 { "-" } else { "" };
                let (whole, part) = (units.unsigned_abs() / unit, units.unsigned_abs() % unit);
                format!("{sign}{whole}.{part:0scale$}")
            };
            let (price, value_text) = (written(cents, 2), written(value, 3));
            let signs = ["=", "!=", "<", "<=", ">", ">="];
            let (thousandths, other) = (cents * 10, value);
            let (left, right) = if flip { (other, thousandths) } else { (thousandths, other) };
            let order = left.cmp(&right);
            let expected = [
                order.is_eq(), order.is_ne(), order.is_lt(), order.is_le(), order.is_gt(),
                order.is_ge(),
            ];
            let sign_text = signs[sign];
            let predicate = match flip {
                true => format!("{value_text} {sign_text} price"),
                false => format!("price {sign_text} {value_text}"),
            };
            let row = format!("0|0|{price}|1970-01-01|||");
            prop_assert_eq!(selects(&predicate, &[], &row), expected[sign], "{}", predicate);
        }
    }
}
