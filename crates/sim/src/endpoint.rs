//! Queue pairs with their rings and completion queues, and how they are connected.

use remora_nic::nic::{PostError, QpInit};
use remora_nic::qp::{Congestion, Mtu, QpAttr, State};
use remora_nic::queue::{Completion, RecvRequest, RingInit, SendRequest};
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{Access, Path, Pd, Psn, QpFlags, Xrcd};

use crate::world::{Host, World};

/// The Q_Key of all datagram queue pairs of this crate.
pub const QKEY: u32 = 0x1234_5678;

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Elements of the send queue; a power of two.
    pub sends: u32,
    /// Elements of the receive queue; a power of two.
    pub receives: u32,
    /// The most scatter/gather entries of an element.
    pub sges: usize,
    /// The most inline bytes of an element.
    pub inline: usize,
    /// Entries of each completion queue.
    pub completions: usize,
    /// All send requests are signaled.
    pub signal_all: bool,
    /// The card names the completion queues that have got entries.
    pub exported: bool,
    /// The client of the card that the queue pair belongs to.
    pub client: u16,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            sends: 64,
            receives: 64,
            sges: 4,
            inline: 256,
            completions: 256,
            signal_all: false,
            exported: false,
            client: 0,
        }
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// The most bytes of payload in a packet.
    pub mtu: Mtu,
    /// What the peer may do to memory.
    pub access: Access,
    /// The most READs and atomics that the queue pair has outstanding.
    pub max_rd_atomic: u8,
    /// The most outstanding READs and atomics of the peer that it accepts.
    pub max_dest_rd_atomic: u8,
    /// The time to wait for an acknowledge, as a code of the specification.
    pub timeout: u8,
    /// Retries without progress before the connection fails.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 means without limit.
    pub rnr_retry: u8,
    /// The waiting time that RNR NAKs ask for, as a code of the specification.
    pub min_rnr_timer: u8,
    /// What the ends have agreed on beyond the standard.
    pub dialect: Dialect,
    /// What decides how many packets may be outstanding.
    pub congestion: Congestion,
    /// The service level of both ends.
    pub service_level: u8,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            mtu: Mtu::B1024,
            access: Access::all(),
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 3,
            dialect: Dialect::STANDARD,
            congestion: Congestion::default(),
            service_level: 0,
        }
    }
}

/// The directions in which a queue pair sends requests. An XRC connection has an initiator and a
/// target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// The queue pair sends and answers requests.
    Both,
    /// The queue pair only sends requests.
    Initiator,
    /// The queue pair only answers requests.
    Target,
}

/// A queue pair and the objects that belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The index of its host.
    pub host: usize,
    /// Its protection domain.
    pub pd: Pd,
    /// Its number.
    pub qpn: u32,
    /// Its service.
    pub transport: Transport,
    /// The completion queue of its send queue.
    pub send_cq: u32,
    /// The completion queue of its receive queue.
    pub recv_cq: u32,
    /// Its shared receive queue, if it uses one.
    pub srq: Option<u32>,
    /// The directions in which it sends requests.
    pub half: Half,
}

/// Allocates a ring in the host's memory, for `depth` elements of this size.
pub fn ring(host: &mut Host, depth: u32, sges: usize, inline: usize) -> RingInit {
    let stride = RingInit::stride_for(sges, inline);
    let ring = RingInit { addr: 0, depth, stride };
    RingInit { addr: host.memory.alloc(ring.len(), 64), ..ring }
}

impl Endpoint {
    /// Creates a queue pair with completion queues of its own.
    ///
    /// # Panics
    /// If the card refuses.
    pub fn create(
        world: &mut World,
        (host, pd): (usize, Pd),
        transport: Transport,
        queues: &QueueOptions,
        srq: Option<u32>,
    ) -> Endpoint {
        let at = &mut world.hosts[host];
        let [send_cq, recv_cq] = [(); 2].map(|()| {
            let made = match queues.exported {
                true => at.nic.create_exported_cq(queues.completions),
                false => at.nic.create_cq(queues.completions),
            };
            made.expect("room for a completion queue")
        });
        let sq = ring(at, queues.sends, queues.sges, queues.inline);
        let half = if transport == Transport::Xrc { Half::Initiator } else { Half::Both };
        let rq = match srq {
            None if half == Half::Both => ring(at, queues.receives, queues.sges, 0),
            _ => RingInit::default(),
        };
        let (signal_all, client) = (queues.signal_all, queues.client);
        let flags = QpFlags::empty();
        let init =
            QpInit { pd, transport, send_cq, recv_cq, srq, sq, rq, signal_all, flags, client };
        let qpn = at.nic.create_qp(init).expect("room for a queue pair");
        Endpoint { host, pd, qpn, transport, send_cq, recv_cq, srq, half }
    }

    /// Creates the target of an XRC connection; `pd` is the protection domain of a shared receive
    /// queue. Completions go to the completion queues of the shared receive queues, so the
    /// target's own stay empty.
    ///
    /// # Panics
    /// If the card refuses.
    pub fn create_xrc_target(world: &mut World, (host, pd): (usize, Pd), xrcd: Xrcd) -> Endpoint {
        let nic = &mut world.hosts[host].nic;
        let qpn = nic.create_xrc_target(xrcd).expect("room for a queue pair");
        let [send_cq, recv_cq] =
            [(); 2].map(|()| nic.create_cq(1).expect("room for a completion queue"));
        let (transport, half) = (Transport::Xrc, Half::Target);
        Endpoint { host, pd, qpn, transport, send_cq, recv_cq, srq: None, half }
    }

