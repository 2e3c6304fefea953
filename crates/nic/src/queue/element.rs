//! The work-queue element: its bytes, their writer, and their reader, which trusts none of them.
//!
//! An element starts with 64 bytes; more scatter/gather entries or inline data follow in the same
//! slot of the ring, whose stride is a multiple of 64. All fields are little-endian.
//!
//! ```text
//! byte  0  opcode   u16     \ one 64-bit word: a compare-and-swap can test the id
//!       2  id       u48     / and change the opcode (RedN §3.3); on an XRC queue pair its low
//!                           24 bits name the peer's shared receive queue
//!       8  flags    u16
//!      10  reserved u8
//!      11  num_sge  u8
//!      12  rkey     u32     UD: Q_Key
//!      16  remote   u64     UD: address handle u32, queue pair u32; RPC: the kernel's op-code
//!      24  operand  u64     immediate or key to invalidate u32, inline length u32;
//!                           atomics, calc verbs: the value to swap in, to add, …;
//!                           FLUSH: placement u8, selectivity u8, then from byte 28 length u32;
//!                           BIND: the region's key u32, access u8, zero-based u8
//!      32  wr_id    u64
//!      40  sge[0]           address u64, length u32, lkey u32; or inline data from here on
//!      56  compare  u64     compare-and-swap; BIND: length
//!      64  sge[1..]         16 bytes each
//! ```
//!
//! BIND has the window's new key in `rkey` and the address in `remote`. FLUSH, BIND and the
//! invalidation of a local key have no entries. Atomics and calc verbs have one entry of 8 bytes,
//! for the word's former value, or none if the application does not want it.
//!
//! WAIT has a completion queue in `rkey` and a count in `remote`; ENABLE has a queue pair and an
//! index there. They and NOOP use no other field. So such an element may hold another one in its
//! other fields, and becomes that one when its op-code is changed (see [`crate::chain`]).
//!
//! A receive element uses `num_sge`, `wr_id` and the entries only.
//!
//! An application that can write the ring can put any bytes there, at any time. So an element is
//! copied once, when it is fetched; [`Element::parse`] checks the copy, and only the copy is
//! executed.

use bitflags::bitflags;
use thiserror::Error;

use crate::memory::Calc;
use crate::memory::key::Access;
use crate::memory::window::MwBinding;
use crate::queue::Opcode;
use crate::wire::Feth;

/// Bytes of an element without further entries.
pub const ELEMENT_LEN: usize = 64;
/// The most scatter/gather entries of one element.
pub const MAX_SGE: usize = 16;
/// The most inline bytes of one element.
pub const MAX_INLINE: usize = 1024;
/// Inline bytes that fit the first 64 bytes.
pub const INLINE_FIRST: usize = ELEMENT_LEN - AT_SGE;
/// The longest message of a connected service, in bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

pub(crate) const AT_SGE: usize = 40;
const AT_MORE_SGES: usize = 64;
const SGE_LEN: usize = 16;

bitflags! {
    /// Options of a work request.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u16 {
        /// Report the completion. (An error is always reported.)
        const SIGNALED = 1 << 0;
        /// Wait for all earlier READs and atomics of the queue first.
        const FENCE = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// The data is in the element itself. Set by the builder.
        const INLINE = 1 << 3;
    }
}

/// A scatter/gather entry: a piece of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sge {
    /// Address within the region, as registered.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The region's key.
    pub lkey: u32,
}

/// Remote memory: an address and the key that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteAddress {
    /// Address, as the peer registered it.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdDestination {
    /// Address handle: see [`crate::Nic::create_ah`].
    pub ah: u32,
    /// Queue pair at the destination.
    pub qpn: u32,
    /// The destination's Q_Key.
    pub qkey: u32,
}

