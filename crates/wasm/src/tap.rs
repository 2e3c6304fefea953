//! A module that is bound to a stream of WRITEs: a bump in the wire (StRoM §3.2).
//!
//! The card calls the module's export `tap: () -> i32` for each payload. The return value decides
//! what is written: 0, the payload; 1, the guest's output instead; 2, nothing; or a negative
//! status. One instance sees the whole stream, from all queue pairs, and its globals last as long
//! as the binding. A tap has no requester to answer: results for calls of the module's `kernel`
//! belong into granted memory.
//!
//! Each payload has a budget. A trap, a status or a spent budget stops the tap: this WRITE and all
//! later ones pass unchanged.

use core::task::{self, Waker};

use crate::error::LoadError;
use crate::guest::Guest;
use crate::instance::{Plain, cause};
use crate::limits::STEP_INSTRUCTIONS;
use crate::linked::Linked;
use remora_offload::kernel::hosting::{Standin, without_call};
use remora_offload::kernel::{CallStatus, Passing, Tap, TapIo, Verdict};

/// The most steps for one payload. With 64 instructions each, these are 64 instructions for each
/// byte of the longest packet.
pub const PAYLOAD_STEPS: u64 = 4096;

/// An instance that is, or will be, bound to a stream.
pub struct ModuleTap {
    instance: Plain,
    /// Steps for each payload.
    budget: u64,
    standin: Standin,
    failed: Option<CallStatus>,
}

impl ModuleTap {
    pub(crate) fn new(module: &Linked, budget: u64) -> Result<ModuleTap, LoadError> {
        let entry = (module.tapping.as_ref().ok_or(LoadError::NoTap)?, "tap");
        let budget = budget.min(PAYLOAD_STEPS);
        let mut cx = task::Context::from_waker(Waker::noop());
        let made = Plain::new(module, entry, without_call(), budget * STEP_INSTRUCTIONS, &mut cx);
        let instance = made.map_err(|error| LoadError::Start(cause(&error)))?;
        Ok(ModuleTap { instance, budget, standin: Standin::default(), failed: None })
    }
}

/// Calls the instance's `tap` with a payload.
fn look(
    instance: &mut Plain,
    budget: u64,
    (passing, bytes): (&Passing, &[u8]),
    cx: &mut task::Context<'_>,
) -> Result<Verdict, CallStatus> {
    instance.store.data_mut().show(passing, bytes);
    let said = instance.call(budget * STEP_INSTRUCTIONS, cx).map_err(|error| cause(&error))?;
    match said.cast_signed() {
        0 => Ok(Verdict::Pass),
        1 => Ok(Verdict::Replace),
        2 => Ok(Verdict::Take),
        status => {
            let status = u8::try_from(status.unsigned_abs()).ok().filter(|_| status < 0);
            Err(status.map_or(CallStatus::TRAP, CallStatus))
        }
    }
}

impl Tap for ModuleTap {
    fn receiving(
        &mut self,
        io: &mut TapIo<'_, '_>,
        passing: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        let ModuleTap { instance, budget, standin, failed } = self;
        let verdict =
            standin.poll(io, passing, *budget, |cx| look(instance, *budget, (passing, bytes), cx));
        match verdict {
            Ok(Verdict::Replace) => {
                replaced.extend_from_slice(&instance.store.data().replaced);
                Verdict::Replace
            }
            Ok(verdict) => verdict,
            Err(status) => {
                *failed = Some(status);
                Verdict::Pass
            }
        }
    }

    fn sending(&mut self, passing: &Passing, bytes: &mut [u8]) {
        let mut cx = task::Context::from_waker(Waker::noop());
        let verdict = look(&mut self.instance, self.budget, (passing, bytes), &mut cx);
        let guest: &Guest = self.instance.store.data();
        match verdict {
            Ok(Verdict::Pass) => {}
            Ok(Verdict::Replace) if guest.replaced.len() == bytes.len() => {
                bytes.copy_from_slice(&guest.replaced);
            }
            // A packet that is sent cannot change its length.
            Ok(_) => self.failed = Some(CallStatus::TRAP),
            Err(status) => self.failed = Some(status),
        }
    }

    fn failed(&self) -> Option<CallStatus> {
        self.failed
    }
}

impl core::fmt::Debug for ModuleTap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ModuleTap").field("failed", &self.failed).finish_non_exhaustive()
    }
}
