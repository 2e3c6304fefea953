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
//!
//! Every process can bind names, so names alone would let one user take the clients of another's
//! server. Therefore a port belongs to a user while it is held: the process that holds it
//! first binds one more name, which only one process can have, and other users' names for this port
//! count for nothing. The kernel tells who owns a socket.
//!
//! ```text
//! @remora/cm/<port space>/<port>        held by the process that was the first to hold it
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Instant;

use remora::nic::cm::AddressScope as Scope;
use remora::nic::wire::ROCE_PORT;
use remora::sock_diag::SockDiag;

use super::found::Found;
use crate::abi::rdma_cma::rdma_port_space;
use crate::process;

/// Room for a kernel's table of sockets, in bytes. A longer one takes more calls to read.
const TABLE_BYTES: usize = 16 << 10;

/// The scope of an address to bind to.
pub(super) fn scope_of(ip: IpAddr, v6_only: bool) -> Scope {
    match ip {
        ip if !ip.is_unspecified() => Scope::One(ip.to_canonical()),
        IpAddr::V6(_) if !v6_only => Scope::All,
        ip => Scope::Family { v6: ip.is_ipv6() },
    }
}

/// A scope as names have it.
fn text_of(scope: Scope) -> String {
    match scope {
        Scope::All => "*".into(),
        Scope::Family { v6: false } => "*4".into(),
        Scope::Family { v6: true } => "*6".into(),
        Scope::One(ip) => ip.to_string(),
    }
}

fn parse_scope(text: &str) -> Option<Scope> {
    Some(match text {
        "*" => Scope::All,
        "*4" => Scope::Family { v6: false },
        "*6" => Scope::Family { v6: true },
        ip => Scope::One(ip.parse().ok()?),
    })
}

/// A name in the directory.
struct Entry {
    scope: Scope,
    /// The card of the listener; `None` if the port is only held.
    card: Option<IpAddr>,
    /// Other ids may hold the port too.
    shared: bool,
    inode: u32,
}

impl Entry {
    /// The entry of a name, from what follows the port in it.
    fn parse(inode: u32, rest: &str) -> Option<Entry> {
        let mut parts = rest.split('/');
        let scope = parse_scope(parts.next()?)?;
        let (card, shared) = match parts.next() {
            None => (None, false),
            Some("shared") => (None, true),
            Some(card) => (Some(card.parse().ok()?), false),
        };
        Some(Entry { scope, card, shared, inode })
    }
}

/// The name that only the first holder of a port has, which other names of the port begin with.
fn first_name(space: rdma_port_space, port: u16) -> String {
    format!("remora/cm/{space:04x}/{port}")
}

/// The name of a listener.
fn listener_name(space: rdma_port_space, port: u16, scope: Scope, card: IpAddr) -> String {
    format!("{}/{}/{card}", first_name(space, port), text_of(scope))
}

/// A table of the kernel's, read at once as long as it is short.
fn read_table(path: &str) -> io::Result<String> {
    let mut table = String::with_capacity(TABLE_BYTES);
    File::open(path)?.read_to_string(&mut table)?;
    Ok(table)
}

/// The inode, and what follows `prefix`, of each socket whose name begins with it.
fn names(prefix: &str) -> Vec<(u32, String)> {
    let table = read_table("/proc/net/unix").unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read /proc/net/unix: listeners of other processes are \
             found by their cards' addresses only");
        String::new()
    });
    let named = |line: &str| {
        let (socket, name) = line.split_once(" @")?;
        let inode = socket.split_whitespace().nth(6)?.parse().ok()?;
        Some((inode, name.strip_prefix(prefix)?.to_owned()))
    };
    table.lines().filter_map(named).collect()
}

