//! Lets processes on one machine notice that a peer's process has ended.
//!
//! Hardware outlives a process, and its driver disconnects what the process leaves open. Here the
//! card ends with the process. A process that exits tells its peers. For one that is killed, each
//! process has a Unix socket named after its card; connected processes of the same machine hold a
//! connection to that socket, which the kernel closes when the process ends.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use remora::threads::without_signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::objects::Id;
use super::{connection, directory};
use crate::{farewell, process};

/// The peers that this process watches, and the sockets by which others watch it.
#[derive(Debug, Default)]
struct Watch {
    followed: Mutex<HashSet<IpAddr>>,
    /// Peers that wait for the thread to watch them.
    new: Mutex<Vec<(IpAddr, UnixStream)>>,
    wake: OnceLock<remora::event::Event>,
    /// The sockets of this process's cards, open for as long as the process lives.
    listeners: Mutex<Vec<UnixListener>>,
}

fn name(card: IpAddr) -> String {
    format!("remora/card/{card}")
}

/// Opens the socket by which others notice the end of this process.
fn be_watched(card: IpAddr) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(name(card))?)
}

/// Connects to the process that has a card. No process accepts such connections, and a full queue
/// would make the connect wait for ever, so it is non-blocking.
fn reach(card: IpAddr) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name(card).as_bytes())?)?;
    Ok(socket.into())
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

/// Watches the peer's process of a connection that is established or requested, if it is on this
/// machine. The peer may be gone already.
pub(super) fn follow(id: &Id) {
    let route = id.lock().route;
    if let Some(route) = route
        && begin(id)
    {
        connection::peer_is_gone(route.peer);
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
    // The peer is on another machine, or is not Remora: there is nothing to watch.
    let Ok(stream) = reach(route.peer) else {
        return directory::is_local(route.peer) && !directory::has_card(route.peer);
    };
    followed.insert(route.peer);
    drop(followed);
    let Ok(event) = remora::event::Event::new() else { return false };
    let mut first = false;
    let wake = watch.wake.get_or_init(|| {
        first = true;
        event
    });
    if first {
        let watch = watch.clone();
        let named = thread::Builder::new().name("remora-watch".into());
        if let Err(error) = without_signals(|| named.spawn(move || run(&watch))) {
            tracing::warn!(%error, "cannot watch for the end of peers' processes");
        }
    }
    watch.new.lock().unwrap_or_else(PoisonError::into_inner).push((route.peer, stream));
    if let Err(error) = wake.notify() {
        tracing::error!(%error, "cannot wake the thread that watches peers");
    }
    false
}

/// Waits for the end of peers, and handles each.
fn run(watch: &Arc<Watch>) {
    let mut peers: Vec<(IpAddr, UnixStream)> = Vec::new();
    let Some(wake) = watch.wake.get() else { return };
    loop {
        peers.append(&mut watch.new.lock().unwrap_or_else(PoisonError::into_inner));
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(peers.iter().map(|(_, stream)| PollFd::new(stream, PollFlags::IN)));
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let gone: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        wake.drain().ok();
        let mut ended = gone.iter();
        peers.retain(|(peer, _)| {
            let gone = ended.next() == Some(&true);
            if gone {
                watch.followed.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
                connection::peer_is_gone(*peer);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_instead_of_blocking() {
        let nowhere = IpAddr::from([192, 0, 2, (std::process::id() % 250) as u8]);
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
}
