//! What a sender of the lossy dialect remembers of its packets under way: when runs of them left,
//! which have arrived behind a missing one, and which have been found lost.
//!
//! While nothing is missing, that is one entry for each moment at which packets left.

use std::collections::VecDeque;

use super::bitmap::Bitmap;
use super::paths::Paths;
use super::recoveries::Settled;
use crate::psn::Psn;
use crate::time::Time;

/// The first PSN of a run of packets that left at one time, and that time.
type Run = (Psn, Time);

/// The packets under way.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// By PSN.
    runs: VecDeque<Run>,
    /// The packets behind the oldest unacknowledged one that have arrived.
    arrived: Bitmap,
    /// The packets that were found lost and have not arrived since, by PSN.
    lost: VecDeque<Lost>,
    /// Packets that have arrived since the caller looked, and had been found lost by later ones, or
    /// been sent again as probes alone.
    pub(super) settled: Vec<Settled>,
    /// How many of `lost` have not been sent again yet.
    pub(super) to_send: u32,
    /// When a packet last left, the first time or again; or when a rate lets the next one leave.
    latest: Time,
}

/// A packet that was found lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) psn: Psn,
    /// How many times it was found lost.
    pub(super) tries: u8,
    /// When it was sent again; `None` if it has not been yet.
    again: Option<Time>,
    why: Why,
    unreadable: Unreadable,
}

/// Why a packet is sent again.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// As a probe only.
    Probe,
    /// The acknowledges of later packets have shown it to be lost, at that time.
    Found(Time),
    /// Nothing was heard, or the receiver was not ready for it.
    Assumed,
}

/// Whether a packet of an answer can be sent again, or its memory has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unreadable {
    No,
    /// It has gone. The peer, which may have had the packet, is being asked.
    Asked,
    /// The peer has told that it has not.
    Missing,
}

/// How long a packet may be late before it counts as lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Beyond its path's round trip, when the path has delivered a later packet. In quarters of the
    /// path's shortest round trip.
    pub(super) quarters: u64,
    /// Beyond the moment it was sent, when only other paths have delivered later packets.
    pub(super) other_paths_ns: u64,
    /// The same for a path that has delivered nothing yet: it may be much longer than others.
    pub(super) first_ns: u64,
}

/// A packet that is lost again and again, as it may be that a receiver has no room for it, is sent
/// again after 1 µs at least, then after twice as long, up to this many doublings.
const TRIES_MAX: u8 = 12;

impl Departures {
    /// What is allocated for a run of packets.
    pub(super) const BYTES_OF_A_RUN: usize = size_of::<Run>();

    /// How many runs and lost packets are remembered, and the bytes that are allocated for them.
    pub(super) fn records(&self) -> (usize, usize) {
        let runs = self.runs.capacity() * Departures::BYTES_OF_A_RUN;
        let lost = self.lost.capacity() * size_of::<Lost>();
        (self.runs.len() + self.lost.len(), runs + lost)
    }

    /// The bytes that are allocated for the bitmap, beside its own.
    pub(super) fn bitmap_bytes(&self) -> usize {
        self.arrived.allocated_bytes()
    }

    /// Notes that the packet `psn` leaves, the first time.
    pub(super) fn left(&mut self, psn: Psn, now: Time) {
        self.latest = now;
        if self.runs.back().is_none_or(|(_, at)| *at != now) {
            self.runs.push_back((psn, now));
        }
    }

    /// Notes that the next packet leaves at that time: it may bring an acknowledge, too.
    pub(super) fn leaves_next(&mut self, at: Time) {
        self.latest = self.latest.max(at);
    }

    /// When a packet last left, the first time or again, or the next one leaves if that is known.
    pub(super) fn last_left(&self) -> Time {
        self.latest
    }

    /// When `psn` left the first time. `una` is the oldest unacknowledged PSN.
    fn left_at(&self, psn: Psn) -> Time {
        let Some((base, _)) = self.runs.front() else { return Time::ZERO };
        let ahead = psn.distance_from(*base);
        let place = self.runs.partition_point(|(first, _)| first.distance_from(*base) <= ahead);
        self.runs.get(place.saturating_sub(1)).map_or(Time::ZERO, |(_, at)| *at)
    }

