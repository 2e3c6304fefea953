//! A resource: what several users share, by a rate, a window and a latency.
//!
//! A link, a pool of tags, a bus, a memory, an engine are resources. An item waits until there is
//! room in the window and the items before it are served, is served at the rate, and arrives after
//! the latency. It keeps its place in the window until that is given back.
//!
//! A resource has no clock and starts nothing by itself: [`Circuit`](super::Circuit) drives many.

use std::collections::{BTreeMap, VecDeque};

use super::rate::{Rate, Server};

/// The properties of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// How fast bytes are served; `None`: at once.
    pub rate: Option<Rate>,
    /// The most items that hold a place; `None`: any number.
    pub window: Option<u32>,
    /// From the end of service to arrival, in picoseconds.
    pub latency_ps: u64,
    /// Whose item is next.
    pub order: Order,
}

/// The order in which a resource serves waiting items.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// As they came.
    #[default]
    Fifo,
    /// One item of each user in turn; a user's own as they came.
    RoundRobin,
}

/// Something to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Whose it is.
    pub user: u32,
    /// How much there is to serve.
    pub bytes: u64,
    /// What the caller knows it by.
    pub id: u64,
}

/// An item whose service has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// The item.
    pub item: Item,
    /// The end of service, in picoseconds.
    pub done_ps: u64,
    /// Its arrival, in picoseconds.
    pub arrives_ps: u64,
}

/// What items wait for.
#[derive(Debug)]
pub struct Resource {
    terms: Terms,
    server: Server,
    queues: BTreeMap<u32, VecDeque<Item>>,
    /// The user that was served last.
    last: u32,
    held: u32,
}

impl Resource {
    /// An idle resource.
    pub fn new(terms: Terms) -> Resource {
        let server = Server::new(terms.rate);
        Resource { terms, server, queues: BTreeMap::new(), last: u32::MAX, held: 0 }
    }

    /// Puts an item at the end of its queue.
    pub fn offer(&mut self, item: Item) {
        let queue = match self.terms.order {
            Order::Fifo => 0,
            Order::RoundRobin => item.user,
        };
        self.queues.entry(queue).or_default().push_back(item);
    }

    /// Begins the service of the next item, if the resource is free at `now`, has room and has an
    /// item. The caller asks again until there is none.
    pub fn start(&mut self, now: u64) -> Option<Service> {
        if self.server.free_at() > now || !self.has_room() {
            return None;
        }
        let item = self.pick()?;
        self.held += 1;
        let done_ps = self.server.serve(now, item.bytes);
        Some(Service { item, done_ps, arrives_ps: done_ps.saturating_add(self.terms.latency_ps) })
    }

    /// The moment before which [`start`](Resource::start) gives nothing; `None` if something else
    /// must happen first: an offer, or a release.
    pub fn next_start(&self) -> Option<u64> {
        let waits = self.queues.values().any(|queue| !queue.is_empty());
        (waits && self.has_room()).then(|| self.server.free_at())
    }

    /// Gives back the place of an item.
    ///
    /// # Panics
    /// If no item holds a place.
    pub fn release(&mut self) {
        assert!(self.held > 0, "a place was given back twice");
        self.held -= 1;
    }

    /// How many items hold a place.
    pub fn held(&self) -> u32 {
        self.held
    }

    fn has_room(&self) -> bool {
        self.terms.window.is_none_or(|window| self.held < window)
    }

    /// Takes the next item: of the first user behind the one that was served last.
    fn pick(&mut self) -> Option<Item> {
        let after = (core::ops::Bound::Excluded(self.last), core::ops::Bound::Unbounded);
        let behind = self.queues.range(after).find(|(_, queue)| !queue.is_empty());
        let any = || self.queues.iter().find(|(_, queue)| !queue.is_empty());
        let user = *behind.or_else(any)?.0;
        self.last = user;
        self.queues.get_mut(&user)?.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(order: Order) -> Vec<u64> {
        let mut resource = Resource::new(Terms { order, ..Terms::default() });
        for (user, id) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            resource.offer(Item { user, bytes: 0, id });
        }
        std::iter::from_fn(|| resource.start(0)).map(|service| service.item.id).collect()
    }

    #[test]
    fn items_are_served_as_they_came_or_in_turn() {
        assert_eq!(order(Order::Fifo), [10, 11, 12, 20, 30, 21]);
        assert_eq!(order(Order::RoundRobin), [10, 20, 30, 11, 21, 12]);
    }

    #[test]
    fn a_full_window_holds_items_back() {
        let rate = Some(Rate::new(1, 10));
        let terms = Terms { rate, window: Some(1), latency_ps: 100, order: Order::Fifo };
        let mut resource = Resource::new(terms);
        for id in 0..2 {
            resource.offer(Item { user: 0, bytes: 4, id });
        }
        let first = resource.start(0).unwrap();
        assert_eq!((first.done_ps, first.arrives_ps), (40, 140));
        assert_eq!((resource.start(40), resource.next_start()), (None, None));
        resource.release();
        assert_eq!(resource.next_start(), Some(40));
        assert_eq!(resource.start(140).map(|second| second.arrives_ps), Some(280));
    }
}
