//! Records that wait to be written, as bytes: headers and what is short in one buffer, the contents
//! of long records where the threads that append them have put them.

use std::io;

use super::record::HEADER;
use crate::disk::File;

/// A record's contents of so many bytes and more are put together before the log's lock is taken.
/// Others wait for that lock, and to copy 16 MiB takes milliseconds.
pub(super) const LONG: usize = 64 << 10;

/// A place for a mark, and records.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) short: Vec<u8>,
    /// Contents that come before a place in `short`, in this order.
    long: Vec<(usize, Vec<u8>)>,
    long_bytes: usize,
}

impl Batch {
    /// An empty one that uses the memory of `short`, which is empty.
    pub(super) fn reusing(short: Vec<u8>) -> Batch {
        Batch { short, ..Batch::default() }
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.long_bytes
    }

    /// Makes the place for a mark.
    pub(super) fn begin(&mut self) {
        self.short.resize(HEADER, 0);
    }

    /// Puts a mark into its place.
    pub(super) fn set_mark(&mut self, mark: &[u8]) {
        self.short[..HEADER].copy_from_slice(mark);
    }

    /// Appends contents that are their record's last bytes.
    pub(super) fn push_long(&mut self, contents: Vec<u8>) {
        self.long_bytes += contents.len();
        self.long.push((self.short.len(), contents));
    }

    /// Writes all bytes to a file, from `at` on.
    pub(super) fn write_to(&self, file: &impl File, mut at: u64) -> io::Result<()> {
        let mut from = 0;
        for (place, contents) in &self.long {
            for piece in [&self.short[from..*place], contents] {
                file.write_at(at, piece)?;
                at += piece.len() as u64;
            }
            from = *place;
        }
        if from < self.short.len() {
            file.write_at(at, &self.short[from..])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Faulty};

    #[test]
    fn pieces_are_written_in_the_order_in_which_they_came() {
        let disk = Faulty::new(1);
        let file = disk.create("file").unwrap();
        let mut batch = Batch::reusing(Vec::with_capacity(100));
        batch.begin();
        batch.short.extend_from_slice(b"first");
        batch.push_long(b"long".to_vec());
        batch.push_long(b"longer".to_vec());
        batch.short.extend_from_slice(b"last");
        batch.set_mark(&[7; HEADER]);
        batch.write_to(&file, 3).unwrap();
        let mut bytes = vec![0; 3 + batch.len()];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        let wanted = [&[0; 3][..], &[7; HEADER], b"first", b"long", b"longer", b"last"].concat();
        assert_eq!(bytes, wanted);
    }
}
