//! The result of reading a text.

use super::super::place::Span;
use super::super::program::Program;

/// A piece of memory that `show` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The place as the text writes it.
    pub name: String,
    /// The piece of memory.
    pub span: Span,
}

/// A program from a text, and what to run it with.
#[derive(Clone, Debug)]
pub struct Source {
    /// The program.
    pub program: Program,
    /// The client's messages, in order. They lie in the program's data.
    pub requests: Vec<Span>,
    /// The memory to show at the end.
    pub shown: Vec<Shown>,
}
