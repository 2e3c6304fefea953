//! The card memory of the daemon, and its DMA engines.
//!
//! Each user has card memory and an engine with a thread, from the first request on until the
//! daemon ends: programs of one user see the same card addresses, one behind the other or side by
//! side, as they do on a card in hardware; those of other users see others. Channels, regions and
//! pieces belong to a client's connection, and end with it.
//!
//! The engine judges what stands in rings ([`crate::dma::engine`]). Here is judged what comes by
//! the socket: which memory may be granted is decided as for memory that sessions lend (`lent`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::lent::{
    FEW_DESCRIPTORS, LOANS_MAX, LentError, has_few_descriptors, local, process_file,
};
use super::policy::Rule;
use crate::dma::engine::{ChannelId, ChannelState};
use crate::dma::path::calls::{ByFile, ProcessVm};
use crate::dma::path::{Application, Mapping, Path};
use crate::dma::{
    CardMemory, ChannelOptions, Direction, Engine, Interface, MemoryKind, Mode, Owner, Piece,
    RegionId, Ring, Service, Wake,
};
use crate::memory::reopened;
use crate::message::{DmaAnswer, DmaChannelRow, DmaClientStatus, DmaRequest, Loan};

/// The most channels of a client.
const CHANNELS: usize = 64;
/// Channels in one answer.
const PAGE: usize = 256;
/// Clients in one answer, each with its channels.
const CLIENTS: usize = 4;

/// Why a request is not carried out.
type Refusal = String;
/// An answer, and the descriptors that go with it.
type Answered = Result<(DmaAnswer, Vec<OwnedFd>), Refusal>;

/// The card memory of all users.
#[derive(Debug, Default)]
pub(crate) struct DmaCards {
    cards: BTreeMap<u32, UserCard>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    /// The number of its connection.
    pub(super) client: u32,
    pub(super) uid: u32,
    pub(super) pid: i32,
    /// The process lives, and so the number is its own.
    pub(super) living: bool,
    /// Sessions that the user has.
    pub(super) sessions: usize,
}

/// A user's card memory, with its engine.
#[derive(Debug)]
struct UserCard {
    memory: Arc<CardMemory>,
    service: Service,
    clients: BTreeMap<u32, Holdings>,
}

/// What a client has.
#[derive(Debug, Default)]
struct Holdings {
    pid: i32,
    /// With the bytes of their rings.
    channels: BTreeMap<ChannelId, u64>,
    /// With the bytes that count for the quota.
    regions: BTreeMap<RegionId, u64>,
    pieces: BTreeMap<u64, Piece>,
}

impl DmaCards {
    /// Answers a request.
    pub(super) fn answer(
        &mut self,
        who: Asker,
        rule: &Rule,
        request: DmaRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Answered {
        if request == DmaRequest::Open {
            return self.open(who, rule);
        }
        if let DmaRequest::List(from) = request {
            let card = self.cards.get(&who.uid);
            return Ok((card.map_or_else(nothing, |card| card.list(from)), Vec::new()));
        }
        if let DmaRequest::Grant { loan, .. } = request {
            self.room_for_grant(who.uid, rule, loan)?;
        }
        let opened = self.cards.get_mut(&who.uid).filter(|c| c.clients.contains_key(&who.client));
        let card = opened.ok_or("the card’s memory was not opened")?;
        card.answer(who, rule, request, descriptors)
    }

    /// May a user's program grant another piece of memory? Each is a mapping of the daemon's, or
    /// descriptors, as what sessions lend.
    fn room_for_grant(&self, uid: u32, rule: &Rule, loan: Loan) -> Result<(), Refusal> {
        let of_user = self.cards.get(&uid).map_or(0, UserCard::regions);
        if of_user >= rule.loans as usize {
            return Err(format!("the user’s programs grant {of_user} regions, which is the most"));
        }
        if self.cards.values().map(UserCard::regions).sum::<usize>() >= LOANS_MAX {
            return Err(format!("all programs together grant {LOANS_MAX} regions, all there are"));
        }
        if loan != Loan::Sealed && has_few_descriptors() {
            return Err(FEW_DESCRIPTORS.into());
        }
        Ok(())
    }

    /// Opens the user's card memory for a client.
    fn open(&mut self, who: Asker, rule: &Rule) -> Answered {
        let card = self.made(who.uid, rule)?;
        let is_new = !card.clients.contains_key(&who.client);
        if is_new && card.clients.len() + who.sessions >= rule.sessions as usize {
            return Err("the user has as many clients as the daemon’s policy allows".into());
        }
        let short = |error| format!("the daemon has no descriptors: {error}");
        let memory = card.memory.as_fd().try_clone_to_owned().map_err(short)?;
        let doorbell = card.service.new_doorbell().map_err(short)?;
        let doorbell = doorbell.as_fd().try_clone_to_owned().map_err(short)?;
        card.clients.entry(who.client).or_default().pid = who.pid;
        let sizes = card.memory.sizes();
        let answer = DmaAnswer::Card { near: sizes.near, far: sizes.far };
        Ok((answer, vec![memory, doorbell]))
    }

    /// The user's card, which is made if there is none.
    fn made(&mut self, uid: u32, rule: &Rule) -> Result<&mut UserCard, Refusal> {
        Ok(match self.cards.entry(uid) {
            Entry::Occupied(card) => card.into_mut(),
            Entry::Vacant(place) => {
                let memory =
                    CardMemory::new(rule.card_memory).map_err(|error| error.to_string())?;
                place.insert(UserCard::of(memory)?)
            }
        })
    }

    /// A user's card memory, for device memory of the user's sessions.
    pub(super) fn card_for(&mut self, uid: u32, rule: &Rule) -> Result<Arc<CardMemory>, Refusal> {
        self.made(uid, rule).map(|card| card.memory.clone())
    }

    /// The same, if there is any.
    pub(super) fn card(&self, uid: u32) -> Option<Arc<CardMemory>> {
        self.cards.get(&uid).map(|card| card.memory.clone())
    }

    /// The file of a user's card memory, if the user has any.
    pub(super) fn memory(&self, uid: u32) -> Option<BorrowedFd<'_>> {
        self.cards.get(&uid).map(|card| card.memory.as_fd())
    }

