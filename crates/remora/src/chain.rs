//! Chains on a live card (RedN): managed queues, queue pairs looped back, rings as memory; and
//! whole programs, which the card then runs without its host.
//!
//! A [`Program`] is written with
//! [`remora::offload::chain`](remora_offload::chain). [`ProtectionDomain::load_chain`] gives it its
//! queues and links it; its connection, if it serves one, is made as any other is, and
//! [`Chain::start`] lets it run. [`Chain::serve`] does both, for a [`ChainClient`] or who acts like
//! one.

mod awaited;
mod client;

use std::sync::Arc;

use remora_nic::queue::{ELEMENT_LEN, Remote, RingInit, Sge};
use remora_nic::{
    Access, ChainError, ChainLimits, ChainStep, CreateError, PostError, QpFlags, Queue,
};
use remora_offload::chain::element::QueueId;
use remora_offload::chain::load::{Loaded, Made, Target, Wanted, load};
use remora_offload::chain::program::{Layout, LinkError, Program, RegionAt};
use thiserror::Error;

pub use awaited::{AsyncChainClient, ChainCall};
pub use client::{CallError, ChainClient, ChainClientError, MESSAGE_MAX, ServeError};

use crate::completion::CompletionQueue;
use crate::device::Device;
use crate::live::Live;
use crate::memory::{AccessError, AllocError, Buffer};
use crate::options::QueuePairOptions;
use crate::queue_pair::{QueuePair, RingOf};
use crate::region::{MemoryRegion, ProtectionDomain, RegisterError};
use crate::shared_receive::CreateQpError;

/// Errors that a chain's completion queue keeps: nobody need look at them.
const ERRORS_KEPT: usize = 16;

/// A ring of a queue pair, registered as memory.
#[derive(Clone, Debug)]
pub struct RingRegion {
    /// Its bytes. The region keeps its queue pair alive.
    pub region: MemoryRegion,
    /// Slots.
    pub depth: u32,
    /// Bytes from slot to slot.
    pub stride: u32,
}

impl RingRegion {
    /// The address of a field of the element at `index`, which counts up without end.
    pub fn field(&self, index: u32, offset: u64) -> u64 {
        self.region.addr() + self.offset(index) + offset
    }

    /// The same field as a target.
    pub fn remote(&self, index: u32, offset: u64) -> Remote {
        self.region.remote(self.offset(index) + offset)
    }

    /// The same field as an entry of `len` bytes: RECVs scatter to such.
    pub fn sge(&self, index: u32, offset: u64, len: u32) -> Sge {
        self.region.sge(self.offset(index) + offset, len)
    }

    /// The first bytes of the element at `index`, as they are now.
    pub fn element(&self, index: u32) -> [u8; ELEMENT_LEN] {
        let mut raw = [0; ELEMENT_LEN];
        let read = self.region.read_at(self.offset(index) as usize, &mut raw);
        read.expect("slots lie within the ring");
        raw
    }

    /// Where a slot begins, in bytes.
    fn offset(&self, index: u32) -> u64 {
        u64::from(index & (self.depth - 1)) * u64::from(self.stride)
    }
}

impl QueuePair {
    /// Connects two fresh reliable queue pairs of one device to each other, or one to itself. What
    /// each may do to the other is `access`. Nothing of it leaves the card.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn loop_back(&self, other: &QueuePair, access: Access) -> Result<(), ChainError> {
        self.live().command(|driver| driver.nic.loop_back(self.qpn(), other.qpn(), access))
    }

    /// Registers one of the rings, so that work requests can change work requests.
    ///
    /// # Errors
    /// The queue has no ring, or the card refuses.
    pub fn register_ring(&self, queue: Queue, access: Access) -> Result<RingRegion, RegisterError> {
        let (ring, len) = (Box::new(RingOf(self.clone(), queue)), self.ring(queue).len() as u64);
        let region = self.pd().register_ring(ring, len, access)?;
        let RingInit { depth, stride, .. } = self.ring(queue);
        Ok(RingRegion { region, depth, stride })
    }

    /// Writes the bytes of an element into the next slot, and posts it, unless the queue is
    /// managed. Returns its index.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_element(&self, queue: Queue, raw: &[u8]) -> Result<u32, PostError> {
        self.live().command(|d| d.nic.post_element(&mut d.memory, self.qpn(), queue, raw))
    }

    /// The index of the element that is written next.
    pub fn next_index(&self, queue: Queue) -> u32 {
        let index = self.live().lock().nic.next_index(self.qpn(), queue);
        index.expect("a queue pair lives as long as its handle")
    }

    /// Lets a queue run up to, not including, `index`: the host's own ENABLE of a managed queue.
    /// (Slots of a plain one that were run before may be run again by it.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn doorbell(&self, queue: Queue, index: u32) -> Result<(), PostError> {
        self.live().command(|driver| match queue {
            Queue::Send => driver.nic.handle_send_doorbell(self.qpn(), index),
            Queue::Recv => driver.nic.handle_recv_doorbell(self.qpn(), index),
        })
    }

    /// Gives the send queue limits, in place of those it had.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn set_chain_limits(&self, limits: ChainLimits) -> Result<(), ChainError> {
        self.live().command(|driver| {
            let now = driver.now();
            driver.nic.set_chain_limits(now, self.qpn(), limits)
        })
    }
}

