//! A connection to one store, or to one node of a cluster, whose calls are futures.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use remora::kernel::{AsyncKernelClient, CallFailure};
use remora::nic::Access;
use remora::{Device, MemoryRegion, QueuePairOptions};

use super::error::StoreError;
use super::fleet::Way;
use super::operations::{self, About, Caller};
use super::permits::Permits;
use super::refusal::ChainRefusal;
use super::{Link, PARAMS_MAX};
use crate::tablespace::TablespaceId;
use crate::way::call::{ANSWER_LEN, Call, Operation};
use crate::way::chain::{AwaitedAsks, ChainReader};
use crate::way::connect::{ClientOptions, ConnectError};
use crate::way::index::Index;
use crate::way::one_sided::{AwaitedReads, OneSided, OneSidedCounters, landing};
use crate::way::region::Region;

/// The most bytes of memory for long calls that is kept for the next one.
const KEPT_MAX: u64 = 1 << 20;

/// A connection of a handle, and what the handle knows of the store's memory.
#[derive(Debug)]
pub(super) struct AwaitedNode {
    pub(super) calls: Awaited,
    reader: Option<OneSided<AwaitedReads>>,
    reads: u64,
    chain: Option<ChainReader<AwaitedAsks>>,
    refusal: ChainRefusal,
    connecting: Connecting,
}

type Connect = Pin<Box<dyn Future<Output = Result<AwaitedAsks, ConnectError>> + Send>>;

/// The connection to a chain that is being made. It outlives a call that is dropped meanwhile: the
/// store allows one chain, and would hear of the end of that one later than of the next.
#[derive(Default)]
struct Connecting(Mutex<Option<Connect>>);

impl Connecting {
    /// Goes on with what was begun, or begins with `connect`.
    async fn go_on(
        &mut self,
        connect: impl FnOnce() -> Connect,
    ) -> Result<AwaitedAsks, ConnectError> {
        let under_way = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let connected = under_way.get_or_insert_with(connect).await;
        *under_way = None;
        connected
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

/// Carries calls as futures.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    shared: Arc<Shared>,
    pub(super) tablespace: TablespaceId,
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
        loop {
            let answer = if bytes.len() <= PARAMS_MAX {
                kernels.call(operation.opcode(), &bytes).await
            } else {
                let staged = self.shared.stage(&bytes)?;
                let payload = staged.slice(..bytes.len());
                let answer = kernels.call_with(operation.opcode(), &[], payload).await;
                self.shared.keep(staged);
                answer
            };
            match answer {
                // A call whose future was dropped has a place until it has ended.
                Err(CallFailure::Full(_)) => kernels.free_place().await?,
                answer => {
                    out.extend_from_slice(&answer?);
                    return Ok(());
                }
            }
        }
    }

    fn tablespace(&self) -> TablespaceId {
        self.tablespace
    }
}

impl Awaited {
    pub(super) async fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Awaited, ConnectError> {
        let places = options.calls.max(1);
        let depth = u32::try_from(places).unwrap_or(u32::MAX);
        // Three READs of a look-up go beside the calls.
        let shape = QueuePairOptions::new().send_depth(depth.saturating_add(4)).recv_depth(depth);
        let link = Link::connect(device, store, options, &shape).await?;
        let answer_len = options.piece + ANSWER_LEN;
        let kernels = AsyncKernelClient::new(&link.domain, &link.queue_pair, places, answer_len)?;
        let (permits, staging) = (Permits::new(places), Mutex::default());
        let shared = Arc::new(Shared { kernels, permits, staging, link });
        Ok(Awaited { shared, tablespace: TablespaceId(options.tablespace) })
    }

    pub(super) fn link(&self) -> &Link {
        &self.shared.link
    }

    /// What READs the store's memory, and where that lands.
    fn reads(&self) -> Result<(AwaitedReads, Region), StoreError> {
        let Link { queue_pair, domain, .. } = self.link();
        Ok((AwaitedReads { queue_pair: queue_pair.clone() }, landing(domain)?))
    }

    async fn read_index(&self) -> Result<Index, StoreError> {
        operations::read_index(self.reads()?, &self.link().welcome).await
    }

