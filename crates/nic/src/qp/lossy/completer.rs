//! Takes the acknowledges of the lossy dialect, finds what is lost, and acts on silence.
//!
//! A packet is lost if its path has delivered one that was sent later, and the time is over in
//! which it could have been overtaken; or if other paths have, and a longer time is over. (The idea
//! is that of RFC 8985, with the sender's own clock in the packets.) If nothing more is heard, the
//! last packet is sent again as a probe, whose acknowledge shows what is missing.

use core::time::Duration;

use super::departures::Patience;
use super::paths::Slowest;
use crate::chain::Mode;
use crate::env::Env;
use crate::incident::{Cause, LossSign};
use crate::psn::Psn;
use crate::qp::refusal::status_of;
use crate::qp::requester::Recovery;
use crate::qp::retry::{ack_timeout_ns, rnr_delay, wait_apart_ns};
use crate::qp::window::Window;
use crate::qp::{Qp, State};
use crate::queue::Opcode;
use crate::silence::PATIENCE;
use crate::time::Time;
use crate::timers::nanos;
use crate::wire::{Packet, Sack, Syndrome};

/// The wait for a first sign of life before any round trip is known.
const FIRST_WAIT_NS: u64 = 1_000_000;
/// Probes are at most so far apart when the queue pair has no time-out.
const PROBE_MAX_NS: u64 = 1_000_000_000;
/// After as many probes as are counted it is this one: the same one of 64 paths as the next.
const PROBES_AGAIN: u8 = 192;

impl Qp {
    /// Notes that the peer shows life.
    #[inline]
    pub(super) fn heard(&mut self, env: &mut Env<'_>) {
        let lossy = self.lossy();
        if lossy.dormant || !lossy.asks.is_empty() {
            self.note_life(env);
        }
    }

    #[inline(never)]
    fn note_life(&mut self, env: &mut Env<'_>) {
        if self.lossy().dormant {
            return self.wake(env);
        }
        let waits = self.tx.una == self.tx.high;
        let retry_cnt = self.retry_cnt;
        let lossy = self.lossy_mut();
        // While packets are under way, only their acknowledges count.
        if waits && !lossy.asks.is_empty() {
            (lossy.quiet_since, lossy.probes) = (env.now, 0);
            self.tx.retries_left = retry_cnt;
        }
    }

    /// Has a responder that has given its answers up send again, and count retries anew.
    pub(super) fn wake(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        let lossy = self.lossy_mut();
        (lossy.dormant, lossy.quiet_since, lossy.probes, lossy.probe) = (false, now, 0, true);
        self.tx.retries_left = self.retry_cnt;
        self.schedule(env.card);
    }

    /// An acknowledge or NAK.
    pub(super) fn handle_lossy_acknowledge(&mut self, env: &mut Env<'_>, packet: &Packet<'_>) {
        if !matches!(self.state, State::Rts | State::Sqd) {
            env.card.counters.drop_qp_state += 1;
            return;
        }
        let Some(sack) = packet.ext.sack else { return };
        let syndrome = Syndrome::parse(packet.ext.aeth.syndrome);
        // A positive acknowledge includes its own PSN, another one names the refused packet.
        let end = match syndrome {
            Syndrome::Ack { .. } => packet.bth.psn.plus(1),
            Syndrome::Rnr { .. } | Syndrome::Nak(_) => packet.bth.psn,
            Syndrome::Reserved => return env.card.counters.drop_malformed += 1,
        };
        let sent = self.tx.high.distance_from(self.tx.una);
        let advanced = end.distance_from(self.tx.una);
        // It must not speak of what was not sent; an old one says nothing new.
        if advanced > sent {
            env.card.counters.drop_ghost_response += 1;
            return;
        }
        self.heard(env);
        self.lossy_mut().unanswered = 0;
        self.measure(env, &sack);
        let first = Psn::new(packet.ext.aeth.msn);
        let news = self.take_selective(env, (first, &sack)) | self.take_cumulative(env, end);
        let una = self.tx.una;
        self.lossy_mut().departures.lose_taken_back(una);
        if !self.lossy().departures.settled.is_empty() {
            self.settle_lost(env, &sack);
        }
        if news {
            let retry_cnt = self.retry_cnt;
            let lossy = self.lossy_mut();
            (lossy.quiet_since, lossy.probes) = (env.now, 0);
            self.tx.retries_left = retry_cnt;
        }
        self.complete_lossy(env);
        match syndrome {
            Syndrome::Rnr { timer } => self.wait_for_lossy_receiver(env, end, timer),
            Syndrome::Nak(nak) => {
                env.card.counters.rx_naks += 1;
                let about = (Some(packet.op), end);
                self.fail_front_for(env, status_of(nak), Cause::Told(nak), about);
            }
            _ => {}
        }
        if self.state == State::Error {
            return;
        }
        let late = self.find_lost(env);
        let (high, now) = (self.tx.high, env.now);
        self.lossy_mut().paths.revive(high, now);
        self.settle_failures(env);
        if self.state != State::Error {
            self.arm_lossy_for(env, Some(late));
            self.schedule(env.card);
        }
    }

