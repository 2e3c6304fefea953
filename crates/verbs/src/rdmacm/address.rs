//! Addresses of ids: binding them and resolving the peer's. [`super::c_address`] translates them
//! from and to C.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use libc::{sockaddr, sockaddr_in, sockaddr_in6};
use remora::interface::{Interface, route_to};
use remora::nic::cm::AddressScope;
use remora::nic::wire::ROCE_PORT;

use super::agreement::ACK_TIMEOUT;
use super::directory::{self, Hold, ServedBy};
use super::objects::{Id, PathRecord, Route, Stage};
use super::{EINVAL, ENODEV, Errno, Result, c_address, events, manager, status};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card;
use crate::card::ListedCard;
use crate::process;

/// The length of the address in C.
pub(crate) fn c_len(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => size_of::<sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<sockaddr_in6>(),
    }
}

/// The card that has `ip` or that serves it: any card serves the addresses of this machine.
fn card_for(ip: IpAddr) -> Result<&'static ListedCard> {
    let cards = process::current().cards();
    let exact = cards.iter().find(|card| card.address == ip.to_canonical());
    let any = || if directory::is_local(ip.to_canonical()) { cards.first() } else { None };
    exact.or_else(any).ok_or(ENODEV)
}

/// The address from which the kernel sends to a peer on another machine, by its table of routes.
pub(crate) fn source_towards(mut peer: SocketAddr) -> Option<IpAddr> {
    peer.set_ip(peer.ip().to_canonical());
    peer.set_port(ROCE_PORT);
    Some(route_to(peer).ok()?.local_addr().ok()?.ip())
}

/// The card from which `peer` is reached.
fn card_towards(peer: IpAddr, source: Option<IpAddr>) -> Result<&'static ListedCard> {
    let cards = process::current().cards();
    let addresses: Vec<IpAddr> = cards.iter().map(|card| card.address).collect();
    best_card(&addresses, peer, source).and_then(|index| cards.get(index)).ok_or(ENODEV)
}

/// Which card reaches `peer` best: the one that has its address, the one at the `source` that the
/// kernel would send from, one of its kind and family, one of its family, any.
fn best_card(cards: &[IpAddr], peer: IpAddr, source: Option<IpAddr>) -> Option<usize> {
    let misfit = |card: IpAddr| {
        let other_family = card.is_ipv4() != peer.is_ipv4();
        let other_kind = card.is_loopback() != peer.is_loopback();
        (card != peer, Some(card) != source, other_family, other_kind)
    };
    (0..cards.len()).min_by_key(|index| misfit(cards[*index]))
}

/// The largest path MTU that both ends support, as a code.
fn path_mtu(card: &ListedCard, peer: IpAddr) -> u8 {
    let theirs = match peer.is_loopback() {
        true => None,
        false => Interface::find(&peer.to_string()).ok().map(|interface| interface.path_mtu()),
    };
    theirs.map_or(card.mtu, |theirs| theirs.min(card.mtu)).code()
}

