//! The bytes of an RDB file, summed as they are read.

use std::io::{ErrorKind, Read};

use crc_fast::{CrcAlgorithm, Digest};
use remora::memory::PageAligned;

use super::RdbError;

const BUFFER: usize = 64 << 10;

/// Bytes from a reader: buffered, counted, and summed.
pub(super) struct Source<R> {
    reader: R,
    buffer: PageAligned,
    /// The next byte in the buffer, and the end of what was read into it.
    next: usize,
    filled: usize,
    /// Up to where the buffer is in the sum.
    summed: usize,
    /// How many bytes came before the buffer.
    before: u64,
    sum: Digest,
}

/// A length, or in its place a way in which a string is written.
pub(super) enum Length {
    Plain(u64),
    Special(u8),
}

/// How a string is written.
const INT_8: u8 = 0;
const INT_16: u8 = 1;
const INT_32: u8 = 2;
const LZF: u8 = 3;

impl<R: Read> Source<R> {
    pub(super) fn new(reader: R) -> Source<R> {
        Source {
            reader,
            buffer: PageAligned::new(BUFFER),
            next: 0,
            filled: 0,
            summed: 0,
            before: 0,
            sum: Digest::new(CrcAlgorithm::Crc64Redis),
        }
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> u64 {
        self.before + self.next as u64
    }

    /// The checksum of all bytes that were read.
    pub(super) fn checksum(&mut self) -> u64 {
        self.sum.update(&self.buffer[self.summed..self.next]);
        self.summed = self.next;
        self.sum.finalize()
    }

    pub(super) fn damaged(&self, reason: &'static str) -> RdbError {
        RdbError::Damaged { at: self.at(), reason }
    }

    fn fill(&mut self) -> Result<(), RdbError> {
        _ = self.checksum();
        self.before += self.next as u64;
        (self.next, self.filled, self.summed) = (0, 0, 0);
        while self.filled == 0 {
            match self.reader.read(&mut self.buffer) {
                Ok(0) => return Err(RdbError::Cut(self.before)),
                Ok(read) => self.filled = read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes `count` bytes in pieces; `each` gets them.
    fn take(&mut self, mut count: u64, each: &mut dyn FnMut(&[u8])) -> Result<(), RdbError> {
        while count > 0 {
            if self.next == self.filled {
                self.fill()?;
            }
            let piece = count.min((self.filled - self.next) as u64) as usize;
            each(&self.buffer[self.next..self.next + piece]);
            self.next += piece;
            count -= piece as u64;
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, count: u64) -> Result<(), RdbError> {
        self.take(count, &mut |_| {})
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], RdbError> {
        let mut bytes = [0; N];
        let mut at = 0;
        self.take(N as u64, &mut |piece| {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        })?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, RdbError> {
        let [byte] = self.bytes()?;
        Ok(byte)
    }

    fn special_length(&mut self) -> Result<Length, RdbError> {
        let first = self.byte()?;
        Ok(match first >> 6 {
            0 => Length::Plain(u64::from(first & 63)),
            1 => Length::Plain(u64::from(first & 63) << 8 | u64::from(self.byte()?)),
            2 if first == 0x80 => Length::Plain(u64::from(u32::from_be_bytes(self.bytes()?))),
            2 if first == 0x81 => Length::Plain(u64::from_be_bytes(self.bytes()?)),
            2 => return Err(self.damaged("a length is of no kind that is known")),
            _ => Length::Special(first & 63),
        })
    }

    pub(super) fn length(&mut self) -> Result<u64, RdbError> {
        match self.special_length()? {
            Length::Plain(length) => Ok(length),
            Length::Special(_) => Err(self.damaged("a string stands where a length should")),
        }
    }

    /// Reads a string to `string`, which it empties first. Answers whether it is at most `limit`
    /// bytes long; one that is longer is skipped.
    pub(super) fn string(&mut self, limit: usize, string: &mut Vec<u8>) -> Result<bool, RdbError> {
        string.clear();
        let number = match self.special_length()? {
            Length::Plain(length) if length > limit as u64 => {
                self.skip(length)?;
                return Ok(false);
            }
            Length::Plain(length) => {
                self.take(length, &mut |piece| string.extend_from_slice(piece))?;
                return Ok(true);
            }
            Length::Special(INT_8) => i32::from(i8::from_le_bytes(self.bytes()?)),
            Length::Special(INT_16) => i32::from(i16::from_le_bytes(self.bytes()?)),
            Length::Special(INT_32) => i32::from_le_bytes(self.bytes()?),
            Length::Special(LZF) => return self.compressed(limit, string),
            Length::Special(_) => return Err(self.damaged("a string is written in no known way")),
        };
        string.extend_from_slice(number.to_string().as_bytes());
        Ok(string.len() <= limit)
    }

    fn compressed(&mut self, limit: usize, string: &mut Vec<u8>) -> Result<bool, RdbError> {
        let (stored, length) = (self.length()?, self.length()?);
        // Redis compresses a string only where that makes it shorter.
        if length > limit as u64 || stored > length {
            self.skip(stored)?;
            return Ok(false);
        }
        let mut compressed = Vec::new();
        self.take(stored, &mut |piece| compressed.extend_from_slice(piece))?;
        super::lzf::decompress(&compressed, length as usize, string)
            .map_err(|reason| self.damaged(reason))?;
        Ok(true)
    }

    /// Passes over a string.
    pub(super) fn skip_string(&mut self) -> Result<(), RdbError> {
        let count = match self.special_length()? {
            Length::Plain(length) => length,
            Length::Special(INT_8) => 1,
            Length::Special(INT_16) => 2,
            Length::Special(INT_32) => 4,
            Length::Special(LZF) => {
                let stored = self.length()?;
                self.length()?;
                stored
            }
            Length::Special(_) => return Err(self.damaged("a string is written in no known way")),
        };
        self.skip(count)
    }
}
