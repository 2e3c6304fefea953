//! What orders elements: NOOP, WAIT and ENABLE (RedN §3.1).

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

/// What a WAIT finds.
pub(super) enum Wait {
    /// It has come to its end.
    Over,
    /// More completions have to come.
    Blocked,
    /// It never will.
    Refused(Cause),
}

/// Where a queue pair waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    cq: u32,
    /// How often the queues that waited there had been woken when it was put down.
    wakes: u32,
}

impl Qp {
    /// Looks whether a WAIT's completion queue has counted enough; else the queue pair will be
    /// woken when it has.
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

    /// A WAIT in the queue of a connection: what is wrong with it, or that it holds the queue.
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

    /// The queue pair waits nowhere any more.
    pub(super) fn leave_waiting(&mut self, card: &mut Card) {
        if let Some(waiting) = self.cold.waiting.take() {
            self.leave(card, waiting);
        }
    }

    /// Another element, or the owner, lets one of the queues run up to `index`.
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

    /// The receive queue has more elements: in loop-back, the peer may wait for one.
    pub(crate) fn receives_again(&self, card: &mut Card) {
        if self.mode.contains(Mode::LOOP_BACK) {
            card.chains.errands.push_back(Errand::Wake(self.dest_qp));
        }
    }

    /// Takes an order in the queue of a connection. An ENABLE ends the turn: it is carried out
    /// right behind it, when other queue pairs can be reached.
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

    /// Another queue pair's turn, or its own, was to be followed by an ENABLE that was refused.
    pub(crate) fn enable_refused(&mut self, env: &mut Env<'_>, at: Cursor, error: EnableError) {
        env.card.counters.chain_bad_enable += 1;
        let status = Status::LocalQpOperation;
        let Some(work) = env.card.outstanding.get_mut(at) else { return };
        work.failed = Some(status);
        let outcome = work.fails_with(status);
        self.report(env, outcome, (None, None), Cause::BadEnable(error));
        self.schedule(env.card);
    }

    /// Keeps a step of a chain, if the owner traces them.
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
