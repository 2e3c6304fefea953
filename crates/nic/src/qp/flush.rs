//! The end of a queue pair's work: in ERROR, and in SQE, what is posted or outstanding is completed
//! with [`Status::Flushed`].

use super::{Qp, State};
use crate::env::Env;
use crate::event::Event;
use crate::queue::element::Element;
use crate::queue::{Completion, ELEMENT_LEN, Status, WorkKind};
use crate::scheduler::TurnBudget;

impl Qp {
    /// Takes the queue pair to ERROR: outstanding work will be flushed.
    pub(crate) fn fail(&mut self, env: &mut Env<'_>) {
        // Requests that have been acknowledged are done, and must not be flushed.
        self.settle(env);
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.end_passes(env.card);
        self.tx.stop();
        self.drop_answers(env);
        self.stop_lossy(env.card);
        self.receives_again(env.card);
        self.drop_posted(env.kernels, &mut env.card.kernel);
        env.kernels.closed(&mut env.card.kernel, self.qpn);
        self.schedule(env.card);
    }

    /// Completes the work that is left with [`Status::Flushed`], as much as one turn allows.
    /// Returns whether there is more. In SQE only the send queue is flushed.
    #[inline(never)]
    pub(super) fn flush(&mut self, env: &mut Env<'_>, budget: &mut TurnBudget) -> bool {
        let receives = self.state == State::Error;
        if receives {
            self.flush_receive(env);
            self.flush_lossy_receives(env);
        }
        while budget.elements > 0 {
            budget.elements -= 1;
            if let Some(work) = self.pop_outstanding(env) {
                if work.is_kernels() {
                    self.end_posted(env, &work, Status::Flushed);
                    continue;
                }
                let kind = WorkKind::Send(work.element.opcode);
                self.flushed(env, self.send_cq, kind, work.element.wr_id);
            } else if self.sq.waiting() > 0 {
                let wr_id = self.take_wr_id(env, true);
                self.sq.retired = self.sq.fetched;
                self.flushed(env, self.send_cq, WorkKind::Unread, wr_id);
            } else if receives && self.rq.waiting() > 0 {
                let wr_id = self.take_wr_id(env, false);
                self.rq.retired = self.rq.fetched;
                self.flushed(env, self.recv_cq, WorkKind::Recv, wr_id);
            } else {
                if receives {
                    self.tell_last_element(env);
                }
                return false;
            }
        }
        true
    }

    fn flushed(&mut self, env: &mut Env<'_>, cq: u32, kind: WorkKind, wr_id: u64) {
        env.card.counters.elements_flushed += 1;
        let status = Status::Flushed;
        env.card.complete(
            env.now,
            cq,
            Completion { wr_id, status, kind, qpn: self.qpn, ..Completion::default() },
        );
    }

    /// Takes the next element of a ring and reads only its `wr_id`.
    fn take_wr_id(&mut self, env: &mut Env<'_>, send: bool) -> u64 {
        let ring = if send { &mut self.sq } else { &mut self.rq };
        let mut raw = [0; ELEMENT_LEN];
        // A ring that cannot be read is flushed as well, with a wr_id of zero.
        let read = env.mem.read(ring.slot(ring.fetched), &mut raw);
        ring.fetched = ring.fetched.wrapping_add(1);
        read.map_or(0, |()| Element::wr_id(&raw))
    }

    fn tell_last_element(&mut self, env: &mut Env<'_>) {
        if self.srq != 0 && !self.cold.last_element_told {
            self.cold.last_element_told = true;
            env.card.events.push_back(Event::LastElementReached(self.qpn));
        }
    }
}
