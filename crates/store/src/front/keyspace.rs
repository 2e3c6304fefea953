//! The store as the fronts use it: one object, whatever memory it lives in and whatever logs it.

use std::cell::OnceCell;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Instant;

use remora::connection::token::Token;
use thiserror::Error;

use crate::front::slots::{Range, Shard, Ticket};
/// When a key was used last, as the store notes it.
pub use crate::item::Trace;
use crate::select::plan::Plan;
use crate::select::selection::Selection;
use crate::slab::ClassInfo;
/// When a value that is put ends.
pub use crate::store::Expiry;
/// A key and its value.
pub use crate::store::Pair;
/// A tablespace, as the store names it.
pub use crate::tablespace::TablespaceId;

/// What is known of a key beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Grows with every change of the store: the token of memcached's comparisons.
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// When it ends, in ms of Unix time.
    pub expires_ms: Option<u64>,
    /// When it was used last, before this, if the store traces its tablespace.
    pub trace: Option<Trace>,
}

/// A key's value at the moment of a change. It is fetched when it is first asked for.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// What is known of it.
    pub found: Found,
    fetched: &'a OnceCell<Vec<u8>>,
    fetch: &'a dyn Fn() -> Vec<u8>,
}

impl<'a> Seen<'a> {
    /// A value that `fetch` fetches into `fetched`, once.
    pub fn new(
        found: Found,
        fetched: &'a OnceCell<Vec<u8>>,
        fetch: &'a dyn Fn() -> Vec<u8>,
    ) -> Seen<'a> {
        Seen { found, fetched, fetch }
    }

    /// The value, as clients see it.
    pub fn value(&self) -> &'a [u8] {
        self.fetched.get_or_init(self.fetch)
    }
}

/// What a command does to a key; [`served`](super::served) makes a change of the store of it.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'v> {
    /// Nothing.
    Keep,
    /// It has this value.
    Put {
        /// The value.
        value: &'v [u8],
        /// The client's flags.
        flags: u32,
        /// When it ends.
        expiry: Expiry,
    },
    /// It has the value that was made in the scratch buffer.
    Make {
        /// The client's flags.
        flags: u32,
        /// When it ends.
        expiry: Expiry,
    },
    /// Its end moves.
    Touch {
        /// When it ends, in ms of Unix time.
        expires_ms: Option<u64>,
    },
    /// It is gone.
    Delete,
}

/// Why a change was not made. Nothing has changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeRefused {
    /// The key is empty or too long.
    #[error("a key is 1 to {limit} bytes long")]
    Key {
        /// The longest key, in bytes.
        limit: usize,
    },
    /// The value is too long.
    #[error("a value is at most {limit} bytes long")]
    Value {
        /// The longest value, in bytes.
        limit: usize,
    },
    /// There is no memory for it.
    #[error("out of memory: {0}")]
    Memory(String),
    /// The log cannot take it.
    #[error("the log takes no changes: {0}")]
    Log(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// A change that looks at a key's value, if it has one, and decides.
pub type Decide<'d, 'v> = &'d mut dyn FnMut(Option<Seen<'_>>, &mut Vec<u8>) -> Edit<'v>;
/// What a scan shows: a key and its end; false ends the scan.
pub type Visit<'d> = &'d mut dyn FnMut(&[u8], &Found) -> bool;

/// What a selection shows: a key and its row; false ends the walk.
pub type Row<'d> = &'d mut dyn FnMut(&[u8], &[u8]) -> bool;

/// Keys that nobody has deleted, and that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetGo {
    /// Memory was short.
    pub evicted: u64,
    /// A sweep has removed them, since their time had come.
    pub expired: u64,
}

/// A store, by its operations. Each is linearizable per key, with all other ways in.
pub trait Keyspace: Send + Sync + Debug {
    /// Appends the key's value to `value`, if there is one.
    fn get(&self, ts: TablespaceId, key: &[u8], now: u64, value: &mut Vec<u8>) -> Option<Found>;

    /// Appends the key's value if a plan selects it. The answer is whether it does, if there is
    /// such a key. A compressed value is decompressed only if what is plain of it may be selected.
    fn get_where(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        plan: &Plan,
        value: &mut Vec<u8>,
    ) -> Option<bool>;

    /// As [`Keyspace::get`], which counts as no use of the key.
    fn get_unnoticed(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        value: &mut Vec<u8>,
    ) -> Option<Found>;

    /// Notes that a key is read.
    fn note_read(&self, ts: TablespaceId, key: &[u8], now: u64);

    /// Has the keys traced that the tablespace of this name gets from now on.
    fn trace(&self, name: &str);

    /// What is known of a key, without its value.
    fn look(&self, ts: TablespaceId, key: &[u8], now: u64) -> Option<Found>;

