//! Clients of a store, over the card.
//!
//! [`StoreClient`] polls, for programs that measure in microseconds: one call at a time.
//! [`AsyncStoreClient`] (`awaited`) has the same operations as futures, many at a time, for any
//! executor. One call is one round trip; a value that is longer than the client's buffer comes in
//! pieces of one version.
//!
//! `operations` has the operations, once for all; `polled` and `awaited_node` carry the calls, and
//! [`carried`] leaves that to others: to simulated worlds; `error` says why a call has no result.
//! Of a cluster, `route` finds the primary that has a key; `fleet` has the polled connections to
//! all nodes (each a `node`), `lanes` those whose calls are futures, with time limits of a `timer`.
//! `permits` bound how many futures are under way, and a `refusal` of a chain is remembered.

mod awaited;
mod awaited_node;
pub mod carried;
mod error;
mod fleet;
mod lanes;
mod node;
mod operations;
mod permits;
mod polled;
mod refusal;
mod route;
mod timer;

use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use remora::nic::Access;
use remora::{
    Connection, ConnectionParams, Device, ProtectionDomain, QueuePair, QueuePairOptions, Remote,
};

pub use self::awaited::AsyncStoreClient;
pub use self::error::StoreError;
use self::fleet::{PolledCluster, Way};
use self::node::PolledNode;
use self::operations::Caller;
pub use self::operations::{About, Put, Scanned};
use crate::select::aggregate::Aggregation;
use crate::select::selection::Selection;
use crate::stats::Slow;
use crate::tablespace::{TablespaceId, TablespaceOptions};
use crate::way::call::{Call, Condition, Operation};
use crate::way::connect::{ClientOptions, ConnectError, greet};
use crate::way::hello::{Hello, Purpose, StoreKind, Welcome};
use crate::way::info::{LatencyInfo, SpaceInfo};
use crate::way::one_sided::OneSidedCounters;

/// The most bytes of a call that travel as its parameters: with the header they fit the smallest
/// path MTU of 256 bytes.
const PARAMS_MAX: usize = 200;

/// A connection for calls, and what it was made with.
#[derive(Debug)]
struct Link {
    device: Device,
    store: SocketAddr,
    options: ClientOptions,
    domain: ProtectionDomain,
    queue_pair: QueuePair,
    welcome: Welcome,
    // Last: dropping it disconnects.
    connection: Connection,
}

impl Link {
    async fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
        shape: &QueuePairOptions<'_>,
    ) -> Result<Link, ConnectError> {
        let domain = device.alloc_pd()?;
        let shape = shape.clone().send_sges(2).inline(128);
        let queue_pair =
            domain.create_qp(&shape).map_err(|error| ConnectError::QueuePair(error.to_string()))?;
        let params =
            ConnectionParams::new(device.info().mtu).access(Access::REMOTE_WRITE).kernels(true);
        let hello = Hello { purpose: Purpose::Calls, token: options.token, ticket: 0 };
        let (connection, welcome) = greet(device, store, &queue_pair, &hello, &params).await?;
        let (device, options) = (device.clone(), options.clone());
        Ok(Link { device, store, options, domain, queue_pair, welcome, connection })
    }
}

/// A client of a store that polls.
///
/// ```
/// use remora::Device;
/// use remora_store::client::StoreClient;
/// use remora_store::service::{Service, ServiceOptions};
/// use remora_store::way::connect::ClientOptions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let served = Device::open()?;
/// let seed = 7; // random, where keys come from strangers
/// let service = Service::start(&served, &ServiceOptions::new(64 << 20, seed))?;
///
/// let device = Device::open()?;
/// let options = ClientOptions::default();
/// let mut store = StoreClient::connect(&device, service.address(), &options)?;
/// store.put(b"greeting", b"hello")?;
/// for get in [StoreClient::get, StoreClient::get_one_sided, StoreClient::get_by_chain] {
///     let mut value = Vec::new();
///     assert!(get(&mut store, b"greeting", &mut value)?.is_some());
///     assert_eq!(value, b"hello");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StoreClient {
    to: To,
}

