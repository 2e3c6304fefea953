//! A module as the code of a kernel: its instances, and which of them serves which queue pair.

use core::task::{self, Poll};
use std::sync::Arc;

use crate::guest::has_room;
use crate::instance::{End, Plain, Suspending, attempt};
use crate::linked::Linked;
use remora_offload::kernel::{CallStatus, Context, Program};

/// A loaded module as the code of a kernel.
pub struct ModuleProgram {
    module: Arc<Linked>,
    slots: Vec<Slot>,
    /// An earlier invocation had to be suspended, so new ones begin that way.
    suspends: bool,
    /// The number of invocations so far, which says when a slot was used last.
    clock: u64,
}

/// A place for an instance.
#[derive(Default)]
struct Slot {
    plain: Option<Plain>,
    suspending: Option<Suspending>,
    /// The queue pair that the instance serves.
    qpn: u32,
    used: u64,
    state: SlotState,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum SlotState {
    #[default]
    Idle,
    Running,
    /// The guest has returned.
    Done,
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.plain.is_none() && self.suspending.is_none()
    }

    fn serves(&self, qpn: u32) -> bool {
        self.state == SlotState::Idle && self.qpn == qpn && !self.is_empty()
    }

    fn clear(&mut self) {
        (self.plain, self.suspending) = (None, None);
    }

    fn end(&mut self, end: End) -> Result<(), CallStatus> {
        match end {
            End::Done(result) => {
                self.state = SlotState::Done;
                result
            }
            End::Dead(status) => Err(status),
        }
    }
}

impl ModuleProgram {
    pub(crate) fn new(module: Arc<Linked>) -> ModuleProgram {
        ModuleProgram { module, slots: Vec::new(), suspends: false, clock: 0 }
    }

    /// The slot for a call on a queue pair: the one that serves it, or else an idle one without an
    /// instance, or else a new one, or at the limit the least recently used one, whose instance is
    /// dropped.
    fn slot_for(&mut self, qpn: u32) -> usize {
        if let Some(at) = self.slots.iter().position(|slot| slot.serves(qpn)) {
            return at;
        }
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.state == SlotState::Idle);
        let oldest = idle.min_by_key(|(_, slot)| (!slot.is_empty(), slot.used));
        match oldest {
            Some((at, slot))
                if slot.is_empty() || self.slots.len() >= self.module.limits.instances =>
            {
                self.slots[at].clear();
                at
            }
            _ => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
        }
    }

    /// Makes room for the memory of a new instance, if there is none, by dropping idle ones: the
    /// least recently used first.
    fn make_room(&mut self) {
        while !has_room(self.module.share.as_deref(), self.module.first_bytes) {
            let kept = |slot: &&mut Slot| slot.state == SlotState::Idle && !slot.is_empty();
            let oldest = self.slots.iter_mut().filter(kept).min_by_key(|slot| slot.used);
            let Some(oldest) = oldest else { return };
            oldest.clear();
        }
    }
}

impl Program for ModuleProgram {
    fn start(&mut self, context: Context) -> u32 {
        let at = self.slot_for(context.qpn());
        self.clock += 1;
        let slot = &mut self.slots[at];
        (slot.qpn, slot.used, slot.state) = (context.qpn(), self.clock, SlotState::Running);
        at as u32
    }

    fn poll(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        let polled = self.go_on(cell, cx);
        if polled.is_ready() {
            self.stop(cell);
        }
        polled
    }

    fn stop(&mut self, cell: u32) {
        let kept = self.module.limits.instances;
        if let Some(slot) = self.slots.get_mut(cell as usize) {
            // An instance that did not return cannot be used again.
            if slot.state != SlotState::Done || cell as usize >= kept {
                slot.clear();
            }
            slot.state = SlotState::Idle;
        }
    }

    fn closed(&mut self, qpn: u32) {
        self.slots.iter_mut().filter(|slot| slot.serves(qpn)).for_each(Slot::clear);
    }
}

impl ModuleProgram {
    /// Runs an invocation further.
    fn go_on(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        if self.slots.get(cell as usize).is_some_and(|slot| slot.is_empty()) {
            self.make_room();
        }
        let Some(slot) = self.slots.get_mut(cell as usize) else {
            return Poll::Ready(Err(CallStatus::TRAP));
        };
        if !self.suspends {
            if let Some(end) = attempt(&mut slot.plain, &self.module, cx) {
                return Poll::Ready(slot.end(end));
            }
            self.suspends = true;
        }
        slot.plain = None;
        let instance = slot.suspending.get_or_insert_with(|| Suspending::new(self.module.clone()));
        instance.poll(cx).map(|end| slot.end(end))
    }
}

impl core::fmt::Debug for ModuleProgram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ModuleProgram").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
