//! The two headers of the lossy dialect: where a packet belongs (LETH), and what has arrived
//! (SACK). docs/lossy.md says what they are for.
//!
//! The idea is SRNIC's (§4.4.1): a packet that says which message it is part of, and which part,
//! needs neither a reordering buffer nor a table of outstanding packets. The layout is the card's
//! own.

/// Lossy extended transport header, 12 bytes, of every packet but an acknowledge: which message the
/// packet is part of, which part it is, and when it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leth {
    /// See [`Leth::AGAIN`]. Other bits are sent as zero and ignored on arrival.
    pub flags: u8,
    /// The send sequence number, 24 bits: how many messages before this one take a receive element.
    /// In an answer: the PSN of the request that is answered.
    pub ssn: u32,
    /// The path on which the packet was sent.
    pub path: u8,
    /// How many packets of the message come before this one, 24 bits.
    pub offset: u32,
    /// The sender's clock when it sent the packet: the low 32 bits of its nanoseconds.
    pub sent: u32,
}

impl Leth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;
    /// Flag: the packet was sent before.
    pub const AGAIN: u8 = 1;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Leth {
        Leth {
            flags: b[0],
            ssn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
            path: b[4],
            offset: u32::from_be_bytes([0, b[5], b[6], b[7]]),
            sent: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&(self.ssn & 0xFF_FFFF).to_be_bytes());
        b[0] = self.flags;
        b[4..8].copy_from_slice(&(self.offset & 0xFF_FFFF).to_be_bytes());
        b[4] = self.path;
        b[8..12].copy_from_slice(&self.sent.to_be_bytes());
    }
}

/// Selective acknowledge, 20 bytes, behind the AETH of an acknowledge. The BTH's PSN speaks for all
/// packets up to it; the AETH has the PSN of the bitmap's first bit in the place of the MSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sack {
    /// Bit *n*: the packet *n* behind the first one has arrived.
    pub bitmap: u64,
    /// How many packets have arrived, copies included, modulo 2¹⁶.
    pub received: u16,
    /// How many of them had the congestion-experienced mark, modulo 2¹⁶.
    pub marked: u16,
    /// [`Leth::sent`] of the packet that arrived last.
    pub echo: u32,
    /// How long that packet has waited for this acknowledge, in units of [`Sack::HELD_UNIT`].
    pub held: u16,
    /// [`Leth::path`] of that packet.
    pub path: u8,
    /// See [`Sack::ECHO`] and [`Sack::COPY`].
    pub flags: u8,
}

impl Sack {
    /// Bytes on the wire.
    pub const LEN: usize = 20;
    /// The unit of [`Sack::held`], in nanoseconds: 2¹⁶ of them are 8 ms.
    pub const HELD_UNIT: u64 = 128;
    /// Flag: a packet has arrived, so that `echo` and `path` mean something.
    pub const ECHO: u8 = 1;
    /// Flag: that packet had arrived before. Its sender took it for lost when it was not.
    pub const COPY: u8 = 2;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Sack {
        let v = u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]);
        Sack {
            bitmap: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            received: (v >> 48) as u16,
            marked: (v >> 32) as u16,
            echo: v as u32,
            held: u16::from_be_bytes([b[16], b[17]]),
            path: b[18],
            flags: b[19],
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.bitmap.to_be_bytes());
        b[8..10].copy_from_slice(&self.received.to_be_bytes());
        b[10..12].copy_from_slice(&self.marked.to_be_bytes());
        b[12..16].copy_from_slice(&self.echo.to_be_bytes());
        b[16..18].copy_from_slice(&self.held.to_be_bytes());
        (b[18], b[19]) = (self.path, self.flags);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LETH: Leth =
        Leth { flags: 1, ssn: 0x02_0304, path: 5, offset: 0x06_0708, sent: 0x090A_0B0C };

    const SACK: Sack = Sack {
        bitmap: 0x0102_0304_0506_0708,
        received: 0x090A,
        marked: 0x0B0C,
        echo: 0x0D0E_0F10,
        held: 0x1112,
        path: 0x13,
        flags: 0x14,
    };

    /// The bytes 1, 2, 3…
    fn counted<const N: usize>() -> [u8; N] {
        core::array::from_fn(|i| i as u8 + 1)
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let (mut leth, mut sack) = ([0xAA; Leth::LEN], [0xAA; Sack::LEN]);
        LETH.emit(&mut leth);
        SACK.emit(&mut sack);
        assert_eq!((leth, sack), (counted(), counted()));
        assert_eq!((Leth::parse(&counted()), Sack::parse(&counted())), (LETH, SACK));
    }

    proptest! {
        #[test]
        fn leth_round_trip(
            flags: u8, ssn in 0u32..1 << 24, path: u8, offset in 0u32..1 << 24, sent: u32
        ) {
            let (leth, mut b) = (Leth { flags, ssn, path, offset, sent }, [0xAA; Leth::LEN]);
            leth.emit(&mut b);
            prop_assert_eq!(Leth::parse(&b), leth);
        }

        /// A value that is too wide for its field does not change the fields beside it.
        #[test]
        fn wide_values_are_cut(wide: u32) {
            let mut b = [0; Leth::LEN];
            Leth { flags: 0, ssn: wide, path: 0, offset: wide, sent: 0 }.emit(&mut b);
            let (ssn, offset) = (wide & 0xFF_FFFF, wide & 0xFF_FFFF);
            prop_assert_eq!(Leth::parse(&b), Leth { ssn, offset, ..Leth::default() });
        }

        #[test]
        fn sack_round_trip(
            bitmap: u64, received: u16, marked: u16, echo: u32, held: u16, path: u8, flags: u8
        ) {
            let sack = Sack { bitmap, received, marked, echo, held, path, flags };
            let mut b = [0xAA; Sack::LEN];
            sack.emit(&mut b);
            prop_assert_eq!(Sack::parse(&b), sack);
        }
    }
}
