//! What the configuration service promises to nodes (`Coordinator`), asked of both: of the service
//! in this process, which tests and trials have, and of etcd. What tests show over the one would
//! not be so over the other if they differed.

#[cfg(feature = "etcd")]
mod etcd {
    pub(super) mod member;
}
#[cfg(feature = "etcd")]
#[path = "../../remora/tests/support/skips.rs"]
mod skips;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use remora_cluster::{Address, Configuration, Coordinator, InProcess, News, NodeId};
use remora_store::replica::{Entry, Event, Request};

/// How long anything may take on a busy machine; nothing is asserted about it.
const PATIENCE: Duration = Duration::from_secs(60);
/// A service that says nothing for so long has nothing more to say at the moment.
const MOMENT: Duration = Duration::from_millis(20);

/// The members, the first primary first, and a node that comes later.
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const D: NodeId = NodeId(4);

/// A service of a group that begins with three members.
trait Service {
    /// A node's way to it; from its first poll on, others hear where the node is.
    fn way(&self, me: NodeId, address: Address) -> Box<dyn Coordinator>;

    /// It answers nobody.
    fn go(&mut self);

    /// It answers again, and has what it had.
    fn come_back(&mut self);
}

impl Service for InProcess {
    fn way(&self, me: NodeId, address: Address) -> Box<dyn Coordinator> {
        self.coordinator(me, address)
    }

    fn go(&mut self) {
        self.set_away(true);
    }

    fn come_back(&mut self) {
        self.set_away(false);
    }
}

#[cfg(feature = "etcd")]
impl Service for etcd::member::Etcd {
    fn way(&self, me: NodeId, address: Address) -> Box<dyn Coordinator> {
        use remora_cluster::etcd::{Etcd, EtcdOptions, Origin};
        let group = self.group("contract/a");
        let lease = Duration::from_secs(60);
        let options =
            EtcdOptions { group, lease, size: 3, ring_bytes: 1 << 16, origin: Origin::New };
        let (way, _) = Etcd::connect(&options, me).unwrap();
        Box::new(way.announce(address))
    }

    fn go(&mut self) {
        self.kill(0);
    }

    fn come_back(&mut self) {
        self.start_member(0);
        self.wait();
    }
}

fn place(node: NodeId, port: u16) -> Address {
    Address::new(([127, 0, 0, node.0 as u8], port).into())
}

/// A node, and what it has heard.
struct Node {
    way: Box<dyn Coordinator>,
    /// News may have passed it by: it asks how things are, as replicas do all the time.
    is_out: bool,
    entry: Option<Entry>,
    there: BTreeMap<NodeId, Address>,
    events: Vec<Event>,
}

impl Node {
    fn new(way: Box<dyn Coordinator>) -> Node {
        let (there, events) = (BTreeMap::new(), Vec::new());
        Node { way, is_out: true, entry: None, there, events }
    }

    /// Asks; whether the service has answered.
    fn submit(&mut self, request: Request) -> bool {
        let has_answered = self.way.submit(request).is_ok();
        self.is_out |= !has_answered;
        has_answered
    }

    /// Hears all that there is to hear, and asks only if something may have passed it by.
    fn hear(&mut self) {
        if self.is_out {
            self.is_out = !self.submit(Request::Look);
        }
        loop {
            match self.way.poll(MOMENT) {
                Ok(Some(News::Event(event))) => {
                    if let Event::Latest(latest) = &event {
                        self.entry.clone_from(latest);
                    }
                    self.events.push(event);
                }
                Ok(Some(News::Address(node, Some(address)))) => {
                    self.there.insert(node, address);
                }
                Ok(Some(News::Address(node, None))) => {
                    self.there.remove(&node);
                }
                // (Nodes of a group that begins again.)
                Ok(Some(News::Waits(_))) => {}
                Ok(None) => return,
                Err(_) => {
                    self.is_out = true;
                    return;
                }
            }
        }
    }

    fn entry(&self) -> &Entry {
        self.entry.as_ref().expect("the group has begun")
    }

    fn configuration(&self) -> &Configuration {
        &self.entry().configuration
    }
}

struct Trial<'s> {
    service: &'s mut dyn Service,
    nodes: BTreeMap<NodeId, Node>,
}

