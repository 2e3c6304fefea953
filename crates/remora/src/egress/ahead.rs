//! Payload in served files, read by one system call for all packets that leave together.
//!
//! A system call for each packet takes half as long again (665 ns instead of 430 ns for 4 KiB).
//! With one for all, a READ of a file takes 1/1.2 of the time.

use remora_nic::{Memory, PayloadRef, Segment, Transmit, TransmitBatch};

use crate::memory::is_file;
use crate::socket::GROUP_MAX;

/// The payload of packets that follow each other in a file. It is read for the next group only,
/// since the file may change.
#[derive(Default)]
pub(super) struct Ahead {
    /// Empty until a file is read, then as long as a group.
    room: Vec<u8>,
    addr: u64,
    /// Bytes that were read; none, unless several packets follow each other.
    len: usize,
}

impl Ahead {
    /// Reads ahead for `packets`, which are staged next.
    #[inline]
    pub(super) fn read(
        &mut self,
        packets: &[Transmit],
        batch: &TransmitBatch,
        memory: &mut impl Memory,
    ) {
        self.len = 0;
        if packets.first().and_then(|first| only_segment(first, batch)).is_some_and(in_file) {
            self.read_file(packets, batch, memory);
        }
    }

    #[inline(never)]
    fn read_file(&mut self, packets: &[Transmit], batch: &TransmitBatch, memory: &mut impl Memory) {
        let (mut addr, mut len, mut count) = (0u64, 0, 0);
        for segment in packets.iter().map_while(|packet| only_segment(packet, batch)) {
            let longer = len + segment.len as usize;
            let follows = count == 0 || addr.checked_add(len as u64) == Some(segment.addr);
            if longer > GROUP_MAX || !follows {
                break;
            }
            addr = segment.addr - len as u64;
            (len, count) = (longer, count + 1);
        }
        if count < 2 {
            return;
        }
        self.room.resize(GROUP_MAX, 0);
        // If this fails, each packet is read alone, and those whose bytes are missing fail.
        if memory.read(addr, &mut self.room[..len]).is_ok() {
            (self.addr, self.len) = (addr, len);
        }
    }

    /// The bytes of a segment, if they were read ahead.
    #[inline]
    pub(super) fn get(&self, segment: &Segment) -> Option<&[u8]> {
        let at = usize::try_from(segment.addr.checked_sub(self.addr)?).ok()?;
        let end = at.checked_add(segment.len as usize)?;
        (end <= self.len).then(|| &self.room[at..end])
    }
}

fn in_file(segment: &Segment) -> bool {
    is_file(segment.addr)
}

/// The only segment of a packet's payload, if it has just one.
fn only_segment<'a>(packet: &'a Transmit, batch: &'a TransmitBatch) -> Option<&'a Segment> {
    match batch.payload(packet) {
        PayloadRef::Segments([segment]) => Some(segment),
        _ => None,
    }
}