    /// What a kernel says of the store's index, or without kernels the store's memory.
    async fn index(&self) -> Result<Index, StoreError> {
        match operations::index(&mut &*self).await {
            Err(StoreError::NoKernels) => self.read_index().await,
            told => told,
        }
    }

    /// Whether it is the same connection.
    pub(super) fn is(&self, other: &Awaited) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A clone begins with nothing known.
impl Clone for AwaitedNode {
    fn clone(&self) -> AwaitedNode {
        AwaitedNode::new(self.calls.clone())
    }
}

type Reader<'n> = (&'n Awaited, &'n mut OneSided<AwaitedReads>, &'n mut u64);
type Chain<'n> = (&'n Awaited, &'n mut ChainReader<AwaitedAsks>);

impl AwaitedNode {
    pub(super) fn new(calls: Awaited) -> AwaitedNode {
        AwaitedNode {
            calls,
            reader: None,
            reads: 0,
            chain: None,
            refusal: ChainRefusal::default(),
            connecting: Connecting::default(),
        }
    }

    /// What reads the store's memory.
    pub(super) async fn reader(&mut self) -> Result<Reader<'_>, StoreError> {
        let calls = &self.calls;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let link = &calls.shared.link;
                let known = (link.welcome.memory, calls.index().await?);
                none.insert(OneSided::new(calls.reads()?, known, link.options.locations))
            }
        };
        Ok((calls, reader, &mut self.reads))
    }

    /// What asks the store's chain.
    pub(super) async fn chain(&mut self) -> Result<Chain<'_>, StoreError> {
        let calls = &self.calls;
        let chain = match &mut self.chain {
            Some(chain) => chain,
            none => {
                let Link { device, store, options, welcome, .. } = &calls.shared.link;
                let index = calls.index().await?;
                let (device, options) = (device.clone(), options.clone());
                let store = (*store, welcome.ticket);
                let connect = async move { AwaitedAsks::connect(&device, store, &options).await };
                let asks = self.connecting.go_on(|| Box::pin(connect)).await?;
                none.insert(ChainReader::new(asks, index))
            }
        };
        Ok((calls, chain))
    }

    /// Reads without a kernel. `None`: one is to be asked, as it is where no memory is shown.
    pub(super) async fn read_by(
        &mut self,
        way: Way,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        if self.calls.link().welcome.memory.len == 0 {
            return Ok(None);
        }
        match way {
            Way::OneSided => {
                let (mut calls, reader, reads) = self.reader().await?;
                operations::read_one_sided(&mut calls, reader, reads, key, out).await
            }
            Way::Chain if self.refusal.holds() => Ok(None),
            Way::Chain => {
                let (mut calls, chain) = match self.chain().await {
                    Ok(chain) => chain,
                    Err(error) => {
                        self.refusal.note(&error);
                        return Err(error);
                    }
                };
                operations::read_by_chain(&mut calls, chain, key, out).await
            }
        }
    }

    pub(super) async fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let (mut calls, chain) = self.chain().await?;
        match operations::get_by_chain(&mut calls, chain, key, out).await {
            Err(StoreError::NoKernels) => {}
            done => return done,
        }
        // The partition may have grown.
        let index = calls.read_index().await?;
        operations::get_by_chain_only(&mut calls, chain, index, key, out).await
    }

    /// A kernel of this connection has found what was not found without one.
    pub(super) async fn learn_by(&mut self, way: Way, found: &About) -> Result<(), StoreError> {
        match (way, &mut self.reader, &mut self.chain) {
            (Way::OneSided, Some(reader), _) => reader.index_mut().learn(found.version),
            (Way::Chain, _, Some(chain)) => {
                operations::learn_by_chain(&mut &self.calls, chain, found).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// How many values were read without a kernel of which the store was not told.
    pub(super) fn untold(&mut self) -> u32 {
        self.reader.as_mut().map_or(0, OneSided::tell)
    }

    pub(super) fn counters(&self) -> OneSidedCounters {
        self.reader.as_ref().map(OneSided::counters).unwrap_or_default()
    }
}
