//! The thread that hears the other nodes, and carries out the log in the store.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use remora::channel::WaitError;
use remora::nic::queue::Completion;
use remora::threads::without_signals;
use remora_store::front::slots::Shard;
use remora_store::log::{Fields, Position};
use remora_store::memory::Memory;
use remora_store::replica::{Mark, NodeId, Replica, apply};
use remora_store::store::Store;
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::clock::boot_ns;
use remora_store::way::region::Region;

use crate::copy::{Sender, replace};
use crate::group::{Group, GroupState};
use crate::journal::GroupLog;
use crate::keep::write_copy;
use crate::link::{LinkId, Queues};
use crate::slots;

/// How often the thread looks around when nothing comes.
const TICK: Duration = Duration::from_millis(5);
/// Completions of one turn.
const COMPLETIONS: usize = 64;
/// Records that are carried out in one go, and their bytes.
const RECORDS: usize = 256;
const BYTES: usize = 1 << 20;

/// Why a node ends that cannot shut another one out.
const UNFENCED: &str = "another node of this machine was stopped while it wrote this one's ring, \
                        and may yet write there: start this one again, as a new node";

/// What the thread works with.
pub(crate) struct Drive<M: Memory> {
    pub(crate) group: Arc<Group>,
    pub(crate) store: Arc<Store<M, GroupLog>>,
    /// The tablespaces that the group is to have.
    pub(crate) spaces: Vec<TablespaceOptions>,
}

