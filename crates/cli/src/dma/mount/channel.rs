//! What stands behind a file: a channel of the engine, and a thread that feeds it.
//!
//! Bytes pass through a stage, memory that the engine may reach: from the file system to the stage,
//! and by a descriptor from there to the card. Each channel has a thread of its own, so that a
//! reader may wait for a stream while others work.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use fuser::{Errno, ReplyData, ReplyWrite};
use remora::dma::{
    Address, Channel, ChannelOptions, Direction, Flags, Interface, InterruptError, Outcome,
    RegionId, Status,
};
use remora::memory::Buffer;

use crate::dma::daemon::AnyChannel;
use crate::thread;

/// Bytes of a channel's stage, which are moved at a time.
pub(super) const STAGE: usize = 1 << 20;
/// How long a stream's other side may take, as in XDMA's driver.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks for a completion before the thread sleeps: some microseconds.
const LOOKS: u32 = 1 << 12;

/// Memory that the engine may reach.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) memory: Arc<Buffer>,
    pub(super) region: RegionId,
    /// Where this channel's part begins.
    pub(super) offset: usize,
}

/// What a channel is for these files.
pub(super) fn options(direction: Direction, stream: Option<u16>) -> ChannelOptions {
    let interface = stream.map_or(Interface::MemoryMapped, Interface::Streaming);
    ChannelOptions { interface, ..ChannelOptions::new(direction).depth(2).interrupt() }
}

/// A read or a write of a file.
enum Job {
    Read { at: u64, len: u32, reply: ReplyData },
    Write { at: u64, data: Vec<u8>, reply: ReplyWrite },
}

/// A channel with its thread, which ends with this value.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    pub(super) direction: Direction,
}

impl Worker {
    /// Starts the thread; the card has so many bytes.
    pub(super) fn start(channel: AnyChannel, stage: Stage, card_bytes: u64) -> Result<Worker> {
        let (jobs, of_thread) = self::channel();
        let direction = channel.options().direction;
        let mut feeder = Feeder { channel, stage, card_bytes, waits: None, left: Vec::new() };
        thread::spawn("dma-file", move || feeder.run(&of_thread))?;
        Ok(Worker { jobs, direction })
    }

    /// Reads `len` bytes from `at` on, when the channel has done what came before.
    pub(super) fn read(&self, at: u64, len: u32, reply: ReplyData) {
        if let Err(lost) = self.jobs.send(Job::Read { at, len, reply }) {
            lost.0.refuse(Errno::EIO);
        }
    }

    /// Writes from `at` on.
    pub(super) fn write(&self, at: u64, data: &[u8], reply: ReplyWrite) {
        if let Err(lost) = self.jobs.send(Job::Write { at, data: data.to_vec(), reply }) {
            lost.0.refuse(Errno::EIO);
        }
    }
}

impl Job {
    fn refuse(self, error: Errno) {
        match self {
            Job::Read { reply, .. } => reply.error(error),
            Job::Write { reply, .. } => reply.error(error),
        }
    }
}

/// The thread's side.
struct Feeder {
    channel: AnyChannel,
    stage: Stage,
    card_bytes: u64,
    /// A descriptor that waits for its stream, and its length: nobody has waited so long.
    waits: Option<u32>,
    /// What came by a stream and was not read yet.
    left: Vec<u8>,
}

