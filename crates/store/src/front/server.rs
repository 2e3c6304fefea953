//! Sockets and threads.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use remora::threads::without_signals;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use thiserror::Error;

use crate::front::bell::Bell;
use crate::front::clients::CLIENTS_MAX;
use crate::front::keyspace::{Keeper, Keyspace};
use crate::front::server_state::{FIRST, MEMCACHED, ServerState};
use crate::front::worker::{Listener, Worker};
use crate::stats::{Stats, Way};

/// How many connections wait to be accepted.
const BACKLOG: i32 = 4096;
/// The most threads.
const MOST_THREADS: usize = 64;

/// What a server is to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Redis' clients are served.
    pub redis: Vec<SocketAddr>,
    /// Where memcached's clients are served.
    pub memcached: Vec<SocketAddr>,
    /// How many threads serve.
    pub threads: usize,
    /// The password: Redis' clients give it with `AUTH`, memcached's as SASL's PLAIN or in a first
    /// `set`. Without one, only this machine is served.
    pub password: Option<String>,
    /// memcached's clients see Redis' database 0.
    pub is_shared: bool,
    /// The most connections.
    pub max_clients: u64,
    /// Where what happens is counted.
    pub stats: Arc<Stats>,
}

impl Options {
    /// The tablespace whose items are traced: memcached's clients may ask when they were used last.
    pub(crate) fn traced(&self) -> Option<&'static str> {
        let name = if self.is_shared { FIRST } else { MEMCACHED };
        (!self.memcached.is_empty()).then_some(name)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            redis: Vec::new(),
            memcached: Vec::new(),
            threads: 1,
            password: None,
            is_shared: false,
            max_clients: CLIENTS_MAX,
            stats: Arc::default(),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Others than this machine could come in.
    #[error(
        "{0} can be reached from other machines, so a password is required: give one, or serve on \
         127.0.0.1"
    )]
    Open(SocketAddr),
    /// The number of threads makes no sense.
    #[error("{0} threads cannot serve: between 1 and {MOST_THREADS} can")]
    Threads(usize),
    /// The address cannot be had.
    #[error("cannot listen on {address} for {front}’s clients: {source}{}", advice(source, front))]
    Listen {
        /// Whose clients were to be served there.
        front: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The system gives no thread, or no event queue.
    #[error("cannot start a thread that serves: {0}; if there is a limit on processes, raise it")]
    Thread(#[source] io::Error),
}

/// What a person can do about an address that cannot be had, behind the system's reason.
fn advice(source: &io::Error, front: &str) -> String {
    let option = front.to_lowercase();
    let other = format!("--{option} ADDR:PORT of `remora store serve`");
    match source.kind() {
        io::ErrorKind::AddrInUse => format!(
            "; another server has this port (`ss -ltnp` shows it): stop it, or choose another \
             port by {other}"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("; choose an address of this machine (`ip address` lists them) by {other}")
        }
        io::ErrorKind::PermissionDenied => format!("; choose a port from 1024 on by {other}"),
        _ => String::new(),
    }
}

/// A server. Dropping it ends all connections.
#[derive(Debug)]
pub struct Server {
    state: Arc<ServerState>,
    redis: Vec<SocketAddr>,
    memcached: Vec<SocketAddr>,
    threads: Vec<(JoinHandle<()>, Arc<Bell>)>,
}

impl Server {
    /// Begins to serve.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(
        options: &Options,
        keyspace: Arc<dyn Keyspace>,
        keeper: Arc<dyn Keeper>,
    ) -> Result<Server, ServeError> {
        if !(1..=MOST_THREADS).contains(&options.threads) {
            return Err(ServeError::Threads(options.threads));
        }
        let all = || options.redis.iter().chain(&options.memcached);
        let public = all().find(|address| !is_loopback(address.ip()));
        let has_password = options.password.as_ref().is_some_and(|word| !word.is_empty());
        if let (Some(address), false) = (public, has_password) {
            return Err(ServeError::Open(*address));
        }
        if let Some(name) = options.traced() {
            keyspace.trace(name);
        }
        let mut state = ServerState::new(keyspace, keeper, options.threads, options.is_shared);
        state.stats = options.stats.clone();
        state.settings.set_password(options.password.clone());
        state.settings.max_clients.store(options.max_clients, Relaxed);
        state.is_public.store(public.is_some(), Relaxed);
        // With fewer descriptors, connections wait until others end: see `Worker::accept`.
        state.allow_clients(options.max_clients);
        let (mut listeners, mut bound) = (Vec::new(), [Vec::new(), Vec::new()]);
        for (index, (addresses, way)) in
            [(&options.redis, Way::Redis), (&options.memcached, Way::Memcached)].iter().enumerate()
        {
            for address in *addresses {
                let front = if *way == Way::Redis { "Redis" } else { "memcached" };
                let (socket, at) = listen(*address).map_err(|source| ServeError::Listen {
                    front,
                    address: *address,
                    source,
                })?;
                listeners.push(Listener { socket: Arc::new(socket), way: *way });
                bound[index].push(at);
            }
        }
        let [redis, memcached] = bound;
        let port = |addresses: &[SocketAddr]| addresses.first().map_or(0, SocketAddr::port);
        // Nobody else has set it: the state is new.
        let _ = state.ports.set((port(&redis), port(&memcached)));
        let mut server = Server { state: Arc::new(state), redis, memcached, threads: Vec::new() };
        for index in 0..options.threads {
            server.start_thread(index, &listeners).map_err(ServeError::Thread)?;
        }
        Ok(server)
    }

    fn start_thread(&mut self, index: usize, listeners: &[Listener]) -> io::Result<()> {
        let bell = Arc::new(Bell::new()?);
        let worker = Worker::new(self.state.clone(), bell.clone(), listeners.to_vec())?;
        let named = std::thread::Builder::new().name(format!("store-front-{index}"));
        let thread = without_signals(|| named.spawn(move || worker.run()))?;
        self.threads.push((thread, bell));
        Ok(())
    }

    /// Where Redis' clients are served, with the ports that were chosen.
    pub fn redis(&self) -> &[SocketAddr] {
        &self.redis
    }

    /// Where memcached's clients are served, with the ports that were chosen.
    pub fn memcached(&self) -> &[SocketAddr] {
        &self.memcached
    }

    /// What all connections share: counts and settings.
    pub fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Whether a client has asked the server to end.
    pub fn is_stopping(&self) -> bool {
        self.state.is_stopping.load(Relaxed)
    }

    /// Ends all connections and threads.
    pub fn stop(&mut self) {
        self.state.is_stopping.store(true, Relaxed);
        for (thread, bell) in self.threads.drain(..) {
            bell.ring();
            // A thread that has panicked has said so; the others end all the same.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, bound))
}
