//! The state behind ids and event channels. [`super::id`] and [`super::channel`] work on it.

use core::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex};

use remora::nic::cm::message::TransportService;
use remora::nic::cm::service::{CmaHeader, ServiceId};
use remora::nic::cm::{ConnId, ListenerId, SidrId};
use remora::raw::EventQueue;

use super::address_list::Lookup;
use super::directory::Hold;
use crate::abi::rdma_cma::*;
use crate::abi::*;

/// An event channel.
#[derive(Debug)]
pub(crate) struct EventChannel {
    pub(super) c: AtomicUsize,
    pub(super) events: EventQueue<News>,
}

/// The parameters of an event, by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param {
    None,
    /// What the program has passed to `rdma_write_cm_event`.
    Arg(u64),
    Conn(rdma_conn_param),
    Datagram(rdma_ud_param),
}

/// An event that the program has not fetched.
#[derive(Debug)]
pub(crate) struct News {
    /// The id that it is about.
    pub(crate) id: Arc<Id>,
    /// For a request, the listener.
    pub(crate) listener: Option<Arc<Id>>,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
    /// The program's context of a multicast group; the event shows it where others have private
    /// data.
    pub(crate) context: usize,
}

// SAFETY: the pointers within `param` are null until the event is delivered.
unsafe impl Send for News {}

/// An id, shared by the threads of this library.
#[derive(Debug)]
pub(crate) struct Id {
    /// The address of the C struct; zero before it is made and after it is destroyed.
    pub(super) c: AtomicUsize,
    pub(crate) space: rdma_port_space,
    pub(crate) qp_type: ibv_qp_type,
    pub(super) state: Mutex<IdState>,
    /// Events that have left the channel's queue and are not acknowledged. Raised under the queue's
    /// lock, so that each event is always either in the queue or in this count.
    pub(super) unacknowledged: AtomicUsize,
    /// Signalled when an event is acknowledged.
    pub(super) acknowledged: Condvar,
}

/// The stage that an id has reached; each call requires certain stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// A request was sent or received.
    Connecting,
    /// The peer has replied, and this library has no queue pair to make ready.
    Replied,
    Connected,
    /// The connection has ended, or has failed to come about.
    Disconnected,
}

/// The path to the peer of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The address of the peer's card.
    pub(crate) peer: IpAddr,
    /// The code of the path MTU.
    pub(crate) mtu: u8,
}

/// The parameters that the ends of a connection exchange, as this end's queue pair needs them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) remote_qpn: u32,
    /// The PSN of this side's first packet, which the peer has chosen, and of the peer's first
    /// packet, which this side has chosen.
    pub(crate) remote_psn: u32,
    pub(crate) local_psn: u32,
    /// READs and atomics that the peer may have outstanding here.
    pub(crate) responder_resources: u8,
    /// READs and atomics that this side may have outstanding at the peer.
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) path_mtu: u8,
    pub(crate) traffic_class: u8,
    pub(crate) srq: bool,
}

/// The attributes that a listener made by `rdma_create_ep` gives to the queue pair of each
/// connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) init: ibv_qp_init_attr,
}

/// The state of an id that changes, under its lock.
#[derive(Debug, Default)]
pub(crate) struct IdState {
    pub(crate) stage: Stage,
    pub(crate) sync: bool,
    pub(crate) channel: Option<Arc<EventChannel>>,
    /// The index of the card; `None` if it is bound to all cards or none.
    pub(crate) card: Option<usize>,
    /// The addresses that the program sees.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) route: Option<Route>,
    /// The requested listener was announced on this machine.
    pub(crate) announced: bool,
    /// The port, held against the ids of other processes.
    pub(crate) port_lock: Option<Hold>,
    /// The names by which other processes find the listener.
    pub(crate) announcements: Vec<OwnedFd>,
    /// The port, if only this process knows it.
    pub(crate) own_port: Option<u16>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) listeners: Vec<(usize, ListenerId)>,
    /// Requests that wait at the listener, and their limit.
    pub(crate) waiting: usize,
    pub(crate) backlog: usize,
    pub(crate) sidr: Option<SidrId>,
    pub(crate) agreement: Agreement,
    pub(crate) tos: u8,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    /// Data that goes before the program's private data.
    pub(crate) connect_data: Vec<u8>,
    /// The record to which `route.path_rec` points.
    pub(crate) path: Option<Box<PathRecord>>,
    pub(crate) template: Option<Template>,
    pub(crate) groups: Vec<Group>,
    /// The library has made these for the program, and destroys them with the queue pair.
    pub(crate) own_send_cq: bool,
    pub(crate) own_recv_cq: bool,
    /// The request, kept in case it must be sent again with a smaller MTU.
    pub(crate) request: Option<Request>,
    /// What `rdma_resolve_addrinfo` looks up.
    pub(crate) lookup: Lookup,
}

/// A path record that a program may point to.
#[derive(Debug)]
pub(crate) struct PathRecord(pub(crate) ibv_sa_path_rec);

// SAFETY: the pointers are handles, which each call looks up before it uses them.
unsafe impl Send for Template {}

/// A request for a connection, kept to be sent again.
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
    /// The queue pair is attached; otherwise it only sends to the group.
    pub(super) receives: bool,
    /// The handle of the queue pair that was attached.
    pub(super) attached: usize,
}
