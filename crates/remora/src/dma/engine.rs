//! The engine: it carries out the descriptors of its channels.
//!
//! It is a plain value. Its owner takes its steps: an application that polls, a thread
//! ([`Service`](super::Service)), or another process. A step does a bounded amount of work, moves
//! at most [`PIECE`] bytes a channel, and serves all channels in turn, so that a copy of a gigabyte
//! holds up nobody.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use thiserror::Error;

use super::card_memory::CardMemory;
use super::channel::{Channel, ChannelOptions, Direction, Interface, Mode};
pub use super::counters::Counters;
use super::descriptor::{Address, Descriptor, Flags, Op, Outcome, RegionId, Status};
use super::path::{Mapping, Path};
use super::ring::{Halt, Ring, RingError};
use super::stream::{Run, Stream, Writer};
use crate::event::Event;
use crate::memory::{AllocError, Buffer};
use crate::wake_socket::Wake;

/// The most bytes that a channel moves in a step.
pub const PIECE: usize = 256 << 10;
/// The most descriptors that a channel completes in a step.
const BURST: u32 = 64;
/// How many descriptors ahead of the one in work are brought into the cache: the application has
/// written them on another core.
const AHEAD: u64 = 8;
/// Completions that are told at once.
const TELL: u64 = 16;
/// Bytes that are moved before completions are told.
const TELL_BYTES: usize = 64 << 10;
/// The most regions that can be granted at a time.
const REGIONS_MAX: usize = 1 << 15;
/// The most channels of an engine.
const CHANNELS_MAX: usize = 1024;
/// The most streams of an engine.
const STREAMS_MAX: u16 = 64;

/// Why an engine has no such channel or region.
#[derive(Debug, Error)]
pub enum EngineError {
    /// It has as many regions as it can.
    #[error("{REGIONS_MAX} regions are granted already: revoke one of them")]
    RegionsFull,
    /// It has as many channels as it can.
    #[error("the engine has {CHANNELS_MAX} channels already: close one of them")]
    ChannelsFull,
    /// There is no such stream.
    #[error("there is no stream {0}: an engine has streams 0 to {last}", last = STREAMS_MAX - 1)]
    NoStream(u16),
    /// A stream has no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The ring cannot be.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// An event cannot be made.
    #[error("cannot make an event: {0}")]
    Event(#[source] std::io::Error),
}

/// Whose a channel or a region is. Channels reach their owner's regions only, all of them the
/// card's memory and the streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Owner(pub u32);

/// A channel of an engine, by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u32);

/// What an engine tells about one of its channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelState {
    /// Which it is.
    pub id: ChannelId,
    /// Whose it is.
    pub owner: Owner,
    /// What it is.
    pub options: ChannelOptions,
    /// Descriptors that are complete.
    pub completed: u64,
    /// Why it is served no more, if so.
    pub halted: Option<Halt>,
}

/// Memory of an application that the engine may reach.
#[derive(Debug)]
struct Region {
    owner: Owner,
    path: Box<dyn Path>,
    len: u64,
    /// The bytes, where the path is a mapping.
    mapped: Option<Arc<Buffer>>,
    writable: bool,
}

/// What an engine does not reach or serve any more. To drop it unmaps memory, which takes time if
/// that is much.
#[derive(Debug, Default)]
pub struct TakenBack {
    regions: Vec<Region>,
    _channels: Vec<Served>,
}

impl TakenBack {
    /// How many regions these are.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of the regions.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }
}

/// The engine's side of a channel. All that it decides by is here, and not in the ring.
#[derive(Debug)]
struct Served {
    id: ChannelId,
    owner: Owner,
    ring: Ring,
    options: ChannelOptions,
    interrupt: Option<Wake>,
    /// Descriptors that were taken up and have ended, and of these told.
    ended: u64,
    told: u64,
    /// The descriptor in work, and how many of its bytes are moved.
    current: Option<(Descriptor, u32)>,
    /// The descriptor before failed, and the next is a part of the same operation or packet.
    skips: bool,
    halted: Option<Halt>,
}

/// What became of a descriptor in a step.
enum Turn {
    /// It has ended.
    Ended(Outcome),
    /// So many bytes were moved, and more are left.
    Moved(u32),
    /// It waits for a stream.
    Waits,
}

/// A DMA engine between the memory of applications and a card's.
#[derive(Debug)]
pub struct Engine {
    channels: Vec<Option<Served>>,
    /// Where the next step begins.
    next: usize,
    reach: Reach,
}