impl<M: Memory + 'static> Drive<M> {
    /// Serves until the node stops.
    pub(crate) fn run(self) {
        let (mut batch, mut made_in) = (Batch::default(), None);
        while !self.group.is_stopping() {
            if let Err(reason) = self.turn(&mut batch) {
                return self.group.fail(reason);
            }
            self.make_spaces(&mut made_in);
        }
    }

    /// # Errors
    /// The node cannot go on.
    fn turn(&self, batch: &mut Batch) -> Result<(), String> {
        let mut completions = [Completion::default(); COMPLETIONS];
        let found = self.wait(&mut completions)?;
        let group = &*self.group;
        let mut state = group.lock();
        for completion in &completions[..found] {
            if let Some(from) = state.complete(group, completion) {
                state = self.install(state, from, batch)?;
            }
        }
        self.keep_up(&mut state);
        if state.unfenced {
            return Err(UNFENCED.to_owned());
        }
        state = self.apply(state, batch)?;
        if state.replica.is_serving() && !state.is_open() {
            state = self.open(state)?;
        }
        state.guard(group);
        self.start_copies(&mut state);
        Ok(())
    }

    /// What must not wait: others hear of this node, it of them, and the service of its lease.
    fn keep_up(&self, state: &mut GroupState) {
        state.replica.poll_memory(&self.group.region);
        state.replica.handle_time(boot_ns());
        let is_silent = state.replica.is_disk_silent();
        state.disk.iter_mut().for_each(|feed| feed.hear_silence(is_silent));
        if state.refusal().is_some() {
            state.replica.handle_refusing_disk(boot_ns());
        }
        state.probe_primary(&self.group);
        state.carry_out(&self.group);
    }

    /// The shard, once no command is under way that was let in by what it was. One may take long
    /// (`KEYS`, `DEBUG DIGEST`): meanwhile a thread of its own keeps up.
    fn shard_alone(&self) -> RwLockWriteGuard<'_, Shard> {
        let shard = &self.group.shard;
        if let Ok(alone) = shard.try_write() {
            return alone;
        }
        let has_come = AtomicBool::new(false);
        thread::scope(|scope| {
            let keep_up = || {
                while !has_come.load(Acquire) {
                    thread::park_timeout(TICK);
                    self.keep_up(&mut self.group.lock());
                }
            };
            let named = thread::Builder::new().name("cluster wait".to_owned());
            // Without it, others hear nothing of this node before the command has ended.
            let keeper = without_signals(|| named.spawn_scoped(scope, keep_up));
            let alone = shard.write().unwrap_or_else(PoisonError::into_inner);
            has_come.store(true, Release);
            keeper.iter().for_each(|keeper| keeper.thread().unpark());
            alone
        })
    }

    /// Begins to take changes: the store has all that the log has. A thread that holds the shard's
    /// lock was let in by what it was in an earlier epoch, and is done before this one begins.
    fn open<'g>(&'g self, state: Locked<'g>) -> Result<Locked<'g>, String> {
        let (group, epoch) = (&*self.group, state.replica.epoch());
        drop(state);
        let mut shard = self.shard_alone();
        // What the map says was heard by this node before, and may not be to be had now.
        let Shard { holdings, transit, .. } = slots::load(&self.store)?;
        (shard.holdings, shard.transit) = (holdings, transit);
        drop(shard);
        // What it takes has room with all of them from the first change on, and not only once
        // somebody tends them.
        let limit = group.lock().least_memory().unwrap_or(u64::MAX);
        self.store.set_limit(limit);
        let mut state = group.lock();
        if state.replica.is_serving() && state.replica.epoch() == epoch {
            if state.open.is_none_or(|(before, _)| before + 1 < epoch) {
                state.unbroken_from = epoch;
            }
            state.open = Some((epoch, Instant::now()));
            state.tell_kernels(group);
            tracing::info!("{} serves in epoch {epoch}", group.options.me);
        }
        Ok(state)
    }

    /// Waits for what comes, or until what was sent is done, for a tick at most.
    fn wait(&self, completions: &mut [Completion]) -> Result<usize, String> {
        let gone = |error: &dyn std::fmt::Display| format!("its card has ended: {error}");
        let Queues { channel, receives, .. } = &self.group.queues;
        for _ in 0..2 {
            let found = receives.poll(completions).map_err(|error| gone(&error))?;
            if found > 0 {
                return Ok(found);
            }
            receives.arm(false).map_err(|error| gone(&error))?;
        }
        match channel.wait(TICK) {
            Ok(_) => receives.poll(completions).map_err(|error| gone(&error)),
            Err(WaitError::Timeout(_)) => Ok(0),
            Err(error) => Err(gone(&error)),
        }
    }

    /// Carries out what is committed.
    fn apply<'g>(&'g self, mut state: Locked<'g>, batch: &mut Batch) -> Result<Locked<'g>, String> {
        loop {
            let before = state.replica.applied();
            batch.take(&mut state.replica, &self.group.region);
            // What it wants done is of the links that there are now.
            state.carry_out(&self.group);
            if batch.records.is_empty() {
                return Ok(state);
            }
            state = self.change_store(state, before, || {
                // Those who read here see all of a transaction, or nothing.
                let _alone = batch.has_transaction.then(|| self.shard_alone());
                batch.iter().try_for_each(|(at, fields)| apply(&self.store, at, &fields))
            })?;
        }
    }

    /// Changes the store to what the replica says is carried out, without the lock. Until that is
    /// done, others are told that it is where it was before.
    fn change_store<'g>(
        &'g self,
        mut state: Locked<'g>,
        before: Mark,
        change: impl FnOnce() -> Result<(), String>,
    ) -> Result<Locked<'g>, String> {
        state.applying_from = Some(before);
        drop(state);
        change()?;
        let mut state = self.group.lock();
        state.applying_from = None;
        Ok(state)
    }

    /// A copy is complete: it stands in the place of what the store has, if it was asked for.
    fn install<'g>(
        &'g self,
        state: Locked<'g>,
        from: NodeId,
        batch: &mut Batch,
    ) -> Result<Locked<'g>, String> {
        let group = &*self.group;
        // What was committed so far is carried out first, so that it does not come on top.
        let mut state = self.apply(state, batch)?;
        let Some(link) = state.links.get_mut(&from) else { return Ok(state) };
        let link_id = link.id;
        let Some((snapshot, records)) = link.incoming.finish() else {
            tracing::warn!("{from} sends a copy that cannot be understood");
            state.lose(group, from);
            return Ok(state);
        };
        if !state.replica.wants_snapshot(from, snapshot.epoch) {
            return Ok(state);
        }
        let disk = state.disk.as_ref().map(|feed| feed.disk.clone());
        drop(state);
        let written = disk.map(|disk| write_copy(group, &disk, &snapshot, &records)).transpose();
        // No client that was let in before changes the store meanwhile: a flush that is under way
        // would go on in the copy.
        let _shard = self.shard_alone();
        // No snapshot of what is here gets its name from now on.
        let mut lineage = group.lineage();
        let mut state = group.lock();
        if state.link(from, link_id).is_none() {
            // The next link begins with a copy of its own.
            return Ok(state);
        }
        let written = match written {
            Ok(written) => written,
            Err(reason) => {
                tracing::warn!("{reason}; {from} will be asked for another one");
                state.disk.iter_mut().for_each(|feed| feed.rest(reason.clone()));
                state.lose(group, from);
                return Ok(state);
            }
        };
        let before = state.replica.applied();
        if !state.replica.handle_snapshot(&group.region, from, &snapshot) {
            return Ok(state);
        }
        let at = state.replica.applied();
        if let (Some(copy), Some(feed)) = (written, &mut state.disk) {
            feed.begin_anew(copy, at)?;
        }
        *lineage += 1;
        state.flushes.clear();
        // (Not before the disk's part begins anew: it would count as kept what is no more.)
        state.carry_out(group);
        drop(lineage);
        self.change_store(state, before, || replace(&self.store, &records, group.options.salt))
    }

    /// Begins the copies that are wanted: the store has now all that the log has. Where a thread
    /// cannot be started, the next turn tries again.
    fn start_copies(&self, state: &mut GroupState) {
        state.copiers.retain(|copier| !copier.is_finished());
        if state.replica.is_amid_transaction() || state.copies.is_empty() {
            return;
        }
        let mut copies = std::mem::take(&mut state.copies);
        let (started, outcome) = start_each(&mut copies, |to, link| {
            let (head, flushes) = state.begin_walk();
            let sender = Sender { group: self.group.clone(), to, link, head, flushes };
            let store = self.store.clone();
            let copy = move || send_copy(sender, &store);
            let named = thread::Builder::new().name("cluster copy".to_owned());
            without_signals(|| named.spawn(copy))
        });
        state.copies = copies;
        state.copiers.extend(started);
        let lacked = std::mem::replace(&mut state.lacks_thread, outcome.is_err());
        if let Err(error) = outcome
            && !lacked
        {
            tracing::warn!("a copy of the store waits for a thread: {error}");
        }
    }

    /// Makes the tablespaces that the group lacks, in each epoch in which this node serves. It
    /// tries again where it cannot: the lease may end meanwhile.
    fn make_spaces(&self, made_in: &mut Option<u32>) {
        let state = self.group.lock();
        let epoch = state.replica.epoch();
        if *made_in == Some(epoch) || state.check().is_err() {
            return;
        }
        // A journal takes this lock behind the store's.
        drop(state);
        for space in &self.spaces {
            if self.store.tablespace(&space.name).is_none()
                && let Err(error) = self.store.create_tablespace(space)
            {
                return tracing::debug!("no tablespace {} yet: {error}", space.name);
            }
        }
        *made_in = Some(epoch);
    }
}

