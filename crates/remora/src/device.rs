//! The device: its options, how it is opened and queried, and what can be made on it.
//!
//! `live.rs` has what its threads share, and `driver.rs` the steps that move it forward.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::{io, thread};

use remora_nic::TurnOrder;
use remora_nic::nic::{InUse, StructureUse};
use remora_nic::qp::{Congestion, Mtu};
use remora_nic::service_level::ServiceLevels;
use remora_nic::{CreateError, Time};
use remora_offload::cpu;
use thiserror::Error;

use crate::attach::{AttachError, Attached, Begun, UnknownWay, Ways, watch};
use crate::background;
use crate::background::signals::Background;
use crate::channel::CompletionChannel;
use crate::commands::{CardCounters, Commands};
use crate::completion::CompletionQueue;
use crate::counters::DeviceCounters;
use crate::device_events::DeviceEvents;
use crate::dialect::{
    BadDialect, CONGESTION_VARIABLE, DIALECT_VARIABLE, DialectChoice, PATHS_VARIABLE,
};
use crate::dma::Piece;
use crate::driver::Clock;
use crate::either::Driver;
use crate::environment::is_set;
use crate::event::Event;
use crate::fabric::{FabricChoice, UnknownFabric};
use crate::impair::{BadImpairment, Direction, IMPAIR_VARIABLE, Impairments};
use crate::interface::{Interface, InterfaceError};
pub use crate::live::DeviceInfo;
use crate::live::{Live, Shared};
use crate::message::{
    ANEW_VARIABLE, BadKeep, DaemonPlace, Hello, Keep, Kept, SERVES_OTHERS, SOCKET_VARIABLE,
    SessionToken, place, session_name,
};
use crate::news::{Concerned, News};
use crate::own_memory::OwnMemory;
use crate::region::ProtectionDomain;
use crate::scheduling;
use crate::service_levels::{
    BadServiceLevel, BadTurnOrder, SERVICE_LEVELS_VARIABLE, TURN_ORDER_VARIABLE,
};
use crate::socket::BindError;
use crate::threads::without_signals;
use crate::wakes::Wakes;
use crate::yielding::Yielding;

mod open_own;

/// The environment variable that names a capture file for any process; `%p` in it becomes the
/// process id. Cards beyond the first write to `FILE-2`, `FILE-3` and so on.
pub const PCAP_VARIABLE: &str = "REMORA_PCAP";

/// How to open a [`Device`].
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::qp::Mtu;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let of_a_link = DeviceOptions::new().bind("eth0").capture("packets.pcapng");
///
/// let device = DeviceOptions::new().mtu(Mtu::B1024).window(64).open()?;
/// assert_eq!(device.info().mtu, Mtu::B1024);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    bind: Option<String>,
    capture: Option<PathBuf>,
    window: Option<u16>,
    mtu: Option<Mtu>,
    real_time: bool,
    fabric: Option<FabricChoice>,
    anew: bool,
    pub(crate) dialect: Option<DialectChoice>,
    pub(crate) paths: Option<u8>,
    pub(crate) congestion: Option<Congestion>,
    pub(crate) service_levels: Option<ServiceLevels>,
    pub(crate) turn_order: Option<TurnOrder>,
    impairments: Option<Impairments>,
    card: WhichCard,
    pub(crate) kept: Option<Kept>,
    /// The secret of a session of that name, which is taken over.
    pub(crate) token: Option<SessionToken>,
    device_memory: Option<Arc<Piece>>,
}

