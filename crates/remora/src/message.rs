//! What a client and the daemon say to each other over a Unix socket.
//!
//! One message is one packet: a request, and one answer to it. The first request is [`Hello`], in a
//! form that every version can read ([`greeting`]), and so is the answer to one of another version
//! (`of_other_version`); all others are [`ClientRequest`]s. A
//! [`Farewell`](Answer::Farewell) comes unasked, in the place of an answer or behind the last one, and
//! ends the session.
//!
//! `socket.rs` sends messages and the descriptors that go with them; `place.rs` knows where a
//! daemon listens, `keep.rs` whether the environment wants a session kept, and `ticket.rs` is what
//! entitles to one.

mod description;
mod dma;
mod keep;
mod kernels;
mod place;
mod sharing;
mod socket;
mod ticket;

use std::net::IpAddr;

use remora_nic::cm::{ConnId, ListenerId, SidrId};
use remora_nic::{Access, Key, Pd, RateLimits, Xrcd};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::impair::ImpairCounters;
use crate::text::printable;

pub use description::Description;
pub use dma::{DmaAnswer, DmaChannelRow, DmaClientStatus, DmaRequest};
pub(crate) use keep::session_name;
pub use keep::{ANEW_VARIABLE, BadKeep, KEEP_VARIABLE, Kept};
pub use kernels::{Code, GRANTS_MAX, KERNEL_NAME_MAX, KernelAnswer, KernelRequest, KernelRow};
pub use place::{DaemonPlace, SOCKET_VARIABLE, place};
pub(crate) use place::{PCI_DEVICES, is_ivshmem, user_socket};
pub(crate) use sharing::Opened;
pub use sharing::{Join, Letter, OpenXrcd, XrcdError};
pub use socket::{DESCRIPTORS_MAX, MESSAGE_MAX, MessageSocket};
pub use ticket::{BadTicket, Ticket};

/// The version of everything in this folder, of the arena's layout, and of the engines' rings. Both
/// ends must be of one.
pub const VERSION: u16 = 13;
/// How a daemon ends its refusal of a user as such: it serves others only.
pub(crate) const SERVES_OTHERS: &str = "may not attach: the daemon’s policy says so";
/// What a greeting begins with.
const MAGIC: [u8; 4] = *b"RMRA";
/// The longest name of a session, in bytes.
pub const NAME_MAX: usize = 64;

/// Can a session be called so? People see its name and type it, so a terminal must show each
/// character as itself.
pub(crate) fn is_session_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && printable(name) == name
}

/// The first request: a client wants a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    /// What the session is called, for people, and to take it over later. `None`: the program's
    /// name and process number.
    pub name: Option<String>,
    /// The token of the session of this name, to take it over.
    pub token: Option<SessionToken>,
    /// A session of this name that a program of the user has left ends first.
    pub anew: bool,
    /// The session of another process, to use it beside its client.
    pub join: Option<Join>,
    /// What becomes of the session when its client ends.
    pub keep: Keep,
    /// The session does not use the card: it asks, or commands the daemon (`remora nic status`).
    pub observer: bool,
}

/// A secret that entitles to a session.
pub type SessionToken = [u8; 16];

/// How long a session outlives its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Keep {
    /// Not at all: everything of it is destroyed.
    #[default]
    No,
    /// So many seconds, unless another client takes it over.
    Seconds(u32),
    /// As long as the daemon.
    Forever,
}

/// The answer to a [`Hello`]. With it come descriptors: the arena, the event that is the daemon's
/// doorbell, and the socket by which the client is woken. (An observer gets none.)
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The number of the session.
    pub session: u32,
    /// Entitles to take the session over.
    pub token: SessionToken,
    /// Entitles to use the session beside its client: see [`Join`].
    pub share: SessionToken,
    /// How many clients the session has had, this one included.
    pub epoch: u32,
    /// What the session may use.
    pub quotas: Quotas,
    /// The card.
    pub card: CardInfo,
    /// Nanoseconds on the system's monotonic clock at which the card's time was zero.
    pub clock_start_ns: u64,
    /// The card's time, in nanoseconds: for a client in a virtual machine, whose clock is another.
    pub now_ns: u64,
    /// What the session has already, if it was taken over: some of it, in an order of its own.
    pub objects: Vec<Object>,
    /// It has others behind those: see [`ClientRequest::Objects`].
    pub more: bool,
}

