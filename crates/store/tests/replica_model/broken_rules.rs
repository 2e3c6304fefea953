//! The model finds it where a rule of the protocol is not kept.

use remora_store::replica::Answer;
use stateright::HasDiscoveries;

use super::*;

/// A rule that safety hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    /// A primary answers while its lease holds.
    Lease,
    /// It answers when its epoch's first record is committed.
    Commit,
    /// A node that hears of a later epoch ends the connections of earlier ones.
    Fence,
    /// The next primary takes over the highest history of a quorum.
    Highest,
}

/// Whether it has ordered its epoch's first record.
pub(super) fn orders(replica: &Replica) -> bool {
    replica.primary() == Some(replica.me()) && replica.last().position.epoch() == replica.epoch()
}

impl State {
    /// A message as it is sent: without the last rule, nobody tells of what is
    /// not decided.
    pub(super) fn as_sent(&self, message: Message) -> Message {
        match message {
            Message::History { epoch, answer } if self.without == Some(Rule::Highest) => {
                let (ends, committed) = (vec![answer.applied], answer.applied.position);
                let answer = Answer { ends, committed, ..answer };
                Message::History { epoch, answer }
            }
            message => message,
        }
    }
}

/// Whether the model finds that one of these properties does not hold where a rule is not kept.
fn finds(rule: Rule, properties: &[&str]) {
    let group = Group { without: Some(rule), ..ONE_CHANGE };
    let checker = group.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let found: Vec<_> = checker.discoveries().into_keys().collect();
    assert!(found.iter().any(|name| properties.contains(name)), "{rule:?}: {found:?}");
}

const LOST: &str = "no acknowledged write lost";
const AGREEMENT: &str = "agreement: who answers has what any has delivered";
const TOTAL: &str = "total order: one delivers the beginning of another";

#[test]
fn without_leases_two_nodes_answer() {
    finds(Rule::Lease, &["one node answers reads", LOST, AGREEMENT]);
}

#[test]
fn a_primary_that_answers_before_its_first_record_is_committed_is_found() {
    finds(Rule::Commit, &[LOST, AGREEMENT]);
}

#[test]
fn a_node_that_does_not_fence_is_found() {
    finds(Rule::Fence, &[LOST, AGREEMENT, TOTAL]);
}

#[test]
fn a_primary_that_does_not_take_the_highest_history_is_found() {
    finds(Rule::Highest, &[LOST, AGREEMENT, TOTAL]);
}
