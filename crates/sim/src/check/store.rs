//! A store's keys: for each there is an order of its operations that one copy of it would allow
//! (Wing and Gong's search, with the states that were tried remembered), and nothing that was
//! acknowledged is lost when the store crashes.
//!
//! A life of a store is judged alone: from what it began with to what the next life found. The end
//! is the state after some of the changes, in their order, with all that were acknowledged among
//! them. Others may have been seen by readers and be lost: a reader does not wait for the disk.
//!
//! Keys are judged one by one, but for this: a flush whose end nobody saw was of all keys, or of
//! none.

use std::collections::{BTreeSet, HashSet};

/// What a client does to a key. Values are numbers that nobody sets twice; a counter's are sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads it.
    Get,
    /// Sets it.
    Set(u32),
    /// Sets it until the moment of this number.
    SetUntil(u32, u64),
    /// Keeps it until then.
    Touch(u64),
    /// Removes it.
    Delete,
    /// Sets it to the second if it is the first.
    Swap(u32, u32),
    /// Adds to a counter, which is 0 where it is absent.
    Add(u32),
    /// Removes all keys.
    Flush,
}

/// What the client is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ret {
    /// The value, if there is one.
    Value(Option<u32>),
    /// It is set.
    Done,
    /// Whether there was something to delete or to swap.
    Did(bool),
    /// What the counter is then.
    Sum(u32),
    /// There is no room, and nothing has changed.
    Refused,
}

/// What a key is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyState {
    /// Its value.
    pub value: u32,
    /// The moment from which on it has expired, as a number in the order of the events.
    pub until: u64,
}

/// The moment at which nothing expires.
pub const FOR_EVER: u64 = u64::MAX;

fn for_ever(value: u32) -> Option<KeyState> {
    Some(KeyState { value, until: FOR_EVER })
}

/// An operation: when it began, and how and when it ended, as far as its client knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What was to be done.
    pub op: Op,
    /// When it began. Of two events, beginnings or ends, the later has the higher number.
    pub began: u64,
    /// When it ended, and with which answer; `None` if nobody saw that.
    pub ended: Option<(u64, Ret)>,
}

/// The most operations of one key in one life.
pub const EVENTS_MAX: usize = 128;

/// The most flushes of a life whose fates are judged together, the last of them: each makes it take
/// three times as long.
const FLUSHES_MAX: usize = 4;

/// A key in a life of its store.
#[derive(Clone, Copy, Debug)]
pub struct Life<'a> {
    /// What it began with.
    pub first: Option<KeyState>,
    /// All operations on it.
    pub events: &'a [Event],
    /// What the next life found.
    pub last: Option<KeyState>,
}

/// What has become of a flush whose end nobody saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Never,
    /// It was carried out, and lost when the store crashed.
    Lost,
    Kept,
}

/// The beginning of a flush, which tells it from others, and what has become of it.
type Flushed = (u64, Fate);

/// Why lives are not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// This key, by its place, has no order of its own.
    Key(usize),
    /// A flush has removed some keys and not others.
    Torn,
}

impl Event {
    /// Does it say anything about its key? A read that nobody saw the end of does not.
    pub fn says_something(&self) -> bool {
        !matches!((self.op, self.ended), (_, Some((_, Ret::Refused))) | (Op::Get, None))
    }

    /// What the key is afterwards, if one copy of it could have answered so. What has expired is
    /// not there.
    fn step(&self, held: Option<KeyState>) -> Option<Option<KeyState>> {
        if matches!(self.ended, Some((_, Ret::Refused))) {
            return Some(held);
        }
        let value = held.map(|held| held.value);
        let keep = |value| KeyState { value, until: held.map_or(FOR_EVER, |held| held.until) };
        let (after, ret) = match self.op {
            Op::Get => (held, Ret::Value(value)),
            Op::Set(new) => (for_ever(new), Ret::Done),
            Op::SetUntil(new, until) => (Some(KeyState { value: new, until }), Ret::Done),
            Op::Touch(until) => {
                (value.map(|value| KeyState { value, until }), Ret::Did(value.is_some()))
            }
            Op::Delete => (None, Ret::Did(value.is_some())),
            Op::Swap(old, new) if value == Some(old) => (Some(keep(new)), Ret::Did(true)),
            Op::Swap(..) => (held, Ret::Did(false)),
            Op::Add(more) => {
                let sum = value.unwrap_or(0) + more;
                (Some(keep(sum)), Ret::Sum(sum))
            }
            Op::Flush => (None, Ret::Done),
        };
        self.ended.is_none_or(|(_, said)| said == ret).then_some(after)
    }

