//! What the card's structures take of memory: SRNIC's Table 1, measured.

use std::borrow::Cow;

use super::Nic;
use crate::qp::LossyUse;
use crate::queue::Completion;

/// A structure of the card, and what it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StructureUse {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it has: queue pairs, entries, messages.
    pub count: u64,
    /// The bytes that are allocated for it.
    pub bytes: u64,
}

impl StructureUse {
    /// A structure of `count` parts for which `bytes` are allocated.
    pub fn new(name: &'static str, count: usize, bytes: usize) -> StructureUse {
        StructureUse { name: name.into(), count: count as u64, bytes: bytes as u64 }
    }
}

/// Memory.
impl Nic {
    /// What each structure takes now. It counts what is allocated, and the allocator's own records
    /// not. The work that it takes grows with the number of queue pairs and completion queues.
    ///
    /// Of the lossy dialect, `lossy_state` is what each of its queue pairs has always, beside the
    /// hot and the cold part that all have; its packets need it as they need the hot part
    /// ([`LOSSY_HOT_BYTES`](crate::qp::LOSSY_HOT_BYTES) has all that they need). `bitmaps`,
    /// `reordering_buffer` (the payload of packets that must wait for others) and `lossy_records`
    /// (of messages, requests and packets under way) are there while packets are missing.
    pub fn memory_use(&self) -> Vec<StructureUse> {
        let mut all = self.common_use();
        let lossy = self.qps.iter().filter_map(|qp| qp.lossy_use());
        let (count, lossy) =
            lossy.fold((0, LossyUse::default()), |(n, sum), one| (n + 1, sum.plus(&one)));
        let of = StructureUse::new;
        all.extend([
            of("lossy_state", count, lossy.state),
            of("lossy_paths", lossy.paths.0, lossy.paths.1),
            of("lossy_records", lossy.records.0, lossy.records.1),
            of("bitmaps", lossy.bitmaps.0, lossy.bitmaps.1),
            of("reordering_buffer", lossy.waiting.0, lossy.waiting.1),
        ]);
        all
    }

    /// What each structure takes that queue pairs of all dialects have.
    fn common_use(&self) -> Vec<StructureUse> {
        let (card, qps) = (&self.card, self.qps.len());
        let (outstanding, answers) = (&card.outstanding, &card.answers);
        let queues = card.cqs.iter().map(|queue| queue.allocated());
        let (queues, entries) = queues.fold((0, 0), |(n, sum), entries| (n + 1, sum + entries));
        let of_qps = self.qps.iter().flat_map(|qp| [qp.sq, qp.rq]);
        let rings = of_qps.chain(card.srqs.iter().map(|srq| srq.ring)).filter(|r| r.depth() > 0);
        let (rings, ring_bytes) = rings.fold((0, 0), |(n, sum), r| (n + 1, sum + r.len()));
        let of = StructureUse::new;
        vec![
            of("work_queue_rings", rings, ring_bytes),
            of("queue_pairs_hot", qps, qps * crate::qp::HOT_BYTES),
            of("queue_pairs_cold", qps, qps * crate::qp::COLD_BYTES),
            of("queue_pair_numbers", qps, self.qps.bytes_of_places()),
            of("schedule_queue", card.scheduler.ready_len(), card.scheduler.allocated_bytes()),
            of("timers", card.timers.len(), card.timers.allocated_bytes()),
            of("translation_table", card.regions.entries(), card.regions.allocated_bytes()),
            of("fetched_elements", card.config.fetch_elements as usize, card.fetched.capacity()),
            of("outstanding_requests", outstanding.in_use(), outstanding.allocated_bytes()),
            of("answers", answers.in_use(), answers.allocated_bytes()),
            of("scatter_gather_lists", card.sgls.in_use(), card.sgls.allocated_bytes()),
            of("completion_queues", queues, entries * size_of::<Completion>()),
            of("connections", self.cm.connections(), self.cm.allocated_bytes()),
        ]
    }
}
