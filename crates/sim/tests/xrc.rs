//! XRC: one connection to many shared receive queues, each with its own protection domain and
//! completion queue.

use remora_nic::incident::Cause;
use remora_nic::nic::{DestroyError, InUse, QpInit};
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Sge,
    Status, WorkKind,
};
use remora_nic::wire::{Bth, Dialect, Extensions, Op, Operation, Transport, Xrceth};
use remora_nic::{Access, Config, Path, Pd, Psn, QpFlags, Xrcd};
use remora_sim::endpoint::{Endpoint, ring};
use remora_sim::memory::{Layout, Region};
use remora_sim::packet::Wire;
use remora_sim::pair::address;
use remora_sim::world::Host;
use remora_sim::{A, B, Fate, LinkOptions, Rule, World};

/// A shared receive queue at B, with its protection domain and its completion queue.
struct Queue {
    handle: u32,
    srqn: u32,
    cq: u32,
    pd: Pd,
    region: Region,
}

/// An initiator at A, a target at B, and two shared receive queues of B.
struct Xrc {
    world: World,
    pd: Pd,
    cq: u32,
    sender: u32,
    region: Region,
    xrcd: Xrcd,
    receiver: u32,
    queues: Vec<Queue>,
}

fn region(host: &mut Host, dice: &mut remora_sim::dice::Dice, pd: Pd) -> Region {
    let mut region = Region::lay_out(&mut host.memory, dice, 1 << 16, Layout::Contiguous);
    region.key = host.nic.reg_mr(pd, region.init(Access::all())).unwrap();
    region
}

impl Xrc {
    fn new() -> Xrc {
        let mut world = World::new(7, LinkOptions::default());
        world.network.trace = Some(Vec::new());
        let mut dice = world.dice().fork();
        for i in [A, B] {
            world.add_host(Config::new(address(i)));
        }
        let a = &mut world.hosts[A];
        let (pd, cq) = (a.nic.alloc_pd().unwrap(), a.nic.create_cq(64).unwrap());
        let region_a = region(a, &mut dice, pd);
        let sq = ring(a, 64, 4, 64);
        let sender = a.nic.create_qp(QpInit {
            pd,
            transport: Transport::Xrc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq,
            rq: RingInit::default(),
            signal_all: true,
            flags: QpFlags::empty(),
            client: 0,
        });
        let sender = sender.unwrap();
        let b = &mut world.hosts[B];
        let xrcd = b.nic.alloc_xrcd().unwrap();
        let receiver = b.nic.create_xrc_target(xrcd).unwrap();
        let queues = (0..2)
            .map(|_| {
                let (pd, cq) = (b.nic.alloc_pd().unwrap(), b.nic.create_cq(64).unwrap());
                let ring = ring(b, 64, 2, 0);
                let handle = b.nic.create_xrc_srq(pd, xrcd, cq, ring).unwrap();
                let srqn = b.nic.srq_number(handle).unwrap();
                Queue { handle, srqn, cq, pd, region: region(b, &mut dice, pd) }
            })
            .collect();
        let mut t = Xrc { world, pd, cq, sender, region: region_a, xrcd, receiver, queues };
        t.connect();
        t
    }

    fn connect(&mut self) {
        let init =
            QpAttr { state: Some(State::Init), access: Some(Access::all()), ..QpAttr::default() };
        let rtr = |to: usize, dest_qp| QpAttr {
            state: Some(State::Rtr),
            path: Some(Path::new(address(to), 1)),
            path_mtu: Some(Mtu::B1024),
            dest_qp: Some(dest_qp),
            rq_psn: Some(Psn::new(500)),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(State::Rts),
            sq_psn: Some(Psn::new(500)),
            timeout: Some(8),
            ..QpAttr::default()
        };
        let sends = QpAttr {
            max_rd_atomic: Some(4),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..rts.clone()
        };
        let receives =
            QpAttr { max_dest_rd_atomic: Some(4), min_rnr_timer: Some(3), ..rtr(A, self.sender) };
        let steps = [
            (A, self.sender, init.clone()),
            (A, self.sender, rtr(B, self.receiver)),
            (A, self.sender, sends),
            (B, self.receiver, init),
            (B, self.receiver, receives),
            (B, self.receiver, rts),
        ];
        for (host, qpn, attr) in steps {
            let Host { nic, memory, .. } = &mut self.world.hosts[host];
            nic.modify_qp(self.world.now, memory, qpn, &attr).unwrap();
        }
    }