    /// How many of `sent` packets from the oldest unacknowledged one on are in the network.
    pub(super) fn in_flight(&self, sent: u32) -> u32 {
        sent.saturating_sub(self.arrived.ones()).saturating_sub(self.to_send)
    }

    /// Is a packet missing before one that has arrived, or lost?
    pub(super) fn is_troubled(&self) -> bool {
        !self.arrived.is_empty() || !self.lost.is_empty()
    }

    /// Notes that all before `una`, which was `by` packets farther back, have arrived.
    pub(super) fn advance(&mut self, una: Psn, by: u32) {
        self.arrived.advance(by);
        while let Some(first) = self.lost.front().copied() {
            if !first.psn.is_before(una) {
                break;
            }
            self.to_send -= u32::from(first.again.is_none());
            self.lost.pop_front();
            self.settle(first);
        }
        while self.runs.get(1).is_some_and(|(first, _)| !first.is_after(una)) {
            self.runs.pop_front();
        }
    }

    /// Notes that the packet `psn` has arrived. Returns when it left and how often it had been
    /// found lost, if it was not known to have arrived.
    pub(super) fn arrived(&mut self, una: Psn, psn: Psn) -> Option<(Option<Time>, u8)> {
        if !self.arrived.set(psn.distance_from(una)) {
            return None;
        }
        match self.find(una, psn) {
            Ok(at) => {
                let lost = self.lost.remove(at)?;
                self.to_send -= u32::from(lost.again.is_none());
                self.settle(lost);
                // Which of its copies has arrived is not known.
                Some((None, lost.tries))
            }
            Err(_) => Some((Some(self.left_at(psn)), 0)),
        }
    }

    /// Have these packets from `first` on all arrived behind a missing one?
    #[inline]
    pub(super) fn have_arrived(&self, una: Psn, (first, packets): (Psn, u32)) -> bool {
        let at = first.distance_from(una);
        self.arrived.ones() >= packets && self.arrived.next_clear(at) >= at + packets
    }

    /// Notes that a packet has arrived that had been found lost, or been sent again.
    fn settle(&mut self, lost: Lost) {
        let Lost { psn, tries, again, why, .. } = lost;
        let found = match why {
            Why::Probe => None,
            Why::Found(at) => Some(at),
            Why::Assumed => return,
        };
        self.settled.push(Settled { psn, tries, left: self.left_at(psn), again, found });
    }

    /// Where `psn` is among the lost packets, or would be.
    fn find(&self, una: Psn, psn: Psn) -> Result<usize, usize> {
        let ahead = psn.distance_from(una);
        self.lost.binary_search_by_key(&ahead, |lost| lost.psn.distance_from(una))
    }

    /// The first lost packet that has not been sent again, of those that may be.
    pub(super) fn next_lost(&self, may_leave: impl Fn(Psn) -> bool) -> Option<Lost> {
        if self.to_send == 0 {
            return None;
        }
        self.lost.iter().find(|lost| lost.again.is_none() && may_leave(lost.psn)).copied()
    }

    /// Notes that the packet `psn` leaves again, found lost or not, on the path of so many tries.
    pub(super) fn left_again(&mut self, una: Psn, (psn, tries): (Psn, u8), now: Time) {
        self.latest = now;
        match self.find(una, psn) {
            Ok(at) => {
                self.to_send -= u32::from(self.lost[at].again.is_none());
                (self.lost[at].again, self.lost[at].tries) = (Some(now), tries);
            }
            Err(at) => {
                let (again, why, unreadable) = (Some(now), Why::Probe, Unreadable::No);
                self.lost.insert(at, Lost { psn, tries, again, why, unreadable });
            }
        }
    }

    /// The memory of the packet `psn` has gone. Returns whether the peer must be asked for it: it
    /// may have had the packet if that has left before.
    pub(super) fn ask_for(&mut self, una: Psn, psn: Psn) -> bool {
        let Ok(at) = self.find(una, psn) else { return false };
        let is_missing = self.lost[at].unreadable == Unreadable::Missing;
        if !is_missing {
            self.lost[at].unreadable = Unreadable::Asked;
        }
        !is_missing
    }

