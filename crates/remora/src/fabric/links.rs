//! The cards of this machine that a card shares rings with, and how it finds them.
//!
//! The first packet to an address of this machine has the card ask there, and meanwhile packets go
//! by UDP. Where no card answers, it asks again after [`AGAIN`], since one may come. If two cards
//! ask each other at once, the question of the lower address counts.
//!
//! # Order
//! What a card has sent by UDP is in the peer's socket when the call returns. So a reader empties
//! its socket once before it takes the first packet from a new ring. When a ring ends, what is in
//! it is taken first. What is lost with a ring that a peer has broken is sent again, as after any
//! loss.
//!
//! # Who wakes whom
//! A thread that is about to sleep says so in all rings, and looks into them once more. All that
//! concerns the links, wake-ups included, makes one descriptor readable ([`Links::fd`]).

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_nic::{Datagram, PayloadRef, Segment, Time, Transmit, TransmitBatch};
use rustix::event::{Timespec, epoll};

use super::rendezvous::{self, Heard, Hello};
use super::ring::{Broken, Consumer, PACKET_MAX, Producer, ROOM};
use super::{FabricCounters, Sleep};
use crate::memory::circle::{SharedMemory, check_sealed, sealed_file};
use crate::memory::{Gather, PageAligned};

/// Bytes of a ring's data: two or three rounds of sending, and little enough to stay in a cache.
const DATA: usize = 1 << 20;
/// The rings of a file: that of the card which has made it to the other, and the way back.
const WAYS: usize = 2;
/// The most links of a card, those that are not settled yet included. Packets to further cards go
/// by UDP.
const LINKS_MAX: usize = 256;
/// The most peers of which it is remembered that there is no ring.
const PEERS_MAX: usize = 4096;
/// The time from one look at the links to the next.
const TEND: Duration = Duration::from_millis(1);
/// The time until a card is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a card may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long packets wait for a peer that takes nothing. Then they are dropped, as the kernel drops
/// packets for which a socket has no room: packets to all other peers wait behind them.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes that are taken from a ring at a time: they are handled while they are in the cache.
const BATCH_BYTES: usize = 64 << 10;
/// Cards that are asked or accepted in one look.
const NEW_MAX: usize = 8;
/// The token of the listening socket; links have their number instead.
const LISTENER: u64 = 0;

/// A descriptor of which the card's [`Links::events`] tell when it is readable.
struct Watched {
    fd: OwnedFd,
    events: Arc<OwnedFd>,
    process: u32,
}

impl Watched {
    fn new(events: &Arc<OwnedFd>, fd: OwnedFd, token: u64) -> io::Result<Watched> {
        epoll::add(&**events, &fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(Watched { fd, events: events.clone(), process: std::process::id() })
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A forked child may keep the descriptor open, and then its end alone is not enough. The
        // child itself leaves the parent's events alone.
        if self.process == std::process::id() {
            epoll::delete(&*self.events, &self.fd).ok();
        }
    }
}

/// A ring each way to another card.
struct Link {
    id: u64,
    peer: IpAddr,
    connection: Watched,
    /// The process at the other end.
    process: Option<Watched>,
    out: Producer,
    into: Consumer,
    /// Packets have an ICRC, since one of the cards captures them.
    sums: bool,
    /// Packets that came before by UDP are to be taken first.
    fresh: bool,
    /// The peer was told that this card sleeps.
    armed: bool,
    /// The other end is closed; what it has sent is still to be taken.
    over: bool,
    broken: Option<Broken>,
    /// Since when the peer has taken nothing, with its ring full.
    full_since: Option<Instant>,
}

/// A link that is not settled yet.
struct Pending {
    id: u64,
    connection: Watched,
    until: Time,
    stage: Stage,
}

enum Stage {
    /// This card has asked.
    Asked { peer: IpAddr, out: SharedMemory, into: SharedMemory },
    /// Another card is about to say who it is.
    Called,
}

/// How a peer of this machine is reached.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By the link with this index.
    Ring(usize),
    /// By UDP; it is asked for a ring after this time, once a packet was sent to it since the last
    /// look.
    Udp { ask_at: Time, wanted: bool },
}