    /// Was it acknowledged that this has changed the key?
    fn is_acknowledged_change(&self) -> bool {
        matches!(self.ended, Some((_, Ret::Done | Ret::Did(true) | Ret::Sum(_))))
    }
}

/// Whether the keys of a tablespace can have had these lives, whose last values were seen at a
/// moment after them. Keys may vanish by themselves at any time if `may_vanish`.
///
/// # Errors
/// What is wrong with them.
///
/// # Panics
/// If a key has more than [`EVENTS_MAX`].
pub fn judge(lives: &[Life<'_>], seen_at: u64, may_vanish: bool) -> Result<(), Wrong> {
    let possible = |life: &Life<'_>, fates: &[Flushed]| {
        is_possible(life.first, life.events, (life.last, seen_at), may_vanish, fates)
    };
    if let Some(key) = lives.iter().position(|life| !possible(life, &[])) {
        return Err(Wrong::Key(key));
    }
    let events = lives.iter().flat_map(|life| life.events);
    let open = events.filter(|event| event.op == Op::Flush && event.ended.is_none());
    let open: BTreeSet<u64> = open.map(|event| event.began).collect();
    let judged: Vec<u64> = open.into_iter().rev().take(FLUSHES_MAX).collect();
    let mut fates = (0..3usize.pow(judged.len() as u32)).map(|number| -> Vec<Flushed> {
        let fate = |at| [Fate::Never, Fate::Kept, Fate::Lost][number / 3usize.pow(at) % 3];
        (0..).zip(&judged).map(|(at, began)| (*began, fate(at))).collect()
    });
    let is_whole = |fates: Vec<Flushed>| lives.iter().all(|life| possible(life, &fates));
    (judged.is_empty() || fates.any(is_whole)).then_some(()).ok_or(Wrong::Torn)
}

