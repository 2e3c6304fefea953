//! Moves slots from this node's group to others, while it is the primary: as the map wants it, and
//! as docs/cluster.md says.
//!
//! All that a move has come to is in the logs of both groups and in the map. A step that fails is
//! done again, by this primary or the next one, in a session of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::threads::without_signals;
use remora_store::front::slots::{Part, Range, slot_of};
use remora_store::memory::Memory;
use remora_store::scan::Cursor;
use remora_store::tablespace::TablespaceId;
use remora_store::way::kernel::now_ms;

use crate::map::{Atlas, MapService, Owner, SlotMap, common};
use crate::session::Session;
use crate::slots::{Slots, is_in};

/// How often the map is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often is looked whether to stop.
const TICK: Duration = Duration::from_millis(20);
/// Keys that are on their way together, and their bytes as stored.
const BATCH: usize = 128;
const BATCH_BYTES: usize = 1 << 20;
/// Items of a step of a walk.
const STEP: usize = 512;
/// The tablespace whose keys have slots: the one database that Redis' clients have in a cluster.
const DATABASE: &str = "db0";
/// Bits of a ticket below the epoch's.
const ATTEMPT_BITS: u32 = 40;

/// The thread that moves a node's slots. Dropping it ends it.
pub struct Mover<M: Memory> {
    slots: Arc<Slots<M>>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Memory> std::fmt::Debug for Mover<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").field("group", &self.slots.name).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Mover<M> {
    /// Begins to look at the map, and to move what it says. `password` is that of the other groups'
    /// Redis fronts.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        slots: Arc<Slots<M>>,
        service: Box<dyn MapService>,
        password: Option<String>,
    ) -> std::io::Result<Mover<M>> {
        let work = Work { slots: slots.clone(), service, password, attempts: 0 };
        let named = thread::Builder::new().name("cluster slots".to_owned());
        let thread = Some(without_signals(|| named.spawn(move || work.run()))?);
        Ok(Mover { slots, thread })
    }
}

