//! A packet: BTH, the headers that its op-code calls for, payload, pad and ICRC.
//!
//! Only the form is checked here; which packet may come when, a queue pair decides (`qp`). The
//! headers themselves are in [`super::headers`], the op-codes in [`super::opcode`].

use thiserror::Error;

use super::ICRC_LEN;
use super::headers::{Aeth, AtomicEth, Bth, Deth, Feth, Reth, Xrceth};
use super::lossy::{Leth, Sack};
use super::opcode::{Follows, Op};

/// The longest run of headers of any op-code (compare-and-swap in the lossy dialect: BTH, AtomicETH
/// and LETH).
pub const MAX_HEADER: usize = 52;

/// The longest run of headers before payload (WRITE with immediate in the lossy dialect: BTH, RETH,
/// immediate data and LETH).
pub const MAX_DATA_HEADER: usize = 44;

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// Shorter than BTH and ICRC.
    #[error("shorter than a transport header and its checksum")]
    TooShort,
    /// Shorter than the headers that its op-code calls for.
    #[error("shorter than the headers its op-code calls for")]
    Truncated,
    /// More pad than payload, or payload with an op-code that has none.
    #[error("payload or padding where the op-code allows none")]
    Padding,
}

/// The headers behind the BTH. Only those named by the op-code's [`Follows`] mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// The shared receive queue of an XRC request.
    pub xrceth: Xrceth,
    /// Datagram header.
    pub deth: Deth,
    /// What a FLUSH guarantees.
    pub feth: Feth,
    /// The memory that a WRITE or READ accesses.
    pub reth: Reth,
    /// An atomic's target and operands.
    pub atomic: AtomicEth,
    /// Syndrome and MSN.
    pub aeth: Aeth,
    /// The original value, in answer to an atomic.
    pub atomic_ack: u64,
    /// Immediate data, or the key to invalidate (an op-code has at most one of them).
    pub imm_or_key: u32,
    /// Where a packet of the lossy dialect belongs.
    pub leth: Option<Leth>,
    /// What a peer of the lossy dialect has received.
    pub sack: Option<Sack>,
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
    ///
    /// # Errors
    /// [`Malformed::TooShort`] if the payload is shorter than a BTH and an ICRC.
    #[inline]
    pub fn bth(datagram: &[u8]) -> Result<Bth, Malformed> {
        // Every packet has a BTH and an ICRC (annex A17).
        if datagram.len() < Bth::LEN + ICRC_LEN {
            return Err(Malformed::TooShort);
        }
        datagram.first_chunk().map(Bth::parse).ok_or(Malformed::TooShort)
    }

    /// Reads the rest of a UDP payload whose BTH is `bth` and whose op-code is `op`.
    ///
    /// The ICRC is not checked here: see [`super::icrc`].
    ///
    /// # Errors
    /// [`Malformed::TooShort`] as of [`Packet::bth`]; [`Malformed::Truncated`] if the payload is
    /// shorter than the headers that `op` calls for; [`Malformed::Padding`] if the pad is longer
    /// than what follows these, or something follows them and `op` has no payload.
    // Inlined, so that the headers are not copied after they have been read.
    #[inline(always)]
    pub fn parse(bth: Bth, op: &'static Op, datagram: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let end = datagram.len().checked_sub(ICRC_LEN).ok_or(Malformed::TooShort)?;
        let rest = datagram.get(Bth::LEN..end).ok_or(Malformed::TooShort)?;
        let mut ext = Extensions::default();
        let rest = match op.follows {
            follows if ORDINARY.contains(follows) => ext.read::<{ ORDINARY.bits() }>(op, rest)?,
            follows if LOSSY.contains(follows) => ext.read_lossy(op, rest)?,
            _ => ext.read_any(op, rest)?,
        };
        // The pad is part of what follows the headers, and cannot be longer than that.
        let payload = rest
            .len()
            .checked_sub(usize::from(bth.pad))
            .and_then(|len| rest.get(..len))
            .ok_or(Malformed::Padding)?;
        // An op-code without payload has nothing behind its headers, not even pad.
        if !op.follows.contains(Follows::PAYLOAD) && !rest.is_empty() {
            return Err(Malformed::Padding);
        }
        Ok(Packet { bth, op, ext, payload })
    }

    /// Writes `bth` and the headers that `op` calls for. Returns their length.
    ///
    /// The BTH's op-code byte is taken from `op`.
    pub fn emit_headers(bth: &Bth, op: &Op, ext: &Extensions, out: &mut [u8; MAX_HEADER]) -> usize {
        let mut rest = &mut out[..];
        Bth { opcode: op.code, ..*bth }.emit(put(&mut rest));
        let left = match op.follows {
            follows if ORDINARY.contains(follows) => ext.write::<{ ORDINARY.bits() }>(op, rest),
            follows if LOSSY.contains(follows) => ext.write::<{ LOSSY.bits() }>(op, rest),
            _ => ext.write_any(op, rest),
        };
        MAX_HEADER - left
    }
}

