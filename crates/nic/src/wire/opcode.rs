//! The op-code table: RoCE v2's op-codes, StRoM's five (StRoM §5.1, Table 1), and the card's own,
//! among them those of the lossy dialect (docs/lossy.md).
//!
//! A row says which transport an op-code belongs to, what it does, which position in a message it
//! has and which headers follow the BTH. Parsing, building and the check of sequences all read it
//! from here. RoCE v2's rows are those of InfiniBand volume 1, chapter 9 (Transport Layer), of
//! annex A14 (XRC) and of annex A19 (FLUSH and ATOMIC WRITE).

use core::fmt;

use bitflags::bitflags;

use super::lossy::{Leth, Sack};

/// The transport service an op-code belongs to (the top three bits of the op-code).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: many shared receive queues behind one connection.
    Xrc,
}

impl Transport {
    /// Does the service acknowledge packets, and repeat them until they are acknowledged?
    pub const fn is_reliable(self) -> bool {
        matches!(self, Transport::Rc | Transport::Xrc)
    }

    /// The top three bits of the service's op-codes.
    pub const fn code(self) -> u8 {
        match self {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Ud => 3,
            Transport::Xrc => 5,
        }
    }
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND into a receive element.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Acknowledge,
    /// The original value, in answer to an atomic.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Write of 8 bytes at once: no reader sees a part of them.
    AtomicWrite,
    /// Wait until earlier writes are visible to all, or survive a loss of power.
    Flush,
    /// Congestion notification.
    Cnp,
    /// Parameters for a kernel (StRoM §5.1).
    Rpc,
    /// Payload for a kernel (StRoM §5.1).
    RpcWrite,
    /// A calc verb (RedN §5.1). The second operand says which one. The op-code is the card's own.
    Calculate,
}

/// The position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Does a message begin with this packet?
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Does a message end with this packet?
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// The position of a packet that begins or ends a message, or does neither.
    pub const fn new(begins: bool, ends: bool) -> Position {
        match (begins, ends) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

bitflags! {
    /// What follows the BTH, in the order of the bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Follows: u16 {
        /// The shared receive queue that an XRC request is for.
        const XRCETH = 1 << 0;
        /// Datagram header: Q_Key and source queue pair.
        const DETH = 1 << 1;
        /// What a FLUSH guarantees.
        const FETH = 1 << 2;
        /// Remote address, key and length.
        const RETH = 1 << 3;
        /// Atomic: remote address, key and two operands.
        const ATOMIC = 1 << 4;
        /// Syndrome and message sequence number; in a request, the PSN that it acknowledges.
        const AETH = 1 << 5;
        /// The original value of an atomic.
        const ATOMIC_ACK = 1 << 6;
        /// Immediate data.
        const IMM = 1 << 7;
        /// The key to invalidate.
        const IETH = 1 << 8;
        /// Payload.
        const PAYLOAD = 1 << 9;
        /// Where the packet belongs, in the lossy dialect.
        const LETH = 1 << 10;
        /// Which packets have arrived, in the lossy dialect.
        const SACK = 1 << 11;
    }
}

bitflags! {
    /// What two cards agree on beyond RoCE v2 when they connect. Nothing of it is used with a peer
    /// that has not agreed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    #[cfg_attr(feature = "serde", serde(transparent))]
    pub struct Dialect: u8 {
        /// StRoM's RPC op-codes, calc verbs, and requests that acknowledge. In the standard, one
        /// of these op-codes means FLUSH.
        const KERNELS = 1 << 0;
        /// Op-codes of the card's own, whose packets say where they belong, so that they may
        /// arrive in any order; and acknowledges that say which have arrived.
        const LOSSY = 1 << 1;
    }
}

impl Dialect {
    /// RoCE v2 to the letter.
    pub const STANDARD: Dialect = Dialect::empty();
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// The byte on the wire.
    pub code: u8,
    /// The name in the specification's words.
    pub name: &'static str,
    /// The transport service; a CNP is listed under RC and valid on every connected service.
    pub transport: Transport,
    /// What the packet asks for or answers.
    pub operation: Operation,
    /// The packet's position in its message.
    pub position: Position,
    /// The headers behind the BTH.
    pub follows: Follows,
    /// The dialect that defines the op-code.
    pub dialect: Dialect,
}

