//! Reproducible pseudo-random numbers, and random pauses.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use remora::nic::split_mix::SplitMix;

/// A generator of pseudo-random numbers that gives the same sequence each time.
#[derive(Clone, Debug)]
pub struct Draws(SplitMix);

impl Draws {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Draws {
        Draws(SplitMix::new(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// One of the values, each with the same probability.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.number() % all.len() as u64) as usize]
    }

    /// `true` with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        ((self.number() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// So many random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.number().to_le_bytes());
        words.take(len).collect()
    }
}

/// The longest pause: longer than one poll of a socket, far shorter than a round trip.
const PAUSE: Duration = Duration::from_micros(1);

/// Pauses of random length, for measuring how long an answer takes.
///
/// A client that waits for an answer polls a socket again and again, 0.3 µs each time; so does the
/// card that it asks. Requests that follow each other without a pause fall into step with the polls
/// at both ends: packets then always arrive at the end of a poll, or always at its beginning. Which
/// of the two it is depends on where the linker has put the functions, and makes a greater
/// difference than the one to be measured. So requests start at random moments, and polls at random
/// moments after them.
#[derive(Clone, Debug)]
pub struct Pauses(Draws);

impl Pauses {
    /// The pauses of `seed`.
    pub fn new(seed: u64) -> Pauses {
        Pauses(Draws::new(seed))
    }

    /// Pauses once, without sleeping.
    pub fn pause(&mut self) {
        let start = Instant::now();
        let length = PAUSE.mul_f64((self.0.number() >> 11) as f64 / (1u64 << 53) as f64);
        while start.elapsed() < length {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_repeat() {
        let mut draws = Draws::new(1);
        let heads = (0..10_000).filter(|_| draws.happens(0.1)).count();
        assert!((900..1100).contains(&heads), "{heads}");
        assert_eq!(Draws::new(7).bytes(11), Draws::new(7).bytes(11));
        assert!(!draws.happens(0.0) && draws.happens(1.0));
    }
}