impl Feeder {
    fn run(&mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Read { at, len, reply } => match self.read(at, len as usize) {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => reply.error(error),
                },
                Job::Write { at, data, reply } => match self.write(at, &data) {
                    Ok(()) => reply.written(data.len() as u32),
                    Err(error) => reply.error(error),
                },
            }
        }
    }

    fn streams(&self) -> bool {
        self.channel.options().interface != Interface::MemoryMapped
    }

    fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        if self.streams() {
            return self.take(len);
        }
        let len = (len as u64).min(self.card_bytes.saturating_sub(at)) as usize;
        let mut bytes = vec![0; len];
        for part in parts(len) {
            // What was given up comes first, and would be taken for this one.
            self.settle()?;
            let from = Address::Card(at + part.start as u64);
            self.copy(from, self.staged(), part.len())?;
            self.fetch(&mut bytes[part])?;
        }
        Ok(bytes)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Errno> {
        let end = at.checked_add(data.len() as u64);
        if !self.streams() && end.is_none_or(|end| end > self.card_bytes) {
            return Err(Errno::ENOSPC);
        }
        for part in parts(data.len()) {
            // What waits has the stage still.
            self.settle()?;
            let (start, len) = (part.start as u64, part.len());
            let is_last = part.end == data.len();
            let put = self.stage.memory.write_at(self.stage.offset, &data[part]);
            put.map_err(|_| Errno::EIO)?;
            let flags = if is_last { Flags::empty() } else { Flags::MORE };
            self.post(self.staged(), Address::Card(at.wrapping_add(start)), len, flags)?;
            self.settle()?;
        }
        Ok(())
    }

    /// Takes up to `len` bytes of the stream's first packet.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, Errno> {
        if self.left.is_empty() {
            if self.waits.is_none() {
                self.post(Address::Card(0), self.staged(), STAGE, Flags::empty())?;
            }
            let came = self.settle()?.map_or(0, |outcome| outcome.bytes as usize);
            let mut bytes = vec![0; came];
            self.fetch(&mut bytes)?;
            self.left = bytes;
        }
        let rest = self.left.split_off(len.min(self.left.len()));
        Ok(std::mem::replace(&mut self.left, rest))
    }

    /// The address of the stage.
    fn staged(&self) -> Address {
        self.stage.region.at(self.stage.offset as u64)
    }

    fn fetch(&self, bytes: &mut [u8]) -> Result<(), Errno> {
        self.stage.memory.read_at(self.stage.offset, bytes).map_err(|_| Errno::EIO)
    }

    fn copy(&mut self, from: Address, to: Address, len: usize) -> Result<(), Errno> {
        self.post(from, to, len, Flags::empty())?;
        self.settle().map(drop)
    }

    fn post(&mut self, from: Address, to: Address, len: usize, flags: Flags) -> Result<(), Errno> {
        let posted = self.channel.copy(from, to, len as u32, flags);
        posted.map_err(|error| {
            tracing::warn!(%error, "a read or write cannot be posted");
            Errno::EIO
        })?;
        self.channel.submit();
        self.waits = Some(len as u32);
        Ok(())
    }

    /// Waits until nothing is under way; returns how the last descriptor has ended.
    fn settle(&mut self) -> Result<Option<Outcome>, Errno> {
        if self.waits.is_none() {
            return Ok(None);
        }
        let outcome = next(&mut self.channel)?;
        self.waits = None;
        match outcome.status {
            Status::Done => Ok(Some(outcome)),
            status => {
                tracing::warn!(%status, "a read or write has failed");
                Err(Errno::EIO)
            }
        }
    }
}

/// The next outcome of a channel.
fn next(channel: &mut Channel) -> Result<Outcome, Errno> {
    let mut outcome = [Outcome { status: Status::Fault, bytes: 0, end_of_packet: false }];
    for _ in 0..LOOKS {
        if channel.completed_status(&mut outcome).0 == 1 {
            return Ok(outcome[0]);
        }
        std::hint::spin_loop();
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match channel.wait(until.saturating_duration_since(Instant::now())) {
            Ok(()) if channel.completed_status(&mut outcome).0 == 1 => return Ok(outcome[0]),
            Ok(()) => {}
            Err(InterruptError::TimedOut) => return Err(Errno::ETIMEDOUT),
            Err(error) => {
                tracing::warn!(%error, "a channel behind a file");
                return Err(Errno::EIO);
            }
        }
    }
}

/// The parts of `len` bytes that fit the stage, in order.
fn parts(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(STAGE).map(move |start| start..len.min(start + STAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_cut_at_the_stage() {
        let cut: Vec<_> = parts(2 * STAGE + 1).collect();
        assert_eq!(cut, [0..STAGE, STAGE..2 * STAGE, 2 * STAGE..2 * STAGE + 1]);
        assert_eq!(parts(0).count(), 0);
    }
}