/// What became of a packet for a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    Sent,
    /// The ring is full.
    Full,
    /// The peer has taken nothing for too long: the packet is dropped.
    Dropped,
    /// Its memory could not be read.
    Fault,
    /// The ring is of no use any more.
    Broken,
}

/// Packets that were taken from a ring.
struct Batch {
    bytes: PageAligned,
    /// Where each is, its length and its traffic class.
    packets: Vec<(usize, usize, u8)>,
    from: IpAddr,
}

/// A card's links.
pub(crate) struct Links {
    addr: IpAddr,
    port: u16,
    user: u32,
    /// Addresses of this machine, besides those of loopback.
    own: Vec<IpAddr>,
    sums: bool,
    events: Arc<OwnedFd>,
    listener: Option<Watched>,
    links: Vec<Link>,
    pending: Vec<Pending>,
    peers: HashMap<IpAddr, Way>,
    /// The last destination that was looked up, and the index of its link.
    last: Option<(IpAddr, Option<usize>)>,
    next_id: u64,
    next_look: Time,
    /// The link that is looked into next.
    turn: usize,
    /// Links may have been written to since the last flush.
    unflushed: bool,
    /// Some link is fresh.
    any_fresh: bool,
    batch: Batch,
    pub(super) sleep: Arc<Sleep>,
    pub(super) counters: FabricCounters,
}

