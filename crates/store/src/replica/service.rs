//! The contract of the configuration service, and the service itself as a value.
//!
//! etcd keeps it with one key a group and a transaction a request; simulated worlds and the model
//! use [`Registry`], which says in code what those transactions do.

use std::collections::{BTreeSet, VecDeque};

use super::configuration::{Configuration, NodeId};

/// What the service has of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The latest configuration.
    pub configuration: Configuration,
    /// Changes whenever the entry is written, and never comes again.
    pub revision: u64,
    /// The primary has given its lease up: any member may propose itself.
    pub is_free: bool,
}

/// What a node asks of the configuration service. The answer to each ends with
/// [`Event::Latest`]. Nodes ask all the time, so nothing that they missed stays unknown to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// How are things?
    Look,
    /// I am the primary of this epoch, and there: write the entry as it is, if the epoch is still
    /// the latest and not free. Then the answer begins with [`Event::Lease`].
    Renew {
        /// The epoch.
        epoch: u32,
        /// The node's clock at sending; it comes back with the answer.
        sent_ns: u64,
    },
    /// I am the primary of this epoch, and give my lease up: write that, if the epoch is still the
    /// latest and it is not written yet.
    Resign {
        /// The epoch.
        epoch: u32,
    },
    /// Put this configuration in the place of the one an epoch earlier, if that is still the
    /// latest, its primary is the asker or its revision is still `over`, and the new primary is
    /// the asker.
    Propose {
        /// The configuration.
        next: Configuration,
        /// The revision that the asker has seen for a whole term, or that was free; 0 if it has
        /// seen none.
        over: u64,
    },
    /// This epoch's members hold all that was acknowledged: write that, if it is still the latest
    /// and that is not written yet.
    Establish {
        /// The epoch.
        epoch: u32,
    },
}

/// What the configuration service says to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The lease of this epoch's primary was renewed.
    Lease {
        /// The epoch.
        epoch: u32,
        /// What the request said.
        sent_ns: u64,
    },
    /// The group's entry; `None` before there is one.
    Latest(Option<Entry>),
    /// A proposal was refused: another one came first, or its conditions do not hold.
    Refused {
        /// The epoch that was proposed.
        epoch: u32,
    },
}

/// The configuration service, as its users see it.
///
/// What it promises: requests take effect one after another, and each revision is another one.
/// It keeps no time: that a lease has ended is seen by those who wait for it
/// ([`Silence`](super::Silence)). Every node hears of each configuration that is the latest for
/// long enough; a node that asks anew hears the latest. Requests and events may be lost or late.
pub trait ConfigurationService {
    /// A node's request.
    fn submit(&mut self, from: NodeId, request: Request);

    /// The next event, and for whom it is.
    fn poll(&mut self) -> Option<(NodeId, Event)>;
}

/// The configuration service as a value, for one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registry {
    latest: Option<Entry>,
    /// The nodes that have asked for something.
    nodes: BTreeSet<NodeId>,
    events: VecDeque<(NodeId, Event)>,
}

impl Registry {
    /// A service that no node has asked for anything yet.
    #[must_use]
    pub fn new(latest: Option<Configuration>) -> Registry {
        let entry = |configuration| Entry { configuration, revision: 1, is_free: false };
        Registry { latest: latest.map(entry), ..Registry::default() }
    }

    /// The latest configuration.
    #[must_use]
    pub fn latest(&self) -> Option<&Configuration> {
        self.latest.as_ref().map(|entry| &entry.configuration)
    }

    /// The group's entry.
    #[must_use]
    pub fn entry(&self) -> Option<&Entry> {
        self.latest.as_ref()
    }

    /// Tells a node how things are.
    fn greet(&mut self, node: NodeId) {
        self.events.push_back((node, Event::Latest(self.latest.clone())));
    }

    fn announce(&mut self) {
        for node in &self.nodes {
            self.events.push_back((*node, Event::Latest(self.latest.clone())));
        }
    }

    /// The entry, if this epoch is the latest and the node its primary.
    fn entry_of(&mut self, node: NodeId, epoch: u32) -> Option<&mut Entry> {
        let is_its = |entry: &&mut Entry| {
            (entry.configuration.primary, entry.configuration.epoch) == (node, epoch)
        };
        self.latest.as_mut().filter(is_its)
    }

    fn admits(&self, from: NodeId, proposal: &Configuration, over: u64) -> bool {
        let follows = match &self.latest {
            None => proposal.epoch == 1,
            Some(Entry { configuration: latest, revision, .. }) => {
                proposal.epoch == latest.epoch + 1
                    && proposal.established == latest.established
                    && (latest.primary == from || *revision == over)
            }
        };
        follows && proposal.primary == from
    }
}

