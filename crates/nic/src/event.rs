//! The events by which the card tells its owner what has happened. Those of completion queues and
//! shared receive queues are raised in `card.rs`, those of queue pairs in `qp/`.

use crate::cm::CmEvent;

/// What has happened on the card, in order. A number is that of the object: a completion queue, a
/// queue pair or a shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Event {
    /// The armed completion queue got an entry.
    CompletionQueueNotify(u32),
    /// The completion queue overflowed: entries are lost.
    CompletionQueueError(u32),
    /// The peer of a queue pair broke an access rule; the queue pair is in ERROR.
    QpAccessError(u32),
    /// The peer of a queue pair sent an invalid request; the queue pair is in ERROR.
    QpRequestError(u32),
    /// The driver has taken the queue pair to ERROR: see [`crate::Nic::fail_qp`].
    QpFatal(u32),
    /// The first packet has come while the queue pair was in RTR: the peer is ready, even if the
    /// connection manager does not know it yet.
    CommunicationEstablished(u32),
    /// The queue pair is in SQD, and all its outstanding requests are done.
    SendQueueDrained(u32),
    /// A queue pair in ERROR will take no more elements from its shared receive queue.
    LastElementReached(u32),
    /// The shared receive queue has fewer elements than its limit. The limit is off now.
    SrqLimitReached(u32),
    /// The chain that the queue pair is part of has used up its budget; the queue pair is in ERROR.
    ChainStopped(u32),
    /// The card is another process's, and that process has ended: nothing on it is left.
    DeviceFatal,
    /// An event of the communication manager.
    Cm(CmEvent),
}
