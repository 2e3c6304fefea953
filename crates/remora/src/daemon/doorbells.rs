//! What the doorbells of sessions do.
//!
//! A receive element that a program has posted takes what a peer sends behind that, as on a card
//! whose processes ring it directly: an unreliable message would be lost otherwise, and a reliable
//! one would wait. But the doorbells are looked at one after the other. So when those of send
//! queues are taken, all receive queues are looked at once more before the card learns of a send.
//! Of a session that rings for nothing, few are; and a send queue that is rung for nothing is no
//! send, so nobody is looked at once more for it.
//!
//! A session that was looked at behind the last of those send queues needs no other look: what it
//! had posted before the send was found there. So sessions that have rung are looked at first the
//! next time, and few are looked at twice, however many there are.

use std::collections::VecDeque;

use remora_nic::{Memory, Nic, PostError, Time};

use super::engine::{Engine, Looks};
use super::session_queues::{Of, Queue, SessionCounters, SessionQueues, Work};
use crate::shared::WorkQueueState;

/// The card, and what its commands take.
type LentCard<'a> = (Time, &'a mut Nic, &'a mut dyn Memory);

impl Engine {
    /// Has any session rung a doorbell that was not taken?
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        self.sessions.iter().flatten().any(|session| session.doorbells.any(&session.arena))
    }

    /// Hands the doorbells that were rung to the card; returns whether there were any.
    pub(crate) fn take_doorbells(
        &mut self,
        now: Time,
        nic: &mut Nic,
        memory: &mut dyn Memory,
    ) -> bool {
        self.end_passes(nic);
        self.publish_taken(nic);
        let any = self.look((now, &mut *nic, &mut *memory));
        if !self.sends.is_empty() {
            self.look_again((now, &mut *nic, &mut *memory));
        }
        let Engine { sessions, sends, .. } = self;
        for (at, number, posted) in sends.drain(..) {
            if let Some(session) = &mut sessions[usize::from(at)] {
                session.ring(number, Some(posted), (now, &mut *nic, &mut *memory));
            }
        }
        any
    }

    /// Looks at all doorbells, and notes those of send queues; returns whether any was rung.
    pub(super) fn look(&mut self, (now, nic, memory): LentCard<'_>) -> bool {
        let Engine { sessions, sends, looks, .. } = self;
        let Looks { order, again, more } = looks;
        *again = 0;
        more.clear();
        let mut active = 0;
        for at in 0..order.len() {
            let slot = order[at];
            let Some(session) = &mut sessions[usize::from(slot)] else { continue };
            if !session.doorbells.any(&session.arena) {
                continue;
            }
            let before = sends.len();
            let found = |number, posted| sends.push((slot, number, posted));
            if session.take_doorbells((now, &mut *nic, &mut *memory), found) {
                more.push(slot);
            }
            if sends.len() > before {
                *again = at + 1;
            }
            order.swap(active, at);
            active += 1;
        }
        active > 0
    }

    /// Looks once more at the receive queues of sessions that were looked at before the last send
    /// queue was.
    pub(super) fn look_again(&mut self, (now, nic, memory): LentCard<'_>) {
        let Engine { sessions, looks: Looks { order, again, more }, .. } = self;
        for slot in order[..*again].iter().chain(more.iter()) {
            if let Some(session) = &mut sessions[usize::from(*slot)] {
                session.take_receives((now, &mut *nic, &mut *memory));
            }
        }
    }

    /// Takes what the client of a queue pair has posted, whether or not it has rung.
    pub(crate) fn take_posted(
        &mut self,
        qpn: u32,
        now: Time,
        nic: &mut Nic,
        memory: &mut dyn Memory,
    ) {
        let session = self.qps.get(&qpn).copied();
        let Some(of) = session.and_then(|session| self.session(session)) else { return };
        for number in of.records(qpn) {
            of.ring(number, None, (now, &mut *nic, &mut *memory));
        }
    }

    /// Takes what a session has posted to its shared receive queue, whether or not it has rung.
    pub(crate) fn take_posted_srq(&mut self, session: u16, srq: u32, card: LentCard<'_>) {
        let Some(number) = self.srq_record(session, srq) else { return };
        if let Some(of) = self.session(session) {
            of.ring(number, None, card);
        }
    }
}

