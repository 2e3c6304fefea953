//! What a text means.

use super::super::place::Span;
use super::super::program::Program;

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
