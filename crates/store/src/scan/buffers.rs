//! What a call of a scan needs room for.

use std::cell::Cell;

use super::judge::{INDEX_BITS, Judge, choice};
use crate::table::Slot;

/// A thread keeps buffers of at most so many bytes for its next scan.
const KEPT: usize = 1 << 20;
const INDEX: u64 = (1 << INDEX_BITS) - 1;

thread_local! {
    static BUFFERS: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// Buffers of a call.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The slots that come next, in no order.
    pub(super) slots: Vec<Slot>,
    /// Those that are visited: see [`choice`].
    pub(super) chosen: Vec<u64>,
    pub(super) judge: Judge,
    pub(super) item: Vec<u8>,
}

/// Lends buffers that this thread has used before.
pub(super) fn with_buffers<T>(body: impl FnOnce(&mut Buffers) -> T) -> T {
    let mut buffers = BUFFERS.take().unwrap_or_default();
    let result = body(&mut buffers);
    if buffers.held() <= KEPT {
        BUFFERS.set(Some(buffers));
    }
    result
}

impl Buffers {
    fn held(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Slot>();
        slots + self.chosen.capacity() * 8 + self.judge.held() + self.item.capacity()
    }

    /// Chooses all slots.
    pub(super) fn choose_all(&mut self) {
        self.judge.clear();
        self.chosen.clear();
        let slots = self.slots.iter().enumerate();
        self.chosen.extend(slots.map(|(index, slot)| choice(slot, index)));
    }

    /// The slots that were chosen, from the one of this number on.
    pub(super) fn chosen_slots(&self, from: usize) -> impl Iterator<Item = &Slot> {
        let chosen = self.chosen.get(from..).unwrap_or_default();
        chosen.iter().filter_map(|choice| self.slots.get((choice & INDEX) as usize))
    }

    /// How many items up to this hash were judged, and not chosen.
    pub(super) fn rejected(&self, last: u64) -> usize {
        let others = self.chosen.len() + self.judge.gone.len();
        if self.slots.len() == others {
            return 0;
        }
        let slots = self.slots.iter().filter(|slot| slot.hash.id() <= last).count();
        let chosen = self.chosen.iter().filter(|choice| *choice >> INDEX_BITS <= last).count();
        let gone = self.judge.gone.iter().filter(|id| **id <= last).count();
        slots.saturating_sub(chosen + gone)
    }
}
