//! Slots: the parts into which a cluster's keys fall, as Redis Cluster has them, and what one group
//! of nodes is for each.
//!
//! A group's [`Holdings`] stand in its replicated log, so that they outlive its primary. A
//! [`Shard`] is what its primary serves by; docs/cluster.md says who owns a slot at each moment of
//! a move.

use serde::{Deserialize, Serialize};

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands between its first braces, if something does.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        (len > 0).then(|| &rest[..len])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, by which Redis' clients choose slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

/// Slots from a first to a last one, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    /// The first.
    pub first: u16,
    /// The last: at least the first, and below [`SLOTS`].
    pub last: u16,
}

impl Range {
    /// All slots.
    pub const ALL: Range = Range { first: 0, last: SLOTS - 1 };

    /// Whether a slot is one of them.
    #[must_use]
    pub fn has(self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }

    /// How many they are.
    #[must_use]
    pub fn count(self) -> u16 {
        self.last - self.first + 1
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl std::str::FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last && last < SLOTS => Ok(Range { first, last }),
            _ => Err(format!("`{text}` are no slots: write 7, or 0-5460; the last is 16383")),
        }
    }
}

/// What slots have in common, for each run of slots: sorted, no slot twice, neighbours differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Runs<T>(Vec<(Range, T)>);

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs(Vec::new())
    }
}

impl<T: Clone + PartialEq> Runs<T> {
    /// What a slot has, if it has anything.
    #[must_use]
    pub fn get(&self, slot: u16) -> Option<&T> {
        let next = self.0.partition_point(|(range, _)| range.first <= slot);
        let (range, what) = self.0[..next].last()?;
        range.has(slot).then_some(what)
    }

    /// All runs, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Range, &T)> {
        self.0.iter().map(|(range, what)| (*range, what))
    }

    /// Gives slots something else, or nothing.
    pub fn set(&mut self, range: Range, what: Option<&T>) {
        let mut all: Vec<_> = Vec::with_capacity(self.0.len() + 2);
        for (held, kept) in self.0.drain(..) {
            // What is left of it on either side.
            if held.first < range.first {
                let last = held.last.min(range.first - 1);
                all.push((Range { first: held.first, last }, kept.clone()));
            }
            if held.last > range.last {
                let first = held.first.max(range.last + 1);
                all.push((Range { first, last: held.last }, kept));
            }
        }
        all.extend(what.map(|what| (range, what.clone())));
        all.sort_unstable_by_key(|(range, _)| *range);
        all.dedup_by(|(next, what), (before, same)| {
            let joins = before.last + 1 == next.first && *same == *what;
            if joins {
                before.last = next.last;
            }
            joins
        });
        self.0 = all;
    }

    /// The slots of which this holds.
    pub fn ranges(&self, holds: impl Fn(&T) -> bool) -> Vec<Range> {
        self.iter().filter(|(_, what)| holds(what)).map(|(range, _)| range).collect()
    }

    /// What of these ranges has nothing.
    #[must_use]
    pub fn lacking(&self, ranges: &[Range]) -> Vec<Range> {
        let mut rest = Runs::default();
        ranges.iter().for_each(|range| rest.set(*range, Some(&())));
        self.iter().for_each(|(range, _)| rest.set(range, None));
        rest.ranges(|()| true)
    }

    /// Whether all is as said: what comes from outside may not be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_range = |(range, _): &(Range, T)| range.first <= range.last && range.last < SLOTS;
        self.0.iter().all(is_range) && self.0.windows(2).all(|two| two[0].0.last < two[1].0.first)
    }
}

/// What a group is for a slot; nothing, where it has no part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// It has the slot's keys, and serves them.
    Owned,
    /// It hands the slot's keys to another group. It serves those that it still has, and makes no
    /// new ones.
    Giving {
        /// The other group.
        to: String,
    },
    /// It has handed all of them over, and waits for the other group to own the slot.
    Given {
        /// The other group.
        to: String,
    },
    /// It gets the slot's keys from another group, and serves those for which that group sends
    /// clients here (`ASK`).
    Taking {
        /// The other group.
        from: String,
        /// The session in which they come: a later one ends it.
        ticket: Ticket,
    },
}

