//! A channel: how an application has bytes moved between its memory and the card's.
//!
//! The calls are those of DPDK's dmadev: an operation is enqueued and has an index; submitting is
//! the doorbell; completions are polled, or an event tells of them.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use super::descriptor::{Address, Descriptor, Flags, LEN_MAX, Op, Outcome, Status};
use super::ring::{DEPTH_MAX, Halt, Ring};
use crate::event::{Event, wake};
use crate::wake_socket::drain;

/// Which way a channel moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Host to card, `h2c`: the destination is card memory.
    HostToCard,
    /// Card to host, `c2h`: the source is card memory.
    CardToHost,
}

impl Direction {
    /// Its name: `h2c` or `c2h`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::HostToCard => "h2c",
            Direction::CardToHost => "c2h",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is at the card's end of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// Card memory, by address (XDMA's AXI4 memory-mapped interface).
    MemoryMapped,
    /// A stream with this number (XDMA's AXI4-Stream interface). What `h2c` channels put into it,
    /// `c2h` channels take out, packet by packet.
    Streaming(u16),
}

/// How an application learns of completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It looks for them.
    Polled,
    /// It can sleep until they come, too.
    Interrupt,
}

/// What a channel is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelOptions {
    /// Which way it moves bytes.
    pub direction: Direction,
    /// What is at the card's end.
    pub interface: Interface,
    /// How completions are told.
    pub mode: Mode,
    /// Descriptors of its ring, a power of two.
    pub depth: u32,
}

impl ChannelOptions {
    /// A memory-mapped, polled channel of 256 descriptors.
    pub fn new(direction: Direction) -> ChannelOptions {
        let (interface, mode) = (Interface::MemoryMapped, Mode::Polled);
        ChannelOptions { direction, interface, mode, depth: 256 }
    }

    /// With a stream at the card's end.
    #[must_use]
    pub fn streaming(self, number: u16) -> ChannelOptions {
        ChannelOptions { interface: Interface::Streaming(number), ..self }
    }

    /// With an event that tells of completions.
    #[must_use]
    pub fn interrupt(self) -> ChannelOptions {
        ChannelOptions { mode: Mode::Interrupt, ..self }
    }

    /// With a ring of `depth` descriptors.
    #[must_use]
    pub fn depth(self, depth: u32) -> ChannelOptions {
        ChannelOptions { depth, ..self }
    }
}

/// What an engine's channels can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "a list of capabilities, each of its own")]
pub struct Capabilities {
    /// Copies of several segments to several segments.
    pub scatter_gather: bool,
    /// Fills.
    pub fill: bool,
    /// Fences.
    pub fence: bool,
    /// Streaming channels.
    pub streaming: bool,
    /// Completions that wake a sleeper.
    pub interrupt: bool,
    /// Descriptors of a channel complete in the order in which they were posted.
    pub in_order: bool,
    /// A failed descriptor does not stop the channel.
    pub goes_on_after_errors: bool,
    /// The longest part that one descriptor moves, in bytes.
    pub len_max: u32,
    /// The most descriptors of a ring.
    pub depth_max: u32,
}

impl Capabilities {
    /// Those of this engine.
    pub const fn of_engine() -> Capabilities {
        Capabilities {
            scatter_gather: true,
            fill: true,
            fence: true,
            streaming: true,
            interrupt: true,
            in_order: true,
            goes_on_after_errors: true,
            len_max: LEN_MAX,
            depth_max: DEPTH_MAX,
        }
    }
}

/// A part of memory, for copies of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its first byte.
    pub at: Address,
    /// Its bytes, at least one.
    pub len: u32,
}

/// The index of a descriptor: the first has 0, and each later one the next number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Index(pub u64);