type Locked<'g> = std::sync::MutexGuard<'g, GroupState>;

/// Begins copies, each by `start`, and takes them off the list. One that cannot be begun stays
/// there, with those behind it.
fn start_each<T>(
    copies: &mut BTreeMap<NodeId, LinkId>,
    mut start: impl FnMut(NodeId, LinkId) -> io::Result<T>,
) -> (Vec<T>, io::Result<()>) {
    let mut started = Vec::new();
    while let Some(next) = copies.first_entry() {
        match start(*next.key(), *next.get()) {
            Ok(copier) => started.push(copier),
            Err(error) => return (started, Err(error)),
        }
        next.remove();
    }
    (started, Ok(()))
}

fn send_copy<M: Memory>(sender: Sender, store: &Store<M, GroupLog>) {
    let (group, to, link) = (sender.group.clone(), sender.to, sender.link);
    if let Err(interrupted) = sender.run(store) {
        tracing::info!("no copy of the store for {to}: {interrupted}");
        let mut state = group.lock();
        if state.link(to, link).is_some() {
            state.lose(&group, to);
            state.carry_out(&group);
        }
    }
}

/// Records on their way from the ring to the store.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Position, fields without key and value, and their lengths.
    records: Vec<(Position, Fields<'static>, usize, usize)>,
    /// Some of them are of a transaction.
    has_transaction: bool,
}

impl Batch {
    /// Takes the next records that are committed; of a transaction all.
    fn take(&mut self, replica: &mut Replica, region: &Region) {
        self.bytes.clear();
        self.records.clear();
        self.has_transaction = false;
        let mut goes_on = false;
        while goes_on || self.records.len() < RECORDS && self.bytes.len() < BYTES {
            let Some((position, fields)) = replica.poll_apply(region) else { return };
            self.bytes.extend_from_slice(fields.key);
            self.bytes.extend_from_slice(fields.value);
            let (key, value) = (fields.key.len(), fields.value.len());
            goes_on = fields.goes_on;
            self.has_transaction |= goes_on;
            let Fields { operation, codec, tablespace, flags, expires_ms, .. } = fields;
            let fields = Fields { codec, tablespace, flags, expires_ms, ..Fields::of(operation) };
            self.records.push((position, fields, key, value));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Position, Fields<'_>)> {
        let mut rest = &self.bytes[..];
        self.records.iter().map(move |(position, fields, key, value)| {
            let (key, after) = rest.split_at(*key);
            let (value, after) = after.split_at(*value);
            rest = after;
            (*position, Fields { key, value, ..*fields })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_a_thread_is_begun_later() {
        let wanted: BTreeMap<_, _> = (1..4).map(|node| (NodeId(node), LinkId::next())).collect();
        let mut copies = wanted.clone();
        let none = |_, _| Err(io::ErrorKind::WouldBlock.into());
        let (started, outcome) = start_each::<()>(&mut copies, none);
        assert_eq!((started.len(), outcome.is_err(), &copies), (0, true, &wanted));

        let mut room = 2;
        let (started, outcome) = start_each(&mut copies, |to, link| {
            room -= 1;
            if room < 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok((to, link)) }
        });
        assert!(outcome.is_err());
        assert!(started.into_iter().eq(wanted.clone().into_iter().take(2)));

        let (started, outcome) = start_each(&mut copies, |to, link| Ok((to, link)));
        assert!(outcome.is_ok() && copies.is_empty());
        assert!(started.into_iter().eq(wanted.into_iter().skip(2)));
    }
}
