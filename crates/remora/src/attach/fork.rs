//! Converted memory while the process forks.
//!
//! The child of a fork has copies of its parent's private memory. Memory that was converted
//! ([`convert`](super::convert)) is shared, so that parent and child would both write to one heap.
//! So it is private again while the process forks, and the child gets copies of it, as of any
//! other. Afterwards the parent's memory is shared again: what its threads have written meanwhile
//! goes to the file, on top of what the card has written there. The child's memory stays private.

use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::{fmt, fs};

use super::convert::{alone, has_converted, hold_writers, mapped_files};
use crate::memory::Buffer;
use crate::threads::without_signals;

/// Bytes that are compared at a time.
const CHUNK: usize = 4096;

/// The process forks: until this ends, converted memory is private.
pub struct Forking {
    apart: Vec<Apart>,
    _alone: MutexGuard<'static, ()>,
}

impl Forking {
    /// To be called before a fork, by the thread that forks. A thread that holds cards
    /// ([`Device::before_fork`](crate::Device::before_fork)) has taken them before.
    ///
    /// Memory that cannot be made private stays shared with the child, and the log says so.
    pub fn begin() -> Forking {
        let _alone = alone();
        let apart = match has_converted() {
            true => set_apart(),
            false => Vec::new(),
        };
        Forking { apart, _alone }
    }

    /// To be called behind the fork in the parent: its memory is shared with the card again.
    pub fn in_parent(self) {
        for apart in self.apart {
            let (start, len) = (apart.start, apart.base.len());
            if let Err(error) = apart.end() {
                tracing::error!(
                    %error, start, len,
                    "memory is not shared with the card any more after a fork"
                );
            }
        }
    }

    /// To be called behind the fork in the child, whose memory stays private.
    pub fn in_child(self) {}
}

impl fmt::Debug for Forking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forking").field("apart", &self.apart).finish_non_exhaustive()
    }
}

/// Makes all converted memory of the process private.
fn set_apart() -> Vec<Apart> {
    let maps = match fs::read_to_string("/proc/self/maps") {
        Ok(maps) => maps,
        Err(error) => {
            tracing::error!(%error, "a forked child shares converted memory with its parent");
            return Vec::new();
        }
    };
    let mut apart = Vec::new();
    for (start, end) in mapped_files(&maps) {
        match Apart::begin(&maps, start, end - start) {
            Ok(range) => apart.push(range),
            Err(error) => tracing::error!(
                %error, start, end,
                "a forked child shares converted memory with its parent, and both write to it: \
                 let the child call exec at once, or set REMORA_MEMORY=process_vm"
            ),
        }
    }
    apart
}

/// A range of converted memory that is private for a while.
#[derive(Debug)]
struct Apart {
    /// Where the program has it.
    start: u64,
    /// The memory that the card has, too.
    shared: Buffer,
    /// The bytes as they were when the range became private.
    base: Buffer,
}

impl Apart {
    /// Makes a range private. `maps` is the system's list of mappings.
    fn begin(maps: &str, start: u64, len: u64) -> io::Result<Apart> {
        // SAFETY: the range is mapped, as the system has just said, and the view is used here only.
        let range = unsafe { Buffer::view(start, len as usize) }.ok_or(io::ErrorKind::NotFound)?;
        let shared = range.twin()?;
        let new = || Buffer::new(len as usize).map_err(|error| error.source);
        let (base, private) = (new()?, new()?);
        for copy in [&base, &private] {
            // Without its pages it is as good, and writers wait for longer.
            copy.populate(0, copy.len()).ok();
        }
        without_signals(|| {
            // From here to its end, nothing may write the pages: so nothing is allocated, either.
            let guard = hold_writers(maps, start, len)?;
            let copied = base
                .copy_at(0, &range, 0, base.len())
                .and_then(|()| private.copy_at(0, &base, 0, base.len()));
            let moved = match copied {
                // SAFETY: what takes the place of the range has the same bytes.
                Ok(()) => unsafe { private.move_over(&range) },
                Err(_) => Err(io::ErrorKind::InvalidInput.into()),
            };
            drop(guard);
            moved
        })?;
        Ok(Apart { start, shared, base })
    }