    /// Takes the round trip and the marks that an acknowledge tells of.
    fn measure(&mut self, env: &mut Env<'_>, sack: &Sack) {
        let now = env.now;
        let lossy = self.lossy_mut();
        let received = sack.received.wrapping_sub(lossy.peer_received);
        let marked = sack.marked.wrapping_sub(lossy.peer_marked);
        // An acknowledge that was overtaken has older counts.
        let counted = received != 0 && received < 1 << 15 && marked <= received;
        if counted {
            (lossy.peer_received, lossy.peer_marked) = (sack.received, sack.marked);
        }
        let held_ns = u64::from(sack.held) * Sack::HELD_UNIT;
        let ago_ns = u64::from((now.0 as u32).wrapping_sub(sack.echo));
        let plausible = sack.flags & Sack::ECHO != 0 && ago_ns < 1 << 31 && ago_ns >= held_ns;
        if plausible {
            lossy.held_ns = held_ns.max(lossy.held_ns * 7 / 8);
            lossy.paths.measured(sack.path, ago_ns - held_ns, now);
            let sent = Time(now.0.saturating_sub(ago_ns));
            lossy.paths.delivered(sack.path, sent, None);
        }
        if sack.flags & Sack::COPY != 0 {
            self.note_copy(env, sack.echo, Time(now.0.saturating_sub(ago_ns)));
        }
        if counted {
            if marked > 0 {
                self.lossy_mut().recoveries.stop_doubting();
            }
            self.note_marks(now, received, marked);
        }
        if plausible && self.mode.contains(Mode::CONTROLLED) {
            let least = Duration::from_nanos(self.lossy().paths.least_ns(sack.path));
            let before = self.tx.window.size();
            self.note_round_trip(Duration::from_nanos(ago_ns - held_ns), least);
            if self.tx.window.size() < before {
                self.lossy_mut().recoveries.stop_doubting();
            }
        }
    }

    /// The peer reports a copy of what was sent at that time.
    #[inline(never)]
    fn note_copy(&mut self, env: &mut Env<'_>, echo: u32, sent: Time) {
        let lossy = self.lossy_mut();
        // A question, or a probe of a packet that had arrived, says nothing about the order of
        // packets.
        if echo == lossy.probed_at.0 as u32 {
            return lossy.departures.lose_unreadable(lossy.probed_at);
        }
        let undone = lossy.recoveries.settle_copy(sent);
        env.card.counters.tx_for_nothing += 1;
        self.undo(env, undone);
    }

    /// Takes what the last recovery has done to the window back, if it was for nothing.
    fn undo(&mut self, env: &mut Env<'_>, before: Option<Window>) {
        if let Some(before) = before {
            env.card.counters.recoveries_undone += 1;
            self.tx.window.undo(before);
        }
    }

