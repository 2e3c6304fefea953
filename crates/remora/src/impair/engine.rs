//! What becomes of each packet: a function of the rules, a seed, and when packets come.

use std::net::IpAddr;
use std::time::Duration;

use remora_nic::Time;
use remora_nic::split_mix::{SplitMix, mix};

use super::{Direction, ImpairCounters, Impairments, REORDER_MIN, Rule, Share};

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes on, as if there were no rules.
    Passes,
    /// It is lost.
    Lost,
    /// It goes on later, or changed, or twice.
    Delayed(Delayed),
}

/// How a packet goes on that does not simply pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delayed {
    /// When it is due.
    pub due: Time,
    /// Later ones may overtake it.
    pub reordered: bool,
    /// This bit is another: counted from the first byte's lowest, modulo the packet's length.
    pub flip: Option<u32>,
    /// It goes on twice.
    pub twice: bool,
}

/// Decides for the packets of one direction.
#[derive(Clone, Debug)]
pub struct Impairer {
    direction: Direction,
    lines: Vec<Line>,
    pub(crate) counters: ImpairCounters,
}

/// A rule at work: a line that packets go through one after the other.
#[derive(Clone, Debug)]
struct Line {
    rule: Rule,
    draws: Draws,
    /// When the last packet has left, at the rule's rate.
    free_at: Time,
    /// When the last packet that keeps its place is due.
    last_due: Time,
    /// That one is held until then.
    is_held: bool,
}

impl Impairer {
    /// Decides for `direction` as `wanted` says; `seed` is for impairments without one.
    pub fn new(direction: Direction, wanted: &Impairments, seed: u64) -> Impairer {
        let mut impairer =
            Impairer { direction, lines: Vec::new(), counters: ImpairCounters::default() };
        impairer.set(wanted, seed);
        impairer
    }

    /// Other rules hold from now on. Counts go on.
    pub fn set(&mut self, wanted: &Impairments, seed: u64) {
        let seed = wanted.seed.unwrap_or(seed);
        let line = |(at, rule): (u64, &Rule)| Line {
            rule: *rule,
            // Each line has its own draws, so that the packets of one do not change another's fate.
            draws: Draws::new(seed, 2 * at + self.direction as u64),
            free_at: Time::ZERO,
            last_due: Time::ZERO,
            is_held: false,
        };
        self.lines = (0..).zip(&wanted.rules).map(line).collect();
    }

    /// Does anything happen to packets?
    pub fn is_on(&self) -> bool {
        !self.lines.is_empty()
    }

    /// What becomes of a packet of `len` bytes to or from `peer` that comes now. Times must not go
    /// backwards, and what is held and due must have gone on.
    pub fn judge(&mut self, now: Time, peer: IpAddr, len: usize) -> Fate {
        let direction = self.direction;
        let fits = |line: &&mut Line| line.rule.fits(direction, peer);
        match self.lines.iter_mut().find(fits) {
            None => Fate::Passes,
            Some(line) => line.judge(now, len, &mut self.counters),
        }
    }
}

impl Line {
    fn judge(&mut self, now: Time, len: usize, counters: &mut ImpairCounters) -> Fate {
        let rule = self.rule;
        if self.draws.falls_into(rule.loss) {
            counters.lost += 1;
            return Fate::Lost;
        }
        let Some(leaves) = self.leaves(now, len) else {
            counters.queue_full += 1;
            return Fate::Lost;
        };
        let mut due = leaves + self.delay();
        // Those before it are held, and have not gone on.
        let waits = self.is_held && self.last_due >= now;
        let reordered = self.draws.falls_into(rule.reorder);
        if reordered {
            due = due.max(self.last_due) + rule.delay.max(REORDER_MIN);
        } else {
            due = due.max(self.last_due);
            self.last_due = due;
        }
        let twice = self.draws.falls_into(rule.duplicate);
        let flip = self.draws.falls_into(rule.corrupt).then(|| self.draws.next() as u32);
        let passes = due <= now && !waits && !twice && flip.is_none();
        self.is_held = if reordered { self.is_held } else { !passes };
        if passes {
            return Fate::Passes;
        }
        Fate::Delayed(Delayed { due, reordered, flip, twice })
    }