    /// Gives a user the card memory back that another daemon has left.
    pub(super) fn restore(&mut self, uid: u32, rule: &Rule, file: OwnedFd) -> Result<(), Refusal> {
        if !rule.attach {
            return Err(format!("user {uid} may not attach any more"));
        }
        let memory =
            CardMemory::again(file, rule.card_memory).map_err(|error| error.to_string())?;
        self.cards.insert(uid, UserCard::of(memory)?);
        Ok(())
    }

    /// The clients of users that `may_see` admits, from a connection on, as far as one answer has
    /// room; and whether there are others behind them.
    pub(super) fn clients(
        &self,
        from: u32,
        may_see: impl Fn(u32) -> bool,
    ) -> (Vec<DmaClientStatus>, bool) {
        let cards = self.cards.iter().filter(|(uid, _)| may_see(**uid));
        let mut found: Vec<_> = cards
            .flat_map(|(uid, card)| card.clients.range(from..).map(move |held| (*uid, card, held)))
            .collect();
        found.sort_unstable_by_key(|(_, _, (connection, _))| **connection);
        let more = found.len() > CLIENTS;
        found.truncate(CLIENTS);
        (found.into_iter().map(|(uid, card, held)| card.describe(uid, held)).collect(), more)
    }

    /// A client has gone: what it has goes with it. The card's memory stays as it is.
    pub(super) fn end(&mut self, client: u32) {
        for card in self.cards.values_mut() {
            if card.clients.remove(&client).is_some() {
                card.service.engine().end(Owner(client));
                card.service.wake();
            }
        }
    }
}

impl UserCard {
    fn of(memory: Arc<CardMemory>) -> Result<UserCard, Refusal> {
        let service = Service::start(Engine::new(memory.clone()))
            .map_err(|error| format!("the daemon cannot start an engine: {error}"))?;
        Ok(UserCard { memory, service, clients: BTreeMap::new() })
    }

