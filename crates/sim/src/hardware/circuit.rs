//! A circuit: resources, and transactions that pass them one after the other in simulated time.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::resource::{Item, Resource, Terms};

/// The number of a resource of a circuit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(u32);

/// A step of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Waits for a place of a resource's window, and keeps it.
    Take(ResourceId),
    /// Gives that place back.
    Release(ResourceId),
    /// Passes a resource with so many bytes: waits for room, is served, and arrives. Its place is
    /// given back when it arrives.
    Pass(ResourceId, u64),
    /// Lets time pass, in picoseconds.
    Wait(u64),
}

/// The steps of a transaction, which many may share.
pub type Route = Arc<[Step]>;

/// A transaction under way.
#[derive(Debug)]
struct Job<T> {
    user: u32,
    route: Route,
    at: usize,
    /// What it passes now.
    passing: Option<ResourceId>,
    token: T,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Advance(u32),
    Start(ResourceId),
}

/// Resources and the transactions in them. A transaction carries a token, by which the caller
/// knows what to do when it has ended.
#[derive(Debug)]
pub struct Circuit<T> {
    now: u64,
    resources: Vec<Resource>,
    /// When each resource is looked at again, if that is certain.
    looks: Vec<Option<u64>>,
    jobs: Vec<Option<Job<T>>>,
    free: Vec<u32>,
    /// By time, then in the order of their making.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
}

impl<T> Default for Circuit<T> {
    fn default() -> Circuit<T> {
        Circuit {
            now: 0,
            resources: Vec::new(),
            looks: Vec::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
        }
    }
}

impl<T> Circuit<T> {
    /// Adds a resource.
    pub fn add(&mut self, terms: Terms) -> ResourceId {
        self.resources.push(Resource::new(terms));
        self.looks.push(None);
        ResourceId(self.resources.len() as u32 - 1)
    }

    /// The time, in picoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How many items hold a place of a resource.
    pub fn held(&self, of: ResourceId) -> u32 {
        self.resources[of.0 as usize].held()
    }

    /// Begins a transaction of `user` after `delay_ps`.
    pub fn send(&mut self, delay_ps: u64, user: u32, route: Route, token: T) {
        let job = Job { user, route, at: 0, passing: None, token };
        let index = match self.free.pop() {
            Some(index) => {
                self.jobs[index as usize] = Some(job);
                index
            }
            None => {
                self.jobs.push(Some(job));
                self.jobs.len() as u32 - 1
            }
        };
        self.at(self.now.saturating_add(delay_ps), Event::Advance(index));
    }

    /// Lets time pass until a transaction ends; returns its token, or `None` if none is under way
    /// that can.
    pub fn next_end(&mut self) -> Option<T> {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Start(resource) => {
                    self.looks[resource.0 as usize] = None;
                    self.start(resource);
                }
                Event::Advance(index) => {
                    if let Some(token) = self.advance(index) {
                        return Some(token);
                    }
                }
            }
        }
        None
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time, self.made, event)));
    }

    /// Takes a transaction through its next steps, up to one that takes time.
    fn advance(&mut self, index: u32) -> Option<T> {
        loop {
            let job = self.jobs[index as usize].as_mut().expect("an event is of a transaction");
            let (user, step) = (job.user, job.route.get(job.at).copied());
            if let Some(passed) = job.passing.take() {
                self.release(passed);
                continue;
            }
            job.at += 1;
            let (resource, bytes) = match step {
                None => {
                    self.free.push(index);
                    return self.jobs[index as usize].take().map(|job| job.token);
                }
                Some(Step::Release(resource)) => {
                    self.release(resource);
                    continue;
                }
                Some(Step::Wait(0)) => continue,
                Some(Step::Wait(ps)) => {
                    self.at(self.now.saturating_add(ps), Event::Advance(index));
                    return None;
                }
                Some(Step::Take(resource)) => (resource, 0),
                Some(Step::Pass(resource, bytes)) => {
                    job.passing = Some(resource);
                    (resource, bytes)
                }
            };
            let item = Item { user, bytes, id: index.into() };
            self.resources[resource.0 as usize].offer(item);
            self.start(resource);
            return None;
        }
    }

    fn release(&mut self, resource: ResourceId) {
        self.resources[resource.0 as usize].release();
        self.start(resource);
    }

    /// Serves what a resource can serve now, and comes back when it can serve more.
    fn start(&mut self, id: ResourceId) {
        while let Some(service) = self.resources[id.0 as usize].start(self.now) {
            self.at(service.arrives_ps, Event::Advance(service.item.id as u32));
        }
        let next = self.resources[id.0 as usize].next_start();
        // A resource that is busy is free no earlier than it was to be: one look is enough.
        if let (Some(at), None) = (next, self.looks[id.0 as usize]) {
            self.looks[id.0 as usize] = Some(at);
            self.at(at, Event::Start(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::Rate;
    use super::super::resource::Order;
    use super::*;

    #[test]
    fn transactions_share_a_link_and_a_window() {
        let mut circuit = Circuit::default();
        let tags = circuit.add(Terms { window: Some(2), ..Terms::default() });
        let link = circuit.add(Terms {
            rate: Some(Rate::new(1, 10)),
            latency_ps: 1000,
            order: Order::RoundRobin,
            ..Terms::default()
        });
        let route: Route = [Step::Take(tags), Step::Pass(link, 10), Step::Release(tags)].into();
        for id in 0..3 {
            circuit.send(0, id, Arc::clone(&route), id);
        }
        circuit.send(50, 9, [Step::Wait(1)].into(), 9);
        let mut ends = Vec::new();
        while let Some(id) = circuit.next_end() {
            ends.push((id, circuit.now()));
        }
        // Expect: two pass together, behind each other on the link; the third takes the first tag
        // that is free again.
        assert_eq!(ends, [(9, 51), (0, 1100), (1, 1200), (2, 2200)]);
        assert_eq!((circuit.held(tags), circuit.held(link)), (0, 0));
    }
}
