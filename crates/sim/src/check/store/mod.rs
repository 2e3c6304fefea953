//! A store's keys: for each there is an order of its operations that one copy of it would allow,
//! and nothing that was acknowledged is lost when the store crashes.
//!
//! A life of a store is judged alone: from what it began with to what the next life found. The end
//! is the state after some of the changes, in their order, with all that were acknowledged among
//! them. Others may have been seen by readers and be lost: a reader does not wait for the disk.
//!
//! Keys are judged one by one, but for this: a flush whose end nobody saw was of all keys, or of
//! none.
//!
//! - `search`: finds the order. `plain`: a slow search that is plainly right, and `drawn`:
//!   lives, for tests.

use std::collections::BTreeSet;

use search::Search;

use super::STEPS_MAX;

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod plain;
mod search;
#[cfg(test)]
mod tests;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
    /// Whether this key, by its place, has an order takes too many steps to find out.
    Undecided(usize),
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
    judge_within(&mut { STEPS_MAX }, lives, seen_at, may_vanish)
}

/// The same, in at most so many steps, of which those are left that it does not take.
fn judge_within(
    steps: &mut u64,
    lives: &[Life<'_>],
    seen_at: u64,
    may_vanish: bool,
) -> Result<(), Wrong> {
    let mut first_wrong = |fates: &[Flushed]| -> Result<Option<usize>, Wrong> {
        for (key, life) in lives.iter().enumerate() {
            let search = Search::new(life, seen_at, may_vanish, fates);
            if !search.finds_an_order(steps).ok_or(Wrong::Undecided(key))? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    };
    if let Some(key) = first_wrong(&[])? {
        return Err(Wrong::Key(key));
    }
    let events = lives.iter().flat_map(|life| life.events);
    let open = events.filter(|event| event.op == Op::Flush && event.ended.is_none());
    let open: BTreeSet<u64> = open.map(|event| event.began).collect();
    let judged: Vec<u64> = open.into_iter().rev().take(FLUSHES_MAX).collect();
    if judged.is_empty() {
        return Ok(());
    }
    for number in 0..3usize.pow(judged.len() as u32) {
        let fate = |at| [Fate::Never, Fate::Kept, Fate::Lost][number / 3usize.pow(at) % 3];
        let fates: Vec<_> = (0..).zip(&judged).map(|(at, began)| (*began, fate(at))).collect();
        if first_wrong(&fates)?.is_none() {
            return Ok(());
        }
    }
    Err(Wrong::Torn)
}
