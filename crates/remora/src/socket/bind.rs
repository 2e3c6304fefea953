//! Taking an address, and saying why it could not be taken.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use thiserror::Error;

/// How many loopback addresses are tried.
const LOOPBACK_TRIES: u32 = 4096;

/// Why no socket could be bound.
#[derive(Debug, Error)]
pub enum BindError {
    /// `0.0.0.0` or `::`.
    #[error(
        "cannot bind a card to {addr}: a card is known to its peers by one address; name an \
         address of this machine, or an interface"
    )]
    Unspecified {
        /// The address that was asked for.
        addr: IpAddr,
    },
    /// Port 0.
    #[error("cannot bind a card to UDP port 0: peers must know the port; RoCE v2 uses 4791")]
    NoPort,
    /// The port is taken.
    #[error("cannot bind to UDP {addr}: the port is held by {holder}; {}", holder.advice())]
    InUse {
        /// The address and port that were asked for.
        addr: SocketAddr,
        /// What holds the port.
        holder: Holder,
    },
    /// Every loopback address that was tried is taken.
    #[error(
        "no free loopback address: UDP port {port} is taken on all of the {tries} addresses from \
         127.0.0.1 (that one by {holder}); {}", holder.advice()
    )]
    LoopbackFull {
        /// The port.
        port: u16,
        /// How many addresses were tried.
        tries: u32,
        /// What holds the port on the first of them.
        holder: Holder,
    },
    /// The system refused, for another reason.
    #[error(
        "cannot bind to UDP {addr}: {source}; is it an address of this machine? (`ip address` \
         lists them)"
    )]
    Refused {
        /// The address and port that were asked for.
        addr: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket was bound, but an option that correct packets need was refused.
    #[error("cannot prepare the UDP socket on {addr}: {source}; Linux 4.5 or later is needed")]
    Options {
        /// The address that was asked for.
        addr: IpAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// What holds a UDP port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A process that this user can see.
    Process {
        /// Its id.
        pid: u32,
        /// Its command name.
        name: String,
    },
    /// The kernel's own software RDMA card: it takes 4791 on all addresses.
    RdmaRxe,
    /// The kernel itself, or a process of another user or container.
    Hidden,
    /// Nothing any more, a moment after the port was found taken.
    Gone,
}

impl Holder {
    /// Looks through `/proc`. This is slow, and done for an error message only.
    fn of(addr: SocketAddr) -> Holder {
        let table = if addr.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
        let Some(inode) = fs::read_to_string(table).ok().and_then(|t| find_inode(&t, addr)) else {
            return Holder::Gone;
        };
        match find_process(inode) {
            Some((pid, name)) => Holder::Process { pid, name },
            None if fs::exists("/sys/module/rdma_rxe").unwrap_or(false) => Holder::RdmaRxe,
            None => Holder::Hidden,
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Holder::Process { .. } => {
                "stop it, attach to it if it is a card of Remora, or bind to another address"
            }
            Holder::RdmaRxe => {
                "remove its links (`rdma link delete`) or run in another network namespace"
            }
            Holder::Hidden => {
                "look as root (`ss -ulpn`), bind to another address, or use another network \
                 namespace"
            }
            Holder::Gone => "try again",
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Holder::RdmaRxe => f.write_str("the kernel's software RDMA card (rdma_rxe)"),
            Holder::Hidden => f.write_str("the kernel or a process of another user"),
            Holder::Gone => f.write_str("something that has just gone"),
        }
    }
}

/// Binds a plain socket.
pub(super) fn open(addr: SocketAddr) -> Result<UdpSocket, BindError> {
    if addr.port() == 0 {
        return Err(BindError::NoPort);
    }
    UdpSocket::bind(addr).map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            BindError::InUse { addr, holder: Holder::of(addr) }
        } else {
            BindError::Refused { addr, source }
        }
    })
}

/// Binds a plain socket that shares its address with other sockets, for multicast.
pub(super) fn open_shared(addr: SocketAddr) -> io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &addr)?;
    Ok(fd.into())
}

/// Binds a plain socket to 127.0.0.1 or the first free address above it.
pub(super) fn first_free_loopback(port: u16) -> Result<(UdpSocket, IpAddr), BindError> {
    let first = u32::from(Ipv4Addr::LOCALHOST);
    if port == 0 {
        return Err(BindError::NoPort);
    }
    for ip in first..first + LOOPBACK_TRIES {
        let ip = IpAddr::from(Ipv4Addr::from(ip));
        match UdpSocket::bind((ip, port)) {
            Ok(udp) => return Ok((udp, ip)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(source) => return Err(BindError::Refused { addr: (ip, port).into(), source }),
        }
    }
    let holder = Holder::of((Ipv4Addr::LOCALHOST, port).into());
    Err(BindError::LoopbackFull { port, tries: LOOPBACK_TRIES, holder })
}

/// The inode of the socket that `table` (`/proc/net/udp`) lists on the port of `addr`, at that
/// address or at all addresses.
fn find_inode(table: &str, addr: SocketAddr) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        let same_port = u16::from_str_radix(port, 16) == Ok(addr.port());
        let same_ip = ip.bytes().all(|digit| digit == b'0') || ip == proc_form(addr.ip());
        if same_port && same_ip { fields.nth(7)?.parse().ok() } else { None }
    })
}

/// An address as `/proc/net/udp` writes it: words in host order, in hexadecimal.
fn proc_form(ip: IpAddr) -> String {
    let bytes: &[u8] = match &ip {
        IpAddr::V4(ip) => &ip.octets(),
        IpAddr::V6(ip) => &ip.octets(),
    };
    let words = bytes.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    words.map(|word| format!("{word:08X}")).collect()
}

/// The process that has the socket with this inode open, if this user may see it.
fn find_process(inode: u64) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
        let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        if targets.any(|target| target.as_os_str() == link.as_str()) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode ref pointer drops\n  \
        10: 0200007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 \
        4711 2 0000000000000000 0\n  \
        11: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 \
        0 2 0000000000000000 0\n";

    #[cfg(target_endian = "little")]
    #[test]
    fn the_table_of_sockets_is_understood() {
        let find = |addr: &str| find_inode(TABLE, addr.parse().unwrap());
        assert_eq!(find("127.0.0.2:4791"), Some(4711));
        assert_eq!(find("127.0.0.1:4791"), None);
        assert_eq!(find("127.0.0.1:4792"), Some(0), "a socket on all addresses");
        assert_eq!(find("127.0.0.1:4793"), None);
    }

    #[test]
    fn the_holder_is_named_with_advice() {
        let holder = Holder::Process { pid: 7, name: "rxed".into() };
        let error = BindError::InUse { addr: "127.0.0.1:4791".parse().unwrap(), holder };
        let text = error.to_string();
        assert!(text.contains("127.0.0.1:4791") && text.contains("process 7 (rxed)"), "{text}");
        assert!(text.contains("stop it"), "{text}");
    }
}
