//! One card with its memory, and short functions for queues and elements.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::qp::{QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Sge,
    Status,
};
use remora_nic::wire::Transport;
use remora_nic::{
    Access, Calc, Config, Incident, Key, Memory, MrInit, Nic, PageTable, Pd, QpFlags, QpInit,
    Queue, Time, TransmitBatch,
};

use crate::ram::Ram;

/// Bytes of memory; the card has a region over all of it.
pub(crate) const SIZE: u64 = 1 << 20;
/// Where the data of tests begins. The rings are below.
pub(crate) const DATA: u64 = 1 << 18;
pub(crate) const MANAGED: QpFlags = QpFlags::MANAGED_SEND;
pub(crate) const PLAIN: QpFlags = QpFlags::empty();

/// A queue pair, and the address of its send ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) sq: u64,
    /// The completion queue of both queues, which only counts.
    pub(crate) cq: u32,
    depth: u64,
    stride: u64,
}

impl Qp {
    /// The address of a field of a send element.
    pub(crate) fn field(&self, index: u64, offset: u64) -> u64 {
        self.sq + index % self.depth * self.stride + offset
    }
}

pub(crate) struct Rig {
    pub(crate) nic: Nic,
    pub(crate) ram: Ram,
    pub(crate) pd: Pd,
    pub(crate) key: Key,
    pub(crate) now: Time,
    next_ring: u64,
    batch: TransmitBatch,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(|_| {})
    }

    pub(crate) fn with(change: fn(&mut Config)) -> Rig {
        let mut config = Config::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)));
        change(&mut config);
        let mut nic = Nic::new(config, [3; 32]);
        let pd = nic.alloc_pd().unwrap();
        let key = region(&mut nic, pd, Access::all());
        let (ram, batch) = (Ram(vec![0; SIZE as usize]), TransmitBatch::new());
        Rig { nic, ram, pd, key, now: Time(1000), next_ring: 0, batch }
    }

    /// A queue pair, not connected.
    pub(crate) fn fresh(&mut self, flags: QpFlags, depth: u32) -> Qp {
        self.fresh_with(flags, depth, 1)
    }

    /// As [`Rig::fresh`], for elements of `sges` entries.
    pub(crate) fn fresh_with(&mut self, flags: QpFlags, depth: u32, sges: usize) -> Qp {
        let cq = self.nic.create_counting_cq(64).unwrap();
        self.made(cq, flags, depth, sges)
    }

    /// A queue pair, not connected, that reports to an existing completion queue.
    pub(crate) fn reporting_to(&mut self, cq: u32) -> Qp {
        self.made(cq, PLAIN, 1, 1)
    }

    fn made(&mut self, cq: u32, flags: QpFlags, depth: u32, sges: usize) -> Qp {
        let stride = RingInit::stride_for(sges, 64);
        let mut ring = |depth: u32| {
            let addr = self.next_ring;
            self.next_ring += u64::from(depth * stride);
            assert!(self.next_ring <= DATA);
            RingInit { addr, depth, stride }
        };
        let (sq, rq) = (ring(depth), ring(depth.min(16)));
        let init = QpInit {
            pd: self.pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq,
            rq,
            signal_all: false,
            flags,
            client: 0,
        };
        let qpn = self.nic.create_qp(init).unwrap();
        Qp { qpn, sq: sq.addr, cq, depth: depth.into(), stride: stride.into() }
    }

    /// A queue pair connected to itself.
    pub(crate) fn looped(&mut self, flags: QpFlags, depth: u32) -> Qp {
        let qp = self.fresh(flags, depth);
        self.nic.loop_back(qp.qpn, qp.qpn, Access::all()).unwrap();
        qp
    }

    pub(crate) fn enter(&mut self, qp: Qp, state: State) {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        self.nic.modify_qp(self.now, &mut self.ram, qp.qpn, &attr).unwrap();
    }

    pub(crate) fn remote(&self, addr: u64) -> RemoteAddress {
        RemoteAddress { addr, rkey: self.key }
    }

    pub(crate) fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.key }
    }

    /// Posts a signaled request.
    pub(crate) fn post(&mut self, qp: Qp, op: SendOp, sges: &[Sge]) {
        self.post_with(qp, op, Data::Sges(sges), SendFlags::SIGNALED);
    }

    pub(crate) fn post_with(&mut self, qp: Qp, op: SendOp, data: Data<'_>, flags: SendFlags) {
        let wr_id = self.nic.next_index(qp.qpn, Queue::Send).unwrap().into();
        let request = SendRequest { wr_id, op, data, flags };
        self.nic.post_send(&mut self.ram, qp.qpn, &request).unwrap();
    }

    pub(crate) fn write(&mut self, qp: Qp, from: u64, to: u64, len: u32) {
        let (to, from) = (self.remote(to), self.sge(from, len));
        self.post(qp, SendOp::Write { to, imm: None }, &[from]);
    }

    /// Posts a WRITE to any address with any key.
    pub(crate) fn post_keys(&mut self, qp: Qp, (addr, rkey): (u64, Key), (from, len): (u64, u32)) {
        let from = self.sge(from, len);
        self.post(qp, SendOp::Write { to: RemoteAddress { addr, rkey }, imm: None }, &[from]);
    }

    pub(crate) fn compare_swap(&mut self, qp: Qp, at: u64, compare: u64, swap: u64) {
        let at = self.remote(at);
        self.post(qp, SendOp::CompareSwap { at, compare, swap }, &[]);
    }

    pub(crate) fn add(&mut self, qp: Qp, at: u64, operand: u64) {
        let at = self.remote(at);
        self.post(qp, SendOp::Calc { calc: Calc::Add, at, operand }, &[]);
    }

    pub(crate) fn wait(&mut self, qp: Qp, cq: u32, count: u64) {
        self.post(qp, SendOp::Wait { cq, count }, &[]);
    }

    pub(crate) fn enable(&mut self, qp: Qp, target: Qp, index: u32) {
        self.post(qp, SendOp::Enable { qpn: target.qpn, index }, &[]);
    }

    pub(crate) fn recv(&mut self, qp: Qp, sges: &[Sge]) {
        let wr_id = self.nic.next_index(qp.qpn, Queue::Recv).unwrap().into();
        let request = RecvRequest { wr_id, sges };
        self.nic.post_recv(&mut self.ram, qp.qpn, &request).unwrap();
    }

    pub(crate) fn doorbell(&mut self, qp: Qp, index: u32) {
        self.nic.handle_send_doorbell(qp.qpn, index).unwrap();
    }

    /// Polls once. Nothing must leave the card.
    pub(crate) fn poll(&mut self) -> bool {
        self.batch.clear();
        let more = self.nic.poll_transmit(self.now, &mut self.ram, &mut self.batch, 64);
        assert_eq!(self.batch.len(), 0, "packets left the card");
        more
    }

    /// Polls until nothing is ready.
    pub(crate) fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.poll() {
                return;
            }
        }
        panic!("it does not end");
    }

    /// Lets time pass, and runs everything that becomes due.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        self.now = Time(self.now.0 + nanoseconds);
        self.nic.handle_timeout(self.now, &mut self.ram);
        self.run();
    }

    pub(crate) fn count(&self, qp: Qp) -> u64 {
        self.nic.cq_count(qp.cq).unwrap()
    }

    /// The failed completions, oldest first: id of the request and status.
    pub(crate) fn errors(&mut self, qp: Qp) -> Vec<(u64, Status)> {
        let mut out = [Completion::default(); 64];
        let n = self.nic.poll_cq(qp.cq, &mut out).unwrap();
        out[..n].iter().map(|c| (c.wr_id, c.status)).collect()
    }

    pub(crate) fn incidents(&mut self) -> Vec<Incident> {
        std::iter::from_fn(|| self.nic.poll_incident()).collect()
    }

    pub(crate) fn put(&mut self, addr: u64, bytes: &[u8]) {
        self.ram.write(addr, bytes).unwrap();
    }

    pub(crate) fn bytes(&mut self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read(addr, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn word(&mut self, addr: u64) -> u64 {
        u64::from_le_bytes(self.bytes(addr, 8).try_into().unwrap())
    }

    pub(crate) fn put_word(&mut self, addr: u64, word: u64) {
        self.put(addr, &word.to_le_bytes());
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|(n, ..)| *n == name).unwrap().1
    }
}

/// A region over all memory.
pub(crate) fn region(nic: &mut Nic, pd: Pd, access: Access) -> Key {
    let pages = PageTable::contiguous(21, 0, SIZE);
    nic.reg_mr(pd, MrInit { iova: 0, len: SIZE, access, pages }).unwrap()
}