/// The names of a port that count: if a user holds the port, those of that user.
fn entries(space: rdma_port_space, port: u16) -> Vec<Entry> {
    let names = names(&first_name(space, port));
    let kernel = SockDiag::open();
    let owner = |inode: u32| kernel.as_ref()?.unix_owner(inode);
    let first = names.iter().find(|(_, rest)| rest.is_empty());
    let holder = first.and_then(|(inode, _)| owner(*inode));
    let of_port = names.iter().filter_map(|(inode, rest)| Some((*inode, rest.strip_prefix('/')?)));
    let counts = |inode: u32| holder.is_none_or(|holder| owner(inode) == Some(holder));
    of_port
        .filter(|(inode, _)| counts(*inode))
        .filter_map(|(inode, rest)| Entry::parse(inode, rest))
        .collect()
}

fn bind(name: &str) -> io::Result<OwnedFd> {
    let address = UnixAddr::from_abstract_name(name)?;
    Ok(UnixDatagram::bind_addr(&address)?.into())
}

fn inode(socket: &OwnedFd) -> io::Result<u32> {
    Ok(rustix::fs::fstat(socket)?.st_ino as u32)
}

fn in_use() -> io::Error {
    io::Error::from_raw_os_error(libc::EADDRINUSE)
}

/// A port that this process holds.
#[derive(Debug)]
pub(crate) struct Hold {
    space: rdma_port_space,
    port: u16,
    scope: Scope,
    /// The name that says that the port is held.
    _name: OwnedFd,
    /// The name of the first holder, if it is this one.
    first: Option<OwnedFd>,
}

/// Holds a port. With `shared`, other ids may hold it too, if they also give `shared` and none of
/// them listens.
///
/// # Errors
/// As rdma_cm has them, if another process, or this one, holds the port at one of the addresses, or
/// if another user holds it at any: `EADDRINUSE`, or `EADDRNOTAVAIL` if one of the two would have
/// all addresses of a family.
pub(super) fn hold(
    space: rdma_port_space,
    port: u16,
    scope: Scope,
    shared: bool,
) -> io::Result<Hold> {
    let refused = |wildcard: bool| match wildcard {
        true => io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
        false => in_use(),
    };
    // It may have another holder, whose user is judged below.
    let first = bind(&first_name(space, port)).ok();
    let plain = format!("{}/{}", first_name(space, port), text_of(scope));
    let name = match shared {
        false => plain,
        // A name can be bound only once, so each id that shares the port has a name of its own.
        true => {
            let mut seed = [0; 8];
            rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
            format!("{plain}/shared/{:016x}", u64::from_ne_bytes(seed))
        }
    };
    let name = bind(&name).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => refused(scope.is_wildcard()),
        _ => error,
    })?;
    let mine = inode(&name)?;
    let all = entries(space, port);
    if !all.iter().any(|entry| entry.inode == mine) {
        tracing::warn!(port, "another user's program holds this port of rdma_cm");
        return Err(refused(scope.is_wildcard()));
    }
    let clashes = |entry: &&Entry| {
        let both_share = shared && entry.shared;
        entry.inode != mine && entry.scope.overlaps(scope) && !both_share
    };
    match all.iter().find(clashes) {
        Some(other) => Err(refused(scope.is_wildcard() || other.scope.is_wildcard())),
        None => Ok(Hold { space, port, scope, _name: name, first }),
    }
}

impl Hold {
    /// Announces a listener at the port on `card`.
    ///
    /// # Errors
    /// `EADDRINUSE`: another listener is announced at one of the addresses, or another user has
    /// come to hold the port.
    pub(super) fn announce(&mut self, card: IpAddr) -> io::Result<OwnedFd> {
        let Hold { space, port, scope, .. } = *self;
        let first_name = first_name(space, port);
        let announced = |entry: &Entry| entry.card.is_some() && entry.scope.overlaps(scope);
        if entries(space, port).iter().any(announced) {
            return Err(in_use());
        }
        let name = bind(&listener_name(space, port, scope, card))?;
        let mine = inode(&name)?;
        let counts = || entries(space, port).iter().any(|entry| entry.inode == mine);
        // A process may have changed its user since it bound the port: a server that began as root.
        if self.first.is_none() || !counts() {
            self.first = None;
            self.first = bind(&first_name).ok();
        }
        if counts() { Ok(name) } else { Err(in_use()) }
    }
}

