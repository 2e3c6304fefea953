//! A card with live queue pairs over a small memory that checks every access.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::kernel::{KernelIo, Kernels as _, Passing};
use remora_offload::kernel::builtin::{self, opcode};
use remora_offload::kernel::{AsyncProgram, Deployment, Executor, ExecutorLimits, Grant, Program};
use remora_wasm::Module;

use remora_nic::memory::window::next_key;
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{
    Completion, Data, FlushKind, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp,
    SendRequest, Sge, Status, WorkKind,
};
use remora_nic::wire::icrc::{Flow, Icrc};
use remora_nic::wire::{Dialect, ICRC_LEN, ROCE_PORT, Transport};
use remora_nic::{
    Access, Calc, Config, Counters, Datagram, Key, Memory, MemoryFault, MrInit, MwBinding, MwType,
    Nic, PageTable, Path, Pd, Psn, QpFlags, QpInit, Time, TransmitBatch, Xrcd,
};

/// Bytes of memory: rings first, then a region of each kind, with gaps that the card must not
/// access.
const SIZE: usize = 1 << 16;
const RING: u64 = 4096;
/// A ring of [`DEPTH`] elements has half of its place.
const HALF_RING: u64 = RING / 2;
/// The first byte of the region that gives peers all access.
pub(crate) const OPEN: u64 = 0xC000;
/// The first byte of the region that peers may only read.
pub(crate) const READ_ONLY: u64 = 0xE000;
/// Bytes of each region.
pub(crate) const REGION: u64 = 0x1800;
const DEPTH: u32 = 16;
const STRIDE: u32 = 128;
pub(crate) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const PEER_QP: u32 = 0x77;
/// The multicast group of the UD queue pair.
pub(crate) const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 0, 0, 1));

/// The index of the queue pair that is the target of an XRC connection.
const XRC_RECEIVER: usize = 4;
/// The index of the queue pair of the lossy dialect that has a receive queue of its own, and of the
/// one that takes its elements from a shared one.
const LOSSY: usize = 6;
const SHARES: usize = 7;
/// The PSN with which each connection begins, in both directions.
pub(crate) const FIRST_PSN: Psn = Psn::new(0xFF_FFFE);
/// The kind of request that binds the window; see [`Arena::post_send`].
const BIND: u8 = 10;

/// Memory that panics when the card accesses a byte that it must not access.
#[derive(Debug)]
pub(crate) struct Guarded {
    bytes: Vec<u8>,
    /// The owner of the rings posts requests, so the rings may be written.
    posting: bool,
}

impl Guarded {
    fn check(&self, addr: u64, len: usize, write: bool) {
        let end = addr.checked_add(len as u64).expect("an access must not wrap");
        let within = |start: u64, size: u64| start <= addr && end <= start + size;
        let ring = within(0, 12 * RING) && (self.posting || !write);
        let open = within(OPEN, REGION);
        let read_only = within(READ_ONLY, REGION) && !write;
        assert!(ring || open || read_only, "{addr:#x}..{end:#x}, write: {write}");
    }

    fn word(&mut self, addr: u64) -> &mut [u8; 8] {
        assert!(addr.is_multiple_of(8), "an atomic at {addr:#x}");
        self.check(addr, 8, true);
        self.bytes[addr as usize..][..8].first_chunk_mut().expect("8 bytes")
    }
}

impl Memory for Guarded {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        self.check(addr, dst.len(), false);
        dst.copy_from_slice(&self.bytes[addr as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.check(addr, src.len(), true);
        self.bytes[addr as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr);
        let before = u64::from_ne_bytes(*word);
        if before == compare {
            *word = swap.to_ne_bytes();
        }
        Ok(before)
    }

    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr);
        let before = u64::from_ne_bytes(*word);
        *word = before.wrapping_add(add).to_ne_bytes();
        Ok(before)
    }
}

/// A queue pair under test and its rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) qpn: u32,
    sq: u64,
    /// Messages that have taken a receive element, as far as completions were taken.
    pub(crate) served: u32,
    /// Elements that were put into the send ring.
    posted: u32,
}

/// The card under test, and what a fuzz target can do to it.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) nic: Nic,
    memory: Guarded,
    now: Time,
    pub(crate) subjects: Vec<Subject>,
    cq: u32,
    pub(crate) open: Key,
    pub(crate) read_only: Key,
    /// The key of the window on the open region, as bound last.
    pub(crate) window: Key,
    srq: u32,
    /// The shared receive queue of the queue pair [`SHARES`].
    shared: u32,
    /// The number of the shared receive queue for XRC.
    pub(crate) srqn: u32,
    pd: Pd,
    batch: TransmitBatch,
    posted: usize,
    completed: usize,
}

