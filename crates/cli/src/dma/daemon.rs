//! The card of a daemon, for the commands that can work with it.

use std::io;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use remora::daemon::{DmaClient, DmaError, ObserveError};
use remora::dma::choose::{Bench, Measured, SIZES, choose, measure_all, or_environment};
use remora::dma::path::Application;
use remora::dma::path::{Path, PathKind};
use remora::dma::{
    CardMemory, Channel, ChannelOptions, Direction, Engine, MemoryKind, RegionId, Service, Sizes,
};
use remora::memory::Buffer;
use remora::message::{DaemonPlace, place};

/// Which daemon's card is meant.
#[derive(Debug, Args)]
pub(super) struct DaemonArgs {
    /// The socket of the daemon (`remora nic`) whose card is meant [default: REMORA_NIC, else that
    /// of this user's or the machine's daemon if one runs, else a card of the command's own]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// A channel, to this process's engine or to a daemon's.
pub(super) type AnyChannel = Box<dyn DerefMut<Target = Channel> + Send>;

/// An engine: one of this process, for a card of its own, or a daemon's.
pub(super) enum CardEngine {
    Own(Service),
    Daemons(DmaClient),
}

impl CardEngine {
    /// The daemon's, or else one of this process.
    pub(super) fn new(daemon: Option<DmaClient>, sizes: Sizes) -> Result<CardEngine> {
        if let Some(card) = daemon {
            return Ok(CardEngine::Daemons(card));
        }
        let card = CardMemory::new(sizes).context("no memory for a card")?;
        let service = Service::start(Engine::new(card)).context("cannot start an engine")?;
        Ok(CardEngine::Own(service))
    }

    pub(super) fn sizes(&self) -> Sizes {
        match self {
            CardEngine::Own(service) => service.engine().card().sizes(),
            CardEngine::Daemons(card) => card.sizes(),
        }
    }

    /// Lets the engine reach and write memory of this process.
    pub(super) fn grant(
        &self,
        application: &Application,
        memory: &Arc<Buffer>,
    ) -> Result<RegionId> {
        Ok(match self {
            CardEngine::Own(service) => service.engine().grant_own(memory.clone(), true)?,
            CardEngine::Daemons(card) => card.grant(PathKind::Mapping, application, true)?,
        })
    }

    pub(super) fn open(&self, options: ChannelOptions) -> Result<AnyChannel> {
        Ok(match self {
            // A box is a pointer to a channel, too.
            CardEngine::Own(service) => Box::new(Box::new(service.open(options)?)),
            CardEngine::Daemons(card) => Box::new(card.open(options)?),
        })
    }
}

impl DaemonArgs {
    /// Was one asked for by its socket?
    pub(super) fn is_named(&self) -> bool {
        self.socket.is_some()
    }

    /// The daemon's card; `None` if no daemon is named and none runs at the usual places.
    pub(super) fn card(&self) -> Result<Option<DmaClient>> {
        let found = match (&self.socket, place()) {
            (None, DaemonPlace::Off) => return Ok(None),
            (None, DaemonPlace::Usual(_)) => match DmaClient::connect(None) {
                Err(DmaError::Daemon(ObserveError::None(_))) => return Ok(None),
                found => found,
            },
            (socket, _) => DmaClient::connect(socket.as_deref()),
        };
        Ok(Some(found.context("cannot use the daemon’s card")?))
    }
}

/// Sets up a path between the memory of `bench`, this process's, and a daemon's card. Those that
/// the card's process must walk go through its engine, by which it reaches the memory so; by the
/// others, this process moves the bytes, which has the card's memory mapped.
pub(super) fn open(card: &DmaClient, bench: &Bench, kind: PathKind) -> io::Result<Box<dyn Path>> {
    match kind {
        PathKind::Engine | PathKind::ProcessVm | PathKind::ProcMem => {
            let through = card.through(kind, bench.application());
            Ok(Box::new(through.map_err(io::Error::other)?))
        }
        PathKind::Mapping | PathKind::Memfd | PathKind::Pipe | PathKind::Udp => bench.open(kind),
    }
}

/// All paths to a daemon's card, measured from the card to the host: what programs have put on the
/// card, perhaps without asking for a piece of it, stays. Pages of its near memory are there.
pub(super) fn measured(card: &DmaClient) -> Result<Vec<Measured>> {
    let bench = Bench::new(SIZES[1]).context("no memory to measure with")?;
    let near = card.sizes().far as usize;
    let open = |kind| open(card, &bench, kind);
    Ok(measure_all((card.memory(), near), Direction::CardToHost, open))
}

/// The path that was asked for, or else the best of [`measured`].
pub(super) fn chosen(card: &DmaClient, forced: Option<PathKind>) -> Result<PathKind> {
    match or_environment(forced)? {
        Some(kind) => Ok(kind),
        None => Ok(choose(&measured(card)?, None)?),
    }
}

/// Card memory that no other program has asked for, near if there is so much.
pub(super) fn place_for(card: &DmaClient, len: usize) -> Result<(u64, u64)> {
    let len = len as u64;
    let near = card.alloc(MemoryKind::Near, len);
    near.or_else(|_| card.alloc(MemoryKind::Far, len)).context("no room on the daemon’s card")
}