/// Why an operation was not enqueued. Nothing was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EnqueueError {
    /// The ring has no room until completions are taken.
    #[error("the ring is full: take completions first ({depth} descriptors, {wanted} wanted)")]
    Full {
        /// Descriptors of the ring.
        depth: u32,
        /// Descriptors that the operation needs.
        wanted: usize,
    },
    /// There is nothing to move, or more than a descriptor can.
    #[error("a descriptor moves 1 to {LEN_MAX} bytes, and not {0}")]
    Length(u32),
    /// The two sides of a copy have different lengths.
    #[error("{from} bytes cannot be copied to {to} bytes: make the segments equal in all")]
    Unequal {
        /// Bytes of the source.
        from: u64,
        /// Bytes of the destination.
        to: u64,
    },
    /// An address has too many bits.
    #[error("{0} is no address: offsets of host memory have 48 bits, and card addresses 63")]
    Address(Address),
    /// The engine serves the channel no more.
    #[error(transparent)]
    Halted(#[from] Halt),
}

/// Why no completion came.
#[derive(Debug, Error)]
pub enum InterruptError {
    /// The channel is a polled one.
    #[error("this channel is polled: open it with an interrupt to sleep on it")]
    Polled,
    /// The time is over.
    #[error("no completion came in time")]
    TimedOut,
    /// The engine serves the channel no more.
    #[error(transparent)]
    Halted(#[from] Halt),
    /// The system does not let the thread wait.
    #[error("cannot wait for a completion: {0}")]
    System(#[source] Errno),
}

/// What [`Channel::completed`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// Descriptors that are done since the last call.
    pub count: usize,
    /// The index of the last of them, or of the last before them; `None` before the first.
    pub last: Option<Index>,
    /// The next descriptor has failed: [`Channel::completed_status`] says why, and passes it.
    pub error_next: bool,
}

/// An application's end of a channel.
///
/// ```
/// use remora::dma::*;
/// use remora::memory::Buffer;
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut engine = Engine::new(CardMemory::new(Sizes { near: 1, far: 64 << 20 })?);
/// let host = Arc::new(Buffer::new(4096)?);
/// let region = engine.grant_own(host.clone(), true)?;
/// let mut channel = engine.open(ChannelOptions::new(Direction::HostToCard))?;
///
/// host.write_at(0, b"hello")?;
/// let index = channel.copy(region.at(0), Address::Card(0x1000), 5, Flags::empty())?;
/// channel.submit();
/// while engine.step() {}                     // or an engine with a thread: `Service`
/// assert_eq!(channel.completed(16).last, Some(index));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Channel {
    ring: Ring,
    options: ChannelOptions,
    /// Descriptors that were enqueued, and of these submitted, and of these reported.
    next: u64,
    submitted: u64,
    reported: u64,
    doorbell: Option<Arc<Event>>,
    interrupt: Option<OwnedFd>,
    /// A socket that hangs up when the process of the engine ends.
    socket: Option<OwnedFd>,
}

impl Channel {
    /// The application's end of a new ring, whose other side an engine [serves][1], perhaps in
    /// another process. The doorbell wakes the engine if it sleeps; the interrupt is the reading
    /// end of the pipe by which the engine [wakes](super::Wake) the application.
    ///
    /// [1]: super::Engine::serve
    pub fn new(
        ring: Ring,
        options: ChannelOptions,
        doorbell: Option<Arc<Event>>,
        interrupt: Option<OwnedFd>,
    ) -> Channel {
        let (next, submitted, reported, socket) = (0, 0, 0, None);
        Channel { ring, options, next, submitted, reported, doorbell, interrupt, socket }
    }

    /// With a socket that hangs up when the engine's process ends: [`Channel::halted`] looks there,
    /// since an engine that was killed cannot say so in the ring.
    #[must_use]
    pub fn served_over(self, socket: OwnedFd) -> Channel {
        Channel { socket: Some(socket), ..self }
    }

    /// What the channel is.
    pub fn options(&self) -> ChannelOptions {
        self.options
    }

