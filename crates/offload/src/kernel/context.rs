//! What a kernel uses: its call, granted memory, and the way back to the requester.
//!
//! The futures here hold no reference to the card. Each poll finds the card through its waker: the
//! waker's data pointer leads to a [`Turn`] that the executor lends for the duration of the poll.
//! This needs `unsafe`; the `SAFETY` comments below say why it is sound.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::task::{self, Poll, RawWaker, RawWakerVTable, Waker};
use core::time::Duration;

use remora_nic::kernel::{Payload, WriteOut};
use remora_nic::queue::RemoteAddress;

use super::invocation::{Invocation, OBJECT_MAX, Wait, token};
use super::pool::CHUNK;
use super::port::{Port, Ports};
use super::timing::Direction;
use super::turn::Turn;
use super::{CallStatus, Grant};

/// An invocation, as its kernel sees it. It is only a name and can be copied. Its futures must be
/// polled inside the kernel's own future; elsewhere they end with [`CallStatus::TRAP`].
///
/// ```
/// use remora_offload::kernel::{CallStatus, Context};
///
/// /// Answers with the word that lies at the address in the parameters.
/// async fn word(call: Context) -> Result<(), CallStatus> {
///     let at = call.params(|params| params.try_into().map_err(|_| CallStatus::BAD_PARAMS)).await?;
///     let mut word = [0; 8];
///     call.read(u64::from_le_bytes(at), &mut word).await?;
///     call.output(|out| out.extend_from_slice(&word)).await
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub(super) qpn: u32,
    pub(super) opcode: u64,
    pub(super) cookie: u64,
    pub(super) max_len: u32,
    pub(super) is_local: bool,
}

impl Context {
    /// The context of an invocation.
    pub(super) fn of(invocation: &Invocation) -> Context {
        let call = &invocation.call;
        Context {
            qpn: call.qpn,
            opcode: call.opcode,
            cookie: call.header.cookie,
            max_len: call.header.max_len,
            is_local: call.header.local,
        }
    }

    /// The queue pair that the call came by (StRoM's `qpnIn`).
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The op-code of the call.
    pub fn opcode(&self) -> u64 {
        self.opcode
    }

    /// The cookie that the requester chose for the call.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Is the caller this card's own host?
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// The most bytes of results that the requester takes.
    pub fn max_len(&self) -> u32 {
        self.max_len
    }

    /// Calls `look` with the parameters (StRoM's `paramIn`).
    ///
    /// # Errors
    /// The error that `look` returns.
    pub fn params<R>(
        &self,
        look: impl FnOnce(&[u8]) -> Result<R, CallStatus>,
    ) -> impl Future<Output = Result<R, CallStatus>> {
        let mut look = Some(look);
        leaf(move |turn| {
            let look = look.take().ok_or(CallStatus::TRAP)?;
            Ok(Poll::Ready(look(&turn.invocation.params)?))
        })
    }