/// What a client is connected to.
#[derive(Debug)]
enum To {
    Store(Box<PolledNode>),
    Cluster(Box<PolledCluster>),
}

impl Caller for To {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        match self {
            To::Store(node) => node.calls.call(operation, call, out).await,
            To::Cluster(cluster) => cluster.call(operation, call, out).await,
        }
    }

    fn tablespace(&self) -> TablespaceId {
        match self {
            To::Store(node) => node.calls.tablespace,
            To::Cluster(cluster) => cluster.tablespace(),
        }
    }
}

/// The result of a future that polls for what it needs, and so is ready at once.
#[inline]
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("calls that are polled wait by themselves"),
    }
}

impl StoreClient {
    /// Connects to the store at `store`. If that is a node of a cluster, the client asks it for the
    /// map, and then calls the primary that has the key, the next one if that goes.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<StoreClient, ConnectError> {
        let node = PolledNode::connect(device, store, options)?;
        if node.link.welcome.kind != StoreKind::Member {
            return Ok(StoreClient { to: To::Store(Box::new(node)) });
        }
        let begun = PolledCluster::new(node, options.timeout);
        let cluster = begun.map_err(|error| ConnectError::Map(error.to_string()))?;
        Ok(StoreClient { to: To::Cluster(Box::new(cluster)) })
    }

    /// The connection that was made first.
    fn link(&self) -> &Link {
        match &self.to {
            To::Store(node) => &node.link,
            To::Cluster(cluster) => &cluster.fleet.home.link,
        }
    }

    /// The connection; of a cluster, the one to the node at which this client came in.
    pub fn connection(&self) -> &Connection {
        &self.link().connection
    }

    /// The memory of the store at the other end of [`StoreClient::connection`], as far as this
    /// client may read it.
    pub fn memory(&self) -> Remote {
        self.link().welcome.memory
    }

    /// The tablespace that operations are about; at first, the one of the options.
    pub fn tablespace(&self) -> TablespaceId {
        self.to.tablespace()
    }

    /// Turns to another tablespace. In a cluster there is but one.
    pub fn set_tablespace(&mut self, tablespace: TablespaceId) {
        if let To::Store(node) = &mut self.to {
            node.calls.tablespace = tablespace;
        }
    }

    /// How long each operation may take from now on; at first, as long as the options say.
    ///
    /// The store carries out an operation that took too long, or not. The next one begins when that
    /// one has ended.
    pub fn set_timeout(&mut self, timeout: Duration) {
        match &mut self.to {
            To::Store(node) => node.set_timeout(timeout),
            To::Cluster(cluster) => cluster.timeout = timeout,
        }
    }

    /// Reads a value; appends it to `out`. `None` if the key is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<About>, StoreError> {
        self.get_if(key, Condition::None, out)
    }

    /// Reads a value if `condition` holds; `None` if it does not, or the key is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_if(
        &mut self,
        key: &[u8],
        condition: Condition<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        now(operations::get_if(&mut self.to, key, condition, out))
    }

    /// Reads a value one-sided: without a kernel, by READs of the store's memory. One round trip
    /// where this client knows the location, two where it has to look for it. What cannot be read
    /// so, and one read in 64, comes by a kernel. Where there is none, what cannot be read is
    /// [`StoreError::NoKernels`].
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        match &mut self.to {
            To::Store(node) => node.get_one_sided(key, out),
            To::Cluster(cluster) => cluster.get_by(Way::OneSided, key, out),
        }
    }

    /// Reads a value by a chain: by work requests on the store's card, while its processor sleeps.
    /// What cannot be read so comes by a kernel, or where there is none is
    /// [`StoreError::NoKernels`].
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        match &mut self.to {
            To::Store(node) => node.get_by_chain(key, out),
            To::Cluster(cluster) => cluster.get_by(Way::Chain, key, out),
        }
    }

    /// How often each way of reading one-sided was taken.
    pub fn one_sided_counters(&self) -> OneSidedCounters {
        match &self.to {
            To::Store(node) => node.counters(),
            To::Cluster(cluster) => cluster.counters(),
        }
    }

    /// Sets a value. Returns its version.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        now(operations::put(&mut self.to, key, value))
    }

    /// Changes a value as `how` says. Returns its new version; `None` if the condition does not
    /// hold.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        how: &Put<'_>,
    ) -> Result<Option<u64>, StoreError> {
        now(operations::put_with(&mut self.to, key, value, how))
    }

    /// Removes a key; `false` if it is not there, or the condition does not hold.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn delete_if(&mut self, key: &[u8], condition: Condition<'_>) -> Result<bool, StoreError> {
        now(operations::delete_if(&mut self.to, key, condition))
    }

    /// Removes a key; `false` if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.delete_if(key, Condition::None)
    }

    /// Changes when a key expires, in milliseconds of Unix time; 0 for never. `false` if the key is
    /// not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn touch(&mut self, key: &[u8], expires_ms: u64) -> Result<bool, StoreError> {
        now(operations::touch(&mut self.to, key, expires_ms))
    }

    /// Adds to a value that is a decimal number, or sets it if the key is not there. Returns the
    /// sum.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn count(&mut self, key: &[u8], add: i64) -> Result<i64, StoreError> {
        now(operations::count(&mut self.to, key, add))
    }

    /// Walks over the tablespace, and calls `each` with key and value of every row, or with what
    /// `selection` wants of those that it selects. Returns what was done.
    ///
    /// Rows that are there from the beginning to the end come exactly once. One that is longer than
    /// this client's buffer ([`ClientOptions::piece`]) is read by itself.
    ///
    /// # Errors
    /// See [`StoreError`]; of a cluster, also [`StoreError::Moved`] and [`StoreError::Reordered`].
    pub fn scan(
        &mut self,
        selection: Option<&Selection>,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Scanned, StoreError> {
        now(operations::scan(&mut self.to, selection, each))
    }

    /// Walks over the tablespace as [`StoreClient::scan`] does, and calls `each` with a key, what
    /// is known of it, and its value, however long that is.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn items(&mut self, each: impl FnMut(&[u8], &About, &[u8])) -> Result<Scanned, StoreError> {
        now(operations::items(&mut self.to, each))
    }

    /// Computes the aggregates of a selection over the rows that it selects: only answers travel.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn aggregate(&mut self, selection: &Selection) -> Result<Aggregation, StoreError> {
        now(operations::aggregate(&mut self.to, selection))
    }

    /// Removes all keys of the tablespace.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        now(operations::flush(&mut self.to))
    }

    /// The tablespace with this name, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn find_tablespace(&mut self, name: &str) -> Result<Option<TablespaceId>, StoreError> {
        now(operations::find_tablespace(&mut self.to, name))
    }

    /// Makes a tablespace. The client's own stays as it is.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn create_tablespace(
        &mut self,
        options: &TablespaceOptions,
    ) -> Result<TablespaceId, StoreError> {
        now(operations::create_tablespace(&mut self.to, options))
    }

    /// Drops the client's tablespace with all its keys.
    ///
    /// # Errors
    /// See [`StoreError`]. Those of Redis' and memcached's clients stay.
    pub fn drop_tablespace(&mut self) -> Result<(), StoreError> {
        now(operations::drop_tablespace(&mut self.to))
    }

    /// What the store counts, by name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn counts(&mut self) -> Result<Vec<(String, u64)>, StoreError> {
        now(operations::counts(&mut self.to))
    }

    /// Latencies, by way in and operation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn latencies(&mut self) -> Result<Vec<LatencyInfo>, StoreError> {
        now(operations::latencies(&mut self.to))
    }

    /// The tablespaces, and their blocks by size.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn tablespaces(&mut self) -> Result<Vec<SpaceInfo>, StoreError> {
        now(operations::tablespaces(&mut self.to))
    }

    /// The operations that took long, the newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn slow_operations(&mut self) -> Result<Vec<Slow>, StoreError> {
        now(operations::slow_operations(&mut self.to))
    }
}
