//! Looks at an item in memory, and gets.

use super::scratch::with_scratch;
use super::{Found, Store};
use crate::codec::Codec;
use crate::item::{
    EXTENSION, HEAD, Head, ITEM_MAX, ITEM_MIN, Live, TRACE, Trace, VALUE_MAX, extension,
};
use crate::journal::Journal;
use crate::memory::Memory;
use crate::select::plan::{Part, Plan};
use crate::table::Slot;
use crate::tablespace::TablespaceId;

/// How often a get looks without the lock before it takes it.
const LOOKS: usize = 8;
/// Bytes that are read of an item at once.
const FIRST: usize = 128;
/// Values of this length and more, in bytes, are read and written without the lock: a thread that
/// changes other keys, or walks, waits for the lock meanwhile. A card leaves them to a thread.
pub(crate) const LONG: usize = 64 << 10;

/// What a short look at a value came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Short {
    /// The value was read.
    Read(Found),
    /// What is plain of it is enough to say that it is not selected, and it was not read.
    Unselected,
    /// It takes long to read, and was not.
    Long,
}

/// What a look at an item is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Nobody is to know of it.
    None,
    /// To change it: it stays when memory is short.
    Change,
    /// To read it: its trace says so, too.
    Read,
}

/// An item that a slot refers to and whose key is the one wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) at: u64,
    pub(super) head: Head,
    pub(super) flags: u32,
    pub(super) codec: Codec,
}

/// Whether it takes long to read a value that is stored in so many bytes.
pub(crate) fn is_long(stored: usize, codec: Codec) -> bool {
    match codec {
        Codec::None => stored >= LONG,
        // A byte of LZ4 becomes 255 at most.
        Codec::Lz4 { .. } => stored >= LONG / 16,
        _ => true,
    }
}

impl Seen {
    /// Whether it takes long to read the value, as if it were so many.
    pub(super) fn is_long(&self, weight: usize) -> bool {
        is_long(self.head.stored * weight, self.codec)
    }

    /// Appends the value as it is stored.
    pub(super) fn append_stored(&self, memory: &impl Memory, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.head.stored, 0);
        memory.read(self.at + self.head.value_at() as u64, &mut out[start..]);
    }

    /// Whether a plan may select the value, by what is plain of it where it is compressed.
    pub(super) fn passes(&self, plan: &Plan, memory: &impl Memory) -> bool {
        let Some(head) = self.codec.head() else { return true };
        with_scratch(|plain| {
            plain.resize(self.codec.plain_len(self.head.stored), 0);
            memory.read(self.at + self.head.value_at() as u64, plain);
            plan.is_match_part(plain, Part::Head(head))
        })
    }

    /// Appends the value; false if it cannot be decoded, and `out` is as it was.
    pub(super) fn append_value(&self, memory: &impl Memory, out: &mut Vec<u8>) -> bool {
        if self.codec == Codec::None {
            self.append_stored(memory, out);
            return true;
        }
        with_scratch(|stored| {
            self.append_stored(memory, stored);
            self.codec.decode(stored, VALUE_MAX, out).is_ok()
        })
    }
}

impl<M: Memory, J: Journal> Store<M, J> {
    /// Waits until a change of a key that is logged already is one that readers see.
    pub fn await_change(&self, space: TablespaceId, key: &[u8]) {
        drop(self.table.lock_for(self.hasher.hash(space, key)));
    }

    /// Where a slot's item is, if it can be there.
    pub(super) fn item_at(&self, slot: &Slot) -> Option<u64> {
        let geometry = &self.table.geometry;
        let at = slot.address.checked_sub(self.table.memory.base())?;
        let end = at.checked_add(slot.len.into())?;
        let fits = (ITEM_MIN..=ITEM_MAX).contains(&(slot.len as usize));
        (fits && at >= geometry.area_at && end <= geometry.area_end() && at % 8 == 0).then_some(at)
    }

