//! The transport headers, each as a struct with `parse` from and `emit` to its exact bytes.
//!
//! The layouts are those of InfiniBand volume 1, chapter 9 (Transport Layer); XRCETH is annex
//! A14's, FETH annex A19's. All fields are big-endian on the wire. `parse` takes an array of the
//! header's length, so it cannot fail: lengths are checked once, in [`super::packet`]. Reserved
//! bits are sent as zero and ignored on arrival. What the codes of acknowledges mean is said where
//! they are obeyed: how long an `RNR` asks to wait is in `qp/retry.rs`.

use crate::psn::Psn;

/// Base transport header, 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bth {
    /// Op-code: see [`super::opcode`].
    pub opcode: u8,
    /// The receiver should raise a solicited event.
    pub solicited: bool,
    /// Migration state. The card sends 1, as hardware does, and ignores it on arrival.
    pub migreq: bool,
    /// Bytes of padding behind the payload, 0..=3.
    pub pad: u8,
    /// Header version; 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// An acknowledge is requested.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// What all packets of this card have in common: the default partition, and MigReq set as
    /// hardware sets it.
    pub const fn ours() -> Bth {
        Bth {
            opcode: 0,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: 0xFFFF,
            fecn: false,
            becn: false,
            dest_qp: 0,
            ack_req: false,
            psn: Psn::new(0),
        }
    }

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Bth {
        Bth {
            opcode: b[0],
            solicited: b[1] & 0x80 != 0,
            migreq: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0xF,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: u32::from_be_bytes([0, b[5], b[6], b[7]]),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0] = self.opcode;
        b[1] = u8::from(self.solicited) << 7
            | u8::from(self.migreq) << 6
            | (self.pad & 3) << 4
            | self.version & 0xF;
        b[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        b[4..8].copy_from_slice(&(self.dest_qp & 0xFF_FFFF).to_be_bytes());
        b[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        b[8..12].copy_from_slice(&self.psn.value().to_be_bytes());
        b[8] = u8::from(self.ack_req) << 7;
    }
}

/// RDMA extended transport header, 16 bytes: the memory that a WRITE or READ accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Remote virtual address (for StRoM's op-codes: the RPC op-code).
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Reth {
        let v = u128::from_be_bytes(*b);
        Reth { addr: (v >> 64) as u64, rkey: (v >> 32) as u32, len: v as u32 }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let v = u128::from(self.addr) << 64 | u128::from(self.rkey) << 32 | u128::from(self.len);
        *b = v.to_be_bytes();
    }
}

/// XRC extended transport header, 4 bytes: the shared receive queue that a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Xrceth {
    /// The number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

impl Xrceth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Xrceth {
        Xrceth { srqn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = (self.srqn & 0xFF_FFFF).to_be_bytes();
    }
}

/// FLUSH extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth {
    /// The guarantee that the requester asks for, 4 bits: see [`Feth::GLOBAL`] and
    /// [`Feth::PERSISTENT`].
    pub placement: u8,
    /// Which bytes it is for, 2 bits: see [`Feth::RANGE`] and [`Feth::REGION`].
    pub selectivity: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// Placement: what was written is visible to all.
    pub const GLOBAL: u8 = 1;
    /// Placement: what was written survives a loss of power.
    pub const PERSISTENT: u8 = 2;
    /// Selectivity: the bytes that the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity: all of the region that the RETH's key names.
    pub const REGION: u8 = 1;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Feth {
        Feth { placement: b[3] & 0xF, selectivity: b[3] >> 4 & 3 }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = [0, 0, 0, self.placement & 0xF | (self.selectivity & 3) << 4];
    }
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Remote virtual address, a multiple of 8.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to swap in, or to add.
    pub swap_add: u64,
    /// The value to compare with; unused by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> AtomicEth {
        AtomicEth {
            addr: be64(&b[0..8]),
            rkey: be32(&b[8..12]),
            swap_add: be64(&b[12..20]),
            compare: be64(&b[20..28]),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// The key that the receiving queue pair must have.
    pub qkey: u32,
    /// The sending queue pair, 24 bits.
    pub src_qp: u32,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Deth {
        Deth { qkey: be32(&b[0..4]), src_qp: be32(&b[4..8]) & 0xFF_FFFF }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4..8].copy_from_slice(&(self.src_qp & 0xFF_FFFF).to_be_bytes());
    }
}

/// Acknowledge extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// Acknowledge, RNR NAK or NAK, with its value.
    pub syndrome: u8,
    /// How many messages the responder has completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Aeth {
        Aeth { syndrome: b[0], msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b.copy_from_slice(&(self.msn & 0xFF_FFFF).to_be_bytes());
        b[0] = self.syndrome;
    }
}

/// The meaning of an AETH's syndrome byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Positive, with a credit code; 31 means no limit.
    Ack {
        /// Credit code, 5 bits.
        credits: u8,
    },
    /// Receiver not ready: wait as long as the timer code says.
    Rnr {
        /// Index into the RNR timer table, 5 bits: see `rnr_delay` in `qp/retry.rs`.
        timer: u8,
    },
    /// Negative.
    Nak(Nak),
    /// A reserved encoding.
    Reserved,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nak {
    /// A packet before this one is missing. The requester sends again from there.
    PsnSequence = 0,
    /// The request breaks a rule of the protocol, or this queue pair cannot carry it out.
    InvalidRequest = 1,
    /// The key, the range or the permission is wrong.
    RemoteAccess = 2,
    /// The responder itself failed, for no fault of the request.
    RemoteOperational = 3,
}

