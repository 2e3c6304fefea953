//! REQ, the request for a connection.

use core::net::IpAddr;

use super::bits::{be16, be24, be32, be64, bits, bytes, put, put_be24, put_bits};
use crate::Psn;
use crate::cm::mad::Data;
use crate::cm::service::{CMA_HEADER_LEN, ServiceId};
use crate::wire::ip::gid;

/// The kind of queue pair that a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which RoCE does not have.
    Rd,
    /// One of the extended types (XRC).
    Extended,
}

impl TransportService {
    fn from_code(code: u8) -> TransportService {
        match code {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended,
        }
    }

    fn code(self) -> u8 {
        match self {
            TransportService::Rc => 0,
            TransportService::Uc => 1,
            TransportService::Rd => 2,
            TransportService::Extended => 3,
        }
    }
}

/// The primary path. In RoCE a GID is an IP address, and the LIDs mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Primary {
    /// The sender's LID.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: [u8; 16],
    /// The receiver's GID.
    pub remote_gid: [u8; 16],
    /// 20 bits of flow label.
    pub flow_label: u32,
    /// 6 bits of static rate; 0 means the port's.
    pub packet_rate: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// 4 bits of service level.
    pub service_level: u8,
    /// Does the path stay in its subnet?
    pub subnet_local: bool,
    /// 5 bits: how long the sender's queue pair should wait for an acknowledgement.
    pub ack_timeout: u8,
}

/// The LID that means "no LID".
const PERMISSIVE_LID: u16 = 0xffff;

impl Primary {
    /// A routed path between two addresses.
    pub fn between(local: IpAddr, remote: IpAddr, hop_limit: u8, ack_timeout: u8) -> Primary {
        Primary {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: gid(local).octets(),
            remote_gid: gid(remote).octets(),
            flow_label: 0,
            packet_rate: 0,
            traffic_class: 0,
            hop_limit,
            service_level: 0,
            subnet_local: hop_limit <= 1,
            ack_timeout,
        }
    }

    fn parse(data: &Data) -> Primary {
        Primary {
            local_lid: be16(data, 52),
            remote_lid: be16(data, 54),
            local_gid: bytes(data, 56),
            remote_gid: bytes(data, 72),
            flow_label: be24(data, 88) >> 4,
            packet_rate: bits(data, 91, 2, 6),
            traffic_class: data[92],
            hop_limit: data[93],
            service_level: bits(data, 94, 0, 4),
            subnet_local: bits(data, 94, 4, 1) == 1,
            ack_timeout: bits(data, 95, 0, 5),
        }
    }

    fn emit(&self, data: &mut Data) {
        put(data, 52, &self.local_lid.to_be_bytes());
        put(data, 54, &self.remote_lid.to_be_bytes());
        put(data, 56, &self.local_gid);
        put(data, 72, &self.remote_gid);
        put_be24(data, 88, self.flow_label << 4);
        put_bits(data, 91, 2, 6, self.packet_rate);
        data[92] = self.traffic_class;
        data[93] = self.hop_limit;
        put_bits(data, 94, 0, 4, self.service_level);
        put_bits(data, 94, 4, 1, self.subnet_local.into());
        put_bits(data, 95, 0, 5, self.ack_timeout);
    }
}

