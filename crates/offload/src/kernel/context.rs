//! What a kernel sees: its call, memory, and the way back to the requester.
//!
//! The futures here hold nothing of the card. Each time they are polled, they find it through the
//! waker that they are polled with: its data pointer leads to a [`Turn`], which the executor lends
//! for the duration of the poll. That is the one place here with `unsafe`.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::task::{self, Poll, RawWaker, RawWakerVTable, Waker};

use remora_nic::kernel::{Payload, WriteOut};
use remora_nic::queue::Remote;

use super::invocation::{CHUNK, Invocation, OBJECT_MAX, Wait};
use super::port::{Port, Ports};
use super::turn::Turn;
use super::{CallStatus, Grant};

/// An invocation, as its kernel sees it. It is a name only, and may be copied; its futures work
/// where the kernel itself is polled, and end with [`CallStatus::TRAP`] elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub(super) qpn: u32,
    pub(super) opcode: u64,
    pub(super) cookie: u64,
    pub(super) max_len: u32,
}

impl Context {
    /// What the kernel of an invocation sees.
    pub(super) fn of(invocation: &Invocation) -> Context {
        let call = &invocation.call;
        Context {
            qpn: call.qpn,
            opcode: call.opcode,
            cookie: call.header.cookie,
            max_len: call.header.max_len,
        }
    }

    /// The queue pair that the call came by (StRoM's `qpnIn`).
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The op-code it was called by.
    pub fn opcode(&self) -> u64 {
        self.opcode
    }

    /// The requester's cookie.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// How many bytes of results the requester takes.
    pub fn max_len(&self) -> u32 {
        self.max_len
    }

    /// Lets `look` look at the parameters (StRoM's `paramIn`).
    ///
    /// # Errors
    /// Those of `look`.
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