    /// Takes the packets that had been found lost or sent again, and have arrived now, as this
    /// acknowledge says.
    #[inline(never)]
    fn settle_lost(&mut self, env: &mut Env<'_>, sack: &Sack) {
        let settled = core::mem::take(&mut self.lossy_mut().departures.settled);
        for packet in settled {
            let lossy = self.lossy_mut();
            let path = lossy.paths.of(packet.psn, packet.tries);
            // A probe has brought what had not come before: no later packet shows that loss.
            let is_echo = packet.again.is_some_and(|again| again.0 as u32 == sack.echo);
            let is_first = sack.flags & (Sack::ECHO | Sack::COPY) == Sack::ECHO;
            if packet.found.is_none() && is_echo && is_first && path == sack.path {
                lossy.paths.lost(lossy.paths.of(packet.psn, 0));
                self.retire_path(env);
            }
            let lossy = self.lossy_mut();
            let least_ns = lossy.paths.least_ns(path);
            let undone = lossy.recoveries.settle(env.now, packet, least_ns);
            self.undo(env, undone);
        }
    }

    /// Retires a path that has lost much more than the others, if there is one.
    fn retire_path(&mut self, env: &mut Env<'_>) {
        let (high, now) = (self.tx.high, env.now);
        let retired = self.lossy_mut().paths.retire(high, now);
        env.card.counters.paths_retired += u64::from(retired);
    }

    /// Takes the bitmap of an acknowledge. Returns whether it says something new.
    fn take_selective(&mut self, env: &mut Env<'_>, (first, sack): (Psn, &Sack)) -> bool {
        let (una, sent) = (self.tx.una, self.tx.high.distance_from(self.tx.una));
        let mut bits = sack.bitmap;
        let (mut news, mut ghosts) = (false, false);
        while bits != 0 {
            let psn = first.plus(bits.trailing_zeros());
            bits &= bits - 1;
            // A packet that was not sent, or whose arrival was known before, says nothing.
            if psn.distance_from(una) >= sent {
                ghosts |= !psn.is_before(una);
                continue;
            }
            let lossy = self.lossy_mut();
            let Some((left, tries)) = lossy.departures.arrived(una, psn) else { continue };
            news = true;
            if let Some(left) = left {
                let path = lossy.paths.of(psn, tries);
                lossy.paths.delivered(path, left, Some(psn));
            }
        }
        env.card.counters.rx_selective += u64::from(news);
        env.card.counters.drop_ghost_selective += u64::from(ghosts);
        news
    }

    /// All before `end` has arrived. Returns whether that is new.
    fn take_cumulative(&mut self, env: &mut Env<'_>, end: Psn) -> bool {
        let packets = end.distance_from(self.tx.una);
        if packets == 0 {
            return false;
        }
        self.tx.una = end;
        self.tx.debug_assert_in_order();
        self.note_acknowledged(env, packets, end);
        self.tx.rnr_retries_left = self.rnr_retry;
        // What the wait was for has been done.
        self.tx.recovery = Recovery::Nothing;
        let lossy = self.lossy_mut();
        lossy.departures.advance(end, packets);
        lossy.paths.advance(end, packets);
        lossy.recoveries.advance(end);
        true
    }

