//! Gets by a chain: work requests that look at a bucket and send the item, while the store's
//! processor sleeps (RedN §5.4). The client gets no access to the store's memory.
//!
//! A message names a key's hash and the address of one bucket; the answer is the item, or empty. A
//! chain looks at one of a key's two buckets: first at the one where the key was last. It knows
//! nothing of the stash and of growth, so that an empty answer proves nothing.

use std::net::SocketAddr;
use std::time::Duration;

use remora::connection::token::Token;
use remora::nic::queue::{
    Completion, Data, PollCqError, RecvRequest, SendFlags, SendOp, SendRequest, Status, WorkKind,
};
use remora::nic::{Access, PostError};
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::program::Program;
use remora::{
    CompletionQueue, Connection, ConnectionParams, Device, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairOptions, Request, RequestError,
};
use thiserror::Error;

use super::connect::{ClientOptions, ConnectError, greet};
use super::hello::{Hello, Purpose};
use super::index::Index;
use super::patience::Patience;
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
    /// A request that was awaited failed.
    #[error("the connection to the chain broke: {0}")]
    Request(#[from] RequestError),
}

/// How a chain is asked.
pub(crate) trait Asks {
    /// Sends a message, and waits for the answer, which takes the place of what is in `answer`.
    async fn ask(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError>;
}

/// Asks by polling.
#[derive(Debug)]
pub(crate) struct PolledAsks {
    cq: CompletionQueue,
    pub(crate) timeout: Duration,
    /// The answer that was not awaited, since it took too long, is still to come.
    is_owed: bool,
    end: ChainEnd,
}

/// Asks by futures.
#[derive(Debug)]
pub(crate) struct AwaitedAsks {
    /// The answer to the last message, until it has come: its sender may have stopped waiting,
    /// and then it is none to the next.
    owed: Option<Request>,
    end: ChainEnd,
}

/// The client's end of a connection to a chain.
#[derive(Debug)]
struct ChainEnd {
    queue_pair: QueuePair,
    answer: MemoryRegion,
    // Last: dropping it disconnects.
    _connection: Connection,
}

/// To whom a client of a chain connects: the store, and the ticket that it has given the client.
pub(crate) type Ticketed = (SocketAddr, u64);

impl ChainEnd {
    async fn connect(
        device: &Device,
        domain: &ProtectionDomain,
        shape: &QueuePairOptions<'_>,
        (store, ticket): Ticketed,
        token: Option<Token>,
    ) -> Result<ChainEnd, ConnectError> {
        let shape = shape.clone().send_depth(4).recv_depth(4).inline(64);
        let queue_pair =
            domain.create_qp(&shape).map_err(|error| ConnectError::QueuePair(error.to_string()))?;
        // An answer that were longer would break the connection; what is not used of the room costs
        // address space only.
        let answer = domain.alloc(ITEM_MAX, Access::LOCAL_WRITE)?;
        let params = ConnectionParams::new(device.info().mtu).access(Access::empty());
        let hello = Hello { purpose: Purpose::Chain, token, ticket };
        let (_connection, _) = greet(device, store, &queue_pair, &hello, &params).await?;
        Ok(ChainEnd { queue_pair, answer, _connection })
    }

