//! The lossy dialect: reliable connections whose packets may arrive in any order (docs/lossy.md).
//!
//! Every packet says where it belongs, so that its payload is placed when it arrives. What must
//! happen in order waits for its turn. Acknowledges say which packets have arrived, and only those
//! that have not are sent again. This is SRNIC's memory-free selective repeat (§4.4); bitmaps and
//! lists exist only while packets are missing.
//!
//! - `receiver` takes packets; `arrivals` is what it remembers; `acknowledge` says what has come.
//! - `sender` makes packets; `completer` takes acknowledges, acts on silence, and finds what is
//!   lost; `departures` is what the two remember, `paths` how long paths take.
//! - `answers` has READs, atomics and FLUSHes: an answer is a message of the stream back, with PSNs
//!   and acknowledges like any other.
//! - `recoveries` knows which were for nothing.
//! - `bitmap` is what both sides keep of packets behind a missing one. `memory` says what all of
//!   this takes.

mod acknowledge;
mod answers;
mod arrivals;
mod bitmap;
mod completer;
mod departures;
mod memory;
mod paths;
mod receiver;
mod recoveries;
mod sender;

use std::collections::VecDeque;

use super::Qp;
use crate::card::Card;
use crate::env::Env;
use crate::multi_queue::{Cursor, List};
use crate::psn::Psn;
use crate::queue::Status;
use crate::queue::outstanding::{Answering, Outstanding};
use crate::time::Time;
use crate::wire::Dialect;
use arrivals::Arrivals;
use departures::Departures;
pub use memory::LOSSY_HOT_BYTES;
pub(crate) use memory::LossyUse;
use paths::Paths;
use recoveries::Recoveries;

/// How many answers that are not acknowledged a queue pair keeps for each request that it takes at
/// once: more leave while a lost one is found, and sent again, than were under way with it.
const ANSWERS_KEPT: usize = 4;

/// What a queue pair of the lossy dialect has besides the state that all have.
#[derive(Debug)]
pub(crate) struct Lossy {
    arrivals: Arrivals,
    departures: Departures,
    paths: Paths,
    /// The SSN of the next message that takes a receive element at the peer.
    next_ssn: u32,
    /// Requests of this side whose answers have not arrived, oldest first.
    asks: VecDeque<Ask>,
    /// Requests of the peer whose answers have not been begun.
    owed: VecDeque<Owing>,
    /// Answers that have been begun and not been acknowledged, and the one that is being sent. They
    /// have a list of their own, since they wait for nothing that requests wait for.
    answers: List,
    answer: Cursor,
    /// An answer was the last message to leave: a request has the next turn.
    answered: bool,
    /// Since when nothing has been heard of the peer while something was expected.
    quiet_since: Time,
    /// How many probes have been sent since.
    probes: u8,
    /// A responder's answers have not been acknowledged for so long that it sends nothing more
    /// until it hears of the peer.
    dormant: bool,
    /// When the last probe became due, or has left.
    probed_at: Time,
    /// A packet must be sent again at once, whatever the window says.
    probe: bool,
    /// The peer must be asked whether it is there, whatever the window says.
    question: bool,
    /// Time-outs since the last acknowledge, whether that told anything new or not.
    unanswered: u8,
    /// The longest that the peer has held an acknowledge lately, in nanoseconds.
    held_ns: u64,
    recoveries: Recoveries,
    /// The counts of the last acknowledge: packets received, and those with a mark.
    peer_received: u16,
    peer_marked: u16,
}

/// A request whose answer has not arrived.
#[derive(Clone, Copy, Debug)]
struct Ask {
    psn: Psn,
    cursor: Cursor,
    /// Packets of the answer that have not arrived.
    left: u32,
    /// The first PSN of the answer, once it is known.
    first: Option<Psn>,
}

/// A request of the peer whose answer has not been begun.
#[derive(Clone, Copy, Debug)]
struct Owing {
    psn: Psn,
    what: Answering,
    addr: u64,
    rkey: u32,
    len: u32,
    original: u64,
}

impl Lossy {
    fn new(paths: u8, mtu: u16) -> Lossy {
        Lossy {
            arrivals: Arrivals::default(),
            departures: Departures::default(),
            paths: Paths::new(paths, mtu),
            next_ssn: 0,
            asks: VecDeque::new(),
            owed: VecDeque::new(),
            answers: List::EMPTY,
            answer: Cursor::NONE,
            answered: false,
            quiet_since: Time::ZERO,
            probes: 0,
            dormant: false,
            probed_at: Time::ZERO,
            probe: false,
            question: false,
            unanswered: 0,
            held_ns: 0,
            recoveries: Recoveries::default(),
            peer_received: 0,
            peer_marked: 0,
        }
    }

    /// Sends no more answers.
    fn drop_answers(&mut self, card: &mut Card) {
        self.keep_answers(card, |_| false);
    }

    /// Sends no more answers from the one that has the packet `psn` on.
    fn drop_answers_from(&mut self, card: &mut Card, psn: Psn) {
        self.keep_answers(card, |work| !psn.is_before(work.end()));
    }

