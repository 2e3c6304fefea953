//! A thread's part of a cluster: when the flows that begin or end there go on.
//!
//! The parts run one window of time after the other. A window is as long as the least delay of a
//! link from part to part, so what one sends reaches the other in a later window. What carries the
//! flows is a [`Carrier`].

use core::sync::atomic::Ordering;
use std::time::Instant;

use super::carrier::{Carrier, News, Turn};
use super::cluster::ClusterError;
use super::flow::Flow;
use super::record::Recorder;
use super::report::Part as Outcome;
use super::shared::{Shared, locked};
use crate::net::Node;
use crate::net::deadlock::circle;
use crate::net::time::{MS, NEVER, Ps, US};

/// The longest window: after each, the run tells how far it has come.
const WINDOW: Ps = 100 * US;
/// How often a network with flow control is searched for deadlocks.
const LOOK: Ps = MS;

/// One thread's part.
pub(super) struct Share<'a, C> {
    shared: &'a Shared<'a>,
    own: u8,
    carrier: C,
    /// By flow that begins here: how many flows it still waits for.
    missing: Vec<u32>,
    /// By flow: those that wait for it at its source, and at its target.
    waiting: Vec<Vec<u32>>,
    /// The flows that begin here at a given time, the last first.
    starts: Vec<(Ps, u32)>,
    start: Ps,
    /// The moment of the next alarm.
    alarm: Ps,
    next_look: Ps,
    suspects: Option<Vec<u32>>,
    recorder: Option<Recorder>,
    outcome: Outcome,
}

