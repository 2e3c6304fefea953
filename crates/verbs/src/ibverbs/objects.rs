//! What stands behind each handle. The calls of a kind of object are in the file of its name.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::memory::Buffer;
use remora::nic;
use remora::nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Sge};

use super::Errno;
use super::event_queue::EventQueue;
use super::gate::Gate;
use super::qp_attr::Service;
use crate::abi::*;
use crate::card::Card;
use crate::handles::{self, Object, Slot};

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// The card.
    pub card: &'static Card,
    /// What `async_fd` stands for.
    pub events: Events,
    /// How many objects belong to it, and [`CLOSED`].
    pub(super) users: AtomicUsize,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy)]
pub enum Subject {
    /// A completion queue.
    Cq(&'static Slot<Cq>),
    /// A queue pair.
    Qp(&'static Slot<Qp>),
    /// A shared receive queue.
    Srq(&'static Slot<Srq>),
    /// The port.
    Port(c_int),
}

/// An event that waits to be fetched.
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    /// What happened.
    pub event_type: ibv_event_type,
    /// To what.
    pub subject: Subject,
}

/// The asynchronous events of a context.
pub type Events = EventQueue<AsyncEvent>;

/// Completion queues that have got an entry.
pub(crate) type ChannelEvents = Arc<EventQueue<&'static Slot<Cq>>>;

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// What it has to tell.
    pub(crate) events: ChannelEvents,
    /// Completion queues that tell of entries here.
    pub(crate) users: AtomicUsize,
}

/// A completion queue, extended or not.
pub struct Cq {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// The card's number for it.
    pub number: u32,
    /// Where it tells of entries.
    pub(crate) channel: Option<&'static Slot<Channel>>,
    /// The same, for the card's events.
    pub(crate) channel_events: Option<ChannelEvents>,
    /// Completion events that the program has fetched.
    pub(crate) comp_got: AtomicU32,
    /// Asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) gate: Gate,
    /// One thread only polls it, by the program's promise: nobody needs the gate.
    pub(crate) single_threaded: bool,
    /// The completion that an extended poll stands at. Whoever holds the gate may reach it.
    pub(crate) current: UnsafeCell<Completion>,
}

// SAFETY: `current` is reached by who holds the gate only, or by the one thread that polls.
unsafe impl Sync for Cq {}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Object for Cq {
    type C = ibv_cq_ex;
    const KIND: handles::Kind = handles::Kind::Cq;
}

/// A protection domain, or a parent domain, which stands for one.
#[derive(Debug)]
pub struct Pd {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// The card's number for it.
    pub pd: nic::Pd,
    /// What a parent domain is made of.
    pub parent: Option<Parent>,
    /// How many objects were made on this handle.
    pub(crate) users: AtomicUsize,
}

/// What a parent domain is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// The domain that it stands for.
    pub whole: &'static Slot<Pd>,
    /// The threads that use it.
    pub td: Option<&'static Slot<Td>>,
}

impl Pd {
    /// An object was made on the domain.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// An object of the domain is gone.
    pub fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Object for Pd {
    type C = ibv_pd;
    const KIND: handles::Kind = handles::Kind::Pd;
}

/// A thread domain.
#[derive(Debug)]
pub struct Td {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// Parent domains that name it.
    pub(super) users: AtomicUsize,
}

impl Object for Td {
    type C = ibv_td;
    const KIND: handles::Kind = handles::Kind::Td;
}

impl Td {
    /// A parent domain that names it is gone.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// Where its memory is.
    pub pd: &'static Slot<Pd>,
    /// The XRC domain whose peers may name it.
    pub(super) xrcd: Option<&'static Slot<Xrcd>>,
    /// The card's number for it.
    pub number: u32,
    /// Entries of a request.
    pub(crate) max_sge: u32,
    /// Asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
    /// Kept until the queue is gone from the card, which reads it.
    pub(super) ring: Mutex<Buffer>,
}

impl Object for Srq {
    type C = ibv_srq;
    const KIND: handles::Kind = handles::Kind::Srq;
}

/// An opened XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// The domain itself.
    pub(crate) domain: Arc<Domain>,
    /// Shared receive queues and queue pairs made with this handle.
    pub(super) users: AtomicUsize,
}