    /// Posts a request at A with `len` bytes at `offset` of its region, for a shared receive
    /// queue.
    fn post(&mut self, queue: usize, op: SendOp, offset: u64, len: u32) {
        let srqn = self.queues[queue].srqn;
        self.post_to(srqn, op, offset, len);
    }

    fn post_to(&mut self, srqn: u32, op: SendOp, offset: u64, len: u32) {
        let sges = [Sge { addr: self.region.iova + offset, len, lkey: self.region.key }];
        let (data, flags) = (Data::Sges(&sges), SendFlags::empty());
        let request = SendRequest { wr_id: 1, op, data, flags };
        let Host { nic, memory, .. } = &mut self.world.hosts[A];
        nic.post_xrc_send(memory, self.sender, srqn, &request).unwrap();
    }

    fn receive(&mut self, queue: usize, wr_id: u64, len: u32) {
        let Queue { region, handle, .. } = &self.queues[queue];
        let sges = [Sge { addr: region.iova, len, lkey: region.key }];
        let Host { nic, memory, .. } = &mut self.world.hosts[B];
        nic.post_srq_recv(memory, *handle, &RecvRequest { wr_id, sges: &sges }).unwrap();
    }

    fn remote(&self, queue: usize, offset: u64) -> RemoteAddress {
        let Region { iova, key, .. } = self.queues[queue].region;
        RemoteAddress { addr: iova + offset, rkey: key }
    }

    fn fill(&mut self, len: u64) -> Vec<u8> {
        let bytes = remora_sim::dice::pattern(9, len as usize);
        self.region.write(&mut self.world.hosts[A].memory, 0, &bytes);
        bytes
    }

    fn bytes(&self, queue: usize, len: u64) -> Vec<u8> {
        self.queues[queue].region.read(&self.world.hosts[B].memory, 0, len)
    }

    fn run(&mut self) {
        assert!(self.world.run(core::time::Duration::from_secs(10)));
    }

    fn sent(&mut self) -> Vec<Status> {
        Endpoint::drain(&mut self.world, A, self.cq).iter().map(|c| c.status).collect()
    }

    fn received(&mut self, queue: usize) -> Vec<Completion> {
        let cq = self.queues[queue].cq;
        Endpoint::drain(&mut self.world, B, cq)
    }

    fn tear_down(mut self) {
        let nic = &mut self.world.hosts[A].nic;
        nic.destroy_qp(self.sender).unwrap();
        nic.destroy_cq(self.cq).unwrap();
        nic.dereg_mr(self.region.key).unwrap();
        nic.dealloc_pd(self.pd).unwrap();
        assert_eq!(nic.in_use(), InUse::default());
        let nic = &mut self.world.hosts[B].nic;
        for queue in &self.queues {
            assert!(
                nic.destroy_cq(queue.cq).is_err(),
                "the shared receive queue still uses its completion queue"
            );
            nic.destroy_srq(queue.handle).unwrap();
            nic.destroy_cq(queue.cq).unwrap();
            nic.dereg_mr(queue.region.key).unwrap();
            nic.dealloc_pd(queue.pd).unwrap();
        }
        assert_eq!(nic.dealloc_xrcd(self.xrcd), Err(DestroyError::Busy { users: 1 }));
        nic.destroy_qp(self.receiver).unwrap();
        nic.dealloc_xrcd(self.xrcd).unwrap();
        assert_eq!(nic.in_use(), InUse::default());
    }
}

const SEND: SendOp = SendOp::Send { imm: None, to: None };

