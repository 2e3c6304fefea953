//! What a run of flows has come to: completion times, slowdowns, and what the network did.

use core::fmt;

use remora_nic::queue::Status;
use remora_nic::wire::Dialect;
use thiserror::Error;

use super::cluster::{Cluster, ClusterError};
use super::flow::{Flow, Verb};
use super::gets;
use super::record::Record;
use super::stores;
use super::transport::How;
use crate::link_faults::OUTER_BYTES;
use crate::net::time::{Ps, US};
use crate::net::ways::Way;
use crate::net::{Atlas, LineRate, NetTally, Node, Ways};
use crate::percentile;
use crate::selective::ACKNOWLEDGE;
use crate::world::Trace;

/// What one part has to report.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) begun: Vec<(u32, Ps)>,
    pub(super) ended: Vec<(u32, Ps)>,
    pub(super) failed: Vec<(u32, Status)>,
    /// When the last of these ended or failed.
    pub(super) last_over: Ps,
    /// Something would still have happened here after the end of the run.
    pub(super) is_cut: bool,
    /// By flow that ends there: how many bytes arrived.
    pub(super) arrived: Vec<(u32, u64)>,
    /// By flow that ends there, where it is known: when its last byte arrived.
    pub(super) whole_at: Vec<(u32, Ps)>,
    pub(super) tally: NetTally,
    /// Packets, and their bytes.
    pub(super) on_their_way: (u64, u64),
    pub(super) trace: Trace,
    pub(super) retransmitted: u64,
    pub(super) run_seconds: f64,
    pub(super) steady: Steady,
    pub(super) record: Option<Record>,
}

impl Outcome {
    /// How many flows have ended or failed here.
    pub(super) fn over(&self) -> usize {
        self.ended.len() + self.failed.len()
    }
}

/// How fast a run was behind [`Cluster::warm_up`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Steady {
    /// Packets that were delivered.
    pub packets: u64,
    /// Seconds of the machine's clock.
    pub seconds: f64,
}

/// What became of a flow.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Completion {
    /// When it began, in picoseconds from the start of the run; `None` if it never did.
    pub began: Option<Ps>,
    /// When its sender had the last acknowledge; `None` if it did not end.
    pub ended: Option<Ps>,
    /// How it failed, if it did.
    pub failed: Option<Status>,
    /// The bytes that arrived without a hole.
    pub arrived: u64,
    /// How long it would take in a network without other flows.
    pub alone: Ps,
}

impl Completion {
    /// The completion time in picoseconds, if it ended.
    pub fn time(&self) -> Option<Ps> {
        Some(self.ended? - self.began?)
    }

    /// How many times longer it took than alone.
    pub fn slowdown(&self) -> Option<f64> {
        Some(self.time()? as f64 / self.alone.max(1) as f64)
    }
}

/// Ports that wait for each other in a circle, and so for ever: the run stops when it is found.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "flow control had come to a deadlock at {:.0} µs, with {left} flows that are not done: each of \
     these links is paused by the next: {}", *at as f64 / US as f64, names(links)
)]
pub struct Deadlock {
    /// When it was found, in picoseconds from the start of the run.
    pub at: Ps,
    /// The ends of each link. Its port is paused by the next, the last one's by the first.
    pub links: Vec<(Node, Node)>,
    /// How many flows have not ended, failed ones among them.
    pub left: usize,
}

/// Links for people.
fn names(links: &[(Node, Node)]) -> String {
    links.iter().map(|(from, to)| format!("{from} to {to}")).collect::<Vec<_>>().join(", ")
}

/// What a run has come to.
#[derive(Clone, Debug)]
pub struct Report {
    /// By flow.
    pub flows: Vec<Completion>,
    /// What the network did.
    pub tally: NetTally,
    /// Packets that were still on their way at the end.
    pub in_flight: u64,
    /// Their bytes on the wire.
    pub in_flight_bytes: u64,
    /// The sum of all arrivals.
    pub trace: Trace,
    /// Packets that cards sent again.
    pub retransmitted: u64,
    /// What was recorded, if the cluster asked for it.
    pub record: Option<Record>,
    /// The circle of ports for which the run stopped, if it did. Flows elsewhere may have gone on.
    pub deadlock: Option<Deadlock>,
    /// When the first flow begins, in picoseconds from the start of the run.
    pub first: Ps,
    /// How long the run took after it was set up, in seconds of the machine's clock.
    pub run_seconds: f64,
    /// The part of it behind [`Cluster::warm_up`].
    pub steady: Steady,
    /// When the run stopped, in picoseconds from its start: at [`Cluster::until`] if flows were
    /// under way or to begin then, when a deadlock was found, and otherwise when the last flow had
    /// ended or failed. Timers that ring later for nothing do not count, nor flows that wait for
    /// one that has failed.
    pub stopped: Ps,
    is_cut: bool,
    /// By flow, where it is known: when its last byte arrived. Of bytes that exist it is not: they
    /// are compared once, at the end.
    pub(super) whole_at: Vec<Option<Ps>>,
    lengths: Vec<(u32, u32, u64)>,
    verbs: Vec<Verb>,
}

