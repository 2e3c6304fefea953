//! The daemon: accepts clients, answers their requests, and ends their sessions; all of them when
//! it is ended itself.
//!
//! One thread does so, and never waits for a client: a client that does not read its answers is
//! dropped, and of each client's requests some are answered at a time. What takes time, the end of
//! a session with many objects, is done in steps between requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use super::clients::{Client, Clients, Line, Then};
use super::compiler::Compiler;
use super::descriptors::{Closers, Looked, Looks, Parcel, is_name, is_plain};
use super::dma::DmaCards;
use super::ending::Ending;
use super::engine::Engine;
use super::evicted::Evicted;
use super::fd_store::{BehindStore, FdStore};
use super::ivshmem::{MACHINES, Machine};
use super::objects::Pools;
use super::overgrown::ArenaWatch;
use super::policy::Policy;
use super::sessions::{Left, Session};
use crate::closer::Closer;
use crate::device::Device;
use crate::kernel::{Loader, no_loader};
use crate::message::{Answer, Keep, MessageSocket, Object, encode};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Requests of one client that are answered in one turn.
pub(super) const REQUESTS: usize = 16;
/// Connections accepted, and descriptors looked at, in one turn.
pub(super) const TURN: usize = 64;
/// The most connections of one user on which no greeting has come: several turns' worth.
const UNGREETED: usize = 256;
/// How long a client may take for its greeting.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// How long a child of a process that has ended may take for its first use of the session.
const CHILDREN: Duration = Duration::from_secs(2);
/// How long the daemon waits before it accepts again where it has no descriptor left.
pub(super) const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// Tokens of the set of descriptors; clients have their numbers from [`FIRST_CLIENT`] on.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const COMPILED: u64 = 2;
const LOOKED: u64 = 3;
pub(super) const STORE: u64 = 4;
const FIRST_CLIENT: u32 = 5;
/// Those of clients' processes begin here, behind those of machines.
const PROCESSES: u64 = 1 << 47;
/// Those of fenced processes begin here.
const FENCED: u64 = 1 << 48;
/// The most processes that are watched when they are fenced. Of others, lines stay taken for good,
/// which costs new senders a place, and nobody its memory.
const FENCED_MOST: usize = 1024;

/// How to serve a card.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Where to listen. `None`: at the user's usual place.
    pub socket: Option<PathBuf>,
    /// Who may attach.
    pub policy: Policy,
    /// Compiles the modules of clients. `None`: they are refused.
    pub loader: Option<Loader>,
}

/// Why a card cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no usual place.
    #[error("there is no folder for the socket: name one (--socket), or set XDG_RUNTIME_DIR")]
    NoPlace,
    /// Another daemon listens there.
    #[error(
        "a daemon listens at {0} already: use it, or end it, or name another socket (--socket)"
    )]
    Taken(PathBuf),
    /// Something else is there.
    #[error("{0} is there and is no socket: name another path")]
    NoSocket(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket that the system has passed is none to listen on.
    #[error("the socket that was passed (LISTEN_FDS) is no Unix socket of sequenced packets")]
    Passed,
    /// The device serves other processes already.
    #[error("the device serves other processes already")]
    Serving,
    /// The system is short of descriptors or memory.
    #[error("cannot serve the card: {0}")]
    System(#[from] io::Error),
}

/// A card that serves other processes.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use std::thread;
///
/// use remora::daemon::{Server, ServerOptions};
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("remora-server-{}.sock", std::process::id());
/// # let socket = std::env::temp_dir().join(name);
/// let card = DeviceOptions::new().embedded().open()?;
/// let options = ServerOptions { socket: Some(socket.clone()), ..ServerOptions::default() };
/// let mut server = Server::new(card, options)?;
/// // It serves until the other end of this is closed.
/// let (open, stop) = UnixStream::pair()?;
/// let serving = thread::spawn(move || server.run(&stop));
///
/// // Any number of programs, this one among them, open devices that use the card.
/// let device = DeviceOptions::new().attach(&socket).open()?;
/// assert!(device.is_attached());
///
/// drop(device);
/// drop(open);
/// serving.join().expect("the server does not panic")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    pub(super) device: Device,
    listener: OwnedFd,
    /// The socket's file, if this server has made it.
    path: Option<PathBuf>,
    pub(super) policy: Policy,
    pub(super) poll: OwnedFd,
    pub(super) clients: Clients,
    pub(super) sessions: BTreeMap<u32, Session>,
    pub(super) last_session: u32,
    /// Where what outlives this process is kept.
    pub(super) store: Option<FdStore>,
    /// What waits until the store has taken what it was told, if it had no room.
    pub(super) behind_store: Option<Vec<BehindStore>>,
    /// Messages for the store that had waited before the request that is being carried out.
    pub(super) waited_before: u64,
    pub(super) endings: Vec<Ending>,
    pub(super) evicted: Evicted,
    pub(super) arenas: ArenaWatch,
    pub(super) machines: Vec<Machine>,
    pub(super) compiler: Compiler,
    looks: Looks,
    pub(super) closers: Closers,
    /// Processes whose connections the daemon has closed, by the numbers of those.
    fenced: BTreeMap<u32, OwnedFd>,
    pub(super) dma: DmaCards,
    /// No connections are accepted before this time.
    pause_until: Option<Instant>,
}

