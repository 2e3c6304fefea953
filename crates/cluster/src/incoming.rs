//! A copy of another node's store, as it comes in: see `copy`.

use remora_store::replica::Snapshot;

/// The longest head: what 65,536 clients have asked for, with the answers.
const HEAD_MAX: usize = 128 << 20;
/// The longest records of a copy, in bytes.
const RECORDS_MAX: usize = 1 << 40;

/// A copy that comes in.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    records: Vec<u8>,
    head: Vec<u8>,
}

impl Incoming {
    /// More of its records; false if there are too many.
    pub(crate) fn add_records(&mut self, bytes: &[u8]) -> bool {
        self.records.extend_from_slice(bytes);
        self.records.len() <= RECORDS_MAX
    }

    /// More of what goes with it; false if there is too much.
    pub(crate) fn add_head(&mut self, bytes: &[u8]) -> bool {
        self.head.extend_from_slice(bytes);
        self.head.len() <= HEAD_MAX
    }

    /// What goes with the copy, which is complete, and its records.
    pub(crate) fn finish(&mut self) -> Option<(Snapshot, Vec<u8>)> {
        let Incoming { records, head } = std::mem::take(self);
        match postcard::take_from_bytes(&head) {
            Ok((snapshot, [])) => Some((snapshot, records)),
            _ => None,
        }
    }
}