/// What a FLUSH guarantees, and for which bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlushKind {
    /// Earlier writes are visible to all. Needs [`crate::Access::FLUSH_GLOBAL`].
    pub global: bool,
    /// Earlier writes survive a loss of power. Needs [`crate::Access::FLUSH_PERSISTENT`].
    pub persistent: bool,
    /// This holds for all bytes of the region that the key opens, and not only for a range.
    pub whole_region: bool,
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND, perhaps with immediate data. UD queue pairs need `to`; others must not have it.
    Send {
        /// Immediate data.
        imm: Option<u32>,
        /// Destination of a datagram.
        to: Option<UdDestination>,
    },
    /// SEND that invalidates a key at the receiver, so that this side can use it no more (RC only).
    SendInvalidate {
        /// The key, which belongs to the receiver's region or window.
        rkey: u32,
    },
    /// RDMA WRITE, perhaps with immediate data.
    Write {
        /// Target.
        to: RemoteAddress,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA READ into the request's entries.
    Read {
        /// Source.
        from: RemoteAddress,
    },
    /// Replaces a 64-bit word if it equals `compare`. The word's former value comes back.
    CompareSwap {
        /// The word, 8-byte aligned.
        at: RemoteAddress,
        /// The value to compare with.
        compare: u64,
        /// The value to swap in.
        swap: u64,
    },
    /// Adds to a 64-bit word. The word's former value comes back.
    FetchAdd {
        /// The word, 8-byte aligned.
        at: RemoteAddress,
        /// The value to add, modulo 2^64.
        add: u64,
    },
    /// Replaces a 64-bit word by the result of a calculation with it and `operand`. The word's
    /// former value comes back if the request has an entry.
    Calc {
        /// The calculation.
        calc: Calc,
        /// The word, 8-byte aligned.
        at: RemoteAddress,
        /// The second operand.
        operand: u64,
    },
    /// Does nothing but complete. Its data is ignored.
    NoOp,
    /// Holds the queue until `cq` has counted `count` successful completions since it was made.
    Wait {
        /// A completion queue of this card.
        cq: u32,
        /// The number of completions.
        count: u64,
    },
    /// Lets a managed send queue of this card and protection domain run its elements before
    /// `index`, counted from the queue's creation modulo 2^32.
    Enable {
        /// The queue pair.
        qpn: u32,
        /// One past the last element.
        index: u32,
    },
    /// As [`SendOp::Enable`], for a managed receive queue.
    EnableRecv {
        /// The queue pair.
        qpn: u32,
        /// One past the last element.
        index: u32,
    },
    /// StRoM's RPC: a header ([`crate::kernel::Header`]) and parameters, at most an MTU together.
    Rpc {
        /// The kernel's op-code.
        opcode: u64,
    },
    /// StRoM's RPC WRITE: header and parameters, at most an MTU together, then payload of any
    /// length for the kernel.
    RpcWrite {
        /// The kernel's op-code.
        opcode: u64,
    },
    /// Ends the binding of a memory window of type 2. The request has no data.
    LocalInvalidate {
        /// The window's key.
        key: u32,
    },
    /// Binds a memory window. The request has no data. Requests behind it in the queue may
    /// already tell a peer of the new key.
    BindMw {
        /// The window's new key: its present one with other low 8 bits.
        key: u32,
        /// The bytes that the window opens.
        to: MwBinding,
    },
    /// RDMA WRITE of the request's data, 8 bytes, at once: no reader sees a part of them (RC only).
    AtomicWrite {
        /// The word, 8-byte aligned.
        to: RemoteAddress,
    },
    /// Waits until earlier writes are visible, or survive a loss of power (RC only). The request
    /// has no data.
    Flush {
        /// The first byte of the range.
        at: RemoteAddress,
        /// Bytes of the range.
        len: u32,
        /// What is guaranteed.
        kind: FlushKind,
    },
}

/// The local side of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes that are copied into the element when it is posted. They need no registration.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// The application's id, which comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local bytes.
    pub data: Data<'a>,
    /// The options.
    pub flags: SendFlags,
}

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// The application's id, which comes back in the completion.
    pub wr_id: u64,
    /// The memory that the message is written to.
    pub sges: &'a [Sge],
}

/// Why an element's bytes are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadElement {
    /// The op-code is unknown.
    #[error("unknown op-code")]
    Opcode,
    /// More entries, or more inline bytes, than the queue was created for.
    #[error("more entries or inline bytes than the queue was created for")]
    TooLong,
    /// A message longer than 2^31 bytes, an atomic that is not of 8 bytes, or data with an op-code
    /// that has none.
    #[error("the message is longer than 2 GiB, or not as long as its operation needs")]
    Length,
    /// Inline data with an op-code that returns data.
    #[error("inline data with an op-code that returns data")]
    Inline,
}

