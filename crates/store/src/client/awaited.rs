//! Calls as futures, many at a time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use remora::kernel::AsyncKernelClient;
use remora::nic::Access;
use remora::{Connection, Device, MemoryRegion, QueuePairOptions, Remote};

use super::error::StoreError;
use super::operations::{self, About, Caller, Put, Scanned};
use super::permits::Permits;
use super::{Link, PARAMS_MAX};
use crate::select::aggregate::Aggregation;
use crate::select::selection::Selection;
use crate::stats::Slow;
use crate::tablespace::{TablespaceId, TablespaceOptions};
use crate::way::call::{ANSWER_LEN, Call, Condition, Operation};
use crate::way::chain::{AwaitedAsks, ChainReader};
use crate::way::connect::{ClientOptions, ConnectError};
use crate::way::info::{LatencyInfo, SpaceInfo};
use crate::way::one_sided::{AwaitedReads, OneSided, OneSidedCounters, landing};

/// The most bytes of memory for long calls that is kept for the next one.
const KEPT_MAX: u64 = 1 << 20;

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
#[derive(Debug)]
pub struct AsyncStoreClient {
    calls: Awaited,
    reader: Option<OneSided<AwaitedReads>>,
    reads: u64,
    chain: Option<ChainReader<AwaitedAsks>>,
}

/// Carries calls as futures.
#[derive(Clone, Debug)]
struct Awaited {
    shared: Arc<Shared>,
    tablespace: TablespaceId,
}

#[derive(Debug)]
struct Shared {
    kernels: AsyncKernelClient,
    /// As many as the kernels' client has places.
    permits: Permits,
    /// Memory for calls that are too long for parameters.
    staging: Mutex<Vec<MemoryRegion>>,
    link: Link,
}

impl Shared {
    /// Memory with these bytes.
    fn stage(&self, bytes: &[u8]) -> Result<MemoryRegion, StoreError> {
        let fits = |region: &MemoryRegion| region.len() >= bytes.len() as u64;
        let kept = {
            let mut kept = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().position(fits).map(|at| kept.swap_remove(at))
        };
        let region = match kept {
            Some(region) => region,
            None => {
                let len = bytes.len().next_power_of_two().max(4096);
                self.link.domain.alloc(len, Access::LOCAL_WRITE)?
            }
        };
        region.write_at(0, bytes).map_err(|error| StoreError::Call(error.into()))?;
        Ok(region)
    }

    /// The call for which there was this memory is over.
    fn keep(&self, region: MemoryRegion) {
        let mut kept = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if region.len() <= KEPT_MAX && kept.len() < self.link.options.calls {
            kept.push(region);
        }
    }
}

impl Caller for &Awaited {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut bytes = Vec::with_capacity(call.len());
        Call { tablespace: self.tablespace.0, ..*call }.write(&mut bytes)?;
        let Shared { kernels, permits, .. } = &*self.shared;
        let _permit = permits.take().await;
        let answer = if bytes.len() <= PARAMS_MAX {
            kernels.call(operation.opcode(), &bytes).await?
        } else {
            let staged = self.shared.stage(&bytes)?;
            let payload = staged.slice(..bytes.len());
            let answer = kernels.call_with(operation.opcode(), &[], payload).await;
            self.shared.keep(staged);
            answer?
        };
        out.extend_from_slice(&answer);
        Ok(())
    }

    fn tablespace(&self) -> TablespaceId {
        self.tablespace
    }
}

impl Clone for AsyncStoreClient {
    fn clone(&self) -> AsyncStoreClient {
        AsyncStoreClient { calls: self.calls.clone(), reader: None, reads: 0, chain: None }
    }
}

