//! What the card's structures take of memory: SRNIC's Table 1, measured.

use super::Nic;
use crate::queue::Completion;

/// A structure of the card, and what it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StructureUse {
    /// Its name.
    pub name: &'static str,
    /// What it has: queue pairs, entries, messages.
    pub count: u64,
    /// The bytes that are allocated for it.
    pub bytes: u64,
}

impl StructureUse {
    /// A structure of `count` parts for which `bytes` are allocated.
    pub fn new(name: &'static str, count: usize, bytes: usize) -> StructureUse {
        StructureUse { name, count: count as u64, bytes: bytes as u64 }
    }
}

/// Memory.
impl Nic {
    /// What each structure takes now. It counts what is allocated, and the allocator's own records
    /// not. The work that it takes grows with the number of completion queues.
    pub fn memory_use(&self) -> Vec<StructureUse> {
        let (card, qps) = (&self.card, self.qps.len());
        let (outstanding, answers) = (&card.outstanding, &card.answers);
        let queues = card.cqs.iter().map(|queue| queue.allocated());
        let (queues, entries) = queues.fold((0, 0), |(n, sum), entries| (n + 1, sum + entries));
        let of = StructureUse::new;
        vec![
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
