//! Network interfaces: which address a card takes, how large its packets may be, and by which
//! address a peer is reached.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use remora_nic::qp::Mtu;
use thiserror::Error;

use crate::socket::{BindError, Config, Socket};

/// One address of a network interface of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The address.
    pub addr: IpAddr,
    /// The interface's number, for link-local IPv6 addresses; 0 for all others.
    pub scope_id: u32,
    /// The longest IP packet that the interface carries, in bytes.
    pub link_mtu: u32,
}

/// Why an interface was not found.
#[derive(Debug, Error)]
pub enum InterfaceError {
    /// The system would not list its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    List(#[source] io::Error),
    /// No interface or address of this machine has that name.
    #[error("no interface or address of this machine is `{wanted}`; there are: {known}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// The names and addresses that exist.
        known: String,
    },
    /// The system would not say how large packets may be.
    #[error("cannot read the MTU of interface {name}: {source}")]
    Mtu {
        /// The interface.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl Interface {
    /// Finds the interface with the IP address or name `wanted`. Of a named interface's addresses,
    /// IPv4 goes first, then global IPv6, and then link-local IPv6.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn find(wanted: &str) -> Result<Interface, InterfaceError> {
        let mut all = sys::addresses().map_err(InterfaceError::List)?;
        all.sort_by_key(|(_, addr)| preference(addr));
        let ip = wanted.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let found = all.iter().find(|(name, addr)| match ip {
            Some(ip) => addr.ip() == ip || on_loopback(ip, addr.ip()),
            None => name == wanted,
        });
        let Some((name, addr)) = found else {
            let known: Vec<String> = all.iter().map(|(n, a)| format!("{n} {}", a.ip())).collect();
            let known = known.join(", ");
            return Err(InterfaceError::Unknown { wanted: wanted.to_owned(), known });
        };
        let link_mtu = sys::link_mtu(name)
            .map_err(|source| InterfaceError::Mtu { name: name.clone(), source })?;
        let scope_id = match addr {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Ok(Interface { name: name.clone(), addr: ip.unwrap_or(addr.ip()), scope_id, link_mtu })
    }

    /// The largest RoCE path MTU whose packets fit the link.
    pub fn path_mtu(&self) -> Mtu {
        Mtu::fitting(self.link_mtu as usize)
    }

    /// Opens a socket on this address.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(&self, config: Config) -> Result<Socket, BindError> {
        Socket::bind_scoped(self.addr, self.scope_id, config)
    }
}

/// The addresses of this machine.
///
/// # Errors
/// The system would not list its interfaces.
pub(crate) fn addresses() -> io::Result<Vec<IpAddr>> {
    Ok(sys::addresses()?.into_iter().map(|(_, addr)| addr.ip().to_canonical()).collect())
}

/// A UDP socket connected to `peer`, which tells the system's route to it: its local address is the
/// address that packets to `peer` leave from. Nothing is sent.
///
/// # Errors
/// There is no route to `peer`.
pub fn route_to(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket)
}

fn preference(addr: &SocketAddr) -> u8 {
    match addr.ip() {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    }
}

/// Are both addresses of the loopback interface? All of 127.0.0.0/8 belongs to it, but it lists one
/// address only.
fn on_loopback(wanted: IpAddr, listed: IpAddr) -> bool {
    wanted.is_ipv4() && listed.is_ipv4() && wanted.is_loopback() && listed.is_loopback()
}

mod sys {
    //! The system calls.

    use super::*;

    /// Every address, with the name of its interface.
    pub(super) fn addresses() -> io::Result<Vec<(String, SocketAddr)>> {
        let mut first: *mut libc::ifaddrs = ptr::null_mut();
        // SAFETY: the call writes `first` only; on success this function owns the list until
        // `freeifaddrs`.
        if unsafe { libc::getifaddrs(&mut first) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut found = Vec::new();
        let mut next = first;
        // SAFETY: each pointer comes from the list, which lives until it is freed below; the C
        // library ends names with a zero byte.
        while let Some(entry) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            // SAFETY: as above; the address is null or as long as its family says.
            if let Some(addr) = unsafe { socket_addr(entry.ifa_addr) } {
                found.push((name, addr));
            }
            next = entry.ifa_next;
        }
        // SAFETY: `first` came from `getifaddrs`, is freed once, and nothing borrows from it.
        unsafe { libc::freeifaddrs(first) };
        Ok(found)
    }

    /// # Safety
    /// `addr` is null, or points to an address as long as its family says.
    unsafe fn socket_addr(addr: *const libc::sockaddr) -> Option<SocketAddr> {
        // SAFETY: null, or an address, by the caller's promise.
        let family = i32::from(unsafe { addr.as_ref() }?.sa_family);
        match family {
            libc::AF_INET => {
                // SAFETY: the family says what it is.
                let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
                Some((IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()), 0).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family says what it is.
                let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                let ip = v6.sin6_addr.s6_addr.into();
                Some(std::net::SocketAddrV6::new(ip, 0, 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// The longest IP packet that the interface `name` carries.
    pub(super) fn link_mtu(name: &str) -> io::Result<u32> {
        // The question needs a socket, but it does not matter which.
        let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
        // SAFETY: all fields are integers, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed() as _;
        }
        // SAFETY: SIOCGIFMTU reads the name, which ends with a zero byte, and writes the MTU.
        let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so this is the member that it wrote.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.try_into().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_by_any_of_its_addresses() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!((lo.addr, lo.path_mtu()), ("127.0.0.1".parse().unwrap(), Mtu::B4096));
        let other = Interface::find("127.0.3.9").unwrap();
        assert_eq!((other.name.as_str(), other.addr), ("lo", "127.0.3.9".parse().unwrap()));
    }

    #[test]
    fn the_way_to_loopback_is_from_loopback() {
        let route = route_to("127.0.0.9:4791".parse().unwrap()).unwrap();
        assert!(route.local_addr().unwrap().ip().is_loopback());
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let text = Interface::find("nosuch0").unwrap_err().to_string();
        assert!(text.contains("`nosuch0`") && text.contains("lo 127.0.0.1"), "{text}");
    }
}