/// The number of a session in which slots move. (A log has it as one number, as logs of earlier
/// releases have the session's alone.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u128", into = "u128")]
pub struct Ticket {
    /// Which group it is that gives the slots, of all that have begun under its name: a number that
    /// each has by chance; 0 where a log of an earlier release does not say.
    pub founding: u32,
    /// Counts that group's sessions: a later one's is greater.
    pub number: u64,
}

impl Ticket {
    /// Whether both are of one group, as far as that is known, and not of one that has begun anew
    /// under the name of another.
    #[must_use]
    pub fn has_giver_of(self, other: Ticket) -> bool {
        self.founding == other.founding || self.founding == 0
    }
}

impl From<u128> for Ticket {
    fn from(word: u128) -> Ticket {
        Ticket { founding: (word >> 64) as u32, number: word as u64 }
    }
}

impl From<Ticket> for u128 {
    fn from(ticket: Ticket) -> u128 {
        u128::from(ticket.founding) << 64 | u128::from(ticket.number)
    }
}

impl std::fmt::Display for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.founding, self.number)
    }
}

impl std::str::FromStr for Ticket {
    type Err = String;

    fn from_str(text: &str) -> Result<Ticket, String> {
        let parts =
            text.split_once('.').map(|(founding, number)| (founding.parse(), number.parse()));
        match parts {
            Some((Ok(founding), Ok(number))) => Ok(Ticket { founding, number }),
            _ => Err("that is no number of a session: are all groups of one release?".to_owned()),
        }
    }
}

/// What a group is for each slot.
pub type Holdings = Runs<Part>;

/// What the primary of a group serves by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// What the group is for each slot; none before it has been decided at all.
    pub holdings: Option<Holdings>,
    /// Keys that are on their way to another group, sorted: they can be read here, and not be
    /// changed by anybody.
    pub transit: Vec<Vec<u8>>,
    /// Slots that the cluster's map gives to another group, as far as this node has heard. If this
    /// one has them, too, as its log says, they are in dispute: nobody is served here for them. It
    /// stands in no log, since the map may be mended.
    pub foreign: Runs<()>,
}

/// Where a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Here.
    Here,
    /// By the slot's owner.
    Moved(u16),
    /// By the group that the slot goes to, this time.
    Ask(u16),
    /// Nowhere at the moment: some keys are here and others there.
    Split,
    /// Nowhere at the moment: a key is on its way.
    InTransit,
    /// Nowhere: the keys have different slots.
    Crosses,
}

/// A request, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Whether it changes keys.
    pub writes: bool,
    /// Whether the group that the keys come from has sent the client here.
    pub is_asking: bool,
}

impl Shard {
    /// What a node knows before it has seen the map: any slot may be another group's.
    #[must_use]
    pub fn unseen() -> Shard {
        let mut foreign = Runs::default();
        foreign.set(Range::ALL, Some(&()));
        Shard { foreign, ..Shard::default() }
    }

    /// What the group is for a slot.
    #[must_use]
    pub fn part(&self, slot: u16) -> Option<&Part> {
        self.holdings.as_ref()?.get(slot)
    }

    /// Whether keys of the slot go away one by one: what is decided about them then needs to be
    /// alone, so that no key comes back after a client was sent elsewhere for it.
    #[must_use]
    pub fn is_giving(&self, slot: u16) -> bool {
        matches!(self.part(slot), Some(Part::Giving { .. }))
    }

