//! PCIe links: their rates, and the overheads of their packets.
//!
//! The model is that of pcie-bench (Neugebauer et al., SIGCOMM 2018, §3, and its `pcie-model`): of
//! the raw rate, acknowledges, flow-control updates and clock compensation take their part; what
//! is left carries packets of the transaction layer (TLPs), each with a header and framing.

use super::rate::Rate;

/// Bytes of a memory write's header, with 64-bit address, and framing.
pub const WRITE_HEADER: u64 = 24;
/// Bytes of a read request.
pub const READ_REQUEST: u64 = 24;
/// Bytes of a completion's header and framing.
pub const COMPLETION_HEADER: u64 = 20;

/// The bytes between two sets for clock compensation, and the length of one.
const SKIP: (u64, u64) = (1538, 4);
/// Bytes of an acknowledge or of a flow-control update.
const DLLP: u64 = 8;

/// The generation of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generation {
    /// 8 GT/s.
    Gen3,
    /// 16 GT/s.
    Gen4,
}

/// How many lanes a link has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lanes {
    /// Eight.
    X8,
    /// Sixteen.
    X16,
}

/// The most payload of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaxPayload {
    /// 128 bytes.
    B128,
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
}

/// The properties of a link, each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its generation.
    pub generation: Generation,
    /// Its lanes.
    pub lanes: Lanes,
    /// The maximum payload size (MPS).
    pub payload: MaxPayload,
    /// The maximum read request size in bytes (MRRS).
    pub read_request: u64,
}

impl MaxPayload {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            MaxPayload::B128 => 128,
            MaxPayload::B256 => 256,
            MaxPayload::B512 => 512,
        }
    }
}

impl Link {
    /// The rate of the lanes, behind their 128b/130b coding.
    pub const fn raw(self) -> Rate {
        let transfers = match self.generation {
            Generation::Gen3 => 8,
            Generation::Gen4 => 16,
        };
        let lanes = match self.lanes {
            Lanes::X8 => 8,
            Lanes::X16 => 16,
        };
        // Bits in a nanosecond, to bytes.
        Rate::new(transfers * lanes, 8 * 1000).part(128, 130)
    }

    /// The bytes after which an acknowledge is due, and a flow-control update: tables 3-7 to 3-9
    /// and 2-46 to 2-48 of the PCIe Base Specification 5.0, as `pcie-model` cites them.
    const fn update_after(self) -> u64 {
        match (self.lanes, self.payload) {
            (Lanes::X16, MaxPayload::B128) => 144,
            (Lanes::X16, MaxPayload::B256) => 168,
            (Lanes::X8, MaxPayload::B128) => 163,
            (Lanes::X8, MaxPayload::B256) => 203,
            (_, MaxPayload::B512) => 182,
        }
    }

    /// The rate that is left for packets.
    pub const fn packets(self) -> Rate {
        let (skip_after, skip) = SKIP;
        let after = self.update_after();
        let all = after * skip_after;
        self.raw().part(all - 2 * DLLP * skip_after - skip * after, all)
    }

    /// Bytes on the link for a completion, or completions, with `len` bytes of data.
    pub const fn completion(self, len: u64) -> u64 {
        len + len.div_ceil(self.payload.bytes()) * COMPLETION_HEADER
    }

    /// Bytes on the link for a write, or writes, of `len` bytes.
    pub const fn write(self, len: u64) -> u64 {
        len + len.div_ceil(self.payload.bytes()) * WRITE_HEADER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_open_model() {
        let link = |payload| Link {
            generation: Generation::Gen3,
            lanes: Lanes::X16,
            payload,
            read_request: 512,
        };
        let hundredths = |rate: Rate| (rate.gigabytes_per_second() * 100.0).round() as u64;
        let (small, large) = (link(MaxPayload::B256), link(MaxPayload::B512));
        assert_eq!(hundredths(large.raw()), 1575);
        assert_eq!([small, large].map(|link| hundredths(link.packets())), [1421, 1433]);
        // What is left for payload: C2H in writes, H2C in completions.
        let left = |link: Link, wire: u64| hundredths(link.packets().part(4096, wire));
        assert_eq!([small, large].map(|link| left(link, link.write(4096))), [1299, 1369]);
        assert_eq!([small, large].map(|link| left(link, link.completion(4096))), [1318, 1379]);
    }
}
