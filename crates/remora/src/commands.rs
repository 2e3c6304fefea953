//! The card's slow commands, as one list: what an object of the card is made, changed, asked and
//! destroyed by.
//!
//! The embedded card carries them out itself ([`own`](crate::own)). The card of another process is
//! commanded by the same list over a socket: [`Command`] is a command as a value, which a client
//! encodes and a daemon gives to [`dispatch`]. What is fast (posting, polling, arming) is not here.
//!
//! Handles and numbers are the card's own. Memory is named by [`Place`], never by a bus address:
//! the card's owner makes those.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::words::*;

/// The types that commands speak of, for those who carry all of them out.
pub(crate) mod words {
    pub(crate) use std::net::IpAddr;

    pub(crate) use remora_nic::cm::message::RejectReason;
    pub(crate) use remora_nic::cm::service::ServiceId;
    pub(crate) use remora_nic::cm::{
        AcceptParams, AddressScope, CmCounters, CommandError, ConnId, ConnState, ConnectError,
        ConnectRequest, ListenError, ListenerId, ResolveError, ResolveRequest, SidrAnswer,
        SidrError, SidrId,
    };
    pub(crate) use remora_nic::kernel::Bound;
    pub(crate) use remora_nic::nic::{
        BindError, CallError, InUse, McastError, ResizeSrqError, SrqInfo, StructureUse,
    };
    pub(crate) use remora_nic::qp::{ModifyQpError, QpAttr};
    pub(crate) use remora_nic::queue::{Moderation, PollCqError, ResizeCqError, RingInit};
    pub(crate) use remora_nic::{
        Access, ChainError, ChainLimits, ChainStep, Config, Counters, CreateError, DestroyError,
        Key, MemoryFault, MwType, Path, Pd, Psn, QpInfo, QpInit, RegMrError, Xrcd,
    };

    pub(crate) use crate::multicast::refusal::JoinError;
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// Memory of this process, from this address on.
    Process(u64),
    /// Memory of this process of which parts may not be mapped. An access to those fails.
    Checked(u64),
    /// A file that was given to the card
    /// ([`register_file`](crate::ProtectionDomain::register_file)), from its beginning.
    File(u64),
    /// The card's own memory, from this address on ([`Commands::alloc_dm`]).
    Device(u64),
    /// The memory that a client shares with the card of another process, from this offset on.
    Arena(u64),
    /// Memory that a client has lent to the card of another process.
    Lent {
        /// The number that the card's process has given it.
        number: u32,
        /// Where in it the bytes begin.
        offset: u64,
    },
}

/// Bytes to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bytes {
    /// Where they are.
    pub place: Place,
    /// The address that work requests and peers use for the first one.
    pub iova: u64,
    /// How many there are.
    pub len: u64,
}

/// The changes to a region (`ibv_rereg_mr`). `None` leaves a property unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Change {
    /// Another protection domain.
    pub pd: Option<Pd>,
    /// What the card and its peers may do.
    pub access: Option<Access>,
    /// Other bytes, or other addresses for them.
    pub bytes: Option<Bytes>,
}

/// A queue pair that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpMade {
    /// Its number.
    pub qpn: u32,
    /// A random first PSN for its connection.
    pub psn: Psn,
    /// The ring of its send queue. The card's owner keeps the memory until the queue pair is
    /// destroyed.
    pub sq: RingInit,
    /// The ring of its receive queue.
    pub rq: RingInit,
}

/// A shared receive queue that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SrqMade {
    /// Its handle.
    pub srq: u32,
    /// Its ring. The card's owner keeps the memory until the queue is destroyed or resized.
    pub ring: RingInit,
}

/// What a card has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CardCounters {
    /// The card's counters.
    pub card: Counters,
    /// Those of its connection management.
    pub management: CmCounters,
}

/// What a command returns when the card's process has ended.
pub(crate) trait OrGone {
    /// The result.
    fn gone() -> Self;
}

impl<T> OrGone for Option<T> {
    fn gone() -> Self {
        None
    }
}

macro_rules! gone {
    ($($error:ty => $gone:expr),+ $(,)?) => {
        $(impl<T> OrGone for Result<T, $error> {
            fn gone() -> Self {
                Err($gone)
            }
        })+
    };
}

