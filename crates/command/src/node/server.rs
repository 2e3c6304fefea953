//! The node: admits clients to regions, and keeps its lists and counters.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use remora::connection::arrivals::{Arrivals, Ended, HalfOpen, UnderWay};
use remora::connection::roster::{Departed, Departure, Roster};
use remora::connection::token::Token;
use remora::nic::nic::StructureUse;
use remora::nic::queue::{Completion, PollCqError};
use remora::nic::wire::Dialect;
use remora::nic::{Access, Time};
use remora::rarely::Rarely;
use remora::{
    CompletionChannel, CompletionQueue, ConnectionParams, Device, IncomingConnection, Listener,
    QueuePairOptions,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::address::NodeAddress;
use super::document::{DOCUMENT_MAX, HEADER_LEN, Publisher};
use super::kernels::{KernelRow, LIST_BYTES, NodeKernels};
use super::protocol::{ACK_TIMEOUT, Reply, Request, RequestError};
pub use super::regions::RegionInfo;
use super::regions::Served;
use super::start::{NodeOptions, StartError};
use super::{CLIENTS_MAX, KERNELS_DOCUMENT, REGIONS_DOCUMENT, REGIONS_MAX, STATS_DOCUMENT};
use crate::thread::spawn_scoped;

/// How often the node checks connections and files, and publishes its counters.
const TICK: Duration = Duration::from_millis(250);
/// How often the accepting thread checks whether to stop.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(100);
/// The length of the region of counters, in bytes.
const STATS_BYTES: u64 = 32 << 10;
/// The most entries of peers and dialects in it.
const PEERS_SHOWN: usize = 64;
/// The most refusals and departures printed in one tick; more are only counted.
const WORDS_PER_TICK: u64 = 10;

/// Why a client is refused, as text for the client (at most 148 bytes).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(
        "no token or a wrong one: pass the one that the node printed by --token or REMORA_TOKEN"
    )]
    Token,
    #[error("it has no region `{0}`; `remora mem ls` lists its regions")]
    Region(String),
    #[error("region `{0}` is withdrawn: {1}")]
    Withdrawn(String, String),
    #[error("it serves {CLIENTS_MAX} clients already; try again later")]
    Busy,
    #[error("it serves {0} clients from your address, and keeps room for others; try again later")]
    Share(usize),
    #[error("it has no room for another connection: {0}")]
    Card(String),
}

/// The state of a node, as its region of counters shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStats {
    /// Its address.
    pub node: String,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Clients connected now.
    pub clients: usize,
    /// The node's own counters.
    pub events: BTreeMap<String, u64>,
    /// The card's counters.
    pub counters: BTreeMap<String, u64>,
    /// How many connections speak which dialect with which peer: `192.0.2.7 lossy`. This and the
    /// next may be a second old.
    #[serde(default)]
    pub dialects: BTreeMap<String, u64>,
    /// The bytes that each structure of the card takes now.
    #[serde(default)]
    pub memory_bytes: BTreeMap<String, u64>,
}

/// The connections by peer and dialect, and the bytes by structure of the card.
type Walked = (BTreeMap<String, u64>, BTreeMap<String, u64>);

/// The dialects of a device's connections, for the first [`PEERS_SHOWN`] entries.
fn dialects(device: &Device) -> BTreeMap<String, u64> {
    let entry = |(peer, dialect, count): (_, Dialect, _)| {
        let name = if dialect.contains(Dialect::LOSSY) { "lossy" } else { "standard" };
        (format!("{peer} {name}"), count)
    };
    // Calls of kernels are another matter: entries that differ in them only are one.
    device.dialects().into_iter().take(PEERS_SHOWN).map(entry).fold(
        BTreeMap::new(),
        |mut all, (name, count)| {
            *all.entry(name).or_insert(0) += count;
            all
        },
    )
}

