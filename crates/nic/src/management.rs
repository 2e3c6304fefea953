//! Queue pair 1: between the communication manager and packets.
//!
//! Management datagrams are ordinary UD SENDs of 256 bytes with a well-known Q_Key; the manager
//! ([`crate::cm`]) knows nothing of packets, so they are wrapped and unwrapped here.

use crate::cm::Cm;
use crate::cm::mad::{CM_QKEY, CM_QPN};
use crate::counters::Counters;
use crate::time::Time;
use crate::transmit::{Datagram, Path, TransmitBatch};
use crate::wire::opcode::Follows;
use crate::wire::{Bth, Deth, Dialect, Extensions, Op, Operation, Packet, Position, Transport};

/// A packet for queue pair 1: to the manager, if it is a management datagram.
pub(crate) fn receive(
    cm: &mut Cm,
    counters: &mut Counters,
    now: Time,
    bth: Bth,
    datagram: &Datagram<'_>,
) {
    let packet = Op::lookup(bth.opcode, Dialect::Standard)
        .filter(|op| op.transport == Transport::Ud)
        .and_then(|op| Packet::parse(bth, op, datagram.bytes).ok());
    match packet {
        Some(packet) if packet.ext.deth.qkey == CM_QKEY => {
            counters.rx_management += 1;
            cm.handle_mad(now, datagram.src, packet.ext.deth.src_qp, packet.payload);
        }
        Some(_) => counters.drop_qkey += 1,
        None => counters.drop_management += 1,
    }
}

/// Adds what the manager wants sent to `batch`, up to `limit` packets; returns whether there is
/// more.
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
