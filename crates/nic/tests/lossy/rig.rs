//! Two cards with a connection of the lossy dialect, and a network between them that loses and
//! delays what a test says.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Sge,
    Status,
};
use remora_nic::wire::icrc::{Flow, Icrc};
use remora_nic::wire::{
    Bth, Dialect, Extensions, ICRC_LEN, MAX_HEADER, Op, Operation, Packet, ROCE_PORT, Transport,
};
use remora_nic::{
    Access, Config, Datagram, Key, Memory, MrInit, Nic, PageTable, Path, PayloadRef, Pd, Psn,
    QpFlags, QpInit, Time, TransmitBatch,
};

use crate::ram::Ram;

/// The two ends.
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
/// Bytes of each end's memory, over which it has a region. Its rings are at the end of it.
pub(crate) const SIZE: u64 = 1 << 21;
const RINGS: u64 = SIZE - (1 << 17);
const DEPTH: u32 = 256;
/// The first PSN of both directions.
pub(crate) const FIRST: u32 = 100;
/// How long a packet takes.
pub(crate) const DELAY: u64 = 1000;
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// A packet that leaves a card: what a rule looks at.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) from: usize,
    /// By which a network would choose the packet's route.
    pub(crate) src_port: u16,
    /// The bytes of the datagram.
    pub(crate) len: usize,
    op: &'static Op,
}

impl Seen {
    pub(crate) fn is(&self, operation: Operation) -> bool {
        self.op.operation == operation
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Pass,
    Drop,
    /// It takes so many nanoseconds longer.
    Delay(u64),
}

type Rule = Box<dyn FnMut(&Seen) -> Fate>;

/// One of the two ends.
pub(crate) struct End {
    pub(crate) nic: Nic,
    ram: Ram,
    pub(crate) pd: Pd,
    /// The key of the region over all memory.
    pub(crate) key: Key,
    pub(crate) qpn: u32,
    send_cq: u32,
    recv_cq: u32,
    posted: u64,
    received: u64,
}

/// Settings of a [`Rig`].
pub(crate) struct Settings {
    pub(crate) config: fn(&mut Config),
    /// READs and atomics at once, in both directions.
    pub(crate) reads: u8,
    /// The last state of B.
    pub(crate) b_goes_to: State,
    pub(crate) dialect: Dialect,
    pub(crate) rnr_retry: u8,
}

impl Default for Settings {
    fn default() -> Settings {
        let (config, b_goes_to): (fn(&mut Config), _) = (|_| {}, State::Rts);
        Settings { config, reads: 16, b_goes_to, dialect: Dialect::LOSSY, rnr_retry: 7 }
    }
}

pub(crate) struct Rig {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    /// Packets on their way, by the time of their arrival and a number.
    wire: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    sent: u64,
    rules: Vec<Rule>,
    batch: TransmitBatch,
}

fn address(of: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + of as u8))
}

impl End {
    fn new(of: usize, change: fn(&mut Config)) -> End {
        let mut config = Config::new(address(of));
        change(&mut config);
        let mut nic = Nic::new(config, [3 + of as u8; 32]);
        let pd = nic.alloc_pd().unwrap();
        let key = region(&mut nic, pd);
        let [send_cq, recv_cq] = [(); 2].map(|()| nic.create_cq(2 * DEPTH as usize).unwrap());
        let ring = |addr| RingInit { addr, depth: DEPTH, stride: 64 };
        let qpn = nic.create_qp(QpInit {
            pd,
            transport: Transport::Rc,
            send_cq,
            recv_cq,
            srq: None,
            sq: ring(RINGS),
            rq: ring(RINGS + u64::from(DEPTH) * 64),
            signal_all: true,
            flags: QpFlags::empty(),
            client: 0,
        });
        let (ram, qpn) = (Ram(vec![0; SIZE as usize]), qpn.unwrap());
        End { nic, ram, pd, key, qpn, send_cq, recv_cq, posted: 0, received: 0 }
    }
}

