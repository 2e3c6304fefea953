//! What the manager remembers of resolutions of datagram services ([`super::sidr`]).

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use super::mad::MAD_LEN;
use super::service::ServiceId;
use crate::Time;

/// A resolution under way, begun by either side. One that a peer began is valid until the caller
/// answers it, or has not for so long that the peer no longer asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SidrId(pub(super) u32);

/// The resolutions under way.
#[derive(Debug, Default)]
pub(super) struct Resolutions {
    pub(super) entries: BTreeMap<u32, Entry>,
    /// Resolutions that peers began, by the peer's address and request id.
    pub(super) by_peer: BTreeMap<(IpAddr, u32), u32>,
    /// Resolutions that are answered, and remembered only in case the peer repeats its request; the
    /// next to be forgotten comes first.
    pub(super) answered: BTreeSet<(Time, u32)>,
    /// How many resolutions this side began.
    pub(super) asking: usize,
    /// How many resolutions of each peer wait for the caller's answer.
    waiting: BTreeMap<IpAddr, usize>,
}

/// One resolution.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: IpAddr,
    pub(super) transaction_id: u64,
    pub(super) service: ServiceId,
    pub(super) stage: Stage,
    pub(super) deadline: Time,
}

/// Which side began a resolution, and how far it is.
#[derive(Debug)]
pub(super) enum Stage {
    /// This side has asked, and repeats its request until it is answered.
    Asking { request: Box<[u8; MAD_LEN]>, retries_left: u8 },
    /// A peer has asked under its `request_id`, and the caller must answer.
    Asked { request_id: u32 },
    /// The caller has answered. A repeated request gets the same answer.
    Answered { request_id: u32, answer: Box<[u8; MAD_LEN]> },
}

impl Resolutions {
    pub(super) fn contains(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        match entry.stage {
            Stage::Asking { .. } => self.asking -= 1,
            Stage::Asked { request_id } => {
                self.by_peer.remove(&(entry.peer, request_id));
                self.end_wait(entry.peer);
            }
            Stage::Answered { request_id, .. } => {
                self.by_peer.remove(&(entry.peer, request_id));
                self.answered.remove(&(entry.deadline, id));
            }
        }
        Some(entry)
    }

    /// A resolution of this peer waits for the caller's answer.
    pub(super) fn begin_wait(&mut self, peer: IpAddr) {
        *self.waiting.entry(peer).or_default() += 1;
    }

    /// A resolution of this peer no longer waits for the caller's answer.
    pub(super) fn end_wait(&mut self, peer: IpAddr) {
        if let Some(of_peer) = self.waiting.get_mut(&peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                self.waiting.remove(&peer);
            }
        }
    }

    /// May another resolution of this peer wait, if peers may begin `max`? A peer gets half of what
    /// the others leave, so that one alone never fills them.
    pub(super) fn may_wait(&self, peer: IpAddr, max: usize) -> bool {
        let of_peer = self.waiting.get(&peer).copied().unwrap_or(0);
        let waiting = self.begun_by_peers() - self.answered.len();
        of_peer < max.saturating_sub(waiting)
    }

    /// How many resolutions peers began, those included that are answered and remembered.
    pub(super) fn begun_by_peers(&self) -> usize {
        self.entries.len() - self.asking
    }
}
