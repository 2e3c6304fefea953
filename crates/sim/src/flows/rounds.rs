//! A thread's rounds: in each, its parts run a window of time, one after the other, and hand over
//! what leaves them.
//!
//! A window is as long as the least delay of a link from part to part, so what one sends reaches
//! another in a later window. A thread has several parts where its hosts are so many that their
//! state does not stay in the processor's caches otherwise: in a window, much happens to few hosts.
//! Where the fabric has parts of its own, these run behind the others in each round, and further.

use core::ops::Range;
use core::sync::atomic::Ordering;
use std::time::Instant;

use super::carrier::Carrier;
use super::cluster::ClusterError;
use super::report::{Deadlock, Part as Outcome};
use super::share::Share;
use super::shared::{Shared, locked};
use crate::net::deadlock::circle;
use crate::net::time::{MS, NEVER, Ps, US};

/// The longest window: after each, the run tells how far it has come.
const WINDOW: Ps = 100 * US;
/// How often a network with flow control is searched for deadlocks.
const LOOK: Ps = MS;

/// A thread's parts.
pub(super) struct Rounds<'a, C> {
    shared: &'a Shared<'a>,
    thread: usize,
    /// Those with hosts, then the fabric's.
    shares: Vec<Share<'a, C>>,
    /// How many have hosts.
    with_hosts: usize,
    start: Ps,
    next_look: Ps,
    suspects: Option<Vec<u32>>,
}

