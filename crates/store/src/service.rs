//! A store that is served in every way at once: kernels, one-sided READs and chains on a card,
//! Redis' and memcached's protocols over TCP.

mod keep;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::memory::{AllocError, Buffer};
use remora::nic::{Access, CreateError};
use remora::threads::without_signals;
use remora::{Device, MemoryRegion, RegisterError};
use thiserror::Error;

use self::keep::Frozen;
pub use self::keep::Logged;
use crate::codec::Codec;
use crate::disk::{Directory, DirectoryError};
use crate::front::keyspace::{Forgetful, Keeper, Keyspace};
use crate::front::served::Served;
use crate::front::server::{self, ServeError, Server};
use crate::journal::{Journal, Unlogged};
use crate::log::{
    self, CommitThread, Fsync, Progress, RecoverError, Recovered, Recovery, Salvaged,
};
use crate::memory::Memory;
use crate::snapshot::Snapshots;
use crate::stats::Stats;
use crate::store::{self, OpenError, Store};
use crate::tablespace::{Eviction, TablespaceError, TablespaceOptions};
use crate::way::chain;
use crate::way::clock::now_ms;
use crate::way::door::{Behind, ChainMaker, Door, DoorCounters, DoorError, DoorOptions};
use crate::way::hello::StoreKind;
use crate::way::kernel::{self, deploy, undeploy};
use crate::way::long::LongCalls;
use crate::way::region::Region;

/// The tablespace that all ways lead to unless they say another: Redis' database 0.
pub const FIRST: &str = crate::front::server_state::FIRST;
/// The tablespace of memcached's clients, where they do not share that one.
pub const MEMCACHED: &str = crate::front::server_state::MEMCACHED;
/// How long a block stays as it is for readers that were told of it.
const QUARANTINE_MS: u64 = 1000;
/// The most bytes of long calls that the card keeps at a time: this part of the store's limit, but
/// not more than [`PAYLOAD_MAX`].
const PAYLOAD_PART: u64 = 4;
const PAYLOAD_MAX: u64 = 256 << 20;
/// How often the house is kept: what has expired goes, memory is tidied.
const HOUSE: Duration = Duration::from_millis(10);
/// Buckets that are looked at each time.
const HOUSE_BUCKETS: u32 = 4096;

/// How a store is served.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The most bytes that index and items may take.
    pub limit: u64,
    /// The seed of the keys' hashes: random.
    pub seed: u64,
    /// Tablespaces to make, after [`FIRST`].
    pub tablespaces: Vec<TablespaceOptions>,
    /// What [`FIRST`], and those that Redis' clients make by using them, are made with.
    pub defaults: TablespaceOptions,
    /// Who is let in over the card.
    pub door: DoorOptions,
    /// Redis' and memcached's clients.
    pub fronts: server::Options,
    /// What is kept beyond the process: nothing without a directory.
    pub keep: Option<KeepOptions>,
}

/// What is kept of a store beyond the process.
#[derive(Clone, Debug)]
pub struct KeepOptions {
    /// The directory of the log and of snapshots, which must be there.
    pub directory: PathBuf,
    /// When a change counts as kept.
    pub fsync: Fsync,
    /// Serve what the directory has before damage, read-only, and write nothing to it.
    pub damaged: bool,
    /// Who is told how far reading back is.
    pub progress: Progress,
}

impl KeepOptions {
    /// A directory that is not damaged.
    pub fn new(directory: PathBuf, fsync: Fsync) -> KeepOptions {
        KeepOptions { directory, fsync, damaged: false, progress: Progress::default() }
    }
}

impl ServiceOptions {
    /// A store of that limit, over the card only.
    pub fn new(limit: u64, seed: u64) -> ServiceOptions {
        ServiceOptions {
            limit,
            seed,
            tablespaces: Vec::new(),
            defaults: TablespaceOptions::new(FIRST),
            door: DoorOptions::default(),
            fronts: server::Options { is_shared: true, ..server::Options::default() },
            keep: None,
        }
    }
}

