//! The door of a store on the card: admits clients, and notices that they have gone.
//!
//! One thread drives all handshakes and looks after the clients; what the clients do on their
//! connections is the card's work. A client's connection lies in one of two protection domains:
//! one in which the store's memory can be read, for calls and READs, and the one of chains, whose
//! clients get no access to memory at all (RedN §3.5).

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use remora::connection::arrivals::{Arrivals, HalfOpen, UnderWay};
use remora::connection::roster::{Departed, Departure, Roster};
use remora::connection::token::Token;
use remora::nic::Access;
use remora::nic::cm::ListenError;
use remora::nic::queue::{Completion, PollCqError};
use remora::offload::chain::element::QueueId;
use remora::offload::chain::program::{Kind, Program, Queue};
use remora::{
    Chain, CompletionQueue, ConnectionParams, Device, IncomingConnection, Listener, MemoryRegion,
    QueuePair, QueuePairOptions, Remote,
};
use thiserror::Error;

use super::gate::Gate;
use super::hello::{BadGreeting, Hello, Purpose, StoreKind, Welcome};
use super::region::Readers;
use crate::stats::Counts;

/// The port, in RDMA CM's TCP port space, on which a store listens by default.
pub const PORT: u16 = 7480;
/// How often clients are looked after.
const TICK: Duration = Duration::from_millis(250);
/// The wait for an acknowledge: 4.096 µs · 2^16 = 0.27 s, as long as a busy machine may take.
const ACK_TIMEOUT: u8 = 16;

/// What a door admits.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// The port.
    pub port: u16,
    /// The secret that clients have to show.
    pub token: Option<Token>,
    /// The most clients at a time.
    pub clients_max: usize,
    /// The most of them that look up by chains, too: each has a program of its own on the card.
    pub chains_max: usize,
}

impl Default for DoorOptions {
    fn default() -> DoorOptions {
        DoorOptions { port: PORT, token: None, clients_max: 1024, chains_max: 128 }
    }
}

/// Why a client is refused, as text for the client (at most 148 bytes).
#[derive(Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Greeting(#[from] BadGreeting),
    #[error("no token or a wrong one: pass the one that the store was started with")]
    Token,
    #[error("it serves {0} clients already; try again later")]
    Busy(usize),
    #[error("it serves {0} clients from your address, and keeps room for others; try again later")]
    Share(usize),
    #[error("it serves {0} chains already; use calls instead")]
    Chains(usize),
    #[error("it has no chains")]
    NoChains,
    #[error("a chain belongs to a connection for calls, which has at most one: open that first")]
    Owner,
    #[error("it is not the primary of its group at the moment: ask it for the map")]
    Closed,
    #[error("it has no random numbers: {0}")]
    Random(rustix::io::Errno),
    #[error("it has no room for another connection: {0}")]
    Card(String),
}

/// What has happened at the door.
#[derive(Debug, Default)]
pub struct DoorCounters {
    /// Clients that were admitted.
    pub admitted: AtomicU64,
    /// Clients that disconnected.
    pub parted: AtomicU64,
    /// Clients that no longer answered, or did not complete their connection.
    pub vanished: AtomicU64,
    /// Clients that asked for what they have no right to.
    pub broke: AtomicU64,
    /// Clients that were refused.
    pub refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A chain, and the queue of its client's messages.
struct Asked {
    chain: Chain,
    requests: QueueId,
}

impl Asked {
    /// How often the chain was asked: its card counts the messages that have come. Zero if the card
    /// has gone.
    fn look_ups(&self) -> u64 {
        self.chain.completions(self.requests).unwrap_or(0)
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("look_ups", &self.look_ups()).finish_non_exhaustive()
    }
}

/// What is kept for a client as long as it is connected.
struct Guest {
    qpn: u32,
    /// Whether it may READ the store's memory.
    reads: bool,
    /// Of a chain: the ticket of the connection to which it belongs.
    ticket: u64,
    chain: Option<Arc<Asked>>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("chain", &self.chain.is_some()).finish()
    }
}

