//! Acknowledges and NAKs: what the responder owes, when it leaves, and which PSN it names.
//!
//! An acknowledge speaks for its PSN and for all before it (InfiniBand volume 1, chapter 9,
//! Transport Layer), so that one is enough for all requests since the last one. It waits until the
//! READ and atomic answers before it have left. While the application prepares an answer, the
//! acknowledge may be held back, so that both leave by one system call.

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

/// Whether an acknowledge is held back while the application prepares an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeldAck {
    No,
    /// It is held back, and [`Card::late`](crate::card::Card) lists the queue pair.
    Yes,
    /// It has left meanwhile, and the queue pair is still listed.
    Listed,
}

/// The syndrome of an acknowledge that grants unlimited credits.
pub(super) const ACKNOWLEDGE: u8 = Syndrome::Ack { credits: Syndrome::UNLIMITED }.byte();

/// The low 16 bits of a PSN: enough to count a few packets.
fn low_bits(psn: Psn) -> u16 {
    psn.value() as u16
}

/// How many packets may wait for one acknowledge that is held back: fewer than requesters usually
/// have outstanding.
const LATE_MAX: u16 = 7;

/// How many acknowledges leave at once after holding one back has saved no packet: 16 the first
/// time, and twice as many each further time, up to 16 · 2^8. So a peer that waits for acknowledges
/// is seldom kept waiting.
const PROMPT: u16 = 16;
const PROMPT_DOUBLINGS_MAX: u8 = 8;

impl Qp {
    /// Sends the acknowledge or NAK that is owed.
    pub(crate) fn send_acknowledge(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) {
        if self.is_lossy() {
            return self.send_lossy_acknowledge(env, batch);
        }
        let (syndrome, psn) = match self.rx.reply {
            Owed::Nothing => return,
            // An acknowledge would pass READ or atomic answers that have not left, and a requester
            // takes those for lost then: answers leave first.
            _ if self.rx.pending > 0 => return,
            Owed::Acknowledge => (ACKNOWLEDGE, self.acknowledges_to(env.card)),
            // A NAK names the expected PSN, and so acknowledges all before it.
            Owed::Negative(syndrome) => (syndrome, self.rx.expected),
        };
        self.note_acknowledge();
        self.push_acknowledge(env, batch, psn, syndrome);
        if core::mem::take(&mut self.rx.breaking) {
            self.fail(env);
        }
    }

    /// Sends an acknowledge or NAK that names this PSN.
    #[inline(always)]
    pub(super) fn push_acknowledge(
        &self,
        env: &mut Env<'_>,
        batch: &mut TransmitBatch,
        psn: Psn,
        syndrome: u8,
    ) {
        let ext = Extensions { aeth: Aeth { syndrome, msn: self.rx.msn }, ..Extensions::default() };
        let op = Op::of(self.transport, Operation::Acknowledge, Position::Only, Follows::empty());
        let bth = Bth { dest_qp: self.dest_qp, psn, ..Bth::ours() };
        // With the same ECN bits as data, it can leave by the same system call.
        let ecn = env.card.config.ecn;
        batch.push_last(self.path, ecn, |out| Packet::emit_headers(&bth, op, &ext, out));
        env.card.counters.tx_packets += 1;
        if syndrome == ACKNOWLEDGE {
            env.card.counters.tx_acks += 1;
        } else {
            env.card.counters.tx_naks += 1;
        }
    }

    /// Takes the acknowledge that is owed, if there is one, to send it in the header of a request
    /// ([`Op::is_acknowledging`]).
    pub(super) fn take_acknowledge(&mut self, card: &mut Card) -> Option<Aeth> {
        // As in `send_acknowledge`: a NAK has a packet of its own, and answers leave first.
        if self.rx.reply != Owed::Acknowledge || self.rx.pending > 0 {
            return None;
        }
        let psn = self.acknowledges_to(card);
        self.note_acknowledge();
        card.counters.tx_acks += 1;
        Some(Aeth { syndrome: ACKNOWLEDGE, msn: psn.value() })
    }

    /// Notes that the acknowledge or NAK that was owed is leaving.
    pub(super) fn note_acknowledge(&mut self) {
        self.rx.reply = Owed::Nothing;
        self.rx.acknowledged = low_bits(self.rx.expected);
        if self.rx.held == HeldAck::Yes {
            self.rx.held = HeldAck::Listed;
        }
    }

    /// The last PSN that an acknowledge may name.
    fn acknowledges_to(&self, card: &Card) -> Psn {
        self.first_answer_at_end(card).minus(1)
    }

    /// The PSN of the first READ or atomic in the unbroken row of them that ends at the expected
    /// PSN; the expected PSN itself if the last request was neither.
    ///
    /// Only their answers acknowledge these requests. If such an answer is lost, a requester may
    /// take an acknowledge with its PSN for the answer, as soft-RoCE does, and never get the data.
    /// Answers that are no longer kept do not count, as their requester has received them.
    fn first_answer_at_end(&self, card: &Card) -> Psn {
        let expected = self.rx.expected;
        if !self.rx.ends_with_answer {
            return expected;
        }
        let (mut first, mut end) = (expected, expected);
        let mut at = card.answers.first(&self.cold.answers);
        while let Some(answer) = card.answers.get(at) {
            if answer.psn != end {
                first = answer.psn;
            }
            end = answer.psn.plus(answer.packets);
            at = card.answers.next(at);
        }
        if end == expected { first } else { expected }
    }

    /// Holds the acknowledge back while the application prepares an answer, if few packets wait for
    /// it and holding back has saved packets lately. Returns whether it is held back.
    pub(crate) fn hold_acknowledge(&mut self, card: &mut Card) -> bool {
        if self.rx.reply != Owed::Acknowledge || self.is_lossy() && self.acknowledges_at_once() {
            return false;
        }
        if self.rx.prompt > 0 {
            self.rx.prompt -= 1;
            return false;
        }
        if low_bits(self.rx.expected).wrapping_sub(self.rx.acknowledged) > LATE_MAX {
            // So many packets for one acknowledge: holding back saved some.
            self.rx.vain = 0;
            return false;
        }
        if self.rx.held == HeldAck::No {
            card.late.push(self.qpn);
        }
        self.rx.held = HeldAck::Yes;
        true
    }

    /// Lets the acknowledge leave: the application has answered, and no further message has come.
    pub(crate) fn release_acknowledge(&mut self, card: &mut Card) {
        self.note_lone_acknowledge();
        self.rx.held = HeldAck::No;
        if self.rx.reply == Owed::Acknowledge {
            self.schedule(card);
        }
    }

    /// Notes that an acknowledge leaves without data. If it was held back, that saved nothing: the
    /// peer may be waiting for acknowledges and not for answers, so the next ones leave at once.
    pub(crate) fn note_lone_acknowledge(&mut self) {
        if self.rx.held == HeldAck::Yes {
            self.rx.prompt = PROMPT << self.rx.vain;
            self.rx.vain = (self.rx.vain + 1).min(PROMPT_DOUBLINGS_MAX);
        }
    }
}
