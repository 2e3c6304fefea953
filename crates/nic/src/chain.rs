//! Chains: programs of work requests (RedN), and what bounds them.
//!
//! A chain is made of ordinary elements in ordinary rings. What makes it a program is that the
//! rings are registered memory, so that elements change elements, and that some elements only
//! order others:
//!
//! - **WQ order.** A plain queue's elements are fetched up to eight at a time, and run in the order
//!   of the queue. One that is changed after it was fetched runs as it was.
//! - **Completion order.** WAIT holds its queue until a completion queue has counted enough
//!   completions. What follows sees the data of what was waited for, but may have been fetched
//!   before. (A WAIT that blocks ends the turn, and a turn keeps nothing: what was fetched behind
//!   it is fetched anew.)
//! - **Doorbell order.** A *managed* queue runs nothing before ENABLE lets it, and fetches each
//!   element just before it runs, so that it runs as it then is.
//!
//! Indices count up without end, modulo 2^32, and are masked on use. To recycle a queue is to
//! enable it beyond its end: its slots run again. A WAIT's count and an ENABLE's index do not rise
//! by themselves; a recycled queue adds to them (RedN §3.4).
//!
//! A *loop-back* queue pair is connected to itself or to another one of its card. Its requests are
//! carried out in the card, one after the other, with the checks and the statuses of a connection.
//!
//! What bounds a chain: a turn runs a few elements, a poll a few hundred; [`ChainLimits`] gives a
//! send queue a rate, its WAITs a patience, and all queues of a chain a common budget. A WAIT that
//! nothing ends costs nothing.

use core::time::Duration;
use std::collections::VecDeque;

use bitflags::bitflags;
use thiserror::Error;

use crate::handles::Handles;
use crate::multi_queue::Cursor;
use crate::queue::element::Element;
use crate::queue::{ELEMENT_LEN, Status};
use crate::time::Time;
use crate::timers::Timers;

bitflags! {
    /// What the queues of a queue pair are, beside the usual.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct QpFlags: u8 {
        /// The send queue is managed: posting rings no doorbell, nothing runs before ENABLE.
        const MANAGED_SEND = 1 << 0;
        /// The receive queue is managed: elements are taken only as far as ENABLE lets them.
        const MANAGED_RECV = 1 << 1;
    }
}

bitflags! {
    /// What every turn has to know: [`QpFlags`], and more.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Mode: u8 {
        const MANAGED_SEND = QpFlags::MANAGED_SEND.bits();
        const MANAGED_RECV = QpFlags::MANAGED_RECV.bits();
        /// Connected to a queue pair of this card, and carried out in it.
        const LOOP_BACK = 1 << 2;
        /// It has [`ChainLimits`].
        const LIMITED = 1 << 3;
    }
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// How fast a send queue may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Elements a second; not zero.
    pub per_second: u32,
    /// Elements that may run at once after a pause; not zero.
    pub burst: u32,
}

/// What bounds a send queue: see [`crate::Nic::set_chain_limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainLimits {
    /// Its rate. `None`: as fast as the card gives it turns.
    pub rate: Option<Rate>,
    /// The longest that a WAIT may hold it: then the WAIT ends with an error, which also ends what
    /// waits for each other. `None`: for ever.
    pub max_wait: Option<Duration>,
    /// A budget that it shares with other queue pairs: see [`crate::Nic::create_budget`].
    pub budget: Option<u32>,
}

/// Why a queue pair was not given limits, or not looped back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ChainError {
    /// No such queue pair.
    #[error("no such queue pair")]
    UnknownQp,
    /// No such budget.
    #[error("no such budget")]
    UnknownBudget,
    /// A rate or burst of zero.
    #[error("a rate and its burst must be more than zero")]
    Rate,
    /// Loop-back is for reliable connections in RESET.
    #[error("only a fresh reliable connection, in RESET, can be looped back")]
    NotFresh,
}

/// What an ENABLE was refused for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EnableError {
    /// No such queue pair in the protection domain.
    #[error("it names no queue pair of this protection domain")]
    Unknown,
    /// The queue is not managed.
    #[error("the queue that it names is not managed")]
    NotManaged,
    /// The queue pair runs nothing in its state.
    #[error("the queue pair that it names is not ready, or in the error state")]
    State,
    /// More elements than the ring has.
    #[error("its index is past the end of the ring that it enables")]
    PastEnd,
}

/// What became of an element at one step of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepEnd {
    /// It was carried out. (Of a receive element: taken.)
    Done,
    /// It is on its way to a peer.
    Issued,
    /// Its WAIT blocks, or there is no receive element for it: it will be fetched again.
    Blocked,
    /// It ended, or will end, with an error.
    Failed(Status),
}

/// One step of a chain: see [`crate::Nic::trace_chains`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainStep {
    /// When.
    pub at: Time,
    /// The queue pair.
    pub qpn: u32,
    /// Which of its queues.
    pub queue: Queue,
    /// Which element, counted from the queue's creation.
    pub index: u32,
    /// The first bytes of the element, as they were fetched.
    pub element: [u8; ELEMENT_LEN],
    /// What became of it.
    pub end: StepEnd,
}

/// What one queue pair's turn wants done with another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand {
    /// It may go on.
    Wake(u32),
    /// The ENABLE that stands at `at` among the outstanding work of `by`.
    Enable { by: u32, at: Cursor, element: Element },
}

/// Elements that the queue pairs of a chain may still run.
#[derive(Debug)]
pub(crate) struct ChainBudget {
    pub(crate) full: u64,
    pub(crate) left: u64,
    /// Queue pairs that share it.
    pub(crate) users: u32,
}

/// The card's part of chains.
#[derive(Debug)]
pub(crate) struct ChainState {
    pub(crate) errands: VecDeque<Errand>,
    pub(crate) budgets: Handles<ChainBudget>,
    /// Rates and waits.
    pub(crate) timers: Timers,
    /// Bytes on their way from one place of memory to another.
    pub(crate) scratch: Vec<u8>,
    /// Steps kept for the owner to read; of more, the oldest are forgotten.
    pub(crate) steps: VecDeque<ChainStep>,
    pub(crate) steps_most: usize,
}

impl ChainState {
    pub(crate) fn new(max_budgets: usize) -> ChainState {
        ChainState {
            errands: VecDeque::new(),
            budgets: Handles::new(max_budgets),
            timers: Timers::default(),
            scratch: Vec::new(),
            steps: VecDeque::new(),
            steps_most: 0,
        }
    }

    /// Does the owner trace chains?
    #[inline]
    pub(crate) fn traces(&self) -> bool {
        self.steps_most > 0
    }

    /// Keeps a step.
    #[cold]
    pub(crate) fn trace(&mut self, step: ChainStep) {
        if self.steps.len() >= self.steps_most {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }
}