    fn answer(
        &mut self,
        who: Asker,
        rule: &Rule,
        request: DmaRequest,
        with: Vec<OwnedFd>,
    ) -> Answered {
        let held = self.clients.get_mut(&who.client).ok_or("the card’s memory was not opened")?;
        let (engine, owner) = (&self.service, Owner(who.client));
        let alone = |answer| (answer, Vec::new());
        match request {
            DmaRequest::Grant { loan, addr, len, writable } => {
                let region = held.grant(engine, (who, rule), (loan, addr, len), writable, with)?;
                Ok(alone(DmaAnswer::Region(region.0)))
            }
            DmaRequest::Revoke(number) => {
                let region = RegionId(number);
                engine.engine().revoke(owner, region).ok_or("no such region")?;
                held.regions.remove(&region);
                Ok(alone(DmaAnswer::Done))
            }
            DmaRequest::Channel { to_host, stream, interrupt, depth } => {
                let direction = if to_host { Direction::CardToHost } else { Direction::HostToCard };
                let interface = stream.map_or(Interface::MemoryMapped, Interface::Streaming);
                let mode = if interrupt { Mode::Interrupt } else { Mode::Polled };
                held.channel(
                    engine,
                    owner,
                    rule,
                    ChannelOptions { direction, interface, mode, depth },
                )
            }
            DmaRequest::Close(number) => {
                let channel = ChannelId(number);
                held.channels.remove(&channel).ok_or("no such channel")?;
                engine.engine().close(channel);
                // Others may have waited for the end of a packet that goes with the channel.
                engine.wake();
                Ok(alone(DmaAnswer::Done))
            }
            DmaRequest::Alloc { near, len } => {
                let kind = if near { MemoryKind::Near } else { MemoryKind::Far };
                let piece = self.memory.alloc(kind, len).map_err(|error| error.to_string())?;
                let (address, len) = (piece.address(), piece.len());
                if held.pieces.len() >= rule.quotas.others as usize {
                    return Err("the client has as many pieces as its quota allows".into());
                }
                held.pieces.insert(address, piece);
                Ok(alone(DmaAnswer::Piece { address, len }))
            }
            DmaRequest::Free(address) => {
                held.pieces.remove(&address).ok_or("no such piece of card memory")?;
                Ok(alone(DmaAnswer::Done))
            }
            DmaRequest::Open | DmaRequest::List(_) => Err("it is answered elsewhere".into()),
        }
    }

    /// Regions that the engine may reach.
    fn regions(&self) -> usize {
        self.clients.values().map(|held| held.regions.len()).sum()
    }

    /// The channels from a place on, as far as one answer has room.
    fn list(&self, from: u32) -> DmaAnswer {
        let engine = self.service.engine();
        let mut rows = engine.channels().filter(|state| state.id.0 >= from);
        let channels = rows.by_ref().take(PAGE).map(|state| self.row(state)).collect();
        let counters =
            engine.counters().iter().map(|(name, value)| (name.to_owned(), value)).collect();
        DmaAnswer::Channels { channels, more: rows.next().is_some(), counters }
    }

    fn describe(&self, uid: u32, (connection, held): (&u32, &Holdings)) -> DmaClientStatus {
        let engine = self.service.engine();
        let channels = engine.channels().filter(|state| state.owner == Owner(*connection));
        DmaClientStatus {
            connection: *connection,
            uid,
            pid: held.pid,
            regions: held.regions.len() as u32,
            granted_bytes: held.regions.values().sum(),
            pieces: held.pieces.len() as u32,
            card_bytes: held.pieces.values().map(Piece::len).sum(),
            channels: channels.map(|state| self.row(state)).collect(),
        }
    }

    fn row(&self, state: ChannelState) -> DmaChannelRow {
        let stream = match state.options.interface {
            Interface::MemoryMapped => None,
            Interface::Streaming(number) => Some(number),
        };
        DmaChannelRow {
            place: state.id.0,
            pid: self.clients.get(&state.owner.0).map_or(0, |held| held.pid),
            to_host: state.options.direction == Direction::CardToHost,
            stream,
            interrupt: state.options.mode == Mode::Interrupt,
            depth: state.options.depth,
            completed: state.completed,
            halted: state.halted.map(|halt| halt.to_string()),
        }
    }
}

fn nothing() -> DmaAnswer {
    DmaAnswer::Channels { channels: Vec::new(), more: false, counters: Vec::new() }
}

impl Holdings {
    /// Grants the engine memory of the client.
    fn grant(
        &mut self,
        service: &Service,
        (who, rule): (Asker, &Rule),
        (loan, addr, len): (Loan, u64, u64),
        writable: bool,
        with: Vec<OwnedFd>,
    ) -> Result<RegionId, Refusal> {
        if self.regions.len() >= rule.quotas.regions as usize {
            return Err("the client has as many regions as its quota allows".into());
        }
        let counted = if matches!(loan, Loan::Sealed | Loan::File) { len } else { 0 };
        let used = self.regions.values().sum::<u64>().checked_add(counted);
        if len == 0 || used.is_none_or(|used| used > rule.quotas.memory_bytes) {
            return Err(format!("{len} bytes are none, or more than the client’s quota allows"));
        }
        let path =
            path_to(loan, Application { pid: who.pid, addr, len, file: None }, with, (who, rule))?;
        let granted = service.engine().grant(Owner(who.client), path, writable);
        let region = granted.map_err(|error| error.to_string())?;
        self.regions.insert(region, counted);
        Ok(region)
    }