/// The daemon's card: see [`DeviceInfo`](crate::DeviceInfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CardInfo {
    /// Its address.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// The largest path MTU of its link, as its code ([`Mtu::code`](remora_nic::qp::Mtu::code)).
    pub mtu: u8,
    /// The daemon's user has named the address.
    pub is_named: bool,
}

/// What a session may use. Further requests are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quotas {
    /// Bytes of the arena: rings, completion queues and card memory.
    pub arena_bytes: u64,
    /// Bytes of memory that is lent or registered.
    pub memory_bytes: u64,
    /// Regions and windows.
    pub regions: u32,
    /// Pieces of memory that are lent: the daemon has a mapping or descriptors for each.
    pub loans: u32,
    /// Queue pairs, and shared receive queues.
    pub queue_pairs: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of all completion queues.
    pub entries: u64,
    /// Everything else that a session makes on the card: domains, address handles, listeners,
    /// connections, budgets, kernels.
    pub others: u32,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            arena_bytes: 1 << 30,
            memory_bytes: 1 << 40,
            regions: 65_536,
            loans: 1024,
            queue_pairs: 8_000,
            completion_queues: 8_000,
            entries: 1 << 22,
            others: 65_536,
        }
    }
}

/// Something that a session has made on the card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Object {
    /// A protection domain.
    Pd(Pd),
    /// A completion queue, by its handle.
    Cq(u32),
    /// A queue pair, by its number.
    Qp(u32),
    /// A shared receive queue, by its handle.
    Srq(u32),
    /// An XRC domain.
    Xrcd(Xrcd),
    /// A region, by its key.
    Mr(Key),
    /// A window, by its key without the low 8 bits, which change.
    Mw(Key),
    /// A piece of card memory, by its place in the arena.
    Dm(u64),
    /// An address handle.
    Ah(u32),
    /// A budget of chains.
    Budget(u32),
    /// A listener.
    Listener(ListenerId),
    /// A connection.
    Connection(ConnId),
    /// A resolution of a service's queue pair.
    Sidr(SidrId),
    /// Memory that the client lends, by its number.
    Lent(u32),
}