/// Connection request. The alternate path is left out: RoCE cards do not migrate paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The service that the sender asks for.
    pub service_id: ServiceId,
    /// The sender's card.
    pub local_ca_guid: u64,
    /// Queue key, for reliable datagrams only.
    pub local_qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// How many RDMA reads and atomics the sender is ready to answer at a time.
    pub responder_resources: u8,
    /// How many RDMA reads and atomics the sender wants to have under way.
    pub initiator_depth: u8,
    /// 5 bits: the time in which the receiver is expected to answer.
    pub remote_response_timeout: u8,
    /// Kind of queue pair.
    pub transport: TransportService,
    /// Will the sender obey end-to-end credits?
    pub flow_control: bool,
    /// The first PSN that the receiver must use.
    pub starting_psn: Psn,
    /// 5 bits: the time in which the sender answers.
    pub local_response_timeout: u8,
    /// 3 bits: the sender's transport retries.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// 4 bits: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// 3 bits: the sender's retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// 4 bits: how many times the receiver may repeat a message of its own.
    pub max_cm_retries: u8,
    /// Does the sender's queue pair use a shared receive queue?
    pub srq: bool,
    /// 3 bits: which extended transport.
    pub extended_transport: u8,
    /// The path to the receiver.
    pub primary: Primary,
    /// Private data; with the RDMA connection manager it begins with a [`CmaHeader`].
    ///
    /// [`CmaHeader`]: crate::cm::service::CmaHeader
    pub private_data: [u8; Req::PRIVATE_DATA],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 92;
    /// Bytes of private data that the RDMA connection manager leaves to its user.
    pub const USER_DATA: usize = Self::PRIVATE_DATA - CMA_HEADER_LEN;

    pub(super) fn parse(data: &Data) -> Req {
        Req {
            local_comm_id: be32(data, 0),
            service_id: ServiceId(be64(data, 8)),
            local_ca_guid: be64(data, 16),
            local_qkey: be32(data, 28),
            local_qpn: be24(data, 32),
            responder_resources: data[35],
            initiator_depth: data[39],
            remote_response_timeout: bits(data, 43, 0, 5),
            transport: TransportService::from_code(bits(data, 43, 5, 2)),
            flow_control: bits(data, 43, 7, 1) == 1,
            starting_psn: Psn::new(be24(data, 44)),
            local_response_timeout: bits(data, 47, 0, 5),
            retry_count: bits(data, 47, 5, 3),
            pkey: be16(data, 48),
            path_mtu: bits(data, 50, 0, 4),
            rnr_retry_count: bits(data, 50, 5, 3),
            max_cm_retries: bits(data, 51, 0, 4),
            srq: bits(data, 51, 4, 1) == 1,
            extended_transport: bits(data, 51, 5, 3),
            primary: Primary::parse(data),
            private_data: bytes(data, 140),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.local_comm_id.to_be_bytes());
        put(data, 8, &self.service_id.0.to_be_bytes());
        put(data, 16, &self.local_ca_guid.to_be_bytes());
        put(data, 28, &self.local_qkey.to_be_bytes());
        put_be24(data, 32, self.local_qpn);
        data[35] = self.responder_resources;
        data[39] = self.initiator_depth;
        put_bits(data, 43, 0, 5, self.remote_response_timeout);
        put_bits(data, 43, 5, 2, self.transport.code());
        put_bits(data, 43, 7, 1, self.flow_control.into());
        put_be24(data, 44, self.starting_psn.value());
        put_bits(data, 47, 0, 5, self.local_response_timeout);
        put_bits(data, 47, 5, 3, self.retry_count);
        put(data, 48, &self.pkey.to_be_bytes());
        put_bits(data, 50, 0, 4, self.path_mtu);
        put_bits(data, 50, 5, 3, self.rnr_retry_count);
        put_bits(data, 51, 0, 4, self.max_cm_retries);
        put_bits(data, 51, 4, 1, self.srq.into());
        put_bits(data, 51, 5, 3, self.extended_transport);
        self.primary.emit(data);
        put(data, 140, &self.private_data);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cm::mad::DATA_LEN;
    use crate::cm::service::PortSpace;

    pub(crate) fn example() -> Req {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        Req {
            local_comm_id: 0x0102_0304,
            service_id: PortSpace::Tcp.service_id(0x4711),
            local_ca_guid: 0x1112_1314_1516_1718,
            local_qkey: 0,
            local_qpn: 0x00ab_cdef,
            responder_resources: 4,
            initiator_depth: 3,
            remote_response_timeout: 20,
            transport: TransportService::Uc,
            flow_control: true,
            starting_psn: Psn::new(0x0065_4321),
            local_response_timeout: 21,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 5,
            rnr_retry_count: 6,
            max_cm_retries: 15,
            srq: true,
            extended_transport: 0,
            primary: Primary {
                flow_label: 0x000f_1234,
                packet_rate: 3,
                traffic_class: 0x68,
                ..Primary::between(ip(1), ip(2), 64, 18)
            },
            private_data: [0x5a; Req::PRIVATE_DATA],
        }
    }

    /// The bytes are written by hand from the layout of REQ in chapter 12.
    #[test]
    #[allow(clippy::unusual_byte_groupings)] // grouped as the fields are
    fn the_bytes_of_a_request() {
        let mut data = [0; DATA_LEN];
        example().emit(&mut data);
        assert_eq!(data[0..4], [1, 2, 3, 4]);
        assert_eq!(data[4..8], [0; 4]);
        assert_eq!(data[8..16], [0, 0, 0, 0, 1, 6, 0x47, 0x11]);
        assert_eq!(data[16..24], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(data[24..32], [0; 8]);
        assert_eq!(data[32..36], [0xab, 0xcd, 0xef, 4]);
        assert_eq!(data[36..40], [0, 0, 0, 3]);
        assert_eq!(data[40..44], [0, 0, 0, 0b10100_01_1]);
        assert_eq!(data[44..48], [0x65, 0x43, 0x21, 0b10101_111]);
        assert_eq!(data[48..52], [0xff, 0xff, 0b0101_0_110, 0b1111_1_000]);
        assert_eq!(data[52..56], [0xff; 4]);
        assert_eq!(data[56..72], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(data[72..88], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(data[88..92], [0xf1, 0x23, 0x40, 3]);
        assert_eq!(data[92..96], [0x68, 64, 0, 0b10010_000]);
        assert_eq!(data[96..140], [0; 44]);
        assert_eq!(data[140..], [0x5a; Req::PRIVATE_DATA]);
        assert_eq!(Req::parse(&data), example());
    }
}
