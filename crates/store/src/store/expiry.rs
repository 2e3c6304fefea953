//! When a value that is put expires. (Reads hide what has expired: `read`. The sweep removes it:
//! [`crate::sweep`].)

use crate::tablespace::Space;

/// When a value that is put expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// As the tablespace's default says.
    #[default]
    Default,
    /// Never, whatever the tablespace's default is.
    Never,
    /// At this time, in ms of Unix time.
    At(u64),
}

impl Expiry {
    /// As a client asks for it: where it names no time, the tablespace's default holds.
    #[must_use]
    pub fn asked(expires_ms: Option<u64>) -> Expiry {
        expires_ms.map_or(Expiry::Default, Expiry::At)
    }

    /// As an item has it: one without a time never expires.
    #[must_use]
    pub fn of_item(expires_ms: Option<u64>) -> Expiry {
        expires_ms.map_or(Expiry::Never, Expiry::At)
    }

    /// The time, in a tablespace.
    pub(super) fn time(self, space: &Space, now: u64) -> Option<u64> {
        match self {
            Expiry::Default => space.default_expiry(now),
            Expiry::Never => None,
            Expiry::At(at) => Some(at),
        }
    }
}
