//! A part of a cluster: when the flows that begin or end there go on. [`rounds`](super::rounds) has
//! it run one window of time after the other. What carries the flows is a [`Carrier`].

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::carrier::{Carrier, News, Turn};
use super::flow::{Flow, Hears, Work};
use super::record::Recorder;
use super::report::Outcome;
use super::shared::{Shared, locked};
use crate::net::time::{NEVER, Ps};
use crate::net::{Node, Parcel};

/// One part.
pub(super) struct Share<'a, C> {
    shared: &'a Shared<'a>,
    own: u8,
    pub(super) carrier: C,
    /// By flow that begins here: how many flows it still waits for.
    missing: Vec<u32>,
    /// By flow: those that wait for it at its source, and at its target.
    waiting: Vec<Vec<u32>>,
    /// The flows that begin here at a given time, the first on top.
    starts: BinaryHeap<Reverse<(Ps, u32)>>,
    /// By host and processor: when it has done the work of all flows that were ready so far.
    idle: BTreeMap<(u32, u32), Ps>,
    /// By flow: has it ended or failed here? What comes later is not told again: a call that has
    /// its answer may lack its acknowledge, and one that fails tells so at both of its queues.
    over: Vec<bool>,
    /// The flows that have their turn of a processor.
    at_work: BTreeSet<u32>,
    /// Where something is recorded, the messages that are under way from here.
    under_way: BTreeSet<u32>,
    start: Ps,
    /// The moment of the next alarm.
    alarm: Ps,
    recorder: Option<Recorder>,
    /// Room for what has come from other parts.
    came: Vec<Parcel>,
    pub(super) outcome: Outcome,
}

