//! Managed queues, rings as memory, limits and steps on live devices.

#[path = "support/until.rs"]
mod until;

use std::thread;
use std::time::{Duration, Instant};

use remora::nic::queue::{Data, Opcode, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status};
use remora::nic::{Access, Calc, ChainLimits, Event, QpFlags, Queue, Rate, StepEnd};
use remora::{
    CompletionQueue, ConnectionParams, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions, RingRegion,
};
use until::until;

const PATIENCE: Duration = Duration::from_secs(20);
const REMOTE: u64 = 16;

struct Server {
    device: Device,
    pd: ProtectionDomain,
    data: MemoryRegion,
}

impl Server {
    fn new() -> Server {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let data = pd.alloc(4096, Access::all()).unwrap();
        Server { device, pd, data }
    }

    /// A queue pair of `depth`, with a completion queue that only counts.
    fn queue(&self, flags: QpFlags, depth: u32) -> (QueuePair, CompletionQueue) {
        let cq = self.device.create_counting_cq(16).unwrap();
        let rc = QueuePairOptions::rc(&cq);
        let options = rc.flags(flags).send_depth(depth).recv_depth(depth).recv_sges(4);
        (self.pd.create_qp(&options).unwrap(), cq)
    }

    fn looped(&self, flags: QpFlags, depth: u32) -> (QueuePair, CompletionQueue) {
        let (qp, cq) = self.queue(flags, depth);
        qp.loop_back(&qp, Access::all()).unwrap();
        (qp, cq)
    }

    fn word(&self, offset: usize) -> u64 {
        self.data.buffer().unwrap().load_u64(offset).unwrap()
    }
}

fn post(qp: &QueuePair, op: SendOp, sges: &[Sge], flags: SendFlags) {
    qp.post_send(&SendRequest { wr_id: 0, op, data: Data::Sges(sges), flags }).unwrap();
}

/// A queue that counts in memory without end while the host sleeps.
fn endless(server: &Server, qp: &QueuePair) -> RingRegion {
    let ring = qp.register_ring(Queue::Send, Access::all()).unwrap();
    let add = |at, operand| SendOp::Calc { calc: Calc::Add, at, operand };
    post(qp, add(server.data.remote(0), 1), &[], SendFlags::empty());
    post(qp, add(ring.remote(3, REMOTE), 4), &[], SendFlags::empty());
    post(qp, SendOp::NoOp, &[], SendFlags::empty());
    let again = SendOp::Enable { qpn: qp.qpn(), index: 4 };
    post(qp, again, &[], SendFlags::empty());
    ring
}

#[test]
fn a_recycled_queue_runs_while_its_owner_sleeps_until_it_is_stopped() {
    let server = Server::new();
    let (qp, cq) = server.looped(QpFlags::MANAGED_SEND, 4);
    let _ring = endless(&server, &qp);
    assert_eq!(server.word(0), 0);
    qp.doorbell(Queue::Send, 4).unwrap();
    until("it runs", || server.word(0) > 10_000);
    // A rate limits it.
    let rate = Some(Rate { per_second: 1000, burst: 1 });
    qp.set_chain_limits(ChainLimits { rate, ..ChainLimits::default() }).unwrap();
    let (start, slow) = (Instant::now(), server.word(0));
    thread::sleep(Duration::from_millis(20));
    let counted = server.word(0) - slow;
    // However long that has taken, unlimited ones are many times as many.
    let most = start.elapsed().as_millis() as u64 + 100;
    assert!(counted <= most, "{counted} of {most}");
    // A budget ends it, and an event says so.
    let budget = server.device.create_budget(4000).unwrap();
    let limits = ChainLimits { budget: Some(budget.handle()), ..ChainLimits::default() };
    qp.set_chain_limits(limits).unwrap();
    let mut stopped = None;
    until("it stops", || {
        stopped = stopped.take().or_else(|| server.device.events().try_next());
        stopped.is_some()
    });
    assert_eq!(stopped, Some(Event::ChainStopped(qp.qpn())));
    assert_eq!(cq.spin(PATIENCE).unwrap().status, Status::LocalQpOperation);
}

