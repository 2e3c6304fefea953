//! The card memory of the daemon, and its DMA engines.
//!
//! Each user has card memory and an engine, from the first request on until the daemon ends:
//! programs of one user see the same card addresses, one behind the other or side by side, as they
//! do on a card in hardware; those of other users see others. Channels, regions and pieces belong
//! to a client's connection, and end with it. The engine has a thread as long as there are clients.
//!
//! An engine stands while it makes a call for a program's memory (a file, or a process), which may
//! last as long as another program of the user likes. So the thread that serves does not wait for
//! an engine: what it wants of one that is in a call it asks for again, some milliseconds later.
//!
//! The engine judges what stands in rings ([`crate::dma::engine`]). Here is judged what comes by
//! the socket: which memory may be granted is decided as for memory that sessions lend (`lent`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::lent::{
    FEW_DESCRIPTORS, LOANS_MAX, LentError, has_few_descriptors, local, process_file,
};
use super::policy::Rule;
use crate::closer::Closer;
use crate::dma::engine::{ChannelId, ChannelState};
use crate::dma::path::calls::{ByFile, ProcessVm};
use crate::dma::path::{Application, Mapping, Path};
use crate::dma::{
    CardMemory, ChannelOptions, Direction, Engine, Interface, MemoryKind, Mode, Owner, Piece,
    RegionId, Ring, Service, TakenBack, Wake,
};
use crate::memory::reopened;
use crate::message::{DmaAnswer, DmaChannelRow, DmaClientStatus, DmaRequest, Loan};

/// The most channels of a client.
const CHANNELS: usize = 64;
/// Channels in one answer.
const PAGE: usize = 256;
/// Clients in one answer, each with its channels.
const CLIENTS: usize = 4;
/// How long the thread that serves waits for an engine: it copies a piece meanwhile.
const PATIENCE: Duration = Duration::from_micros(100);
/// The first time until an engine that was in a call is asked again, and the longest.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(64);

/// Why a request is not carried out.
type Refusal = String;
/// An answer, and the descriptors that go with it.
type Answered = Result<(DmaAnswer, Vec<OwnedFd>), Refusal>;

/// The card memory of all users.
#[derive(Debug)]
pub(crate) struct DmaCards {
    cards: BTreeMap<u32, UserCard>,
    /// The most users that have some.
    most: usize,
    /// Users of whose clients some have ended.
    ended: Vec<u32>,
}

/// A request that is carried out later.
#[derive(Debug)]
pub(super) struct Later {
    pub(super) client: u32,
    pub(super) request: DmaRequest,
    pub(super) descriptors: Vec<OwnedFd>,
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
    /// Their bytes that count for the user's limit, where memory is granted.
    pub(super) session_bytes: u64,
}

/// A user's card memory, with its engine.
#[derive(Debug)]
struct UserCard {
    memory: Arc<CardMemory>,
    /// The engine where there are clients, with its thread.
    service: Option<Service>,
    /// The engine where there are none; else one that nobody uses.
    resting: Engine,
    clients: BTreeMap<u32, Holdings>,
    /// Clients that have gone, of which the engine has not heard.
    gone: BTreeMap<u32, Holdings>,
    /// Requests that came while the engine was in a call.
    later: Vec<Later>,
    /// What takes time is dropped by another thread; and regions that are being unmapped there.
    closer: Closer,
    unmapping: Arc<AtomicUsize>,
    busy: Busy,
}

