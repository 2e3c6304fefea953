//! The text form of chains, from text to [`Source`].
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
//!
//! - `token` cuts the text into words, `parse` makes `syntax` of them, and `lower` the program.
//! - `source` is the result; `diagnostic` is what is wrong in a text, shown to a person.

mod diagnostic;
mod lower;
mod parse;
mod source;
mod syntax;
mod token;

pub use diagnostic::Diagnostic;
pub use source::{Shown, Source};

/// The longest text, in bytes.
pub const TEXT_MAX: usize = 1 << 18;

/// Reads a program.
///
/// # Errors
/// The mistakes, in the order of the text; at most 50 of those that are found after parsing.
pub fn parse(text: &str) -> Result<Source, Vec<Diagnostic>> {
    if text.len() > TEXT_MAX {
        let message = format!("the text is longer than {TEXT_MAX} bytes");
        return Err(vec![Diagnostic::new(0..0, message, "fill large data by other means")]);
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
mod random;
#[cfg(test)]
mod tests;