/// Binds an id: `rdma_bind_addr`.
pub(super) fn bind(id: &Id, address: SocketAddr) -> Result<()> {
    let (stage, shared, v6_only) = {
        let state = id.lock();
        (state.stage, state.reuse, state.v6_only)
    };
    if stage != Stage::Idle {
        return Err(EINVAL);
    }
    let ip = address.ip();
    let card = if ip.is_unspecified() { None } else { Some(card_for(ip)?) };
    let scope = directory::scope_of(ip, v6_only);
    let (port, lock) = match address.port() {
        0 => free_port(id.space, scope)?,
        port => (port, directory::hold(id.space, port, scope, shared)?),
    };
    if let Some(card) = card {
        id.attach(card.index)?;
    }
    let mut state = id.lock();
    state.port_lock = Some(lock);
    state.local = Some(with_port(address, port));
    state.stage = Stage::Bound;
    drop(state);
    id.show_addresses();
    Ok(())
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// A port that no process of this machine holds.
fn free_port(space: rdma_port_space, scope: AddressScope) -> Result<(u16, Hold)> {
    for _ in 0..1000 {
        let port = manager::some_port();
        if let Ok(lock) = directory::hold(space, port, scope, false) {
            return Ok((port, lock));
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// Finds the path to `remote`: the first half of `rdma_resolve_addr`.
fn resolve(id: &Id, local: Option<SocketAddr>, remote: SocketAddr) -> Result<()> {
    let (stage, bound) = {
        let state = id.lock();
        (state.stage, state.local)
    };
    match (stage, local) {
        (Stage::Idle, Some(local)) if local.port() != 0 || !local.ip().is_unspecified() => {
            bind_to_source(id, local)?;
        }
        (Stage::Idle | Stage::Bound, _) => {}
        _ => return Err(EINVAL),
    }
    let mut remote = remote;
    remote.set_ip(directory::loopback_if_unspecified(remote.ip()));
    let place = match remote.ip().to_canonical() {
        // Any card can reach a multicast group.
        group if group.is_multicast() => ServedBy::Card(group),
        _ => directory::locate(id.space, remote),
    };
    let peer = match place {
        ServedBy::Card(peer) | ServedBy::Elsewhere(peer) => peer,
        ServedBy::Nowhere => remote.ip().to_canonical(),
    };
    let given = id.lock().card;
    let card = match (given, place) {
        (Some(index), _) => process::current().cards().get(index).ok_or(ENODEV)?,
        (None, ServedBy::Elsewhere(_)) => card_towards(peer, source_towards(remote))?,
        (None, _) => card_towards(peer, None)?,
    };
    let reachable = card.address.is_ipv4() == peer.is_ipv4() || matches!(place, ServedBy::Nowhere);
    if !reachable || (card.address.is_loopback() && matches!(place, ServedBy::Elsewhere(_))) {
        tracing::error!(
            peer = %peer, card = %card.address,
            "no RDMA device leads there: set REMORA_ADDR to an address of this machine that \
             the peer can reach"
        );
        return Err(ENODEV);
    }
    id.attach(card.index)?;
    keep(id, card, bound.or(local), (remote, place, peer));
    id.show_addresses();
    Ok(())
}

/// Stores the resolution: the address of the peer's card, and the addresses of both ends.
fn keep(
    id: &Id,
    card: &ListedCard,
    known: Option<SocketAddr>,
    (remote, place, peer): (SocketAddr, ServedBy, IpAddr),
) {
    let mut state = id.lock();
    let known = known.or(state.local).filter(|local| !local.ip().is_unspecified());
    let same_family = card.address.is_ipv4() == remote.ip().to_canonical().is_ipv4();
    let source = match (known, place) {
        (Some(known), _) => known.ip(),
        (None, ServedBy::Elsewhere(_)) => card.address,
        (None, _) if remote.ip().is_multicast() => card.address,
        (None, _) if card.is_named && same_family => card.address,
        // As the kernel chooses a source address: to reach an address of this machine, that address
        // itself.
        (None, _) => remote.ip(),
    };
    let port = match state.local.map_or(0, |local| local.port()) {
        0 => manager::own_port(),
        port => port,
    };
    if state.port_lock.is_none() {
        state.own_port = Some(port);
    }
    state.local = Some(SocketAddr::new(source, port));
    state.remote = Some(remote);
    state.route = Some(Route { peer, mtu: path_mtu(card, peer) });
    state.stage = Stage::AddressResolved;
}

/// Binds to a source address. One without a port needs no port that other processes know of.
fn bind_to_source(id: &Id, local: SocketAddr) -> Result<()> {
    if local.port() != 0 {
        return bind(id, local);
    }
    let card = card_for(local.ip())?;
    id.attach(card.index)?;
    id.lock().local = Some(local);
    Ok(())
}

/// The card of a listener on this machine. A listener that has just answered and is gone may be
/// about to listen again, so this waits for it: some programs (perftest) listen anew for each
/// connection, and rely on a kernel's clients taking longer than that to ask.
fn await_listener(space: rdma_port_space, remote: SocketAddr) -> Option<IpAddr> {
    loop {
        let found = directory::listener(space, remote);
        if found.is_some() || !manager::has_just_answered(remote) {
            return found;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Resolves the peer's card again: since the resolution, its listener may have gone, or another may
/// have come.
pub(super) fn look_again(id: &Id) -> Result<Option<Route>> {
    let remote = id.lock().remote.ok_or(EINVAL)?;
    let listener = await_listener(id.space, remote);
    id.lock().announced = listener.is_some();
    let peer = match directory::place(remote, listener) {
        ServedBy::Card(peer) | ServedBy::Elsewhere(peer) => peer,
        ServedBy::Nowhere => return Ok(None),
    };
    let route = Route { peer, mtu: path_mtu(id.card()?, peer) };
    id.lock().route = Some(route);
    id.show_addresses();
    Ok(Some(route))
}

/// The route as an InfiniBand path record.
fn path_record(id: &Id) -> Result<ibv_sa_path_rec> {
    let card = id.card()?;
    let state = id.lock();
    let route = state.route.ok_or(EINVAL)?;
    /// Selector of the record: exactly this value.
    const EXACTLY: u8 = 2;
    Ok(ibv_sa_path_rec {
        dgid: ibv_gid { raw: card::gid_of(route.peer) },
        sgid: ibv_gid { raw: card.gid() },
        hop_limit: 64,
        traffic_class: state.tos,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        mtu_selector: EXACTLY,
        mtu: route.mtu,
        rate_selector: EXACTLY,
        // The code of 10 Gb/s: a software device has no rate of its own.
        rate: 3,
        packet_life_time_selector: EXACTLY,
        packet_life_time: state.ack_timeout.unwrap_or(ACK_TIMEOUT).saturating_sub(1),
        ..ibv_sa_path_rec::zeroed()
    })
}

/// Resolves the route, which takes no message to any other host.
pub(super) fn route(id: &Id) -> Result<()> {
    if id.lock().stage != Stage::AddressResolved {
        return Err(EINVAL);
    }
    let mut record = Box::new(PathRecord(path_record(id)?));
    let at = &raw mut record.0;
    let mut state = id.lock();
    state.path = Some(record);
    state.stage = Stage::RouteResolved;
    drop(state);
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and these are plain fields of it.
        unsafe {
            (*c).route.path_rec = at;
            (*c).route.num_paths = 1;
        }
    });
    Ok(())
}

/// Reports the outcome of a resolution as an event, and on a synchronous id waits for it.
fn tell(id: &std::sync::Arc<Id>, kind: rdma_cm_event_type, status: c_int) -> Result<()> {
    manager::push(id, kind, |news| news.status = status);
    events::complete(id)
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives an address.
        let address = unsafe { c_address::from_c(addr) }?.ok_or(EINVAL)?;
        bind(&id, address)
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives addresses, the first of which may be null.
        let (local, remote) =
            unsafe { (c_address::from_c(src_addr)?, c_address::from_c(dst_addr)?) };
        match resolve(&id, local, remote.ok_or(EINVAL)?) {
            Ok(()) => tell(&id, RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            Err(ENODEV) => tell(&id, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV),
            Err(error) => Err(error),
        }
    })
}

pub(crate) extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        route(&id)?;
        tell(&id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0)
    })
}

/// A route that the program sets stands for the resolution of one.
pub(super) fn route_given(id: &std::sync::Arc<Id>) -> Result<()> {
    route(id)?;
    manager::push(id, RDMA_CM_EVENT_ROUTE_RESOLVED, |_| ());
    Ok(())
}

pub(crate) extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, |c| c.route.addr.src)
}

