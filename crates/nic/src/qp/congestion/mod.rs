//! Congestion: the signs of it, and the policies that act on them.
//!
//! Marks are those of IP's explicit congestion notification (RFC 3168). A receiver tells its peer
//! of them by notification packets ([`notification`]); in the lossy dialect acknowledges count
//! marks instead.
//!
//! [`super::window`] has the policies that need nothing but the window in the hot state. The others
//! have their state in the cold part ([`Control`]), and the hot part says so by one bit
//! ([`Mode::CONTROLLED`]): [`dctcp`], [`dcqcn`], [`swift`].

mod dcqcn;
mod dctcp;
mod notification;
mod swift;

use core::time::Duration;

use super::Qp;
use super::requester::Recovery;
use super::state::State;
use super::window::Window;
use crate::card::Card;
use crate::chain::Mode;
use crate::config::Config;
use crate::congestion::Congestion;
use crate::env::Env;
use crate::psn::Psn;
use crate::scheduler::TurnBudget;
use crate::time::Time;
use crate::timers::Timers;
use crate::transmit::TransmitBatch;
pub use dcqcn::Dcqcn;
pub use dctcp::Dctcp;
use swift::Swift;

/// The state of a policy that has some.
#[derive(Debug)]
pub(crate) enum Control {
    Dctcp(Dctcp),
    Dcqcn(Dcqcn),
    Swift(Swift),
}

impl Control {
    /// A policy's state, if it has some. `next` is the next PSN to send.
    fn of(policy: Congestion, next: Psn, config: &Config) -> Option<Control> {
        let (link, tuning) = (config.link_bits_per_second, &config.tuning);
        match policy {
            Congestion::Aimd | Congestion::Fixed => None,
            Congestion::Dctcp => Some(Control::Dctcp(Dctcp::new(next, tuning.dctcp))),
            Congestion::Dcqcn => Some(Control::Dcqcn(Dcqcn::new(link, tuning.dcqcn))),
            Congestion::Swift => Some(Control::Swift(Swift::new(tuning.swift))),
        }
    }

    fn policy(&self) -> Congestion {
        match self {
            Control::Dctcp(_) => Congestion::Dctcp,
            Control::Dcqcn(_) => Congestion::Dcqcn,
            Control::Swift(_) => Congestion::Swift,
        }
    }
}

/// The policy, and what it hears of.
impl Qp {
    /// Follows a policy from now on, with the whole window. Only reliable services have one.
    pub(crate) fn follow(&mut self, policy: Congestion, card: &Card) {
        let limit = card.config.window_packets;
        let policy = if self.transport.is_reliable() { policy } else { Congestion::Aimd };
        self.tx.window = match policy {
            // A rate alone decides.
            Congestion::Fixed | Congestion::Dcqcn => Window::fixed(limit),
            _ => Window::new(limit),
        };
        self.cold.control = Control::of(policy, self.tx.next, &card.config).map(Box::new);
        self.mode.set(Mode::CONTROLLED, self.cold.control.is_some());
    }

    /// The policy that the queue pair follows.
    pub(crate) fn policy(&self) -> Congestion {
        let fixed = if self.tx.window.is_fixed() { Congestion::Fixed } else { Congestion::Aimd };
        self.cold.control.as_ref().map_or(fixed, |control| control.policy())
    }

    /// All before `una` is acknowledged, which is `packets` more than before.
    #[inline(always)]
    pub(super) fn note_acknowledged(&mut self, env: &Env<'_>, packets: u32, una: Psn) {
        let limit = env.card.config.window_packets;
        if self.mode.contains(Mode::CONTROLLED) {
            self.control_acknowledged(env.now, packets, una, limit);
        } else {
            self.tx.window.acknowledged(packets, una, limit);
        }
    }

    #[inline(never)]
    fn control_acknowledged(&mut self, now: Time, packets: u32, una: Psn, limit: u16) {
        let (high, lossy) = (self.tx.high, self.is_lossy());
        let window = &mut self.tx.window;
        match self.cold.control.as_deref_mut() {
            Some(Control::Dctcp(dctcp)) => {
                // In the lossy dialect the acknowledge has said how many have arrived.
                if !lossy {
                    dctcp.received(window, (packets, 0), high);
                }
                dctcp.acknowledged(una, high);
                window.acknowledged(packets, una, limit);
            }
            Some(Control::Swift(swift)) => {
                swift.acknowledged(window, (packets, una), (limit, high), now);
            }
            Some(Control::Dcqcn(_)) | None => window.acknowledged(packets, una, limit),
        }
    }

