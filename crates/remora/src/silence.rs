//! Peers of a running card that do not answer: why, and what becomes of requests to them.

use std::net::IpAddr;

use remora_nic::{Silence, Time};

use crate::driver::Own;

impl Own {
    /// Finds out why peers do not answer.
    #[inline]
    pub(crate) fn look_at_silent(&mut self) {
        let told = self.fabric.has_refusals() || self.received.has_refusals();
        if told || self.nic.has_silent() || self.fabric.has_ended() || self.departed.is_any() {
            self.look_at_each_silent();
        }
    }

    #[cold]
    fn look_at_each_silent(&mut self) {
        let now = self.now();
        let mut ended = self.fabric.take_ended();
        ended.extend(self.take_refusals(now));
        while let Some(peer) = ended.pop().or_else(|| self.nic.poll_silent()) {
            let mut silence = self.silence_of(now, peer);
            tracing::debug!(%peer, ?silence, "a peer does not answer");
            if silence == Silence::Gone {
                let noted = self.departed.note(now, peer);
                // Its requests do not use up their retries meanwhile.
                silence = if noted { Silence::Held } else { Silence::Unexplained };
            }
            self.nic.handle_silence(now, &mut self.memory, peer, silence);
        }
        let mut gone = self.departed.take_over(now);
        gone.retain(|&peer| {
            // Another process may have the address by now.
            let silence = self.silence_of(now, peer);
            if silence != Silence::Gone {
                self.nic.handle_silence(now, &mut self.memory, peer, silence);
            }
            self.distant.forget(peer);
            silence == Silence::Gone
        });
        if !gone.is_empty() {
            self.nic.handle_gone(now, &mut self.memory, &gone);
        }
    }

    /// Takes what other machines have refused; returns the peers whose cards those may be.
    fn take_refusals(&mut self, now: Time) -> Vec<IpAddr> {
        let mut refusals = self.fabric.take_refusals();
        refusals.append(&mut self.received.take_refusals());
        let card = self.fabric.udp.port();
        refusals.retain(|(peer, _)| self.is_known_elsewhere(*peer));
        for (peer, port) in &refusals {
            self.distant.note_refusal(now, *peer, *port == card);
        }
        refusals.into_iter().map(|(peer, _)| peer).collect()
    }

    /// Is there a card of Remora's at `peer`, on another machine, to which nothing is done on
    /// purpose?
    fn is_known_elsewhere(&self, peer: IpAddr) -> bool {
        !self.fabric.is_here(peer) && self.nic.has_kin_at(peer) && !self.is_impaired()
    }

    fn silence_of(&mut self, now: Time, peer: IpAddr) -> Silence {
        if !self.is_known_elsewhere(peer) {
            return self.fabric.silence_of(peer);
        }
        if self.distant.is_due(now, peer) {
            self.nic.ask_for_life(peer);
            self.fabric.probe(peer);
        }
        self.distant.judge(now, peer, self.nic.has_answered(peer))
    }
}