fn named(part: StructureUse) -> (String, u64) {
    (part.name.into_owned(), part.bytes)
}

/// The node's own counters.
#[derive(Debug, Default)]
struct Events {
    admitted: AtomicU64,
    parted: AtomicU64,
    vanished: AtomicU64,
    broke: AtomicU64,
    incomplete: AtomicU64,
    refused_request: AtomicU64,
    refused_token: AtomicU64,
    refused_region: AtomicU64,
    refused_withdrawn: AtomicU64,
    refused_busy: AtomicU64,
    regions_withdrawn: AtomicU64,
}

impl Events {
    fn list(&self) -> BTreeMap<String, u64> {
        [
            ("clients_admitted", &self.admitted),
            ("clients_parted", &self.parted),
            ("clients_vanished", &self.vanished),
            ("clients_broke_access_rule", &self.broke),
            ("clients_incomplete", &self.incomplete),
            ("refused_malformed_request", &self.refused_request),
            ("refused_token", &self.refused_token),
            ("refused_unknown_region", &self.refused_region),
            ("refused_withdrawn_region", &self.refused_withdrawn),
            ("refused_busy", &self.refused_busy),
            ("regions_withdrawn", &self.regions_withdrawn),
        ]
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
        .collect()
    }

    fn refused(&self, refusal: &Refusal) {
        add(match refusal {
            Refusal::Request(_) => &self.refused_request,
            Refusal::Token => &self.refused_token,
            Refusal::Region(_) => &self.refused_region,
            Refusal::Withdrawn(..) => &self.refused_withdrawn,
            Refusal::Busy | Refusal::Share(_) | Refusal::Card(_) => &self.refused_busy,
        });
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A memory node on a device.
#[derive(Debug)]
pub struct Node {
    device: Device,
    listener: Listener,
    address: NodeAddress,
    token: Option<Token>,
    regions: Mutex<BTreeMap<String, Served>>,
    roster: Mutex<Roster<()>>,
    events: Events,
    words: AtomicU64,
    cq: CompletionQueue,
    channel: CompletionChannel,
    started: Instant,
    kernels: NodeKernels,
    /// What is found by a look at each connection: its dialects, and the memory that all take.
    walked: Mutex<Rarely<Walked>>,
    /// The list of kernels, for clients.
    kernel_list: Mutex<(Option<Publisher>, Vec<KernelRow>)>,
}

impl Node {
    /// Makes the regions and listens. Clients are answered once [`Node::serve`] runs.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(device: &Device, options: &NodeOptions) -> Result<Node, StartError> {
        if options.regions.is_empty() {
            return Err(StartError::NoRegions);
        }
        if options.regions.len() > REGIONS_MAX {
            return Err(StartError::TooManyRegions(options.regions.len()));
        }
        let mut regions = BTreeMap::new();
        for spec in &options.regions {
            if regions.insert(spec.name.clone(), Served::open(device, spec)?).is_some() {
                return Err(StartError::Twice(spec.name.clone()));
            }
        }
        let list_bytes = regions_list_bytes(regions.len());
        let documents = [
            (REGIONS_DOCUMENT, list_bytes),
            (STATS_DOCUMENT, STATS_BYTES),
            (KERNELS_DOCUMENT, LIST_BYTES),
        ];
        for (name, bytes) in documents {
            regions.insert(name.into(), Served::memory(device, name, bytes, false)?);
        }
        let kernels = NodeKernels::new(device, &regions[KERNELS_DOCUMENT].pd, options);
        for region in regions.values().filter(|region| !region.info.name.starts_with('@')) {
            kernels.open(&region.info.name, region.region(), region.info.writable);
        }
        let kernel_list = regions[KERNELS_DOCUMENT].region().cloned().map(Publisher::new);
        let port = options.port;
        let listener = device.listen(port).map_err(|source| StartError::Listen { port, source })?;
        let channel = device.create_channel()?;
        let cq = device.create_cq_on(&channel, 4 * CLIENTS_MAX)?;
        Ok(Node {
            device: device.clone(),
            listener,
            address: NodeAddress { ip: device.info().address, port },
            token: options.token,
            regions: Mutex::new(regions),
            roster: Mutex::default(),
            events: Events::default(),
            words: AtomicU64::new(0),
            cq,
            channel,
            started: Instant::now(),
            kernels,
            walked: Mutex::default(),
            kernel_list: Mutex::new((kernel_list, Vec::new())),
        })
    }

    /// The node's address.
    pub fn address(&self) -> NodeAddress {
        self.address
    }

    /// The regions that it serves, without its own.
    pub fn regions(&self) -> Vec<RegionInfo> {
        let regions = lock(&self.regions);
        let own = |name: &str| name.starts_with('@');
        regions.values().filter(|r| !own(&r.info.name)).map(|r| r.info.clone()).collect()
    }

    /// The node's state.
    pub fn stats(&self) -> NodeStats {
        let counters = self.device.counters();
        let (dialects, memory_bytes) = self.walked();
        NodeStats {
            node: self.address.to_string(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            clients: lock(&self.roster).len(),
            events: self.events(),
            counters: counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            dialects,
            memory_bytes,
        }
    }

    /// What a look at each connection finds, for which the card stands: once a second at most.
    fn walked(&self) -> Walked {
        let now = Time(self.started.elapsed().as_nanos() as u64);
        let mut walked = lock(&self.walked);
        walked.get(now).unwrap_or_else(|| {
            let memory = self.device.memory_use().into_iter().map(named).collect();
            walked.keep((dialects(&self.device), memory), self.device.in_use().qps, now)
        })
    }

    fn events(&self) -> BTreeMap<String, u64> {
        let mut events = self.events.list();
        let refused = self.kernels.refused.load(Ordering::Relaxed);
        events.insert("refused_kernel_permit".to_owned(), refused);
        events
    }

    /// Serves until `stop` is true.
    ///
    /// # Errors
    /// A thread cannot be started, or the process that has the card has ended.
    pub fn serve(&self, stop: &AtomicBool) -> Result<()> {
        let ended = AtomicBool::new(false);
        let stopped = || stop.load(Ordering::Relaxed) || ended.load(Ordering::Relaxed);
        // Before the first client is admitted, or a client that calls at once would be told that
        // there is no such kernel.
        let calls = self.kernels.calls();
        let changed = || self.list_kernels(false);
        thread::scope(|scope| {
            let house = || {
                let kept = self.keep_house(&stopped);
                ended.store(true, Ordering::Relaxed);
                kept
            };
            let started = spawn_scoped(scope, "house", house).and_then(|house| {
                spawn_scoped(scope, "kernels", || self.kernels.serve(&calls, &stopped, &changed))?;
                Ok(house)
            });
            if started.is_ok() {
                self.admit_clients(&stopped);
            }
            // A thread that did start has to end.
            ended.store(true, Ordering::Relaxed);
            let kept = started?.join().map_err(|_| anyhow!("the node's house thread panicked"))?;
            kept.context("the node has no card any more; start `remora nic`, and then the node")
        })
    }

    /// Answers clients until told to stop.
    fn admit_clients(&self, stopped: &dyn Fn() -> bool) {
        let mut arrivals = Arrivals::new(&self.listener);
        while !stopped() {
            let (mut ended, nap) = (Vec::new(), arrivals.nap(ACCEPT_PATIENCE));
            let step = poll_fn(|context| {
                let room = CLIENTS_MAX.saturating_sub(lock(&self.roster).len());
                let answer = |client, under_way| self.answer(client, under_way);
                let more = arrivals.poll(context, room, answer, &mut ended);
                ended.drain(..).for_each(|end| self.note_arrival(end));
                if stopped() { Poll::Ready(()) } else { more }
            });
            remora::wait_for(step, nap);
        }
    }

    /// Answers a client; `None` if it is refused.
    fn answer(&self, incoming: IncomingConnection, under_way: UnderWay) -> Option<HalfOpen<()>> {
        let (kernels, reply, queue_pair, access) = match self.admit(&incoming, under_way) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.refuse(incoming, &refusal);
                return None;
            }
        };
        let params = ConnectionParams::new(self.device.info().mtu)
            .access(access)
            .timeout(ACK_TIMEOUT)
            .kernels(kernels);
        let peer = incoming.peer();
        let step = incoming.accept(queue_pair, &reply.emit(), &params);
        Some(HalfOpen { peer, about: (), step })
    }