/// The services of the queue pairs, and the dialects that they agreed on.
pub(crate) const SERVICES: [(Transport, Dialect); 8] = [
    (Transport::Rc, Dialect::STANDARD),
    (Transport::Rc, Dialect::KERNELS),
    (Transport::Uc, Dialect::STANDARD),
    (Transport::Ud, Dialect::STANDARD),
    // The target of the XRC connection; its own queues are not used.
    (Transport::Xrc, Dialect::STANDARD),
    (Transport::Xrc, Dialect::STANDARD),
    (Transport::Rc, Dialect::all()),
    (Transport::Rc, Dialect::all()),
];

impl Arena {
    /// Ready queue pairs with work posted: a plain RC queue pair, one that agreed on StRoM's
    /// op-codes, a UC and a UD queue pair (in a multicast group), and both ends of an XRC
    /// connection; two of the lossy dialect, of which one takes its receive elements from a shared
    /// queue; and a window that the first queue pair has bound.
    pub(crate) fn new() -> Arena {
        let mut nic = Nic::new(Config::new(LOCAL), [7; 32]);
        let memory = Guarded { bytes: vec![0; SIZE], posting: false };
        let pd = nic.alloc_pd().expect("room");
        let cq = nic.create_cq(4096).expect("room");
        let mut register = |addr, access| {
            let pages = PageTable::contiguous(12, addr, REGION);
            nic.reg_mr(pd, MrInit { iova: addr, len: REGION, access, pages }).expect("room")
        };
        let open = register(OPEN, Access::all());
        let read_only = register(READ_ONLY, Access::REMOTE_READ);
        let window = nic.alloc_mw(pd, MwType::Type1).expect("room");
        let xrcd = nic.alloc_xrcd().expect("room");
        let ring = RingInit { addr: 9 * RING, depth: DEPTH, stride: STRIDE };
        let srq = nic.create_xrc_srq(pd, xrcd, cq, ring).expect("room");
        let srqn = nic.srq_number(srq).expect("it has one");
        let ring = RingInit { addr: 11 * RING + HALF_RING, ..ring };
        let shared = nic.create_srq(pd, ring).expect("room");
        let mut arena = Arena {
            nic,
            memory,
            now: Time(1),
            subjects: Vec::new(),
            cq,
            open,
            read_only,
            window,
            srq,
            shared,
            srqn,
            pd,
            batch: TransmitBatch::new(),
            posted: 0,
            completed: 0,
        };
        for (i, (transport, dialect)) in SERVICES.into_iter().enumerate() {
            arena.add_subject(i, transport, dialect, xrcd);
        }
        arena.nic.attach_mcast(arena.subjects[3].qpn, GROUP).expect("a UD queue pair, a group");
        arena.post_send(0, BIND);
        arena.transmit();
        arena
    }

    /// Creates queue pair `i`, connects it, and posts receives.
    fn add_subject(&mut self, i: usize, transport: Transport, dialect: Dialect, xrcd: Xrcd) {
        // The last two have the places of rings that XRC queue pairs do not have.
        let (sq, rq) = match i as u64 {
            6 => (8 * RING, 11 * RING),
            7 => (8 * RING + HALF_RING, 0),
            i => (2 * i * RING, (2 * i + 1) * RING),
        };
        let sq = RingInit { addr: sq, depth: DEPTH, stride: STRIDE };
        let has_own = transport != Transport::Xrc && i != SHARES;
        let rq = if has_own { RingInit { addr: rq, ..sq } } else { RingInit::default() };
        let init = QpInit {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: (i == SHARES).then_some(self.shared),
            sq,
            rq,
            signal_all: true,
            flags: QpFlags::empty(),
            client: 0,
        };
        let made = match i {
            XRC_RECEIVER => self.nic.create_xrc_target(xrcd),
            _ => self.nic.create_qp(init),
        };
        let qpn = made.expect("room");
        self.connect(qpn, transport, dialect);
        self.subjects.push(Subject { qpn, sq: sq.addr, served: 0, posted: 0 });
        for wr_id in 0..4 {
            self.post_recv(i, wr_id);
        }
    }

