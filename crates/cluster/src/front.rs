//! What Redis' and memcached's clients get of a group: answers wait until a majority has what they
//! are about, and other nodes lead to the primary. Of several groups, each has some of the slots.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread;

use remora::connection::token::Token;
use remora_store::front::keyspace::{Awaited, Cluster, Keeper, TablespaceId, Transfer};
use remora_store::front::slots::{Part, Shard};
use remora_store::log::Position;
use remora_store::memory::Memory;
use remora_store::replica::{Counters, NodeId, Standing};

use crate::group::{Group, Status};
use crate::map::{Atlas, GroupView};
use crate::slots::{OF_SLOTS, Slots, load};

/// What a node does, in a word for `INFO`.
fn word_of(status: &Status) -> &'static str {
    match status.standing {
        Standing::Idle => "idle",
        Standing::Fencing => "fences",
        Standing::Backup(true) => "follows",
        Standing::Backup(false) => "waits",
        Standing::Recovering => "recovers",
        Standing::Serving if status.has_lease => "serves",
        Standing::Serving => "lacks the lease",
    }
}

/// What a replica has counted, as `INFO` names it.
fn counted(counters: &Counters) -> [(&'static str, String); 9] {
    let Counters { fenced, stale, refused, served, overrun, .. } = counters;
    let Counters { snapshots, truncated, resigned, full, .. } = counters;
    [
        ("cluster_fenced", fenced),
        ("cluster_stale", stale),
        ("cluster_refused", refused),
        ("cluster_served", served),
        ("cluster_overrun", overrun),
        ("cluster_snapshots", snapshots),
        ("cluster_truncated", truncated),
        ("cluster_resigned", resigned),
        ("cluster_full", full),
    ]
    .map(|(name, count)| (name, count.to_string()))
}

/// What `INFO` says of a node of a group.
fn entries_of(group: &Group) -> Vec<(&'static str, String)> {
    let status = group.status();
    let epoch = status.configuration.as_ref().map_or(0, |latest| latest.epoch);
    let mut entries = vec![
        ("cluster_node", status.me.to_string()),
        ("cluster_standing", word_of(&status).to_owned()),
        ("cluster_epoch", epoch.to_string()),
        ("cluster_has_lease", u8::from(status.has_lease).to_string()),
        ("cluster_last", status.last.position.to_string()),
        ("cluster_committed", status.committed.to_string()),
        ("cluster_applied", status.applied.position.to_string()),
        ("cluster_log_bytes", status.last.offset.to_string()),
        ("cluster_applied_bytes", status.applied.offset.to_string()),
        ("cluster_broken_links", status.broken.to_string()),
        ("cluster_refusal", status.last_refusal.unwrap_or_else(|| "none".to_owned())),
        ("cluster_disk", status.disk.unwrap_or_else(|| "ok".to_owned())),
        ("cluster_majority", if status.is_stalled { "does not confirm" } else { "ok" }.to_owned()),
        ("cluster_service", status.service.unwrap_or_else(|| "ok".to_owned())),
    ];
    entries.extend(counted(&status.counters));
    let serving = status.serving.map(|time| time.as_secs().to_string());
    entries.extend(serving.map(|seconds| ("cluster_serving_s", seconds)));
    if let (Some(saver), Some(log)) = (group.saver.get(), group.log.get()) {
        entries.extend(saver.entries());
        entries.extend(log.entries());
    }
    entries
}

/// A transaction of a client, while it is under way: there is one at a time, and others' changes
/// are not of it.
struct Together<'g>(&'g Group);

impl<'g> Together<'g> {
    fn begin(group: &'g Group) -> Together<'g> {
        let mut state = group.lock();
        state.replica.begin_together();
        state.transacts = Some(thread::current().id());
        Together(group)
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.transacts = None;
        state.replica.end_together(&self.0.region);
        state.carry_out(self.0);
    }
}

/// A node's own group, as it knows it itself.
fn view_of(group: &Group) -> (NodeId, GroupView) {
    let Status { me, configuration, addresses, .. } = group.status();
    let (nodes, seen) = (addresses, group.seen());
    (me, GroupView { configuration, nodes, seen, ..GroupView::default() })
}

/// The cluster, with the own group as it knows it itself.
pub(crate) fn atlas_of<M: Memory + 'static>(slots: &Slots<M>) -> Atlas {
    let mut atlas = (*slots.atlas()).clone();
    atlas.groups.insert(slots.name.clone(), view_of(&slots.group).1);
    atlas
}

/// A group that is one of several, as the fronts' keeper.
pub struct ShardKeeper<M: Memory> {
    slots: Arc<Slots<M>>,
}

