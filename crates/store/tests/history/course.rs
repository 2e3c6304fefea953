//! Clients who do anything to a few keys at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use remora::nic::split_mix::SplitMix;

use super::value::LONG;
use super::{Event, Op, Ret};

/// The keys of a round, where nobody says otherwise.
pub(crate) const KEYS: u64 = 3;

/// A client, by whichever way.
pub(crate) trait Client: Send {
    /// Carries out an operation; `None` if its end is not known.
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret>;

    /// Whether it sees and changes when keys end.
    fn sees_ends(&self) -> bool {
        false
    }
}

impl<C: Client> Client for &mut C {
    fn carry_out(&mut self, key: &str, op: Op) -> Option<Ret> {
        (**self).carry_out(key, op)
    }

    fn sees_ends(&self) -> bool {
        (**self).sees_ends()
    }
}

/// Whether a key is a counter: so is every third.
fn is_counter(key: u64) -> bool {
    key % 3 == 2
}

/// A key of a round, by its number.
pub(crate) fn name_of(round: usize, key: u64) -> String {
    format!("key-{round}-{key}")
}

/// What all clients of a test share: the order of what happens, the next value, how many keys
/// there are in a round, whether clients delete all keys at times, and whether they do nothing but
/// read and set.
pub(crate) struct Course {
    clock: AtomicU64,
    value: AtomicU32,
    pub(crate) keys: u64,
    pub(crate) flushes: bool,
    pub(crate) only_sets: bool,
    /// Whether clients who see when keys end change that, too.
    pub(crate) expires: bool,
    /// Whether one value in sixteen is long, and there is one key more, whose values grow.
    pub(crate) grows: bool,
}

impl Default for Course {
    fn default() -> Course {
        let (clock, value, keys) = (0.into(), 0.into(), KEYS);
        let (flushes, only_sets, expires, grows) = (false, false, false, false);
        Course { clock, value, keys, flushes, only_sets, expires, grows }
    }
}

impl Course {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn new_value(&self) -> u32 {
        let value = self.value.fetch_add(1, SeqCst);
        if self.grows && value.is_multiple_of(16) { value | LONG } else { value }
    }

    /// Carries out so many operations of one client on a round's keys.
    pub(crate) fn run(
        &self,
        client: usize,
        round: usize,
        operations: usize,
        act: &mut dyn Client,
    ) -> Vec<Event> {
        let mut turns = 0..operations;
        self.run_while(client, round, act, || turns.next().is_some())
    }

    /// The same for as long as `goes_on` says so.
    pub(crate) fn run_while(
        &self,
        client: usize,
        round: usize,
        act: &mut dyn Client,
        mut goes_on: impl FnMut() -> bool,
    ) -> Vec<Event> {
        let (mut seen, mut events) = (vec![0; self.keys as usize], Vec::new());
        let mut random = random_numbers(client as u64 * 1_000_003 + round as u64);
        while goes_on() {
            let key = random() % self.keys;
            if self.flushes && random().is_multiple_of(32) {
                let event = self.carry_out(client, round, key, Op::Flush, act);
                events.extend((0..self.keys).map(|key| Event { key, ..event }));
                continue;
            }
            let new = || self.new_value();
            let appends = self.grows && key + 1 == self.keys;
            let ends = self.expires && act.sees_ends() && random().is_multiple_of(2);
            let op = match random() % 8 {
                0..3 if ends => Op::HasEnd,
                3 | 4 if ends => Op::End(true),
                5 if ends => Op::End(false),
                even if ends => Op::GetEnd(even % 2 == 0),
                0..4 => Op::Get,
                _ if self.only_sets => Op::Set(new()),
                4..7 if appends => Op::Append(1 + (random() % 700) as u32),
                4..7 if is_counter(key) => Op::Add(1 + (random() % 3) as u32),
                4 | 5 => Op::Set(new()),
                6 => Op::Swap(seen[key as usize], new()),
                _ => Op::Delete,
            };
            let event = self.carry_out(client, round, key, op, act);
            if let (Op::Set(value), _) | (_, Some((_, Ret::Value(Some(value))))) = (op, event.ended)
            {
                seen[key as usize] = value;
            }
            // A read whose answer nobody saw says nothing.
            if event.ended.is_some() || op != Op::Get {
                events.push(event);
            }
        }
        events
    }

    /// Carries out one operation of a client on a round's key.
    pub(crate) fn carry_out(
        &self,
        client: usize,
        round: usize,
        key: u64,
        op: Op,
        act: &mut dyn Client,
    ) -> Event {
        let began = self.now();
        let ended = act.carry_out(&name_of(round, key), op);
        let ended = ended.map(|ret| (self.now(), ret));
        Event { client, key, op, began, ended }
    }
}

/// The numbers of a seed.
pub(crate) fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut numbers = SplitMix::new(seed);
    move || numbers.number()
}