/// Whether a key that began a life with `first` can have ended it with `last`, as was seen at a
/// moment after it, where these are all operations on it, and this has become of flushes.
fn is_possible(
    first: Option<KeyState>,
    events: &[Event],
    (last, seen_at): (Option<KeyState>, u64),
    may_vanish: bool,
    fates: &[Flushed],
) -> bool {
    assert!(events.len() <= EVENTS_MAX, "{} operations on one key", events.len());
    let set = |of: &dyn Fn(&Event) -> bool| -> u128 {
        (0..events.len()).filter(|i| of(&events[*i])).map(|i| 1 << i).sum()
    };
    let has = |event: &Event, fate| event.op == Op::Flush && fates.contains(&(event.began, fate));
    let lost = set(&|event| has(event, Fate::Lost));
    let kept = set(&|event| event.is_acknowledged_change() || has(event, Fate::Kept));
    let ended = set(&|event| event.ended.is_some()) | kept | lost;
    let never = set(&|event| has(event, Fate::Never));
    // What is done, what the key is then, the earliest moment for that, and whether the end of the
    // life can have been by then.
    let (mut seen, mut ahead) = (HashSet::new(), vec![(0u128, first, 0, false)]);
    while let Some((done, held, at, was_last)) = ahead.pop() {
        let left = held.filter(|held| held.until > seen_at);
        let was_last = was_last || done & (kept | lost) == kept && left == last;
        if was_last && done & ended == ended {
            return true;
        }
        if !seen.insert((done, held, at, was_last)) {
            continue;
        }
        if may_vanish {
            ahead.push((done, None, at, was_last));
        }
        let rest = || (0..events.len()).filter(|i| (done | never) & 1 << i == 0);
        let first_end = rest().filter_map(|i| events[i].ended).map(|(at, _)| at).min();
        // Whatever began before anything else had ended may be the next, as early as it can be, or
        // else when the value has expired.
        for i in rest() {
            let early = at.max(events[i].began);
            let late = held.map(|held| early.max(held.until)).filter(|at| *at < FOR_EVER);
            let moments =
                [Some((early, held)).filter(|_| late != Some(early)), late.map(|at| (at, None))];
            for (at, held) in moments.into_iter().flatten() {
                if first_end.is_none_or(|end| at <= end) {
                    let after = events[i].step(held);
                    ahead.extend(after.map(|after| (done | 1 << i, after, at, was_last)));
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: Op, began: u64, ended: Option<(u64, Ret)>) -> Event {
        Event { op, began, ended }
    }

    fn get(began: u64, value: Option<u32>) -> Event {
        event(Op::Get, began, Some((began + 1, Ret::Value(value))))
    }

    fn is_possible(
        first: Option<u32>,
        events: &[Event],
        last: Option<u32>,
        may_vanish: bool,
    ) -> bool {
        let (first, last) = (first.and_then(for_ever), last.and_then(for_ever));
        super::is_possible(first, events, (last, 100), may_vanish, &[])
    }

    /// Where keys stay.
    fn is_kept(first: Option<u32>, events: &[Event], last: Option<u32>) -> bool {
        is_possible(first, events, last, false)
    }

    const SET: Event = Event { op: Op::Set(1), began: 0, ended: Some((1, Ret::Done)) };
    const OPEN: Event = Event { op: Op::Set(2), began: 2, ended: None };

    #[test]
    fn reads_are_of_one_order() {
        assert!(is_kept(None, &[SET, get(2, Some(1))], Some(1)));
        assert!(!is_kept(None, &[SET, get(2, None)], Some(1)), "an old value");
        assert!(is_kept(Some(7), &[get(0, Some(7)), SET], Some(1)), "what it began with");
        let forth = [SET, OPEN, get(3, Some(1)), get(5, Some(2))];
        assert!(is_kept(None, &forth, Some(2)));
        let back = [SET, OPEN, get(3, Some(2)), get(5, Some(1))];
        assert!(!is_kept(None, &back, Some(1)), "a value that goes back");
        let swap = event(Op::Swap(1, 3), 4, Some((9, Ret::Did(true))));
        assert!(is_kept(None, &[SET, swap, get(5, Some(1)), get(7, Some(3))], Some(3)));
        assert!(!is_kept(None, &[SET, swap, get(5, Some(3)), get(7, Some(1))], Some(3)));
    }

    #[test]
    fn what_was_acknowledged_is_there_at_the_end() {
        assert!(is_kept(None, &[SET], Some(1)));
        assert!(!is_kept(None, &[SET], None), "it is lost");
        let delete = event(Op::Delete, 2, Some((3, Ret::Did(true))));
        assert!(is_kept(None, &[SET, delete], None));
        assert!(!is_kept(None, &[SET, delete], Some(1)), "it is back");
        // What nobody acknowledged may be lost, though it was seen; or not.
        let seen = [SET, OPEN, get(3, Some(2))];
        assert!(is_kept(None, &seen, Some(1)) && is_kept(None, &seen, Some(2)));
        assert!(!is_kept(None, &seen, None) && !is_kept(None, &seen, Some(3)));
        // But not if it came before what was.
        let swap = event(Op::Swap(2, 3), 4, Some((5, Ret::Did(true))));
        assert!(!is_kept(None, &[SET, OPEN, swap], Some(1)));
        assert!(is_kept(None, &[SET, OPEN, swap], Some(3)));
    }

    #[test]
    fn what_may_vanish_does_not_come_back() {
        let gone = [SET, get(2, None)];
        assert!(!is_possible(None, &gone, Some(1), false) && !is_kept(None, &[SET], None));
        assert!(is_possible(None, &gone, None, true));
        // That it vanished may be lost in a crash.
        assert!(is_possible(None, &gone, Some(1), true));
        assert!(!is_possible(None, &[SET, get(2, None), get(4, Some(1))], None, true));
        assert!(!is_possible(None, &gone, Some(7), true));
    }

    #[test]
    fn counters_lose_nothing_and_flushes_leave_nothing() {
        let add = |began, sum| event(Op::Add(2), began, Some((9, Ret::Sum(sum))));
        assert!(is_kept(None, &[SET, add(2, 3), add(3, 5)], Some(5)));
        assert!(!is_kept(None, &[SET, add(2, 3), add(3, 3)], Some(3)), "one is lost");
        assert!(!is_kept(None, &[SET, add(2, 3)], Some(5)), "one is carried out twice");
        assert!(!is_kept(None, &[SET, add(2, 3)], Some(1)), "one is lost in the crash");
        let flush = event(Op::Flush, 2, Some((4, Ret::Done)));
        assert!(is_kept(None, &[SET, flush, get(3, Some(1)), add(5, 2)], Some(2)));
        assert!(!is_kept(None, &[SET, flush, get(5, Some(1))], None), "it is back");
        assert!(!is_kept(None, &[SET, flush], Some(1)), "it is back after the crash");
    }

    #[test]
    fn what_expires_is_there_until_then_and_not_later() {
        let until = event(Op::SetUntil(1, 10), 0, Some((1, Ret::Done)));
        let possible = |events: &[Event]| super::is_possible(None, events, (None, 100), false, &[]);
        assert!(possible(&[until, get(8, Some(1)), get(9, None), get(20, None)]));
        assert!(!possible(&[until, get(8, None)]), "it is not there");
        assert!(!possible(&[until, get(10, Some(1))]), "it is there still");
        assert!(!possible(&[until, get(9, None), get(9, Some(1)), get(12, Some(1))]), "it is back");
        let touch = event(Op::Touch(30), 2, Some((3, Ret::Did(true))));
        assert!(possible(&[until, touch, get(20, Some(1)), get(30, None)]));
        assert!(!possible(&[until, touch, get(20, None)]), "it was touched");
        // A sum stays as long as what was added to; behind its expiry, it begins again.
        let add = |began, sum| event(Op::Add(2), began, Some((began + 1, Ret::Sum(sum))));
        assert!(possible(&[until, add(2, 3), get(20, None)]));
        assert!(!possible(&[until, add(20, 3)]));
        // At the end of a life, it is there if its time has not come.
        let held = Some(KeyState { value: 1, until: 10 });
        assert!(super::is_possible(None, &[until], (held, 9), false, &[]));
        assert!(!super::is_possible(None, &[until], (None, 9), false, &[]));
        assert!(
            !super::is_possible(None, &[until], (for_ever(1), 9), false, &[]),
            "its expiry is lost"
        );
        assert!(super::is_possible(held, &[get(20, None)], (None, 30), false, &[]));
    }

    #[test]
    fn what_is_refused_has_not_happened() {
        let refused = event(Op::Set(2), 2, Some((3, Ret::Refused)));
        assert!(is_kept(None, &[SET, refused, get(4, Some(1))], Some(1)));
        assert!(!is_kept(None, &[SET, refused, get(4, Some(2))], Some(1)), "it was seen");
        assert!(!is_kept(None, &[SET, refused], Some(2)), "it was kept");
        assert!(SET.says_something() && OPEN.says_something() && !refused.says_something());
    }

    #[test]
    fn a_flush_is_of_all_keys_or_of_none() {
        let flush = event(Op::Flush, 2, None);
        let [plain, gone] = [vec![flush], vec![flush, get(4, None)]];
        let judged = |lives: [(&[Event], Option<u32>); 2]| {
            let lives = lives.map(|(events, last)| {
                let (first, last) = (for_ever(1), last.and_then(for_ever));
                Life { first, events, last }
            });
            judge(&lives, 100, false)
        };
        assert_eq!(judged([(&plain, None), (&plain, None)]), Ok(()));
        assert_eq!(judged([(&plain, Some(1)), (&plain, Some(1))]), Ok(()));
        assert_eq!(judged([(&plain, None), (&plain, Some(1))]), Err(Wrong::Torn));
        assert_eq!(judged([(&gone, Some(1)), (&plain, Some(1))]), Ok(()), "seen, and lost");
        assert_eq!(judged([(&gone, Some(1)), (&plain, None)]), Err(Wrong::Torn));
        assert_eq!(judged([(&plain, None), (&plain, Some(7))]), Err(Wrong::Key(1)));
        // A key that was set again behind it says nothing of it.
        let again = [flush, event(Op::Set(5), 6, Some((7, Ret::Done)))];
        assert_eq!(judged([(&plain, None), (&again, Some(5))]), Ok(()));
    }
}
