//! The search for an order of one key's operations: Wing and Gong's, one operation after the other,
//! whichever began before any other of those left had ended. These keep it short:
//!
//! - An operation whose end nobody saw need not have happened. Of two ways that lead to the same,
//!   the one that has used fewer of these can do all that the other can, so the other ends.
//! - Such operations that would do the same are used in the order in which they began, and values
//!   that nobody was told of are all alike.
//! - A value that is replaced does not come back, so nobody may be left who was told of it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use super::{EVENTS_MAX, Event, FOR_EVER, Fate, Flushed, KeyState, Life, Op, Ret};

/// Operations, by their places.
type Set = u128;

pub(super) struct Search {
    first: Option<KeyState>,
    /// What the next life found, and when.
    last: (Option<KeyState>, u64),
    may_vanish: bool,
    events: Vec<Event>,
    /// What has happened for certain.
    certain: Set,
    /// What has not.
    never: Set,
    /// What the next life has seen, and what it has not.
    kept: Set,
    lost: Set,
    /// For each operation, those that are used before it, as they would do the same.
    before: Vec<Set>,
    /// Who was told of each value; not where values can come back.
    told: HashMap<u32, Set>,
    values_return: bool,
}

/// How far an order has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    done: Set,
    held: Option<KeyState>,
    /// The earliest moment for that.
    at: u64,
    /// Whether the end of the life can have been by then.
    was_last: bool,
}

/// The points from which the search goes on, and where it has been.
struct Points {
    certain: Set,
    /// First those that have done the most of what is certain, and used the least for it.
    ahead: BinaryHeap<(u32, Reverse<u32>, Reverse<u64>, Point)>,
    /// The best ones that have done the same of what is certain, where the key is the same then.
    best: HashMap<(Set, Option<KeyState>), Vec<Point>>,
}

impl Search {
    pub(super) fn new(
        life: &Life<'_>,
        seen_at: u64,
        may_vanish: bool,
        fates: &[Flushed],
    ) -> Search {
        assert!(life.events.len() <= EVENTS_MAX, "{} operations on one key", life.events.len());
        let values_return = life.events.iter().any(|event| matches!(event.op, Op::Add(_)));
        let events = if values_return { life.events.to_vec() } else { with_few_values(life) };
        let set = |of: &dyn Fn(&Event) -> bool| -> Set {
            (0..events.len()).filter(|i| of(&events[*i])).map(|i| 1 << i).sum()
        };
        let has =
            |event: &Event, fate| event.op == Op::Flush && fates.contains(&(event.began, fate));
        let never = set(&|event| has(event, Fate::Never));
        let lost = set(&|event| has(event, Fate::Lost));
        let kept = set(&|event| event.is_acknowledged_change() || has(event, Fate::Kept));
        let certain = set(&|event| event.ended.is_some()) | kept | lost;
        let values: BTreeSet<u32> = events.iter().filter_map(value_told).collect();
        let told = |value| (value, set(&|event| value_told(event) == Some(value)));
        let told = values.into_iter().map(told).collect();
        let before = used_before(&events, certain | never);
        let (first, last) = (life.first, (life.last, seen_at));
        Search {
            first,
            last,
            may_vanish,
            events,
            certain,
            never,
            kept,
            lost,
            before,
            told,
            values_return,
        }
    }

    /// Whether there is one, if that is found out in so many steps, of which those are left that it
    /// does not take.
    pub(super) fn finds_an_order(&self, steps: &mut u64) -> Option<bool> {
        let (ahead, best) = (BinaryHeap::new(), HashMap::new());
        let mut points = Points { certain: self.certain, ahead, best };
        points.add(self.with_end(Point { done: 0, held: self.first, at: 0, was_last: false }));
        while let Some(point) = points.next() {
            *steps = steps.checked_sub(1)?;
            if point.was_last && point.done & self.certain == self.certain {
                return Some(true);
            }
            self.go_on(point, &mut points);
        }
        Some(false)
    }

    /// Says so if the life can have ended here.
    fn with_end(&self, point: Point) -> Point {
        let left = point.held.filter(|held| held.until > self.last.1);
        let is_kept = point.done & (self.kept | self.lost) == self.kept;
        Point { was_last: point.was_last || is_kept && left == self.last.0, ..point }
    }

