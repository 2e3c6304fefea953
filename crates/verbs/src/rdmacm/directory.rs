//! How programs on one machine find each other's listeners.
//!
//! Each process has a card, and without configuration each card has an address of its own in
//! 127.0.0.0/8. Yet a client asks for a port of 127.0.0.1, or of the machine's own address. So a
//! listener binds abstract Unix sockets, whose names say on which cards it listens:
//!
//! ```text
//! @remora/cm/<port space>/<port>/<address>          held by the process that has bound the port
//! @remora/cm/<port space>/<port>/<address>/<card>   held by a listener, for each of its cards
//! ```
//!
//! Clients read the names that the kernel tells ([`unix_names`]). The names vanish with the
//! process, belong to a network namespace as addresses do, and need neither files nor a daemon. An
//! id bound to all addresses has `*` there, or `*4` or `*6` if it is bound to those of one family.
//!
//! Every process can bind names, so names alone would let one user take the clients of another's
//! server. Therefore a port belongs to a user while it is held: the process that holds it
//! first binds one more name, which only one process can have, and other users' names for this port
//! count for nothing. The kernel tells who owns a socket.
//!
//! ```text
//! @remora/cm/<port space>/<port>        held by the process that was the first to hold it
//! ```
//!
//! It is held until the process holds the port no more. A process that held the port beside it (of
//! the same user, at another address) takes the name with its next listener.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use remora::nic::cm::AddressScope as Scope;
use remora::nic::wire::ROCE_PORT;
use remora::unix_names::{self, Named, read_table};

use super::found::Found;
use crate::abi::rdma_cma::rdma_port_space;
use crate::process;

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

/// The names of a port that count: if a user holds the port, those of that user. `None` if the
/// kernel's table cannot be read, where `/proc` is not mounted.
fn entries(space: rdma_port_space, port: u16) -> Option<Vec<Entry>> {
    let names = unix_names::named(&first_name(space, port)).inspect_err(|error| {
        tracing::warn!(%error, "cannot read /proc/net/unix: listeners of other processes are \
             found by their cards' addresses only");
    });
    let names = names.ok()?;
    let holder = names.iter().find(|name| name.rest.is_empty()).and_then(|name| name.owner);
    let counts = |name: &&Named| holder.is_none() || name.owner == holder;
    let entry = |name: &Named| Entry::parse(name.inode, name.rest.strip_prefix('/')?);
    Some(names.iter().filter(counts).filter_map(entry).collect())
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

/// A name of a port's first holder. All holds of one process on a port share it, so that it goes
/// with the last of them; `None` while another process has it.
#[derive(Debug, Default)]
struct First(Mutex<Option<OwnedFd>>);

/// The ports that this process holds.
#[derive(Debug, Default)]
struct Firsts(Mutex<HashMap<(rdma_port_space, u16), Weak<First>>>);

impl First {
    /// That of a port, which is taken unless another process has it.
    fn of(space: rdma_port_space, port: u16) -> Arc<First> {
        let firsts = process::current().shared::<Firsts>();
        let mut known = firsts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.get(&(space, port)).and_then(Weak::upgrade).unwrap_or_default();
        known.retain(|_, first| first.strong_count() > 0);
        known.insert((space, port), Arc::downgrade(&first));
        first.take(&first_name(space, port), |held| held.is_none());
        first
    }

    /// Binds the name, anew if `if_so` says so of what there was.
    fn take(&self, name: &str, if_so: impl FnOnce(&Option<OwnedFd>) -> bool) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if if_so(&held) {
            *held = None;
            *held = bind(name).ok();
        }
    }
}