/// A validated copy of a send element. Entries beyond the first stay in the fetched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Element {
    pub(crate) opcode: Opcode,
    pub(crate) flags: SendFlags,
    pub(crate) num_sge: u8,
    pub(crate) key: u32,
    /// The peer's shared receive queue, for XRC.
    pub(crate) srqn: u32,
    pub(crate) remote: u64,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
    pub(crate) wr_id: u64,
    pub(crate) sge: Sge,
    /// Bytes of all entries together, or of the inline data.
    pub(crate) len: u32,
}

impl Element {
    /// Checks the bytes of one whole slot, and reads the element in it.
    #[inline(always)]
    pub(crate) fn parse(slot: &[u8]) -> Result<Element, BadElement> {
        // An array of known length, so that fields are read without bounds checks.
        let raw: &[u8; ELEMENT_LEN] = slot.first_chunk().ok_or(BadElement::Length)?;
        let opcode = Opcode::parse(le16(raw, 0)).ok_or(BadElement::Opcode)?;
        let flags = SendFlags::from_bits_truncate(le16(raw, 8));
        if opcode.is_order() {
            return Ok(Element::order(opcode, flags, raw));
        }
        let operand = le64(raw, 24);
        let inline = flags.contains(SendFlags::INLINE);
        let num_sge = if inline { 0 } else { raw[11] };
        let len = if inline {
            let len = operand >> 32;
            if opcode.returns_data() || opcode.is_bare() {
                return Err(BadElement::Inline);
            }
            if len > (slot.len() - AT_SGE) as u64 {
                return Err(BadElement::TooLong);
            }
            len
        } else {
            match num_sge {
                0 => 0,
                1 => u64::from(sge_at(raw, 0).len),
                _ if usize::from(num_sge) > max_sges(slot.len()) => {
                    return Err(BadElement::TooLong);
                }
                _ => (0..usize::from(num_sge)).map(|i| u64::from(sge_at(slot, i).len)).sum(),
            }
        };
        let len = if opcode == Opcode::Flush { operand >> 32 } else { len };
        let is_word = match opcode {
            _ if opcode.is_atomic() => num_sge == 0 || num_sge == 1 && len == 8,
            Opcode::AtomicWrite => len == 8,
            _ => true,
        };
        if len > u64::from(MAX_MESSAGE) || !is_word || opcode.is_bare() && num_sge > 0 {
            return Err(BadElement::Length);
        }
        Ok(Element {
            opcode,
            flags,
            num_sge,
            key: le32(raw, 12),
            srqn: le32(raw, 2) & 0xFF_FFFF,
            remote: le64(raw, 16),
            operand,
            compare: le64(raw, 56),
            wr_id: le64(raw, 32),
            sge: if num_sge > 0 { sge_at(raw, 0) } else { Sge::default() },
            len: len as u32,
        })
    }

    /// An element that orders others. Only these fields of it are used.
    fn order(opcode: Opcode, flags: SendFlags, raw: &[u8]) -> Element {
        let flags = flags.difference(SendFlags::INLINE);
        let (key, remote) = (le32(raw, 12), le64(raw, 16));
        Element { opcode, flags, key, remote, ..Element::unreadable(raw) }
    }

    /// Takes the place of an element that is malformed: only its `wr_id` means anything.
    pub(crate) fn unreadable(raw: &[u8]) -> Element {
        Element {
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            num_sge: 0,
            key: 0,
            srqn: 0,
            remote: 0,
            operand: 0,
            compare: 0,
            wr_id: Element::wr_id(raw),
            sge: Sge::default(),
            len: 0,
        }
    }

    /// The application's id, which can be read from a refused element, too.
    #[inline]
    pub(crate) fn wr_id(raw: &[u8]) -> u64 {
        le64(raw, 32)
    }

    /// Immediate data, or the key to invalidate.
    pub(crate) fn imm(&self) -> u32 {
        self.operand as u32
    }

    /// The bytes that a BIND makes the window open.
    pub(crate) fn binding(&self) -> MwBinding {
        MwBinding {
            lkey: self.operand as u32,
            addr: self.remote,
            len: self.compare,
            access: Access::from_bits_truncate((self.operand >> 32) as u8),
            zero_based: (self.operand >> 40) as u8 != 0,
        }
    }

    /// The FLUSH header that goes on the wire.
    pub(crate) fn feth(&self) -> Feth {
        Feth { placement: self.operand as u8, selectivity: (self.operand >> 8) as u8 }
    }

    /// The address handle and queue pair of a datagram.
    pub(crate) fn ud(&self) -> (u32, u32) {
        (self.remote as u32, (self.remote >> 32) as u32 & 0xFF_FFFF)
    }
}

