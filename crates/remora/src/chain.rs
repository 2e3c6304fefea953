//! Chains on a live card (RedN): managed queues, queue pairs looped back, rings as memory; and
//! whole programs, which the card then runs without its host. `docs/chains.md` describes them.
//!
//! A [`Program`] is written with [`remora::offload::chain`](remora_offload::chain).
//! [`ProtectionDomain::load_chain`] gives it its queues and links it. If the program serves a
//! client, its queue pair is connected like any other. Then [`Chain::start`] lets the program run.
//! [`Chain::serve`] connects and starts, for a [`ChainClient`] or a client that acts like one.
//!
//! `chain/client.rs` is the client's side, and `chain/awaited.rs` its calls as futures.

mod awaited;
mod client;

use std::sync::Arc;

use remora_nic::queue::{ELEMENT_LEN, PollCqError, RemoteAddress, RingInit, Sge};
use remora_nic::{
    Access, ChainError, ChainLimits, ChainStep, CreateError, PostError, QpFlags, Queue,
};
use remora_offload::chain::element::QueueId;
use remora_offload::chain::link::{Layout, LinkError, RegionAt};
use remora_offload::chain::load::{Loaded, Made, Target, Wanted, load};
use remora_offload::chain::program::Program;
use thiserror::Error;

pub use awaited::{AsyncChainClient, ChainCall};
pub use client::{CallError, ChainClient, ChainClientError, MESSAGE_MAX, ServeError};

use crate::commands::Commands;
use crate::completion::CompletionQueue;
use crate::device::Device;
use crate::live::Live;
use crate::memory::BufferError;
use crate::options::QueuePairOptions;
use crate::queue_pair::{QueuePair, RingOf};
use crate::region::{MemoryRegion, ProtectionDomain, RegisterError};
use crate::shared_receive::CreateQpError;

/// How many errors a chain's completion queue keeps; the program need not fetch them.
const ERRORS_KEPT: usize = 16;

/// A ring of a queue pair, registered as memory.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::Queue;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let (domain, queue) = (device.alloc_pd()?, device.create_cq(16)?);
/// let qp = domain.create_qp(&QueuePairOptions::rc(&queue))?;
/// let ring = qp.register_ring(Queue::Send, Access::all())?;
/// assert_eq!(ring.field(1, 0) - ring.field(0, 0), u64::from(ring.stride));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RingRegion {
    /// The ring's bytes. The region keeps the queue pair alive.
    pub region: MemoryRegion,
    /// How many slots the ring has.
    pub depth: u32,
    /// Bytes from one slot to the next.
    pub stride: u32,
}

impl RingRegion {
    /// The address of the field at `offset` bytes of the element at `index`. Indices count on from
    /// lap to lap of the ring.
    pub fn field(&self, index: u32, offset: u64) -> u64 {
        self.region.addr() + self.offset(index) + offset
    }

    /// The same field as the target of a work request.
    pub fn remote(&self, index: u32, offset: u64) -> RemoteAddress {
        self.region.remote(self.offset(index) + offset)
    }

    /// The same field as a scatter/gather entry of `len` bytes, to which a RECV can scatter.
    pub fn sge(&self, index: u32, offset: u64, len: u32) -> Sge {
        self.region.sge(self.offset(index) + offset, len)
    }

    /// The element at `index` in its present form.
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
    /// Connects two fresh reliable queue pairs of one device to each other, or one to itself. Each
    /// has `access` to the other's memory. Their packets do not leave the card.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn loop_back(&self, other: &QueuePair, access: Access) -> Result<(), ChainError> {
        self.live().command(|driver| driver.loop_back(self.qpn(), other.qpn(), access))
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

    /// Writes the bytes of an element into the next slot, and posts it unless the queue is managed.
    /// Returns the element's index.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_element(&self, queue: Queue, raw: &[u8]) -> Result<u32, PostError> {
        self.live().command(|d| d.post_element(self.qpn(), queue, raw))
    }

    /// The index of the element that is written next.
    pub fn next_index(&self, queue: Queue) -> u32 {
        let index = self.live().lock().next_index(self.qpn(), queue);
        index.expect("a queue pair lives as long as its handle")
    }

    /// Lets a queue run up to, not including, `index`: as ENABLE does, but from the host. (On a
    /// queue that is not managed, it can run slots again that have run before.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn doorbell(&self, queue: Queue, index: u32) -> Result<(), PostError> {
        self.live().command(|driver| driver.doorbell(self.qpn(), queue, index))
    }

    /// Sets the limits of the send queue, in the place of its earlier ones.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn set_chain_limits(&self, limits: ChainLimits) -> Result<(), ChainError> {
        self.live().command(|driver| driver.set_chain_limits(self.qpn(), limits))
    }
}

