//! The local shortcut: packets from one queue pair of the card to another, or to itself.
//!
//! The card hands them over itself, right behind the turn that has made them, and the driver never
//! sees them. They are the packets that would leave otherwise: with their PSNs, their acknowledges
//! and NAKs, and with the timers of their requesters. So whatever holds on the wire holds here, and
//! a queue pair may change between both at any time. What is saved is the way to the network and
//! back: system calls, checksums, the network itself.
//!
//! Most SENDs and WRITEs need not even packets: see `qp/direct.rs`. Long ones are cut: after some
//! bytes the driver looks for packets and doorbells, and others have their turns.
//!
//! Loop-back (`qp/loop_back.rs`) is another thing: its queue pairs are made for chains, and have no
//! packets.

use super::Nic;
use crate::chain::Mode;
use crate::env::Env;
use crate::memory::{Memory, MemoryFault};
use crate::qp::{Qp, Ran, direct_turn, loop_back_turns};
use crate::scheduler::Round;
use crate::staging::Staging;
use crate::time::Time;
use crate::transmit::{Datagram, PayloadRef, Transmit, TransmitBatch};
use crate::wire::{Packet, ROCE_PORT};

/// What a packet and a direct message cost of a round, in elements of loop-back queue pairs, and
/// how many bytes of a message cost one more: the driver must look at doorbells again soon. So a
/// client's turn of long messages is a round of its own.
const PACKET_COST: u32 = 16;
const MESSAGE_COST: u32 = 8;
const BYTES_OF_ONE: u32 = 64;

/// Room for the packets that are handed over, which is used again and again.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    packets: Vec<Transmit>,
    staging: Staging,
}

impl Nic {
    /// Switches the local shortcut on or off: see [`crate::Config::local_shortcut`]. Packets that
    /// the driver has got before are overtaken, which is as harmless as it is on a network.
    pub fn set_local_shortcut(&mut self, on: bool) {
        self.card.config.local_shortcut = on;
        for qp in self.qps.iter_mut() {
            qp.note_path(&self.card.config);
            qp.end_passes(&mut self.card);
        }
    }

    /// Gives a queue pair a turn whose requests are carried out in the card, or whose packets may
    /// be for the card itself.
    #[inline(never)]
    pub(super) fn turn_in_card(
        &mut self,
        (now, mem): (Time, &mut dyn Memory),
        qpn: u32,
        round: &mut Round,
        batch: &mut TransmitBatch,
    ) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        let mut env = Env { now, mem: &mut *mem, card: &mut self.card, kernels: &mut self.kernels };
        if qp.mode.contains(Mode::LOOP_BACK) {
            return loop_back_turns(&mut self.qps, &mut env, qpn, round);
        }
        let again = if let Ran { messages: messages @ 1.., bytes } =
            direct_turn(&mut self.qps, &mut env, qpn)
        {
            let by_messages = messages.saturating_mul(MESSAGE_COST);
            round.spend_in_card(by_messages.saturating_add(bytes / BYTES_OF_ONE));
            self.qps.get(qpn).is_some_and(Qp::has_more)
        } else {
            let Some(qp) = self.qps.get_mut(qpn) else { return };
            batch.set_sender(qpn);
            let from = batch.place();
            let again = qp.turn(&mut env, batch);
            let mut hand_over = core::mem::take(&mut self.hand_over);
            batch.take_to(self.card.config.address, &from, &mut hand_over.packets);
            for packet in hand_over.packets.drain(..) {
                round.spend_in_card(PACKET_COST);
                self.hand_over(now, mem, (&packet, batch), &mut hand_over.staging);
            }
            batch.rewind_to(&from);
            self.hand_over = hand_over;
            again
        };
        if let Some(qp) = self.qps.get_mut(qpn).filter(|_| again) {
            qp.schedule(&mut self.card);
        }
    }

    /// Hands a packet over to the queue pair that it names.
    fn hand_over(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        (packet, batch): (&Transmit, &TransmitBatch),
        staging: &mut Staging,
    ) {
        // As a driver does that cannot read the payload.
        let Ok(bytes) = gather(packet, batch, mem, staging) else {
            return self.handle_fault(now, mem, packet);
        };
        let (src, src_port) = (self.card.config.address, ROCE_PORT);
        let tos = packet.path.traffic_class & !3 | packet.ecn as u8;
        let datagram = Datagram { src, src_port, dst: packet.path.dst, ip_id: None, tos, bytes };
        let Ok(bth) = Packet::bth(bytes) else { return };
        self.card.counters.rx_packets += 1;
        self.card.counters.local_packets += 1;
        if self.card.unsettled.is_some() {
            self.settle(now, mem);
        }
        self.route_packet(now, mem, bth, &datagram);
    }
}

/// Lays out a packet as it would be on the wire, with zeroes for its ICRC.
fn gather<'s>(
    packet: &Transmit,
    batch: &TransmitBatch,
    mem: &mut dyn Memory,
    staging: &'s mut Staging,
) -> Result<&'s [u8], MemoryFault> {
    let headers = packet.header().len();
    let bytes = staging.room(headers, packet.datagram_len() - headers);
    bytes[..headers].copy_from_slice(packet.header());
    let (payload, rest) = bytes[headers..].split_at_mut(packet.payload_len());
    match batch.payload(packet) {
        PayloadRef::Segments(segments) => {
            let mut at = 0;
            for segment in segments {
                let end = at + segment.len as usize;
                mem.read(segment.addr, &mut payload[at..end])?;
                at = end;
            }
        }
        PayloadRef::Bytes(owned) => payload.copy_from_slice(owned),
    }
    rest.fill(0);
    Ok(bytes)
}
