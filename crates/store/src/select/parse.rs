//! The language of predicates, from text to a tree in which columns still have names.

use std::ops::Range;

use super::condition::{CONDITIONS_MAX, Compare, DEPTH_MAX};
use super::mistake::Mistake;
use super::token::{Lexeme, Word, tokens};
use super::value::Number;

/// The most bytes of a predicate's text.
pub const PREDICATE_MAX: usize = 1 << 16;

/// A predicate as it is written. `Predicate::bind` gives it columns and parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Predicate {
    pub(super) tree: Tree,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Tree {
    All(Vec<Tree>),
    Any(Vec<Tree>),
    Not(Box<Tree>),
    Constant(bool),
    Test { column: Name, test: Test },
}

/// A column's name.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Name {
    pub at: Range<usize>,
    pub name: String,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Test {
    Compare(Compare, Literal),
    Between(Literal, Literal),
    Like(Literal),
    Contains(Literal),
    Matches(Literal),
}

/// A value, or a parameter that will be one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Literal {
    pub at: Range<usize>,
    pub value: Value,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Number(Number),
    Text(String),
    Parameter(usize),
}

/// Reads the text of a predicate.
pub(super) fn parse(text: &str) -> Result<Tree, Mistake> {
    if text.len() > PREDICATE_MAX {
        let says = format!("a predicate has at most {PREDICATE_MAX} bytes");
        return Err(Mistake::new(0..0, says));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0, count: 0 };
    let tree = parser.any()?;
    match parser.peek().word {
        Word::End => Ok(tree),
        Word::Close => Err(parser.here("this bracket was not opened")),
        _ => Err(parser.here("`and` or `or` is missing before this")),
    }
}

pub(super) struct Parser {
    tokens: Vec<Lexeme>,
    next: usize,
    depth: usize,
    count: usize,
}

impl Parser {
    fn peek(&self) -> &Lexeme {
        // The last token is the end, which is not passed.
        &self.tokens[self.next]
    }

    fn take(&mut self) -> Lexeme {
        let token = self.peek().clone();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn here(&self, says: impl Into<String>) -> Mistake {
        Mistake::new(self.peek().at.clone(), says)
    }

    /// Takes a word of the language, if it is next.
    fn takes(&mut self, wanted: &str) -> bool {
        let is_next =
            matches!(&self.peek().word, Word::Name(name) if name.eq_ignore_ascii_case(wanted));
        if is_next {
            self.take();
        }
        is_next
    }

    /// Counts a condition that is read, and refuses the first that is one too many.
    fn count(&mut self) -> Result<(), Mistake> {
        self.count += 1;
        if self.count > CONDITIONS_MAX {
            return Err(self.here(format!("a predicate has at most {CONDITIONS_MAX} conditions")));
        }
        Ok(())
    }

    fn any(&mut self) -> Result<Tree, Mistake> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let says = format!("at most {DEPTH_MAX} brackets and `not` stand within each other");
            return Err(self.here(says));
        }
        let mut any = vec![self.all()?];
        while self.takes("or") {
            any.push(self.all()?);
        }
        self.depth -= 1;
        Ok(if any.len() == 1 { any.remove(0) } else { Tree::Any(any) })
    }

    fn all(&mut self) -> Result<Tree, Mistake> {
        let mut all = vec![self.not()?];
        while self.takes("and") {
            all.push(self.not()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Tree::All(all) })
    }

    fn not(&mut self) -> Result<Tree, Mistake> {
        // Two of them are none, so a run of them needs no depth.
        let mut negated = false;
        while self.takes("not") {
            negated = !negated;
        }
        let tree = self.one()?;
        Ok(if negated { Tree::Not(Box::new(tree)) } else { tree })
    }

    fn one(&mut self) -> Result<Tree, Mistake> {
        self.count()?;
        if self.takes("true") {
            return Ok(Tree::Constant(true));
        }
        if self.takes("false") {
            return Ok(Tree::Constant(false));
        }
        match &self.peek().word {
            Word::Open => {
                let opened = self.take();
                let tree = self.any()?;
                if self.peek().word != Word::Close {
                    let says = "the bracket that is opened here is not closed";
                    return Err(Mistake::new(opened.at, says));
                }
                self.take();
                Ok(tree)
            }
            Word::Name(_) => self.test(),
            Word::Number(_) | Word::Text(_) | Word::Parameter(_) => self.flipped(),
            _ => Err(self.here("a condition is missing here, such as `price < 24`")),
        }
    }

    /// `column …`
    fn test(&mut self) -> Result<Tree, Mistake> {
        let column = self.name()?;
        if let Word::Compare(compare) = self.peek().word {
            self.take();
            let test = Test::Compare(compare, self.literal()?);
            return Ok(Tree::Test { column, test });
        }
        let negated = self.takes("not");
        let test = if self.takes("like") {
            Test::Like(self.literal()?)
        } else if self.takes("contains") {
            Test::Contains(self.literal()?)
        } else if self.takes("matches") {
            Test::Matches(self.literal()?)
        } else if self.takes("between") {
            let least = self.literal()?;
            if !self.takes("and") {
                return Err(self.here("`between` has two values: write `between 1 and 9`"));
            }
            Test::Between(least, self.literal()?)
        } else {
            let says = "a comparison is missing here: =, !=, <, <=, >, >=, between, like, \
                contains or matches";
            return Err(self.here(says));
        };
        let tree = Tree::Test { column, test };
        Ok(if negated { Tree::Not(Box::new(tree)) } else { tree })
    }

    /// `24 > column`
    fn flipped(&mut self) -> Result<Tree, Mistake> {
        let literal = self.literal()?;
        let Word::Compare(compare) = self.peek().word else {
            return Err(self.here("a comparison with a column is missing here"));
        };
        self.take();
        if !matches!(self.peek().word, Word::Name(_)) {
            return Err(self.here("one side of a comparison is a column"));
        }
        let column = self.name()?;
        Ok(Tree::Test { column, test: Test::Compare(compare.flipped(), literal) })
    }

    fn literal(&mut self) -> Result<Literal, Mistake> {
        let value = match &self.peek().word {
            Word::Number(number) => Value::Number(*number),
            Word::Text(text) => Value::Text(text.clone()),
            Word::Parameter(number) => Value::Parameter(*number),
            Word::Name(name) => {
                let says = format!(
                    "a column is compared with a value; if `{name}` is a text, put it in quotes"
                );
                return Err(self.here(says));
            }
            _ => return Err(self.here("a value is missing here: a number, or a text in quotes")),
        };
        Ok(Literal { at: self.take().at, value })
    }

    fn name(&mut self) -> Result<Name, Mistake> {
        let token = self.take();
        match token.word {
            Word::Name(name) => Ok(Name { at: token.at, name }),
            _ => Err(Mistake::new(token.at, "a column's name is missing here")),
        }
    }
}