    /// Lets `look` look at the next piece of payload (StRoM's `roceDataIn`), where it lies: a
    /// packet's worth as a rule. `None` when all has been seen.
    ///
    /// # Errors
    /// The budget is spent, or results do not fit the requester's buffer.
    pub fn payload<R>(
        &self,
        look: impl FnOnce(&[u8], &mut Port<'_>) -> R,
    ) -> impl Future<Output = Result<Option<R>, CallStatus>> {
        let mut look = Some(look);
        leaf(move |turn| {
            if !turn.make_room(CHUNK)? {
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
            // The room that it took is used again.
            let mut staged = staged;
            staged.clear();
            turn.invocation.staged = staged;
            Ok(Poll::Ready(Some(result)))
        })
    }

    /// The `index`th region that was granted: its first address, its length, and whether it may be
    /// written.
    ///
    /// # Errors
    /// [`CallStatus::NOT_FOUND`] if there are not so many, [`CallStatus::ACCESS`] if it is gone.
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
        leaf(move |turn| turn.access(&mut until, dst.len(), |turn| turn.read(addr, dst)))
    }

    /// Writes granted memory.
    ///
    /// # Errors
    /// Those of [`Context::read`].
    pub fn write(&self, addr: u64, src: &[u8]) -> impl Future<Output = Result<(), CallStatus>> {
        let mut until = None;
        leaf(move |turn| turn.access(&mut until, src.len(), |turn| turn.write(addr, src)))
    }

    /// Appends granted memory to the results, by a copy on the card: what is delivered is what
    /// [`Context::output`] has seen.
    ///
    /// # Errors
    /// Those of [`Context::read`]; the results do not fit the requester's buffer, or are longer
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
            turn.access(&mut until, len, |turn| turn.fetch(addr, len))
        })
    }

    /// Lets `change` append to the results (StRoM's `roceDataOut`), or change those that were not
    /// sent yet. They leave when they are many, and at the end.
    ///
    /// # Errors
    /// They do not fit the requester's buffer, or the card's.
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

    /// Appends granted memory to the results by reference: it is read when its packets are made,
    /// and not copied before.
    ///
    /// # Errors
    /// The address was not granted, or the results do not fit the requester's buffer.
    pub fn send_memory(&self, addr: u64, len: u32) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            turn.invocation.fits(len as usize)?;
            if !turn.flush()? {
                return Ok(Poll::Pending);
            }
            if !turn.spend(0)? {
                return Ok(Poll::Pending);
            }
            let key = turn.key_for(addr, len)?;
            turn.invocation.held = (len > 0).then_some((key, addr, len));
            Ok(Poll::Ready(()))
        })
    }

    /// Waits until the card has room for results: before a look at payload that appends some by
    /// [`Port::output`].
    ///
    /// # Errors
    /// They do not fit the requester's buffer.
    pub fn room(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            let done = turn.make_room(CHUNK)? && turn.make_room_for(0)?;
            Ok(if done { Poll::Ready(()) } else { Poll::Pending })
        })
    }

    /// Sends bytes by RDMA WRITE on any queue pair of the same protection domain (StRoM's
    /// `roceMetaOut`: the queue pair, the target and the length).
    ///
    /// # Errors
    /// The budget is spent. A queue pair that cannot send ends the invocation's next step with
    /// [`CallStatus::ACCESS`].
    pub fn send_to(
        &self,
        qpn: u32,
        to: Remote,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            if !turn.can_send() {
                return Ok(Poll::Pending);
            }
            if !turn.spend(bytes.len())? {
                return Ok(Poll::Pending);
            }
            let Some(mut copy) = turn.buffers.take(bytes.len()) else {
                turn.invocation.wait = Wait::Room;
                return Ok(Poll::Pending);
            };
            copy.extend_from_slice(bytes);
            let (pd, len) = (turn.invocation.call.pd, bytes.len() as u32);
            let data = Payload::Buffer { buffer: copy.shareable(), len };
            let write = WriteOut { qpn, pd, to, data, token: turn.id.into() };
            turn.io.write_out(write).map_err(|_| CallStatus::TRAP)?;
            turn.invocation.in_flight += 1;
            Ok(Poll::Ready(()))
        })
    }

    /// Sends results on, if they are many: for kernels that make more than a packet's worth between
    /// two looks at the payload.
    ///
    /// # Errors
    /// They do not fit the requester's buffer.
    pub fn settle(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            let done = turn.make_room(CHUNK)?;
            Ok(if done { Poll::Ready(()) } else { Poll::Pending })
        })
    }

    /// Waits until all that was sent with [`Context::send_to`] is acknowledged.
    ///
    /// # Errors
    /// Something of it was not.
    pub fn sent(&self) -> impl Future<Output = Result<(), CallStatus>> {
        leaf(move |turn| {
            if turn.invocation.in_flight > 0 {
                turn.invocation.wait = Wait::Room;
                return Ok(Poll::Pending);
            }
            if turn.invocation.broken { Err(CallStatus::ACCESS) } else { Ok(Poll::Ready(())) }
        })
    }

    /// Lets others go first: goes on in a later turn.
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
            turn.invocation.left = turn.invocation.left.checked_sub(1).ok_or(CallStatus::BUDGET)?;
            Ok(Poll::Pending)
        })
    }
}

/// The invocation that is being polled, and the steps it has left: for programs whose futures
/// outlive an invocation.
#[cfg(feature = "wasm")]
pub(super) fn current() -> impl Future<Output = Result<(Context, u64), CallStatus>> {
    leaf(|turn| Ok(Poll::Ready((Context::of(turn.invocation), turn.invocation.left))))
}

/// Pays for work on `len` bytes that are not registered memory.
#[cfg(feature = "wasm")]
pub(super) fn charge(len: usize) -> impl Future<Output = Result<(), CallStatus>> {
    leaf(move |turn| Ok(if turn.spend(len)? { Poll::Ready(()) } else { Poll::Pending }))
}

/// An invocation that waits for nothing has had enough of this turn.
#[cfg(feature = "wasm")]
pub(super) fn end_turn(cx: &task::Context<'_>) {
    with_turn(cx, |turn| {
        if turn.invocation.wait == Wait::Turn {
            turn.steps = 0;
        }
    });
}

