//! A program's end of a daemon's DMA engine.

use std::borrow::{Borrow, BorrowMut};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::observer::{ObserveError, Observer};
use crate::dma::path::{Application, PathKind, Through};
use crate::dma::ring::RingError;
use crate::dma::{
    Channel, ChannelOptions, Direction, Interface, MemoryKind, Mode, RegionId, Ring, Sizes,
};
use crate::event::Event;
use crate::memory::Buffer;
use crate::memory::memfd::MapError;
use crate::message::{
    Answer, ClientRequest, DmaAnswer, DmaChannelRow, DmaRequest, Loan, MessageError, encode,
};

/// The card memory that a daemon has for this user, and the engine that reaches it.
///
/// Its memory is the same for all programs of a user, and stays until the daemon ends. Channels,
/// grants and pieces end with this value. Streams are shared, too: what one program puts in,
/// another may take out.
#[derive(Clone, Debug)]
pub struct DmaClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    daemon: Mutex<Observer>,
    sizes: Sizes,
    memory: Arc<Buffer>,
    file: OwnedFd,
    doorbell: Arc<Event>,
}

/// Why something is not to be had of a daemon's engine.
#[derive(Debug, Error)]
pub enum DmaError {
    /// The daemon cannot be asked, or refuses.
    #[error(transparent)]
    Daemon(#[from] ObserveError),
    /// The memory that it shares cannot be mapped.
    #[error("cannot map the memory of the daemon’s card: {0}")]
    Map(#[from] MapError),
    /// The ring that it shares cannot be used.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The memory is none of a file, and was to be granted as one.
    #[error("this memory has no file: grant it by the process (process_vm, proc_mem)")]
    NoFile,
    /// The path needs something of the daemon that it does not do.
    #[error("a daemon’s engine takes no path by {0}, which waits for its application")]
    Path(PathKind),
    /// The system is short of descriptors.
    #[error("cannot prepare what the daemon shall have: {0}")]
    System(#[from] io::Error),
}

/// The channels of all programs of a user, and what their engine has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DmaStatus {
    /// The channels.
    pub channels: Vec<DmaChannelRow>,
    /// Names and values.
    pub counters: Vec<(String, u64)>,
}

impl DmaClient {
    /// Opens the card memory of the daemon at `path`, or at the usual places.
    ///
    /// # Errors
    /// No daemon is there, it refuses, or its memory cannot be mapped.
    pub fn connect(path: Option<&Path>) -> Result<DmaClient, DmaError> {
        let daemon = Observer::connect(path)?;
        let (answer, came) = ask(&daemon, DmaRequest::Open, &[])?;
        let DmaAnswer::Card { near, far } = answer else { return Err(malformed()) };
        let [file, doorbell] = exactly(came)?;
        let len = near.checked_add(far).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(malformed)?;
        let memory = Arc::new(Buffer::map_only(file.as_fd(), 0, len)?);
        let (sizes, doorbell) = (Sizes { near, far }, Arc::new(Event::from(doorbell)));
        let daemon = Mutex::new(daemon);
        Ok(DmaClient { shared: Arc::new(Shared { daemon, sizes, memory, file, doorbell }) })
    }

    /// How much memory the card has of each kind. The far memory begins at 0, and the near one
    /// behind it.
    pub fn sizes(&self) -> Sizes {
        self.shared.sizes
    }

    /// The card's memory, mapped by this program: an offset is a card address.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.shared.memory
    }

    /// The file that is the card's memory.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.shared.file.as_fd()
    }

    /// Lets the engine reach memory of this program, by `path`: mapped, as a file, or by one of the
    /// two ways to a process's memory.
    ///
    /// # Errors
    /// The daemon refuses, or the memory has no file where one is needed.
    pub fn grant(
        &self,
        path: PathKind,
        memory: &Application,
        writable: bool,
    ) -> Result<RegionId, DmaError> {
        let own;
        let (loan, file) = match path {
            PathKind::Mapping | PathKind::Engine => (Loan::Sealed, memory.file.as_deref()),
            PathKind::Memfd => (Loan::File, memory.file.as_deref()),
            PathKind::ProcessVm => (Loan::Process, None),
            PathKind::ProcMem => {
                own = File::options().read(true).write(true).open("/proc/self/mem")?.into();
                (Loan::ProcessFile, Some(&own))
            }
            PathKind::Pipe | PathKind::Udp => return Err(DmaError::Path(path)),
        };
        if file.is_none() && loan != Loan::Process {
            return Err(DmaError::NoFile);
        }
        let file = file.map(OwnedFd::as_fd);
        let request = DmaRequest::Grant { loan, addr: memory.addr, len: memory.len, writable };
        match self.ask(request, file.as_slice())? {
            (DmaAnswer::Region(number), _) => Ok(RegionId(number)),
            _ => Err(malformed()),
        }
    }