/// The headers that SENDs, WRITEs, READs and acknowledges of an ordinary connection have. Packets
/// with no others are spared a look for each.
const ORDINARY: Follows = Follows::RETH
    .union(Follows::AETH)
    .union(Follows::IMM)
    .union(Follows::IETH)
    .union(Follows::PAYLOAD);
/// The same of a connection of the lossy dialect.
const LOSSY: Follows = ORDINARY.union(Follows::LETH).union(Follows::SACK);

/// Does `op` call for a header? It is known to call for none that is not `AMONG` these.
#[inline(always)]
fn has<const AMONG: u16>(op: &Op, header: Follows) -> bool {
    Follows::from_bits_retain(AMONG).contains(header) && op.follows.contains(header)
}

impl Extensions {
    /// Reads the headers that `op` calls for; returns what follows them. A packet too short for one
    /// is malformed.
    #[inline(always)]
    fn read<'a, const AMONG: u16>(
        &mut self,
        op: &Op,
        mut rest: &'a [u8],
    ) -> Result<&'a [u8], Malformed> {
        if has::<AMONG>(op, Follows::XRCETH) {
            self.xrceth = Xrceth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::DETH) {
            self.deth = Deth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::FETH) {
            self.feth = Feth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::RETH) {
            self.reth = Reth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::ATOMIC) {
            self.atomic = AtomicEth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::AETH) {
            self.aeth = Aeth::parse(take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::ATOMIC_ACK) {
            self.atomic_ack = u64::from_be_bytes(*take(&mut rest)?);
        }
        if op.follows.intersects(Follows::IMM.union(Follows::IETH)) {
            self.imm_or_key = u32::from_be_bytes(*take(&mut rest)?);
        }
        if has::<AMONG>(op, Follows::LETH) {
            self.leth = Some(Leth::parse(take(&mut rest)?));
        }
        if has::<AMONG>(op, Follows::SACK) {
            self.sack = Some(Sack::parse(take(&mut rest)?));
        }
        Ok(rest)
    }

    /// As [`Extensions::read`], for every op-code.
    #[inline(never)]
    fn read_any<'a>(&mut self, op: &Op, rest: &'a [u8]) -> Result<&'a [u8], Malformed> {
        self.read::<{ Follows::all().bits() }>(op, rest)
    }

    /// As [`Extensions::read`], for SENDs, WRITEs, READs and acknowledges of the lossy dialect.
    #[inline(never)]
    fn read_lossy<'a>(&mut self, op: &Op, rest: &'a [u8]) -> Result<&'a [u8], Malformed> {
        self.read::<{ LOSSY.bits() }>(op, rest)
    }

    /// Writes the headers that `op` calls for; returns how many bytes of room are left.
    #[inline(always)]
    fn write<const AMONG: u16>(&self, op: &Op, mut rest: &mut [u8]) -> usize {
        if has::<AMONG>(op, Follows::XRCETH) {
            self.xrceth.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::DETH) {
            self.deth.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::FETH) {
            self.feth.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::RETH) {
            self.reth.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::ATOMIC) {
            self.atomic.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::AETH) {
            self.aeth.emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::ATOMIC_ACK) {
            *put(&mut rest) = self.atomic_ack.to_be_bytes();
        }
        if op.follows.intersects(Follows::IMM.union(Follows::IETH)) {
            *put(&mut rest) = self.imm_or_key.to_be_bytes();
        }
        if has::<AMONG>(op, Follows::LETH) {
            self.leth.unwrap_or_default().emit(put(&mut rest));
        }
        if has::<AMONG>(op, Follows::SACK) {
            self.sack.unwrap_or_default().emit(put(&mut rest));
        }
        rest.len()
    }

    /// As [`Extensions::write`], for every op-code.
    #[inline(never)]
    fn write_any(&self, op: &Op, rest: &mut [u8]) -> usize {
        self.write::<{ Follows::all().bits() }>(op, rest)
    }
}