    fn connect(&mut self, qpn: u32, transport: Transport, dialect: Dialect) {
        let connected = transport != Transport::Ud;
        let rc = transport == Transport::Rc;
        let receives = rc || self.subjects.len() == XRC_RECEIVER;
        let sends = rc || transport == Transport::Xrc && !receives;
        let steps = [
            QpAttr {
                state: Some(State::Init),
                access: connected.then_some(Access::all()),
                qkey: (!connected).then_some(0x11),
                dialect: rc.then_some(dialect),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(State::Rtr),
                path: connected.then(|| Path::new(PEER, 0)),
                path_mtu: Some(Mtu::B1024),
                dest_qp: connected.then_some(PEER_QP),
                rq_psn: connected.then_some(FIRST_PSN),
                max_dest_rd_atomic: receives.then_some(4),
                min_rnr_timer: receives.then_some(1),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(State::Rts),
                sq_psn: Some(FIRST_PSN),
                max_rd_atomic: sends.then_some(4),
                timeout: (sends || receives).then_some(8),
                retry_cnt: sends.then_some(7),
                rnr_retry: sends.then_some(7),
                ..QpAttr::default()
            },
        ];
        for attr in steps {
            let done = self.nic.modify_qp(self.now, &mut self.memory, qpn, &attr);
            done.expect("the table allows it");
        }
    }

    pub(crate) fn post_recv(&mut self, subject: usize, wr_id: u64) {
        self.memory.posting = true;
        let len = if subject >= LOSSY { 4096 } else { 2048 };
        let sges = [Sge { addr: OPEN, len, lkey: self.open }];
        let request = RecvRequest { wr_id, sges: &sges };
        let qpn = self.subjects[subject].qpn;
        let posted = match subject {
            XRC_RECEIVER => self.nic.post_srq_recv(&mut self.memory, self.srq, &request),
            SHARES => self.nic.post_srq_recv(&mut self.memory, self.shared, &request),
            _ => self.nic.post_recv(&mut self.memory, qpn, &request),
        };
        self.posted += usize::from(posted.is_ok());
        self.memory.posting = false;
    }

