//! Chains: programs of work requests (RedN §3), and what limits them. (Elements are fetched and run
//! in `qp/requester.rs`; WAIT and ENABLE are in `qp/order.rs`, loop-back in `qp/loop_back.rs`. How
//! chains are written is in the crate `remora-offload`.)
//!
//! A chain consists of ordinary elements in ordinary rings. It is a program because the rings are
//! registered memory, so that elements can change elements, and because some elements only order
//! others. There are three orders (RedN §3.1):
//!
//! - **WQ order.** A plain queue's elements are fetched up to eight at a time, and run in the order
//!   of the queue. An element that is changed after it was fetched runs unchanged.
//! - **Completion order.** WAIT holds its queue until a completion queue has counted enough
//!   completions. The elements behind it see the data of the requests that it waited for, but may
//!   have been fetched before. (A WAIT that blocks ends the turn, and a turn keeps nothing, so the
//!   elements behind it are fetched again.)
//! - **Doorbell order.** A *managed* queue runs nothing before an ENABLE releases it, and fetches
//!   each element just before it runs, with all changes up to that moment.
//!
//! Indices count up without end, modulo 2^32, and are masked on use. A queue is recycled by
//! enabling it beyond its end: its slots run again. A WAIT's count and an ENABLE's index do not
//! rise by themselves; a recycled queue contains elements that add to them (RedN §3.4).
//!
//! A *loop-back* queue pair is connected to itself or to another queue pair of the same card. Its
//! requests are carried out in the card, one after the other, with the checks and the statuses of a
//! connection.
//!
//! Limits: a turn runs a few elements, a poll a few hundred. [`ChainLimits`] gives a send queue a
//! rate, its WAITs a longest duration, and all queues of a chain a common budget. A WAIT that never
//! ends takes no time of the card's. `qp/limits.rs` charges them and holds a queue that has spent
//! its share; `nic/chains.rs` sets them.

use core::time::Duration;
use std::collections::VecDeque;

use bitflags::bitflags;
use thiserror::Error;

use crate::handles::Handles;
use crate::multi_queue::Cursor;
use crate::queue::element::Element;
use crate::queue::{ELEMENT_LEN, Status};
use crate::rate::Rate;
use crate::time::Time;
use crate::timers::Timers;

bitflags! {
    /// Special kinds of queues that a queue pair can have.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct QpFlags: u8 {
        /// The send queue is managed: posting rings no doorbell, and nothing runs before an ENABLE.
        const MANAGED_SEND = 1 << 0;
        /// The receive queue is managed: elements are taken only up to the last ENABLE.
        const MANAGED_RECV = 1 << 1;
    }
}

bitflags! {
    /// The properties of a queue pair that every turn needs: [`QpFlags`], and more.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Mode: u8 {
        const MANAGED_SEND = QpFlags::MANAGED_SEND.bits();
        const MANAGED_RECV = QpFlags::MANAGED_RECV.bits();
        /// The queue pair is connected to one of the same card.
        const LOOP_BACK = 1 << 2;
        /// The queue pair has [`ChainLimits`], or its client is held to rates.
        const LIMITED = 1 << 3;
        /// Packets of the queue pair may be for the card itself, which hands them over.
        const LOCAL = 1 << 4;
        /// Kernels have posted messages that have not begun.
        const POSTED = 1 << 5;
        /// A receive element has been taken, and not completed: a SEND is in progress, or an
        /// abandoned or refused message has left it.
        const RECEIVING = 1 << 6;
        /// The queue pair follows a congestion policy that has state of its own.
        const CONTROLLED = 1 << 7;
        /// Turns of the queue pair may act within the card.
        const IN_CARD = Mode::LOOP_BACK.bits() | Mode::LOCAL.bits();
    }
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// The limits of a send queue: see [`crate::Nic::set_chain_limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChainLimits {
    /// The queue's rate in elements. `None`: as fast as the card gives it turns.
    pub rate: Option<Rate>,
    /// The queue's rate in bytes: see [`crate::RateLimits`].
    pub bytes: Option<Rate>,
    /// The longest time that a WAIT may hold the queue. After that the WAIT ends with an error, so
    /// that queues that wait for each other end, too. `None`: without limit.
    pub max_wait: Option<Duration>,
    /// A budget that the queue shares with those of other queue pairs: see
    /// [`crate::Nic::create_budget`].
    pub budget: Option<u32>,
}

/// Why a queue pair could not be given limits, or not be connected within the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why an ENABLE was refused.
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

/// The outcome of an element at one step of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StepEnd {
    /// The element was carried out. (A receive element was taken.)
    Done,
    /// The element's packets are on their way to a peer.
    Issued,
    /// The element is a WAIT that blocks, or needs a receive element that is not there: it will be
    /// fetched again.
    Blocked,
    /// The element has ended, or will end, with an error.
    Failed(Status),
}

/// One step of a chain: see [`crate::Nic::trace_chains`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChainStep {
    /// The time of the step.
    pub at: Time,
    /// The number of the queue pair.
    pub qpn: u32,
    /// The queue pair's queue that the element is in.
    pub queue: Queue,
    /// The element's index, counted from the queue's creation.
    pub index: u32,
    /// The first bytes of the element, as they were fetched.
    #[cfg_attr(feature = "serde", serde(with = "in_halves"))]
    pub element: [u8; ELEMENT_LEN],
    /// The outcome.
    pub end: StepEnd,
}

/// Serializes an element's bytes. (serde knows arrays of 32 items at most.)
#[cfg(feature = "serde")]
mod in_halves {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ELEMENT_LEN;

    type Halves = [[u8; ELEMENT_LEN / 2]; 2];

    pub(super) fn serialize<S: Serializer>(
        element: &[u8; ELEMENT_LEN],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut halves = Halves::default();
        halves.as_flattened_mut().copy_from_slice(element);
        halves.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        source: D,
    ) -> Result<[u8; ELEMENT_LEN], D::Error> {
        let halves = Halves::deserialize(source)?;
        let mut element = [0; ELEMENT_LEN];
        element.copy_from_slice(halves.as_flattened());
        Ok(element)
    }
}

/// What one queue pair's turn wants another queue pair to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand {
    /// The queue pair with this number may go on.
    Wake(u32),
    /// Carry out the ENABLE at `at` among the outstanding work of the queue pair `by`.
    Enable { by: u32, at: Cursor, element: Element },
}

/// How many elements the queue pairs of a chain may still run.
#[derive(Debug)]
pub(crate) struct ChainBudget {
    pub(crate) full: u64,
    pub(crate) left: u64,
    /// How many queue pairs share the budget.
    pub(crate) users: u32,
}

/// The card's state of chains.
#[derive(Debug)]
pub(crate) struct ChainState {
    pub(crate) errands: VecDeque<Errand>,
    pub(crate) budgets: Handles<ChainBudget>,
    /// For rates and for the limits of WAITs.
    pub(crate) timers: Timers,
    /// Room for bytes that are copied from one place in memory to another.
    pub(crate) scratch: Vec<u8>,
    /// The last `steps_most` steps, for the owner to read.
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
