//! A thread's part of a cluster: its hosts and switches, and the flows that begin or end there.
//!
//! The parts run one window of time after the other. A window is as long as the least delay of a
//! link from part to part, so what one sends reaches the other in a later window.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use remora_nic::nic::QpInit;
use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, Remote, RingInit, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora_nic::wire::Transport;
use remora_nic::{Access, MrInit, PageTable, Path, Pd, Psn, QpFlags};

use super::cluster::{Cluster, ClusterError, Division, Payload};
use super::flow::Flow;
use super::record::Recorder;
use super::report::Part as Outcome;
use super::watch::Watch;
use crate::dice::{mix, pattern};
use crate::hollow::{self, HOLLOW};
use crate::net::deadlock::{Waits, circle};
use crate::net::time::{MS, NEVER, Ps, US};
use crate::net::{Node, Parcel, Part};
use crate::world::{DriverOptions, Host, Step, World};

/// What the two ends of a flow must know of each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    src_qpn: u32,
    dst_qpn: u32,
    dst_addr: u64,
    dst_key: u32,
}

/// What all threads of a run share.
pub(super) struct Shared<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) flows: &'a [Flow],
    pub(super) division: &'a Division,
    pub(super) ends: Mutex<Vec<Ends>>,
    pub(super) barrier: Barrier,
    pub(super) mail: Vec<Mutex<Vec<Parcel>>>,
    pub(super) nexts: Vec<AtomicU64>,
    pub(super) failed: Mutex<Option<ClusterError>>,
    /// In a look for deadlocks: what all parts have to say.
    pub(super) paused: Mutex<Vec<(u32, u8)>>,
    pub(super) waits: Mutex<Waits>,
    /// The moment up to which the part that has come furthest has taken samples.
    pub(super) sampled: AtomicU64,
    pub(super) watch: &'a Watch,
}

/// The address in work requests of a host's first byte.
const IOVA: u64 = 0x1000_0000_0000;
/// Entries of a completion queue. It is emptied after each event.
const ENTRIES: usize = 1024;
/// The longest window: after each, the run tells how far it has come.
const WINDOW: Ps = 100 * US;
/// How often a network with flow control is searched for deadlocks.
const LOOK: Ps = MS;

/// What a host has for all its flows.
#[derive(Clone, Copy, Debug)]
struct Base {
    pd: Pd,
    send_cq: u32,
    recv_cq: u32,
    key: u32,
}

