//! A store's keys: for each there is an order of its operations that one copy of it would allow
//! (Wing and Gong's search, with the states that were tried remembered), and nothing that was
//! acknowledged is lost when the store crashes.
//!
//! A life of a store is judged alone: from what it began with to what the next life found. The end
//! is the state after some of the changes, in their order, with all that were acknowledged among
//! them. Others may have been seen by readers and be lost: a reader does not wait for the disk.

use std::collections::HashSet;

/// What a client does to a key. Values are numbers that nobody sets twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads it.
    Get,
    /// Sets it.
    Set(u32),
    /// Removes it.
    Delete,
    /// Sets it to the second if it is the first.
    Swap(u32, u32),
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

impl Event {
    /// The value afterwards, if one copy of the key could have answered so.
    fn step(&self, value: Option<u32>) -> Option<Option<u32>> {
        let (after, ret) = match self.op {
            Op::Get => (value, Ret::Value(value)),
            Op::Set(new) => (Some(new), Ret::Done),
            Op::Delete => (None, Ret::Did(value.is_some())),
            Op::Swap(old, new) if value == Some(old) => (Some(new), Ret::Did(true)),
            Op::Swap(..) => (value, Ret::Did(false)),
        };
        self.ended.is_none_or(|(_, said)| said == ret).then_some(after)
    }

    /// Was it acknowledged that this has changed the key?
    fn is_acknowledged_change(&self) -> bool {
        matches!(self.ended, Some((_, Ret::Done | Ret::Did(true))))
    }
}

/// Whether a key that began a life with the value `first` can have ended it with `last`, where
/// these are all operations on it, and it may vanish by itself at any time if `may_vanish`.
///
/// # Panics
/// If there are more than [`EVENTS_MAX`].
pub fn is_possible(
    first: Option<u32>,
    events: &[Event],
    last: Option<u32>,
    may_vanish: bool,
) -> bool {
    assert!(events.len() <= EVENTS_MAX, "{} operations on one key", events.len());
    let set = |of: fn(&Event) -> bool| -> u128 {
        (0..events.len()).filter(|i| of(&events[*i])).map(|i| 1 << i).sum()
    };
    let (ended, kept) = (set(|event| event.ended.is_some()), set(Event::is_acknowledged_change));
    // What is done, the value then, and whether the end of the life can have been by then.
    let (mut seen, mut ahead) = (HashSet::new(), vec![(0u128, first, false)]);
    while let Some((done, value, was_last)) = ahead.pop() {
        let was_last = was_last || done & kept == kept && value == last;
        if was_last && done & ended == ended {
            return true;
        }
        if !seen.insert((done, value, was_last)) {
            continue;
        }
        if may_vanish {
            ahead.push((done, None, was_last));
        }
        let rest = || (0..events.len()).filter(|i| done & 1 << i == 0);
        let first_end = rest().filter_map(|i| events[i].ended).map(|(at, _)| at).min();
        // Whatever began before anything else had ended may be the next.
        let may_be_next = |i: &usize| first_end.is_none_or(|end| events[*i].began < end);
        for i in rest().filter(may_be_next) {
            ahead.extend(events[i].step(value).map(|after| (done | 1 << i, after, was_last)));
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
}
