//! One end of the traffic, as the tests see it: verbs calls on one device, whichever program makes
//! them.

use std::net::IpAddr;
use std::time::Duration;

/// The longest wait for anything that must happen. (The machine is emulated, perhaps on a busy
/// host.)
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an end's memory region.
pub const REGION: usize = 4 << 20;
/// The Q_Key of datagram queue pairs.
pub const QKEY: u32 = 0x1111_1111;

/// A transport service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// A queue pair of an end: what the other end must know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Its index among the end's queue pairs.
    pub index: usize,
    /// The address of its end.
    pub address: IpAddr,
    /// Its number.
    pub qpn: u32,
    /// The first PSN it sends.
    pub psn: u32,
}

/// The parameters of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Path MTU in bytes.
    pub mtu: u32,
    /// The acknowledge timeout: 4.096 µs · 2^n.
    pub timeout: u8,
    /// Retries without an acknowledge.
    pub retry: u8,
    /// Retries when the receiver is not ready; 7: without limit.
    pub rnr_retry: u8,
    /// READs and atomics outstanding, in each direction.
    pub rd_atomic: u8,
    /// The wait that this end asks for when it is not ready to receive: a code.
    pub min_rnr: u8,
}

impl Terms {
    /// Parameters for an emulated machine.
    pub fn new(mtu: u32) -> Terms {
        Terms { mtu, timeout: 16, retry: 7, rnr_retry: 7, rd_atomic: 4, min_rnr: 12 }
    }
}

/// Remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// SEND, with or without immediate data.
    Send(Option<u32>),
    /// A datagram to a queue pair, with or without immediate data.
    Datagram(Pair, u32, Option<u32>),
    /// RDMA WRITE, with or without immediate data.
    Write(At, Option<u32>),
    /// RDMA READ.
    Read(At),
    /// Compare with the first value, swap in the second.
    CompareSwap(At, u64, u64),
    /// Fetch and add.
    FetchAdd(At, u64),
}

/// How a request ended: the statuses of verbs that the tests know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It succeeded.
    Success,
    /// The message was too long for the receive request.
    LocalLength,
    /// It was flushed.
    Flushed,
    /// The peer does not accept such a request.
    RemoteInvalidRequest,
    /// The peer refused the key, the range or the right.
    RemoteAccess,
    /// The peer failed to execute it.
    RemoteOperation,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer posted no receive request.
    RnrRetryExceeded,
    /// Another status, by its number in verbs.
    Other(u32),
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The request's identifier.
    pub wr_id: u64,
    /// How the request ended; if it failed, only this and `wr_id` have a meaning.
    pub status: Status,
    /// Bytes received.
    pub len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The sending queue pair of a datagram.
    pub src_qp: u32,
    /// A GRH precedes the data.
    pub grh: bool,
}

/// How an attempt at a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Met {
    /// It was established; the peer sent this text.
    Connected(Pair, String),
    /// It was refused, with this text; on the refusing side, the text of the side that asked.
    Refused(String),
    /// Neither; the reason.
    Failed(String),
}

/// One end of the traffic. It has one region of [`REGION`] bytes, one completion queue, and queue
/// pairs.
///
/// Calls that wait for the other end come in two halves, so that one thread can drive both ends.
pub trait End {
    /// Its name, for messages.
    fn name(&self) -> &str;
    /// Its address.
    fn address(&self) -> IpAddr;
    /// The remote address and key of its region, from `offset` on.
    fn at(&self, offset: u64) -> At;

    /// Writes a pattern into the region.
    fn fill(&mut self, offset: u64, len: u64, seed: u8);
    /// A sum over a part of the region.
    fn sum(&mut self, offset: u64, len: u64) -> u64;
    /// Writes one word of the region.
    fn set(&mut self, offset: u64, value: u64);
    /// Reads one word of the region.
    fn get(&mut self, offset: u64) -> u64;

    /// Makes a queue pair, in INIT.
    fn pair(&mut self, service: Service) -> Pair;
    /// Connects a queue pair, up to RTS.
    fn connect(&mut self, pair: &Pair, peer: &Pair, terms: &Terms);
    /// Makes a datagram queue pair ready to send, with [`QKEY`].
    fn ready(&mut self, pair: &Pair);
    /// Moves a queue pair to ERROR.
    fn break_off(&mut self, pair: &Pair);
    /// Destroys a queue pair.
    fn destroy(&mut self, pair: &Pair);

    /// Posts a receive request.
    fn recv(&mut self, pair: &Pair, wr_id: u64, offset: u64, len: u64);
    /// Posts a signaled send request.
    fn post(&mut self, pair: &Pair, wr_id: u64, work: Work, offset: u64, len: u64);
    /// Waits for the next completion; `None` if none comes in time.
    fn poll(&mut self, patience: Duration) -> Option<Done>;

    /// Listens on a port of RDMA CM's TCP port space.
    fn listen(&mut self, port: u16);
    /// Stops listening.
    fn unlisten(&mut self);
    /// Starts to connect.
    fn begin_connect(&mut self, to: IpAddr, port: u16, words: &str);
    /// Starts to wait for a connection request, to accept it.
    fn begin_accept(&mut self, words: &str);
    /// Starts to wait for a connection request, to refuse it.
    fn begin_refuse(&mut self, words: &str);
    /// Waits for the outcome of the call that was started.
    fn finish(&mut self) -> Met;
    /// Disconnects.
    fn disconnect(&mut self, pair: &Pair);
    /// Does the peer disconnect in time?
    fn ended(&mut self, pair: &Pair, patience: Duration) -> bool;
}

/// The byte at `i` of a pattern; `tests/peer/verbs_peer.c` has the same function.
pub fn pattern(i: u64, seed: u8) -> u8 {
    (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed
}

/// The sum of bytes (FNV-1a, 64 bits); `tests/peer/verbs_peer.c` has the same function.
pub fn sum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The sum of a pattern.
pub fn sum_of_pattern(len: u64, seed: u8) -> u64 {
    sum((0..len).map(|i| pattern(i, seed)))
}
