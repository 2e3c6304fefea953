//! A thread that serves: one `epoll`, and the connections that it has accepted.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use crate::front::bell::Bell;
use crate::front::clients::Ends;
use crate::front::connection::{Connection, Fate, Parked, Spares};
use crate::front::keyspace::Awaited;
use crate::front::server_state::{ServerState, Turn};
use crate::stats::Way;

/// Events that one turn takes.
const EVENTS: usize = 256;
/// Connections that one turn accepts.
const ACCEPTS: usize = 64;
/// Bytes of replies after which they are sent, though other connections have not had their turns;
/// and bytes of replies that wait for the log, after which no more connections have turns.
const ANSWERED_BYTES: usize = 16 << 20;
/// How often a thread looks around when nothing comes, in ms.
const TICK_MS: u64 = 100;
/// How soon a connection that waits for other nodes looks again, in ms.
const SOON_MS: u64 = 1;
/// How often idle and unwanted connections are looked for, in ms.
const CHECK_MS: u64 = 1000;

/// What an event is about: a number beside the connections' own.
const BELL: u64 = u64::MAX;
const LISTENER: u64 = 1 << 40;
/// Plus a connection's number: the node to which it is relayed.
const RELAY: u64 = 1 << 41;

/// A socket that waits for connections.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) way: Way,
}

/// A thread's own state.
pub(crate) struct Worker {
    epoll: OwnedFd,
    bell: Arc<Bell>,
    listeners: Vec<Listener>,
    /// Since when listeners are left alone, as there are no descriptors left, in ms.
    full_since_ms: Option<u64>,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    spares: Spares,
    turn: Turn,
    /// Connections that had a turn and have to send.
    touched: Vec<usize>,
    /// Bytes of replies that these have.
    answered: usize,
    /// The first and the last of the connections whose replies wait for the log, in the order in
    /// which they began to: each knows the ones beside it.
    parked: Option<(usize, usize)>,
    /// Those of them that had their turns since the log was told last how far it is waited for.
    fresh: Vec<usize>,
    /// The bytes of these replies.
    parked_bytes: usize,
    /// Connections that have more to do at once.
    again: BTreeSet<usize>,
    /// Connections that have more to do when a pause has ended.
    later: BTreeSet<usize>,
    /// Connections that look again a moment later.
    soon: BTreeSet<usize>,
    /// Whether the pause that those wait for is of all commands.
    is_whole_pause: bool,
    checked_ms: u64,
}