/// Takes the next `N` bytes of what arrived.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], Malformed> {
    let (head, tail) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
    *rest = tail;
    Ok(head)
}

/// Takes room for the next `N` bytes to send. [`MAX_HEADER`] is enough for every op-code, as a test
/// checks.
fn put<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, tail) =
        core::mem::take(rest).split_first_chunk_mut().expect("MAX_HEADER holds every op-code");
    *rest = tail;
    head
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::psn::Psn;
    use crate::wire::opcode::{Dialect, TABLE};

    static ROWS: [Op; TABLE.len()] = TABLE;

    /// Extensions with a different value in every field, without those `op` has no header for.
    fn extensions(op: &Op) -> Extensions {
        let has = |h| op.follows.intersects(h);
        let mut ext = Extensions::default();
        if has(Follows::DETH) {
            ext.deth = Deth { qkey: 0x8001_0000, src_qp: 0x01_0203 };
        }
        if has(Follows::XRCETH) {
            ext.xrceth = Xrceth { srqn: 0x0A_0B0C };
        }
        if has(Follows::FETH) {
            ext.feth = Feth { placement: 2, selectivity: 1 };
        }
        if has(Follows::RETH) {
            ext.reth = Reth { addr: 0x1122_3344_5566_7788, rkey: 0x99AA_BBCC, len: 0xDDEE_FF00 };
        }
        if has(Follows::ATOMIC) {
            ext.atomic = AtomicEth { addr: 8, rkey: 2, swap_add: u64::MAX - 3, compare: 4 };
        }
        if has(Follows::AETH) {
            ext.aeth = Aeth { syndrome: 0x1F, msn: 0xFE_DCBA };
        }
        if has(Follows::ATOMIC_ACK) {
            ext.atomic_ack = 0x0F0E_0D0C_0B0A_0908;
        }
        if has(Follows::IMM.union(Follows::IETH)) {
            ext.imm_or_key = 0xCAFE_F00D;
        }
        if has(Follows::LETH) {
            let (ssn, offset) = (0x12_3456, 0x65_4321);
            ext.leth = Some(Leth { flags: 1, ssn, path: 9, offset, sent: 0x8765_4321 });
        }
        if has(Follows::SACK) {
            ext.sack = Some(Sack {
                bitmap: 0x8000_0000_0000_0001,
                received: 0xABCD,
                marked: 0x1234,
                echo: 0x0102_0304,
                held: 0x0506,
                path: 7,
                flags: 3,
            });
        }
        ext
    }

    /// A whole datagram, ICRC left at zero.
    fn datagram(bth: &Bth, op: &Op, ext: &Extensions, payload: &[u8]) -> Vec<u8> {
        let mut headers = [0; MAX_HEADER];
        let len = Packet::emit_headers(bth, op, ext, &mut headers);
        assert_eq!(len, op.header_len(), "{op}");
        let trailer = vec![0; usize::from(bth.pad) + ICRC_LEN];
        [&headers[..len], payload, &trailer].concat()
    }

    fn parse(bytes: &[u8], dialect: Dialect) -> Option<Result<Packet<'_>, Malformed>> {
        let bth = match Packet::bth(bytes) {
            Ok(bth) => bth,
            Err(e) => return Some(Err(e)),
        };
        let op = Op::lookup(bth.opcode, dialect)?;
        Some(Packet::parse(bth, op, bytes))
    }

    #[test]
    fn every_opcode_round_trips() {
        for op in &TABLE {
            let max_payload = if op.follows.contains(Follows::PAYLOAD) { 9 } else { 0 };
            for len in 0..=max_payload {
                let payload = vec![0x5A; len];
                let bth = Bth {
                    opcode: op.code,
                    pad: (len.next_multiple_of(4) - len) as u8,
                    dest_qp: 17,
                    psn: Psn::new(99),
                    ..Bth::default()
                };
                let ext = extensions(op);
                let bytes = datagram(&bth, op, &ext, &payload);
                let expected = Packet { bth, op, ext, payload: &payload };
                assert_eq!(parse(&bytes, op.dialect), Some(Ok(expected)));
            }
        }
    }

    #[test]
    fn max_header_is_the_longest() {
        assert_eq!(TABLE.iter().map(Op::header_len).max(), Some(MAX_HEADER));
        let carries = |op: &&Op| op.follows.contains(Follows::PAYLOAD);
        let longest = TABLE.iter().filter(carries).map(Op::header_len).max();
        assert_eq!(longest, Some(MAX_DATA_HEADER));
    }

    #[test]
    fn every_cut_is_refused_with_a_reason() {
        for op in &TABLE {
            let bth = Bth { opcode: op.code, ..Bth::default() };
            let bytes = datagram(&bth, op, &extensions(op), &[]);
            for len in 0..bytes.len() {
                let reason = if len < Bth::LEN + ICRC_LEN {
                    Malformed::TooShort
                } else {
                    Malformed::Truncated
                };
                assert_eq!(parse(&bytes[..len], op.dialect), Some(Err(reason)), "{op}, {len}");
            }
        }
    }

    #[test]
    fn dialects_do_not_mix() {
        for op in &TABLE {
            for dialect in [Dialect::STANDARD, Dialect::KERNELS, Dialect::LOSSY, Dialect::all()] {
                let agreed = dialect.contains(op.dialect)
                    && dialect.contains(Dialect::LOSSY) == op.dialect.contains(Dialect::LOSSY);
                let found = Op::lookup(op.code, dialect).is_some_and(|found| found == op);
                // StRoM's op-code 0x1C hides FLUSH.
                let hidden = op.code == 0x1C && op.dialect != dialect;
                assert_eq!(found, agreed && !hidden, "{op} in {dialect:?}");
            }
        }
    }

    #[test]
    fn pad_without_payload_is_refused() {
        let op = Op::lookup(0x04, Dialect::STANDARD).unwrap();
        let bth = Bth { opcode: op.code, pad: 1, ..Bth::default() };
        let bytes = datagram(&Bth { pad: 0, ..bth }, op, &Extensions::default(), &[]);
        assert_eq!(Packet::parse(bth, op, &bytes), Err(Malformed::Padding));
    }

    #[test]
    fn payload_where_none_may_be_is_refused() {
        for op in TABLE.iter().filter(|op| !op.follows.contains(Follows::PAYLOAD)) {
            let bth = Bth { opcode: op.code, ..Bth::default() };
            let bytes = datagram(&bth, op, &extensions(op), &[0; 4]);
            assert_eq!(parse(&bytes, op.dialect), Some(Err(Malformed::Padding)), "{op}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            mut bytes: Vec<u8>, op in prop::sample::select(&ROWS[..])
        ) {
            let _ = parse(&bytes, Dialect::STANDARD);
            let _ = parse(&bytes, Dialect::KERNELS);
            let _ = parse(&bytes, Dialect::LOSSY);
            if let Some(first) = bytes.first_mut() {
                *first = op.code;
            }
            if let Some(Ok(packet)) = parse(&bytes, op.dialect) {
                prop_assert!(packet.payload.len() < bytes.len());
            }
        }

        /// The caller may pair any BTH with any row.
        #[test]
        fn any_row_parses_any_bytes(
            bytes: Vec<u8>, pad: u8, row in 0..ROWS.len()
        ) {
            let _ = Packet::parse(Bth { pad, ..Bth::default() }, &ROWS[row], &bytes);
        }
    }
}