/// The memories that an engine reaches.
#[derive(Debug)]
struct Reach {
    card: Arc<CardMemory>,
    regions: Vec<Option<Region>>,
    /// The number at which the next region looks for one that is free: numbers go in turn, so that
    /// what names one that was revoked does not soon reach another.
    next_region: usize,
    streams: Vec<Option<Stream>>,
    counters: Counters,
}

impl Engine {
    /// An engine of a card, without channels, that reaches no application's memory.
    pub fn new(card: Arc<CardMemory>) -> Engine {
        let (regions, next_region, streams) = (Vec::new(), 0, Vec::new());
        let reach = Reach { card, regions, next_region, streams, counters: Counters::default() };
        Engine { channels: Vec::new(), next: 0, reach }
    }

    /// The card's memory.
    pub fn card(&self) -> &Arc<CardMemory> {
        &self.reach.card
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.reach.counters
    }

    /// Lets the owner's channels reach an application's memory by `path`, and write it if
    /// `writable`. A path that waits for its application (a pipe, datagrams) holds up all channels
    /// meanwhile: an engine that serves several applications takes no such path.
    ///
    /// # Errors
    /// Too many regions are granted.
    pub fn grant(
        &mut self,
        owner: Owner,
        path: Box<dyn Path>,
        writable: bool,
    ) -> Result<RegionId, EngineError> {
        let Reach { regions, next_region, .. } = &mut self.reach;
        let mut numbers = (0..REGIONS_MAX).map(|at| (*next_region + at) % REGIONS_MAX);
        let free = numbers.find(|number| regions.get(*number).is_none_or(Option::is_none));
        let free = free.ok_or(EngineError::RegionsFull)?;
        *next_region = free + 1;
        if free >= regions.len() {
            regions.resize_with(free + 1, || None);
        }
        let (len, mapped) = (path.len(), path.mapped());
        regions[free] = Some(Region { owner, path, len, mapped, writable });
        Ok(RegionId(free as u16))
    }

    /// [`Engine::grant`] for a buffer of this process, to channels that are
    /// [opened](Engine::open) here.
    ///
    /// # Errors
    /// Too many regions are granted.
    pub fn grant_own(
        &mut self,
        buffer: Arc<Buffer>,
        writable: bool,
    ) -> Result<RegionId, EngineError> {
        self.grant(Owner::default(), Box::new(Mapping::own(buffer)), writable)
    }

    /// Takes a grant of this owner back. Descriptors that name the region fail from now on, those
    /// in work, too. Returns what it was; `None` if there was no such grant.
    pub fn revoke(&mut self, owner: Owner, region: RegionId) -> Option<TakenBack> {
        let place = self.reach.regions.get_mut(usize::from(region.0))?;
        let gone = place.take_if(|region| region.owner == owner)?;
        for served in self.channels.iter_mut().flatten().filter(|served| served.owner == owner) {
            served.lose(region, &mut self.reach);
        }
        Some(TakenBack { regions: vec![gone], ..TakenBack::default() })
    }

    /// Closes all channels of an owner, and takes back all that was granted by it. Returns what
    /// that was.
    pub fn end(&mut self, owner: Owner) -> TakenBack {
        let its = |place: &mut Option<Served>| place.take_if(|served| served.owner == owner);
        let mut channels: Vec<Served> = self.channels.iter_mut().filter_map(its).collect();
        for gone in &mut channels {
            gone.stop(Halt::Stopped);
            self.reach.forget_writer(gone);
        }
        let its = |place: &mut Option<Region>| place.take_if(|region| region.owner == owner);
        let regions = self.reach.regions.iter_mut().filter_map(its).collect();
        TakenBack { regions, _channels: channels }
    }