/// One thread's part.
pub(super) struct Share<'a> {
    shared: &'a Shared<'a>,
    own: u8,
    world: World,
    bases: Vec<Base>,
    ends: Vec<Ends>,
    /// By flow that begins here: the offset of its bytes, and the flows that it still waits for.
    sources: Vec<(u64, u32)>,
    /// By flow that ends here: the offset of its bytes.
    targets: Vec<u64>,
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Share<'a> {
    /// Runs one part of the flows.
    pub(super) fn run(shared: &'a Shared<'a>, own: u8) -> Outcome {
        let made = Share::new(shared, own);
        if let Err(error) = &made {
            locked(&shared.failed).get_or_insert(error.clone());
        }
        shared.barrier.wait();
        if locked(&shared.failed).is_some() {
            return Outcome::default();
        }
        let Ok(mut share) = made else { return Outcome::default() };
        share.ends = locked(&shared.ends).clone();
        share.connect();
        let begin = Instant::now();
        share.work();
        share.outcome.run_seconds = begin.elapsed().as_secs_f64();
        share.finish()
    }

    fn new(shared: &'a Shared<'a>, own: u8) -> Result<Share<'a>, ClusterError> {
        let Shared { cluster, flows, division, .. } = *shared;
        let mut world = World::on(&cluster.topology, &cluster.net, DriverOptions::HARDWARE)?;
        let first = division.firsts[usize::from(own)];
        let last = division.firsts[usize::from(own) + 1];
        if division.firsts.len() > 2 {
            let part = Part { of: division.of.clone(), own, leaving: Vec::new() };
            world.set_part(first as usize, part);
        }
        for host in 0..cluster.topology.hosts {
            let is_here = (first..last).contains(&host);
            let profile = cluster.hardware.get(host as usize).copied().flatten();
            world.place_host(u64::from(host), (cluster.card(host), profile), is_here);
        }
        let start = world.net().now();
        let mut share = Share {
            shared,
            own,
            world,
            bases: Vec::new(),
            ends: Vec::new(),
            sources: vec![(0, 0); flows.len()],
            targets: vec![0; flows.len()],
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
        share.lay_out((first, last))?;
        share.create()?;
        Ok(share)
    }

    /// Plans what fails, and what is recorded.
    fn prepare_net(&mut self) {
        let Shared { cluster, division, .. } = *self.shared;
        let net = self.world.net();
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

    /// Is this host one of this part's?
    fn is_here(&self, host: u32) -> bool {
        self.shared.division.of[host as usize] == self.own
    }

    fn base(&self, host: u32) -> Base {
        self.bases[(host - self.shared.division.firsts[usize::from(self.own)]) as usize]
    }

    /// Gives the flows' bytes their places, and registers each host's.
    fn lay_out(&mut self, (first, last): (u32, u32)) -> Result<(), ClusterError> {
        for (i, flow) in self.shared.flows.iter().enumerate() {
            self.sources[i].1 = flow.needed();
            for (host, is_source) in [(flow.src, true), (flow.dst, false)] {
                if !self.is_here(host) || flow.is_wait() {
                    continue;
                }
                let memory = &mut self.world.hosts[host as usize].memory;
                let addr = memory.hollow.alloc(flow.bytes).ok_or_else(|| full(host, "memory"))?;
                let offset = addr - HOLLOW;
                if is_source {
                    self.sources[i].0 = offset;
                } else {
                    self.targets[i] = offset;
                }
            }
            for other in &flow.after {
                self.waiting[*other as usize].push(i as u32);
            }
            if flow.after.is_empty() && self.is_here(flow.src) {
                self.starts.push((flow.start, i as u32));
            }
        }
        self.starts.sort_unstable_by(|a, b| b.cmp(a));
        let is_real = self.shared.cluster.payload == Payload::Real;
        for host in first..last {
            let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
            let len = memory.hollow.len().max(1);
            let pages = if is_real {
                let at = memory.alloc(len as usize, 4096);
                PageTable::contiguous(12, at, len)
            } else {
                PageTable::new(hollow::SHIFT, 0, [HOLLOW])
            };
            let pd = nic.alloc_pd().map_err(|e| full(host, e))?;
            let init = MrInit { iova: IOVA, len, access: Access::all(), pages };
            let key = nic.reg_mr(pd, init).map_err(|e| full(host, e))?;
            let send_cq = nic.create_exported_cq(ENTRIES).map_err(|e| full(host, e))?;
            let recv_cq = nic.create_exported_cq(ENTRIES).map_err(|e| full(host, e))?;
            self.bases.push(Base { pd, send_cq, recv_cq, key });
        }
        Ok(())
    }

    /// Makes the queue pairs, and tells the other part of them.
    fn create(&mut self) -> Result<(), ClusterError> {
        let mut made = Vec::new();
        for (i, flow) in self.shared.flows.iter().enumerate() {
            for (host, is_source) in [(flow.src, true), (flow.dst, false)] {
                if !self.is_here(host) || flow.is_wait() {
                    continue;
                }
                let Base { pd, send_cq, recv_cq, key } = self.base(host);
                let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
                let stride = RingInit::stride_for(1, 0);
                let mut ring = RingInit { addr: 0, depth: 1, stride };
                ring.addr = memory.alloc(ring.len(), 64);
                let (sq, rq) = match is_source {
                    true => (ring, RingInit::default()),
                    false => (RingInit::default(), ring),
                };
                let qpn = nic.create_qp(QpInit {
                    pd,
                    transport: Transport::Rc,
                    send_cq,
                    recv_cq,
                    srq: None,
                    sq,
                    rq,
                    signal_all: false,
                    flags: QpFlags::empty(),
                    client: 0,
                });
                made.push((i, is_source, qpn.map_err(|e| full(host, e))?, key));
            }
        }
        let mut ends = locked(&self.shared.ends);
        for (i, is_source, qpn, key) in made {
            if is_source {
                ends[i].src_qpn = qpn;
            } else {
                (ends[i].dst_qpn, ends[i].dst_key) = (qpn, key);
                ends[i].dst_addr = IOVA + self.targets[i];
            }
        }
        Ok(())
    }

    /// Takes all queue pairs of this part to RTS.
    fn connect(&mut self) {
        let is_real = self.shared.cluster.payload == Payload::Real;
        for (i, flow) in self.shared.flows.iter().enumerate().filter(|(_, flow)| !flow.is_wait()) {
            let Ends { src_qpn, dst_qpn, .. } = self.ends[i];
            let psn = Psn::new(mix(i as u64) as u32);
            if self.is_here(flow.src) {
                self.bring_up((flow.src, src_qpn), (flow.dst, dst_qpn), psn);
                if is_real {
                    let at = self.sources[i].0;
                    self.fill(flow.src, at, &pattern(i as u64, flow.bytes as usize));
                }
            }
            if self.is_here(flow.dst) {
                self.bring_up((flow.dst, dst_qpn), (flow.src, src_qpn), psn);
                if self.is_awaited(i) {
                    let Host { nic, memory, .. } = &mut self.world.hosts[flow.dst as usize];
                    let request = RecvRequest { wr_id: i as u64, sges: &[] };
                    nic.post_recv(memory, dst_qpn, &request).expect("an empty ring has room");
                }
            }
        }
    }

    /// Does a flow wait at the target of this one?
    fn is_awaited(&self, flow: usize) -> bool {
        let flows = self.shared.flows;
        self.waiting[flow].iter().any(|other| flows[*other as usize].src == flows[flow].dst)
    }

    fn bring_up(&mut self, (host, qpn): (u32, u32), (peer, dest_qp): (u32, u32), psn: Psn) {
        let Cluster { mtu, timeout, transport, .. } = *self.shared.cluster;
        let path = Path::new(self.shared.cluster.card(peer).address, qpn.min(dest_qp));
        let none = QpAttr::default();
        let steps = [
            QpAttr {
                state: Some(State::Init),
                access: Some(Access::all()),
                dialect: Some(transport.dialect),
                congestion: Some(transport.congestion),
                ..none
            },
            QpAttr {
                state: Some(State::Rtr),
                path: Some(path),
                path_mtu: Some(mtu),
                dest_qp: Some(dest_qp),
                rq_psn: Some(psn),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(1),
                ..none
            },
            QpAttr {
                state: Some(State::Rts),
                sq_psn: Some(psn),
                timeout: Some(timeout),
                max_rd_atomic: Some(1),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                ..none
            },
        ];
        let now = self.world.now;
        let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
        for attr in &steps {
            nic.modify_qp(now, memory, qpn, attr).expect("a transition of a new queue pair");
        }
    }

    /// The place in real memory of what lies at `offset`: behind it come the rings.
    fn fill(&mut self, host: u32, offset: u64, bytes: &[u8]) {
        let memory = &mut self.world.hosts[host as usize].memory;
        memory.slice_mut(offset, bytes.len()).copy_from_slice(bytes);
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
            shared.nexts[usize::from(self.own)].store(self.world.next_at(), Ordering::Release);
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
            match self.world.next_at() {
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
        let net = self.world.net();
        if let Some(recorder) = &mut self.recorder {
            net.advance(recorder.next);
            recorder.sample(net, quiet);
        }
    }

    fn step_until(&mut self, end: Ps) {
        while let Some(step) = self.world.step_until(end) {
            match step {
                Step::Card(host) => self.take_completions(host),
                Step::Alarm(_) => self.begin_due(),
                Step::Arrival => {}
            }
        }
    }

    /// Hands over the packets that have left, and takes those that have come.
    fn exchange(&mut self) {
        let shared = self.shared;
        if shared.mail.len() == 1 {
            return;
        }
        for parcel in self.world.net().leaving() {
            let to = parcel.to(self.world.net(), &shared.division.of);
            locked(&shared.mail[usize::from(to)]).push(parcel);
        }
        shared.barrier.wait();
        let came = core::mem::take(&mut *locked(&shared.mail[usize::from(self.own)]));
        came.into_iter().for_each(|parcel| self.world.net().receive(parcel));
    }

    /// A circle of paused ports that is there in two looks in a row, or when nothing else will
    /// happen, is a deadlock. Where a port is paused is known at its part; what it waits for, at
    /// that of the next switch.
    fn look_for_deadlocks(&mut self, now: Ps) {
        let shared = self.shared;
        let net = self.world.net();
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
            self.world.alarm_at(self.alarm, 0);
        }
    }

    /// Begins the flows whose time has come.
    fn begin_due(&mut self) {
        if self.world.net().now() != self.alarm {
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
        let Flow { src, bytes, .. } = self.shared.flows[i];
        if self.shared.flows[i].is_wait() {
            let now = self.world.net().now() - self.start;
            self.outcome.begun.push((i as u32, now));
            self.outcome.ended.push((i as u32, now));
            return self.release(src, i, false);
        }
        let Ends { src_qpn, dst_addr, dst_key, .. } = self.ends[i];
        let imm = self.is_awaited(i).then_some(i as u32);
        let now = self.world.net().now() - self.start;
        let lkey = self.base(src).key;
        let sge = [Sge { addr: IOVA + self.sources[i].0, len: bytes as u32, lkey }];
        let to = Remote { addr: dst_addr, rkey: dst_key };
        let request = SendRequest {
            wr_id: i as u64,
            op: SendOp::Write { to, imm },
            data: Data::Sges(&sge),
            flags: SendFlags::SIGNALED,
        };
        let Host { nic, memory, .. } = &mut self.world.hosts[src as usize];
        nic.post_send(memory, src_qpn, &request).expect("the ring of a new queue pair has room");
        self.outcome.begun.push((i as u32, now));
    }

    fn take_completions(&mut self, host: usize) {
        while let Some(cq) = self.world.hosts.quietly(host).nic.poll_completed() {
            let mut some = [Completion::default(); 16];
            loop {
                let polled = self.world.hosts.quietly(host).nic.poll_cq(cq, &mut some);
                let n = polled.expect("a completion queue holds all that was posted");
                some[..n].iter().for_each(|completion| self.completes(host as u32, completion));
                if n < some.len() {
                    break;
                }
            }
        }
    }

    fn completes(&mut self, host: u32, completion: &Completion) {
        let i = completion.wr_id as usize;
        let now = self.world.net().now() - self.start;
        if completion.status != Status::Success {
            self.outcome.failed.push((i as u32, completion.status));
            return;
        }
        let is_arrival = completion.kind.is_receive();
        if !is_arrival {
            self.outcome.ended.push((i as u32, now));
        }
        self.release(host, i, is_arrival);
    }

    /// Lets flows go on that wait at this host for this one.
    fn release(&mut self, host: u32, i: usize, is_arrival: bool) {
        let now = self.world.net().now() - self.start;
        for other in self.waiting[i].clone() {
            let Flow { src, start, .. } = self.shared.flows[other as usize];
            let sent_by_it = self.shared.flows[i].src == src;
            // A flow is waited for where it arrives, or, by its own source, where it completes.
            if src != host || is_arrival == sent_by_it {
                continue;
            }
            let missing = &mut self.sources[other as usize].1;
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
        let is_real = self.shared.cluster.payload == Payload::Real;
        for (i, flow) in self.shared.flows.iter().enumerate() {
            if !self.is_here(flow.dst) || flow.is_wait() {
                continue;
            }
            let memory = &mut self.world.hosts.quietly(flow.dst as usize).memory;
            let arrived = if is_real {
                let bytes = memory.slice(self.targets[i], flow.bytes as usize);
                let sent = pattern(i as u64, flow.bytes as usize);
                bytes.iter().zip(&sent).take_while(|(a, b)| a == b).count() as u64
            } else {
                memory.hollow.covered(HOLLOW + self.targets[i])
            };
            self.outcome.arrived.push((i as u32, arrived));
        }
        let recorder = self.recorder.take();
        self.outcome.record = recorder.map(|recorder| recorder.finish(self.world.net()));
        self.outcome.tally = self.world.net().tally;
        self.outcome.in_flight = self.world.net().in_flight();
        self.outcome.trace = self.world.trace();
        let counters = self.world.hosts.iter().map(|host| host.nic.counters());
        self.outcome.retransmitted = counters.map(|c| c.tx_retransmitted).sum();
        self.outcome
    }
}

fn full(host: u32, what: impl core::fmt::Display) -> ClusterError {
    ClusterError::Full { host, what: what.to_string() }
}