/// Begins a trial of an invocation, if everything it may want is there at once: what it has done
/// until something turns out to be pending can be undone, as nobody has seen it. Returns the
/// invocation, and the steps it has left.
#[cfg(feature = "wasm")]
pub(super) fn begin_trial(cx: &task::Context<'_>) -> Option<(Context, u64)> {
    with_turn(cx, |turn| {
        let payload = turn.chunk.is_some() || !turn.invocation.staged.is_empty();
        if turn.timing.is_some() || payload || !turn.invocation.ended {
            return None;
        }
        turn.invocation.trial = true;
        Some((Context::of(turn.invocation), turn.invocation.left))
    })?
}

/// Ends a trial. With `undo`, all is as it was, with so many steps left.
#[cfg(feature = "wasm")]
pub(super) fn end_trial(cx: &task::Context<'_>, undo: Option<u64>) {
    with_turn(cx, |turn| {
        turn.invocation.trial = false;
        if let Some(left) = undo {
            turn.undo(left);
        }
    });
}

/// A future of one step that needs the card.
fn leaf<R>(
    mut step: impl FnMut(&mut Turn<'_, '_>) -> Result<Poll<R>, CallStatus>,
) -> impl Future<Output = Result<R, CallStatus>> {
    poll_fn(move |cx| match with_turn(cx, &mut step) {
        Some(Ok(Poll::Ready(result))) => Poll::Ready(Ok(result)),
        Some(Ok(Poll::Pending)) => Poll::Pending,
        Some(Err(status)) => Poll::Ready(Err(status)),
        // Polled by somebody else than the executor.
        None => Poll::Ready(Err(CallStatus::TRAP)),
    })
}

/// A turn that is lent, and the thread it is lent on.
struct Lent<'a, 'b> {
    turn: RefCell<Turn<'a, 'b>>,
    thread: usize,
}

/// Tells threads apart, for less than a look at their numbers would cost.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

/// A clone of a waker wakes nobody: an invocation goes on when what it waits for is there, and
/// its executor knows by itself.
static LENT: RawWakerVTable = RawWakerVTable::new(|_| noop(), |_| (), |_| (), |_| ());
static NOOP: RawWakerVTable = RawWakerVTable::new(|_| noop(), |_| (), |_| (), |_| ());

fn noop() -> RawWaker {
    RawWaker::new(core::ptr::null(), &NOOP)
}

/// Polls with a waker that leads to `turn`; returns the turn, too.
pub(super) fn poll_with<'a, 'b, R>(
    turn: Turn<'a, 'b>,
    poll: impl FnOnce(&mut task::Context<'_>) -> R,
) -> (R, Turn<'a, 'b>) {
    let lent = Lent { turn: RefCell::new(turn), thread: this_thread() };
    let data = core::ptr::from_ref(&lent).cast::<()>();
    // SAFETY: the functions of the table do nothing with the pointer, so that the contract of a
    // waker is kept whatever it points to.
    let waker = unsafe { Waker::new(data, &LENT) };
    let result = poll(&mut task::Context::from_waker(&waker));
    drop(waker);
    (result, lent.turn.into_inner())
}

/// Calls `act` with the turn that the waker leads to; `None` if it leads to none.
fn with_turn<R>(cx: &task::Context<'_>, act: impl FnOnce(&mut Turn<'_, '_>) -> R) -> Option<R> {
    let waker = cx.waker();
    if !core::ptr::eq(waker.vtable(), &LENT) {
        return None;
    }
    let lent = waker.data().cast::<Lent<'_, '_>>();
    // SAFETY: only `poll_with` makes wakers with this table (a clone has another), each leads to a
    // `Lent` on its stack, and the waker does not outlive that frame: it is lent out by reference
    // for the duration of one poll. The thread's mark, which never changes, may be read from any
    // thread.
    let thread = unsafe { (*lent).thread };
    if thread != this_thread() {
        return None;
    }
    // SAFETY: as above; and on the thread that lends it, the cell may be borrowed. `act` is
    // generic over the turn's lifetimes, so that nothing of it can be kept.
    let lent = unsafe { &*lent };
    let mut turn = lent.turn.try_borrow_mut().ok()?;
    Some(act(&mut turn))
}