impl ConfigurationService for Registry {
    fn submit(&mut self, from: NodeId, request: Request) {
        self.nodes.insert(from);
        match request {
            Request::Look => self.greet(from),
            Request::Renew { epoch, sent_ns } => {
                if let Some(entry) = self.entry_of(from, epoch).filter(|entry| !entry.is_free) {
                    entry.revision += 1;
                    self.events.push_back((from, Event::Lease { epoch, sent_ns }));
                }
                // The others see it when they look.
                self.greet(from);
            }
            Request::Resign { epoch } => match self.entry_of(from, epoch) {
                Some(entry) if !entry.is_free => {
                    (entry.revision, entry.is_free) = (entry.revision + 1, true);
                    self.announce();
                }
                _ => self.greet(from),
            },
            Request::Propose { next, over } if self.admits(from, &next, over) => {
                let revision = self.latest.as_ref().map_or(0, |entry| entry.revision) + 1;
                self.latest = Some(Entry { configuration: next, revision, is_free: false });
                self.announce();
            }
            Request::Propose { next, .. } => {
                self.events.push_back((from, Event::Refused { epoch: next.epoch }));
                // The proposer may have missed what it lost to.
                self.greet(from);
            }
            Request::Establish { epoch } => match self.entry_of(from, epoch) {
                Some(entry) if !entry.configuration.is_established() => {
                    entry.configuration.established = entry.configuration.members.clone();
                    entry.revision += 1;
                    self.announce();
                }
                _ => self.greet(from),
            },
        }
    }

    fn poll(&mut self) -> Option<(NodeId, Event)> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn drain(registry: &mut Registry) -> Vec<(NodeId, Event)> {
        std::iter::from_fn(|| registry.poll()).collect()
    }

    fn group() -> (Registry, Configuration) {
        let first = Configuration::first(A, vec![A, B]).unwrap();
        let mut registry = Registry::new(None);
        for node in [A, B] {
            registry.submit(node, Request::Look);
        }
        registry.submit(A, Request::Propose { next: first.clone(), over: 0 });
        assert_eq!(registry.latest(), Some(&first));
        drain(&mut registry);
        (registry, first)
    }

    fn revision(registry: &Registry) -> u64 {
        registry.entry().unwrap().revision
    }

    #[test]
    fn nobody_takes_over_from_a_primary_that_has_renewed_its_lease() {
        let (mut registry, first) = group();
        let (next, over) = (first.under(B).unwrap(), revision(&registry));
        registry.submit(A, Request::Renew { epoch: 1, sent_ns: 7 });
        let lease = (A, Event::Lease { epoch: 1, sent_ns: 7 });
        assert_eq!(drain(&mut registry).first(), Some(&lease));
        registry.submit(B, Request::Propose { next: next.clone(), over });
        assert_eq!(registry.latest(), Some(&first));
        assert!(drain(&mut registry).contains(&(B, Event::Refused { epoch: 2 })));
        let over = revision(&registry);
        registry.submit(B, Request::Propose { next: next.clone(), over });
        assert_eq!(registry.latest(), Some(&next));
        drain(&mut registry);
        // The one that was paused meanwhile comes back, and hears of it.
        registry.submit(A, Request::Renew { epoch: 1, sent_ns: 9 });
        let latest = registry.entry().cloned();
        assert_eq!(drain(&mut registry), [(A, Event::Latest(latest))]);
    }

    /// Events may be lost: a node that missed that the primary has given up is told again.
    #[test]
    fn every_request_is_answered_with_how_things_are() {
        let (mut registry, first) = group();
        let before = revision(&registry);
        registry.submit(A, Request::Resign { epoch: 1 });
        drain(&mut registry);
        for request in [Request::Look, Request::Renew { epoch: 1, sent_ns: 5 }] {
            registry.submit(A, request);
            let configuration = first.clone();
            let entry = Entry { configuration, revision: before + 1, is_free: true };
            assert_eq!(drain(&mut registry), [(A, Event::Latest(Some(entry)))]);
        }
    }

    #[test]
    fn of_two_proposals_one_wins() {
        let (mut registry, first) = group();
        registry.submit(A, Request::Resign { epoch: 1 });
        let over = revision(&registry);
        for node in [A, B] {
            registry.submit(node, Request::Propose { next: first.under(node).unwrap(), over });
        }
        assert_eq!(registry.latest().unwrap().primary, A);
        assert!(drain(&mut registry).contains(&(B, Event::Refused { epoch: 2 })));
    }

    #[test]
    fn only_the_latest_epoch_is_established() {
        let (mut registry, first) = group();
        let next = first.with(NodeId(3)).unwrap();
        registry.submit(A, Request::Propose { next, over: 0 });
        registry.submit(A, Request::Establish { epoch: 1 });
        assert!(!registry.latest().unwrap().is_established());
        registry.submit(A, Request::Establish { epoch: 2 });
        assert!(registry.latest().unwrap().is_established());
    }
}
