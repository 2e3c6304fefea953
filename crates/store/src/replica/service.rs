//! The contract of the configuration service, and the service itself as a value.
//!
//! etcd keeps it with a lease a node, one key a group, and a transaction a request; simulated
//! worlds and the model use [`Registry`], which says in code what those transactions do.

use std::collections::{BTreeMap, VecDeque};

use super::configuration::{Configuration, NodeId};

/// What a node asks of the configuration service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Renew my lease, or give me one; and tell me how things are: the answer is
    /// [`Event::Lease`], then the latest configuration, then [`Event::Vacant`] if that is so. A
    /// node asks all the time, so nothing that it missed stays unknown to it.
    KeepAlive {
        /// The node's clock at sending; it comes back with the answer.
        sent_ns: u64,
    },
    /// End my lease now.
    Resign,
    /// Put this configuration in the place of the one an epoch earlier, if that is still the
    /// latest, its primary is the asker or holds no lease, and the new primary is the asker, who
    /// holds one.
    Propose(Configuration),
    /// This epoch's members hold all that was acknowledged: note that if it is still the latest.
    Establish {
        /// The epoch.
        epoch: u32,
    },
}

/// What the configuration service says to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The lease was renewed.
    Lease {
        /// The latest epoch, looked up once the lease had been renewed (not before: another node
        /// may have taken over between the two); 0 before there is one.
        epoch: u32,
        /// What the request said.
        sent_ns: u64,
    },
    /// The latest configuration; `None` before there is one.
    Configuration(Option<Configuration>),
    /// The primary of this epoch holds no lease: whoever is a member may propose itself.
    Vacant {
        /// The epoch.
        epoch: u32,
    },
    /// A proposal was refused: another one came first, or its conditions do not hold.
    Refused {
        /// The epoch that was proposed.
        epoch: u32,
    },
}

/// The configuration service, as its users see it.
///
/// What it promises: requests take effect one after another. A lease that was renewed at any time
/// holds for its full term from then on by the service's clock, unless its node resigns. Every
/// node hears of each configuration that is the latest for long enough, in the order of epochs; a
/// node that asks anew hears the latest. Requests and events may be lost or late.
pub trait ConfigurationService {
    /// A node's request, at `now_ns` of the service's clock.
    fn submit(&mut self, from: NodeId, request: Request, now_ns: u64);

    /// The next event, and for whom it is.
    fn poll(&mut self, now_ns: u64) -> Option<(NodeId, Event)>;
}

/// The configuration service as a value, for one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registry {
    ttl_ns: u64,
    /// Until when each node's lease holds.
    leases: BTreeMap<NodeId, u64>,
    latest: Option<Configuration>,
    events: VecDeque<(NodeId, Event)>,
}

impl Registry {
    /// A service without nodes, whose leases hold for `ttl_ns`.
    #[must_use]
    pub fn new(ttl_ns: u64, latest: Option<Configuration>) -> Registry {
        Registry { ttl_ns, leases: BTreeMap::new(), latest, events: VecDeque::new() }
    }

    /// The latest configuration.
    #[must_use]
    pub fn latest(&self) -> Option<&Configuration> {
        self.latest.as_ref()
    }

    /// Whether a node holds a lease.
    #[must_use]
    pub fn holds(&self, node: NodeId) -> bool {
        self.leases.contains_key(&node)
    }

    /// Until when the next lease holds that will end.
    #[must_use]
    pub fn next_end_ns(&self) -> Option<u64> {
        self.leases.values().copied().min()
    }

    /// Ends a node's lease.
    pub fn end_lease(&mut self, node: NodeId) {
        if self.leases.remove(&node).is_none() {
            return;
        }
        let vacant = self.latest.as_ref().filter(|latest| latest.primary == node);
        if let Some(epoch) = vacant.map(|latest| latest.epoch) {
            let nodes: Vec<_> = self.leases.keys().copied().collect();
            self.events.extend(nodes.into_iter().map(|node| (node, Event::Vacant { epoch })));
        }
    }

    /// Tells a node how things are.
    fn greet(&mut self, node: NodeId) {
        self.events.push_back((node, Event::Configuration(self.latest.clone())));
        if let Some(latest) = &self.latest
            && latest.primary != node
            && !self.holds(latest.primary)
        {
            self.events.push_back((node, Event::Vacant { epoch: latest.epoch }));
        }
    }

    fn admits(&self, from: NodeId, proposal: &Configuration) -> bool {
        let follows = match &self.latest {
            None => proposal.epoch == 1,
            Some(latest) => {
                proposal.epoch == latest.epoch + 1
                    && proposal.established == latest.established
                    && (latest.primary == from || !self.holds(latest.primary))
            }
        };
        follows && proposal.primary == from && self.holds(from)
    }