impl Op {
    /// Is this an answer to a request, for the requester's half of a queue pair?
    pub const fn is_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// Is this a request that also acknowledges the receiver's requests?
    pub const fn is_acknowledging(&self) -> bool {
        !self.is_response() && self.follows.contains(Follows::AETH)
    }

    /// Is there a form of this operation of RC that [acknowledges](Op::is_acknowledging)?
    pub const fn can_acknowledge(operation: Operation, position: Position) -> bool {
        use Operation::{Rpc, RpcWrite, Write};
        matches!((operation, position), (Rpc | RpcWrite | Write, Position::Only))
    }

    /// Bytes of the headers: the BTH and all that follows it before the payload.
    pub const fn header_len(&self) -> usize {
        let mut len = 12;
        let f = self.follows;
        if f.contains(Follows::XRCETH) {
            len += 4;
        }
        if f.contains(Follows::DETH) {
            len += 8;
        }
        if f.contains(Follows::FETH) {
            len += 4;
        }
        if f.contains(Follows::RETH) {
            len += 16;
        }
        if f.contains(Follows::ATOMIC) {
            len += 28;
        }
        if f.contains(Follows::AETH) {
            len += 4;
        }
        if f.contains(Follows::ATOMIC_ACK) {
            len += 8;
        }
        if f.contains(Follows::IMM) {
            len += 4;
        }
        if f.contains(Follows::IETH) {
            len += 4;
        }
        if f.contains(Follows::LETH) {
            len += Leth::LEN;
        }
        if f.contains(Follows::SACK) {
            len += Sack::LEN;
        }
        len
    }

    /// The row of `code`, if the dialect has one. The lossy dialect has only its own op-codes: a
    /// connection does not change its dialect.
    #[inline]
    pub fn lookup(code: u8, dialect: Dialect) -> Option<&'static Op> {
        let code = usize::from(code);
        let row = if dialect.is_empty() {
            STANDARD[code]
        } else if dialect.contains(Dialect::LOSSY) {
            LOSSY[code]
        } else if STROM[code] == NONE {
            STANDARD[code]
        } else {
            STROM[code]
        };
        let op = ROWS.get(usize::from(row))?;
        dialect.contains(op.dialect).then_some(op)
    }

    /// The row for an operation of a service at a place in its message.
    ///
    /// `with` adds immediate data ([`Follows::IMM`]) or an invalidation ([`Follows::IETH`]), both
    /// only where the message ends, and an acknowledge ([`Follows::AETH`]) to requests that
    /// [`Op::can_acknowledge`]. [`Follows::LETH`] makes it the lossy dialect's.
    ///
    /// # Panics
    /// If the service has no such operation: the caller must have checked the work request.
    #[inline]
    pub fn of(
        transport: Transport,
        operation: Operation,
        position: Position,
        with: Follows,
    ) -> &'static Op {
        let row =
            FORMS[transport as usize][operation as usize][position as usize][form(position, with)];
        assert!(row != NONE, "{transport:?} has no {operation:?} {position:?} with {with:?}");
        &ROWS[usize::from(row)]
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The congestion notification packet.
pub const CNP: u8 = 0x81;

const fn row(
    code: u8,
    name: &'static str,
    transport: Transport,
    operation: Operation,
    position: Position,
    follows: Follows,
) -> Op {
    Op { code, name, transport, operation, position, follows, dialect: Dialect::STANDARD }
}

const fn strom(code: u8, name: &'static str, operation: Operation, position: Position) -> Op {
    let follows = if position.begins() { RETH.union(DATA) } else { DATA };
    Op {
        code,
        name,
        transport: Transport::Rc,
        operation,
        position,
        follows,
        dialect: Dialect::KERNELS,
    }
}

