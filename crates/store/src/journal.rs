//! The journal: what hears of every change. [`log`](crate::log) has the one that keeps them on a disk.

pub(crate) mod error;

use core::sync::atomic::{AtomicU64, Ordering};

pub use self::error::JournalError;
use crate::codec::Codec;
use crate::item::Item;
use crate::request::Asked;
use crate::tablespace::{TablespaceId, TablespaceOptions};

/// A change, as it is logged. Records of one key come in the order of its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A key has a new value.
    Put {
        /// The key's tablespace.
        tablespace: TablespaceId,
        /// The key.
        key: &'a [u8],
        /// The value as it is stored.
        stored: &'a [u8],
        /// How it is stored.
        codec: Codec,
        /// The client's flags.
        flags: u32,
        /// When the item expires, in ms of Unix time.
        expires_ms: Option<u64>,
    },
    /// A key's value stays, and expires at another time.
    Touch {
        /// The key's tablespace.
        tablespace: TablespaceId,
        /// The key.
        key: &'a [u8],
        /// When the item expires, in ms of Unix time.
        expires_ms: Option<u64>,
    },
    /// A key is gone: deleted or evicted.
    Delete {
        /// The key's tablespace.
        tablespace: TablespaceId,
        /// The key.
        key: &'a [u8],
    },
    /// There is a new tablespace.
    Create {
        /// Its number.
        tablespace: TablespaceId,
        /// Its name and limits.
        options: &'a TablespaceOptions,
    },
    /// A tablespace is gone, with all its keys.
    Drop {
        /// Its number.
        tablespace: TablespaceId,
    },
    /// All keys of a tablespace with smaller positions are gone.
    Flush {
        /// Its number.
        tablespace: TablespaceId,
    },
}

impl<'a> Record<'a> {
    /// The change that writes an item.
    #[must_use]
    pub fn of_item(item: &Item<'a>) -> Record<'a> {
        let Item { tablespace, key, stored, codec, flags, expires_ms, .. } = *item;
        Record::Put { tablespace, key, stored, codec, flags, expires_ms }
    }
}

/// What a journal has made of a record before it is appended: all that needs no position.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The checksum of the contents.
    pub(crate) sum: u64,
    /// The contents as the journal keeps them, if they are long.
    pub(crate) contents: Vec<u8>,
}

impl Prepared {
    /// Of a record of which only the checksum of the contents is known.
    #[must_use]
    pub fn summed(sum: u64) -> Prepared {
        Prepared { sum, contents: Vec::new() }
    }

    /// The checksum of the contents.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

/// What hears of every change, under the key's lock and before others see the change.
pub trait Journal: Send + Sync {
    /// Takes a record. The answer is its position, which becomes the change's version: positions
    /// rise with every record of one key, and start above 0. The call must not wait for a disk.
    ///
    /// # Errors
    /// The record cannot be logged. The change is not made then.
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError>;

    /// Does the part of an append that needs no position: for a long record, before its key's lock
    /// is taken. `None` if there is no such part.
    fn prepare(&self, record: &Record<'_>) -> Option<Prepared> {
        let _ = record;
        None
    }

    /// As [`Journal::append`], of a record that was prepared here. Expiry and flags may differ from
    /// those that it had then.
    ///
    /// # Errors
    /// See [`Journal::append`].
    fn append_prepared(
        &self,
        record: &Record<'_>,
        prepared: Prepared,
    ) -> Result<u64, JournalError> {
        let _ = prepared;
        self.append(record)
    }

    /// As [`Journal::append`], of a change that a client may ask for again. Where that has taken
    /// effect already, it is refused.
    ///
    /// # Errors
    /// See [`Journal::append`]. A journal that does not remember requests takes none.
    fn append_asked(&self, record: &Record<'_>, asked: &Asked<'_>) -> Result<u64, JournalError> {
        let _ = (record, asked);
        Err(JournalError::Failed("this store does not remember requests".to_owned()))
    }

    /// Whether readers are not told of changes before these are on a disk, or with a majority.
    fn holds_back(&self) -> bool {
        false
    }

    /// Whether an item that has expired is there until its deletion is logged. Those who carry the
    /// log out elsewhere, or later, do not judge by their clocks then: a change of the expiry may
    /// be on its way to them.
    fn logs_expiry(&self) -> bool {
        false
    }
}

/// A pointer to a log is that log.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<J: Journal + ?Sized> Journal for $pointer {
            fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
                (**self).append(record)
            }

            fn prepare(&self, record: &Record<'_>) -> Option<Prepared> {
                (**self).prepare(record)
            }

            fn append_prepared(
                &self,
                record: &Record<'_>,
                prepared: Prepared,
            ) -> Result<u64, JournalError> {
                (**self).append_prepared(record, prepared)
            }

            fn append_asked(
                &self,
                record: &Record<'_>,
                asked: &Asked<'_>,
            ) -> Result<u64, JournalError> {
                (**self).append_asked(record, asked)
            }

            fn holds_back(&self) -> bool {
                (**self).holds_back()
            }

            fn logs_expiry(&self) -> bool {
                (**self).logs_expiry()
            }
        }
    )*};
}

forward!(&J, std::sync::Arc<J>);

/// No log: positions are counted, and records forgotten.
#[derive(Debug, Default)]
pub struct Unlogged(AtomicU64);

impl Journal for Unlogged {
    #[inline]
    fn append(&self, _: &Record<'_>) -> Result<u64, JournalError> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