    /// Takes a grant back: descriptors that name it fail from now on.
    ///
    /// # Errors
    /// There is no such grant, or the daemon has ended.
    pub fn revoke(&self, region: RegionId) -> Result<(), DmaError> {
        self.done(DmaRequest::Revoke(region.0))
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// The daemon refuses, or has ended.
    pub fn open(&self, options: ChannelOptions) -> Result<DmaChannel, DmaError> {
        let stream = match options.interface {
            Interface::MemoryMapped => None,
            Interface::Streaming(number) => Some(number),
        };
        let (to_host, interrupt) =
            (options.direction == Direction::CardToHost, options.mode == Mode::Interrupt);
        let request = DmaRequest::Channel { to_host, stream, interrupt, depth: options.depth };
        let (answer, came) = self.ask(request, &[])?;
        let DmaAnswer::Channel(number) = answer else { return Err(malformed()) };
        let (ring, wake) = if interrupt {
            let [ring, wake] = exactly(came)?;
            (ring, Some(wake))
        } else {
            let [ring] = exactly(came)?;
            (ring, None)
        };
        let ring = Ring::map(Arc::new(ring), options.depth)?;
        let socket = self.shared.lock().as_fd().try_clone_to_owned()?;
        let doorbell = Some(self.shared.doorbell.clone());
        let channel = Channel::new(ring, options, doorbell, wake).served_over(socket);
        Ok(DmaChannel { channel, number, client: self.clone() })
    }

    /// A pair of channels by which the engine copies between the card and memory of this program,
    /// which it reaches by `kind`.
    ///
    /// # Errors
    /// As for [`DmaClient::grant`] and [`DmaClient::open`].
    pub fn through(
        &self,
        kind: PathKind,
        memory: &Application,
    ) -> Result<Through<DmaChannel>, DmaError> {
        let region = self.grant(kind, memory, true)?;
        let open = |direction| self.open(ChannelOptions::new(direction));
        let (h2c, c2h) = (open(Direction::HostToCard)?, open(Direction::CardToHost)?);
        Ok(Through::over(kind, self.memory(), (h2c, c2h), (region, memory.len)))
    }

    /// Card memory that no other program of the user is given; returns its first card address, and
    /// its length. (Programs of one user may reach all of the card's memory, as on a card in
    /// hardware: this keeps those apart that ask.)
    ///
    /// # Errors
    /// So much is not free in one piece, or the daemon has ended.
    pub fn alloc(&self, kind: MemoryKind, len: u64) -> Result<(u64, u64), DmaError> {
        match self.ask(DmaRequest::Alloc { near: kind == MemoryKind::Near, len }, &[])? {
            (DmaAnswer::Piece { address, len }, _) => Ok((address, len)),
            _ => Err(malformed()),
        }
    }

    /// Gives back what begins at `address`.
    ///
    /// # Errors
    /// This program was given no such piece, or the daemon has ended.
    pub fn free(&self, address: u64) -> Result<(), DmaError> {
        self.done(DmaRequest::Free(address))
    }

    /// The channels of all programs of this user.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn status(&self) -> Result<DmaStatus, DmaError> {
        let (mut status, mut from) = (DmaStatus::default(), 0);
        loop {
            let (answer, _) = self.ask(DmaRequest::List(from), &[])?;
            let DmaAnswer::Channels { channels, more, counters } = answer else {
                return Err(malformed());
            };
            let last = channels.last().map(|last| last.place).filter(|last| *last >= from);
            status.channels.extend(channels);
            status.counters = counters;
            match last.filter(|_| more) {
                Some(last) => from = last + 1,
                None => return Ok(status),
            }
        }
    }

    fn done(&self, request: DmaRequest) -> Result<(), DmaError> {
        match self.ask(request, &[])? {
            (DmaAnswer::Done, _) => Ok(()),
            _ => Err(malformed()),
        }
    }

    fn ask(
        &self,
        request: DmaRequest,
        with: &[BorrowedFd<'_>],
    ) -> Result<(DmaAnswer, Vec<OwnedFd>), DmaError> {
        ask(&self.shared.lock(), request, with)
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Observer> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(
    daemon: &Observer,
    request: DmaRequest,
    with: &[BorrowedFd<'_>],
) -> Result<(DmaAnswer, Vec<OwnedFd>), DmaError> {
    let message = encode(&ClientRequest::Dma(request));
    Ok(daemon.exchange_with(&message, with, |answer| match answer {
        Answer::Dma(answer) => Some(answer),
        _ => None,
    })?)
}

fn malformed() -> DmaError {
    ObserveError::from(MessageError::Malformed).into()
}

/// As many descriptors as are expected.
fn exactly<const N: usize>(came: Vec<OwnedFd>) -> Result<[OwnedFd; N], DmaError> {
    came.try_into().map_err(|_| malformed())
}

/// A channel to a daemon's engine, which closes with this value.
#[derive(Debug)]
pub struct DmaChannel {
    channel: Channel,
    number: u32,
    client: DmaClient,
}

impl Drop for DmaChannel {
    fn drop(&mut self) {
        if let Err(error) = self.client.done(DmaRequest::Close(self.number)) {
            tracing::debug!(%error, "a channel whose daemon has gone");
        }
    }
}

impl Deref for DmaChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for DmaChannel {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

impl Borrow<Channel> for DmaChannel {
    fn borrow(&self) -> &Channel {
        &self.channel
    }
}

impl BorrowMut<Channel> for DmaChannel {
    fn borrow_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}
