//! The client's side of a chain: it sends a message, and gets an answer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use remora_nic::qp::{ModifyQpError, Mtu};
use remora_nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use remora_nic::{Access, CreateError, PostError};
use thiserror::Error;

use super::Chain;
use crate::channel::WaitError;
use crate::completion::CompletionQueue;
use crate::device::Device;
use crate::memory::BufferError;
use crate::options::{ConnectionParams, Peer, QueuePairOptions};
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, ProtectionDomain, RegisterError};
use crate::request::RequestError;
use crate::shared_receive::CreateQpError;

/// Why a chain was not connected to its client.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The program has no queue for a client.
    #[error("the program has neither a receive queue nor a reply queue: it serves no client")]
    NoClient,
    /// The card refuses.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// A queue cannot be started.
    #[error("the card does not start a queue of the chain: {0}")]
    Start(#[from] PostError),
}

impl Chain {
    /// What a client must know to connect to the chain; `None` if it serves no client.
    pub fn local(&self) -> Option<Peer> {
        self.client().map(QueuePair::local)
    }

    /// Connects the chain to its client, and starts it. The client gets no access to memory.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve(&self, client: Peer, mtu: Mtu) -> Result<(), ServeError> {
        let connection = self.client().ok_or(ServeError::NoClient)?;
        connection.connect(client, &closed(mtu))?;
        Ok(self.start()?)
    }
}

/// A connection that gives the peer no access to memory.
pub(super) fn closed(mtu: Mtu) -> ConnectionParams {
    ConnectionParams::new(mtu).access(Access::empty())
}

/// Why a call has no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// The message is longer than a client sends.
    #[error("the message has {0} bytes: a client's are at most {MESSAGE_MAX} bytes long")]
    Message(usize),
    /// A request of the call cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The answer did not come in time, or the completion queue failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The connection has ended. Perhaps an error has ended the chain.
    #[error("the call failed: {0}")]
    Status(Status),
    /// A request of the call failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The client's own memory cannot be read or written.
    #[error(transparent)]
    Memory(#[from] BufferError),
}

/// Why a client was not made.
#[derive(Debug, Error)]
pub enum ChainClientError {
    /// The card refuses a completion queue.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The card refuses a queue pair.
    #[error(transparent)]
    Queue(#[from] CreateQpError),
    /// Memory for messages cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The longest message of a client.
pub const MESSAGE_MAX: usize = 512;
/// How long a call may take, unless the program sets another time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of a chain: one call at a time.
///
/// The client polls; the calls of [`AsyncChainClient`](super::AsyncChainClient) are futures.
///
/// ```
/// use remora::prelude::*;
/// use remora::offload::chain::offload::{list, table::Value};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, device) = (Device::open()?, Device::open()?);
/// // A list of one value in the server's memory, and a program that walks it.
/// let domain = server.alloc_pd()?;
/// let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// memory.write_at(1024, b"seven")?;
/// let value = Value { addr: memory.addr() + 1024, len: 5 };
/// memory.write_at(0, &list::nodes(memory.addr(), &[(7, value)]))?;
/// let chain: Chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()])?;
///
/// let client = ChainClient::new(&device, &device.alloc_pd()?, 64)?;
/// client.connect(chain.local().ok_or("it serves a client")?, device.info().mtu)?;
/// chain.serve(client.local(), device.info().mtu)?;
/// let mut answer = Vec::new();
/// client.call(&list::message(7, memory.addr()), &mut answer)?;
/// assert_eq!(answer, b"seven");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChainClient {
    qp: QueuePair,
    cq: CompletionQueue,
    /// Room for the message, then for the answer.
    memory: MemoryRegion,
    answer_max: u32,
    /// Completions of the calls so far that have not come.
    due: Mutex<u32>,
    /// How long a call may take; ten seconds, unless it is changed.
    pub timeout: Duration,
}

impl ChainClient {
    /// A client whose answers are at most `answer_max` bytes long; not connected.
    ///
    /// # Errors
    /// See [`ChainClientError`].
    pub fn new(
        device: &Device,
        pd: &ProtectionDomain,
        answer_max: u32,
    ) -> Result<ChainClient, ChainClientError> {
        let cq = device.create_cq(16)?;
        let options = QueuePairOptions::rc(&cq).send_depth(4).recv_depth(4);
        let qp = pd.create_qp(&options)?;
        let memory = pd.alloc(MESSAGE_MAX + answer_max.max(1) as usize, Access::LOCAL_WRITE)?;
        let due = Mutex::default();
        Ok(ChainClient { qp, cq, memory, answer_max, due, timeout: TIMEOUT })
    }

    /// What the server must know to connect to the client.
    pub fn local(&self) -> Peer {
        self.qp.local()
    }

    /// Connects the client to a chain, by the chain's [`local`](Chain::local).
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn connect(&self, chain: Peer, mtu: Mtu) -> Result<(), ModifyQpError> {
        self.qp.connect(chain, &closed(mtu))
    }

    /// Sends a message, waits for the answer, and appends it to `answer`. After a call that was
    /// given up, waits for that one's answer first, and forgets it.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), CallError> {
        let len = self.call_in_place(message)?;
        let start = answer.len();
        answer.resize(start + len, 0);
        Ok(self.memory.read_at(MESSAGE_MAX, &mut answer[start..])?)
    }

    /// As [`ChainClient::call`], but leaves the answer in the client's registered memory. Returns
    /// the answer's length.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_in_place(&self, message: &[u8]) -> Result<usize, CallError> {
        if message.len() > MESSAGE_MAX {
            return Err(CallError::Message(message.len()));
        }
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        while *due > 0 {
            self.cq.spin(self.timeout)?;
            *due -= 1;
        }
        self.memory.write_at(0, message)?;
        let into = [self.memory.sge(MESSAGE_MAX as u64, self.answer_max)];
        self.qp.post_recv(&RecvRequest { wr_id: 1, sges: &into })?;
        *due += 1;
        let data = Data::Sges(&[self.memory.sge(0, message.len() as u32)]);
        let op = SendOp::Send { imm: None, to: None };
        let flags = SendFlags::SIGNALED;
        self.qp.post_send(&SendRequest { wr_id: 0, op, data, flags })?;
        *due += 1;
        // The completions of the message and of the answer come in either order.
        let mut answer = None;
        for _ in 0..2 {
            let entry = self.cq.spin(self.timeout)?;
            *due -= 1;
            if entry.status != Status::Success {
                return Err(CallError::Status(entry.status));
            }
            if entry.kind.is_receive() {
                answer = Some(entry.len as usize);
            }
        }
        answer.ok_or(CallError::Status(Status::BadResponse))
    }
}
