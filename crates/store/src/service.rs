//! A store that is served in every way at once: kernels, one-sided READs and chains on a card,
//! Redis' and memcached's protocols over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::memory::{AllocError, Buffer};
use remora::nic::{Access, CreateError};
use remora::threads::without_signals;
use remora::{Device, RegisterError};
use thiserror::Error;

use crate::front::keyspace::{Forgetful, Keeper};
use crate::front::served::Served;
use crate::front::server::{self, ServeError, Server};
use crate::journal::{Journal, Unlogged};
use crate::store::{self, OpenError, Store};
use crate::tablespace::{TablespaceError, TablespaceOptions};
use crate::way::chain;
use crate::way::door::{ChainMaker, Door, DoorCounters, DoorError, DoorOptions};
use crate::way::kernel::{deploy, now_ms};
use crate::way::region::Region;

/// The tablespace that all ways lead to unless they say another: Redis' database 0.
pub const FIRST: &str = "db0";
/// How long a block stays as it is for readers that were told of it.
const QUARANTINE_MS: u64 = 1000;
/// How often the house is kept: what has expired goes, memory is tidied.
const HOUSE: Duration = Duration::from_millis(10);
/// Buckets that are looked at each time.
const HOUSE_BUCKETS: u32 = 4096;

/// A store as a service keeps it.
pub type Kept = Store<Region, Arc<dyn Journal>>;

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
    /// A tablespace cannot be made.
    #[error(transparent)]
    Tablespace(#[from] TablespaceError),
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

/// A store that is served. Dropping it ends all connections.
pub struct Service {
    store: Arc<Kept>,
    door: Arc<Door>,
    address: SocketAddr,
    fronts: Option<Server>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Service {
    /// Makes a store in the device's memory, and begins to serve it.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn start(device: &Device, options: &ServiceOptions) -> Result<Service, ServiceError> {
        let own = store::Options {
            limit: options.limit,
            seed: options.seed,
            quarantine_ms: QUARANTINE_MS,
        };
        let limit = options.limit;
        let buffer = Buffer::new(own.memory_len() as usize)
            .map_err(|source| ServiceError::Memory { limit, source })?;
        let memory = device.alloc_pd()?.register(buffer, Access::REMOTE_READ)?;
        // Another protection domain, so that the keys of one open nothing to clients of the other.
        let for_chains =
            memory.register_in(&device.alloc_pd()?, memory.addr(), Access::REMOTE_READ)?;
        let region = Region::new(memory.clone()).expect("a region with a buffer of its own");
        let journal: Arc<dyn Journal> = Arc::new(Unlogged::default());
        let keeper: Arc<dyn Keeper> = Arc::new(Forgetful);
        let store = Arc::new(Store::new(region, journal, own)?);
        let first = TablespaceOptions { name: FIRST.to_owned(), ..options.defaults.clone() };
        for space in std::iter::once(&first).chain(&options.tablespaces) {
            if store.tablespace(&space.name).is_none() {
                store.create_tablespace(space)?;
            }
        }
        deploy(device, &store)?;
        let chains = Some((for_chains, Box::new(chain::program) as Box<ChainMaker>));
        let door = Arc::new(Door::open(device, options.door.clone(), memory, chains)?);
        let address = SocketAddr::new(device.info().address, options.door.port);
        let fronts = serve_fronts(&store, keeper, options)?;
        let (stop, threads) = (Arc::new(AtomicBool::new(false)), Vec::new());
        let mut service = Service { store, door, address, fronts, stop, threads };
        service.start_threads()?;
        Ok(service)
    }

    fn start_threads(&mut self) -> io::Result<()> {
        let (door, stop) = (self.door.clone(), self.stop.clone());
        self.threads.push(spawn("store door", move || {
            let ended = door.serve(&|| stop.load(Ordering::Relaxed));
            if let Err(error) = ended {
                tracing::error!("no clients are let in any more: {error}");
            }
            stop.store(true, Ordering::Relaxed);
        })?);
        let (store, stop) = (self.store.clone(), self.stop.clone());
        self.threads.push(spawn("store house", move || {
            while !stop.load(Ordering::Relaxed) {
                store.sweep(now_ms(), HOUSE_BUCKETS);
                thread::sleep(HOUSE);
            }
        })?);
        Ok(())
    }

    /// The store.
    pub fn store(&self) -> &Arc<Kept> {
        &self.store
    }

    /// Where clients over the card connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The servers of Redis' and memcached's clients.
    pub fn fronts(&self) -> Option<&Server> {
        self.fronts.as_ref()
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

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(work))
}

fn serve_fronts(
    store: &Arc<Kept>,
    keeper: Arc<dyn Keeper>,
    options: &ServiceOptions,
) -> Result<Option<Server>, ServeError> {
    if options.fronts.redis.is_empty() && options.fronts.memcached.is_empty() {
        return Ok(None);
    }
    let keyspace = Served::new(store.clone(), options.limit, options.defaults.clone());
    Ok(Some(Server::start(&options.fronts, Arc::new(keyspace), keeper)?))
}
