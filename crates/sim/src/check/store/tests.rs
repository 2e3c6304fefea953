//! What the judge accepts and what it refuses, and how many steps that takes.

use super::drawn::{Kind, spoil};
use super::plain::Plain;
use super::*;
use crate::dice::Dice;

fn event(op: Op, began: u64, ended: Option<(u64, Ret)>) -> Event {
    Event { op, began, ended }
}

fn get(began: u64, value: Option<u32>) -> Event {
    event(Op::Get, began, Some((began + 1, Ret::Value(value))))
}

fn is_possible(first: Option<u32>, events: &[Event], last: Option<u32>, may_vanish: bool) -> bool {
    let (first, last) = (first.and_then(for_ever), last.and_then(for_ever));
    has_order(first, events, (last, 100), may_vanish)
}

fn has_order(
    first: Option<KeyState>,
    events: &[Event],
    (last, seen_at): (Option<KeyState>, u64),
    may_vanish: bool,
) -> bool {
    let life = Life { first, events, last };
    let said = Search::new(&life, seen_at, may_vanish, &[]).finds_an_order(&mut { STEPS_MAX });
    said.expect("it is decided")
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
    let possible = |events: &[Event]| has_order(None, events, (None, 100), false);
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
    assert!(has_order(None, &[until], (held, 9), false));
    assert!(!has_order(None, &[until], (None, 9), false));
    assert!(!has_order(None, &[until], (for_ever(1), 9), false), "its expiry is lost");
    assert!(has_order(held, &[get(20, None)], (None, 30), false));
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

#[test]
fn it_says_what_a_plain_search_says() {
    let mut dice = Dice::new(1);
    let mut said = [0, 0];
    for _ in 0..20_000 {
        let (events, longest) = (dice.between(1..=6), dice.between(1..=6));
        let kind = Kind::draw(&mut dice, events, longest);
        let mut drawn = kind.life(&mut dice);
        let is_spoilt = dice.chance(0.8);
        if is_spoilt {
            spoil(&mut drawn, &mut dice);
            let open = drawn.events.iter().filter(|e| e.op == Op::Flush && e.ended.is_none());
            let fate =
                |flush: &Event| (flush.began, dice.pick(&[Fate::Never, Fate::Kept, Fate::Lost]));
            drawn.fates = open.map(fate).collect();
        }
        let (life, fates, seen_at) = (drawn.life(), &drawn.fates, drawn.seen_at);
        let may_vanish = kind.may_vanish;
        let plain = Plain { life: &life, seen_at, may_vanish, fates }.finds_an_order();
        let search = Search::new(&life, seen_at, may_vanish, fates);
        assert_eq!(
            search.finds_an_order(&mut { STEPS_MAX }),
            Some(plain),
            "{may_vanish} {drawn:?}"
        );
        assert!(plain || is_spoilt, "{may_vanish} {drawn:?}");
        said[usize::from(plain)] += 1;
    }
    assert!(said.iter().all(|times| *times > 5000), "{said:?}");
}

/// How many steps it takes, where `is_right` is what is found.
fn steps_of(life: &Life<'_>, is_right: bool) -> u64 {
    let mut steps = STEPS_MAX;
    let found = Search::new(life, 10_000, false, &[]).finds_an_order(&mut steps);
    assert_eq!(found, Some(is_right));
    STEPS_MAX - steps
}

/// As in the world of seed 4118: readers see one value all the time, and nobody sees the end of the
/// changes beside them.
#[test]
fn changes_without_an_end_take_few_steps() {
    let mut events = vec![SET];
    for i in 1..62 {
        let op = match i % 6 {
            0 => Op::Delete,
            1 => Op::Set(i + 1),
            2 => Op::Swap(1, i + 1),
            3 => Op::SetUntil(i + 1, 900 + u64::from(i)),
            4 => Op::Touch(900 + u64::from(i % 2)),
            _ => Op::Flush,
        };
        let began = 10 * u64::from(i);
        events.extend([event(op, began, None), get(began + 1, Some(1))]);
    }
    let steps = |more: &[Event], last, is_right| {
        let events = [&events[..], more].concat();
        let last = for_ever(last);
        steps_of(&Life { first: None, events: &events, last }, is_right)
            .div_ceil(events.len() as u64)
    };
    assert!(steps(&[], 1, true) <= 2);
    assert!(steps(&[], 32, true) <= 2);
    assert!(steps(&[], 999, false) <= 2, "nobody has set what the next life found");
    assert!(steps(&[get(800, Some(999))], 1, false) <= 2, "nobody has set what was read");
    let gone = [get(800, None), get(810, Some(1))];
    assert!(steps(&gone, 1, false) <= 2, "what was gone was read");
}

#[test]
fn long_lives_take_few_steps() {
    let mut dice = Dice::new(2);
    for _ in 0..300 {
        let longest = dice.pick(&[2, 10, 100]);
        let kind = Kind { expires: false, ..Kind::draw(&mut dice, EVENTS_MAX as u64, longest) };
        let mut drawn = kind.life(&mut dice);
        if dice.coin() {
            spoil(&mut drawn, &mut dice);
        }
        let search = Search::new(&drawn.life(), drawn.seen_at, kind.may_vanish, &[]);
        let most = 100 * EVENTS_MAX as u64;
        assert!(search.finds_an_order(&mut { most }).is_some(), "{drawn:?}");
    }
}

#[test]
fn what_takes_too_long_is_not_decided() {
    let life = Life { first: None, events: &[SET, get(2, Some(1))], last: for_ever(1) };
    assert_eq!(judge_within(&mut 3, &[life], 100, false), Ok(()));
    assert_eq!(judge_within(&mut 2, &[life], 100, false), Err(Wrong::Undecided(0)));
    assert_eq!(judge_within(&mut 4, &[life, life], 100, false), Err(Wrong::Undecided(1)));
}
