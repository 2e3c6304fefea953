//! Signs of life of a peer's card.
//!
//! A card answers a question for a datagram service that it does not have at once, without its
//! program. So one that is known to answer such questions, and does not, is not at work, and one
//! that does is, whatever has become of a single queue pair.

use core::net::IpAddr;
use std::collections::BTreeMap;

use rand_core::Rng;

use super::Cm;
use super::message::{Message, SidrReq};
use super::offer::is_marked;
use super::service::ServiceId;

/// Nobody has this service: it is outside the port spaces, and reads `RMRLIFE?`.
const NOBODYS: ServiceId = ServiceId(u64::from_be_bytes(*b"RMRLIFE?"));
/// The most peers that are asked.
const PEERS_MAX: usize = 4096;
/// The most cards of one address that are looked at.
const CARDS_MAX: usize = 16;

/// The last question to each peer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    asked: BTreeMap<IpAddr, Question>,
    /// Those that have answered, until the driver looks.
    fresh: Vec<IpAddr>,
}

#[derive(Debug)]
struct Question {
    request_id: u32,
    answered: bool,
}

impl Questions {
    /// Takes an answer; returns whether it is one to the last question.
    pub(super) fn take(&mut self, peer: IpAddr, request_id: u32) -> bool {
        let question = self.asked.get_mut(&peer).filter(|asked| asked.request_id == request_id);
        let Some(question) = question else { return false };
        if !question.answered {
            question.answered = true;
            self.fresh.push(peer);
        }
        true
    }
}

impl Cm {
    /// Is there a connection to a card at `peer` that is of this kind, by its GUID?
    pub(crate) fn has_kin_at(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        let mut guid = 0;
        for _ in 0..CARDS_MAX {
            let cards = ((peer, guid), 0)..=((peer, u64::MAX), u32::MAX);
            let Some((((_, known), _), _)) = self.by_peer.range(cards).next() else { break };
            if is_marked(*known) {
                return true;
            }
            let Some(following) = known.checked_add(1) else { break };
            guid = following;
        }
        false
    }

    /// Asks the card at `peer` for a sign of life.
    pub(crate) fn ask_for_life(&mut self, peer: IpAddr) {
        let peer = peer.to_canonical();
        let asked = &mut self.questions.asked;
        if asked.len() >= PEERS_MAX && !asked.contains_key(&peer) {
            asked.clear();
        }
        let (request_id, transaction_id) = (self.free_id(), self.rng.next_u64());
        let (pkey, service_id) = (self.config.pkey, NOBODYS);
        let private_data = [0; SidrReq::PRIVATE_DATA];
        let question = Message::from(SidrReq { request_id, pkey, service_id, private_data });
        self.transmit(peer, Box::new(question.to_mad(transaction_id)));
        self.questions.asked.insert(peer, Question { request_id, answered: false });
    }

    /// Has a peer answered since the driver looked?
    #[inline]
    pub(crate) fn has_signs_of_life(&self) -> bool {
        !self.questions.fresh.is_empty()
    }

    /// A peer that has answered.
    pub(crate) fn next_sign_of_life(&mut self) -> Option<IpAddr> {
        self.questions.fresh.pop()
    }

    /// Has the card at `peer` answered the last question?
    pub(crate) fn has_answered(&self, peer: IpAddr) -> bool {
        self.questions.asked.get(&peer.to_canonical()).is_some_and(|asked| asked.answered)
    }
}
