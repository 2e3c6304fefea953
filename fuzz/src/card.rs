//! Any bytes as packets for a card with live queue pairs.

use remora_nic::Counters;
use remora_nic::cm::mad::{CM_QKEY, CM_QPN, MAD_LEN};
use remora_nic::nic::MULTICAST_QPN;
use remora_nic::wire::opcode::Follows;
use remora_nic::wire::{
    Bth, Deth, Dialect, Extensions, ICRC_LEN, MAX_HEADER, Op, Operation, Packet, Transport,
};

use crate::arena::{Arena, FIRST_PSN, GROUP, LOCAL, OPEN, READ_ONLY, SERVICES};

/// The input is a list of steps: a byte that chooses the step, a byte that varies it, a length
/// byte, and that many bytes. Most steps are packets. Depending on the varying byte, the fields
/// whose mistakes would get a packet dropped (destination, PSN, key) are corrected, so that the
/// checks behind them are reached too.
///
/// # Panics
/// If the card accesses memory that it must not access, loses requests, or invents completions.
pub fn card(data: &[u8]) {
    card_counters(data);
}

/// Runs [`card`], and returns the card's counters.
pub fn card_counters(data: &[u8]) -> Counters {
    let mut arena = Arena::new();
    let mut rest = data;
    while let [step, vary, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        take_step(&mut arena, *step, *vary, bytes);
    }
    arena.flush()
}

fn take_step(arena: &mut Arena, step: u8, vary: u8, bytes: &[u8]) {
    let subject = subject(arena, vary);
    match step & 15 {
        0 => arena.deliver_raw(LOCAL, bytes, vary),
        1 => arena.post_recv(subject, 7),
        2 => {
            let kind = (step ^ vary >> 2) & 7 | step >> 4 & 8;
            arena.post_send(subject, kind | step << 1 & 0x80);
        }
        3 => arena.transmit(),
        4 => arena.pass(u64::from(vary) << (step >> 4)),
        5 => arena.collect(),
        6 => arena.deliver(&for_management(bytes), vary),
        8 => arena.deliver(bytes, vary),
        9 if bytes.len() >= 12 => {
            let mut packet = bytes.to_vec();
            packet[1..8].copy_from_slice(&[0, 0xFF, 0xFF, 0, 0, 0, CM_QPN as u8]);
            arena.deliver(&packet, vary);
        }
        10 => {
            let mut packet = put_right(arena, 3, vary, bytes);
            if let Some(dest_qp) = packet.get_mut(5..8) {
                dest_qp.copy_from_slice(&MULTICAST_QPN.to_be_bytes()[1..]);
            }
            let group = if vary & 32 == 0 { GROUP } else { LOCAL };
            arena.deliver_to(group, &packet, step >> 4);
        }
        _ => {
            let mut packet = put_right(arena, subject, vary, bytes);
            if let Some(placed) = put_in_place(arena, subject, vary, &packet) {
                packet = placed;
            }
            if step & 0x80 != 0 && packet.len() >= 24 {
                packet[20..24].copy_from_slice(&arena.window.to_be_bytes());
            }
            arena.deliver(&packet, step >> 4);
        }
    }
}

/// The index of the queue pair that a step's varying byte names.
pub(crate) fn subject(arena: &Arena, vary: u8) -> usize {
    usize::from(vary & 3 | vary >> 3 & 4) % arena.subjects.len()
}

/// A management datagram for queue pair 1 with `bytes` in it.
fn for_management(bytes: &[u8]) -> Vec<u8> {
    let bth = Bth { dest_qp: CM_QPN, ..Bth::ours() };
    let ext = Extensions { deth: Deth { qkey: CM_QKEY, src_qp: CM_QPN }, ..Extensions::default() };
    let op = Op::lookup(0x64, Dialect::STANDARD).expect("UD SEND Only");
    let mut headers = [0; MAX_HEADER];
    let len = Packet::emit_headers(&bth, op, &ext, &mut headers);
    let mut packet = [&headers[..len], bytes].concat();
    packet.resize(len + MAD_LEN, 0);
    packet
}

/// How many packets a message of several has, and the length of the last one's payload.
const PACKETS: u32 = 4;
const LAST_LEN: u32 = 5;
/// The path MTU of the queue pairs.
const MTU: u32 = 1024;

/// A number below 4096, small as often as not.
fn drawn(bits: u32) -> u32 {
    (bits & 0xFFF) >> (bits >> 12 & 15).min(12)
}