    /// Opens a channel to this engine, for an application in the same process.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn open(&mut self, options: ChannelOptions) -> Result<Channel, EngineError> {
        self.open_with(options, None)
    }

    pub(super) fn open_with(
        &mut self,
        options: ChannelOptions,
        doorbell: Option<Arc<Event>>,
    ) -> Result<Channel, EngineError> {
        let ring = Ring::new(options.depth)?;
        let wake = match options.mode {
            Mode::Polled => None,
            Mode::Interrupt => Some(Wake::new().map_err(EngineError::Event)?),
        };
        let reader = wake.as_ref().map(|wake| wake.reader().try_clone_to_owned()).transpose();
        let reader = reader.map_err(EngineError::Event)?;
        self.serve(Owner::default(), ring.other_side()?, options, wake)?;
        Ok(Channel::new(ring, options, doorbell, reader))
    }

    /// Serves a ring, which another process may have made. `interrupt` wakes the application as it
    /// asks for it.
    ///
    /// # Errors
    /// There are too many channels, or no such stream.
    pub fn serve(
        &mut self,
        owner: Owner,
        ring: Ring,
        options: ChannelOptions,
        interrupt: Option<Wake>,
    ) -> Result<ChannelId, EngineError> {
        if let Interface::Streaming(number) = options.interface {
            self.reach.need_stream(number)?;
        }
        let free = self.channels.iter().position(Option::is_none).unwrap_or(self.channels.len());
        if free == CHANNELS_MAX {
            return Err(EngineError::ChannelsFull);
        }
        if free == self.channels.len() {
            self.channels.push(None);
        }
        let (current, skips, halted) = (None, false, None);
        let options = ChannelOptions { depth: ring.depth(), ..options };
        let (id, ended, told) = (ChannelId(free as u32), 0, 0);
        self.channels[free] = Some(Served {
            id,
            owner,
            ring,
            options,
            interrupt,
            ended,
            told,
            current,
            skips,
            halted,
        });
        Ok(id)
    }

    /// Serves a channel no more; its application is told. Returns whether there was one.
    pub fn close(&mut self, channel: ChannelId) -> bool {
        let served = self.channels.get_mut(channel.0 as usize).and_then(Option::take);
        let Some(mut gone) = served else { return false };
        gone.stop(Halt::Stopped);
        self.reach.forget_writer(&gone);
        true
    }

    /// The channels that are served.
    pub fn channels(&self) -> impl Iterator<Item = ChannelState> {
        let places = self.channels.iter().enumerate();
        places.filter_map(|(place, served)| {
            let served = served.as_ref()?;
            let Served { owner, options, halted, ended: completed, .. } = *served;
            Some(ChannelState { id: ChannelId(place as u32), owner, options, completed, halted })
        })
    }

    /// Carries out what the channels have posted, a bounded part of it. Returns whether there was
    /// anything to do.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.step_while(|| true)
    }

    /// As [`Engine::step`], but ends between two channels where `goes_on` says no: the next step
    /// begins behind the one that had something to do. So a caller that wants the engine waits for
    /// one channel at most.
    #[inline]
    pub fn step_while(&mut self, goes_on: impl Fn() -> bool) -> bool {
        let (mut worked, from) = (false, self.next);
        let (before, behind) = (0..from.min(self.channels.len()), from..self.channels.len());
        for place in behind.chain(before) {
            let Some(served) = &mut self.channels[place] else { continue };
            if served.step(&mut self.reach) {
                worked = true;
                if !goes_on() {
                    self.next = place + 1;
                    break;
                }
            }
        }
        worked
    }

    /// Tells all rings whether the engine sleeps. A caller that is about to sleep says so, and then
    /// takes another [step](Engine::step): a poster rings the doorbell after that step.
    pub fn set_asleep(&mut self, asleep: bool) {
        for served in self.channels.iter().flatten() {
            served.ring.set_asleep(asleep);
        }
        fence(Ordering::SeqCst);
    }
}

impl Drop for Engine {
    /// Applications that wait learn that nobody serves them.
    fn drop(&mut self) {
        for served in self.channels.iter_mut().flatten() {
            served.stop(Halt::Stopped);
        }
    }
}

impl Served {
    fn step(&mut self, reach: &mut Reach) -> bool {
        // Read once; the application may write it at any time.
        let posted = self.ring.posted();
        let waiting = posted.wrapping_sub(self.ended);
        if waiting == 0 || self.halted.is_some() {
            return false;
        }
        if waiting > u64::from(self.ring.depth()) {
            reach.counters.halted += 1;
            self.stop(Halt::BadIndex);
            reach.forget_writer(self);
            return true;
        }
        let before = self.ended;
        let (mut moved, mut untold) = (0, 0);
        for at in 0..waiting.min(u64::from(BURST)) {
            if at + AHEAD < waiting {
                self.ring.prefetch(self.ended + AHEAD);
            }
            let bytes = match self.turn(reach) {
                Turn::Ended(outcome) => {
                    self.end(outcome, reach);
                    outcome.bytes as usize
                }
                Turn::Moved(bytes) => {
                    moved += bytes as usize;
                    break;
                }
                Turn::Waits => break,
            };
            moved += bytes;
            untold += bytes;
            if self.ended - self.told >= TELL || untold >= TELL_BYTES {
                self.tell(&mut reach.counters);
                untold = 0;
            }
            if moved >= PIECE {
                break;
            }
        }
        self.tell(&mut reach.counters);
        moved > 0 || self.ended > before
    }

