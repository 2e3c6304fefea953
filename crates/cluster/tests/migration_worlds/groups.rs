//! A group of nodes: one log, and nodes that have carried out more or less of it.

use std::collections::BTreeMap;

use remora_store::front::slots::{Holdings, Runs, Shard};

/// A change in a group's log.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Vec<u8>, u64),
    Delete(Vec<u8>),
    Holdings(Holdings),
    Transit(Vec<Vec<u8>>),
}

/// What a log comes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) keys: BTreeMap<Vec<u8>, u64>,
    pub(crate) shard: Shard,
}

impl Table {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(key, value) => _ = self.keys.insert(key.clone(), *value),
            Change::Delete(key) => _ = self.keys.remove(key),
            Change::Holdings(holdings) => self.shard.holdings = Some(holdings.clone()),
            Change::Transit(keys) => self.shard.transit.clone_from(keys),
        }
    }
}

/// Which group of its name, and in which epoch.
pub(crate) type Life = (u32, u32);

/// A node, as it is since it last became the primary.
#[derive(Debug)]
pub(crate) struct Node {
    /// How much of the log it has carried out, and what that comes to.
    pub(crate) applied: usize,
    pub(crate) table: Table,
    /// What it knew of its slots when it was the primary last.
    pub(crate) shard: Shard,
    /// How much of what it had logged is still so, once another one is the primary.
    pub(crate) kept: usize,
    /// It has heard of a later epoch than the one in which it was the primary, and follows.
    pub(crate) is_replaced: bool,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) founding: u32,
    pub(crate) epoch: u32,
    log: Vec<Change>,
    pub(crate) committed: usize,
    /// The primary of each epoch; what those before the last one do is of no effect on the log.
    pub(crate) nodes: BTreeMap<u32, Node>,
}

impl Group {
    pub(crate) fn new(name: &'static str) -> Group {
        Group::founded(name, 1)
    }

    fn founded(name: &'static str, founding: u32) -> Group {
        let (log, nodes) = (Vec::new(), BTreeMap::new());
        let mut group = Group { name, founding, epoch: 0, log, committed: 0, nodes };
        group.replace(0, Shard::unseen().foreign);
        group
    }

    /// All its nodes are lost, and another group begins under its name.
    pub(crate) fn begin_anew(&mut self) {
        *self = Group::founded(self.name, self.founding + 1);
    }

    pub(crate) fn life(&self) -> Life {
        (self.founding, self.epoch)
    }

    /// Whether its log says which slots it has, for good.
    pub(crate) fn has_begun(&self) -> bool {
        self.log[..self.committed].iter().any(|change| matches!(change, Change::Holdings(_)))
    }

    pub(crate) fn primary(&self) -> &Node {
        &self.nodes[&self.epoch]
    }

    /// How long the log is.
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// Another node becomes the primary, with so many of the changes that were not committed. It
    /// has seen that these slots are other groups'.
    pub(crate) fn replace(&mut self, uncommitted: usize, foreign: Runs<()>) {
        self.log.truncate((self.committed + uncommitted).min(self.log.len()));
        self.committed = self.log.len();
        if let Some(before) = self.nodes.get_mut(&self.epoch) {
            before.kept = self.log.len();
        }
        let mut table = Table::default();
        self.log.iter().for_each(|change| table.apply(change));
        self.epoch += 1;
        let shard = Shard { foreign, ..table.shard.clone() };
        let applied = self.log.len();
        let node = Node { applied, table, shard, kept: usize::MAX, is_replaced: false };
        self.nodes.insert(self.epoch, node);
    }

    /// The primary logs a change, and carries it out. What was the primary may believe that it
    /// still is, and is refused by the others.
    pub(crate) fn append(&mut self, epoch: u32, change: Change) -> Result<(), String> {
        if epoch != self.epoch {
            return Err("another node is the primary".to_owned());
        }
        let node = self.nodes.get_mut(&epoch).expect("the primary");
        node.table.apply(&change);
        self.log.push(change);
        node.applied = self.log.len();
        Ok(())
    }

    /// A node that was the primary hears that it is not, and follows: it forgets what was not
    /// committed, and carries out so much of the rest.
    pub(crate) fn follow(&mut self, epoch: u32, upto: usize) {
        let node = self.nodes.get_mut(&epoch).expect("a node");
        let had = if node.is_replaced { node.applied } else { node.kept };
        node.is_replaced = true;
        node.applied = upto.min(self.committed).max(had);
        node.table = Table::default();
        self.log[..node.applied].iter().for_each(|change| node.table.apply(change));
    }
}
