//! Items of a scan that are looked at together.

use crate::codec::Codec;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::select::plan::{Part, Plan};
use crate::select::rows::{Marks, Rows, Span};
use crate::store::Store;
use crate::table::Slot;

/// Items of a group: as many as a selection judges at once. While they are judged the next group is
/// fetched, whose items are in no cache, since their hashes' order is no order in memory.
pub(super) const GROUP: usize = 64;
/// Bytes of a value that are judged with the group; a longer one, and what is behind them, is
/// judged by itself.
const JUDGED_MAX: usize = 4096;
/// Bytes that are fetched for an item's head and key.
const HEAD_AHEAD: u64 = 64;
/// Bytes that are fetched of an item, at most.
const AHEAD_MAX: u64 = 512;

/// Which items of a group are to be visited. Its buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The slots of items that may be selected, by index.
    pub(super) chosen: Vec<usize>,
    /// Those of items that are not, for sure.
    pub(super) rejected: Vec<usize>,
    /// The begins of values, and where they lie in it.
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Whose they are.
    owners: Vec<usize>,
    marks: Marks,
    /// Bytes of an item that were judged, about.
    pub(super) judged: usize,
}

impl Group {
    /// Chooses all.
    pub(super) fn choose_all(&mut self, count: usize) {
        self.rejected.clear();
        self.chosen.clear();
        self.chosen.extend(0..count);
    }

    /// Chooses those that may be selected by a plan, as far as it can be said from the begins of
    /// values that lie plain in memory. Items that are gone are neither chosen nor rejected. The
    /// caller holds a pin that is older than the slots.
    pub(super) fn choose<M: Memory, J: Journal>(
        &mut self,
        store: &Store<M, J>,
        (slots, ahead): (&[Slot], &[Slot]),
        now: u64,
        plan: &Plan,
    ) {
        let Group { chosen, rejected, bytes, spans, owners, marks, judged } = self;
        chosen.clear();
        rejected.clear();
        spans.clear();
        owners.clear();
        let reach = plan.reach().min(JUDGED_MAX);
        let (mut head, mut end) = (None::<usize>, 0);
        for (index, slot) in slots.iter().enumerate() {
            if let Some(next) = ahead.get(index) {
                fetch(store, next, Some(plan));
            }
            let Some((at, stored, codec)) = store.value_pinned(slot, now) else { continue };
            let plain = codec.plain_len(stored);
            let len = plain.min(reach);
            // What is cut off, and what is compressed, is judged up to there.
            if codec != Codec::None || len < plain {
                let judged = codec.head().map_or(reach, usize::from).min(reach);
                head = Some(head.map_or(judged, |head| head.min(judged)));
            }
            if bytes.len() < end + len {
                bytes.resize(end + len, 0);
            }
            store.memory().read(at, &mut bytes[end..end + len]);
            spans.push(Span { start: end as u32, len: len as u32 });
            owners.push(index);
            end += len;
        }
        *judged = end.checked_div(spans.len()).unwrap_or(0);
        let part = head.map_or(Part::Whole, |head| Part::Head(head as u16));
        marks.all(spans.len());
        plan.mark_part(&Rows::listed(&bytes[..end], spans), part, marks);
        let mut marked = marks.iter().peekable();
        for (row, &slot) in owners.iter().enumerate() {
            let is_marked = marked.next_if_eq(&row).is_some();
            if is_marked { chosen.push(slot) } else { rejected.push(slot) }
        }
    }
}

/// Asks the processor for what will be looked at of an item.
#[inline]
pub(super) fn fetch<M: Memory, J: Journal>(store: &Store<M, J>, slot: &Slot, plan: Option<&Plan>) {
    let judged = plan.map_or(AHEAD_MAX, |plan| plan.reach() as u64 + HEAD_AHEAD);
    store.prefetch_item(slot, judged.min(AHEAD_MAX));
}

const _: () = assert!(JUDGED_MAX <= u16::MAX as usize);
