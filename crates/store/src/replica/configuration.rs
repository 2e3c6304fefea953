//! What a group agrees on outside of its data path: its members, its primary, its epoch.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::log::Position;

/// The most members of a group, learners included: as many as a region has places for answers.
pub const MEMBERS_MAX: usize = 16;

/// A node, in one of its lives: a node whose memory is lost comes back under another number. Its
/// votes for what it has forgotten would be lies.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct NodeId(pub u64);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A group's configuration in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Configuration {
    /// Counts configurations, from 1 on.
    pub epoch: u32,
    /// Who alone may order changes in this epoch.
    pub primary: NodeId,
    /// Who has a vote.
    pub members: Vec<NodeId>,
    /// Who had one in the latest epoch that was established: whose majority holds all that was
    /// acknowledged. Equal to `members` once this epoch is.
    pub established: Vec<NodeId>,
}

/// Why a configuration cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoConfiguration {
    /// There are too few or too many members.
    #[error("a group has 1 to {MEMBERS_MAX} members, not {0}: add or remove nodes")]
    Members(usize),
    /// A node is named twice.
    #[error("{0} is a member already")]
    Twice(NodeId),
    /// A node is not named.
    #[error("{0} is no member")]
    Unknown(NodeId),
    /// The primary must be there to carry the change out.
    #[error("{0} is the primary: let another node take over first")]
    Primary(NodeId),
    /// Two changes of members at once could make two majorities that do not meet.
    #[error("epoch {0} is not established yet: try again when it is")]
    Pending(u32),
    /// Epochs are numbers of 24 bits.
    #[error("there are no more epochs")]
    Epochs,
}

impl Configuration {
    /// The first configuration of a new group.
    ///
    /// # Errors
    /// See [`NoConfiguration`].
    pub fn first(primary: NodeId, members: Vec<NodeId>) -> Result<Configuration, NoConfiguration> {
        let established = members.clone();
        Configuration { epoch: 1, primary, members, established }.checked()
    }

    /// The same members under another primary, or under the same one again.
    ///
    /// # Errors
    /// See [`NoConfiguration`].
    pub fn under(&self, primary: NodeId) -> Result<Configuration, NoConfiguration> {
        Configuration { epoch: self.epoch + 1, primary, ..self.clone() }.checked()
    }

    /// The group with one member more.
    ///
    /// # Errors
    /// See [`NoConfiguration`].
    pub fn with(&self, node: NodeId) -> Result<Configuration, NoConfiguration> {
        let mut next = self.changed()?;
        next.members.push(node);
        next.checked()
    }

    /// The group with one member less.
    ///
    /// # Errors
    /// See [`NoConfiguration`].
    pub fn without(&self, node: NodeId) -> Result<Configuration, NoConfiguration> {
        let mut next = self.changed()?;
        if node == self.primary {
            return Err(NoConfiguration::Primary(node));
        }
        let place = next.members.iter().position(|member| *member == node);
        next.members.remove(place.ok_or(NoConfiguration::Unknown(node))?);
        next.checked()
    }

    /// The next epoch, whose members may differ by one.
    fn changed(&self) -> Result<Configuration, NoConfiguration> {
        if !self.is_established() {
            return Err(NoConfiguration::Pending(self.epoch));
        }
        self.under(self.primary)
    }

    fn checked(mut self) -> Result<Configuration, NoConfiguration> {
        self.members.sort_unstable();
        self.established.sort_unstable();
        if !(1..=MEMBERS_MAX).contains(&self.members.len()) {
            return Err(NoConfiguration::Members(self.members.len()));
        }
        if let Some(twice) = self.members.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(NoConfiguration::Twice(twice[0]));
        }
        if !self.members.contains(&self.primary) {
            return Err(NoConfiguration::Unknown(self.primary));
        }
        if self.epoch > Position::MAX_EPOCH {
            return Err(NoConfiguration::Epochs);
        }
        Ok(self)
    }

    /// Whether this can be a configuration: what comes from outside may not be one.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let voters = self.voters().count();
        let is_step = voters <= self.members.len().min(self.established.len()) + 1;
        are_members(&self.members)
            && are_members(&self.established)
            && is_step
            && self.members.contains(&self.primary)
            && (1..=Position::MAX_EPOCH).contains(&self.epoch)
    }

    /// Whether what is acknowledged is held by a majority of `members`.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.members == self.established
    }

    /// Whether nodes that `has` says yes to are a majority of those with a vote in this epoch and
    /// of those in the last established one: they meet every majority that acknowledged anything.
    pub fn is_quorum(&self, has: impl Fn(NodeId) -> bool) -> bool {
        is_majority(&self.members, &has) && is_majority(&self.established, &has)
    }

    /// All nodes that have a vote in this epoch or had one in the last established one.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        let left = self.established.iter().filter(|node| !self.members.contains(node));
        self.members.iter().chain(left).copied()
    }
}

