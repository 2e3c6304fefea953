//! What all connections of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::front::clients::{CLIENTS_MAX, Clients};
use crate::front::keyspace::{ChangeRefused, Keeper, Keyspace, LetGo, TablespaceId};
use crate::front::memcached::Leases;
use crate::stats::{Counts, Stats};
use crate::way::clock::now_ms;

/// How many numbered databases Redis' clients have.
pub const DATABASES: usize = 16;

/// Descriptors of a process that are not its clients'.
const OTHER_DESCRIPTORS: u64 = 64;

/// The tablespace of database 0.
pub(crate) const FIRST: &str = "db0";

/// The tablespace of memcached's clients, where they do not share that of Redis'.
pub(crate) const MEMCACHED: &str = "memcached";

/// Whether a tablespace of this name is that of a database of Redis' or memcached's clients.
pub(crate) fn is_of_fronts(name: &str) -> bool {
    let number = name.strip_prefix("db").and_then(|number| number.parse::<usize>().ok());
    let database = number.filter(|number| *number < DATABASES);
    name == MEMCACHED || database.is_some_and(|number| name == format!("db{number}"))
}

/// What can be set while a server runs.
#[derive(Debug)]
pub struct Settings {
    /// The most connections.
    pub max_clients: AtomicU64,
    /// After so many seconds without a byte a connection is ended; 0: never.
    pub idle_s: AtomicU64,
    /// The longest argument, in bytes.
    pub bulk_bytes: AtomicU64,
    /// The longest request, in bytes.
    pub request_bytes: AtomicU64,
    /// The most bytes of replies that wait for one connection.
    pub output_bytes: AtomicU64,
    /// The most bytes that all connections together make the server keep.
    pub buffered_bytes: AtomicU64,
    password: RwLock<Option<String>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_clients: AtomicU64::new(CLIENTS_MAX),
            idle_s: 0.into(),
            bulk_bytes: (16 << 20).into(),
            request_bytes: (64 << 20).into(),
            output_bytes: (64 << 20).into(),
            buffered_bytes: (1 << 30).into(),
            password: RwLock::default(),
        }
    }
}

impl Settings {
    /// Sets or takes away the password.
    pub fn set_password(&self, password: Option<String>) {
        let password = password.filter(|word| !word.is_empty());
        *self.password.write().unwrap_or_else(PoisonError::into_inner) = password;
    }

    /// The password, if one is asked for.
    pub fn password(&self) -> Option<String> {
        self.password.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this is the password. How long it takes does not tell how much of it is right.
    pub fn is_password(&self, word: &[u8]) -> bool {
        let password = self.password.read().unwrap_or_else(PoisonError::into_inner);
        let Some(password) = password.as_deref().map(str::as_bytes) else { return false };
        let mut differ = u8::from(password.len() != word.len());
        for (index, byte) in word.iter().enumerate() {
            differ |= byte ^ password[index % password.len()];
        }
        std::hint::black_box(differ) == 0
    }
}

/// Which commands of Redis' clients wait, and until when.
#[derive(Debug, Default)]
pub(crate) struct Pause(AtomicU64);

impl Pause {
    /// Begins one of so many ms, of all commands or of those that write; where there is one
    /// already, it ends with the later of both, and is the stricter one.
    pub(crate) fn begin(&self, now: u64, for_ms: u64, all: bool) {
        let until = if for_ms == 0 { 0 } else { now.saturating_add(for_ms).min(u64::MAX >> 1) };
        let merge = |word: u64| {
            let word = if word >> 1 > now { word } else { 0 };
            Some((word >> 1).max(until) << 1 | word & 1 | u64::from(all))
        };
        // It always succeeds: there is always another word.
        let _ = self.0.fetch_update(Relaxed, Relaxed, merge);
    }

    pub(crate) fn end(&self) {
        self.0.store(0, Relaxed);
    }

    /// Forgets one that is over.
    pub(crate) fn forget(&self, now: u64) {
        let is_over = |word: u64| (word != 0 && word >> 1 <= now).then_some(0);
        // Else there is nothing to forget.
        let _ = self.0.fetch_update(Relaxed, Relaxed, is_over);
    }

