//! A client whose operations are futures, many at a time.

use std::net::SocketAddr;

use remora::{Connection, Device, Remote};

use super::Link;
use super::awaited_node::{Awaited, AwaitedNode};
use super::error::StoreError;
use super::fleet::Way;
use super::lanes::{AwaitedCluster, Lane};
use super::operations::{self, About, Caller, Put, Scanned};
use crate::select::aggregate::Aggregation;
use crate::select::selection::Selection;
use crate::stats::Slow;
use crate::tablespace::{TablespaceId, TablespaceOptions};
use crate::way::call::{Call, Condition, Operation};
use crate::way::connect::{ClientOptions, ConnectError};
use crate::way::hello::StoreKind;
use crate::way::info::{LatencyInfo, SpaceInfo};
use crate::way::one_sided::OneSidedCounters;

/// A client of a store whose operations are futures, many at a time. They need no executor of a
/// certain kind, and no time limit ends them: an executor's time-out drops the future, and the
/// store carries out the operation or not.
///
/// A clone is another handle of the same connection. It has places of values and a connection to a
/// chain of its own; a store gives one chain to a connection.
///
/// ```
/// use std::time::Duration;
/// use remora::{Device, wait_for};
/// use remora_store::client::{AsyncStoreClient, StoreError};
/// use remora_store::service::{Service, ServiceOptions};
/// use remora_store::way::connect::ClientOptions;
///
/// async fn sum(store: &AsyncStoreClient) -> Result<i64, StoreError> {
///     // Both are under way at once, where the executor has tasks or joins futures.
///     store.put(b"greeting", b"hello").await?;
///     store.count(b"visits", 2).await?;
///     store.count(b"visits", 3).await
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let served = Device::open()?;
/// # let service = Service::start(&served, &ServiceOptions::new(64 << 20, 7))?;
/// # let device = Device::open()?;
/// let options = ClientOptions::default();
/// let limit = Duration::from_secs(10);
/// // `wait_for` waits in an ordinary thread; in an async function it is `.await`.
/// let connecting = AsyncStoreClient::connect(&device, service.address(), &options);
/// let store = wait_for(connecting, limit).ok_or("no connection in time")??;
/// assert_eq!(wait_for(sum(&store), limit).ok_or("no answer in time")??, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncStoreClient {
    to: To,
}

/// What a client is connected to.
#[derive(Clone, Debug)]
enum To {
    Store(Box<AwaitedNode>),
    Cluster(Box<AwaitedCluster>),
}

/// Who carries the calls of an operation.
enum Calling<'a> {
    Store(&'a Awaited),
    Cluster(Lane<'a>),
}

impl Caller for Calling<'_> {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        match self {
            Calling::Store(calls) => calls.call(operation, call, out).await,
            Calling::Cluster(lane) => lane.call(operation, call, out).await,
        }
    }

    fn tablespace(&self) -> TablespaceId {
        match self {
            Calling::Store(calls) => calls.tablespace,
            Calling::Cluster(lane) => lane.tablespace(),
        }
    }
}