/// A request of an attached client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientRequest<'a> {
    /// A command on the card, encoded. Answer: [`Answer::Result`].
    Command(&'a [u8]),
    /// Lends memory to the card. Answer: [`Answer::Lent`].
    Lend(Loan),
    /// Takes lent memory back, to which no region refers any more. Answer: [`Answer::Done`].
    TakeBack(u32),
    /// Where a completion queue lies in the arena. Answer: [`Answer::CompletionQueue`].
    CompletionQueue(u32),
    /// How an object of the session was made, and where it lies: for a client that has taken the
    /// session over. Answer: [`Answer::Described`].
    Describe(Object),
    /// Asks for the session's objects behind this one, after [`Welcome::objects`]. Answer:
    /// [`Answer::Objects`].
    Objects(Object),
    /// Opens the XRC domain that a file names, whose descriptor comes along. Answer:
    /// [`Answer::Xrcd`].
    OpenXrcd(OpenXrcd),
    /// Changes what becomes of the session when its client ends. Answer: [`Answer::Done`].
    Keep(Keep),
    /// Asks for the sessions from this number on. Answer: [`Answer::Status`].
    Status(u32),
    /// Asks for the regions of a session, by its number, from this key on. Answer:
    /// [`Answer::Regions`].
    Regions(u32, Key),
    /// Asks which sessions have passes to whose memory. Answer: [`Answer::Passes`].
    Passes,
    /// Asks for the clients of the card's memory from this connection on. Answer:
    /// [`Answer::DmaClients`].
    DmaClients(u32),
    /// Ends the session of this name, or number. Answer: [`Answer::Done`].
    Evict(&'a str),
    /// Has the card do this to packets, as a bad network would. Answer: [`Answer::Done`].
    Impair(&'a str),
    /// Asks something of the card's kernels. Answer: [`Answer::Kernel`].
    Kernel(KernelRequest),
    /// Asks something of the card's DMA engine. Answer: [`Answer::Dma`].
    Dma(DmaRequest),
    /// Lends memory by [`Pass`]es, too; the file of the [`Gates`](crate::shared::Gates) comes along.
    /// Answer: [`Answer::Done`].
    Gates,
    /// Asks for a pass for requests of this queue pair with this key. Answer: [`Answer::Pass`].
    Pass {
        /// The client's queue pair.
        qpn: u32,
        /// The key of the peer's memory.
        key: Key,
    },
    /// Tells of successful completions of requests that the client has carried out itself. Answer:
    /// [`Answer::Done`].
    Counted {
        /// The completion queue.
        cq: u32,
        /// How many have not been told of before.
        count: u64,
    },
}

/// Lets a client carry out WRITEs and READs in a peer's memory itself, as long as the gate is open.
/// With it come the files of the gates and of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pass {
    /// The gate, in the peer's [`Gates`](crate::shared::Gates).
    pub gate: u32,
    /// The client's line there.
    pub sender: u32,
    /// The mark that the gate has while it is open for this pass.
    pub mark: u64,
    /// Where in its file the memory begins.
    pub offset: u64,
    /// The address by which requests name its first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it may be written, read or both.
    pub access: Access,
}

/// How memory is lent. All but [`Loan::Process`] come with a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Loan {
    /// A memory file that is sealed against shrinking and growing: the daemon maps it.
    Sealed,
    /// A file that the daemon reads and writes by system calls. Offsets are those in the file.
    File,
    /// The client's memory, which the daemon reaches by `process_vm_readv`. Offsets are addresses.
    Process,
    /// As [`Loan::Process`], by `/proc/PID/mem`, which the client has opened.
    ProcessFile,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// To [`Hello`].
    Welcome(Welcome),
    /// The result of a command, encoded.
    Result(&'a [u8]),
    /// The number of memory that was lent.
    Lent(u32),
    /// A completion queue's place.
    CompletionQueue(CompletionQueuePlace),
    /// To [`ClientRequest::Describe`]: none, if the session has no such object, or one of which
    /// there is nothing to say. The file of a region's memory comes along, if it is to be mapped.
    Described(Option<Description>),
    /// To [`ClientRequest::Objects`].
    Objects {
        /// Some of them.
        objects: Vec<Object>,
        /// There are others behind those.
        more: bool,
    },
    /// To [`ClientRequest::OpenXrcd`].
    Xrcd(Result<Xrcd, XrcdError>),
    /// To [`ClientRequest::Status`].
    Status(StatusPage),
    /// To [`ClientRequest::Regions`].
    Regions {
        /// Some of them, in the order of their keys.
        regions: Vec<RegionStatus>,
        /// There are others, with higher keys.
        more: bool,
    },
    /// To [`ClientRequest::Passes`].
    Passes(Vec<PassStatus>),
    /// To [`ClientRequest::DmaClients`].
    DmaClients {
        /// The clients, in the order of their connections.
        clients: Vec<DmaClientStatus>,
        /// There are others, with later connections.
        more: bool,
    },
    /// To [`ClientRequest::Kernel`].
    Kernel(KernelAnswer),
    /// To [`ClientRequest::Dma`].
    Dma(DmaAnswer),
    /// To [`ClientRequest::Pass`]: none, where requests have to go by the card.
    Pass(Option<Pass>),
    /// It is done.
    Done,
    /// It is not done, for this reason.
    Refused(&'a str),
    /// The session has ended, or there is none.
    Farewell(&'a str),
}

/// Some of the sessions, in the order of their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusPage {
    /// The card.
    pub card: CardInfo,
    /// The sessions.
    pub sessions: Vec<SessionStatus>,
    /// There are others, with higher numbers.
    pub more: bool,
    /// What was done on purpose to packets that arrived, and to those that left.
    pub impaired: [ImpairCounters; 2],
    /// Whether anything is to be done to packets now.
    pub is_impaired: bool,
}

/// What a person wants to know of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number.
    pub session: u32,
    /// Its name.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The process that made it, or took it over last.
    pub pid: i32,
    /// Its programs run in a virtual machine, whose process `pid` is.
    pub is_machine: bool,
    /// Does a client have it? Otherwise it is kept.
    pub attached: bool,
    /// What becomes of it when its client ends.
    pub keep: Keep,
    /// Seconds until it ends, if it is kept for a time and no client has it.
    pub ends_in_s: Option<u32>,
    /// How many clients it has had.
    pub epoch: u32,
    /// Queue pairs and shared receive queues.
    pub queue_pairs: u32,
    /// Connections of these that speak the lossy dialect.
    pub lossy: u32,
    /// Kernels: those that answer calls, and those that are bound to streams.
    pub kernels: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Regions and windows.
    pub regions: u32,
    /// Bytes of its regions.
    pub registered_bytes: u64,
    /// Bytes of its arena that are given out.
    pub arena_bytes: u64,
    /// Memory that it lends: for each way, how many pieces.
    pub lent: Vec<(Loan, u32)>,
    /// How many of its regions the card reaches by each way; `None`: they lie in the arena.
    pub ways: Vec<(Option<Loan>, u32)>,
    /// Elements that it has posted.
    pub posted: u64,
    /// Completions that it has got.
    pub completed: u64,
    /// Bytes that its completed requests have moved.
    pub bytes: u64,
    /// Doorbells that were refused.
    pub refused: u64,
    /// What it may use.
    pub quotas: Quotas,
    /// How fast it may be.
    pub rates: RateLimits,
    /// How many shares of the card it has.
    pub weight: u16,
}

/// A region of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Its key.
    pub key: Key,
    /// Bytes.
    pub len: u64,
    /// The way by which the card reaches them; `None`: they lie in the arena.
    pub way: Option<Loan>,
}

