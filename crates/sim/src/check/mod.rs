//! The checkers. Each is a file of its own, and says what must hold in every world without knowing
//! how the card does it.
//!
//! - [`memory`]: every byte is what the completed operations have made it.
//! - [`order`]: the order of completions. [`atomics`]: atomics happen exactly once.
//! - [`store`]: what clients of a store see, and what is there after a crash.
//! - [`linearizable`]: whether one copy of each key could have answered so.
//! - [`counters`]: counters match what the network did, and nothing leaks.

pub mod atomics;
pub mod counters;
pub mod linearizable;
pub mod memory;
pub mod order;
pub mod store;

use thiserror::Error;

/// A rule that a world has broken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{checker}: {what}")]
pub struct Violation {
    /// The name of the checker.
    pub checker: &'static str,
    /// What the checker found.
    pub what: String,
}

impl Violation {
    /// What `checker` found.
    pub fn new(checker: &'static str, what: impl Into<String>) -> Violation {
        Violation { checker, what: what.into() }
    }
}

/// Fails with a violation unless `holds`.
pub(crate) fn demand(
    holds: bool,
    checker: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(checker, what())) }
}