impl<M: Memory> std::fmt::Debug for ShardKeeper<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardKeeper").field("group", &self.slots.name).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> ShardKeeper<M> {
    /// What the fronts of a node get of its group and its slots.
    #[must_use]
    pub fn new(slots: Arc<Slots<M>>) -> ShardKeeper<M> {
        ShardKeeper { slots }
    }

    fn group(&self) -> &Group {
        &self.slots.group
    }
}

impl<M: Memory + 'static> Keeper for ShardKeeper<M> {
    fn is_awaited(&self) -> bool {
        true
    }

    fn together(&self, act: &mut dyn FnMut()) {
        let _together = Together::begin(self.group());
        act();
    }

    fn hasten(&self, _version: u64) {
        self.group().hasten();
    }

    /// The lease is looked at last: what was read before is then so for everybody, unless another
    /// node has served since.
    fn is_kept(&self, awaited: &Awaited) -> Result<bool, String> {
        let [since, position] = [awaited.since, awaited.version].map(Position::from_number);
        let is_kept = self.group().is_kept(position, awaited.from);
        if !is_kept.map_err(|doubt| doubt.to_string())? {
            return Ok(false);
        }
        self.group().check_since(since).map_err(|reason| reason.to_string())?;
        Ok(true)
    }

    fn listen(&self, listener: Box<dyn Fn() + Send + Sync>) {
        self.group().listeners.add(listener);
    }

    fn save(&self, background: bool) -> Result<(), String> {
        let saver = self.group().saver.get();
        saver
            .ok_or("this node keeps the store in its memory: it was started without --dir")?
            .save(background)
    }

    fn saved_s(&self) -> u64 {
        self.group().saver.get().map_or(0, |saver| saver.saved_s())
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries = entries_of(self.group());
        let slots = &self.slots;
        // Where a transaction asks, it holds the lock already, and somebody may wait for it.
        if let Ok(shard) = slots.group.shard.try_read() {
            let is_any = |is: &dyn Fn(&Part) -> bool| {
                let ranges = shard.holdings.iter().flat_map(|held| held.ranges(is));
                ranges.map(|range| u32::from(range.count())).sum::<u32>().to_string()
            };
            let gives = |part: &Part| matches!(part, Part::Giving { .. } | Part::Given { .. });
            entries.push(("cluster_slots_owned", is_any(&|part| *part == Part::Owned)));
            entries.push(("cluster_slots_giving", is_any(&gives)));
            let takes = |part: &Part| matches!(part, Part::Taking { .. });
            entries.push(("cluster_slots_taking", is_any(&takes)));
            entries.push(("cluster_keys_in_transit", shard.transit.len().to_string()));
        }
        let trouble = slots.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        entries.push(("cluster_group", slots.name.clone()));
        entries.push(("cluster_keys_moved", slots.moved.load(Relaxed).to_string()));
        entries.push(("cluster_moves", trouble.unwrap_or_else(|| "ok".to_owned())));
        entries
    }

    fn seen(&self) -> u64 {
        self.group().lock().replica.last().position.number()
    }

    /// (What the slots' owner is decides which group answers.)
    fn seen_of(&self, _: TablespaceId, keys: &mut dyn Iterator<Item = &[u8]>) -> u64 {
        let state = self.group().lock();
        let keys = keys.chain(OF_SLOTS);
        state.undecided.until(keys, state.replica.committed()).number()
    }

    fn holders(&self, version: u64) -> usize {
        self.group().lock().replica.holders(Position::from_number(version))
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn is_elsewhere(&self) -> bool {
        !self.group().serves()
    }

    fn group_token(&self) -> Option<Token> {
        Some(self.group().options.token)
    }

    fn relays_to(&self) -> Option<SocketAddr> {
        self.group().primary_elsewhere()?.memcached
    }

    fn cluster(&self) -> Option<Cluster> {
        Some(atlas_of(&self.slots).shown(&self.slots.name, self.slots.group.options.me))
    }

    /// (What the log says of a slot comes before the first of its keys is gone.)
    fn is_readable(&self, slot: Option<u16>) -> bool {
        let is_owned = |slot| {
            let logged = load(&self.slots.store).unwrap_or_default();
            let is_foreign = self.slots.shard().foreign.get(slot).is_some();
            logged.part(slot) == Some(&Part::Owned) && !is_foreign
        };
        slot.is_none_or(is_owned) && self.group().follows()
    }

    fn with_shard(&self, act: &mut dyn FnMut(Option<&Shard>)) {
        let shard = &self.slots.group.shard;
        act(Some(&shard.read().unwrap_or_else(PoisonError::into_inner)));
    }

    fn transfer(&self, step: &Transfer<'_>) -> Result<u64, String> {
        self.slots.transfer(step)
    }
}