    /// Where a request for these keys is carried out. `is_here` says whether the store has a key.
    /// Without keys, it is about all that are here.
    pub fn judge<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        wanted: Wanted,
        is_here: impl FnMut(&[u8]) -> bool,
    ) -> Verdict {
        self.judge_in(keys.clone().next().map(slot_of), keys, wanted, is_here)
    }

    /// As [`Shard::judge`], where the slot of the first key is known.
    pub(crate) fn judge_in<'k>(
        &self,
        slot: Option<u16>,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        wanted: Wanted,
        mut is_here: impl FnMut(&[u8]) -> bool,
    ) -> Verdict {
        let Some(slot) = slot else {
            let is_stopped = wanted.writes && !self.transit.is_empty();
            return if is_stopped { Verdict::InTransit } else { Verdict::Here };
        };
        if keys.clone().skip(1).any(|key| slot_of(key) != slot) {
            return Verdict::Crosses;
        }
        match self.part(slot) {
            Some(part) if self.is_disputed(slot, part) => Verdict::Moved(slot),
            Some(Part::Owned) => Verdict::Here,
            None => Verdict::Moved(slot),
            Some(Part::Given { .. }) => Verdict::Ask(slot),
            Some(Part::Taking { .. }) if !wanted.is_asking => Verdict::Moved(slot),
            Some(Part::Taking { .. }) => {
                // One of several that is not here may not have come yet.
                let is_one = keys.clone().count() == 1;
                if is_one || keys.clone().all(is_here) { Verdict::Here } else { Verdict::Split }
            }
            Some(Part::Giving { .. }) => {
                let mut here = keys.clone().map(&mut is_here);
                let first = here.next().unwrap_or(false);
                if here.any(|other| other != first) {
                    return Verdict::Split;
                }
                // One that has ended here meanwhile is on its way still: what is put there now, it
                // would come over.
                let mut keys = keys;
                if wanted.writes && keys.any(|key| self.is_in_transit(key)) {
                    return Verdict::InTransit;
                }
                if first { Verdict::Here } else { Verdict::Ask(slot) }
            }
        }
    }

    /// (What comes and what has gone, the map may still call another group's.)
    fn is_disputed(&self, slot: u16, part: &Part) -> bool {
        let has_it = matches!(part, Part::Owned | Part::Giving { .. });
        has_it && self.foreign.get(slot).is_some()
    }

    fn is_in_transit(&self, key: &[u8]) -> bool {
        self.transit.binary_search_by(|held| held.as_slice().cmp(key)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum is the one of CRC-16/XMODEM's check; the slots are those of Redis' documentation.
    #[test]
    fn keys_have_the_slots_that_clients_expect() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn ranges_are_read_and_others_refused() {
        let read = |text: &str| text.parse::<Range>();
        assert_eq!(read("7"), Ok(Range { first: 7, last: 7 }));
        assert_eq!(read("0-16383"), Ok(Range::ALL));
        assert_eq!(Range::ALL.to_string(), "0-16383");
        for wrong in ["", "-", "5-4", "16384", "0-16384", "a", "1-2-3", "-1"] {
            assert!(read(wrong).unwrap_err().contains("no slots"), "{wrong}");
        }
    }

    #[test]
    fn runs_say_of_each_slot_what_was_set_last() {
        let mut runs = Runs::default();
        let mut each = vec![None; SLOTS.into()];
        let mut state = 7u64;
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((state >> 40) as u16 % SLOTS, (state >> 20) as u16 % SLOTS);
            let range = Range { first: a.min(b), last: a.max(b) };
            let what = [None, Some('a'), Some('b')][(state >> 60) as usize % 3];
            runs.set(range, what.as_ref());
            each[range.first.into()..=range.last.into()].fill(what);
            assert!(runs.is_sound());
            let differ =
                |two: &[(Range, char)]| two[0].1 != two[1].1 || two[0].0.last + 1 < two[1].0.first;
            assert!(runs.0.windows(2).all(differ), "{runs:?}");
            let found = (0..SLOTS).map(|slot| runs.get(slot).copied());
            assert!(found.eq(each.iter().copied()));
        }
    }

    /// Nodes keep tickets in their logs, and say them to each other.
    #[test]
    fn tickets_are_read_as_they_are_written() {
        let ticket = Ticket { founding: 5, number: 7 << 40 | 1 };
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
        assert_eq!(Ticket::from(u128::from(ticket)), ticket);
        for wrong in ["", "7", "5.", ".7", "5.x", "-5.7", "4294967296.7", "5.7.9"] {
            assert!(wrong.parse::<Ticket>().is_err(), "{wrong}");
        }
        // That of an earlier release is a number alone, of nobody knows which group.
        let earlier = Ticket::from(9);
        assert_eq!(earlier, Ticket { founding: 0, number: 9 });
        assert!(earlier.has_giver_of(ticket) && ticket.has_giver_of(ticket));
        assert!(!ticket.has_giver_of(Ticket { founding: 6, ..ticket }));
    }

    const READS: Wanted = Wanted { writes: false, is_asking: false };
    const WRITES: Wanted = Wanted { writes: true, is_asking: false };
    const ASKS: Wanted = Wanted { writes: true, is_asking: true };

    /// What becomes of requests for `{x}a`, `{x}b`, which are of one slot; the former is there.
    fn verdicts(part: Option<Part>, wanted: Wanted) -> [Verdict; 3] {
        let (here, gone): (&[u8], &[u8]) = (b"{x}a", b"{x}b");
        let mut holdings = Runs::default();
        holdings.set(Range::ALL, part.as_ref());
        let shard = Shard { holdings: Some(holdings), ..Shard::default() };
        let judge =
            |keys: &[&'static [u8]]| shard.judge(keys.iter().copied(), wanted, |key| key == here);
        [judge(&[here]), judge(&[gone]), judge(&[here, gone])]
    }

    #[test]
    fn a_request_is_carried_out_where_its_keys_are() {
        use Verdict::{Ask, Crosses, Here, InTransit, Moved, Split};
        let x = slot_of(b"x");
        let to = || "b".to_owned();
        let taking = || Some(Part::Taking { from: to(), ticket: Ticket::from(3) });
        assert_eq!(verdicts(None, WRITES), [Moved(x); 3]);
        assert_eq!(verdicts(None, ASKS), [Moved(x); 3]);
        assert_eq!(verdicts(Some(Part::Owned), WRITES), [Here; 3]);
        assert_eq!(verdicts(Some(Part::Giving { to: to() }), READS), [Here, Ask(x), Split]);
        assert_eq!(verdicts(Some(Part::Given { to: to() }), WRITES), [Ask(x); 3]);
        assert_eq!(verdicts(taking(), WRITES), [Moved(x); 3]);
        assert_eq!(verdicts(taking(), ASKS), [Here, Here, Split]);
        let shard = Shard::default();
        let two: [&[u8]; 2] = [b"x", b"y"];
        assert_eq!(shard.judge(two.into_iter(), READS, |_| true), Crosses);
        // A key on its way is read, and not changed; nor is everything.
        let mut holdings = Runs::default();
        holdings.set(Range::ALL, Some(&Part::Giving { to: to() }));
        let transit = vec![b"{x}a".to_vec()];
        let shard = Shard { holdings: Some(holdings), transit, ..Shard::default() };
        let judge =
            |keys: &[&'static [u8]], wanted| shard.judge(keys.iter().copied(), wanted, |_| true);
        assert_eq!(judge(&[b"{x}a"], READS), Here);
        assert_eq!(judge(&[b"{x}a"], WRITES), InTransit);
        assert_eq!(judge(&[b"{x}b"], WRITES), Here);
        // One whose time has ended meanwhile comes there nevertheless, after what is put there now.
        let ended = |wanted| shard.judge([&b"{x}a"[..]].into_iter(), wanted, |_| false);
        assert_eq!((ended(READS), ended(WRITES)), (Ask(x), InTransit));
        assert_eq!((judge(&[], READS), judge(&[], WRITES)), (Here, InTransit));
    }
}
