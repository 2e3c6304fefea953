//! The text form of chains.
//!
//! ```text
//! # if (x == y) answer = 1 else answer = 2, by hand (RedN Fig. 4) and by construct
//! data x = 5
//! data one = 1
//! data answer = 2
//! show answer
//!
//! queue ctl managed {
//!     r1: cas r2.head, noop:5 => write:5
//!         wait ctl through r1
//!         enable body through r2
//! }
//! queue body managed asleep {
//!     r2: off write one -> answer id 5
//! }
//!
//! program {
//!     if x == 5 { mov answer, 1 } else { mov answer, 2 }
//! }
//! ```
//!
//! docs/chain-language.md is the reference.

mod lower;
mod parse;
mod syntax;
mod token;

use core::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::place::Span;
use super::program::Program;

/// The longest text, in bytes.
pub const TEXT_MAX: usize = 1 << 18;

/// Something wrong in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Where, in bytes of the text.
    pub at: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
}

impl Diagnostic {
    fn new(at: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        Diagnostic { at, message: message.into(), help: help.into() }
    }

    /// Line and column, both from 1; columns are characters.
    pub fn line_column(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.at.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        (line, before[begin..].chars().count() + 1)
    }

    /// As a compiler would show it.
    pub fn render(&self, path: &str, text: &str, colour: bool) -> String {
        let here = AnnotationKind::Primary.span(self.at.clone());
        let snippet = Snippet::source(text).path(path).annotation(here);
        let error = Level::ERROR.primary_title(&*self.message).element(snippet);
        let report = [error.element(Level::HELP.message(&*self.help))];
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&report).clone()
    }
}

/// A piece of memory that is worth showing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// As the text has it.
    pub name: String,
    /// Where.
    pub span: Span,
}

/// A program from a text.
#[derive(Clone, Debug)]
pub struct Source {
    /// The program.
    pub program: Program,
    /// What the client sends, one message after the other; they lie among the program's data.
    pub requests: Vec<Span>,
    /// What is shown at the end.
    pub shown: Vec<Shown>,
}

/// Reads a program.
///
/// # Errors
/// What is wrong, in the order of the lines; of very much, the first.
pub fn parse(text: &str) -> Result<Source, Vec<Diagnostic>> {
    if text.len() > TEXT_MAX {
        let message = format!("the text is longer than {TEXT_MAX} bytes");
        return Err(vec![Diagnostic::new(0..0, message, "load large data some other way")]);
    }
    let mut parser = parse::Parser::new(text);
    let items = parser.items();
    let mut wrong = parser.wrong;
    let source = lower::lower(&items, &mut wrong);
    if wrong.is_empty() {
        return Ok(source);
    }
    wrong.sort_by_key(|diagnostic| diagnostic.at.start);
    Err(wrong)
}

#[cfg(test)]
mod tests;
