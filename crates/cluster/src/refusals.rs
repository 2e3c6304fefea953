//! Why other nodes were not let in or not reached, and which of that is worth a line of the log.
//!
//! A node that is refused comes again some fifty times a second, and several may do so at once. So
//! the log has each reason once for each peer, until a link to that peer has opened.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_store::replica::NodeId;

/// After this time a reason that still holds is logged again.
const AGAIN: Duration = Duration::from_secs(600);
/// Reasons that are kept in mind: strangers may come with any number of them.
const TOLD_MAX: usize = 64;

/// Whom a refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A node that was called.
    Node(NodeId),
    /// Where a call came from: the caller may be a stranger.
    Host(IpAddr),
}

#[derive(Debug)]
struct Told {
    peer: Peer,
    what: String,
    at: Instant,
}

/// The refusals of a node.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    last: Option<String>,
    /// What the log has, in the order of time.
    told: Vec<Told>,
}

impl Refusals {
    /// Takes note of a refusal; whether it is to be logged.
    pub(crate) fn note(&mut self, peer: Peer, what: &str, now: Instant) -> bool {
        if self.last.as_deref() != Some(what) {
            self.last = Some(what.to_owned());
        }
        self.told.retain(|told| now.duration_since(told.at) < AGAIN);
        if self.told.iter().any(|told| told.peer == peer && told.what == what) {
            return false;
        }
        if self.told.len() == TOLD_MAX {
            self.told.remove(0);
        }
        self.told.push(Told { peer, what: what.to_owned(), at: now });
        true
    }

    /// A link to a peer has opened: what is refused from now on is news.
    pub(crate) fn has_opened(&mut self, peer: Peer) {
        self.told.retain(|told| told.peer != peer);
    }

    /// The last refusal.
    pub(crate) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer::Node(NodeId(1));
    const B: Peer = Peer::Host(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    #[test]
    fn nodes_that_are_refused_in_turn_are_logged_once_each() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for round in 0..1000 {
            let now = start + round * Duration::from_millis(20);
            let is_first = round == 0;
            assert_eq!(refusals.note(A, "of another group", now), is_first);
            assert_eq!(refusals.note(B, "of another group", now), is_first);
            assert_eq!(refusals.note(B, "its ring is short", now), is_first);
            assert_eq!(refusals.last(), Some("its ring is short"));
        }
    }

    #[test]
    fn a_refusal_is_logged_again_after_a_link_or_a_good_while() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for peer in [A, B] {
            assert!(refusals.note(peer, "away", start));
        }
        refusals.has_opened(A);
        assert_eq!(refusals.last(), Some("away"));
        assert!(refusals.note(A, "away", start + AGAIN / 2));
        assert!(!refusals.note(B, "away", start + AGAIN / 2));
        assert!(!refusals.note(A, "away", start + AGAIN));
        assert!(refusals.note(B, "away", start + AGAIN));
    }

    #[test]
    fn strangers_fill_no_memory() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..10 * TOLD_MAX {
            assert!(refusals.note(B, &format!("epoch {number} is over"), now));
        }
        assert_eq!(refusals.told.len(), TOLD_MAX);
        // The oldest ones are forgotten.
        assert!(!refusals.note(B, &format!("epoch {} is over", 9 * TOLD_MAX), now));
        assert!(refusals.note(B, "epoch 0 is over", now));
    }
}
