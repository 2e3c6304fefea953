//! What the card tells its owner.

use crate::cm::CmEvent;

/// What the card tells its owner, in the order it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// The first packet came while the queue pair was in RTR: the peer is ready, whatever the
    /// connection manager knows.
    CommunicationEstablished(u32),
    /// All that was outstanding when the queue pair went to SQD is done.
    SendQueueDrained(u32),
    /// A queue pair in ERROR will take no more elements from its shared receive queue.
    LastElementReached(u32),
    /// Fewer elements than the limit are posted to the shared receive queue; the limit is off.
    SrqLimitReached(u32),
    /// The chain that the queue pair is part of has used up its budget; the queue pair is in ERROR.
    ChainStopped(u32),
    /// From the communication manager.
    Cm(CmEvent),
}
