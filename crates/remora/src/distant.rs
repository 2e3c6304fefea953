//! Why a card on another machine does not answer, if it is one of Remora's.
//!
//! Three things tell. The other machine refuses packets for a port that nobody has, by ICMP: if
//! that is the card's port, the process of the card has ended. A datagram to a port that is closed
//! everywhere is refused by a machine that lives, whatever its processes do. And a card that is at
//! work answers a question of connection management, whatever has become of a single queue pair.
//! So a card that does not answer on a machine that lives is held: its process is stopped or has
//! no processor, or its socket overflows. If the machine is silent as well, retry counts hold.
//!
//! A refusal alone ends nothing, since anybody can forge one: the card is asked, and has a moment
//! to answer ([`Departed`](crate::departed::Departed)).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use remora_nic::{Silence, Time};

/// The time between two questions to a peer. Linux answers a sender's datagrams to closed ports six
/// times in a row, and once a second in the long run.
const AGAIN: Duration = Duration::from_millis(500);
/// For how long an answer of a machine shows that it lives.
const LIVES: Duration = Duration::from_millis(2500);
/// For how long a refusal shows that there is no card.
const REFUSED: Duration = Duration::from_secs(1);
/// The most peers that are remembered.
const PEERS_MAX: usize = 4096;

/// The peers that have been asked about.
#[derive(Debug, Default)]
pub(crate) struct Distant {
    peers: BTreeMap<IpAddr, Peer>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    asked: Option<Time>,
    /// The machine has answered last.
    lives: Option<Time>,
    /// The machine has refused packets for the card last.
    refused: Option<Time>,
}

impl Distant {
    fn peer(&mut self, peer: IpAddr) -> &mut Peer {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.peers.clear();
        }
        self.peers.entry(peer).or_default()
    }

    /// The machine of the card at `peer` has refused a packet: one for the card, if `card` says
    /// so.
    pub(crate) fn note_refusal(&mut self, now: Time, peer: IpAddr, card: bool) {
        let peer = self.peer(peer);
        peer.lives = Some(now);
        if card {
            if !is_within(peer.refused, now, REFUSED) {
                // What the card has answered before says nothing any more.
                peer.asked = None;
            }
            peer.refused = Some(now);
        }
    }

    /// Is the card to be asked now? If so, the caller does.
    pub(crate) fn is_due(&mut self, now: Time, peer: IpAddr) -> bool {
        let peer = self.peer(peer);
        let due = !is_within(peer.asked, now, AGAIN);
        if due {
            peer.asked = Some(now);
        }
        due
    }

    /// Why is the card at `peer` silent? `answered` says that it has answered the last question.
    pub(crate) fn judge(&mut self, now: Time, peer: IpAddr, answered: bool) -> Silence {
        let peer = *self.peer(peer);
        match answered {
            true => Silence::Unexplained,
            false if is_within(peer.refused, now, REFUSED) => Silence::Gone,
            false if is_within(peer.lives, now, LIVES) => Silence::Held,
            false => Silence::Unexplained,
        }
    }

    /// What is known of a card that has gone says nothing of the next one at its address.
    pub(crate) fn forget(&mut self, peer: IpAddr) {
        self.peers.remove(&peer);
    }
}

fn is_within(at: Option<Time>, now: Time, span: Duration) -> bool {
    at.is_some_and(|at| now.since(at) < span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn a_card_is_held_while_its_machine_answers_and_it_does_not() {
        let (mut distant, start) = (Distant::default(), Time::ZERO);
        assert!(distant.is_due(start, PEER) && !distant.is_due(start, PEER));
        assert_eq!(distant.judge(start, PEER, false), Silence::Unexplained);
        distant.note_refusal(start, PEER, false);
        assert_eq!(distant.judge(start, PEER, false), Silence::Held);
        assert_eq!(distant.judge(start, PEER, true), Silence::Unexplained);
        assert!(distant.is_due(start + AGAIN, PEER));
        // The machine is silent, too, from now on.
        assert_eq!(distant.judge(start + LIVES, PEER, false), Silence::Unexplained);
    }

    #[test]
    fn a_card_whose_port_is_closed_is_asked_and_then_gone() {
        let (mut distant, start) = (Distant::default(), Time::ZERO);
        assert!(distant.is_due(start, PEER));
        let later = start + AGAIN / 2;
        distant.note_refusal(later, PEER, true);
        assert!(distant.is_due(later, PEER), "an answer from before does not count");
        assert_eq!(distant.judge(later, PEER, false), Silence::Gone);
        distant.note_refusal(later, PEER, true);
        assert!(!distant.is_due(later, PEER));
        assert_eq!(distant.judge(later, PEER, true), Silence::Unexplained, "it was forged");
        assert_eq!(distant.judge(later + REFUSED, PEER, false), Silence::Held);
        distant.forget(PEER);
        assert_eq!(distant.judge(later, PEER, false), Silence::Unexplained);
    }
}
