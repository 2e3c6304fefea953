//! A card's way to its host's memory: when the accesses of its kernels are over.
//!
//! An access waits for a tag (reads only), passes the link towards the host, the host's memory,
//! and for reads the link back. All of these are shared by the accesses of the card: those of its
//! packets, and those of its kernels ([`SharedPort`]). The port is asked in the order of time and
//! each kind of access takes the same way, so that accesses are served as they come and the end of
//! each is known when it begins.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora_nic::Time;
use remora_offload::kernel::{Direction, Timing};

use super::NS;
use super::pcie::{Generation, Lanes, Link, MaxPayload, READ_REQUEST};
use super::rate::{Rate, Server};

/// The properties of a [`HostPort`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortTerms {
    /// From a request to its answer, without bytes and without others.
    pub round_trip: Duration,
    /// What bytes pass.
    pub bus: Bus,
    /// The most read requests in flight.
    pub tags: u32,
}

/// What the bytes of accesses pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bus {
    /// A PCIe link.
    Pcie(Link),
    /// Something without packets: so many picoseconds a byte, each direction.
    Bytes(u64),
}

impl PortTerms {
    /// A round trip and a time for each byte.
    pub fn flat(round_trip: Duration, byte_ps: u64) -> PortTerms {
        PortTerms { round_trip, bus: Bus::Bytes(byte_ps), tags: u32::MAX }
    }

    /// StRoM's card: a read of host memory over PCIe takes around 1.5 µs (§6.2). Its DMA engine is
    /// the paper's XDMA (§4.2) with 32-byte streams of 250 MHz, as on a link of eight lanes.
    pub fn strom() -> PortTerms {
        let link = Link {
            generation: Generation::Gen3,
            lanes: Lanes::X8,
            payload: MaxPayload::B256,
            read_request: 512,
        };
        PortTerms { round_trip: Duration::from_nanos(1500), bus: Bus::Pcie(link), tags: 32 }
    }
}

/// The state of a card's way to its host's memory.
#[derive(Debug)]
pub struct HostPort {
    terms: PortTerms,
    up: Server,
    down: Server,
    /// When the tags in use are free again.
    tags: BinaryHeap<Reverse<u64>>,
}

impl HostPort {
    /// A port that is idle.
    pub fn new(terms: PortTerms) -> HostPort {
        let rate = match terms.bus {
            Bus::Pcie(link) => Some(link.packets()),
            Bus::Bytes(0) => None,
            Bus::Bytes(ps) => Some(Rate::new(1, ps)),
        };
        let (up, down) = (Server::new(rate), Server::new(rate));
        HostPort { terms, up, down, tags: BinaryHeap::new() }
    }

    /// The moment at which a read of `len` bytes that begins at `now` is over, in picoseconds.
    pub fn read(&mut self, now: u64, len: u64) -> u64 {
        let (request, piece) = match self.terms.bus {
            Bus::Pcie(link) => (READ_REQUEST, link.read_request.max(1)),
            Bus::Bytes(_) => (0, u64::MAX),
        };
        let (mut left, mut over) = (len, now);
        loop {
            let bytes = left.min(piece);
            // Only the read waits for its tag. The link is not kept for its request until then:
            // writes behind it would wait, too.
            let starts = self.tag_at(now);
            let takes = self.up.takes(request);
            let sent = self.up.serve(now, request).max(starts.saturating_add(takes));
            let at_host = sent.saturating_add(self.round_trip_ps());
            let wire = match self.terms.bus {
                Bus::Pcie(link) => link.completion(bytes),
                Bus::Bytes(_) => bytes,
            };
            over = over.max(self.down.serve(at_host, wire));
            self.tags.push(Reverse(over));
            left -= bytes;
            if left == 0 {
                return over;
            }
        }
    }

    /// The same of a write. A write is not answered on the link; it is over when the host's memory
    /// has it, as seen by a read behind it.
    pub fn write(&mut self, now: u64, len: u64) -> u64 {
        self.post(now, len).saturating_add(self.round_trip_ps())
    }

    /// The moment at which a write of `len` bytes that begins at `now` has left the card.
    pub fn post(&mut self, now: u64, len: u64) -> u64 {
        let wire = match self.terms.bus {
            Bus::Pcie(link) => link.write(len),
            Bus::Bytes(_) => len,
        };
        self.up.serve(now, wire)
    }