/// That an engine was in a call when it was wanted last.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    /// When it is asked again, and how long that was from the last time on.
    again: Option<(Instant, Duration)>,
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
    /// Of as many users at most.
    pub(super) fn new(most: usize) -> DmaCards {
        DmaCards { cards: BTreeMap::new(), most, ended: Vec::new() }
    }

    /// Answers a request; `None`: it is among those to be [taken](DmaCards::take_later) later.
    pub(super) fn answer(
        &mut self,
        who: Asker,
        rule: &Rule,
        request: DmaRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Answered> {
        if request == DmaRequest::Open {
            return Some(self.open(who, rule));
        }
        if let DmaRequest::List(from) = request {
            let Some(card) = self.cards.get_mut(&who.uid) else {
                return Some(Ok((nothing(), Vec::new())));
            };
            let told = card.list(from);
            if told.is_none() {
                card.later.push(Later { client: who.client, request, descriptors });
            }
            return told.map(|answer| Ok((answer, Vec::new())));
        }
        if let DmaRequest::Grant { loan, len, .. } = request
            && let Err(refusal) = self.room_for_grant(who, rule, (loan, len))
        {
            return Some(Err(refusal));
        }
        let opened = self.cards.get_mut(&who.uid).filter(|c| c.clients.contains_key(&who.client));
        let Some(UserCard {
            service: Some(service),
            busy,
            clients,
            later,
            memory,
            closer,
            unmapping,
            ..
        }) = opened
        else {
            return Some(Err("the card’s memory was not opened".into()));
        };
        let Some(mut engine) = within_patience(service, busy) else {
            later.push(Later { client: who.client, request, descriptors });
            return None;
        };
        let held = clients.get_mut(&who.client)?;
        let answered = match request {
            DmaRequest::Revoke(number) => {
                let memory = held.revoke(&mut engine, Owner(who.client), RegionId(number));
                memory.map(|memory| {
                    close_memory(closer, unmapping, memory);
                    (DmaAnswer::Done, Vec::new())
                })
            }
            other => held.answer(&mut engine, memory, (who, rule), other, descriptors),
        };
        drop(engine);
        // There is a new ring, or others may have waited for the end of a packet that goes with a
        // channel.
        service.wake();
        Some(answered)
    }

    /// When something is to be done that an engine was too busy for. An engine that somebody else
    /// has reached since is free: what waits for it is due.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let waits = |card: &&UserCard| !card.later.is_empty() || !card.gone.is_empty();
        let tries = self.cards.values().filter(waits).map(|card| card.busy.again);
        tries.map(|again| again.map_or_else(Instant::now, |(at, _)| at)).min()
    }

    /// The requests that were not carried out; ends what clients that have gone have left.
    pub(super) fn take_later(&mut self) -> Vec<Later> {
        let ended = self.cards.iter_mut().filter_map(|(uid, card)| card.end_gone().then_some(*uid));
        self.ended.extend(ended);
        self.cards.values_mut().flat_map(|card| mem::take(&mut card.later)).collect()
    }

    /// Users of whose clients some have ended since this was asked.
    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        mem::take(&mut self.ended)
    }

    /// May a user's program grant another piece of memory? Each is a mapping of the daemon's, or
    /// descriptors, as what sessions lend.
    fn room_for_grant(
        &self,
        who: Asker,
        rule: &Rule,
        (loan, len): (Loan, u64),
    ) -> Result<(), Refusal> {
        let of_user = self.cards.get(&who.uid).map_or(0, UserCard::regions);
        if of_user >= rule.loans as usize {
            return Err(format!("the user’s programs grant {of_user} regions, which is the most"));
        }
        let used = self.granted(who.uid).saturating_add(who.session_bytes);
        if let Some(most) = rule.memory_bytes
            && used.saturating_add(counted(loan, len)) > most
        {
            return Err(format!("the {most} bytes of the user are used up"));
        }
        if self.cards.values().map(UserCard::regions).sum::<usize>() >= LOANS_MAX {
            return Err(format!("all programs together grant {LOANS_MAX} regions, all there are"));
        }
        if loan != Loan::Sealed && has_few_descriptors() {
            return Err(FEW_DESCRIPTORS.into());
        }
        Ok(())
    }

    /// Bytes that a user's programs have granted and that count.
    pub(super) fn granted(&self, uid: u32) -> u64 {
        self.cards.get(&uid).map_or(0, UserCard::granted)
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
        let doorbell = card.run()?.new_doorbell().map_err(short)?;
        let doorbell = doorbell.as_fd().try_clone_to_owned().map_err(short)?;
        card.clients.entry(who.client).or_default().pid = who.pid;
        let sizes = card.memory.sizes();
        let answer = DmaAnswer::Card { near: sizes.near, far: sizes.far };
        Ok((answer, vec![memory, doorbell]))
    }

    /// The user's card, which is made if there is none.
    fn made(&mut self, uid: u32, rule: &Rule) -> Result<&mut UserCard, Refusal> {
        let count = self.cards.len();
        Ok(match self.cards.entry(uid) {
            Entry::Occupied(card) => card.into_mut(),
            Entry::Vacant(_) if count >= self.most => {
                return Err(format!("{count} users have card memory, which is the most"));
            }
            Entry::Vacant(_) if has_few_descriptors() => return Err(FEW_DESCRIPTORS.into()),
            Entry::Vacant(place) => {
                let memory =
                    CardMemory::new(rule.card_memory).map_err(|error| error.to_string())?;
                place.insert(UserCard::of(memory))
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
        self.cards.insert(uid, UserCard::of(memory));
        Ok(())
    }

    /// The clients of users that `may_see` admits, from a connection on, as far as one answer has
    /// room; and whether there are others behind them.
    pub(super) fn clients(
        &mut self,
        from: u32,
        may_see: impl Fn(u32) -> bool,
    ) -> (Vec<DmaClientStatus>, bool) {
        let cards = self.cards.iter().filter(|(uid, _)| may_see(**uid));
        let mut found: Vec<(u32, u32)> = cards
            .flat_map(|(uid, card)| card.clients.range(from..).map(|(client, _)| (*client, *uid)))
            .collect();
        found.sort_unstable();
        let more = found.len() > CLIENTS;
        found.truncate(CLIENTS);
        let describe = |(client, uid)| self.cards.get_mut(&uid)?.describe(uid, client);
        (found.into_iter().filter_map(describe).collect(), more)
    }

    /// A client has gone: what it has goes with it. The card's memory stays as it is.
    pub(super) fn end(&mut self, client: u32) {
        for (uid, card) in &mut self.cards {
            if let Some(held) = card.clients.remove(&client) {
                card.gone.insert(client, held);
                self.ended.extend(card.end_gone().then_some(*uid));
            }
        }
    }
}

/// Has memory unmapped that an engine does not reach any more. Until then it counts among the
/// regions of its user's programs.
fn close_memory(closer: &Closer, unmapping: &Arc<AtomicUsize>, memory: TakenBack) {
    let (regions, unmapping) = (memory.regions(), unmapping.clone());
    unmapping.fetch_add(regions, Ordering::Relaxed);
    closer.run(move || {
        drop(memory);
        unmapping.fetch_sub(regions, Ordering::Relaxed);
    });
}

/// An engine, unless it is in a call.
fn within_patience<'a>(service: &'a Service, busy: &mut Busy) -> Option<MutexGuard<'a, Engine>> {
    let is_early = busy.again.is_some_and(|(at, _)| Instant::now() < at);
    let engine = if is_early { None } else { service.engine_within(PATIENCE) };
    if engine.is_some() {
        busy.again = None;
    } else if !is_early {
        let time = busy.again.map_or(AGAIN, |(_, time)| AGAIN_MAX.min(time * 2));
        busy.again = Some((Instant::now() + time, time));
    }
    engine
}