    /// Works on the next descriptor.
    #[inline]
    fn turn(&mut self, reach: &mut Reach) -> Turn {
        let (descriptor, done) = match self.current {
            Some(current) => current,
            None => {
                let parsed = Descriptor::parse(&self.ring.descriptor(self.ended));
                let Some(descriptor) = parsed else {
                    return Turn::Ended(Outcome::failed(Status::Invalid));
                };
                (descriptor, 0)
            }
        };
        if self.skips {
            self.current = Some((descriptor, 0));
            return Turn::Ended(Outcome::failed(Status::Skipped));
        }
        if descriptor.flags.contains(Flags::FENCE) && done == 0 {
            // All before is complete, since descriptors are carried out in order.
            self.tell(&mut reach.counters);
            fence(Ordering::SeqCst);
        }
        let of = (self.owner, self.id, self.options);
        let turn = match reach.carry_out(of, descriptor, done) {
            Ok(turn) => turn,
            Err(status) => Turn::Ended(Outcome { bytes: done, ..Outcome::failed(status) }),
        };
        let done = if let Turn::Moved(bytes) = turn { done + bytes } else { done };
        self.current = Some((descriptor, done));
        turn
    }

    #[inline]
    fn end(&mut self, outcome: Outcome, reach: &mut Reach) {
        let of_same = self.current.take().is_some_and(|(d, _)| d.flags.intersects(self.joins()));
        self.skips = of_same && outcome.status != Status::Done;
        self.ring.set_outcome(self.ended, outcome);
        self.ended += 1;
        let counters = &mut reach.counters;
        counters.bytes += u64::from(outcome.bytes);
        match outcome.status {
            Status::Done => counters.done += 1,
            status => {
                self.ring.set_failed(self.ended);
                counters.failed += 1;
                match status {
                    Status::Invalid => counters.invalid += 1,
                    Status::OutOfRange => counters.out_of_range += 1,
                    Status::Fault => counters.faults += 1,
                    _ => {}
                }
                // The rest of its packet does not come.
                reach.forget_writer(self);
            }
        }
    }

    /// By which of its flags a descriptor is a part of what the next one is a part of, too: of an
    /// operation, or of a packet that is put into a stream.
    fn joins(&self) -> Flags {
        match (self.options.direction, self.options.interface) {
            (Direction::HostToCard, Interface::Streaming(_)) => Flags::LINKED | Flags::MORE,
            _ => Flags::LINKED,
        }
    }

    /// Ends the descriptor in work if it names this region, which has gone: the number is given
    /// again before the descriptor comes to its end, perhaps.
    fn lose(&mut self, region: RegionId, reach: &mut Reach) {
        let Some((descriptor, done)) = self.current else { return };
        if descriptor.names(region) && self.halted.is_none() {
            self.end(Outcome { bytes: done, ..Outcome::failed(Status::OutOfRange) }, reach);
            self.tell(&mut reach.counters);
        }
    }

    /// Tells the application what has ended.
    #[inline]
    fn tell(&mut self, counters: &mut Counters) {
        if self.told == self.ended {
            return;
        }
        self.ring.set_completed(self.ended);
        if let Some(interrupt) = &self.interrupt {
            // The application arms and then looks: either it sees the completion or this thread
            // sees that it is armed.
            fence(Ordering::SeqCst);
            let armed = self.ring.armed();
            if armed > self.told && armed <= self.ended {
                counters.interrupts += 1;
                interrupt.wake();
            }
        }
        self.told = self.ended;
    }

    fn stop(&mut self, halt: Halt) {
        self.halted = Some(halt);
        self.ring.set_halt(halt);
        if let Some(interrupt) = &self.interrupt {
            interrupt.wake();
        }
    }
}

