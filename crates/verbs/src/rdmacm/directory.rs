//! How programs on one machine find each other's listeners.
//!
//! Each process has a card, and without configuration each card has an address of its own in
//! 127.0.0.0/8. Yet a client asks for a port of 127.0.0.1, or of the machine's own address. So a
//! listener binds abstract Unix sockets, whose names say on which card it listens:
//!
//! ```text
//! @remora/cm/<port space>/<port>/<address>          held by the process that has bound the port
//! @remora/cm/<port space>/<port>/<address>/<card>   held by a listener, with its card's address
//! ```
//!
//! Clients read the names in `/proc/net/unix`. The names vanish with the process, belong to a
//! network namespace as addresses do, and need neither files nor a daemon. An id bound to all
//! addresses has `*` there, or `*4` or `*6` if it is bound to those of one family.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use crate::abi::rdma_cma::rdma_port_space;

/// The UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;

/// The addresses that a listener or a bound id covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// All addresses.
    All,
    /// All of IPv4, or of IPv6.
    Family { v6: bool },
    /// This address only.
    One(IpAddr),
}

impl Scope {
    /// The scope of an address to bind to.
    pub(super) fn of(ip: IpAddr, v6_only: bool) -> Scope {
        match ip {
            ip if !ip.is_unspecified() => Scope::One(ip.to_canonical()),
            IpAddr::V6(_) if !v6_only => Scope::All,
            ip => Scope::Family { v6: ip.is_ipv6() },
        }
    }

    fn parse(text: &str) -> Option<Scope> {
        Some(match text {
            "*" => Scope::All,
            "*4" => Scope::Family { v6: false },
            "*6" => Scope::Family { v6: true },
            ip => Scope::One(ip.parse().ok()?),
        })
    }

    /// Do both contain some address?
    fn overlaps(self, other: Scope) -> bool {
        match (self, other) {
            (Scope::All, _) | (_, Scope::All) => true,
            (Scope::Family { v6 }, Scope::Family { v6: other }) => v6 == other,
            (Scope::Family { v6 }, Scope::One(ip)) | (Scope::One(ip), Scope::Family { v6 }) => {
                ip.is_ipv6() == v6
            }
            (Scope::One(ip), Scope::One(other)) => ip == other,
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scope::All => f.write_str("*"),
            Scope::Family { v6: false } => f.write_str("*4"),
            Scope::Family { v6: true } => f.write_str("*6"),
            Scope::One(ip) => ip.fmt(f),
        }
    }
}

/// A name in the directory.
struct Entry {
    scope: Scope,
    /// The card of the listener; `None` if the port is only held.
    card: Option<IpAddr>,
    /// Other ids may hold the port too.
    shared: bool,
}

fn prefix(space: rdma_port_space, port: u16) -> String {
    format!("remora/cm/{space:04x}/{port}/")
}

/// The rest of each name that begins with `prefix`.
fn names(prefix: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read /proc/net/unix: listeners of other processes are \
             found by their cards' addresses only");
        String::new()
    });
    let named = |line: &str| Some(line.split_once(" @")?.1.strip_prefix(prefix)?.to_owned());
    table.lines().filter_map(named).collect()
}

fn entries(space: rdma_port_space, port: u16) -> Vec<Entry> {
    let parse = |name: String| {
        let mut parts = name.split('/');
        let scope = Scope::parse(parts.next()?)?;
        let (card, shared) = match parts.next() {
            None => (None, false),
            Some("shared") => (None, true),
            Some(card) => (Some(card.parse().ok()?), false),
        };
        Some(Entry { scope, card, shared })
    };
    names(&prefix(space, port)).into_iter().filter_map(parse).collect()
}

fn bind(name: &str) -> io::Result<OwnedFd> {
    let address = UnixAddr::from_abstract_name(name)?;
    Ok(UnixDatagram::bind_addr(&address)?.into())
}

/// Holds a port. With `shared`, other ids may hold it too, if they also give `shared`.
///
/// # Errors
/// `EADDRINUSE`: another process, or this one, holds it.
pub(super) fn hold(
    space: rdma_port_space,
    port: u16,
    scope: Scope,
    shared: bool,
) -> io::Result<OwnedFd> {
    let in_use = || io::Error::from_raw_os_error(libc::EADDRINUSE);
    let name = match shared {
        false => format!("{}{scope}", prefix(space, port)),
        // A name can be bound only once, so each id that shares the port has a name of its own.
        true => {
            let mut seed = [0; 8];
            rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
            format!("{}{scope}/shared/{:016x}", prefix(space, port), u64::from_ne_bytes(seed))
        }
    };
    let held = bind(&name)?;
    let clashes = |entry: &Entry| {
        let mine = entry.scope == scope && entry.shared == shared && !shared;
        entry.card.is_none() && entry.scope.overlaps(scope) && !(shared && entry.shared) && !mine
    };
    match entries(space, port).iter().any(clashes) {
        true => Err(in_use()),
        false => Ok(held),
    }
}

