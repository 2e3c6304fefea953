//! How many bytes are left of the message that is being sent, by which
//! [`TurnOrder::ShortestFirst`](crate::TurnOrder::ShortestFirst) orders; and what requests wait for:
//! a turn, leave to send, or the peer.

use super::Qp;
use crate::card::Card;
use crate::queue::answer::{Answer, Asked};
use crate::queue::outstanding::Outstanding;

/// What the requests of a queue pair wait for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SendProgress {
    /// The queue pair's turn: it has something to send, and may.
    Turn,
    /// An acknowledge, a rate or a timer: some of it has not left, and may not yet.
    Leave,
    /// The peer: all has left.
    Peer,
}

impl Qp {
    /// What the queue pair's requests wait for.
    pub(crate) fn send_progress(&self) -> SendProgress {
        let is_left = !self.tx.cursor.is_none() || self.sq.waiting() > 0 || self.has_posted();
        match (self.queued, is_left) {
            (true, _) => SendProgress::Turn,
            (false, true) => SendProgress::Leave,
            (false, false) => SendProgress::Peer,
        }
    }

    /// The bytes that have not left yet of the request or answer that is being sent, of the one
    /// that has less if there are both. Zero if there is neither: what has left may be sent again,
    /// and of what was posted behind it nothing is known before it is fetched.
    pub(super) fn bytes_left(&self, card: &Card) -> u32 {
        let of = |cursor| card.outstanding.get(cursor).map(|work| self.left_of(work));
        let answer = match self.is_lossy() {
            true => of(self.lossy_answer()),
            false if self.rx.pending == 0 => None,
            false => {
                let answer = card.answers.find(&self.cold.answers, Answer::is_pending);
                card.answers.get(answer).map(|answer| left_of_answer(answer, self.mtu))
            }
        };
        match (of(self.tx.cursor), answer) {
            (Some(request), Some(answer)) => request.min(answer),
            (request, answer) => request.or(answer).unwrap_or(0),
        }
    }

    /// What is left of a message whose bytes leave from `next` on.
    fn left_of(&self, work: &Outstanding) -> u32 {
        let element = &work.element;
        // The request of an answer is a packet of headers.
        if !work.is_answer() && element.opcode.wants_response() {
            return 0;
        }
        let sent = self.tx.next.distance_from(work.psn);
        // A message that was not begun has its first packet ahead.
        let sent = if sent < work.packets { sent } else { 0 };
        element.len.saturating_sub(sent * u32::from(self.mtu))
    }
}

fn left_of_answer(answer: &Answer, mtu: u16) -> u32 {
    match answer.asked {
        Asked::Read { len, .. } => len.saturating_sub(answer.next * u32::from(mtu)),
        Asked::Atomic { .. } | Asked::Done => 0,
    }
}
