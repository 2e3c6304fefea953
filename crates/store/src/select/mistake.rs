//! What is wrong in a text, shown where it is.

use std::fmt::Write;
use std::ops::Range;

use thiserror::Error;

/// A mistake in a schema, a predicate or a list of columns.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{says}")]
pub struct Mistake {
    /// Where it is in the text, in bytes.
    pub at: Range<usize>,
    /// What is wrong, and what to write instead.
    pub says: String,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, says: impl Into<String>) -> Mistake {
        Mistake { at, says: says.into() }
    }

    /// The line and the column of the mistake in its `text`, both counted from 1; columns are
    /// characters.
    pub fn line_column(&self, text: &str) -> (usize, usize) {
        let (start, _) = self.line(text);
        let before = &text[..start];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let at = floor(text, self.at.start);
        (line, text[start..at.max(start)].chars().count() + 1)
    }

    /// The mistake for a person: what is wrong, the line of the `text` called `name`, and a mark
    /// under the place.
    pub fn render(&self, name: &str, text: &str) -> String {
        let (line, column) = self.line_column(text);
        let (start, end) = self.line(text);
        let at = floor(text, self.at.start).clamp(start, end);
        let until = floor(text, self.at.end).clamp(at, end);
        let marked = text[at..until].chars().count().max(1);
        // Tabs would move the mark.
        let shown = text[start..end].replace('\t', " ");
        let mut out = format!("{name}:{line}:{column}: {}\n", self.says);
        let _ = writeln!(out, "  {shown}\n  {:blanks$}{:^>marked$}", "", "", blanks = column - 1);
        out
    }

    /// Where the line of the mistake begins and ends.
    fn line(&self, text: &str) -> (usize, usize) {
        let at = floor(text, self.at.start);
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
        (start, end)
    }
}

/// The last boundary of a character at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_under_its_line() {
        let text = "price <\tä\nand prise > 2\n";
        let at = text.find("prise").unwrap();
        let mistake = Mistake::new(at..at + 5, "there is no column `prise`");
        assert_eq!(mistake.line_column(text), (2, 5));
        let shown = "where:2:5: there is no column `prise`\n  and prise > 2\n      ^^^^^\n";
        assert_eq!(mistake.render("where", text), shown);
    }

    #[test]
    fn a_place_outside_the_text_is_its_end() {
        for at in [0..100, 5..5, 100..200, 7..8] {
            let shown = Mistake::new(at, "no").render("where", "äöü");
            assert!(shown.ends_with('\n') && shown.contains('^'), "{shown}");
        }
        assert_eq!(Mistake::new(0..0, "no").render("where", ""), "where:1:1: no\n  \n  ^\n");
    }
}