    /// Adds all that can come next.
    fn go_on(&self, from: Point, points: &mut Points) {
        let mut add = |point: Point| {
            let point = self.with_end(point);
            if self.can_end(&from, &point) {
                points.add(point);
            }
        };
        if self.may_vanish && from.held.is_some() {
            add(Point { held: None, ..from });
        }
        let rest = (0..self.events.len()).filter(|i| (from.done | self.never) & 1 << i == 0);
        let first_end = rest.clone().filter_map(|i| self.events[i].ended).map(|(at, _)| at).min();
        // Each is as early as it can be, or else when the value has expired.
        for i in rest.filter(|i| self.before[*i] & !from.done == 0) {
            let early = from.at.max(self.events[i].began);
            let late = from.held.map(|held| early.max(held.until)).filter(|at| *at < FOR_EVER);
            let moments = [
                Some((early, from.held)).filter(|_| late != Some(early)),
                late.map(|at| (at, None)),
            ];
            for (at, held) in moments.into_iter().flatten() {
                let is_early = first_end.is_none_or(|end| at <= end);
                let after = self.events[i].step(held).filter(|_| is_early);
                let is_useful = |after: &_| self.certain & 1 << i != 0 || *after != held;
                if let Some(held) = after.filter(is_useful) {
                    add(Point { done: from.done | 1 << i, held, at, ..from });
                }
            }
        }
    }

    /// Whether the search can come to an end from a point where it has come from another.
    fn can_end(&self, from: &Point, to: &Point) -> bool {
        let is_lost = !to.was_last && to.done & self.lost != 0;
        let value = |held: Option<KeyState>| held.map(|held| held.value);
        let gone =
            value(from.held).filter(|gone| !self.values_return && value(to.held) != Some(*gone));
        let is_missed = gone.is_some_and(|gone| {
            let told = self.told.get(&gone).copied().unwrap_or_default();
            told & !to.done != 0 || !to.was_last && value(self.last.0) == Some(gone)
        });
        !is_lost && !is_missed
    }
}

impl Point {
    /// Whether all can come after this that can come after another, where the key is the same.
    fn is_as_good_as(&self, other: &Point) -> bool {
        self.done & !other.done == 0 && self.at <= other.at && self.was_last >= other.was_last
    }
}

impl Points {
    /// Adds a point, unless the search has been where it is as good.
    fn add(&mut self, point: Point) {
        let (done, used) = (point.done & self.certain, point.done & !self.certain);
        let best = self.best.entry((done, point.held)).or_default();
        if !best.iter().any(|other| other.is_as_good_as(&point)) {
            best.retain(|other| !point.is_as_good_as(other));
            best.push(point);
            let few = (Reverse(used.count_ones()), Reverse(point.at));
            self.ahead.push((done.count_ones(), few.0, few.1, point));
        }
    }

    /// The next point, but those to which one was preferred meanwhile.
    fn next(&mut self) -> Option<Point> {
        loop {
            let (.., point) = self.ahead.pop()?;
            if self.best[&(point.done & self.certain, point.held)].contains(&point) {
                return Some(point);
            }
        }
    }
}

/// The value of which an answer says that it was there.
fn value_told(event: &Event) -> Option<u32> {
    match (event.op, event.ended?.1) {
        (Op::Get, Ret::Value(value)) => value,
        (Op::Swap(old, _), Ret::Did(true)) => Some(old),
        _ => None,
    }
}

/// The operations on a key, with one value in place of all those that nobody names.
fn with_few_values(life: &Life<'_>) -> Vec<Event> {
    let swapped = |event: &Event| if let Op::Swap(old, _) = event.op { Some(old) } else { None };
    let named = life.events.iter().flat_map(|event| [value_told(event), swapped(event)]).flatten();
    let ends = [life.first, life.last].into_iter().flatten().map(|held| held.value);
    let named: BTreeSet<u32> = named.chain(ends).collect();
    let mut other = None;
    let mut alike = |value: &mut u32| {
        if !named.contains(value) {
            *value = *other.get_or_insert(*value);
        }
    };
    let mut events = life.events.to_vec();
    for event in &mut events {
        if let Op::Set(value) | Op::SetUntil(value, _) | Op::Swap(_, value) = &mut event.op {
            alike(value);
        }
    }
    events
}

/// For each operation that need not have happened, those that would do the same and began earlier.
fn used_before(events: &[Event], others: Set) -> Vec<Set> {
    let effect = |event: &Event| if event.op == Op::Flush { Op::Delete } else { event.op };
    let is_before = |i: usize, than: usize| {
        others & (1 << i | 1 << than) == 0
            && effect(&events[i]) == effect(&events[than])
            && (events[i].began, i) < (events[than].began, than)
    };
    let before = |than| (0..events.len()).filter(|i| is_before(*i, than)).map(|i| 1 << i).sum();
    (0..events.len()).map(before).collect()
}
