//! The bytes of a UDP payload into the packet parser, in each dialect.

use remora_nic::wire::{Bth, Dialect, ICRC_LEN, MAX_HEADER, Op, Packet};

/// Whatever arrives, parsing ends in a packet or a reason; and a packet that was parsed comes
/// out the same when it is built and parsed again.
///
/// # Panics
///
/// If either promise is broken.
pub fn packet(data: &[u8]) {
    for dialect in [Dialect::Standard, Dialect::Strom] {
        let Ok(bth) = Packet::bth(data) else { continue };
        let Some(op) = Op::lookup(bth.opcode, dialect) else { continue };
        let Ok(parsed) = Packet::parse(bth, op, data) else { continue };
        assert_eq!(op.code, bth.opcode, "the table's row is not that of its op-code");
        let used = op.header_len() + parsed.payload.len() + usize::from(bth.pad) + ICRC_LEN;
        assert_eq!(used, data.len(), "bytes were counted twice, or not at all");

        let rebuilt = rebuild(&parsed);
        let bth = Packet::bth(&rebuilt).expect("what was built has a header");
        let again = Packet::parse(bth, op, &rebuilt).expect("what was built is a packet");
        assert_eq!(again, parsed);
    }
}

/// The packet as bytes again, without its ICRC.
fn rebuild(packet: &Packet<'_>) -> Vec<u8> {
    let mut headers = [0; MAX_HEADER];
    let len = Packet::emit_headers(&packet.bth, packet.op, &packet.ext, &mut headers);
    assert_eq!(len, packet.op.header_len(), "{} is built longer than it says", packet.op);
    assert!(len >= Bth::LEN);
    let tail = [0; 3 + ICRC_LEN];
    [&headers[..len], packet.payload, &tail[..usize::from(packet.bth.pad) + ICRC_LEN]].concat()
}
