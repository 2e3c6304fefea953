//! The address of a node, `IP` or `IP:PORT`, and of a region, with `/NAME` after it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

use super::DEFAULT_PORT;
use super::protocol::{NAME_MAX, is_name};

/// A node's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// The address of its card.
    pub ip: IpAddr,
    /// The port, in RDMA CM's TCP port space.
    pub port: u16,
}

/// A region of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionAddress {
    /// The node.
    pub node: NodeAddress,
    /// The region's name.
    pub name: String,
}

/// Why a text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AddressError {
    /// The text does not name a node.
    #[error(
        "`{0}` is not a node's address: write its IP address as `remora node` prints it, \
         as in 127.0.0.2, 127.0.0.2:7000 or [fe80::1]:7000"
    )]
    Node(String),
    /// The text has no `/NAME`.
    #[error("`{0}` does not name a region: write NODE/NAME; `remora mem ls NODE` lists the names")]
    NoRegion(String),
    /// The name is not valid for a region.
    #[error(
        "`{0}` is not a region's name: use 1 to {NAME_MAX} letters, digits, dots, dashes and \
         underscores"
    )]
    Region(String),
}

impl FromStr for NodeAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NodeAddress, AddressError> {
        NodeAddress::parse(text, DEFAULT_PORT)
    }
}

impl NodeAddress {
    /// Reads `IP` or `IP:PORT`, with the port that is meant by default.
    ///
    /// # Errors
    /// The text is no address.
    pub fn parse(text: &str, default_port: u16) -> Result<NodeAddress, AddressError> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let bare = match bracketed {
            Some(v6) => v6.parse::<Ipv6Addr>().map(IpAddr::from),
            None => text.parse::<IpAddr>(),
        };
        let (ip, port) = match bare {
            Ok(ip) => (ip, default_port),
            Err(_) => {
                let full: SocketAddr = text.parse().map_err(|_| AddressError::Node(text.into()))?;
                (full.ip(), full.port())
            }
        };
        if ip.is_unspecified() || port == 0 {
            return Err(AddressError::Node(text.into()));
        }
        Ok(NodeAddress { ip, port })
    }
}

/// Prints as a person types it: without the port, if that is the default.
impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            DEFAULT_PORT => write!(f, "{}", self.ip),
            port => write!(f, "{}", SocketAddr::new(self.ip, port)),
        }
    }
}

impl FromStr for RegionAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<RegionAddress, AddressError> {
        let parts = text.split_once('/').ok_or_else(|| AddressError::NoRegion(text.into()))?;
        let (node, name) = (parts.0.parse()?, parts.1);
        if name.is_empty() {
            return Err(AddressError::NoRegion(text.into()));
        }
        if !is_name(name) {
            return Err(AddressError::Region(name.into()));
        }
        Ok(RegionAddress { node, name: name.into() })
    }
}

impl fmt::Display for RegionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes() {
        for (text, ip, port) in [
            ("127.0.0.2", "127.0.0.2", DEFAULT_PORT),
            ("127.0.0.2:7000", "127.0.0.2", 7000),
            ("::1", "::1", DEFAULT_PORT),
            ("[fe80::1]", "fe80::1", DEFAULT_PORT),
            ("[fe80::1]:7000", "fe80::1", 7000),
        ] {
            let node: NodeAddress = text.parse().unwrap();
            assert_eq!((node.ip, node.port), (ip.parse().unwrap(), port), "{text}");
            assert_eq!(node.to_string().parse(), Ok(node));
        }
        for wrong in ["", "host", "1.2.3", "1.2.3.4:", "1.2.3.4:0", "0.0.0.0", "[::]", "[::1"] {
            assert!(wrong.parse::<NodeAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn regions() {
        let region: RegionAddress = "[::1]:7000/data".parse().unwrap();
        assert_eq!(region.to_string(), "[::1]:7000/data");
        let parse = |text: &str| text.parse::<RegionAddress>().unwrap_err();
        assert!(matches!(parse("127.0.0.2"), AddressError::NoRegion(_)));
        assert!(matches!(parse("127.0.0.2/"), AddressError::NoRegion(_)));
        assert!(matches!(parse("127.0.0.2/a/b"), AddressError::Region(_)));
        assert!(matches!(parse("nowhere/a"), AddressError::Node(_)));
        assert_eq!("127.0.0.2/@stats".parse::<RegionAddress>().unwrap().name, "@stats");
    }
}
