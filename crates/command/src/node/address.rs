//! The address of a node, `HOST` or `HOST:PORT`, and of a region, with `/NAME` after it. A host is
//! an IP address or the name of a machine.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
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
        "`{0}` is not a node's address: write its IP address as `remora node` prints it, or its \
         machine's name, as in 127.0.0.2, 127.0.0.2:7000, [fe80::1]:7000 or host:7000"
    )]
    Node(String),
    /// The text names a machine, and nobody knows its address.
    #[error("the address of the machine `{name}` is not known: {why}")]
    Name {
        /// The machine.
        name: String,
        /// What the system's look-up of names says.
        why: String,
    },
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
    /// Reads `HOST` or `HOST:PORT`, with the port that is meant by default. The system looks a
    /// machine's name up, which may take seconds; the first of its addresses is the node's.
    ///
    /// # Errors
    /// The text is no address, or nobody knows the machine.
    pub fn parse(text: &str, default_port: u16) -> Result<NodeAddress, AddressError> {
        let found = match literal(text, default_port) {
            Some(found) => found,
            None => looked_up(named(text, default_port)?)?,
        };
        if found.ip().is_unspecified() || found.port() == 0 {
            return Err(AddressError::Node(text.into()));
        }
        Ok(NodeAddress { ip: found.ip(), port: found.port() })
    }
}

/// Lets a text pass that may be a node's address, whether or not anybody knows the machine.
///
/// # Errors
/// The text is no address.
pub fn written(text: &str) -> Result<String, AddressError> {
    match literal(text, DEFAULT_PORT) {
        Some(_) => Ok(text.to_owned()),
        None => named(text, DEFAULT_PORT).map(|_| text.to_owned()),
    }
}

impl From<NodeAddress> for SocketAddr {
    fn from(node: NodeAddress) -> SocketAddr {
        SocketAddr::new(node.ip, node.port)
    }
}

/// An IP address, in brackets or not, and perhaps a port.
fn literal(text: &str, default_port: u16) -> Option<SocketAddr> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let bare = match bracketed {
        Some(v6) => v6.parse::<Ipv6Addr>().map(IpAddr::from),
        None => text.parse::<IpAddr>(),
    };
    bare.map(|ip| SocketAddr::new(ip, default_port)).or_else(|_| text.parse()).ok()
}

/// A machine's name, and perhaps a port.
fn named(text: &str, default_port: u16) -> Result<(&str, u16), AddressError> {
    let wrong = || AddressError::Node(text.into());
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, port.parse().map_err(|_| wrong())?),
        None => (text, default_port),
    };
    if is_host_name(name) { Ok((name, port)) } else { Err(wrong()) }
}

/// The first address of a machine.
fn looked_up((name, port): (&str, u16)) -> Result<SocketAddr, AddressError> {
    let unknown = |why: String| AddressError::Name { name: name.into(), why };
    let mut found = (name, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("it has none".into()))
}

/// Is it a name of a machine? Its last part has a letter (RFC 3696, section 2), which keeps
/// addresses that lack a part from being completed by the system.
fn is_host_name(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        && last.bytes().any(|byte| byte.is_ascii_alphabetic())
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
        for wrong in [
            "",
            "1.2.3",
            "1.2.3:80",
            "1.2.3.4:",
            "1.2.3.4:0",
            "0.0.0.0",
            "[::]",
            "[::1",
            "localhost:",
            "localhost:0",
            "localhost:65536",
            "a b",
        ] {
            let refused = wrong.parse::<NodeAddress>();
            assert_eq!(refused, Err(AddressError::Node(wrong.into())), "{wrong}");
        }
        assert!(written("1.2.3").is_err() && written("a b").is_err());
    }

    #[test]
    fn machines_by_their_names() {
        for (text, port) in [("localhost", DEFAULT_PORT), ("localhost:7000", 7000)] {
            let node: NodeAddress = text.parse().unwrap();
            assert!(node.ip.is_loopback(), "{node}");
            assert_eq!(node.port, port);
        }
        assert!(written("no.such.name.invalid:7000").is_ok());
        let unknown = "no.such.name.invalid:7000".parse::<NodeAddress>().unwrap_err();
        assert!(
            matches!(&unknown, AddressError::Name { name, .. } if name == "no.such.name.invalid")
        );
    }

    #[test]
    fn regions() {
        let region: RegionAddress = "[::1]:7000/data".parse().unwrap();
        assert_eq!(region.to_string(), "[::1]:7000/data");
        let parse = |text: &str| text.parse::<RegionAddress>().unwrap_err();
        assert!(matches!(parse("127.0.0.2"), AddressError::NoRegion(_)));
        assert!(matches!(parse("127.0.0.2/"), AddressError::NoRegion(_)));
        assert!(matches!(parse("127.0.0.2/a/b"), AddressError::Region(_)));
        assert!(matches!(parse("1.2.3/a"), AddressError::Node(_)));
        assert_eq!("127.0.0.2/@stats".parse::<RegionAddress>().unwrap().name, "@stats");
    }
}