    /// The peer has acknowledged a question of that time: what it does not acknowledge of the
    /// packets that it was asked for is missing, and found lost.
    pub(super) fn lose_unreadable(&mut self, asked: Time) {
        for lost in &mut self.lost {
            let is_asked_for = lost.unreadable == Unreadable::Asked;
            if is_asked_for && lost.again.take_if(|again| *again <= asked).is_some() {
                lost.unreadable = Unreadable::Missing;
                self.to_send += 1;
            }
        }
    }

    /// The receiver has taken the oldest unacknowledged packet back, which had arrived: when its
    /// turn came, it could not be carried out.
    pub(super) fn take_back(&mut self) {
        self.arrived.clear_base();
    }

    /// Counts the oldest unacknowledged packet as lost if it had arrived. A receiver acknowledges
    /// up to such a packet only if it has taken it back, and its NAK may have been lost.
    #[inline]
    pub(super) fn lose_taken_back(&mut self, una: Psn) {
        if self.arrived.get(0) {
            self.take_back();
            self.lose(una, una, None);
        }
    }

    /// Counts the packet `psn` as lost; `found` says when later packets have shown it. Returns
    /// whether it was not counted yet.
    pub(super) fn lose(&mut self, una: Psn, psn: Psn, found: Option<Time>) -> bool {
        if self.arrived.get(psn.distance_from(una)) {
            return false;
        }
        let why = found.map_or(Why::Assumed, Why::Found);
        match self.find(una, psn) {
            Ok(at) if self.lost[at].again.is_none() => return false,
            Ok(at) => {
                let lost = &mut self.lost[at];
                (lost.again, lost.tries) = (None, lost.tries.saturating_add(1));
                lost.why = why;
            }
            Err(at) => {
                let (again, unreadable) = (None, Unreadable::No);
                self.lost.insert(at, Lost { psn, tries: 1, again, why, unreadable });
            }
        }
        self.to_send += 1;
        true
    }

    /// The last of `sent` packets that has not arrived, of those that may be asked for: what a
    /// probe sends.
    pub(super) fn last_missing(
        &self,
        (una, sent): (Psn, u32),
        may_leave: impl Fn(Psn) -> bool,
    ) -> Option<Psn> {
        let missing = (0..sent).rev().filter(|at| !self.arrived.get(*at));
        missing.map(|at| una.plus(at)).find(|psn| may_leave(*psn))
    }

    /// Finds packets that are lost by now: later ones have arrived, and the time is over in which
    /// they could be merely late. Returns how many, and when the next may be found.
    pub(super) fn find_lost(
        &mut self,
        (una, sent): (Psn, u32),
        now: Time,
        paths: &mut Paths,
        patience: Patience,
    ) -> (u32, Time) {
        let (mut found, mut next) = (0, Time::NEVER);
        if !self.is_troubled() {
            return (found, next);
        }
        let Some(newest) = paths.newest() else { return (found, next) };
        // A packet behind the last one that has arrived may be missing only if it was sent again.
        let last_lost = self.lost.back().map(|lost| lost.psn.distance_from(una) + 1);
        let end = self.arrived.last().max(last_lost).unwrap_or(0).min(sent);
        let (mut at, mut among) = (self.arrived.next_clear(0), 0);
        while at < end {
            let psn = una.plus(at);
            at = self.arrived.next_clear(at + 1);
            let lost = self.lost.get(among).filter(|lost| lost.psn == psn).copied();
            among += usize::from(lost.is_some());
            let (left, tries) = match lost {
                Some(Lost { again: None, .. }) => continue,
                Some(Lost { again: Some(again), tries, .. }) => (again, tries),
                None => (self.left_at(psn), 0),
            };
            let path = paths.of(psn, tries);
            let measured = paths.get(path);
            let passed = measured.newest.is_some_and(|(at, by)| {
                at > left || at == left && by.is_some_and(|by| by.is_after(psn))
            });
            let wait_ns = if passed {
                measured.latest_ns + paths.least_ns(path) * patience.quarters / 4
            } else if newest > left {
                let is_new = measured.newest.is_none();
                if is_new { patience.first_ns } else { patience.other_paths_ns }
            } else {
                continue;
            };
            let due = left.plus_ns(wait_ns.max(500 << tries.min(TRIES_MAX)));
            if due <= now {
                found += u32::from(self.lose(una, psn, Some(now)));
                paths.lost(path);
                among += usize::from(lost.is_none());
            } else {
                next = next.min(due);
            }
        }
        (found, next)
    }
}