#[test]
fn each_message_goes_to_the_queue_that_it_names() {
    let mut t = Xrc::new();
    let bytes = t.fill(3000);
    t.receive(0, 10, 4000);
    t.receive(1, 11, 4000);
    t.post(1, SEND, 0, 3000);
    t.post(0, SendOp::Send { imm: Some(77), to: None }, 1000, 20);
    t.run();
    assert_eq!(t.sent(), [Status::Success; 2]);
    let (first, second) = (t.received(0), t.received(1));
    assert_eq!((first.len(), first[0].wr_id, first[0].imm_or_key), (1, 10, 77));
    assert_eq!((second.len(), second[0].wr_id, second[0].len), (1, 11, 3000));
    assert_eq!(second[0].qpn, t.receiver);
    assert_eq!(t.bytes(1, 3000), bytes);
    assert_eq!(t.bytes(0, 20), bytes[1000..1020]);
    // All requests carry the queue's number, and all answers have XRC's op-codes.
    let trace = t.world.network.trace.clone().unwrap();
    let srqns: Vec<u32> = trace.iter().filter(|p| p.from == A).map(|p| p.ext.xrceth.srqn).collect();
    let (one, zero) = (t.queues[1].srqn, t.queues[0].srqn);
    assert_eq!(srqns, [one, one, one, zero]);
    assert!(trace.iter().all(|p| p.bth.opcode >> 5 == 5));
    t.tear_down();
}

#[test]
fn requests_reach_only_memory_of_the_named_queues_domain() {
    let mut t = Xrc::new();
    let bytes = t.fill(5000);
    let to = t.remote(0, 0);
    t.post(0, SendOp::Write { to, imm: None }, 0, 5000);
    t.receive(1, 5, 0);
    let there = t.remote(1, 0);
    t.post(1, SendOp::Write { to: there, imm: Some(3) }, 0, 100);
    t.post(0, SendOp::Read { from: to }, 8192, 3000);
    t.post(1, SendOp::Read { from: there }, 16384, 100);
    t.post(0, SendOp::FetchAdd { at: to, add: 1 }, 40000, 8);
    t.run();
    assert_eq!(t.sent(), [Status::Success; 5]);
    assert_eq!(
        (t.bytes(0, 5000)[8..].to_vec(), t.bytes(1, 100)),
        (bytes[8..].to_vec(), bytes[..100].to_vec())
    );
    assert_eq!(t.received(1)[0].kind, WorkKind::RecvWriteImm);
    let memory = &t.world.hosts[A].memory;
    assert_eq!(t.region.read(memory, 8192, 3000), bytes[..3000]);
    assert_eq!(t.region.read(memory, 16384, 100), bytes[..100]);
    // The key is not valid in the other queue's protection domain.
    t.post(1, SendOp::Write { to, imm: None }, 0, 100);
    t.run();
    assert_eq!(t.sent(), [Status::RemoteAccess]);
    assert_eq!(t.world.hosts[B].nic.counters().refused_domain, 1);
    t.tear_down();
}

#[test]
fn losses_and_missing_receives_are_handled_as_on_rc() {
    for lost in 1..12 {
        let mut t = Xrc::new();
        let bytes = t.fill(6000);
        t.world.network.rule(Rule::nth(lost, Fate::Drop, |_| true));
        t.receive(0, 1, 6000);
        t.post(0, SEND, 0, 6000);
        t.post(1, SEND, 0, 10);
        let from = t.remote(0, 0);
        t.post(0, SendOp::Read { from }, 8192, 4000);
        t.world.run(core::time::Duration::from_micros(100));
        t.receive(1, 2, 6000);
        t.run();
        assert_eq!(t.sent(), [Status::Success; 3], "packet {lost} lost");
        assert_eq!((t.bytes(0, 6000), t.bytes(1, 10)), (bytes.clone(), bytes[..10].to_vec()));
        assert_eq!((t.received(0).len(), t.received(1).len()), (1, 1));
        t.tear_down();
    }
}

#[test]
fn naming_a_queue_outside_of_the_xrc_domain_ends_the_connection() {
    let mut t = Xrc::new();
    let nic = &mut t.world.hosts[B].nic;
    let other = nic.alloc_xrcd().unwrap();
    let stranger = nic.create_xrc_target(other).unwrap();
    nic.destroy_qp(stranger).unwrap();
    let srqn = t.queues[0].srqn ^ 0x10;
    t.post_to(srqn, SEND, 0, 10);
    t.run();
    assert_eq!(t.sent(), [Status::RemoteInvalidRequest]);
    let nic = &mut t.world.hosts[B].nic;
    assert_eq!(nic.poll_incident().unwrap().cause, Cause::UnknownSrq { srqn });
    assert_eq!(nic.counters().refused_xrc_srq, 1);
    assert_eq!(nic.query_qp(t.receiver).unwrap().state, State::Error);
    nic.dealloc_xrcd(other).unwrap();
    t.tear_down();
}

