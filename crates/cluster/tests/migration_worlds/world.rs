//! A world: three groups, their migrations, clients, and commands to move slots. In each step, one
//! of them goes on.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use remora_cluster::{Atlas, GroupView, Owner, SlotMap};
use remora_sim::check::linearizable::{Kind, Operation};
use remora_sim::dice::Dice;
use remora_store::front::slots::{Part, Range, Runs, SLOTS, Shard, Ticket, slot_of};
use remora_store::replica::{Configuration, NodeId};

use super::clients::Client;
use super::groups::{Group, Life};
use super::hands::{Ask, migrate};

/// The groups.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
/// The keys: their slots are far from each other.
pub(crate) const KEYS: [&str; 3] = ["foo", "bar", "hello"];

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Steps before all is calm.
    pub(crate) steps: u64,
    pub(crate) clients: usize,
    /// How many operations each client makes.
    pub(crate) operations: u64,
    /// Off only to see that the checkers notice: keys on their way are changed.
    pub(crate) freezes: bool,
    /// The same: what has come from a group that is no more stays.
    pub(crate) discards: bool,
    /// Groups have what they have in memory alone: all nodes of one may be lost, and the service
    /// does not lose its data besides.
    pub(crate) is_in_memory: bool,
}

impl Plan {
    pub(crate) const DEFAULT: Plan = Plan {
        steps: 4000,
        clients: 3,
        operations: 25,
        freezes: true,
        discards: true,
        is_in_memory: false,
    };
}

/// What was asked and arrives late, over a connection that somebody has given up.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// What the other end was.
    pub(crate) life: Life,
    pub(crate) ticket: Ticket,
    pub(crate) asked: Ask,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) moved: u64,
    pub(crate) replaced: u64,
    pub(crate) late: u64,
    pub(crate) asked: u64,
    pub(crate) frozen: u64,
    pub(crate) forgotten: u64,
    pub(crate) begun_anew: u64,
    pub(crate) older_maps: u64,
    pub(crate) discarded: u64,
}

/// What all of a world share.
pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) dice: Dice,
    pub(crate) now: u64,
    pub(crate) groups: Vec<Group>,
    slots: Option<SlotMap>,
    revision: i64,
    /// The cluster as each group has seen it last.
    pub(crate) seen: [Atlas; NAMES.len()],
    pub(crate) late: Vec<Late>,
    pub(crate) history: Vec<Operation>,
    pub(crate) is_calm: bool,
    pub(crate) counts: Counts,
}

pub(crate) type Shared = Rc<RefCell<State>>;

type Task = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) counts: Counts,
    state: Shared,
    clients: Vec<Client>,
    /// The migrations of the present primaries, and of those before them: group, epoch.
    tasks: Vec<(usize, u32, Task)>,
    /// Groups that have ended with the service, and have not begun again.
    away: Vec<usize>,
}