    fn announce(&mut self) {
        for node in self.leases.keys() {
            self.events.push_back((*node, Event::Configuration(self.latest.clone())));
        }
    }
}

impl ConfigurationService for Registry {
    fn submit(&mut self, from: NodeId, request: Request, now_ns: u64) {
        match request {
            Request::KeepAlive { sent_ns } => {
                self.leases.insert(from, now_ns + self.ttl_ns);
                let epoch = self.latest.as_ref().map_or(0, |latest| latest.epoch);
                self.events.push_back((from, Event::Lease { epoch, sent_ns }));
                self.greet(from);
            }
            Request::Resign => self.end_lease(from),
            Request::Propose(proposal) if self.admits(from, &proposal) => {
                self.latest = Some(proposal);
                self.announce();
            }
            Request::Propose(proposal) => {
                self.events.push_back((from, Event::Refused { epoch: proposal.epoch }));
                // The proposer may have missed what it lost to.
                self.greet(from);
            }
            Request::Establish { epoch } => {
                if let Some(latest) = self.latest.as_mut().filter(|latest| latest.epoch == epoch) {
                    latest.established = latest.members.clone();
                    self.announce();
                }
            }
        }
    }

    fn poll(&mut self, now_ns: u64) -> Option<(NodeId, Event)> {
        while let Some((node, _)) = self.leases.iter().find(|(_, until)| **until <= now_ns) {
            let node = *node;
            self.end_lease(node);
        }
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn drain(registry: &mut Registry, now_ns: u64) -> Vec<(NodeId, Event)> {
        std::iter::from_fn(|| registry.poll(now_ns)).collect()
    }

    fn group() -> (Registry, Configuration) {
        let first = Configuration::first(A, vec![A, B]).unwrap();
        let mut registry = Registry::new(100, None);
        for node in [A, B] {
            registry.submit(node, Request::KeepAlive { sent_ns: 0 }, 0);
        }
        registry.submit(A, Request::Propose(first.clone()), 0);
        assert_eq!(registry.latest(), Some(&first));
        drain(&mut registry, 0);
        (registry, first)
    }

    #[test]
    fn nobody_takes_over_while_the_primary_holds_its_lease() {
        let (mut registry, first) = group();
        let second = first.under(B).unwrap();
        registry.submit(B, Request::Propose(second.clone()), 99);
        assert_eq!(registry.latest(), Some(&first));
        registry.submit(B, Request::KeepAlive { sent_ns: 1 }, 99);
        assert!(drain(&mut registry, 100).contains(&(B, Event::Vacant { epoch: 1 })));
        registry.submit(B, Request::Propose(second.clone()), 100);
        assert_eq!(registry.latest(), Some(&second));
        // The one that was paused meanwhile comes back, and hears of it.
        registry.submit(A, Request::KeepAlive { sent_ns: 9 }, 101);
        let events = drain(&mut registry, 101);
        assert!(events.contains(&(A, Event::Lease { epoch: 2, sent_ns: 9 })), "{events:?}");
        assert!(events.contains(&(A, Event::Configuration(Some(second)))), "{events:?}");
    }

    /// Events may be lost: whoever missed that the primary has gone is told again.
    #[test]
    fn every_renewal_is_answered_with_how_things_are() {
        let (mut registry, first) = group();
        registry.submit(A, Request::Resign, 1);
        drain(&mut registry, 1);
        registry.submit(B, Request::KeepAlive { sent_ns: 5 }, 2);
        let how = [
            Event::Lease { epoch: 1, sent_ns: 5 },
            Event::Configuration(Some(first)),
            Event::Vacant { epoch: 1 },
        ];
        assert_eq!(drain(&mut registry, 2), how.map(|event| (B, event)));
    }

    #[test]
    fn of_two_proposals_one_wins() {
        let (mut registry, first) = group();
        registry.submit(A, Request::Resign, 1);
        registry.submit(A, Request::KeepAlive { sent_ns: 2 }, 2);
        registry.submit(A, Request::Propose(first.under(A).unwrap()), 3);
        registry.submit(B, Request::Propose(first.under(B).unwrap()), 3);
        assert_eq!(registry.latest().unwrap().primary, A);
        assert!(drain(&mut registry, 3).contains(&(B, Event::Refused { epoch: 2 })));
    }

    #[test]
    fn only_the_latest_epoch_is_established() {
        let (mut registry, first) = group();
        let more = first.with(NodeId(3)).unwrap();
        registry.submit(A, Request::Propose(more.clone()), 1);
        registry.submit(A, Request::Establish { epoch: 1 }, 1);
        assert!(!registry.latest().unwrap().is_established());
        registry.submit(A, Request::Establish { epoch: 2 }, 1);
        assert!(registry.latest().unwrap().is_established());
    }
}
