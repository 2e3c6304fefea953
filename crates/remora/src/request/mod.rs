//! Requests as futures, one each, for any executor or for an ordinary thread.
//!
//! A queue pair that was made with [`QueuePairOptions::new`](crate::QueuePairOptions::new) has a
//! method for each kind of request: [`QueuePair::read`], [`write`](QueuePair::write),
//! [`send`](QueuePair::send), [`recv`](QueuePair::recv), [`compare_swap`](QueuePair::compare_swap),
//! [`fetch_add`](QueuePair::fetch_add). Each posts its request at once, so that requests run in the
//! order of the calls, and many at a time. Each returns a [`Request`], which tells how the request
//! ended: `.await` it in any executor, or [`wait`](Request::wait) for it in an ordinary thread.
//!
//! ```
//! use std::time::Duration;
//! use remora::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let timeout = Duration::from_secs(10);
//! # let (a, b) = (Device::open()?, Device::open()?);
//! # let (mine, theirs) = (a.alloc_pd()?, b.alloc_pd()?);
//! # let (qp, passive) = (
//! #     mine.create_qp(&QueuePairOptions::new())?,
//! #     theirs.create_qp(&QueuePairOptions::new())?,
//! # );
//! # let params = ConnectionParams::new(a.info().mtu);
//! # passive.connect(qp.local(), &params)?;
//! # qp.connect(passive.local(), &params)?;
//! # let (memory, there) =
//! #     (mine.alloc(8192, Access::all())?, theirs.alloc(8192, Access::all())?);
//! # let peer = there.slice(..).remote();
//! // `qp` is connected, `memory` registered here, `peer` is memory at the other end.
//! memory.write_at(0, b"many at a time")?;
//! let writes: Vec<Request> =
//!     (0..64).map(|i| qp.write(memory.slice(0..14), peer.slice(i * 64..))).collect();
//! for write in writes.into_iter().rev() {
//!     write.wait(timeout)?;
//! }
//! let read = qp.read(memory.slice(4096..4110), peer.slice(63 * 64..63 * 64 + 14)).wait(timeout)?;
//! assert_eq!(read.len, 14);
//! assert_eq!(memory.slice(4096..4110).to_vec()?, b"many at a time");
//! # Ok(())
//! # }
//! ```
//!
//! # What drives the device
//! No reactor is needed. Polling a future drives the device one step. While all tasks wait, the
//! device's background thread drives it, and wakes the tasks whose requests have ended. No thread
//! spins.
//!
//! # Dropping a future
//! A request that is posted goes on: the card carries it out, whether or not a task waits for
//! its end. Until it ends, the memory that it names stays registered, even if every other handle of
//! the region is dropped; then its place in the queue is free again. Nothing leaks, and nothing is
//! cancelled. A peer may find the bytes of a WRITE whose future was dropped. A message may arrive
//! in the memory of a `recv` whose future was dropped; the program does not learn of it.
//!
//! A future keeps its queue pair alive, and so the device. When all futures and handles of a queue
//! pair are dropped, it is destroyed, and the requests that are then in flight end with it.
//!
//! # A time limit
//! A future has no time limit. An executor's time-out drops the future; [`wait`](Request::wait)
//! takes a time-out. A request that the peer's card does not answer fails after the retries of the
//! connection. A `recv` fails when the connection ends ([`Connection`](crate::Connection)), or when
//! another request of the queue pair fails. While it only waits, it does not notice that the peer
//! has fallen silent.
//!
//! # A full queue
//! As many requests are in flight as the queue pair was made for
//! ([`send_depth`](crate::QueuePairOptions::send_depth),
//! [`recv_depth`](crate::QueuePairOptions::recv_depth)). One more waits in line for room; tasks in
//! line are served in the order in which they were first polled. The request is posted when its
//! future is polled and there is room. If the future is dropped before, it is not posted.
//!
//! # Where to read on
//! `verbs.rs` has the methods, `source.rs` where their bytes come from, `outcome.rs` and `error.rs`
//! how they end. `table.rs` has the requests in flight, and `queue.rs` the completion queue that
//! they share. `wakes.rs` says how a waiting task is woken.

mod error;
mod outcome;
pub(crate) mod queue;
mod source;
pub(crate) mod table;
mod verbs;

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use remora_nic::Queue;
use remora_nic::queue::{Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge};

pub use self::error::RequestError;
pub use self::outcome::Outcome;
use self::queue::{HeldRegions, Requests};
pub use self::source::Source;
use self::table::SlotId;
use crate::channel::deadline;
use crate::queue_pair::QueuePair;
use crate::slice::MemorySlice;

/// How long a thread that waits for a request polls before it sleeps: longer than an answer takes
/// on one machine, or in a rack.
const SPIN: Duration = Duration::from_micros(50);