/// A connection for calls, by its ticket.
#[derive(Debug)]
struct Owner {
    address: IpAddr,
    chain: Option<Arc<Asked>>,
}

/// All clients, those that are arriving included.
#[derive(Debug, Default)]
struct Guests {
    roster: Roster<Guest>,
    owners: BTreeMap<u64, Owner>,
    chains: usize,
    /// Look-ups by chains that are gone, and those of all chains that were counted.
    looked_up: u64,
    counted: u64,
}

impl Guests {
    /// A client that was let in is gone, or has not come: its ticket is void, its place is free.
    /// Returns those of its connections that end with this one.
    fn forget(&mut self, guest: &Guest) -> Vec<Departed<Guest>> {
        let ticket = guest.ticket;
        let Some(chain) = &guest.chain else {
            self.owners.remove(&ticket);
            return self.roster.end(|other| other.ticket == ticket);
        };
        self.chains -= 1;
        self.looked_up += chain.look_ups();
        if let Some(owner) = self.owners.get_mut(&ticket) {
            owner.chain = None;
        }
        Vec::new()
    }

    /// Counts what chains have answered since the last call.
    fn count_look_ups(&mut self, counts: &Counts) {
        let chains = self.owners.values().filter_map(|owner| owner.chain.as_deref());
        let all = self.looked_up + chains.map(Asked::look_ups).sum::<u64>();
        counts.chain_lookups.add(all.saturating_sub(self.counted));
        self.counted = self.counted.max(all);
    }
}

/// Programs that look up in the store's memory, one for each client that wants one.
pub type ChainMaker = dyn Fn() -> Program + Send + Sync;

/// What a door leads to.
pub struct Behind {
    /// The store's memory, in a protection domain for clients, registered for remote READs.
    pub memory: MemoryRegion,
    /// Hears whether there are any clients.
    pub readers: Readers,
    /// The same memory in another domain, and what makes programs for it.
    pub chains: Option<(MemoryRegion, Box<ChainMaker>)>,
    /// Says whether clients reach the memory.
    pub gate: Arc<Gate>,
    /// What the store is, which clients are told.
    pub kind: StoreKind,
}

/// The door.
pub struct Door {
    device: Device,
    listener: Listener,
    options: DoorOptions,
    behind: Behind,
    cq: CompletionQueue,
    counters: DoorCounters,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why there is no door.
#[derive(Debug, Error)]
pub enum DoorError {
    /// The port is taken.
    #[error("port {port} cannot be listened on: {source}; name another one")]
    Listen {
        /// The port.
        port: u16,
        /// The card's reason.
        source: ListenError,
    },
    /// The card has no room.
    #[error("the card has no room for a completion queue: {0}")]
    Card(#[from] remora::nic::CreateError),
}

impl Door {
    /// Listens.
    ///
    /// # Errors
    /// See [`DoorError`].
    pub fn open(device: &Device, options: DoorOptions, behind: Behind) -> Result<Door, DoorError> {
        let port = options.port;
        let listener = device.listen(port).map_err(|source| DoorError::Listen { port, source })?;
        let cq = device.create_cq(4 * options.clients_max.max(16))?;
        let counters = DoorCounters::default();
        behind.readers.expect(false);
        Ok(Door { device: device.clone(), listener, options, behind, cq, counters })
    }

    /// What has happened so far.
    pub fn counters(&self) -> &DoorCounters {
        &self.counters
    }

