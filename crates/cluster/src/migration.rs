//! How slots move between groups, as the map wants it and as docs/cluster.md says. What the primary
//! does that gives them is a [`Migration`]: step by step, over whatever carries the steps out
//! ([`Hands`]). In a node that is `mover`, where each step is done when its call returns; in
//! simulated worlds, steps take time. What the primary does that gets them is [`transferred`].
//!
//! All that a move has come to is in the logs of both groups and in the map. A step that fails is
//! done again, by this primary or the next one, in a session of its own.
//!
//! A group in memory that has lost all its nodes begins anew, under its name, with nothing. Each
//! group is told from those before it by its [founding](Hands::founding), and each session's number
//! has that of the group that gives. So:
//!
//! - A group that begins anew amid a move has nothing of the slots that the map has it give: it has
//!   given them ([`first_holdings`]), and serves nobody for them. If the other group owns them by
//!   its log, it keeps them with all their keys, whatever the map said; so a slot never has two
//!   owners.
//! - Else what has come so far is of a group that is no more, in whose place the new one may have
//!   served the slots, where the map did not say that they go. The group that gets them discards
//!   that, in its log before it takes them anew ([`transferred`]): no key comes back that the new
//!   group has not, whichever node is the primary in between.
//! - Of two groups of one name, the service knows which one is the latter. The group that gets
//!   slots goes by what it has heard of that since its primary began to serve
//!   ([`Atlas::to_come`]): what the former one has said, and comes late, is refused, as is what the
//!   latter one says, until that is heard of.
//! - If the group that gets slots has begun anew, too, it knows of no session, and takes slots as
//!   they come. A group that begins again from its directories has the founding that it had.

use std::sync::Arc;

use remora_store::front::keyspace::{Transfer, TransferStep};
use remora_store::front::slots::{Holdings, Part, Range, Runs, SLOTS, Shard, Ticket, slot_of};
use remora_store::scan::Cursor;

use crate::map::{Atlas, Owner, SlotMap, common};

/// Keys that are on their way together, and their bytes as stored.
const BATCH: usize = 128;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a name's length among those of others, at most.
const LENGTH: usize = 4;
/// Bits of a ticket below the epoch's.
const ATTEMPT_BITS: u32 = 40;

/// A key with what belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// Its value, as clients see it.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// When it ends, in ms of Unix time.
    pub expires_ms: Option<u64>,
}

/// What carries a migration out: the giving group's primary, the getting one's, and the map.
/// Whatever fails says why, in words; it may have been done nevertheless.
#[allow(async_fn_in_trait, reason = "a node’s steps are done at once, and a world’s in one thread")]
pub trait Hands {
    /// A session with another group's primary.
    type Session;

    /// The giving group's name.
    fn name(&self) -> &str;
    /// Which group that is, of all that have begun under this name.
    fn founding(&self) -> u32;
    /// The epoch in which this node is its group's primary at this moment, if it is.
    fn serves_in(&self) -> Option<u32>;
    /// Whether this node ends.
    fn is_over(&self) -> bool;
    /// What the group is for its slots, as this node knew last when it was the primary.
    fn shard(&self) -> Shard;
    /// Some keys of these slots from a place on, each with its bytes as stored, and where to go on.
    fn keys(&self, ranges: &[Range], from: Cursor) -> (Vec<(Vec<u8>, usize)>, Cursor);
    /// Those of these keys that are here, with their values.
    fn items(&self, keys: &[Vec<u8>]) -> Vec<Item>;

    /// The map gives these slots to other groups: where the log gives them to this one, too, nobody
    /// is served here for them.
    fn set_foreign(&self, slots: Runs<()>);