    /// Changes attributes of the queue pair.
    ///
    /// # Panics
    /// If the card refuses.
    pub fn modify(&self, world: &mut World, attr: &QpAttr) {
        let now = world.now;
        let Host { nic, memory, .. } = &mut world.hosts[self.host];
        nic.modify_qp(now, memory, self.qpn, attr).expect("a legal transition");
    }

    /// Changes the state of the queue pair, without other attributes.
    pub fn go_to(&self, world: &mut World, state: State) {
        self.modify(world, &QpAttr { state: Some(state), ..QpAttr::default() });
    }

    /// Posts a send request.
    pub fn post_send(&self, world: &mut World, request: &SendRequest<'_>) -> Result<(), PostError> {
        let Host { nic, memory, .. } = &mut world.hosts[self.host];
        nic.post_send(memory, self.qpn, request)
    }

    /// Posts a send request for the peer's shared receive queue with this number (XRC).
    pub fn post_xrc_send(
        &self,
        world: &mut World,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        let Host { nic, memory, .. } = &mut world.hosts[self.host];
        nic.post_xrc_send(memory, self.qpn, srqn, request)
    }

    /// Posts a receive request, to the shared receive queue if there is one.
    pub fn post_recv(&self, world: &mut World, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let Host { nic, memory, .. } = &mut world.hosts[self.host];
        match self.srq {
            Some(srq) => nic.post_srq_recv(memory, srq, request),
            None => nic.post_recv(memory, self.qpn, request),
        }
    }

    /// The queue pair's state.
    pub fn state(&self, world: &World) -> State {
        let info = world.hosts[self.host].nic.query_qp(self.qpn);
        info.map_or(State::Reset, |info| info.state)
    }

    /// Takes all entries of a completion queue.
    ///
    /// # Panics
    /// If the completion queue overflowed.
    pub fn drain(world: &mut World, host: usize, cq: u32) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut some = [Completion::default(); 16];
        loop {
            let polled = world.hosts[host].nic.poll_cq(cq, &mut some);
            let n = polled.expect("the completion queue holds all that was posted");
            all.extend_from_slice(&some[..n]);
            if n < some.len() {
                return all;
            }
        }
    }

    /// Takes the queue pair from RESET to RTS. `psns` are the first PSN that it sends and the
    /// first that it expects.
    pub fn bring_up(
        &self,
        world: &mut World,
        peer: &Endpoint,
        options: &ConnectOptions,
        psns: (Psn, Psn),
    ) {
        self.modify(world, &self.init_attr(options));
        self.modify(world, &self.rtr_attr(world, peer, options, psns.1));
        self.modify(world, &self.rts_attr(options, psns.0));
    }

    fn init_attr(&self, options: &ConnectOptions) -> QpAttr {
        let ud = self.transport == Transport::Ud;
        let rc = self.transport == Transport::Rc;
        QpAttr {
            state: Some(State::Init),
            access: (!ud).then_some(options.access),
            qkey: ud.then_some(QKEY),
            dialect: rc.then_some(options.dialect),
            congestion: rc.then_some(options.congestion),
            ..QpAttr::default()
        }
    }

    fn rtr_attr(
        &self,
        world: &World,
        peer: &Endpoint,
        options: &ConnectOptions,
        expect: Psn,
    ) -> QpAttr {
        let attr =
            QpAttr { state: Some(State::Rtr), path_mtu: Some(options.mtu), ..QpAttr::default() };
        if self.transport == Transport::Ud {
            return attr;
        }
        let answers = self.transport.is_reliable() && self.half != Half::Initiator;
        let path = Path::new(world.hosts[peer.host].address, self.qpn);
        QpAttr {
            path: Some(Path { service_level: options.service_level, ..path }),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(expect),
            max_dest_rd_atomic: answers.then_some(options.max_dest_rd_atomic),
            min_rnr_timer: answers.then_some(options.min_rnr_timer),
            ..attr
        }
    }

    fn rts_attr(&self, options: &ConnectOptions, first: Psn) -> QpAttr {
        let attr = QpAttr { state: Some(State::Rts), sq_psn: Some(first), ..QpAttr::default() };
        if !self.transport.is_reliable() {
            return attr;
        }
        let attr = QpAttr { timeout: Some(options.timeout), ..attr };
        if self.half == Half::Target {
            return attr;
        }
        QpAttr {
            max_rd_atomic: Some(options.max_rd_atomic),
            retry_cnt: Some(options.retry_cnt),
            rnr_retry: Some(options.rnr_retry),
            ..attr
        }
    }
}

/// Connects two queue pairs. `psns` are the first PSNs that `a` and `b` send.
pub fn connect(
    world: &mut World,
    (a, b): (&Endpoint, &Endpoint),
    options: &ConnectOptions,
    psns: (Psn, Psn),
) {
    a.bring_up(world, b, options, psns);
    b.bring_up(world, a, options, (psns.1, psns.0));
}