impl UserCard {
    fn of(memory: Arc<CardMemory>) -> UserCard {
        let (service, resting) = (None, Engine::new(memory.clone()));
        let (clients, gone, later) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let (closer, unmapping, busy) = (Closer::default(), Arc::default(), Busy::default());
        UserCard { memory, service, resting, clients, gone, later, closer, unmapping, busy }
    }

    /// The engine with its thread, which is started if there is none.
    fn run(&mut self) -> Result<&Service, Refusal> {
        match &mut self.service {
            Some(service) => Ok(service),
            None if has_few_descriptors() => Err(FEW_DESCRIPTORS.into()),
            none => {
                let engine = mem::replace(&mut self.resting, Engine::new(self.memory.clone()));
                let service = Service::start(engine)
                    .map_err(|error| format!("the daemon cannot start an engine: {error}"))?;
                Ok(none.insert(service))
            }
        }
    }

    /// Ends what clients that have gone have left, if the engine is not in a call. Behind the last
    /// of them, its thread ends, and with it what that takes; what the engine has counted, and what
    /// is in its streams, stays. Returns whether there were any.
    fn end_gone(&mut self) -> bool {
        let Some(service) = self.service.as_ref().filter(|_| !self.gone.is_empty()) else {
            return false;
        };
        let Some(mut engine) = within_patience(service, &mut self.busy) else { return false };
        for (client, held) in mem::take(&mut self.gone) {
            close_memory(&self.closer, &self.unmapping, engine.end(Owner(client)));
            self.closer.close(held);
        }
        if self.clients.is_empty() {
            mem::swap(&mut *engine, &mut self.resting);
            drop(engine);
            self.closer.close(self.service.take());
        } else {
            drop(engine);
            self.service.iter().for_each(Service::wake);
        }
        true
    }