    /// Calls `look` with the next piece of payload (StRoM's `roceDataIn`), without a copy; a piece
    /// is usually one packet's. `None` after the last piece.
    ///
    /// # Errors
    /// The budget is spent, or the results do not fit the requester's buffer.
    pub fn payload<R>(
        &self,
        look: impl FnOnce(&[u8], &mut Port<'_>) -> R,
    ) -> impl Future<Output = Result<Option<R>, CallStatus>> {
        let mut look = Some(look);
        leaf(move |turn| {
            // What was appended by reference leaves first: the look may append by a copy.
            let is_held = turn.invocation.held.is_some();
            if !turn.make_room(CHUNK)? || is_held && !turn.flush()? {
                return Ok(Poll::Pending);
            }
            let staged = core::mem::take(&mut turn.invocation.staged);
            let direct = turn.chunk.filter(|chunk| staged.is_empty() && !chunk.is_empty());
            let chunk = direct.unwrap_or(&staged);
            if chunk.is_empty() {
                turn.invocation.staged = staged;
                if turn.invocation.ended {
                    return Ok(Poll::Ready(None));
                }
                turn.invocation.wait = Wait::Payload;
                return Ok(Poll::Pending);
            }
            if !turn.spend(chunk.len())? {
                turn.invocation.staged = staged;
                return Ok(Poll::Pending);
            }
            if direct.is_some() {
                turn.chunk = None;
            }
            let look = look.take().ok_or(CallStatus::TRAP)?;
            let result = look(chunk, &mut Port { turn });
            // The next piece reuses the buffer.
            let mut staged = staged;
            staged.clear();
            turn.invocation.staged = staged;
            Ok(Poll::Ready(Some(result)))
        })
    }

    /// The granted region with index `index`: its first address, its length in bytes, and whether
    /// the kernel may write it.
    ///
    /// # Errors
    /// [`CallStatus::NOT_FOUND`] if there is no such grant, [`CallStatus::ACCESS`] if the region
    /// is gone.
    pub fn granted(
        &self,
        index: usize,
    ) -> impl Future<Output = Result<(u64, u64, bool), CallStatus>> {
        leaf(move |turn| {
            let Grant { key, write } = *turn.grants.get(index).ok_or(CallStatus::NOT_FOUND)?;
            let pd = turn.invocation.call.pd;
            let (addr, len) = turn.io.region(key, pd).ok_or(CallStatus::ACCESS)?;
            Ok(Poll::Ready((addr, len, write)))
        })
    }

    /// Reads granted memory.
    ///
    /// # Errors
    /// The address was not granted or cannot be reached, or the budget is spent.
    pub fn read(&self, addr: u64, dst: &mut [u8]) -> impl Future<Output = Result<(), CallStatus>> {
        let mut until = None;
        leaf(move |turn| {
            turn.access(&mut until, Direction::Read, dst.len(), |turn| turn.read(addr, dst))
        })
    }

    /// Writes granted memory.
    ///
    /// # Errors
    /// Those of [`Context::read`].
    pub fn write(&self, addr: u64, src: &[u8]) -> impl Future<Output = Result<(), CallStatus>> {
        let mut until = None;
        leaf(move |turn| {
            turn.access(&mut until, Direction::Write, src.len(), |turn| turn.write(addr, src))
        })
    }

    /// Appends granted memory to the results by a copy on the card: the requester gets exactly the
    /// bytes that [`Context::output`] shows.
    ///
    /// # Errors
    /// Those of [`Context::read`]. The results do not fit the requester's buffer, or are longer
    /// than a megabyte.
    pub fn fetch(&self, addr: u64, len: u32) -> impl Future<Output = Result<(), CallStatus>> {
        let mut until = None;
        let len = len as usize;
        leaf(move |turn| {
            if until.is_none() {
                turn.invocation.fits(len)?;
                if len > OBJECT_MAX {
                    return Err(CallStatus::MEMORY);
                }
                if !turn.make_room_for(len)? {
                    return Ok(Poll::Pending);
                }
            }
            turn.access(&mut until, Direction::Read, len, |turn| turn.fetch(addr, len))
        })
    }

    /// Calls `change` with the results that have not been sent yet, to append to them (StRoM's
    /// `roceDataOut`) or to change them. They are sent when there are many, and at the end.
    ///
    /// # Errors
    /// The results do not fit the requester's buffer, or the card's.
    pub fn output<R>(
        &self,
        change: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> impl Future<Output = Result<R, CallStatus>> {
        let mut change = Some(change);
        leaf(move |turn| {
            if !turn.make_room_for(0)? {
                return Ok(Poll::Pending);
            }
            let change = change.take().ok_or(CallStatus::TRAP)?;
            let result = change(turn.output(0)?);
            turn.invocation.fits(0)?;
            Ok(Poll::Ready(result))
        })
    }

    /// Calls `look` with the results that have not been sent yet, all that [`Context::fetch`] has
    /// just appended among them, however much that is.
    ///
    /// # Errors
    /// No results are here: memory is to be sent by reference, or the card's buffers are used up.
    pub fn fetched<R>(
        &self,
        look: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> impl Future<Output = Result<R, CallStatus>> {
        let mut look = Some(look);
        leaf(move |turn| {
            let look = look.take().ok_or(CallStatus::TRAP)?;
            Ok(Poll::Ready(look(turn.output(0)?)))
        })
    }

    /// Appends granted memory to the results by reference: the card reads it when it makes the
    /// packets, and for a local caller copies a megabyte of it a turn. If the memory is gone by
    /// then, the call ends with [`CallStatus::ACCESS`], or the connection does if packets of that
    /// part have left.
    ///
    /// # Errors
    /// The address was not granted, or the results do not fit the requester's buffer.
    pub fn send_memory(&self, addr: u64, len: u32) -> impl Future<Output = Result<(), CallStatus>> {
        let mut done = 0;
        leaf(move |turn| {
            loop {
                turn.invocation.fits((len - done) as usize)?;
                if !turn.flush()? {
                    return Ok(Poll::Pending);
                }
                let is_local = turn.invocation.call.header.local;
                let piece = if is_local { (len - done).min(OBJECT_MAX as u32) } else { len };
                if !turn.spend(if is_local { piece as usize } else { 0 })? {
                    return Ok(Poll::Pending);
                }
                let key = turn.key_for(addr, len)?;
                let at = addr.wrapping_add(done.into());
                turn.invocation.held = (piece > 0).then_some((key, at, piece));
                done += piece;
                if done == len {
                    return Ok(Poll::Ready(()));
                }
            }
        })
    }

    /// Says that the invocation keeps so many bytes of its own on the card until it ends, if they
    /// are more than it has said before. All invocations keep as many together as may wait as
    /// results.
    ///
    /// # Errors
    /// [`CallStatus::MEMORY`] if there is no room for them.
    pub fn keep(&self, bytes: usize) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            let more = bytes.saturating_sub(turn.invocation.kept);
            if !turn.buffers.keep(more) {
                return Err(CallStatus::MEMORY);
            }
            turn.invocation.kept += more;
            Ok(Poll::Ready(()))
        })
    }

