//! Instances of a module, and how an invocation runs in them.
//!
//! An invocation begins as a plain call on the card's own stack, [`Plain`], which costs about ten
//! nanoseconds. This is a trial: it reads memory that is ready at once and gathers results, but
//! sends nothing. If the guest has to wait, calls a function that cannot be undone, or has used up
//! its turn, the trial is undone. The invocation then begins again as [`Suspending`], on a stack
//! of its own, on which it can be suspended anywhere. This costs some hundred nanoseconds, so
//! later invocations of the module begin there.

use core::future::{Future, poll_fn};
use core::mem;
use core::pin::{Pin, pin};
use core::task::{self, Poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::{InstancePre, Store, Trap, TypedFunc, ValRaw};

use crate::error::{Again, Ended};
use crate::guest::Guest;
use crate::limits::STEP_INSTRUCTIONS;
use crate::linked::Linked;
use crate::loan::Loan;
use remora_offload::kernel::hosting::{begin_trial, current, end_trial, end_turn, took};
use remora_offload::kernel::{CallStatus, Context};

/// Instructions that a guest may run before other invocations get their turn.
pub const TURN_INSTRUCTIONS: u64 = 1 << 16;
const TURN_STEPS: u64 = TURN_INSTRUCTIONS / STEP_INSTRUCTIONS;

/// How an invocation ended, for its instance.
pub(crate) enum End {
    /// The guest has returned, and the instance can be used again.
    Done(Result<(), CallStatus>),
    /// The host has ended the invocation, and the instance cannot be used again.
    Dead(CallStatus),
}

/// The result of a guest's status. Valid statuses fit a byte.
fn result(status: u32) -> Result<(), CallStatus> {
    match u8::try_from(status) {
        Ok(0) => Ok(()),
        Ok(status) => Err(CallStatus(status)),
        Err(_) => Err(CallStatus::TRAP),
    }
}

/// The status that the requester gets for an error.
pub(crate) fn cause(error: &wasmtime::Error) -> CallStatus {
    match (error.downcast_ref::<Ended>(), error.downcast_ref::<Trap>()) {
        (Some(Ended(status)), _) => *status,
        (_, Some(Trap::OutOfFuel)) => CallStatus::BUDGET,
        (_, Some(_)) => CallStatus::TRAP,
        // There is no room for a memory or a stack.
        (None, None) => CallStatus::MEMORY,
    }
}

/// Creates an instance and finds its function `entry`. A start function runs here, with a limited
/// number of instructions.
async fn instantiate(
    module: &Linked,
    (code, entry): (&InstancePre<Guest>, &str),
    context: Context,
    fuel: u64,
    yields: Option<u64>,
) -> wasmtime::Result<(Store<Guest>, TypedFunc<(), u32>)> {
    let mut store =
        Store::new(&module.host.engine, Guest::new(context, module.limits, module.share.clone()));
    store.limiter(|guest| guest);
    store.set_fuel(fuel)?;
    store.fuel_async_yield_interval(yields)?;
    let instance = code.instantiate_async(&mut store).await?;
    store.data_mut().memory = instance.get_memory(&mut store, "memory");
    let entry = instance.get_typed_func(&mut store, entry)?;
    Ok((store, entry))
}

// --- as a plain call ---------------------------------------------------------------------------

/// An instance whose entry runs as a plain call.
pub(crate) struct Plain {
    pub(crate) store: Store<Guest>,
    entry: TypedFunc<(), u32>,
    loan: Arc<Loan>,
}

/// Tries an invocation in `plain`, or in a new instance. Returns `None` if the trial was undone.
pub(crate) fn attempt(
    plain: &mut Option<Plain>,
    module: &Linked,
    cx: &mut task::Context<'_>,
) -> Option<End> {
    let (context, left) = begin_trial(cx)?;
    let fuel = left.saturating_mul(STEP_INSTRUCTIONS).min(TURN_INSTRUCTIONS);
    let ended = match plain {
        Some(plain) => {
            plain.store.data_mut().context = context;
            plain.call(fuel, cx)
        }
        None => Plain::new(module, (&module.plain, "kernel"), context, fuel, cx)
            .and_then(|made| plain.insert(made).call(fuel, cx)),
    };
    let end = match ended {
        Ok(status) => Some(End::Done(result(status))),
        Err(error) if error.is::<Again>() || out_of_fuel(&error) => None,
        Err(error) => Some(End::Dead(cause(&error))),
    };
    end_trial(cx, end.is_none().then_some(left), || plain.as_ref().map_or(0, |p| p.steps(fuel)));
    if !matches!(end, Some(End::Done(_))) {
        *plain = None;
    }
    end
}

/// The steps that its instructions are since a store had so much fuel.
fn steps_of(store: &Store<Guest>, fuel: u64) -> u64 {
    let left = store.get_fuel().unwrap_or(fuel);
    fuel.saturating_sub(left) / STEP_INSTRUCTIONS
}

fn out_of_fuel(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref(), Some(Trap::OutOfFuel))
}