    /// Sends only answers on that have left whole and are among these.
    fn keep_answers(&mut self, card: &mut Card, keeps: impl Fn(&Outstanding) -> bool) {
        let mut all = core::mem::replace(&mut self.answers, List::EMPTY);
        while let Some(work) = card.outstanding.pop_beyond(&mut all) {
            if keeps(&work) {
                card.outstanding.push_beyond(&mut self.answers, work);
            }
        }
        self.answer = Cursor::NONE;
        self.owed.clear();
    }

    /// Are there answers to send, begun or not, where so many requests at once are agreed?
    fn has_answers_to_send(&self, agreed: u8) -> bool {
        !self.answer.is_none() || self.may_begin_answer(agreed)
    }

    /// Is there an answer to begin, and room for it?
    ///
    /// A requester may have answers whose acknowledges are lost, and ask for more. Those that wait
    /// here it has not got, so that they are never more than agreed. Those that have left are
    /// bounded too, or a peer that acknowledges all but the oldest has the card keep any number.
    /// What is owed is answered, also if no more requests are taken meanwhile.
    fn may_begin_answer(&self, agreed: u8) -> bool {
        !self.owed.is_empty() && self.answers.len() < ANSWERS_KEPT * usize::from(agreed.max(1))
    }

    /// Is there a packet to send again, or a question?
    fn has_lost(&self) -> bool {
        self.probe || self.question || self.departures.to_send > 0
    }

    /// Is this packet, which is under way, one of an answer?
    fn is_answer(&self, card: &Card, psn: Psn) -> bool {
        !card.outstanding.find(&self.answers, |work| work.holds(psn)).is_none()
    }

    /// Has the peer asked for something that it has not got whole?
    fn owes_answers(&self) -> bool {
        !self.answers.is_empty() || !self.owed.is_empty()
    }
}

impl Qp {
    /// Is the queue pair one of the lossy dialect?
    #[inline]
    pub(super) fn is_lossy(&self) -> bool {
        self.dialect.contains(Dialect::LOSSY)
    }

    /// The state of the lossy dialect, which a queue pair of that dialect always has.
    fn lossy(&self) -> &Lossy {
        self.cold.lossy.as_deref().expect("a queue pair of the lossy dialect has its state")
    }

    fn lossy_mut(&mut self) -> &mut Lossy {
        self.cold.lossy.as_deref_mut().expect("a queue pair of the lossy dialect has its state")
    }

    /// The answer that is being sent, if there is one.
    pub(super) fn lossy_answer(&self) -> Cursor {
        self.cold.lossy.as_ref().map_or(Cursor::NONE, |lossy| lossy.answer)
    }

    /// Has a queue pair of the lossy dialect something to send besides requests?
    #[inline]
    pub(super) fn has_lossy_work(&self) -> bool {
        let lossy = self.cold.lossy.as_ref();
        lossy.is_some_and(|lossy| {
            lossy.has_lost() || lossy.has_answers_to_send(self.cold.max_dest_rd_atomic)
        })
    }

    /// Makes the state anew, if the queue pair is one of the dialect; removes it otherwise.
    pub(super) fn renew_lossy(&mut self, card: &mut Card) {
        self.release_receives(card);
        self.stop_lossy(card);
        let config = &card.config;
        // Cards of this machine take packets from one port only.
        let paths = if config.is_here(self.path.dst) { 1 } else { config.paths };
        let state = || Box::new(Lossy::new(paths, self.mtu));
        self.cold.lossy = self.is_lossy().then(state);
    }

    /// Gives the room of receive elements back that will not be completed.
    fn release_receives(&mut self, card: &mut Card) {
        if let Some(lossy) = &mut self.cold.lossy {
            lossy.arrivals.receives.drain(..).for_each(|receive| card.sgls.release(receive.sgl));
        }
    }

    /// Stops: nothing more arrives or leaves.
    pub(super) fn stop_lossy(&mut self, card: &mut Card) {
        if let Some(lossy) = &mut self.cold.lossy {
            lossy.drop_answers(card);
            lossy.arrivals.clear();
            lossy.departures = Departures::default();
            lossy.asks.clear();
            (lossy.probe, lossy.question) = (false, false);
        }
    }

    /// Flushes the receive elements that messages have taken and not completed.
    pub(super) fn flush_lossy_receives(&mut self, env: &mut Env<'_>) {
        while let Some(receive) =
            self.cold.lossy.as_mut().and_then(|lossy| lossy.arrivals.receives.pop_front())
        {
            env.card.counters.elements_flushed += 1;
            self.end_receive(env, &receive, Status::Flushed);
        }
    }

    /// Has the queue pair requests that the peer must answer?
    pub(crate) fn waits_for_peer(&self) -> bool {
        // Answers of a lossy queue pair are not requests, though they have PSNs.
        if self.is_lossy() { !self.tx.outstanding.is_empty() } else { self.tx.una != self.tx.high }
    }

    /// Must a refusal wait until the peer has the answers to earlier requests?
    pub(super) fn owes_lossy_answers(&self) -> bool {
        self.cold.lossy.as_ref().is_some_and(|lossy| lossy.owes_answers())
    }
}