/// A request under way: a future of its result. [The module](self) says how it behaves.
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open()?;
/// # let domain = device.alloc_pd()?;
/// # let qp = domain.create_qp(&QueuePairOptions::new())?;
/// # qp.loop_back(&qp, Access::all())?;
/// # let memory = domain.alloc(64, Access::all())?;
/// # let peer = memory.slice(..).remote();
/// // In an async function: `qp.write(…).await?`. In any other:
/// let wrote = qp.write(b"bytes", peer.slice(..5)).wait(Duration::from_secs(10))?;
/// let before = qp.fetch_add(peer.slice(8..16), 1).wait(Duration::from_secs(10))?;
/// assert_eq!(before, 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "without the future, the program does not learn how the request ends"]
pub struct Request<T = Completion> {
    qp: QueuePair,
    queue: Queue,
    state: RequestState,
    /// The memory that the result will be in, if the request brings more than a completion.
    memory: Option<MemorySlice>,
    outcome: PhantomData<fn() -> T>,
}

enum RequestState {
    Posted(SlotId),
    /// The queue has no room yet.
    Waiting(Box<Waiting>),
    Refused(RequestError),
    /// The future has ended.
    Over,
}

/// A request that is not posted.
struct Waiting {
    work: Work<'static>,
    /// The request's place in line, once it has one.
    place: Option<u64>,
}

/// A request before it is posted.
pub(crate) struct Work<'a> {
    /// None for a receive request.
    pub(crate) op: Option<SendOp>,
    pub(crate) data: Source<'a>,
    /// Further data.
    pub(crate) more: Option<MemorySlice>,
    /// The result is a word.
    pub(crate) is_atomic: bool,
}

impl Work<'_> {
    fn queue(&self) -> Queue {
        if self.op.is_some() { Queue::Send } else { Queue::Recv }
    }

    fn held(&self) -> HeldRegions {
        let first = match &self.data {
            Source::Memory(slice) if !slice.is_empty() => Some(slice.region().clone()),
            _ => None,
        };
        [first, self.more.as_ref().map(|slice| slice.region().clone())]
    }

    fn into_owned(self) -> Work<'static> {
        Work {
            op: self.op,
            data: self.data.into_owned(),
            more: self.more,
            is_atomic: self.is_atomic,
        }
    }
}

impl<T: Outcome> Request<T> {
    /// Posts a request if there is room, unless the caller has `refused` it already.
    pub(crate) fn new(qp: &QueuePair, work: Work<'_>, refused: Option<RequestError>) -> Request<T> {
        let queue = work.queue();
        let mut request = Request {
            qp: qp.clone(),
            queue,
            state: RequestState::Over,
            memory: None,
            outcome: PhantomData,
        };
        request.state = match refused {
            Some(refused) => RequestState::Refused(refused),
            None => request.begin(work),
        };
        request
    }

    /// Has it been posted, and not ended?
    pub(crate) fn is_posted(&self) -> bool {
        matches!(self.state, RequestState::Posted(_))
    }

    /// Says in which memory the result will be.
    pub(crate) fn into_memory(mut self, memory: MemorySlice) -> Request<T> {
        self.memory = Some(memory);
        self
    }

    fn begin(&mut self, work: Work<'_>) -> RequestState {
        match try_post(&self.qp, &work, None) {
            Ok(Some(posted)) => self.posted(posted),
            Ok(None) => {
                RequestState::Waiting(Box::new(Waiting { work: work.into_owned(), place: None }))
            }
            Err(error) => RequestState::Refused(error),
        }
    }

    fn posted(&mut self, (id, word): (SlotId, Option<MemorySlice>)) -> RequestState {
        if word.is_some() {
            self.memory = word;
        }
        RequestState::Posted(id)
    }

    /// Waits in an ordinary thread, for at most `timeout`.
    ///
    /// # Errors
    /// See [`RequestError`]. After a time-out the request goes on, as after its future was dropped.
    pub fn wait(mut self, timeout: Duration) -> Result<T, RequestError> {
        let spin = deadline(timeout.min(SPIN));
        loop {
            if let Some(result) = self.look(None) {
                return result;
            }
            if Instant::now() >= spin {
                break;
            }
        }
        let end = deadline(timeout);
        crate::block_on::until(end, &mut self).unwrap_or(Err(RequestError::Timeout(timeout)))
    }

    /// Takes a step: posts the request if there is room, and drives the device. With a waker, the
    /// task is woken when there is more to see.
    fn look(&mut self, waker: Option<&Waker>) -> Option<Result<T, RequestError>> {
        if let Some(result) = self.advance(None) {
            return Some(result);
        }
        self.line_up(waker);
        if let Ok(requests) = requests(&self.qp, self.queue) {
            requests.step(waker.is_some());
        }
        self.advance(waker)
    }