    /// Completes the oldest messages that are acknowledged, and answered if they want an answer.
    pub(super) fn complete_lossy(&mut self, env: &mut Env<'_>) {
        self.complete_local(env);
        while let Some(work) = env.card.outstanding.front(&self.tx.outstanding) {
            // The cursor stands at a message that has not left.
            let left = self.tx.cursor != env.card.outstanding.first(&self.tx.outstanding);
            let arrived = left && !self.tx.una.is_before(work.end());
            if !arrived || work.failed.is_some() || work.element.opcode.is_local() {
                break;
            }
            if work.element.opcode.wants_response() && self.awaits(work) {
                break;
            }
            self.complete_front(env);
        }
        let una = self.tx.una;
        let lossy = self.lossy_mut();
        while let Some(work) = env.card.outstanding.front(&lossy.answers) {
            // One that has not left whole is not acknowledged, however far ahead its end is. One
            // behind a message that the peer is not ready for has arrived if all its packets have.
            let left = lossy.answer != env.card.outstanding.first(&lossy.answers);
            let arrived = !una.is_before(work.end())
                || lossy.departures.have_arrived(una, (work.psn, work.packets));
            if !left || !arrived {
                break;
            }
            env.card.outstanding.pop_beyond(&mut lossy.answers);
        }
        if self.rx.breaking && !self.owes_lossy_answers() {
            self.schedule(env.card);
        }
    }

    /// The receiver has no element for the packet `psn`, or no room for it: it is sent again later.
    fn wait_for_lossy_receiver(&mut self, env: &mut Env<'_>, psn: Psn, timer: u8) {
        env.card.counters.rx_naks += 1;
        env.card.counters.rx_rnr_naks += 1;
        // Several copies of a packet may be refused: they begin one wait. A packet that was not
        // sent, or that is known to have arrived, is not waited for.
        let sent = self.tx.high.distance_from(self.tx.una);
        if self.tx.recovery == Recovery::RnrWait || psn != self.tx.una || sent == 0 {
            return;
        }
        if !self.rnr_retry_or_give_up(env, psn) {
            return;
        }
        self.tx.recovery = Recovery::RnrWait;
        let now = env.now;
        let lossy = self.lossy_mut();
        (lossy.quiet_since, lossy.probes) = (now, 0);
        lossy.departures.take_back();
        self.lose_sends(env, psn);
        env.card.timers.arm(&mut self.tx.timer, self.qpn, env.now + rnr_delay(timer));
    }

    /// Counts `psn` as lost, and all packets of SENDs behind it: without an element for the first
    /// there was none for those.
    fn lose_sends(&mut self, env: &mut Env<'_>, psn: Psn) {
        let (una, high) = (self.tx.una, self.tx.high);
        self.lossy_mut().departures.lose(una, psn, None);
        let pool = &env.card.outstanding;
        let mut at = pool.find(&self.tx.outstanding, |work| work.holds(psn));
        while let Some(work) = pool.get(at) {
            if !work.psn.is_before(high) {
                break;
            }
            use Opcode::{Send, SendImm, SendInvalidate};
            if matches!(work.element.opcode, Send | SendImm | SendInvalidate) {
                let from = if work.psn.is_before(psn) { psn } else { work.psn };
                let end = if work.end().is_before(high) { work.end() } else { high };
                let departures = &mut self.cold.lossy.as_mut().expect("it is lossy").departures;
                for ahead in 0..end.distance_from(from) {
                    departures.lose(una, from.plus(ahead), None);
                }
            }
            at = pool.next(at);
        }
    }

    /// Counts the last packet of answers that has not arrived as lost, after a wait for a receive
    /// element. No probe asks for it as long as such waits follow each other, and the peer may post
    /// its element only when it has the answer.
    fn lose_last_answer(&mut self, env: &Env<'_>) {
        let (una, sent) = (self.tx.una, self.tx.high.distance_from(self.tx.una));
        let lossy = self.lossy();
        let is_answer = |psn| lossy.is_answer(env.card, psn);
        if let Some(psn) = lossy.departures.last_missing((una, sent), is_answer) {
            self.lossy_mut().departures.lose(una, psn, None);
        }
    }

    /// Counts packets as lost that are by now. Returns when the next may be.
    #[inline]
    fn find_lost(&mut self, env: &mut Env<'_>) -> Time {
        if self.lossy().departures.is_troubled() { self.find_late(env) } else { Time::NEVER }
    }

