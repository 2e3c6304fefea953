//! A check: one thing examined, what was found, and whether that is well.
//!
//! The checks themselves are in `library`, `machine`, `network` and `peer`.

use serde::Serialize;

/// How well it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Nothing is wrong.
    Ok,
    /// Good to know, and not a fault.
    Note,
    /// It may be the reason why programs do not connect, or become one.
    Warn,
    /// It is a reason why programs do not connect.
    Fail,
}

/// The result of examining one thing.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// What the user should do; empty if nothing.
    pub(super) advice: String,
}

impl Check {
    pub(super) fn new(name: &'static str, status: Status, found: impl Into<String>) -> Check {
        Check { name, status, found: found.into(), advice: String::new() }
    }

    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, Status::Ok, found)
    }

    pub(super) fn note(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, Status::Note, found)
    }

    pub(super) fn warn(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { advice: advice.into(), ..Check::new(name, Status::Warn, found) }
    }

    pub(super) fn fail(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { advice: advice.into(), ..Check::new(name, Status::Fail, found) }
    }
}