/// A packet of the lossy dialect that fits what has come before it, so that messages are placed and
/// held. Messages of several packets lie one behind the other from the first PSN on; the packet is
/// of the one that is expected, of the next, or of one up to 4096 packets ahead. `None` for a
/// packet that is to stay as it is, or is none of that dialect.
fn put_in_place(arena: &mut Arena, subject: usize, vary: u8, packet: &[u8]) -> Option<Vec<u8>> {
    let bytes = [packet, &[0; ICRC_LEN]].concat();
    let bth = Packet::bth(&bytes).ok()?;
    let op = Op::lookup(bth.opcode, SERVICES[subject].1)?;
    let Packet { mut ext, payload, .. } = Packet::parse(bth, op, &bytes).ok()?;
    let mut leth = ext.leth.filter(|_| vary & 4 == 0)?;
    arena.collect();
    let served = arena.subjects[subject].served;
    let attr = arena.nic.query_qp(arena.subjects[subject].qpn)?.attr;
    let (expected, own) = (attr.rq_psn?, attr.sq_psn?);
    let ahead = [0, 1, 2 + drawn(bth.psn.value())].get(usize::from(vary >> 6)).copied();
    let is_whole = op.position.begins() && op.position.ends();
    let mut payload = payload.to_vec();
    let (psn, index) = if is_whole {
        leth.offset = 0;
        (ahead.map_or(expected.minus(2), |ahead| expected.plus(ahead)), drawn(leth.ssn))
    } else {
        leth.offset = match (op.position.begins(), op.position.ends()) {
            (true, _) => 0,
            (_, true) => PACKETS - 1,
            _ => 1 + leth.offset % (PACKETS - 2),
        };
        let index = ahead.unwrap_or(0) / if ahead > Some(1) { PACKETS } else { 1 };
        let message = expected.distance_from(FIRST_PSN) / PACKETS + index;
        let len = if op.position.ends() { LAST_LEN } else { MTU };
        payload.resize(len as usize, 0x5A);
        let base = if vary & 8 == 0 { OPEN } else { READ_ONLY };
        // Messages that follow each other have some bytes in common.
        ext.reth.addr = base + u64::from(message % 4) * 512;
        ext.reth.len = (PACKETS - 1) * MTU + LAST_LEN;
        (FIRST_PSN.plus(message * PACKETS + leth.offset), index)
    };
    // An answer names its request, a message how many before it take a receive element.
    leth.ssn = match op.is_response() {
        true => own.minus(1 + leth.ssn % 8).value(),
        false => served + index,
    };
    ext.leth = Some(leth);
    let pad = payload.len().wrapping_neg() as u8 & 3;
    let mut headers = [0; MAX_HEADER];
    let len = Packet::emit_headers(&Bth { psn, pad, ..bth }, op, &ext, &mut headers);
    Some([&headers[..len], &payload, &[0; 3][..pad.into()]].concat())
}

/// A packet that passes the outer checks; see [`card`].
fn put_right(arena: &Arena, subject: usize, vary: u8, bytes: &[u8]) -> Vec<u8> {
    let mut packet = bytes.to_vec();
    if packet.len() < 12 {
        return packet;
    }
    let (_, dialect) = SERVICES[subject];
    let subject = arena.subjects[subject];
    packet[1] &= 0x70 | 0x80;
    packet[2..4].copy_from_slice(&[0xFF, 0xFF]);
    packet[5..8].copy_from_slice(&subject.qpn.to_be_bytes()[1..]);
    let Some(op) = Op::lookup(packet[0], dialect) else { return packet };
    if vary & 4 == 0
        && let Some(info) = arena.nic.query_qp(subject.qpn)
    {
        // A response has a PSN near the requester's next one, a request near the responder's; in
        // the lossy dialect, only an acknowledge is a response in this sense.
        let lossy = dialect.contains(Dialect::LOSSY);
        let answers = op.is_response() && (!lossy || op.operation == Operation::Acknowledge);
        let psn = if answers { info.attr.sq_psn } else { info.attr.rq_psn };
        let near = u32::from(vary >> 6);
        let psn = psn.unwrap_or_default();
        let psn = match (answers, near) {
            (true, _) => psn.minus(near + 1),
            (false, 3) => psn.minus(2),
            (false, _) => psn.plus(near),
        };
        packet[9..12].copy_from_slice(&psn.value().to_be_bytes()[1..]);
        // The bitmap of a lossy acknowledge begins near the packets that are under way.
        if lossy && answers && packet.len() >= 16 {
            let first = info.attr.sq_psn.unwrap_or_default().minus(near + u32::from(vary & 3));
            packet[13..16].copy_from_slice(&first.value().to_be_bytes()[1..]);
        }
    }
    let (key, base) = if vary & 8 == 0 { (arena.open, OPEN) } else { (arena.read_only, READ_ONLY) };
    let names_queue = op.follows.contains(Follows::XRCETH);
    if vary & 16 == 0 && names_queue && packet.len() >= 16 {
        packet[12..16].copy_from_slice(&arena.srqn.to_be_bytes());
    }
    let has_target = op.follows.intersects(Follows::RETH.union(Follows::ATOMIC));
    let at = if op.follows.intersects(Follows::XRCETH.union(Follows::FETH)) { 16 } else { 12 };
    if vary & 16 == 0 && has_target && packet.len() >= at + 16 {
        let offset = u16::from_be_bytes([packet[at + 6], packet[at + 7]]) & 0x1FFF;
        packet[at..at + 8].copy_from_slice(&(base + u64::from(offset)).to_be_bytes());
        packet[at + 8..at + 12].copy_from_slice(&key.to_be_bytes());
    }
    if op.transport == Transport::Ud && packet.len() >= 20 {
        packet[12..16].copy_from_slice(&0x11u32.to_be_bytes());
    }
    packet
}