impl AsyncStoreClient {
    /// Connects to the store at `store`. [`ClientOptions::calls`] says how many calls are in flight
    /// at most; others wait for those.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<AsyncStoreClient, ConnectError> {
        let places = options.calls.max(1);
        let depth = u32::try_from(places).unwrap_or(u32::MAX);
        // Three READs of a look-up go beside the calls.
        let shape = QueuePairOptions::new().send_depth(depth.saturating_add(4)).recv_depth(depth);
        let link = Link::connect(device, store, options, &shape).await?;
        let answer_len = options.piece + ANSWER_LEN;
        let kernels = AsyncKernelClient::new(&link.domain, &link.queue_pair, places, answer_len)?;
        let (permits, staging) = (Permits::new(places), Mutex::default());
        let shared = Arc::new(Shared { kernels, permits, staging, link });
        let calls = Awaited { shared, tablespace: TablespaceId(options.tablespace) };
        Ok(AsyncStoreClient { calls, reader: None, reads: 0, chain: None })
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.calls.shared.link.connection
    }

    /// The store's memory, as far as this client may read it.
    pub fn memory(&self) -> Remote {
        self.calls.shared.link.welcome.memory
    }

    /// The tablespace that this handle's operations are about.
    pub fn tablespace(&self) -> TablespaceId {
        self.calls.tablespace
    }

    /// Turns this handle to another tablespace.
    pub fn set_tablespace(&mut self, tablespace: TablespaceId) {
        self.calls.tablespace = tablespace;
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
        operations::get_if(&mut &self.calls, key, condition, out).await
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
        let mut calls = &self.calls;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let link = &calls.shared.link;
                let known = (link.welcome.memory, operations::index(&mut calls).await?);
                let reads = AwaitedReads { queue_pair: link.queue_pair.clone() };
                let reads = (reads, landing(&link.domain)?);
                none.insert(OneSided::new(reads, known, link.options.locations))
            }
        };
        operations::get_one_sided(&mut calls, reader, &mut self.reads, key, out).await
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
        let mut calls = &self.calls;
        let chain = match &mut self.chain {
            Some(chain) => chain,
            none => {
                let Link { device, store, options, welcome, .. } = &calls.shared.link;
                let index = operations::index(&mut calls).await?;
                let store = (*store, welcome.ticket);
                let asks = AwaitedAsks::connect(device, store, options).await?;
                none.insert(ChainReader::new(asks, index))
            }
        };
        operations::get_by_chain(&mut calls, chain, key, out).await
    }

    /// How often this handle has taken each way of reading one-sided.
    pub fn one_sided_counters(&self) -> OneSidedCounters {
        self.reader.as_ref().map(OneSided::counters).unwrap_or_default()
    }

    /// Sets a value: see [`StoreClient::put`](super::StoreClient::put).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        operations::put(&mut &self.calls, key, value).await
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
        operations::put_with(&mut &self.calls, key, value, how).await
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
        operations::delete_if(&mut &self.calls, key, condition).await
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
        operations::touch(&mut &self.calls, key, expires_ms).await
    }

    /// Adds to a number: see [`StoreClient::count`](super::StoreClient::count).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count(&self, key: &[u8], add: i64) -> Result<i64, StoreError> {
        operations::count(&mut &self.calls, key, add).await
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
        operations::scan(&mut &self.calls, selection, each).await
    }

    /// Walks over the tablespace: see [`StoreClient::items`](super::StoreClient::items).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn items(
        &self,
        each: impl FnMut(&[u8], &About, &[u8]),
    ) -> Result<Scanned, StoreError> {
        operations::items(&mut &self.calls, each).await
    }

    /// Computes aggregates: see [`StoreClient::aggregate`](super::StoreClient::aggregate).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn aggregate(&self, selection: &Selection) -> Result<Aggregation, StoreError> {
        operations::aggregate(&mut &self.calls, selection).await
    }

    /// Removes all keys of the tablespace.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn flush(&self) -> Result<(), StoreError> {
        operations::flush(&mut &self.calls).await
    }

    /// The tablespace with this name, if there is one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn find_tablespace(&self, name: &str) -> Result<Option<TablespaceId>, StoreError> {
        operations::find_tablespace(&mut &self.calls, name).await
    }

    /// Makes a tablespace. This handle's own stays as it is.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn create_tablespace(
        &self,
        options: &TablespaceOptions,
    ) -> Result<TablespaceId, StoreError> {
        operations::create_tablespace(&mut &self.calls, options).await
    }

    /// Drops this handle's tablespace with all its keys.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn drop_tablespace(&self) -> Result<(), StoreError> {
        operations::drop_tablespace(&mut &self.calls).await
    }

    /// What the store counts, by name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn counts(&self) -> Result<Vec<(String, u64)>, StoreError> {
        operations::counts(&mut &self.calls).await
    }

    /// Latencies, by way in and operation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn latencies(&self) -> Result<Vec<LatencyInfo>, StoreError> {
        operations::latencies(&mut &self.calls).await
    }

    /// The tablespaces, and their blocks by size.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn tablespaces(&self) -> Result<Vec<SpaceInfo>, StoreError> {
        operations::tablespaces(&mut &self.calls).await
    }

    /// The operations that took long, the newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn slow_operations(&self) -> Result<Vec<Slow>, StoreError> {
        operations::slow_operations(&mut &self.calls).await
    }
}