impl Worker {
    pub(crate) fn new(
        server: Arc<ServerState>,
        bell: Arc<Bell>,
        listeners: Vec<Listener>,
    ) -> io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // (Each ring wakes the thread once, which need not read it.)
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*bell, epoll::EventData::new_u64(BELL), flags)?;
        if server.keeper.is_awaited() {
            let bell = bell.clone();
            server.keeper.listen(Box::new(move || bell.ring()));
        }
        let worker = Worker {
            epoll,
            bell,
            listeners,
            full_since_ms: None,
            slots: Vec::new(),
            free: Vec::new(),
            spares: Spares::default(),
            turn: Turn::new(server),
            touched: Vec::new(),
            answered: 0,
            parked: None,
            fresh: Vec::new(),
            parked_bytes: 0,
            again: BTreeSet::new(),
            later: BTreeSet::new(),
            soon: BTreeSet::new(),
            is_whole_pause: false,
            checked_ms: 0,
        };
        worker.listen(true)?;
        Ok(worker)
    }

    /// Hears of new connections, or does not.
    fn listen(&self, wanted: bool) -> io::Result<()> {
        for (index, listener) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(LISTENER + index as u64);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            let changed = match wanted {
                true => epoll::add(&self.epoll, &*listener.socket, data, flags),
                false => epoll::delete(&self.epoll, &*listener.socket),
            };
            // (An earlier try may have come as far as this one.)
            if !matches!(changed, Err(Errno::EXIST | Errno::NOENT)) {
                changed?;
            }
        }
        Ok(())
    }

    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.turn.server.is_stopping.load(Relaxed) {
            let may_sleep = self.again.is_empty() && self.bell.may_sleep();
            let wait_ms = if may_sleep { self.tick_ms() } else { 0 };
            let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms as i64 * 1_000_000 };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    // Only a mistake of this file leads here: its own descriptor is wrong.
                    panic!("epoll_wait: {errno}");
                }
            }
            self.bell.hear();
            self.turn.begin();
            self.end_pause();
            self.again.extend(&self.soon);
            for event in &events {
                self.hear(event.data.u64(), event.flags);
            }
            for slot in std::mem::take(&mut self.again) {
                self.carry_out(slot);
            }
            self.answer();
            self.check();
        }
        for slot in 0..self.slots.len() {
            self.end(slot);
        }
    }

    /// How long a thread waits when nothing comes.
    fn tick_ms(&self) -> u64 {
        if !self.soon.is_empty() {
            return SOON_MS;
        }
        if self.later.is_empty() {
            return TICK_MS;
        }
        TICK_MS.min(self.turn.server.pause.left(self.turn.now).0)
    }

    /// Has connections go on that have waited for a pause which is over, or of which they are no
    /// part any more.
    fn end_pause(&mut self) {
        let (left_ms, is_whole) = self.turn.server.pause.left(self.turn.now);
        let was_whole = std::mem::replace(&mut self.is_whole_pause, is_whole);
        if left_ms == 0 || was_whole != is_whole {
            self.again.extend(&self.later);
            self.turn.server.pause.forget(self.turn.now);
        }
    }

    /// Notes whether a connection waits for the end of a pause, or for other nodes.
    fn hold_back(&mut self, slot: usize, fate: Fate) {
        let held_back = &self.turn.server.held_back;
        for (waiting, waits) in
            [(&mut self.later, fate == Fate::Later), (&mut self.soon, fate == Fate::Soon)]
        {
            match waits {
                true if waiting.insert(slot) => _ = held_back.fetch_add(1, Relaxed),
                false if waiting.remove(&slot) => _ = held_back.fetch_sub(1, Relaxed),
                _ => {}
            }
        }
    }

    /// Whether a connection waits for something else than its client.
    fn waits(&self, slot: usize) -> bool {
        let is_parked = |connection: &Connection| connection.parked.is_some();
        self.later.contains(&slot)
            || self.soon.contains(&slot)
            || self.slots[slot].as_ref().is_some_and(is_parked)
    }

    fn hear(&mut self, what: u64, flags: epoll::EventFlags) {
        if what == BELL {
            // Whatever it is about, each turn looks.
        } else if what >= RELAY {
            self.carry_out((what - RELAY) as usize);
        } else if what >= LISTENER {
            self.accept((what - LISTENER) as usize);
        } else {
            let slot = what as usize;
            let is_gone = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            let reads = |held: &Connection| held.interest.contains(epoll::EventFlags::IN);
            if is_gone && !self.slots.get(slot).and_then(Option::as_ref).is_some_and(reads) {
                self.end(slot);
            } else if flags.contains(epoll::EventFlags::OUT) {
                self.touched.push(slot);
            } else {
                self.carry_out(slot);
            }
        }
    }

    fn carry_out(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        if connection.parked.is_some() {
            // What has come stays where it is until the replies before it are sent.
            return self.watch(slot, epoll::EventFlags::empty());
        }
        if connection.client.kill.load(Relaxed) {
            // What was answered before may go yet.
            return self.touched.push(slot);
        }
        let before = std::mem::take(&mut self.turn.version);
        connection.turn(&mut self.turn, &mut self.spares);
        self.answered += connection.unsent();
        let version = self.turn.version;
        self.turn.version = version.max(before);
        match version > 0 && self.turn.server.keeper.is_awaited() {
            true => self.park(slot, version),
            false => self.touched.push(slot),
        }
        if self.answered > ANSWERED_BYTES {
            self.answer();
        }
    }

    /// Has a connection's replies wait until all changes up to `version` are kept.
    fn park(&mut self, slot: usize, version: u64) {
        // (It waits from when the log is told: see `settle_fresh`.)
        let (since, from) = (self.turn.since, self.turn.begun());
        let (first, before) = self.parked.map_or((slot, None), |(first, last)| (first, Some(last)));
        self.parked = Some((first, slot));
        if let Some(last) = before.and_then(|last| self.parked_at(last)) {
            last.after = Some(slot);
        }
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        let (bytes, awaited) = (connection.unsent(), Awaited { version, since, from });
        connection.parked = Some(Parked { awaited, bytes, before, after: None });
        self.parked_bytes += bytes;
        self.fresh.push(slot);
        self.turn.counts.durability_waits.add(1);
    }

    /// What a connection waits for, if it does.
    fn parked_at(&mut self, slot: usize) -> Option<&mut Parked> {
        self.slots.get_mut(slot)?.as_mut()?.parked.as_mut()
    }

    /// A connection waits no more.
    fn unpark(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        let Some(Parked { bytes, before, after, .. }) = connection.parked.take() else { return };
        self.parked_bytes -= bytes;
        if let Some(parked) = before.and_then(|before| self.parked_at(before)) {
            parked.after = after;
        }
        if let Some(parked) = after.and_then(|after| self.parked_at(after)) {
            parked.before = before;
        }
        self.parked = self.parked.and_then(|(first, last)| {
            let first = if first == slot { after? } else { first };
            Some((first, if last == slot { before? } else { last }))
        });
    }

    /// Lets the log know how far it is waited for, and sends the turn's replies that do not wait,
    /// and those from before that wait no more.
    fn answer(&mut self) {
        let version = std::mem::take(&mut self.turn.version);
        if version > 0 && self.turn.server.keeper.is_awaited() {
            self.turn.server.keeper.hasten(version);
        }
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            self.send(slot);
        }
        self.touched = touched;
        self.answered = 0;
        // (What the log has kept at once has rung here.)
        self.bell.hear();
        self.settle_fresh();
        self.settle();
        while self.parked_bytes > ANSWERED_BYTES && !self.turn.server.is_stopping.load(Relaxed) {
            self.sleep_until_rung();
            self.settle();
        }
    }

    /// Sends the replies of this turn whose changes are kept already: they stand behind nobody's.
    /// The others wait from now on, however long the turn was.
    fn settle_fresh(&mut self) {
        let from = Instant::now();
        let mut fresh = std::mem::take(&mut self.fresh);
        for slot in fresh.drain(..) {
            // (A connection may have ended meanwhile.)
            if let Some(parked) = self.parked_at(slot) {
                parked.awaited.from = from;
                self.try_to_settle(slot);
            }
        }
        self.fresh = fresh;
    }

    /// Sends the replies that wait no more, or what is said instead of them.
    fn settle(&mut self) {
        while self.parked.is_some_and(|(first, _)| self.try_to_settle(first)) {}
    }

    /// Sends the replies of a connection, or what is said instead of them, if these wait no more;
    /// whether that is so.
    fn try_to_settle(&mut self, slot: usize) -> bool {
        let Some(Parked { awaited, .. }) = self.parked_at(slot).copied() else { return false };
        let kept = self.turn.server.keeper.is_kept(&awaited);
        if kept == Ok(false) {
            return false;
        }
        self.unpark(slot);
        if let (Err(reason), Some(connection)) = (kept, &mut self.slots[slot]) {
            connection.disown(&reason);
        }
        self.send(slot);
        true
    }

    /// Sleeps until another thread has news, or for a tick.
    fn sleep_until_rung(&self) {
        if self.bell.may_sleep() {
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK_MS as i64 * 1_000_000 };
            // However it ends, the caller looks what there is.
            let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], Some(&tick));
            self.bell.clear();
        }
        self.bell.hear();
    }

    /// Sends a connection's replies, unless these wait.
    fn send(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        if connection.parked.is_some() {
            return;
        }
        let fate = connection.send(&mut self.turn, &mut self.spares);
        self.hold_back(slot, fate);
        let flags = match fate {
            Fate::Ends => return self.end(slot),
            Fate::Later | Fate::Soon => epoll::EventFlags::empty(),
            Fate::Again => {
                self.again.insert(slot);
                epoll::EventFlags::empty()
            }
            Fate::Waits(flags) => flags,
        };
        self.watch(slot, flags);
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        if connection.watch_relay(&self.epoll, RELAY + slot as u64).is_err() {
            self.end(slot);
        }
    }

    /// Has `epoll` tell when a connection's socket can do this.
    fn watch(&mut self, slot: usize, flags: epoll::EventFlags) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else { return };
        if connection.interest == flags {
            return;
        }
        connection.interest = flags;
        let data = epoll::EventData::new_u64(slot as u64);
        if epoll::modify(&self.epoll, connection.socket(), data, flags).is_err() {
            self.end(slot);
        }
    }

    fn accept(&mut self, index: usize) {
        let Listener { socket, way } = self.listeners[index].clone();
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(&*socket, flags) {
                Ok(accepted) => self.welcome(accepted, way),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Others wait until descriptors are given back: see `check`.
                    self.full_since_ms = self.listen(false).is_ok().then_some(self.turn.now);
                    return;
                }
                // The peer has gone already.
                Err(_) => {}
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, way: Way) {
        let server = self.turn.server.clone();
        let ends = Ends {
            peer: shown(rustix::net::getpeername(&socket)),
            local: shown(rustix::net::getsockname(&socket).map(Some)),
            descriptor: socket.as_raw_fd(),
        };
        // Replies are written whole: waiting for more only costs time. It works without, too.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let most = server.settings.max_clients.load(Relaxed);
        let Some(client) = server.clients.join(way, ends, self.turn.now, most) else {
            self.turn.counts.connections_refused.add(1);
            let text: &[u8] = match way {
                Way::Memcached => b"ERROR Too many open connections\r\n",
                _ => b"-ERR max number of clients reached\r\n",
            };
            // The connection is closed in any case.
            let _ = rustix::net::send(&socket, text, rustix::net::SendFlags::NOSIGNAL);
            return;
        };
        self.turn.counts.connections.add(1);
        let connection = Connection::new(socket, client, &server);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let data = epoll::EventData::new_u64(slot as u64);
        let added = epoll::add(&self.epoll, connection.socket(), data, epoll::EventFlags::IN);
        self.slots[slot] = Some(connection);
        if added.is_err() {
            self.end(slot);
        }
    }

    fn end(&mut self, slot: usize) {
        self.unpark(slot);
        if let Some(mut connection) = self.slots.get_mut(slot).and_then(Option::take) {
            connection.leave(&self.turn.server);
            self.free.push(slot);
            self.again.remove(&slot);
            self.hold_back(slot, Fate::Ends);
        }
    }

    /// Ends connections that are idle or unwanted, once a second.
    fn check(&mut self) {
        let now = self.turn.now;
        if self.full_since_ms.is_some_and(|since| now.abs_diff(since) >= TICK_MS) {
            self.full_since_ms = self.listen(true).is_err().then_some(now);
        }
        if now.abs_diff(self.checked_ms) < CHECK_MS {
            return;
        }
        self.checked_ms = now;
        let idle_s = self.turn.server.settings.idle_s.load(Relaxed);
        let keeper = &self.turn.server.keeper;
        let serves = !keeper.is_elsewhere();
        let primary = keeper.relays_to();
        // A primary that hangs does not say that it is none any more.
        let is_old = |to| serves || primary.is_some_and(|primary| primary != to);
        for slot in 0..self.slots.len() {
            let Some(connection) = &self.slots[slot] else { continue };
            let is_stale = connection.relayed_to().is_some_and(is_old);
            if connection.client.kill.load(Relaxed) || is_stale {
                self.end(slot);
            } else if !self.waits(slot) && connection.is_idle(now, idle_s) {
                self.turn.counts.connections_idle.add(1);
                self.end(slot);
            }
        }
    }
}

fn shown(address: rustix::io::Result<Option<rustix::net::SocketAddrAny>>) -> String {
    let address = address.ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(String::new, |address| address.to_string())
}
