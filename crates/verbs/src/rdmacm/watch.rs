//! Lets processes on one machine notice that a peer's process has ended.
//!
//! Hardware outlives a process, and its driver disconnects what the process leaves open. Here the
//! card ends with the process. A process that exits tells its peers. For one that is killed, each
//! process has a Unix socket named after its card; connected processes of the same machine hold a
//! connection to that socket, which the kernel closes when the process ends.
//!
//! Any process can bind such a name. So it is believed only if its holder is the user whose card
//! has the address, and its end is only a reason to see whether the card has gone.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use remora::event::Event;
use remora::threads::without_signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::directory::CardSocket;
use super::objects::Id;
use super::{connection, directory};
use crate::{farewell, process};

/// How often, and how many times, it is looked whether a card has gone, once the socket of its
/// process is closed: a process that ends closes one after the other. One that has many, or dumps
/// its memory, takes long.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
const LOOKS: u32 = 1000;

/// The peers that this process watches, and the sockets by which others watch it.
#[derive(Debug, Default)]
struct Watch {
    followed: Mutex<HashSet<IpAddr>>,
    /// Peers that wait for the thread to watch them.
    new: Mutex<Vec<Followed>>,
    /// Wakes the thread, once there is one.
    wake: Mutex<Option<Arc<Event>>>,
    /// The sockets of this process's cards, open for as long as the process lives.
    listeners: Mutex<Vec<UnixListener>>,
}

/// A peer on this machine.
#[derive(Debug)]
struct Followed {
    peer: IpAddr,
    card: CardSocket,
    /// The connection to its process.
    stream: UnixStream,
}

fn name(card: IpAddr) -> String {
    format!("remora/card/{card}")
}

/// Opens the socket by which others notice the end of this process.
fn be_watched(card: IpAddr) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(name(card))?)
}

/// Connects to the process that has a card, if its holder is that card's owner. No process accepts
/// such connections, and a full queue would make the connect wait for ever, so it is non-blocking.
fn reach(card: IpAddr, owner: u32) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name(card).as_bytes())?)?;
    match net::sockopt::socket_peercred(&socket)?.uid.as_raw() == owner {
        true => Ok(socket.into()),
        false => Err(rustix::io::Errno::PERM),
    }
}

/// Once the process has cards: lets others watch them, and says goodbye to peers at exit.
pub(super) fn at_exit() {
    farewell::at_exit(connection::end_all);
    let watch = process::current().shared::<Watch>();
    let mut listeners = watch.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    for card in process::current().cards() {
        match be_watched(card.address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                tracing::debug!(%error, "other processes will not notice if this one is killed")
            }
        }
    }
}

/// Watches the peer's process of a connection that is requested or accepted, if it is on this
/// machine. The peer may be gone already.
pub(super) fn follow(id: &Id) {
    let route = id.lock().route;
    if let Some(route) = route
        && begin(id)
    {
        connection::peers_are_gone(&[route.peer].into());
    }
}

/// Starts to watch the peer's process. Returns whether it is gone already.
fn begin(id: &Id) -> bool {
    let Some(route) = id.lock().route else { return false };
    let own = process::current().cards().iter().any(|card| card.address == route.peer);
    let watch = process::current().shared::<Watch>();
    let mut followed = watch.followed.lock().unwrap_or_else(PoisonError::into_inner);
    if own || followed.contains(&route.peer) {
        return false;
    }
    let card = match directory::cards_at(route.peer) {
        Ok(cards) => cards.first().copied(),
        Err(error) => {
            tracing::debug!(%error, "it is not noticed if the peer is killed");
            return false;
        }
    };
    let Some(card) = card else { return directory::is_local(route.peer) };
    // A card that is not Remora's, or a stranger's socket: there is nothing to watch. Or its
    // process has just ended.
    let Ok(stream) = reach(route.peer, card.owner) else { return !is_there(route.peer, &card) };
    let Some(wake) = waker(&watch) else { return false };
    followed.insert(route.peer);
    drop(followed);
    watch.new.lock().unwrap_or_else(PoisonError::into_inner).push(Followed {
        peer: route.peer,
        card,
        stream,
    });
    if let Err(error) = wake.notify() {
        tracing::error!(%error, "cannot wake the thread that watches peers");
    }
    false
}