    /// Waits until the card has room for results. For kernels that append results with
    /// [`Port::output`] while they look at payload.
    ///
    /// # Errors
    /// The results do not fit the requester's buffer.
    pub fn room(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            let done = turn.make_room(CHUNK)? && turn.make_room_for(0)?;
            Ok(if done { Poll::Ready(()) } else { Poll::Pending })
        })
    }

    /// Sends bytes by RDMA WRITE on a queue pair of the invocation's protection domain (StRoM's
    /// `roceMetaOut`: queue pair, target and length).
    ///
    /// # Errors
    /// The budget is spent. If the queue pair cannot send, the invocation's next step, or its end,
    /// fails with [`CallStatus::ACCESS`].
    pub fn send_to(
        &self,
        qpn: u32,
        to: RemoteAddress,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            if !turn.can_send() {
                return Ok(Poll::Pending);
            }
            if !turn.spend(bytes.len())? {
                return Ok(Poll::Pending);
            }
            let Some(mut copy) = turn.take_buffer(bytes.len()) else {
                turn.invocation.wait = Wait::Room;
                return Ok(Poll::Pending);
            };
            copy.extend_from_slice(bytes);
            let (pd, len) = (turn.invocation.call.pd, bytes.len() as u32);
            let data = Payload::Buffer { buffer: turn.buffers.close(copy), len };
            let token = token(turn.invocation.account, turn.id);
            turn.io.write_out(WriteOut { qpn, pd, to, data, token });
            turn.invocation.has_sent();
            Ok(Poll::Ready(()))
        })
    }

    /// Sends results if there are many: for kernels that produce more than a packet's worth
    /// between two looks at the payload.
    ///
    /// # Errors
    /// The results do not fit the requester's buffer.
    pub fn settle(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            let done = turn.make_room(CHUNK)?;
            Ok(if done { Poll::Ready(()) } else { Poll::Pending })
        })
    }

    /// Waits until the peers have acknowledged all that [`Context::send_to`] has sent.
    ///
    /// # Errors
    /// A WRITE was not acknowledged.
    pub fn sent(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            if turn.invocation.in_flight > 0 {
                turn.invocation.wait = Wait::Room;
                return Ok(Poll::Pending);
            }
            turn.invocation.is_whole().map(Poll::Ready)
        })
    }

    /// Lets other invocations run, and continues in a later turn.
    ///
    /// # Errors
    /// The budget is spent.
    pub fn yield_now(&self) -> impl Future<Output = Result<(), CallStatus>> {
        let mut yielded = false;
        leaf(move |turn| {
            if yielded {
                return Ok(Poll::Ready(()));
            }
            yielded = true;
            turn.steps = 0;
            turn.taken += 1;
            turn.invocation.left = turn.invocation.left.checked_sub(1).ok_or(CallStatus::BUDGET)?;
            Ok(Poll::Pending)
        })
    }

    /// Lets other invocations run, and continues after `time`: for a kernel that waits for what
    /// happens outside the card. The card sleeps meanwhile if it has nothing else to do.
    ///
    /// # Errors
    /// The budget is spent.
    pub fn pause(&self, time: Duration) -> impl Future<Output = Result<(), CallStatus>> {
        let mut until = None;
        leaf(move |turn| {
            let now = turn.io.now();
            if until.is_none() && !turn.spend(0)? {
                return Ok(Poll::Pending);
            }
            let until = *until.get_or_insert(now + time);
            if now >= until {
                return Ok(Poll::Ready(()));
            }
            turn.invocation.wait = Wait::Until(until);
            Ok(Poll::Pending)
        })
    }
}

