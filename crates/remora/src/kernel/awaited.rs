//! Calls of kernels as futures.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use remora_nic::queue::{Completion, SendOp, Status, WorkKind};

use super::CallStatus;
use super::failure::CallFailure;
use super::places::{Head, Places};
use crate::channel::deadline;
use crate::queue_pair::QueuePair;
use crate::region::{ProtectionDomain, RegisterError};
use crate::request::{Request, RequestError, Work};
use crate::slice::MemorySlice;

/// Calls kernels by a queue pair whose requests are futures, several at once if need be. A clone is
/// another handle of the same client.
///
/// A WRITE WITH IMMEDIATE reports the end of a call, so no other code may receive by the queue
/// pair.
///
/// ```
/// use std::time::Duration;
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timeout = Duration::from_secs(10);
/// let (server, device) = (Device::open()?, Device::open()?);
/// let add = |call: Context| async move {
///     let sum: u8 = call.params(|params| Ok(params.iter().sum())).await?;
///     call.output(|out| out.push(sum)).await
/// };
/// server.deploy(7, Deployment::new("add", []), add)?;
///
/// let (there, domain) = (server.alloc_pd()?, device.alloc_pd()?);
/// let passive = there.create_qp(&QueuePairOptions::new())?;
/// let qp = domain.create_qp(&QueuePairOptions::new().inline(64))?;
/// let params = ConnectionParams::new(device.info().mtu).kernels(true);
/// passive.connect(qp.local(), &params)?;
/// qp.connect(passive.local(), &params)?;
///
/// let client = AsyncKernelClient::new(&domain, &qp, 4, 64)?;
/// let (three, seven) = (client.call(7, &[1, 2]), client.call(7, &[3, 4]));
/// assert_eq!(seven.wait(timeout)?, [7]);
/// assert_eq!(three.wait(timeout)?, [3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncKernelClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    places: Places,
    /// Held while a receive request is posted, so that `ends` has them in the order of the queue.
    /// (Not `state`: what posts may drop a call.)
    posting: Mutex<()>,
    state: Mutex<CallsInFlight>,
}

#[derive(Debug)]
struct CallsInFlight {
    calls: Vec<CallPlace>,
    /// Receive requests, one for the end of each call; they end in this order.
    ends: VecDeque<Request>,
    /// How many of them no call will end: they were posted for calls that were not.
    spare: usize,
    /// A task looks for ends, and has taken the first of `ends` to poll it.
    looking: bool,
    /// Tasks that wait for a free place.
    waiting: Vec<Waker>,
    /// The connection has broken.
    broken: bool,
}

/// A place for a call.
#[derive(Debug)]
enum CallPlace {
    Free,
    Waiting(Option<Waker>),
    /// The call's future was dropped before the call ended.
    Forgotten,
    Done(CallStatus, u32),
}

impl CallsInFlight {
    fn has_room(&self) -> bool {
        self.calls.iter().any(|place| matches!(place, CallPlace::Free))
    }
}

/// A task that waits for a free place.
struct WaitsForPlace<'a>(&'a Shared);

impl Drop for WaitsForPlace<'_> {
    fn drop(&mut self) {
        // It may have been the one that looks for ends.
        self.0.wake_next();
    }
}

impl AsyncKernelClient {
    /// A client for `places` calls at once, with results of at most `result_len` bytes. The queue
    /// pair needs `places` receive elements, and for payload a second scatter/gather entry in its
    /// send elements. Calls whose header (40 bytes) and parameters fit into a send element as
    /// inline data take less time.
    ///
    /// # Errors
    /// Memory is short, or the card refuses to register it.
    pub fn new(
        domain: &ProtectionDomain,
        queue_pair: &QueuePair,
        places: usize,
        result_len: usize,
    ) -> Result<AsyncKernelClient, RegisterError> {
        let places = Places::new(domain, queue_pair, places, result_len)?;
        let calls = (0..places.count).map(|_| CallPlace::Free).collect();
        let ends = VecDeque::with_capacity(places.count);
        let (spare, looking, waiting, broken) = (0, false, Vec::new(), false);
        let state = Mutex::new(CallsInFlight { calls, ends, spare, looking, waiting, broken });
        let posting = Mutex::new(());
        let shared = Shared { places, posting, state };
        Ok(AsyncKernelClient { shared: Arc::new(shared) })
    }

    /// Calls by RPC. The call is posted at once; if all places are taken, the future fails with
    /// [`CallFailure::Full`]. Parameters and a header of 40 bytes are one packet.
    pub fn call(&self, opcode: u64, params: &[u8]) -> Call {
        self.begin(opcode, params, None)
    }

    /// Calls by RPC WRITE: as [`AsyncKernelClient::call`], with payload in registered memory.
    pub fn call_with(&self, opcode: u64, params: &[u8], payload: impl Into<MemorySlice>) -> Call {
        self.begin(opcode, params, Some(payload.into()))
    }

    /// Waits until a place is free. (Another task may take it before this one does.)
    ///
    /// # Errors
    /// The connection broke.
    pub async fn free_place(&self) -> Result<(), CallFailure> {
        let waiting = WaitsForPlace(&self.shared);
        poll_fn(|context| waiting.0.poll_free(context)).await
    }