/// The application's id of an element of at least [`ELEMENT_LEN`] bytes, and its flags, for those
/// who keep track of what they have written.
#[must_use]
#[inline]
pub fn label(raw: &[u8]) -> (u64, SendFlags) {
    (Element::wr_id(raw), SendFlags::from_bits_retain(le16(raw, 8)))
}

/// How many entries fit a slot of `stride` bytes.
pub(crate) const fn max_sges(stride: usize) -> usize {
    let more = (stride - AT_MORE_SGES) / SGE_LEN;
    if more + 1 > MAX_SGE { MAX_SGE } else { more + 1 }
}

/// The stride that a queue needs for this many entries and inline bytes.
pub(crate) const fn stride_for(sges: usize, inline: usize) -> usize {
    let more = AT_MORE_SGES + SGE_LEN * sges.saturating_sub(1);
    let inline = AT_SGE + inline;
    let longest = if more > inline { more } else { inline };
    longest.div_ceil(ELEMENT_LEN) * ELEMENT_LEN
}

/// Inline bytes that fit a queue's elements.
pub(crate) const fn inline_room(stride: usize) -> usize {
    let room = stride.saturating_sub(AT_SGE);
    if room > MAX_INLINE { MAX_INLINE } else { room }
}

/// Entry `i` of a slot; zero if the slot is too short.
#[inline]
pub(crate) fn sge_at(raw: &[u8], i: usize) -> Sge {
    let at = if i == 0 { AT_SGE } else { AT_MORE_SGES + (i - 1) * SGE_LEN };
    Sge { addr: le64(raw, at), len: le32(raw, at + 8), lkey: le32(raw, at + 12) }
}

/// Why a request does not fit a queue's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the request has more entries or inline bytes than the queue was created for")]
pub struct TooLong;

/// Writes a send request into a slot; returns how many bytes of it are used. `srqn` is the peer's
/// shared receive queue, for XRC.
///
/// # Errors
/// The request does not fit the slot.
#[inline]
pub fn encode_send(request: &SendRequest<'_>, srqn: u32, raw: &mut [u8]) -> Result<usize, TooLong> {
    raw[..ELEMENT_LEN].fill(0);
    let mut flags = request.flags.difference(SendFlags::INLINE);
    let mut inline_len = 0;
    let used = match request.data {
        Data::Sges(sges) => put_sges(sges, raw)?,
        Data::Inline(bytes) => {
            flags |= SendFlags::INLINE;
            inline_len = u32::try_from(bytes.len()).map_err(|_| TooLong)?;
            raw.get_mut(AT_SGE..AT_SGE + bytes.len()).ok_or(TooLong)?.copy_from_slice(bytes);
            AT_SGE + bytes.len()
        }
    };
    let Fields { opcode, remote, key, operand, compare } = Fields::of(&request.op, inline_len);
    raw[0..2].copy_from_slice(&(opcode as u16).to_le_bytes());
    raw[2..5].copy_from_slice(&srqn.to_le_bytes()[..3]);
    raw[8..10].copy_from_slice(&flags.bits().to_le_bytes());
    raw[12..16].copy_from_slice(&key.to_le_bytes());
    raw[16..24].copy_from_slice(&remote.to_le_bytes());
    raw[24..32].copy_from_slice(&operand.to_le_bytes());
    raw[32..40].copy_from_slice(&request.wr_id.to_le_bytes());
    if let Some(compare) = compare {
        raw[56..64].copy_from_slice(&compare.to_le_bytes());
    }
    Ok(used.max(ELEMENT_LEN))
}

/// The fields of an element that depend on its operation.
struct Fields {
    opcode: Opcode,
    remote: u64,
    key: u32,
    operand: u64,
    /// `None` if the operation has no such value; inline data may be in its place then.
    compare: Option<u64>,
}

