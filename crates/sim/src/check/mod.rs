//! The checkers: each says what must hold, knows nothing of how the card does it, and stands in a
//! file of its own.

pub mod atomics;
pub mod counters;
pub mod memory;
pub mod order;

use thiserror::Error;

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{checker}: {what}")]
pub struct Violation {
    /// Who objects.
    pub checker: &'static str,
    /// To what.
    pub what: String,
}

impl Violation {
    /// An objection.
    pub fn new(checker: &'static str, what: impl Into<String>) -> Violation {
        Violation { checker, what: what.into() }
    }
}

/// Objects unless `holds`.
pub(crate) fn demand(
    holds: bool,
    checker: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(checker, what())) }
}