/// A new message, for another queue, comes in the middle of one: the connection ends, and the
/// receive element of the first is told to its own queue's owner.
#[test]
fn a_message_within_another_ends_the_connection_in_the_queue_of_the_first() {
    let mut t = Xrc::new();
    t.receive(0, 10, 4000);
    t.receive(1, 11, 4000);
    for (psn, code, queue) in [(500, 0xA0, 0), (501, 0xA4, 1)] {
        let (dest_qp, psn) = (t.receiver, Psn::new(psn));
        let bth = Bth { dest_qp, psn, ..Bth::ours() };
        let op = Op::lookup(code, Dialect::default()).unwrap();
        let xrceth = Xrceth { srqn: t.queues[queue].srqn };
        let ext = Extensions { xrceth, ..Extensions::default() };
        t.world.inject(Wire::craft((address(A), address(B)), &bth, op, &ext, &[0; 1024]));
        t.run();
    }
    let (first, second) = (t.received(0), t.received(1));
    assert_eq!((first.len(), first[0].wr_id), (1, 10));
    assert_eq!(first[0].status, Status::RemoteInvalidRequest);
    assert!(second.is_empty(), "its owner has lost an element");
    let nic = &t.world.hosts[B].nic;
    assert_eq!(nic.counters().refused_xrc_srq, 1);
    assert_eq!(nic.query_qp(t.receiver).unwrap().state, State::Error);
    t.tear_down();
}

/// The elements that a target has used are those of the queues' owners, who must hear of them.
#[test]
fn a_target_that_is_reset_takes_no_completions_along() {
    let mut t = Xrc::new();
    t.receive(0, 10, 100);
    t.post(0, SEND, 0, 100);
    t.run();
    let reset = QpAttr { state: Some(State::Reset), ..QpAttr::default() };
    let Host { nic, memory, .. } = &mut t.world.hosts[B];
    nic.modify_qp(t.world.now, memory, t.receiver, &reset).unwrap();
    let got = t.received(0);
    assert_eq!((got.len(), got[0].wr_id, got[0].status), (1, 10, Status::Success));
    t.tear_down();
}

#[test]
fn a_target_sends_no_requests_and_an_initiator_accepts_none() {
    let mut t = Xrc::new();
    let request =
        SendRequest { wr_id: 1, op: SEND, data: Data::Sges(&[]), flags: SendFlags::empty() };
    let Host { nic, memory, .. } = &mut t.world.hosts[B];
    assert!(nic.post_send(memory, t.receiver, &request).is_err());
    let receive = RecvRequest { wr_id: 1, sges: &[] };
    assert!(nic.post_recv(memory, t.receiver, &receive).is_err());
    let Host { nic, memory, .. } = &mut t.world.hosts[A];
    assert!(nic.post_recv(memory, t.sender, &receive).is_err());
    // The initiator refuses a request that it receives.
    t.receive(0, 1, 100);
    t.post(0, SEND, 0, 10);
    t.run();
    let trace = t.world.network.trace.clone().unwrap();
    let ack = trace.iter().find(|p| p.is(Operation::Acknowledge)).unwrap();
    assert_eq!(ack.bth.dest_qp, t.sender);
    let bth = remora_nic::wire::Bth {
        dest_qp: t.sender,
        psn: Psn::new(500),
        ..remora_nic::wire::Bth::ours()
    };
    let op = remora_nic::wire::Op::lookup(0xA4, Default::default()).unwrap();
    let forged = remora_sim::packet::Wire::craft(
        (address(B), address(A)),
        &bth,
        op,
        &Default::default(),
        &[0; 4],
    );
    t.world.inject(forged);
    t.run();
    assert_eq!(t.world.hosts[A].nic.counters().drop_transport, 1);
    t.tear_down();
}