impl<'a, C: Carrier<'a>> Share<'a, C> {
    /// A part whose flows are connected, at the start of its run.
    pub(super) fn new(shared: &'a Shared<'a>, own: u8, mut carrier: C) -> Share<'a, C> {
        let flows = shared.flows;
        let start = carrier.net().now();
        let mut share = Share {
            shared,
            own,
            carrier,
            missing: flows.iter().map(Flow::needed).collect(),
            waiting: vec![Vec::new(); flows.len()],
            starts: BinaryHeap::new(),
            idle: BTreeMap::new(),
            over: vec![false; flows.len()],
            at_work: BTreeSet::new(),
            under_way: BTreeSet::new(),
            start,
            alarm: NEVER,
            recorder: None,
            came: Vec::new(),
            outcome: Outcome::default(),
        };
        share.prepare_net();
        for (i, flow) in (0u32..).zip(flows) {
            for other in &flow.after {
                share.waiting[*other as usize].push(i);
            }
            if flow.after.is_empty() && shared.division.has(own, flow.src) {
                share.begin_at(flow.start, i);
            }
        }
        share.set_alarm();
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
            let first = Flow::first(self.shared.flows);
            let own = (0..net.links()).filter(is_own).collect();
            self.recorder = Some(Recorder::new(options, net, own, (self.start, first)));
        }
    }

    /// Runs until `end`, and takes the samples that are due until then. Samples are taken only
    /// before something that happens: so their number does not depend on the windows.
    pub(super) fn run_until(&mut self, end: Ps) {
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
    pub(super) fn sample_before(&mut self, next: Ps) {
        while self.recorder.as_ref().is_some_and(|recorder| recorder.next < next) {
            self.sample(next - 1);
        }
    }

    /// The moment up to which samples were taken.
    pub(super) fn sampled(&self) -> Ps {
        self.recorder.as_ref().map_or(0, |recorder| recorder.next)
    }

    /// Takes the next sample, and those up to `quiet` if nothing can change until then.
    fn sample(&mut self, quiet: Ps) {
        let net = self.carrier.net();
        if let Some(recorder) = &mut self.recorder {
            net.advance(recorder.next);
            let times = recorder.sample(net, quiet);
            for flow in &self.under_way {
                recorder.note_wait(self.carrier.progress(*flow as usize), times);
            }
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

    /// Hands over the packets that have left for other parts.
    pub(super) fn hand_over(&mut self) {
        for (mail, leaving) in self.shared.mail.iter().zip(self.carrier.net().leaving()) {
            if !leaving.is_empty() {
                locked(mail).append(leaving);
            }
        }
    }

    /// Takes the packets that have come from other parts.
    pub(super) fn take_over(&mut self) {
        let mail = &self.shared.mail[usize::from(self.own)];
        core::mem::swap(&mut self.came, &mut *locked(mail));
        let net = self.carrier.net();
        self.came.drain(..).for_each(|parcel| net.receive(parcel));
    }

    fn set_alarm(&mut self) {
        if let Some(Reverse((at, _))) = self.starts.peek()
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
        while let Some(Reverse((at, flow))) = self.starts.peek().copied()
            && at <= now
        {
            self.starts.pop();
            match self.shared.flows[flow as usize].work {
                Some(work) if !self.at_work.remove(&flow) => self.do_work(flow, work, now),
                _ => self.begin(flow as usize),
            }
        }
        self.set_alarm();
    }

    /// Has a flow take its turn of a processor. The caller sets the alarm.
    fn do_work(&mut self, flow: u32, work: Work, now: Ps) {
        let Work { processor, span, at_once } = work;
        let src = self.shared.flows[flow as usize].src;
        let idle = self.idle.entry((src, processor)).or_default();
        let turn = now.max(*idle);
        *idle = turn + span;
        self.at_work.insert(flow);
        self.begin_at(if at_once { turn } else { turn + span }, flow);
    }

    /// Notes when a flow begins.
    fn begin_at(&mut self, at: Ps, flow: u32) {
        self.starts.push(Reverse((at, flow)));
    }

    fn begin(&mut self, i: usize) {
        let now = self.now();
        self.outcome.begun.push((i as u32, now));
        if self.shared.flows[i].is_wait() {
            self.outcome.ended.push((i as u32, now));
            self.outcome.last_over = now;
            return self.release(self.shared.flows[i].src, i, false);
        }
        self.carrier.begin(i);
        if self.recorder.is_some() {
            self.under_way.insert(i as u32);
        }
    }

    /// Takes what has become of flows.
    fn take_news(&mut self) {
        let mut news = core::mem::take(self.carrier.news());
        let now = self.now();
        for news in news.drain(..) {
            if let News::Failed { flow, .. } | News::Ended { flow, .. } = news {
                if core::mem::replace(&mut self.over[flow as usize], true) {
                    continue;
                }
                self.under_way.remove(&flow);
            }
            match news {
                News::Failed { flow, status } => {
                    self.outcome.failed.push((flow, status));
                    self.outcome.last_over = now;
                }
                News::Arrived { host, flow } => self.release(host, flow as usize, true),
                News::Ended { host, flow } => {
                    self.outcome.ended.push((flow, now));
                    self.outcome.last_over = now;
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
            let Flow { src, start, hears, .. } = self.shared.flows[other as usize];
            let sent_by_it = self.shared.flows[i].src == src;
            // A flow is waited for where it arrives, or, by its own source, where it completes.
            let is_heard = match hears {
                None => src == host && is_arrival != sent_by_it,
                Some(hears) => is_arrival == (hears == Hears::Arrivals),
            };
            if !is_heard {
                continue;
            }
            let missing = &mut self.missing[other as usize];
            let is_last = *missing == 1;
            *missing = missing.saturating_sub(1);
            if is_last {
                self.begin_at(now + start, other);
                self.set_alarm();
            }
        }
    }

    /// What this part has to report, once its flows were checked.
    pub(super) fn finish(mut self) -> Outcome {
        let recorder = self.recorder.take();
        self.outcome.record = recorder.map(|recorder| recorder.finish(self.carrier.net()));
        self.outcome.tally = self.carrier.net().tally;
        self.outcome.on_their_way = self.carrier.net().on_their_way();
        self.carrier.finish(&mut self.outcome);
        self.outcome.whole_at.iter_mut().for_each(|(_, at)| *at -= self.start);
        self.outcome
    }
}