impl Links {
    /// The links of the card at `addr` and `port`, on a machine with the addresses `own`. `sums`
    /// says that the card captures packets.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn new(addr: IpAddr, port: u16, own: Vec<IpAddr>, sums: bool) -> io::Result<Links> {
        let events = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let listener = match rendezvous::listener(addr, port) {
            Ok(listener) => Some(Watched::new(&events, listener, LISTENER)?),
            Err(error) => {
                tracing::debug!(%error, "other cards cannot ask this one for a ring");
                None
            }
        };
        Ok(Links {
            addr,
            port,
            user: rustix::process::geteuid().as_raw(),
            own,
            sums,
            events,
            listener,
            links: Vec::new(),
            pending: Vec::new(),
            peers: HashMap::new(),
            last: None,
            next_id: LISTENER + 1,
            next_look: Time::ZERO,
            turn: 0,
            unflushed: false,
            any_fresh: false,
            batch: Batch {
                bytes: PageAligned::new(BATCH_BYTES + ROOM),
                packets: Vec::with_capacity(BATCH_BYTES / 64),
                from: addr,
            },
            sleep: Arc::default(),
            counters: FabricCounters::default(),
        })
    }

    /// Readable when something happens to the links.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    // Sending.

    /// The link by which packets go to `to`.
    #[inline]
    pub(crate) fn way_to(&mut self, to: IpAddr) -> Option<usize> {
        match self.last {
            Some((last, way)) if last == to => way,
            _ => self.find_way(to),
        }
    }

    #[inline(never)]
    fn find_way(&mut self, to: IpAddr) -> Option<usize> {
        let peer = to.to_canonical();
        let here = peer != self.addr && (peer.is_loopback() || self.own.contains(&peer));
        let way = if here { self.way_to_neighbour(peer) } else { None };
        self.last = Some((to, way));
        way
    }

    fn way_to_neighbour(&mut self, peer: IpAddr) -> Option<usize> {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.peers.retain(|_, way| matches!(way, Way::Ring(_)));
        }
        let unknown = Way::Udp { ask_at: Time::ZERO, wanted: false };
        match self.peers.entry(peer).or_insert(unknown) {
            Way::Ring(index) => Some(*index),
            Way::Udp { ask_at, wanted } => {
                *wanted = true;
                // A peer that was never asked is asked in the next step.
                if *ask_at == Time::ZERO {
                    self.next_look = Time::ZERO;
                }
                None
            }
        }
    }

    /// Do packets on a link have an ICRC?
    #[inline]
    pub(crate) fn sums(&self, link: usize) -> bool {
        self.links[link].sums
    }

    /// How many packets the link that was used last has room for.
    pub(super) fn last_room(&mut self) -> Option<usize> {
        let (_, link) = self.last?;
        link.map(|link| self.room(link))
    }

    /// How many packets a link has room for.
    fn room(&mut self, link: usize) -> usize {
        let link = &mut self.links[link];
        match link.out.look() {
            Ok(free) => free / (PACKET_MAX + 64),
            Err(broken) => {
                link.broken = Some(broken);
                0
            }
        }
    }

    /// Copies a packet of `batch` to a link. `ahead` may have bytes of its payload.
    #[inline]
    pub(crate) fn put<'a>(
        &mut self,
        index: usize,
        packet: &'a Transmit,
        batch: &'a TransmitBatch,
        memory: &mut impl Gather,
        ahead: impl Fn(&Segment) -> Option<&'a [u8]>,
    ) -> Put {
        let link = &mut self.links[index];
        let (header, tos) = (packet.header(), packet.path.traffic_class | packet.ecn as u8);
        let place = match link.out.reserve(header.len(), packet.datagram_len(), tos) {
            Ok(Some(place)) => place,
            Ok(None) => return link.full(&mut self.counters),
            Err(broken) => return self.give_up(broken, index),
        };
        let end = link.out.memory().data_len() - 1;
        let mut at = place.at;
        let ring = link.out.memory();
        ring.write(at, header);
        at = (at + header.len()) & end;
        match batch.payload(packet) {
            PayloadRef::Segments(segments) => {
                for segment in segments {
                    let len = segment.len as usize;
                    match ahead(segment) {
                        Some(bytes) => ring.write(at, bytes),
                        None if memory.read_to_shared(segment.addr, len, ring, at).is_err() => {
                            return Put::Fault;
                        }
                        None => {}
                    }
                    at = (at + len) & end;
                }
            }
            PayloadRef::Bytes(bytes) => {
                ring.write(at, bytes);
                at = (at + bytes.len()) & end;
            }
        }
        ring.write(at, &[0; 3][..packet.pad()]);
        link.out.show(place);
        link.full_since = None;
        self.unflushed = true;
        self.counters.tx_packets += 1;
        Put::Sent
    }

    /// Copies whole packets of `segment` bytes, the last of which may be shorter, to a link: all of
    /// them or none.
    pub(super) fn put_group(&mut self, link: usize, tos: u8, segment: usize, bytes: &[u8]) -> Put {
        let most = bytes.len().div_ceil(segment);
        if self.room(link) < most {
            // Asks the peer to say when there is room.
            match self.links[link].out.reserve(0, PACKET_MAX, 0) {
                Ok(_) => return self.links[link].full(&mut self.counters),
                Err(broken) => return self.give_up(broken, link),
            }
        }
        for packet in bytes.chunks(segment) {
            let out = &mut self.links[link].out;
            match out.reserve(packet.len().min(44), packet.len(), tos) {
                Ok(Some(place)) => {
                    out.memory().write(place.at, packet);
                    out.show(place);
                    self.counters.tx_packets += 1;
                }
                Ok(None) => {}
                Err(broken) => return self.give_up(broken, link),
            }
        }
        self.links[link].full_since = None;
        self.unflushed = true;
        Put::Sent
    }

    /// A peer has broken its ring: packets to it go by UDP, and the link is closed at the next look.
    #[cold]
    fn give_up(&mut self, broken: Broken, index: usize) -> Put {
        self.links[index].broken = Some(broken);
        self.leave(index);
        Put::Broken
    }

    /// Packets to the peer of a link go by UDP from now on.
    fn leave(&mut self, index: usize) {
        let peer = self.links[index].peer;
        if matches!(self.peers.get(&peer), Some(Way::Ring(at)) if *at == index) {
            self.peers.insert(peer, Way::Udp { ask_at: Time::ZERO, wanted: false });
        }
        (self.last, self.next_look) = (None, Time::ZERO);
    }

    /// Wakes the peers that sleep, if something was sent to them.
    #[inline]
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            for link in &mut self.links {
                if link.out.must_wake() {
                    rendezvous::wake(link.connection.as_fd());
                }
            }
        }
    }

    // Receiving.

    /// Takes packets of one link; returns how many, and whether they have an ICRC.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<(usize, bool)> {
        let count = self.links.len();
        for _ in 0..count {
            let at = if self.turn < count { self.turn } else { 0 };
            self.turn = at + 1;
            let link = &mut self.links[at];
            if link.fresh || link.into.is_empty() {
                continue;
            }
            let packets = link.take(&mut self.batch);
            if link.broken.is_some() {
                self.leave(at);
            }
            if packets > 0 {
                self.counters.rx_packets += packets as u64;
                return Some((packets, self.links[at].sums));
            }
        }
        None
    }

    /// The packets that were taken.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let Batch { bytes, packets, from } = &self.batch;
        packets.iter().map(|&(start, len, tos)| Datagram {
            src: *from,
            src_port: self.port,
            dst: self.addr,
            ip_id: None,
            tos,
            bytes: &bytes[start..][..len],
        })
    }

    /// Is there a new link, before whose packets the socket must be emptied?
    #[inline]
    pub(super) fn any_fresh(&self) -> bool {
        self.any_fresh
    }

    /// The socket is empty: packets of new links may be taken.
    pub(super) fn socket_is_empty(&mut self) {
        if std::mem::take(&mut self.any_fresh) {
            self.links.iter_mut().for_each(|link| link.fresh = false);
        }
    }

    // Sleeping.

    /// Has the peers wake this card. Returns whether it may sleep: nothing is there to be taken.
    pub(super) fn arm(&mut self) -> bool {
        for link in self.links.iter_mut().filter(|link| !link.armed) {
            link.into.set_asleep(true);
            link.armed = true;
        }
        self.links.iter().all(|link| link.into.is_empty())
    }

    /// Peers need not wake this card any more.
    fn disarm(&mut self) {
        for link in self.links.iter_mut().filter(|link| link.armed) {
            link.into.set_asleep(false);
            link.armed = false;
        }
    }

    // Links come and go.

    /// Is it time to look?
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.next_look || self.sleep.woken.load(Ordering::Relaxed)
    }

    /// Looks at all that has happened to the links. `watched` says that an event loop sleeps on
    /// them.
    #[inline(never)]
    pub(super) fn look(&mut self, now: Time, watched: bool) {
        self.next_look = now + TEND;
        self.last = None;
        self.sleep.woken.store(false, Ordering::Relaxed);
        if !watched && !self.sleep.asleep.load(Ordering::Relaxed) {
            self.disarm();
        }
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 32];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&*self.events, &mut events, Some(&at_once)).unwrap_or(0);
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.accept(now),
                id => self.heard_of(now, id),
            }
        }
        self.pending.retain(|pending| now < pending.until);
        self.ask_all(now);
        self.close();
    }

    fn accept(&mut self, now: Time) {
        for _ in 0..NEW_MAX {
            let Some(listener) = &self.listener else { return };
            let connection = match rendezvous::accept(listener.as_fd()) {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "cannot hear who asks for a ring"),
            };
            if self.links.len() + self.pending.len() >= LINKS_MAX
                || !is_friend(self.user, &connection)
            {
                continue;
            }
            self.add_pending(connection, now + ANSWER, Stage::Called);
        }
    }

    fn add_pending(&mut self, connection: OwnedFd, until: Time, stage: Stage) {
        let id = self.next_id;
        self.next_id += 1;
        if let Ok(connection) = Watched::new(&self.events, connection, id) {
            self.pending.push(Pending { id, connection, until, stage });
        }
    }

    /// Something has happened on the connection with this number.
    fn heard_of(&mut self, now: Time, id: u64) {
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            let ended =
                link.process.as_ref().is_some_and(|process| rendezvous::has_ended(process.as_fd()));
            if ended || rendezvous::is_over(link.connection.as_fd()) {
                link.over = true;
            }
            return;
        }
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else { return };
        match rendezvous::hear(self.pending[at].connection.as_fd()) {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Hello(hello, file)) => {
                let Pending { id, connection, stage, .. } = self.pending.swap_remove(at);
                match stage {
                    Stage::Called => self.answer(id, connection, hello, file),
                    Stage::Asked { peer, out, into } if hello.data as usize == DATA => {
                        self.add(id, connection, peer, (out, into), hello.sums);
                    }
                    Stage::Asked { peer, .. } => self.ask_later(now, peer),
                }
            }
            Ok(Heard::Gone | Heard::Nonsense) | Err(_) => {
                if let Stage::Asked { peer, .. } = self.pending.swap_remove(at).stage {
                    self.ask_later(now, peer);
                }
            }
        }
    }

    /// Answers a card that asks for a ring, and has passed the memory for it.
    fn answer(&mut self, id: u64, connection: Watched, hello: Hello, file: Option<OwnedFd>) {
        let answer = |data: usize| {
            let (addr, port, sums) = (self.addr, self.port, self.sums);
            let hello = Hello { addr, port, sums, data: data as u32 };
            rendezvous::tell(connection.as_fd(), hello, None)
        };
        let peer = hello.addr;
        let here = peer != self.addr && (peer.is_loopback() || self.own.contains(&peer));
        let asked = self.pending.iter().position(
            |pending| matches!(&pending.stage, Stage::Asked { peer: of, .. } if *of == peer),
        );
        // Both have asked: the question of the lower address counts.
        let mine = asked.is_some() && self.addr < peer;
        let maps = file.filter(|_| here && !mine && hello.port == self.port).and_then(|file| {
            if hello.data as usize != DATA {
                return None;
            }
            // The other way round than at the end that has made it.
            map_both(&file, true).inspect_err(refused).ok().map(|(a, b)| (b, a))
        });
        let Some(maps) = maps else {
            // If this fails, the end of the connection says the same.
            let _ = answer(0);
            return;
        };
        if answer(DATA).is_ok() {
            if let Some(at) = asked {
                self.pending.swap_remove(at);
            }
            self.add(id, connection, peer, maps, hello.sums);
        }
    }

    /// A link is settled.
    fn add(
        &mut self,
        id: u64,
        connection: Watched,
        peer: IpAddr,
        (out, into): (SharedMemory, SharedMemory),
        sums: bool,
    ) {
        let pid = rendezvous::neighbour(connection.as_fd()).ok().and_then(|who| who.pid);
        let end = pid.and_then(rendezvous::end_of);
        let process = end.and_then(|end| Watched::new(&self.events, end, id).ok());
        let (out, into) = (Producer::new(out), Consumer::new(into));
        // A sleeper, if there is one, was not told of this link: it takes steps before it sleeps
        // again, but until then its peer has to wake it.
        into.set_asleep(true);
        self.links.push(Link {
            id,
            peer,
            connection,
            process,
            out,
            into,
            sums: sums || self.sums,
            fresh: true,
            armed: true,
            over: false,
            broken: None,
            full_since: None,
        });
        self.peers.insert(peer, Way::Ring(self.links.len() - 1));
        (self.any_fresh, self.last) = (true, None);
        self.counters.opened += 1;
        tracing::debug!(%peer, "a shared-memory ring carries the packets from now on");
    }

    /// Asks the peers to which packets were sent since the last look.
    fn ask_all(&mut self, now: Time) {
        let mut due = Vec::new();
        for (peer, way) in &mut self.peers {
            if let Way::Udp { ask_at, wanted: wanted @ true } = way {
                *wanted = false;
                if *ask_at <= now && due.len() < NEW_MAX {
                    *ask_at = now + AGAIN;
                    due.push(*peer);
                }
            }
        }
        for peer in due {
            let is_asked = |pending: &Pending| matches!(&pending.stage, Stage::Asked { peer: of, .. } if *of == peer);
            if self.links.len() + self.pending.len() < LINKS_MAX
                && !self.pending.iter().any(is_asked)
            {
                self.ask(now, peer);
            }
        }
    }

    fn ask(&mut self, now: Time, peer: IpAddr) {
        // No card there, or none that can be asked: the usual case for programs of other kinds.
        let Ok(connection) = rendezvous::call(peer, self.port) else { return };
        if !is_friend(self.user, &connection) {
            return;
        }
        let hello = Hello { addr: self.addr, port: self.port, data: DATA as u32, sums: self.sums };
        let asked = sealed_file(WAYS, DATA).and_then(|file| {
            let (out, into) = map_both(&file, false)?;
            rendezvous::tell(connection.as_fd(), hello, Some(file.as_fd()))?;
            Ok(Stage::Asked { peer, out, into })
        });
        match asked {
            Ok(stage) => self.add_pending(connection, now + ANSWER, stage),
            Err(error) => tracing::debug!(%peer, %error, "cannot ask for a ring"),
        }
    }

    /// The peer has declined. (It may have asked itself meanwhile.)
    fn ask_later(&mut self, now: Time, peer: IpAddr) {
        if let Some(Way::Udp { ask_at, .. }) = self.peers.get_mut(&peer) {
            *ask_at = now + AGAIN;
        }
    }

    /// Closes the links that are broken, and those that are over and empty.
    fn close(&mut self) {
        if !self.links.iter().any(|link| link.over || link.broken.is_some()) {
            return;
        }
        for at in 0..self.links.len() {
            if self.links[at].over || self.links[at].broken.is_some() {
                self.leave(at);
            }
        }
        let counters = &mut self.counters;
        self.links.retain(|link| {
            if let Some(broken) = &link.broken {
                counters.broken += 1;
                tracing::warn!(peer = %link.peer, "a shared-memory ring is given up, since the \
                    other card has broken it: {broken}; packets go by UDP");
            }
            link.broken.is_none() && !(link.over && link.into.is_empty())
        });
        for (at, link) in self.links.iter().enumerate().filter(|(_, link)| !link.over) {
            if let Some(Way::Ring(index)) = self.peers.get_mut(&link.peer) {
                *index = at;
            }
        }
    }
}