impl<'a, C: Carrier<'a>> Share<'a, C> {
    /// Runs one part of the flows.
    pub(super) fn run(shared: &'a Shared<'a>, own: u8) -> Outcome {
        let made = C::new(shared, own);
        if let Err(error) = &made {
            locked(&shared.failed).get_or_insert(error.clone());
        }
        shared.barrier.wait();
        if locked(&shared.failed).is_some() {
            return Outcome::default();
        }
        let Ok(mut carrier) = made else { return Outcome::default() };
        carrier.connect();
        let mut share = Share::new(shared, own, carrier);
        let begin = Instant::now();
        share.work();
        share.outcome.run_seconds = begin.elapsed().as_secs_f64();
        share.finish()
    }

    fn new(shared: &'a Shared<'a>, own: u8, mut carrier: C) -> Share<'a, C> {
        let flows = shared.flows;
        let start = carrier.net().now();
        let mut share = Share {
            shared,
            own,
            carrier,
            missing: flows.iter().map(Flow::needed).collect(),
            waiting: vec![Vec::new(); flows.len()],
            starts: Vec::new(),
            start,
            alarm: NEVER,
            next_look: start + LOOK,
            suspects: None,
            recorder: None,
            outcome: Outcome::default(),
        };
        share.prepare_net();
        for (i, flow) in (0u32..).zip(flows) {
            for other in &flow.after {
                share.waiting[*other as usize].push(i);
            }
            if flow.after.is_empty() && shared.division.has(own, flow.src) {
                share.starts.push((flow.start, i));
            }
        }
        share.starts.sort_unstable_by(|a, b| b.cmp(a));
        share
    }

    /// Plans what fails, and what is recorded.
    fn prepare_net(&mut self) {
        let Shared { cluster, division, .. } = *self.shared;
        let net = self.carrier.net();
        for (at, change) in &cluster.changes {
            net.plan(self.start.saturating_add(*at), *change);
        }
        let index = |node: Node| match node {
            Node::Host(host) => host,
            Node::Switch(switch) => cluster.topology.hosts + switch,
        };
        if let Some(options) = &cluster.record {
            let is_own = |link: &u32| division.of[index(net.link(*link).from) as usize] == self.own;
            let own = (0..net.links()).filter(is_own).collect();
            self.recorder = Some(Recorder::new(options, net, own, self.start));
        }
    }

    /// Runs window after window until no part has anything to do.
    fn work(&mut self) {
        let shared = self.shared;
        let until = self.start.saturating_add(shared.cluster.until);
        let window = shared.division.lookahead.min(WINDOW);
        let has_pauses = shared.cluster.net.pfc.is_some();
        let mut told = 0;
        self.set_alarm();
        loop {
            shared.nexts[usize::from(self.own)].store(self.carrier.next_at(), Ordering::Release);
            shared.barrier.wait();
            let nexts = shared.nexts.iter().map(|next| next.load(Ordering::Acquire));
            let next = nexts.min().unwrap_or(NEVER);
            let has_failed = locked(&shared.failed).is_some();
            shared.barrier.wait();
            if has_failed {
                return;
            }
            if next != NEVER {
                self.sample_before(next.min(until.saturating_add(1)));
            }
            if next > until {
                return self.sample_last();
            }
            if has_pauses && next >= self.next_look {
                self.next_look = next.saturating_add(LOOK);
                self.look_for_deadlocks(next);
            }
            if next == NEVER {
                return self.sample_last();
            }
            self.run_until(next.saturating_add(window - 1).min(until));
            self.exchange();
            let ended = self.outcome.ended.len() + self.outcome.failed.len();
            shared.watch.tell(next - self.start, (ended - told) as u64);
            told = ended;
        }
    }

    /// Runs until `end`, and takes the samples that are due until then. Samples are taken only
    /// before something that happens: so their number does not depend on the windows.
    fn run_until(&mut self, end: Ps) {
        while let Some(due) = self.recorder.as_ref().map(|recorder| recorder.next)
            && due <= end
        {
            self.step_until(due);
            match self.carrier.next_at() {
                NEVER => break,
                next => self.sample(end.min(next - 1)),
            }
        }
        self.step_until(end);
    }

    /// Takes the samples that are due before `next`; nothing happens until then.
    fn sample_before(&mut self, next: Ps) {
        while self.recorder.as_ref().is_some_and(|recorder| recorder.next < next) {
            self.sample(next - 1);
        }
    }

    /// Takes the samples that another part has taken, when all is over.
    fn sample_last(&mut self) {
        let next = self.recorder.as_ref().map_or(0, |recorder| recorder.next);
        self.shared.sampled.fetch_max(next, Ordering::AcqRel);
        self.shared.barrier.wait();
        self.sample_before(self.shared.sampled.load(Ordering::Acquire));
    }

    /// Takes the next sample, and those up to `quiet` if nothing can change until then.
    fn sample(&mut self, quiet: Ps) {
        let net = self.carrier.net();
        if let Some(recorder) = &mut self.recorder {
            net.advance(recorder.next);
            recorder.sample(net, quiet);
        }
    }

    fn step_until(&mut self, end: Ps) {
        while let Some(turn) = self.carrier.step_until(end) {
            match turn {
                Turn::News => self.take_news(),
                Turn::Alarm => self.begin_due(),
            }
        }
    }

    /// Hands over the packets that have left, and takes those that have come.
    fn exchange(&mut self) {
        let shared = self.shared;
        if shared.mail.len() == 1 {
            return;
        }
        for parcel in self.carrier.net().leaving() {
            let to = parcel.to(self.carrier.net(), &shared.division.of);
            locked(&shared.mail[usize::from(to)]).push(parcel);
        }
        shared.barrier.wait();
        let came = core::mem::take(&mut *locked(&shared.mail[usize::from(self.own)]));
        came.into_iter().for_each(|parcel| self.carrier.net().receive(parcel));
    }

    /// A circle of paused ports that is there in two looks in a row, or when nothing else will
    /// happen, is a deadlock. Where a port is paused is known at its part; what it waits for, at
    /// that of the next switch.
    fn look_for_deadlocks(&mut self, now: Ps) {
        let shared = self.shared;
        let net = self.carrier.net();
        locked(&shared.paused).extend(net.paused());
        shared.barrier.wait();
        let mut paused = locked(&shared.paused).clone();
        paused.sort_unstable();
        locked(&shared.waits).extend(net.waits_of(&paused));
        shared.barrier.wait();
        let mut circle = circle(&locked(&shared.waits));
        shared.barrier.wait();
        locked(&shared.paused).clear();
        locked(&shared.waits).clear();
        shared.barrier.wait();
        circle.iter_mut().for_each(|circle| circle.sort_unstable());
        if let Some(links) = &circle
            && (circle == self.suspects || now == NEVER)
        {
            let names: Vec<String> = links.iter().map(|link| net.describe(*link)).collect();
            let error = ClusterError::Deadlock(names.join(", "));
            locked(&shared.failed).get_or_insert(error);
        }
        self.suspects = circle;
    }

    fn set_alarm(&mut self) {
        if let Some((at, _)) = self.starts.last()
            && self.start + at < self.alarm
        {
            self.alarm = self.start + at;
            self.carrier.alarm_at(self.alarm);
        }
    }

    /// Begins the flows whose time has come.
    fn begin_due(&mut self) {
        if self.carrier.net().now() != self.alarm {
            // An earlier alarm has taken its place since.
            return;
        }
        let now = self.alarm - self.start;
        self.alarm = NEVER;
        while let Some((at, flow)) = self.starts.last().copied()
            && at <= now
        {
            self.starts.pop();
            self.begin(flow as usize);
        }
        self.set_alarm();
    }

    fn begin(&mut self, i: usize) {
        let now = self.now();
        self.outcome.begun.push((i as u32, now));
        if self.shared.flows[i].is_wait() {
            self.outcome.ended.push((i as u32, now));
            return self.release(self.shared.flows[i].src, i, false);
        }
        self.carrier.begin(i);
    }

    /// Takes what has become of flows.
    fn take_news(&mut self) {
        let mut news = core::mem::take(self.carrier.news());
        let now = self.now();
        for news in news.drain(..) {
            match news {
                News::Failed { flow, status } => self.outcome.failed.push((flow, status)),
                News::Arrived { host, flow } => self.release(host, flow as usize, true),
                News::Ended { host, flow } => {
                    self.outcome.ended.push((flow, now));
                    self.release(host, flow as usize, false);
                }
            }
        }
        *self.carrier.news() = news;
    }

    /// The time since the start of the run.
    fn now(&mut self) -> Ps {
        self.carrier.net().now() - self.start
    }

    /// Lets flows go on that wait at this host for this one.
    fn release(&mut self, host: u32, i: usize, is_arrival: bool) {
        let now = self.now();
        for other in self.waiting[i].clone() {
            let Flow { src, start, .. } = self.shared.flows[other as usize];
            let sent_by_it = self.shared.flows[i].src == src;
            // A flow is waited for where it arrives, or, by its own source, where it completes.
            if src != host || is_arrival == sent_by_it {
                continue;
            }
            let missing = &mut self.missing[other as usize];
            let is_last = *missing == 1;
            *missing = missing.saturating_sub(1);
            if is_last {
                let at = now + start;
                let place = self.starts.partition_point(|entry| *entry > (at, other));
                self.starts.insert(place, (at, other));
                self.set_alarm();
            }
        }
    }

    /// What this part has to report, once its flows were checked.
    fn finish(mut self) -> Outcome {
        let recorder = self.recorder.take();
        self.outcome.record = recorder.map(|recorder| recorder.finish(self.carrier.net()));
        self.outcome.tally = self.carrier.net().tally;
        self.outcome.in_flight = self.carrier.net().in_flight();
        self.carrier.finish(&mut self.outcome);
        self.outcome
    }
}
