//! Flows by cards: each host has the card that runs live, and each flow is a WRITE between two
//! queue pairs of its own, or a call of a kernel ([`gets`], [`stores`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use remora_nic::kernel::CallStatus;
use remora_nic::nic::QpInit;
use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Sge,
    Status,
};
use remora_nic::wire::{Dialect, Transport as Service};
use remora_nic::{Access, MrInit, PageTable, Path, Pd, Psn, QpFlags, SendProgress};
use remora_offload::kernel::builtin::get::Value;
use remora_offload::kernel::{Executor, ExecutorLimits, Timing};

use super::carrier::{Carrier, News, Turn};
use super::cluster::{Cluster, ClusterError, Content};
use super::flow::{Flow, Verb};
use super::gets;
use super::report::Outcome;
use super::shared::{Ends, Shared, locked};
use super::stores::{self, Kept};
use super::transport::How;
use crate::dice::{mix, pattern};
use crate::hollow::{self, HOLLOW};
use crate::net::{Net, Ps};
use crate::world::{DriverOptions, Host, Step, World};

/// The address in work requests of a host's first byte.
const IOVA: u64 = 0x1000_0000_0000;
/// The address in work requests of the first of a host's calls of stores.
const CALLS: u64 = 0x3000_0000_0000;
/// Bytes from one such call to the next.
const CALL: u64 = 128;
/// Entries of a completion queue. It is emptied after each event.
const ENTRIES: usize = 1024;

/// The most calls of kernels that a host's card carries out at once.
const MOST_CALLS: usize = 4096;

/// By how much a class's share of a card that many want is larger than that of the class below.
const SHARE: u16 = 4;

/// What a host has for all its flows.
#[derive(Clone, Copy, Debug)]
struct Base {
    pd: Pd,
    send_cq: u32,
    recv_cq: u32,
    key: u32,
}

/// Memory for the heads of a host's calls of stores: each has its own for the whole run.
#[derive(Clone, Copy, Debug)]
struct Calls {
    addr: u64,
    key: u32,
    used: u64,
}

/// The hosts of one part, with their cards.
pub(super) struct Cards<'a> {
    shared: &'a Shared<'a>,
    own: u8,
    world: World,
    bases: Vec<Base>,
    ends: Vec<Ends>,
    /// By flow: the offset of its bytes at its source, and at its target, of those that are here.
    sources: Vec<u64>,
    targets: Vec<u64>,
    /// By host: how many flows fetch from it.
    gets: Vec<u32>,
    /// By host: does it have a store?
    has_store: Vec<bool>,
    /// The stores of the hosts that are here.
    stores: BTreeMap<u32, Arc<Kept>>,
    /// By host that is here: where its long calls of stores have their heads.
    calls: BTreeMap<u32, Calls>,
    /// By flow: its class, where there are several.
    classes: Option<Vec<u8>>,
    news: Vec<News>,
}

