//! What carries a migration out in a world: each step takes a while, in which anything may happen.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use remora_cluster::migration::{Hands, Item, Migration, first_holdings, is_in, transferred};
use remora_cluster::{Atlas, SlotMap};
use remora_store::front::keyspace::{Transfer, TransferStep};
use remora_store::front::slots::{Part, Range, Runs, Shard, Ticket, slot_of};
use remora_store::scan::Cursor;

use super::groups::{Change, Life, Node};
use super::world::{Late, NAMES, Shared, State};

/// The hands of the node that was the primary of a group in an epoch.
pub(crate) struct Primary {
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) group: usize,
    pub(crate) epoch: u32,
}

/// A session with the node that is the other group's primary.
pub(crate) struct Session {
    to: usize,
    life: Life,
    ticket: Ticket,
}

/// What one group's primary asks the other's for.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Transfer(TransferStep, Vec<Range>),
    Import(Vec<(Vec<u8>, u64)>),
}

/// Lets the world go on once.
struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn later() -> Pause {
    Pause(false)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a number"))
}

impl Primary {
    fn log(&self, changes: impl IntoIterator<Item = Change>) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        let group = &mut state.groups[self.group];
        changes.into_iter().try_for_each(|change| group.append(self.epoch, change))
    }

    fn with_node<T>(&self, act: impl FnOnce(&mut Node) -> T) -> T {
        let mut state = self.state.borrow_mut();
        act(state.groups[self.group].nodes.get_mut(&self.epoch).expect("this node"))
    }

    /// Has the other group's primary do something. The answer may be lost, and what was asked may
    /// arrive when nobody waits for it any more.
    async fn ask(&self, with: &Session, asked: Ask) -> Result<(), String> {
        later().await;
        let late =
            Late { from: self.group, to: with.to, life: with.life, ticket: with.ticket, asked };
        if self.state.borrow_mut().dice.one_in(12) {
            self.state.borrow_mut().late.push(late);
            return Err("no answer in time".to_owned());
        }
        let upto = {
            let mut state = self.state.borrow_mut();
            state.carry_out(&late)?;
            state.groups[with.to].len()
        };
        // It answers when a majority has that, as the primary that it was.
        loop {
            later().await;
            let mut state = self.state.borrow_mut();
            if state.groups[with.to].life() != with.life || state.dice.one_in(40) {
                return Err("the connection has ended".to_owned());
            }
            if state.groups[with.to].committed >= upto {
                return Ok(());
            }
        }
    }
}

impl Hands for Primary {
    type Session = Session;

    fn name(&self) -> &str {
        NAMES[self.group]
    }

    fn founding(&self) -> u32 {
        self.state.borrow().groups[self.group].founding
    }