/// The card that serves an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServedBy {
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
    let (found, now) = (process::current().shared::<Found>(), Instant::now());
    if let Some(card) = found.recall(space, address, now) {
        return Some(card);
    }
    let asked = Scope::One(ip);
    let listeners: Vec<Entry> = entries(space, address.port())
        .into_iter()
        .filter(|entry| entry.card.is_some() && entry.scope.overlaps(asked))
        .collect();
    // Prefer the card that has the address itself, then a listener for just that address, then any.
    let best = listeners.iter().min_by_key(|entry| (entry.card != Some(ip), entry.scope != asked));
    let (scope, card) = best.and_then(|entry| Some((entry.scope, entry.card?)))?;
    let name = listener_name(space, address.port(), scope, card);
    found.keep(space, address, (card, name), now);
    Some(card)
}

/// Finds the card that serves `address` for a port space.
pub(super) fn locate(space: rdma_port_space, address: SocketAddr) -> ServedBy {
    place(address, listener(space, address))
}

/// As [`locate`], where the listener's card is known.
pub(super) fn place(address: SocketAddr, listener: Option<IpAddr>) -> ServedBy {
    let ip = loopback_if_unspecified(address.ip().to_canonical());
    let local = is_local(ip);
    match listener {
        Some(card) if local => ServedBy::Card(card),
        _ if !local => ServedBy::Elsewhere(ip),
        _ if has_card(ip) => ServedBy::Card(ip),
        _ => ServedBy::Nowhere,
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
        let text = read_table(table).unwrap_or_default();
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

    /// A port that no other test uses.
    fn port(number: u16) -> u16 {
        (std::process::id() as u16).wrapping_mul(8).wrapping_add(number)
    }

    const V4: Scope = Scope::Family { v6: false };
    const V6: Scope = Scope::Family { v6: true };

    fn one(ip: &str) -> Scope {
        Scope::One(ip.parse().unwrap())
    }

    /// The error of binding to a port that is held, as Linux's rdma_cm has it.
    fn refusal(port: u16, scope: Scope, shared: bool) -> Option<i32> {
        hold(SPACE, port, scope, shared).unwrap_err().raw_os_error()
    }

    #[test]
    fn a_port_is_held_once() {
        let port = port(0);
        let held = hold(SPACE, port, one("127.0.0.1"), false).unwrap();
        assert_eq!(refusal(port, one("127.0.0.1"), false), Some(libc::EADDRINUSE));
        assert_eq!(refusal(port, one("127.0.0.1"), true), Some(libc::EADDRINUSE));
        for (scope, shared) in [(V4, false), (V4, true), (Scope::All, false)] {
            let error = refusal(port, scope, shared);
            assert_eq!(error, Some(libc::EADDRNOTAVAIL), "{scope:?} {shared}");
        }
        drop(hold(SPACE, port, one("127.0.0.2"), false).unwrap());
        drop(hold(SPACE, port, V6, false).unwrap());
        drop(held);
        let both = [hold(SPACE, port, V4, false).unwrap(), hold(SPACE, port, V6, false).unwrap()];
        for scope in [V4, V6, Scope::All, one("127.0.0.1"), one("::1")] {
            assert_eq!(refusal(port, scope, false), Some(libc::EADDRNOTAVAIL), "{scope:?}");
        }
        drop(both);
    }

    #[test]
    fn a_shared_port_has_one_listener() {
        let (port, card) = (port(1), "127.9.8.7".parse().unwrap());
        let mut first = hold(SPACE, port, V4, true).unwrap();
        let mut second = hold(SPACE, port, V4, true).unwrap();
        assert_eq!(refusal(port, one("127.0.0.1"), false), Some(libc::EADDRNOTAVAIL));
        let listens = first.announce(card).unwrap();
        assert!(second.announce(card).is_err());
        assert_eq!(refusal(port, V4, true), Some(libc::EADDRNOTAVAIL), "one listens");
        drop((first, listens));
        second.announce(card).unwrap();
    }

    #[test]
    fn a_listener_is_found_by_any_address_of_its_scope() {
        let port = port(2);
        let asked = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let card = "127.9.8.7".parse().unwrap();
        // (If there were a card at the address, it would be asked.)
        assert_eq!(locate(SPACE, asked("127.9.8.6")), ServedBy::Nowhere);
        let mut held = hold(SPACE, port, Scope::All, false).unwrap();
        let said = held.announce(card).unwrap();
        assert!(held.announce(card).is_err());
        for ip in ["127.0.0.1", "127.9.8.7", "::1", "0.0.0.0"] {
            assert_eq!(locate(SPACE, asked(ip)), ServedBy::Card(card), "{ip}");
        }
        let elsewhere = "192.0.2.7".parse().unwrap();
        assert_eq!(locate(SPACE, asked("192.0.2.7")), ServedBy::Elsewhere(elsewhere));
        drop(said);
        assert_eq!(locate(SPACE, asked("127.9.8.6")), ServedBy::Nowhere);
    }

    /// However soon after another one: no answer outlives its listener.
    #[test]
    fn listeners_come_and_go() {
        let port = port(5);
        // (A card of another test may be at an address that cards choose by themselves.)
        let asked = SocketAddr::new("127.9.8.4".parse().unwrap(), port);
        for n in 1..100 {
            let card = IpAddr::from([127, 9, 7, n]);
            assert_eq!(locate(SPACE, asked), ServedBy::Nowhere);
            let mut held = hold(SPACE, port, Scope::All, false).unwrap();
            assert_eq!(locate(SPACE, asked), ServedBy::Nowhere, "the port is only held");
            let said = held.announce(card).unwrap();
            for _ in 0..3 {
                assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
            }
            drop((said, held));
        }
    }

    /// Does something in a thread whose sockets belong to another user. `None` without the right to
    /// change users, or if the kernel does not tell whose a socket is.
    fn as_stranger<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
        const STRANGER: u32 = 61_184;
        let run = || {
            // SAFETY: this changes the user of this thread only, and of its sockets and files.
            unsafe { libc::setfsuid(STRANGER) };
            let socket = OwnedFd::from(UnixDatagram::unbound().unwrap());
            let owner = SockDiag::open()?.unix_owner(inode(&socket).unwrap());
            (owner == Some(STRANGER)).then(act)
        };
        let done = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        if done.is_none() {
            println!("skipped: cannot become another user, or the kernel tells no owners");
        }
        done
    }

    /// A name for a part of another user's port leads nowhere, whatever comes first in the search.
    #[test]
    fn another_user_does_not_take_a_listeners_clients() {
        let port = port(3);
        let asked = SocketAddr::new("127.9.8.5".parse().unwrap(), port);
        let (card, thiefs) = ("127.9.8.7".parse().unwrap(), "127.9.8.6");
        let mut held = hold(SPACE, port, V4, false).unwrap();
        let thief = as_stranger(|| {
            let first = first_name(SPACE, port);
            let name = bind(&format!("{first}/127.9.8.5/{thiefs}")).unwrap();
            assert_eq!(refusal(port, one("127.9.8.5"), false), Some(libc::EADDRINUSE));
            assert_eq!(refusal(port, V6, false), Some(libc::EADDRNOTAVAIL));
            name
        });
        let Some(name) = thief else { return };
        // Neither while the server only holds its port (perftest's listen anew for each client).
        assert_eq!(locate(SPACE, asked), ServedBy::Nowhere);
        let said = held.announce(card).unwrap();
        assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
        drop((said, held));
        assert_eq!(locate(SPACE, asked), ServedBy::Card(thiefs.parse().unwrap()), "it is free");
        drop(name);
    }

    /// A server binds its port as root, gives up its rights, and listens.
    #[test]
    fn a_server_may_change_its_user() {
        let port = port(4);
        let mut held = hold(SPACE, port, V4, false).unwrap();
        let card = "127.9.8.7".parse().unwrap();
        let Some(said) = as_stranger(|| held.announce(card).unwrap()) else { return };
        let asked = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
        assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
        drop((said, held));
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
