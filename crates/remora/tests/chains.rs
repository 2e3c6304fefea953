//! Chains on live cards: a server whose host does nothing, and clients over real sockets.

#[path = "support/until.rs"]
mod until;

use std::time::Duration;

use remora::chain::{AsyncChainClient, ChainClient};
use remora::nic::qp::State;
use remora::nic::queue::{Data, Opcode, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status};
use remora::nic::{Access, Calc, ChainLimits, QpFlags, Queue};
use remora::offload::chain::offload::list;
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::offload::table::{Table, Value};
use remora::offload::chain::program::Program;
use remora::{
    Chain, CompletionQueue, ConnectionParams, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions,
};
use until::until;

const PATIENCE: Duration = Duration::from_secs(20);
const VALUE: u32 = 100;

struct Client {
    cq: CompletionQueue,
    recv_cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Client {
    fn new(device: &Device, pd: &ProtectionDomain) -> Client {
        let (cq, recv_cq) = (device.create_cq(64).unwrap(), device.create_cq(64).unwrap());
        let options = QueuePairOptions::rc(&cq).recv_cq(&recv_cq);
        let qp = pd.create_qp(&options).unwrap();
        Client { cq, recv_cq, qp, memory: pd.alloc(8192, Access::LOCAL_WRITE).unwrap() }
    }

    /// One message, one answer.
    fn ask(&self, message: &[u8]) -> Vec<u8> {
        self.qp.post_recv(&RecvRequest { wr_id: 0, sges: &[self.memory.sge(4096, 4096)] }).unwrap();
        self.memory.write_at(0, message).unwrap();
        let data = Data::Sges(&[self.memory.sge(0, message.len() as u32)]);
        let (op, flags) = (SendOp::Send { imm: None, to: None }, SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 0, op, data, flags }).unwrap();
        let answer = self.recv_cq.spin(PATIENCE).unwrap();
        assert_eq!(answer.status, Status::Success);
        assert_eq!(self.cq.spin(PATIENCE).unwrap().status, Status::Success);
        let mut bytes = vec![0; answer.len as usize];
        self.memory.read_at(4096, &mut bytes).unwrap();
        bytes
    }
}

/// Connects a client to a program on a server's card, which then serves it. The client gets no
/// access to memory.
fn serve(
    server: &ProtectionDomain,
    program: &Program,
    memory: &MemoryRegion,
    client: &Client,
    device: &Device,
) -> Chain {
    let chain = server.load_chain(program, &[memory.clone(), memory.clone()]).unwrap();
    let params = ConnectionParams::new(device.info().mtu).access(Access::empty());
    let to = chain.client().unwrap();
    to.connect(client.qp.local(), &params).unwrap();
    client.qp.connect(to.local(), &params).unwrap();
    chain.start().unwrap();
    chain
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; VALUE as usize]
}

/// Memory with a value for each key; returns where the values lie.
fn values(memory: &MemoryRegion, keys: std::ops::Range<u64>) -> Vec<(u64, Value)> {
    let put = |key: u64| {
        let offset = (key + 1) * 128;
        memory.write_at(offset as usize, &value(key)).unwrap();
        (key, Value { addr: memory.addr() + offset, len: VALUE })
    };
    keys.map(put).collect()
}

