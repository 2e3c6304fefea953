//! What a queue pair is made with, and how it stands.

use super::state::{QpAttr, State};
use crate::chain::QpFlags;
use crate::memory::key::Pd;
use crate::queue::RingInit;
use crate::wire::Transport;

/// What to make a queue pair with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: Pd,
    /// Service.
    pub transport: Transport,
    /// Where send completions go.
    pub send_cq: u32,
    /// Where receive completions go.
    pub recv_cq: u32,
    /// A shared receive queue instead of `rq`.
    pub srq: Option<u32>,
    /// The send queue's ring.
    pub sq: RingInit,
    /// The receive queue's ring.
    pub rq: RingInit,
    /// Report every send request, signaled or not.
    pub signal_all: bool,
    /// What its queues are, beside the usual.
    pub flags: QpFlags,
}

/// A queue pair, as it stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpInfo {
    /// State.
    pub state: State,
    /// Service.
    pub transport: Transport,
    /// What was set; `state` and the PSNs are the current ones.
    pub attr: QpAttr,
    /// Protection domain.
    pub pd: Pd,
    /// Where send completions go.
    pub send_cq: u32,
    /// Where receive completions go.
    pub recv_cq: u32,
    /// The shared receive queue, if it takes from one.
    pub srq: Option<u32>,
    /// Elements that the send and the receive ring hold at most.
    pub depths: (u32, u32),
    /// Every send request is reported.
    pub signal_all: bool,
    /// In SQD, and what was outstanding is not yet done.
    pub draining: bool,
    /// Elements posted to the send queue and not yet done.
    pub sends: u32,
    /// Messages sent in whole or in part and not yet acknowledged.
    pub outstanding: usize,
    /// Elements posted to the receive queue and not yet taken.
    pub receives: u32,
}
