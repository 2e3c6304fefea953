//! The listeners: which services are offered, and how many requests wait at each.

use core::net::IpAddr;
use std::collections::BTreeMap;

use super::scope::AddressScope;
use super::service::ServiceId;

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(u32);

/// Why a listener cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListenError {
    /// Another listener has the service id, at one of the same addresses.
    #[error("service id {0:?} is in use")]
    InUse(ServiceId),
    /// There are as many listeners as [`CmConfig`](super::CmConfig) allows.
    #[error("too many listeners")]
    TooMany,
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
    /// Requests that are neither established nor refused.
    pending: usize,
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
        self.entries.insert(id, Listener { key, pending: 0 });
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

    pub(super) fn pending(&self, id: ListenerId) -> usize {
        self.entries.get(&id).map_or(0, |listener| listener.pending)
    }

    pub(super) fn begin(&mut self, id: ListenerId) {
        if let Some(listener) = self.entries.get_mut(&id) {
            listener.pending += 1;
        }
    }

    /// Notes that a request no longer waits. Its listener may be gone by now.
    pub(super) fn end(&mut self, id: ListenerId) {
        if let Some(listener) = self.entries.get_mut(&id) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}