    /// When a packet that comes now has left, at the rule's rate; `None` if too many wait.
    fn leaves(&mut self, now: Time, len: usize) -> Option<Time> {
        let Some(rate) = self.rule.rate else { return Some(now) };
        let (rate, len) = (u128::from(rate), len as u128);
        let waits = self.free_at.since(now).as_nanos() * rate / 8 / 1_000_000_000;
        if waits + len > u128::from(self.rule.queue) && waits > 0 {
            return None;
        }
        let takes = len * 8 * 1_000_000_000 / rate;
        self.free_at = self.free_at.max(now) + Duration::from_nanos(takes as u64);
        Some(self.free_at)
    }

    fn delay(&mut self) -> Duration {
        let Rule { delay, jitter, .. } = self.rule;
        if jitter.is_zero() {
            return delay;
        }
        let span = 2 * jitter.as_nanos() as u64 + 1;
        let drawn = (u128::from(self.draws.next()) * u128::from(span)) >> 32;
        delay - jitter + Duration::from_nanos(drawn as u64)
    }
}

/// Numbers at random.
#[derive(Clone, Debug)]
struct Draws(SplitMix);

impl Draws {
    /// The draws of one of a seed's lines. They begin at a place that is mixed: states some steps
    /// apart give the same numbers, only later.
    fn new(seed: u64, line: u64) -> Draws {
        Draws(SplitMix::new(mix(mix(seed).wrapping_add(line))))
    }

    /// A number of 32 bits.
    fn next(&mut self) -> u64 {
        self.0.number() >> 32
    }