impl PartialEq for Report {
    /// How long the machine took is no part of what a run has come to.
    fn eq(&self, other: &Report) -> bool {
        let all = |r: &Report| (r.tally, r.in_flight, r.trace, r.retransmitted);
        all(self) == all(other)
            && self.flows == other.flows
            && self.lengths == other.lengths
            && self.deadlock == other.deadlock
    }
}

impl Report {
    pub(super) fn new(flows: &[Flow]) -> Report {
        Report {
            flows: vec![Completion::default(); flows.len()],
            tally: NetTally::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            trace: Trace::default(),
            retransmitted: 0,
            record: None,
            deadlock: None,
            first: Flow::first(flows),
            run_seconds: 0.0,
            steady: Steady::default(),
            stopped: 0,
            is_cut: false,
            whole_at: vec![None; flows.len()],
            lengths: flows.iter().map(|flow| (flow.src, flow.dst, flow.bytes)).collect(),
            verbs: flows.iter().map(|flow| flow.verb).collect(),
        }
    }

    /// How long the run lasted from its first flow on, in picoseconds; 1 at least.
    pub fn lasted(&self) -> Ps {
        self.stopped.saturating_sub(self.first).max(1)
    }

    pub(super) fn add(&mut self, part: Outcome) {
        part.begun.iter().for_each(|(i, at)| self.flows[*i as usize].began = Some(*at));
        part.ended.iter().for_each(|(i, at)| self.flows[*i as usize].ended = Some(*at));
        part.failed.iter().for_each(|(i, how)| self.flows[*i as usize].failed = Some(*how));
        part.arrived.iter().for_each(|(i, n)| self.flows[*i as usize].arrived = *n);
        part.whole_at.iter().for_each(|(i, at)| self.whole_at[*i as usize] = Some(*at));
        self.stopped = self.stopped.max(part.last_over);
        self.is_cut |= part.is_cut;
        self.tally += part.tally;
        self.in_flight += part.on_their_way.0;
        self.in_flight_bytes += part.on_their_way.1;
        self.trace.packets += part.trace.packets;
        self.trace.hash = self.trace.hash.wrapping_add(part.trace.hash);
        self.retransmitted += part.retransmitted;
        self.run_seconds = self.run_seconds.max(part.run_seconds);
        self.steady.packets += part.steady.packets;
        self.steady.seconds = self.steady.seconds.max(part.steady.seconds);
        if let Some(record) = part.record {
            self.record.get_or_insert_default().add(record);
        }
    }

    /// Once all parts are added: when the run stopped, which is the end of what was recorded.
    pub(super) fn stop(mut self, until: Ps, deadlock: Option<Deadlock>) -> Report {
        // Of a value that was there before, no part tells which call put it there.
        for (flow, verb) in self.flows.iter_mut().zip(&self.verbs) {
            if matches!(verb, Verb::StorePut(_)) && flow.ended.is_none() {
                flow.arrived = 0;
            }
        }
        let left = self.flows.len() - self.done() - self.failed();
        self.deadlock =
            deadlock.map(|deadlock| Deadlock { left: self.flows.len() - self.done(), ..deadlock });
        if let Some(deadlock) = &self.deadlock {
            self.stopped = deadlock.at.min(until);
        } else if left > 0 && self.is_cut {
            self.stopped = until;
        }
        if let Some(record) = &mut self.record {
            record.notes.settle();
            record.end_at(self.stopped);
        }
        self
    }