/// A request that also acknowledges the receiver's requests. Its op-code is one of those that the
/// specification leaves to manufacturers, from 0xC0 on. Its AETH has the acknowledged PSN in the
/// place of the MSN.
const fn acknowledging(op: Op, name: &'static str) -> Op {
    Op {
        code: op.code | 0xC0,
        name,
        follows: op.follows.union(AETH),
        dialect: Dialect::KERNELS,
        ..op
    }
}

/// The lossy dialect's form of the RC op-code `code`: one of those that the specification leaves to
/// manufacturers, from 0xE0 on, with a header that says where the packet belongs.
const fn lossy(
    code: u8,
    name: &'static str,
    operation: Operation,
    position: Position,
    follows: Follows,
) -> Op {
    let follows = match operation {
        // Every packet of a WRITE names the whole range, so that any of them can be judged alone.
        Operation::Write => follows.union(RETH).union(LETH),
        Operation::Acknowledge => follows.union(AETH).union(Follows::SACK),
        _ => follows.union(LETH),
    };
    let dialect = match operation {
        Operation::Rpc | Operation::RpcWrite | Operation::Calculate => {
            Dialect::LOSSY.union(Dialect::KERNELS)
        }
        _ => Dialect::LOSSY,
    };
    Op { code: code | 0xE0, name, transport: Rc, operation, position, follows, dialect }
}

use Operation as O;
use Position::{First, Last, Middle, Only};
use Transport::{Rc, Uc, Ud, Xrc};

const DATA: Follows = Follows::PAYLOAD;
const IMM: Follows = Follows::IMM;
const IETH: Follows = Follows::IETH;
const RETH: Follows = Follows::RETH;
const AETH: Follows = Follows::AETH;
const DETH: Follows = Follows::DETH;
const ATOMIC: Follows = Follows::ATOMIC;
const FETH: Follows = Follows::FETH;
const XRC: Follows = Follows::XRCETH;
const LETH: Follows = Follows::LETH;

