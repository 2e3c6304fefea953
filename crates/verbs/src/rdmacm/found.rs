//! Listeners that a search of the directory has found, for the connections that follow.
//!
//! A search reads the names of all Unix sockets and asks the kernel who owns some of them, which
//! takes far longer than the connection itself where a program makes a thousand of them. So a
//! listener that was found counts for [`KEPT`] as long as its name is bound, which one system call
//! tells: a listener that has gone is not found. That there was no listener is not kept: one that
//! has just come is found. Nor can another have come in its place, since listeners at one address
//! exclude each other ([`super::directory`]).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::rdma_cma::rdma_port_space;

/// How long the answer to a search counts: after it, the owner of the name is asked for again.
const KEPT: Duration = Duration::from_millis(20);
/// So many listeners are kept, so that a program that asks for ever more of them keeps few.
const MOST: usize = 64;

/// The listeners that this process has found.
#[derive(Debug, Default)]
pub(super) struct Found(Mutex<HashMap<(rdma_port_space, SocketAddr), Listener>>);

#[derive(Clone, Debug)]
struct Listener {
    card: IpAddr,
    /// The abstract name that it holds while it listens.
    name: String,
    at: Instant,
}

impl Found {
    /// The card of the listener that was found for this address, if it still listens.
    pub(super) fn recall(
        &self,
        space: rdma_port_space,
        address: SocketAddr,
        now: Instant,
    ) -> Option<IpAddr> {
        let known = self.listeners().get(&(space, address)).cloned()?;
        let fresh = now.saturating_duration_since(known.at) < KEPT;
        (fresh && is_bound(&known.name)).then_some(known.card)
    }

    /// Keeps what a search found: a card, and the name that its listener holds.
    pub(super) fn keep(
        &self,
        space: rdma_port_space,
        address: SocketAddr,
        (card, name): (IpAddr, String),
        now: Instant,
    ) {
        let mut listeners = self.listeners();
        if listeners.len() >= MOST {
            listeners.clear();
        }
        listeners.insert((space, address), Listener { card, name, at: now });
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<(rdma_port_space, SocketAddr), Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does a process hold this name? A datagram socket can connect to any that is bound, which its
/// holder does not notice.
fn is_bound(name: &str) -> bool {
    let connect = || UnixDatagram::unbound()?.connect_addr(&UnixAddr::from_abstract_name(name)?);
    connect().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(name: &str) -> UnixDatagram {
        UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    #[test]
    fn what_was_found_counts_while_it_is_there_and_not_for_long() {
        let (found, now) = (Found::default(), Instant::now());
        let name = format!("remora/test/found/{}", std::process::id());
        let (card, address) = ("127.9.8.7".parse().unwrap(), "127.0.0.1:7".parse().unwrap());
        let recall = |after| found.recall(1, address, now + after);
        assert_eq!(recall(Duration::ZERO), None);
        let held = bind(&name);
        found.keep(1, address, (card, name.clone()), now);
        assert_eq!(recall(KEPT / 2), Some(card));
        assert_eq!(recall(KEPT), None, "asked anew");
        assert_eq!(found.recall(2, address, now), None, "another port space");
        drop(held);
        assert_eq!(recall(Duration::ZERO), None, "it has gone");
        let _again = bind(&name);
        assert_eq!(recall(Duration::ZERO), Some(card), "it is back");
    }

    #[test]
    fn few_are_kept() {
        let (found, now) = (Found::default(), Instant::now());
        for port in 0..3 * MOST as u16 {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            found.keep(1, address, (address.ip(), String::from("remora/test/none")), now);
            assert!(found.listeners().len() <= MOST);
        }
    }
}