    /// Logs that a new group's slots are those that the map says.
    fn begin(&self, map: &SlotMap) -> Result<(), String>;
    /// How many bytes a change may have that is logged here.
    fn window(&self) -> usize;
    /// Logs, if this node serves in this epoch, that the group is something else for these slots.
    fn become_for(&self, epoch: u32, ranges: &[Range], part: Option<&Part>) -> Result<(), String>;
    /// Logs, if it serves in this epoch, that nobody changes these keys before they are released.
    fn freeze(&self, epoch: u32, keys: &[Vec<u8>]) -> Result<(), String>;
    /// Logs, if it serves in this epoch, that another group has these keys, the frozen ones: they
    /// go from here.
    fn release(&self, epoch: u32, keys: &[Vec<u8>]) -> Result<(), String>;
    /// Waits until a majority has all that this node's log has.
    async fn settle(&self) -> Result<(), String>;

    /// The cluster as it is.
    async fn look(&self) -> Result<Arc<Atlas>, String>;
    /// Puts a map in the place of the one of this revision; whether it still was that.
    async fn replace(&self, revision: i64, next: &SlotMap) -> Result<bool, String>;

    /// Opens a session of this number with a group's primary.
    async fn open(&self, atlas: &Atlas, to: &str, ticket: Ticket) -> Result<Self::Session, String>;
    /// The other group is to be ready for keys of these slots.
    async fn take(&self, with: &mut Self::Session, ranges: &[Range]) -> Result<(), String>;
    /// The same, for those of these slots that it does not own already.
    async fn retake(&self, with: &mut Self::Session, ranges: &[Range]) -> Result<(), String>;
    /// The other group is to have these keys for good.
    async fn import(&self, with: &mut Self::Session, items: &[Item]) -> Result<(), String>;
    /// The other group is to own these slots.
    async fn own(&self, with: &mut Self::Session, ranges: &[Range]) -> Result<(), String>;
}

/// A primary that gives slots away.
#[derive(Debug)]
pub struct Migration<H: Hands> {
    /// What carries it out.
    pub hands: H,
    /// The epoch in which the node gives slots away.
    epoch: u32,
    /// How many sessions there were: the next one's number is greater.
    attempts: u64,
}

impl<H: Hands> Migration<H> {
    /// Begins; nothing has happened yet.
    pub fn new(hands: H) -> Migration<H> {
        Migration { hands, epoch: 0, attempts: 0 }
    }

    /// Looks at the map, and does what it wants of this group, if this node is its primary.
    ///
    /// # Errors
    /// Why it cannot be done now, in words.
    pub async fn turn(&mut self) -> Result<(), String> {
        let atlas = self.look().await?;
        let Some(epoch) = self.hands.serves_in() else { return Ok(()) };
        self.epoch = epoch;
        let Some(held) = self.hands.shard().holdings else {
            return match &atlas.slots {
                None => self.claim().await,
                Some(map) => self.begin(map).await,
            };
        };
        if let Some(whole) = completed(atlas.slots.as_ref(), &held, self.hands.name()) {
            // The service has lost what it said of these slots, and the group's log has not.
            self.settle().await?;
            return self.hands.replace(atlas.revision, &whole).await.map(drop);
        }
        let lost = atlas.to_give(self.hands.name(), self.hands.name());
        if !lost.is_empty() {
            return self.adopt(&lost).await;
        }
        let mut outcome = Ok(());
        for to in self.targets(&atlas) {
            outcome = outcome.and(self.go_on(&atlas, &to).await);
            // A group that is away holds no other one up, unless keys are on their way to it.
            if !self.is_primary() || !self.hands.shard().transit.is_empty() {
                break;
            }
        }
        outcome?;
        let (map, name) = (atlas.slots.as_ref(), self.hands.name());
        let trouble = disputed(map, &held, name).or_else(|| unserved(map, &held, name));
        trouble.map_or(Ok(()), Err)
    }

    /// Somebody has said that no group has these slots any more: this one has them from now on,
    /// with what it has of their keys.
    async fn adopt(&mut self, lost: &[Range]) -> Result<(), String> {
        let held = self.hands.shard().holdings.unwrap_or_default();
        let has_part = held.ranges(|part| matches!(part, Part::Giving { .. } | Part::Given { .. }));
        let mut rest = Runs::default();
        lost.iter().for_each(|range| rest.set(*range, Some(&())));
        has_part.iter().for_each(|range| rest.set(*range, None));
        self.become_for(&rest.ranges(|()| true), Some(&Part::Owned)).await?;
        let name = self.hands.name().to_owned();
        self.tell(lost, &name).await
    }

