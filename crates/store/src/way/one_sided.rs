//! Reading a store one-sided: its card alone answers. A READ of a cached location takes one round
//! trip; finding a location takes another (FaRM, and the layout's own rules: [`crate::layout`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remora::nic::queue::{
    self, Completion, Data, PollCqError, SendFlags, SendOp, SendRequest, Status,
};
use remora::nic::{Access, PostError};
use remora::{
    CompletionQueue, ProtectionDomain, QueuePair, RegisterError, Remote, Request, RequestError,
};
use thiserror::Error;

use super::index::Index;
use super::patience::Patience;
use super::region::Region;
use crate::item::Item;
use crate::layout::{BUCKET, HEAD_LEN, SLOTS};
use crate::memory::Memory;
use crate::table::{Bucket, Hash, Slot, differs, is_changing, level};
use crate::tablespace::TablespaceId;

/// Where the two buckets land, and the first one's header again.
const BUCKETS_AT: u64 = 0;
const AGAIN_AT: u64 = 2 * BUCKET;
/// Where everything else lands: items, counts, the head.
const ITEM_AT: u64 = 4096;
/// The longest item that is read one-sided, in bytes. Longer ones come by kernel, in pieces.
pub const ONE_SIDED_MAX: usize = 64 << 10;
/// How often buckets are read again that change meanwhile.
const TRIES: usize = 4;

/// Why a store cannot be read one-sided.
#[derive(Debug, Error)]
pub enum OneSidedError {
    /// A READ failed.
    #[error("a READ of the store's memory failed: {0}")]
    Read(Status),
    /// A READ was not answered.
    #[error("the store's card did not answer a READ within {0:?}")]
    Timeout(Duration),
    /// A READ cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The completion queue has failed.
    #[error(transparent)]
    Poll(#[from] PollCqError),
    /// A READ that was awaited failed.
    #[error("a READ of the store's memory failed: {0}")]
    Request(#[from] RequestError),
    /// Room for what is read cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The memory is not a store's, or of another version.
    #[error("what the store shows of its memory is of another version, or damaged")]
    Layout,
}

/// Where an item was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Location {
    /// The key's hash; 0 in an empty place.
    id: u64,
    address: u64,
    len: u32,
}

/// How often each way of reading was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OneSidedCounters {
    /// Values that a cached location led to.
    pub warm: u64,
    /// Values that were found by their buckets.
    pub cold: u64,
    /// Cached locations at which the value was no more.
    pub stale: u64,
    /// Look-ups that only a kernel can answer.
    pub left: u64,
}

impl OneSidedCounters {
    /// Adds what another reader has counted.
    pub(crate) fn add(&mut self, other: OneSidedCounters) {
        self.warm += other.warm;
        self.cold += other.cold;
        self.stale += other.stale;
        self.left += other.left;
    }
}

/// A piece that is read: of the store's memory from an address on, to a place in the landing
/// region, so many bytes.
pub type Piece = (u64, u64, u32);

/// How READs are carried out.
pub(crate) trait Reads {
    /// Where what is read lands.
    type Landing: Memory;

    /// READs pieces of the store's memory into `landing`, in this order, and waits for all.
    async fn read(
        &mut self,
        memory: Remote,
        landing: &Self::Landing,
        pieces: &[Piece],
    ) -> Result<(), OneSidedError>;
}

/// Bytes of the memory in which READs land.
pub(crate) const LANDING_LEN: usize = ITEM_AT as usize + ONE_SIDED_MAX;

/// Registered memory for READs to land in.
///
/// # Errors
/// There is none.
pub(crate) fn landing(domain: &ProtectionDomain) -> Result<Region, OneSidedError> {
    let landing = domain.alloc(LANDING_LEN, Access::LOCAL_WRITE)?;
    Region::new(landing).ok_or(OneSidedError::Layout)
}

/// READs by polling.
#[derive(Debug)]
pub(crate) struct PolledReads {
    /// Has room for three requests.
    pub(crate) queue_pair: QueuePair,
    /// Where its requests complete.
    pub(crate) cq: CompletionQueue,
    pub(crate) timeout: Duration,
    /// READs whose end was not awaited, since it took too long: their completion is still to come,
    /// and says nothing of those that follow. All that READ by this queue pair share it.
    pub(crate) is_owed: Arc<AtomicBool>,
}

/// READs as futures, by a queue pair whose requests are futures.
#[derive(Debug)]
pub(crate) struct AwaitedReads {
    pub(crate) queue_pair: QueuePair,
}