    /// Admits clients until `stopped` says so. What they do without a kernel is added to `counts`,
    /// which the calling thread alone writes.
    ///
    /// # Errors
    /// The process that has the card has ended.
    pub fn serve(&self, counts: &Counts, stopped: &dyn Fn() -> bool) -> Result<(), PollCqError> {
        let mut arrivals = Arrivals::new(&self.listener);
        let (mut guests, mut ended) = (Guests::default(), Vec::new());
        while !stopped() {
            let nap = arrivals.nap(TICK);
            let step = poll_fn(|context| {
                let room = self.options.clients_max.saturating_sub(guests.roster.len());
                let answer = |client, under_way| self.answer(client, under_way, &mut guests);
                let more = arrivals.poll(context, room, answer, &mut ended);
                for end in ended.drain(..) {
                    self.arrive(end.connection, end.about, &mut guests);
                }
                if stopped() { Poll::Ready(()) } else { more }
            });
            remora::wait_for(step, nap);
            self.look_after(&mut guests)?;
            guests.count_look_ups(counts);
        }
        Ok(())
    }

    /// A client has completed its connection, or has not.
    fn arrive(
        &self,
        connection: Result<remora::Connection, remora::ConnectFailure>,
        guest: Guest,
        guests: &mut Guests,
    ) {
        // Its connection for calls may have ended meanwhile.
        let owned = guests.owners.contains_key(&guest.ticket);
        let started = guest.chain.as_ref().is_none_or(|asked| asked.chain.start().is_ok());
        match connection {
            Ok(connection) if started && owned => {
                count(&self.counters.admitted);
                match guest.chain {
                    None => guests.roster.add(connection, guest),
                    Some(_) => guests.roster.add_program(connection, guest),
                }
            }
            _ => {
                count(&self.counters.vanished);
                let departed = self.forget(&guest, guests);
                self.part(departed, guests);
            }
        }
    }

    /// Answers a client; `None` if it is refused.
    fn answer(
        &self,
        incoming: IncomingConnection,
        under_way: UnderWay,
        guests: &mut Guests,
    ) -> Option<HalfOpen<Guest>> {
        let peer = incoming.peer();
        let (queue_pair, guest) = match self.admit(&incoming, under_way, guests) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                count(&self.counters.refused);
                tracing::warn!("refused {}: {refusal}", peer.ip());
                incoming.reject(&refusal.to_string());
                return None;
            }
        };
        let calls = guest.chain.is_none();
        let access = if guest.reads { Access::REMOTE_READ } else { Access::empty() };
        let params = ConnectionParams::new(self.device.info().mtu)
            .access(access)
            .timeout(ACK_TIMEOUT)
            .kernels(calls);
        let none = Remote { addr: 0, len: 0, rkey: 0 };
        let memory = if guest.reads { self.behind.memory.slice(..).remote() } else { none };
        let welcome = Welcome { memory, ticket: guest.ticket, kind: self.behind.kind };
        let step = incoming.accept(queue_pair, &welcome.to_bytes(), &params);
        Some(HalfOpen { peer, about: guest, step })
    }

    /// Checks a greeting, and makes the queue pair for the connection.
    fn admit(
        &self,
        incoming: &IncomingConnection,
        under_way: UnderWay,
        guests: &mut Guests,
    ) -> Result<(QueuePair, Guest), Refusal> {
        let from = incoming.peer().ip();
        let hello = Hello::parse(incoming.private_data())?;
        if self.options.token.is_some_and(|token| !token.matches(hello.token.as_ref())) {
            return Err(Refusal::Token);
        }
        let (all, of_address) = (guests.roster.len(), guests.roster.len_of(from));
        if all >= self.options.clients_max {
            return Err(Refusal::Busy(all));
        }
        // So that those of one address never take all places. Clients that are still arriving
        // count, or a burst would be judged before the roster knows of it.
        let of_address = of_address + under_way.of_address;
        if of_address >= self.options.clients_max.saturating_sub(all + under_way.all) {
            return Err(Refusal::Share(of_address));
        }
        match hello.purpose {
            Purpose::Calls => {
                let options = QueuePairOptions::rc(&self.cq).send_depth(4).recv_depth(1);
                let (ticket, mut reads) = (ticket()?, false);
                let queue_pair = self.behind.gate.enter(|is_open| {
                    reads = is_open;
                    let made = self.behind.memory.domain().create_qp(&options);
                    made.map_err(|error| Refusal::Card(error.to_string()))
                })?;
                self.behind.readers.expect(true);
                guests.owners.insert(ticket, Owner { address: from, chain: None });
                let qpn = queue_pair.qpn();
                Ok((queue_pair, Guest { qpn, reads, ticket, chain: None }))
            }
            Purpose::Chain => self.chain(from, hello.ticket, guests),
        }
    }