impl<'a> Carrier<'a> for Cards<'a> {
    fn new(shared: &'a Shared<'a>, own: u8) -> Result<Cards<'a>, ClusterError> {
        let Shared { cluster, flows, division, .. } = *shared;
        let net = cluster.build_part(&shared.atlas)?;
        let mut world = World::on(net, cluster.net.seed, DriverOptions::HARDWARE);
        let (first, last) = division.hosts(own);
        if division.parts() > 1 {
            let part = division.part(own);
            world.set_part(first as usize, part);
        }
        for (host, bits) in (0..cluster.topology.hosts).zip(cluster.host_rates()) {
            let profile = cluster.hardware.get(host as usize).copied().flatten();
            world.note_host(Cluster::address(host), profile);
            if (first..last).contains(&host) {
                world.place_host(u64::from(host), cluster.card(host, bits), profile);
            }
        }
        let mut cards = Cards {
            shared,
            own,
            world,
            bases: Vec::new(),
            ends: Vec::new(),
            sources: vec![0; flows.len()],
            targets: vec![0; flows.len()],
            gets: gets::counts(flows, cluster.topology.hosts),
            has_store: vec![false; cluster.topology.hosts as usize],
            stores: BTreeMap::new(),
            calls: BTreeMap::new(),
            classes: classes(cluster, flows),
            news: Vec::new(),
        };
        for flow in flows.iter().filter(|flow| flow.verb.key().is_some()) {
            cards.has_store[flow.dst as usize] = true;
        }
        cards.lay_out()?;
        cards.register((first, last))?;
        cards.register_calls()?;
        (first..last).try_for_each(|host| cards.serve(host))?;
        cards.create()?;
        Ok(cards)
    }

    /// Takes all queue pairs of this part to RTS.
    fn connect(&mut self) {
        self.ends = locked(&self.shared.ends).clone();
        let is_real = self.shared.cluster.payload == Content::Real;
        for (i, flow) in self.shared.flows.iter().enumerate().filter(|(_, flow)| !flow.is_wait()) {
            let Ends { src_qpn, dst_qpn, .. } = self.ends[i];
            let psn = Psn::new(mix(i as u64) as u32);
            let terms = (psn, self.class(i), flow.connection);
            if self.is_here(flow.src) {
                self.bring_up((flow.src, src_qpn), (flow.dst, dst_qpn), terms);
                if flow.is_call() {
                    self.await_one(flow.src, src_qpn, i);
                }
            }
            if self.is_here(flow.dst) {
                self.bring_up((flow.dst, dst_qpn), (flow.src, src_qpn), terms);
                if self.shared.awaited[i] && !flow.is_call() {
                    self.await_one(flow.dst, dst_qpn, i);
                }
            }
            let (from, to) = flow.way();
            // Where bytes go there are others before, so that those that have come are known.
            if is_real && self.is_here(to) && !matches!(flow.verb, Verb::StorePut(_)) {
                let others: Vec<u8> = content(i, flow).iter().map(|byte| !byte).collect();
                self.fill(to, self.payload(i, to), &others);
            }
            // Stores have their values already.
            let is_stored = matches!(flow.verb, Verb::StoreGet(_));
            if is_real && self.is_here(from) && !is_stored {
                self.fill(from, self.payload(i, from), &content(i, flow));
            }
        }
    }

    fn net(&mut self) -> &mut Net {
        self.world.net()
    }

    fn next_at(&mut self) -> Ps {
        self.world.next_at()
    }

    fn alarm_at(&mut self, at: Ps) {
        self.world.alarm_at(at, 0);
    }

    fn begin(&mut self, i: usize) {
        let flow = &self.shared.flows[i];
        let Ends { src_qpn, dst_addr, dst_key, .. } = self.ends[i];
        match flow.verb {
            Verb::Write => {}
            Verb::Get => return self.call(i),
            Verb::StoreGet(key) | Verb::StorePut(key) => return self.call_store(i, key),
        }
        let imm = self.shared.awaited[i].then_some(i as u32);
        let lkey = self.base(flow.src).key;
        let sge = [Sge { addr: IOVA + self.sources[i], len: flow.bytes as u32, lkey }];
        let to = RemoteAddress { addr: dst_addr, rkey: dst_key };
        let request = SendRequest {
            wr_id: i as u64,
            op: SendOp::Write { to, imm },
            data: Data::Sges(&sge),
            flags: SendFlags::SIGNALED,
        };
        let Host { nic, memory, .. } = &mut self.world.hosts[flow.src as usize];
        nic.post_send(memory, src_qpn, &request).expect("the ring of a new queue pair has room");
    }

    fn progress(&mut self, flow: usize) -> SendProgress {
        let (src, qpn) = (self.shared.flows[flow].src as usize, self.ends[flow].src_qpn);
        let progress = self.world.hosts.quietly(src).nic.send_progress(qpn);
        progress.expect("a flow has its queue pair for the whole run")
    }

    #[inline]
    fn step_until(&mut self, end: Ps) -> Option<Turn> {
        loop {
            match self.world.step_until(end)? {
                Step::Alarm(_) => return Some(Turn::Alarm),
                Step::Card(host) => self.take_completions(host),
                Step::Arrival => {}
            }
            if !self.news.is_empty() {
                return Some(Turn::News);
            }
        }
    }

    fn news(&mut self) -> &mut Vec<News> {
        &mut self.news
    }

    fn finish(&mut self, outcome: &mut Outcome) {
        let is_real = self.shared.cluster.payload == Content::Real;
        for (i, flow) in self.shared.flows.iter().enumerate() {
            let to = flow.way().1;
            if !self.is_here(to) || flow.is_wait() {
                continue;
            }
            if let Verb::StorePut(key) = flow.verb {
                let arrived = stores::stored(&self.stores[&to], (key, flow.bytes), is_real);
                outcome.arrived.push((i as u32, arrived));
                continue;
            }
            let (place, payload) = (self.place(i, to), self.payload(i, to));
            let memory = &mut self.world.hosts.quietly(to as usize).memory;
            let arrived = if is_real {
                let bytes = memory.slice(payload, flow.bytes as usize);
                // A READ of a store may be there before the first put.
                let first = flow.verb.key().map(|key| stores::first_value(key, flow.bytes, true));
                equal(bytes, &content(i, flow)).max(first.map_or(0, |first| equal(bytes, &first)))
            } else {
                let whole_at = memory.hollow.whole_at(HOLLOW + place);
                outcome.whole_at.extend(whole_at.map(|at| (i as u32, at)));
                memory.hollow.covered(HOLLOW + place).saturating_sub(payload - place)
            };
            outcome.arrived.push((i as u32, arrived));
        }
        outcome.trace = self.world.trace();
        let counters = self.world.hosts.iter().map(|host| host.nic.counters());
        outcome.retransmitted = counters.map(|c| c.tx_retransmitted).sum();
    }
}