    /// Does this packet belong to the share? No number is drawn for a share of none.
    fn falls_into(&mut self, share: Share) -> bool {
        share != Share::NONE && share.has(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn impairer(text: &str) -> Impairer {
        Impairer::new(Direction::Out, &text.parse().unwrap(), 1)
    }

    fn lost(text: &str, packets: u64) -> Vec<u64> {
        let mut impairer = impairer(text);
        let lost: Vec<u64> =
            (0..packets).filter(|n| impairer.judge(Time(*n), PEER, 100) == Fate::Lost).collect();
        assert_eq!(impairer.counters.lost, lost.len() as u64);
        lost
    }

    #[test]
    fn as_many_are_lost_as_were_asked_for_and_the_same_for_a_seed() {
        assert_eq!((lost("loss=0%", 1000).len(), lost("loss=100%", 1000).len()), (0, 1000));
        let some = lost("loss=2.5%,seed=7", 10_000);
        assert!((200..300).contains(&some.len()), "{}", some.len());
        assert_eq!(some, lost("loss=2.5%,seed=7", 10_000));
        assert_ne!(some, lost("loss=2.5%,seed=8", 10_000));
        assert!(!impairer("off").is_on());
    }

    /// Whatever the seed, what becomes of packets one way says nothing of those the other way.
    #[test]
    fn the_two_directions_have_draws_of_their_own() {
        const PACKETS: u64 = 4000;
        for seed in 0..100 {
            let wanted: Impairments = "loss=20%".parse().unwrap();
            let [inwards, outwards] = [Direction::In, Direction::Out].map(|direction| {
                let mut impairer = Impairer::new(direction, &wanted, seed);
                let lost = |n| impairer.judge(Time(n), PEER, 100) == Fate::Lost;
                (0..PACKETS).map(lost).collect::<Vec<_>>()
            });
            for shift in 0..4 {
                for (one, other) in [(&inwards, &outwards), (&outwards, &inwards)] {
                    let both =
                        one[shift..].iter().zip(other).filter(|(one, other)| **one && **other);
                    // 160 by chance, and 800 where they are the same.
                    let count = both.count();
                    assert!((80..260).contains(&count), "seed {seed}, {shift} apart: {count}");
                }
            }
        }
    }

    #[test]
    fn the_first_rule_that_fits_applies() {
        let mut impairer = impairer("in,loss=100%; peer=192.0.2.0/24,delay=1us; loss=100%");
        let held = Delayed { due: Time(1005), reordered: false, flip: None, twice: false };
        assert_eq!(impairer.judge(Time(5), PEER, 100), Fate::Delayed(held));
        assert_eq!(impairer.judge(Time(5), "10.0.0.1".parse().unwrap(), 100), Fate::Lost);
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_keeps_the_order() {
        let mut impairer = impairer("delay=20us+-5us");
        let mut last = Time::ZERO;
        let mut seen = [false; 2];
        for n in 0..1000 {
            let now = Time(n * 100_000);
            let Fate::Delayed(held) = impairer.judge(now, PEER, 100) else { panic!("it passed") };
            let after = held.due.since(now).as_nanos();
            assert!((15_000..=25_000).contains(&after) && held.due >= last, "{after}");
            seen = [seen[0] || after < 17_000, seen[1] || after > 23_000];
            last = held.due;
        }
        assert_eq!(seen, [true; 2]);
        // Together: none overtakes another.
        let mut due = Time::ZERO;
        for _ in 0..1000 {
            let Fate::Delayed(held) = impairer.judge(last, PEER, 100) else { panic!("it passed") };
            assert!(held.due >= due);
            due = held.due;
        }
    }

    /// What comes behind a packet that is sent twice waits for both.
    #[test]
    fn copies_overtake_nobody() {
        let mut impairer = impairer("duplicate=20%,seed=3");
        for now in [5, 6] {
            let judge = |_| impairer.judge(Time(now), PEER, 100);
            let fates: Vec<Fate> = (0..100).map(judge).collect();
            let held = |twice| {
                Fate::Delayed(Delayed { due: Time(now), reordered: false, flip: None, twice })
            };
            let first = fates.iter().position(|fate| *fate != Fate::Passes);
            let rest = &fates[first.expect("one is sent twice")..];
            assert!(rest.iter().all(|fate| [held(false), held(true)].contains(fate)), "{fates:?}");
            assert!(rest.contains(&held(false)), "all are sent twice: {fates:?}");
        }
    }

    #[test]
    fn a_rate_spaces_packets_and_a_full_queue_loses_them() {
        // 1000 bytes take 8 µs at 1 Gb/s.
        let mut impairer = impairer("rate=1G,queue=3000");
        let dues: Vec<Option<u64>> = (0..4)
            .map(|_| match impairer.judge(Time(100), PEER, 1000) {
                Fate::Delayed(held) => Some(held.due.0),
                _ => None,
            })
            .collect();
        assert_eq!(dues, [Some(8_100), Some(16_100), Some(24_100), None]);
        assert_eq!(impairer.counters.queue_full, 1);
        let Fate::Delayed(held) = impairer.judge(Time(30_000), PEER, 1000) else { panic!() };
        assert_eq!(held.due, Time(38_000), "the line was free again");
    }

    #[test]
    fn what_is_reordered_is_overtaken() {
        let mut impairer = impairer("reorder=100%,delay=10us");
        let Fate::Delayed(held) = impairer.judge(Time(0), PEER, 100) else { panic!() };
        assert_eq!((held.due, held.reordered), (Time(60_000), true));
        impairer.set(&"delay=10us".parse().unwrap(), 1);
        let Fate::Delayed(next) = impairer.judge(Time(1000), PEER, 100) else { panic!() };
        assert_eq!((next.due, next.reordered), (Time(11_000), false));
    }

    #[test]
    fn packets_are_repeated_and_damaged() {
        let mut impairer = impairer("duplicate=100%,corrupt=100%");
        let Fate::Delayed(held) = impairer.judge(Time(9), PEER, 100) else { panic!() };
        assert!(held.twice && held.flip.is_some() && held.due == Time(9));
        assert_eq!(impairer.counters, ImpairCounters::default(), "nothing has become of it yet");
    }
}
