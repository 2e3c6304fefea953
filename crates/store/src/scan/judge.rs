//! Judges the items of a scan by the columns that a selection looks at.

use super::PARTITION_SHIFT;
use crate::codec::Codec;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::select::plan::{Part, Plan};
use crate::select::rows::{Marks, Rows, Span};
use crate::store::Store;
use crate::table::Slot;
use crate::tablespace::TablespaceId;

/// Items that are judged together: as many as a selection judges at once. Meanwhile the next ones
/// are fetched, which are in no cache.
const GROUP: usize = 64;
/// Bytes of a value that are judged with the group; a longer one, and what is behind them, is
/// judged by itself.
pub(super) const JUDGED_MAX: usize = 4096;
/// Bytes that are fetched for an item's head and key.
pub(super) const HEAD_AHEAD: usize = 64;
/// Bytes that are fetched of an item, at most.
pub(super) const AHEAD_MAX: u64 = 512;

/// Bits of an index behind a hash.
pub(super) const INDEX_BITS: u32 = u64::BITS - PARTITION_SHIFT;

/// What judges. Its buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The hashes of items that had gone, or expired.
    pub(super) gone: Vec<u64>,
    /// Bytes that were judged.
    pub(super) bytes: usize,
    /// The begins of a group's values, and where they lie in it.
    values: Vec<u8>,
    spans: Vec<Span>,
    /// Whose they are, by index in the group.
    owners: Vec<usize>,
    marks: Marks,
}

impl Judge {
    pub(super) fn clear(&mut self) {
        self.gone.clear();
        self.bytes = 0;
    }

    pub(super) fn held(&self) -> usize {
        self.values.capacity() + self.gone.capacity() * size_of::<u64>()
    }

    /// Chooses those of a tablespace's slots that may be selected by a plan, as far as it can be
    /// said from the begins of values that lie plain in memory. The caller holds a pin that is
    /// older than the slots.
    pub(super) fn choose<M: Memory, J: Journal>(
        &mut self,
        store: &Store<M, J>,
        space: TablespaceId,
        slots: &[Slot],
        (now, plan): (u64, &Plan),
        chosen: &mut Vec<u64>,
    ) {
        self.clear();
        chosen.clear();
        let flushed = store.flushed(space);
        let judged = plan.reach().saturating_add(HEAD_AHEAD) as u64;
        let fetch = |slot: &Slot| store.prefetch_item(slot, judged.min(AHEAD_MAX));
        slots.iter().take(GROUP).for_each(fetch);
        for (number, group) in slots.chunks(GROUP).enumerate() {
            let from = number * GROUP;
            let ahead = slots.get(from + GROUP..).unwrap_or_default();
            let part = self.read(store, group, (now, flushed), plan, |index| {
                ahead.get(index).into_iter().for_each(fetch);
            });
            let rows = rows_of(&self.values, &self.spans);
            self.marks.all(self.spans.len());
            plan.mark_part(&rows, part, &mut self.marks);
            chosen.extend(self.marks.iter().map(|row| {
                let index = self.owners[row];
                choice(&group[index], from + index)
            }));
        }
    }

    /// Reads the begins of a group's values; `fetch` is called for each. Returns what of the plan
    /// they can be judged by.
    fn read<M: Memory, J: Journal>(
        &mut self,
        store: &Store<M, J>,
        slots: &[Slot],
        (now, flushed): (u64, u64),
        plan: &Plan,
        fetch: impl Fn(usize),
    ) -> Part {
        let Judge { gone, values, spans, owners, .. } = self;
        spans.clear();
        owners.clear();
        let reach = plan.reach().min(JUDGED_MAX);
        let (mut head, mut end) = (None::<usize>, 0);
        for (index, slot) in slots.iter().enumerate() {
            fetch(index);
            let Some((at, stored, codec)) = store.value_pinned(slot, now, flushed) else {
                gone.push(slot.hash.id());
                continue;
            };
            let plain = codec.plain_len(stored);
            let len = plain.min(reach);
            // What is cut off, and what is compressed, is judged up to there.
            if codec != Codec::None || len < plain {
                let judged = codec.head().map_or(reach, usize::from).min(reach);
                head = Some(head.map_or(judged, |head| head.min(judged)));
            }
            if values.len() < end + len {
                values.resize(end + len, 0);
            }
            store.memory().read(at, &mut values[end..end + len]);
            spans.push(Span { start: end as u32, len: len as u32 });
            owners.push(index);
            end += len;
        }
        self.bytes += end;
        head.map_or(Part::Whole, |head| Part::Head(head as u16))
    }
}

/// What stands for a slot that is visited: in order these are in the order of hashes.
#[inline]
pub(super) fn choice(slot: &Slot, index: usize) -> u64 {
    slot.hash.id() << INDEX_BITS | index as u64
}

/// Rows that lie one behind the other, at these places.
fn rows_of<'a>(values: &'a [u8], spans: &'a [Span]) -> Rows<'a> {
    let (first, last) = (spans.first(), spans.last());
    let (Some(first), Some(last)) = (first, last) else { return Rows::listed(values, spans) };
    let len = first.len as usize;
    let same = len > 0 && spans.iter().all(|span| span.len as usize == len);
    match values.get(..(last.start + last.len) as usize) {
        // Quicker to find one's way in.
        Some(packed) if same => Rows::packed(packed, len),
        _ => Rows::listed(values, spans),
    }
}

const _: () = assert!(JUDGED_MAX <= u16::MAX as usize);
