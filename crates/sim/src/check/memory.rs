//! The memory oracle: every byte of a host's memory is what the completed operations have made it.
//! While an operation is under way, each byte that it changes has its old or its new value.

use core::ops::Range;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Violation, demand};
use crate::memory::SimMemory;

const CHECKER: &str = "memory";

/// Pieces of memory on the bus, in the order of a message's bytes.
pub type Places = Vec<Range<u64>>;

/// What an operation under way does to memory.
#[derive(Clone, Debug)]
enum Change {
    /// Each byte has its old value or the one given here.
    To(Rc<[u8]>),
    /// The next message is not known yet.
    Unknown,
}

/// What a buffer holds behind its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// The old bytes.
    Untouched,
    /// Perhaps parts of an earlier message that an unreliable connection dropped.
    Anything,
}

/// What the memory of one host must hold.
#[derive(Clone, Debug)]
pub struct MemoryModel {
    host: usize,
    expected: Vec<u8>,
    ignored: Vec<Range<u64>>,
    changing: BTreeMap<u64, (Places, Change)>,
}

impl MemoryModel {
    /// A model of the memory as it is now. It does not check `ignored`, nor what is added later.
    pub fn new(host: usize, memory: &SimMemory, ignored: Vec<Range<u64>>) -> MemoryModel {
        MemoryModel { host, expected: memory.bytes().to_vec(), ignored, changing: BTreeMap::new() }
    }

    /// Records that the host itself wrote these bytes.
    pub fn wrote(&mut self, places: &[Range<u64>], bytes: &[u8]) {
        for (place, part) in parts(places, bytes) {
            self.expected[range(&place)].copy_from_slice(part);
        }
    }

    /// Records that operation `id` will write `bytes` here.
    pub fn begins(&mut self, id: u64, places: Places, bytes: Rc<[u8]>) {
        self.changing.insert(id, (places, Change::To(bytes)));
    }

    /// Checks that operation `id` has written all of its bytes.
    pub fn done(&mut self, id: u64, memory: &SimMemory) -> Result<(), Violation> {
        let Some((places, Change::To(bytes))) = self.changing.remove(&id) else { return Ok(()) };
        for (place, part) in parts(&places, &bytes) {
            let found = &memory.bytes()[range(&place)];
            demand(found == part, CHECKER, || {
                let at = found.iter().zip(part).position(|(a, b)| a != b).unwrap_or(0);
                format!(
                    "host {}: operation {id} is done, but its byte at bus address {:#x} (of \
                     {place:x?}) is {:#04x}, not {:#04x}",
                    self.host,
                    place.start + at as u64,
                    found[at],
                    part[at]
                )
            })?;
            self.expected[range(&place)].copy_from_slice(part);
        }
        Ok(())
    }

    /// Ends operation `id` after a failure: it has written all, some or none of its bytes.
    pub fn given_up(&mut self, id: u64, memory: &SimMemory) -> Result<(), Violation> {
        let Some((places, Change::To(bytes))) = self.changing.remove(&id) else { return Ok(()) };
        self.check_either(&places, &bytes, memory)?;
        self.adopt(&places, memory);
        Ok(())
    }

    /// Records a posted receive element, which some message will fill.
    pub fn posted(&mut self, id: u64, places: Places) {
        self.changing.insert(id, (places, Change::Unknown));
    }

    /// Checks that a message has filled the receive element `id`.
    pub fn received(
        &mut self,
        id: u64,
        message: &[u8],
        rest: Rest,
        memory: &SimMemory,
    ) -> Result<(), Violation> {
        let Some((places, _)) = self.changing.remove(&id) else { return Ok(()) };
        let mut left = message;
        for (place, part) in parts(&places, message) {
            let found = &memory.bytes()[range(&place)];
            demand(found == part, CHECKER, || {
                format!("host {}: receive element {id} does not hold its message", self.host)
            })?;
            self.expected[range(&place)].copy_from_slice(part);
            left = &left[part.len()..];
        }
        demand(left.is_empty(), CHECKER, || format!("receive element {id} is too short"))?;
        match rest {
            Rest::Untouched => self.check_untouched(&places, memory),
            Rest::Anything => {
                self.adopt(&places, memory);
                Ok(())
            }
        }
    }

    /// Checks a receive element `id` that came back without a message. It may hold a part of
    /// `message`.
    pub fn returned(
        &mut self,
        id: u64,
        message: &[u8],
        rest: Rest,
        memory: &SimMemory,
    ) -> Result<(), Violation> {
        let Some((places, _)) = self.changing.remove(&id) else { return Ok(()) };
        if rest == Rest::Untouched {
            self.check_either(&places, message, memory)?;
        }
        self.adopt(&places, memory);
        Ok(())
    }

    /// Checks all memory whose content is known.
    pub fn check(&self, memory: &SimMemory) -> Result<(), Violation> {
        let mut skipped = self.ignored.clone();
        for (places, change) in self.changing.values() {
            skipped.extend(places.iter().filter(|p| !p.is_empty()).cloned());
            if let Change::To(bytes) = change {
                self.check_either(places, bytes, memory)?;
            }
        }
        skipped.sort_by_key(|r| r.start);
        let end = self.expected.len() as u64;
        skipped.push(end..end);
        let mut at = 0;
        for skip in skipped {
            if skip.start > at {
                let known = at..skip.start;
                self.check_untouched(core::slice::from_ref(&known), memory)?;
            }
            at = at.max(skip.end);
        }
        Ok(())
    }

