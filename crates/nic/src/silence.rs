//! Peers that do not answer.
//!
//! A peer's card that is software may be without a processor for seconds, and a busy one's socket
//! may overflow. Neither is a reason to end connections. Only the driver can find out: it may see
//! that what was sent has not been taken, or that nobody will take it. So each retry asks about its
//! peer, and what the driver has answered counts when retries are used up.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeSet;

/// How long requests are sent again beyond their retry count, at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The most peers that are asked about, and that are known not to take packets.
const PEERS_MAX: usize = 4096;

/// What a driver knows of a peer that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// Its card has not taken all that was sent to it: its process waits for a processor, is
    /// stopped, or more comes than it can take.
    Held,
    /// Its card is gone for good: the process that had it has ended.
    Gone,
    /// Nothing: the specification's retry count holds.
    Unexplained,
}

/// The peers that do not answer.
#[derive(Debug, Default)]
pub(crate) struct Silent {
    asked: BTreeSet<IpAddr>,
    held: BTreeSet<IpAddr>,
}

impl Silent {
    /// A packet to `peer` is sent again: why does it not answer?
    pub(crate) fn ask(&mut self, peer: IpAddr) {
        if self.asked.len() < PEERS_MAX {
            self.asked.insert(peer.to_canonical());
        }
    }

    /// Is there a peer to be looked at?
    #[inline]
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The next peer to be looked at.
    pub(crate) fn next(&mut self) -> Option<IpAddr> {
        self.asked.pop_first()
    }

    /// Notes what the driver knows of a peer.
    pub(crate) fn note(&mut self, peer: IpAddr, silence: Silence) {
        let peer = peer.to_canonical();
        if silence != Silence::Held {
            self.held.remove(&peer);
        } else if self.held.len() < PEERS_MAX {
            self.held.insert(peer);
        }
    }

    /// Has the peer not taken what was sent, so that requests to it go on after so much trouble?
    pub(crate) fn is_held(&self, peer: IpAddr, trouble: Duration) -> bool {
        trouble < PATIENCE && self.held.contains(&peer.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_held_peer_stays_held_where_no_further_one_finds_room() {
        let mut silent = Silent::default();
        let peer = |i: usize| IpAddr::from(Ipv4Addr::from_bits(i as u32 + 1));
        (0..PEERS_MAX).for_each(|i| silent.note(peer(i), Silence::Held));
        for held in [peer(0), peer(PEERS_MAX - 1)] {
            silent.note(held, Silence::Held);
            assert!(silent.is_held(held, Duration::ZERO), "{held}");
        }
        silent.note(peer(PEERS_MAX), Silence::Held);
        assert!(!silent.is_held(peer(PEERS_MAX), Duration::ZERO), "there is no room");
        silent.note(peer(0), Silence::Unexplained);
        assert!(!silent.is_held(peer(0), Duration::ZERO));
        silent.note(peer(PEERS_MAX), Silence::Held);
        assert!(silent.is_held(peer(PEERS_MAX), Duration::ZERO), "there is room again");
    }
}
