//! The clients of a card that several programs share: the rates that they are held to.
//!
//! How they take turns is in [`crate::client_shares`].

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::rate::{Buckets, RateLimits};
use crate::time::Time;
use crate::timers::{Timer, Timers};

/// The clients that are held to rates, by number.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    limited: BTreeMap<u16, Limited>,
    /// Timers, by the number of the client.
    timers: Timers,
}

#[derive(Debug)]
struct Limited {
    buckets: Buckets,
    /// The queue pairs that wait until the rates let them go on, each once.
    waiting: VecDeque<u32>,
    timer: Timer,
}

impl Clients {
    /// Sets the rates of a client, or ends them. Returns the queue pairs that waited for the old
    /// ones.
    pub(crate) fn set(
        &mut self,
        now: Time,
        client: u16,
        limits: Option<RateLimits>,
    ) -> VecDeque<u32> {
        let old = self.limited.remove(&client);
        if let Some(limits) = limits {
            let (buckets, waiting) = (Buckets::new(limits, now), VecDeque::new());
            self.limited.insert(client, Limited { buckets, waiting, timer: Timer::IDLE });
        }
        old.map(|old| old.waiting).unwrap_or_default()
    }

    /// Is the client held to rates?
    pub(crate) fn is_limited(&self, client: u16) -> bool {
        self.limited.contains_key(&client)
    }

    /// May the client begin an element? If not, the queue pair waits for it: `waits` is the queue
    /// pair's own mark that it is listed.
    pub(crate) fn may_run(&mut self, now: Time, client: u16, qpn: u32, waits: &mut bool) -> bool {
        let Some(limited) = self.limited.get_mut(&client) else { return true };
        let opens_at = limited.buckets.opens_at();
        if opens_at <= now {
            return true;
        }
        if !*waits {
            *waits = true;
            limited.waiting.push_back(qpn);
        }
        self.timers.arm(&mut limited.timer, client.into(), opens_at);
        false
    }

    /// Notes that the client begins an element with this many bytes.
    pub(crate) fn spend(&mut self, now: Time, client: u16, bytes: u64) {
        if let Some(limited) = self.limited.get_mut(&client) {
            limited.buckets.take(now, bytes);
        }
    }

    /// When [`Clients::wake`] is due.
    pub(crate) fn next(&self) -> Time {
        self.timers.next()
    }

    /// Takes a queue pair that may go on. Those of one client go on one after the other, in the
    /// order in which they began to wait.
    pub(crate) fn wake(&mut self, now: Time) -> Option<u32> {
        while let Some((at, client)) = self.timers.pop(now) {
            let Some(limited) = self.limited.get_mut(&(client as u16)) else { continue };
            if !self.timers.expire(&mut limited.timer, client, at, now) {
                continue;
            }
            let opens_at = limited.buckets.opens_at();
            let woken = if opens_at <= now { limited.waiting.pop_front() } else { None };
            if !limited.waiting.is_empty() {
                // The next one follows when this one has had its turn.
                let next = opens_at.max(now + Duration::from_nanos(1));
                self.timers.arm(&mut limited.timer, client, next);
            }
            if woken.is_some() {
                return woken;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;

    #[test]
    fn queue_pairs_of_a_client_go_on_in_turn() {
        let mut clients = Clients::default();
        let elements = Some(Rate { per_second: 1_000_000, burst: 1 });
        clients.set(Time(0), 7, Some(RateLimits { elements, bytes: None }));
        let mut waits = [false; 3];
        let mut ran = Vec::new();
        // Three queue pairs that always have something to send.
        let mut turn = |clients: &mut Clients, now, qpn: u32, waits: &mut [bool; 3]| {
            while clients.may_run(now, 7, qpn, &mut waits[qpn as usize]) {
                clients.spend(now, 7, 8);
                ran.push((now.0, qpn));
            }
        };
        (0..3).for_each(|qpn| turn(&mut clients, Time(0), qpn, &mut waits));
        for now in (0..6000).map(Time) {
            while let Some(qpn) = clients.wake(now) {
                waits[qpn as usize] = false;
                turn(&mut clients, now, qpn, &mut waits);
            }
        }
        let expected = [(0, 0), (1000, 0), (2000, 1), (3000, 2), (4000, 0), (5000, 1)];
        assert_eq!(ran, expected);
        // Without limits, those that wait are told, and no other client was held.
        assert_eq!(clients.set(Time(6000), 7, None).len(), 3);
        assert!(clients.may_run(Time(0), 8, 0, &mut false));
        assert_eq!((clients.wake(Time::NEVER), clients.is_limited(7)), (None, false));
    }
}