    fn begin(&self, opcode: u64, params: &[u8], payload: Option<MemorySlice>) -> Call {
        let shared = self.shared.clone();
        match shared.post(opcode, params, payload) {
            Ok((place, sent)) => Call { shared, state: CallState::Begun(place), sent: Some(sent) },
            Err(error) => Call { shared, state: CallState::Refused(error), sent: None },
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, CallsInFlight> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        &self,
        opcode: u64,
        params: &[u8],
        payload: Option<MemorySlice>,
    ) -> Result<(usize, Request), CallFailure> {
        let place = self.take_place()?;
        let head = match self.places.head(place, params, payload.is_some()) {
            Ok(head) => head,
            Err(error) => {
                self.state().calls[place] = CallPlace::Free;
                self.wake_waiting();
                return Err(error);
            }
        };
        self.provide_end();
        let op = match payload {
            None => SendOp::Rpc { opcode },
            Some(_) => SendOp::RpcWrite { opcode },
        };
        let work = |data| Work { op: Some(op), data, more: payload, is_atomic: false };
        let sent = match &head {
            Head::Short(bytes, len) => work(bytes[..*len].into()),
            Head::Long(head) => work(self.places.region.slice(head.clone()).into()),
        };
        Ok((place, Request::new(&self.places.queue_pair, sent, None)))
    }

    /// Has a receive element in place for the end of a call, before that is posted.
    fn provide_end(&self) {
        let mut state = self.state();
        if state.spare > 0 {
            state.spare -= 1;
            return;
        }
        drop(state);
        let _posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let end = self.places.queue_pair.recv(self.places.region.slice(..0));
        self.state().ends.push_back(end);
    }

    fn take_place(&self) -> Result<usize, CallFailure> {
        if let Some(place) = self.free_place() {
            return Ok(place);
        }
        // Calls whose futures were dropped may have ended, and there may be nobody else to see it.
        self.look(&mut Context::from_waker(Waker::noop()))?;
        let place = self.free_place();
        // The next end is to wake a task again.
        self.wake_next();
        place.ok_or(CallFailure::Full(self.places.count))
    }

    /// Is there a free place? If not, the task is woken when there is one.
    fn poll_free(&self, context: &mut Context<'_>) -> Poll<Result<(), CallFailure>> {
        {
            let mut state = self.state();
            if state.has_room() {
                return Poll::Ready(Ok(()));
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
        }
        // All calls may be such whose futures were dropped, and nobody else sees their ends.
        self.look(context)?;
        match self.state() {
            state if state.has_room() => Poll::Ready(Ok(())),
            state if state.broken => Poll::Ready(Err(CallFailure::Connection(Status::Flushed))),
            _ => Poll::Pending,
        }
    }

    /// Wakes the tasks that wait for a free place.
    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn free_place(&self) -> Option<usize> {
        let mut state = self.state();
        let place = state.calls.iter().position(|place| matches!(place, CallPlace::Free))?;
        state.calls[place] = CallPlace::Waiting(None);
        Some(place)
    }

    /// Looks for ends of calls, and wakes the tasks that wait for those calls. One task looks at a
    /// time, and does not hold the lock meanwhile. The next end wakes it; when its own call is
    /// over, it wakes another task to look.
    fn look(&self, context: &mut Context<'_>) -> Result<(), CallFailure> {
        while let Some(mut end) = self.first_end() {
            let polled = Pin::new(&mut end).poll(context);
            let mut state = self.state();
            state.looking = false;
            match polled {
                Poll::Pending => {
                    state.ends.push_front(end);
                    return Ok(());
                }
                Poll::Ready(Ok(entry)) => {
                    drop(state);
                    self.ended(&entry);
                }
                Poll::Ready(Err(error)) => {
                    state.broken = true;
                    return Err(match error {
                        RequestError::Status(status) => CallFailure::Connection(status),
                        error => error.into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes the request of the next end, unless another task has it.
    fn first_end(&self) -> Option<Request> {
        let mut state = self.state();
        if state.looking {
            return None;
        }
        let end = state.ends.pop_front();
        state.looking = end.is_some();
        end
    }

    /// Notes the end of a call; completions of anything else are passed over.
    fn ended(&self, entry: &Completion) {
        let (status, cookie) = CallStatus::from_immediate(entry.imm_or_key);
        if entry.kind != WorkKind::RecvWriteImm {
            return;
        }
        let mut is_free = false;
        let waker = match self.state().calls.get_mut(cookie as usize) {
            Some(place @ CallPlace::Waiting(_)) => {
                match std::mem::replace(place, CallPlace::Done(status, entry.len)) {
                    CallPlace::Waiting(waker) => waker,
                    _ => None,
                }
            }
            Some(place @ CallPlace::Forgotten) => {
                *place = self.clear(cookie as usize, status, entry.len);
                is_free = true;
                None
            }
            _ => None,
        };
        waker.into_iter().for_each(Waker::wake);
        if is_free {
            self.wake_waiting();
        }
    }

    /// Frees a place. Its status word is cleared, so that the next call in the place does not find
    /// it.
    fn clear(&self, place: usize, status: CallStatus, last: u32) -> CallPlace {
        if let Err(error) = self.places.result(place, status, last) {
            tracing::debug!(%error, "a call whose future is gone has ended");
        }
        CallPlace::Free
    }

    /// Says which task the end of a call wakes.
    fn wait_for(&self, place: usize, waker: &Waker) {
        let before = match &mut self.state().calls[place] {
            CallPlace::Waiting(before) => before.replace(waker.clone()),
            _ => None,
        };
        // Dropped without the lock: the old waker may be the last owner of a task, and that task of
        // another call.
        drop(before);
    }

    /// Wakes one of the waiting tasks, to look for ends, and those that wait for a free place:
    /// there may be one, or no other task that looks.
    fn wake_next(&self) {
        let next = self.state().calls.iter_mut().find_map(|place| match place {
            CallPlace::Waiting(waker) => waker.take(),
            _ => None,
        });
        next.into_iter().for_each(Waker::wake);
        self.wake_waiting();
    }

    /// Frees the place of a call that was not posted, so that no answer will come.
    fn take_back(&self, place: usize) {
        let before = {
            let mut state = self.state();
            state.spare += 1;
            std::mem::replace(&mut state.calls[place], CallPlace::Free)
        };
        drop(before);
        self.wake_next();
    }

    /// Gives back a call's place: the call is over, or its future was dropped.
    fn forget(&self, place: usize) {
        let before = {
            let calls = &mut self.state().calls;
            let next = match calls[place] {
                CallPlace::Waiting(_) => CallPlace::Forgotten,
                CallPlace::Done(status, last) => self.clear(place, status, last),
                CallPlace::Free | CallPlace::Forgotten => CallPlace::Free,
            };
            std::mem::replace(&mut calls[place], next)
        };
        drop(before);
        // The task of this call may have been the one that looks for ends.
        self.wake_next();
    }

    /// The result of a call that is done.
    fn result(&self, place: usize) -> Option<Result<Vec<u8>, CallFailure>> {
        let state = self.state();
        let CallPlace::Done(status, last) = state.calls[place] else { return None };
        let result = self.places.result(place, status, last).and_then(|range| {
            let mut bytes = vec![0; range.len()];
            self.places.region.read_at(range.start, &mut bytes)?;
            Ok(bytes)
        });
        Some(result)
    }
}

/// A call under way: a future of its result. The call was posted when the future was made, or is
/// posted when the send queue has room and the future is polled. If the future is dropped, the
/// call's place is free again: at once if it was not posted, else once the call has ended and
/// another call of the client is polled.
#[must_use = "without the future, the program does not learn the result"]
pub struct Call {
    shared: Arc<Shared>,
    state: CallState,
    /// The request that carries the call, until it has ended.
    sent: Option<Request>,
}

enum CallState {
    Begun(usize),
    Refused(CallFailure),
    Over,
}

impl Call {
    /// Waits in an ordinary thread, for at most `timeout`.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn wait(mut self, timeout: Duration) -> Result<Vec<u8>, CallFailure> {
        let end = deadline(timeout);
        crate::block_on::until(end, &mut self).unwrap_or(Err(CallFailure::Timeout(timeout)))
    }

    fn step(
        &mut self,
        place: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<u8>, CallFailure>> {
        if let Some(sent) = &mut self.sent
            && let Poll::Ready(sent) = Pin::new(sent).poll(context)
        {
            self.sent = None;
            if let Err(error) = sent {
                if !matches!(error, RequestError::Status(_)) {
                    self.state = CallState::Over;
                    self.shared.take_back(place);
                }
                return Poll::Ready(Err(error.into()));
            }
        }
        // Before the look, since that may find the end of this call.
        self.shared.wait_for(place, context.waker());
        let looked = self.shared.look(context);
        if let Some(result) = self.shared.result(place) {
            return Poll::Ready(result);
        }
        looked?;
        if self.shared.state().broken {
            return Poll::Ready(Err(CallFailure::Connection(Status::Flushed)));
        }
        Poll::Pending
    }

    fn let_go(&mut self) {
        let CallState::Begun(place) = std::mem::replace(&mut self.state, CallState::Over) else {
            return;
        };
        // Out of the line before its place is another call's, whose parameters it would carry.
        match self.sent.take_if(|sent| !sent.is_posted()).is_some() {
            true => self.shared.take_back(place),
            false => self.shared.forget(place),
        }
    }
}

impl Future for Call {
    type Output = Result<Vec<u8>, CallFailure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.get_mut();
        let place = match std::mem::replace(&mut call.state, CallState::Over) {
            CallState::Begun(place) => place,
            CallState::Refused(error) => return Poll::Ready(Err(error)),
            CallState::Over => panic!("a call is polled after it has ended"),
        };
        call.state = CallState::Begun(place);
        let polled = call.step(place, context);
        if polled.is_ready() {
            call.let_go();
        }
        polled
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}