impl Server {
    /// Makes `device` serve other processes, and listens for them.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn new(device: Device, options: ServerOptions) -> Result<Server, ServeError> {
        let path = match options.socket {
            Some(path) => path,
            None => crate::message::user_socket().ok_or(ServeError::NoPlace)?,
        };
        let listener = listen(&path, SocketType::SEQPACKET, mode(&options.policy))?;
        let options = ServerOptions { socket: Some(path), ..options };
        Server::serve(device, listener, options)
    }

    /// As [`Server::new`], on a socket that the system has made and passed to this process (systemd
    /// does so), instead of one at `options.socket`.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn on(
        device: Device,
        listener: OwnedFd,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        let kind = rustix::net::sockopt::socket_type(&listener).map_err(|_| ServeError::Passed)?;
        let listens = rustix::net::sockopt::socket_acceptconn(&listener) == Ok(true);
        if kind != SocketType::SEQPACKET || !listens {
            return Err(ServeError::Passed);
        }
        rustix::io::ioctl_fionbio(&listener, true).map_err(io::Error::from)?;
        Server::serve(device, listener, ServerOptions { socket: None, ..options })
    }

    pub(super) fn serve(
        device: Device,
        listener: OwnedFd,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        let ServerOptions { socket: path, policy, loader } = options;
        let mut engine = Engine::new()?;
        if policy.shares() {
            engine.pools = Pools::new(device.live.lock().own().nic.config());
        }
        let doorbells = engine.doorbells().try_clone_to_owned()?;
        if device.live.doorbells.set(doorbells).is_err() {
            return Err(ServeError::Serving);
        }
        device.live.lock().own().serve_sessions(engine);
        device.live.background.wake();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        watch(&poll, listener.as_fd(), LISTENER)?;
        let compiler = Compiler::new(loader.unwrap_or(no_loader))?;
        watch(&poll, compiler.event.as_fd(), COMPILED)?;
        let looks = Looks::new()?;
        watch(&poll, looks.event.as_fd(), LOOKED)?;
        let dma = DmaCards::new(policy.cards() as usize);
        Ok(Server {
            device,
            listener,
            path,
            policy,
            poll,
            clients: Clients::new(FIRST_CLIENT),
            sessions: BTreeMap::new(),
            last_session: 0,
            store: None,
            behind_store: None,
            waited_before: 0,
            endings: Vec::new(),
            evicted: Evicted::default(),
            arenas: ArenaWatch::default(),
            machines: Vec::new(),
            compiler,
            looks,
            closers: Closers::default(),
            fenced: BTreeMap::new(),
            dma,
            pause_until: None,
        })
    }

    /// The socket at which the server listens, if it has made it.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Serves until `stop` is readable. Then all clients are told that the card has gone.
    ///
    /// # Errors
    /// The system's set of descriptors fails, which cannot be expected.
    pub fn run(&mut self, stop: &impl AsFd) -> io::Result<()> {
        watch(&self.poll, stop.as_fd(), STOP)?;
        while self.turn()? {}
        epoll::delete(&self.poll, stop)?;
        if let Some(store) = &self.store {
            store.stopping();
        }
        self.clients.iter().for_each(|client| client.dismiss("the daemon was ended"));
        Ok(())
    }

    /// One look at everything, when there is something to do; returns whether to go on.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        self.look(self.timeout())
    }

    /// The same, after so long at the latest.
    pub(super) fn look(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut events = Vec::with_capacity(TURN);
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())
        {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let mut goes_on = true;
        for event in events {
            self.begin_request();
            match event.data.u64() {
                LISTENER => self.accept()?,
                STOP => goes_on = false,
                COMPILED => self.answer_compiled(),
                fenced if fenced >= FENCED => self.forget_fenced(fenced as u32),
                process if process >= PROCESSES => self.note_end(process as u32),
                machine if machine >= MACHINES => self.serve_machine_event(machine),
                LOOKED => self.answer_looked(),
                STORE => self.flush_store(),
                client => self.serve_or_drop(client as u32),
            }
        }
        self.look_at_endings();
        if self.dma.next_try().is_some_and(|at| at <= Instant::now()) {
            self.answer_later();
        }
        self.expire(Instant::now())?;
        for uid in self.dma.take_ended() {
            self.note_granted(uid);
        }
        self.watch_store();
        Ok(goes_on)
    }

    /// How long there is nothing to do but what clients ask for.
    fn timeout(&self) -> Option<Duration> {
        if !self.endings.is_empty() {
            return Some(Duration::ZERO);
        }
        let leases = self.sessions.values().filter_map(|held| held.ends);
        let clients = self.clients.iter();
        let clients =
            clients.flat_map(|client| client.greet_by.into_iter().chain(client.leaves_at));
        let store = self.store.as_ref().and_then(FdStore::gives_up_at);
        let pauses = [self.pause_until, self.next_machine()];
        let others = [store, self.next_arena_watch(), self.dma.next_try()];
        let others = pauses.into_iter().chain(others).flatten();
        let next = leases.chain(clients).chain(others).min()?;
        // A millisecond more, so that the time is over when it is looked at.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            if self.closers.are_full() {
                return self.pause_accepting("too many connections wait to be closed");
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(MessageSocket::accepted(socket)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return self.pause_accepting(&error.to_string()),
            }
        }
        Ok(())
    }

    /// Accepts nobody for a while.
    fn pause_accepting(&mut self, reason: &str) -> io::Result<()> {
        tracing::warn!(reason, "cannot accept a client: others have to go first");
        epoll::delete(&self.poll, &self.listener)?;
        self.pause_until = Some(Instant::now() + NO_DESCRIPTORS);
        Ok(())
    }

    pub(super) fn admit(&mut self, socket: MessageSocket) {
        let peer = match rustix::net::sockopt::socket_peercred(&socket) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "a client that does not say who it is");
                return self.closers.of(None).close_connection(socket);
            }
        };
        let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
        if let Err(refusal) = self.check_admits(uid) {
            socket.send(&encode(&Answer::Farewell(&refusal)), &[]).ok();
            return self.closer(uid).close_connection(socket);
        }
        let number = self.clients.free_number();
        if let Err(error) = watch(&self.poll, socket.as_fd(), number.into()) {
            tracing::warn!(%error, "cannot watch a client");
            return self.closer(uid).close_connection(socket);
        }
        self.clients.add(number, Client::new(socket, (uid, pid), Instant::now() + GREETING));
    }

    /// What closes what a user has sent.
    pub(super) fn closer(&mut self, uid: u32) -> &Closer {
        self.closers.of(Some(uid).filter(|uid| self.policy.check_attach(*uid).is_ok()))
    }

    /// May a user have another connection, on which no greeting has come yet? (A user who may not
    /// attach holds nothing of the daemon's, not even for the time of a greeting.)
    fn check_admits(&self, uid: u32) -> Result<(), String> {
        self.policy.check_attach(uid)?;
        if self.clients.ungreeted(uid) >= UNGREETED {
            return Err("the user has too many connections on which no greeting has come".into());
        }
        Ok(())
    }

    /// Does not look at a client until [`Server::resume`], so that what it asks for waits. Its end
    /// does not: what it may wait for can take for ever.
    pub(super) fn pause(&mut self, number: u32) {
        let Some(client) = self.clients.get(number) else { return };
        client.waits = true;
        if let Some(descriptor) = client.descriptor() {
            // (The end is told whether it is asked for or not.)
            let only_the_end = epoll::EventFlags::empty();
            let data = epoll::EventData::new_u64(number.into());
            epoll::modify(&self.poll, descriptor, data, only_the_end).ok();
        }
    }

    /// Looks at a client again.
    pub(super) fn resume(&mut self, number: u32) {
        let Some(client) = self.clients.get(number) else { return };
        client.waits = false;
        if let Some(descriptor) = client.descriptor() {
            let data = epoll::EventData::new_u64(number.into());
            epoll::modify(&self.poll, descriptor, data, epoll::EventFlags::IN).ok();
        }
    }

    /// Something of a client has come: requests, or the end of one that waits.
    fn serve_or_drop(&mut self, number: u32) {
        match self.clients.get(number) {
            Some(client) if client.waits => self.drop_client(number, None),
            _ => self.serve_client(number),
        }
    }

    /// Answers some requests of a client.
    fn serve_client(&mut self, number: u32) {
        let mut message = Vec::new();
        for _ in 0..REQUESTS {
            let Some(client) = self.clients.get(number).filter(|client| !client.waits) else {
                return;
            };
            let Line::Socket(socket) = &client.line else { return };
            let (uid, mut descriptors) = (client.uid, Vec::new());
            if self.looks.is_full_for(uid, number) {
                return self.pause(number);
            }
            let came = socket.receive_with(&mut message, &mut descriptors);
            let is_done = matches!(came, Ok(true));
            match came {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => self.drop_client(number, Some(&error.to_string())),
                Ok(false) => self.drop_client(number, None),
                Ok(true) => {}
            }
            if !is_done {
                return self.closer(uid).close(descriptors);
            }
            if !descriptors.iter().all(is_plain) {
                let (client, work) = (number, None);
                return self.have_looked_at(Parcel { client, uid, message, descriptors, work });
            }
            self.take(number, &message, descriptors);
        }
    }

    /// Answers one message of a client, if that is still there.
    fn take(&mut self, number: u32, message: &[u8], descriptors: Vec<OwnedFd>) {
        self.begin_request();
        let Some(client) = self.clients.get(number) else { return };
        let then = match client.greet_by {
            None => self.answer(number, message, descriptors),
            Some(_) => self.greet(number, message),
        };
        if let Then::Drop(reason) = then {
            self.drop_client(number, Some(&reason));
        }
    }

    /// Serves a client no further until another thread has looked at its descriptors. (It may have
    /// gone: then these are closed there.)
    fn have_looked_at(&mut self, parcel: Parcel) {
        self.pause(parcel.client);
        if let Err(client) = self.looks.add(parcel) {
            self.drop_client(client, Some("the daemon has no thread to look at descriptors"));
        }
    }

    /// Has another thread do something for a message, which is looked at behind that.
    pub(super) fn have_done(
        &mut self,
        client: u32,
        uid: u32,
        message: Vec<u8>,
        work: Box<dyn FnOnce() + Send>,
    ) {
        let (descriptors, work) = (Vec::new(), Some(work));
        self.have_looked_at(Parcel { client, uid, message, descriptors, work });
    }

    /// Goes on with clients whose descriptors were looked at.
    fn answer_looked(&mut self) {
        self.looks.event.drain().ok();
        while let Some(Looked { parcel, had_no_room, lost }) = self.looks.next() {
            had_no_room.into_iter().for_each(|number| self.resume(number));
            for client in lost {
                self.drop_client(client, Some("the daemon has no thread to look at descriptors"));
            }
            let Parcel { client, uid, message, descriptors, .. } = parcel;
            // Names that the answer does not keep are not closed in this thread, either.
            let names = descriptors.iter().filter(|file| is_name(file));
            let names: Vec<_> = names.map(OwnedFd::try_clone).collect();
            self.resume(client);
            self.take(client, &message, descriptors);
            self.closer(uid).close(names);
        }
    }

    /// Ends a client's connection. Its session ends, too, unless it is kept.
    pub(super) fn drop_client(&mut self, number: u32, reason: Option<&str>) {
        let Some(client) = self.clients.remove(number) else { return };
        if let Some(reason) = reason {
            client.dismiss(reason);
        }
        unwatch(&self.poll, &client);
        self.dma.end(number);
        self.compiler.forget(number);
        let (session, process) = (client.session, self.part_with(client));
        if let Some(session) = session {
            self.end_passes_of(session);
            // One that was sent away may be within others' memory as long as its process lives.
            match process.filter(|_| reason.is_some() && self.has_sent(number)) {
                Some(process) => self.watch_fenced(number, process),
                None => self.forget_sender(number),
            }
        }
        let Some(held) = session.and_then(|session| self.sessions.get_mut(&session)) else {
            return;
        };
        // A client that was fenced has lost the session, and one that has joined it leaves it.
        if held.client != Some(number) {
            return;
        }
        if let Some(heir) = self.clients.of_session(held.number).first().copied() {
            held.client = Some(heir);
            held.pid = self.clients.get(heir).map_or(held.pid, |client| client.pid);
            return;
        }
        let session = held.number;
        match held.leave(Instant::now()) {
            Left::Ends => self.end_session(session),
            Left::Kept => self.take_posted(session),
        }
    }

    /// Closes a client's connection; returns the process that has connected, if it is not known to
    /// have ended.
    fn part_with(&mut self, client: Client) -> Option<OwnedFd> {
        let Client { line, process, uid, .. } = client;
        if let Line::Socket(socket) = line {
            self.closer(uid).close_connection(socket);
        }
        process
    }

    /// Takes what a client has posted that may have been killed before it rang the doorbells.
    fn take_posted(&self, session: u32) {
        let Some(slot) = self.sessions.get(&session).map(|held| held.slot) else { return };
        self.device.live.command_own(|driver| {
            let objects = driver.engine.as_deref().map(|engine| engine.objects.of(slot));
            for object in objects.into_iter().flatten() {
                match object {
                    Object::Qp(qpn) => driver.take_posted(qpn),
                    Object::Srq(srq) => driver.take_posted_srq(slot, srq),
                    _ => {}
                }
            }
        });
    }

    /// Waits for the end of a process that has a session which outlives it: a child that has its
    /// connection, too, hides that end. (Another session stays such a child's, as an open device
    /// does: a program may go on in a child that uses the card much later.)
    pub(super) fn watch_process(&mut self, number: u32) {
        let Some(client) = self.clients.get(number) else { return };
        let held = client.session.and_then(|session| self.sessions.get(&session));
        let is_kept = held.is_some_and(|held| held.keep != Keep::No);
        let Some(process) = client.process().filter(|_| is_kept) else { return };
        if let Err(error) = watch(&self.poll, process, PROCESSES + u64::from(number)) {
            tracing::warn!(%error, "the end of a client is its connection's only");
        }
    }

    /// A client's process has ended. Another one may have its session by then, or have it soon: a
    /// child that uses it.
    fn note_end(&mut self, number: u32) {
        let Some(client) = self.clients.get(number) else { return };
        client.leaves_at = Some(Instant::now() + CHILDREN);
        if let Some(process) = client.process() {
            epoll::delete(&self.poll, process).ok();
        }
    }

    /// Waits for the end of a process whose connection the daemon has closed.
    fn watch_fenced(&mut self, number: u32, process: OwnedFd) {
        if self.fenced.len() >= FENCED_MOST {
            return tracing::warn!("too many processes are fenced to wait for the end of another");
        }
        match watch(&self.poll, process.as_fd(), FENCED + u64::from(number)) {
            Ok(()) => _ = self.fenced.insert(number, process),
            Err(error) => tracing::warn!(%error, "cannot wait for the end of a process"),
        }
    }

    /// A process has ended whose connection the daemon had closed.
    fn forget_fenced(&mut self, number: u32) {
        if let Some(process) = self.fenced.remove(&number) {
            epoll::delete(&self.poll, process).ok();
            self.forget_sender(number);
        }
    }

    /// Ends a session, which no client can reach from now on.
    pub(super) fn end_session(&mut self, session: u32) {
        self.end_passes_of(session);
        if let Some(held) = self.sessions.remove(&session) {
            tracing::info!(session, name = held.name, "the session ends");
            self.forget(&held);
            self.endings.push(Ending::new(held.slot));
        }
    }

    /// Destroys some of what sessions have left, and welcomes those who wait for that.
    pub(super) fn look_at_endings(&mut self) {
        self.end_some();
        self.welcome_those_that_wait();
    }

    /// Destroys some of what sessions have left.
    fn end_some(&mut self) {
        let (device, mut remains) = (&self.device, Vec::new());
        self.endings.retain_mut(|ending| {
            let has_gone = device.live.command_own(|driver| ending.step(driver));
            remains.extend(ending.remains.take());
            !has_gone
        });
        for of in remains {
            self.closer(of.user.uid).close(of);
        }
    }

    /// Ends a session, and returns when nothing of it is on the card.
    pub(super) fn end_session_now(&mut self, session: u32) {
        let Some(slot) = self.sessions.get(&session).map(|held| held.slot) else { return };
        self.end_session(session);
        while self.endings.iter().any(|ending| ending.is_of(slot)) {
            self.end_some();
        }
    }

    /// Ends what has had its time.
    fn expire(&mut self, now: Instant) -> io::Result<()> {
        let over = self.sessions.values().filter(|held| held.is_over(now));
        for session in over.map(|held| held.number).collect::<Vec<_>>() {
            self.end_session(session);
        }
        self.end_overgrown(now);
        for number in self.clients.late(now) {
            self.drop_client(number, Some("no greeting came: this is no client of a card"));
        }
        for number in self.clients.without_process(now) {
            self.drop_client(number, None);
        }
        if self.store.as_ref().and_then(FdStore::gives_up_at).is_some_and(|at| at <= now) {
            self.flush_store();
        }
        if self.pause_until.is_some_and(|until| until <= now) {
            self.pause_until = None;
            watch(&self.poll, self.listener.as_fd(), LISTENER)?;
        }
        self.accept_waiting_machines(now);
        Ok(())
    }

    /// Are sessions being ended?
    pub(super) fn is_ending(&self) -> bool {
        !self.endings.is_empty()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let machines = self.machines.iter().map(Machine::path);
        for path in self.path.as_deref().into_iter().chain(machines) {
            fs::remove_file(path).ok();
        }
        // What is in the store stays there.
        self.store = None;
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end_session(session);
        }
        while self.is_ending() {
            self.end_some();
        }
        for client in self.clients.take_all() {
            self.part_with(client);
        }
    }
}

