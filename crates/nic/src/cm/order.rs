//! Connections in the order in which something happened to them.

use std::collections::BTreeMap;

use crate::Time;

/// Connections by id, the one that was added first in front.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By the moment, and by a number where several have the same moment.
    ids: BTreeMap<(Time, u64), u32>,
    places: BTreeMap<u32, (Time, u64)>,
    added: u64,
}

impl Order {
    /// Adds a connection behind all others. One that is there already keeps its place.
    pub(super) fn add(&mut self, now: Time, id: u32) {
        if self.places.contains_key(&id) {
            return;
        }
        self.added += 1;
        self.ids.insert((now, self.added), id);
        self.places.insert(id, (now, self.added));
    }

    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.ids.len(), self.places.len());
        self.ids.len()
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(place) = self.places.remove(&id) {
            self.ids.remove(&place);
        }
    }

    /// The first connection, and when it was added.
    pub(super) fn first(&self) -> Option<(Time, u32)> {
        self.ids.first_key_value().map(|((at, _), id)| (*at, *id))
    }
}