    /// Changes a key as `decide` says. The answer is the change's version, if there was one.
    ///
    /// # Errors
    /// If the change cannot be made.
    fn update(
        &self,
        ts: TablespaceId,
        key: &[u8],
        now: u64,
        decide: Decide<'_, '_>,
    ) -> Result<Option<u64>, ChangeRefused>;

    /// Puts all pairs, in order, or none of them. The answer is the version of the last one.
    ///
    /// # Errors
    /// If they cannot be put.
    fn put_all(&self, ts: TablespaceId, pairs: &[Pair<'_>], now: u64)
    -> Result<u64, ChangeRefused>;

    /// Shows keys from where `cursor` says, about `budget` of them. Each key that is there during
    /// a whole walk is shown at least once. The answer is where to go on; 0 is the end.
    fn scan(&self, ts: TablespaceId, cursor: u64, budget: usize, now: u64, visit: Visit<'_>)
    -> u64;

    /// Shows the rows that a selection selects, as [`Keyspace::scan`] shows keys: it looks at about
    /// `budget` items, or at fewer if they are long. Aggregates and limits are not its matter.
    ///
    /// # Errors
    /// The selection asks for more than is allowed.
    fn select(
        &self,
        ts: TablespaceId,
        cursor: u64,
        budget: usize,
        now: u64,
        selection: &Selection,
        visit: Row<'_>,
    ) -> Result<u64, ChangeRefused>;

    /// A place where a walk may begin, chosen by `seed`.
    fn somewhere(&self, seed: u64) -> u64;

    /// How many keys there are, with those whose time has come but that were not yet removed.
    fn count(&self, ts: TablespaceId) -> u64;

    /// How many of these expire.
    fn expiring(&self, ts: TablespaceId) -> u64;

    /// How many keys were let go, since the store was made.
    fn let_go(&self) -> LetGo;

    /// The blocks of each size.
    fn classes(&self, ts: TablespaceId) -> Vec<ClassInfo>;

    /// Removes all keys. The answer is the change's version.
    ///
    /// # Errors
    /// If the log cannot take it.
    fn flush(&self, ts: TablespaceId, now: u64) -> Result<u64, ChangeRefused>;

    /// Whether keys are let go where memory is short.
    fn evicts(&self) -> bool {
        false
    }

    /// The tablespace of this name, if there is one.
    fn known(&self, name: &str) -> Option<TablespaceId>;

    /// The tablespace of this name, made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    fn tablespace(&self, name: &str) -> Result<TablespaceId, ChangeRefused>;

    /// The bytes that a key takes with its value and all that belongs to it.
    fn bytes_of(&self, ts: TablespaceId, key: &[u8], now: u64) -> Option<u64>;

    /// The bytes in use, and the most that may be.
    fn bytes(&self) -> (u64, u64);
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// All changes up to this version are to be kept.
    pub version: u64,
    /// The first of what the answer acknowledges was made, or read, after [`Keeper::seen`] was
    /// this.
    pub since: u64,
    /// When it began to wait.
    pub from: Instant,
}

/// What is kept of changes beyond the process, as the fronts use it.
pub trait Keeper: Send + Sync + Debug {
    /// Whether an answer has to wait until its change is kept. It never changes.
    fn is_awaited(&self) -> bool;

    /// Whether changes are logged, awaited or not. The answer never changes.
    fn is_logged(&self) -> bool {
        self.is_awaited()
    }

    /// Has all changes up to `version` kept soon, since answers wait for that. A front calls this
    /// when it has carried out all that had come.
    fn hasten(&self, _version: u64) {}

    /// Whether what an answer waits for is kept. Without a keeper of anything, it is.
    ///
    /// # Errors
    /// If it cannot be: it must not be acknowledged.
    fn is_kept(&self, _awaited: &Awaited) -> Result<bool, String> {
        Ok(true)
    }

    /// Has `listener` called whenever [`Keeper::is_kept`] may say something else than before, by
    /// any thread, and until the keeper goes. It must not wait.
    fn listen(&self, _listener: Box<dyn Fn() + Send + Sync>) {}

    /// Why the disk takes no changes at the moment, if it does not: were the process to end now,
    /// changes that were answered would be lost.
    fn refuses(&self) -> Option<String> {
        None
    }

    /// Writes the whole store to the disk: before it returns, or on its own.
    ///
    /// # Errors
    /// If it cannot be done, or is being done.
    fn save(&self, background: bool) -> Result<(), String>;

    /// When the store was last written as a whole, in seconds of Unix time.
    fn saved_s(&self) -> u64;

    /// What `INFO persistence` shows, as names and values.
    fn entries(&self) -> Vec<(&'static str, String)>;

    /// Runs `act`, all of whose changes are there after a crash, or none.
    fn together(&self, act: &mut dyn FnMut()) {
        act();
    }

    /// What an answer about keys as they are now has to wait for, as a version. 0: for nothing.
    fn seen(&self) -> u64 {
        0
    }

    /// The same for an answer about these keys of a tablespace alone, which was made before this is
    /// asked.
    fn seen_of(&self, _ts: TablespaceId, _keys: &mut dyn Iterator<Item = &[u8]>) -> u64 {
        self.seen()
    }

    /// How many other nodes hold the log up to `version`.
    fn holders(&self, _version: u64) -> usize {
        0
    }

    /// The cluster that the store is a part of, if it is.
    fn cluster(&self) -> Option<Cluster> {
        None
    }

    /// Whether the store is a part of a cluster. The answer never changes.
    fn is_clustered(&self) -> bool {
        false
    }

    /// Whether keys are to be asked for elsewhere at the moment.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// What the nodes of a group show each other, where there is one.
    fn group_token(&self) -> Option<Token> {
        None
    }

    /// Where the node to which keys lead serves memcached's clients, which do not follow by
    /// themselves.
    fn relays_to(&self) -> Option<SocketAddr> {
        None
    }

    /// Whether this node, a backup, may answer for a slot's keys from its own copy: it follows its
    /// group's primary, and the group has all of the slot's keys. It is looked at after the copy.
    /// Without a slot, the answer is about the copy itself.
    fn is_readable(&self, _slot: Option<u16>) -> bool {
        false
    }

    /// Lets `act` see what the store's group is for each slot, which stays so meanwhile. Nothing is
    /// shown where all keys are here.
    fn with_shard(&self, act: &mut dyn FnMut(Option<&Shard>)) {
        act(None);
    }

    /// Takes part in a move of slots that come here from another group. The answer is the version
    /// of what that changed.
    ///
    /// # Errors
    /// Why not, in words. The other group tries again.
    fn transfer(&self, _step: &Transfer<'_>) -> Result<u64, String> {
        Err("this server is not a part of a cluster of several groups".to_owned())
    }
}

/// What the group that gives slots away asks of the one that gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// What it asks for.
    pub step: TransferStep,
    /// The group that gives.
    pub from: &'a str,
    /// The session's number.
    pub ticket: Ticket,
    /// The slots.
    pub ranges: Vec<Range>,
}

/// A step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// To be ready for keys of this session, and of no earlier one.
    Take,
    /// The same, but for slots that are owned here already: all have been given before.
    Retake,
    /// To own the slots: all keys have come.
    Own,
}

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its groups of nodes. A group's keys are on its primary, and on its other nodes as far as
    /// they have followed it.
    pub groups: Vec<ClusterGroup>,
}

/// A group of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterGroup {
    /// Its name.
    pub name: String,
    /// Whether this node belongs to it.
    pub is_mine: bool,
    /// Counts its configurations.
    pub epoch: u32,
    /// The slots whose keys it has.
    pub slots: Vec<Range>,
    /// Its nodes.
    pub nodes: Vec<ClusterNode>,
}

