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
use super::report::{Deadlock, Outcome, Steady};
use super::share::Share;
use super::shared::{Shared, locked};
use crate::net::deadlock::{Line, Paused, Waits, circle, stuck};
use crate::net::time::{MS, NEVER, Ps, US};
use crate::net::{Change, Link, Node};

/// The longest window: after each, the run tells how far it has come.
const WINDOW: Ps = 100 * US;
/// How often a network with flow control is searched for deadlocks, if not its longest delay asks
/// for longer.
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
    /// From look to look.
    look: Ps,
    next_look: Ps,
    /// What was stuck at the last look.
    suspects: Paused,
    /// Since when the run is warm, and the packets that each part had delivered then.
    warm: Option<(Instant, Vec<u64>)>,
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
        // What was on its way at a look has arrived before the next one, and so has what that made
        // switches say.
        let longest = shared.cluster.topology.cables.iter().map(|cable| cable.delay).max();
        let look = LOOK.max(longest.unwrap_or(0).saturating_mul(3));
        let (next_look, suspects, warm) = (start.saturating_add(look), Paused::new(), None);
        let mut rounds =
            Rounds { shared, thread, shares, with_hosts, start, look, next_look, suspects, warm };
        let begin = Instant::now();
        rounds.work();
        let run_seconds = begin.elapsed().as_secs_f64();
        let is_cut = rounds.shares.iter_mut().any(|share| share.carrier.next_at() < NEVER);
        let (seconds, before) = match &mut rounds.warm {
            Some((since, before)) => (since.elapsed().as_secs_f64(), core::mem::take(before)),
            None => (0.0, rounds.delivered()),
        };
        let finish = |(share, before): (Share<'a, C>, u64)| {
            let outcome = share.finish();
            let steady = Steady { packets: outcome.tally.delivered - before, seconds };
            Outcome { run_seconds, steady, is_cut, ..outcome }
        };
        rounds.shares.into_iter().zip(before).map(finish).collect()
    }

    /// By part: the packets that it has delivered so far.
    fn delivered(&mut self) -> Vec<u64> {
        self.shares.iter_mut().map(|share| share.carrier.net().tally.delivered).collect()
    }

    /// Runs window after window until no part has anything to do before the end that the cluster
    /// sets.
    fn work(&mut self) {
        let shared = self.shared;
        let until = self.start.saturating_add(shared.cluster.until);
        let window = shared.division.window().min(WINDOW);
        let has_pauses = shared.cluster.net.pfc.is_some();
        let warm_at = self.start.saturating_add(shared.cluster.warm_up);
        let mut told = (0, 0);
        loop {
            shared.nexts[self.thread].store(self.next_at(until), Ordering::Release);
            shared.barrier.wait();
            let nexts = shared.nexts.iter().map(|next| next.load(Ordering::Acquire));
            let next = nexts.min().unwrap_or(NEVER);
            let is_due = next == NEVER || next.min(until) >= self.next_look;
            let dead_at = if has_pauses && is_due { self.find_deadlock(next, until) } else { None };
            if next != NEVER || dead_at.is_some() {
                let before = dead_at.unwrap_or(next).min(until).saturating_add(1);
                let before = before.min(next);
                self.shares.iter_mut().for_each(|share| share.sample_before(before));
            }
            if dead_at.is_some() || next > until || next == NEVER {
                return self.sample_last();
            }
            let mut end = next.saturating_add(window - 1).min(until);
            if next < warm_at {
                end = end.min(warm_at - 1);
            } else if self.warm.is_none() {
                self.warm = Some((Instant::now(), self.delivered()));
            }
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

    /// Ports that are paused and wait for each other alone are in a deadlock if none of them has
    /// sent anything since the look before, or nothing else will happen. `next` is when something
    /// happens next. Returns when the deadlock was found.
    fn find_deadlock(&mut self, next: Ps, until: Ps) -> Option<Ps> {
        let at = self.next_look.min(until);
        let (paused, waits) = self.look_at_all();
        let mut dead = stuck(waits);
        let suspects = paused.into_iter().filter(|(line, _)| dead.contains_key(line)).collect();
        let before = core::mem::replace(&mut self.suspects, suspects);
        // Nothing happens between this look and a later one, which is skipped.
        let is_quiet = next.min(until).saturating_sub(self.look) >= self.next_look;
        if next < NEVER && !is_quiet {
            let has_stayed = |line: &Line| self.suspects.get(line) == before.get(line);
            dead.retain(|line, _| has_stayed(line));
            dead = stuck(dead);
        }
        if next < NEVER {
            self.next_look += self.look * (1 + (next - self.next_look) / self.look);
        }
        let circle = circle(&dead).filter(|_| !self.may_end(&dead, at))?;
        let net = self.shares.first_mut()?.carrier.net();
        let ends = |(link, _): &Line| (net.link(*link).from, net.link(*link).to);
        let (links, at_run) = (circle.iter().map(ends).collect(), at - self.start);
        let found = Deadlock { at: at_run, links, left: 0 };
        locked(&self.shared.deadlock).get_or_insert(found);
        Some(at)
    }

    /// What is paused in all parts, and what it waits for. Where a port is paused is known at its
    /// part; what it waits for, at that of the next switch.
    fn look_at_all(&mut self) -> (Paused, Waits) {
        let shared = self.shared;
        let nets: Vec<_> = self.shares.iter_mut().map(|share| share.carrier.net()).collect();
        nets.iter().for_each(|net| locked(&shared.paused).extend(net.paused()));
        shared.barrier.wait();
        let paused = locked(&shared.paused).clone();
        nets.iter().for_each(|net| locked(&shared.waits).extend(net.waits_of(&paused)));
        shared.barrier.wait();
        let waits = locked(&shared.waits).clone();
        shared.barrier.wait();
        locked(&shared.paused).clear();
        locked(&shared.waits).clear();
        shared.barrier.wait();
        (paused, waits)
    }

    /// Will a cable or a switch on the way of one of these lines fail, or be back, between `at` and
    /// the end of the run? Both ends of a link forget pauses then.
    fn may_end(&mut self, dead: &Waits, at: Ps) -> bool {
        let (start, changes) = (self.start, &self.shared.cluster.changes);
        let to_come = at..=start.saturating_add(self.shared.cluster.until);
        let Some(share) = self.shares.first_mut() else { return false };
        let net = share.carrier.net();
        let ends = |link: u32| {
            let Link { from, to, .. } = net.link(link);
            [from, to]
        };
        changes.iter().filter(|(when, _)| to_come.contains(&start.saturating_add(*when))).any(
            |(_, change)| {
                dead.keys().any(|(link, _)| match *change {
                    Change::Cable { link: cable, .. } => {
                        ends(cable).iter().all(|node| ends(*link).contains(node))
                    }
                    Change::Switch { switch, .. } => ends(*link).contains(&Node::Switch(switch)),
                    Change::Rate { .. }
                    | Change::Loss { .. }
                    | Change::LearnCable { .. }
                    | Change::LearnSwitch { .. } => false,
                })
            },
        )
    }
}
