//! The listeners: which services are offered, and how many requests wait at each.

use std::collections::BTreeMap;

use super::service::ServiceId;

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(u32);

/// Why a listener cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListenError {
    /// Another listener has the service id.
    #[error("service id {0:?} is in use")]
    InUse(ServiceId),
    /// There are as many listeners as [`CmConfig`](super::CmConfig) allows.
    #[error("too many listeners")]
    TooMany,
}

/// The listeners, by id and by service. The number of listeners is bounded, and so is the number of
/// requests that wait at each.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    services: BTreeMap<ServiceId, ListenerId>,
    entries: BTreeMap<ListenerId, Listener>,
    last_id: u32,
}

#[derive(Debug)]
struct Listener {
    service: ServiceId,
    /// Requests that are neither established nor refused.
    pending: usize,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service: ServiceId,
        max: usize,
    ) -> Result<ListenerId, ListenError> {
        if self.services.contains_key(&service) {
            return Err(ListenError::InUse(service));
        }
        if self.entries.len() >= max {
            return Err(ListenError::TooMany);
        }
        let id = self.free_id();
        self.services.insert(service, id);
        self.entries.insert(id, Listener { service, pending: 0 });
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
        self.services.remove(&listener.service);
        true
    }

    pub(super) fn find(&self, service: ServiceId) -> Option<ListenerId> {
        self.services.get(&service).copied()
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
