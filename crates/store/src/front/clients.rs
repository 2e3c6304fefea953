//! Who is connected, as every thread may ask, and how many may be. (`worker` tells the one too
//! many.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stats::Way;

/// How many clients may be connected at once, unless told otherwise.
pub(crate) const CLIENTS_MAX: u64 = 10_000;

/// What a client has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
}

/// A connection, as others see it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) peer: String,
    pub(crate) local: String,
    pub(crate) descriptor: i32,
    pub(crate) way: Way,
    pub(crate) since_ms: u64,
    /// When something last came, in ms of Unix time.
    pub(crate) last_ms: AtomicU64,
    pub(crate) database: AtomicU32,
    /// The version of the protocol.
    pub(crate) version: AtomicU32,
    /// Requests put aside for a transaction, plus one; 0 outside of one.
    pub(crate) queued: AtomicU32,
    pub(crate) watched: AtomicU32,
    /// The last command's place in the table of commands.
    pub(crate) command: AtomicU32,
    /// Bytes that it makes the server keep: half a request, replies not yet sent.
    pub(crate) bytes: AtomicU64,
    /// Somebody wants it gone.
    pub(crate) kill: AtomicBool,
    words: Mutex<Words>,
}

/// The addresses of a new connection.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: String,
    pub(crate) local: String,
    pub(crate) descriptor: i32,
}

impl Client {
    pub(crate) fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    all: Mutex<BTreeMap<u64, Arc<Client>>>,
    next: AtomicU64,
    count: AtomicU64,
}

impl Clients {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that nobody is told of.
    pub(crate) fn detached(&self, way: Way, ends: Ends, now: u64) -> Arc<Client> {
        let id = self.next.fetch_add(1, Relaxed) + 1;
        Arc::new(Client {
            id,
            peer: ends.peer,
            local: ends.local,
            descriptor: ends.descriptor,
            way,
            since_ms: now,
            last_ms: now.into(),
            database: 0.into(),
            version: 2.into(),
            queued: 0.into(),
            watched: 0.into(),
            command: u32::MAX.into(),
            bytes: 0.into(),
            kill: false.into(),
            words: Mutex::default(),
        })
    }

    /// Takes a connection in, unless there are `most` already.
    pub(crate) fn join(&self, way: Way, ends: Ends, now: u64, most: u64) -> Option<Arc<Client>> {
        let mut all = self.all();
        if all.len() as u64 >= most {
            return None;
        }
        let client = self.detached(way, ends, now);
        all.insert(client.id, client.clone());
        self.count.store(all.len() as u64, Relaxed);
        Some(client)
    }

    /// Forgets a connection.
    pub(crate) fn leave(&self, id: u64) {
        let mut all = self.all();
        all.remove(&id);
        self.count.store(all.len() as u64, Relaxed);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// All of them, by id.
    pub(crate) fn list(&self) -> Vec<Arc<Client>> {
        self.all().values().cloned().collect()
    }
}
