//! What a connection of Redis' protocol remembers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::front::clients::Client;
use crate::front::keyspace::{Found, TablespaceId};
use crate::front::redis::reply::Version;
use crate::front::redis::request::Kept;

/// Whether a client gets replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    On,
    Off,
    /// Not to the command that asked, nor to the next one.
    SkipNext,
    /// Not to this one.
    Skip,
}

/// A key that a transaction depends on, as it was.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) ts: TablespaceId,
    pub(crate) key: Vec<u8>,
    pub(crate) found: Option<Found>,
}

/// The requests of a transaction that were put aside.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Each with its command's place in the table of commands.
    pub(crate) requests: Vec<(usize, Kept)>,
    pub(crate) bytes: usize,
    /// One of them was refused: none will be carried out.
    pub(crate) is_spoilt: bool,
}

/// What a connection remembers.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) client: Arc<Client>,
    pub(crate) database: usize,
    pub(crate) version: Version,
    pub(crate) is_known: bool,
    pub(crate) replies: Replies,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) is_closing: bool,
    /// A backup may answer reads from its own copy.
    pub(crate) reads_copies: bool,
    /// How many commands, the present one included, another group has sent here (`ASK`).
    pub(crate) asks: u8,
    /// The slot of a request that has to be tried again. What the client has sent behind it, before
    /// it knew, is to be tried again as well: it is not to overtake.
    pub(crate) put_off: Option<u16>,
    /// The end of the log behind the last change that it made, as a version.
    pub(crate) written: u64,
    /// Since when it has waited for nodes to hold that, while it does (`WAIT`).
    pub(crate) waits_since: Option<Instant>,
}

impl Conversation {
    /// A new connection; `is_known` if it needs no password.
    pub(crate) fn new(client: Arc<Client>, is_known: bool) -> Conversation {
        Conversation {
            client,
            database: 0,
            version: Version::Two,
            is_known,
            replies: Replies::On,
            transaction: None,
            watched: Vec::new(),
            is_closing: false,
            reads_copies: false,
            asks: 0,
            put_off: None,
            written: 0,
            waits_since: None,
        }
    }

    /// As it was when the connection was new.
    pub(crate) fn reset(&mut self, is_known: bool) {
        let client = self.client.clone();
        *client.words() = Default::default();
        *self = Conversation::new(client, is_known);
        self.publish();
    }

    /// Shows others what has changed.
    pub(crate) fn publish(&self) {
        let client = &self.client;
        client.database.store(self.database as u32, Relaxed);
        client.version.store(if self.version == Version::Three { 3 } else { 2 }, Relaxed);
        let queued = self.transaction.as_ref().map_or(0, |waiting| waiting.requests.len() + 1);
        client.queued.store(queued as u32, Relaxed);
        client.watched.store(self.watched.len() as u32, Relaxed);
    }

    /// The memory of requests put aside and keys watched, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let watched: usize = self.watched.iter().map(|watched| watched.key.len() + 64).sum();
        watched + self.transaction.as_ref().map_or(0, |waiting| waiting.bytes)
    }
}