    /// Finds how long each flow would take alone. `awaited` says for which others wait at their
    /// targets.
    pub(super) fn with_ideals(
        mut self,
        cluster: &Cluster,
        atlas: &Atlas,
        awaited: &[bool],
    ) -> Report {
        let headers = |kind| Headers::of(cluster.transport.how, kind);
        if let Ok(net) = cluster.build_part(atlas) {
            let mut ways = Ways::of(net);
            let all = self.lengths.iter().zip(&self.verbs).zip(awaited);
            for (flow, (((src, dst, bytes), verb), awaited)) in self.flows.iter_mut().zip(all) {
                let mtu = cluster.mtu.bytes().into();
                flow.alone = match (*bytes, *verb) {
                    (0, _) => 0,
                    (bytes, Verb::Write) => {
                        let headers = headers(if *awaited { Kind::Awaited } else { Kind::Write });
                        let there = carried(ways.between(*src, *dst), bytes, mtu, headers);
                        there + acknowledged(ways.between(*dst, *src), headers)
                    }
                    (bytes, verb) => {
                        let (call, answer) = match verb {
                            Verb::Get => (gets::CALL as u64, bytes),
                            verb => stores::lengths(verb, bytes),
                        };
                        carried(ways.between(*src, *dst), call, mtu, headers(Kind::Call))
                            + carried(ways.between(*dst, *src), answer, mtu, headers(Kind::Answer))
                    }
                };
            }
        }
        self
    }

    /// The report, if all bytes of the flows that have ended are where they belong, and were when
    /// they ended, and all that was sent was delivered or dropped, or is on its way.
    pub(super) fn whole(self) -> Result<Report, ClusterError> {
        let (packets, bytes) = self.tally.outstanding();
        if (packets, bytes) != (self.in_flight, self.in_flight_bytes) {
            let found = (self.in_flight, self.in_flight_bytes);
            return Err(ClusterError::Unaccounted { outstanding: (packets, bytes), found });
        }
        for (flow, done) in self.flows.iter().enumerate() {
            let Some(ended) = done.ended else { continue };
            let missing = self.lengths[flow].2.saturating_sub(done.arrived);
            if missing > 0 {
                return Err(ClusterError::Missing { flow, missing });
            }
            if let Some(late) = self.whole_at[flow].and_then(|at| at.checked_sub(ended))
                && late > 0
            {
                return Err(ClusterError::Early { flow, late });
            }
        }
        Ok(self)
    }

    /// The messages: all flows but waits, each with its source, target and bytes.
    pub fn messages(&self) -> impl Iterator<Item = (&Completion, (u32, u32, u64))> {
        let all = self.flows.iter().zip(self.lengths.iter().copied());
        all.filter(|(_, (.., bytes))| *bytes > 0)
    }

    /// How many flows have ended.
    pub fn done(&self) -> usize {
        self.flows.iter().filter(|flow| flow.ended.is_some()).count()
    }

    /// How many flows have failed.
    pub fn failed(&self) -> usize {
        self.flows.iter().filter(|flow| flow.failed.is_some()).count()
    }

    /// When the last flow ended, in picoseconds from the start of the run; zero if none has.
    pub fn end(&self) -> Ps {
        self.flows.iter().filter_map(|flow| flow.ended).max().unwrap_or(0)
    }

    /// The mean completion time in picoseconds; zero if no flow has ended.
    pub fn mean(&self) -> f64 {
        mean(self.messages().filter_map(|(flow, _)| flow.time()).map(|ps| ps as f64))
    }

    /// The mean slowdown; zero if no flow has ended.
    pub fn mean_slowdown(&self) -> f64 {
        mean(self.messages().filter_map(|(flow, _)| flow.slowdown()))
    }

    /// The completion time in picoseconds that so many thousandths of the flows do not exceed: the
    /// smallest such. `None` if no flow has ended.
    pub fn percentile(&self, per_mille: usize) -> Option<Ps> {
        let mut times: Vec<Ps> = self.messages().filter_map(|(flow, _)| flow.time()).collect();
        times.sort_unstable();
        percentile(&times, per_mille)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0u32), |(sum, n), value| (sum + value, n + 1));
    if n == 0 { 0.0 } else { sum / f64::from(n) }
}

/// What a message is, for its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    /// A WRITE with an immediate, by which its target hears of it.
    Awaited,
    /// The call of a kernel.
    Call,
    /// A kernel's answer: a WRITE with an immediate.
    Answer,
}

/// Bytes of headers and checksum of a message's packets, and of an acknowledge.
#[derive(Clone, Copy)]
struct Headers {
    first: u64,
    next: u64,
    /// What the last packet has besides.
    last: u64,
    /// What a message's only packet has besides that.
    only: u64,
    acknowledge: u64,
}