    fn serves_in(&self) -> Option<u32> {
        let state = self.state.borrow();
        let group = &state.groups[self.group];
        (group.epoch == self.epoch).then_some(self.epoch)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn shard(&self) -> Shard {
        self.with_node(|node| node.shard.clone())
    }

    fn keys(&self, ranges: &[Range], from: Cursor) -> (Vec<(Vec<u8>, usize)>, Cursor) {
        assert_eq!(from, Cursor::START);
        let keys = self.with_node(|node| node.table.keys.keys().cloned().collect::<Vec<_>>());
        let keys = keys.into_iter().filter(|key| is_in(ranges, key));
        // Batches of a few keys, by a length that leaves no room for more of them.
        (keys.map(|key| (key, 600 << 10)).collect(), Cursor::END)
    }

    fn items(&self, keys: &[Vec<u8>]) -> Vec<Item> {
        self.with_node(|node| {
            let item = |key: &Vec<u8>| {
                let value = node.table.keys.get(key)?.to_le_bytes().to_vec();
                Some(Item { key: key.clone(), value, ..Item::default() })
            };
            keys.iter().filter_map(item).collect()
        })
    }

    fn set_foreign(&self, slots: Runs<()>) {
        self.with_node(|node| node.shard.foreign = slots);
    }

    fn begin(&self, map: &SlotMap) -> Result<(), String> {
        let mut shard = self.shard();
        let holdings = first_holdings(map, self.name());
        shard.holdings = Some(holdings.clone());
        self.log([Change::Holdings(holdings)])?;
        self.with_node(|node| node.shard = shard);
        Ok(())
    }

    fn window(&self) -> usize {
        1 << 20
    }

    fn become_for(&self, _: u32, ranges: &[Range], part: Option<&Part>) -> Result<(), String> {
        let mut shard = self.shard();
        let before = shard.holdings.clone();
        let holdings = shard.holdings.as_mut().ok_or("the group has no slots yet")?;
        ranges.iter().for_each(|range| holdings.set(*range, part));
        if before.as_ref() != Some(holdings) {
            self.log([Change::Holdings(holdings.clone())])?;
            self.with_node(|node| node.shard = shard);
        }
        Ok(())
    }

    fn freeze(&self, _: u32, keys: &[Vec<u8>]) -> Result<(), String> {
        if !self.state.borrow().plan.freezes {
            return Ok(());
        }
        let mut keys = keys.to_vec();
        keys.sort();
        self.log([Change::Transit(keys.clone())])?;
        self.with_node(|node| node.shard.transit = keys);
        Ok(())
    }

    fn release(&self, _: u32, keys: &[Vec<u8>]) -> Result<(), String> {
        let gone = keys.iter().cloned().map(Change::Delete);
        self.log(gone.chain([Change::Transit(Vec::new())]))?;
        self.with_node(|node| node.shard.transit.clear());
        Ok(())
    }

    /// A node that was replaced follows the next one, whose log settles like its own.
    async fn settle(&self) -> Result<(), String> {
        let (upto, followed) = self.with_node(|node| (node.applied, node.is_replaced));
        loop {
            later().await;
            let state = self.state.borrow();
            let group = &state.groups[self.group];
            let node = &group.nodes[&self.epoch];
            if group.epoch == self.epoch {
                if group.committed >= upto {
                    return Ok(());
                }
            } else if node.is_replaced {
                let is_kept = followed || upto <= node.kept;
                let gone = || "another node became the primary meanwhile".to_owned();
                return is_kept.then_some(()).ok_or_else(gone);
            }
        }
    }

    async fn look(&self) -> Result<Arc<Atlas>, String> {
        later().await;
        let mut state = self.state.borrow_mut();
        if state.dice.one_in(30) {
            return Err("no answer of the service".to_owned());
        }
        let atlas = state.atlas();
        if state.groups[self.group].epoch == self.epoch {
            state.seen[self.group] = atlas.clone();
        }
        Ok(Arc::new(atlas))
    }

    async fn replace(&self, revision: i64, next: &SlotMap) -> Result<bool, String> {
        later().await;
        let mut state = self.state.borrow_mut();
        let is_done = state.replace(revision, next);
        if state.dice.one_in(10) { Err("no answer of the service".to_owned()) } else { Ok(is_done) }
    }

    async fn open(&self, _: &Atlas, to: &str, ticket: Ticket) -> Result<Session, String> {
        later().await;
        let to = NAMES.iter().position(|name| *name == to).expect("a group");
        Ok(Session { to, life: self.state.borrow().groups[to].life(), ticket })
    }

    async fn take(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.ask(with, Ask::Transfer(TransferStep::Take, ranges.to_vec())).await
    }

    async fn retake(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.ask(with, Ask::Transfer(TransferStep::Retake, ranges.to_vec())).await
    }

    async fn import(&self, with: &mut Session, items: &[Item]) -> Result<(), String> {
        let items = items.iter().map(|item| (item.key.clone(), number(&item.value)));
        self.ask(with, Ask::Import(items.collect())).await
    }

    async fn own(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.ask(with, Ask::Transfer(TransferStep::Own, ranges.to_vec())).await
    }
}

impl State {
    /// What a group's primary does that is asked by the other one, if it still is the primary whom
    /// that was connected to.
    pub(crate) fn carry_out(&mut self, asked: &Late) -> Result<(), String> {
        let group = &mut self.groups[asked.to];
        if group.life() != asked.life {
            return Err("the connection has ended".to_owned());
        }
        let epoch = group.epoch;
        let held = group.primary().shard.holdings.clone();
        let held = held.ok_or("the group has no slots yet: try again")?;
        match &asked.asked {
            Ask::Transfer(step, ranges) => {
                let (from, ticket) = (NAMES[asked.from], asked.ticket);
                let wanted = Transfer { step: *step, from, ticket, ranges: ranges.clone() };
                let planned = self.seen[asked.to].to_come(&wanted, group.name)?;
                let (next, stale) = transferred(&held, &wanted, &planned)?;
                let keys: Vec<_> = group.primary().table.keys.keys().cloned().collect();
                let is_to_go = |key: &Vec<u8>| self.plan.discards && is_in(&stale, key);
                for key in keys.into_iter().filter(is_to_go) {
                    group.append(epoch, Change::Delete(key))?;
                    self.counts.discarded += 1;
                }
                group.append(epoch, Change::Holdings(next.clone()))?;
                let node = group.nodes.get_mut(&epoch).expect("the primary");
                node.shard.holdings = Some(next);
            }
            Ask::Import(items) => {
                for (key, _) in items {
                    let part = group.primary().shard.part(slot_of(key));
                    let is_expected = matches!(part, Some(Part::Taking { ticket, .. })
                        if *ticket == asked.ticket);
                    if !is_expected {
                        return Err("the session of these keys is over".to_owned());
                    }
                }
                for (key, value) in items {
                    group.append(epoch, Change::Put(key.clone(), *value))?;
                }
            }
        }
        Ok(())
    }
}

/// Has a migration turn again and again.
pub(crate) fn migrate(state: &Shared, group: usize) -> Pin<Box<dyn Future<Output = ()>>> {
    let epoch = state.borrow().groups[group].epoch;
    let hands = Primary { state: state.clone(), group, epoch };
    Box::pin(async move {
        let mut migration = Migration::new(hands);
        loop {
            // What fails is tried again.
            let _ = migration.turn().await;
            later().await;
        }
    })
}