gone! {
    CreateError => CreateError::Gone,
    DestroyError => DestroyError::Gone,
    ResizeCqError => ResizeCqError::Gone,
    PollCqError => PollCqError::Gone,
    ModifyQpError => ModifyQpError::Gone,
    RegMrError => RegMrError::Gone,
    ResizeSrqError => ResizeSrqError::Gone,
    McastError => McastError::Gone,
    JoinError => JoinError::Card(McastError::Gone),
    ChainError => ChainError::Gone,
    BindError => BindError::Gone,
    CallError => CallError::Gone,
    ListenError => ListenError::Gone,
    ConnectError => ConnectError::Gone,
    CommandError => CommandError::Gone,
    ResolveError => ResolveError::Gone,
    SidrError => SidrError::Gone,
    MemoryFault => MemoryFault { addr: 0 },
}

macro_rules! gone_by_default {
    ($($result:ty),+ $(,)?) => {
        $(impl OrGone for $result {
            fn gone() -> Self {
                Self::default()
            }
        })+
    };
}

gone_by_default!((), bool, Config, InUse, CardCounters, Vec<StructureUse>);

/// A way to the card of another process: takes a command's bytes there, and brings its result's
/// back.
pub(crate) trait Wire {
    /// Carries a command out, and returns its result; `None` if the card's process has ended.
    fn call<R: DeserializeOwned>(&mut self, command: &Command<'_>) -> Option<R>;
}

/// A result as its bytes.
fn encode<R: Serialize>(result: &R) -> Vec<u8> {
    postcard::to_allocvec(result).expect("a vector has room for any result")
}

/// Gives the list of commands to the macro that is named: each command with its docs, its name,
/// its name as a value, its arguments and its result.
macro_rules! for_each_command {
    ($then:ident) => {
        $then! {
            // Domains, completion queues.

            /// Makes a protection domain.
            alloc_pd = AllocPd() -> Result<Pd, CreateError>;
            /// Destroys a protection domain, which must be empty.
            dealloc_pd = DeallocPd(pd: Pd) -> Result<(), DestroyError>;
            /// Makes a completion queue of `entries` entries.
            create_cq = CreateCq(entries: usize) -> Result<u32, CreateError>;
            /// Makes a completion queue that counts successes and keeps `errors` errors.
            create_counting_cq = CreateCountingCq(errors: usize) -> Result<u32, CreateError>;
            /// Destroys a completion queue, which no queue may use.
            destroy_cq = DestroyCq(cq: u32) -> Result<(), DestroyError>;
            /// Changes how many entries a completion queue holds.
            resize_cq = ResizeCq(cq: u32, entries: usize) -> Result<(), ResizeCqError>;
            /// Sets how often an armed completion queue tells of entries.
            modify_cq = ModifyCq(cq: u32, moderation: Moderation) -> Result<(), PollCqError>;
            /// How many successes a completion queue has had.
            cq_count = CqCount(cq: u32) -> Option<u64>;

            // Queue pairs.

            /// Makes a queue pair, in RESET, with rings of the depths and strides in `init`. (The
            /// rings' addresses in it mean nothing.)
            create_qp = CreateQp(init: QpInit) -> Result<QpMade, CreateError>;
            /// Changes a queue pair's attributes and state. What the queue pair owes leaves before
            /// it is reset.
            modify_qp = ModifyQp(qpn: u32, attr: QpAttr) -> Result<(), ModifyQpError>;
            /// A queue pair's state and attributes; `None` if there is no such queue pair.
            query_qp = QueryQp(qpn: u32) -> Option<QpInfo>;
            /// Destroys a queue pair, which must not be attached to a multicast group. What it owes
            /// leaves before.
            destroy_qp = DestroyQp(qpn: u32) -> Result<(), DestroyError>;
            /// Attaches a datagram queue pair to a multicast group.
            attach_mcast = AttachMcast(qpn: u32, group: IpAddr) -> Result<(), JoinError>;
            /// Ends what [`Commands::attach_mcast`] began.
            detach_mcast = DetachMcast(qpn: u32, group: IpAddr) -> Result<(), McastError>;
            /// Detaches a queue pair from all its multicast groups.
            detach_all = DetachAll(qpn: u32) -> ();
            /// Sends all that is owed.
            settle = Settle() -> ();

            // Shared receive queues and XRC.

            /// Makes a shared receive queue with a ring of the depth and stride in `ring`.
            create_srq = CreateSrq(pd: Pd, ring: RingInit) -> Result<SrqMade, CreateError>;
            /// Makes one for XRC requests, which report to `cq`.
            create_xrc_srq = CreateXrcSrq(pd: Pd, xrcd: Xrcd, cq: u32, ring: RingInit)
                -> Result<SrqMade, CreateError>;
            /// Gives a shared receive queue a ring of another depth; returns the new ring.
            resize_srq = ResizeSrq(srq: u32, ring: RingInit) -> Result<RingInit, ResizeSrqError>;
            /// Asks for an event when fewer than `limit` elements are left.
            arm_srq = ArmSrq(srq: u32, limit: u32) -> Result<(), DestroyError>;
            /// A shared receive queue's properties.
            query_srq = QuerySrq(srq: u32) -> Option<SrqInfo>;
            /// The number by which XRC requests name a shared receive queue.
            srq_number = SrqNumber(srq: u32) -> Option<u32>;
            /// Destroys a shared receive queue, which no queue pair may use.
            destroy_srq = DestroySrq(srq: u32) -> Result<(), DestroyError>;
            /// Makes an XRC domain.
            alloc_xrcd = AllocXrcd() -> Result<Xrcd, CreateError>;
            /// Destroys an XRC domain, which must be empty.
            dealloc_xrcd = DeallocXrcd(xrcd: Xrcd) -> Result<(), DestroyError>;
            /// Makes a receiving XRC queue pair; returns its number.
            create_xrc_target = CreateXrcTarget(xrcd: Xrcd) -> Result<u32, CreateError>;
            /// Makes this client a holder of a receiving XRC queue pair that another one has made
            /// in a domain of both. It lives until all its holders have destroyed it.
            open_xrc_target = OpenXrcTarget(xrcd: Xrcd, qpn: u32) -> Result<(), CreateError>;

            // Memory.

            /// Is there such a protection domain?
            has_pd = HasPd(pd: Pd) -> bool;
            /// The first address and the length of a region of the domain.
            mr_range = MrRange(pd: Pd, key: Key) -> Option<(u64, u64)>;
            /// Where the piece of the card's own memory begins that holds this address, and its
            /// length.
            dm_piece = DmPiece(addr: u64) -> Option<(u64, u64)>;
            /// Registers memory.
            reg_mr = RegMr(pd: Pd, bytes: Bytes, access: Access) -> Result<Key, RegMrError>;
            /// Changes a region; returns its new key.
            rereg_mr = ReregMr(key: Key, change: Change) -> Result<Key, RegMrError>;
            /// Registers a null region: reads give zeroes, writes are discarded.
            alloc_null_mr = AllocNullMr(pd: Pd) -> Result<Key, RegMrError>;
            /// Deregisters a region, to which no window may be bound.
            dereg_mr = DeregMr(key: Key) -> Result<(), DestroyError>;
            /// Makes a memory window.
            alloc_mw = AllocMw(pd: Pd, kind: MwType) -> Result<Key, RegMrError>;
            /// Destroys a memory window.
            dealloc_mw = DeallocMw(key: Key) -> Result<(), DestroyError>;
            /// Takes `len` bytes of the card's own memory; returns their address.
            alloc_dm = AllocDm(len: u64) -> Result<u64, CreateError>;
            /// Gives a piece of the card's own memory back.
            free_dm = FreeDm(addr: u64) -> Result<(), DestroyError>;
            /// Reads `len` bytes of the card's own memory, at most [`DM_COPY_MAX`].
            read_dm = ReadDm(addr: u64, len: usize) -> Result<Vec<u8>, MemoryFault>;
            /// Writes to the card's own memory.
            write_dm = WriteDm(addr: u64, data: &'a [u8]) -> Result<(), MemoryFault>;
            /// Makes an address handle.
            create_ah = CreateAh(pd: Pd, path: Path) -> Result<u32, CreateError>;
            /// Destroys an address handle.
            destroy_ah = DestroyAh(ah: u32) -> Result<(), DestroyError>;

            // Chains and kernels.

            /// Connects two fresh queue pairs of the card to each other.
            loop_back = LoopBack(a: u32, b: u32, access: Access) -> Result<(), ChainError>;
            /// Sets the limits of a send queue.
            set_chain_limits = SetChainLimits(qpn: u32, limits: ChainLimits)
                -> Result<(), ChainError>;
            /// Makes a budget of `elements` elements.
            create_budget = CreateBudget(elements: u64) -> Result<u32, CreateError>;
            /// Fills a budget.
            refill_budget = RefillBudget(budget: u32) -> Result<(), ChainError>;
            /// Destroys a budget, which no queue pair may have.
            destroy_budget = DestroyBudget(budget: u32) -> Result<(), DestroyError>;
            /// Keeps the last `most` steps of chains.
            trace_chains = TraceChains(most: usize) -> ();
            /// The next of the steps of chains that were kept.
            poll_chain_step = PollChainStep() -> Option<ChainStep>;
            /// Binds a kernel, by its number, to a stream.
            bind_kernel = BindKernel(to: Bound, tap: u32) -> Result<(), BindError>;
            /// Unbinds what is bound to a stream; returns the kernel's number.
            unbind_kernel = UnbindKernel(from: Bound) -> Result<u32, BindError>;
            /// The number of the kernel that is bound to a stream.
            bound_kernel = BoundKernel(to: Bound) -> Option<u32>;
            /// Invokes a kernel from its own host.
            call_kernel = CallKernel(qpn: u32, opcode: u64, call: &'a [u8])
                -> Result<(), CallError>;

            // Connection management.

            /// Listens for a service at the addresses of `scope`.
            listen = Listen(service: ServiceId, scope: AddressScope)
                -> Result<ListenerId, ListenError>;
            /// Ends a listener; returns whether there was one.
            unlisten = Unlisten(listener: ListenerId) -> bool;
            /// Asks a peer for a connection.
            connect = Connect(#[serde(borrow)] request: ConnectRequest<'a>)
                -> Result<ConnId, ConnectError>;
            /// Accepts a request.
            accept = Accept(conn: ConnId, #[serde(borrow)] params: AcceptParams<'a>)
                -> Result<(), CommandError>;
            /// Active side: tells the peer that the queue pair is ready.
            establish = Establish(conn: ConnId, data: &'a [u8]) -> Result<(), CommandError>;
            /// Passive side: a packet has come, so the peer is ready.
            notify_established = NotifyEstablished(conn: ConnId) -> Result<(), CommandError>;
            /// Refuses a request or a reply.
            reject = Reject(conn: ConnId, reason: RejectReason, data: &'a [u8])
                -> Result<(), CommandError>;
            /// Asks the peer for more time.
            mra = Mra(conn: ConnId, service_timeout: u8) -> Result<(), CommandError>;
            /// Ends a connection.
            disconnect = Disconnect(conn: ConnId, data: &'a [u8]) -> Result<(), CommandError>;
            /// Agrees that the peer ends a connection.
            disconnect_reply = DisconnectReply(conn: ConnId, data: &'a [u8])
                -> Result<(), CommandError>;
            /// Gives a connection's id back, in any state.
            destroy_connection = DestroyConnection(conn: ConnId) -> Result<(), CommandError>;
            /// A connection's state; `None` if there is no such connection.
            connection_state = ConnectionState(conn: ConnId) -> Option<ConnState>;
            /// Asks a peer which queue pair speaks for a datagram service.
            resolve_sidr = ResolveSidr(#[serde(borrow)] request: ResolveRequest<'a>)
                -> Result<SidrId, ResolveError>;
            /// Answers a peer's resolution.
            sidr_reply = SidrReply(sidr: SidrId, #[serde(borrow)] answer: SidrAnswer<'a>)
                -> Result<(), SidrError>;
            /// Gives up a resolution that this side began.
            cancel_sidr = CancelSidr(sidr: SidrId) -> Result<(), SidrError>;

            // The card as a whole.

            /// The card's settings and limits.
            config = ConfigNow() -> Config;
            /// How many objects are in use.
            in_use = InUseNow() -> InUse;
            /// What has happened so far.
            card_counters = CountersNow() -> CardCounters;
            /// What each structure takes of memory.
            memory_use = MemoryUse() -> Vec<StructureUse>;
        }
    };
}

/// The most bytes of a [`Commands::read_dm`].
pub const DM_COPY_MAX: usize = 4096;

macro_rules! declare {
    ($(
        $(#[$doc:meta])+
        $name:ident = $variant:ident($($(#[$serde:meta])? $arg:ident: $type:ty),*) -> $result:ty;
    )+) => {
        /// The slow commands of a card, in the words of verbs. A command that fails has changed
        /// nothing.
        #[allow(clippy::extra_unused_lifetimes, reason = "one form does for all commands")]
        pub trait Commands {
            $(
                $(#[$doc])+
                fn $name<'a>(&mut self, $($arg: $type),*) -> $result;
            )+
        }

        /// A command as a value.
        #[derive(Clone, Debug, Serialize, Deserialize)]
                pub(crate) enum Command<'a> {
            $($variant { $($(#[$serde])? $arg: $type),* },)+
        }

        /// Carries a command out; returns the bytes of its result.
                pub(crate) fn dispatch(card: &mut dyn Commands, command: Command<'_>) -> Vec<u8> {
            match command {
                $(Command::$variant { $($arg),* } => encode(&card.$name($($arg),*)),)+
            }
        }

        #[cfg(test)]
        #[allow(clippy::extra_unused_lifetimes, reason = "one form does for all commands")]
        impl<W: Wire> Commands for Stubs<W> {
            $(
                fn $name<'a>(&mut self, $($arg: $type),*) -> $result {
                    let command = Command::$variant { $($arg),* };
                    self.0.call(&command).unwrap_or_else(<$result as OrGone>::gone)
                }
            )+
        }
    };
}

/// The commands of a card behind a wire, as they are.
#[cfg(test)]
pub(crate) struct Stubs<W>(pub(crate) W);

for_each_command!(declare);

#[cfg(test)]
mod tests {
    use remora_nic::queue::RingInit;
    use remora_nic::wire::Transport;
    use remora_nic::{QpFlags, Queue};

    use super::*;
    use crate::{Device, DeviceOptions};

    /// A card in this process, as if it were in another one; or none, if it has ended.
    struct Loop(Option<Device>);

    impl Wire for Loop {
        fn call<R: DeserializeOwned>(&mut self, command: &Command<'_>) -> Option<R> {
            let device = self.0.as_ref()?;
            let sent = encode(command);
            let command = postcard::from_bytes(&sent).unwrap();
            let reply = dispatch(&mut *device.live.lock(), command);
            Some(postcard::from_bytes(&reply).unwrap())
        }
    }

    fn init(pd: Pd, cq: u32) -> QpInit {
        let ring = RingInit { addr: 0, depth: 8, stride: 64 };
        QpInit {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq: ring,
            rq: ring,
            signal_all: false,
            flags: QpFlags::empty(),
            client: 0,
        }
    }

    #[test]
    fn commands_and_their_results_cross_a_wire() {
        let device = DeviceOptions::new().embedded().open().unwrap();
        let mut card = Stubs(Loop(Some(device.clone())));
        let (pd, cq) = (card.alloc_pd().unwrap(), card.create_cq(4).unwrap());
        let made = card.create_qp(init(pd, cq)).unwrap();
        assert_eq!(card.in_use(), device.in_use());
        assert_eq!(made.rq.addr, made.sq.addr + 8 * 64);
        assert_eq!(card.query_qp(made.qpn).unwrap().depths, (8, 8));
        card.loop_back(made.qpn, made.qpn, Access::all()).unwrap();
        let element = device.live.lock().next_index(made.qpn, Queue::Send);
        assert_eq!(element, Some(0));

        // Errors, with what they name.
        let busy = Err(DestroyError::Busy { users: 2 });
        assert_eq!(card.destroy_cq(cq), busy);
        let wrong = QpAttr { retry_cnt: Some(9), ..QpAttr::default() };
        assert_eq!(card.modify_qp(made.qpn, wrong), Err(ModifyQpError::Range("retry_cnt")));
        let group = "10.0.0.1".parse().unwrap();
        assert!(matches!(card.attach_mcast(made.qpn, group), Err(JoinError::Card(_))));

        // What borrows bytes.
        let dm = card.alloc_dm(64).unwrap();
        card.write_dm(dm + 8, b"hello").unwrap();
        assert_eq!(card.read_dm(dm + 8, 5).unwrap(), b"hello");
        assert!(card.read_dm(dm, DM_COPY_MAX + 1).is_err());
        card.free_dm(dm).unwrap();
        assert!(card.write_dm(u64::MAX, b"x").is_err());

        card.destroy_qp(made.qpn).unwrap();
        assert!(device.live.lock().own().rings.is_empty());
        card.destroy_cq(cq).unwrap();
        card.dealloc_pd(pd).unwrap();
    }

    #[test]
    fn a_card_that_has_gone_refuses() {
        let mut card = Stubs(Loop(None));
        assert_eq!(card.alloc_pd(), Err(CreateError::Gone));
        assert_eq!(card.destroy_cq(1), Err(DestroyError::Gone));
        assert!(card.query_qp(1).is_none());
        assert_eq!(card.in_use(), InUse::default());
    }
}