impl Headers {
    fn of(how: How, kind: Kind) -> Headers {
        /// BTH and ICRC; RETH; AETH; immediate; LETH; what the lossy dialect acknowledges besides.
        const BASE: u64 = 12 + 4;
        const RETH: u64 = 16;
        const AETH: u64 = 4;
        const IMM: u64 = 4;
        const LETH: u64 = 12;
        const SACK: u64 = 20;
        let dialect = match how {
            How::Card { dialect, .. } => dialect,
            How::Published(published) => {
                let each = published.recovery().headers();
                let acknowledge = ACKNOWLEDGE;
                return Headers { first: each, next: each, last: 0, only: 0, acknowledge };
            }
        };
        let last = if matches!(kind, Kind::Awaited | Kind::Answer) { IMM } else { 0 };
        if dialect.contains(Dialect::LOSSY) {
            // Each packet says where it belongs, and each of a WRITE to which bytes of it.
            let (first, acknowledge) = (BASE + LETH + RETH, BASE + AETH + SACK);
            let next = if kind == Kind::Call { BASE + LETH } else { first };
            return Headers { first, next, last, only: 0, acknowledge };
        }
        // An answer of one packet acknowledges the call.
        let only = if kind == Kind::Answer { AETH } else { 0 };
        Headers { first: BASE + RETH, next: BASE, last, only, acknowledge: BASE + AETH }
    }
}

/// The bytes that a message takes of links, with headers and acknowledges: of models one for each
/// packet, of cards one at least.
pub(crate) fn on_wire(how: How, mtu: u64, bytes: u64) -> u64 {
    let (headers, packets) = (Headers::of(how, Kind::Write), bytes.div_ceil(mtu).max(1));
    let acknowledges = if matches!(how, How::Published(_)) { packets } else { 1 };
    let there = headers.first + (packets - 1) * headers.next + packets * OUTER_BYTES;
    bytes + there + acknowledges * (headers.acknowledge + OUTER_BYTES)
}

/// How long an acknowledge takes by the fastest of these ways.
fn acknowledged(ways: &[Way], headers: Headers) -> Ps {
    let answer = headers.acknowledge + OUTER_BYTES;
    let time = |way: &Way| way.iter().map(|(rate, delay)| rate.time(answer) + delay).sum();
    ways.iter().map(time).min().unwrap_or(0)
}

/// How long a message takes to its target in an idle network, by the fastest of these ways.
fn carried(ways: &[Way], bytes: u64, mtu: u64, headers: Headers) -> Ps {
    ways.iter().map(|way| carried_by(way, bytes, mtu, headers)).min().unwrap_or(0)
}