    /// What its engine can do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of_engine()
    }

    /// Its ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// How many more descriptors can be enqueued before completions are taken.
    #[inline]
    pub fn room(&self) -> usize {
        (u64::from(self.ring.depth()) - (self.next - self.reported)) as usize
    }

    /// Enqueues a copy of `len` bytes.
    ///
    /// # Errors
    /// The ring is full, or the length or an address is out of range.
    #[inline]
    pub fn copy(
        &mut self,
        src: Address,
        dst: Address,
        len: u32,
        flags: Flags,
    ) -> Result<Index, EnqueueError> {
        self.need_room(1)?;
        self.enqueue(Descriptor { op: Op::Copy { src, dst }, flags, len })
    }

    /// Enqueues a fill of `len` bytes with an 8-byte pattern.
    ///
    /// # Errors
    /// As for [`Channel::copy`].
    pub fn fill(
        &mut self,
        pattern: u64,
        dst: Address,
        len: u32,
        flags: Flags,
    ) -> Result<Index, EnqueueError> {
        self.need_room(1)?;
        self.enqueue(Descriptor { op: Op::Fill { pattern, dst }, flags, len })
    }

    /// Enqueues a copy from several segments to several others, which have as many bytes in all.
    /// It takes a descriptor for each part that is whole in both; the index is that of the last.
    ///
    /// # Errors
    /// As for [`Channel::copy`]; nothing is enqueued then.
    pub fn copy_sg(
        &mut self,
        from: &[Segment],
        to: &[Segment],
        flags: Flags,
    ) -> Result<Index, EnqueueError> {
        let parts = parts(from, to)?;
        self.need_room(parts.len())?;
        let first = self.next;
        for (at, (src, dst, len)) in parts.iter().enumerate() {
            let linked = if at + 1 < parts.len() { Flags::LINKED | Flags::MORE } else { flags };
            let fence = if at == 0 { flags & Flags::FENCE } else { Flags::empty() };
            let flags = (linked - Flags::FENCE) | fence | (flags & Flags::MORE);
            let op = Op::Copy { src: *src, dst: *dst };
            if let Err(error) = self.enqueue(Descriptor { op, flags, len: *len }) {
                // None of them was submitted: the places are used again.
                self.next = first;
                return Err(error);
            }
        }
        Ok(Index(self.next - 1))
    }

    fn need_room(&self, wanted: usize) -> Result<(), EnqueueError> {
        if let Some(halt) = self.ring.halt() {
            return Err(halt.into());
        }
        let full = EnqueueError::Full { depth: self.ring.depth(), wanted };
        if wanted <= self.room() { Ok(()) } else { Err(full) }
    }

    #[inline]
    fn enqueue(&mut self, descriptor: Descriptor) -> Result<Index, EnqueueError> {
        if !(1..=LEN_MAX).contains(&descriptor.len) {
            return Err(EnqueueError::Length(descriptor.len));
        }
        let Some(bytes) = descriptor.to_bytes() else {
            let (Op::Copy { src, dst } | Op::Fill { dst: src @ dst, .. }) = descriptor.op;
            return Err(EnqueueError::Address(if src.to_bits().is_none() { src } else { dst }));
        };
        self.ring.put(self.next, &bytes);
        self.next += 1;
        Ok(Index(self.next - 1))
    }

    /// Rings the doorbell: the engine may begin with all that was enqueued.
    #[inline]
    pub fn submit(&mut self) {
        self.submitted = self.next;
        self.ring.set_posted(self.next);
        if let Some(doorbell) = &self.doorbell {
            // The engine says that it sleeps, and then looks at the ring once more. So either it
            // sees this post, or this thread sees that it sleeps.
            fence(Ordering::SeqCst);
            if self.ring.engine_sleeps() {
                wake(doorbell);
            }
        }
    }

    /// How many descriptors are complete and not yet reported. An engine that claims more than was
    /// submitted is not believed.
    #[inline]
    fn ready(&self) -> u64 {
        self.ring.completed().min(self.submitted).saturating_sub(self.reported)
    }

    /// Takes up to `max` completions, and stops before one that has failed.
    #[inline]
    pub fn completed(&mut self, max: usize) -> Completed {
        let ready = self.ready().min(max as u64);
        let count = match self.ring.failed() <= self.reported {
            true => ready,
            false => (0..ready).find(|at| !self.is_done(*at)).unwrap_or(ready),
        };
        self.reported += count;
        let last = self.reported.checked_sub(1).map(Index);
        Completed { count: count as usize, last, error_next: count < ready }
    }

    /// Has the descriptor behind so many that were not reported ended well?
    fn is_done(&self, at: u64) -> bool {
        let outcome = self.ring.outcome(self.reported + at);
        outcome.is_some_and(|outcome| outcome.status == Status::Done)
    }

    /// Takes as many completions as there is room for in `outcomes`, failed ones too. Returns how
    /// many, and the index of the last.
    pub fn completed_status(&mut self, outcomes: &mut [Outcome]) -> (usize, Option<Index>) {
        let count = self.ready().min(outcomes.len() as u64);
        for (at, outcome) in (0..count).zip(outcomes) {
            let read = self.ring.outcome(self.reported + at);
            *outcome = read.unwrap_or(Outcome::failed(Status::Fault));
        }
        self.reported += count;
        (count as usize, self.reported.checked_sub(1).map(Index))
    }

    /// Why the engine serves the channel no more, if so. Where the engine is another process, this
    /// is a system call: callers that poll ask now and then.
    pub fn halted(&self) -> Option<Halt> {
        let hangs_up = |socket: &OwnedFd| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(socket, PollFlags::RDHUP)], Some(&now)).is_ok_and(|n| n > 0)
        };
        let has_gone = || self.socket.as_ref().is_some_and(hangs_up).then_some(Halt::Stopped);
        self.ring.halt().or_else(has_gone)
    }

    /// Sleeps until a completion can be taken.
    ///
    /// # Errors
    /// The channel is polled, the time is over, or the engine has stopped.
    pub fn wait(&self, timeout: Duration) -> Result<(), InterruptError> {
        let event = self.interrupt.as_ref().ok_or(InterruptError::Polled)?;
        let until = crate::channel::deadline(timeout);
        self.ring.arm(self.reported + 1);
        // As for the doorbell: the engine sees that the ring is armed, or this thread what is done.
        fence(Ordering::SeqCst);
        while self.ready() == 0 {
            if let Some(halt) = self.ring.halt() {
                return Err(halt.into());
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Err(InterruptError::TimedOut);
            }
            let left = left.try_into().map_err(|_| InterruptError::System(Errno::INVAL))?;
            let mut ready = [PollFd::new(event, PollFlags::IN)];
            match poll(&mut ready, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(InterruptError::System(error)),
            }
            let lives = drain(event.as_fd()).map_err(|_| InterruptError::System(Errno::IO))?;
            if !lives && self.ready() == 0 {
                return Err(self.ring.halt().unwrap_or(Halt::Stopped).into());
            }
        }
        self.ring.arm(0);
        Ok(())
    }

    /// The descriptor that is readable when a completion has come to a channel that was
    /// [armed](Channel::wait), for an event loop of the application's own.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt.as_ref().map(|event| event.as_fd())
    }
}

