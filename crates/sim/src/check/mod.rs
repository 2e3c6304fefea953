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

/// The most steps of a search for an order. In random worlds it takes a few for each operation.
const STEPS_MAX: u64 = 1 << 20;

/// What is said of operations for which such a search has found neither an order nor that there is
/// none.
pub(crate) fn undecided() -> String {
    format!("is not decided: {STEPS_MAX} steps do not show whether there is an order")
}

/// Fails with a violation unless `holds`.
pub(crate) fn demand(
    holds: bool,
    checker: &'static str,
    what: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(checker, what())) }
}
