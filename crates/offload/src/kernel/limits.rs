//! How much of a card kernels may use.

use core::time::Duration;

/// How much of a card kernels may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutorLimits {
    /// The most deployed kernels.
    pub kernels: usize,
    /// The most invocations in flight; more than 4,096 count as 4,096. One queue pair has at most
    /// as many as are left for others, and one always; so have all clients of a user together,
    /// where several programs share the card.
    pub invocations: usize,
    /// The most of them for one client of a card that several programs share.
    pub client_invocations: usize,
    /// The most bytes of copied results that wait on the card; and, apart, of what kernels keep
    /// there beside them ([`Context::keep`](super::Context::keep)). Queue pairs and users leave
    /// results to others as they do invocations. A queue pair has 256 KiB always, and for these
    /// there are as many bytes again.
    pub result_bytes: usize,
    /// The most steps of all invocations in one turn of the card, and of an invocation at a packet
    /// of its call.
    pub turn_steps: u32,
    /// The most invocations that run in one turn of the card.
    pub turn_invocations: usize,
    /// How long an invocation waits for room to send while nothing of it leaves or arrives, and no
    /// buffer for its results comes; it may wait up to twice as long.
    ///
    /// Results share a queue pair with its requests, in order. So two cards whose kernels stream
    /// results to each other, each behind a request that the other has no room for, would wait for
    /// ever. The first invocation that gives up frees both.
    pub room_patience: Duration,
    /// How long an invocation waits for further payload before it ends; it may wait up to twice as
    /// long. A requester that is gone never sends the rest, and does not say so.
    pub payload_patience: Duration,
}

impl ExecutorLimits {
    /// The most deployed kernels where nothing is said.
    pub const KERNELS: usize = 4096;
}

impl Default for ExecutorLimits {
    fn default() -> ExecutorLimits {
        ExecutorLimits {
            kernels: ExecutorLimits::KERNELS,
            invocations: 256,
            client_invocations: 64,
            result_bytes: 64 << 20,
            turn_steps: 4096,
            turn_invocations: 8,
            room_patience: Duration::from_secs(1),
            payload_patience: Duration::from_secs(10),
        }
    }
}