impl Device {
    /// Makes a completion queue that nobody polls: it counts what ends well, for WAITs, and keeps
    /// up to `errors` errors.
    ///
    /// # Errors
    /// See [`Device::create_cq`].
    pub fn create_counting_cq(&self, errors: usize) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::counting(self.live.clone(), errors)
    }

    /// Makes a budget of so many elements. It is full again whenever something comes from outside
    /// for one of the queue pairs that have it.
    ///
    /// # Errors
    /// The card has no more.
    pub fn create_budget(&self, elements: u64) -> Result<ChainBudget, CreateError> {
        let handle = self.live.lock().nic.create_budget(elements)?;
        let inner = BudgetInner { live: self.live.clone(), handle };
        Ok(ChainBudget { inner: Arc::new(inner) })
    }

    /// Keeps the last `most` steps of chains for [`Device::poll_chain_step`]; zero keeps none.
    pub fn trace_chains(&self, most: usize) {
        self.live.lock().nic.trace_chains(most);
    }

    /// The next step of a chain.
    pub fn poll_chain_step(&self) -> Option<ChainStep> {
        self.live.lock().nic.poll_chain_step()
    }
}

/// A budget of elements that queue pairs share: see [`remora_nic::Nic::create_budget`]. It ends
/// with its last handle, which the queue pairs that have it must not outlive.
#[derive(Clone, Debug)]
pub struct ChainBudget {
    inner: Arc<BudgetInner>,
}

#[derive(Debug)]
struct BudgetInner {
    live: Arc<Live>,
    handle: u32,
}

impl ChainBudget {
    /// The card's number for it: [`ChainLimits::budget`].
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Fills it.
    pub fn refill(&self) {
        let refilled = self.inner.live.lock().nic.refill_budget(self.inner.handle);
        refilled.expect("a budget lives as long as its handle");
    }
}

impl Drop for BudgetInner {
    fn drop(&mut self) {
        if let Err(error) = self.live.lock().nic.destroy_budget(self.handle) {
            tracing::error!(%error, "a chain's budget was dropped while in use");
        }
    }
}

