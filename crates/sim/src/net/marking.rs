//! When a switch marks packets for congestion (ECN): by a step, as DCTCP has it, or as RED does.
//! `engine` sets the mark in the packet.

use crate::dice::SplitMix;

/// When packets are marked, by the queue that a packet meets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Marking {
    /// No packet is marked at a queue of at most so many bytes.
    pub from_bytes: u64,
    /// Every packet is marked at a queue of more bytes than this. Between the two the probability
    /// rises from zero to `most`, as RED's does (Floyd, Jacobson 1993); but of the queue as it is,
    /// without an average, as switches of datacentres do.
    pub to_bytes: u64,
    /// The probability of a mark at `to_bytes`.
    pub most: f64,
}

impl Marking {
    /// Marks every packet that meets a queue of more than `bytes`, as DCTCP has it (SIGCOMM '10,
    /// §3.1).
    pub fn step(bytes: u64) -> Marking {
        Marking { from_bytes: bytes, to_bytes: bytes, most: 1.0 }
    }

    /// Is a packet marked that meets a queue of so many bytes?
    #[inline]
    fn marks(&self, queue: u64, random: &mut SplitMix) -> bool {
        if queue <= self.from_bytes {
            return false;
        }
        if queue > self.to_bytes {
            return true;
        }
        let part = (queue - self.from_bytes) as f64 / (self.to_bytes - self.from_bytes) as f64;
        random.fraction() < part * self.most
    }
}

/// Is a packet marked that meets a queue of so many bytes?
#[inline]
pub(super) fn marks(marking: &Option<Marking>, queue: u64, random: &mut SplitMix) -> bool {
    marking.as_ref().is_some_and(|marking| marking.marks(queue, random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_as_often_as_red_has_it() {
        let red = Some(Marking { from_bytes: 100, to_bytes: 300, most: 0.2 });
        let mut random = SplitMix::new(1);
        let mut share = |queue| {
            let marked = (0..10_000).filter(|_| marks(&red, queue, &mut random)).count();
            marked as f64 / 10_000.0
        };
        assert_eq!((share(100), share(301)), (0.0, 1.0));
        assert!((share(200) - 0.1).abs() < 0.01 && (share(300) - 0.2).abs() < 0.02);
        let step = Some(Marking::step(100));
        assert!(!marks(&step, 100, &mut random) && marks(&step, 101, &mut random));
    }
}
