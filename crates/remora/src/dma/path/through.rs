//! The path through the engine: post, let its thread copy, poll the completion.

use std::borrow::BorrowMut;
use std::fmt::Debug;
use std::hint;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Path, PathError, PathKind};
use crate::dma::channel::{Channel, ChannelOptions, Direction, Index};
use crate::dma::descriptor::{Address, Flags, LEN_MAX, Outcome, RegionId, Status};
use crate::dma::service::Service;
use crate::memory::Buffer;

/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 14;
/// The longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pair of channels to an engine, and a region that is granted to it.
#[derive(Debug)]
pub struct Through<C = Channel> {
    /// The path by which the engine reaches the region.
    kind: PathKind,
    /// Where the card's memory is mapped in this process.
    card: u64,
    h2c: C,
    c2h: C,
    region: RegionId,
    len: u64,
}

impl Through {
    /// Opens two channels to the engine for `memory` of this process.
    ///
    /// # Errors
    /// The engine has no room for them.
    pub fn open(service: &Service, memory: Arc<Buffer>) -> io::Result<Through> {
        let len = memory.len() as u64;
        let region = service.engine().grant_own(memory, true).map_err(io::Error::other)?;
        let open =
            |direction| service.open(ChannelOptions::new(direction)).map_err(io::Error::other);
        let (h2c, c2h) = (open(Direction::HostToCard)?, open(Direction::CardToHost)?);
        let card = service.engine().card().clone();
        Ok(Through::over(PathKind::Engine, card.bytes(), (h2c, c2h), (region, len)))
    }
}

impl<C> Through<C> {
    /// By channels to the engine of the card whose memory is `card`, one each way, and a region of
    /// `len` bytes that is granted to it, which it reaches by `kind`.
    pub fn over(
        kind: PathKind,
        card: &Buffer,
        (h2c, c2h): (C, C),
        (region, len): (RegionId, u64),
    ) -> Self {
        Through { kind, card: card.addr(), h2c, c2h, region, len }
    }
}

impl<C: BorrowMut<Channel> + Debug + Send> Path for Through<C> {
    fn kind(&self) -> PathKind {
        self.kind
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn to_card(
        &mut self,
        from: u64,
        card: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), PathError> {
        need_own(self.card, card)?;
        carry(self.h2c.borrow_mut(), self.region.at(from), Address::Card(at as u64), len)
    }

    fn to_host(
        &mut self,
        card: &Buffer,
        from: usize,
        at: u64,
        len: usize,
    ) -> Result<(), PathError> {
        need_own(self.card, card)?;
        carry(self.c2h.borrow_mut(), Address::Card(from as u64), self.region.at(at), len)
    }
}

/// The engine reaches the memory of its own card only.
fn need_own(card: u64, asked: &Buffer) -> Result<(), PathError> {
    if card == asked.addr() {
        return Ok(());
    }
    Err(PathKind::Engine.failed(io::Error::new(ErrorKind::InvalidInput, "not this engine’s card")))
}

/// Has one copy made, and waits for it.
fn carry(channel: &mut Channel, src: Address, dst: Address, len: usize) -> Result<(), PathError> {
    let failed = |what: String| PathKind::Engine.failed(io::Error::other(what));
    let mut done = 0;
    while done < len {
        let part = (len - done).min(LEN_MAX as usize) as u32;
        let beyond = || failed("an address is out of range".into());
        let src = src.plus(done as u64).ok_or_else(beyond)?;
        let dst = dst.plus(done as u64).ok_or_else(beyond)?;
        let copied = channel.copy(src, dst, part, Flags::empty());
        let index = copied.map_err(|error| failed(error.to_string()))?;
        channel.submit();
        let outcome = outcome_of(channel, index).map_err(|error| PathKind::Engine.failed(error))?;
        if outcome.status != Status::Done {
            return Err(failed(outcome.status.to_string()));
        }
        done += part as usize;
    }
    Ok(())
}

/// Waits for a copy. Earlier ones may end first, for which nobody waits any more.
fn outcome_of(channel: &mut Channel, index: Index) -> io::Result<Outcome> {
    let start = Instant::now();
    let mut outcome = [Outcome::failed(Status::Fault)];
    loop {
        for _ in 0..LOOKS {
            if channel.completed_status(&mut outcome) == (1, Some(index)) {
                return Ok(outcome[0]);
            }
            hint::spin_loop();
        }
        if let Some(halt) = channel.halted() {
            return Err(io::Error::other(halt));
        }
        if start.elapsed() > PATIENCE {
            return Err(ErrorKind::TimedOut.into());
        }
        // Where cores are few, the engine may need this one.
        std::thread::yield_now();
    }
}