    /// Posts a valid request of kind `kind`, so that responses have a request to answer.
    pub(crate) fn post_send(&mut self, subject: usize, kind: u8) {
        self.memory.posting = true;
        let remote = RemoteAddress { addr: 0x1000, rkey: 5 };
        let op = match kind & 15 {
            0 => SendOp::Write { to: remote, imm: None },
            1 => SendOp::Write { to: remote, imm: Some(1) },
            2 | 3 => SendOp::Read { from: remote },
            4 => SendOp::FetchAdd { at: remote, add: 1 },
            5 => SendOp::CompareSwap { at: remote, compare: 1, swap: 2 },
            6 => SendOp::SendInvalidate { rkey: 4 },
            8 => SendOp::AtomicWrite { to: remote },
            9 => SendOp::Flush {
                at: remote,
                len: 100,
                kind: FlushKind { global: true, ..FlushKind::default() },
            },
            BIND => {
                self.window = next_key(self.window);
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
                let (lkey, addr, len) = (self.open, OPEN + 64, REGION - 128);
                let to = MwBinding { lkey, addr, len, access, zero_based: false };
                SendOp::BindMw { key: self.window, to }
            }
            11 => SendOp::LocalInvalidate { key: self.window },
            12 => SendOp::Calc { calc: Calc::Max, at: remote, operand: 3 },
            _ => SendOp::Send { imm: None, to: None },
        };
        let bare = matches!(kind & 15, 9..=11);
        let short = kind & 0x80 == 0 || matches!(kind & 15, 4 | 5 | 8 | 12);
        let sges = [Sge { addr: OPEN, len: if short { 8 } else { 3000 }, lkey: self.open }];
        let data = Data::Sges(if bare { &[] } else { &sges });
        let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::empty() };
        let qpn = self.subjects[subject].qpn;
        if self.nic.post_xrc_send(&mut self.memory, qpn, 0x55, &request).is_ok() {
            self.posted += 1;
            self.subjects[subject].posted += 1;
        }
        self.memory.posting = false;
    }

    /// Writes any bytes into the next slot of a send ring and rings the doorbell.
    pub(crate) fn post_raw(&mut self, subject: usize, element: &[u8]) {
        let Subject { qpn, sq, posted, .. } = self.subjects[subject];
        let slot = (sq + u64::from(posted % DEPTH) * u64::from(STRIDE)) as usize;
        let len = element.len().min(STRIDE as usize);
        self.memory.bytes[slot..slot + len].copy_from_slice(&element[..len]);
        if self.nic.handle_send_doorbell(qpn, posted + 1).is_ok() {
            self.posted += 1;
            self.subjects[subject].posted += 1;
        }
    }

    /// Overwrites bytes of an element that may already be posted.
    pub(crate) fn rewrite(&mut self, subject: usize, at: usize, bytes: &[u8]) {
        let base = self.subjects[subject].sq as usize;
        let at = base + at % (DEPTH * STRIDE) as usize;
        let len = bytes.len().min(base + (DEPTH * STRIDE) as usize - at);
        self.memory.bytes[at..at + len].copy_from_slice(&bytes[..len]);
    }

    /// Appends the ICRC to `packet` (BTH onwards), as if the peer had sent it, and delivers it.
    pub(crate) fn deliver(&mut self, packet: &[u8], tos: u8) {
        self.deliver_to(LOCAL, packet, tos);
    }

    /// Like [`Arena::deliver`], with any destination address.
    pub(crate) fn deliver_to(&mut self, dst: IpAddr, packet: &[u8], tos: u8) {
        let flow = Flow { src: PEER, dst, src_port: ROCE_PORT, dst_port: ROCE_PORT };
        let mut bytes = packet.to_vec();
        if packet.len() >= 12 {
            let icrc = Icrc::start(&flow, 0, packet.len() + ICRC_LEN, packet).finish();
            bytes.extend_from_slice(&icrc);
        }
        self.deliver_raw(dst, &bytes, tos);
    }

    /// Delivers the bytes without a change.
    pub(crate) fn deliver_raw(&mut self, dst: IpAddr, bytes: &[u8], tos: u8) {
        let datagram = Datagram { src: PEER, src_port: ROCE_PORT, dst, ip_id: Some(0), tos, bytes };
        self.nic.handle_packets(self.now, &mut self.memory, [datagram]);
    }

    /// Sends what is ready, and reads every payload as a driver would.
    pub(crate) fn transmit(&mut self) {
        self.batch.clear();
        self.nic.poll_transmit(self.now, &mut self.memory, &mut self.batch, 64);
        for packet in self.batch.packets() {
            assert!(packet.datagram_len() <= remora_nic::wire::MAX_DATAGRAM);
            let remora_nic::PayloadRef::Segments(segments) = self.batch.payload(packet) else {
                continue;
            };
            let total: usize = segments.iter().map(|s| s.len as usize).sum();
            assert_eq!(total, packet.payload_len());
            for s in segments {
                self.memory.check(s.addr, s.len as usize, false);
            }
        }
    }

    /// Deploys the built-in kernels on the card. They may write the open region and read the
    /// read-only one.
    pub(crate) fn deploy_kernels(&mut self) {
        let limits = ExecutorLimits { invocations: 4, turn_steps: 64, ..ExecutorLimits::default() };
        let mut kernels = Executor::new(limits);
        let grants =
            [Grant { key: self.open, write: true }, Grant { key: self.read_only, write: false }];
        let deployment = || Deployment::new("fuzz", grants).budget(2000);
        let mut deploy = |opcode, program: Box<dyn Program>| {
            kernels.deploy(opcode, deployment(), program).expect("op-codes differ");
        };
        deploy(opcode::GET, Box::new(AsyncProgram::new(builtin::get::get)));
        deploy(opcode::TRAVERSAL, Box::new(AsyncProgram::new(builtin::traversal::traversal)));
        deploy(opcode::CONSISTENCY, Box::new(AsyncProgram::new(builtin::consistency::consistency)));
        deploy(opcode::SHUFFLE, builtin::shuffle::Shuffles::new().program());
        let send = AsyncProgram::new(builtin::shuffle_send::shuffle_send);
        deploy(opcode::SHUFFLE_SEND, Box::new(send));
        let sketch = builtin::hyperloglog::HyperLogLog::new(4);
        deploy(opcode::HYPERLOGLOG, Box::new(AsyncProgram::new(move |c| sketch.clone().run(c))));
        deploy(opcode::FILTER, Box::new(AsyncProgram::new(builtin::filter::filter)));
        deploy(opcode::AGGREGATE, Box::new(AsyncProgram::new(builtin::aggregate::aggregate)));
        self.nic.set_kernels(Box::new(kernels));
    }

    /// Deploys a loaded module on the card, with a grant to write the open region. Binds it to a
    /// stream as well, if it exports a tap.
    pub(crate) fn deploy_module(&mut self, opcode: u64, module: &Module) {
        let limits = ExecutorLimits { invocations: 4, turn_steps: 64, ..ExecutorLimits::default() };
        let mut kernels = Executor::new(limits);
        let deployment = Deployment::new("fuzz", [Grant { key: self.open, write: true }]);
        let program = Box::new(module.program());
        kernels
            .deploy(opcode, deployment.budget(20_000), program)
            .expect("no other kernel has the op-code");
        if let Ok(tap) = module.tap(20_000) {
            kernels.add_tap(vec![Grant { key: self.open, write: true }], Box::new(tap));
        }
        self.nic.set_kernels(Box::new(kernels));
    }

    /// Passes a payload through the bound kernel: as received, and as sent.
    pub(crate) fn pass_by(&mut self, bytes: &[u8]) {
        let (qpn, pd, key) = (self.subjects[1].qpn, self.pd, self.open);
        let total = bytes.len() as u32;
        let passing = Passing { qpn, pd, addr: OPEN, key, offset: 0, total, again: false };
        let kernels = |kernels: &mut Executor, io: &mut KernelIo<'_>| {
            let (mut replaced, mut changed) = (Vec::new(), bytes.to_vec());
            kernels.receiving(io, 1, &passing, bytes, &mut replaced);
            assert!(replaced.len() <= bytes.len());
            kernels.sending(1, &passing, &mut changed);
        };
        self.nic.with_kernels(self.now, &mut self.memory, kernels).expect("the card has kernels");
    }

    /// Lets the host call a kernel of its card, on the queue pair that agreed on StRoM's op-codes.
    pub(crate) fn call(&mut self, opcode: u64, call: &[u8]) {
        let qpn = self.subjects[1].qpn;
        // Refusals are counted, or reported by the call itself; the target looks only for harm.
        let _ = self.nic.call_kernel(self.now, &mut self.memory, qpn, opcode, call);
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        self.now = Time(self.now.0 + nanoseconds);
        self.nic.handle_timeout(self.now, &mut self.memory);
    }

    /// Takes completions and events. There are never more completions than posted requests.
    pub(crate) fn collect(&mut self) {
        let mut out = [Completion::default(); 16];
        while let Ok(n @ 1..) = self.nic.poll_cq(self.cq, &mut out) {
            self.completed += n;
            for entry in &out[..n] {
                let receives = matches!(entry.kind, WorkKind::Recv | WorkKind::RecvWriteImm);
                let of = self.subjects.iter_mut().find(|subject| subject.qpn == entry.qpn);
                if let Some(subject) = of.filter(|_| receives) {
                    subject.served += u32::from(entry.status == Status::Success);
                }
            }
        }
        assert!(self.completed <= self.posted, "{} of {}", self.completed, self.posted);
        while self.nic.poll_event().is_some() {}
        while let Some(incident) = self.nic.poll_incident() {
            assert!(!incident.to_string().is_empty());
        }
    }

    /// Takes every queue pair to ERROR, so that all posted requests come back once. Returns the
    /// card's counters.
    pub(crate) fn flush(mut self) -> Counters {
        let attr = QpAttr { state: Some(State::Error), ..QpAttr::default() };
        for subject in self.subjects.clone() {
            let done = self.nic.modify_qp(self.now, &mut self.memory, subject.qpn, &attr);
            done.expect("any state may go to ERROR");
        }
        for _ in 0..64 {
            self.transmit();
            self.collect();
        }
        // Elements that no queue pair took from the shared queues stay there.
        let waiting = |srq| self.nic.query_srq(srq).map_or(0, |srq| srq.waiting as usize);
        let left = waiting(self.srq) + waiting(self.shared);
        assert_eq!(self.completed + left, self.posted, "posted requests have no completion");
        let datagrams = self.subjects[3].qpn;
        self.nic.detach_mcast(datagrams, GROUP).expect("it was attached");
        for subject in &self.subjects {
            self.nic.destroy_qp(subject.qpn).expect("it exists");
        }
        for srq in [self.srq, self.shared] {
            self.nic.destroy_srq(srq).expect("nothing uses it");
        }
        self.nic.destroy_cq(self.cq).expect("nothing uses it");
        self.nic.dealloc_mw(self.window).expect("it exists");
        for key in [self.open, self.read_only] {
            // A SEND with invalidate ends a peer's access, and leaves the region registered.
            self.nic.dereg_mr(key).expect("it exists");
        }
        let left = self.nic.in_use();
        assert_eq!((left.qps, left.mrs, left.mws, left.cqs), (0, 0, 0, 0));
        assert_eq!((left.outstanding, left.answers, left.lists), (0, 0, 0));
        *self.nic.counters()
    }
}
