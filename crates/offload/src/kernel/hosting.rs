//! What a host of guests needs beside a [`Context`]: a kernel whose code has a machine of its own,
//! such as WebAssembly.
//!
//! A guest's future outlives an invocation, so it asks for the one that polls it ([`current`]). A
//! guest that needs nothing from elsewhere can be tried as a plain call first ([`begin_trial`]),
//! which is undone and begun again if it turns out to wait. A guest that is bound to a stream has
//! no invocation; a [`Standin`] is one for it.

use core::task::{self, Poll};

use remora_nic::kernel::{Call, Header};

use super::context::{leaf, poll_with, with_turn};
use super::invocation::{Invocation, Wait};
use super::pool::Pool;
use super::turn::Turn;
use super::{CallStatus, Context, Passing, TapIo};

pub use super::invocation::OBJECT_MAX;
pub use super::pool::CHUNK;

/// The context of the invocation that is being polled, and the steps that it has left.
///
/// # Errors
/// The future ends with [`CallStatus::TRAP`] where no invocation is polled.
pub fn current() -> impl Future<Output = Result<(Context, u64), CallStatus>> {
    leaf(|turn| Ok(Poll::Ready((Context::of(turn.invocation), turn.invocation.left))))
}

/// Pays for work on `len` bytes that are not registered memory.
///
/// # Errors
/// The future ends with [`CallStatus::BUDGET`] when the invocation cannot pay.
pub fn charge(len: usize) -> impl Future<Output = Result<(), CallStatus>> {
    leaf(move |turn| Ok(if turn.spend(len)? { Poll::Ready(()) } else { Poll::Pending }))
}

/// Notes steps that are not of the invocation's budget here, for which its client pays.
///
/// # Errors
/// The future ends with [`CallStatus::TRAP`] where no invocation is polled.
pub fn took(steps: u64) -> impl Future<Output = Result<(), CallStatus>> {
    leaf(move |turn| {
        turn.taken += steps;
        Ok(Poll::Ready(()))
    })
}

/// Ends the turn of an invocation that waits for nothing, which has used it up by so many steps.
pub fn end_turn(cx: &task::Context<'_>, steps: u64) {
    with_turn(cx, |turn| {
        if turn.invocation.wait == Wait::Turn && turn.steps > 0 {
            turn.steps = 0;
            turn.taken += steps;
        }
    });
}

/// Begins a trial of an invocation, if everything it may read is there already. Returns the context
/// of the invocation, and the steps that it has left.
///
/// What the invocation reads and gathers as results can be undone. The host ends the trial before
/// anything that cannot: a write, a message, a wait.
pub fn begin_trial(cx: &task::Context<'_>) -> Option<(Context, u64)> {
    with_turn(cx, |turn| {
        let payload = turn.chunk.is_some() || !turn.invocation.staged.is_empty();
        if turn.timing.is_some() || payload || !turn.invocation.ended {
            return None;
        }
        turn.invocation.trial = true;
        Some((Context::of(turn.invocation), turn.invocation.left))
    })?
}

/// Ends a trial, if one is under way. With `undo`, the invocation's results are discarded, and it
/// has that many steps left. `took` says how many steps it took beside those of its budget, for
/// which its client pays.
pub fn end_trial(cx: &task::Context<'_>, undo: Option<u64>, took: impl FnOnce() -> u64) {
    with_turn(cx, |turn| {
        if turn.io.is_shared() {
            turn.taken += took();
        }
        let is_trial = core::mem::take(&mut turn.invocation.trial);
        if let Some(left) = undo.filter(|_| is_trial) {
            turn.undo(left);
        }
    });
}

/// The context of a guest that no call has begun: one that is bound to a stream.
pub fn without_call() -> Context {
    Context { qpn: 0, opcode: 0, cookie: 0, max_len: 0, is_local: false }
}

/// The invocation that stands for a tap in checks of budget and grants, since what passes belongs
/// to no call.
#[derive(Default)]
pub struct Standin {
    invocation: Option<Invocation>,
}

impl Standin {
    /// Calls `poll` for a payload, with a waker by which a [`Context`] finds the card, and `budget`
    /// steps.
    pub fn poll<R>(
        &mut self,
        io: &mut TapIo<'_, '_>,
        passing: &Passing,
        budget: u64,
        poll: impl FnOnce(&mut task::Context<'_>) -> R,
    ) -> R {
        let (qpn, pd) = (passing.qpn, passing.pd);
        let call = Call { qpn, pd, client: 0, opcode: 0, header: Header::default() };
        let invocation = self.invocation.get_or_insert_with(|| Invocation::new(call));
        invocation.begin(&call, &[], true, budget);
        let turn = Turn {
            io: &mut *io.io,
            invocation,
            // A tap has no results, so it needs no buffers.
            buffers: &mut Pool::new(0),
            grants: io.grants,
            timing: None,
            id: 0,
            chunk: None,
            steps: u32::MAX,
            taken: 0,
        };
        poll_with(turn, poll).0
    }
}

impl core::fmt::Debug for Standin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Standin").finish_non_exhaustive()
    }
}
