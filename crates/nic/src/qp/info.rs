//! The properties that a queue pair is made with, and its present ones.

use super::state::{QpAttr, State};
use crate::chain::QpFlags;
use crate::memory::key::Pd;
use crate::queue::RingInit;
use crate::wire::Transport;

/// The properties that a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpInit {
    /// Protection domain.
    pub pd: Pd,
    /// Service.
    pub transport: Transport,
    /// The completion queue of send requests.
    pub send_cq: u32,
    /// The completion queue of receive requests.
    pub recv_cq: u32,
    /// A shared receive queue instead of `rq`.
    pub srq: Option<u32>,
    /// The send queue's ring.
    pub sq: RingInit,
    /// The receive queue's ring.
    pub rq: RingInit,
    /// Report every send request, signaled or not.
    pub signal_all: bool,
    /// Special kinds of queues.
    pub flags: QpFlags,
    /// The client that it belongs to; 0 is the card's owner. Clients have equal shares of the card,
    /// whatever the number of their queue pairs. A driver numbers them from 1 on, and uses numbers
    /// again.
    pub client: u16,
}

/// The present properties of a queue pair.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct QpInfo {
    /// State.
    pub state: State,
    /// Service.
    pub transport: Transport,
    /// The attributes; `state` and the PSNs are the current ones.
    pub attr: QpAttr,
    /// Protection domain.
    pub pd: Pd,
    /// The completion queue of send requests.
    pub send_cq: u32,
    /// The completion queue of receive requests.
    pub recv_cq: u32,
    /// The shared receive queue, if it has one.
    pub srq: Option<u32>,
    /// How many elements the send ring and the receive ring can hold.
    pub depths: (u32, u32),
    /// Every send request is reported.
    pub signal_all: bool,
    /// The client that it belongs to.
    pub client: u16,
    /// The queue pair is in SQD, and not all outstanding requests are done.
    pub draining: bool,
    /// How many elements are posted to the send queue and not yet done.
    pub sends: u32,
    /// How many messages are sent in whole or in part and not yet acknowledged.
    pub outstanding: usize,
    /// How many elements are posted to the receive queue and not yet taken.
    pub receives: u32,
}

impl QpInfo {
    /// Those of a queue pair that was made so, and whose card has gone with all that it was doing:
    /// it is in the error state.
    pub fn lost(made: &QpInit) -> QpInfo {
        QpInfo {
            state: State::Error,
            transport: made.transport,
            attr: QpAttr { state: Some(State::Error), ..QpAttr::default() },
            pd: made.pd,
            send_cq: made.send_cq,
            recv_cq: made.recv_cq,
            srq: made.srq,
            depths: (made.sq.depth, made.rq.depth),
            signal_all: made.signal_all,
            client: made.client,
            draining: false,
            sends: 0,
            outstanding: 0,
            receives: 0,
        }
    }
}