/// Reads a store's memory.
#[derive(Debug)]
pub(crate) struct OneSided<R: Reads> {
    reads: R,
    memory: Remote,
    landing: R::Landing,
    index: Index,
    /// By hash; a location takes the place of an older one.
    locations: Vec<Location>,
    bytes: Vec<u8>,
    counters: OneSidedCounters,
    /// Values of which the store was told that they were read.
    told: u64,
}

/// READs what a store shows of its index at the beginning of its memory.
///
/// # Errors
/// See [`OneSidedError`].
pub(crate) async fn read_index<R: Reads>(
    (mut reads, landing): (R, R::Landing),
    memory: Remote,
) -> Result<Index, OneSidedError> {
    if memory.len < HEAD_LEN {
        return Err(OneSidedError::Layout);
    }
    reads.read(memory, &landing, &[(memory.addr, 0, HEAD_LEN as u32)]).await?;
    Index::read(&landing, memory.addr).ok_or(OneSidedError::Layout)
}

impl<R: Reads> OneSided<R> {
    /// A reader of the store's `memory`, which has this index. What is read lands in `landing`, of
    /// [`LANDING_LEN`] bytes. It keeps `locations` locations (rounded up to a power of two, 24
    /// bytes each).
    pub(crate) fn new(
        (reads, landing): (R, R::Landing),
        (memory, index): (Remote, Index),
        locations: usize,
    ) -> OneSided<R> {
        let locations = vec![Location::default(); locations.max(1).next_power_of_two()];
        let (bytes, counters) = (Vec::new(), OneSidedCounters::default());
        OneSided { reads, memory, landing, index, locations, bytes, counters, told: 0 }
    }

    /// How READs are carried out.
    pub(crate) fn reads_mut(&mut self) -> &mut R {
        &mut self.reads
    }

    /// How many values were read of which the store was not told, which the caller does now.
    pub(crate) fn tell(&mut self) -> u32 {
        let read = self.counters.warm + self.counters.cold;
        let untold = read - std::mem::replace(&mut self.told, read);
        u32::try_from(untold).unwrap_or(u32::MAX)
    }

    /// What is known of the store's index.
    pub(crate) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// How often each way of reading was taken.
    pub(crate) fn counters(&self) -> OneSidedCounters {
        self.counters
    }

