//! SIDR_REQ and SIDR_REP: the question for a datagram service's queue pair, and its answer.

use super::INFO_LEN;
use super::bits::{be16, be24, be32, be64, bytes, put, put_be24};
use crate::cm::mad::Data;
use crate::cm::service::{CMA_HEADER_LEN, ServiceId};

/// Service id resolution request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's id for the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// Which service.
    pub service_id: ServiceId,
    /// Private data; with the RDMA connection manager it begins with a [`CmaHeader`].
    ///
    /// [`CmaHeader`]: crate::cm::service::CmaHeader
    pub private_data: [u8; SidrReq::PRIVATE_DATA],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 216;
    /// Bytes of private data that the RDMA connection manager leaves to its user.
    pub const USER_DATA: usize = Self::PRIVATE_DATA - CMA_HEADER_LEN;

    pub(super) fn parse(data: &Data) -> SidrReq {
        SidrReq {
            request_id: be32(data, 0),
            pkey: be16(data, 4),
            service_id: ServiceId(be64(data, 8)),
            private_data: bytes(data, 16),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.request_id.to_be_bytes());
        put(data, 4, &self.pkey.to_be_bytes());
        put(data, 8, &self.service_id.0.to_be_bytes());
        put(data, 16, &self.private_data);
    }
}

/// The outcome of a service id resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SidrStatus {
    /// The queue pair and its key are in the answer.
    Success,
    /// The service is not offered.
    Unsupported,
    /// The application refuses.
    Rejected,
    /// The peer has no queue pair left.
    NoQp,
    /// Another status of the specification's.
    Other(u8),
}

impl SidrStatus {
    fn from_code(code: u8) -> SidrStatus {
        match code {
            0 => SidrStatus::Success,
            1 => SidrStatus::Unsupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQp,
            other => SidrStatus::Other(other),
        }
    }

    /// The number of the status.
    pub fn code(self) -> u8 {
        match self {
            SidrStatus::Success => 0,
            SidrStatus::Unsupported => 1,
            SidrStatus::Rejected => 2,
            SidrStatus::NoQp => 3,
            SidrStatus::Other(code) => code,
        }
    }
}

/// Service id resolution reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The receiver's id for the request.
    pub request_id: u32,
    /// The outcome.
    pub status: SidrStatus,
    /// How many bytes of `info` are used.
    pub info_len: u8,
    /// The queue pair that speaks for the service, 24 bits.
    pub qpn: u32,
    /// Which service.
    pub service_id: ServiceId,
    /// The queue key to send with.
    pub qkey: u32,
    /// More about the status.
    pub info: [u8; INFO_LEN],
    /// Private data.
    pub private_data: [u8; SidrRep::PRIVATE_DATA],
}

impl SidrRep {
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 136;

    pub(super) fn parse(data: &Data) -> SidrRep {
        SidrRep {
            request_id: be32(data, 0),
            status: SidrStatus::from_code(data[4]),
            info_len: data[5],
            qpn: be24(data, 8),
            service_id: ServiceId(be64(data, 12)),
            qkey: be32(data, 20),
            info: bytes(data, 24),
            private_data: bytes(data, 96),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put(data, 0, &self.request_id.to_be_bytes());
        data[4] = self.status.code();
        data[5] = self.info_len;
        put_be24(data, 8, self.qpn);
        put(data, 12, &self.service_id.0.to_be_bytes());
        put(data, 20, &self.qkey.to_be_bytes());
        put(data, 24, &self.info);
        put(data, 96, &self.private_data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::mad::DATA_LEN;

    /// The bytes are written by hand from the layout of SIDR_REP in chapter 12.
    #[test]
    fn the_bytes_of_a_resolution() {
        let rep = SidrRep {
            request_id: 0x0102_0304,
            status: SidrStatus::NoQp,
            info_len: 5,
            qpn: 0x00ab_cdef,
            service_id: ServiceId(0x1112_1314_1516_1718),
            qkey: 0x2122_2324,
            info: [6; INFO_LEN],
            private_data: [7; SidrRep::PRIVATE_DATA],
        };
        let mut data = [0; DATA_LEN];
        rep.emit(&mut data);
        assert_eq!(data[..12], [1, 2, 3, 4, 3, 5, 0, 0, 0xab, 0xcd, 0xef, 0]);
        assert_eq!(data[12..20], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(data[20..24], [0x21, 0x22, 0x23, 0x24]);
        assert_eq!(data[24..96], [6; INFO_LEN]);
        assert_eq!(data[96..], [7; SidrRep::PRIVATE_DATA]);
        assert_eq!(SidrRep::parse(&data), rep);
    }
}