/// Why a store is not served.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// There is no memory for it.
    #[error("there is no address space for a store of {limit} bytes: {source}; ask for less")]
    Memory {
        /// The limit.
        limit: u64,
        /// The system's reason.
        source: AllocError,
    },
    /// The card refuses memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The card is full.
    #[error("the card has no room for a protection domain: {0}")]
    Card(#[from] CreateError),
    /// The memory does not fit the limit.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// What was kept cannot be read back.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A tablespace cannot be made.
    #[error(transparent)]
    Tablespace(#[from] TablespaceError),
    /// A tablespace that is asked for is there with other options.
    #[error(
        "the directory has the tablespace {name:?} with {there}, and {asked} is asked for: do not \
         name it, to serve it as it is (an option that says what it already has is taken, too), or \
         drop it first (`remora store tablespace NODE drop`), with all its keys"
    )]
    OtherOptions {
        /// Its name.
        name: String,
        /// What it has.
        there: String,
        /// What is asked for.
        asked: String,
    },
    /// Without kernels nobody over the card learns what is on the disk.
    #[error(
        "under --fsync always only kernels can tell what is on the disk, and the card is another \
         process’s, which does not run them: choose everysec, or set REMORA_NIC=off"
    )]
    Always,
    /// The kernels cannot be deployed.
    #[error("the store's kernels cannot be deployed: {0}")]
    Deploy(#[from] remora::kernel::DeployError),
    /// Nobody can be let in over the card.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// Nobody can be let in over TCP.
    #[error(transparent)]
    Front(#[from] ServeError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}; if there is a limit on processes, raise it")]
    Thread(#[from] io::Error),
}

/// A store that is served. Dropping it ends all connections, and writes the rest of its log.
pub struct Service {
    device: Device,
    keyspace: Arc<dyn Keyspace>,
    door: Arc<Door>,
    address: SocketAddr,
    fronts: Option<Server>,
    stats: Arc<Stats>,
    recovery: Option<Recovery>,
    read_only: Option<String>,
    long: Arc<LongCalls>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    // After what appends to it.
    log: Option<CommitThread>,
}

impl ServiceError {
    /// Whether the directory is damaged: [`KeepOptions::damaged`] serves what comes before that.
    pub fn is_damage(&self) -> bool {
        let ServiceError::Recover(RecoverError::Files(error)) = self else { return false };
        error.is_damage()
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The store's memory, as its ways need it.
#[derive(Debug)]
pub struct Places {
    /// For the store itself.
    pub region: Region,
    /// For clients' READs.
    pub for_clients: MemoryRegion,
    /// For chains.
    pub for_chains: MemoryRegion,
}

impl Places {
    /// Memory of `len` bytes, for a store of this limit.
    ///
    /// # Errors
    /// There is none, or the card refuses it.
    pub fn new(device: &Device, limit: u64, len: u64) -> Result<Places, ServiceError> {
        let buffer =
            Buffer::new(len as usize).map_err(|source| ServiceError::Memory { limit, source })?;
        let memory = device.alloc_pd()?.register(buffer, Access::REMOTE_READ)?;
        // Another protection domain, so that the keys of one open nothing to clients of the other.
        let others = device.alloc_pd()?;
        let for_chains = memory.register_in(&others, memory.addr(), Access::REMOTE_READ)?;
        let region = Region::new(memory.clone()).expect("a region with a buffer of its own");
        // There are none before the door is open.
        region.readers().expect(false);
        Ok(Places { region, for_clients: memory, for_chains })
    }
}

/// Deploys the kernels, if the card is this process's: they cannot be sent to another.
fn start_kernels(
    device: &Device,
    store: &Arc<impl kernel::Served>,
    options: &ServiceOptions,
    long: &Arc<LongCalls>,
) -> Result<(), ServiceError> {
    if !device.is_attached() {
        return Ok(deploy(device, store, &options.fronts.stats, long)?);
    }
    let fsync = options.keep.as_ref().map(|keep| keep.fsync);
    if fsync == Some(Fsync::Always) { Err(ServiceError::Always) } else { Ok(()) }
}

/// Makes the tablespaces that are not there yet. One that is there keeps its options: others are
/// refused.
fn make_tablespaces<J: Journal>(
    store: &Store<Region, J>,
    options: &ServiceOptions,
) -> Result<(), ServiceError> {
    let first = TablespaceOptions { name: FIRST.to_owned(), ..options.defaults.clone() };
    let is_named = options.tablespaces.iter().any(|space| space.name == FIRST);
    if !is_named && store.tablespace(FIRST).is_none() {
        store.create_tablespace(&first)?;
    }
    are_as_asked(store, &options.tablespaces)?;
    for space in &options.tablespaces {
        if store.tablespace(&space.name).is_none() {
            store.create_tablespace(space)?;
        }
    }
    Ok(())
}

/// Whether those of the tablespaces that a store has already have what is asked for.
///
/// # Errors
/// [`ServiceError::OtherOptions`], of the first that has not.
pub fn are_as_asked<M: Memory, J: Journal>(
    store: &Store<M, J>,
    asked: &[TablespaceOptions],
) -> Result<(), ServiceError> {
    for there in store.tablespaces() {
        let of_name = asked.iter().find(|asked| asked.name == there.options.name);
        of_name.map_or(Ok(()), |asked| is_as_asked(&there.options, asked))?;
    }
    Ok(())
}

/// Whether a tablespace has what is asked for. (How long keys live is not asked for here.)
fn is_as_asked(there: &TablespaceOptions, asked: &TablespaceOptions) -> Result<(), ServiceError> {
    let words = |space: &TablespaceOptions| {
        [
            space.quota.map_or("no quota".to_owned(), |bytes| format!("a quota of {bytes} bytes")),
            match space.codec {
                Codec::None => "values as they are".to_owned(),
                Codec::Lz4 { head: 0 } => "values as LZ4".to_owned(),
                Codec::Lz4 { head } => format!("values as LZ4 behind {head} plain bytes"),
                Codec::Zstd { head: 0 } => "values as zstd".to_owned(),
                Codec::Zstd { head } => format!("values as zstd behind {head} plain bytes"),
            },
            match space.eviction {
                Eviction::Never => "no eviction".to_owned(),
                Eviction::Clock => "eviction".to_owned(),
            },
        ]
    };
    let both = words(there).into_iter().zip(words(asked)).filter(|(there, asked)| there != asked);
    let (there, wanted): (Vec<_>, Vec<_>) = both.unzip();
    if there.is_empty() {
        return Ok(());
    }
    let (name, there, asked) = (asked.name.clone(), there.join(", "), wanted.join(", "));
    Err(ServiceError::OtherOptions { name, there, asked })
}

impl Service {
    /// Makes a store in the device's memory, with what its directory has, and begins to serve it.
    /// On a card of another process there are no kernels: its clients over the card only read, by
    /// READs and chains, which that card answers whatever becomes of this process's threads.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn start(device: &Device, options: &ServiceOptions) -> Result<Service, ServiceError> {
        let own = store::Options {
            limit: options.limit,
            seed: options.seed,
            quarantine_ms: QUARANTINE_MS,
            traced: options.fronts.traced(),
        };
        let places = Places::new(device, options.limit, own.memory_len())?;
        let region = places.region.clone();
        let room = (options.limit / PAYLOAD_PART).min(PAYLOAD_MAX);
        let long = Arc::new(LongCalls::start(room)?);
        let Some(keep) = &options.keep else {
            let store = Arc::new(Store::new(region, Unlogged::default(), own)?);
            start_kernels(device, &store, options, &long)?;
            let keeper = Arc::new(Forgetful);
            let served = Service::serve(device, places, store, keeper, (long, options));
            return served.inspect_err(|_| undeploy(device));
        };
        let disk = Arc::new(Directory::open(&keep.directory)?);
        if keep.damaged {
            let salvaged = log::salvage(&*disk, region, own, now_ms(), &keep.progress)?;
            return Service::start_frozen(device, places, salvaged, (long, options));
        }
        // Clients cannot know the seed of this start.
        let logged = log::Options { fsync: keep.fsync, salt: options.seed, ..Default::default() };
        let Recovered { store, committer, recovery } =
            log::open_telling(&disk, region, own, logged, now_ms(), &keep.progress)?;
        let log = CommitThread::start(committer)?;
        let snapshots = Arc::new(Snapshots::new(&disk, &recovery, now_ms()));
        let kept = Arc::new(Logged::new(Arc::new(store), snapshots));
        start_kernels(device, &kept, options, &long)?;
        let (store, keeper) = (kept.store.clone(), kept.clone());
        let mut service = Service::serve(device, places, store, keeper, (long, options))
            .inspect_err(|_| undeploy(device))?;
        service.spawn("store snapshots", move |stop| kept.keep_short(stop))?;
        (service.log, service.recovery) = (Some(log), Some(recovery));
        Ok(service)
    }

    /// Serves what was read of a directory, and changes nothing.
    fn start_frozen(
        device: &Device,
        places: Places,
        salvaged: Salvaged<Region>,
        (long, options): (Arc<LongCalls>, &ServiceOptions),
    ) -> Result<Service, ServiceError> {
        // (There is one that all ways lead to, also where the damage comes before it.)
        make_tablespaces(&salvaged.store, options)?;
        let reason = salvaged.freeze();
        let store = Arc::new(salvaged.store);
        start_kernels(device, &store, options, &long)?;
        let keeper = Arc::new(Frozen(store.journal().clone()));
        let served = Service::serve(device, places, store, keeper, (long, options));
        let mut service = served.inspect_err(|_| undeploy(device))?;
        service.read_only = Some(reason);
        Ok(service)
    }

    /// Serves a store whose kernels are deployed. Without a service, the caller ends them.
    fn serve<J: Journal + 'static>(
        device: &Device,
        places: Places,
        store: Arc<Store<Region, J>>,
        keeper: Arc<dyn Keeper>,
        (long, options): (Arc<LongCalls>, &ServiceOptions),
    ) -> Result<Service, ServiceError> {
        make_tablespaces(&store, options)?;
        let chains = (places.for_chains, Box::new(chain::program) as Box<ChainMaker>);
        let behind = Behind {
            memory: places.for_clients,
            readers: places.region.readers().clone(),
            chains: Some(chains),
            gate: Arc::default(),
            kind: if device.is_attached() { StoreKind::WithoutKernels } else { StoreKind::Alone },
        };
        let door = Arc::new(Door::open(device, options.door.clone(), behind)?);
        let counts = options.fronts.stats.thread();
        let address = SocketAddr::new(device.info().address, options.door.port);
        let keyspace: Arc<dyn Keyspace> =
            Arc::new(Served::new(store.clone(), options.limit, options.defaults.clone()));
        let fronts = if options.fronts.redis.is_empty() && options.fronts.memcached.is_empty() {
            None
        } else {
            Some(Server::start(&options.fronts, keyspace.clone(), keeper)?)
        };
        let mut service = Service {
            device: device.clone(),
            keyspace,
            door: door.clone(),
            address,
            fronts,
            stats: options.fronts.stats.clone(),
            recovery: None,
            read_only: None,
            long,
            stop: Arc::default(),
            threads: Vec::new(),
            log: None,
        };
        service.spawn("store door", move |stop| {
            if let Err(error) = door.serve(&counts, &|| stop.load(Ordering::Relaxed)) {
                tracing::error!("no clients are let in any more: {error}");
            }
            stop.store(true, Ordering::Relaxed);
        })?;
        service.spawn("store house", move |stop| {
            while !stop.load(Ordering::Relaxed) {
                store.sweep(now_ms(), HOUSE_BUCKETS);
                thread::sleep(HOUSE);
            }
        })?;
        Ok(service)
    }

    /// Starts a thread that ends when the service does.
    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<()> {
        let stop = self.stop.clone();
        let named = thread::Builder::new().name(name.to_owned());
        self.threads.push(without_signals(|| named.spawn(move || work(&stop)))?);
        Ok(())
    }

    /// The store.
    pub fn keyspace(&self) -> &Arc<dyn Keyspace> {
        &self.keyspace
    }

    /// What was read back from the directory.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Why the store takes no changes, if it is served as its directory is
    /// ([`KeepOptions::damaged`]).
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Where clients over the card connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The servers of Redis' and memcached's clients.
    pub fn fronts(&self) -> Option<&Server> {
        self.fronts.as_ref()
    }

    /// What is counted of all ways in.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// What has happened at the door.
    pub fn door(&self) -> &DoorCounters {
        self.door.counters()
    }

    /// Has the service ended by itself: because its card has, or since a client told it to stop?
    pub fn has_ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.fronts.as_ref().is_some_and(Server::is_stopping)
    }
}

impl Service {
    /// Ends all connections, and writes the rest of the log.
    ///
    /// # Errors
    /// What could not be written, in words: it is lost.
    pub fn end(mut self) -> Result<(), String> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        // All append to the log until they end.
        self.fronts = None;
        undeploy(&self.device);
        self.long.end();
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
        self.log.take().map_or(Ok(()), CommitThread::close)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tablespace_that_is_there_keeps_its_options() {
        let there = TablespaceOptions { quota: Some(4096), ..TablespaceOptions::new("a") };
        is_as_asked(&there, &there).unwrap();
        let expiring = TablespaceOptions { default_expiry_ms: Some(1), ..there.clone() };
        is_as_asked(&expiring, &there).unwrap();
        let asked = TablespaceOptions {
            quota: None,
            codec: Codec::Lz4 { head: 0 },
            ..TablespaceOptions::new("a")
        };
        let refused = is_as_asked(&there, &asked).unwrap_err().to_string();
        let words = "the directory has the tablespace \"a\" with a quota of 4096 bytes, values as \
                     they are, and no quota, values as LZ4 is asked for: ";
        assert!(refused.starts_with(words), "{refused}");
    }
}
