//! Any bytes as a UDP payload for the packet parser, in each dialect.

use remora_nic::wire::{Bth, Dialect, ICRC_LEN, MAX_HEADER, Op, Packet};

/// Parsing ends with a packet or with a reason for refusal. A parsed packet stays the same when it
/// is built and parsed again.
///
/// # Panics
///
/// If one of these promises is broken.
pub fn packet(data: &[u8]) {
    for dialect in [Dialect::STANDARD, Dialect::KERNELS, Dialect::all()] {
        let Ok(bth) = Packet::bth(data) else { continue };
        let Some(op) = Op::lookup(bth.opcode, dialect) else { continue };
        let Ok(parsed) = Packet::parse(bth, op, data) else { continue };
        assert_eq!(op.code, bth.opcode, "the table has another row for this op-code");
        let used = op.header_len() + parsed.payload.len() + usize::from(bth.pad) + ICRC_LEN;
        assert_eq!(used, data.len(), "the parts do not add up to the whole packet");

        let rebuilt = rebuild(&parsed);
        let bth = Packet::bth(&rebuilt).expect("what was built has a header");
        let again = Packet::parse(bth, op, &rebuilt).expect("what was built is a packet");
        assert_eq!(again, parsed);
    }
}

/// The packet's bytes without its ICRC.
fn rebuild(packet: &Packet<'_>) -> Vec<u8> {
    let mut headers = [0; MAX_HEADER];
    let len = Packet::emit_headers(&packet.bth, packet.op, &packet.ext, &mut headers);
    assert_eq!(
        len,
        packet.op.header_len(),
        "{} has another header length than the table says",
        packet.op
    );
    assert!(len >= Bth::LEN);
    let tail = [0; 3 + ICRC_LEN];
    [&headers[..len], packet.payload, &tail[..usize::from(packet.bth.pad) + ICRC_LEN]].concat()
}