/// Announces a listener on `card`.
///
/// # Errors
/// `EADDRINUSE`: another listener is announced there already.
pub(super) fn announce(
    space: rdma_port_space,
    port: u16,
    scope: Scope,
    card: IpAddr,
) -> io::Result<OwnedFd> {
    let taken = entries(space, port).iter().any(|e| e.card.is_some() && e.scope.overlaps(scope));
    if taken {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    bind(&format!("{}{scope}/{card}", prefix(space, port)))
}

/// The card that serves an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// At that address: it has a listener, or will answer that it has none.
    Card(IpAddr),
    /// On this machine, where no process listens for it.
    Nowhere,
    /// On another machine.
    Elsewhere(IpAddr),
}

/// The card of this machine's process that listens at `address`.
pub(super) fn listener(space: rdma_port_space, address: SocketAddr) -> Option<IpAddr> {
    let ip = loopback_if_unspecified(address.ip().to_canonical());
    let asked = Scope::One(ip);
    let listeners: Vec<Entry> = entries(space, address.port())
        .into_iter()
        .filter(|entry| entry.card.is_some() && entry.scope.overlaps(asked))
        .collect();
    // Prefer the card that has the address itself, then a listener for just that address, then any.
    let best = listeners.iter().min_by_key(|entry| (entry.card != Some(ip), entry.scope != asked));
    best.and_then(|entry| entry.card)
}

/// Finds the card that serves `address` for a port space.
pub(super) fn locate(space: rdma_port_space, address: SocketAddr) -> Place {
    place(address, listener(space, address))
}

/// As [`locate`], where the listener's card is known.
pub(super) fn place(address: SocketAddr, listener: Option<IpAddr>) -> Place {
    let ip = loopback_if_unspecified(address.ip().to_canonical());
    let local = is_local(ip);
    match listener {
        Some(card) if local => Place::Card(card),
        _ if !local => Place::Elsewhere(ip),
        _ if has_card(ip) => Place::Card(ip),
        _ => Place::Nowhere,
    }
}

/// The address that a program means by connecting to the unspecified address: as with TCP, this
/// machine.
pub(crate) fn loopback_if_unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Is it an address of this machine?
pub(crate) fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || remora::interface::Interface::find(&ip.to_string()).is_ok()
}

/// Does a card on this machine receive RoCE packets at the address? The table of UDP sockets tells;
/// the kernel's own card has a socket at the unspecified address.
pub(super) fn has_card(ip: IpAddr) -> bool {
    let bound = |table: &str| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().filter_map(udp_socket).any(|socket| {
            socket.port() == ROCE_PORT && (socket.ip() == ip || socket.ip().is_unspecified())
        })
    };
    bound("/proc/net/udp") || bound("/proc/net/udp6")
}

/// The address in a line of `/proc/net/udp`: the words of the address in this machine's byte order,
/// and the port.
fn udp_socket(line: &str) -> Option<SocketAddr> {
    let (words, port) = line.split_whitespace().nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(words.get(at..at + 8)?, 16).ok();
    let ip = match words.len() {
        8 => IpAddr::from(word(0)?.to_ne_bytes()),
        32 => {
            let mut octets = [0; 16];
            for (at, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at * 8)?.to_ne_bytes());
            }
            IpAddr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port space that only the tests use, so that no real listener interferes.
    const SPACE: rdma_port_space = 0x7e57;

    #[test]
    fn a_port_is_held_once() {
        let port = std::process::id() as u16;
        let one = Scope::One("127.0.0.1".parse().unwrap());
        let all = Scope::Family { v6: false };
        let held = hold(SPACE, port, one, false).unwrap();
        for (scope, shared) in [(one, false), (all, false), (all, true), (Scope::All, false)] {
            let error = hold(SPACE, port, scope, shared).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE), "{scope:?} {shared}");
        }
        let other = Scope::One("127.0.0.2".parse().unwrap());
        drop(hold(SPACE, port, other, false).unwrap());
        drop(hold(SPACE, port, Scope::Family { v6: true }, false).unwrap());
        drop(held);
        let first = hold(SPACE, port, all, true).unwrap();
        let second = hold(SPACE, port, all, true).unwrap();
        assert!(hold(SPACE, port, one, false).is_err());
        drop((first, second));
    }

    #[test]
    fn a_listener_is_found_by_any_address_of_its_scope() {
        let port = (std::process::id() as u16).wrapping_add(1);
        let asked = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let card = "127.9.8.7".parse().unwrap();
        // (If there were a card at the address, it would be asked.)
        assert_eq!(locate(SPACE, asked("127.9.8.6")), Place::Nowhere);
        let said = announce(SPACE, port, Scope::All, card).unwrap();
        assert!(announce(SPACE, port, Scope::All, card).is_err());
        for ip in ["127.0.0.1", "127.9.8.7", "::1", "0.0.0.0"] {
            assert_eq!(locate(SPACE, asked(ip)), Place::Card(card), "{ip}");
        }
        let elsewhere = "192.0.2.7".parse().unwrap();
        assert_eq!(locate(SPACE, asked("192.0.2.7")), Place::Elsewhere(elsewhere));
        drop(said);
        assert_eq!(locate(SPACE, asked("127.9.8.6")), Place::Nowhere);
    }

    #[test]
    fn lines_of_the_table_of_sockets() {
        let line = " 7: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000";
        assert_eq!(udp_socket(line), Some("127.0.0.1:4791".parse().unwrap()));
        let line = "7: 00000000000000000000000001000000:12B7 0:0";
        assert_eq!(udp_socket(line), Some("[::1]:4791".parse().unwrap()));
        assert_eq!(udp_socket("sl local_address"), None);
    }
}