    /// Makes the range shared again, with what was written to it since [`Apart::begin`].
    fn end(self) -> io::Result<()> {
        let Apart { start, shared, base } = self;
        let maps = fs::read_to_string("/proc/self/maps")?;
        // SAFETY: what is not mapped any more is not there to be protected or copied, so that the
        // guard below fails first; the view is used here only.
        let range = unsafe { Buffer::view(start, base.len()) }.ok_or(io::ErrorKind::NotFound)?;
        without_signals(|| {
            let guard = hold_writers(&maps, start, base.len() as u64)?;
            merge(&range, &base, &shared);
            // SAFETY: what takes the place of the range has the bytes that were written to it.
            let moved = unsafe { shared.move_over(&range) };
            drop(guard);
            moved
        })
    }
}

/// Writes the bytes of `now` that differ from `base` to `shared`, whose other bytes others may
/// change meanwhile. All have the same length, in whole pages.
fn merge(now: &Buffer, base: &Buffer, shared: &Buffer) {
    let (mut new, mut old) = ([0u8; CHUNK], [0u8; CHUNK]);
    for at in (0..base.len()).step_by(CHUNK) {
        let read = now.read_at(at, &mut new).and(base.read_at(at, &mut old));
        debug_assert!(read.is_ok(), "all have the same length");
        if new == old {
            continue;
        }
        let words = new.chunks_exact(8).zip(old.chunks_exact(8));
        for (i, (new, old)) in words.enumerate().filter(|(_, (new, old))| new != old) {
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            let (new, mask) = (word(new), differing(word(new), word(old)));
            if let Ok(shared) = shared.word(at + i * 8) {
                let merged = |there| Some(there & !mask | new & mask);
                shared.fetch_update(Ordering::AcqRel, Ordering::Acquire, merged).ok();
            }
        }
    }
}

/// All bits of each byte in which `a` and `b` differ.
fn differing(a: u64, b: u64) -> u64 {
    u64::from_ne_bytes((a ^ b).to_ne_bytes().map(|byte| if byte == 0 { 0 } else { 0xFF }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A range of converted memory, and the card's view of it.
    fn converted(len: usize) -> (Buffer, Buffer) {
        let range = Buffer::new(len).unwrap();
        range.write_at(0, b"from before").unwrap();
        let file = crate::memory::memfd::sealed(super::super::convert::NAME, len as u64).unwrap();
        let mut moved = range;
        moved.move_to(file.as_fd()).unwrap();
        (moved, Buffer::map(file.as_fd(), 0, len).unwrap())
    }

    #[test]
    fn bytes_of_both_sides_are_there_after_a_fork() {
        let (range, card) = converted(4 * CHUNK);
        // Threads of other tests run, so that writers are held, where the system permits that.
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let Ok(apart) = Apart::begin(&maps, range.addr(), range.len() as u64) else { return };
        range.write_at(5, b"here").unwrap();
        card.write_at(0, b"card").unwrap();
        range.store_u64(2 * CHUNK + 8, 7).unwrap();
        card.store_u64(2 * CHUNK, 9).unwrap();
        let mut bytes = [0; 11];
        range.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from herere", "private meanwhile");
        apart.end().unwrap();
        for side in [&range, &card] {
            side.read_at(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"card herere");
            assert_eq!(side.load_u64(2 * CHUNK).unwrap(), 9);
            assert_eq!(side.load_u64(2 * CHUNK + 8).unwrap(), 7);
        }
        range.store_u64(16, 5).unwrap();
        assert_eq!(card.load_u64(16).unwrap(), 5, "shared again");
    }

    #[test]
    fn whole_bytes_differ() {
        assert_eq!(differing(0x1200_0000_0000_0034, 0x1300_0000_0000_0034), 0xFF << 56);
        assert_eq!(differing(7, 7), 0);
    }
}
