//! Lives of a key that are drawn, right ones and wrong ones, for tests.

use super::{Event, FOR_EVER, Flushed, KeyState, Life, Op, Ret};
use crate::dice::Dice;

/// What is drawn.
pub(super) struct Kind {
    pub(super) clients: u64,
    pub(super) events: u64,
    /// The part of the operations whose ends nobody sees.
    pub(super) open: f64,
    pub(super) counts: bool,
    pub(super) expires: bool,
    pub(super) may_vanish: bool,
    /// How long an operation takes at most.
    pub(super) longest: u64,
}

/// A life, when its end was seen, and what has become of flushes.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) first: Option<KeyState>,
    pub(super) events: Vec<Event>,
    pub(super) last: Option<KeyState>,
    pub(super) seen_at: u64,
    pub(super) fates: Vec<Flushed>,
}

impl Drawn {
    pub(super) fn life(&self) -> Life<'_> {
        Life { first: self.first, events: &self.events, last: self.last }
    }
}

impl Kind {
    pub(super) fn draw(dice: &mut Dice, events: u64, longest: u64) -> Kind {
        Kind {
            clients: dice.between(1..=4),
            events,
            open: dice.pick(&[0.1, 0.5, 0.9]),
            counts: dice.one_in(4),
            expires: dice.coin(),
            may_vanish: dice.one_in(4),
            longest,
        }
    }

    /// A life that one copy of the key has gone through.
    pub(super) fn life(&self, dice: &mut Dice) -> Drawn {
        let until = |dice: &mut Dice| dice.between(1..=3 * self.longest);
        let until = if self.expires && dice.coin() { until(dice) } else { FOR_EVER };
        let first = dice.coin().then_some(KeyState { value: 1, until });
        let mut free = vec![0; self.clients as usize];
        let (mut events, mut happen, mut now) = (Vec::new(), Vec::new(), 0);
        for i in 0..self.events {
            let client = free.iter_mut().min().expect("there are clients");
            now = (now + 1).max(*client);
            let end = now + dice.below(self.longest);
            let is_open = dice.chance(self.open);
            // Behind what nobody waits for any more, it may happen late, or never.
            let most = end + if is_open { 3 * self.longest } else { 0 };
            if !is_open || dice.coin() {
                happen.push((dice.between(now..=most), i as usize));
            }
            *client = end + 1;
            let op = self.op(dice, i as u32 + 2, now);
            events.push(Event { op, began: now, ended: (!is_open).then_some((end, Ret::Done)) });
        }
        happen.sort_unstable();
        let seen_at = now + 4 * self.longest;
        let mut drawn = Drawn { first, events, last: first, seen_at, fates: Vec::new() };
        self.carry_out(dice, &mut drawn, &happen);
        drawn
    }

    fn op(&self, dice: &mut Dice, value: u32, now: u64) -> Op {
        let until = now + 1 + dice.below(3 * self.longest);
        match dice.below(10) {
            0..3 => Op::Get,
            3..7 if self.counts => Op::Add(1 + dice.below(3) as u32),
            3 | 4 => Op::Set(value),
            5 if self.expires => Op::SetUntil(value, until),
            7 if self.expires => Op::Touch(until),
            5..8 if !self.counts => Op::Swap(0, value),
            8 => Op::Flush,
            _ => Op::Delete,
        }
    }

    /// Carries operations out, each at its moment, some of the last of them in vain: what they did
    /// is lost, unless it was acknowledged.
    fn carry_out(&self, dice: &mut Dice, drawn: &mut Drawn, happen: &[(u64, usize)]) {
        let kept = dice.below(happen.len() as u64 + 1) as usize;
        let (mut held, mut seen) = (drawn.first, 1);
        for (place, (at, i)) in happen.iter().enumerate() {
            let event = &mut drawn.events[*i];
            let is_there = |held: &KeyState| held.until > *at;
            held = held.filter(is_there).filter(|_| !self.may_vanish || !dice.one_in(8));
            seen = held.map_or(seen, |held| held.value);
            if let Op::Swap(old, _) = &mut event.op {
                *old = seen;
            }
            let (before, open) = (held, Event { ended: None, ..*event });
            held = open.step(held).expect("it may have any answer");
            if let Some((_, ret)) = &mut event.ended {
                *ret = answer(event.op, before, held);
            }
            if place < kept || event.is_acknowledged_change() {
                drawn.last = held;
            }
        }
        drawn.last = drawn.last.filter(|last| last.until > drawn.seen_at);
    }
}

fn answer(op: Op, before: Option<KeyState>, after: Option<KeyState>) -> Ret {
    let value = |held: Option<KeyState>| held.map(|held| held.value);
    match op {
        Op::Get => Ret::Value(value(before)),
        Op::Set(_) | Op::SetUntil(..) | Op::Flush => Ret::Done,
        Op::Touch(_) | Op::Delete => Ret::Did(before.is_some()),
        Op::Swap(old, _) => Ret::Did(value(before) == Some(old)),
        Op::Add(_) => Ret::Sum(value(after).unwrap_or(0)),
    }
}

/// Changes answers, or what the next life found. It may be right nevertheless.
pub(super) fn spoil(drawn: &mut Drawn, dice: &mut Dice) {
    let set = drawn.events.iter().filter_map(|event| match event.op {
        Op::Set(value) | Op::SetUntil(value, _) | Op::Swap(_, value) => Some(value),
        _ => None,
    });
    let values: Vec<_> = set.map(Some).chain([None, Some(1)]).collect();
    if dice.one_in(4) {
        let held = |value| KeyState { value, until: FOR_EVER };
        drawn.last = dice.pick(&values).map(held);
    }
    for _ in 0..dice.below(3) {
        let at = dice.below(drawn.events.len() as u64) as usize;
        let Some((_, said)) = &mut drawn.events[at].ended else { continue };
        *said = match *said {
            Ret::Value(_) => Ret::Value(dice.pick(&values)),
            Ret::Did(did) => Ret::Did(!did),
            Ret::Sum(sum) => Ret::Sum(sum + 1),
            Ret::Done | Ret::Refused => Ret::Refused,
        };
    }
}