impl Trial<'_> {
    fn come(&mut self, node: NodeId, port: u16) {
        let way = self.service.way(node, place(node, port));
        self.nodes.insert(node, Node::new(way));
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Node) -> bool) {
        let start = Instant::now();
        loop {
            self.nodes.values_mut().for_each(Node::hear);
            if self.nodes.values().all(&mut holds) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        }
    }

    /// A node asks for something: the answers. If the service is late, the request may be lost, and
    /// is made again.
    fn ask(&mut self, node: NodeId, request: &Request) -> Vec<Event> {
        let start = Instant::now();
        let asker = self.nodes.get_mut(&node).unwrap();
        loop {
            asker.hear();
            asker.events.clear();
            if asker.submit(request.clone()) {
                asker.hear();
                let said = std::mem::take(&mut asker.events);
                assert!(
                    matches!(said.last(), Some(Event::Latest(Some(_)))),
                    "{request:?}: {said:?}"
                );
                return said;
            }
            assert!(start.elapsed() < PATIENCE, "no answer to {request:?}");
            asker.hear();
            if let Request::Propose { next, .. } = request
                && !asker.is_out
                && asker.configuration() == next
            {
                return std::mem::take(&mut asker.events);
            }
        }
    }

    /// Asks for what the service refuses to do: the entry stays as it is.
    fn refuses(&mut self, node: NodeId, request: &Request) {
        self.ask(node, &Request::Look);
        let before = self.nodes[&node].entry().clone();
        let said = self.ask(node, request);
        assert_eq!(*self.nodes[&node].entry(), before, "{request:?}");
        let is_lease = |event: &Event| matches!(event, Event::Lease { .. });
        assert!(!said.iter().any(is_lease), "{request:?}: {said:?}");
        let is_refused = |event: &Event| matches!(event, Event::Refused { .. });
        let is_proposal = matches!(request, Request::Propose { .. });
        assert_eq!(said.iter().any(is_refused), is_proposal, "{request:?}: {said:?}");
    }

    fn propose(&mut self, node: NodeId, next: &Configuration, over: u64) {
        let said = self.ask(node, &Request::Propose { next: next.clone(), over });
        let refused = Event::Refused { epoch: next.epoch };
        assert!(!said.contains(&refused), "{said:?}");
        assert_eq!(self.nodes[&node].configuration(), next);
    }

    fn renew(&mut self, node: NodeId, epoch: u32, sent_ns: u64) {
        let before = self.look(node).revision;
        let said = self.ask(node, &Request::Renew { epoch, sent_ns });
        assert_eq!(said[0], Event::Lease { epoch, sent_ns }, "{said:?}");
        assert!(self.look(node).revision > before);
    }

    fn look(&mut self, node: NodeId) -> Entry {
        self.ask(node, &Request::Look);
        self.nodes[&node].entry().clone()
    }
}

fn keeps_its_promises(service: &mut dyn Service) {
    let mut trial = Trial { service, nodes: BTreeMap::new() };
    nodes_hear_of_each_other(&mut trial);
    the_primary_alone_renews_its_lease(&mut trial);
    one_proposal_wins_and_all_hear_of_it(&mut trial);
    a_stale_proposer_is_refused(&mut trial);
    a_configuration_follows_the_latest(&mut trial);
    members_change_and_are_established(&mut trial);
    a_service_that_comes_back_has_what_it_had(&mut trial);
    a_node_is_where_it_came_last(&mut trial);
}

fn nodes_hear_of_each_other(trial: &mut Trial<'_>) {
    let all = BTreeMap::from([A, B, C].map(|node| (node, place(node, 7490))));
    all.keys().for_each(|node| trial.come(*node, 7490));
    trial.until("the nodes know the others and the group", |node| {
        node.there == all && node.entry.is_some()
    });
    let first = Configuration::first(A, vec![A, B, C]).unwrap();
    trial.nodes.values().for_each(|node| assert_eq!(*node.configuration(), first));
}

fn the_primary_alone_renews_its_lease(trial: &mut Trial<'_>) {
    trial.renew(A, 1, 17);
    trial.renew(A, 1, 5);
    trial.refuses(B, &Request::Renew { epoch: 1, sent_ns: 3 });
    trial.refuses(A, &Request::Renew { epoch: 2, sent_ns: 3 });
    trial.refuses(B, &Request::Resign { epoch: 1 });
}