    #[inline(never)]
    fn find_late(&mut self, env: &mut Env<'_>) -> Time {
        let (una, high, now) = (self.tx.una, self.tx.high, env.now);
        let window = self.tx.window;
        let lossy = self.lossy_mut();
        let slowest = lossy.paths.slowest();
        let slowest_ns = slowest.map_or(FIRST_WAIT_NS, |slowest| slowest.smoothed_ns);
        let quarters = lossy.recoveries.quarters;
        let other_paths_ns = slowest_ns * (4 + quarters) / 4 + lossy.held_ns;
        let patience = Patience { quarters, other_paths_ns, first_ns: other_paths_ns * 4 };
        let sent = high.distance_from(una);
        let found = lossy.departures.find_lost((una, sent), now, &mut lossy.paths, patience);
        let (lost, next) = found;
        if lost > 0 {
            lossy.recoveries.begin(now, lost, high, window);
            env.card.counters.found_lost += u64::from(lost);
            self.retire_path(env);
            self.note_loss(now);
            self.schedule(env.card);
        }
        next
    }

    /// How long after the last packet or probe it is sent again (RFC 8985's tail loss probe): for
    /// each further probe twice as long. `silence_ns` is [`Qp::silence_ns`].
    fn probe_after_ns(
        &self,
        env: &Env<'_>,
        slowest: Option<Slowest>,
        silence_ns: Option<u64>,
    ) -> u64 {
        let lossy = self.lossy();
        let wait = slowest.map_or(FIRST_WAIT_NS, |slowest| {
            // Twice the round trip, if that were always the same.
            slowest.smoothed_ns + slowest.least_ns.max(slowest.deviation_ns * 2)
        });
        let wait = wait.max(nanos(env.card.config.probe_floor)) + lossy.held_ns;
        let most = silence_ns.unwrap_or(PROBE_MAX_NS).max(wait);
        wait.saturating_mul(1 << lossy.probes.saturating_sub(1).min(16)).min(most)
    }

    /// How long the peer may be silent before that counts as a time-out, in nanoseconds.
    fn silence_ns(&self, env: &Env<'_>) -> Option<u64> {
        let vain = self.retry_cnt.saturating_sub(self.tx.retries_left);
        let least = env.card.least_wait_ns();
        ack_timeout_ns(self.timeout).map(|wait| wait_apart_ns(wait.max(least), vain, self.qpn))
    }

    /// A rate has let packets leave, and lets the `next` one leave at that time: from then on the
    /// time to a probe counts, and if some of these were new, the peer's silence from now on.
    pub(in crate::qp) fn wait_at_rate(&mut self, env: &mut Env<'_>, new: bool, next: Time) {
        let lossy = self.lossy_mut();
        if new {
            lossy.quiet_since = env.now;
        }
        lossy.departures.leaves_next(next);
        self.arm_lossy(env);
    }

    /// When the last packet is sent again unless there are news before.
    fn probe_at(&self, env: &Env<'_>, silence_ns: Option<u64>) -> Time {
        let lossy = self.lossy();
        let slowest = lossy.paths.slowest();
        let wait = self.probe_after_ns(env, slowest, silence_ns);
        let after_news = match slowest {
            // News come several times in a round trip while packets are under way. An answer may
            // take the peer longer.
            Some(slowest) if self.tx.una != self.tx.high => slowest.smoothed_ns / 4 + lossy.held_ns,
            _ => wait,
        };
        let last = lossy.departures.last_left().max(lossy.probed_at);
        last.plus_ns(wait).max(lossy.quiet_since.plus_ns(after_news))
    }

    /// Sets the timer for what is due next.
    pub(super) fn arm_lossy(&mut self, env: &mut Env<'_>) {
        self.arm_lossy_for(env, None);
    }