impl Fields {
    #[inline]
    fn of(op: &SendOp, inline_len: u32) -> Fields {
        let operand32 = |low: u32| u64::from(low) | u64::from(inline_len) << 32;
        let fields =
            |opcode, remote, key, operand| Fields { opcode, remote, key, operand, compare: None };
        let at = |opcode, to: RemoteAddress, operand| fields(opcode, to.addr, to.rkey, operand);
        match *op {
            SendOp::Send { imm, to } => {
                let opcode = if imm.is_some() { Opcode::SendImm } else { Opcode::Send };
                let to = to.unwrap_or(UdDestination { ah: 0, qpn: 0, qkey: 0 });
                let remote = u64::from(to.ah) | u64::from(to.qpn) << 32;
                fields(opcode, remote, to.qkey, operand32(imm.unwrap_or(0)))
            }
            SendOp::SendInvalidate { rkey } => {
                fields(Opcode::SendInvalidate, 0, 0, operand32(rkey))
            }
            SendOp::Write { to, imm: None } => at(Opcode::Write, to, operand32(0)),
            SendOp::Write { to, imm: Some(imm) } => at(Opcode::WriteImm, to, operand32(imm)),
            SendOp::Read { from } => at(Opcode::Read, from, operand32(0)),
            SendOp::CompareSwap { at: word, compare, swap } => {
                Fields { compare: Some(compare), ..at(Opcode::CompareSwap, word, swap) }
            }
            SendOp::FetchAdd { at: word, add } => at(Opcode::FetchAdd, word, add),
            SendOp::Calc { calc, at: word, operand } => at(Opcode::of(calc), word, operand),
            SendOp::NoOp => fields(Opcode::NoOp, 0, 0, operand32(0)),
            SendOp::Wait { cq, count } => fields(Opcode::Wait, count, cq, 0),
            SendOp::Enable { qpn, index } => fields(Opcode::Enable, index.into(), qpn, 0),
            SendOp::EnableRecv { qpn, index } => fields(Opcode::EnableRecv, index.into(), qpn, 0),
            SendOp::Rpc { opcode } => fields(Opcode::Rpc, opcode, 0, operand32(0)),
            SendOp::RpcWrite { opcode } => fields(Opcode::RpcWrite, opcode, 0, operand32(0)),
            SendOp::LocalInvalidate { key } => fields(Opcode::LocalInvalidate, 0, 0, key.into()),
            SendOp::BindMw { key, to } => {
                let how = u64::from(to.access.bits()) | u64::from(to.zero_based) << 8;
                let operand = u64::from(to.lkey) | how << 32;
                let compare = Some(to.len);
                Fields { compare, ..fields(Opcode::BindMw, to.addr, key, operand) }
            }
            SendOp::AtomicWrite { to } => at(Opcode::AtomicWrite, to, operand32(0)),
            SendOp::Flush { at: first, len, kind } => {
                at(Opcode::Flush, first, kind.operand() | u64::from(len) << 32)
            }
        }
    }
}

impl FlushKind {
    /// Placement and selectivity, as an element has them.
    const fn operand(self) -> u64 {
        let placement = if self.global { Feth::GLOBAL } else { 0 }
            | if self.persistent { Feth::PERSISTENT } else { 0 };
        let selectivity = if self.whole_region { Feth::REGION } else { Feth::RANGE };
        placement as u64 | (selectivity as u64) << 8
    }
}

/// Writes a receive request into a slot; returns how many bytes of it are used.
///
/// # Errors
/// The request does not fit the slot.
#[inline]
pub fn encode_recv(request: &RecvRequest<'_>, raw: &mut [u8]) -> Result<usize, TooLong> {
    raw[..ELEMENT_LEN].fill(0);
    let used = put_sges(request.sges, raw)?;
    raw[32..40].copy_from_slice(&request.wr_id.to_le_bytes());
    Ok(used)
}

fn put_sges(sges: &[Sge], raw: &mut [u8]) -> Result<usize, TooLong> {
    if sges.len() > max_sges(raw.len()) {
        return Err(TooLong);
    }
    raw[11] = sges.len() as u8;
    for (i, sge) in sges.iter().enumerate() {
        let at = if i == 0 { AT_SGE } else { AT_MORE_SGES + (i - 1) * SGE_LEN };
        raw[at..at + 8].copy_from_slice(&sge.addr.to_le_bytes());
        raw[at + 8..at + 12].copy_from_slice(&sge.len.to_le_bytes());
        raw[at + 12..at + 16].copy_from_slice(&sge.lkey.to_le_bytes());
    }
    Ok(AT_MORE_SGES + sges.len().saturating_sub(1) * SGE_LEN)
}