    /// Looks at the map. What it says of other groups' slots, each node takes note of: it may be
    /// the next primary when the map cannot be seen.
    async fn look(&self) -> Result<Arc<Atlas>, String> {
        let (atlas, hands) = (self.hands.look().await?, &self.hands);
        if let Some(map) = &atlas.slots {
            hands.set_foreign(foreign(hands.shard().foreign, map, hands.name()));
        }
        Ok(atlas)
    }

    /// The first group of a cluster has all slots.
    async fn claim(&mut self) -> Result<(), String> {
        let mut map = SlotMap::default();
        map.set(Range::ALL, Some(&Owner::new(self.hands.name())));
        self.hands.replace(0, &map).await?;
        // Of two groups that come first, one has succeeded: which, says the map.
        let atlas = self.look().await?;
        match &atlas.slots {
            Some(map) => self.begin(map).await,
            None => Ok(()),
        }
    }

    async fn begin(&self, map: &SlotMap) -> Result<(), String> {
        self.hands.begin(map)?;
        self.settle().await
    }

    async fn become_for(&self, ranges: &[Range], part: Option<&Part>) -> Result<(), String> {
        self.hands.become_for(self.epoch, ranges, part)?;
        self.settle().await
    }

    /// Whether this node serves in the epoch still in which it gives slots away.
    fn is_primary(&self) -> bool {
        self.hands.serves_in() == Some(self.epoch)
    }

    /// Waits until a majority has what was logged. The log of a node that was replaced settles,
    /// too, as others write it: what the node knows of its slots and keys is of the past then.
    async fn settle(&self) -> Result<(), String> {
        self.hands.settle().await?;
        match self.is_primary() {
            true => Ok(()),
            false => Err("another node became the primary meanwhile".to_owned()),
        }
    }