#[test]
fn clients_look_keys_up_while_the_host_sleeps() {
    let (near, far) = (Device::open().unwrap(), Device::open().unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let memory = far_pd.alloc(1 << 16, access).unwrap();
    let at = memory.addr() + (1 << 15);
    let mut table = Table::new(64, 4);
    for (key, value) in values(&memory, 1..150) {
        table.insert(key, value).unwrap();
    }
    memory.write_at(1 << 15, &table.bytes()).unwrap();
    let lookups = [Lookup::CUCKOO, Lookup::CUCKOO.in_parallel()];
    let clients = lookups.map(|lookup| {
        let client = Client::new(&near, &near_pd);
        let chain = serve(&far_pd, &lookup.program(), &memory, &client, &near);
        (lookup, client, chain)
    });
    for key in 1..200 {
        for (lookup, client, _) in &clients {
            let answer = client.ask(&lookup.message(key, &table.addresses(at, key)));
            assert_eq!(answer, if key < 150 { value(key) } else { vec![] }, "{lookup:?} {key}");
        }
    }
}

#[test]
fn clients_walk_lists() {
    let (near, far) = (Device::open().unwrap(), Device::open().unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let memory = far_pd.alloc(1 << 16, access).unwrap();
    let first = memory.addr() + (1 << 15);
    let nodes = list::nodes(first, &values(&memory, 1..9));
    memory.write_at(1 << 15, &nodes).unwrap();
    for program in [list::unrolled(8), list::walking()] {
        let client = Client::new(&near, &near_pd);
        let _chain = serve(&far_pd, &program, &memory, &client, &near);
        for key in (1..12).cycle().take(60) {
            let expected = if key < 9 { value(key) } else { vec![] };
            assert_eq!(client.ask(&list::message(key, first)), expected, "{key}");
        }
    }
}

/// An address that the program's keys do not open ends that client's chain, and no other's.
#[test]
fn a_client_that_asks_for_other_memory_is_cut_off() {
    let (near, far) = (Device::open().unwrap(), Device::open().unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let memory = far_pd.alloc(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let lookup = Lookup::HOPSCOTCH;
    let mut table = Table::new(64, 1);
    values(&memory, 1..2).into_iter().for_each(|(key, at)| table.insert(key, at).unwrap());
    memory.write_at(1 << 15, &table.bytes()).unwrap();
    let good = Client::new(&near, &near_pd);
    let _good_chain = serve(&far_pd, &lookup.program(), &memory, &good, &near);
    let bad = Client::new(&near, &near_pd);
    let bad_chain = serve(&far_pd, &lookup.program(), &memory, &bad, &near);
    let message = lookup.message(1, &[memory.addr() - 64; 2]);
    bad.memory.write_at(0, &message).unwrap();
    let data = Data::Sges(&[bad.memory.sge(0, message.len() as u32)]);
    let (op, flags) = (SendOp::Send { imm: None, to: None }, SendFlags::SIGNALED);
    bad.qp.post_send(&SendRequest { wr_id: 0, op, data, flags }).unwrap();
    bad.cq.spin(PATIENCE).unwrap().ok().unwrap();
    let has_ended = || bad_chain.queue_pairs().any(|qp| qp.query().state == State::Error);
    until("the chain has ended", has_ended);
    let at = memory.addr() + (1 << 15);
    assert_eq!(good.ask(&lookup.message(1, &table.addresses(at, 1))), value(1));
}

#[test]
fn rings_are_memory_and_budgets_end_what_does_not_end() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_counting_cq(4).unwrap();
    let flags = QpFlags::MANAGED_SEND;
    let options = QueuePairOptions::rc(&cq).send_depth(2).recv_depth(0).flags(flags);
    let qp = pd.create_qp(&options).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    let ring = qp.register_ring(Queue::Send, Access::all()).unwrap();
    assert_eq!((ring.depth, ring.stride), (2, 64));
    assert!(qp.register_ring(Queue::Recv, Access::all()).is_err());
    let budget = device.create_budget(1000).unwrap();
    qp.set_chain_limits(ChainLimits { budget: Some(budget.handle()), ..ChainLimits::default() })
        .unwrap();
    // An ADD raises the ENABLE behind it, which enables both again, without end.
    let at = remora::nic::queue::RemoteAddress { addr: ring.field(1, 16), rkey: ring.region.key() };
    let ops = [
        SendOp::Calc { calc: Calc::Add, at, operand: 2 },
        SendOp::Enable { qpn: qp.qpn(), index: 2 },
    ];
    for op in ops {
        let (data, flags) = (Data::Sges(&[] as &[Sge]), SendFlags::SIGNALED);
        qp.post_send(&SendRequest { wr_id: 0, op, data, flags }).unwrap();
    }
    let mut opcode = [0; 2];
    ring.region.read_at(64, &mut opcode).unwrap();
    assert_eq!(u16::from_le_bytes(opcode), Opcode::Enable as u16);
    qp.doorbell(Queue::Send, 2).unwrap();
    until("it has ended", || {
        device.progress();
        qp.query().state == State::Error
    });
    assert_eq!(cq.count(), Ok(1000));
}

/// An answer that comes after its caller has given up is not the next call's.
#[test]
fn answers_of_calls_that_were_given_up_are_forgotten() {
    let (near, far) = (Device::open().unwrap(), Device::open().unwrap());
    let far = far.alloc_pd().unwrap();
    let memory = far.alloc(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let first = memory.addr() + (1 << 15);
    memory.write_at(1 << 15, &list::nodes(first, &values(&memory, 1..9))).unwrap();
    let load = || far.load_chain(&list::walking(), &[memory.clone(), memory.clone()]);
    let (domain, mtu) = (near.alloc_pd().unwrap(), near.info().mtu);

    let chain: Chain = load().unwrap();
    let mut client = ChainClient::new(&near, &domain, VALUE).unwrap();
    client.connect(chain.local().unwrap(), mtu).unwrap();
    chain.serve(client.local(), mtu).unwrap();
    for key in (1..9).cycle().take(100) {
        let mut answer = Vec::new();
        client.timeout = Duration::ZERO;
        client.call(&list::message(key % 8 + 1, first), &mut answer).ok();
        client.timeout = PATIENCE;
        answer.clear();
        client.call(&list::message(key, first), &mut answer).unwrap();
        assert_eq!(answer, value(key));
    }

    let chain: Chain = load().unwrap();
    let mut client = AsyncChainClient::new(&domain, VALUE).unwrap();
    client.connect(chain.local().unwrap(), mtu).unwrap();
    chain.serve(client.local(), mtu).unwrap();
    for key in (1..9).cycle().take(100) {
        for other in 0..5 {
            client.call(&list::message((key + other) % 8 + 1, first)).wait(Duration::ZERO).ok();
        }
        let answer = client.call(&list::message(key, first)).wait(PATIENCE).unwrap();
        assert_eq!(answer, value(key));
    }
}