#[inline(always)]
fn le16(b: &[u8], at: usize) -> u16 {
    b.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

#[inline(always)]
fn le32(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[inline(always)]
fn le64(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sges(n: usize) -> Vec<Sge> {
        (0..n).map(|i| Sge { addr: i as u64 * 100, len: 10 + i as u32, lkey: 7 }).collect()
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        let sges = sges(6);
        let request = SendRequest {
            wr_id: 0xABCD,
            op: SendOp::Write { to: RemoteAddress { addr: 9, rkey: 8 }, imm: Some(5) },
            data: Data::Sges(&sges),
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
        };
        let mut raw = vec![0xFF; stride_for(6, 0)];
        encode_send(&request, 0, &mut raw).unwrap();
        let e = Element::parse(&raw).unwrap();
        assert_eq!((e.opcode, e.wr_id, e.remote, e.key), (Opcode::WriteImm, 0xABCD, 9, 8));
        assert_eq!((e.imm(), e.flags, e.num_sge, e.len), (5, request.flags, 6, 75));
        assert_eq!((0..6).map(|i| sge_at(&raw, i)).collect::<Vec<_>>(), sges);
    }

    #[test]
    fn what_has_no_data_is_encoded_in_the_fields() {
        let mut raw = [0xFF; 64];
        let none =
            |op| SendRequest { wr_id: 1, op, data: Data::Sges(&[]), flags: SendFlags::empty() };
        let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let to = MwBinding { lkey: 7, addr: 8, len: 1 << 40, access, zero_based: true };
        encode_send(&none(SendOp::BindMw { key: 9, to }), 0, &mut raw).unwrap();
        let e = Element::parse(&raw).unwrap();
        assert_eq!((e.opcode, e.key, e.binding(), e.len), (Opcode::BindMw, 9, to, 0));
        let (at, kind) = (RemoteAddress { addr: 5, rkey: 6 }, FlushKind::default());
        let kind = FlushKind { persistent: true, whole_region: true, ..kind };
        encode_send(&none(SendOp::Flush { at, len: 77, kind }), 0xABCDEF, &mut raw).unwrap();
        let e = Element::parse(&raw).unwrap();
        let feth = Feth { placement: Feth::PERSISTENT, selectivity: Feth::REGION };
        assert_eq!((e.opcode, e.remote, e.key, e.len), (Opcode::Flush, 5, 6, 77));
        assert_eq!((e.feth(), e.srqn), (feth, 0xAB_CDEF));
        raw[11] = 1;
        assert_eq!(Element::parse(&raw), Err(BadElement::Length), "it has no entries");
        for (bytes, fits) in [(&[0; 8][..], true), (&[0; 7], false), (&[0; 9], false)] {
            let data = Data::Inline(bytes);
            let write = SendRequest { data, ..none(SendOp::AtomicWrite { to: at }) };
            encode_send(&write, 0, &mut raw).unwrap();
            assert_eq!(Element::parse(&raw).is_ok(), fits);
        }
    }

    #[test]
    fn the_id_and_opcode_share_the_first_word() {
        let request = SendRequest {
            wr_id: 1,
            op: SendOp::Send { imm: None, to: None },
            data: Data::Inline(b"hello"),
            flags: SendFlags::empty(),
        };
        let mut raw = [0; 64];
        encode_send(&request, 0, &mut raw).unwrap();
        let word = le64(&raw, 0);
        assert_eq!(word & 0xFFFF, Opcode::Send as u64);
        raw[..8].copy_from_slice(&(word & !0xFFFF | 42 << 16 | Opcode::Write as u64).to_le_bytes());
        assert_eq!(Element::parse(&raw).unwrap().opcode, Opcode::Write, "the id is free");
    }

    #[test]
    fn a_queue_refuses_more_than_it_was_created_for() {
        assert_eq!(stride_for(1, INLINE_FIRST), 64);
        assert_eq!(stride_for(2, 0), 128);
        let sges = sges(2);
        let request = RecvRequest { wr_id: 1, sges: &sges };
        assert_eq!(encode_recv(&request, &mut [0; 64]), Err(TooLong));
        let mut raw = [0; 64];
        raw[0] = 1;
        raw[11] = 2;
        assert_eq!(Element::parse(&raw), Err(BadElement::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(raw in prop::collection::vec(any::<u8>(), 64..=64),
                                opcode in 0u8..14) {
            let mut raw = raw;
            raw[0] = opcode;
            raw[1] = 0;
            if let Ok(e) = Element::parse(&raw) {
                prop_assert!(e.len <= MAX_MESSAGE);
                prop_assert!(usize::from(e.num_sge) <= 1);
            }
        }
    }
}