    /// The first moment from `now` on at which a tag is free; takes it.
    fn tag_at(&mut self, now: u64) -> u64 {
        while self.tags.peek().is_some_and(|Reverse(free)| *free <= now) {
            self.tags.pop();
        }
        if self.tags.len() < self.terms.tags.max(1) as usize {
            return now;
        }
        self.tags.pop().map_or(now, |Reverse(free)| free)
    }

    fn round_trip_ps(&self) -> u64 {
        u64::try_from(self.terms.round_trip.as_nanos()).unwrap_or(u64::MAX).saturating_mul(NS)
    }
}

/// A port that a card's packets and its kernels use. Clones are the same port.
#[derive(Clone, Debug)]
pub struct SharedPort(Arc<Mutex<HostPort>>);

impl SharedPort {
    /// A port that is idle.
    pub fn new(terms: PortTerms) -> SharedPort {
        SharedPort(Arc::new(Mutex::new(HostPort::new(terms))))
    }

    /// The port. A card has one thread at a time, so nobody waits.
    pub fn lock(&self) -> MutexGuard<'_, HostPort> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timing for SharedPort {
    fn over(&mut self, now: Time, direction: Direction, len: usize) -> Time {
        self.lock().over(now, direction, len)
    }
}

impl Timing for HostPort {
    fn over(&mut self, now: Time, direction: Direction, len: usize) -> Time {
        let now_ps = now.0.saturating_mul(NS);
        let over = match direction {
            Direction::Read => self.read(now_ps, len as u64),
            Direction::Write => self.write(now_ps, len as u64),
        };
        Time(over.div_ceil(NS))
    }
}

#[cfg(test)]
mod tests {
    use super::super::US;
    use super::*;

    #[test]
    fn one_access_takes_the_round_trip_and_its_bytes() {
        let terms = PortTerms::flat(Duration::from_nanos(1500), 80);
        for len in [0, 8, 100, 4096] {
            let over = |direction| HostPort::new(terms).over(Time(10), direction, len);
            let expected = Time(10 + 1500 + (len as u64 * 80).div_ceil(1000));
            assert_eq!([over(Direction::Read), over(Direction::Write)], [expected; 2]);
        }
    }

    #[test]
    fn accesses_share_the_bus() {
        let mut port = HostPort::new(PortTerms::flat(Duration::from_nanos(100), 1000));
        assert_eq!([port.read(0, 64), port.read(0, 64)], [164 * NS, 228 * NS]);
        assert_eq!(port.write(0, 64), 164 * NS, "the other direction is idle");
    }

    /// A read that waits for tags holds up no write: the link has room between its requests.
    #[test]
    fn a_write_does_not_wait_for_the_tags_of_reads() {
        let terms = PortTerms { tags: 4, ..PortTerms::strom() };
        let Bus::Pcie(link) = terms.bus else { panic!("StRoM's card is behind PCIe") };
        let mut port = HostPort::new(terms);
        let over = port.read(0, 64 << 10);
        assert!(over > 30 * 1500 * NS, "128 requests, 4 at a time: {over}");
        let requests = 128 * READ_REQUEST;
        let left = port.post(0, 64);
        assert_eq!(left, link.packets().time_ps(requests + link.write(64)));
        // Nor does it hold up a read whose tag comes later.
        let mut busy = HostPort::new(terms);
        busy.read(0, 2048);
        busy.post(0, 1024);
        let mut quiet = HostPort::new(terms);
        quiet.read(0, 2048);
        assert_eq!(busy.read(0, 64), quiet.read(0, 64));
    }

    #[test]
    fn reads_over_pcie_are_as_fast_as_their_tags_permit() {
        let terms = PortTerms::strom();
        let Bus::Pcie(link) = terms.bus else { panic!("StRoM's card is behind PCIe") };
        let mut port = HostPort::new(terms);
        // Expect: what the text says of one read, and its 44 bytes on the link.
        assert_eq!(port.read(0, 0) / NS, 1500 + 3);
        let start = 2 * US;
        let over = port.read(start, 1 << 20);
        // Expect: the link's rate, less a round trip at the end: 32 tags are enough for it.
        let least = link.packets().time_ps(link.completion(1 << 20));
        assert!((least + 1500 * NS..least + 1600 * NS).contains(&(over - start)), "{over}");
        // With 4 tags, their 2 KiB in a round trip and the time of one request.
        let mut port = HostPort::new(PortTerms { tags: 4, ..PortTerms::strom() });
        let over = port.read(0, 1 << 20);
        assert!((512 * 1500 * NS..512 * 1900 * NS).contains(&over), "{over}");
    }
}