/// Why a program was not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// It cannot be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The card has no more completion queues.
    #[error("no completion queue for the program: {0}")]
    Cq(#[from] CreateError),
    /// A queue was not made.
    #[error("no queue pair for the program: {0}")]
    Qp(#[from] CreateQpError),
    /// Its memory was not registered.
    #[error("no memory for the program: {0}")]
    Register(#[from] RegisterError),
    /// A queue was not looped back.
    #[error("a queue of the program was not looped back: {0}")]
    LoopBack(#[from] ChainError),
    /// Its bytes did not fit.
    #[error(transparent)]
    Memory(#[from] AccessError),
}

impl From<AllocError> for LoadError {
    fn from(error: AllocError) -> LoadError {
        LoadError::Register(error.into())
    }
}

/// A program on a live card. It ends when this is dropped.
///
/// ```
/// use remora::prelude::*;
/// use remora::offload::chain::offload::{list, table::Value};
/// # use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Device::open()?;
/// let domain = server.alloc_pd()?;
/// let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// let value = Value { addr: memory.addr() + 1024, len: 5 };
/// memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)]))?;
///
/// // The program walks a list for a client: it takes the list and the values from outside.
/// let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()])?;
/// assert!(chain.local().is_some(), "it serves a client");
/// # let device = Device::open()?;
/// # let mtu = device.info().mtu;
/// # let mut client = AsyncChainClient::new(&device.alloc_pd()?, 64)?;
/// # client.connect(chain.local().ok_or("it serves a client")?, mtu)?;
/// chain.serve(client.local(), mtu)?; // from here on, the card serves and the host may sleep
/// # memory.write_at(1024, b"seven")?;
/// # let answer = client.call(&list::message(7, memory.addr())).wait(Duration::from_secs(10))?;
/// # assert_eq!(answer, b"seven");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Chain {
    loaded: Loaded,
    parts: Parts,
    _imports: Vec<MemoryRegion>,
}

/// What a program was given.
#[derive(Debug, Default)]
struct Parts {
    /// By queue.
    cqs: Vec<CompletionQueue>,
    qps: Vec<QueuePair>,
    rings: Vec<MemoryRegion>,
    data: Option<MemoryRegion>,
}

impl Parts {
    fn qp(&self, qpn: u32) -> &QueuePair {
        let found = self.qps.iter().find(|qp| qp.qpn() == qpn);
        found.expect("a program knows only its own queue pairs")
    }
}

impl ProtectionDomain {
    /// Makes a program's queues and links it; `imports` are the regions that it takes from outside,
    /// which must allow what it does with them (READ of a table: `REMOTE_READ`).
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_chain(
        &self,
        program: &Program,
        imports: &[MemoryRegion],
    ) -> Result<Chain, LoadError> {
        let mut target = InDomain { pd: self, parts: Parts::default() };
        let loaded = load(&mut target, program, imports.iter().map(at).collect())?;
        Ok(Chain { loaded, parts: target.parts, _imports: imports.to_vec() })
    }
}

/// A protection domain that a program is loaded into.
struct InDomain<'a> {
    pd: &'a ProtectionDomain,
    parts: Parts,
}

impl Target for InDomain<'_> {
    type Error = LoadError;

    fn counting_cq(&mut self) -> Result<u32, LoadError> {
        let cq = CompletionQueue::counting(self.pd.live().clone(), ERRORS_KEPT)?;
        let handle = cq.handle();
        self.parts.cqs.push(cq);
        Ok(handle)
    }

    fn data(&mut self, len: usize) -> Result<RegionAt, LoadError> {
        let data = self.pd.register(Buffer::new(len.max(8))?, Access::all())?;
        Ok(at(self.parts.data.insert(data)))
    }

    fn queue_pair(
        &mut self,
        send: Option<Wanted>,
        recv: Option<Wanted>,
    ) -> Result<Made, LoadError> {
        let some = send.or(recv).expect("a queue");
        let cq = |queue: Option<Wanted>| &self.parts.cqs[queue.unwrap_or(some).queue.index()];
        let shape = |queue: Option<Wanted>| queue.map_or((0, 1), |queue| (queue.depth, queue.sges));
        let flag = |queue: Option<Wanted>, flag| {
            if queue.is_some_and(|queue| queue.managed) { flag } else { QpFlags::empty() }
        };
        let ((send_depth, send_sges), (recv_depth, recv_sges)) = (shape(send), shape(recv));
        let options = QueuePairOptions::rc(cq(send))
            .recv_cq(cq(recv))
            .send_depth(send_depth)
            .recv_depth(recv_depth)
            .send_sges(send_sges)
            .recv_sges(recv_sges)
            .inline(0)
            .flags(flag(send, QpFlags::MANAGED_SEND) | flag(recv, QpFlags::MANAGED_RECV));
        let qp = self.pd.create_qp(&options)?;
        let mut ring = |queue| -> Result<RegionAt, LoadError> {
            let region = qp.register_ring(queue, Access::all())?.region;
            self.parts.rings.push(region);
            Ok(at(&self.parts.rings[self.parts.rings.len() - 1]))
        };
        let send = send.map(|_| ring(Queue::Send)).transpose()?;
        let recv = recv.map(|_| ring(Queue::Recv)).transpose()?;
        let qpn = qp.qpn();
        self.parts.qps.push(qp);
        Ok(Made { qpn, send, recv })
    }

    fn loop_back(&mut self, qpn: u32) -> Result<(), LoadError> {
        let qp = self.parts.qp(qpn);
        Ok(qp.loop_back(qp, Access::all())?)
    }

    fn write(&mut self, region: RegionAt, bytes: &[u8]) -> Result<(), LoadError> {
        let mut regions = self.parts.rings.iter().chain(&self.parts.data);
        let to = regions.find(|known| known.key() == region.key);
        Ok(to.expect("a region of this program").write_at(0, bytes)?)
    }
}

fn at(region: &MemoryRegion) -> RegionAt {
    RegionAt { addr: region.addr(), key: region.key() }
}

impl Chain {
    /// The queue pair towards its client, to be connected before the program is started. What the
    /// client may do besides sending is what the connection's access says: nothing is enough.
    pub fn client(&self) -> Option<&QueuePair> {
        self.loaded.client.map(|client| self.parts.qp(client.qpn))
    }

    /// Lets it run.
    ///
    /// # Errors
    /// Its client is not connected, or it was started before.
    pub fn start(&self) -> Result<(), PostError> {
        self.loaded.start(|qpn, queue, index| self.parts.qp(qpn).doorbell(queue, index))
    }

    /// Requests that a queue has completed well, of those that are counted.
    pub fn completions(&self, queue: QueueId) -> u64 {
        self.parts.cqs[queue.index()].count()
    }

    /// Its queue pairs, by queue: to give them limits, or to see how they stand.
    pub fn queue_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        self.layout().queues.iter().map(|queue| self.parts.qp(queue.qpn))
    }

    /// Bytes of its own data, by address.
    ///
    /// # Errors
    /// They lie elsewhere.
    pub fn read(&self, addr: u64, len: u32) -> Result<Vec<u8>, AccessError> {
        let data = self.parts.data.as_ref().expect("a program that was loaded has data");
        let mut bytes = vec![0; len as usize];
        let offset = addr.wrapping_sub(data.addr());
        data.read_at(usize::try_from(offset).unwrap_or(usize::MAX), &mut bytes)?;
        Ok(bytes)
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.loaded.layout
    }
}