impl Syndrome {
    /// Credit code "no limit".
    pub const UNLIMITED: u8 = 31;

    /// Reads a syndrome byte. Codes that no rule gives a meaning become [`Syndrome::Reserved`].
    pub fn parse(byte: u8) -> Syndrome {
        let value = byte & 0x1F;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: value },
            1 => Syndrome::Rnr { timer: value },
            3 => match value {
                0 => Syndrome::Nak(Nak::PsnSequence),
                1 => Syndrome::Nak(Nak::InvalidRequest),
                2 => Syndrome::Nak(Nak::RemoteAccess),
                3 => Syndrome::Nak(Nak::RemoteOperational),
                _ => Syndrome::Reserved,
            },
            _ => Syndrome::Reserved,
        }
    }

    /// The byte; a reserved syndrome becomes a reserved code.
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1F,
            Syndrome::Rnr { timer } => 0x20 | timer & 0x1F,
            Syndrome::Nak(nak) => 0x60 | nak as u8,
            Syndrome::Reserved => 0x5F,
        }
    }
}

fn be32(b: &[u8]) -> u32 {
    b.iter().fold(0, |v, &x| v << 8 | u32::from(x))
}

fn be64(b: &[u8]) -> u64 {
    b.iter().fold(0, |v, &x| v << 8 | u64::from(x))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of a header, in the words of its `emit`.
    macro_rules! emitted {
        ($header:expr, $type:ty) => {{
            let mut b = [0xAA; <$type>::LEN];
            $header.emit(&mut b);
            b
        }};
    }

    proptest! {
        #[test]
        fn bth_round_trip(
            (opcode, pkey) in any::<(u8, u16)>(),
            (solicited, migreq, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
            pad in 0u8..4, version in 0u8..16, dest_qp in 0u32..1 << 24, psn in any::<u32>(),
        ) {
            let psn = Psn::new(psn);
            let bth = Bth {
                opcode, solicited, migreq, pad, version, pkey, fecn, becn, dest_qp, ack_req, psn,
            };
            prop_assert_eq!(Bth::parse(&emitted!(bth, Bth)), bth);
        }

        #[test]
        fn reth_round_trip(addr: u64, rkey: u32, len: u32) {
            let reth = Reth { addr, rkey, len };
            prop_assert_eq!(Reth::parse(&emitted!(reth, Reth)), reth);
        }

        #[test]
        fn atomic_eth_round_trip(addr: u64, rkey: u32, swap_add: u64, compare: u64) {
            let atomic = AtomicEth { addr, rkey, swap_add, compare };
            prop_assert_eq!(AtomicEth::parse(&emitted!(atomic, AtomicEth)), atomic);
        }

        #[test]
        fn deth_round_trip(qkey: u32, src_qp in 0u32..1 << 24) {
            let deth = Deth { qkey, src_qp };
            prop_assert_eq!(Deth::parse(&emitted!(deth, Deth)), deth);
        }

        #[test]
        fn xrceth_round_trip(srqn in 0u32..1 << 24) {
            let xrceth = Xrceth { srqn };
            prop_assert_eq!(Xrceth::parse(&emitted!(xrceth, Xrceth)), xrceth);
        }

        #[test]
        fn feth_round_trip(placement in 0u8..16, selectivity in 0u8..4) {
            let feth = Feth { placement, selectivity };
            prop_assert_eq!(Feth::parse(&emitted!(feth, Feth)), feth);
        }

        #[test]
        fn aeth_round_trip(syndrome: u8, msn in 0u32..1 << 24) {
            let aeth = Aeth { syndrome, msn };
            prop_assert_eq!(Aeth::parse(&emitted!(aeth, Aeth)), aeth);
        }

        /// A value that is too wide for its field does not change the fields beside it.
        #[test]
        fn values_too_wide_are_cut(pad: u8, version: u8, wide: u32) {
            let bth = Bth { pad, version, dest_qp: wide, ..Bth::default() };
            let dest_qp = wide & 0xFF_FFFF;
            let cut = Bth { pad: pad & 3, version: version & 0xF, dest_qp, ..bth };
            prop_assert_eq!(Bth::parse(&emitted!(bth, Bth)), cut);
            let deth = Deth { qkey: 0, src_qp: wide };
            prop_assert_eq!(Deth::parse(&emitted!(deth, Deth)).src_qp, wide & 0xFF_FFFF);
            let xrceth = Xrceth { srqn: wide };
            prop_assert_eq!(Xrceth::parse(&emitted!(xrceth, Xrceth)).srqn, wide & 0xFF_FFFF);
            let feth = Feth { placement: version, selectivity: pad };
            let cut = Feth { placement: version & 0xF, selectivity: pad & 3 };
            prop_assert_eq!(Feth::parse(&emitted!(feth, Feth)), cut);
            let aeth = Aeth { syndrome: 0, msn: wide };
            prop_assert_eq!(Aeth::parse(&emitted!(aeth, Aeth)).msn, wide & 0xFF_FFFF);
        }
    }

    #[test]
    fn every_syndrome_byte_that_means_something_round_trips() {
        for byte in 0..=u8::MAX {
            match Syndrome::parse(byte) {
                Syndrome::Reserved => {}
                syndrome => assert_eq!(syndrome.byte(), byte),
            }
        }
        assert_eq!(Syndrome::parse(Syndrome::Reserved.byte()), Syndrome::Reserved);
    }
}