fn one_proposal_wins_and_all_hear_of_it(trial: &mut Trial<'_>) {
    trial.ask(A, &Request::Resign { epoch: 1 });
    trial.until("all hear that the lease is free", |node| node.entry().is_free);
    // To say it again changes nothing: others may be about to propose themselves over it.
    trial.refuses(A, &Request::Resign { epoch: 1 });
    trial.refuses(A, &Request::Renew { epoch: 1, sent_ns: 9 });
    let free = trial.look(B);
    let [by_b, by_c] = [B, C].map(|node| free.configuration.under(node).unwrap());
    trial.propose(B, &by_b, free.revision);
    trial.refuses(C, &Request::Propose { next: by_c, over: free.revision });
    trial.until("all hear of it", |node| *node.configuration() == by_b && !node.entry().is_free);
    trial.refuses(A, &Request::Renew { epoch: 1, sent_ns: 9 });
}

fn a_stale_proposer_is_refused(trial: &mut Trial<'_>) {
    let seen = trial.look(C);
    trial.renew(B, 2, 21);
    let next = seen.configuration.under(C).unwrap();
    trial.refuses(C, &Request::Propose { next: next.clone(), over: seen.revision });
    let seen = trial.look(C);
    trial.propose(C, &next, seen.revision);
    trial.until("all hear of it", |node| *node.configuration() == next);
    let late = Request::Propose { next, over: seen.revision };
    [B, C].into_iter().for_each(|node| trial.refuses(node, &late));
}

/// C is the primary of epoch 3.
fn a_configuration_follows_the_latest(trial: &mut Trial<'_>) {
    let Entry { configuration: latest, revision: over, .. } = trial.look(C);
    let next = latest.under(C).unwrap();
    let wrong = [
        Configuration { epoch: 5, ..next.clone() },
        latest,
        Configuration { established: vec![A, B], ..next.clone() },
        next.under(B).map(|by_b| Configuration { epoch: 4, ..by_b }).unwrap(),
    ];
    for next in wrong {
        trial.refuses(C, &Request::Propose { next, over });
    }
    trial.refuses(A, &Request::Propose { next, over });
    trial.refuses(B, &Request::Establish { epoch: 2 });
    trial.refuses(A, &Request::Establish { epoch: 3 });
}

fn members_change_and_are_established(trial: &mut Trial<'_>) {
    let next = trial.look(C).configuration.with(D).unwrap();
    // A primary needs to have seen nothing.
    trial.propose(C, &next, 0);
    trial.until("all hear of the new member", |node| *node.configuration() == next);
    assert!(!next.is_established());
    trial.refuses(C, &Request::Establish { epoch: 3 });
    trial.ask(C, &Request::Establish { epoch: 4 });
    trial.until("all hear that they hold everything", |node| node.configuration().is_established());
    trial.refuses(C, &Request::Establish { epoch: 4 });
    trial.renew(C, 4, 33);
}

fn a_service_that_comes_back_has_what_it_had(trial: &mut Trial<'_>) {
    let (before, there) = (trial.look(B), trial.nodes[&A].there.clone());
    trial.service.go();
    let start = Instant::now();
    for node in trial.nodes.values_mut() {
        while node.submit(Request::Look) {
            assert!(start.elapsed() < PATIENCE, "it answers though it is away");
        }
        node.entry = None;
    }
    trial.service.come_back();
    trial.until("all hear of it again", |node| node.entry.is_some() && node.there == there);
    trial.nodes.values().for_each(|node| assert_eq!(*node.entry(), before));
    trial.renew(C, 4, 41);
    let next = before.configuration.under(B).unwrap();
    trial.refuses(B, &Request::Propose { next, over: before.revision });
}

/// A node comes back under its number before its earlier life is known to be over.
fn a_node_is_where_it_came_last(trial: &mut Trial<'_>) {
    let way = trial.service.way(B, place(B, 7600));
    let before = trial.nodes.insert(B, Node::new(way));
    let is_moved = |node: &Node| node.there.get(&B) == Some(&place(B, 7600));
    trial.until("all hear where it is now", is_moved);
    drop(before);
    trial.come(D, 7490);
    trial.until("all know the one that comes last, which knows them", |node| node.there.len() == 4);
    // Its end is heard of no sooner than that of the one before.
    trial.nodes.remove(&D);
    trial.until("all hear that it has gone", |node| !node.there.contains_key(&D));
    for node in trial.nodes.values() {
        assert!(is_moved(node), "{:?}", node.there);
    }
}

#[test]
fn the_service_in_this_process_keeps_its_promises() {
    let first = Configuration::first(A, vec![A, B, C]).unwrap();
    keeps_its_promises(&mut InProcess::new(first));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_keeps_its_promises() {
    if skips::has("etcd", "etcd-server") {
        keeps_its_promises(&mut etcd::member::Etcd::start_alone());
    }
}