/// The parts that are whole in both lists, in order.
fn parts(from: &[Segment], to: &[Segment]) -> Result<Vec<(Address, Address, u32)>, EnqueueError> {
    let sum = |list: &[Segment]| list.iter().map(|segment| u64::from(segment.len)).sum::<u64>();
    let (read, written) = (sum(from), sum(to));
    if read != written {
        return Err(EnqueueError::Unequal { from: read, to: written });
    }
    if let Some(empty) = from.iter().chain(to).find(|segment| segment.len == 0) {
        return Err(EnqueueError::Length(empty.len));
    }
    if from.is_empty() {
        return Err(EnqueueError::Length(0));
    }
    let mut parts = Vec::with_capacity(from.len() + to.len());
    let (mut sources, mut places) = (from.iter().copied(), to.iter().copied());
    let (mut src, mut dst) = (sources.next(), places.next());
    while let (Some(s), Some(d)) = (src, dst) {
        let len = s.len.min(d.len);
        parts.push((s.at, d.at, len));
        src = rest(s, len)?.or_else(|| sources.next());
        dst = rest(d, len)?.or_else(|| places.next());
    }
    Ok(parts)
}

/// What is left of a segment behind its first `len` bytes.
fn rest(segment: Segment, len: u32) -> Result<Option<Segment>, EnqueueError> {
    let at = segment.at.plus(u64::from(len)).ok_or(EnqueueError::Address(segment.at))?;
    let left = segment.len - len;
    Ok((left > 0).then_some(Segment { at, len: left }))
}