/// Is the card still there, as far as is known?
fn is_there(peer: IpAddr, card: &CardSocket) -> bool {
    directory::cards_at(peer).map_or(true, |cards| cards.contains(card))
}

/// Wakes the thread that watches peers, which is started if there is none. `None` if it cannot be:
/// the next peer is a reason to try again.
fn waker(watch: &Arc<Watch>) -> Option<Arc<Event>> {
    let mut wake = watch.wake.lock().unwrap_or_else(PoisonError::into_inner);
    if wake.is_none() {
        let started = Event::new().and_then(|event| {
            let (watch, event) = (watch.clone(), Arc::new(event));
            let named = thread::Builder::new().name("remora-watch".into());
            let its = event.clone();
            without_signals(|| named.spawn(move || run(&watch, &its)))?;
            Ok(event)
        });
        match started {
            Ok(event) => *wake = Some(event),
            Err(error) => tracing::warn!(%error, "cannot watch for the end of peers' processes"),
        }
    }
    wake.clone()
}

/// Waits for the end of peers, and handles each.
fn run(watch: &Watch, wake: &Event) {
    let mut peers: Vec<Followed> = Vec::new();
    // Those whose connections are closed: their cards are about to go.
    let mut ending: Vec<(Followed, u32)> = Vec::new();
    loop {
        peers.append(&mut watch.new.lock().unwrap_or_else(PoisonError::into_inner));
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(peers.iter().map(|followed| PollFd::new(&followed.stream, PollFlags::IN)));
        let patience = (!ending.is_empty()).then_some(&LOOK_AGAIN);
        if poll(&mut fds, patience).is_err() {
            continue;
        }
        let closed: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        wake.drain().ok();
        let mut closed = closed.into_iter();
        ending.extend(peers.extract_if(.., |_| closed.next() == Some(true)).map(|it| (it, LOOKS)));
        let mut gone = BTreeSet::new();
        ending.retain_mut(|(Followed { peer, card, .. }, looks)| {
            *looks -= 1;
            let there = is_there(*peer, card);
            let done = !there || *looks == 0;
            if done {
                watch.followed.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
            }
            if !there {
                gone.insert(*peer);
            }
            !done
        });
        connection::peers_are_gone(&gone);
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::tests::as_stranger;
    use super::*;

    #[test]
    fn a_full_queue_refuses_instead_of_blocking() {
        let nowhere = IpAddr::from([192, 0, 2, (std::process::id() % 250) as u8]);
        let me = rustix::process::geteuid().as_raw();
        let reach = |card| super::reach(card, me);
        assert!(reach(nowhere).is_err(), "no socket is bound yet");
        let listener = be_watched(nowhere).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let reached: Vec<_> = (0..4).map(|_| reach(nowhere)).collect();
        assert!(reached[0].is_ok());
        assert_eq!(reached[3].as_ref().err(), Some(&rustix::io::Errno::AGAIN));
        drop(listener);
        let mut fds = [PollFd::new(reached[0].as_ref().unwrap(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, None), Ok(1), "the end of the listener shows at the connection");
    }

    /// Another user may bind the name of a card first. Peers of the card do not follow it, or its
    /// end would be the end of their connections.
    #[test]
    fn a_strangers_socket_is_not_followed() {
        let me = rustix::process::geteuid().as_raw();
        let card = IpAddr::from([192, 0, 3, (std::process::id() % 250) as u8]);
        let Some(listener) = as_stranger(|| be_watched(card).unwrap()) else { return };
        assert_eq!(reach(card, me).err(), Some(rustix::io::Errno::PERM));
        drop(listener);
        let _listener = be_watched(card).unwrap();
        assert!(reach(card, me).is_ok());
    }
}