    /// The result, if it is known without driving the device.
    fn advance(&mut self, waker: Option<&Waker>) -> Option<Result<T, RequestError>> {
        match std::mem::replace(&mut self.state, RequestState::Over) {
            RequestState::Over => panic!("a request is polled after it has ended"),
            RequestState::Refused(error) => Some(Err(error)),
            RequestState::Waiting(waiting) => {
                match try_post(&self.qp, &waiting.work, waiting.place) {
                    Ok(Some(posted)) => {
                        self.state = self.posted(posted);
                        self.advance(waker)
                    }
                    Ok(None) => {
                        self.state = RequestState::Waiting(waiting);
                        None
                    }
                    Err(error) => {
                        self.state = RequestState::Waiting(waiting);
                        self.let_go();
                        Some(Err(error))
                    }
                }
            }
            RequestState::Posted(id) => {
                self.state = RequestState::Posted(id);
                self.ended(id, waker)
            }
        }
    }

    /// How a posted request has ended, if it has.
    fn ended(&mut self, id: SlotId, waker: Option<&Waker>) -> Option<Result<T, RequestError>> {
        let requests = self.qp.requests()?;
        let (result, freed) = {
            let mut table = requests.table();
            let (end, unneeded) = table.look(id, waker);
            let Poll::Ready(end) = end else {
                drop(table);
                unneeded.settle();
                return None;
            };
            let result = end.map_err(RequestError::from).and_then(|end| {
                let end = end.ok().map_err(|error| RequestError::Status(error.status))?;
                // Before the slot is released: the next request in it uses the same word.
                T::from_end(end, self.memory.as_ref())
            });
            (result, table.release(id))
        };
        self.state = RequestState::Over;
        freed.settle();
        Some(result)
    }
}

impl<T> Request<T> {
    fn line_up(&mut self, waker: Option<&Waker>) {
        if let (RequestState::Waiting(waiting), Some(waker)) = (&mut self.state, waker)
            && let Ok(requests) = requests(&self.qp, self.queue)
        {
            let freed = requests.table().line_up(self.queue, &mut waiting.place, waker);
            freed.settle();
        }
    }

    /// Detaches the request: the program no longer waits for it.
    fn let_go(&mut self) {
        let Some(requests) = self.qp.requests() else { return };
        match std::mem::replace(&mut self.state, RequestState::Over) {
            RequestState::Posted(id) => {
                let (in_flight, freed) = requests.table().detach(id);
                freed.settle();
                if in_flight {
                    // Armed, so that its completion is taken, whichever thread drives.
                    requests.arm();
                }
            }
            RequestState::Waiting(waiting) => {
                if let Some(place) = waiting.place {
                    let freed = requests.table().leave(self.queue, place);
                    freed.settle();
                }
            }
            RequestState::Refused(_) | RequestState::Over => {}
        }
    }
}

impl<T: Outcome> Future for Request<T> {
    type Output = Result<T, RequestError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut().look(Some(context.waker())) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            RequestState::Posted(_) => "posted",
            RequestState::Waiting(_) => "waits for room",
            RequestState::Refused(_) => "refused",
            RequestState::Over => "over",
        };
        let qpn = self.qp.qpn();
        f.debug_struct("Request").field("qpn", &qpn).field("state", &state).finish_non_exhaustive()
    }
}

/// The requests of a queue, if it has any.
fn requests(qp: &QueuePair, queue: Queue) -> Result<&Requests, RequestError> {
    qp.requests_of(queue).ok_or(RequestError::Polled)
}

/// Posts a request, and says where an atomic's result will be; `None` if there is no room.
fn try_post(
    qp: &QueuePair,
    work: &Work<'_>,
    place: Option<u64>,
) -> Result<Option<(SlotId, Option<MemorySlice>)>, RequestError> {
    let requests = requests(qp, work.queue())?;
    let taken = {
        let mut table = requests.table();
        if let Some(lost) = table.lost() {
            return Err(lost.into());
        }
        table.take(work.queue(), place, || work.held())
    };
    let Some((id, freed)) = taken else { return Ok(None) };
    freed.settle();
    let word = work.is_atomic.then(|| qp.result_word(requests, id)).transpose();
    let posted = word.and_then(|word| {
        post(qp, id, work, word.as_ref())?;
        Ok(word)
    });
    match posted {
        Ok(word) => Ok(Some((id, word))),
        Err(error) => {
            let freed = requests.table().release(id);
            freed.settle();
            Err(error)
        }
    }
}

/// Posts a request that has a slot.
fn post(
    qp: &QueuePair,
    id: SlotId,
    work: &Work<'_>,
    word: Option<&MemorySlice>,
) -> Result<(), RequestError> {
    let wr_id = id.wr_id();
    let mut sges = [Sge::default(); 2];
    let mut count = 0;
    let first = match &work.data {
        Source::Memory(slice) if !slice.is_empty() => Some(slice),
        _ => word,
    };
    for slice in first.into_iter().chain(&work.more) {
        sges[count] = slice.sge();
        count += 1;
    }
    let sges = &sges[..count];
    let Some(op) = work.op else {
        return Ok(qp.post_recv(&RecvRequest { wr_id, sges })?);
    };
    let data = match &work.data {
        Source::Bytes(bytes) if word.is_none() => Data::Inline(bytes),
        _ => Data::Sges(sges),
    };
    Ok(qp.post_send(&SendRequest { wr_id, op, data, flags: SendFlags::SIGNALED })?)
}