    /// More packets have arrived, and so many of them marked.
    #[inline]
    pub(super) fn note_marks(&mut self, now: Time, received: u16, marked: u16) {
        let high = self.tx.high;
        let window = &mut self.tx.window;
        match self.cold.control.as_deref_mut() {
            Some(Control::Dctcp(dctcp)) => {
                dctcp.received(window, (received.into(), marked.into()), high);
            }
            Some(Control::Dcqcn(dcqcn)) if marked > 0 => dcqcn.notified(now),
            None if marked > 0 => window.shrink(high),
            Some(_) | None => {}
        }
    }

    /// A READ's response has come marked. (Standard dialect.) This end's window bounds what it asks
    /// for, as it bounds what it sends. A rate does not: the peer has its own for its answers.
    #[cold]
    pub(super) fn note_marked_answer(&mut self, now: Time) {
        if !matches!(self.cold.control.as_deref(), Some(Control::Dcqcn(_))) {
            // That it has arrived is counted when it is taken.
            self.note_marks(now, 0, 1);
        }
    }

    /// A round trip has taken so long, on a path whose shortest one is `least`. (Lossy dialect; in
    /// the standard one a policy measures itself.)
    pub(super) fn note_round_trip(&mut self, took: Duration, least: Duration) {
        if let Some(Control::Swift(swift)) = self.cold.control.as_deref_mut() {
            swift.measured(&mut self.tx.window, (took, least), self.tx.high);
        }
    }

    /// Packets were lost.
    pub(super) fn note_loss(&mut self, now: Time) {
        let (window, high) = (&mut self.tx.window, self.tx.high);
        match self.cold.control.as_deref_mut() {
            Some(Control::Dcqcn(dcqcn)) => dcqcn.notified(now),
            Some(Control::Swift(swift)) => swift.lost(window, high),
            Some(Control::Dctcp(_)) | None => window.shrink(high),
        }
    }

    /// Nothing has been heard for a time-out.
    pub(super) fn note_silence(&mut self, now: Time) {
        let window = &mut self.tx.window;
        match self.cold.control.as_deref_mut() {
            Some(Control::Dcqcn(dcqcn)) => dcqcn.notified(now),
            Some(Control::Swift(swift)) => swift.silent(window),
            Some(Control::Dctcp(_)) | None => window.restart(),
        }
    }
}