/// A future of one step that needs the card.
pub(super) fn leaf<R>(
    mut step: impl FnMut(&mut Turn<'_, '_>) -> Result<Poll<R>, CallStatus>,
) -> impl Future<Output = Result<R, CallStatus>> {
    poll_fn(move |cx| match with_turn(cx, &mut step) {
        Some(Ok(Poll::Ready(result))) => Poll::Ready(Ok(result)),
        Some(Ok(Poll::Pending)) => Poll::Pending,
        Some(Err(status)) => Poll::Ready(Err(status)),
        // The future is not polled by the executor.
        None => Poll::Ready(Err(CallStatus::TRAP)),
    })
}

/// A turn that is lent to a poll, and the thread that lends it.
struct Lent<'a, 'b> {
    turn: RefCell<Turn<'a, 'b>>,
    thread: usize,
}

/// A number that differs from thread to thread; cheaper than `ThreadId`.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

/// A clone of the waker wakes no task: the executor itself notices when an invocation can go on.
static LENT: RawWakerVTable = RawWakerVTable::new(|_| noop(), |_| (), |_| (), |_| ());
static NOOP: RawWakerVTable = RawWakerVTable::new(|_| noop(), |_| (), |_| (), |_| ());

fn noop() -> RawWaker {
    RawWaker::new(core::ptr::null(), &NOOP)
}

/// Calls `poll` with a waker that leads to `turn`. Returns its result, and the turn.
pub(super) fn poll_with<'a, 'b, R>(
    turn: Turn<'a, 'b>,
    poll: impl FnOnce(&mut task::Context<'_>) -> R,
) -> (R, Turn<'a, 'b>) {
    let lent = Lent { turn: RefCell::new(turn), thread: this_thread() };
    let data = core::ptr::from_ref(&lent).cast::<()>();
    // SAFETY: the table's functions do nothing with the pointer, so the waker's contract holds
    // wherever the pointer leads.
    let waker = unsafe { Waker::new(data, &LENT) };
    let result = poll(&mut task::Context::from_waker(&waker));
    drop(waker);
    (result, lent.turn.into_inner())
}

/// Calls `act` with the turn that the waker leads to; `None` if the waker leads to no turn.
pub(super) fn with_turn<R>(
    cx: &task::Context<'_>,
    act: impl FnOnce(&mut Turn<'_, '_>) -> R,
) -> Option<R> {
    let waker = cx.waker();
    if !core::ptr::eq(waker.vtable(), &LENT) {
        return None;
    }
    let lent = waker.data().cast::<Lent<'_, '_>>();
    // SAFETY: only `poll_with` makes wakers with this table (a clone has another table). Each
    // leads to a `Lent` on that function's stack and does not outlive it, since a poll gets the
    // waker by reference. `thread` never changes, so any thread may read it.
    let thread = unsafe { (*lent).thread };
    if thread != this_thread() {
        return None;
    }
    // SAFETY: as above; and on the thread that lends the turn, the cell may be borrowed. `act` is
    // generic over the turn's lifetimes, so it cannot keep a reference to the turn.
    let lent = unsafe { &*lent };
    let mut turn = lent.turn.try_borrow_mut().ok()?;
    Some(act(&mut turn))
}