/// A port that this process holds.
#[derive(Debug)]
pub(crate) struct Hold {
    space: rdma_port_space,
    port: u16,
    scope: Scope,
    /// The name that says that the port is held.
    _name: OwnedFd,
    first: Arc<First>,
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
    let first = First::of(space, port);
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
    // Without the kernel's table, only the very same name clashes.
    let Some(all) = entries(space, port) else {
        return Ok(Hold { space, port, scope, _name: name, first });
    };
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
    /// Announces a listener at the port on these cards; it lasts as long as what is returned.
    ///
    /// # Errors
    /// `EADDRINUSE`: another listener is announced at one of the addresses, or another user has
    /// come to hold the port.
    pub(super) fn announce(&self, cards: &[IpAddr]) -> io::Result<Vec<OwnedFd>> {
        let Hold { space, port, scope, .. } = *self;
        let announced = |entry: &Entry| entry.card.is_some() && entry.scope.overlaps(scope);
        if entries(space, port).is_some_and(|all| all.iter().any(announced)) {
            return Err(in_use());
        }
        let name = |card: &IpAddr| bind(&listener_name(space, port, scope, *card));
        let names: Vec<OwnedFd> = cards.iter().map(name).collect::<io::Result<_>>()?;
        // They are all of one user.
        let mine = names.first().map(inode).transpose()?;
        let is_mine = |entry: &Entry| Some(entry.inode) == mine;
        let counts = || entries(space, port).is_none_or(|all| all.iter().any(is_mine));
        // A process may have changed its user since it bound the port: a server that began as root.
        self.first.take(&first_name(space, port), |held| held.is_none() || !counts());
        if counts() { Ok(names) } else { Err(in_use()) }
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

/// Can this process reach a card? It needs one of the same family.
fn reaches(card: IpAddr) -> bool {
    let mut own = process::current().cards.get().into_iter().flatten();
    own.any(|own| own.address.is_ipv4() == card.is_ipv4())
}

/// Of the listeners at `ip`, the scope and the card of the best one: on the card that has the
/// address itself, then for just that address, then on a card that can be reached, and that is of
/// the address's family. (A listener may have several cards.)
fn best(
    listeners: &[Entry],
    ip: IpAddr,
    reaches: impl Fn(IpAddr) -> bool,
) -> Option<(Scope, IpAddr)> {
    let on_cards = listeners.iter().filter_map(|entry| Some((entry.scope, entry.card?)));
    on_cards.min_by_key(|(scope, card)| {
        let other_family = card.is_ipv4() != ip.is_ipv4();
        (*card != ip, *scope != Scope::One(ip), !reaches(*card), other_family)
    })
}

/// The card of this machine's process that listens at `address`.
pub(super) fn listener(space: rdma_port_space, address: SocketAddr) -> Option<IpAddr> {
    let ip = loopback_if_unspecified(address.ip().to_canonical());
    let (found, now) = (process::current().shared::<Found>(), Instant::now());
    if let Some(card) = found.recall(space, address, now) {
        return Some(card);
    }
    let asked = Scope::One(ip);
    let listeners: Vec<Entry> = entries(space, address.port())?
        .into_iter()
        .filter(|entry| entry.card.is_some() && entry.scope.overlaps(asked))
        .collect();
    let (scope, card) = best(&listeners, ip, reaches)?;
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

/// The socket of a card on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CardSocket {
    ip: IpAddr,
    /// The user who has the card.
    pub(super) owner: u32,
    inode: u32,
}

/// Does a card on this machine receive RoCE packets at the address?
pub(super) fn has_card(ip: IpAddr) -> bool {
    cards_at(ip).is_ok_and(|cards| !cards.is_empty())
}

/// The sockets of the cards on this machine that receive RoCE packets at the address, the best
/// match first. The table of UDP sockets tells; the kernel's own card has a socket at the
/// unspecified address.
///
/// # Errors
/// The kernel's table cannot be read.
pub(super) fn cards_at(ip: IpAddr) -> io::Result<Vec<CardSocket>> {
    // A kernel without IPv6 has no table for it.
    let tables = [read_table("/proc/net/udp")?, read_table("/proc/net/udp6").unwrap_or_default()];
    let text = tables.each_ref().map(|table| String::from_utf8_lossy(table));
    let all = text.iter().flat_map(|text| text.lines().filter_map(card_socket));
    let mut cards: Vec<CardSocket> =
        all.filter(|card| card.ip == ip || card.ip.is_unspecified()).collect();
    cards.sort_by_key(|card| card.ip != ip);
    Ok(cards)
}

/// The socket of a card, in a line of `/proc/net/udp`.
fn card_socket(line: &str) -> Option<CardSocket> {
    let ip = udp_socket(line).filter(|socket| socket.port() == ROCE_PORT)?.ip();
    let mut words = line.split_whitespace().skip(7);
    let owner = words.next()?.parse().ok()?;
    Some(CardSocket { ip, owner, inode: words.nth(1)?.parse().ok()? })
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
pub(super) mod tests {
    use std::os::unix::net::UnixListener;

    use remora::sock_diag::SockDiag;

    use super::*;

    /// A port space that only the tests use, so that no real listener interferes.
    const SPACE: rdma_port_space = 0x7e57;

    /// A port that no other test uses.
    fn port(number: u16) -> u16 {
        (std::process::id() as u16).wrapping_mul(16).wrapping_add(number)
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
        let first = hold(SPACE, port, V4, true).unwrap();
        let second = hold(SPACE, port, V4, true).unwrap();
        assert_eq!(refusal(port, one("127.0.0.1"), false), Some(libc::EADDRNOTAVAIL));
        let listens = first.announce(&[card]).unwrap();
        assert!(second.announce(&[card]).is_err());
        assert_eq!(refusal(port, V4, true), Some(libc::EADDRNOTAVAIL), "one listens");
        drop((first, listens));
        second.announce(&[card]).unwrap();
    }

    #[test]
    fn a_listener_is_found_by_any_address_of_its_scope() {
        let port = port(2);
        let asked = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let card = "127.9.8.7".parse().unwrap();
        // (If there were a card at the address, it would be asked.)
        assert_eq!(locate(SPACE, asked("127.9.8.6")), ServedBy::Nowhere);
        let held = hold(SPACE, port, Scope::All, false).unwrap();
        let said = held.announce(&[card]).unwrap();
        assert!(held.announce(&[card]).is_err());
        for ip in ["127.0.0.1", "127.9.8.7", "::1", "0.0.0.0"] {
            assert_eq!(locate(SPACE, asked(ip)), ServedBy::Card(card), "{ip}");
        }
        let elsewhere = "192.0.2.7".parse().unwrap();
        assert_eq!(locate(SPACE, asked("192.0.2.7")), ServedBy::Elsewhere(elsewhere));
        drop(said);
        assert_eq!(locate(SPACE, asked("127.9.8.6")), ServedBy::Nowhere);
    }

    /// A process may have cards of both families, and of several networks.
    #[test]
    fn a_listener_is_found_on_each_of_its_cards() {
        let port = port(8);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let cards = ["127.9.6.7", "::1", "127.9.6.8"].map(ip);
        let held = hold(SPACE, port, Scope::All, false).unwrap();
        let _said = held.announce(&cards).unwrap();
        assert!(held.announce(&cards[2..]).is_err(), "one listens");
        let listeners = entries(SPACE, port).unwrap();
        let found = |asked: &str, reaches: fn(IpAddr) -> bool| {
            best(&listeners, ip(asked), reaches).unwrap().1.to_string()
        };
        let all: fn(IpAddr) -> bool = |_| true;
        for card in cards.map(|card| card.to_string()) {
            assert_eq!(found(&card, all), card);
        }
        assert_eq!(found("fd00::7", all), "::1");
        assert!(ip(&found("127.0.0.1", all)).is_ipv4());
        // A client with a card of IPv4 only asks by an address of IPv6.
        assert!(ip(&found("fd00::7", |card| card.is_ipv4())).is_ipv4());
        assert_eq!(found("127.0.0.1", |card| card.is_ipv6()), "::1");
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
            let held = hold(SPACE, port, Scope::All, false).unwrap();
            assert_eq!(locate(SPACE, asked), ServedBy::Nowhere, "the port is only held");
            let said = held.announce(&[card]).unwrap();
            for _ in 0..3 {
                assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
            }
            drop((said, held));
        }
    }

    /// Does something in a thread whose sockets belong to another user. `None` without the right to
    /// change users, or if the kernel does not tell whose a socket is.
    pub(in super::super) fn as_stranger<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
        const STRANGER: u32 = 61_184;
        let run = || {
            // SAFETY: the bare call changes the user of this thread only, and of its sockets.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, STRANGER, -1) };
            let socket = OwnedFd::from(UnixDatagram::unbound().unwrap());
            let socket = SockDiag::open()?.unix_socket(inode(&socket).unwrap())?;
            (socket.owner == STRANGER).then(act)
        };
        let done = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        if done.is_none() {
            crate::skips::lacks("no right to become another user, or the kernel tells no owners");
        }
        done
    }

    /// A name for a part of another user's port leads nowhere, whatever comes first in the search.
    #[test]
    fn another_user_does_not_take_a_listeners_clients() {
        let port = port(3);
        let asked = SocketAddr::new("127.9.8.5".parse().unwrap(), port);
        let (card, thiefs) = ("127.9.8.7".parse().unwrap(), "127.9.8.6");
        let held = hold(SPACE, port, V4, false).unwrap();
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
        let said = held.announce(&[card]).unwrap();
        assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
        drop((said, held));
        assert_eq!(locate(SPACE, asked), ServedBy::Card(thiefs.parse().unwrap()), "it is free");
        drop(name);
    }

    /// Nor when the one of two holds that was first ends: the process holds the port still.
    #[test]
    fn a_port_belongs_to_its_user_until_the_last_hold() {
        let port = port(7);
        let asked = SocketAddr::new("::1".parse().unwrap(), port);
        let (card, thiefs) = ("127.9.8.7".parse().unwrap(), "127.9.8.6");
        let both = [V4, V6].map(|scope| hold(SPACE, port, scope, false).unwrap());
        let said = both.each_ref().map(|hold| hold.announce(&[card]).unwrap());
        let ([v4, v6], [says_v4, says_v6]) = (both, said);
        drop((v4, says_v4));
        let stranger = as_stranger(|| {
            let first = first_name(SPACE, port);
            let name = bind(&format!("{first}/::1/{thiefs}")).unwrap();
            (name, bind(&first).map_err(|error| error.kind()))
        });
        let Some((name, taken)) = stranger else { return };
        assert_eq!(taken.unwrap_err(), io::ErrorKind::AddrInUse);
        assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
        drop((name, v6, says_v6));
        drop(bind(&first_name(SPACE, port)).expect("the last hold has ended"));
    }

    /// Nor does a name that only looks like the first holder's: of a path, of a broken line, or of
    /// a socket of another kind. Nor do bytes that are no text break anything.
    #[test]
    fn a_strangers_odd_names_change_nothing() {
        let port = port(6);
        let asked = SocketAddr::new("127.9.8.3".parse().unwrap(), port);
        let (card, thiefs) = ("127.9.8.7".parse().unwrap(), "127.9.8.6");
        let first = first_name(SPACE, port);
        let held = hold(SPACE, port, V4, false).unwrap();
        let stranger = as_stranger(|| {
            let line = format!("0000: 00000002 00000000 00010000 0002 01 1 @{first}");
            let stream = UnixAddr::from_abstract_name(&first).unwrap();
            let odd = UnixAddr::from_abstract_name(b"\xff\xff").unwrap();
            let names = [
                bind(&format!("x\n{line}\n")).unwrap(),
                UnixListener::bind_addr(&stream).unwrap().into(),
                UnixDatagram::bind_addr(&odd).unwrap().into(),
            ];
            (names, bind(&format!("{first}/127.9.8.3/{thiefs}")).unwrap())
        });
        let Some(_names) = stranger else { return };
        let said = held.announce(&[card]).unwrap();
        assert_eq!(locate(SPACE, asked), ServedBy::Card(card));
        drop((said, held));
    }

    /// A server binds its port as root, gives up its rights, and listens.
    #[test]
    fn a_server_may_change_its_user() {
        let port = port(4);
        let held = hold(SPACE, port, V4, false).unwrap();
        let card = "127.9.8.7".parse().unwrap();
        let Some(said) = as_stranger(|| held.announce(&[card]).unwrap()) else { return };
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
        let line = "7: 0100007F:12B7 00000000:0000 07 0:0 00:00 00000000  1000  0 4711 2 0 0";
        let card = CardSocket { ip: "127.0.0.1".parse().unwrap(), owner: 1000, inode: 4711 };
        assert_eq!(card_socket(line), Some(card));
        assert_eq!(card_socket(&line.replace("12B7", "12B8")), None);
    }
}