impl<M: Memory> Drop for Mover<M> {
    fn drop(&mut self) {
        self.slots.is_stopping.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Work<M: Memory> {
    slots: Arc<Slots<M>>,
    service: Box<dyn MapService>,
    password: Option<String>,
    /// How many sessions there were: the next one's number is greater.
    attempts: u64,
}

/// Slots on their way to a group.
struct Move {
    to: String,
    session: Session,
    space: Option<TablespaceId>,
}

impl<M: Memory + 'static> Work<M> {
    fn run(mut self) {
        while !self.is_over() {
            let outcome = self.turn();
            let mut trouble = self.slots.trouble.lock().unwrap_or_else(|gone| gone.into_inner());
            if let Err(reason) = &outcome
                && trouble.as_ref() != Some(reason)
            {
                tracing::info!("slots of group {} wait: {reason}", self.slots.name);
            }
            *trouble = outcome.err();
            drop(trouble);
            let mut left = LOOK;
            while !left.is_zero() && !self.is_over() {
                thread::sleep(TICK);
                left = left.saturating_sub(TICK);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.slots.is_stopping.load(Relaxed) || self.slots.group.is_stopping()
    }

    /// Looks at the map, and does what it wants of this group, if this node is its primary.
    fn turn(&mut self) -> Result<(), String> {
        let atlas = self.look()?;
        let slots = self.slots.clone();
        if slots.group.check().is_err() {
            return Ok(());
        }
        match (&atlas.slots, slots.shard().holdings) {
            (None, None) => self.claim(),
            (None, Some(_)) => Err("the cluster’s map is gone from the service".to_owned()),
            (Some(map), None) => slots.begin(map),
            (Some(_), Some(_)) => {
                self.targets(&atlas).into_iter().try_for_each(|to| self.go_on(&atlas, &to))
            }
        }
    }

    fn look(&mut self) -> Result<Arc<Atlas>, String> {
        let atlas = Arc::new(self.service.look()?);
        self.slots.set_atlas(atlas.clone());
        Ok(atlas)
    }

    /// The first group of a cluster has all slots.
    fn claim(&mut self) -> Result<(), String> {
        let mut map = SlotMap::default();
        map.set(Range::ALL, Some(&Owner::new(&self.slots.name)));
        self.service.replace(0, &map)?;
        // Of two groups that come first, one has succeeded: which, says the map.
        let atlas = self.look()?;
        atlas.slots.as_ref().map_or(Ok(()), |map| self.slots.begin(map))
    }

    /// The groups that slots are to go to. The one that has keys on their way comes first: there
    /// are no others before these have come.
    fn targets(&self, atlas: &Atlas) -> Vec<String> {
        let shard = self.slots.shard();
        let target = |part: &Part| match part {
            Part::Giving { to } | Part::Given { to } => Some(to.clone()),
            _ => None,
        };
        let under_way = shard.transit.first().and_then(|key| target(shard.part(slot_of(key))?));
        let begun = shard.holdings.iter().flat_map(|held| held.iter());
        let begun = begun.filter_map(|(_, part)| target(part));
        let wanted = atlas.slots.iter().flat_map(|map| map.iter()).filter_map(|(_, owner)| {
            (owner.group == self.slots.name).then(|| owner.to.clone()).flatten()
        });
        let mut all: Vec<String> = Vec::new();
        for to in under_way.into_iter().chain(begun).chain(wanted) {
            if !all.contains(&to) {
                all.push(to);
            }
        }
        all
    }

    /// The slots that go to a group, of those that the map says or does not say so of, and for
    /// which this group is as `is` says.
    fn ranges(&self, atlas: &Atlas, to: &str, is: impl Fn(&Part) -> bool) -> [Vec<Range>; 2] {
        let holdings = self.slots.shard().holdings.unwrap_or_default();
        let planned = atlas.to_give(&self.slots.name, to);
        let (mut said, mut others) = (Vec::new(), Vec::new());
        for held in holdings.ranges(is) {
            let mut rest = remora_store::front::slots::Runs::default();
            rest.set(held, Some(&()));
            for range in planned.iter().filter_map(|range| common(*range, held)) {
                rest.set(range, None);
                said.push(range);
            }
            others.extend(rest.ranges(|()| true));
        }
        [said, others]
    }

    /// Moves what is to go to a group.
    fn go_on(&mut self, atlas: &Atlas, to: &str) -> Result<(), String> {
        let given = Part::Given { to: to.to_owned() };
        let giving = Part::Giving { to: to.to_owned() };
        let [handed, done] = self.ranges(atlas, to, |part| *part == given);
        if !done.is_empty() {
            // The map says that others have them.
            self.slots.become_for(&done, None)?;
        }
        let [left, _] = self.ranges(atlas, to, |part| *part == Part::Owned || *part == giving);
        if handed.is_empty() && left.is_empty() {
            return Ok(());
        }
        let mut to_group = self.open(atlas, to)?;
        if !left.is_empty() {
            to_group.session.take(&left)?;
            self.slots.become_for(&left, Some(&giving))?;
            self.send_those_on_their_way(&mut to_group, &left)?;
            while self.send_all(&mut to_group, &left)? > 0 {}
            self.slots.become_for(&left, Some(&given))?;
        }
        let all: Vec<_> = handed.into_iter().chain(left).collect();
        to_group.session.own(&all)?;
        self.tell(&all, to)?;
        self.slots.become_for(&all, None)
    }

    /// Opens a session with a group's primary.
    fn open(&mut self, atlas: &Atlas, to: &str) -> Result<Move, String> {
        let view = atlas.groups.get(to);
        let primary = view.and_then(|view| view.primary()?.1?.redis);
        let primary = primary.ok_or_else(|| format!("group {to} has no primary at the moment"))?;
        self.attempts += 1;
        let epoch = self.slots.group.lock().replica.epoch();
        let ticket = u64::from(epoch) << ATTEMPT_BITS | self.attempts;
        let password = self.password.as_deref();
        let session = Session::open(primary, password, &self.slots.name, ticket)?;
        Ok(Move { to: to.to_owned(), session, space: self.slots.store.tablespace(DATABASE) })
    }

    /// Keys that were on their way when the session before ended: they have come, or not.
    fn send_those_on_their_way(&self, to: &mut Move, ranges: &[Range]) -> Result<(), String> {
        let keys = self.slots.shard().transit;
        if keys.is_empty() {
            return Ok(());
        }
        if !keys.iter().all(|key| is_in(ranges, key)) {
            return Err(format!("keys are on their way to another group than {}", to.to));
        }
        self.deliver(to, &keys)
    }

    /// Sends all keys of these slots, in one walk; how many.
    fn send_all(&self, to: &mut Move, ranges: &[Range]) -> Result<usize, String> {
        let Some(space) = to.space else { return Ok(0) };
        let (mut cursor, mut sent) = (Cursor::START, 0);
        loop {
            let (mut batches, mut bytes) = (vec![Vec::new()], 0);
            cursor = self.slots.store.scan(space, cursor, now_ms(), STEP, &mut |item| {
                if is_in(ranges, item.key) {
                    let len = batches.last().map_or(0, Vec::len);
                    if len > 0 && (len == BATCH || bytes + item.stored.len() > BATCH_BYTES) {
                        batches.push(Vec::new());
                        bytes = 0;
                    }
                    bytes += item.stored.len();
                    batches.last_mut().expect("there is one").push(item.key.to_vec());
                }
                std::ops::ControlFlow::Continue(())
            });
            for keys in batches.into_iter().filter(|keys| !keys.is_empty()) {
                if self.is_over() {
                    return Err("the node ends".to_owned());
                }
                sent += keys.len();
                self.slots.freeze(keys.clone())?;
                self.deliver(to, &keys)?;
            }
            if cursor == Cursor::END {
                return Ok(sent);
            }
        }
    }

    /// Sends keys that are frozen, then lets go of them.
    fn deliver(&self, to: &mut Move, keys: &[Vec<u8>]) -> Result<(), String> {
        let Some(space) = to.space else { return Ok(()) };
        let items: Vec<_> = keys.iter().filter_map(|key| self.slots.item(space, key)).collect();
        to.session.import(&items)?;
        self.slots.release(space, keys)
    }

    /// Writes into the map who has the slots now.
    fn tell(&mut self, ranges: &[Range], to: &str) -> Result<(), String> {
        let atlas = self.look()?;
        let Some(mut map) = atlas.slots.clone() else {
            return Err("the cluster’s map is gone from the service".to_owned());
        };
        for planned in atlas.to_give(&self.slots.name, to) {
            for range in ranges.iter().filter_map(|range| common(*range, planned)) {
                map.set(range, Some(&Owner::new(to)));
            }
        }
        if atlas.slots.as_ref() == Some(&map) {
            return Ok(());
        }
        let is_told = self.service.replace(atlas.revision, &map)?;
        self.look()?;
        if is_told { Ok(()) } else { Err("the map has changed meanwhile".to_owned()) }
    }
}
