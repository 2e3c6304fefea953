//! Elements that order others: NOOP, WAIT and ENABLE (RedN §3.1).
//!
//! A WAIT that blocks is listed at its completion queue (`queue/completion.rs`). The completion
//! that reaches the count wakes it: `Card` notes an errand (`card.rs`), which `nic/chains.rs`
//! carries out.

use super::refusal::Failure;
use super::requester::Stop;
use super::{Qp, State};
use crate::card::Card;
use crate::chain::{ChainStep, EnableError, Errand, Mode, Queue, StepEnd};
use crate::env::Env;
use crate::incident::Cause;
use crate::multi_queue::Cursor;
use crate::queue::completion::CompletionQueue;
use crate::queue::element::Element;
use crate::queue::{ELEMENT_LEN, Opcode, Status};

/// The outcome of a WAIT.
pub(super) enum Wait {
    /// The count is reached: the WAIT is done.
    Over,
    /// More completions must come.
    Blocked,
    /// The WAIT is wrong, and ends with an error.
    Refused(Cause),
}

/// The completion queue at which a queue pair waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    cq: u32,
    /// How many times the waiting queues had been woken there when this one was listed.
    wakes: u32,
}

impl Qp {
    /// Has a WAIT's completion queue counted enough? If not, the queue pair is woken when it has.
    #[inline]
    pub(super) fn wait(&mut self, env: &mut Env<'_>, element: &Element) -> Wait {
        let (cq, count) = (element.key, element.remote);
        let over = |queue: &CompletionQueue| queue.count() >= count && queue.is_open_to(self.pd);
        if env.card.cqs.get(cq).is_some_and(over) {
            self.waits_no_more();
            return Wait::Over;
        }
        self.begin_wait(env, cq, count)
    }

    #[inline(never)]
    fn begin_wait(&mut self, env: &mut Env<'_>, cq: u32, count: u64) -> Wait {
        let queue = env.card.cqs.get_mut(cq).filter(|queue| queue.is_open_to(self.pd));
        let Some(queue) = queue else {
            env.card.counters.chain_bad_wait += 1;
            return Wait::Refused(Cause::BadWait { cq });
        };
        match self.cold.waiting {
            Some(Waiting { cq: at, wakes }) if at == cq && wakes == queue.wakes() => {
                queue.wait_for(count);
            }
            elsewhere => {
                queue.wait(self.qpn, count);
                self.cold.waiting = Some(Waiting { cq, wakes: queue.wakes() });
                if let Some(left) = elsewhere.filter(|left| left.cq != cq) {
                    self.leave(env.card, left);
                }
            }
        }
        if self.waits_too_long(env) {
            env.card.counters.chain_wait_expired += 1;
            return Wait::Refused(Cause::WaitExpired { cq, count });
        }
        Wait::Blocked
    }

    /// A WAIT in the queue of a connection: returns its error, or that it holds the queue.
    #[inline(never)]
    pub(super) fn wait_in_connection(
        &mut self,
        env: &mut Env<'_>,
        element: &Element,
        raw: &[u8],
    ) -> Result<Option<Failure>, Stop> {
        match self.wait(env, element) {
            Wait::Over => Ok(None),
            Wait::Refused(cause) => Ok(Some(Failure::new(Status::LocalQpOperation, cause))),
            Wait::Blocked => {
                self.trace(env, (Queue::Send, self.sq.fetched), raw, StepEnd::Blocked);
                Err(Stop::Blocked)
            }
        }
    }

    fn leave(&self, card: &mut Card, Waiting { cq, wakes }: Waiting) {
        if let Some(queue) = card.cqs.get_mut(cq).filter(|queue| queue.wakes() == wakes) {
            queue.leave(self.qpn);
        }
    }

    /// Removes the queue pair from the completion queue at which it waits.
    pub(super) fn leave_waiting(&mut self, card: &mut Card) {
        if let Some(waiting) = self.cold.waiting.take() {
            self.leave(card, waiting);
        }
    }

    /// Lets one of the queues run up to `index`, as an ENABLE or the owner asks.
    pub(crate) fn enable(
        &mut self,
        card: &mut Card,
        queue: Queue,
        index: u32,
    ) -> Result<(), EnableError> {
        let (managed, ready) = match queue {
            Queue::Send => (Mode::MANAGED_SEND, matches!(self.state, State::Rts | State::Sqd)),
            Queue::Recv => (Mode::MANAGED_RECV, !matches!(self.state, State::Reset | State::Error)),
        };
        if !self.mode.contains(managed) {
            return Err(EnableError::NotManaged);
        }
        if !ready {
            return Err(EnableError::State);
        }
        let ring = match queue {
            Queue::Send => &mut self.sq,
            Queue::Recv => &mut self.rq,
        };
        if !ring.enable(index) {
            return Err(EnableError::PastEnd);
        }
        match queue {
            Queue::Send => self.schedule(card),
            Queue::Recv => self.receives_again(card),
        }
        Ok(())
    }

    /// Notes that the receive queue has more elements, or gets none any more. In loop-back the
    /// peer may wait for one.
    pub(crate) fn receives_again(&self, card: &mut Card) {
        if self.mode.contains(Mode::LOOP_BACK) {
            card.chains.errands.push_back(Errand::Wake(self.dest_qp));
        }
    }

    /// Carries out an order in the queue of a connection. An ENABLE ends the turn, and is carried
    /// out right after it, when other queue pairs can be reached.
    pub(super) fn take_order(
        &self,
        env: &mut Env<'_>,
        at: Cursor,
        element: &Element,
    ) -> Option<Stop> {
        if !matches!(element.opcode, Opcode::Enable | Opcode::EnableRecv) {
            return None;
        }
        let errand = Errand::Enable { by: self.qpn, at, element: *element };
        env.card.chains.errands.push_back(errand);
        Some(Stop::Spent)
    }

    /// Fails an ENABLE of this queue pair that was refused after its turn.
    pub(crate) fn enable_refused(&mut self, env: &mut Env<'_>, at: Cursor, error: EnableError) {
        env.card.counters.chain_bad_enable += 1;
        let status = Status::LocalQpOperation;
        let Some(work) = env.card.outstanding.get_mut(at) else { return };
        work.failed = Some(status);
        let outcome = work.fails_with(status);
        self.report(env, outcome, (None, None), Cause::BadEnable(error));
        self.schedule(env.card);
    }

    /// Keeps a step of a chain, if the owner traces chains.
    #[inline]
    pub(crate) fn trace(
        &self,
        env: &mut Env<'_>,
        (queue, index): (Queue, u32),
        raw: &[u8],
        end: StepEnd,
    ) {
        if env.card.chains.traces()
            && let Some(&element) = raw.first_chunk::<ELEMENT_LEN>()
        {
            let (at, qpn) = (env.now, self.qpn);
            env.card.chains.trace(ChainStep { at, qpn, queue, index, element, end });
        }
    }
}
