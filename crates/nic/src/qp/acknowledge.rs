//! Acknowledges and NAKs: what is owed, when it leaves, and how far it speaks.
//!
//! One acknowledge stands for all requests that arrived since the last, and waits until the answers
//! before it have left. While the application answers, it may be held back, to ride behind an
//! answer.

use super::Qp;
use crate::card::Card;
use crate::env::Env;
use crate::psn::Psn;
use crate::transmit::TransmitBatch;
use crate::wire::opcode::Follows;
use crate::wire::{Aeth, Bth, Extensions, Op, Operation, Packet, Position, Syndrome};

/// What a responder owes its requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    Nothing,
    Acknowledge,
    Negative(u8),
}

/// An acknowledge that stays behind while the application answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    No,
    /// And [`Card::late`](crate::card::Card) lists the queue pair.
    Yes,
    /// It has left meanwhile; the queue pair is still listed.
    Listed,
}

/// The syndrome of an acknowledge: without a limit to what may be sent.
const ACKNOWLEDGE: u8 = Syndrome::Ack { credits: Syndrome::UNLIMITED }.byte();

/// Enough of a PSN to count a few packets by.
fn low_bits(psn: Psn) -> u16 {
    psn.value() as u16
}

/// Packets that may wait for one acknowledge while the application answers: fewer than any
/// requester has outstanding.
const LATE_MAX: u16 = 7;

/// Acknowledges that do not wait after one has waited in vain: so many at first, and twice as many
/// each time, up to 16 · 2^8. A peer that waits for acknowledges is hardly ever kept waiting.
const PROMPT: u16 = 16;
const PROMPT_DOUBLINGS_MAX: u8 = 8;

impl Qp {
    /// Sends the acknowledge or NAK that is owed. One acknowledge stands for all requests that
    /// arrived since the last.
    pub(crate) fn send_acknowledge(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) {
        let (syndrome, psn) = match self.rx.reply {
            Owed::Nothing => return,
            _ if self.rx.pending > 0 => return,
            Owed::Acknowledge => (ACKNOWLEDGE, self.acknowledges_to(env.card)),
            Owed::Negative(syndrome) => (syndrome, self.rx.expected),
        };
        self.note_acknowledge();
        let ext = Extensions { aeth: Aeth { syndrome, msn: self.rx.msn }, ..Extensions::default() };
        let op = Op::of(self.transport, Operation::Acknowledge, Position::Only, Follows::empty());
        let bth = Bth { dest_qp: self.dest_qp, psn, ..Bth::ours() };
        // With the ECN bits of data, it can leave by the same system call.
        let ecn = env.card.config.ecn;
        batch.push_last(self.path, ecn, |out| Packet::emit_headers(&bth, op, &ext, out));
        env.card.counters.tx_packets += 1;
        if syndrome == ACKNOWLEDGE {
            env.card.counters.tx_acks += 1;
        } else {
            env.card.counters.tx_naks += 1;
        }
        if core::mem::take(&mut self.rx.breaking) {
            self.fail(env);
        }
    }

    /// The acknowledge that is owed, if one is, for a request of ours to take along
    /// ([`Op::is_acknowledging`]).
    pub(super) fn take_acknowledge(&mut self, card: &mut Card) -> Option<Aeth> {
        if self.rx.reply != Owed::Acknowledge || self.rx.pending > 0 {
            return None;
        }
        let psn = self.acknowledges_to(card);
        self.note_acknowledge();
        card.counters.tx_acks += 1;
        Some(Aeth { syndrome: ACKNOWLEDGE, msn: psn.value() })
    }

    /// The acknowledge, or NAK, is on its way.
    fn note_acknowledge(&mut self) {
        self.rx.reply = Owed::Nothing;
        self.rx.acknowledged = low_bits(self.rx.expected);
        if self.rx.held == Held::Yes {
            self.rx.held = Held::Listed;
        }
    }

    /// The last PSN that an acknowledge may name.
    fn acknowledges_to(&self, card: &Card) -> Psn {
        self.first_answer_at_end(card).minus(1)
    }

    /// The PSN of the first of the READs and atomics that no other request has followed; the PSN
    /// expected next if there are none.
    ///
    /// These are acknowledged by their answers only: were one lost, a requester might take an
    /// acknowledge of its PSN for it (soft-RoCE does), and have no data. Answers that are no longer
    /// kept do not count: their requester has had them.
    fn first_answer_at_end(&self, card: &Card) -> Psn {
        let expected = self.rx.expected;
        if !self.rx.ends_with_answer {
            return expected;
        }
        let (mut first, mut end) = (expected, expected);
        let mut at = card.answers.first(&self.rx.answers);
        while let Some(answer) = card.answers.get(at) {
            if answer.psn != end {
                first = answer.psn;
            }
            end = answer.psn.plus(answer.packets);
            at = card.answers.next(at);
        }
        if end == expected { first } else { expected }
    }

    /// Lets an acknowledge wait while the application answers, if few packets wait for it and the
    /// last ones did not wait in vain; returns whether it does.
    pub(crate) fn hold_acknowledge(&mut self, card: &mut Card) -> bool {
        if self.rx.reply != Owed::Acknowledge {
            return false;
        }
        if self.rx.prompt > 0 {
            self.rx.prompt -= 1;
            return false;
        }
        if low_bits(self.rx.expected).wrapping_sub(self.rx.acknowledged) > LATE_MAX {
            // None of them waited in vain.
            self.rx.vain = 0;
            return false;
        }
        if self.rx.held == Held::No {
            card.late.push(self.qpn);
        }
        self.rx.held = Held::Yes;
        true
    }

    /// The application has answered, and no next message has come: the acknowledge leaves.
    pub(crate) fn release_acknowledge(&mut self, card: &mut Card) {
        self.note_lone_acknowledge();
        self.rx.held = Held::No;
        if self.rx.reply == Owed::Acknowledge {
            self.schedule(card);
        }
    }

    /// An acknowledge leaves without data. If it was held back, that was in vain: the peer may be
    /// waiting for acknowledges and not for answers, and the next ones leave promptly.
    pub(crate) fn note_lone_acknowledge(&mut self) {
        if self.rx.held == Held::Yes {
            self.rx.prompt = PROMPT << self.rx.vain;
            self.rx.vain = (self.rx.vain + 1).min(PROMPT_DOUBLINGS_MAX);
        }
    }
}
