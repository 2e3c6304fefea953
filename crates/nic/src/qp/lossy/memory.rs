//! What the state of the lossy dialect takes of memory.

use super::departures::Departures;
use super::paths::Paths;
use super::{Ask, Lossy, Owing, Qp};
use crate::qp::HOT_BYTES;

/// The bytes of a queue pair of the lossy dialect that every packet needs, as [`HOT_BYTES`] counts
/// them in the standard dialect: those; the state of the dialect, all of it, and the pointer to it
/// in the cold part; and of what is allocated beside it, one path and the run of packets that left
/// last. More paths and more runs, which as many packets share, have their own bytes.
pub const LOSSY_HOT_BYTES: usize = HOT_BYTES
    + size_of::<Option<Box<Lossy>>>()
    + size_of::<Lossy>()
    + Paths::BYTES_OF_ONE
    + Departures::BYTES_OF_A_RUN;
/// Four times as many as in the standard dialect, in ten cache lines more.
const _: () = assert!(LOSSY_HOT_BYTES <= 824);

/// What parts of queue pairs' state take: the bytes of what all have, and of the rest how many
/// there are, and the bytes that are allocated.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LossyUse {
    pub(crate) state: usize,
    pub(crate) paths: (usize, usize),
    /// Messages, requests and packets under way.
    pub(crate) records: (usize, usize),
    pub(crate) bitmaps: (usize, usize),
    /// Payload of packets that wait for their turn.
    pub(crate) waiting: (usize, usize),
}

impl LossyUse {
    pub(crate) fn plus(&self, other: &LossyUse) -> LossyUse {
        let sum = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
        LossyUse {
            state: self.state + other.state,
            paths: sum(self.paths, other.paths),
            records: sum(self.records, other.records),
            bitmaps: sum(self.bitmaps, other.bitmaps),
            waiting: sum(self.waiting, other.waiting),
        }
    }
}

impl Qp {
    /// What the state of the lossy dialect takes; `None` if the queue pair is of another dialect.
    pub(crate) fn lossy_use(&self) -> Option<LossyUse> {
        self.cold.lossy.as_deref().map(Lossy::memory)
    }
}

impl Lossy {
    fn memory(&self) -> LossyUse {
        let (arrivals, departures) = (&self.arrivals, &self.departures);
        let asked = (self.asks.len(), self.asks.capacity() * size_of::<Ask>());
        let owed = (self.owed.len(), self.owed.capacity() * size_of::<Owing>());
        let records = [asked, owed, arrivals.records(), departures.records()];
        // A bitmap of one word is part of the state.
        let bitmaps = [arrivals.arrived.allocated_bytes(), departures.bitmap_bytes()];
        LossyUse {
            state: size_of::<Lossy>(),
            paths: self.paths.allocated(),
            records: records.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)),
            bitmaps: (bitmaps.iter().filter(|bytes| **bytes > 0).count(), bitmaps.iter().sum()),
            waiting: arrivals.waiting_payload(),
        }
    }
}