impl SessionQueues {
    /// Takes doorbells of the session; calls `send` with the number of each send queue that has
    /// news, and how far it is posted. Returns whether there may be others.
    fn take_doorbells(
        &mut self,
        (now, nic, memory): LentCard<'_>,
        mut send: impl FnMut(u32, u32),
    ) -> bool {
        let SessionQueues { arena, doorbells, queues, active, counters, .. } = self;
        let mut read = Vec::new();
        let more = doorbells.take(arena, |number| match queues.get_mut(number as usize) {
            Some(Some(Queue::Work(work))) => match (work.of, work.shared.posted()) {
                (Of::Send(_), posted) if posted == work.rung => {}
                (Of::Send(_), posted) => send(number, posted),
                (_, posted) => {
                    let whose = (&mut *active, &mut *counters);
                    _ = ring(work, (number, posted), (now, &mut *nic, &mut *memory), whose);
                }
            },
            Some(Some(Queue::Completions(queue))) if queue.waits => read.push(number),
            Some(Some(Queue::Completions(_))) => {}
            // Number 0 is rung for room in the ring of events, too.
            _ => counters.refused += u64::from(number != 0),
        });
        for number in read {
            self.move_completions(nic, number);
            self.notify(number, now);
        }
        if self.events.waits() && self.events.flush(&self.arena) {
            self.wake.wake();
        }
        more
    }

    /// Takes the doorbells of receive queues that are not taken yet.
    fn take_receives(&mut self, (now, nic, memory): LentCard<'_>) {
        let SessionQueues { arena, doorbells, queues, active, counters, .. } = self;
        doorbells.take_receives(arena, |number| match queues.get_mut(number as usize) {
            Some(Some(Queue::Work(work))) => {
                let (posted, whose) = (work.shared.posted(), (&mut *active, &mut *counters));
                ring(work, (number, posted), (now, &mut *nic, &mut *memory), whose)
            }
            _ => false,
        });
    }

    /// Tells the card how far a work queue was `posted`, or is now.
    fn ring(&mut self, number: u32, posted: Option<u32>, card: LentCard<'_>) {
        let SessionQueues { queues, active, counters, .. } = self;
        if let Some(Some(Queue::Work(work))) = queues.get_mut(number as usize) {
            let posted = posted.unwrap_or_else(|| work.shared.posted());
            _ = ring(work, (number, posted), card, (active, counters));
        }
    }
}

/// Tells the card how far the client has posted; returns whether it has taken something. An index
/// that the ring cannot hold takes the queue pair to the error state.
fn ring(
    work: &mut Work,
    (number, posted): (u32, u32),
    (now, nic, memory): LentCard<'_>,
    (active, counters): (&mut VecDeque<u32>, &mut SessionCounters),
) -> bool {
    if posted == work.rung {
        return false;
    }
    let taken = match work.of {
        Of::Send(qpn) => nic.handle_send_doorbell(qpn, posted),
        Of::Recv(qpn) => nic.handle_recv_doorbell(qpn, posted),
        Of::Srq(srq) => nic.handle_srq_doorbell(srq, posted),
    };
    match taken {
        Ok(()) => {
            counters.posted += u64::from(posted.wrapping_sub(work.rung));
            work.rung = posted;
            if !std::mem::replace(&mut work.active, true) {
                active.push_back(number);
            }
            true
        }
        // It is posted once the queue pair comes to another state.
        Err(PostError::State(_)) => false,
        Err(_) => {
            counters.refused += 1;
            work.shared.set_state(WorkQueueState::Refused);
            if let Of::Send(qpn) | Of::Recv(qpn) = work.of
                && let Err(error) = nic.fail_qp(now, memory, qpn)
            {
                tracing::debug!(%error, "a doorbell of a queue pair that has gone");
            }
            false
        }
    }
}
