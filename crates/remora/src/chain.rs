//! Programs of work requests on the live device: managed queues, rings as registered memory,
//! loop-back, limits. What they mean is said in [`remora_nic::chain`].

use std::sync::Arc;

use remora_nic::queue::{ELEMENT_LEN, Remote, Sge};
use remora_nic::{Access, ChainError, ChainLimits, ChainStep, CreateError, PostError, Queue};

use crate::completion::CompletionQueue;
use crate::device::{Device, Live};
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, RegisterError};

/// A queue's ring as registered memory: what elements change elements through.
#[derive(Clone, Debug)]
pub struct RingRegion {
    region: MemoryRegion,
    depth: u32,
    stride: u32,
}

impl RingRegion {
    /// The memory, from the first slot to the last.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Slots; a power of two.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Bytes from slot to slot.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Where byte `at` of the element `index` lies, in bytes from the beginning. An index beyond
    /// the depth is one of a later round.
    pub fn offset(&self, index: u32, at: usize) -> u64 {
        u64::from(index & (self.depth - 1)) * u64::from(self.stride) + at as u64
    }

    /// The field at byte `at` of the element `index`, as a target.
    pub fn remote(&self, index: u32, at: usize) -> Remote {
        self.region.remote(self.offset(index, at))
    }

    /// The field of `len` bytes at byte `at` of the element `index`, as an entry: RECVs scatter to
    /// such.
    pub fn sge(&self, index: u32, at: usize, len: u32) -> Sge {
        self.region.sge(self.offset(index, at), len)
    }

    /// The first bytes of the element `index`, as they are now.
    pub fn element(&self, index: u32) -> [u8; ELEMENT_LEN] {
        let mut raw = [0; ELEMENT_LEN];
        let read = self.region.read_at(self.offset(index, 0) as usize, &mut raw);
        read.expect("slots lie within the ring");
        raw
    }
}

/// A budget of elements that the queue pairs of a chain share: see
/// [`remora_nic::Nic::create_budget`]. It ends with its last handle, which the queue pairs that
/// have it must not outlive.
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

impl Device {
    /// Makes a completion queue that counts what ends well, for WAITs, and keeps only errors, up to
    /// `errors` of them: for chains whose owner does not poll.
    ///
    /// # Errors
    /// `errors` is zero or above the card's limit, or the card has no more queues.
    pub fn create_counting_cq(&self, errors: usize) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::counting(self.live.clone(), errors)
    }

    /// Makes a budget of so many elements.
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

impl CompletionQueue {
    /// How many completions without an error it has had: what WAITs compare with.
    pub fn count(&self) -> u64 {
        let count = self.live().lock().nic.cq_count(self.handle());
        count.expect("a completion queue lives as long as its handle")
    }
}

impl QueuePair {
    /// Connects this fresh reliable queue pair and `other` of the same device, which may be the
    /// same, to each other: see [`remora_nic::Nic::loop_back`].
    ///
    /// # Errors
    /// See [`ChainError`]; nothing has changed then.
    pub fn loop_back(&self, other: &QueuePair, access: Access) -> Result<(), ChainError> {
        self.live().command(|driver| driver.nic.loop_back(self.qpn(), other.qpn(), access))
    }

    /// Registers one of the rings, so that elements may change its elements. A queue that does not
    /// exist, or is a shared one, has no ring.
    ///
    /// # Errors
    /// There is no ring, or the card refuses.
    pub fn register_ring(&self, queue: Queue, access: Access) -> Result<RingRegion, RegisterError> {
        let (pd, memory, init) = self.ring(queue);
        let memory = memory.ok_or(RegisterError::NoRing)?;
        let region = pd.register_ring(memory.clone(), access)?;
        Ok(RingRegion { region, depth: init.depth, stride: init.stride })
    }

    /// Writes the bytes of an element into the next slot; returns its index. Where the queue is not
    /// managed, it is posted.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_element(&self, queue: Queue, raw: &[u8]) -> Result<u32, PostError> {
        self.live()
            .command(|driver| driver.nic.post_element(&mut driver.memory, self.qpn(), queue, raw))
    }

    /// The index of the element that is written next.
    pub fn next_index(&self, queue: Queue) -> u32 {
        let index = self.live().lock().nic.next_index(self.qpn(), queue);
        index.expect("a queue pair lives as long as its handle")
    }

    /// Rings a ring's doorbell: elements before `index` are posted. Of a managed queue, this
    /// enables them.
    ///
    /// # Errors
    /// The ring does not hold so many, or the queue pair is not in a state to run them.
    pub fn doorbell(&self, queue: Queue, index: u32) -> Result<(), PostError> {
        self.live().command(|driver| match queue {
            Queue::Send => driver.nic.handle_send_doorbell(self.qpn(), index),
            Queue::Recv => driver.nic.handle_recv_doorbell(self.qpn(), index),
        })
    }

    /// Gives the send queue limits, in place of those it had.
    ///
    /// # Errors
    /// See [`ChainError`]; nothing has changed then.
    pub fn set_chain_limits(&self, limits: ChainLimits) -> Result<(), ChainError> {
        self.live().command(|driver| {
            let now = driver.now();
            driver.nic.set_chain_limits(now, self.qpn(), limits)
        })
    }
}