    /// Regions that the engine may reach, and those that are mapped still.
    fn regions(&self) -> usize {
        let held = self.clients.values().chain(self.gone.values());
        let unmapping = self.unmapping.load(Ordering::Relaxed);
        held.map(|held| held.regions.len()).sum::<usize>() + unmapping
    }

    /// Their bytes that count for quotas.
    fn granted(&self) -> u64 {
        self.clients.values().chain(self.gone.values()).map(Holdings::granted).sum()
    }

    /// The channels from a place on, as far as one answer has room; `None` while the engine is in a
    /// call.
    fn list(&mut self, from: u32) -> Option<DmaAnswer> {
        let Some(service) = &self.service else {
            return Some(rows(&self.resting, &self.clients, from));
        };
        let engine = within_patience(service, &mut self.busy)?;
        Some(rows(&engine, &self.clients, from))
    }

    /// A client, with its channels; without them while the engine is in a call.
    fn describe(&mut self, uid: u32, connection: u32) -> Option<DmaClientStatus> {
        let held = self.clients.get(&connection)?;
        let engine = within_patience(self.service.as_ref()?, &mut self.busy);
        let its = |state: &ChannelState| state.owner == Owner(connection);
        let channels = engine.map(|engine| {
            engine.channels().filter(its).map(|state| row(&self.clients, state)).collect()
        });
        Some(DmaClientStatus {
            connection,
            uid,
            pid: held.pid,
            regions: held.regions.len() as u32,
            granted_bytes: held.granted(),
            pieces: held.pieces.len() as u32,
            card_bytes: held.pieces.values().map(Piece::len).sum(),
            channels,
        })
    }
}

/// The channels of an engine from a place on, as far as one answer has room.
fn rows(engine: &Engine, clients: &BTreeMap<u32, Holdings>, from: u32) -> DmaAnswer {
    let mut rows = engine.channels().filter(|state| state.id.0 >= from);
    let channels = rows.by_ref().take(PAGE).map(|state| row(clients, state)).collect();
    let counters = engine.counters().iter().map(|(name, value)| (name.to_owned(), value)).collect();
    DmaAnswer::Channels { channels, more: rows.next().is_some(), counters }
}

fn row(clients: &BTreeMap<u32, Holdings>, state: ChannelState) -> DmaChannelRow {
    let stream = match state.options.interface {
        Interface::MemoryMapped => None,
        Interface::Streaming(number) => Some(number),
    };
    DmaChannelRow {
        place: state.id.0,
        pid: clients.get(&state.owner.0).map_or(0, |held| held.pid),
        to_host: state.options.direction == Direction::CardToHost,
        stream,
        interrupt: state.options.mode == Mode::Interrupt,
        depth: state.options.depth,
        completed: state.completed,
        halted: state.halted.map(|halt| halt.to_string()),
    }
}

fn nothing() -> DmaAnswer {
    DmaAnswer::Channels { channels: Vec::new(), more: false, counters: Vec::new() }
}