    /// As [`Qp::arm_lossy`]; `late` says when a packet may be found lost, if that is known.
    #[inline(always)]
    fn arm_lossy_for(&mut self, env: &mut Env<'_>, late: Option<Time>) {
        if self.tx.recovery == Recovery::RnrWait {
            return;
        }
        let idle = self.tx.una == self.tx.high && self.lossy().asks.is_empty();
        if idle || self.lossy().dormant {
            return self.tx.timer.disarm();
        }
        let late = match late {
            Some(late) => late,
            None => self.find_lost(env),
        };
        let silence_ns = self.silence_ns(env);
        let probe = self.probe_at(env, silence_ns);
        let silence = silence_ns.map(|wait| self.lossy().quiet_since.plus_ns(wait));
        let due = late.min(probe).min(silence.unwrap_or(Time::NEVER));
        env.card.timers.arm(&mut self.tx.timer, self.qpn, due.max(env.now));
    }

    /// The timer has run out: a packet is late by now, or nothing has been heard for long.
    pub(crate) fn handle_lossy_timeout(&mut self, env: &mut Env<'_>) {
        if core::mem::replace(&mut self.tx.recovery, Recovery::Nothing) == Recovery::RnrWait {
            self.lossy_mut().quiet_since = env.now;
            self.lose_last_answer(env);
            self.schedule(env.card);
            return self.arm_lossy(env);
        }
        if self.tx.una == self.tx.high && self.lossy().asks.is_empty() {
            return;
        }
        let silence_ns = self.silence_ns(env);
        if silence_ns.is_some_and(|wait| env.now.ns_since(self.lossy().quiet_since) >= wait) {
            return self.on_silence(env);
        }
        if env.now >= self.probe_at(env, silence_ns) {
            let now = env.now;
            let lossy = self.lossy_mut();
            lossy.probe = true;
            // It goes round, as each probe takes another path.
            lossy.probes = lossy.probes.checked_add(1).unwrap_or(PROBES_AGAIN);
            lossy.probed_at = now;
            env.card.counters.probes += 1;
            self.schedule(env.card);
        }
        self.arm_lossy(env);
    }

    /// Does the peer still acknowledge, after so much trouble? It is given up after as many
    /// time-outs as retries and one in a row without an acknowledge, whatever that would say. One
    /// that tells nothing new says that what it has not got is lost in queues that others keep
    /// full.
    fn is_there(&self, trouble: Duration) -> bool {
        trouble < PATIENCE && self.lossy().unanswered <= self.retry_cnt
    }

    /// The peer has been silent for as long as the queue pair's time-out.
    fn on_silence(&mut self, env: &mut Env<'_>) {
        env.card.counters.timeouts += 1;
        let lossy = self.lossy_mut();
        lossy.unanswered = lossy.unanswered.saturating_add(1);
        env.card.silent.ask(self.path.dst);
        // A responder does not know whether anybody waits for its answers. It does not fail, but
        // sends no more until it hears of the peer.
        let answers_only = self.tx.outstanding.is_empty();
        if self.tx.retries_left == 0 && answers_only && !self.rx.breaking {
            self.lossy_mut().dormant = true;
            return self.tx.timer.disarm();
        }
        let (lost, since) = ((self.tx.una, LossSign::Timeout), self.lossy().quiet_since);
        if !self.retry_or_give_up(env, lost, since, Qp::is_there) {
            return;
        }
        self.note_silence(env.now);
        // A packet is seldom lost so often: the peer may have gone, or others keep a queue full.
        let asks = 2 * self.tx.retries_left <= self.retry_cnt;
        let (una, sent) = (self.tx.una, self.tx.high.distance_from(self.tx.una));
        let now = env.now;
        let lossy = self.lossy_mut();
        lossy.quiet_since = now;
        (lossy.probe, lossy.question) = (true, asks);
        lossy.recoveries.stop_doubting();
        lossy.departures.take_back();
        for ahead in 0..sent {
            lossy.departures.lose(una, una.plus(ahead), None);
        }
        self.schedule(env.card);
        self.arm_lossy(env);
    }
}