    /// Reads an item and lets `take` have it, if it can be found. `Ok(None)`: only a kernel can
    /// say.
    ///
    /// # Errors
    /// See [`OneSidedError`].
    pub(crate) async fn get<T>(
        &mut self,
        space: TablespaceId,
        key: &[u8],
        now: u64,
        take: impl FnOnce(&Item<'_>) -> T,
    ) -> Result<Option<T>, OneSidedError> {
        let hash = self.index.hash(space, key);
        let place = hash.id() as usize & (self.locations.len() - 1);
        let known = self.locations[place];
        if known.id == hash.id() {
            if self.read_item(known.address, known.len, space, key, now).await? {
                let taken = self.shown(take);
                self.counters.warm += u64::from(taken.is_some());
                return Ok(taken);
            }
            self.counters.stale += 1;
            self.locations[place] = Location::default();
        }
        for Slot { address, len, .. } in self.find(hash, space).await?.into_iter().flatten() {
            if self.read_item(address, len, space, key, now).await? {
                self.locations[place] = Location { id: hash.id(), address, len };
                let taken = self.shown(take);
                self.counters.cold += u64::from(taken.is_some());
                return Ok(taken);
            }
        }
        self.counters.left += 1;
        Ok(None)
    }

    /// Lets `take` have the item that was read, unless the store may not show it yet.
    fn shown<T>(&mut self, take: impl FnOnce(&Item<'_>) -> T) -> Option<T> {
        let shown = |item: &Item<'_>| self.index.is_shown(item);
        let item = Item::parse(&self.bytes).filter(shown);
        self.counters.left += u64::from(item.is_none());
        item.as_ref().map(take)
    }

    /// Reads an item; returns whether it is the key's, whole and alive.
    async fn read_item(
        &mut self,
        address: u64,
        len: u32,
        space: TablespaceId,
        key: &[u8],
        now: u64,
    ) -> Result<bool, OneSidedError> {
        let at = address.wrapping_sub(self.memory.addr);
        let end = at.checked_add(len.into());
        let inside = end.is_some_and(|end| end <= self.memory.len);
        if !inside || len as usize > ONE_SIDED_MAX {
            return Ok(false);
        }
        self.read(&[(address, ITEM_AT, len)]).await?;
        self.bytes.resize(len as usize, 0);
        self.landing.read(ITEM_AT, &mut self.bytes);
        let item = Item::parse(&self.bytes);
        let ours = |item: &Item<'_>| {
            let lives = item.expires_ms.is_none_or(|at| at > now);
            item.tablespace == space && item.key == key && lives
        };
        Ok(item.as_ref().is_some_and(ours))
    }

    /// The slots that may be the key's, from its two buckets.
    async fn find(
        &mut self,
        hash: Hash,
        space: TablespaceId,
    ) -> Result<[Option<Slot>; 2 * SLOTS], OneSidedError> {
        let partition = self.index.partition(hash);
        for _ in 0..TRIES {
            let count = self.index.count(partition);
            let [first, second] = self.index.buckets(hash);
            self.read(&[
                (first, BUCKETS_AT, BUCKET as u32),
                (second, BUCKETS_AT + BUCKET, BUCKET as u32),
                (first, AGAIN_AT, 8),
            ])
            .await?;
            let landed = [BUCKETS_AT, BUCKETS_AT + BUCKET];
            let both = landed.map(|at| Bucket { memory: &self.landing, at });
            let again = self.landing.load(AGAIN_AT);
            let changing = both.iter().any(|bucket| is_changing(bucket.header()));
            if changing || differs(both[0].header(), again) {
                continue;
            }
            let levels = hash.buckets(count).map(|bucket| level(bucket, count));
            if both.iter().zip(levels).any(|(bucket, level)| bucket.level() != level) {
                // The partition has grown.
                self.read(&[(self.index.count_at(partition), ITEM_AT, 8)]).await?;
                self.index.set_count(partition, self.landing.load(ITEM_AT));
                continue;
            }
            let mut slots = [None; 2 * SLOTS];
            let found = both.iter().flat_map(|bucket| (0..SLOTS).map(|slot| bucket.slot(slot)));
            let ours =
                found.map(|slot| slot.filter(|slot| slot.hash == hash && slot.tablespace == space));
            slots.iter_mut().zip(ours).for_each(|(to, slot)| *to = slot);
            return Ok(slots);
        }
        Ok([None; 2 * SLOTS])
    }

    async fn read(&mut self, pieces: &[Piece]) -> Result<(), OneSidedError> {
        self.reads.read(self.memory, &self.landing, pieces).await
    }
}

impl Reads for PolledReads {
    type Landing = Region;

    async fn read(
        &mut self,
        memory: Remote,
        landing: &Region,
        pieces: &[Piece],
    ) -> Result<(), OneSidedError> {
        let landing = landing.region();
        if self.is_owed.load(Ordering::Relaxed) {
            self.wait()?;
        }
        let last = pieces.len() - 1;
        let mut batch = self.queue_pair.post_batch();
        for (number, &(from, to, len)) in pieces.iter().enumerate() {
            let sge = landing.sge(to, len);
            let from = queue::RemoteAddress { addr: from, rkey: memory.rkey };
            let flags = if number == last { SendFlags::SIGNALED } else { SendFlags::empty() };
            let op = SendOp::Read { from };
            let data = Data::Sges(std::slice::from_ref(&sge));
            batch.post_send(&self.queue_pair, &SendRequest { wr_id: 0, op, data, flags })?;
        }
        drop(batch);
        self.wait()
    }
}

impl PolledReads {
    /// Waits for the completion that is to come next.
    fn wait(&mut self) -> Result<(), OneSidedError> {
        let mut done = [Completion::default()];
        let mut patience = Patience::new(self.timeout);
        self.is_owed.store(true, Ordering::Relaxed);
        while self.cq.poll(&mut done)? == 0 {
            if patience.is_over() {
                return Err(OneSidedError::Timeout(self.timeout));
            }
        }
        self.is_owed.store(false, Ordering::Relaxed);
        match done[0].status {
            Status::Success => Ok(()),
            status => Err(OneSidedError::Read(status)),
        }
    }
}

impl Reads for AwaitedReads {
    type Landing = Region;

    async fn read(
        &mut self,
        memory: Remote,
        landing: &Region,
        pieces: &[Piece],
    ) -> Result<(), OneSidedError> {
        let landing = landing.region();
        let begin = |&(from, to, len): &Piece| {
            let from = Remote { addr: from, len: len.into(), rkey: memory.rkey };
            self.queue_pair.read(landing.slice(to as usize..to as usize + len as usize), from)
        };
        // All are under way before the first is waited for.
        let requests: Vec<Request> = pieces.iter().map(begin).collect();
        for request in requests {
            request.await?;
        }
        Ok(())
    }
}
