//! MRA, REP and RTU: the messages that follow a connection request.

use super::Answered;
use super::bits::{be24, be32, be64, bits, bytes, put, put_be24, put_bits};
use crate::Psn;
use crate::cm::mad::Data;

/// Message receipt acknowledgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Which message has arrived.
    pub acknowledged: Answered,
    /// 5 bits: the time the sender needs to answer that message.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: [u8; Mra::PRIVATE_DATA],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 222;

    pub(super) fn parse(data: &Data) -> Mra {
        Mra {
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            acknowledged: Answered::from_code(bits(data, 8, 0, 2)),
            service_timeout: bits(data, 9, 0, 5),
            private_data: bytes(data, 10),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put_bits(data, 8, 0, 2, self.acknowledged.code());
        put_bits(data, 9, 0, 5, self.service_timeout);
        put(data, 10, &self.private_data);
    }
}

/// Reply to a connection request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Queue key, for reliable datagrams only.
    pub local_qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// The sender's queue pair if it is an XRC target, 24 bits. (Reliable datagrams have their
    /// end-to-end context in this field.)
    pub local_eecn: u32,
    /// The first PSN that the receiver must use.
    pub starting_psn: Psn,
    /// How many RDMA reads and atomics the sender is ready to answer at a time.
    pub responder_resources: u8,
    /// How many RDMA reads and atomics the sender will have under way.
    pub initiator_depth: u8,
    /// 5 bits: the longest time that the sender takes to acknowledge.
    pub target_ack_delay: u8,
    /// 2 bits: the answer about the alternate path; 0 is "accepted", 1 is "not supported".
    pub failover_accepted: u8,
    /// Will the sender obey end-to-end credits?
    pub flow_control: bool,
    /// 3 bits: the sender's retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// Does the sender's queue pair use a shared receive queue?
    pub srq: bool,
    /// The sender's card.
    pub local_ca_guid: u64,
    /// Private data.
    pub private_data: [u8; Rep::PRIVATE_DATA],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 196;

    pub(super) fn parse(data: &Data) -> Rep {
        Rep {
            local_comm_id: be32(data, 0),
            remote_comm_id: be32(data, 4),
            local_qkey: be32(data, 8),
            local_qpn: be24(data, 12),
            local_eecn: be24(data, 16),
            starting_psn: Psn::new(be24(data, 20)),
            responder_resources: data[24],
            initiator_depth: data[25],
            target_ack_delay: bits(data, 26, 0, 5),
            failover_accepted: bits(data, 26, 5, 2),
            flow_control: bits(data, 26, 7, 1) == 1,
            rnr_retry_count: bits(data, 27, 0, 3),
            srq: bits(data, 27, 3, 1) == 1,
            local_ca_guid: be64(data, 28),
            private_data: bytes(data, 36),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 4, &self.remote_comm_id.to_be_bytes());
        put(data, 8, &self.local_qkey.to_be_bytes());
        put_be24(data, 12, self.local_qpn);
        put_be24(data, 16, self.local_eecn);
        put_be24(data, 20, self.starting_psn.value());
        data[24] = self.responder_resources;
        data[25] = self.initiator_depth;
        put_bits(data, 26, 0, 5, self.target_ack_delay);
        put_bits(data, 26, 5, 2, self.failover_accepted);
        put_bits(data, 26, 7, 1, self.flow_control.into());
        put_bits(data, 27, 0, 3, self.rnr_retry_count);
        put_bits(data, 27, 3, 1, self.srq.into());
        put(data, 28, &self.local_ca_guid.to_be_bytes());
        put(data, 36, &self.private_data);
    }
}

/// Ready to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Private data.
    pub private_data: [u8; Rtu::PRIVATE_DATA],
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 224;

    pub(super) fn parse(data: &Data) -> Rtu {
        Rtu {
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

    /// The bytes are written by hand from the layout of REP in chapter 12.
    #[test]
    #[allow(clippy::unusual_byte_groupings)] // grouped as the fields are
    fn the_bytes_of_a_reply() {
        let rep = Rep {
            local_comm_id: 0x0102_0304,
            remote_comm_id: 0x0506_0708,
            local_qkey: 0,
            local_qpn: 0x00ab_cdef,
            local_eecn: 0x0021_2223,
            starting_psn: Psn::new(0x0065_4321),
            responder_resources: 9,
            initiator_depth: 8,
            target_ack_delay: 15,
            failover_accepted: 1,
            flow_control: true,
            rnr_retry_count: 6,
            srq: true,
            local_ca_guid: 0x1112_1314_1516_1718,
            private_data: [0x5a; Rep::PRIVATE_DATA],
        };
        let mut data = [0; DATA_LEN];
        rep.emit(&mut data);
        assert_eq!(data[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(data[8..12], [0; 4]);
        assert_eq!(data[12..16], [0xab, 0xcd, 0xef, 0]);
        assert_eq!(data[16..20], [0x21, 0x22, 0x23, 0]);
        assert_eq!(data[20..24], [0x65, 0x43, 0x21, 0]);
        assert_eq!(data[24..28], [9, 8, 0b01111_01_1, 0b110_1_0000]);
        assert_eq!(data[28..36], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(data[36..], [0x5a; Rep::PRIVATE_DATA]);
        assert_eq!(Rep::parse(&data), rep);
    }

    #[test]
    #[allow(clippy::unusual_byte_groupings)] // grouped as the fields are
    fn the_bytes_of_a_receipt() {
        let mra = Mra {
            local_comm_id: 1,
            remote_comm_id: 2,
            acknowledged: Answered::Rep,
            service_timeout: 24,
            private_data: [0x5a; Mra::PRIVATE_DATA],
        };
        let mut data = [0; DATA_LEN];
        mra.emit(&mut data);
        assert_eq!(data[..10], [0, 0, 0, 1, 0, 0, 0, 2, 0b0100_0000, 0b11000_000]);
        assert_eq!(data[10..], [0x5a; Mra::PRIVATE_DATA]);
        assert_eq!(Mra::parse(&data), mra);
    }
}
