//! How objects of a session were made, for a process that takes them over.

use remora_nic::queue::RingInit;
use remora_nic::{Access, Pd};
use serde::{Deserialize, Serialize};

use super::Loan;
use crate::commands::Bytes;

/// How an object was made, and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Description {
    /// The rings of a queue pair: their addresses are [`RingPlace`](super::RingPlace)s.
    QueuePair {
        /// Of sends.
        send: RingInit,
        /// Of receives; empty if the queue pair takes them from a shared queue.
        recv: RingInit,
        /// Its queues run only as far as other queues let them: a chain's.
        managed: bool,
    },
    /// The ring of a shared receive queue.
    SharedReceives {
        /// Its protection domain.
        pd: Pd,
        /// As in [`Description::QueuePair`].
        ring: RingInit,
    },
    /// A region.
    Region {
        /// Its protection domain.
        pd: Pd,
        /// Where its bytes are.
        bytes: Bytes,
        /// Who may do what there.
        access: Access,
        /// The piece of card memory that it is in, by where that begins.
        piece: Option<u64>,
        /// How the memory that it is in was lent.
        loan: Option<Loan>,
    },
}