impl Cluster {
    /// The group that this node belongs to.
    pub(crate) fn mine(&self) -> Option<&ClusterGroup> {
        self.groups.iter().find(|group| group.is_mine)
    }

    /// The primary of this node's group, if this node is not the primary itself.
    pub(crate) fn leader(&self) -> Option<&ClusterNode> {
        self.mine()?.primary().filter(|node| !node.is_me)
    }

    /// The group of this name.
    pub(crate) fn group(&self, name: &str) -> Option<&ClusterGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// The group that has a slot's keys.
    pub(crate) fn owner(&self, slot: u16) -> Option<&ClusterGroup> {
        self.groups.iter().find(|group| group.slots.iter().any(|range| range.has(slot)))
    }
}

impl ClusterGroup {
    /// Its primary.
    pub(crate) fn primary(&self) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| node.is_primary)
    }
}

/// A node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its number.
    pub id: u64,
    /// Where Redis' clients reach it, if they do.
    pub address: Option<SocketAddr>,
    /// Whether it is this node.
    pub is_me: bool,
    /// Whether it is the primary.
    pub is_primary: bool,
    /// Whether it answers.
    pub health: Health,
    /// The bytes of its log, if that is known here.
    pub offset: Option<u64>,
}

/// Whether a node answers, as far as another one knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It does, for all that is known.
    #[default]
    Online,
    /// It is there, and has not yet what its group has.
    Loading,
    /// It is lost.
    Lost,
}

/// Nothing is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Keeper for Forgetful {
    fn is_awaited(&self) -> bool {
        false
    }

    fn save(&self, _background: bool) -> Result<(), String> {
        Err("this store keeps nothing: it was started without a directory (--dir)".to_owned())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}