/// Turns of a queue pair whose policy has state.
impl Qp {
    /// Sends what the turn and the policy allow. Returns whether more could be sent now.
    #[inline(never)]
    pub(super) fn send_controlled(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> bool {
        match self.cold.control.as_deref() {
            Some(Control::Dcqcn(_)) => self.send_paced(env, batch, budget),
            Some(Control::Swift(_)) if !self.is_lossy() => self.send_timed(env, batch, budget),
            _ => self.send_uncontrolled(env, batch, budget),
        }
    }

    /// Does a rate hold back what this turn would send, be it answers or requests? The queue pair
    /// has another turn when it opens.
    #[inline(never)]
    pub(super) fn is_held(&mut self, env: &mut Env<'_>, has_requests: bool) -> bool {
        let has_work = has_requests || self.rx.pending > 0 || self.has_lossy_work();
        let sends = matches!(self.state, State::Rts | State::Sqd);
        let Some(Control::Dcqcn(dcqcn)) = self.cold.control.as_deref_mut() else { return false };
        let opens = dcqcn.opens();
        let is_held = has_work && sends && opens > env.now;
        if is_held {
            env.card.chains.timers.arm(&mut dcqcn.timer, self.qpn, opens);
        }
        is_held
    }

    /// Sends as many answers as the turn and the policy allow. (Turns without any are shorter where
    /// it stays a call.)
    #[inline(never)]
    pub(super) fn send_answers_in_turn(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) {
        if self.mode.contains(Mode::CONTROLLED) {
            self.at_rate(env, budget, |qp, env, budget| qp.send_answers(env, batch, budget));
        } else {
            self.send_answers(env, batch, budget);
        }
    }

    /// Sends as many requests as a rate allows.
    fn send_paced(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> bool {
        let high = self.tx.high;
        let send = |qp: &mut Qp, env: &mut Env<'_>, budget: &mut TurnBudget| {
            qp.send_uncontrolled(env, batch, budget)
        };
        let (again, packets) = self.at_rate(env, budget, send);
        if packets > 0 {
            self.wait_from_now(env, self.tx.high != high);
        }
        again
    }

    /// Has `send` spend no more than a rate allows in a turn, if the policy has one, and counts
    /// what that has sent. Returns also how many packets.
    fn at_rate<T>(
        &mut self,
        env: &mut Env<'_>,
        budget: &mut TurnBudget,
        send: impl FnOnce(&mut Qp, &mut Env<'_>, &mut TurnBudget) -> T,
    ) -> (T, u64) {
        let (now, mtu) = (env.now, u32::from(self.mtu));
        let allowed = match self.cold.control.as_deref_mut() {
            Some(Control::Dcqcn(dcqcn)) => dcqcn.turn(mtu, now),
            _ => u32::MAX,
        };
        let kept = budget.bytes.saturating_sub(allowed);
        budget.bytes -= kept;
        let counters = &env.card.counters;
        let (packets, payload) = (counters.tx_packets, counters.tx_bytes);
        let sent = send(self, env, budget);
        budget.bytes += kept;
        let counters = &env.card.counters;
        let (packets, payload) = (counters.tx_packets - packets, counters.tx_bytes - payload);
        if let Some(Control::Dcqcn(dcqcn)) = self.cold.control.as_deref_mut()
            && packets > 0
        {
            dcqcn.sent(packets, payload, now);
        }
        (sent, packets)
    }

    /// The wait for an acknowledge begins with the last packet that has left: at a low rate it may
    /// be long before one leaves that asks for an acknowledge. In the lossy dialect only if one was
    /// `new`: probes ask for an acknowledge at once.
    fn wait_from_now(&mut self, env: &mut Env<'_>, new: bool) {
        if self.tx.recovery == Recovery::RnrWait || self.tx.una == self.tx.high {
            return;
        }
        if self.is_lossy() {
            let more = !self.tx.cursor.is_none() || self.sq.waiting() > 0 || self.has_posted();
            let next = match self.cold.control.as_deref() {
                Some(Control::Dcqcn(dcqcn)) if more || self.has_lossy_work() => dcqcn.opens(),
                _ => env.now,
            };
            self.wait_at_rate(env, new, next);
        } else {
            self.arm_timer(env);
        }
    }

    /// Sends what the turn allows, and notes when a packet has left that the peer acknowledges.
    fn send_timed(
        &mut self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        budget: &mut TurnBudget,
    ) -> bool {
        let again = self.send_uncontrolled(env, batch, budget);
        // Where a message or the window ends, the last packet has asked for an acknowledge.
        let asked = !again && self.tx.next == self.tx.high;
        if let Some(Control::Swift(swift)) = self.cold.control.as_deref_mut()
            && asked
            && self.tx.recovery == Recovery::Nothing
        {
            swift.sent(self.tx.una, self.tx.high, env.now);
        }
        again
    }

    /// Has the queue pair a timer among those of chains whose valid entry is for this time?
    pub(crate) fn waits_in_chains(&self, at: Time) -> bool {
        let limited = self.cold.limits.as_ref().is_some_and(|limits| limits.timer.is_queued(at));
        limited
            || matches!(self.cold.control.as_deref(),
                Some(Control::Dcqcn(dcqcn)) if dcqcn.timer.is_queued(at))
    }

    /// Has the timer that a rate waits for run out?
    pub(crate) fn may_go_on(&mut self, timers: &mut Timers, at: Time, now: Time) -> bool {
        match self.cold.control.as_deref_mut() {
            Some(Control::Dcqcn(dcqcn)) => timers.expire(&mut dcqcn.timer, self.qpn, at, now),
            _ => false,
        }
    }
}
