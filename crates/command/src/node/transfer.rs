//! Moving any number of bytes between a region of a node and the caller, one-sided.
//!
//! Bytes go in pieces of 1 MiB, a few of them in flight, through staging memory of fixed size.
//! A reliable connection completes in order, so the oldest piece is the next to end.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora::memory::PageAligned;
use remora::nic::queue::{Completion, Data, PollCqError, SendFlags, SendOp, SendRequest, Status};
use remora::nic::{Access, PostError};
use remora::{MemoryRegion, RegisterError, WaitError};
use thiserror::Error;

use super::address::RegionAddress;
use super::client::{RemoteRegion, WINDOW};
use crate::stop::Interrupted;

/// The size of a piece in bytes.
pub const CHUNK: usize = 1 << 20;

/// How often a waiting transfer checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long a completion may take: longer than the card's own retries.
const COMPLETION_PATIENCE: Duration = Duration::from_secs(60);
/// How long the node may take to say why a transfer failed.
const REASON_PATIENCE: Duration = Duration::from_secs(2);

/// Why a transfer failed.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The range lies outside the region.
    #[error("bytes {} to {} are not within {region}, which has {len}", range.start, range.end)]
    OutOfRange {
        /// The region.
        region: RegionAddress,
        /// The range that was asked for.
        range: Range<u64>,
        /// Length of the region.
        len: u64,
    },
    /// The input does not fit into the region.
    #[error(
        "the input is longer than the {room} bytes that {region} has from offset {offset} on; \
             those {room} bytes have been written"
    )]
    TooLong {
        /// The region.
        region: RegionAddress,
        /// The offset at which writing began.
        offset: u64,
        /// The bytes that fit.
        room: u64,
    },
    /// The region is read-only.
    #[error(
        "{0} is read-only: start the node with `--region {name}=…,rw` to write it",
        name = .0.name
    )]
    ReadOnly(RegionAddress),
    /// The peer or the network has failed.
    #[error("{verb} of {region} failed at offset {offset}: {status}; {reason}")]
    Failed {
        /// READ or WRITE.
        verb: &'static str,
        /// The region.
        region: RegionAddress,
        /// The first byte that is not known to have arrived.
        offset: u64,
        /// What the completion says.
        status: Status,
        /// The node's reason, or that it gives none.
        reason: String,
    },
    /// The caller's source or sink has failed.
    #[error(transparent)]
    Local(#[from] io::Error),
    /// The caller has stopped the transfer.
    #[error("the transfer was stopped before its end")]
    Stopped(#[source] Interrupted),
    /// The staging memory cannot be registered.
    #[error("cannot set up the transfer: {0}")]
    Staging(#[from] RegisterError),
    /// The client's own card refuses a work request.
    #[error("the card refuses a work request: {0}")]
    Post(#[from] PostError),
    /// The client's own card reports no completion.
    #[error("the card reports no completion: {0}")]
    Wait(#[from] WaitError),
}

/// A transfer to or from a region, with its staging memory.
#[derive(Debug)]
pub struct Transfer<'a> {
    remote: &'a RemoteRegion,
    staging: MemoryRegion,
    buffer: PageAligned,
    stop: Option<&'a AtomicBool>,
}

/// The pieces in flight of the bytes from `start` to `end`.
struct Flight {
    start: u64,
    end: u64,
    /// Bytes up to here are posted.
    posted: u64,
    /// Bytes up to here are completed.
    done: u64,
}

impl Flight {
    fn new(range: Range<u64>) -> Flight {
        Flight { start: range.start, end: range.end, posted: range.start, done: range.start }
    }

    /// The piece that begins at `at`: its place in the staging memory, and its length.
    fn piece(&self, at: u64) -> (usize, usize) {
        let number = (at - self.start) / CHUNK as u64;
        let slot = (number % WINDOW as u64) as usize * CHUNK;
        (slot, (self.end - at).min(CHUNK as u64) as usize)
    }

    fn has_room(&self) -> bool {
        self.posted < self.end && self.posted - self.done < (WINDOW * CHUNK) as u64
    }
}

impl<'a> Transfer<'a> {
    /// Prepares transfers to or from `remote`.
    ///
    /// # Errors
    /// The staging memory cannot be registered.
    pub fn new(remote: &'a RemoteRegion) -> Result<Transfer<'a>, TransferError> {
        let staging = remote.pd().alloc(WINDOW * CHUNK, Access::LOCAL_WRITE)?;
        Ok(Transfer { remote, staging, buffer: PageAligned::new(CHUNK), stop: None })
    }

    /// Makes the transfer end early, with [`TransferError::Stopped`], once `stop` is true.
    #[must_use]
    pub fn stop_on(mut self, stop: &'a AtomicBool) -> Transfer<'a> {
        self.stop = Some(stop);
        self
    }

    /// READs a range of the region and passes it to `sink`, in order.
    ///
    /// # Errors
    /// See [`TransferError`]; the bytes that `sink` has received by then are right.
    pub fn read(
        &mut self,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), TransferError> {
        self.check(&range)?;
        let mut flight = Flight::new(range);
        while flight.done < flight.end {
            while flight.has_room() {
                let from = self.remote.remote(flight.posted);
                let (slot, len) = flight.piece(flight.posted);
                self.post(SendOp::Read { from }, slot, len)?;
                flight.posted += len as u64;
            }
            let (slot, len) = flight.piece(flight.done);
            self.complete("READ", flight.done)?;
            let piece = &mut self.buffer[..len];
            self.staging.read_at(slot, piece).expect("a slot lies in the staging memory");
            sink(piece)?;
            flight.done += len as u64;
        }
        Ok(())
    }

    /// WRITEs the bytes of `source` to the region from `offset` on, until `source` ends or the
    /// region is full. Calls `told` now and then with the number of bytes that have arrived.
    /// Returns how many there were.
    ///
    /// # Errors
    /// See [`TransferError`]; some bytes may have been written by then.
    pub fn write(
        &mut self,
        offset: u64,
        source: &mut dyn Read,
        told: &mut dyn FnMut(u64),
    ) -> Result<u64, TransferError> {
        self.check(&(offset..offset))?;
        if !self.remote.writable() {
            return Err(TransferError::ReadOnly(self.remote.address().clone()));
        }
        let mut flight = Flight::new(offset..self.remote.len());
        let mut ended = false;
        loop {
            while !ended && flight.has_room() {
                let (slot, room) = flight.piece(flight.posted);
                let len = fill(source, &mut self.buffer[..room]).map_err(of_source)?;
                ended = len < room;
                if len > 0 {
                    let piece = &self.buffer[..len];
                    self.staging.write_at(slot, piece).expect("a slot lies in the staging memory");
                    let to = self.remote.remote(flight.posted);
                    self.post(SendOp::Write { to, imm: None }, slot, len)?;
                    flight.posted += len as u64;
                }
            }
            if flight.done == flight.posted {
                break;
            }
            let len = (flight.posted - flight.done).min(CHUNK as u64);
            self.complete("WRITE", flight.done)?;
            flight.done += len;
            told(flight.done - offset);
        }
        if !ended && fill(source, &mut self.buffer[..1]).map_err(of_source)? > 0 {
            let room = self.remote.len() - offset;
            return Err(TransferError::TooLong {
                region: self.remote.address().clone(),
                offset,
                room,
            });
        }
        Ok(flight.done - offset)
    }

    fn check(&self, range: &Range<u64>) -> Result<(), TransferError> {
        let len = self.remote.len();
        if range.start <= range.end && range.end <= len {
            return Ok(());
        }
        let (region, range) = (self.remote.address().clone(), range.clone());
        Err(TransferError::OutOfRange { region, range, len })
    }

    fn post(&self, op: SendOp, slot: usize, len: usize) -> Result<(), TransferError> {
        let sges = [self.staging.sge(slot as u64, len as u32)];
        let data = Data::Sges(&sges);
        let request = SendRequest { wr_id: slot as u64, op, data, flags: SendFlags::SIGNALED };
        Ok(self.remote.queue_pair().post_send(&request)?)
    }

    /// Waits until the oldest piece, at `offset`, has completed.
    fn complete(&self, verb: &'static str, offset: u64) -> Result<(), TransferError> {
        let end = Instant::now() + COMPLETION_PATIENCE;
        let status = loop {
            if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(TransferError::Stopped(Interrupted));
            }
            match self.remote.cq().spin(LOOK) {
                Ok(Completion { status, .. }) => break status,
                Err(WaitError::Timeout(_)) if Instant::now() < end => {}
                Err(error) => return Err(error.into()),
            }
        };
        if status == Status::Success {
            return Ok(());
        }
        let (region, reason) = (self.remote.address().clone(), self.reason());
        Err(TransferError::Failed { verb, region, offset, status, reason })
    }

    /// Asks the node on a new connection what has happened to the region.
    fn reason(&self) -> String {
        match self.remote.reopen(REASON_PATIENCE) {
            Ok(_) => "the node still serves it: try again".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

impl From<PollCqError> for TransferError {
    fn from(error: PollCqError) -> TransferError {
        TransferError::Wait(error.into())
    }
}

/// What the source says is why the transfer fails; or the source was told to stop.
fn of_source(error: io::Error) -> TransferError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(stopped) => TransferError::Stopped(*stopped),
        None => TransferError::Local(error),
    }
}

/// Reads until `buffer` is full or the source ends; returns the number of bytes.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_reuse_slots_only_after_a_whole_window() {
        let chunk = CHUNK as u64;
        let mut flight = Flight::new(5..5 + 20 * chunk + 3);
        let mut lens = 0;
        while flight.posted < flight.end {
            while flight.has_room() {
                let (slot, len) = flight.piece(flight.posted);
                assert_eq!(slot, (lens / chunk) as usize % WINDOW * CHUNK);
                flight.posted += len as u64;
                lens += len as u64;
            }
            assert!(flight.posted - flight.done <= (WINDOW * CHUNK) as u64);
            flight.done += flight.piece(flight.done).1 as u64;
        }
        assert_eq!(lens, 20 * chunk + 3);
    }
}