/// Every op-code that the card knows. (0x1C is FLUSH in the standard, and RPC WRITE Only in StRoM's
/// dialect.)
pub const TABLE: [Op; 104] = [
    row(0x00, "RC SEND First", Rc, O::Send, First, DATA),
    row(0x01, "RC SEND Middle", Rc, O::Send, Middle, DATA),
    row(0x02, "RC SEND Last", Rc, O::Send, Last, DATA),
    row(0x03, "RC SEND Last with Immediate", Rc, O::Send, Last, IMM.union(DATA)),
    row(0x04, "RC SEND Only", Rc, O::Send, Only, DATA),
    row(0x05, "RC SEND Only with Immediate", Rc, O::Send, Only, IMM.union(DATA)),
    row(0x06, "RC RDMA WRITE First", Rc, O::Write, First, RETH.union(DATA)),
    row(0x07, "RC RDMA WRITE Middle", Rc, O::Write, Middle, DATA),
    row(0x08, "RC RDMA WRITE Last", Rc, O::Write, Last, DATA),
    row(0x09, "RC RDMA WRITE Last with Immediate", Rc, O::Write, Last, IMM.union(DATA)),
    row(0x0A, "RC RDMA WRITE Only", Rc, O::Write, Only, RETH.union(DATA)),
    row(0x0B, "RC RDMA WRITE Only with Immediate", Rc, O::Write, Only, RETH.union(IMM).union(DATA)),
    row(0x0C, "RC RDMA READ Request", Rc, O::ReadRequest, Only, RETH),
    row(0x0D, "RC RDMA READ Response First", Rc, O::ReadResponse, First, AETH.union(DATA)),
    row(0x0E, "RC RDMA READ Response Middle", Rc, O::ReadResponse, Middle, DATA),
    row(0x0F, "RC RDMA READ Response Last", Rc, O::ReadResponse, Last, AETH.union(DATA)),
    row(0x10, "RC RDMA READ Response Only", Rc, O::ReadResponse, Only, AETH.union(DATA)),
    row(0x11, "RC Acknowledge", Rc, O::Acknowledge, Only, AETH),
    row(
        0x12,
        "RC ATOMIC Acknowledge",
        Rc,
        O::AtomicAcknowledge,
        Only,
        AETH.union(Follows::ATOMIC_ACK),
    ),
    row(0x13, "RC CmpSwap", Rc, O::CompareSwap, Only, ATOMIC),
    row(0x14, "RC FetchAdd", Rc, O::FetchAdd, Only, ATOMIC),
    row(0x16, "RC SEND Last with Invalidate", Rc, O::Send, Last, IETH.union(DATA)),
    row(0x17, "RC SEND Only with Invalidate", Rc, O::Send, Only, IETH.union(DATA)),
    row(0x1C, "RC FLUSH", Rc, O::Flush, Only, FETH.union(RETH)),
    row(0x1D, "RC ATOMIC WRITE", Rc, O::AtomicWrite, Only, RETH.union(DATA)),
    strom(0x18, "RC RPC Params", O::Rpc, Only),
    strom(0x19, "RC RPC WRITE First", O::RpcWrite, First),
    strom(0x1A, "RC RPC WRITE Middle", O::RpcWrite, Middle),
    strom(0x1B, "RC RPC WRITE Last", O::RpcWrite, Last),
    strom(0x1C, "RC RPC WRITE Only", O::RpcWrite, Only),
    Op { follows: ATOMIC, ..strom(0x1E, "RC CALC", O::Calculate, Only) },
    acknowledging(
        row(0x0A, "", Rc, O::Write, Only, RETH.union(DATA)),
        "RC RDMA WRITE Only with Acknowledge",
    ),
    acknowledging(
        row(0x0B, "", Rc, O::Write, Only, RETH.union(IMM).union(DATA)),
        "RC RDMA WRITE Only with Immediate and Acknowledge",
    ),
    acknowledging(strom(0x18, "", O::Rpc, Only), "RC RPC Params with Acknowledge"),
    acknowledging(strom(0x1C, "", O::RpcWrite, Only), "RC RPC WRITE Only with Acknowledge"),
    row(0x20, "UC SEND First", Uc, O::Send, First, DATA),
    row(0x21, "UC SEND Middle", Uc, O::Send, Middle, DATA),
    row(0x22, "UC SEND Last", Uc, O::Send, Last, DATA),
    row(0x23, "UC SEND Last with Immediate", Uc, O::Send, Last, IMM.union(DATA)),
    row(0x24, "UC SEND Only", Uc, O::Send, Only, DATA),
    row(0x25, "UC SEND Only with Immediate", Uc, O::Send, Only, IMM.union(DATA)),
    row(0x26, "UC RDMA WRITE First", Uc, O::Write, First, RETH.union(DATA)),
    row(0x27, "UC RDMA WRITE Middle", Uc, O::Write, Middle, DATA),
    row(0x28, "UC RDMA WRITE Last", Uc, O::Write, Last, DATA),
    row(0x29, "UC RDMA WRITE Last with Immediate", Uc, O::Write, Last, IMM.union(DATA)),
    row(0x2A, "UC RDMA WRITE Only", Uc, O::Write, Only, RETH.union(DATA)),
    row(0x2B, "UC RDMA WRITE Only with Immediate", Uc, O::Write, Only, RETH.union(IMM).union(DATA)),
    row(0x64, "UD SEND Only", Ud, O::Send, Only, DETH.union(DATA)),
    row(0x65, "UD SEND Only with Immediate", Ud, O::Send, Only, DETH.union(IMM).union(DATA)),
    row(0xA0, "XRC SEND First", Xrc, O::Send, First, XRC.union(DATA)),
    row(0xA1, "XRC SEND Middle", Xrc, O::Send, Middle, XRC.union(DATA)),
    row(0xA2, "XRC SEND Last", Xrc, O::Send, Last, XRC.union(DATA)),
    row(0xA3, "XRC SEND Last with Immediate", Xrc, O::Send, Last, XRC.union(IMM).union(DATA)),
    row(0xA4, "XRC SEND Only", Xrc, O::Send, Only, XRC.union(DATA)),
    row(0xA5, "XRC SEND Only with Immediate", Xrc, O::Send, Only, XRC.union(IMM).union(DATA)),
    row(0xA6, "XRC RDMA WRITE First", Xrc, O::Write, First, XRC.union(RETH).union(DATA)),
    row(0xA7, "XRC RDMA WRITE Middle", Xrc, O::Write, Middle, XRC.union(DATA)),
    row(0xA8, "XRC RDMA WRITE Last", Xrc, O::Write, Last, XRC.union(DATA)),
    row(
        0xA9,
        "XRC RDMA WRITE Last with Immediate",
        Xrc,
        O::Write,
        Last,
        XRC.union(IMM).union(DATA),
    ),
    row(0xAA, "XRC RDMA WRITE Only", Xrc, O::Write, Only, XRC.union(RETH).union(DATA)),
    row(
        0xAB,
        "XRC RDMA WRITE Only with Immediate",
        Xrc,
        O::Write,
        Only,
        XRC.union(RETH).union(IMM).union(DATA),
    ),
    row(0xAC, "XRC RDMA READ Request", Xrc, O::ReadRequest, Only, XRC.union(RETH)),
    row(0xAD, "XRC RDMA READ Response First", Xrc, O::ReadResponse, First, AETH.union(DATA)),
    row(0xAE, "XRC RDMA READ Response Middle", Xrc, O::ReadResponse, Middle, DATA),
    row(0xAF, "XRC RDMA READ Response Last", Xrc, O::ReadResponse, Last, AETH.union(DATA)),
    row(0xB0, "XRC RDMA READ Response Only", Xrc, O::ReadResponse, Only, AETH.union(DATA)),
    row(0xB1, "XRC Acknowledge", Xrc, O::Acknowledge, Only, AETH),
    row(
        0xB2,
        "XRC ATOMIC Acknowledge",
        Xrc,
        O::AtomicAcknowledge,
        Only,
        AETH.union(Follows::ATOMIC_ACK),
    ),
    row(0xB3, "XRC CmpSwap", Xrc, O::CompareSwap, Only, XRC.union(ATOMIC)),
    row(0xB4, "XRC FetchAdd", Xrc, O::FetchAdd, Only, XRC.union(ATOMIC)),
    row(0xB6, "XRC SEND Last with Invalidate", Xrc, O::Send, Last, XRC.union(IETH).union(DATA)),
    row(0xB7, "XRC SEND Only with Invalidate", Xrc, O::Send, Only, XRC.union(IETH).union(DATA)),
    // The notification's 16 reserved bytes are its payload.
    row(CNP, "CNP", Rc, O::Cnp, Only, DATA),
    // The lossy dialect's. RPC WRITE Only has the place of an op-code that RC leaves free, so that
    // it does not take FLUSH's.
    lossy(0x00, "Lossy SEND First", O::Send, First, DATA),
    lossy(0x01, "Lossy SEND Middle", O::Send, Middle, DATA),
    lossy(0x02, "Lossy SEND Last", O::Send, Last, DATA),
    lossy(0x03, "Lossy SEND Last with Immediate", O::Send, Last, IMM.union(DATA)),
    lossy(0x04, "Lossy SEND Only", O::Send, Only, DATA),
    lossy(0x05, "Lossy SEND Only with Immediate", O::Send, Only, IMM.union(DATA)),
    lossy(0x06, "Lossy RDMA WRITE First", O::Write, First, DATA),
    lossy(0x07, "Lossy RDMA WRITE Middle", O::Write, Middle, DATA),
    lossy(0x08, "Lossy RDMA WRITE Last", O::Write, Last, DATA),
    lossy(0x09, "Lossy RDMA WRITE Last with Immediate", O::Write, Last, IMM.union(DATA)),
    lossy(0x0A, "Lossy RDMA WRITE Only", O::Write, Only, DATA),
    lossy(0x0B, "Lossy RDMA WRITE Only with Immediate", O::Write, Only, IMM.union(DATA)),
    lossy(0x0C, "Lossy RDMA READ Request", O::ReadRequest, Only, RETH),
    lossy(0x0D, "Lossy RDMA READ Response First", O::ReadResponse, First, DATA),
    lossy(0x0E, "Lossy RDMA READ Response Middle", O::ReadResponse, Middle, DATA),
    lossy(0x0F, "Lossy RDMA READ Response Last", O::ReadResponse, Last, DATA),
    lossy(0x10, "Lossy RDMA READ Response Only", O::ReadResponse, Only, DATA),
    lossy(0x11, "Lossy Acknowledge", O::Acknowledge, Only, AETH),
    lossy(0x12, "Lossy ATOMIC Acknowledge", O::AtomicAcknowledge, Only, Follows::ATOMIC_ACK),
    lossy(0x13, "Lossy CmpSwap", O::CompareSwap, Only, ATOMIC),
    lossy(0x14, "Lossy FetchAdd", O::FetchAdd, Only, ATOMIC),
    lossy(0x15, "Lossy RPC WRITE Only", O::RpcWrite, Only, RETH.union(DATA)),
    lossy(0x16, "Lossy SEND Last with Invalidate", O::Send, Last, IETH.union(DATA)),
    lossy(0x17, "Lossy SEND Only with Invalidate", O::Send, Only, IETH.union(DATA)),
    lossy(0x18, "Lossy RPC Params", O::Rpc, Only, RETH.union(DATA)),
    lossy(0x19, "Lossy RPC WRITE First", O::RpcWrite, First, RETH.union(DATA)),
    lossy(0x1A, "Lossy RPC WRITE Middle", O::RpcWrite, Middle, DATA),
    lossy(0x1B, "Lossy RPC WRITE Last", O::RpcWrite, Last, DATA),
    lossy(0x1C, "Lossy FLUSH", O::Flush, Only, FETH.union(RETH)),
    lossy(0x1D, "Lossy ATOMIC WRITE", O::AtomicWrite, Only, RETH.union(DATA)),
    lossy(0x1E, "Lossy CALC", O::Calculate, Only, ATOMIC),
];