/// A region over all memory of a card.
fn region(nic: &mut Nic, pd: Pd) -> Key {
    let (access, pages) = (Access::all(), PageTable::contiguous(21, 0, SIZE));
    nic.reg_mr(pd, MrInit { iova: 0, len: SIZE, access, pages }).unwrap()
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(&Settings::default())
    }

    pub(crate) fn with(settings: &Settings) -> Rig {
        let ends = [A, B].map(|of| End::new(of, settings.config));
        let (wire, rules, batch) = (BTreeMap::new(), Vec::new(), TransmitBatch::new());
        let mut rig = Rig { ends, now: Time(1000), wire, sent: 0, rules, batch };
        for of in [A, B] {
            rig.connect(of, settings);
        }
        rig
    }

    fn connect(&mut self, of: usize, settings: &Settings) {
        let peer = self.ends[1 - of].qpn;
        let (state, access) = (Some(State::Init), Some(Access::all()));
        self.modify(of, &QpAttr { state, access, ..QpAttr::default() });
        let to_receive = QpAttr {
            state: Some(State::Rtr),
            path: Some(Path::new(address(1 - of), peer)),
            path_mtu: Some(Mtu::B1024),
            dest_qp: Some(peer),
            rq_psn: Some(Psn::new(FIRST)),
            max_dest_rd_atomic: Some(settings.reads),
            min_rnr_timer: Some(1),
            dialect: Some(settings.dialect),
            ..QpAttr::default()
        };
        self.modify(of, &to_receive);
        if of == A || settings.b_goes_to == State::Rts {
            self.ready(of, settings);
        }
    }

    /// Makes an end that can receive ready to send.
    pub(crate) fn ready(&mut self, of: usize, settings: &Settings) {
        let to_send = QpAttr {
            state: Some(State::Rts),
            sq_psn: Some(Psn::new(FIRST)),
            max_rd_atomic: Some(settings.reads),
            timeout: Some(8),
            retry_cnt: Some(7),
            rnr_retry: Some(settings.rnr_retry),
            ..QpAttr::default()
        };
        self.modify(of, &to_send);
    }

    pub(crate) fn modify(&mut self, of: usize, attr: &QpAttr) {
        let end = &mut self.ends[of];
        end.nic.modify_qp(self.now, &mut end.ram, end.qpn, attr).unwrap();
    }

    /// Adds a rule. The first one that does not let a packet pass counts.
    pub(crate) fn rule(&mut self, rule: impl FnMut(&Seen) -> Fate + 'static) {
        self.rules.push(Box::new(rule));
    }

    /// Loses the packets with these numbers, from 1 on, of those that are so.
    pub(crate) fn lose(&mut self, numbers: &'static [u32], is: impl Fn(&Seen) -> bool + 'static) {
        let mut count = 0;
        self.rule(move |seen| {
            count += u32::from(is(seen));
            if is(seen) && numbers.contains(&count) { Fate::Drop } else { Fate::Pass }
        });
    }

    /// Loses all that are so, until the test sets what this returns to `false`.
    pub(crate) fn rule_while(&mut self, is: impl Fn(&Seen) -> bool + 'static) -> Rc<Cell<bool>> {
        let on = Rc::new(Cell::new(true));
        let loses = Rc::clone(&on);
        self.rule(move |seen| if loses.get() && is(seen) { Fate::Drop } else { Fate::Pass });
        on
    }

    /// Another region over all memory of an end.
    pub(crate) fn region(&mut self, of: usize) -> Key {
        let End { nic, pd, .. } = &mut self.ends[of];
        region(nic, *pd)
    }

    pub(crate) fn forget(&mut self, of: usize, key: Key) {
        self.ends[of].nic.dereg_mr(key).unwrap();
    }

    fn at(&self, of: usize, addr: u64) -> RemoteAddress {
        RemoteAddress { addr, rkey: self.ends[of].key }
    }

    /// Posts a request with one entry, by this local key.
    pub(crate) fn post(&mut self, of: usize, op: SendOp, (addr, lkey, len): (u64, Key, u32)) {
        let (sges, flags) = ([Sge { addr, len, lkey }], SendFlags::empty());
        let End { nic, ram, qpn, posted, .. } = &mut self.ends[of];
        let request = SendRequest { wr_id: *posted, op, data: Data::Sges(&sges), flags };
        nic.post_send(ram, *qpn, &request).unwrap();
        *posted += 1;
    }

    /// A READ of the peer's first bytes.
    pub(crate) fn read(&mut self, of: usize, to: u64, len: u32) {
        self.read_by(of, to, len, self.ends[of].key);
    }

    /// As [`Rig::read`], into memory by this local key.
    pub(crate) fn read_by(&mut self, of: usize, to: u64, len: u32, lkey: Key) {
        let from = self.at(1 - of, 0);
        self.post(of, SendOp::Read { from }, (to, lkey, len));
    }

    pub(crate) fn write(&mut self, of: usize, from: u64, to: u64, len: u32) {
        let (to, lkey) = (self.at(1 - of, to), self.ends[of].key);
        self.post(of, SendOp::Write { to, imm: None }, (from, lkey, len));
    }

    pub(crate) fn send(&mut self, of: usize, from: u64, len: u32) {
        let (op, lkey) = (SendOp::Send { imm: None, to: None }, self.ends[of].key);
        self.post(of, op, (from, lkey, len));
    }

    pub(crate) fn receive(&mut self, of: usize, addr: u64, len: u32) {
        let End { nic, ram, qpn, key, received, .. } = &mut self.ends[of];
        let request = RecvRequest { wr_id: *received, sges: &[Sge { addr, len, lkey: *key }] };
        nic.post_recv(ram, *qpn, &request).unwrap();
        *received += 1;
    }

    /// The address of a receive element.
    pub(crate) fn element(index: u64) -> u64 {
        RINGS + u64::from(DEPTH) * 64 + index * 64
    }

    /// The completions of one end's requests, and of its receive elements.
    pub(crate) fn sent(&mut self, of: usize) -> Vec<(u64, Status)> {
        self.drain(of, self.ends[of].send_cq)
    }

    pub(crate) fn received(&mut self, of: usize) -> Vec<(u64, Status)> {
        self.drain(of, self.ends[of].recv_cq)
    }

    fn drain(&mut self, of: usize, cq: u32) -> Vec<(u64, Status)> {
        let mut out = [Completion::default(); 2 * DEPTH as usize];
        let count = self.ends[of].nic.poll_cq(cq, &mut out).unwrap();
        out[..count].iter().map(|entry| (entry.wr_id, entry.status)).collect()
    }

    pub(crate) fn state(&self, of: usize) -> State {
        self.ends[of].nic.query_qp(self.ends[of].qpn).unwrap().state
    }

    pub(crate) fn bytes(&self, of: usize, addr: u64, len: usize) -> Vec<u8> {
        self.ends[of].ram.0[addr as usize..][..len].to_vec()
    }

    pub(crate) fn put(&mut self, of: usize, addr: u64, bytes: &[u8]) {
        self.ends[of].ram.write(addr, bytes).unwrap();
    }

    /// Calls a kernel of an end by the end itself, which sends the results to the peer.
    pub(crate) fn call(&mut self, of: usize, payload: &[u8]) {
        let End { nic, ram, qpn, .. } = &mut self.ends[of];
        nic.call_kernel(self.now, ram, *qpn, 1, payload).unwrap();
    }

    /// A false packet to `to`, which arrives after all that has left before.
    pub(crate) fn forge(&mut self, to: usize, (code, psn): (u8, u32), ext: &Extensions) {
        let op = Op::lookup(code, Dialect::LOSSY).unwrap();
        let bth =
            Bth { opcode: code, dest_qp: self.ends[to].qpn, psn: Psn::new(psn), ..Bth::ours() };
        let mut header = [0; MAX_HEADER];
        let len = Packet::emit_headers(&bth, op, ext, &mut header);
        self.launch(to, DELAY, seal(1 - to, header[..len].to_vec()));
    }

    fn launch(&mut self, to: usize, delay: u64, bytes: Vec<u8>) {
        self.sent += 1;
        self.wire.insert((Time(self.now.0 + delay), self.sent), (to, bytes));
    }

    /// Takes what one card sends. Returns whether it has more.
    fn take_from(&mut self, from: usize) -> bool {
        let mut batch = core::mem::take(&mut self.batch);
        batch.clear();
        let end = &mut self.ends[from];
        let more = end.nic.poll_transmit(self.now, &mut end.ram, &mut batch, 64);
        let mut leaving = Vec::new();
        for packet in batch.packets() {
            let mut bytes = packet.header().to_vec();
            match batch.payload(packet) {
                PayloadRef::Segments(segments) => {
                    for segment in segments {
                        let (from, len) = (segment.addr as usize, segment.len as usize);
                        bytes.extend_from_slice(&end.ram.0[from..][..len]);
                    }
                }
                PayloadRef::Bytes(owned) => bytes.extend_from_slice(owned),
            }
            bytes.resize(packet.datagram_len() - ICRC_LEN, 0);
            leaving.push((packet.path.src_port, seal(from, bytes)));
        }
        while end.nic.poll_event().is_some() {}
        self.batch = batch;
        for (src_port, bytes) in leaving {
            self.judge(from, src_port, bytes);
        }
        more
    }

    fn judge(&mut self, from: usize, src_port: u16, bytes: Vec<u8>) {
        let bth = Packet::bth(&bytes).unwrap();
        let op = Op::lookup(bth.opcode, Dialect::all()).unwrap();
        let seen = Seen { from, src_port, len: bytes.len(), op };
        let fates = self.rules.iter_mut().map(|rule| rule(&seen)).collect::<Vec<_>>();
        match fates.into_iter().find(|fate| *fate != Fate::Pass) {
            None | Some(Fate::Pass) => self.launch(1 - from, DELAY, bytes),
            Some(Fate::Delay(more)) => self.launch(1 - from, DELAY + more, bytes),
            Some(Fate::Drop) => {}
        }
    }

    /// Goes on to the next thing that happens, no later than `until`. Returns whether there is one.
    fn step(&mut self, until: Time) -> bool {
        for of in [A, B] {
            while self.take_from(of) {}
        }
        let timers = self.ends.iter().map(|end| end.nic.poll_timeout());
        let arrival = self.wire.first_key_value().map_or(Time::NEVER, |((at, _), _)| *at);
        let next = timers.fold(arrival, Time::min);
        if next > until || next == Time::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, bytes) = entry.remove();
            let (src, dst, bytes) = (address(1 - to), address(to), &bytes[..]);
            let datagram = Datagram { src, src_port: ROCE_PORT, dst, ip_id: None, tos: 0, bytes };
            let end = &mut self.ends[to];
            end.nic.handle_packets(self.now, &mut end.ram, [datagram]);
        }
        for end in &mut self.ends {
            if end.nic.poll_timeout() <= self.now {
                end.nic.handle_timeout(self.now, &mut end.ram);
            }
        }
        true
    }

    /// Has a card's next timer run out, before which nothing arrives. The card is asked for so many
    /// nanoseconds later what it sends.
    pub(crate) fn time_out(&mut self, of: usize, later: u64) {
        let End { nic, ram, .. } = &mut self.ends[of];
        self.now = nic.poll_timeout();
        nic.handle_timeout(self.now, ram);
        self.now = Time(self.now.0 + later);
    }

    /// Runs until nothing happens any more, for ten seconds at most.
    pub(crate) fn run(&mut self) {
        self.pass(10_000 * MILLISECOND);
    }

    /// Lets so many nanoseconds pass.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let until = Time(self.now.0 + nanoseconds);
        let mut steps = 0;
        while self.step(until) {
            steps += 1;
            assert!(steps < 5_000_000, "it does not end");
        }
        self.now = until;
    }

    /// Runs until something is so; no longer than a second.
    pub(crate) fn until(&mut self, mut is: impl FnMut(&mut Rig) -> bool) {
        let until = Time(self.now.0 + 1000 * MILLISECOND);
        while !is(self) {
            assert!(self.step(until), "it is never so");
        }
    }
}

/// Appends the ICRC.
fn seal(from: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    let (src_port, dst_port) = (ROCE_PORT, ROCE_PORT);
    let flow = Flow { src: address(from), dst: address(1 - from), src_port, dst_port };
    bytes.extend(Icrc::start(&flow, 0, bytes.len() + ICRC_LEN, &bytes).finish());
    bytes
}