    /// Whether there is one, or was one that nobody has forgotten yet.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Whether a command waits.
    pub(crate) fn holds(&self, now: u64, writes: bool) -> bool {
        let word = self.0.load(Relaxed);
        now < word >> 1 && (writes || word & 1 == 1)
    }

    /// How long it is still, in ms, and whether it is of all commands.
    pub(crate) fn left(&self, now: u64) -> (u64, bool) {
        let word = self.0.load(Relaxed);
        ((word >> 1).saturating_sub(now), word & 1 == 1)
    }
}

/// What all connections share.
#[derive(Debug)]
pub struct ServerState {
    /// The store.
    pub keyspace: Arc<dyn Keyspace>,
    /// What is kept of it beyond the process.
    pub keeper: Arc<dyn Keeper>,
    /// What is counted.
    pub stats: Arc<Stats>,
    /// What can be set.
    pub settings: Settings,
    pub(crate) clients: Clients,
    pub(crate) pause: Pause,
    /// Connections whose next command waits for the end of a pause, or for other nodes.
    pub(crate) held_back: AtomicU64,
    /// What was let go when counting began anew: keys evicted, and expired.
    let_go: [AtomicU64; 2],
    /// Bytes that all connections make the server keep.
    pub(crate) buffered: AtomicU64,
    /// Held alone by what changes several keys at once, and shared by all else; None with one
    /// thread, which does one thing after another.
    gate: Option<RwLock<()>>,
    /// The store is a part of a cluster.
    pub(crate) is_clustered: bool,
    databases: [OnceLock<TablespaceId>; DATABASES],
    memcached: OnceLock<TablespaceId>,
    /// memcached's clients see database 0 of Redis'.
    pub(crate) is_shared: bool,
    /// When memcached's keys are to be flushed, in ms of Unix time; negative: they are not.
    pub(crate) flush_at: AtomicI64,
    /// Who of memcached's clients is to fill which key.
    pub(crate) leases: Mutex<Leases>,
    /// Others than this machine can reach it, so a password stays.
    pub(crate) is_public: AtomicBool,
    pub(crate) is_stopping: AtomicBool,
    started: Instant,
    pub(crate) ports: OnceLock<(u16, u16)>,
    pub(crate) run_id: u64,
}

impl ServerState {
    /// What connections to `keyspace` share, when `threads` serve them.
    pub fn new(
        keyspace: Arc<dyn Keyspace>,
        keeper: Arc<dyn Keeper>,
        threads: usize,
        is_shared: bool,
    ) -> ServerState {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        ServerState {
            is_clustered: keeper.is_clustered(),
            keyspace,
            keeper,
            stats: Arc::default(),
            settings: Settings::default(),
            clients: Clients::default(),
            pause: Pause::default(),
            held_back: 0.into(),
            let_go: Default::default(),
            buffered: 0.into(),
            gate: (threads > 1).then(RwLock::default),
            databases: std::array::from_fn(|_| OnceLock::new()),
            memcached: OnceLock::new(),
            is_shared,
            flush_at: (-1).into(),
            leases: Mutex::default(),
            is_public: false.into(),
            is_stopping: false.into(),
            started: Instant::now(),
            ports: OnceLock::new(),
            run_id: since.as_nanos() as u64 ^ u64::from(std::process::id()) << 40,
        }
    }

    /// How long the server runs.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Has the system allow this process the descriptors of so many clients; whether it does.
    pub(crate) fn allow_clients(&self, clients: u64) -> bool {
        // (A client of a cluster's that is relayed to another node has two.)
        let each = 1 + u64::from(self.is_clustered);
        let wanted = clients.saturating_mul(each).saturating_add(OTHER_DESCRIPTORS);
        let limit = getrlimit(Resource::Nofile);
        if limit.current.is_none_or(|current| current >= wanted) {
            return true;
        }
        let raised = wanted.min(limit.maximum.unwrap_or(u64::MAX));
        let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
        set.is_ok() && raised == wanted
    }

    /// The keys that were let go since counting began.
    pub(crate) fn let_go(&self) -> LetGo {
        let (all, [evicted, expired]) = (self.keyspace.let_go(), &self.let_go);
        LetGo {
            evicted: all.evicted.saturating_sub(evicted.load(Relaxed)),
            expired: all.expired.saturating_sub(expired.load(Relaxed)),
        }
    }