    /// A client has arrived, or has not completed its connection.
    fn note_arrival(&self, Ended { peer, connection, .. }: Ended<()>) {
        match connection {
            Ok(connection) => {
                add(&self.events.admitted);
                lock(&self.roster).add(connection, ());
            }
            Err(error) => {
                add(&self.events.incomplete);
                self.say(|| format!("{} did not complete its connection: {error}", peer.ip()));
            }
        }
    }

    /// Checks a request, and makes the queue pair for its connection. Returns also whether the
    /// client may call kernels.
    fn admit(
        &self,
        incoming: &IncomingConnection,
        under_way: UnderWay,
    ) -> Result<(bool, Reply, remora::QueuePair, Access), Refusal> {
        let request = Request::parse(incoming.private_data())?;
        if self.token.is_some_and(|token| !token.matches(request.token.as_ref())) {
            return Err(Refusal::Token);
        }
        let (all, of_address) = {
            let roster = lock(&self.roster);
            (roster.len(), roster.len_of(incoming.peer().ip()))
        };
        if all >= CLIENTS_MAX {
            return Err(Refusal::Busy);
        }
        // So that those of one address never take all places. Clients that are still arriving
        // count, or a burst would be judged before the roster knows of it.
        let of_address = of_address + under_way.of_address;
        if of_address >= CLIENTS_MAX.saturating_sub(all + under_way.all) {
            return Err(Refusal::Share(of_address));
        }
        let mut regions = lock(&self.regions);
        let region =
            regions.get_mut(request.name).ok_or_else(|| Refusal::Region(request.name.into()))?;
        self.withdraw_if_shrunk(region);
        let Some(reply) = region.offer() else {
            let why = region.info.withdrawn.clone().unwrap_or_default();
            return Err(Refusal::Withdrawn(request.name.into(), why));
        };
        let options = QueuePairOptions::rc(&self.cq).send_depth(4).recv_depth(1);
        let queue_pair =
            region.pd.create_qp(&options).map_err(|error| Refusal::Card(error.to_string()))?;
        Ok((request.name == KERNELS_DOCUMENT, reply, queue_pair, region.access()))
    }