/// A column, or a function of one: `price`, `sum(price)`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Wanted {
    pub name: Name,
    pub of: Option<Name>,
}

/// Reads the list of what is wanted of rows: columns or functions, with commas between.
pub(super) fn parse_list(text: &str) -> Result<Vec<Wanted>, Mistake> {
    if text.len() > PREDICATE_MAX {
        let says = format!("a list of columns has at most {PREDICATE_MAX} bytes");
        return Err(Mistake::new(0..0, says));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0, count: 0 };
    let mut list = Vec::new();
    loop {
        parser.count()?;
        let name = parser.name()?;
        let mut of = None;
        if parser.peek().word == Word::Open {
            parser.take();
            of = Some(parser.name()?);
            if parser.take().word != Word::Close {
                return Err(Mistake::new(name.at, "the bracket behind this is not closed"));
            }
        }
        list.push(Wanted { name, of });
        let token = parser.take();
        match token.word {
            Word::Comma => {}
            Word::End => return Ok(list),
            _ => return Err(Mistake::new(token.at, "a comma is missing before this")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        let same = [
            ("a=1 or b=2 and not c=3", "a=1 or (b=2 and (not (c=3)))"),
            ("1 < a", "a > 1"),
            ("a not like 'x'", "not a like 'x'"),
            ("not not a = 1", "a = 1"),
            ("a BETWEEN 1 AND 2 AND b=1", "(a between 1 and 2) and (b=1)"),
        ];
        for (one, other) in same {
            let shape = |text| without_places(&format!("{:?}", parse(text).unwrap()));
            assert_eq!(shape(one), shape(other), "{one}");
        }
    }

    /// What is shown of a tree, with `at: N..M` taken out.
    fn without_places(shown: &str) -> String {
        let mut parts = shown.split("at: ");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            out += part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        }
        out
    }

    #[test]
    fn mistakes_stand_where_they_are() {
        let refused = [
            ("", "a condition is missing", 0),
            ("a = 1 b = 2", "`and` or `or`", 6),
            ("(a = 1", "not closed", 0),
            ("a = 1)", "not opened", 5),
            ("a", "a comparison is missing", 1),
            ("a = b", "put it in quotes", 4),
            ("a = ", "a value is missing", 4),
            ("1 = 2", "is a column", 4),
            ("a between 1 or 2", "two values", 12),
            ("a = 1994-01-01", "`and` or `or`", 8),
        ];
        for (text, says, at) in refused {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.says.contains(says), "{text}: {mistake}");
            assert_eq!(mistake.at.start, at, "{text}");
        }
    }

    #[test]
    fn a_predicate_has_limits() {
        let deep = |depth| "(".repeat(depth) + "a=1" + &")".repeat(depth);
        assert!(parse(&deep(DEPTH_MAX - 1)).is_ok());
        assert!(parse(&deep(DEPTH_MAX)).unwrap_err().says.contains("within each other"));
        assert!(parse(&deep(30_000)).is_err());
        let wide = |count| vec!["a=1"; count].join(" and ");
        assert!(parse(&wide(CONDITIONS_MAX)).is_ok());
        assert!(parse(&wide(CONDITIONS_MAX + 1)).unwrap_err().says.contains("at most 256"));
        assert!(parse(&" ".repeat(PREDICATE_MAX + 1)).is_err());
    }

    #[test]
    fn a_list_has_columns_and_functions() {
        let list = parse_list("price, sum(price)").unwrap();
        assert_eq!(list[0].name.name, "price");
        assert_eq!(list[1].of.as_ref().unwrap().at, 11..16);
        for text in ["", "a,", "a b", "f(a", "f()", "(a)", "1"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }
}
