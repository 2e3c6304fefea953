//! Writing an RDB file.

use std::io::{self, Write};

use crc_fast::{CrcAlgorithm, Digest};

use super::{STRING, WRITTEN, op};

/// Writes strings as an RDB file.
pub struct RdbWriter<W> {
    writer: W,
    sum: Digest,
    database: Option<u64>,
    /// What goes before a value.
    head: Vec<u8>,
}

impl<W: Write> RdbWriter<W> {
    /// Writes the beginning of a file. `writer` should be buffered.
    ///
    /// # Errors
    ///
    /// What the writer says.
    pub fn new(writer: W) -> io::Result<RdbWriter<W>> {
        let sum = Digest::new(CrcAlgorithm::Crc64Redis);
        let mut rdb = RdbWriter { writer, sum, database: None, head: Vec::new() };
        rdb.bytes(format!("REDIS{WRITTEN:04}").as_bytes())?;
        Ok(rdb)
    }

    /// Writes a string of a database. Databases should come one after another.
    ///
    /// # Errors
    ///
    /// What the writer says.
    pub fn put(
        &mut self,
        database: u64,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<u64>,
    ) -> io::Result<()> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        if self.database != Some(database) {
            head.push(op::DATABASE);
            length(database, &mut head);
            self.database = Some(database);
        }
        if let Some(expires_ms) = expires_ms {
            head.push(op::EXPIRES_MS);
            head.extend_from_slice(&expires_ms.to_le_bytes());
        }
        head.push(STRING);
        length(key.len() as u64, &mut head);
        head.extend_from_slice(key);
        length(value.len() as u64, &mut head);
        let written = self.bytes(&head).and_then(|()| self.bytes(value));
        self.head = head;
        written
    }

    /// Writes the end of the file, and answers the writer, flushed.
    ///
    /// # Errors
    ///
    /// What the writer says.
    pub fn finish(mut self) -> io::Result<W> {
        self.bytes(&[op::END])?;
        self.writer.write_all(&self.sum.finalize().to_le_bytes())?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.writer.write_all(bytes)
    }
}

pub(super) fn length(length: u64, bytes: &mut Vec<u8>) {
    match length {
        0..64 => bytes.push(length as u8),
        64..0x4000 => bytes.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            bytes.push(0x80);
            bytes.extend_from_slice(&(length as u32).to_be_bytes());
        }
        _ => {
            bytes.push(0x81);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
}
