//! A card that keeps its connections' state in host memory and caches some of it, as commercial
//! cards do: how fast it can be at most, by the number of queue pairs (SRNIC §2.2, Fig. 2).
//!
//! These are bounds, between which a simulated card with such a cache comes out
//! ([`crate::hardware::Cache`]). The inner works of commercial cards are not published: nothing is
//! fitted to the paper's curve. A message needs the state of its queue pair. If queue pairs come at
//! random, and the cache holds the state of `held` of them, a message of `n` queue pairs misses
//! with probability 1 − held / n, whatever the cache replaces. A miss moves a context over PCIe in
//! both directions, which bounds the rate by bandwidth; and it takes a round trip, which bounds the
//! rate by latency if the card waits for one miss at a time.

use core::time::Duration;

use crate::hardware::pcie::{Generation, Lanes, Link, MaxPayload, READ_REQUEST};
use crate::hardware::{CACHE, CONTEXT, STATE};

/// A card with a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachingCard {
    /// The bytes of the cache.
    pub cache_bytes: u64,
    /// The bytes of state that the cache holds for a queue pair; zero if nothing is cached, and
    /// nothing needs to be.
    pub state_bytes: u64,
    /// The bytes that a miss moves: in from the host, and back.
    pub context_bytes: u64,
    /// The rate of the line in bits per second.
    pub line: u64,
    /// The bus.
    pub bus: Link,
    /// A round trip on the bus.
    pub round_trip: Duration,
}

/// A cache as large as the paper assumes (§2.2: some 2 MB), on its testbed's bus (§5: PCIe Gen3
/// x16, 1.1 µs), in which queue pairs take what their contexts take (375 B).
pub const CONTEXTS: CachingCard = CachingCard {
    cache_bytes: CACHE.value,
    state_bytes: CONTEXT.value,
    context_bytes: CONTEXT.value,
    line: 100_000_000_000,
    bus: Link {
        generation: Generation::Gen3,
        lanes: Lanes::X16,
        payload: MaxPayload::B256,
        read_request: 512,
    },
    round_trip: Duration::from_nanos(1100),
};

/// The same, in which queue pairs also take what Table 1 has for elements and outstanding requests:
/// 9.8 and 114.4 MB of 10,000 queue pairs.
pub const EVERYTHING: CachingCard = CachingCard { state_bytes: STATE.value, ..CONTEXTS };

/// The same without state that would have to be cached: the design of SRNIC, and of this card.
pub const NOTHING: CachingCard = CachingCard { state_bytes: 0, ..CONTEXTS };

/// The bytes of a work-queue element, and of a completion.
const ELEMENT: u64 = 64;
/// The bytes of a SEND's packet besides its payload: Ethernet with preamble and gap, IP, UDP, base
/// header, ICRC.
const HEADERS: u64 = 38 + 20 + 8 + 12 + 4;

impl CachingCard {
    /// The share of messages that find no state in the cache, with so many queue pairs.
    pub fn misses(&self, queue_pairs: u64) -> f64 {
        let held = self.cache_bytes.checked_div(self.state_bytes).unwrap_or(u64::MAX);
        1.0 - (held as f64 / queue_pairs.max(1) as f64).min(1.0)
    }

    /// The most payload in bits per second that SENDs of `bytes` move if only the bandwidth of the
    /// bus and the line counts.
    pub fn by_bandwidth(&self, queue_pairs: u64, bytes: u64) -> f64 {
        let (misses, context) = (self.misses(queue_pairs), self.context_bytes);
        let reads = self.bus.completion(bytes) + self.bus.completion(ELEMENT);
        let inwards = reads as f64 + misses * self.bus.completion(context) as f64;
        let writes = 2 * READ_REQUEST + self.bus.write(ELEMENT);
        let outwards = writes as f64 + misses * (READ_REQUEST + self.bus.write(context)) as f64;
        let bus = self.bus.packets().gigabytes_per_second() * 1e9 / inwards.max(outwards);
        let line = self.line as f64 / 8.0 / (bytes + HEADERS) as f64;
        bus.min(line) * bytes as f64 * 8.0
    }

    /// What misses come to where SENDs of `bytes` move so many bits of payload per second: misses
    /// per second, and the bits per second that they move over the bus, in both directions.
    pub fn traffic(&self, queue_pairs: u64, bytes: u64, payload: f64) -> (f64, f64) {
        let misses = payload / (bytes as f64 * 8.0) * self.misses(queue_pairs);
        let context = self.context_bytes;
        let each = self.bus.completion(context) + READ_REQUEST + self.bus.write(context);
        (misses, misses * each as f64 * 8.0)
    }

    /// The same if besides the card waits for misses, one after the other.
    pub fn by_latency(&self, queue_pairs: u64, bytes: u64) -> f64 {
        let waits = self.misses(queue_pairs) * self.round_trip.as_secs_f64();
        let bits = bytes as f64 * 8.0;
        self.by_bandwidth(queue_pairs, bytes).min(bits / waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_the_cache_is_full() {
        assert_eq!((EVERYTHING.misses(128), CONTEXTS.misses(5000)), (0.0, 0.0));
        assert!(EVERYTHING.misses(256) > 0.3 && EVERYTHING.misses(16_384) > 0.98);
        assert!(CONTEXTS.misses(16_384) > 0.6);
        assert_eq!(NOTHING.misses(1 << 20), 0.0);
    }

    /// The paper sees PCIe's extra traffic and misses rise after 256 queue pairs (§2.2, Fig. 2b).
    #[test]
    fn misses_move_bytes_only_beyond_the_knee() {
        let at = |queue_pairs| {
            let rate = EVERYTHING.by_latency(queue_pairs, 512);
            EVERYTHING.traffic(queue_pairs, 512, rate)
        };
        assert_eq!(at(128), (0.0, 0.0));
        let (few, many) = (at(256), at(16_384));
        assert!(few.0 > 0.0 && many.0 >= few.0 && many.1 >= few.1, "{few:?} {many:?}");
        // One miss in a round trip, and each moves the context twice.
        assert!((many.0 * 1.1e-6 - 1.0).abs() < 1e-9, "{many:?}");
        assert!(many.1 > many.0 * 2.0 * 375.0 * 8.0, "{many:?}");
        // By bandwidth, contexts fill what the messages leave of the bus.
        let rate = EVERYTHING.by_bandwidth(16_384, 512);
        assert!(EVERYTHING.traffic(16_384, 512, rate).1 > many.1);
    }

    /// The paper measures 52 Gb/s at 16,384 queue pairs (§2.2): between the two bounds.
    #[test]
    fn the_bounds_hold_what_the_paper_measured() {
        let (most, least) =
            (EVERYTHING.by_bandwidth(16_384, 512), EVERYTHING.by_latency(16_384, 512));
        assert!(least < 52e9 && 52e9 < most, "{least} to {most}");
        let flat = NOTHING.by_bandwidth(128, 512);
        assert_eq!(flat, NOTHING.by_latency(100_000, 512));
        assert_eq!(flat, EVERYTHING.by_latency(128, 512));
        // The line without its headers.
        assert!((flat - 100e9 * 512.0 / 594.0).abs() < 1e6, "{flat}");
    }
}
