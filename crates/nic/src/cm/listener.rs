//! The listeners: which services are offered, and how many requests wait at each. (`receive`
//! refuses those that find no room.)

use core::net::IpAddr;
use std::collections::BTreeMap;

use super::order::Order;
use super::scope::AddressScope;
use super::service::ServiceId;
use crate::Time;

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListenerId(u32);

/// Why a listener cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ListenError {
    /// Another listener has the service id, at one of the same addresses.
    #[error("service id {0:?} is in use")]
    InUse(ServiceId),
    /// There are as many listeners as [`CmConfig`](super::CmConfig) allows.
    #[error("too many listeners")]
    TooMany,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// The listeners, by id, and by service and addresses. There is a limit to their number, and to the
/// number of requests that wait at each.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// No two scopes of a service overlap.
    services: BTreeMap<(ServiceId, AddressScope), ListenerId>,
    entries: BTreeMap<ListenerId, Listener>,
    last_id: u32,
}

#[derive(Debug)]
struct Listener {
    key: (ServiceId, AddressScope),
    backlog: Backlog,
}

/// The requests at a listener that are neither established nor refused.
#[derive(Debug, Default)]
struct Backlog {
    pending: usize,
    /// Those that this side has accepted.
    accepted: Order,
    by_peer: BTreeMap<IpAddr, OfPeer>,
}

/// The requests of one peer at a listener.
#[derive(Debug, Default)]
struct OfPeer {
    pending: usize,
    accepted: Order,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service: ServiceId,
        scope: AddressScope,
        max: usize,
    ) -> Result<ListenerId, ListenError> {
        if self.of(service).any(|(other, _)| other.overlaps(scope)) {
            return Err(ListenError::InUse(service));
        }
        if self.entries.len() >= max {
            return Err(ListenError::TooMany);
        }
        let id = self.free_id();
        let key = (service, scope);
        self.services.insert(key, id);
        self.entries.insert(id, Listener { key, backlog: Backlog::default() });
        Ok(id)
    }

    fn free_id(&mut self) -> ListenerId {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.entries.contains_key(&ListenerId(self.last_id)) {
                return ListenerId(self.last_id);
            }
        }
    }

    /// Removes a listener. Returns whether there was one.
    pub(super) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.entries.remove(&id) else { return false };
        self.services.remove(&listener.key);
        true
    }

    /// The listeners of a service.
    fn of(&self, service: ServiceId) -> impl Iterator<Item = (AddressScope, ListenerId)> {
        let from = self.services.range((service, AddressScope::FIRST)..);
        let of_it = from.take_while(move |((other, _), _)| *other == service);
        of_it.map(|((_, scope), id)| (*scope, *id))
    }

    /// The listener for a service at an address.
    pub(super) fn find(&self, service: ServiceId, asked: IpAddr) -> Option<ListenerId> {
        let scopes = AddressScope::containing(asked).into_iter();
        scopes.filter_map(|scope| self.services.get(&(service, scope)).copied()).next()
    }

    /// A listener for a service, at whatever address.
    pub(super) fn any(&self, service: ServiceId) -> Option<ListenerId> {
        self.of(service).next().map(|(_, id)| id)
    }

    /// Is there room for a request of this peer, if `max` may wait? A peer gets half of what the
    /// others leave, so that one alone never fills the backlog.
    pub(super) fn has_room(&self, id: ListenerId, peer: IpAddr, max: usize) -> bool {
        self.entries.get(&id).is_some_and(|Listener { backlog, .. }| {
            let of_peer = backlog.by_peer.get(&peer).map_or(0, |of_peer| of_peer.pending);
            of_peer < max.saturating_sub(backlog.pending)
        })
    }

    /// The request that goes first to make room for one of this peer, and when it was accepted: of
    /// those that are accepted and not established, the peer's own oldest, and the oldest of all
    /// for a peer that has no request here. So a peer that asks without end displaces only itself.
    pub(super) fn first_to_go(&self, id: ListenerId, peer: IpAddr) -> Option<(Time, u32)> {
        let backlog = &self.entries.get(&id)?.backlog;
        backlog.by_peer.get(&peer).map_or(&backlog.accepted, |of_peer| &of_peer.accepted).first()
    }

    pub(super) fn begin(&mut self, id: ListenerId, peer: IpAddr) {
        if let Some(Listener { backlog, .. }) = self.entries.get_mut(&id) {
            backlog.pending += 1;
            backlog.by_peer.entry(peer).or_default().pending += 1;
        }
    }

    pub(super) fn accept(&mut self, id: ListenerId, peer: IpAddr, now: Time, request: u32) {
        let Some(Listener { backlog, .. }) = self.entries.get_mut(&id) else { return };
        backlog.accepted.add(now, request);
        if let Some(of_peer) = backlog.by_peer.get_mut(&peer) {
            of_peer.accepted.add(now, request);
        }
    }

    /// Notes that a request no longer waits. Its listener may be gone by now.
    pub(super) fn end(&mut self, id: ListenerId, peer: IpAddr, request: u32) {
        let Some(Listener { backlog, .. }) = self.entries.get_mut(&id) else { return };
        backlog.accepted.remove(request);
        backlog.pending = backlog.pending.saturating_sub(1);
        if let Some(of_peer) = backlog.by_peer.get_mut(&peer) {
            of_peer.accepted.remove(request);
            of_peer.pending -= 1;
            if of_peer.pending == 0 {
                backlog.by_peer.remove(&peer);
            }
        }
    }
}