/// Whether nodes can be a group's members: what comes from outside may not be.
#[must_use]
pub fn are_members(nodes: &[NodeId]) -> bool {
    let is_some = (1..=MEMBERS_MAX).contains(&nodes.len());
    is_some && nodes.windows(2).all(|pair| pair[0] < pair[1])
}

/// Whether nodes that `has` says yes to are a majority of these: of none, there is none.
pub fn is_majority(nodes: &[NodeId], has: impl Fn(NodeId) -> bool) -> bool {
    nodes.iter().filter(|node| has(**node)).count() * 2 > nodes.len()
}

/// The members as the first record of their epoch has them: its value.
pub(super) fn value_of(members: &[NodeId]) -> Vec<u8> {
    members.iter().flat_map(|node| node.0.to_le_bytes()).collect()
}

/// The members of an epoch, as the value of its first record says: none, where it does not say
/// so, as that of an earlier release, or says what cannot be.
#[must_use]
pub fn members_of(value: &[u8]) -> Vec<NodeId> {
    let (numbers, rest) = value.as_chunks();
    if !rest.is_empty() || numbers.len() > MEMBERS_MAX {
        return Vec::new();
    }
    let members = numbers.iter().map(|number| NodeId(u64::from_le_bytes(*number)));
    Some(members.collect()).filter(|members: &Vec<_>| are_members(members)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u64]) -> Vec<NodeId> {
        numbers.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn one_member_comes_or_goes_at_a_time() {
        let first = Configuration::first(NodeId(1), nodes(&[3, 1, 2])).unwrap();
        assert_eq!((first.epoch, first.is_established()), (1, true));
        let more = first.with(NodeId(4)).unwrap();
        assert_eq!((more.epoch, more.is_established()), (2, false));
        assert_eq!(more.members, nodes(&[1, 2, 3, 4]));
        assert_eq!(more.without(NodeId(2)), Err(NoConfiguration::Pending(2)));
        let mut done = more.clone();
        done.established = done.members.clone();
        assert_eq!(done.without(NodeId(2)).unwrap().members, nodes(&[1, 3, 4]));
        assert_eq!(done.without(NodeId(1)), Err(NoConfiguration::Primary(NodeId(1))));
        assert_eq!(done.without(NodeId(9)), Err(NoConfiguration::Unknown(NodeId(9))));
        assert_eq!(done.with(NodeId(3)), Err(NoConfiguration::Twice(NodeId(3))));
        assert_eq!(Configuration::first(NodeId(1), vec![]), Err(NoConfiguration::Members(0)));
    }

    #[test]
    fn a_quorum_is_a_majority_of_the_old_members_and_of_the_new() {
        let first = Configuration::first(NodeId(1), nodes(&[1, 2])).unwrap();
        let more = first.with(NodeId(3)).unwrap();
        assert!(!more.is_quorum(|node| node != NodeId(2)), "1 and 3 are no majority of 1 and 2");
        assert!(more.is_quorum(|node| node != NodeId(3)));
        assert_eq!(more.voters().collect::<Vec<_>>(), nodes(&[1, 2, 3]));
    }

    #[test]
    fn what_cannot_be_is_told_apart() {
        let first = Configuration::first(NodeId(1), nodes(&[1, 2])).unwrap();
        let more = first.with(NodeId(3)).unwrap();
        assert!(
            first.is_sound() && more.is_sound() && first.without(NodeId(2)).unwrap().is_sound()
        );
        let with = |change: fn(&mut Configuration)| {
            let mut other = more.clone();
            change(&mut other);
            other.is_sound()
        };
        assert!(!with(|it| it.epoch = 0) && !with(|it| it.epoch = Position::MAX_EPOCH + 1));
        assert!(!with(|it| it.members.clear()) && !with(|it| it.established.clear()));
        assert!(!with(|it| it.members.reverse()) && !with(|it| it.primary = NodeId(9)));
        assert!(!with(|it| it.members.push(NodeId(4))), "two more at once");
        assert!(!with(|it| it.established = it.members.drain(1..).collect()), "one for another");
    }

    #[test]
    fn an_epoch_s_first_record_says_who_its_members_are() {
        let members = nodes(&[1, 7, u64::MAX]);
        let value = value_of(&members);
        assert_eq!(members_of(&value), members);
        assert_eq!(members_of(&[]), [], "an earlier release says nothing");
        assert_eq!(members_of(&value[1..]), []);
        assert_eq!(members_of(&value_of(&nodes(&[7, 1]))), []);
        assert_eq!(members_of(&value_of(&nodes(&[7, 7]))), []);
        let many: Vec<_> = (1..).map(NodeId).take(MEMBERS_MAX + 1).collect();
        assert_eq!(members_of(&value_of(&many[1..])), many[1..]);
        assert_eq!(members_of(&value_of(&many)), []);
    }

    #[test]
    fn epochs_come_to_an_end() {
        let mut last = Configuration::first(NodeId(1), nodes(&[1])).unwrap();
        last.epoch = Position::MAX_EPOCH;
        assert_eq!(last.under(NodeId(1)), Err(NoConfiguration::Epochs));
    }
}
