//! The packets of models: a base header, and zeros up to the length that the papers state.

use remora_nic::Psn;
use remora_nic::wire::opcode::Follows;
use remora_nic::wire::{Bth, ICRC_LEN, MAX_HEADER, Op, Operation, Packet, Position, Transport};

use crate::dice::mix;
use crate::net::{self, Cargo, Head};
use crate::selective::ACKNOWLEDGE;
use crate::selective::receiver::Reply;
use crate::world::outer;

/// The place in an acknowledge of the packet that it names: behind the base header and its own.
const NAMED: usize = 16;
/// It names none.
const NONE: u32 = u32::MAX;
/// The bytes of a congestion notification: base header, 16 reserved bytes, ICRC.
const CNP: u64 = 12 + 16 + 4;
/// Traffic class: the packet heeds marks (ECT(0)).
const HEEDS: u8 = 2;

/// What a packet says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// This packet of the flow.
    Data { psn: u64 },
    /// An acknowledge, and whether the packet that it is about was marked.
    Acknowledge { reply: Reply, marked: bool },
    /// A congestion notification.
    Notification,
}

/// A packet of a flow: from and to which host, and what it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Letter {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) flow: u32,
    pub(super) says: Says,
}

/// The lengths of a packet with data, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lengths {
    /// Headers and ICRC.
    pub(super) headers: u64,
    pub(super) payload: u64,
}

impl Letter {
    /// The packet. `lengths` are for one with data.
    pub(super) fn seal(&self, lengths: Lengths) -> (net::Packet, Cargo) {
        let Letter { from, to, flow, says } = *self;
        let (operation, psn, becn, len) = match says {
            Says::Data { psn } => {
                let len = lengths.headers + lengths.payload.next_multiple_of(4);
                (Operation::Write, psn, false, len)
            }
            Says::Acknowledge { reply, marked } => {
                (Operation::Acknowledge, reply.end, marked, ACKNOWLEDGE)
            }
            Says::Notification => (Operation::Cnp, 0, true, CNP),
        };
        // A model's receiver needs to know no message's beginning or end.
        let position = match says {
            Says::Data { .. } => Position::Middle,
            _ => Position::Only,
        };
        let opcode = Op::of(Transport::Rc, operation, position, Follows::empty()).code;
        let psn = Psn::new(psn as u32);
        let mut bytes = [0; MAX_HEADER];
        let bth = Bth { opcode, becn, dest_qp: flow, psn, ..Bth::ours() };
        if let Some(start) = bytes.first_chunk_mut() {
            bth.emit(start);
        }
        let mut header = len as usize - ICRC_LEN;
        match says {
            Says::Data { .. } => header = lengths.headers as usize - ICRC_LEN,
            Says::Acknowledge { reply, .. } => {
                let named = reply.named.map_or(NONE, |psn| psn as u32);
                bytes[NAMED..NAMED + 4].copy_from_slice(&named.to_be_bytes());
            }
            Says::Notification => {}
        }
        let tos = if operation == Operation::Write { HEEDS } else { 0 };
        let src_port = 0xC000 | mix(flow.into()) as u16 & 0x3FFF;
        let head = Head::new(&bytes[..header], (tos, src_port), from, len as u32);
        (outer((from, to), src_port, tos, len as u32), Cargo::Head(head))
    }

    /// Reads what a packet says from its headers. `None`: it is no packet of a model.
    pub(super) fn read(head: &Head, to: u32) -> Option<Letter> {
        let header = head.header();
        let bth = Packet::bth(header).ok()?;
        let op = Op::lookup(bth.opcode, remora_nic::wire::Dialect::STANDARD)?;
        let psn = u64::from(bth.psn.value());
        let says = match op.operation {
            Operation::Write => Says::Data { psn },
            Operation::Cnp => Says::Notification,
            Operation::Acknowledge => {
                let named = header.get(NAMED..NAMED + 4)?.try_into().ok()?;
                let named = u32::from_be_bytes(named);
                let named = (named != NONE).then_some(named.into());
                Says::Acknowledge { reply: Reply { end: psn, named }, marked: bth.becn }
            }
            _ => return None,
        };
        Some(Letter { from: head.src, to, flow: bth.dest_qp, says })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read() {
        let reply = |named| Reply { end: 77, named };
        for says in [
            Says::Data { psn: 5 },
            Says::Acknowledge { reply: reply(None), marked: true },
            Says::Acknowledge { reply: reply(Some(1 << 20)), marked: false },
            Says::Notification,
        ] {
            let letter = Letter { from: 3, to: 4, flow: 70_000, says };
            let lengths = Lengths { headers: 36, payload: 1022 };
            let (packet, cargo) = letter.seal(lengths);
            let Cargo::Head(head) = cargo else { panic!("a model has no bytes") };
            assert_eq!(Letter::read(&head, 4), Some(letter));
            let bytes = match says {
                Says::Data { .. } => 36 + 1024 + 66,
                Says::Acknowledge { .. } => 24 + 66,
                Says::Notification => 32 + 66,
            };
            assert_eq!((packet.bytes, packet.dst), (bytes, 4));
            assert_eq!(packet.heeds_marks, matches!(says, Says::Data { .. }));
        }
    }
}