/// Whose card a device uses.
#[derive(Clone, Debug, Default)]
enum WhichCard {
    /// That of the process that serves one, if the environment names it or it is at the usual
    /// place; else one of this process's own.
    #[default]
    Any,
    /// One of this process's own.
    Own,
    /// That of the process that listens at this socket.
    At(PathBuf),
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The environment names a level of processor that there is none of.
    #[error(transparent)]
    Cpu(#[from] cpu::UnknownLevel),
    /// The environment names a fabric that there is none of.
    #[error(transparent)]
    Fabric(#[from] UnknownFabric),
    /// The environment names a dialect or a congestion policy that there is none of, or no number
    /// of paths.
    #[error(transparent)]
    Dialect(#[from] BadDialect),
    /// The environment names a service level that there is none of.
    #[error(transparent)]
    ServiceLevel(#[from] BadServiceLevel),
    /// The environment names an order of turns that there is none of.
    #[error(transparent)]
    TurnOrder(#[from] BadTurnOrder),
    /// The environment asks for a bad network that cannot be understood.
    #[error("REMORA_IMPAIR: {0}")]
    Impair(#[from] BadImpairment),
    /// The address or interface to bind to does not exist.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The address and port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The capture file cannot be made.
    #[error("cannot make the capture file {path}: {source}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The card's thread may not have real-time priority.
    #[error(
        "cannot give the card’s thread real-time priority: {0}; grant the program CAP_SYS_NICE, \
         or raise its limit (ulimit -r 1)"
    )]
    RealTime(#[source] io::Error),
    /// The card's thread cannot be started.
    #[error(
        "cannot start the card’s thread: {0}; if there is a limit on processes (ulimit -u, or the \
         container’s), raise it"
    )]
    Thread(#[source] io::Error),
    /// The system is short of descriptors or memory.
    #[error("cannot set up the card: {0}")]
    System(#[from] io::Error),
    /// The environment asks for a session to be kept, in words that cannot be understood.
    #[error("REMORA_KEEP: {0}")]
    Keep(#[from] BadKeep),
    /// A session is to be kept, and no other process has the card.
    #[error(
        "the session {0} cannot be kept without a process that has the card: start one \
         (remora nic)"
    )]
    NobodyKeeps(String),
    /// The environment names a way to memory that there is none of.
    #[error(transparent)]
    Way(#[from] UnknownWay),
    /// The card of another process cannot be used.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There is no memory for the card's own memory.
    #[error(transparent)]
    Memory(#[from] crate::memory::AllocError),
    /// The piece of card memory cannot be mapped.
    #[error(transparent)]
    DeviceMemory(#[from] crate::memory::memfd::MapError),
}

impl DeviceOptions {
    /// A device on loopback, at the first free address of 127.0.0.0/8.
    pub fn new() -> DeviceOptions {
        DeviceOptions::default()
    }

    /// Binds to an IP address of this machine, or to the address of the interface with this name.
    #[must_use]
    pub fn bind(mut self, address_or_interface: impl Into<String>) -> DeviceOptions {
        self.bind = Some(address_or_interface.into());
        self
    }

    /// Writes packets that are sent and received to a pcapng file. No other card may write to it.
    /// Without this option, the environment variable [`PCAP_VARIABLE`] may name a file. Of several
    /// cards, each then writes to a file of its own, with a number behind the name.
    #[must_use]
    pub fn capture(mut self, path: impl Into<PathBuf>) -> DeviceOptions {
        self.capture = Some(path.into());
        self
    }

    /// Limits a queue pair's unacknowledged packets to `packets`. By default, the size of the
    /// socket's buffer sets the limit.
    #[must_use]
    pub fn window(mut self, packets: u16) -> DeviceOptions {
        self.window = Some(packets);
        self
    }

    /// Sets a smaller path MTU than the link allows.
    #[must_use]
    pub fn mtu(mut self, mtu: Mtu) -> DeviceOptions {
        self.mtu = Some(mtu);
        self
    }

    /// Gives the card's own thread real-time priority: it runs before every ordinary thread of the
    /// machine, and serves peers at once, however busy the host's threads keep the processors. Use
    /// it for programs that serve chains, kernels or memory and do not poll. The work that peers
    /// give the card takes its time from the host's threads, up to the system's limit (Linux leaves
    /// them 5 %, `kernel.sched_rt_runtime_us`).
    #[must_use]
    pub fn real_time(mut self) -> DeviceOptions {
        self.real_time = true;
        self
    }

    /// Chooses what carries packets. Without this option, the environment variable
    /// [`FABRIC_VARIABLE`](crate::fabric::FABRIC_VARIABLE) does. A device that uses another
    /// process's card carries nothing out past that card with [`FabricChoice::Udp`].
    #[must_use]
    pub fn fabric(mut self, choice: FabricChoice) -> DeviceOptions {
        self.fabric = Some(choice);
        self
    }

    /// Does this to packets, as a bad network would: see [`Impairments`]. Without this option, the
    /// environment variable [`IMPAIR_VARIABLE`] says so.
    /// [`Device::impair`] changes it.
    #[must_use]
    pub fn impair(mut self, impairments: Impairments) -> DeviceOptions {
        self.impairments = Some(impairments);
        self
    }

    /// The device has a card of its own, in this process, even where another process serves one.
    #[must_use]
    pub fn embedded(mut self) -> DeviceOptions {
        self.card = WhichCard::Own;
        self
    }

    /// The device uses the card of the process that listens at `socket` (`remora nic`), or that is
    /// behind a virtual machine's ivshmem device, whose folder in `/sys` `socket` names then. The
    /// card's own properties (address, capture, window, MTU) are that process's.
    #[must_use]
    pub fn attach(mut self, socket: impl Into<PathBuf>) -> DeviceOptions {
        self.card = WhichCard::At(socket.into());
        self
    }

    /// Has the device's session outlive this process: its memory, queue pairs and connections, and
    /// the chains that run on them, go on for as long as `keep` says. The session's name is `name`;
    /// `remora nic status` shows it, and `remora nic evict` ends it. Only a process that has the
    /// card for others can do so, and opening the device fails without one. Without this option,
    /// the environment variable [`KEEP_VARIABLE`](crate::message::KEEP_VARIABLE) may ask for it.
    #[must_use]
    pub fn keep(mut self, name: impl Into<String>, keep: Keep) -> DeviceOptions {
        self.kept = Some(Kept { name: name.into(), keep });
        self
    }

    /// If a program of this user has left a session of the name that [`DeviceOptions::keep`] gives,
    /// that one ends first, and all that it had: its ports are free when this device opens. While
    /// its program runs, opening the device fails. Without this option, the environment variable
    /// [`ANEW_VARIABLE`] may ask for it.
    #[must_use]
    pub fn anew(mut self) -> DeviceOptions {
        self.anew = true;
        self
    }

    /// Takes a piece of a [`CardMemory`](crate::dma::CardMemory) as the device's own memory, of
    /// which [`alloc_device_memory`](ProtectionDomain::alloc_device_memory) and `ibv_alloc_dm` give
    /// out parts. A DMA engine of that memory reaches the same bytes. Without this option, the
    /// device has a megabyte of its own; a device that uses another process's card has that card's.
    #[must_use]
    pub fn device_memory(mut self, piece: Piece) -> DeviceOptions {
        self.device_memory = Some(Arc::new(piece));
        self
    }

    /// Opens the device.
    ///
    /// Where the environment names the socket of a process that serves a card
    /// ([`SOCKET_VARIABLE`]), or one serves its card at the usual
    /// place, the device uses that card, unless the options ask for another address. One at the
    /// usual place is left alone, too, if an option or a variable asks for what only a card of the
    /// process's own has, such as a bad network.
    ///
    /// # Errors
    /// See [`OpenError`]; each says what to do.
    pub fn open(self) -> Result<Device, OpenError> {
        cpu::check()?;
        let kept = match (&self.kept, &self.card) {
            (Some(kept), _) => Some(kept.clone()),
            // The process that has the card for others keeps their sessions.
            (None, WhichCard::Own) => None,
            (None, _) => Kept::from_environment()?,
        };
        match (self.attached(kept.as_ref())?, kept) {
            (Some(device), _) => Ok(device),
            (None, None) => self.open_own(),
            (None, Some(kept)) => Err(OpenError::NobodyKeeps(kept.name)),
        }
    }

    /// The device on the card of another process, if it is to use one.
    fn attached(&self, kept: Option<&Kept>) -> Result<Option<Device>, OpenError> {
        let sockets = match &self.card {
            WhichCard::Own => return Ok(None),
            WhichCard::At(path) => return self.attach_at(path, kept),
            WhichCard::Any => match place() {
                DaemonPlace::Off => return Ok(None),
                DaemonPlace::Named(path) => return self.attach_at(&path, kept),
                DaemonPlace::Usual(sockets) => sockets,
            },
        };
        if self.of_own_cards().next().is_some() {
            return Ok(None);
        }
        let mut refused = None;
        for socket in sockets.iter().filter(|socket| socket.exists()) {
            match self.attach_at(socket, kept) {
                Ok(attached) => return Ok(attached),
                Err(OpenError::Attach(error)) if is_none_for_this_user(&error) => {
                    tracing::info!(%error, ?socket, "the card there is not used");
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some(error) if self.token.is_some() || kept.is_some() => Err(error.into()),
            _ => Ok(None),
        }
    }

    /// What is asked for that only a card of the process's own can have, in words: by an option, or
    /// by the environment.
    fn of_own_cards(&self) -> impl Iterator<Item = &'static str> {
        let asked = [
            (self.capture.is_some() || is_set(PCAP_VARIABLE), "a capture of its packets"),
            (self.window.is_some(), "a window"),
            (self.mtu.is_some(), "a path MTU"),
            (self.dialect.is_some() || is_set(DIALECT_VARIABLE), "a dialect"),
            (self.paths.is_some() || is_set(PATHS_VARIABLE), "a number of paths"),
            (self.congestion.is_some() || is_set(CONGESTION_VARIABLE), "a congestion policy"),
            (self.service_levels.is_some() || is_set(SERVICE_LEVELS_VARIABLE), "service levels"),
            (self.turn_order.is_some() || is_set(TURN_ORDER_VARIABLE), "an order of turns"),
            (self.real_time, "real-time priority"),
            (self.impairments.is_some() || is_set(IMPAIR_VARIABLE), "a bad network"),
        ];
        asked.into_iter().filter_map(|(is_asked, what)| is_asked.then_some(what))
    }

    /// Attaches to the card that is served at `socket`; `None` if that has another address.
    fn attach_at(&self, socket: &Path, kept: Option<&Kept>) -> Result<Option<Device>, OpenError> {
        let ways = Ways::from_environment()?;
        let keep = kept.map_or(Keep::No, |kept| kept.keep);
        let name = match (kept, self.token) {
            (Some(kept), Some(_)) => kept.name.clone(),
            _ => session_name(kept),
        };
        let anew = self.anew || is_set(ANEW_VARIABLE);
        let anew = anew && kept.is_some();
        let hello = Hello { name: Some(name), token: self.token, keep, anew, ..Hello::default() };
        let mut begun = Begun::at(socket, &hello)?;
        begun.may_pass &= self.fabric != Some(FabricChoice::Udp);
        let address = begun.welcome.card.address;
        if let Some(wanted) = &self.bind
            && Interface::find(wanted)?.addr != address
        {
            tracing::info!(%wanted, %address, "the device has a card of its own, since the one at \
                {} has another address", socket.display());
            return Ok(None);
        }
        for what in self.of_own_cards() {
            tracing::warn!(
                "{what} was asked for, which the card that is served at {} does not get \
                from its programs: ask `remora nic` for it, or set {SOCKET_VARIABLE}=off",
                socket.display()
            );
        }
        Device::of_session(begun, ways, |attached| attached).map(Some)
    }
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

/// What a device is made of.
struct Parts {
    driver: Driver,
    clock: Clock,
    wake: Arc<Event>,
    socket: OwnedFd,
    info: DeviceInfo,
}

/// What the system granted the device's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketInfo {
    /// One call sends many packets (`UDP_SEGMENT`).
    pub segmentation: bool,
    /// Packets of one sender arrive many at a time (`UDP_GRO`).
    pub coalescing: bool,
    /// Bytes that may wait to be received.
    pub recv_buffer: usize,
    /// Bytes that may wait to be sent.
    pub send_buffer: usize,
}

/// A RoCE v2 device in this process. A clone is another handle of the same device. The device
/// closes when its last handle, and the last object that was made on it, is dropped.
///
/// A thread that polls a completion queue drives the device inline. While no thread does, a
/// background thread drives it.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// println!("{} at UDP port {}", device.info().address, device.info().port);
/// let memory = device.alloc_pd()?.alloc(4096, Access::all())?;
/// assert_eq!(device.in_use().mrs, 1);
/// drop(memory);
/// assert_eq!(device.in_use().mrs, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) live: Arc<Live>,
}

impl Device {
    /// Opens a device on loopback: see [`DeviceOptions`] for others.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open() -> Result<Device, OpenError> {
        DeviceOptions::new().open()
    }

    /// The device on the card of the process with which a session has begun.
    pub(crate) fn of_session(
        mut begun: Begun,
        ways: Ways,
        how: impl FnOnce(Attached) -> Attached,
    ) -> Result<Device, OpenError> {
        let (info, config) = (begun.info()?, begun.config()?);
        let wake = Arc::new(Event::new()?);
        let wakes = Arc::new(Wakes::new(wake.clone()));
        let news = News::new(Arc::new(Event::new()?), wakes);
        let attached = how(Attached::new(begun, config, news, ways));
        let (clock, fd) = (attached.clock(), attached.wake_fd().try_clone_to_owned()?);
        let driver = Driver::Attached(Box::new(attached));
        Device::start(Parts { driver, clock, wake, socket: fd, info }, None, false)
    }

    fn start(
        parts: Parts,
        own_memory: Option<OwnMemory>,
        real_time: bool,
    ) -> Result<Device, OpenError> {
        let Parts { mut driver, clock, wake, socket, info } = parts;
        let attached = driver.as_own().is_none();
        let (links, sleep) = match driver.as_own() {
            Some(own) => (own.fabric.share_links_fd()?, own.fabric.sleep()),
            None => Default::default(),
        };
        let shared = Arc::new(Shared {
            clock,
            wakes: driver.news().wakes.clone(),
            waiting: AtomicU32::new(0),
            driver: Mutex::new(driver),
            background: Background::new(wake),
            socket,
            links,
            sleep,
            info,
            yielding: Yielding::new(attached),
            doorbells: OnceLock::new(),
            real_time,
            _own_memory: own_memory,
        });
        let of_thread = shared.clone();
        let (tell, told) = mpsc::sync_channel(1);
        let run = move || {
            let asked = scheduling::ask(real_time);
            let may_run = asked.is_ok();
            tell.send(asked).ok();
            if may_run && attached {
                watch::run(&of_thread);
            } else if may_run {
                background::run(&of_thread, real_time);
            }
        };
        let named = thread::Builder::new().name("remora".into());
        let thread = without_signals(|| named.spawn(run)).map_err(OpenError::Thread)?;
        if real_time {
            // Without real time, this does not wait: a library may open a device while it is
            // loaded, and no thread begins before the loading ends.
            told.recv().expect("the thread tells before it ends").map_err(OpenError::RealTime)?;
        }
        Ok(Device { live: Arc::new(Live { shared, thread: Some(thread) }) })
    }

    /// Is the card that of another process?
    pub fn is_attached(&self) -> bool {
        self.live.lock().as_own().is_none()
    }

    /// The device's address, port and path MTU.
    pub fn info(&self) -> DeviceInfo {
        self.live.info
    }

    /// What the system has granted the device's socket.
    ///
    /// # Errors
    /// `Unsupported`: the socket is another process's, to which the device is attached.
    pub fn socket_info(&self) -> io::Result<SocketInfo> {
        let mut driver = self.live.lock();
        let own = driver.as_own().ok_or(io::ErrorKind::Unsupported)?;
        let socket = &own.fabric.udp;
        Ok(SocketInfo {
            segmentation: socket.segmentation(),
            coalescing: socket.coalescing(),
            recv_buffer: socket.recv_buffer()?,
            send_buffer: socket.send_buffer()?,
        })
    }

    /// How many cards of this machine the device shares rings with now; `None` if all its packets
    /// go by UDP.
    pub fn ring_peers(&self) -> Option<usize> {
        self.live.lock().as_own()?.fabric.rings()
    }

    /// The configuration of the device's card: its limits.
    pub fn limits(&self) -> remora_nic::Config {
        self.live.lock().config()
    }

    /// How many of the card's objects are in use.
    pub fn in_use(&self) -> InUse {
        self.live.lock().in_use()
    }

    /// What each structure of the device's card takes of memory now, in bytes; nothing if the card
    /// was another process's, and that has ended. Most parts are the card's
    /// ([`Nic::memory_use`](remora_nic::Nic::memory_use)); `receive_buffer` and `send_staging` are
    /// those of its socket. If the card is another process's, they are all that it has, for
    /// whomever.
    pub fn memory_use(&self) -> Vec<StructureUse> {
        self.live.lock().memory_use()
    }

    /// All counters, which count from the opening of the device.
    pub fn counters(&self) -> DeviceCounters {
        let mut driver = self.live.lock();
        let CardCounters { card, management } = driver.card_counters();
        let Some(own) = driver.as_own() else {
            let (egress, ingress, fabric) = Default::default();
            let impaired = [Direction::In, Direction::Out].map(|way| (way, Default::default()));
            let capture_missed = 0;
            return DeviceCounters {
                card,
                management,
                egress,
                ingress,
                fabric,
                impaired,
                capture_missed,
            };
        };
        DeviceCounters {
            card,
            management,
            egress: own.egress.counters(),
            ingress: own.received.counters(),
            fabric: own.fabric.counters(),
            impaired: own.impair_counters(),
            capture_missed: own.recorder.missed(),
        }
    }

    /// Does this to packets from now on, as a bad network would; an empty list of rules ends it.
    ///
    /// # Errors
    /// `Unsupported`: the card is another process's, to which the device is attached
    /// (`remora nic impair` changes it); or the system is short of random numbers for a seed.
    pub fn impair(&self, impairments: &Impairments) -> io::Result<()> {
        let seed = u64::from_ne_bytes(random()?);
        let mut driver = self.live.lock();
        let own = driver.as_own().ok_or(io::ErrorKind::Unsupported)?;
        own.set_impairments(impairments, seed);
        Ok(())
    }

    /// Drives the device one step: sends what is due, receives what has come. Returns whether there
    /// was anything to do. It is for applications that watch memory; polling a completion queue
    /// drives the device too.
    #[inline]
    pub fn progress(&self) -> bool {
        let moved = self.live.progress(&mut self.live.lock());
        if !moved {
            self.live.found_nothing();
        }
        moved
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// The card has no more protection domains.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, CreateError> {
        ProtectionDomain::new(self.live.clone())
    }

    /// Makes a completion queue of `entries` entries, which the application polls.
    ///
    /// # Errors
    /// `entries` is zero or above the card's limit, or the card has no more queues.
    pub fn create_cq(&self, entries: usize) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::new(self.live.clone(), entries, None)
    }

    /// As [`Device::create_cq`], with a channel on which the queue, when armed, announces its next
    /// entry.
    ///
    /// # Errors
    /// Those of [`Device::create_cq`].
    pub fn create_cq_on(
        &self,
        channel: &CompletionChannel,
        entries: usize,
    ) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::new(self.live.clone(), entries, Some(channel.queue()))
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// Too many open files.
    pub fn create_channel(&self) -> io::Result<CompletionChannel> {
        CompletionChannel::new(self.live.clone())
    }

    /// The device's asynchronous events: errors and limits that no completion reports.
    pub fn events(&self) -> DeviceEvents {
        DeviceEvents::new(self.live.clone())
    }

    /// The card's time.
    pub fn now(&self) -> Time {
        self.live.lock().now()
    }
}

/// Is there no card for this user's programs at the place where attaching has failed so? There may
/// be the file of a process that has ended, or one that serves others only, or a device of a
/// virtual machine that leads to no daemon.
fn is_none_for_this_user(error: &AttachError) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    match error {
        AttachError::Connect { source, .. } => {
            matches!(source.kind(), NotFound | ConnectionRefused | PermissionDenied)
        }
        AttachError::Refused(reason) => reason.ends_with(SERVES_OTHERS),
        AttachError::Device { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Policy;

    /// A card of a program's own is not what it gets where the daemon for it has trouble.
    #[test]
    fn a_usual_place_is_passed_over_only_where_no_daemon_is_for_the_user() {
        let (path, other) = (PathBuf::new, rustix::process::geteuid().as_raw() + 1);
        let refusal = Policy::default().check_attach(other).unwrap_err();
        let connect =
            |kind: io::ErrorKind| AttachError::Connect { path: path(), source: kind.into() };
        let greeting = AttachError::Greeting { path: path(), reason: "nothing came".into() };
        for (error, expected) in [
            (connect(io::ErrorKind::NotFound), true),
            (connect(io::ErrorKind::ConnectionRefused), true),
            (connect(io::ErrorKind::PermissionDenied), true),
            (AttachError::Refused(refusal), true),
            (AttachError::Device { path: path(), reason: "another server’s".into() }, true),
            (connect(io::ErrorKind::WouldBlock), false),
            (AttachError::Refused("too many sessions".into()), false),
            (greeting, false),
        ] {
            assert_eq!(is_none_for_this_user(&error), expected, "{error}");
        }
    }

    #[test]
    fn the_thread_with_the_lock_sees_that_another_wants_it() {
        let device = Device::open().unwrap();
        let shared = &device.live.shared;
        let driver = shared.lock();
        thread::scope(|scope| {
            let other = scope.spawn(|| drop(shared.lock()));
            while !shared.is_wanted() {
                thread::yield_now();
            }
            drop(driver);
            other.join().unwrap();
        });
        // The card's own thread may want it, for a moment.
        while shared.is_wanted() {
            thread::yield_now();
        }
    }
}
