//! The state behind each handle. The calls of a kind of object are in the file of its name.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::nic;
use remora::nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Sge};
use remora::raw::EventQueue;

use super::Errno;
use super::gate::Gate;
use super::qp_attr::Service;
use crate::abi::*;
use crate::card::ListedCard;
use crate::handles::{self, Object, Slot};

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// The card.
    pub card: &'static ListedCard,
    /// The events that `async_fd` reports.
    pub events: Events,
    /// The descriptor by which another process's device was imported.
    pub(crate) imported: Option<OwnedFd>,
    /// The number of objects made on it, plus [`CLOSED`] once it is closed.
    pub(super) users: AtomicUsize,
}

/// The object that an asynchronous event is about.
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
    /// The object that it happened to.
    pub subject: Subject,
}

/// The asynchronous events of a context.
pub type Events = EventQueue<AsyncEvent>;

/// Completion queues that have received an entry.
pub(crate) type ChannelEvents = Arc<EventQueue<&'static Slot<Cq>>>;

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// Its events.
    pub(crate) events: ChannelEvents,
    /// The number of completion queues that report to it.
    pub(crate) users: AtomicUsize,
}

/// A completion queue, extended or not.
pub struct Cq {
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// The card's number for it.
    pub number: u32,
    /// The channel to which it reports entries.
    pub(crate) channel: Option<&'static Slot<CompletionChannel>>,
    /// The events of that channel, for the card's callback.
    pub(crate) channel_events: Option<ChannelEvents>,
    /// The number of completion events that the program has fetched.
    pub(crate) comp_got: AtomicU32,
    /// The number of asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) gate: Gate,
    /// The program promises to poll from one thread only, so the gate is not needed.
    pub(crate) single_threaded: bool,
    /// The completion at which an extended poll stands. Only the holder of the gate may access it.
    pub(crate) current: UnsafeCell<Completion>,
}

// SAFETY: only the holder of the gate, or the one thread that polls, accesses `current`.
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
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// The card's number for it.
    pub pd: nic::Pd,
    /// The parts of a parent domain.
    pub parent: Option<Parent>,
    /// The number of objects made on this handle.
    pub(crate) users: AtomicUsize,
}

/// The parts of a parent domain.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// The protection domain that it stands for.
    pub whole: &'static Slot<Pd>,
    /// Its thread domain.
    pub td: Option<&'static Slot<Td>>,
}

impl Pd {
    /// Counts an object that is made on the domain.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an object of the domain as gone.
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
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// The number of parent domains that name it.
    pub(super) users: AtomicUsize,
}

impl Object for Td {
    type C = ibv_td;
    const KIND: handles::Kind = handles::Kind::Td;
}

impl Td {
    /// Counts a parent domain that names it as gone.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// Its protection domain.
    pub pd: &'static Slot<Pd>,
    /// The XRC domain whose peers may name it.
    pub(super) xrcd: Option<&'static Slot<Xrcd>>,
    /// The card's number for it.
    pub number: u32,
    /// The most scatter/gather entries of a request.
    pub(crate) max_sge: u32,
    /// The number of asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
}

impl Object for Srq {
    type C = ibv_srq;
    const KIND: handles::Kind = handles::Kind::Srq;
}

/// An opened XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The context on which it was opened.
    pub context: &'static Slot<Context>,
    /// The domain itself.
    pub(crate) domain: Arc<Domain>,
    /// The number of shared receive queues and queue pairs made with this handle.
    pub(super) users: AtomicUsize,
}

impl Object for Xrcd {
    type C = ibv_xrcd;
    const KIND: handles::Kind = handles::Kind::Xrcd;
}

impl Xrcd {
    /// Counts an object that is made with the handle.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an object of the handle as gone.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An XRC domain on a card.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) xrcd: nic::Xrcd,
    /// The card's index in the list of devices.
    pub(super) card: usize,
    pub(super) file: Option<File>,
}

/// The identity of a file: device and inode.
pub(super) type File = (u64, u64);

/// A queue pair.
pub struct Qp {
    /// The context on which it was made.
    pub context: &'static Slot<Context>,
    /// Its protection domain; a receiving XRC queue pair has none.
    pub pd: Option<&'static Slot<Pd>>,
    /// The XRC domain of a receiving XRC queue pair.
    pub(crate) xrcd: Option<&'static Slot<Xrcd>>,
    /// The card's number for it, which is also the one on the wire.
    pub number: u32,
    /// The number of multicast groups that it is attached to.
    pub groups: AtomicU32,
    pub(crate) service: Service,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) takes_no_receives: bool,
    pub(super) signal_all: bool,
    /// The attributes that the program has set, for `ibv_query_qp`. They are locked only by a
    /// thread that has the card, so that a forked child finds them open.
    pub(super) kept: Mutex<ibv_qp_attr>,
    pub(super) qkey: AtomicU32,
    pub(super) tells_drained: AtomicBool,
    /// The address handle of the last datagram.
    pub(super) last_ah: AtomicPtr<ibv_ah>,
    /// The number of asynchronous events that the program has fetched.
    pub(crate) async_got: AtomicU32,
    /// The requests that `ibv_wr_*` functions of the object may make.
    pub(crate) send_ops: u64,
    /// Held from `ibv_wr_start` to `ibv_wr_complete`.
    pub(crate) gate: Gate,
    /// The requests made between these two. Only the holder of the gate may access them.
    pub(crate) batch: UnsafeCell<Batch>,
}

// SAFETY: only the holder of the gate accesses `batch`.
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
    /// A queue pair without queues or attributes.
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
            last_ah: AtomicPtr::default(),
            async_got: AtomicU32::new(0),
            send_ops: 0,
            gate: Gate::default(),
            batch: UnsafeCell::default(),
        }
    }

    /// The most inline bytes of a request.
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.cap.max_inline_data as usize
    }

    /// The key of datagrams that do not name one.
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Has the program asked for an event when the send queue is drained?
    pub(crate) fn tells_drained(&self) -> bool {
        self.tells_drained.load(Ordering::Relaxed)
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, ibv_qp_attr> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot<Qp> {
    /// The program's handle of it.
    pub fn handle(&self) -> *mut ibv_qp {
        self.c().cast()
    }
}

/// The requests made between `ibv_wr_start` and `ibv_wr_complete`.
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
    /// The shared receive queue of an XRC peer that receives it.
    pub(super) srqn: u32,
    /// The start and the number of its entries, or of its inline bytes.
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

impl Object for CompletionChannel {
    type C = ibv_comp_channel;
    const KIND: handles::Kind = handles::Kind::Channel;
}
