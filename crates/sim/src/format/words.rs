//! The words of a file, each with its line.

use core::fmt::Display;
use core::str::FromStr;

use thiserror::Error;

/// Why a file cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {what}")]
pub struct FormatError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl FormatError {
    pub(super) fn new(line: usize, what: impl Into<String>) -> FormatError {
        FormatError { line, what: what.into() }
    }
}

/// The words of a file in which line ends have no meaning but that which [`Words::left`] gives
/// them. A line that begins with `#` is none of its text.
#[derive(Clone, Debug)]
pub(super) struct Words<'a> {
    lines: core::iter::Enumerate<core::str::Lines<'a>>,
    words: core::str::SplitWhitespace<'a>,
    /// The line of the word that was taken or looked for last, counted from 1.
    pub(super) line: usize,
}

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Words<'a> {
        Words { lines: text.lines().enumerate(), words: "".split_whitespace(), line: 1 }
    }

    /// The next word; `what` says what it should be.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, FormatError> {
        self.find(what)?;
        self.words.next().ok_or_else(|| self.ends(what))
    }

    /// How many words the line of the next word still has; `what` says what that should be.
    pub(super) fn left(&mut self, what: &str) -> Result<usize, FormatError> {
        self.find(what)?;
        Ok(self.words.clone().count())
    }

    /// Goes on to the line of the next word.
    fn find(&mut self, what: &str) -> Result<(), FormatError> {
        while self.words.clone().next().is_none() {
            let Some((i, text)) = self.lines.next() else { return Err(self.ends(what)) };
            let text = if i == 0 { text.trim_start_matches('\u{feff}') } else { text };
            let is_comment = text.trim_start().starts_with('#');
            (self.line, self.words) =
                (i + 1, if is_comment { "" } else { text }.split_whitespace());
        }
        Ok(())
    }

    fn ends(&self, what: &str) -> FormatError {
        self.error(format!("the file ends where {what} should be"))
    }

    /// The next word as a value.
    pub(super) fn value<T: FromStr>(&mut self, what: &str) -> Result<T, FormatError> {
        let word = self.word(what)?;
        word.parse().map_err(|_| self.error(format!("\"{}\" is not {what}", short(word))))
    }

    /// An error in the line of the word that was taken last.
    pub(super) fn error(&self, what: impl Display) -> FormatError {
        FormatError::new(self.line, what.to_string())
    }
}

/// The beginning of a word, for an error.
pub(super) fn short(word: &str) -> String {
    word.chars().take(40).collect()
}