impl Device {
    /// Makes a completion queue that need not be polled: it counts successes, for WAITs, and keeps
    /// up to `errors` errors.
    ///
    /// # Errors
    /// See [`Device::create_cq`].
    pub fn create_counting_cq(&self, errors: usize) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::counting(self.live.clone(), errors)
    }

    /// Makes a budget of `elements` elements. It is full again whenever a message arrives for one
    /// of the queue pairs that have it, or the program posts to one or rings its doorbell.
    ///
    /// # Errors
    /// The card has no more budgets.
    pub fn create_budget(&self, elements: u64) -> Result<ChainBudget, CreateError> {
        let handle = self.live.lock().create_budget(elements)?;
        let inner = BudgetInner { live: self.live.clone(), handle };
        Ok(ChainBudget { inner: Arc::new(inner) })
    }

    /// Keeps the last `most` steps of chains for [`Device::poll_chain_step`]; zero keeps none.
    pub fn trace_chains(&self, most: usize) {
        self.live.lock().trace_chains(most);
    }

    /// The next of the steps of chains that were kept, if there is one.
    pub fn poll_chain_step(&self) -> Option<ChainStep> {
        self.live.lock().poll_chain_step()
    }
}

/// A budget of elements that queue pairs share: see [`remora_nic::Nic::create_budget`]. Dropping
/// its last handle ends it; drop the queue pairs that have the budget before.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::ChainLimits;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let budget = device.create_budget(1000)?;
/// let (domain, queue) = (device.alloc_pd()?, device.create_cq(16)?);
/// let qp = domain.create_qp(&QueuePairOptions::rc(&queue))?;
/// let limits = ChainLimits { budget: Some(budget.handle()), ..ChainLimits::default() };
/// qp.set_chain_limits(limits)?; // 1000 elements at most, until something comes from outside
/// # Ok(())
/// # }
/// ```
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
    /// The card's number for the budget, for [`ChainLimits::budget`].
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Fills the budget.
    ///
    /// # Errors
    /// [`ChainError::Gone`] if the card is another process's, and that process has ended.
    pub fn refill(&self) -> Result<(), ChainError> {
        self.inner.live.lock().refill_budget(self.inner.handle)
    }
}

impl Drop for BudgetInner {
    fn drop(&mut self) {
        if let Err(error) = self.live.lock().destroy_budget(self.handle) {
            tracing::error!(%error, "a chain's budget was dropped while in use");
        }
    }
}

/// Why a program was not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The program cannot be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The card has no more completion queues.
    #[error("no completion queue for the program: {0}")]
    Cq(#[from] CreateError),
    /// A queue pair cannot be made.
    #[error("no queue pair for the program: {0}")]
    Qp(#[from] CreateQpError),
    /// The program's memory cannot be registered.
    #[error("no memory for the program: {0}")]
    Register(#[from] RegisterError),
    /// A queue pair cannot be looped back.
    #[error("cannot loop back a queue pair of the program: {0}")]
    LoopBack(#[from] ChainError),
    /// The program's bytes do not fit into its memory.
    #[error(transparent)]
    Memory(#[from] BufferError),
}

/// A program on a live card. Dropping the handle ends the program.
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

/// What a program owns on the card.
#[derive(Debug, Default)]
struct Parts {
    /// A completion queue for each queue of the program, in the program's order.
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
    /// Makes a program's queues and links it. `imports` are the regions that the program takes from
    /// outside; they must allow what the program does with them (`REMOTE_READ` to READ a table).
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
        let data = self.pd.alloc(len.max(8), Access::all())?;
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
    /// The queue pair for the program's client, to be connected before the program is started. A
    /// client only sends, so the connection needs no access to memory.
    pub fn client(&self) -> Option<&QueuePair> {
        self.loaded.client.map(|client| self.parts.qp(client.qpn))
    }

    /// Lets the program run.
    ///
    /// # Errors
    /// The client is not connected, or the program was started before.
    pub fn start(&self) -> Result<(), PostError> {
        self.loaded.start(|qpn, queue, index| self.parts.qp(qpn).doorbell(queue, index))
    }

    /// How many of the queue's requests have succeeded, of those that report a completion.
    ///
    /// # Errors
    /// As of [`CompletionQueue::count`].
    pub fn completions(&self, queue: QueueId) -> Result<u64, PollCqError> {
        self.parts.cqs[queue.index()].count()
    }

    /// The program's queue pairs, one for each queue: to set their limits, or to query them.
    pub fn queue_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        self.layout().queues.iter().map(|queue| self.parts.qp(queue.qpn))
    }

    /// A copy of `len` bytes of the program's own data, by address.
    ///
    /// # Errors
    /// The bytes are not within the program's data.
    pub fn read(&self, addr: u64, len: u32) -> Result<Vec<u8>, BufferError> {
        let data = self.parts.data.as_ref().expect("a program that was loaded has data");
        let mut bytes = vec![0; len as usize];
        let offset = addr.wrapping_sub(data.addr());
        data.read_at(usize::try_from(offset).unwrap_or(usize::MAX), &mut bytes)?;
        Ok(bytes)
    }

    /// The addresses of the program's queues and data.
    pub fn layout(&self) -> &Layout {
        &self.loaded.layout
    }
}