impl Object for Xrcd {
    type C = ibv_xrcd;
    const KIND: handles::Kind = handles::Kind::Xrcd;
}

impl Xrcd {
    /// An object was made with the handle.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Such an object is gone.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An XRC domain on a card.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) xrcd: nic::Xrcd,
    /// The card's place in the list.
    pub(super) card: usize,
    pub(super) file: Option<File>,
}

/// What names a file: device and inode.
pub(super) type File = (u64, u64);

/// A queue pair.
pub struct Qp {
    /// Whose it is.
    pub context: &'static Slot<Context>,
    /// Where its memory is; a receiving XRC queue pair has none.
    pub pd: Option<&'static Slot<Pd>>,
    /// The XRC domain of a receiving one.
    pub(crate) xrcd: Option<&'static Slot<Xrcd>>,
    /// The card's number for it, which is also the one on the wire.
    pub number: u32,
    /// Multicast groups that it is attached to.
    pub groups: AtomicU32,
    pub(crate) service: Service,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) takes_no_receives: bool,
    pub(super) signal_all: bool,
    /// What a program has set, for `ibv_query_qp`.
    pub(super) kept: Mutex<ibv_qp_attr>,
    pub(super) qkey: AtomicU32,
    pub(super) tells_drained: AtomicBool,
    /// Asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
    /// Which requests may be made by functions in the object.
    pub(crate) send_ops: u64,
    /// Held from `ibv_wr_start` to `ibv_wr_complete`.
    pub(crate) gate: Gate,
    /// What was made between these. Whoever holds the gate may reach it.
    pub(crate) batch: UnsafeCell<Batch>,
    /// Kept until the queue pair is gone from the card, which reads it.
    pub(super) _rings: Option<Buffer>,
}

// SAFETY: `batch` is reached by who holds the gate only.
unsafe impl Sync for Qp {}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Object for Qp {
    type C = newer::ibv_qp_ex_v46;
    const KIND: handles::Kind = handles::Kind::Qp;
}

impl Qp {
    /// One that has and can nothing yet.
    pub(super) fn bare(context: &'static Slot<Context>, number: u32, service: Service) -> Qp {
        Qp {
            context,
            pd: None,
            xrcd: None,
            number,
            groups: AtomicU32::new(0),
            service,
            cap: ibv_qp_cap::zeroed(),
            takes_no_receives: false,
            signal_all: false,
            kept: Mutex::new(ibv_qp_attr::zeroed()),
            qkey: AtomicU32::new(0),
            tells_drained: AtomicBool::new(false),
            async_got: AtomicU32::new(0),
            send_ops: 0,
            gate: Gate::default(),
            batch: UnsafeCell::default(),
            _rings: None,
        }
    }

    /// Inline bytes that a request may have.
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.cap.max_inline_data as usize
    }

    /// The key of datagrams that name none.
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Has the program asked to be told when the send queue is drained?
    pub(crate) fn tells_drained(&self) -> bool {
        self.tells_drained.load(Ordering::Relaxed)
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, ibv_qp_attr> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot<Qp> {
    /// The handle that programs have of it.
    pub fn handle(&self) -> *mut ibv_qp {
        self.c().cast()
    }
}

/// Requests between start and end.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) works: Vec<Work>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
    pub(super) error: Option<Errno>,
}

/// A request of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) inline: bool,
    /// Where an XRC peer receives it.
    pub(super) srqn: u32,
    /// Where its entries, or its bytes, begin, and how many there are.
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.works.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    pub(super) fn request(&self, work: &Work) -> SendRequest<'_> {
        let range = work.start..work.start + work.len;
        let data = if work.inline {
            Data::Inline(self.inline.get(range).unwrap_or_default())
        } else {
            Data::Sges(self.sges.get(range).unwrap_or_default())
        };
        SendRequest { wr_id: work.wr_id, op: work.op, data, flags: work.flags }
    }
}

impl Object for Context {
    type C = verbs_context;
    const KIND: handles::Kind = handles::Kind::Context;
}

impl Object for Channel {
    type C = ibv_comp_channel;
    const KIND: handles::Kind = handles::Kind::Channel;
}