    /// The item that a slot refers to, if its key is this one.
    pub(super) fn see(&self, slot: &Slot, space: TablespaceId, key: &[u8]) -> Option<Seen> {
        if slot.tablespace != space {
            return None;
        }
        let at = self.item_at(slot)?;
        let mut buffer = [0; FIRST];
        let first = &mut buffer[..FIRST.min(slot.len as usize)];
        self.table.memory.read(at, first);
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*first.get(at..)?.first_chunk()?))
        };
        let head = Head::from_words([word(0)?, word(8)?, word(16)?]);
        if head.item_len() != slot.len as usize || head.tablespace != space || head.key != key.len()
        {
            return None;
        }
        let (flags, codec) =
            if head.extended { extension(word(HEAD)?) } else { (0, Some(Codec::None)) };
        let start = head.key_at();
        let inside = key.len().min(first.len().checked_sub(start)?);
        let same = first[start..start + inside] == key[..inside]
            && self.has_bytes(at + (start + inside) as u64, &key[inside..]);
        Some(Seen { at, head, flags, codec: codec? }).filter(|_| same)
    }

    /// Whether memory has these bytes.
    fn has_bytes(&self, mut at: u64, bytes: &[u8]) -> bool {
        let mut buffer = [0; 4 * FIRST];
        bytes.chunks(buffer.len()).all(|chunk| {
            let copy = &mut buffer[..chunk.len()];
            self.table.memory.read(at, copy);
            at += chunk.len() as u64;
            copy == chunk
        })
    }

    /// The key's value, which is appended to `value`.
    pub fn get(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        value: &mut Vec<u8>,
    ) -> Option<Found> {
        self.get_and(space, key, now, value, Use::Read)
    }

    /// As [`Store::get`], which nobody will know of: it counts as no use of the item.
    pub fn get_unnoticed(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        value: &mut Vec<u8>,
    ) -> Option<Found> {
        self.get_and(space, key, now, value, Use::None)
    }

    /// The version of a key's item, if there is one. It counts as no use of the item.
    pub(crate) fn version(&self, space: TablespaceId, key: &[u8], now: u64) -> Option<u64> {
        let (_, found) = self.look(space, key, now, Use::None, &mut |_| true)?;
        Some(found.version)
    }

    fn get_and(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        value: &mut Vec<u8>,
        counts: Use,
    ) -> Option<Found> {
        let start = value.len();
        let seen = self.look(space, key, now, counts, &mut |seen| {
            value.truncate(start);
            seen.append_value(&self.table.memory, value)
        });
        if seen.is_none() {
            value.truncate(start);
        }
        seen.map(|(_, found)| found)
    }

    /// As [`Store::get`], of a value that does not take long to read and that the plan, if there is
    /// one, may select.
    pub(crate) fn get_short(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        plan: Option<&Plan>,
        value: &mut Vec<u8>,
    ) -> Option<Short> {
        let weight = plan.map_or(1, Plan::weight);
        self.get_sifted(space, key, now, plan, value, &|seen| seen.is_long(weight))
    }

    /// As [`Store::get`], of a value of any length that a plan may select.
    pub(crate) fn get_where(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        plan: &Plan,
        value: &mut Vec<u8>,
    ) -> Option<Short> {
        self.get_sifted(space, key, now, Some(plan), value, &|_| false)
    }

    fn get_sifted(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        plan: Option<&Plan>,
        value: &mut Vec<u8>,
        is_long: &dyn Fn(&Seen) -> bool,
    ) -> Option<Short> {
        let (start, memory, mut passes) = (value.len(), &self.table.memory, true);
        let seen = self.look(space, key, now, Use::Read, &mut |seen| {
            value.truncate(start);
            passes = plan.is_none_or(|plan| seen.passes(plan, memory));
            !passes || is_long(seen) || seen.append_value(memory, value)
        });
        match seen {
            Some(_) if !passes => Some(Short::Unselected),
            Some((seen, _)) if is_long(&seen) => Some(Short::Long),
            Some((_, found)) => Some(Short::Read(found)),
            None => {
                value.truncate(start);
                None
            }
        }
    }

    /// What is known of an item, as it was before this use of it.
    pub(super) fn found(&self, seen: &Seen) -> Found {
        let memory = &self.table.memory;
        let trace = self.trace_at(seen).map(|at| Trace::from_word(memory.load(at)));
        Found {
            version: seen.head.version,
            flags: seen.flags,
            expires_ms: seen.head.live.expires_ms(),
            codec: seen.codec,
            tablespace: seen.head.tablespace,
            trace,
        }
    }

    /// Where the word is that says when an item was used last.
    fn trace_at(&self, seen: &Seen) -> Option<u64> {
        let at = seen.at + seen.head.trace_at()? as u64;
        // The item's own bytes may be anything, and so may say that there is one.
        (at + TRACE as u64 <= self.table.geometry.area_end()).then_some(at)
    }

    /// Notes that an item is read, while its block is pinned or its partition locked.
    fn note_read(&self, seen: &Seen, now: u64) {
        if let Some(at) = self.trace_at(seen) {
            self.table.memory.store(at, Trace::at(now, true).to_word());
        }
    }

    /// The key's item, which `body` reads, and what is known of it. `body` says whether what it
    /// read can be; it is called again if the item was replaced meanwhile.
    pub(super) fn look(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        counts: Use,
        body: &mut dyn FnMut(&Seen) -> bool,
    ) -> Option<(Seen, Found)> {
        // A trace is written without the lock: its block must not be another item's by then.
        let _pin = self.spaces.any_traced().then(|| self.pin());
        let flushed = self.spaces.serving(space)?.flushed();
        let hash = self.hasher.hash(space, key);
        let judged = self.judged_at(now);
        for _ in 0..LOOKS {
            let Some(peek) = self.table.peek(hash) else {
                std::hint::spin_loop();
                continue;
            };
            let Some((seen, place)) = peek.find(hash, |slot| self.see(&slot, space, key)) else {
                if peek.may_be_stashed() {
                    break;
                }
                if peek.holds() {
                    return None;
                }
                continue;
            };
            if seen.head.version <= flushed {
                break;
            }
            let expired = seen.head.live.is_expired(judged);
            let read = expired || body(&seen);
            if read && peek.holds() {
                if expired {
                    self.note_time(now);
                    return None;
                }
                if counts != Use::None {
                    peek.touch(place);
                }
                let found = self.found(&seen);
                if counts == Use::Read {
                    self.note_read(&seen, now);
                }
                return Some((seen, found));
            }
        }
        self.look_locked(space, key, now, counts, body)
    }

    /// The same under the lock: nothing changes meanwhile but by foreign hands.
    #[cold]
    fn look_locked(
        &self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        counts: Use,
        body: &mut dyn FnMut(&Seen) -> bool,
    ) -> Option<(Seen, Found)> {
        let hash = self.hasher.hash(space, key);
        let mut locked = self.table.lock_for(hash);
        let flushed = self.spaces.serving(space)?.flushed();
        let (place, slot, seen) = locked.find(hash, |slot| self.see(&slot, space, key))?;
        if seen.head.version <= flushed {
            // A reader by a cached address must not find what this one did not.
            self.remove(&mut locked, place, &slot);
            return None;
        }
        if seen.head.live.is_expired(self.judged_at(now)) {
            self.note_time(now);
            return None;
        }
        if !body(&seen) {
            self.count_damage();
            return None;
        }
        if counts != Use::None {
            locked.touch(place);
        }
        let found = self.found(&seen);
        if counts == Use::Read {
            self.note_read(&seen, now);
        }
        Some((seen, found))
    }

    /// Whether a slot's item has expired.
    pub(crate) fn is_expired(&self, slot: &Slot, now: u64) -> bool {
        let at = self.item_at(slot);
        at.is_some_and(|at| Live(self.table.memory.load(at)).is_expired(now))
    }

    /// Asks the processor for the first bytes of a slot's item, so many at most.
    #[inline]
    pub(crate) fn prefetch_item(&self, slot: &Slot, at_most: u64) {
        if let Some(at) = self.item_at(slot) {
            self.table.memory.prefetch(at, u64::from(slot.len).min(at_most));
        }
    }

    /// Lets `act` see the key of a slot's item, under the partition's lock. `None` if the item is
    /// gone or expired, or was damaged. The value, which may be long, is not looked at.
    pub(crate) fn with_key_of<T>(
        &self,
        slot: &Slot,
        now: u64,
        act: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let Some(at) = self.item_at(slot) else {
            self.count_damage();
            return None;
        };
        let memory = &self.table.memory;
        let head = Head::from_words([0, 8, 16].map(|word| memory.load(at + word)));
        let gone = head.live.is_dead()
            || head.live.is_expired(now)
            || head.version <= self.flushed(slot.tablespace);
        if gone || head.item_len() != slot.len as usize || head.tablespace != slot.tablespace {
            return None;
        }
        with_scratch(|start| {
            start.resize(head.value_at(), 0);
            memory.read(at, start);
            let key = &start[head.key_at()..];
            (self.hasher.hash(slot.tablespace, key) == slot.hash).then(|| act(key))
        })
    }

    /// Replaces `out` by a copy of an item to which a slot led since the caller's pin was made. It
    /// may have been replaced since then, and is copied as it was. False if it has expired or was
    /// flushed.
    pub(crate) fn copy_pinned(&self, slot: &Slot, now: u64, out: &mut Vec<u8>) -> bool {
        let Some(at) = self.item_at(slot) else {
            self.count_damage();
            return false;
        };
        out.resize(slot.len as usize, 0);
        self.table.memory.read(at, out);
        let (words, _) = out.as_chunks_mut();
        let [live, version, shape, ..] = words else { return false };
        let [version, shape] = [version, shape].map(|word| u64::from_le_bytes(*word));
        // Its expiry may be changing.
        let alive = Live(self.table.memory.load(at)).alive();
        *live = alive.0.to_le_bytes();
        let head = Head::from_words([alive.0, version, shape]);
        let flushed = self.spaces.serving(slot.tablespace).map_or(u64::MAX, |s| s.flushed());
        let gone = head.live.is_expired(now) || head.version <= flushed;
        let fits = head.item_len() == slot.len as usize && head.tablespace == slot.tablespace;
        if !gone && !fits {
            self.count_damage();
        }
        !gone && fits
    }

    /// Items of a tablespace up to this version are gone: all, if it does not serve.
    #[inline]
    pub(crate) fn flushed(&self, space: TablespaceId) -> u64 {
        self.spaces.serving(space).map_or(u64::MAX, |space| space.flushed())
    }

    /// Where the value is of an item to which a slot led since the caller's pin was made, how many
    /// bytes are stored of it, and how. `None` if it has expired or was flushed, as all items are
    /// up to the version `flushed`.
    #[inline]
    pub(crate) fn value_pinned(
        &self,
        slot: &Slot,
        now: u64,
        flushed: u64,
    ) -> Option<(u64, usize, Codec)> {
        let Some(at) = self.item_at(slot) else {
            self.count_damage();
            return None;
        };
        let memory = &self.table.memory;
        let head = Head::from_words([0, 8, 16].map(|word| memory.load(at + word)));
        let gone = head.live.is_expired(now) || head.version <= flushed;
        if gone || head.item_len() != slot.len as usize || head.tablespace != slot.tablespace {
            return None;
        }
        let word = if head.extended { memory.load(at + HEAD as u64) } else { 0 };
        let (_, codec) = extension(word);
        Some((at + head.value_at() as u64, head.stored, codec?))
    }

    pub(crate) fn count_damage(&self) {
        self.damaged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

// A shared head of items is read with its extension in one piece.
const _: () = assert!(FIRST >= HEAD + EXTENSION);
