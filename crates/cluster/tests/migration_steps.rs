//! What a migration comes to where another group is away, or has begun anew. Its hands do all at
//! once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_cluster::migration::{Hands, Item, Migration, transferred};
use remora_cluster::{Atlas, Owner, SlotMap};
use remora_store::front::keyspace::{Transfer, TransferStep};
use remora_store::front::slots::{Holdings, Part, Range, Runs, Shard};
use remora_store::scan::Cursor;

/// The hands of group `a`, which has no keys, and serves in epoch 1; and what they reach.
#[derive(Default)]
struct Trial {
    shard: RefCell<Shard>,
    atlas: RefCell<Atlas>,
    /// The slots of the other groups.
    others: RefCell<BTreeMap<String, Holdings>>,
    /// The group that is away.
    away: &'static str,
}

struct Session {
    to: String,
    ticket: u64,
}

impl Trial {
    /// Group `a` has all slots, and is to give these.
    fn new(away: &'static str, moves: &[(&str, &str)]) -> Migration<Trial> {
        let trial = Trial { away, ..Trial::default() };
        let others = ["b", "c"].map(|name| (name.to_owned(), Holdings::default()));
        *trial.others.borrow_mut() = others.into();
        let mut migration = Migration::new(trial);
        turn(&mut migration).unwrap();
        for (slots, to) in moves {
            let mut atlas = migration.hands.atlas.borrow_mut();
            let owner = Owner { group: "a".to_owned(), to: Some((*to).to_owned()) };
            atlas.slots.as_mut().unwrap().set(slots.parse().unwrap(), Some(&owner));
        }
        migration
    }

    fn transfer(&self, step: TransferStep, with: &Session, to: &[Range]) -> Result<(), String> {
        let asked = Transfer { step, from: "a", ticket: with.ticket, ranges: to.to_vec() };
        let planned = self.atlas.borrow().to_give("a", &with.to);
        let mut others = self.others.borrow_mut();
        let held = others.get_mut(&with.to).unwrap();
        *held = transferred(held, &asked, &planned)?;
        Ok(())
    }

    fn has(&self, group: &str, slots: &str) -> bool {
        let owned = self.others.borrow()[group].ranges(|part| *part == Part::Owned);
        let atlas = self.atlas.borrow();
        let said = atlas.slots.as_ref().unwrap().ranges(|owner| owner.group == group);
        owned == [slots.parse().unwrap()] && said == owned
    }
}

/// A turn, and why it does not go on, if so.
fn turn(migration: &mut Migration<Trial>) -> Result<(), String> {
    match pin!(migration.turn()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("each step is done when its call returns"),
    }
}

impl Hands for Trial {
    type Session = Session;

    fn name(&self) -> &str {
        "a"
    }

    fn serves_in(&self) -> Option<u32> {
        Some(1)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn shard(&self) -> Shard {
        self.shard.borrow().clone()
    }

    fn keys(&self, _: &[Range], _: Cursor) -> (Vec<(Vec<u8>, usize)>, Cursor) {
        (Vec::new(), Cursor::END)
    }

    fn items(&self, _: &[Vec<u8>]) -> Vec<Item> {
        Vec::new()
    }

    fn set_foreign(&self, slots: Runs<()>) {
        self.shard.borrow_mut().foreign = slots;
    }

    fn begin(&self, map: &SlotMap) -> Result<(), String> {
        let mut holdings = Holdings::default();
        for range in map.ranges(|owner| owner.group == "a") {
            holdings.set(range, Some(&Part::Owned));
        }
        self.shard.borrow_mut().holdings = Some(holdings);
        Ok(())
    }

    fn window(&self) -> usize {
        1 << 14
    }

    fn become_for(&self, _: u32, ranges: &[Range], part: Option<&Part>) -> Result<(), String> {
        let mut shard = self.shard.borrow_mut();
        let holdings = shard.holdings.as_mut().unwrap();
        ranges.iter().for_each(|range| holdings.set(*range, part));
        Ok(())
    }

    fn freeze(&self, _: u32, _: &[Vec<u8>]) -> Result<(), String> {
        Ok(())
    }

    fn release(&self, _: u32, _: &[Vec<u8>]) -> Result<(), String> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    async fn look(&self) -> Result<Arc<Atlas>, String> {
        Ok(Arc::new(self.atlas.borrow().clone()))
    }

    async fn replace(&self, _: i64, next: &SlotMap) -> Result<bool, String> {
        self.atlas.borrow_mut().slots = Some(next.clone());
        Ok(true)
    }

    async fn open(&self, _: &Atlas, to: &str, ticket: u64) -> Result<Session, String> {
        let gone = || format!("group {to} is away");
        (to != self.away).then(|| Session { to: to.to_owned(), ticket }).ok_or_else(gone)
    }

    async fn take(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.transfer(TransferStep::Take, with, ranges)
    }

    async fn import(&self, _: &mut Session, _: &[Item]) -> Result<(), String> {
        Ok(())
    }

    async fn own(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.transfer(TransferStep::Own, with, ranges)
    }
}

#[test]
fn a_group_that_is_away_holds_no_move_to_another_one_up() {
    let mut migration = Trial::new("b", &[("0-99", "b"), ("100-199", "c")]);
    assert_eq!(turn(&mut migration), Err("group b is away".to_owned()));
    assert!(migration.hands.has("c", "100-199"));
    migration.hands.away = "";
    assert_eq!(turn(&mut migration), Ok(()));
    assert!(migration.hands.has("b", "0-99"));
}

/// It had all keys of the slots, and did not own them yet: nobody else has them.
#[test]
fn a_group_that_begins_anew_gets_what_was_handed_to_the_one_before() {
    let mut migration = Trial::new("", &[("0-99", "b")]);
    let given = Part::Given { to: "b".to_owned() };
    let slots = ["0-99".parse().unwrap()];
    migration.hands.become_for(1, &slots, Some(&given)).unwrap();
    assert_eq!(turn(&mut migration), Ok(()));
    assert!(migration.hands.has("b", "0-99"));
    assert_eq!(migration.hands.shard().part(0), None);
}
