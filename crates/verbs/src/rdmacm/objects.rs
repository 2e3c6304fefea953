//! What stands behind ids and event channels. What is done with them is in the other files.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex};

use remora::event::Event as Wake;
use remora::nic::cm::message::TransportService;
use remora::nic::cm::service::{CmaHeader, ServiceId};
use remora::nic::cm::{ConnId, ListenerId, SidrId};

use crate::abi::rdma_cma::*;
use crate::abi::*;

/// An event channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(super) c: AtomicUsize,
    pub(super) ready: Wake,
    pub(super) queue: Mutex<VecDeque<News>>,
}

/// What an event says beside its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param {
    None,
    Conn(rdma_conn_param),
    Datagram(rdma_ud_param),
}

/// An event that the program has not fetched.
#[derive(Debug)]
pub(crate) struct News {
    /// Whom it is about.
    pub(crate) id: Arc<Id>,
    /// Who listened, for requests.
    pub(crate) listener: Option<Arc<Id>>,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
    /// What the program gave with a multicast group: it stands where private data would.
    pub(crate) context: usize,
}

// SAFETY: the pointers within `param` are null until the event is delivered.
unsafe impl Send for News {}

/// An id, as threads of this library share it.
#[derive(Debug)]
pub(crate) struct Id {
    /// The C struct's address; zero before there is one and after it is destroyed.
    pub(super) c: AtomicUsize,
    pub(crate) space: rdma_port_space,
    pub(crate) qp_type: ibv_qp_type,
    pub(super) state: Mutex<IdState>,
    /// Events that were taken from the channel's queue and not acknowledged. Raised under the
    /// queue's lock, so that none is in neither place.
    pub(super) unacknowledged: AtomicUsize,
    /// Signalled when an event is acknowledged.
    pub(super) acknowledged: Condvar,
}

/// How far an id has come; each call needs one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// A request was sent, or has come.
    Connecting,
    /// The peer has replied, and there is no queue pair here that could be made ready.
    Replied,
    Connected,
    Disconnected,
}

/// The card that an id is bound to, and who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// Where the peer's card is.
    pub(crate) peer: IpAddr,
    /// The code of the path MTU.
    pub(crate) mtu: u8,
}

/// What the ends of a connection tell each other, as this end's queue pair needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) remote_qpn: u32,
    /// The first that we send, chosen by the peer, and the first that it sends, by us.
    pub(crate) remote_psn: u32,
    pub(crate) local_psn: u32,
    /// Reads and atomics that the peer may have under way here.
    pub(crate) responder_resources: u8,
    /// Those that we may have there.
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) path_mtu: u8,
    pub(crate) traffic_class: u8,
    pub(crate) srq: bool,
}

/// What a listener that was made by `rdma_create_ep` gives each of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) init: ibv_qp_init_attr,
}

/// What changes in an id.
#[derive(Debug, Default)]
pub(crate) struct IdState {
    pub(crate) stage: Stage,
    pub(crate) sync: bool,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Which of the process's cards; `None` if bound to all or none.
    pub(crate) card: Option<usize>,
    /// As the program sees them.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) route: Option<Route>,
    /// The listener that it asks was announced on this machine.
    pub(crate) announced: bool,
    /// The port, held against other processes.
    pub(crate) port_lock: Option<OwnedFd>,
    /// What tells other processes of the listener.
    pub(crate) announcements: Vec<OwnedFd>,
    /// A port of this process that nobody else holds.
    pub(crate) own_port: Option<u16>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) listeners: Vec<(usize, ListenerId)>,
    /// Events of the listener that wait, and how many may.
    pub(crate) waiting: usize,
    pub(crate) backlog: usize,
    pub(crate) sidr: Option<SidrId>,
    pub(crate) agreement: Agreement,
    pub(crate) tos: u8,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    /// Goes before private data of the program.
    pub(crate) connect_data: Vec<u8>,
    /// Where `route.path_rec` points.
    pub(crate) path: Option<Box<PathRecord>>,
    pub(crate) template: Option<Template>,
    pub(crate) groups: Vec<Group>,
    /// Objects that were made for the program, to go with the queue pair.
    pub(crate) own_send_cq: bool,
    pub(crate) own_recv_cq: bool,
    /// The card's connection ended while a request of another MTU was prepared.
    pub(crate) request: Option<Request>,
}

/// A path record that a program may point to.
#[derive(Debug)]
pub(crate) struct PathRecord(pub(crate) ibv_sa_path_rec);

// SAFETY: the pointers are handles, which are looked up before they are believed.
unsafe impl Send for Template {}

/// A request for a connection, for when it has to be made again.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(super) remote: IpAddr,
    pub(super) service: ServiceId,
    pub(super) told: CmaHeader,
    pub(super) transport: TransportService,
    pub(super) qpn: u32,
    pub(super) flow_control: bool,
    pub(super) agreement: Agreement,
    pub(super) private_data: Vec<u8>,
}

/// A group that an id has joined.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) address: SocketAddr,
    /// The queue pair is to be attached, and not to send only.
    pub(super) receives: bool,
    /// The handle of the queue pair that was attached.
    pub(super) attached: usize,
}
