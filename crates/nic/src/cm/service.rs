//! Service ids, and the header in which the RDMA connection manager states addresses.
//!
//! The RDMA connection manager (InfiniBand annex A11, RDMA IP CM Service) maps a port of a port
//! space to a service id, and puts both IP addresses and the active side's port at the start of the
//! private data.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::message::bits::{be16, bytes, put};
use super::message::{TooLong, private_data};
use crate::wire::ip::gid;

/// The id of a service that a listener offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceId(pub u64);

/// A space of port numbers, as in `rdma_create_id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PortSpace {
    /// Connected queue pairs.
    Tcp,
    /// Datagram queue pairs: resolved by SIDR.
    Udp,
    /// Any queue pair, by InfiniBand service.
    Ib,
}

impl PortSpace {
    const ALL: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    const fn number(self) -> u64 {
        match self {
            PortSpace::Tcp => 0x0106,
            PortSpace::Udp => 0x0111,
            PortSpace::Ib => 0x013f,
        }
    }

    /// The service id of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId(self.number() << 16 | port as u64)
    }
}

impl ServiceId {
    /// The port space and the port, if the id is one of the RDMA connection manager's.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace::ALL.into_iter().find(|space| space.number() == self.0 >> 16)?;
        Some((space, (self.0 & 0xffff) as u16))
    }

    /// May a peer connect to the service? A datagram service is resolved instead.
    pub(super) fn takes_connections(self) -> bool {
        self.port().is_none_or(|(space, _)| space != PortSpace::Udp)
    }

    /// May a peer ask which queue pair serves, as for a datagram service?
    pub(super) fn takes_questions(self) -> bool {
        self.port().is_none_or(|(space, _)| space != PortSpace::Tcp)
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{space:?}:{port}"),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

/// Bytes of the header.
pub const CMA_HEADER_LEN: usize = 36;
const CMA_VERSION: u8 = 0;

/// The header at the start of the private data of REQ and SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CmaHeader {
    /// The active side's address and port.
    pub source: SocketAddr,
    /// The passive side's address. Its port is in the service id.
    pub destination: IpAddr,
}

/// Why private data does not begin with a legal header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmaMalformed {
    /// Shorter than the header.
    #[error("too short for the CMA header")]
    Length,
    /// Version other than 0.
    #[error("unknown CMA version {0}")]
    Version(u8),
    /// Neither IPv4 nor IPv6.
    #[error("unknown IP version {0}")]
    IpVersion(u8),
}

impl CmaHeader {
    /// Splits private data into the header and the user's data behind it.
    ///
    /// # Errors
    /// [`CmaMalformed::Length`] if the data is shorter than the header; [`CmaMalformed::Version`]
    /// and [`CmaMalformed::IpVersion`] if the header is not of version 0 with addresses of IPv4 or
    /// IPv6 (annex A11).
    pub fn split(data: &[u8]) -> Result<(CmaHeader, &[u8]), CmaMalformed> {
        let (header, rest) =
            data.split_first_chunk::<CMA_HEADER_LEN>().ok_or(CmaMalformed::Length)?;
        if header[0] != CMA_VERSION {
            return Err(CmaMalformed::Version(header[0]));
        }
        let address: fn(&[u8], usize) -> IpAddr = match header[1] >> 4 {
            4 => |h, at| Ipv4Addr::from(bytes::<4>(h, at + 12)).into(),
            6 => |h, at| IpAddr::from(bytes::<16>(h, at)),
            other => return Err(CmaMalformed::IpVersion(other)),
        };
        let source = SocketAddr::new(address(header, 4), be16(header, 2));
        Ok((CmaHeader { source, destination: address(header, 20) }, rest))
    }

    /// The bytes of the header. Addresses of two families are both written as IPv6.
    pub fn emit(&self) -> [u8; CMA_HEADER_LEN] {
        let mut header = [0; CMA_HEADER_LEN];
        header[0] = CMA_VERSION;
        put(&mut header, 2, &self.source.port().to_be_bytes());
        match (self.source.ip(), self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                header[1] = 4 << 4;
                put(&mut header, 16, &source.octets());
                put(&mut header, 32, &destination.octets());
            }
            (source, destination) => {
                header[1] = 6 << 4;
                put(&mut header, 4, &gid(source).octets());
                put(&mut header, 20, &gid(destination).octets());
            }
        }
        header
    }

    /// A field of private data: this header, then the user's data.
    ///
    /// # Errors
    /// [`TooLong`] if the two do not fit.
    pub fn prepend<const N: usize>(&self, user: &[u8]) -> Result<[u8; N], TooLong> {
        let max = N.saturating_sub(CMA_HEADER_LEN);
        if user.len() > max {
            return Err(TooLong { len: user.len(), max });
        }
        private_data(&[&self.emit(), user].concat())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cm::message::Req;

    #[test]
    fn ports_are_service_ids() {
        assert_eq!(PortSpace::Tcp.service_id(0x1234), ServiceId(0x0000_0000_0106_1234));
        assert_eq!(PortSpace::Udp.service_id(7), ServiceId(0x0000_0000_0111_0007));
        assert_eq!(PortSpace::Ib.service_id(7), ServiceId(0x0000_0000_013f_0007));
        assert_eq!(ServiceId(0x0111_0007).port(), Some((PortSpace::Udp, 7)));
        assert_eq!(ServiceId(0x1_0000_0106_1234).port(), None);
    }

    /// The bytes are written by hand: version, IP version, port, then each IPv4 address in the last
    /// 4 of 16 bytes.
    #[test]
    fn the_bytes_of_a_header() {
        let header = CmaHeader {
            source: "10.0.0.1:4660".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
        };
        let mut expected = [0; CMA_HEADER_LEN];
        expected[..4].copy_from_slice(&[0, 0x40, 0x12, 0x34]);
        expected[16..20].copy_from_slice(&[10, 0, 0, 1]);
        expected[32..].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(header.emit(), expected);
        assert_eq!(CmaHeader::split(&expected), Ok((header, &[][..])));
    }

    #[test]
    fn ipv6_keeps_all_its_bytes() {
        let header = CmaHeader {
            source: "[fe80::1]:9".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
        };
        let data: [u8; Req::PRIVATE_DATA] = header.prepend(b"hello").unwrap();
        let (parsed, user) = CmaHeader::split(&data).unwrap();
        assert_eq!((parsed, &user[..6]), (header, &b"hello\0"[..]));
        assert_eq!(user.len(), Req::USER_DATA);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let mut data = [0; Req::PRIVATE_DATA];
        assert_eq!(CmaHeader::split(&data), Err(CmaMalformed::IpVersion(0)));
        data[0] = 1;
        assert_eq!(CmaHeader::split(&data), Err(CmaMalformed::Version(1)));
        assert_eq!(CmaHeader::split(&data[..35]), Err(CmaMalformed::Length));
    }

    #[test]
    fn too_much_user_data_is_refused() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let header = CmaHeader { source: (ip, 1).into(), destination: ip };
        assert_eq!(
            header.prepend::<{ Req::PRIVATE_DATA }>(&[0; 57]),
            Err(TooLong { len: 57, max: 56 })
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(data in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok((header, _)) = CmaHeader::split(&data) {
                let _ = header.emit();
            }
        }
    }
}
