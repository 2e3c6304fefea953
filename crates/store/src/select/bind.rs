//! From the names of a predicate to places in a row: a schema and parameters are put in.

use super::condition::letters_key;
use super::condition::{Compare, Condition, Form, NumberAt, PATTERN_MAX, TextAt, TextTest};
use super::mistake::Mistake;
use super::parse::{self, Literal, Name, Predicate, Test, Tree, Value, Wanted};
use super::regex::Regex;
use super::schema::{Column, Schema, Type};
use super::selection::{Aggregate, BytesAt, Output};
use super::value::{Number, parse_date};

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
    pub fn bind(&self, schema: &Schema, parameters: &[&str]) -> Result<Condition, Mistake> {
        Binder { schema, parameters }.tree(&self.tree)
    }
}

struct Binder<'a> {
    schema: &'a Schema,
    parameters: &'a [&'a str],
}

/// A value as it is written: a number or text in the predicate, or a parameter, which is either.
enum Written<'a> {
    Number(Number),
    Text(&'a str),
    Parameter(&'a str),
}

impl Binder<'_> {
    fn tree(&self, tree: &Tree) -> Result<Condition, Mistake> {
        let each =
            |trees: &[Tree]| trees.iter().map(|one| self.tree(one)).collect::<Result<_, _>>();
        Ok(match tree {
            Tree::All(all) => Condition::All(each(all)?),
            Tree::Any(any) => Condition::Any(each(any)?),
            Tree::Not(not) => Condition::Not(Box::new(self.tree(not)?)),
            Tree::Constant(true) => Condition::ALWAYS,
            Tree::Constant(false) => Condition::NEVER,
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
    ) -> Result<Condition, Mistake> {
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
                Written::Text(text) | Written::Parameter(text) => parse_date(text),
                Written::Number(_) => None,
            };
            let date = date.ok_or_else(|| wrong("a date, such as \"1994-01-31\""))?;
            return Ok((date.into(), true));
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
    fn text(&self, column: &Column, test: &Test) -> Result<Condition, Mistake> {
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
            Test::Like(pattern) => TextTest::Like(literal(pattern)?.as_bytes().into()),
            Test::Contains(part) => TextTest::Contains(literal(part)?.as_bytes().into()),
            Test::Matches(pattern) => {
                let regex = literal(pattern)?;
                // The node refuses it too; here the mistake has a place.
                Regex::new(regex)
                    .map_err(|error| Mistake::new(pattern.at.clone(), error.to_string()))?;
                TextTest::Matches(regex.into())
            }
        };
        Ok(Condition::Text { text, test })
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
fn range(number: NumberAt, compare: Compare, (floor, exact): (i128, bool)) -> Condition {
    // Keys have the order of numbers, so a bound that no number reaches is the last key.
    let up_to = |most: i128| match number.key_of(most) {
        Some(most) => Condition::Within { number, least: i64::MIN, most },
        None if most < 0 => Condition::NEVER,
        None => Condition::ALWAYS,
    };
    match compare {
        Compare::Equal => match number.key_of(floor).filter(|_| exact) {
            Some(key) => Condition::Within { number, least: key, most: key },
            None => Condition::NEVER,
        },
        Compare::Less if exact => up_to(floor.saturating_sub(1)),
        Compare::Less | Compare::LessOrEqual => up_to(floor),
        Compare::NotEqual => contrary(range(number, Compare::Equal, (floor, exact))),
        Compare::Greater => contrary(range(number, Compare::LessOrEqual, (floor, exact))),
        Compare::GreaterOrEqual => contrary(range(number, Compare::Less, (floor, exact))),
    }
}

/// The condition that holds where another does not.
fn contrary(condition: Condition) -> Condition {
    match condition {
        Condition::Within { number, least: i64::MIN, most } if most < i64::MAX => {
            Condition::Within { number, least: most + 1, most: i64::MAX }
        }
        Condition::Within { number, least, most: i64::MAX } if least > i64::MIN => {
            Condition::Within { number, least: i64::MIN, most: least - 1 }
        }
        Condition::All(all) if all.is_empty() => Condition::NEVER,
        Condition::Any(any) if any.is_empty() => Condition::ALWAYS,
        other => Condition::Not(Box::new(other)),
    }
}

/// Both conditions.
fn both(one: Condition, other: Condition) -> Condition {
    Condition::All(vec![one, other])
}

/// The texts that compare so with `with`: short ones in a fixed place as numbers.
fn compare_text(text: TextAt, compare: Compare, with: &str) -> Condition {
    match text.len {
        Some(len) if len <= LETTERS_MAX && with.len() <= len.into() => {
            let number = NumberAt { offset: text.offset, form: Form::Letters(len as u8) };
            let key = letters_key(with.as_bytes());
            let within = |least, most| Condition::Within { number, least, most };
            match compare {
                Compare::Equal => within(key, key),
                Compare::NotEqual => contrary(within(key, key)),
                Compare::LessOrEqual => within(i64::MIN, key),
                Compare::Greater => contrary(within(i64::MIN, key)),
                Compare::GreaterOrEqual => within(key, i64::MAX),
                Compare::Less => contrary(within(key, i64::MAX)),
            }
        }
        _ => Condition::Text { text, test: TextTest::Compare(compare, with.as_bytes().into()) },
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
        let places = wanted.iter().map(|wanted| column_of(schema, &wanted.name).map(bytes_at));
        Ok(Output::Columns(places.collect::<Result<_, _>>()?))
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
