//! Queue pair 1: turns packets into management datagrams and back.
//!
//! Management datagrams (MADs) are ordinary UD SENDs of 256 bytes with a well-known Q_Key. The
//! communication manager ([`crate::cm`]) knows MADs and no packets.

use crate::cm::Cm;
use crate::cm::mad::{CM_QKEY, CM_QPN};
use crate::counters::Counters;
use crate::time::Time;
use crate::transmit::{Datagram, Path, TransmitBatch};
use crate::wire::opcode::Follows;
use crate::wire::{Bth, Deth, Dialect, Extensions, Op, Operation, Packet, Position, Transport};

/// Hands a packet for queue pair 1 to the manager, if it is a management datagram.
pub(crate) fn receive(
    cm: &mut Cm,
    counters: &mut Counters,
    now: Time,
    bth: Bth,
    datagram: &Datagram<'_>,
) {
    // Queue pair 1 takes datagrams only (soft-RoCE's `check_type_state`).
    let packet = Op::lookup(bth.opcode, Dialect::STANDARD)
        .filter(|op| op.transport == Transport::Ud)
        .and_then(|op| Packet::parse(bth, op, datagram.bytes).ok());
    match packet {
        // Their Q_Key must be the one that is reserved for management (`check_keys`).
        Some(packet) if packet.ext.deth.qkey == CM_QKEY => {
            counters.rx_management += 1;
            cm.handle_mad(now, datagram.src, packet.ext.deth.src_qp, packet.payload);
        }
        Some(_) => counters.drop_qkey += 1,
        None => counters.drop_management += 1,
    }
}

/// Adds the manager's messages to `batch`, until that has `limit` packets. Returns whether there
/// are more.
#[inline(never)]
pub(crate) fn transmit(
    cm: &mut Cm,
    counters: &mut Counters,
    batch: &mut TransmitBatch,
    limit: usize,
) -> bool {
    while batch.len() < limit {
        let Some(mad) = cm.poll_mad() else { return false };
        let op = Op::of(Transport::Ud, Operation::Send, Position::Only, Follows::empty());
        let bth = Bth { dest_qp: mad.dst_qp, ..Bth::ours() };
        let deth = Deth { qkey: CM_QKEY, src_qp: CM_QPN };
        let ext = Extensions { deth, ..Extensions::default() };
        batch.push_owned(Path::new(mad.dst, CM_QPN), &mad.bytes[..], |out| {
            Packet::emit_headers(&bth, op, &ext, out)
        });
        counters.tx_packets += 1;
        counters.tx_management += 1;
    }
    true
}
