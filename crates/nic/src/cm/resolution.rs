//! One resolution of a datagram service, and all that are under way.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use super::mad::MAD_LEN;
use super::service::ServiceId;
use crate::Time;

/// A resolution under way, on either side. One of a peer's is valid until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SidrId(pub(super) u32);

/// The resolutions under way.
#[derive(Debug, Default)]
pub(super) struct Resolutions {
    pub(super) entries: BTreeMap<u32, Entry>,
    /// Those asked by peers, by the peer's id.
    pub(super) by_peer: BTreeMap<(IpAddr, u32), u32>,
    /// Those that are remembered only for repeated questions, the next to be forgotten first.
    pub(super) answered: BTreeSet<(Time, u32)>,
    /// How many are ours.
    pub(super) asking: usize,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: IpAddr,
    pub(super) transaction_id: u64,
    pub(super) service: ServiceId,
    pub(super) stage: Stage,
    pub(super) deadline: Time,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Stage {
    /// We asked, and repeat it until answered.
    Asking { request: Box<[u8; MAD_LEN]>, retries_left: u8 },
    /// A peer asked under its `request_id`; the caller is to answer.
    Asked { request_id: u32 },
    /// The caller answered; a repeated question gets the same answer.
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
            }
            Stage::Answered { request_id, .. } => {
                self.by_peer.remove(&(entry.peer, request_id));
                self.answered.remove(&(entry.deadline, id));
            }
        }
        Some(entry)
    }

    /// How many are peers'.
    pub(super) fn asked(&self) -> usize {
        self.entries.len() - self.asking
    }
}