    /// Begins all counts anew.
    pub(crate) fn reset_counts(&self) {
        self.stats.reset();
        let LetGo { evicted, expired } = self.keyspace.let_go();
        for (at, count) in self.let_go.iter().zip([evicted, expired]) {
            at.store(count, Relaxed);
        }
    }

    /// The tablespace of a numbered database, if it was ever used: by this server, or by the one
    /// that wrote the log.
    pub(crate) fn used_database(&self, index: usize) -> Option<TablespaceId> {
        let cell = self.databases.get(index)?;
        if let Some(id) = cell.get() {
            return Some(*id);
        }
        let id = self.keyspace.known(&format!("db{index}"))?;
        Some(*cell.get_or_init(|| id))
    }

    /// The tablespace of a numbered database, made at its first use.
    pub(crate) fn database(&self, index: usize) -> Result<TablespaceId, ChangeRefused> {
        let no_such = || ChangeRefused::Other("DB index is out of range".to_owned());
        let cell = self.databases.get(index).ok_or_else(no_such)?;
        if self.is_clustered && index != 0 {
            return Err(ChangeRefused::Other("a cluster has database 0 only".to_owned()));
        }
        // The name is made only for the first use: this is on the way of each command.
        cell.get().map_or_else(|| self.named(cell, &format!("db{index}")), |id| Ok(*id))
    }

    /// The tablespace of memcached's clients.
    pub(crate) fn memcached(&self) -> Result<TablespaceId, ChangeRefused> {
        if self.is_shared { self.database(0) } else { self.named(&self.memcached, MEMCACHED) }
    }

    fn named(
        &self,
        cell: &OnceLock<TablespaceId>,
        name: &str,
    ) -> Result<TablespaceId, ChangeRefused> {
        if let Some(id) = cell.get() {
            return Ok(*id);
        }
        let id = self.keyspace.tablespace(name)?;
        Ok(*cell.get_or_init(|| id))
    }

    /// Whether commands need not be kept apart, nor looked at: one thread serves all, and the store
    /// is not a part of a cluster.
    pub(crate) fn is_plain(&self) -> bool {
        self.gate.is_none() && !self.is_clustered
    }

    /// Runs `act` while no other thread's command runs, and so that a crash leaves all that it
    /// changes or nothing, if `alone`; otherwise while none that wants to be alone does.
    pub(crate) fn enter(&self, alone: bool, mut act: impl FnMut()) {
        let gate = self.gate.as_ref();
        if alone {
            let _gate = gate.map(|gate| gate.write().unwrap_or_else(PoisonError::into_inner));
            return self.keeper.together(&mut act);
        }
        let _gate = gate.map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner));
        act();
    }

    /// Takes `more` bytes of what all connections may make the server keep, and gives `less` back.
    /// False if there is not as much: then nothing is taken.
    pub(crate) fn rebuffer(&self, less: u64, more: u64) -> bool {
        if more <= less {
            self.buffered.fetch_sub(less - more, Relaxed);
            return true;
        }
        let sum = self.buffered.fetch_add(more - less, Relaxed) + (more - less);
        if sum > self.settings.buffered_bytes.load(Relaxed) {
            self.buffered.fetch_sub(more - less, Relaxed);
            return false;
        }
        true
    }
}

/// A turn of a thread: what came from several connections is carried out, then the log is told how
/// far answers wait for it. Those that wait for nothing go out.
#[derive(Debug)]
pub struct Turn {
    /// What is shared.
    pub server: Arc<ServerState>,
    /// What this thread counts.
    pub counts: Arc<Counts>,
    /// The time, in ms of Unix time: it goes on with each command, and never back within a turn.
    pub now: u64,
    /// When the turn began, by both clocks. Of a turn that was never begun, time stands still.
    begun: Option<(Instant, u64)>,
    /// Whether the group's primary was another node as the turn began. If it is by the end of the
    /// turn, [`Keeper::is_kept`] takes back what the turn has read, and the log refuses changes.
    pub(crate) is_elsewhere: bool,
    /// The end of the log as the turn began, where answers wait for it.
    pub since: u64,
    /// The newest change that an answer of this turn acknowledges; while a connection has its
    /// turn, one of that connection's.
    pub version: u64,
    /// A buffer for values on their way.
    pub scratch: Vec<u8>,
}