impl Plain {
    pub(crate) fn new(
        module: &Linked,
        entry: (&InstancePre<Guest>, &str),
        context: Context,
        fuel: u64,
        cx: &mut task::Context<'_>,
    ) -> wasmtime::Result<Plain> {
        let making = pin!(instantiate(module, entry, context, fuel, None));
        let Poll::Ready(made) = making.poll(cx) else { return Err(Again.into()) };
        let (store, entry) = made?;
        let loan = store.data().loan.clone();
        Ok(Plain { store, entry, loan })
    }

    /// The steps that a call took which had so much fuel.
    fn steps(&self, fuel: u64) -> u64 {
        steps_of(&self.store, fuel)
    }

    pub(crate) fn call(&mut self, fuel: u64, cx: &mut task::Context<'_>) -> wasmtime::Result<u32> {
        self.store.set_fuel(fuel)?;
        let mut results = [ValRaw::u32(0)];
        let (entry, store) = (self.entry.func(), &mut self.store);
        // SAFETY: the entry has the type `() -> i32`, as its `TypedFunc` has checked, and there is
        // room for the one result. (A store that can be suspended refuses the safe call, since
        // functions that suspend panic outside of such a stack. This instance imports none of
        // them.)
        let called = self.loan.lend(cx, || unsafe { entry.call_unchecked(store, &mut results) });
        called.map(|()| results[0].get_u32())
    }
}

// --- on a stack of its own ---------------------------------------------------------------------

/// An instance that can be suspended. Its first poll creates it, and it serves many invocations.
pub(crate) struct Suspending {
    life: Pin<Box<dyn Future<Output = CallStatus> + Send>>,
    finished: Arc<Finished>,
}

/// Passes the end of an invocation out of the instance's future: 0, or the guest's status plus
/// one.
#[derive(Debug, Default)]
struct Finished(AtomicU64);

impl Finished {
    fn put(&self, status: u32) {
        self.0.store(u64::from(status) + 1, Ordering::Relaxed);
    }

    fn take(&self) -> Option<u32> {
        let status = self.0.swap(0, Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(status).ok()
    }
}

impl Suspending {
    pub(crate) fn new(module: Arc<Linked>) -> Suspending {
        let finished = Arc::new(Finished::default());
        let inside = finished.clone();
        let life = Box::pin(async move {
            let Err(error) = live(&module, &inside).await;
            cause(&error)
        });
        Suspending { life, finished }
    }

    /// Runs the invocation that this is polled for, or starts it.
    pub(crate) fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<End> {
        if let Poll::Ready(status) = self.life.as_mut().poll(cx) {
            return Poll::Ready(End::Dead(status));
        }
        match self.finished.take() {
            Some(status) => Poll::Ready(End::Done(result(status))),
            None => {
                // Unless it waits for something, it has used up its instructions for this turn.
                end_turn(cx, TURN_STEPS);
                Poll::Pending
            }
        }
    }
}

/// Creates an instance and runs one invocation after the other, until the host ends one.
async fn live(module: &Linked, finished: &Finished) -> wasmtime::Result<core::convert::Infallible> {
    let (context, left) = current().await.map_err(Ended)?;
    let fuel = left.saturating_mul(STEP_INSTRUCTIONS);
    let turn = Some(TURN_INSTRUCTIONS);
    let entry = (&module.suspending, "kernel");
    let (mut store, kernel) = instantiate(module, entry, context, fuel, turn).await?;
    loop {
        let (context, left) = current().await.map_err(Ended)?;
        let fuel = left.saturating_mul(STEP_INSTRUCTIONS);
        store.set_fuel(fuel)?;
        store.data_mut().begin(context);
        let called = kernel.call_async(&mut store, ()).await;
        // Whole turns were paid for when they ended; the rest is, however the call has ended.
        took(steps_of(&store, fuel) % TURN_STEPS).await.map_err(Ended)?;
        finished.put(called?);
        pause().await;
    }
}

/// A future that is pending once.
fn pause() -> impl Future<Output = ()> {
    let mut paused = false;
    poll_fn(move |_| if mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending })
}