/// Regions of one session that another one writes and reads itself, past the daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PassStatus {
    /// The number of the session that reaches them.
    pub session: u32,
    /// The number of the session whose memory it is.
    pub of: u32,
    /// How many passes: one for each region and queue pair.
    pub passes: u32,
}

/// Where a completion queue lies in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompletionQueuePlace {
    /// The number of its record.
    pub number: u32,
    /// Where its ring of entries begins.
    pub ring: u64,
    /// The ring's entries, a power of two.
    pub depth: u32,
}

/// Where a work queue lies in the arena: as the *address* of a ring, in what commands of an
/// attached card return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingPlace {
    /// The number of its record.
    pub number: u32,
    /// Where its ring of elements begins.
    pub offset: u64,
}

/// The lowest bit of the record's number in a ring's address.
const NUMBER_SHIFT: u32 = 48;

impl RingPlace {
    /// The place as an address.
    pub fn to_addr(self) -> u64 {
        u64::from(self.number) << NUMBER_SHIFT | self.offset
    }

    /// The place of an address.
    pub fn of_addr(addr: u64) -> RingPlace {
        let offset = addr & ((1 << NUMBER_SHIFT) - 1);
        RingPlace { number: (addr >> NUMBER_SHIFT) as u32, offset }
    }
}

/// Why bytes are not the message that was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// They do not begin as a greeting does.
    #[error("this is no client of a card: the first message is no greeting")]
    NoGreeting,
    /// The two ends are of different versions.
    #[error(
        "the program speaks version {client} to the card’s process, which speaks version {daemon}: \
         start the daemon and the program from the same release of Remora"
    )]
    Version {
        /// That of the client.
        client: u16,
        /// That of the daemon.
        daemon: u16,
    },
    /// They cannot be read.
    #[error("the message cannot be read")]
    Malformed,
}

/// The bytes of a [`Hello`]: a mark, the version, and the rest.
pub fn greeting(hello: &Hello) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(encode(hello));
    bytes
}

/// Do these bytes begin as a greeting does? (No [`ClientRequest`] does.)
pub(crate) fn is_greeting(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The [`Hello`] of these bytes.
///
/// # Errors
/// They are none, or of another version.
pub fn parse_greeting(bytes: &[u8]) -> Result<Hello, MessageError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(MessageError::NoGreeting)?;
    let (version, rest) = rest.split_first_chunk().ok_or(MessageError::NoGreeting)?;
    match u16::from_le_bytes(*version) {
        VERSION => decode(rest),
        client => Err(MessageError::Version { client, daemon: VERSION }),
    }
}

