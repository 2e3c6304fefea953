//! A packet: BTH, the headers its op-code calls for, payload, pad and ICRC.

use thiserror::Error;

use super::ICRC_LEN;
use super::headers::{Aeth, AtomicEth, Bth, Deth, Reth};
use super::opcode::{Follows, Op};

/// The longest run of headers of any op-code (compare-and-swap: BTH and AtomicETH).
pub const MAX_HEADER: usize = 40;

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// Shorter than BTH and ICRC.
    #[error("shorter than a transport header and its checksum")]
    TooShort,
    /// Shorter than the headers its op-code calls for.
    #[error("shorter than the headers its op-code calls for")]
    Truncated,
    /// More pad than payload, or bytes where none may be.
    #[error("payload or padding where the op-code allows none")]
    Padding,
}

/// The headers behind the BTH. Only those named by the op-code's [`Follows`] mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// Datagram header.
    pub deth: Deth,
    /// What a WRITE or READ touches.
    pub reth: Reth,
    /// An atomic's target and operands.
    pub atomic: AtomicEth,
    /// Syndrome and MSN.
    pub aeth: Aeth,
    /// The original value, in answer to an atomic.
    pub atomic_ack: u64,
    /// Immediate data, or the key to invalidate (an op-code has at most one of them).
    pub imm_or_key: u32,
}

/// A parsed packet; the payload stays where it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The row of its op-code.
    pub op: &'static Op,
    /// The headers behind the BTH.
    pub ext: Extensions,
    /// Payload without pad and ICRC.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the BTH of a RoCE v2 UDP payload, so that its op-code can be looked up.
    pub fn bth(datagram: &[u8]) -> Result<Bth, Malformed> {
        if datagram.len() < Bth::LEN + ICRC_LEN {
            return Err(Malformed::TooShort);
        }
        datagram.first_chunk().map(Bth::parse).ok_or(Malformed::TooShort)
    }

    /// Reads the rest of a UDP payload whose BTH is `bth` and whose op-code is `op`.
    ///
    /// The ICRC is not checked here: see [`super::icrc`].
    pub fn parse(bth: Bth, op: &'static Op, datagram: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let end = datagram.len().checked_sub(ICRC_LEN).ok_or(Malformed::TooShort)?;
        let mut rest = datagram.get(Bth::LEN..end).ok_or(Malformed::TooShort)?;
        let mut ext = Extensions::default();
        let has = |h| op.follows.contains(h);
        if has(Follows::DETH) {
            ext.deth = Deth::parse(take(&mut rest)?);
        }
        if has(Follows::RETH) {
            ext.reth = Reth::parse(take(&mut rest)?);
        }
        if has(Follows::ATOMIC) {
            ext.atomic = AtomicEth::parse(take(&mut rest)?);
        }
        if has(Follows::AETH) {
            ext.aeth = Aeth::parse(take(&mut rest)?);
        }
        if has(Follows::ATOMIC_ACK) {
            ext.atomic_ack = u64::from_be_bytes(*take(&mut rest)?);
        }
        if op.follows.intersects(Follows::IMM.union(Follows::IETH)) {
            ext.imm_or_key = u32::from_be_bytes(*take(&mut rest)?);
        }
        let payload = rest
            .len()
            .checked_sub(usize::from(bth.pad))
            .and_then(|len| rest.get(..len))
            .ok_or(Malformed::Padding)?;
        if !has(Follows::PAYLOAD) && !rest.is_empty() {
            return Err(Malformed::Padding);
        }
        Ok(Packet { bth, op, ext, payload })
    }

    /// Writes `bth` and the headers `op` calls for; returns their length.
    ///
    /// The BTH's op-code byte is taken from `op`.
    pub fn emit_headers(bth: &Bth, op: &Op, ext: &Extensions, out: &mut [u8; MAX_HEADER]) -> usize {
        let mut rest = &mut out[..];
        Bth { opcode: op.code, ..*bth }.emit(put(&mut rest));
        let has = |h| op.follows.contains(h);
        if has(Follows::DETH) {
            ext.deth.emit(put(&mut rest));
        }
        if has(Follows::RETH) {
            ext.reth.emit(put(&mut rest));
        }
        if has(Follows::ATOMIC) {
            ext.atomic.emit(put(&mut rest));
        }
        if has(Follows::AETH) {
            ext.aeth.emit(put(&mut rest));
        }
        if has(Follows::ATOMIC_ACK) {
            *put(&mut rest) = ext.atomic_ack.to_be_bytes();
        }
        if op.follows.intersects(Follows::IMM.union(Follows::IETH)) {
            *put(&mut rest) = ext.imm_or_key.to_be_bytes();
        }
        MAX_HEADER - rest.len()
    }
}

/// The next `N` bytes that arrived.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], Malformed> {
    let (head, tail) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
    *rest = tail;
    Ok(head)
}

/// Room for the next `N` bytes to send; there always is, by [`MAX_HEADER`] (checked by a test for
/// every op-code).
fn put<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, tail) =
        core::mem::take(rest).split_first_chunk_mut().expect("MAX_HEADER holds every op-code");
    *rest = tail;
    head
}
