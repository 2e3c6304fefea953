//! How cards find each other, and how links come and go.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use remora_nic::Time;
use rustix::event::{Timespec, epoll};

use super::super::link::{Link, Watched};
use super::super::rendezvous::{self, Heard, Hello};
use super::super::ring::{Consumer, Producer};
use super::{LISTENER, Links, Looker, PROCESS, Pending, Stage, Way};
use crate::memory::SharedMemory;
use crate::memory::circle::{check_sealed, sealed_file};

/// Bytes of a ring's data: two or three rounds of sending, and little enough to stay in a cache.
pub(super) const DATA: usize = 1 << 20;
/// The rings of a file: that of the card which has made it to the other, and the way back.
pub(super) const WAYS: usize = 2;
/// The most links of a card, those that are not settled yet included. Packets to further cards go
/// by UDP.
const LINKS_MAX: usize = 256;
/// The time from one look at the links to the next.
const TEND: Duration = Duration::from_millis(1);
/// The time until a card is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a card may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Cards that are asked or accepted in one look.
const NEW_MAX: usize = 8;

/// The most ends of links that are kept until somebody asks for them.
const ENDED_MAX: usize = 4096;

impl Links {
    /// Is it time to look?
    #[inline]
    pub(in crate::fabric) fn is_due(&self, now: Time) -> bool {
        now >= self.next_look || self.sleep.woken.load(Ordering::Relaxed)
    }

    /// Looks at all that has happened to the links.
    #[inline(never)]
    pub(in crate::fabric) fn look(&mut self, now: Time, by: Looker) {
        self.next_look = now + TEND;
        self.last = None;
        self.sleep.woken.store(false, Ordering::Relaxed);
        let reads_calls = match by {
            Looker::Thread => !self.sleep.asleep.load(Ordering::Relaxed),
            Looker::Loop => true,
            Looker::BesideLoop => false,
        };
        if reads_calls && by == Looker::Thread {
            self.disarm();
        }
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 32];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.events.poll, &mut events, Some(&at_once)).unwrap_or(0);
        for event in &events[..count] {
            let (data, flags) = (event.data, event.flags);
            let is_end = flags.contains(epoll::EventFlags::HUP);
            match data.u64() {
                LISTENER => self.accept(now),
                id => match self.links.iter_mut().find(|link| link.id == id & !PROCESS) {
                    Some(link) if is_end || id & PROCESS != 0 => link.over = true,
                    Some(link) if reads_calls => {
                        let mut files = Vec::new();
                        link.over |= rendezvous::is_over(link.connection.as_fd(), &mut files);
                        self.events.put_away(files);
                    }
                    Some(_) => {}
                    None => self.heard_of(now, id),
                },
            }
        }
        self.pending.retain(|pending| now < pending.until);
        if self.is_deaf {
            self.accept(now);
        }
        self.ask_all(now);
        self.close(now);
    }

    fn accept(&mut self, now: Time) {
        for _ in 0..NEW_MAX {
            let is_full = self.events.closer.is_full();
            self.set_deaf(is_full);
            let Some(listener) = self.listener.as_ref().filter(|_| !is_full) else { return };
            let connection = match rendezvous::accept(listener.as_fd()) {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "cannot hear who asks for a ring"),
            };
            if self.links.len() + self.pending.len() >= LINKS_MAX
                || !is_friend(self.user, &connection)
            {
                self.events.closer.close_connection(connection);
                continue;
            }
            self.add_pending(connection, now + ANSWER, Stage::Called);
        }
    }

    /// Are those who ask left to wait? Meanwhile they wake nobody.
    fn set_deaf(&mut self, is_deaf: bool) {
        let Some(listener) = self.listener.as_ref().filter(|_| is_deaf != self.is_deaf) else {
            return;
        };
        let flags = if is_deaf { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::modify(&self.events.poll, listener, data, flags).ok();
        self.is_deaf = is_deaf;
    }

    fn add_pending(&mut self, connection: OwnedFd, until: Time, stage: Stage) {
        let id = self.next_id;
        self.next_id += 1;
        if let Ok(connection) = Watched::connection(&self.events, connection, id) {
            self.pending.push(Pending { id, connection, until, stage });
        }
    }

    /// Something has happened on the connection with this number, which is not settled yet.
    fn heard_of(&mut self, now: Time, id: u64) {
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else { return };
        let mut files = Vec::new();
        match rendezvous::hear(self.pending[at].connection.as_fd(), &mut files) {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Hello(hello)) => {
                let Pending { id, connection, stage, .. } = self.pending.swap_remove(at);
                match stage {
                    Stage::Called => self.answer(id, connection, hello, files.first()),
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
        self.events.put_away(files);
    }

    /// Answers a card that asks for a ring, and has passed the memory for it.
    fn answer(&mut self, id: u64, connection: Watched, hello: Hello, file: Option<&OwnedFd>) {
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
            map_both(file, true).inspect_err(refused).ok().map(|(a, b)| (b, a))
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
        let process = end.and_then(|end| Watched::new(&self.events, end, id | PROCESS).ok());
        let (out, into) = (Producer::new(out), Consumer::new(into));
        // A sleeper, if there is one, was not told of this link: it takes steps before it sleeps
        // again, but until then its peer has to wake it.
        into.set_asleep(true);
        self.links.push(Link {
            id,
            peer,
            connection,
            _process: process,
            out,
            into,
            sums: sums || self.sums,
            fresh: true,
            over: false,
            broken: None,
            full_since: None,
        });
        self.peers.insert(peer, Way::Ring(self.links.len() - 1));
        self.over.remove(&peer);
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
            let is_asked = |pending: &Pending| match &pending.stage {
                Stage::Asked { peer: of, .. } => *of == peer,
                _ => false,
            };
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
            return self.events.closer.close_connection(connection);
        }
        let hello = Hello { addr: self.addr, port: self.port, data: DATA as u32, sums: self.sums };
        let asked = sealed_file(WAYS, DATA).and_then(|file| {
            let (out, into) = map_both(&file, false)?;
            rendezvous::tell(connection.as_fd(), hello, Some(file.as_fd()))?;
            Ok(Stage::Asked { peer, out, into })
        });
        match asked {
            Ok(stage) => self.add_pending(connection, now + ANSWER, stage),
            Err(error) => {
                tracing::debug!(%peer, %error, "cannot ask for a ring");
                self.events.closer.close_connection(connection);
            }
        }
    }

    /// The peer has declined. (It may have asked itself meanwhile.)
    fn ask_later(&mut self, now: Time, peer: IpAddr) {
        if let Some(Way::Udp { ask_at, .. }) = self.peers.get_mut(&peer) {
            *ask_at = now + AGAIN;
        }
    }

    /// Closes the links that are broken, and those that are over and empty.
    fn close(&mut self, now: Time) {
        if !self.links.iter().any(|link| link.over || link.broken.is_some()) {
            return;
        }
        for at in 0..self.links.len() {
            if self.links[at].over || self.links[at].broken.is_some() {
                self.leave(at);
            }
            let Link { over, peer, .. } = self.links[at];
            let has_next = matches!(self.peers.get(&peer), Some(Way::Ring(_)));
            if over && !has_next && self.ended.len() < ENDED_MAX {
                self.ended.push(peer);
                self.over.insert(peer);
            }
            if self.links[at].broken.is_some() {
                self.ask_later(now, self.links[at].peer);
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
