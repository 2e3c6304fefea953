//! Chains on simulated hosts: a program set up on a card, with a client elsewhere.

use remora_nic::nic::QpInit;
use remora_nic::queue::RingInit;
use remora_nic::wire::Transport;
use remora_nic::{Access, MrInit, PageTable, Pd, QpFlags};
use remora_offload::chain::program::{Kind, Layout, Program, QueueAt, RegionAt};
use remora_offload::chain::request::QueueId;

use crate::endpoint::{Endpoint, Half};
use crate::world::{Host, World};

/// Pages by which regions are mapped, as a power of two.
const PAGE: u32 = 12;
/// Errors that a completion queue keeps.
const ERRORS: usize = 16;

/// A program on a host.
#[derive(Debug)]
pub struct SimChain {
    host: usize,
    /// Where everything lies.
    pub layout: Layout,
    /// The queue pair towards its client, in RESET.
    pub client: Option<Endpoint>,
    kinds: Vec<Kind>,
    enabled: Vec<u32>,
}

/// Registers memory that lies at its own address.
///
/// # Panics
/// The card refuses.
pub fn register(host: &mut Host, pd: Pd, len: usize, access: Access) -> RegionAt {
    let len = len.max(1);
    let addr = host.memory.alloc(len, 1 << PAGE);
    let pages = PageTable::contiguous(PAGE, addr, len as u64);
    let init = MrInit { iova: addr, len: len as u64, access, pages };
    RegionAt { addr, key: host.nic.reg_mr(pd, init).expect("room for a region") }
}

/// Sets a program up on a host. It does nothing before it is [started](SimChain::start).
///
/// # Panics
/// The card or the linker refuses.
pub fn load(
    world: &mut World,
    (host, pd): (usize, Pd),
    program: &Program,
    imports: &[RegionAt],
) -> SimChain {
    let at = &mut world.hosts[host];
    let mut layout = Layout { imports: imports.to_vec(), ..Layout::default() };
    layout.data = register(at, pd, program.data_len(), Access::all());
    let mut rings = Vec::new();
    for (i, queue) in program.queues().iter().enumerate() {
        let shape = (queue.depth(), program.stride(QueueId::from_index(i)));
        let ring = RingInit { addr: 0, depth: shape.0, stride: shape.1 };
        let region = register(at, pd, ring.len(), Access::all());
        rings.push(RingInit { addr: region.addr, ..ring });
        let cq = at.nic.create_counting_cq(ERRORS).expect("room for a completion queue");
        layout.queues.push(QueueAt { qpn: 0, cq, ring: region });
    }
    let mut client = Client::default();
    for (i, queue) in program.queues().iter().enumerate() {
        match queue.kind {
            Kind::Loop => {
                let rings = (rings[i], RingInit::default());
                let flags = flag(queue.managed, QpFlags::MANAGED_SEND);
                let cq = layout.queues[i].cq;
                let qpn = create(at, pd, (cq, cq), rings, flags);
                at.nic.loop_back(qpn, qpn, Access::all()).expect("a fresh queue pair");
                layout.queues[i].qpn = qpn;
            }
            Kind::Reply => client.reply = Some((i, queue.managed)),
            Kind::Receive => client.receive = Some((i, queue.managed)),
        }
    }
    let client = client.create(at, (host, pd), &mut layout, &rings);
    let image = program.link(&layout).expect("a program that links");
    for (queue, bytes) in layout.queues.iter().zip(&image.queues) {
        at.memory.slice_mut(queue.ring.addr, bytes.len()).copy_from_slice(bytes);
    }
    at.memory.slice_mut(layout.data.addr, image.data.len()).copy_from_slice(&image.data);
    let kinds = program.queues().iter().map(|queue| queue.kind).collect();
    SimChain { host, layout, client, kinds, enabled: image.enabled }
}

impl SimChain {
    /// Lets it run; its client is connected.
    ///
    /// # Panics
    /// The card refuses.
    pub fn start(&self, world: &mut World) {
        let nic = &mut world.hosts[self.host].nic;
        for ((at, kind), &enabled) in self.layout.queues.iter().zip(&self.kinds).zip(&self.enabled)
        {
            let started = match kind {
                _ if enabled == 0 => Ok(()),
                Kind::Receive => nic.handle_recv_doorbell(at.qpn, enabled),
                Kind::Loop | Kind::Reply => nic.handle_send_doorbell(at.qpn, enabled),
            };
            started.expect("a queue pair that is ready");
        }
    }

    /// Requests that a queue has completed, of those that count.
    pub fn completions(&self, world: &World, queue: QueueId) -> u64 {
        let cq = self.layout.queues[queue.index()].cq;
        world.hosts[self.host].nic.cq_count(cq).unwrap_or(0)
    }
}

/// The queues towards a client: which, and is it managed?
#[derive(Default)]
struct Client {
    reply: Option<(usize, bool)>,
    receive: Option<(usize, bool)>,
}

impl Client {
    fn create(
        &self,
        at: &mut Host,
        (host, pd): (usize, Pd),
        layout: &mut Layout,
        rings: &[RingInit],
    ) -> Option<Endpoint> {
        let (some, _) = self.reply.or(self.receive)?;
        let cq = |queue: Option<(usize, bool)>| layout.queues[queue.map_or(some, |q| q.0)].cq;
        let (send_cq, recv_cq) = (cq(self.reply), cq(self.receive));
        let ring = |queue: Option<(usize, bool)>| queue.map_or(RingInit::default(), |q| rings[q.0]);
        let managed = |queue: Option<(usize, bool)>| queue.is_some_and(|queue| queue.1);
        let flags = flag(managed(self.reply), QpFlags::MANAGED_SEND)
            | flag(managed(self.receive), QpFlags::MANAGED_RECV);
        let rings = (ring(self.reply), ring(self.receive));
        let qpn = create(at, pd, (send_cq, recv_cq), rings, flags);
        for (i, _) in self.reply.into_iter().chain(self.receive) {
            layout.queues[i].qpn = qpn;
        }
        let transport = Transport::Rc;
        Some(Endpoint { host, pd, qpn, transport, send_cq, recv_cq, srq: None, half: Half::Both })
    }
}

fn flag(is: bool, flag: QpFlags) -> QpFlags {
    if is { flag } else { QpFlags::empty() }
}

fn create(
    host: &mut Host,
    pd: Pd,
    (send_cq, recv_cq): (u32, u32),
    (sq, rq): (RingInit, RingInit),
    flags: QpFlags,
) -> u32 {
    let init = QpInit {
        pd,
        transport: Transport::Rc,
        send_cq,
        recv_cq,
        srq: None,
        sq,
        rq,
        signal_all: false,
        flags,
    };
    host.nic.create_qp(init).expect("room for a queue pair")
}