    /// Opens a channel, whose ring the daemon makes.
    fn channel(
        &mut self,
        service: &Service,
        owner: Owner,
        rule: &Rule,
        options: ChannelOptions,
    ) -> Answered {
        if self.channels.len() >= CHANNELS {
            return Err(format!("a client has {CHANNELS} channels at most: close one of them"));
        }
        if has_few_descriptors() {
            return Err(FEW_DESCRIPTORS.into());
        }
        let ring = Ring::new(options.depth).map_err(|error| error.to_string())?;
        let bytes = ring.bytes().len() as u64;
        if self.channels.values().sum::<u64>() + bytes > rule.quotas.arena_bytes {
            return Err("the rings would be more memory than the client’s quota allows".into());
        }
        let short = |error| format!("the daemon has no descriptors: {error}");
        let mut descriptors = vec![ring.as_fd().try_clone_to_owned().map_err(short)?];
        let interrupt = match options.mode {
            Mode::Polled => None,
            Mode::Interrupt => Some(Wake::new().map_err(short)?),
        };
        if let Some(wake) = &interrupt {
            descriptors.push(wake.reader().try_clone_to_owned().map_err(short)?);
        }
        let served = service.engine().serve(owner, ring, options, interrupt);
        let channel = served.map_err(|error| error.to_string())?;
        service.wake();
        self.channels.insert(channel, bytes);
        Ok((DmaAnswer::Channel(channel.0), descriptors))
    }
}

/// The way to memory of the client.
fn path_to(
    loan: Loan,
    memory: Application,
    with: Vec<OwnedFd>,
    (who, rule): (Asker, &Rule),
) -> Result<Box<dyn Path>, Refusal> {
    let mut with = with.into_iter();
    let (file, more) = (with.next(), with.next());
    if more.is_some() || file.is_some() == (loan == Loan::Process) {
        return Err("this way of granting memory takes one descriptor, or none".into());
    }
    let said = |error: std::io::Error| format!("the memory cannot be reached: {error}");
    let own_user = rustix::process::geteuid().as_raw() == who.uid;
    let of_file = |file: OwnedFd| Application { file: Some(Arc::new(file)), ..memory.clone() };
    Ok(match (loan, file) {
        (Loan::Sealed, Some(file)) => {
            Box::new(Mapping::of(&of_file(file)).map_err(|error| error.to_string())?)
        }
        (Loan::File, Some(_)) if !(own_user || rule.lend_files) => {
            return Err(LentError::OtherUsersFile.to_string());
        }
        (Loan::File, Some(file)) => {
            let file = local(file).map_err(|error| error.to_string())?;
            let is_whole = file.metadata().is_ok_and(|about| about.len() >= memory.len);
            if !is_whole {
                return Err("the file is shorter than the memory that is granted".into());
            }
            let file = reopened(file).into();
            Box::new(ByFile::of_memory(&of_file(file)).map_err(said)?)
        }
        (Loan::Process, None) if own_user && who.living => {
            Box::new(ProcessVm::of(&memory).map_err(said)?)
        }
        (Loan::ProcessFile, Some(file)) if own_user || rule.lend_process_memory => {
            let file = process_file(file).map_err(|error| error.to_string())?;
            Box::new(ByFile::of_opened(&of_file(file.into())).map_err(said)?)
        }
        _ => {
            return Err(
                "only living processes of the daemon’s own user can grant their memory as it is"
                    .into(),
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::daemon::policy::Policy;

    #[test]
    fn files_of_others_are_granted_if_the_policy_says_so() {
        let own = rustix::process::geteuid().as_raw();
        let usual = *Policy::default().rule(own);
        for (uid, lend_files, expected) in
            [(own, false, true), (own + 1, false, false), (own + 1, true, true)]
        {
            let file = memfd_create("granted", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 4096).unwrap();
            let who = Asker { client: 1, uid, pid: 1, sessions: 0, living: true };
            let memory = Application { pid: 1, addr: 0, len: 4096, file: None };
            let rule = Rule { lend_files, ..usual };
            let path = path_to(Loan::File, memory, vec![file], (who, &rule));
            assert_eq!(path.is_ok(), expected, "user {uid}, {lend_files}");
        }
    }
}
