//! Messages without an answer: they are repeated, and at last given up.
//!
//! A connection has one timer. It repeats the message that waits for an answer, asks a peer again
//! that had no room, and ends the rest of a connection in time-wait. (Requests of datagram services
//! have timers of their own: see `sidr`.)
//!
//! How often a message is repeated, and how long its last one waits, is in `config`.

use core::time::Duration;

use rand_core::Rng;

use super::event::CmEvent;
use super::message::{Attribute, Message};
use super::state::{ConnState, Input};
use super::{Cm, Timed};
use crate::Time;

/// The first wait before a peer without room is asked again; each further one is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(8);
/// The longest such wait.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The first wait before a message is repeated; each further one is twice as long, up to the time
/// that the peer has for an answer. That is seconds, in which a program that sets up thousands of
/// connections would wait for a few lost messages.
const FIRST_REPEAT: Duration = Duration::from_millis(250);

impl Cm {
    /// Sends a message of a connection, and repeats it until the connection moves on.
    pub(super) fn ask(&mut self, now: Time, id: u32, message: impl Into<Message>) {
        self.say(id, message);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.retries_left = conn.max_retries;
        conn.wait = conn.first_wait.min(FIRST_REPEAT);
        let again = now + conn.wait;
        self.set_deadline(id, again);
    }

    /// Sets a connection's timer; `NEVER` stops it.
    pub(super) fn set_deadline(&mut self, id: u32, at: Time) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let timer = Timed::Connection(id);
        self.timers.remove(&(conn.deadline, timer));
        conn.deadline = at;
        if at != Time::NEVER {
            self.timers.insert((at, timer));
        }
    }

    /// A connection's timer is due: its message was not answered, or it has rested long enough.
    pub(super) fn on_connection_timer(&mut self, now: Time, id: u32) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.state == ConnState::TimeWait {
            self.tell(id, |conn| CmEvent::TimewaitExit { conn });
            self.step(now, id, Input::TimeWaitOver);
        } else if conn.retries_left == 0 {
            self.give_up(now, id);
        } else {
            // Repetitions before the time that the peer has for an answer do not count.
            if conn.wait < conn.first_wait {
                conn.wait = (2 * conn.wait).min(conn.first_wait);
            } else {
                conn.retries_left -= 1;
            }
            let (peer, again) = (conn.peer, now + conn.wait);
            let last = conn.last.as_ref().map(|(_, bytes)| bytes.clone());
            self.counters.retransmissions += 1;
            self.set_deadline(id, again);
            if let Some(bytes) = last {
                self.transmit(peer, bytes);
            }
        }
    }

    /// Sends the last message again if it is one of `answers`. Returns whether it was.
    pub(super) fn repeat_answer(&mut self, id: u32, answers: &[Attribute]) -> bool {
        let Some(conn) = self.connections.get(&id) else { return false };
        let Some((attribute, bytes)) = &conn.last else { return false };
        if !answers.contains(attribute) {
            return false;
        }
        let (peer, bytes) = (conn.peer, bytes.clone());
        self.counters.duplicates += 1;
        self.transmit(peer, bytes);
        true
    }

    /// The peer has no room for a connection yet. Its request is repeated after a wait, which is
    /// partly random so that many who were refused together do not come back together. Returns
    /// whether that is done: it is not if the request has been repeated as often as allowed.
    pub(super) fn asks_again(&mut self, now: Time, id: u32) -> bool {
        let random = self.rng.next_u32();
        let Some(conn) = self.connections.get_mut(&id) else { return false };
        let asks = matches!(conn.state, ConnState::ReqSent | ConnState::MraReqReceived);
        if !asks || conn.retries_left == 0 {
            return false;
        }
        let tried = u32::from(conn.max_retries - conn.retries_left);
        let wait = FIRST_BACKOFF.saturating_mul(1 << tried.min(10)).min(LONGEST_BACKOFF);
        let half = wait.as_nanos() as u64 / 2;
        conn.wait = conn.first_wait;
        self.counters.asked_again += 1;
        // A peer that refuses again and again does not put it off.
        let at = Time(now.0 + half + ((half * u64::from(random)) >> 32));
        let at = at.min(conn.deadline);
        self.set_deadline(id, at);
        true
    }

    /// Ends a connection whose message has been repeated without an answer as often as allowed.
    pub(super) fn give_up(&mut self, now: Time, id: u32) {
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.state == ConnState::DreqSent {
            self.tell_end(id, Vec::new(), true);
        } else {
            self.counters.unreachable += 1;
            self.say_timeout(id);
            self.tell(id, |conn| CmEvent::Unreachable { conn });
        }
        self.step(now, id, Input::RetriesExhausted);
    }
}