/// One end of a move, with the bytes that it reaches.
enum End<'a> {
    /// Mapped bytes, from an offset on.
    Bytes(&'a Buffer, usize),
    /// An application's memory, reached by calls.
    Path(&'a mut dyn Path, u64),
}

impl Reach {
    fn need_stream(&mut self, number: u16) -> Result<(), EngineError> {
        if number >= STREAMS_MAX {
            return Err(EngineError::NoStream(number));
        }
        let place = usize::from(number);
        if self.streams.len() <= place {
            self.streams.resize_with(place + 1, || None);
        }
        if self.streams[place].is_none() {
            self.streams[place] = Some(Stream::new()?);
        }
        Ok(())
    }

    /// A channel has ended, or one of its descriptors has failed, and with it a packet that it has
    /// not put whole into its stream.
    fn forget_writer(&mut self, gone: &Served) {
        let Interface::Streaming(number) = gone.options.interface else { return };
        if let Some(Some(stream)) = self.streams.get_mut(usize::from(number)) {
            stream.forget(Writer(gone.id.0));
        }
    }

    /// Moves a piece of a channel's descriptor of which `done` bytes are moved already.
    #[inline]
    fn carry_out(
        &mut self,
        (owner, channel, options): (Owner, ChannelId, ChannelOptions),
        descriptor: Descriptor,
        done: u32,
    ) -> Result<Turn, Status> {
        let piece = (descriptor.len - done).min(PIECE as u32) as usize;
        let span = Span { owner, len: u64::from(descriptor.len), from: done, piece };
        match (descriptor.op, options.interface) {
            (Op::Copy { src, dst }, Interface::MemoryMapped) => {
                let onto_card = match options.direction {
                    Direction::HostToCard => dst,
                    Direction::CardToHost => src,
                };
                if !matches!(onto_card, Address::Card(_)) {
                    return Err(Status::Unsupported);
                }
                let (from, to) =
                    ends(&self.card, &mut self.regions, (src, false), (dst, true), span)?;
                move_bytes(from, to, piece)?;
            }
            (Op::Fill { pattern, dst }, Interface::MemoryMapped) => {
                if matches!(dst, Address::Card(_)) != (options.direction == Direction::HostToCard) {
                    return Err(Status::Unsupported);
                }
                match end(&self.card, &mut self.regions, dst, true, span)? {
                    End::Bytes(bytes, at) => fill(bytes, at, piece, pattern),
                    End::Path(..) => return Err(Status::Unsupported),
                }
            }
            (Op::Copy { src, dst }, Interface::Streaming(number)) => {
                return match options.direction {
                    Direction::HostToCard => {
                        self.put((number, Writer(channel.0)), src, descriptor, span)
                    }
                    Direction::CardToHost => self.take(number, dst, descriptor, span),
                };
            }
            (Op::Fill { .. }, Interface::Streaming(_)) => return Err(Status::Unsupported),
        }
        Ok(ended_or_moved(descriptor, done, piece))
    }

    /// Puts bytes of a channel into a stream, as far as there is room.
    fn put(
        &mut self,
        (number, writer): (u16, Writer),
        src: Address,
        descriptor: Descriptor,
        span: Span,
    ) -> Result<Turn, Status> {
        let stream = self.streams.get_mut(usize::from(number)).and_then(Option::as_mut);
        let stream = stream.ok_or(Status::Unsupported)?;
        let Run { at, len } = stream.room(writer, span.piece);
        // Judged first: a descriptor that must fail does not wait for room.
        let from = end(&self.card, &mut self.regions, src, false, span)?;
        if len == 0 {
            return Ok(Turn::Waits);
        }
        move_bytes(from, End::Bytes(&stream.bytes, at), len)?;
        let last = u64::from(span.from) + len as u64 == span.len;
        stream.filled(writer, len, last && !descriptor.flags.contains(Flags::MORE));
        Ok(ended_or_moved(descriptor, span.from, len))
    }

    /// Takes bytes out of a stream, as far as there are any. A packet's end ends the descriptor.
    fn take(
        &mut self,
        number: u16,
        dst: Address,
        descriptor: Descriptor,
        span: Span,
    ) -> Result<Turn, Status> {
        let stream = self.streams.get_mut(usize::from(number)).and_then(Option::as_mut);
        let stream = stream.ok_or(Status::Unsupported)?;
        if stream.takes_cut() {
            return Ok(Turn::Ended(Outcome { bytes: span.from, ..Outcome::failed(Status::Cut) }));
        }
        let Run { at, len } = stream.content(span.piece);
        let to = end(&self.card, &mut self.regions, dst, true, span)?;
        if len == 0 {
            return Ok(Turn::Waits);
        }
        move_bytes(End::Bytes(&stream.bytes, at), to, len)?;
        if stream.drained(len) {
            let bytes = span.from + len as u32;
            return Ok(Turn::Ended(Outcome { status: Status::Done, bytes, end_of_packet: true }));
        }
        Ok(ended_or_moved(descriptor, span.from, len))
    }
}

/// The part of an owner's descriptor that is moved now: `piece` bytes behind the first `from` of
/// `len`.
#[derive(Clone, Copy)]
struct Span {
    owner: Owner,
    len: u64,
    from: u32,
    piece: usize,
}

#[inline]
fn ended_or_moved(descriptor: Descriptor, done: u32, len: usize) -> Turn {
    let bytes = done + len as u32;
    if bytes == descriptor.len {
        Turn::Ended(Outcome { status: Status::Done, bytes, end_of_packet: false })
    } else {
        Turn::Moved(len as u32)
    }
}

/// Where an address is, if all of its descriptor's bytes may be reached.
#[inline]
fn end<'a>(
    card: &'a CardMemory,
    regions: &'a mut [Option<Region>],
    address: Address,
    writes: bool,
    span: Span,
) -> Result<End<'a>, Status> {
    match address {
        Address::Card(at) => card_end(card, at, span),
        Address::Host(RegionId(number), at) => {
            let region = regions.get_mut(usize::from(number)).and_then(Option::as_mut);
            host_end(region.ok_or(Status::OutOfRange)?, at, writes, span)
        }
    }
}