/// By one way: every packet is stored and forwarded, and no packet waits for another but on the
/// slowest link.
///
/// The packet that is last at the slowest link is followed from there: exact where all packets but
/// the last are of one length, and the last is not shorter by so much that it waits behind another
/// on a faster link.
fn carried_by(way: &[(LineRate, Ps)], bytes: u64, mtu: u64, headers: Headers) -> Ps {
    let packets = bytes.div_ceil(mtu);
    let len = |payload: u64, header| payload.next_multiple_of(4) + header + OUTER_BYTES;
    // When each packet has left each link: a packet begins when it is there and the one before it
    // has left. Packets in the middle are alike, so a few at each end tell the rest.
    let mut left = vec![0; way.len()];
    let mut send = |len: u64| {
        let mut at = 0;
        for ((rate, delay), left) in way.iter().zip(&mut left) {
            *left = at.max(*left) + rate.time(len);
            at = *left + delay;
        }
        at
    };
    let mut last = 0;
    let simulated = packets.min(64);
    let slowest = way.iter().map(|(rate, _)| rate.time(len(mtu, headers.next))).max().unwrap_or(0);
    for i in 0..simulated {
        let (begins, ends) = (i == 0, i + 1 == simulated);
        let payload = if ends { bytes - (packets - 1) * mtu } else { mtu };
        let header = if begins { headers.first } else { headers.next }
            + if ends { headers.last } else { 0 }
            + if begins && ends { headers.only } else { 0 };
        last = send(len(payload, header));
    }
    last + (packets - simulated) * slowest
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ps: f64| ps / US as f64;
        let t = &self.tally;
        let failed = self.failed();
        writeln!(f, "flows    {} of {} done, {failed} failed", self.done(), self.flows.len())?;
        let p99 = self.percentile(990).unwrap_or(0) as f64;
        writeln!(
            f,
            "time     mean {:.3} µs, 99th percentile {:.3} µs, mean slowdown {:.3}",
            us(self.mean()),
            us(p99),
            self.mean_slowdown()
        )?;
        let dropped = t.dropped_full + t.dropped_loss + t.dropped_down + t.dropped_no_path;
        writeln!(
            f,
            "packets  {} sent, {} delivered, {dropped} dropped, {} marked, {} sent again, \
             {} pause{}",
            t.sent,
            t.delivered,
            t.marked,
            self.retransmitted,
            t.pauses,
            if t.pauses == 1 { "" } else { "s" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::time::NEVER;

    #[test]
    fn a_run_stops_at_its_end_or_when_the_last_flow_is_over() {
        let stopped = |failed: &[(u32, Status)], until, is_cut| {
            let mut report = Report::new(&[Flow::new(0, 1, 1000, 0), Flow::new(1, 0, 1000, 0)]);
            let (ended, failed) = (vec![(0, 5)], failed.to_vec());
            report.add(Outcome { ended, failed, last_over: 7, is_cut, ..Outcome::default() });
            report.stop(until, None).stopped
        };
        assert_eq!(stopped(&[], 100, true), 100, "a flow is under way");
        assert_eq!(stopped(&[], 100, false), 7, "a flow waits for one that has failed");
        assert_eq!(stopped(&[], NEVER, false), 7, "a flow never ends");
        assert_eq!(stopped(&[(1, Status::RetryExceeded)], 100, true), 7, "all are over before");
    }

    /// A network that loses a packet, or a part of one, without a count is caught in every run.
    #[test]
    fn bytes_that_are_nowhere_are_an_error() {
        let report = |on_their_way| {
            let mut report = Report::new(&[]);
            let tally = NetTally {
                sent: 3,
                sent_bytes: 300,
                delivered: 1,
                delivered_bytes: 120,
                dropped_loss: 1,
                dropped_bytes: 90,
                ..NetTally::default()
            };
            report.add(Outcome { tally, on_their_way, ..Outcome::default() });
            report.whole().map(|report| report.in_flight)
        };
        assert_eq!(report((1, 90)), Ok(1));
        for found in [(0, 0), (1, 89), (2, 90)] {
            let lost = ClusterError::Unaccounted { outstanding: (1, 90), found };
            assert_eq!(report(found), Err(lost));
        }
    }

    /// A card that completes a flow whose bytes have not all arrived is caught in every run.
    #[test]
    fn a_flow_that_ended_without_its_bytes_is_an_error() {
        let report = |ended: &[(u32, Ps)], arrived| {
            let mut report = Report::new(&[Flow::new(0, 1, 1000, 0), Flow::new(1, 0, 1000, 0)]);
            let (ended, arrived) = (ended.to_vec(), vec![(0, 1000), (1, arrived)]);
            report.add(Outcome { ended, arrived, ..Outcome::default() });
            report.whole().map(|report| report.done())
        };
        assert_eq!(report(&[(0, 5), (1, 5)], 1000), Ok(2));
        assert_eq!(report(&[(0, 5)], 999), Ok(1), "what has not ended may be under way");
        let missing = ClusterError::Missing { flow: 1, missing: 1 };
        assert_eq!(report(&[(0, 5), (1, 5)], 999), Err(missing));
    }

    /// One that completes a flow before its last byte is there is caught, too, whichever part tells
    /// of the one and of the other.
    #[test]
    fn a_flow_that_ended_before_its_bytes_came_is_an_error() {
        let report = |ended: Option<Ps>, at| {
            let mut report = Report::new(&[Flow::new(0, 1, 1000, 0)]);
            let ended = ended.map(|at| (0, at)).into_iter().collect();
            report.add(Outcome { ended, ..Outcome::default() });
            let (arrived, whole_at) = (vec![(0, 1000)], vec![(0, at)]);
            report.add(Outcome { arrived, whole_at, ..Outcome::default() });
            report.whole().map(|report| report.done())
        };
        assert_eq!(
            (report(Some(5), 4), report(Some(5), 5), report(None, 5)),
            (Ok(1), Ok(1), Ok(0))
        );
        assert_eq!(report(Some(5), 7), Err(ClusterError::Early { flow: 0, late: 2 }));
    }
}
