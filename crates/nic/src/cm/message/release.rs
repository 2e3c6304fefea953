//! DREQ and DREP: the end of a connection.

use super::bits::{be24, be32, bytes, put, put_be24};
use crate::cm::mad::Data;

/// Disconnection request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// Private data.
    pub private_data: [u8; Dreq::PRIVATE_DATA],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 220;

    pub(super) fn parse(data: &Data) -> Dreq {
        Dreq {
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            remote_qpn: be24(data, 8),
            private_data: bytes(data, 12),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put_be24(data, 8, self.remote_qpn);
        put(data, 12, &self.private_data);
    }
}

/// Disconnection reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Private data.
    pub private_data: [u8; Drep::PRIVATE_DATA],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 224;

    pub(super) fn parse(data: &Data) -> Drep {
        Drep {
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            private_data: bytes(data, 8),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put(data, 8, &self.private_data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::mad::DATA_LEN;

    #[test]
    fn the_bytes_of_a_disconnection() {
        let dreq = Dreq {
            local_comm_id: 1,
            remote_comm_id: 2,
            remote_qpn: 0x00ab_cdef,
            private_data: [3; Dreq::PRIVATE_DATA],
        };
        let mut data = [0; DATA_LEN];
        dreq.emit(&mut data);
        assert_eq!(data[..13], [0, 0, 0, 1, 0, 0, 0, 2, 0xab, 0xcd, 0xef, 0, 3]);
        assert_eq!(Dreq::parse(&data), dreq);
    }
}