    fn check_untouched(&self, places: &[Range<u64>], memory: &SimMemory) -> Result<(), Violation> {
        for place in places {
            let (found, expected) = (&memory.bytes()[range(place)], &self.expected[range(place)]);
            demand(found == expected, CHECKER, || {
                let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
                format!(
                    "host {}: the byte at bus address {:#x} is {:#04x}, not {:#04x}: nothing was \
                     to write it",
                    self.host,
                    place.start + at as u64,
                    found[at],
                    expected[at]
                )
            })?;
        }
        Ok(())
    }

    /// Checks that each byte has its old value or that of `bytes`. Bytes behind `bytes` must be
    /// old.
    fn check_either(
        &self,
        places: &[Range<u64>],
        bytes: &[u8],
        memory: &SimMemory,
    ) -> Result<(), Violation> {
        let mut left = bytes;
        for place in places {
            let (found, old) = (&memory.bytes()[range(place)], &self.expected[range(place)]);
            let new;
            (new, left) = left.split_at(left.len().min(found.len()));
            if found == old || found == new {
                continue;
            }
            // Without an end at the first wrong byte, the compiler takes many at once.
            let sent = found.iter().zip(old).zip(new);
            let is_right = sent.fold(true, |all, ((f, o), n)| all & ((f == o) | (f == n)))
                && found[new.len()..] == old[new.len()..];
            demand(is_right, CHECKER, || {
                let is_wrong =
                    |at: &usize| found[*at] != old[*at] && Some(&found[*at]) != new.get(*at);
                let at = (0..found.len()).find(is_wrong).unwrap_or(0);
                format!(
                    "host {}: the byte at bus address {:#x} is {:#04x}, neither {:#04x} as before \
                     nor {:x?} as sent",
                    self.host,
                    place.start + at as u64,
                    found[at],
                    old[at],
                    new.get(at)
                )
            })?;
        }
        Ok(())
    }

    fn adopt(&mut self, places: &[Range<u64>], memory: &SimMemory) {
        for place in places {
            self.expected[range(place)].copy_from_slice(&memory.bytes()[range(place)]);
        }
    }
}

fn range(place: &Range<u64>) -> Range<usize> {
    place.start as usize..place.end as usize
}

/// The parts of a message and the places that they belong to.
fn parts<'a>(places: &[Range<u64>], bytes: &'a [u8]) -> Vec<(Range<u64>, &'a [u8])> {
    let mut rest = bytes;
    let cut = places.iter().map(|place| {
        let take = rest.len().min((place.end - place.start) as usize);
        let (now, later) = rest.split_at(take);
        rest = later;
        (place.start..place.start + take as u64, now)
    });
    cut.filter(|(_, part)| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (SimMemory, MemoryModel) {
        let mut memory = SimMemory::new();
        memory.alloc(64, 8);
        let model = MemoryModel::new(0, &memory, vec![0..2, 2..4]);
        (memory, model)
    }

    /// The oracle itself must find a wrong byte.
    #[test]
    fn a_stray_write_is_found() {
        let (mut memory, model) = world();
        memory.slice_mut(2, 1)[0] = 1;
        assert_eq!(model.check(&memory), Ok(()), "ignored");
        memory.slice_mut(4, 1)[0] = 1;
        assert!(model.check(&memory).unwrap_err().what.contains("0x4"));
    }

    #[test]
    fn bytes_may_be_old_or_new_while_an_operation_is_under_way() {
        let (mut memory, mut model) = world();
        model.begins(1, vec![40..42, 10..12], Rc::from([1, 2, 3, 4]));
        memory.slice_mut(40, 2).copy_from_slice(&[1, 2]);
        assert_eq!(model.check(&memory), Ok(()), "half done");
        // Neither old nor new: within the message, or in a place behind a part that is right.
        for (at, byte) in [(40, 2), (11, 3)] {
            let mut other = memory.clone();
            other.slice_mut(at, 1)[0] = byte;
            let what = model.check(&other).unwrap_err().what;
            assert!(what.contains(&format!("{at:#x} is {byte:#04x}, neither")), "{what}");
        }
        assert!(model.clone().done(1, &memory).is_err());
        memory.slice_mut(10, 2).copy_from_slice(&[3, 4]);
        assert_eq!(model.done(1, &memory), Ok(()));
        memory.slice_mut(10, 1)[0] = 9;
        assert!(model.check(&memory).is_err());
    }

    #[test]
    fn bytes_behind_a_message_are_checked() {
        let (mut memory, mut model) = world();
        model.posted(1, vec![16..20, 20..24]);
        memory.slice_mut(16, 3).copy_from_slice(&[1, 2, 3]);
        assert!(model.clone().received(1, &[1, 2], Rest::Untouched, &memory).is_err());
        assert_eq!(model.clone().received(1, &[1, 2], Rest::Anything, &memory), Ok(()));
        assert_eq!(model.received(1, &[1, 2, 3], Rest::Untouched, &memory), Ok(()));
    }
}