    fn take(&self, len: usize, answer: &mut Vec<u8>) -> Result<(), ChainError> {
        answer.resize(len, 0);
        let read = self.answer.read_at(0, answer);
        read.map_err(|_| ChainError::Connection(Status::LocalLength))
    }
}

impl PolledAsks {
    /// Connects to a chain of a store.
    pub(crate) async fn connect(
        device: &Device,
        store: Ticketed,
        options: &ClientOptions,
    ) -> Result<PolledAsks, ConnectError> {
        let (domain, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let shape = QueuePairOptions::rc(&cq);
        let end = ChainEnd::connect(device, &domain, &shape, store, options.token).await?;
        Ok(PolledAsks { cq, timeout: options.timeout, is_owed: false, end })
    }

    /// Waits for the answer that is to come next; returns its length.
    fn wait(&mut self) -> Result<usize, ChainError> {
        let mut done = [Completion::default()];
        let mut patience = Patience::new(self.timeout);
        self.is_owed = true;
        loop {
            if self.cq.poll(&mut done)? > 0 {
                let Completion { status, kind, len, .. } = done[0];
                self.is_owed = status == Status::Success && kind != WorkKind::Recv;
                match status {
                    Status::Success if self.is_owed => continue,
                    Status::Success => return Ok(len as usize),
                    status => return Err(ChainError::Connection(status)),
                }
            }
            if patience.is_over() {
                return Err(ChainError::Timeout(self.timeout));
            }
        }
    }
}

impl Asks for PolledAsks {
    async fn ask(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError> {
        if self.is_owed {
            self.wait()?;
        }
        let ChainEnd { queue_pair, answer: landing, .. } = &self.end;
        let room = [landing.sge(0, ITEM_MAX as u32)];
        let mut batch = queue_pair.post_batch();
        batch.post_recv(queue_pair, &RecvRequest { wr_id: 0, sges: &room })?;
        let (op, data) = (SendOp::Send { to: None, imm: None }, Data::Inline(message));
        let request = SendRequest { wr_id: 0, op, data, flags: SendFlags::empty() };
        batch.post_send(queue_pair, &request)?;
        drop(batch);
        let len = self.wait()?;
        self.end.take(len, answer)
    }
}

impl AwaitedAsks {
    /// Connects to a chain of a store.
    pub(crate) async fn connect(
        device: &Device,
        store: Ticketed,
        options: &ClientOptions,
    ) -> Result<AwaitedAsks, ConnectError> {
        let (domain, shape) = (device.alloc_pd()?, QueuePairOptions::new());
        let end = ChainEnd::connect(device, &domain, &shape, store, options.token).await?;
        Ok(AwaitedAsks { owed: None, end })
    }
}

impl Asks for AwaitedAsks {
    async fn ask(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError> {
        self.answered().await?;
        let ChainEnd { queue_pair, answer: landing, .. } = &self.end;
        // With nothing else in flight there is room in both queues, so that both are posted here.
        self.owed = Some(queue_pair.recv(landing));
        queue_pair.send(message).await?;
        let len = self.answered().await?;
        self.end.take(len, answer)
    }
}

/// Gets by a chain.
#[derive(Debug)]
pub(crate) struct ChainReader<A> {
    asks: A,
    index: Index,
    /// By hash: was the key in its second bucket?
    second: Vec<u64>,
    bytes: Vec<u8>,
    /// Whether the last item that was asked for was there, and only a kernel may show it.
    is_withheld: bool,
}

impl AwaitedAsks {
    /// Waits for the answer that is owed; returns its length, or 0 if none is.
    async fn answered(&mut self) -> Result<usize, ChainError> {
        let Some(owed) = &mut self.owed else { return Ok(0) };
        let answer = owed.await;
        self.owed = None;
        Ok(answer?.len as usize)
    }
}

impl<A: Asks> ChainReader<A> {
    /// How the chain is asked.
    pub(crate) fn asks_mut(&mut self) -> &mut A {
        &mut self.asks
    }

    /// Asks a chain of a store that has this index.
    pub(crate) fn new(asks: A, index: Index) -> ChainReader<A> {
        let (second, bytes) = (vec![0; HINTS / 64], Vec::new());
        ChainReader { asks, index, second, bytes, is_withheld: false }
    }

    /// What is known of the store's index.
    pub(crate) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Whether the chain can have missed an item of this version that a kernel has found since: it
    /// is in the stash, or its partition has grown.
    pub(crate) fn has_missed(&self, version: u64) -> bool {
        !self.is_withheld && self.index.is_durable(version)
    }

    /// The store has another index now: partitions have grown.
    pub(crate) fn set_index(&mut self, index: Index) {
        self.index = index;
    }

    /// Asks for an item and lets `take` have it. `Ok(None)`: only a kernel can say.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub(crate) async fn get<T>(
        &mut self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        take: impl FnOnce(&Item<'_>) -> T,
    ) -> Result<Option<T>, ChainError> {
        self.is_withheld = false;
        let hash = self.index.hash(space, key);
        let buckets = self.index.buckets(hash);
        let (word, bit) = ((hash.id() as usize % HINTS) / 64, 1 << (hash.id() % 64));
        let was_second = self.second[word] & bit != 0;
        for second in [was_second, !was_second] {
            let at = buckets[usize::from(second)] + BUCKET_HEADER;
            self.asks.ask(&LOOKUP.message(hash.id(), &[at]), &mut self.bytes).await?;
            let ours = |item: &Item<'_>| {
                let lives = item.expires_ms.is_none_or(|at| at > now);
                item.tablespace == space && item.key == key && lives
            };
            if let Some(item) = Item::parse(&self.bytes).filter(ours) {
                if !self.index.is_shown(&item) {
                    self.is_withheld = true;
                    return Ok(None);
                }
                match second {
                    true => self.second[word] |= bit,
                    false => self.second[word] &= !bit,
                }
                return Ok(Some(take(&item)));
            }
        }
        Ok(None)
    }
}
