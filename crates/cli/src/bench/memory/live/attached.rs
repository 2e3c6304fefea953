//! A polled channel to the engine of a daemon.

use std::sync::Arc;

use anyhow::{Context, Result};
use remora::daemon::DmaClient;
use remora::dma::path::{Application, PathKind};
use remora::dma::{Address, ChannelOptions, Direction, MemoryKind, RegionId};
use remora::memory::Buffer;

use super::super::super::daemon_process::Daemon;
use super::super::super::row::Run;
use super::{DEPTH, best_windows};

/// A daemon on the second core, and memory of this process that its engine may reach.
pub(super) struct Attached {
    card: DmaClient,
    region: RegionId,
    /// A place on the card.
    address: u64,
    _memory: Arc<Buffer>,
    _daemon: Daemon,
}

impl Attached {
    /// With room for copies of `len` bytes.
    pub(super) fn start(len: usize) -> Result<Attached> {
        let daemon = Daemon::start(Some(1), "udp")?;
        let card = DmaClient::connect(Some(&daemon.socket())).context("no card of the daemon’s")?;
        let (application, memory) = Application::of_this_process(len)?;
        memory.fill(1);
        let region = card.grant(PathKind::Mapping, &application, true)?;
        let (address, _) = card.alloc(MemoryKind::Near, len as u64)?;
        Ok(Attached { card, region, address, _memory: memory, _daemon: daemon })
    }

    /// The rate of a channel whose ring is kept full, in GB/s.
    pub(super) fn stream(&self, direction: Direction, len: usize) -> Result<Run<'_>> {
        let mut channel = self.card.open(ChannelOptions::new(direction).depth(DEPTH))?;
        let (host, card) = (self.region.at(0), Address::Card(self.address));
        let ends = match direction {
            Direction::HostToCard => (host, card),
            Direction::CardToHost => (card, host),
        };
        Ok(Box::new(move || best_windows(&mut channel, ends, len, || false)))
    }
}
