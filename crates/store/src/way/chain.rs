//! Gets by a chain: work requests that look at a bucket and send the item, while the store's
//! processor sleeps (RedN §5.4). The client gets no access to the store's memory.
//!
//! A message names a key's hash and the address of one bucket; the answer is the item, or empty. A
//! chain looks at one of a key's two buckets: first at the one where the key was last. It knows
//! nothing of the stash and of growth, so that an empty answer proves nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remora::nic::queue::{
    Completion, Data, PollCqError, RecvRequest, SendFlags, SendOp, SendRequest, Status, WorkKind,
};
use remora::nic::{Access, PostError};
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::program::Program;
use remora::{
    CompletionQueue, Connection, ConnectionParams, Device, MemoryRegion, QueuePair,
    QueuePairOptions,
};
use thiserror::Error;

use super::connect::{ClientOptions, ConnectError};
use super::hello::{Hello, Purpose};
use super::index::Index;
use crate::item::{ITEM_MAX, Item};
use crate::layout::{BUCKET_HEADER, SLOTS};
use crate::tablespace::TablespaceId;

/// A look at one bucket of the store's table.
const LOOKUP: Lookup = Lookup { buckets: 1, slots: SLOTS, parallel: false };
/// For so many hashes it is kept in which bucket they were.
const HINTS: usize = 1 << 16;

/// The program for one client.
pub fn program() -> Program {
    LOOKUP.program()
}

/// Why a chain has no answer.
#[derive(Debug, Error)]
pub enum ChainError {
    /// The connection broke.
    #[error("the connection to the chain broke: {0}")]
    Connection(Status),
    /// There was no answer.
    #[error("the chain did not answer within {0:?}")]
    Timeout(Duration),
    /// The message cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The completion queue has failed.
    #[error(transparent)]
    Poll(#[from] PollCqError),
}

/// Asks a chain.
#[derive(Debug)]
pub struct ChainReader {
    queue_pair: QueuePair,
    cq: CompletionQueue,
    answer: MemoryRegion,
    index: Index,
    /// By hash: was the key in its second bucket?
    second: Vec<u64>,
    bytes: Vec<u8>,
    timeout: Duration,
    // Last: dropping it disconnects.
    _connection: Connection,
}

impl ChainReader {
    /// Connects to the chains of the store at `store`, which has this index.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        device: &Device,
        store: SocketAddr,
        index: Index,
        options: &ClientOptions,
    ) -> Result<ChainReader, ConnectError> {
        let domain = device.alloc_pd()?;
        let cq = device.create_cq(16)?;
        let shape = QueuePairOptions::rc(&cq).send_depth(4).recv_depth(4).inline(64);
        let queue_pair =
            domain.create_qp(&shape).map_err(|error| ConnectError::QueuePair(error.to_string()))?;
        // An answer that were longer would break the connection; what is not used of the room costs
        // address space only.
        let answer = domain.alloc(ITEM_MAX, Access::LOCAL_WRITE)?;
        let params = ConnectionParams::new(device.info().mtu).access(Access::empty());
        let hello = Hello { purpose: Purpose::Chain, token: options.token };
        let connection = device
            .connect(queue_pair.clone(), store, &hello.to_bytes(), &params)
            .wait(options.timeout)
            .map_err(|source| ConnectError::Refused { store, source })?;
        let (second, bytes) = (vec![0; HINTS / 64], Vec::new());
        let timeout = options.timeout;
        let _connection = connection;
        Ok(ChainReader { queue_pair, cq, answer, index, second, bytes, timeout, _connection })
    }

    /// The store has another index now: partitions have grown.
    pub fn set_index(&mut self, index: Index) {
        self.index = index;
    }

    /// Asks for an item and lets `take` have it. `Ok(None)`: only a kernel can say.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn get<R>(
        &mut self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        take: impl FnOnce(&Item<'_>) -> R,
    ) -> Result<Option<R>, ChainError> {
        let hash = self.index.hash(space, key);
        let buckets = self.index.buckets(hash);
        let (word, bit) = ((hash.id() as usize % HINTS) / 64, 1 << (hash.id() % 64));
        let was_second = self.second[word] & bit != 0;
        for second in [was_second, !was_second] {
            let at = buckets[usize::from(second)] + BUCKET_HEADER;
            self.ask(&LOOKUP.message(hash.id(), &[at]))?;
            let ours = |item: &Item<'_>| {
                let lives = item.expires_ms.is_none_or(|at| at > now);
                item.tablespace == space && item.key == key && lives
            };
            if let Some(item) = Item::parse(&self.bytes).filter(ours) {
                match second {
                    true => self.second[word] |= bit,
                    false => self.second[word] &= !bit,
                }
                return Ok(Some(take(&item)));
            }
        }
        Ok(None)
    }

    /// Sends a message, and waits for the answer.
    fn ask(&mut self, message: &[u8]) -> Result<(), ChainError> {
        let room = [self.answer.sge(0, ITEM_MAX as u32)];
        let mut batch = self.queue_pair.post_batch();
        batch.post_recv(&self.queue_pair, &RecvRequest { wr_id: 0, sges: &room })?;
        let (op, data) = (SendOp::Send { to: None, imm: None }, Data::Inline(message));
        let request = SendRequest { wr_id: 0, op, data, flags: SendFlags::empty() };
        batch.post_send(&self.queue_pair, &request)?;
        drop(batch);
        let len = self.wait()?;
        self.bytes.resize(len, 0);
        let read = self.answer.read_at(0, &mut self.bytes);
        read.map_err(|_| ChainError::Connection(Status::LocalLength))
    }

    fn wait(&self) -> Result<usize, ChainError> {
        let mut done = [Completion::default()];
        let (mut spins, mut end) = (0u32, None);
        loop {
            if self.cq.poll(&mut done)? > 0 {
                match done[0] {
                    Completion { status: Status::Success, kind: WorkKind::Recv, len, .. } => {
                        return Ok(len as usize);
                    }
                    Completion { status: Status::Success, .. } => continue,
                    Completion { status, .. } => return Err(ChainError::Connection(status)),
                }
            }
            spins += 1;
            // The clock is read seldom, since that takes as long as an empty poll.
            if spins.is_multiple_of(64) {
                let now = Instant::now();
                if now > *end.get_or_insert(now + self.timeout) {
                    return Err(ChainError::Timeout(self.timeout));
                }
            }
        }
    }
}