/// What a daemon says to a client of another version, in a form that every version can read: a
/// mark, and its own version.
pub(crate) fn of_other_version() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes
}

/// What came as the answer to a greeting.
///
/// # Errors
/// The daemon is of another version ([`of_other_version`]), or the bytes are no answer.
pub(crate) fn parse_answer_to_greeting(bytes: &[u8]) -> Result<Answer<'_>, MessageError> {
    let version = bytes.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk);
    match version.map(|version| u16::from_le_bytes(*version)) {
        Some(daemon) => Err(MessageError::Version { client: VERSION, daemon }),
        None => decode(bytes),
    }
}

/// The bytes of a request or an answer.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("a vector has room for any message")
}

/// The request or answer of these bytes, which must have no others behind it.
///
/// # Errors
/// They are none.
pub fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M, MessageError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(MessageError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_of_other_versions_are_told_apart() {
        let hello = Hello { name: Some("rank 0".into()), ..Hello::default() };
        let bytes = greeting(&hello);
        assert_eq!(parse_greeting(&bytes), Ok(hello));
        let mut newer = bytes.clone();
        newer[4] += 1;
        let other = Err(MessageError::Version { client: VERSION + 1, daemon: VERSION });
        assert_eq!(parse_greeting(&newer[..6]), other);
        assert_eq!(
            parse_answer_to_greeting(&of_other_version()),
            Err(MessageError::Version { client: VERSION, daemon: VERSION })
        );
        assert_eq!(parse_answer_to_greeting(&encode(&Answer::Done)), Ok(Answer::Done));
        assert_eq!(parse_greeting(&bytes[..5]), Err(MessageError::NoGreeting));
        assert_eq!(parse_greeting(b"GET / HTTP/1.1"), Err(MessageError::NoGreeting));
        assert_eq!(parse_greeting(&bytes[..bytes.len() - 1]), Err(MessageError::Malformed));
        assert_eq!(parse_greeting(&[&bytes[..], b"x"].concat()), Err(MessageError::Malformed));
    }

    #[test]
    fn a_greeting_is_no_request() {
        assert!(is_greeting(&greeting(&Hello::default())));
        // A request begins with its kind, of which there are fewer than the mark's first byte says.
        let last = encode(&ClientRequest::Counted { cq: 0, count: 0 });
        assert!(!is_greeting(&last) && last[0] < MAGIC[0]);
        assert_eq!(decode::<ClientRequest<'_>>(&[last[0] + 1, 0, 0]), Err(MessageError::Malformed));
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let requests = [
            ClientRequest::Command(b"bytes"),
            ClientRequest::Lend(Loan::Process),
            ClientRequest::TakeBack(7),
            ClientRequest::CompletionQueue(1),
            ClientRequest::Describe(Object::Qp(7)),
            ClientRequest::Keep(Keep::Seconds(60)),
            ClientRequest::Status(7),
            ClientRequest::Evict("rank 0"),
            ClientRequest::Impair("loss=1%"),
        ];
        for request in requests {
            assert_eq!(decode::<ClientRequest<'_>>(&encode(&request)), Ok(request));
        }
        let answers = [Answer::Done, Answer::Refused("no"), Answer::Result(&[1, 2])];
        for answer in answers {
            assert_eq!(decode::<Answer<'_>>(&encode(&answer)), Ok(answer));
        }
        assert_eq!(decode::<ClientRequest<'_>>(&[99]), Err(MessageError::Malformed));
        assert_eq!(
            decode::<ClientRequest<'_>>(&[0, 0xff, 0xff, 0xff]),
            Err(MessageError::Malformed)
        );
    }

    #[test]
    fn a_ring_is_named_by_its_record_and_its_place() {
        let place = RingPlace { number: 16_831, offset: (1 << 40) + 4096 };
        assert_eq!(RingPlace::of_addr(place.to_addr()), place);
    }
}