impl AsyncStoreClient {
    /// Connects to the store at `store`; if that is a node of a cluster, to the cluster: see
    /// [`StoreClient::connect`](super::StoreClient::connect). [`ClientOptions::calls`] says how
    /// many calls are in flight at most; others wait for those. In a cluster,
    /// [`ClientOptions::timeout`] says how long each call is repeated where it fails.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<AsyncStoreClient, ConnectError> {
        let calls = Awaited::connect(device, store, options).await?;
        if calls.link().welcome.kind != StoreKind::Member {
            return Ok(AsyncStoreClient { to: To::Store(Box::new(AwaitedNode::new(calls))) });
        }
        let cluster = AwaitedCluster::new(calls).await?;
        Ok(AsyncStoreClient { to: To::Cluster(Box::new(cluster)) })
    }

    /// The connection that was made first.
    fn link(&self) -> &Link {
        match &self.to {
            To::Store(node) => node.calls.link(),
            To::Cluster(cluster) => cluster.home().link(),
        }
    }

    async fn calls(&self) -> Calling<'_> {
        match &self.to {
            To::Store(node) => Calling::Store(&node.calls),
            To::Cluster(cluster) => Calling::Cluster(cluster.lane().await),
        }
    }

    /// The connection; of a cluster, the one to the node at which this client came in.
    pub fn connection(&self) -> &Connection {
        &self.link().connection
    }

    /// The memory of the store at the other end of [`AsyncStoreClient::connection`], as far as this
    /// client may read it.
    pub fn memory(&self) -> Remote {
        self.link().welcome.memory
    }

    /// The tablespace that this handle's operations are about.
    pub fn tablespace(&self) -> TablespaceId {
        match &self.to {
            To::Store(node) => node.calls.tablespace,
            To::Cluster(_) => TablespaceId(0),
        }
    }

    /// Turns this handle to another tablespace. In a cluster there is but one.
    pub fn set_tablespace(&mut self, tablespace: TablespaceId) {
        if let To::Store(node) = &mut self.to {
            node.calls.tablespace = tablespace;
        }
    }

    /// Reads a value: see [`StoreClient::get`](super::StoreClient::get).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<About>, StoreError> {
        self.get_if(key, Condition::None, out).await
    }

    /// Reads a value if a condition holds: see [`StoreClient::get_if`](super::StoreClient::get_if).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get_if(
        &self,
        key: &[u8],
        condition: Condition<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        operations::get_if(&mut self.calls().await, key, condition, out).await
    }

    /// Reads a value one-sided: see
    /// [`StoreClient::get_one_sided`](super::StoreClient::get_one_sided).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        match &mut self.to {
            To::Store(node) => {
                let (mut calls, reader, reads) = node.reader().await?;
                operations::get_one_sided(&mut calls, reader, reads, key, out).await
            }
            To::Cluster(cluster) => cluster.get_by(Way::OneSided, key, out).await,
        }
    }

    /// Reads a value by a chain: see [`StoreClient::get_by_chain`](super::StoreClient::get_by_chain).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        match &mut self.to {
            To::Store(node) => node.get_by_chain(key, out).await,
            To::Cluster(cluster) => cluster.get_by(Way::Chain, key, out).await,
        }
    }

    /// How often this handle has taken each way of reading one-sided.
    pub fn one_sided_counters(&self) -> OneSidedCounters {
        match &self.to {
            To::Store(node) => node.counters(),
            To::Cluster(cluster) => cluster.counters(),
        }
    }

    /// Sets a value: see [`StoreClient::put`](super::StoreClient::put).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        operations::put(&mut self.calls().await, key, value).await
    }

    /// Changes a value: see [`StoreClient::put_with`](super::StoreClient::put_with).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        how: &Put<'_>,
    ) -> Result<Option<u64>, StoreError> {
        operations::put_with(&mut self.calls().await, key, value, how).await
    }

    /// Removes a key, if a condition holds: see
    /// [`StoreClient::delete_if`](super::StoreClient::delete_if).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn delete_if(
        &self,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<bool, StoreError> {
        operations::delete_if(&mut self.calls().await, key, condition).await
    }

    /// Removes a key: see [`StoreClient::delete`](super::StoreClient::delete).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.delete_if(key, Condition::None).await
    }

    /// Changes when a key expires: see [`StoreClient::touch`](super::StoreClient::touch).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn touch(&self, key: &[u8], expires_ms: u64) -> Result<bool, StoreError> {
        operations::touch(&mut self.calls().await, key, expires_ms).await
    }

    /// Adds to a number: see [`StoreClient::count`](super::StoreClient::count).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count(&self, key: &[u8], add: i64) -> Result<i64, StoreError> {
        operations::count(&mut self.calls().await, key, add).await
    }

    /// Walks over the tablespace: see [`StoreClient::scan`](super::StoreClient::scan).
    ///
    /// # Errors
    /// See [`StoreClient::scan`](super::StoreClient::scan).
    pub async fn scan(
        &self,
        selection: Option<&Selection>,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Scanned, StoreError> {
        operations::scan(&mut self.calls().await, selection, each).await
    }

    /// Walks over the tablespace: see [`StoreClient::items`](super::StoreClient::items).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn items(
        &self,
        each: impl FnMut(&[u8], &About, &[u8]),
    ) -> Result<Scanned, StoreError> {
        operations::items(&mut self.calls().await, each).await
    }

    /// Computes aggregates: see [`StoreClient::aggregate`](super::StoreClient::aggregate).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn aggregate(&self, selection: &Selection) -> Result<Aggregation, StoreError> {
        operations::aggregate(&mut self.calls().await, selection).await
    }

    /// Removes all keys of the tablespace.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn flush(&self) -> Result<(), StoreError> {
        operations::flush(&mut self.calls().await).await
    }

    /// The tablespace with this name, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_tablespace(&self, name: &str) -> Result<Option<TablespaceId>, StoreError> {
        operations::find_tablespace(&mut self.calls().await, name).await
    }

    /// Makes a tablespace. This handle's own stays as it is.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_tablespace(
        &self,
        options: &TablespaceOptions,
    ) -> Result<TablespaceId, StoreError> {
        operations::create_tablespace(&mut self.calls().await, options).await
    }

    /// Drops this handle's tablespace with all its keys.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn drop_tablespace(&self) -> Result<(), StoreError> {
        operations::drop_tablespace(&mut self.calls().await).await
    }

    /// What the store counts, by name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn counts(&self) -> Result<Vec<(String, u64)>, StoreError> {
        operations::counts(&mut self.calls().await).await
    }

    /// Latencies, by way in and operation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn latencies(&self) -> Result<Vec<LatencyInfo>, StoreError> {
        operations::latencies(&mut self.calls().await).await
    }

    /// The tablespaces, and their blocks by size.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn tablespaces(&self) -> Result<Vec<SpaceInfo>, StoreError> {
        operations::tablespaces(&mut self.calls().await).await
    }

    /// The operations that took long, the newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn slow_operations(&self) -> Result<Vec<Slow>, StoreError> {
        operations::slow_operations(&mut self.calls().await).await
    }
}