/// RedN Fig. 3: a client's SEND changes the chain that answers it, request after request, and the
/// server's processor does nothing. The client has no access to memory.
#[test]
fn a_clients_send_triggers_a_chain_that_answers() {
    const ROUNDS: u64 = 100;
    let server = Server::new();
    // For the client: receives and answers, both recycled.
    let both = QpFlags::MANAGED_SEND | QpFlags::MANAGED_RECV;
    let (answers, answered) = server.queue(both, 2);
    let answer_ring = answers.register_ring(Queue::Send, Access::all()).unwrap();
    // Within the card: the queue that waits for a request and enables the answer.
    let (control, _counts) = server.looped(QpFlags::MANAGED_SEND, 8);
    let ring = control.register_ring(Queue::Send, Access::all()).unwrap();

    let client = Device::open().unwrap();
    let (pd, cq) = (client.alloc_pd().unwrap(), client.create_cq(64).unwrap());
    let qp = pd.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    let into = pd.alloc(4096, Access::all()).unwrap();
    let params = ConnectionParams::new(client.info().mtu);
    qp.connect(answers.local(), &params).unwrap();
    answers.connect(qp.local(), &params.access(Access::empty())).unwrap();

    // The request: an address. The answer: a WRITE of the word there, with immediate data.
    const SRC: u64 = 40;
    for slot in 0..2 {
        let into_src = answer_ring.sge(slot, SRC, 8);
        answers.post_recv(&RecvRequest { wr_id: 0, sges: &[into_src] }).unwrap();
        let word = Sge { len: 8, ..server.data.sge(0, 8) };
        let to = into.remote(0);
        post(&answers, SendOp::Write { to, imm: Some(7) }, &[word], SendFlags::empty());
    }
    let silent = SendFlags::empty();
    let raise =
        |slot, by| SendOp::Calc { calc: Calc::Add, at: ring.remote(slot, REMOTE), operand: by };
    post(&control, SendOp::Wait { cq: answered.handle(), count: 1 }, &[], silent);
    post(&control, SendOp::Enable { qpn: answers.qpn(), index: 1 }, &[], silent);
    post(&control, SendOp::EnableRecv { qpn: answers.qpn(), index: 2 }, &[], silent);
    for (slot, by) in [(0, 1), (1, 1), (2, 1), (7, 8)] {
        post(&control, raise(slot, by), &[], silent);
    }
    post(&control, SendOp::Enable { qpn: control.qpn(), index: 8 }, &[], silent);
    answers.doorbell(Queue::Recv, 1).unwrap();
    control.doorbell(Queue::Send, 8).unwrap();

    for round in 0..ROUNDS {
        let at = (round % 100) * 8;
        server.data.buffer().unwrap().store_u64(at as usize, round * 3 + 1).unwrap();
        qp.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).unwrap();
        let request = (server.data.addr() + at).to_le_bytes();
        let op = SendOp::Send { imm: None, to: None };
        let send = SendRequest { wr_id: 2, op, data: Data::Inline(&request), flags: silent };
        qp.post_send(&send).unwrap();
        let done = cq.spin(PATIENCE).unwrap();
        assert_eq!((done.wr_id, done.status, done.imm_or_key), (1, Status::Success, 7));
        assert_eq!(into.buffer().unwrap().load_u64(0), Ok(round * 3 + 1));
    }
    // The client cannot reach memory.
    let word = into.sge(0, 8);
    let read = SendOp::Read { from: server.data.remote(0) };
    post(&qp, read, &[word], SendFlags::SIGNALED);
    assert_eq!(cq.spin(PATIENCE).unwrap().status, Status::RemoteAccess);
}

#[test]
fn steps_can_be_watched() {
    let server = Server::new();
    let (qp, cq) = server.looped(QpFlags::empty(), 4);
    server.device.trace_chains(16);
    let mut raw = [0; 64];
    raw[0] = Opcode::NoOp as u8;
    raw[8] = SendFlags::SIGNALED.bits() as u8;
    raw[2..8].copy_from_slice(b"my id!");
    assert_eq!(qp.post_element(Queue::Send, &raw), Ok(0));
    assert_eq!(qp.next_index(Queue::Send), 1);
    until("it ends", || cq.count() == Ok(1));
    let step = server.device.poll_chain_step().unwrap();
    assert_eq!((step.qpn, step.queue, step.index), (qp.qpn(), Queue::Send, 0));
    assert_eq!((step.element, step.end), (raw, StepEnd::Done));
    let ring = qp.register_ring(Queue::Send, Access::all()).unwrap();
    assert_eq!(ring.element(0), raw);
}

/// A queue with a peer elsewhere can enable a queue of its card too, once the peer has
/// acknowledged.
#[test]
fn a_connection_enables_a_queue_when_its_peer_has_all() {
    let (server, peer) = (Server::new(), Server::new());
    let (managed, _) = server.looped(QpFlags::MANAGED_SEND, 4);
    let add = SendOp::Calc { calc: Calc::Add, at: server.data.remote(8), operand: 5 };
    post(&managed, add, &[], SendFlags::SIGNALED);
    let (near, cq) = server.queue(QpFlags::empty(), 8);
    let (far, _) = peer.queue(QpFlags::empty(), 8);
    let params = ConnectionParams::new(server.device.info().mtu);
    near.connect(far.local(), &params).unwrap();
    far.connect(near.local(), &params).unwrap();
    server.data.buffer().unwrap().store_u64(0, 42).unwrap();
    let (to, word) = (peer.data.remote(0), server.data.sge(0, 8));
    post(&near, SendOp::Write { to, imm: None }, &[word], SendFlags::SIGNALED);
    post(&near, SendOp::Wait { cq: cq.handle(), count: 1 }, &[], SendFlags::empty());
    post(&near, SendOp::Enable { qpn: managed.qpn(), index: 1 }, &[], SendFlags::SIGNALED);
    until("it is enabled", || server.word(8) == 5);
    assert_eq!(peer.word(0), 42);
    until("the ENABLE is reported", || cq.count() == Ok(2));
}