pub(crate) extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, |c| c.route.addr.dst)
}

/// The port as the program sees it, in network order.
fn port_of(id: *mut rdma_cm_id, address: impl FnOnce(&rdma_cm_id) -> any_address) -> u16 {
    super::call(0, || {
        let any_address(bytes) = Id::find(id)?.get(address);
        let port = u16::from_ne_bytes([bytes[2], bytes[3]]);
        Ok(match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET | libc::AF_INET6 => port,
            _ => 0,
        })
    })
}

/// Binds an id that listens without having been bound: to all addresses, and any port.
pub(super) fn bind_if_idle(id: &Id) -> Result<()> {
    match id.lock().stage {
        Stage::Idle => {}
        Stage::Bound => return Ok(()),
        _ => return Err(EINVAL),
    }
    bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
}

/// The addresses that a bound id covers.
pub(super) fn scope(id: &Id) -> Result<AddressScope> {
    let state = id.lock();
    Ok(directory::scope_of(state.local.ok_or(EINVAL)?.ip(), state.v6_only))
}

/// Announces to this machine's processes that a bound id listens on these cards.
pub(super) fn announce(id: &Id, cards: &[&ListedCard]) -> Result<()> {
    let mut state = id.lock();
    let held = state.port_lock.as_ref().ok_or(EINVAL)?;
    let cards: Vec<IpAddr> = cards.iter().map(|card| card.address).collect();
    state.announcements = held.announce(&cards)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_is_that_of_the_route() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let cards = ["127.0.0.9", "10.0.0.1", "10.1.0.1", "fd00::1"].map(ip);
        let best = |peer, source: Option<&str>| {
            best_card(&cards, ip(peer), source.map(ip)).map(|index| cards[index].to_string())
        };
        for (peer, source, chosen) in [
            ("10.1.0.7", Some("10.1.0.1"), "10.1.0.1"),
            ("10.0.0.7", Some("10.0.0.1"), "10.0.0.1"),
            // There is no card where the route begins, or no route.
            ("10.2.0.7", Some("10.2.0.1"), "10.0.0.1"),
            ("10.1.0.7", None, "10.0.0.1"),
            ("fd00::7", None, "fd00::1"),
            // On this machine.
            ("127.0.0.4", None, "127.0.0.9"),
            ("10.1.0.1", None, "10.1.0.1"),
        ] {
            assert_eq!(best(peer, source).as_deref(), Some(chosen), "{peer} from {source:?}");
        }
        assert_eq!(best_card(&[ip("10.0.0.1")], ip("fd00::7"), None), Some(0));
        assert_eq!(best_card(&[], ip("10.0.0.7"), None), None);
    }

    #[test]
    fn the_kernel_says_where_a_route_begins() {
        let source = |peer: &str| source_towards(peer.parse().unwrap()).unwrap();
        assert!(source("127.0.0.7:0").is_loopback());
        assert!(source("[::ffff:127.0.0.7]:7").is_ipv4());
    }
}
