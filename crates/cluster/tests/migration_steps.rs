//! What a migration comes to where another group is away, or has begun anew, and where no group has
//! a slot any more. Its hands do all at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_cluster::migration::{Hands, Item, Migration, first_holdings, transferred};
use remora_cluster::{Atlas, Configuration, GroupView, NodeId, Owner, SlotMap};
use remora_store::front::keyspace::{Transfer, TransferStep};
use remora_store::front::slots::{Holdings, Part, Range, Runs, Shard, Ticket};
use remora_store::scan::Cursor;

/// The hands of a group that has no keys, and serves in epoch 1; and what they reach.
#[derive(Default)]
struct Trial {
    name: &'static str,
    shard: RefCell<Shard>,
    atlas: RefCell<Atlas>,
    /// The slots of the other groups, and those whose keys they have discarded.
    others: RefCell<BTreeMap<String, Holdings>>,
    discarded: RefCell<Runs<()>>,
    /// The group that is away.
    away: &'static str,
}

struct Session {
    to: String,
    ticket: Ticket,
}

/// Which group of its name the giving one is, and which one was there before.
const FOUNDING: u32 = 2;
const FORMER: u32 = 1;

impl Trial {
    /// Group `a` has all slots, and is to give these.
    fn new(away: &'static str, moves: &[(&str, &str)]) -> Migration<Trial> {
        let trial = Trial { name: "a", away, ..Trial::default() };
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

    /// A group of this name that has begun, and has no slots.
    fn of(name: &'static str) -> Migration<Trial> {
        let trial = Trial { name, ..Trial::default() };
        trial.shard.borrow_mut().holdings = Some(Holdings::default());
        Migration::new(trial)
    }

    /// Somebody says that no group has these slots, and that this one is to have them.
    fn say_lost(&self, range: Range) {
        let mut atlas = self.atlas.borrow_mut();
        let configuration = Configuration::first(NodeId(1), vec![NodeId(1)]).ok();
        let view = GroupView { configuration, ..GroupView::default() };
        atlas.groups.insert(self.name.to_owned(), view);
        let next = atlas.with_lost(&[range], self.name).unwrap();
        atlas.slots = Some(next);
    }

    fn transfer(&self, step: TransferStep, with: &Session, to: &[Range]) -> Result<(), String> {
        let asked = Transfer { step, from: "a", ticket: with.ticket, ranges: to.to_vec() };
        let planned = self.atlas.borrow().to_come(&asked, &with.to)?;
        let mut others = self.others.borrow_mut();
        let held = others.get_mut(&with.to).unwrap();
        let (next, stale) = transferred(held, &asked, &planned)?;
        *held = next;
        stale.iter().for_each(|range| self.discarded.borrow_mut().set(*range, Some(&())));
        Ok(())
    }

    /// Group `b` is this for these slots, by its log.
    fn other_is(&self, slots: &str, part: &Part) {
        let mut others = self.others.borrow_mut();
        others.get_mut("b").unwrap().set(slots.parse().unwrap(), Some(part));
    }

    /// Who has a slot, by the map.
    fn owner(&self, slot: u16) -> Option<Owner> {
        self.atlas.borrow().slots.as_ref()?.get(slot).cloned()
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
        self.name
    }

    fn founding(&self) -> u32 {
        FOUNDING
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
        self.shard.borrow_mut().holdings = Some(first_holdings(map, self.name));
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

    async fn open(&self, _: &Atlas, to: &str, ticket: Ticket) -> Result<Session, String> {
        let gone = || format!("group {to} is away");
        (to != self.away).then(|| Session { to: to.to_owned(), ticket }).ok_or_else(gone)
    }

    async fn take(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.transfer(TransferStep::Take, with, ranges)
    }

    async fn retake(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        self.transfer(TransferStep::Retake, with, ranges)
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

/// What the group of this name had begun to give before, in a session far later than any of this
/// one.
fn taken_before() -> Part {
    let ticket = Ticket { founding: FORMER, number: 9 << 40 | 7 };
    Part::Taking { from: "a".to_owned(), ticket }
}

/// A group in memory that is lost with its nodes amid a move has no slots that the map has it give:
/// nobody is served there before they are with the other group.
#[test]
fn a_group_that_begins_anew_amid_a_move_has_given_the_slots() {
    let mut migration = Trial::new("b", &[("0-99", "b")]);
    migration.hands.other_is("0-99", &taken_before());
    migration.hands.shard.borrow_mut().holdings = None;
    assert_eq!(turn(&mut migration), Ok(()), "it begins");
    assert_eq!(migration.hands.shard().part(0), Some(&Part::Given { to: "b".to_owned() }));
    assert_eq!(migration.hands.shard().part(100), Some(&Part::Owned));
    assert_eq!(turn(&mut migration), Err("group b is away".to_owned()));
    migration.hands.away = "";
    assert_eq!(turn(&mut migration), Ok(()));
    assert!(migration.hands.has("b", "0-99"));
    assert_eq!(migration.hands.discarded.borrow().ranges(|()| true), ["0-99".parse().unwrap()]);
}

/// All keys had come, and the map did not say so yet.
#[test]
fn slots_that_the_other_group_owns_stay_there_when_the_giving_one_begins_anew() {
    let mut migration = Trial::new("", &[("0-99", "b")]);
    // Of three moves, one was over, one had begun, and one had not.
    migration.hands.other_is("0-49", &Part::Owned);
    migration.hands.other_is("50-79", &taken_before());
    migration.hands.shard.borrow_mut().holdings = None;
    assert_eq!(turn(&mut migration), Ok(()), "it begins");
    assert_eq!(turn(&mut migration), Ok(()));
    assert!(migration.hands.has("b", "0-99"));
    assert_eq!(migration.hands.discarded.borrow().ranges(|()| true), ["50-79".parse().unwrap()]);
}

/// The map did not say that the slots go, as one from before the move, when the group began anew:
/// what it had deleted since would come back.
#[test]
fn what_a_group_that_is_no_more_had_sent_does_not_come_back() {
    let mut migration = Trial::new("", &[("0-99", "b")]);
    migration.hands.other_is("50-149", &taken_before());
    assert_eq!(turn(&mut migration), Ok(()));
    assert_eq!(migration.hands.owner(99), Some(Owner::new("b")));
    assert_eq!(migration.hands.others.borrow()["b"].get(99), Some(&Part::Owned));
    assert_eq!(migration.hands.others.borrow()["b"].get(100), Some(&taken_before()));
    assert_eq!(migration.hands.discarded.borrow().ranges(|()| true), ["50-99".parse().unwrap()]);
}

/// The one that gets slots goes by what the service says, as soon as it has heard of it.
#[test]
fn slots_are_taken_from_the_group_that_the_service_knows() {
    let mut migration = Trial::new("", &[("0-99", "b")]);
    let know = |trial: &Trial, founding| {
        let view = GroupView { founding: Some(founding), ..GroupView::default() };
        trial.atlas.borrow_mut().groups.insert("a".to_owned(), view);
    };
    know(&migration.hands, FORMER);
    assert!(turn(&mut migration).unwrap_err().contains("group a has begun anew"));
    know(&migration.hands, FOUNDING);
    assert_eq!(turn(&mut migration), Ok(()));
    assert!(migration.hands.has("b", "0-99"));
}

/// It was given away, and handed over, when the service lost its data; and a new group, begun by
/// mistake, took all slots. When that one has gone, nobody says that it has the slot, and its keys
/// are where it went.
#[test]
fn slots_that_no_group_has_any_more_go_on_with_the_group_that_has_their_keys() {
    let mut migration = Trial::of("b");
    let hands = &migration.hands;
    let range: Range = "0-99".parse().unwrap();
    let taking = Part::Taking { from: "a".to_owned(), ticket: Ticket::from(1) };
    hands.become_for(1, &[range], Some(&taking)).unwrap();
    let mut map = SlotMap::default();
    map.set("100-16383".parse().unwrap(), Some(&Owner::new("a")));
    hands.atlas.borrow_mut().slots = Some(map);
    let words = turn(&mut migration).unwrap_err();
    assert!(words.contains("slots 0-99 are with no group"), "{words}");
    assert!(words.contains("0-99 b --lost"), "{words}");
    assert_eq!(migration.hands.shard().part(0), Some(&taking), "nobody has said so");
    migration.hands.say_lost(range);
    assert_eq!(turn(&mut migration), Ok(()));
    assert_eq!(migration.hands.shard().part(0), Some(&Part::Owned));
    assert_eq!(migration.hands.owner(99), Some(Owner::new("b")));
}

/// All nodes of a group are lost that had them in their memory, and etcd has lost the map.
#[test]
fn slots_whose_group_has_begun_anew_go_on_without_their_keys() {
    let mut migration = Trial::of("b");
    let range: Range = "0-99".parse().unwrap();
    let mut map = SlotMap::default();
    map.set("100-16383".parse().unwrap(), Some(&Owner::new("a")));
    map.set(range, Some(&Owner::new("b")));
    migration.hands.atlas.borrow_mut().slots = Some(map);
    let words = turn(&mut migration).unwrap_err();
    assert!(words.contains("slots 0-99 are with no group"), "by its log it has none: {words}");
    migration.hands.say_lost(range);
    assert_eq!(turn(&mut migration), Ok(()));
    assert_eq!(migration.hands.shard().part(99), Some(&Part::Owned));
    assert_eq!(migration.hands.owner(0), Some(Owner::new("b")));
    assert_eq!(turn(&mut migration), Ok(()));
}