impl Link {
    /// The ring is full: may packets wait?
    #[cold]
    fn full(&mut self, counters: &mut FabricCounters) -> Put {
        match self.full_since {
            Some(since) if since.elapsed() >= PATIENCE => {
                counters.tx_dropped += 1;
                Put::Dropped
            }
            since => {
                self.full_since = since.or_else(|| Some(Instant::now()));
                counters.tx_full += 1;
                Put::Full
            }
        }
    }

    /// Takes as many packets as there are, and as fit; returns how many.
    #[inline]
    fn take(&mut self, batch: &mut Batch) -> usize {
        batch.packets.clear();
        batch.from = self.peer;
        let mut used = 0;
        while used < BATCH_BYTES {
            match self.into.take(&mut batch.bytes[used..]) {
                Ok(Some(taken)) => {
                    let start = used + taken.start;
                    batch.packets.push((start, taken.len, taken.tos));
                    used = (start + taken.len).next_multiple_of(64);
                }
                Ok(None) => break,
                Err(broken) => {
                    self.broken = Some(broken);
                    break;
                }
            }
        }
        if self.into.release() {
            rendezvous::wake(self.connection.as_fd());
        }
        batch.packets.len()
    }
}

/// Does the card at the other end belong to a user who shares?
fn is_friend(user: u32, connection: &impl AsFd) -> bool {
    let judged = rendezvous::neighbour(connection.as_fd())
        .map(|neighbour| rendezvous::may_share(user, neighbour));
    match judged {
        Ok(Ok(())) => true,
        Ok(Err(stranger)) => {
            tracing::debug!("no ring with a card of this machine: {stranger}");
            false
        }
        Err(error) => {
            tracing::debug!(%error, "no ring with a card of which nothing is known");
            false
        }
    }
}

/// Maps both rings; `passed` says that another process has made the file.
fn map_both(file: &OwnedFd, passed: bool) -> io::Result<(SharedMemory, SharedMemory)> {
    if passed {
        check_sealed(file.as_fd(), WAYS, DATA)?;
    }
    Ok((SharedMemory::map(file, 0, DATA)?, SharedMemory::map(file, 1, DATA)?))
}

fn refused(error: &io::Error) {
    tracing::debug!(%error, "the memory for a ring that another card has passed is refused");
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers = self.links.iter().map(|link| link.peer);
        f.debug_list().entries(peers).finish()
    }
}

/// A thread that sleeps until something happens to the links.
impl Sleep {
    /// The thread, which has slept, is awake.
    pub(crate) fn ends(&self) {
        self.woken.store(true, Ordering::Relaxed);
        self.asleep.store(false, Ordering::Relaxed);
    }
}
