//! Calls of chains as futures.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use remora_nic::Access;
use remora_nic::qp::{ModifyQpError, Mtu};
use remora_nic::queue::Completion;

use super::client::{CallError, ChainClientError, MESSAGE_MAX, closed};
use crate::channel::{WaitError, deadline};
use crate::options::{Peer, QueuePairOptions};
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::{Request, RequestError};

/// A client of a chain whose calls are futures: one call at a time.
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
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
/// let mut client = AsyncChainClient::new(&device.alloc_pd()?, 64)?;
/// client.connect(chain.local().ok_or("it serves a client")?, device.info().mtu)?;
/// chain.serve(client.local(), device.info().mtu)?;
/// let message = list::message(7, memory.addr());
/// assert_eq!(client.call(&message).wait(Duration::from_secs(10))?, b"seven");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncChainClient {
    qp: QueuePair,
    /// Room for the message, then for the answer.
    memory: MemoryRegion,
    /// The requests of the last call that have not ended: its message, and its answer.
    message: Option<Request>,
    answer: Option<Request>,
}

impl AsyncChainClient {
    /// A client whose answers are at most `answer_max` bytes long; not connected.
    ///
    /// # Errors
    /// See [`ChainClientError`].
    pub fn new(
        domain: &ProtectionDomain,
        answer_max: u32,
    ) -> Result<AsyncChainClient, ChainClientError> {
        let qp = domain.create_qp(&QueuePairOptions::new().send_depth(4).recv_depth(4))?;
        let len = MESSAGE_MAX + answer_max.max(1) as usize;
        let memory = domain.alloc(len, Access::LOCAL_WRITE)?;
        Ok(AsyncChainClient { qp, memory, message: None, answer: None })
    }

    /// What the server must know to connect to the client.
    pub fn local(&self) -> Peer {
        self.qp.local()
    }

    /// Connects the client to a chain, by the chain's [`local`](super::Chain::local).
    ///
    /// # Errors
    /// See [`ModifyQpError`].
    pub fn connect(&self, chain: Peer, mtu: Mtu) -> Result<(), ModifyQpError> {
        self.qp.connect(chain, &closed(mtu))
    }

    /// Calls the chain: a future of its answer. The message leaves when the future is first polled.
    /// If the future is dropped, the next call waits for the chain's answer first, and forgets it.
    pub fn call<'a>(&'a mut self, message: &'a [u8]) -> ChainCall<'a> {
        ChainCall { step: Box::pin(self.ask(message)) }
    }

    async fn ask(&mut self, message: &[u8]) -> Result<Vec<u8>, CallError> {
        if message.len() > MESSAGE_MAX {
            return Err(CallError::Message(message.len()));
        }
        end(&mut self.message).await.ok();
        end(&mut self.answer).await.ok();
        let (question, room) =
            (self.memory.slice(..message.len()), self.memory.slice(MESSAGE_MAX..));
        question.write(message)?;
        self.answer = Some(self.qp.recv(&room));
        self.message = Some(self.qp.send(question));
        end(&mut self.message).await?;
        let len = end(&mut self.answer).await?.map_or(0, |answer| answer.len as usize);
        Ok(room.slice(..len).to_vec()?)
    }
}

/// Waits until a request has ended, if there is one. It stays where it is if this is dropped.
async fn end(request: &mut Option<Request>) -> Result<Option<Completion>, RequestError> {
    let Some(under_way) = request else { return Ok(None) };
    let ended = under_way.await;
    *request = None;
    ended.map(Some)
}

/// A call of a chain: a future of its answer.
#[must_use = "a call does not begin until it is awaited or waited for"]
pub struct ChainCall<'a> {
    step: Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>> + Send + 'a>>,
}

impl ChainCall<'_> {
    /// Waits in an ordinary thread, for at most `timeout`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(mut self, timeout: Duration) -> Result<Vec<u8>, CallError> {
        let late = CallError::Wait(WaitError::Timeout(timeout));
        crate::block_on::until(deadline(timeout), &mut self).unwrap_or(Err(late))
    }
}

impl Future for ChainCall<'_> {
    type Output = Result<Vec<u8>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.step.as_mut().poll(context)
    }
}

impl fmt::Debug for ChainCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainCall").finish_non_exhaustive()
    }
}