    fn refuse(&self, incoming: IncomingConnection, refusal: &Refusal) {
        self.events.refused(refusal);
        self.say(|| format!("refused {}: {refusal}", incoming.peer().ip()));
        incoming.reject(&refusal.to_string());
    }

    /// Prints a message for the operator, unless enough were printed in this tick.
    fn say(&self, words: impl FnOnce() -> String) {
        if self.words.fetch_add(1, Ordering::Relaxed) < WORDS_PER_TICK {
            tracing::warn!("{}", words());
        }
    }

    /// Checks connections and files and publishes counters, until told to stop.
    ///
    /// # Errors
    /// The process that has the card has ended.
    fn keep_house(&self, stopped: &dyn Fn() -> bool) -> Result<(), PollCqError> {
        let publisher = |name| lock(&self.regions)[name].region().cloned().map(Publisher::new);
        let mut list = publisher(REGIONS_DOCUMENT);
        let mut stats = publisher(STATS_DOCUMENT);
        let mut listed = None;
        self.list_kernels(true);
        while !stopped() {
            let regions = self.regions();
            if listed.as_ref() != Some(&regions) {
                publish(&mut list, &regions);
                listed = Some(regions);
            }
            publish(&mut stats, &self.stats());
            self.list_kernels(false);
            self.watch_clients()?;
            lock(&self.regions).values_mut().for_each(|region| self.withdraw_if_shrunk(region));
            self.words.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sleeps for a tick, or until a probe ends; then removes clients that are gone.
    fn watch_clients(&self) -> Result<(), PollCqError> {
        // Woken or not, it looks: nothing announces what came before the queue was armed.
        let _ = self.cq.arm(false).is_ok() && self.channel.wait(TICK).is_ok();
        let mut departed = Vec::new();
        let mut done = [Completion::default(); 64];
        loop {
            match self.cq.poll(&mut done) {
                Ok(count @ 1..) => {
                    let mut roster = lock(&self.roster);
                    departed.extend(done[..count].iter().filter_map(|entry| roster.note(entry)));
                }
                Err(gone @ PollCqError::Gone) => return Err(gone),
                Ok(0) | Err(_) => break,
            }
        }
        departed.extend(lock(&self.roster).inspect(Instant::now()));
        for Departed { peer, how, .. } in departed {
            let (count, words) = match how {
                Departure::Parted => (&self.events.parted, None),
                Departure::Vanished => (&self.events.vanished, Some("no longer answers")),
                Departure::Broke => (&self.events.broke, Some("asked for what it has no right to")),
            };
            add(count);
            if let Some(words) = words {
                self.say(|| format!("{} {words}; its connection is closed", peer.ip()));
            }
        }
        Ok(())
    }

    /// Publishes the list of kernels, if it has changed.
    fn list_kernels(&self, first: bool) {
        let (publisher, published) = &mut *lock(&self.kernel_list);
        let list = self.kernels.list();
        if first || list != *published {
            publish(publisher, &list);
            *published = list;
        }
    }

    fn withdraw_if_shrunk(&self, region: &mut Served) {
        if let Some(words) = region.check_file() {
            self.kernels.open(&region.info.name, None, false);
            add(&self.events.regions_withdrawn);
            tracing::warn!("{words}");
        }
    }
}

/// The length of the region that lists so many regions, in bytes. Each line has room for the reason
/// of a withdrawal.
const fn regions_list_bytes(regions: usize) -> u64 {
    HEADER_LEN as u64 + 512 * (1 + regions as u64)
}

// Clients read no longer ones.
const _: () = assert!(regions_list_bytes(REGIONS_MAX) <= DOCUMENT_MAX);
const _: () = assert!(STATS_BYTES <= DOCUMENT_MAX && LIST_BYTES <= DOCUMENT_MAX);

fn publish(publisher: &mut Option<Publisher>, document: &impl Serialize) {
    let Some(publisher) = publisher else { return };
    let written = serde_json::to_string(document)
        .map_err(|error| error.to_string())
        .and_then(|text| publisher.publish(&text).map_err(|error| error.to_string()));
    if let Err(error) = written {
        tracing::error!(error, "cannot publish the node's own region");
    }
}

/// The lists are still whole if a thread has panicked with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use remora::nic::cm::message::Rej;

    use super::*;

    #[test]
    fn refusals_fit_a_rejection() {
        let name = "x".repeat(super::super::protocol::NAME_MAX);
        let fault = format!("its file shrank from {} to {} bytes", u64::MAX / 4, u64::MAX / 4);
        for refusal in [
            Refusal::Request(RequestError::Version { got: 255 }),
            Refusal::Token,
            Refusal::Region(name.clone()),
            Refusal::Withdrawn(name, fault),
            Refusal::Busy,
            Refusal::Share(CLIENTS_MAX),
        ] {
            assert!(refusal.to_string().len() <= Rej::PRIVATE_DATA, "{refusal}");
        }
    }
}