impl<'a, C: Carrier<'a>> Rounds<'a, C> {
    /// Runs a thread's parts of the flows.
    pub(super) fn run(shared: &'a Shared<'a>, thread: usize) -> Vec<Outcome> {
        let [hosts, fabric] = shared.division.parts_of(thread);
        let with_hosts = hosts.len();
        let parts = hosts.chain(fabric);
        let made = parts.map(|own| C::new(shared, own).map(|carrier| (own, carrier)));
        let made: Result<Vec<(u8, C)>, ClusterError> = made.collect();
        if let Err(error) = &made {
            locked(&shared.failed).get_or_insert(error.clone());
        }
        shared.barrier.wait();
        if locked(&shared.failed).is_some() {
            return Vec::new();
        }
        let connected = made.into_iter().flatten().map(|(own, mut carrier)| {
            carrier.connect();
            Share::new(shared, own, carrier)
        });
        let mut shares: Vec<Share<'a, C>> = connected.collect();
        let start = shares.first_mut().map_or(0, |share| share.carrier.net().now());
        let next_look = start + LOOK;
        let suspects = None;
        let mut rounds = Rounds { shared, thread, shares, with_hosts, start, next_look, suspects };
        let begin = Instant::now();
        rounds.work();
        let seconds = begin.elapsed().as_secs_f64();
        let outcomes = rounds.shares.into_iter().map(Share::finish);
        outcomes.map(|outcome| Outcome { run_seconds: seconds, ..outcome }).collect()
    }

    /// Runs window after window until no part has anything to do.
    fn work(&mut self) {
        let shared = self.shared;
        let until = self.start.saturating_add(shared.cluster.until);
        let window = shared.division.window().min(WINDOW);
        let has_pauses = shared.cluster.net.pfc.is_some();
        let mut told = (0, 0);
        loop {
            shared.nexts[self.thread].store(self.next_at(until), Ordering::Release);
            shared.barrier.wait();
            let nexts = shared.nexts.iter().map(|next| next.load(Ordering::Acquire));
            let next = nexts.min().unwrap_or(NEVER);
            if next != NEVER {
                let before = next.min(until.saturating_add(1));
                self.shares.iter_mut().for_each(|share| share.sample_before(before));
            }
            if next > until {
                return self.sample_last();
            }
            if has_pauses && next >= self.next_look && self.finds_deadlock(next) || next == NEVER {
                return self.sample_last();
            }
            let mut end = next.saturating_add(window - 1).min(until);
            if has_pauses {
                // A look is of a moment, however the cluster is divided.
                end = end.min(self.next_look - 1);
            }
            self.run_until(end, until);
            let ended: usize = self.shares.iter().map(|share| share.outcome.over()).sum();
            let nets = self.shares.iter_mut().map(|share| share.carrier.net());
            let delivered: u64 = nets.map(|net| net.tally.delivered_bytes).sum();
            let more = ((ended - told.0) as u64, delivered - told.1);
            shared.watch.tell(next - self.start, more.0, more.1);
            told = (ended, delivered);
        }
    }

    /// When the next round has something to do: the fabric is ahead of the others.
    fn next_at(&mut self, until: Ps) -> Ps {
        let ahead = self.shared.division.ahead();
        let (hosts, fabric) = self.shares.split_at_mut(self.with_hosts);
        let hosts = hosts.iter_mut().map(|share| share.carrier.next_at());
        let fabric = fabric.iter_mut().map(|share| share.carrier.next_at());
        let fabric = fabric.filter(|next| *next <= until && *next < NEVER);
        let fabric = fabric.map(|next| next.saturating_sub(ahead));
        hosts.chain(fabric).min().unwrap_or(NEVER).max(self.start)
    }

    /// Runs the parts with hosts until `end`, and the fabric as far as what they have sent allows;
    /// then each has what others have sent it.
    fn run_until(&mut self, end: Ps, until: Ps) {
        let ahead = self.shared.division.ahead();
        self.run_some(0..self.with_hosts, end);
        if ahead > 0 {
            // The fabric sends nothing before all have taken what hosts have sent. Behind the last
            // run of a round, the next round's barrier sees to that.
            self.shared.barrier.wait();
            self.run_some(self.with_hosts..self.shares.len(), end.saturating_add(ahead).min(until));
        }
    }

    fn run_some(&mut self, some: Range<usize>, end: Ps) {
        for share in &mut self.shares[some] {
            share.run_until(end);
            share.hand_over();
        }
        if self.shared.mail.len() > 1 {
            self.shared.barrier.wait();
            self.shares.iter_mut().for_each(Share::take_over);
        }
    }

    /// Takes the samples that another part has taken, when all is over.
    fn sample_last(&mut self) {
        let sampled = self.shares.iter().map(Share::sampled).max().unwrap_or(0);
        self.shared.sampled.fetch_max(sampled, Ordering::AcqRel);
        self.shared.barrier.wait();
        let sampled = self.shared.sampled.load(Ordering::Acquire);
        self.shares.iter_mut().for_each(|share| share.sample_before(sampled));
    }

    /// A circle of paused ports that is there in two looks in a row, or when nothing else will
    /// happen, is a deadlock. Where a port is paused is known at its part; what it waits for, at
    /// that of the next switch. `next` is when something happens next.
    fn finds_deadlock(&mut self, next: Ps) -> bool {
        let shared = self.shared;
        let at = self.next_look - self.start;
        if next < NEVER {
            self.next_look += LOOK * (1 + (next - self.next_look) / LOOK);
        }
        let nets: Vec<_> = self.shares.iter_mut().map(|share| share.carrier.net()).collect();
        nets.iter().for_each(|net| locked(&shared.paused).extend(net.paused()));
        shared.barrier.wait();
        let mut paused = locked(&shared.paused).clone();
        paused.sort_unstable();
        nets.iter().for_each(|net| locked(&shared.waits).extend(net.waits_of(&paused)));
        shared.barrier.wait();
        let mut circle = circle(&locked(&shared.waits));
        shared.barrier.wait();
        locked(&shared.paused).clear();
        locked(&shared.waits).clear();
        shared.barrier.wait();
        if let Some(circle) = &mut circle {
            // Each waits for the next; the one that is named first is always the same.
            let least = (0..circle.len()).min_by_key(|i| circle[*i]).unwrap_or(0);
            circle.rotate_left(least);
        }
        let is_dead = circle.is_some() && (circle == self.suspects || next == NEVER);
        if let (true, Some(links), Some(net)) = (is_dead, &circle, nets.first()) {
            let ends = |link: &u32| (net.link(*link).from, net.link(*link).to);
            let links = links.iter().map(ends).collect();
            locked(&shared.deadlock).get_or_insert(Deadlock { at, links, left: 0 });
        }
        self.suspects = circle;
        is_dead
    }
}