impl Turn {
    /// The first turn of a thread.
    pub fn new(server: Arc<ServerState>) -> Turn {
        let counts = server.stats.thread();
        Turn {
            is_elsewhere: server.keeper.is_elsewhere(),
            server,
            counts,
            now: now_ms(),
            begun: None,
            since: 0,
            version: 0,
            scratch: Vec::new(),
        }
    }

    /// Begins the next one.
    pub fn begin(&mut self) {
        self.now = now_ms();
        self.begun = Some((Instant::now(), self.now));
        self.is_elsewhere = self.server.keeper.is_elsewhere();
        if self.server.keeper.is_awaited() {
            self.since = self.server.keeper.seen();
        }
        self.flush_if_due();
    }

    /// The turn's answers wait until what they say of all keys is so for good.
    pub(crate) fn see_all(&mut self) {
        self.version = self.version.max(self.server.keeper.seen());
    }

    /// The same where they are about these keys alone. Without a tablespace, about all.
    pub(crate) fn see_keys(
        &mut self,
        ts: Option<TablespaceId>,
        keys: &mut dyn Iterator<Item = &[u8]>,
    ) {
        let Some(ts) = ts else { return self.see_all() };
        self.version = self.version.max(self.server.keeper.seen_of(ts, keys));
    }

    /// When it began.
    pub(crate) fn begun(&self) -> Instant {
        self.begun.map_or_else(Instant::now, |(begun, _)| begun)
    }

    /// Goes on to the next command, whose time is `at`: one turn may carry out thousands.
    #[inline]
    pub(crate) fn go_on(&mut self, at: Instant) {
        if let Some((begun, begun_ms)) = self.begun {
            let passed_ms = at.duration_since(begun).as_millis() as u64;
            self.now = self.now.max(begun_ms + passed_ms);
        }
        self.flush_if_due();
    }

    /// Does a flush of memcached's keys whose time has come, before any client's next command: what
    /// is changed after that time stays.
    #[inline]
    fn flush_if_due(&mut self) {
        let at = self.server.flush_at.load(Acquire);
        if at >= 0 && at as u64 <= self.now {
            self.flush(at);
        }
    }

    /// Does the flush that is due `at` this time. One thread does it, and the others wait.
    #[cold]
    fn flush(&mut self, at: i64) {
        let server = self.server.clone();
        let mut flushed = Ok(0);
        server.enter(true, || {
            if server.flush_at.load(Relaxed) != at {
                return;
            }
            // A node that is not its group's primary has no keys of its own to flush.
            flushed = match server.keeper.is_elsewhere() {
                true => Ok(0),
                false => server.memcached().and_then(|ts| server.keyspace.flush(ts, self.now)),
            };
            // It is not tried again, even if it failed: that would remove what comes until then.
            // (A client may have asked for another one meanwhile.)
            let _ = server.flush_at.compare_exchange(at, -1, Release, Relaxed);
        });
        match flushed {
            Ok(version) => self.version = self.version.max(version),
            // Nobody waits for an answer.
            Err(_) => self.counts.errors.add(1),
        }
    }
}

/// How a session goes on after it has read what came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are dealt with.
    pub used: usize,
    /// What it wants.
    pub next: Next,
}

/// What a session wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes, at least so many.
    Read(usize),
    /// To have its replies sent before it goes on with what it has.
    Send,
    /// To have its replies sent, and to go on with what it has when a pause has ended.
    Wait,
    /// To have its replies sent, and to go on with what it has a moment later.
    Look,
    /// To have its replies sent, and then to be ended.
    Close,
    /// To have all that follows relayed to the node there: it serves memcached's clients.
    Relay(SocketAddr),
}

/// Replies of this many bytes are sent before a session goes on, in bytes: a client that asks and
/// never reads makes the server keep no more than this and one reply.
pub const HIGH_WATER: usize = 1 << 20;
