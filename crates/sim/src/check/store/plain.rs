//! A search that is slow and plainly right: all that can happen, moment by moment.

use std::collections::HashSet;

use super::{Event, Fate, Flushed, KeyState, Life, Op};

/// For how long anything can happen behind the moment at which a life's end was seen.
const AFTER: u64 = 20;

/// What has been done, what the key is, the moment, and whether the life can have ended by then.
type Point = (u32, Option<KeyState>, u64, bool);

pub(super) struct Plain<'a> {
    pub(super) life: &'a Life<'a>,
    pub(super) seen_at: u64,
    pub(super) may_vanish: bool,
    pub(super) fates: &'a [Flushed],
}

impl Plain<'_> {
    pub(super) fn finds_an_order(&self) -> bool {
        self.goes_on((0, self.life.first, 0, false), &mut HashSet::new())
    }

    fn goes_on(&self, point: Point, seen: &mut HashSet<Point>) -> bool {
        let (done, held, now, was_last) = point;
        if now > self.seen_at + AFTER || !seen.insert(point) {
            return false;
        }
        let events = self.life.events;
        let is_done = |i: usize| done & 1 << i != 0;
        let all = |is_right: &dyn Fn(usize, &Event) -> bool| {
            (0..).zip(events).all(|(i, e)| is_right(i, e))
        };
        let was_last = was_last
            || self.left(held) == self.life.last
                && all(&|i, event| match self.fate(event) {
                    Some(fate) => is_done(i) == (fate == Fate::Kept),
                    None => !event.is_acknowledged_change() || is_done(i),
                });
        let is_settled = |i, event: &Event| match self.fate(event) {
            Some(fate) => is_done(i) == (fate != Fate::Never),
            None => event.ended.is_none() || is_done(i),
        };
        if was_last && all(&is_settled) {
            return true;
        }
        let there = held.filter(|held| held.until > now);
        let next = (0..events.len()).filter(|i| {
            let event = &events[*i];
            !is_done(*i) && event.began <= now && self.fate(event) != Some(Fate::Never)
        });
        let steps = |i: usize| events[i].step(there).map(|after| (done | 1 << i, after));
        next.filter_map(steps).any(|(done, after)| self.goes_on((done, after, now, was_last), seen))
            || self.may_vanish && self.goes_on((done, None, now, was_last), seen)
            || !(0..events.len())
                .any(|i| !is_done(i) && events[i].ended.is_some_and(|e| e.0 == now))
                && self.goes_on((done, held, now + 1, was_last), seen)
    }

    fn left(&self, held: Option<KeyState>) -> Option<KeyState> {
        held.filter(|held| held.until > self.seen_at)
    }

    fn fate(&self, event: &Event) -> Option<Fate> {
        let is_its = |(began, _): &&Flushed| *began == event.began && event.op == Op::Flush;
        self.fates.iter().find(is_its).map(|(_, fate)| *fate)
    }
}