impl State {
    pub(crate) fn name(&self, group: usize) -> &'static str {
        self.groups[group].name
    }

    pub(crate) fn atlas(&self) -> Atlas {
        let view = |group: &Group| {
            let mut configuration = Configuration::first(NodeId(1), vec![NodeId(1)]).unwrap();
            configuration.epoch = group.epoch;
            let (configuration, founding) = (Some(configuration), Some(group.founding));
            let view = GroupView { configuration, founding, ..GroupView::default() };
            (group.name.to_owned(), view)
        };
        let groups = self.groups.iter().map(view).collect();
        Atlas { slots: self.slots.clone(), revision: self.revision, groups }
    }

    pub(crate) fn replace(&mut self, revision: i64, next: &SlotMap) -> bool {
        if self.revision != revision {
            return false;
        }
        let to_go = |map: &SlotMap| map.ranges(|owner| owner.to.is_some()).len();
        if self.slots.as_ref().is_some_and(|before| to_go(before) > to_go(next)) {
            self.counts.moved += 1;
        }
        (self.slots, self.revision) = (Some(next.clone()), revision + 1);
        true
    }

    /// A group loses all its nodes, and with them what it has in memory: its keys are gone at some
    /// time from now on, and those that it was giving, once the other group has discarded them.
    /// Another group begins under its name.
    fn lose(&mut self, group: usize) {
        for (key, name) in (0..).zip(KEYS) {
            let part = self.groups[group].primary().shard.part(slot_of(name.as_bytes()));
            for _ in part.iter().flat_map(|_| 0..2) {
                let (kind, invoked_ns) = (Kind::Put(0), self.now);
                let gone = Operation { key, kind, invoked_ns, answered_ns: None, answer: 0 };
                self.history.push(gone);
            }
        }
        if self.dice.one_in(3) {
            self.take_older_map(group);
        }
        self.groups[group].begin_anew();
        self.seen[group] = Atlas::default();
        self.counts.begun_anew += 1;
    }

    /// The service has the map as it was before a group was to give slots, which others are taking:
    /// it comes from a backup. That takes longer than what that group has said.
    fn take_older_map(&mut self, group: usize) {
        let name = self.name(group);
        self.late.retain(|late| late.from != group);
        for slot in KEYS.map(|key| slot_of(key.as_bytes())) {
            let map = self.slots.as_mut().expect("it is complete");
            let owner = map.get(slot).filter(|owner| owner.group == name);
            let Some(to) = owner.and_then(|owner| owner.to.clone()) else { continue };
            let other = self.groups.iter().find(|group| group.name == to).expect("a group");
            if matches!(other.primary().shard.part(slot), Some(Part::Taking { .. })) {
                map.set(Range { first: slot, last: slot }, Some(&Owner::new(name)));
                self.revision += 1;
                self.counts.older_maps += 1;
            }
        }
    }

    /// Somebody wants slots moved.
    fn want(&mut self) {
        let (one, other) = (self.dice.below(SLOTS.into()), self.dice.below(SLOTS.into()));
        let range = Range { first: one.min(other) as u16, last: one.max(other) as u16 };
        let to = NAMES[self.dice.below(NAMES.len() as u64) as usize];
        let (revision, atlas) = (self.revision, self.atlas());
        if let Ok(next) = atlas.with_move(&[range], to) {
            self.replace(revision, &next);
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> World {
        let state = State {
            plan,
            dice: Dice::new(seed),
            now: 0,
            groups: NAMES.into_iter().map(Group::new).collect(),
            slots: None,
            revision: 0,
            seen: Default::default(),
            late: Vec::new(),
            history: Vec::new(),
            is_calm: false,
            counts: Counts::default(),
        };
        let state = Rc::new(RefCell::new(state));
        let tasks = (0..NAMES.len()).map(|group| (group, 1, migrate(&state, group))).collect();
        let clients = (0..plan.clients).map(|_| Client::default()).collect();
        World { plan, counts: Counts::default(), state, clients, tasks, away: Vec::new() }
    }

    /// Somebody does something.
    pub(crate) fn step(&mut self) {
        let choice = {
            let mut state = self.state.borrow_mut();
            state.now += 1;
            let all = if state.is_calm { 90 } else { 100 };
            state.dice.below(all)
        };
        match choice {
            0..40 => self.migrate(),
            40..70 => {
                let mut state = self.state.borrow_mut();
                let which = state.dice.below(self.clients.len() as u64) as usize;
                state.go_on(&mut self.clients[which]);
            }
            70..85 => self.commit(),
            85..90 => self.follow(),
            90..93 if !self.away.is_empty() => self.come_back(),
            90..93 if self.state.borrow_mut().dice.one_in(30) => match self.plan.is_in_memory {
                true => self.begin_anew(),
                false => self.forget(),
            },
            90..93 => self.replace(),
            93..95 => self.state.borrow_mut().want(),
            _ => self.arrive(),
        }
    }

    /// The service loses its data, and all groups end; each begins again from its nodes'
    /// directories, one after the other. (One that has no slots in its log yet would take them.)
    fn forget(&mut self) {
        let mut state = self.state.borrow_mut();
        if !state.groups.iter().all(Group::has_begun) {
            return;
        }
        state.counts.forgotten += 1;
        (state.slots, state.revision) = (None, 0);
        state.late.clear();
        self.away = (0..NAMES.len()).collect();
        drop(state);
        self.tasks.clear();
        (0..NAMES.len()).for_each(|group| self.replace_in(group, Shard::unseen().foreign));
        self.come_back();
    }

    /// A group loses all its nodes, and another one begins under its name: one that gives keys
    /// away, if there is one.
    fn begin_anew(&mut self) {
        let drawn = self.draw(NAMES.len());
        let mut state = self.state.borrow_mut();
        let gives = |group: &Group| {
            KEYS.iter().any(|key| group.primary().shard.is_giving(slot_of(key.as_bytes())))
        };
        let group = state.groups.iter().position(gives).unwrap_or(drawn);
        let is_complete = |map: &SlotMap| map.lacking(&[Range::ALL]).is_empty();
        if !state.slots.as_ref().is_some_and(is_complete) || !state.groups[group].has_begun() {
            return;
        }
        state.lose(group);
        drop(state);
        self.tasks.retain(|(of, ..)| *of != group);
        self.begin(group);
    }

    /// A group that has ended begins again: one of its nodes looks at the map.
    fn come_back(&mut self) {
        let which = self.draw(self.away.len());
        let group = self.away.swap_remove(which);
        self.begin(group);
    }

    /// A migration goes on. That of a node that was replaced ends at last.
    fn migrate(&mut self) {
        let which = self.draw(self.tasks.len());
        let (group, epoch, task) = &mut self.tasks[which];
        let mut context = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending(), "it goes on for ever");
        let mut state = self.state.borrow_mut();
        let is_past = state.groups[*group].epoch != *epoch;
        if is_past && (state.is_calm || state.dice.one_in(40)) {
            drop(state);
            drop(self.tasks.swap_remove(which));
        }
    }

    fn draw(&self, below: usize) -> usize {
        self.state.borrow_mut().dice.below(below as u64) as usize
    }

    /// A majority has more of a group's log.
    fn commit(&mut self) {
        let which = self.draw(NAMES.len());
        let mut state = self.state.borrow_mut();
        let left = state.groups[which].len() - state.groups[which].committed;
        let more = state.dice.below(left as u64 + 1) as usize;
        state.groups[which].committed += more;
    }

    /// A node that was the primary hears of another one, and of some of what that has done.
    fn follow(&mut self) {
        let which = self.draw(self.tasks.len());
        let (group, epoch, _) = &self.tasks[which];
        let mut state = self.state.borrow_mut();
        if state.groups[*group].epoch != *epoch {
            let most = state.groups[*group].committed as u64;
            let upto = state.dice.below(most + 1) as usize;
            state.groups[*group].follow(*epoch, upto);
        }
    }

    /// Another node becomes the primary.
    fn replace(&mut self) {
        let group = self.draw(NAMES.len());
        // All nodes look at the map; this stands for what the new primary has seen.
        let foreign = self.state.borrow().groups[group].primary().shard.foreign.clone();
        self.replace_in(group, foreign);
        self.begin(group);
    }

    fn replace_in(&self, group: usize, foreign: Runs<()>) {
        let mut state = self.state.borrow_mut();
        let left = state.groups[group].len() - state.groups[group].committed;
        let kept = state.dice.below(left as u64 + 1) as usize;
        state.groups[group].replace(kept, foreign);
        state.seen[group] = Atlas::default();
        state.counts.replaced += 1;
    }

    /// A group's primary begins to give slots away.
    fn begin(&mut self, group: usize) {
        let epoch = self.state.borrow().groups[group].epoch;
        self.tasks.push((group, epoch, migrate(&self.state, group)));
    }

    /// What was asked long ago arrives.
    fn arrive(&mut self) {
        let mut state = self.state.borrow_mut();
        let count = state.late.len() as u64;
        if count > 0 {
            let which = state.dice.below(count) as usize;
            let late = state.late.swap_remove(which);
            // Nobody waits for the answer.
            state.counts.late += u64::from(state.carry_out(&late).is_ok());
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn calm(&mut self) {
        self.state.borrow_mut().is_calm = true;
        while !self.away.is_empty() {
            self.come_back();
        }
    }

    /// Whether all clients have done what they had to do, and all slots are where they belong.
    pub(crate) fn is_done(&mut self) -> bool {
        let mut state = self.state.borrow_mut();
        let are_there = state.slots.iter().all(|map| map.ranges(|it| it.to.is_some()).is_empty());
        let is_done = are_there && self.clients.iter().all(Client::is_done);
        if is_done {
            self.counts = std::mem::take(&mut state.counts);
        }
        is_done
    }

    pub(crate) fn history(&self) -> Vec<Operation> {
        self.state.borrow().history.clone()
    }

    /// How many operations had no answer.
    pub(crate) fn open(&self) -> u64 {
        let state = self.state.borrow();
        state.history.iter().filter(|operation| operation.answered_ns.is_none()).count() as u64
    }

    /// Each key is with the group that has its slot, or with one that takes the slot from a group
    /// that is no more.
    pub(crate) fn check_keys(&self) -> Result<(), String> {
        let state = self.state.borrow();
        let map = state.slots.clone().unwrap_or_default();
        for group in &state.groups {
            for key in group.primary().table.keys.keys() {
                let owner = map.get(slot_of(key)).map(|owner| owner.group.as_str());
                let is_stale = match group.primary().shard.part(slot_of(key)) {
                    Some(Part::Taking { from, ticket }) => {
                        let giver = state.groups.iter().find(|group| group.name == from);
                        giver.expect("a group").founding != ticket.founding
                    }
                    _ => false,
                };
                if owner != Some(group.name) && !is_stale {
                    let key = key.escape_ascii();
                    return Err(format!("{key} is with {}, not with {owner:?}", group.name));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.borrow();
        write!(f, "{:?} {:?} {:#?}", self.clients, state.slots, state.groups)
    }
}