/// [`end`] for both ends of a copy.
#[inline]
fn ends<'a>(
    card: &'a CardMemory,
    regions: &'a mut [Option<Region>],
    src: (Address, bool),
    dst: (Address, bool),
    span: Span,
) -> Result<(End<'a>, End<'a>), Status> {
    // One of the two is card memory, so the regions are needed for the other only.
    match (src.0, dst.0) {
        (Address::Card(at), _) => {
            Ok((card_end(card, at, span)?, end(card, regions, dst.0, dst.1, span)?))
        }
        (_, Address::Card(at)) => {
            Ok((end(card, regions, src.0, src.1, span)?, card_end(card, at, span)?))
        }
        _ => Err(Status::Unsupported),
    }
}

#[inline]
fn card_end(card: &CardMemory, at: u64, span: Span) -> Result<End<'_>, Status> {
    need_within(at, span.len, card.bytes().len() as u64)?;
    Ok(End::Bytes(card.bytes(), (at + u64::from(span.from)) as usize))
}

#[inline]
fn host_end(region: &mut Region, at: u64, writes: bool, span: Span) -> Result<End<'_>, Status> {
    if region.owner != span.owner {
        return Err(Status::OutOfRange);
    }
    need_within(at, span.len, region.len)?;
    if writes && !region.writable {
        return Err(Status::ReadOnly);
    }
    let at = at + u64::from(span.from);
    Ok(match &region.mapped {
        Some(bytes) => End::Bytes(bytes, at as usize),
        None => End::Path(&mut *region.path, at),
    })
}

#[inline]
fn need_within(at: u64, len: u64, whole: u64) -> Result<(), Status> {
    let within = at.checked_add(len).is_some_and(|end| end <= whole);
    if within { Ok(()) } else { Err(Status::OutOfRange) }
}

/// Moves `len` bytes from one end to the other.
#[inline]
fn move_bytes(from: End<'_>, to: End<'_>, len: usize) -> Result<(), Status> {
    match (from, to) {
        (End::Bytes(src, from), End::Bytes(dst, at)) => {
            dst.copy_at(at, src, from, len).map_err(|_| Status::OutOfRange)
        }
        (End::Path(path, from), End::Bytes(card, at)) => {
            path.to_card(from, card, at, len).map_err(|_| Status::Fault)
        }
        (End::Bytes(card, from), End::Path(path, at)) => {
            path.to_host(card, from, at, len).map_err(|_| Status::Fault)
        }
        (End::Path(..), End::Path(..)) => Err(Status::Unsupported),
    }
}

/// Repeats a pattern over bytes that lie within the buffer. Pieces are multiples of the pattern.
fn fill(bytes: &Buffer, at: usize, len: usize, pattern: u64) {
    let mut block = [0; 512];
    for word in block.as_chunks_mut::<8>().0 {
        *word = pattern.to_le_bytes();
    }
    for done in (0..len).step_by(block.len()) {
        let part = (len - done).min(block.len());
        bytes.write_at(at + done, &block[..part]).expect("the span was judged");
    }
}
