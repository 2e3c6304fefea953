//! What the doorbells of sessions do.
//!
//! A receive element that a program has posted takes what a peer sends behind that, as on a card
//! whose processes ring it directly: an unreliable message would be lost otherwise, and a reliable
//! one would wait. But the doorbells are looked at one after the other. So when those of send
//! queues are taken, all receive queues are looked at once more before the card learns of a send.

use std::collections::VecDeque;

use remora_nic::{Memory, Nic, PostError, Time};

use super::engine::Engine;
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
        let Engine { sessions, sends, .. } = self;
        let mut any = false;
        for (at, session) in sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            if session.doorbells.any(&session.arena) {
                any = true;
                let found = |number, posted| sends.push((at as u16, number, posted));
                session.take_doorbells((now, &mut *nic, &mut *memory), found);
            }
        }
        if sends.is_empty() {
            return any;
        }
        for session in sessions.iter_mut().flatten() {
            session.take_receives((now, &mut *nic, &mut *memory));
        }
        for (at, number, posted) in sends.drain(..) {
            if let Some(session) = &mut sessions[usize::from(at)] {
                session.ring(number, Some(posted), (now, &mut *nic, &mut *memory));
            }
        }
        any
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
}

impl SessionQueues {
    /// Takes the doorbells of the session; calls `send` with the number of each send queue, and how
    /// far it is posted.
    fn take_doorbells(&mut self, (now, nic, memory): LentCard<'_>, mut send: impl FnMut(u32, u32)) {
        let SessionQueues { arena, doorbells, queues, active, counters, .. } = self;
        let mut read = Vec::new();
        doorbells.take(arena, |number| match queues.get_mut(number as usize) {
            Some(Some(Queue::Work(work))) => match (work.of, work.shared.posted()) {
                (Of::Send(_), posted) => send(number, posted),
                (_, posted) => {
                    let whose = (&mut *active, &mut *counters);
                    ring(work, (number, posted), (now, &mut *nic, &mut *memory), whose);
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
    }

    /// Takes the doorbells of receive queues that are not taken yet.
    fn take_receives(&mut self, (now, nic, memory): LentCard<'_>) {
        let SessionQueues { arena, doorbells, queues, active, counters, .. } = self;
        doorbells.take_receives(arena, |number| {
            if let Some(Some(Queue::Work(work))) = queues.get_mut(number as usize) {
                let (posted, whose) = (work.shared.posted(), (&mut *active, &mut *counters));
                ring(work, (number, posted), (now, &mut *nic, &mut *memory), whose);
            }
        });
    }

    /// Tells the card how far a work queue was `posted`, or is now.
    fn ring(&mut self, number: u32, posted: Option<u32>, card: LentCard<'_>) {
        let SessionQueues { queues, active, counters, .. } = self;
        if let Some(Some(Queue::Work(work))) = queues.get_mut(number as usize) {
            let posted = posted.unwrap_or_else(|| work.shared.posted());
            ring(work, (number, posted), card, (active, counters));
        }
    }
}

/// Tells the card how far the client has posted. An index that the ring cannot hold takes the queue
/// pair to the error state.
fn ring(
    work: &mut Work,
    (number, posted): (u32, u32),
    (now, nic, memory): LentCard<'_>,
    (active, counters): (&mut VecDeque<u32>, &mut SessionCounters),
) {
    if posted == work.rung {
        return;
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
        }
        // It is posted once the queue pair comes to another state.
        Err(PostError::State(_)) => {}
        Err(_) => {
            counters.refused += 1;
            work.shared.set_state(WorkQueueState::Refused);
            if let Of::Send(qpn) | Of::Recv(qpn) = work.of
                && let Err(error) = nic.fail_qp(now, memory, qpn)
            {
                tracing::debug!(%error, "a doorbell of a queue pair that has gone");
            }
        }
    }
}