/// Has a descriptor watched, for what can be read.
pub(super) fn watch(poll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(token);
    Ok(epoll::add(poll, fd, data, epoll::EventFlags::IN)?)
}

/// Has a client's descriptors, those that it has, watched no more.
fn unwatch(poll: &OwnedFd, client: &Client) {
    for descriptor in client.descriptor().into_iter().chain(client.process()) {
        epoll::delete(poll, descriptor).ok();
    }
}

/// The rights to the file of a socket for those whom the policy admits.
pub(super) fn mode(policy: &Policy) -> u32 {
    if policy.shares() { 0o666 } else { 0o600 }
}

fn is_socket(path: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.file_type().is_socket())
}

/// Makes a socket at `path`, which only those may use whom `mode` admits.
pub(super) fn listen(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, ServeError> {
    let failed = |source| ServeError::Listen { path: path.into(), source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    match socket().and_then(|tried| rustix::net::connect(&tried, &address)) {
        // The other one has as many that wait as can.
        Ok(()) | Err(Errno::AGAIN) => return Err(ServeError::Taken(path.into())),
        // What a daemon has left that was killed. (Files that are no sockets refuse as well.)
        Err(Errno::CONNREFUSED) if is_socket(path).map_err(failed)? => {
            fs::remove_file(path).map_err(failed)?;
        }
        Err(Errno::CONNREFUSED) => return Err(ServeError::NoSocket(path.into())),
        Err(_) => {}
    }
    let made = || -> io::Result<OwnedFd> {
        let socket = socket()?;
        rustix::net::bind(&socket, &address)?;
        // Nobody can connect before this process listens.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    made().map_err(failed)
}