static ROWS: [Op; TABLE.len()] = TABLE;

const NONE: u8 = u8::MAX;
static STANDARD: [u8; 256] = index(Dialect::STANDARD, Dialect::STANDARD);
static STROM: [u8; 256] = index(Dialect::KERNELS, Dialect::KERNELS);
static LOSSY: [u8; 256] = index(Dialect::LOSSY, Dialect::all());

/// The row in [`TABLE`] of each op-code whose dialect has at least the flags `least`, and at most
/// the flags `most`.
const fn index(least: Dialect, most: Dialect) -> [u8; 256] {
    let mut map = [NONE; 256];
    let mut i = 0;
    while i < TABLE.len() {
        let dialect = TABLE[i].dialect;
        if dialect.contains(least) && most.contains(dialect) {
            map[TABLE[i].code as usize] = i as u8;
        }
        i += 1;
    }
    map
}

/// The number of an operation's form: plain, with immediate data or with an invalidation, each of
/// these with an acknowledge as well, and each in the lossy dialect.
const fn form(position: Position, with: Follows) -> usize {
    let form = match (position.ends(), with.contains(IMM), with.contains(IETH)) {
        (true, true, _) => 1,
        (true, false, true) => 2,
        _ => 0,
    };
    if with.contains(LETH) {
        2 * FORMS_WITHOUT + form
    } else if with.contains(AETH) {
        FORMS_WITHOUT + form
    } else {
        form
    }
}

/// The number of forms without an acknowledge.
const FORMS_WITHOUT: usize = 3;

/// [`TABLE`] by transport, operation, position and form.
static FORMS: [[[[u8; 3 * FORMS_WITHOUT]; 4]; 14]; 4] = {
    let mut map = [[[[NONE; 3 * FORMS_WITHOUT]; 4]; 14]; 4];
    let mut i = 0;
    while i < TABLE.len() {
        let op = &TABLE[i];
        let with = if op.dialect.contains(Dialect::LOSSY) {
            op.follows.union(LETH)
        } else if op.is_response() {
            // Responses always have an AETH, which makes no other form of them.
            Follows::empty()
        } else {
            op.follows
        };
        let at = form(op.position, with);
        map[op.transport as usize][op.operation as usize][op.position as usize][at] = i as u8;
        i += 1;
    }
    map
};
