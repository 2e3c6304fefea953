//! The settings and limits of a communication manager.

use core::net::IpAddr;

use super::offer::guid_with;
use crate::wire::Dialect;

/// The manager's settings and limits. A time is given as an exponent *n*: 4.096 µs · 2ⁿ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CmConfig {
    /// The address of this side.
    pub local: IpAddr,
    /// The GUID of the card. Peers find connections by it, so it should be unique.
    pub ca_guid: u64,
    /// Connections that may exist, those in time-wait included. One peer may ask for half of what
    /// the others leave.
    pub max_connections: usize,
    /// Requests that may wait at one listener until they are connections. One peer's may take half
    /// of what the others leave.
    pub max_pending: usize,
    /// Listeners that may exist.
    pub max_listeners: usize,
    /// Service id resolutions that may be under way: so many begun by this side, and so many by
    /// peers. One peer's may take half of what the others leave.
    pub max_resolutions: usize,
    /// Messages that may wait to be sent. Further ones are dropped, as if the network had lost
    /// them.
    pub max_outgoing: usize,
    /// The time in which the peer is expected to answer, and in which this side promises to. At
    /// most 31.
    pub response_timeout: u8,
    /// The time that this side asks for when the peer repeats a message before the caller has
    /// answered it. At most 31.
    pub service_timeout: u8,
    /// The longest time that a peer may ask for by an MRA. At most 31.
    pub max_service_timeout: u8,
    /// The longest time that a peer may choose in its request: for answers, and for time-wait. At
    /// most 31.
    pub max_requested_timeout: u8,
    /// How many times a message is repeated. At most 15.
    pub max_retries: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Partition key.
    pub pkey: u16,
    /// What this card offers to its peers on reliable connections, beyond the standard. Reliable
    /// connections use what both cards offer: [`IncomingRequest::dialect`] and [`Reply::dialect`]
    /// say what that is, and the card's queue pairs speak it ([`crate::Nic::connect`]). While this
    /// or [`CmConfig::offers_here`] is not empty, bytes of the GUID say what is offered.
    ///
    /// [`IncomingRequest::dialect`]: super::IncomingRequest::dialect
    /// [`Reply::dialect`]: super::Reply::dialect
    pub offers: Dialect,
    /// As [`CmConfig::offers`], for peers of this card's own machine
    /// ([`crate::Config::is_here`]). [`crate::Nic::set_offers_here`] changes it.
    pub offers_here: Dialect,
}

impl CmConfig {
    /// The settings of the Linux RDMA connection manager, and moderate limits.
    pub fn new(local: IpAddr, ca_guid: u64) -> CmConfig {
        CmConfig {
            local,
            ca_guid,
            max_connections: 1 << 18,
            max_pending: 1 << 14,
            max_listeners: 4096,
            max_resolutions: 4096,
            max_outgoing: 1 << 16,
            response_timeout: 20,
            service_timeout: 24,
            max_service_timeout: 24,
            max_requested_timeout: 20,
            max_retries: 15,
            hop_limit: 64,
            pkey: 0xffff,
            offers: Dialect::STANDARD,
            offers_here: Dialect::STANDARD,
        }
    }

    /// Gives the card this GUID, with the mark by which peers of its kind know it. The mark takes
    /// the second to fifth byte.
    pub(crate) fn set_guid(&mut self, guid: u64) {
        self.ca_guid = guid_with(guid, Dialect::STANDARD);
    }

    /// The GUID in a message that offers or confirms `dialect`.
    pub(super) fn guid_with(&self, dialect: Dialect) -> u64 {
        let offers = self.offers | self.offers_here;
        if offers.is_empty() { self.ca_guid } else { guid_with(self.ca_guid, dialect) }
    }
}