    /// The groups that slots are to go to. The one that has keys on their way comes first: there
    /// are no others before these have come.
    fn targets(&self, atlas: &Atlas) -> Vec<String> {
        let shard = self.hands.shard();
        let target = |part: &Part| match part {
            Part::Giving { to } | Part::Given { to } => Some(to.clone()),
            _ => None,
        };
        let under_way = shard.transit.first().and_then(|key| target(shard.part(slot_of(key))?));
        let begun = shard.holdings.iter().flat_map(|held| held.iter());
        let begun = begun.filter_map(|(_, part)| target(part));
        let wanted = atlas.slots.iter().flat_map(|map| map.iter()).filter_map(|(_, owner)| {
            (owner.group == self.hands.name()).then(|| owner.to.clone()).flatten()
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
        let holdings = self.hands.shard().holdings.unwrap_or_default();
        let planned = atlas.to_give(self.hands.name(), to);
        let (mut said, mut others) = (Vec::new(), Vec::new());
        for held in holdings.ranges(is) {
            let mut rest = Runs::default();
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
    async fn go_on(&mut self, atlas: &Atlas, to: &str) -> Result<(), String> {
        let given = Part::Given { to: to.to_owned() };
        let giving = Part::Giving { to: to.to_owned() };
        let [handed, done] = self.ranges(atlas, to, |part| *part == given);
        if !done.is_empty() {
            // The map says that others have them.
            self.become_for(&done, None).await?;
        }
        let [left, _] = self.ranges(atlas, to, |part| *part == Part::Owned || *part == giving);
        if handed.is_empty() && left.is_empty() {
            return Ok(());
        }
        self.attempts += 1;
        let number = u64::from(self.epoch) << ATTEMPT_BITS | self.attempts;
        let ticket = Ticket { founding: self.hands.founding(), number };
        let mut session = self.hands.open(atlas, to, ticket).await?;
        if !left.is_empty() {
            self.hands.take(&mut session, &left).await?;
            self.become_for(&left, Some(&giving)).await?;
            self.send_those_on_their_way(&mut session, to, &left).await?;
            while self.send_all(&mut session, &left).await? > 0 {}
            self.become_for(&left, Some(&given)).await?;
        }
        let all: Vec<_> = handed.iter().copied().chain(left).collect();
        if let Err(reason) = self.hands.own(&mut session, &all).await {
            self.announce_again(&mut session, to, &handed).await.map_err(|_| reason)?;
            self.hands.own(&mut session, &all).await?;
        }
        self.tell(&all, to).await?;
        self.become_for(&all, None).await
    }

    /// Where one of the two groups has lost all of its nodes and begun anew, the other one knows
    /// nothing of the slots, or has what is not to be kept: it takes them as they are, so that
    /// somebody serves them.
    async fn announce_again(
        &self,
        session: &mut H::Session,
        to: &str,
        handed: &[Range],
    ) -> Result<(), String> {
        let atlas = self.look().await?;
        let given = Part::Given { to: to.to_owned() };
        let [still, _] = self.ranges(&atlas, to, |part| *part == given);
        // (What has gone on from there is no more to be taken there.)
        let is_in = |range: &Range| still.iter().any(|it| common(*it, *range) == Some(*range));
        let is_so = handed.iter().all(is_in);
        if handed.is_empty() || !is_so || !self.is_primary() {
            return Err("nothing was handed over before".to_owned());
        }
        self.hands.retake(session, handed).await
    }

    /// Keys that were on their way when the session before ended: they have come, or not.
    async fn send_those_on_their_way(
        &self,
        session: &mut H::Session,
        to: &str,
        ranges: &[Range],
    ) -> Result<(), String> {
        let keys = self.hands.shard().transit;
        if keys.is_empty() {
            return Ok(());
        }
        if !keys.iter().all(|key| is_in(ranges, key)) {
            return Err(format!("keys are on their way to another group than {to}"));
        }
        self.deliver(session, &keys).await
    }

    /// Sends all keys of these slots, in one walk; how many.
    async fn send_all(&self, session: &mut H::Session, ranges: &[Range]) -> Result<usize, String> {
        let (mut cursor, mut sent) = (Cursor::START, 0);
        loop {
            let (keys, next) = self.hands.keys(ranges, cursor);
            cursor = next;
            for keys in batches(keys, self.hands.window() / 2) {
                if self.hands.is_over() {
                    return Err("the node ends".to_owned());
                }
                sent += keys.len();
                self.hands.freeze(self.epoch, &keys)?;
                self.settle().await?;
                self.deliver(session, &keys).await?;
            }
            if cursor == Cursor::END {
                return Ok(sent);
            }
        }
    }

    /// Sends keys that are frozen, then lets go of them.
    async fn deliver(&self, session: &mut H::Session, keys: &[Vec<u8>]) -> Result<(), String> {
        let items = self.hands.items(keys);
        self.hands.import(session, &items).await?;
        self.hands.release(self.epoch, keys)
    }

    /// Writes into the map who has the slots now.
    async fn tell(&mut self, ranges: &[Range], to: &str) -> Result<(), String> {
        let atlas = self.look().await?;
        let Some(mut map) = atlas.slots.clone() else {
            return Err("the cluster’s map is gone from the service".to_owned());
        };
        for planned in atlas.to_give(self.hands.name(), to) {
            for range in ranges.iter().filter_map(|range| common(*range, planned)) {
                map.set(range, Some(&Owner::new(to)));
            }
        }
        if atlas.slots.as_ref() == Some(&map) {
            return Ok(());
        }
        let is_told = self.hands.replace(atlas.revision, &map).await?;
        self.look().await?;
        if is_told { Ok(()) } else { Err("the map has changed meanwhile".to_owned()) }
    }
}

/// The map with the slots that the group of this name has, where it names no group: none, if it
/// lacks nothing. A slot that is on its way is with the group that gives it.
fn completed(map: Option<&SlotMap>, held: &Holdings, name: &str) -> Option<SlotMap> {
    let mut whole = map.cloned().unwrap_or_default();
    for (range, part) in held.iter() {
        let to = match part {
            Part::Owned => None,
            Part::Giving { to } | Part::Given { to } => Some(to.clone()),
            Part::Taking { .. } => continue,
        };
        let missing = map.map_or_else(|| vec![range], |map| map.lacking(&[range]));
        for range in missing {
            let to = to.clone();
            whole.set(range, Some(&Owner { group: name.to_owned(), to }));
        }
    }
    let has_grown = whole.iter().count() > 0 && map != Some(&whole);
    has_grown.then_some(whole)
}

/// The slots that the map gives to others than the group of this name; of those that it lacks, what
/// was known before.
fn foreign(before: Runs<()>, map: &SlotMap, name: &str) -> Runs<()> {
    let mut slots = before;
    for (range, owner) in map.iter() {
        slots.set(range, (!owner.may_be(name)).then_some(&()));
    }
    slots
}

/// What to do, in words, about slots that the group of this name has and the map says another one
/// has, if there are some. Two groups have a slot where one began without etcd's map, and the other
/// came back with its directories later.
fn disputed(map: Option<&SlotMap>, held: &Holdings, name: &str) -> Option<String> {
    let serves = |part: &Part| matches!(part, Part::Owned | Part::Giving { .. });
    let (map, held) = (map?, held.ranges(serves));
    let others = map.iter().filter(|(_, owner)| !owner.may_be(name));
    let mut both = others.flat_map(|(other, owner)| {
        held.iter().filter_map(move |range| Some((common(*range, other)?, owner)))
    });
    both.next().map(|(range, owner)| {
        format!(
            "slots {range} are here by the log of group {name}, and with group {} by the \
             cluster’s map: they are not served here. The group that is not to have them goes: end \
             its nodes, delete what etcd has of it (etcdctl del --prefix /remora/CLUSTER/GROUP/); \
             if the map names it, delete /remora/CLUSTER/slots, too",
            owner.group
        )
    })
}

/// What to do, in words, about slots that nobody serves: the map gives them to the group of this
/// name, whose log does not, or they come to it, and no group says that it gives them. So it is
/// where a group has lost its nodes, or a part of its log, and etcd its data.
fn unserved(map: Option<&SlotMap>, held: &Holdings, name: &str) -> Option<String> {
    let mut had = Runs::default();
    for range in held.ranges(|part| !matches!(part, Part::Taking { .. })) {
        had.set(range, Some(&()));
    }
    let own = map?.ranges(|owner| owner.group == name);
    let coming = held.ranges(|part| matches!(part, Part::Taking { .. }));
    let nobodys = map?.lacking(&coming);
    let range = had.lacking(&own).into_iter().chain(nobodys).next()?;
    Some(format!(
        "slots {range} are with no group, as far as those that are there say: start the nodes of \
         the group that had them. If it is lost for good, or there, have this one go on with what \
         it has of their keys: remora store cluster move CLUSTER {range} {name} --lost"
    ))
}

/// What a new group is for the slots that the map says it has. Those that it is to give it has
/// given: if there was another group of its name, that one's keys are lost or with the other group.
#[must_use]
pub fn first_holdings(map: &SlotMap, name: &str) -> Holdings {
    let mut holdings = Holdings::default();
    for (range, owner) in map.iter().filter(|(_, owner)| owner.group == name) {
        let part = match &owner.to {
            Some(to) if to != name => Part::Given { to: to.clone() },
            _ => Part::Owned,
        };
        holdings.set(range, Some(&part));
    }
    holdings
}

/// What a group is for its slots after another one has asked for this, and the slots whose keys are
/// to be discarded before; the map says that slots are to come that are `planned`.
///
/// # Errors
/// Why that cannot be, in words.
pub fn transferred(
    held: &Holdings,
    asked: &Transfer<'_>,
    planned: &[Range],
) -> Result<(Holdings, Vec<Range>), String> {
    // The client that asks decides how long this takes.
    let count: u64 = asked.ranges.iter().map(|range| u64::from(range.count())).sum();
    if count > u64::from(SLOTS) {
        return Err(format!("{count} slots are more than there are: name each of them once"));
    }
    let (mut next, mut stale) = (held.clone(), Runs::default());
    for slot in asked.ranges.iter().flat_map(|range| range.first..=range.last) {
        let before = held.get(slot);
        let part = after(asked, before);
        let part = part.map_err(|reason| format!("slot {slot} {reason}"))?;
        if before == Some(&part) {
            continue;
        }
        if !planned.iter().any(|range| range.has(slot)) {
            return Err(format!("the map does not say that slot {slot} comes here: try again"));
        }
        let own = Range { first: slot, last: slot };
        next.set(own, Some(&part));
        if before.is_some_and(|before| is_stale(before, &part)) {
            stale.set(own, Some(&()));
        }
    }
    Ok((next, stale.ranges(|()| true)))
}

/// Whether what has come of a slot is of another group than that from which it comes now.
fn is_stale(before: &Part, next: &Part) -> bool {
    match (before, next) {
        (Part::Taking { from: one, ticket: before }, Part::Taking { from, ticket }) => {
            one != from || !before.has_giver_of(*ticket)
        }
        _ => false,
    }
}

/// What a group is for a slot after it was asked for this.
fn after(asked: &Transfer<'_>, part: Option<&Part>) -> Result<Part, String> {
    use TransferStep::{Own, Retake, Take};
    let (from, ticket) = (asked.from, asked.ticket);
    match (asked.step, part) {
        // (The map has forgotten that it was to come from the other group; or that one is no more.)
        (Take | Retake, Some(Part::Taking { from: other, ticket: present }))
            if other != from || !present.has_giver_of(ticket) =>
        {
            Ok(Part::Taking { from: from.to_owned(), ticket })
        }
        (_, Some(Part::Taking { from: other, .. })) if other != from => {
            Err(format!("comes from group {other}"))
        }
        (_, Some(Part::Taking { ticket: present, .. })) if !present.has_giver_of(ticket) => {
            Err(format!("comes from a group {from} that is no more"))
        }
        (_, Some(Part::Taking { ticket: present, .. })) if present.number > ticket.number => {
            Err("comes in a later session than this one".to_owned())
        }
        (Take | Retake, None | Some(Part::Taking { .. })) => {
            Ok(Part::Taking { from: from.to_owned(), ticket })
        }
        (Own, Some(Part::Taking { .. } | Part::Owned)) => Ok(Part::Owned),
        (Retake, Some(Part::Owned)) => Ok(Part::Owned),
        (Take, Some(Part::Owned)) => Err("is here already".to_owned()),
        (_, Some(Part::Giving { to } | Part::Given { to })) => Err(format!("goes to group {to}")),
        (Own, None) => Err("was not announced".to_owned()),
    }
}

/// Whether a key's slot is one of these.
#[must_use]
pub fn is_in(ranges: &[Range], key: &[u8]) -> bool {
    let slot = slot_of(key);
    ranges.iter().any(|range| range.has(slot))
}

/// Keys in batches that are frozen together: their names are one change, of `most` bytes.
fn batches(keys: Vec<(Vec<u8>, usize)>, most: usize) -> Vec<Vec<Vec<u8>>> {
    let (mut batches, mut bytes, mut names) = (Vec::<Vec<Vec<u8>>>::new(), 0, 0);
    for (key, len) in keys {
        (bytes, names) = (bytes + key.len() + len, names + key.len() + LENGTH);
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH && bytes <= BATCH_BYTES && names <= most => {
                batch.push(key);
            }
            _ => {
                (bytes, names) = (key.len() + len, key.len() + LENGTH);
                batches.push(vec![key]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_some_keys_or_some_bytes() {
        let lens = |lens: &[usize]| {
            let keys = lens.iter().map(|len| (vec![], *len)).collect();
            batches(keys, 1 << 20).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert!(lens(&[]).is_empty());
        assert_eq!(lens(&[1; 300]), [128, 128, 44]);
        assert_eq!(lens(&[BATCH_BYTES * 2, 1, BATCH_BYTES - 1, 1]), [1, 2, 1]);
        // Long names of short values are one change, too.
        let keys = [3000, 3000, 3000, 9000, 1].map(|len| (vec![7; len], 1)).to_vec();
        let found = batches(keys, 8 << 10);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }

    #[test]
    fn slots_that_the_map_gives_to_another_group_are_in_dispute() {
        let range = |text: &str| text.parse::<Range>().unwrap();
        let mut held = Holdings::default();
        held.set(range("0-29"), Some(&Part::Owned));
        held.set(range("40-49"), Some(&Part::Given { to: "b".to_owned() }));
        let mut map = SlotMap::default();
        assert_eq!(disputed(Some(&map), &held, "a"), None, "the map lacks them");
        map.set(range("0-9"), Some(&Owner::new("a")));
        map.set(range("10-19"), Some(&Owner { group: "b".to_owned(), to: Some("a".to_owned()) }));
        map.set(range("40-49"), Some(&Owner::new("b")));
        assert_eq!(disputed(Some(&map), &held, "a"), None, "all of it is as it is");
        map.set(range("20-60"), Some(&Owner::new("b")));
        let words = disputed(Some(&map), &held, "a").unwrap();
        assert!(words.starts_with("slots 20-29 are here by the log of group a, and with"));
    }

    #[test]
    fn of_slots_that_the_map_lacks_it_is_known_what_was_known() {
        let range = |text: &str| text.parse::<Range>().unwrap();
        let (mut before, mut map) = (Runs::default(), SlotMap::default());
        before.set(range("10-29"), Some(&()));
        assert_eq!(foreign(before.clone(), &map, "a"), before);
        map.set(range("0-4"), Some(&Owner::new("b")));
        map.set(range("5-9"), Some(&Owner { group: "b".to_owned(), to: Some("a".to_owned()) }));
        map.set(range("15-19"), Some(&Owner::new("a")));
        let known = foreign(before, &map, "a").ranges(|()| true);
        assert_eq!(known, ["0-4", "10-14", "20-29"].map(range));
    }

    #[test]
    fn a_slot_comes_in_one_session_of_one_group() {
        let ticket = |number| Ticket { founding: 3, number };
        let taking = |from: &str, number| {
            let ticket = ticket(number);
            Part::Taking { from: from.to_owned(), ticket }
        };
        let asked = |step, number| {
            let ticket = ticket(number);
            Transfer { step, from: "a", ticket, ranges: Vec::new() }
        };
        let (take, own) = (asked(TransferStep::Take, 5), asked(TransferStep::Own, 5));
        assert_eq!(after(&take, None), Ok(taking("a", 5)));
        assert_eq!(after(&take, Some(&taking("a", 4))), Ok(taking("a", 5)));
        assert_eq!(after(&own, Some(&taking("a", 4))), Ok(Part::Owned));
        assert_eq!(after(&own, Some(&Part::Owned)), Ok(Part::Owned), "it was said twice");
        for step in [&take, &own] {
            assert!(after(step, Some(&taking("a", 6))).unwrap_err().contains("later session"));
            let gone = Part::Given { to: "d".to_owned() };
            assert!(after(step, Some(&gone)).unwrap_err().contains("to group d"));
        }
        // Where the map says so, it comes from another group than it was to come from.
        assert_eq!(after(&take, Some(&taking("c", 9))), Ok(taking("a", 5)));
        assert!(after(&own, Some(&taking("c", 1))).unwrap_err().contains("from group c"));
        let retake = asked(TransferStep::Retake, 5);
        assert_eq!(after(&retake, Some(&Part::Owned)), Ok(Part::Owned), "it has been given before");
        assert_eq!(after(&retake, Some(&taking("a", 4))), Ok(taking("a", 5)));
        assert!(after(&take, Some(&Part::Owned)).is_err() && after(&own, None).is_err());
    }

    #[test]
    fn slots_come_as_the_map_says_and_each_once() {
        let all = vec![Range::ALL];
        let ticket = Ticket { founding: 3, number: 5 };
        let asked = |ranges| Transfer { step: TransferStep::Take, from: "a", ticket, ranges };
        let held = Holdings::default();
        let (next, stale) = transferred(&held, &asked(all.clone()), &all).unwrap();
        assert_eq!(next.get(9), Some(&Part::Taking { from: "a".to_owned(), ticket }));
        assert!(stale.is_empty());
        let again = transferred(&next, &asked(all.clone()), &[]);
        assert_eq!(again, Ok((next, Vec::new())), "it is so already");
        assert!(transferred(&held, &asked(all), &[]).unwrap_err().contains("map does not say"));
        // A request may be long: what it costs has an end.
        let again = asked(vec![Range::ALL; 1 << 20]);
        assert!(transferred(&held, &again, &[]).unwrap_err().contains("more than there are"));
    }

    /// Sessions of a group that has begun anew are counted from the start.
    #[test]
    fn what_has_come_from_a_group_that_is_no_more_is_stale() {
        let range = |text: &str| text.parse::<Range>().unwrap();
        let taking = |from: &str, founding| {
            let ticket = Ticket { founding, number: 9 << ATTEMPT_BITS };
            Part::Taking { from: from.to_owned(), ticket }
        };
        let mut held = Holdings::default();
        held.set(range("0-9"), Some(&taking("a", 3)));
        held.set(range("10-19"), Some(&taking("c", 4)));
        // Of a log of an earlier release: nobody knows better.
        held.set(range("20-29"), Some(&taking("a", 0)));
        let asked = |step, number, ranges: &str| {
            let ticket = Ticket { founding: 4, number };
            Transfer { step, from: "a", ticket, ranges: vec![range(ranges)] }
        };
        let all = [Range::ALL];
        let own = transferred(&held, &asked(TransferStep::Own, 1, "0-9"), &all);
        assert!(own.unwrap_err().contains("from a group a that is no more"));
        let take = asked(TransferStep::Take, 1, "0-19");
        let (next, stale) = transferred(&held, &take, &all).unwrap();
        assert_eq!(stale, [range("0-19")]);
        let part = Part::Taking { from: "a".to_owned(), ticket: take.ticket };
        assert_eq!(next.iter().next(), Some((range("0-19"), &part)));
        // It is so now: what comes again is of the same group.
        let (next, stale) = transferred(&next, &asked(TransferStep::Take, 2, "0-9"), &all).unwrap();
        assert!(stale.is_empty());
        assert!(transferred(&next, &take, &all).unwrap_err().contains("later session"));
        let earlier = asked(TransferStep::Take, 9 << ATTEMPT_BITS, "20-29");
        assert_eq!(transferred(&held, &earlier, &all).map(|(_, stale)| stale), Ok(Vec::new()));
    }

    #[test]
    fn a_new_group_has_given_what_the_map_has_it_give() {
        let range = |text: &str| text.parse::<Range>().unwrap();
        let mut map = SlotMap::default();
        let owner = |to: &str| Owner { group: "a".to_owned(), to: Some(to.to_owned()) };
        map.set(range("0-9"), Some(&Owner::new("a")));
        map.set(range("10-19"), Some(&owner("b")));
        map.set(range("20-29"), Some(&owner("a")));
        map.set(range("30-39"), Some(&Owner { group: "b".to_owned(), to: Some("a".to_owned()) }));
        let held = first_holdings(&map, "a");
        assert_eq!(held.ranges(|part| *part == Part::Owned), ["0-9", "20-29"].map(range));
        let given = Part::Given { to: "b".to_owned() };
        assert_eq!(held.ranges(|part| *part == given), [range("10-19")]);
        assert_eq!(held.iter().count(), 3);
    }
}
