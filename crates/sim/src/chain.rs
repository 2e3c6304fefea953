//! Chains on simulated hosts: a program on one host's card, and a client on another host.

use remora_nic::nic::QpInit;
use remora_nic::queue::RingInit;
use remora_nic::wire::Transport;
use remora_nic::{Access, MrInit, PageTable, Pd, QpFlags, Queue};
use remora_offload::chain::element::QueueId;
use remora_offload::chain::link::{Layout, LinkError, RegionAt};
use remora_offload::chain::load::{self, Loaded, Made, Target, Wanted};
use remora_offload::chain::program::Program;

use crate::endpoint::{Endpoint, Half};
use crate::world::{Host, World};

/// The size of a region's pages, as a power of two.
const PAGE: u32 = 12;
/// Errors that a counting completion queue keeps: more than a program's rings have elements, all of
/// which are flushed when its client has gone.
const ERRORS: usize = 1024;

/// A program that is loaded on a host's card.
#[derive(Debug)]
pub struct SimChain {
    host: usize,
    /// The queue pair for its client, in RESET, if the program has a client.
    pub client: Option<Endpoint>,
    loaded: Loaded,
}

/// Registers new memory of `len` bytes whose region has its bus address.
///
/// # Panics
/// If the card refuses.
pub fn register(host: &mut Host, pd: Pd, len: usize, access: Access) -> RegionAt {
    let len = len.max(1);
    let addr = host.memory.alloc(len, 1 << PAGE);
    let pages = PageTable::contiguous(PAGE, addr, len as u64);
    let init = MrInit { iova: addr, len: len as u64, access, pages };
    RegionAt { addr, key: host.nic.reg_mr(pd, init).expect("room for a region") }
}

/// Loads a program on a host. It does nothing before it is [started](SimChain::start).
///
/// # Panics
/// If the card or the linker refuses.
pub fn load(
    world: &mut World,
    (host, pd): (usize, Pd),
    program: &Program,
    imports: &[RegionAt],
) -> SimChain {
    let mut target = InDomain { host: &mut world.hosts[host], pd };
    let loaded = load::load(&mut target, program, imports.to_vec());
    let loaded = loaded.expect("a program that links");
    let client = loaded.client.map(|client| Endpoint {
        host,
        pd,
        qpn: client.qpn,
        transport: Transport::Rc,
        send_cq: client.send_cq,
        recv_cq: client.recv_cq,
        srq: None,
        half: Half::Both,
    });
    SimChain { host, client, loaded }
}

impl SimChain {
    /// The addresses, keys and queue pair numbers of the program.
    pub fn layout(&self) -> &Layout {
        &self.loaded.layout
    }

    /// Starts the program. Its client, if it has one, must be connected.
    ///
    /// # Panics
    /// If the card refuses.
    pub fn start(&self, world: &mut World) {
        let nic = &mut world.hosts[self.host].nic;
        let started = self.loaded.start(|qpn, queue, index| match queue {
            Queue::Send => nic.handle_send_doorbell(qpn, index),
            Queue::Recv => nic.handle_recv_doorbell(qpn, index),
        });
        started.expect("queue pairs that are ready");
    }

    /// The completions that a queue has counted.
    pub fn completions(&self, world: &World, queue: QueueId) -> u64 {
        let cq = self.layout().queues[queue.index()].cq;
        world.hosts[self.host].nic.cq_count(cq).unwrap_or(0)
    }
}

/// A host, and the protection domain in which a program's objects are created.
struct InDomain<'a> {
    host: &'a mut Host,
    pd: Pd,
}

impl InDomain<'_> {
    /// Memory for a queue's ring, and the region of it; an empty ring without a queue.
    fn ring(&mut self, queue: Option<Wanted>) -> (RingInit, Option<RegionAt>) {
        let Some(Wanted { depth, stride, .. }) = queue else { return Default::default() };
        let ring = RingInit { addr: 0, depth, stride };
        let region = register(self.host, self.pd, ring.len(), Access::all());
        (RingInit { addr: region.addr, ..ring }, Some(region))
    }
}

impl Target for InDomain<'_> {
    type Error = LinkError;

    fn counting_cq(&mut self) -> Result<u32, LinkError> {
        Ok(self.host.nic.create_counting_cq(ERRORS).expect("room for a completion queue"))
    }

    fn data(&mut self, len: usize) -> Result<RegionAt, LinkError> {
        Ok(register(self.host, self.pd, len, Access::all()))
    }

    fn queue_pair(
        &mut self,
        send: Option<Wanted>,
        recv: Option<Wanted>,
    ) -> Result<Made, LinkError> {
        let ((sq, send_ring), (rq, recv_ring)) = (self.ring(send), self.ring(recv));
        let some = send.or(recv).expect("a queue");
        let flag = |queue: Option<Wanted>, flag| {
            if queue.is_some_and(|queue| queue.managed) { flag } else { QpFlags::empty() }
        };
        let init = QpInit {
            pd: self.pd,
            transport: Transport::Rc,
            send_cq: send.unwrap_or(some).cq,
            recv_cq: recv.unwrap_or(some).cq,
            srq: None,
            sq,
            rq,
            signal_all: false,
            flags: flag(send, QpFlags::MANAGED_SEND) | flag(recv, QpFlags::MANAGED_RECV),
            client: 0,
        };
        let qpn = self.host.nic.create_qp(init).expect("room for a queue pair");
        Ok(Made { qpn, send: send_ring, recv: recv_ring })
    }

    fn loop_back(&mut self, qpn: u32) -> Result<(), LinkError> {
        self.host.nic.loop_back(qpn, qpn, Access::all()).expect("a fresh queue pair");
        Ok(())
    }

    fn write(&mut self, region: RegionAt, bytes: &[u8]) -> Result<(), LinkError> {
        self.host.memory.slice_mut(region.addr, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }
}
