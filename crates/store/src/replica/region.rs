//! What lies where in the memory that the nodes of a group write one another.
//!
//! Each node registers one region, and all of a group have the same form: a word for what is
//! committed, which the primary writes; places for answers, which the backups write in the
//! primary's; and a ring, in which the end of the log lies at the same places everywhere. So every
//! one-sided WRITE of the protocol goes from a place to the same place of another node.

/// Where the position lies up to which all is committed.
pub(super) const COMMITTED_AT: u64 = 0;
/// Where the backups' answers lie.
const ACKS_AT: u64 = 64;
/// The bytes of an answer.
pub(super) const ACK: u64 = 32;
/// How many backups have a place.
pub(super) const SLOTS: u8 = super::configuration::MEMBERS_MAX as u8;
/// Where the ring begins.
const RING_AT: u64 = ACKS_AT + ACK * SLOTS as u64;

/// The bytes of a region whose ring has so many.
#[must_use]
pub fn region_bytes(ring_bytes: u64) -> u64 {
    RING_AT + ring_bytes
}

/// Where the answer of the backup lies that was given this place.
pub(super) fn ack_at(slot: u8) -> u64 {
    ACKS_AT + ACK * u64::from(slot % SLOTS)
}

/// Where bytes of the log lie, by their offset from its begin: in one piece, or in two where the
/// ring ends between them.
pub(super) fn pieces(ring_bytes: u64, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let at = offset % ring_bytes;
    let first = len.min(ring_bytes - at);
    [(RING_AT + at, first), (RING_AT, len - first)].into_iter().filter(|(_, len)| *len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_s_end_parts_what_lies_across_it() {
        let lie = |offset, len| pieces(64, offset, len).collect::<Vec<_>>();
        assert_eq!(lie(0, 64), [(RING_AT, 64)]);
        assert_eq!(lie(120, 16), [(RING_AT + 56, 8), (RING_AT, 8)]);
        assert_eq!(lie(128, 8), [(RING_AT, 8)]);
        assert_eq!(lie(5, 0), []);
        assert_eq!(ack_at(SLOTS - 1) + ACK, RING_AT);
    }
}