    /// A program for a client that looks up by a chain.
    fn chain(
        &self,
        from: IpAddr,
        ticket: u64,
        guests: &mut Guests,
    ) -> Result<(QueuePair, Guest), Refusal> {
        let (memory, make) = self.behind.chains.as_ref().ok_or(Refusal::NoChains)?;
        let owner = guests.owners.get_mut(&ticket);
        let owner = owner.filter(|owner| owner.address == from && owner.chain.is_none());
        let owner = owner.ok_or(Refusal::Owner)?;
        if guests.chains >= self.options.chains_max {
            return Err(Refusal::Chains(guests.chains));
        }
        let imports = [memory.clone(), memory.clone()];
        let program = make();
        let is_requests = |queue: &Queue| queue.kind == Kind::Receive;
        let requests = program.queues().iter().position(is_requests).ok_or(Refusal::NoChains)?;
        let mut loaded = None;
        let queue_pair = self.behind.gate.enter(|is_open| {
            if !is_open {
                return Err(Refusal::Closed);
            }
            let chain = memory.domain().load_chain(&program, &imports);
            let chain = chain.map_err(|error| Refusal::Card(error.to_string()))?;
            loaded.insert(chain).client().cloned().ok_or(Refusal::NoChains)
        })?;
        let requests = QueueId::from_index(requests);
        let chain = loaded.map(|chain| Arc::new(Asked { chain, requests }));
        guests.chains += 1;
        owner.chain.clone_from(&chain);
        let qpn = queue_pair.qpn();
        Ok((queue_pair, Guest { qpn, reads: false, ticket, chain }))
    }

    /// Removes the clients that are gone.
    fn look_after(&self, guests: &mut Guests) -> Result<(), PollCqError> {
        let mut done = [Completion::default(); 64];
        let (mut departed, roster) = (Vec::new(), &mut guests.roster);
        loop {
            match self.cq.poll(&mut done) {
                Ok(0) => break,
                Ok(count) => departed.extend(done[..count].iter().filter_map(|c| roster.note(c))),
                Err(gone @ PollCqError::Gone) => return Err(gone),
                Err(error) => {
                    tracing::debug!(%error, "cannot poll for the ends of clients");
                    break;
                }
            }
        }
        departed.extend(roster.inspect(Instant::now()));
        self.part(departed, guests);
        self.behind.readers.expect(!guests.owners.is_empty());
        Ok(())
    }

    /// A client that was let in is gone: see [`Guests::forget`].
    fn forget(&self, guest: &Guest, guests: &mut Guests) -> Vec<Departed<Guest>> {
        self.behind.gate.leave(guest.qpn);
        guests.forget(guest)
    }

    /// Counts the clients that are gone, and ends what belongs to them.
    fn part(&self, mut departed: Vec<Departed<Guest>>, guests: &mut Guests) {
        while let Some(gone) = departed.pop() {
            departed.extend(self.forget(&gone.about, guests));
            count(match gone.how {
                Departure::Parted => &self.counters.parted,
                Departure::Vanished => &self.counters.vanished,
                Departure::Broke => &self.counters.broke,
            });
        }
    }
}

/// A new ticket: random, so that nobody can name another's.
fn ticket() -> Result<u64, Refusal> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(Refusal::Random)?;
    Ok(u64::from_le_bytes(bytes))
}
