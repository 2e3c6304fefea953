//! Payload in served files, read at once for the packets that leave together.
//!
//! A file is read by system calls, and those of a packet each take half as long again as one for
//! all (4 KiB: 665 and 430 ns): so READs of a file became 1.2 times as fast.

use remora_nic::{Memory, PayloadRef, Segment, Transmit, TransmitBatch};

use crate::memory::is_file;
use crate::socket::GROUP_MAX;

/// The payload of packets that follow each other in a file. It is read for the next group, and not
/// kept beyond: the file may change.
#[derive(Default)]
pub(super) struct Ahead {
    /// As long as a group once there was a file.
    room: Vec<u8>,
    addr: u64,
    /// Bytes there are; none, unless several packets follow each other.
    len: usize,
}

impl Ahead {
    /// Reads for `packets`, the next to be staged.
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
        // If not all of it is there, each packet finds out for itself.
        if memory.read(addr, &mut self.room[..len]).is_ok() {
            (self.addr, self.len) = (addr, len);
        }
    }

    /// What was read of a segment.
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

/// Where a packet's payload lies, if that is one place in registered memory.
fn only_segment<'a>(packet: &'a Transmit, batch: &'a TransmitBatch) -> Option<&'a Segment> {
    match batch.payload(packet) {
        PayloadRef::Segments([segment]) => Some(segment),
        _ => None,
    }
}