/// The bytes that count for quotas: those of files, and not those of processes, which have their
/// memory anyway.
fn counted(loan: Loan, len: u64) -> u64 {
    if matches!(loan, Loan::Sealed | Loan::File) { len } else { 0 }
}

impl Holdings {
    fn granted(&self) -> u64 {
        self.regions.values().sum()
    }

    /// Answers a request to the engine.
    fn answer(
        &mut self,
        engine: &mut Engine,
        memory: &Arc<CardMemory>,
        (who, rule): (Asker, &Rule),
        request: DmaRequest,
        with: Vec<OwnedFd>,
    ) -> Answered {
        let owner = Owner(who.client);
        let alone = |answer| (answer, Vec::new());
        match request {
            DmaRequest::Grant { loan, addr, len, writable } => {
                let region = self.grant(engine, (who, rule), (loan, addr, len), writable, with)?;
                Ok(alone(DmaAnswer::Region(region.0)))
            }
            DmaRequest::Channel { to_host, stream, interrupt, depth } => {
                let direction = if to_host { Direction::CardToHost } else { Direction::HostToCard };
                let interface = stream.map_or(Interface::MemoryMapped, Interface::Streaming);
                let mode = if interrupt { Mode::Interrupt } else { Mode::Polled };
                let options = ChannelOptions { direction, interface, mode, depth };
                self.channel(engine, owner, rule, options)
            }
            DmaRequest::Close(number) => {
                let channel = ChannelId(number);
                self.channels.remove(&channel).ok_or("no such channel")?;
                engine.close(channel);
                Ok(alone(DmaAnswer::Done))
            }
            DmaRequest::Alloc { near, len } => {
                if self.pieces.len() >= rule.quotas.others as usize {
                    return Err("the client has as many pieces as its quota allows".into());
                }
                if memory.pieces() >= rule.pieces as usize {
                    return Err("the user’s programs have as many pieces as they may".into());
                }
                let kind = if near { MemoryKind::Near } else { MemoryKind::Far };
                let piece = memory.alloc(kind, len).map_err(|error| error.to_string())?;
                let (address, len) = (piece.address(), piece.len());
                self.pieces.insert(address, piece);
                Ok(alone(DmaAnswer::Piece { address, len }))
            }
            DmaRequest::Free(address) => {
                self.pieces.remove(&address).ok_or("no such piece of card memory")?;
                Ok(alone(DmaAnswer::Done))
            }
            DmaRequest::Open | DmaRequest::List(_) | DmaRequest::Revoke(_) => {
                Err("it is answered elsewhere".into())
            }
        }
    }

    fn revoke(
        &mut self,
        engine: &mut Engine,
        owner: Owner,
        region: RegionId,
    ) -> Result<TakenBack, Refusal> {
        let memory = engine.revoke(owner, region).ok_or("no such region")?;
        self.regions.remove(&region);
        Ok(memory)
    }

    /// Grants the engine memory of the client.
    fn grant(
        &mut self,
        engine: &mut Engine,
        (who, rule): (Asker, &Rule),
        (loan, addr, len): (Loan, u64, u64),
        writable: bool,
        with: Vec<OwnedFd>,
    ) -> Result<RegionId, Refusal> {
        if self.regions.len() >= rule.quotas.regions as usize {
            return Err("the client has as many regions as its quota allows".into());
        }
        let counted = counted(loan, len);
        let used = self.granted().checked_add(counted);
        if len == 0 || used.is_none_or(|used| used > rule.quotas.memory_bytes) {
            return Err(format!("{len} bytes are none, or more than the client’s quota allows"));
        }
        let path =
            path_to(loan, Application { pid: who.pid, addr, len, file: None }, with, (who, rule))?;
        let granted = engine.grant(Owner(who.client), path, writable);
        let region = granted.map_err(|error| error.to_string())?;
        self.regions.insert(region, counted);
        Ok(region)
    }

    /// Opens a channel, whose ring the daemon makes.
    fn channel(
        &mut self,
        engine: &mut Engine,
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
        let served = engine.serve(owner, ring, options, interrupt);
        let channel = served.map_err(|error| error.to_string())?;
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
mod tests;