/// Setting up.
impl Cards<'_> {
    fn is_here(&self, host: u32) -> bool {
        self.shared.division.has(self.own, host)
    }

    fn base(&self, host: u32) -> Base {
        self.bases[(host - self.shared.division.hosts(self.own).0) as usize]
    }

    /// A flow's class; for queue pairs, the client of the card that it counts as.
    fn class(&self, flow: usize) -> u8 {
        self.classes.as_ref().map_or(0, |classes| classes[flow])
    }

    /// Where a flow's bytes are at one of its hosts.
    fn place(&self, flow: usize, host: u32) -> u64 {
        let is_source = self.shared.flows[flow].src == host;
        if is_source { self.sources[flow] } else { self.targets[flow] }
    }

    /// Where the bytes of its message or value are there: behind the head of a store's answer.
    fn payload(&self, flow: usize, host: u32) -> u64 {
        let head = self.shared.flows[flow].verb.key().map_or(0, |_| stores::ANSWER);
        self.place(flow, host) + head
    }

    /// Gives the flows' bytes their places. Stores have values in memory of their own.
    fn lay_out(&mut self) -> Result<(), ClusterError> {
        for (i, flow) in self.shared.flows.iter().enumerate().filter(|(_, flow)| !flow.is_wait()) {
            for (host, is_source) in [(flow.src, true), (flow.dst, false)] {
                let is_of_store = flow.verb.key().is_some();
                if !self.is_here(host) || (is_of_store && !is_source) {
                    continue;
                }
                let memory = &mut self.world.hosts[host as usize].memory;
                let len = if is_of_store { stores::ANSWER + flow.bytes } else { flow.bytes };
                let addr = memory.hollow.alloc(len).ok_or_else(|| full(host, "memory"))?;
                let places = if is_source { &mut self.sources } else { &mut self.targets };
                places[i] = addr - HOLLOW;
            }
        }
        Ok(())
    }

    /// Registers each host's bytes, and makes what its flows share.
    fn register(&mut self, (first, last): (u32, u32)) -> Result<(), ClusterError> {
        let is_real = self.shared.cluster.payload == Content::Real;
        for host in first..last {
            let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
            let len = memory.hollow.len().max(1);
            let pages = if is_real {
                let at = memory.alloc(len as usize, 4096);
                PageTable::contiguous(12, at, len)
            } else {
                PageTable::new(hollow::SHIFT, 0, [HOLLOW])
            };
            if self.classes.is_some() {
                (0..8).for_each(|class| nic.set_client_weight(class, SHARE.pow(class.into())));
            }
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
        for (i, flow) in self.shared.flows.iter().enumerate().filter(|(_, flow)| !flow.is_wait()) {
            for (host, is_source) in [(flow.src, true), (flow.dst, false)] {
                if !self.is_here(host) {
                    continue;
                }
                let Base { pd, send_cq, recv_cq, key } = self.base(host);
                let client = self.class(i).into();
                let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
                let sges = if flow.verb.key().is_some() { 2 } else { 1 };
                let mut ring = |inline| {
                    let stride = RingInit::stride_for(sges, inline);
                    let ring = RingInit { addr: 0, depth: 1, stride };
                    RingInit { addr: memory.alloc(ring.len(), 64), ..ring }
                };
                let (sq, rq) = match (is_source, flow.verb) {
                    (true, Verb::Write) => (ring(0), RingInit::default()),
                    (false, Verb::Write) => (RingInit::default(), ring(0)),
                    (true, Verb::Get) => (ring(gets::CALL), ring(0)),
                    (true, _) => (ring(stores::inline(flow)), ring(0)),
                    (false, _) => (RingInit::default(), RingInit::default()),
                };
                let qpn = nic.create_qp(QpInit {
                    pd,
                    transport: Service::Rc,
                    send_cq,
                    recv_cq,
                    srq: None,
                    sq,
                    rq,
                    signal_all: false,
                    flags: QpFlags::empty(),
                    client,
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

    fn bring_up(
        &mut self,
        (host, qpn): (u32, u32),
        (peer, dest_qp): (u32, u32),
        (psn, class, connection): (Psn, u8, Option<u32>),
    ) {
        let Cluster { mtu, timeout, transport, .. } = *self.shared.cluster;
        let How::Card { dialect, congestion, .. } = transport.how else { return };
        // Calls of kernels are no RoCE v2.
        let is_called = |host| self.gets[host as usize] > 0 || self.has_store[host as usize];
        let calls = is_called(host) || is_called(peer);
        let dialect = if calls { dialect | Dialect::KERNELS } else { dialect };
        let entropy = connection.unwrap_or(qpn.min(dest_qp));
        let path = Path::new(Cluster::address(peer), entropy);
        let path = Path { traffic_class: class << 5, ..path };
        let none = QpAttr::default();
        let steps = [
            QpAttr {
                state: Some(State::Init),
                access: Some(Access::all()),
                dialect: Some(dialect),
                congestion: Some(congestion),
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
                retry_cnt: Some(self.shared.cluster.tuned().retries as u8),
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

    /// Fills real memory. What lies at `offset` has its place there; behind it come the rings.
    fn fill(&mut self, host: u32, offset: u64, bytes: &[u8]) {
        let memory = &mut self.world.hosts[host as usize].memory;
        memory.slice_mut(offset, bytes.len()).copy_from_slice(bytes);
    }
}

/// Kernels, and what they serve.
impl Cards<'_> {
    /// Puts up what a host serves by kernels.
    fn serve(&mut self, host: u32) -> Result<(), ClusterError> {
        let (gets, has_store) = (self.gets[host as usize], self.has_store[host as usize]);
        if gets == 0 && !has_store {
            return Ok(());
        }
        let clients = if self.classes.is_some() { 8 } else { 1 };
        // As many as there are: who waits for them is a matter of the flows.
        let (invocations, client_invocations) = (MOST_CALLS, MOST_CALLS);
        let limits = ExecutorLimits { invocations, client_invocations, ..Default::default() };
        let mut kernels = Executor::new(limits);
        let stage = self.world.hosts[host as usize].hardware.as_ref();
        kernels.set_timing(stage.map(|stage| Box::new(stage.way()) as Box<dyn Timing>));
        if gets > 0 {
            let list = self.values(host);
            let Base { pd, key, .. } = self.base(host);
            let server = &mut self.world.hosts[host as usize];
            gets::serve(server, &mut kernels, (pd, key, clients), &list)
                .map_err(|what| full(host, what))?;
        }
        if has_store {
            let memory = &mut self.world.hosts[host as usize].memory;
            let is_real = self.shared.cluster.payload == Content::Real;
            let store = stores::open(memory, self.shared.flows, (host, is_real));
            let store = store.map_err(|what| full(host, what))?;
            stores::deploy(&mut kernels, &store, clients).map_err(|what| full(host, what))?;
            self.stores.insert(host, store);
        }
        self.world.hosts[host as usize].nic.set_kernels(Box::new(kernels));
        Ok(())
    }

    /// The keys and values that a host's kernel GET serves.
    fn values(&self, host: u32) -> Vec<(u64, Value)> {
        let flows = self.shared.flows.iter().enumerate();
        let own = flows.filter(|(_, flow)| flow.verb == Verb::Get && flow.dst == host);
        let value = |(i, flow): (usize, &Flow)| {
            let place = Value { addr: IOVA + self.targets[i], len: flow.bytes as u32 };
            (i as u64, place)
        };
        own.map(value).collect()
    }

    /// Makes room for the heads of long calls of stores.
    fn register_calls(&mut self) -> Result<(), ClusterError> {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for flow in self.shared.flows.iter().filter(|flow| self.is_here(flow.src)) {
            if flow.verb.key().is_some() && !stores::is_short(flow) {
                *counts.entry(flow.src).or_default() += 1;
            }
        }
        for (host, count) in counts {
            let pd = self.base(host).pd;
            let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
            let len = count * CALL;
            let addr = memory.alloc(len as usize, 4096);
            let pages = PageTable::contiguous(12, addr, len);
            let init = MrInit { iova: CALLS, len, access: Access::empty(), pages };
            let key = nic.reg_mr(pd, init).map_err(|e| full(host, e))?;
            self.calls.insert(host, Calls { addr, key, used: 0 });
        }
        Ok(())
    }

    /// Has the card tell of a message with an immediate.
    fn await_one(&mut self, host: u32, qpn: u32, flow: usize) {
        let Host { nic, memory, .. } = &mut self.world.hosts[host as usize];
        let request = RecvRequest { wr_id: flow as u64, sges: &[] };
        nic.post_recv(memory, qpn, &request).expect("an empty ring has room");
    }

    /// Calls the kernel of a store.
    fn call_store(&mut self, i: usize, key: u32) {
        let flow = &self.shared.flows[i];
        let own = self.base(flow.src).key;
        let to = RemoteAddress { addr: IOVA + self.sources[i], rkey: own };
        let value = Sge { addr: to.addr + stores::ANSWER, len: flow.bytes as u32, lkey: own };
        let (opcode, mut call) = stores::call(i, flow, key, to);
        let payload = self.payload(i, flow.src);
        let Host { nic, memory, .. } = &mut self.world.hosts[flow.src as usize];
        let mut sges = [Sge::default(), value];
        let (op, data) = if stores::is_short(flow) {
            if let Verb::StorePut(_) = flow.verb {
                // What lies in memory without bytes is zeros.
                let len = flow.bytes as usize;
                let is_real = self.shared.cluster.payload == Content::Real;
                let bytes = is_real.then(|| memory.slice(payload, len).to_vec());
                call.extend(bytes.unwrap_or_else(|| vec![0; len]));
            }
            (SendOp::Rpc { opcode }, Data::Inline(&call[..]))
        } else {
            let calls = self.calls.get_mut(&flow.src).expect("room for each long call");
            let at = calls.used * CALL;
            calls.used += 1;
            memory.slice_mut(calls.addr + at, call.len()).copy_from_slice(&call);
            sges[0] = Sge { addr: CALLS + at, len: call.len() as u32, lkey: calls.key };
            (SendOp::RpcWrite { opcode }, Data::Sges(&sges))
        };
        let request = SendRequest { wr_id: i as u64, op, data, flags: SendFlags::empty() };
        let posted = nic.post_send(memory, self.ends[i].src_qpn, &request);
        posted.expect("the ring of a new queue pair has room");
    }

    /// Calls the kernel that sends a flow's bytes.
    fn call(&mut self, i: usize) {
        let Flow { src, dst, bytes, .. } = self.shared.flows[i];
        let to = RemoteAddress { addr: IOVA + self.sources[i], rkey: self.base(src).key };
        let call = gets::call(i as u64, self.gets[dst as usize], to, bytes as u32);
        let request = SendRequest {
            wr_id: i as u64,
            op: SendOp::Rpc { opcode: gets::OPCODE },
            data: Data::Inline(&call),
            flags: SendFlags::empty(),
        };
        let Host { nic, memory, .. } = &mut self.world.hosts[src as usize];
        let posted = nic.post_send(memory, self.ends[i].src_qpn, &request);
        posted.expect("the ring of a new queue pair has room");
    }
}

/// Running.
impl Cards<'_> {
    fn take_completions(&mut self, host: usize) {
        while let Some(cq) = self.world.hosts.quietly(host).nic.poll_completed() {
            let mut some = [Completion::default(); 16];
            loop {
                let polled = self.world.hosts.quietly(host).nic.poll_cq(cq, &mut some);
                let n = polled.expect("a completion queue holds all that was posted");
                let flows = self.shared.flows;
                let news = some[..n].iter().map(|done| news_of(host, done, flows));
                self.news.extend(news);
                if n < some.len() {
                    break;
                }
            }
        }
    }
}

fn news_of(host: usize, completion: &Completion, flows: &[Flow]) -> News {
    let (host, flow) = (host as u32, completion.wr_id as u32);
    match completion.status {
        Status::Success if !completion.kind.is_receive() => News::Ended { host, flow },
        Status::Success if !flows[flow as usize].is_call() => News::Arrived { host, flow },
        Status::Success => match CallStatus::from_immediate(completion.imm_or_key).0 {
            CallStatus::OK => News::Ended { host, flow },
            _ => News::Failed { flow, status: Status::RemoteOperation },
        },
        status => News::Failed { flow, status },
    }
}

/// By flow: the class that it says, or that of its length; `None` if there is but one class.
fn classes(cluster: &Cluster, flows: &[Flow]) -> Option<Vec<u8>> {
    if !cluster.short_first && flows.iter().all(|flow| flow.class.is_none()) {
        return None;
    }
    let others = if cluster.short_first { Flow::classes(flows) } else { vec![0; flows.len()] };
    Some(flows.iter().zip(others).map(|(flow, other)| flow.class.unwrap_or(other)).collect())
}

/// How many bytes are equal, from the first on.
fn equal(some: &[u8], others: &[u8]) -> u64 {
    some.iter().zip(others).take_while(|(a, b)| a == b).count() as u64
}

/// The bytes of a flow, where payload exists.
fn content(i: usize, flow: &Flow) -> Vec<u8> {
    match flow.verb.key() {
        Some(key) => stores::value_of(key, flow.bytes),
        None => pattern(i as u64, flow.bytes as usize),
    }
}

fn full(host: u32, what: impl core::fmt::Display) -> ClusterError {
    ClusterError::Full { host, what: what.to_string() }
}
