//! What the former process of a session has made, in the hands of the one that has taken it over.
//!
//! Rings and completion queues lie in the arena, with how far the former process has posted and
//! read. So a queue goes on where it was: a request that was posted is carried out, and one that
//! was not posted whole was never there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use remora_nic::queue::{Completion, RingInit};
use remora_nic::wire::Transport;
use remora_nic::{Key, Pd, QpInfo};

use super::adopted::{AdoptError, AdoptedQueuePair, AdoptedRegion};
use super::posting::Posting;
use super::{Attached, Completions, QueuePair};
use crate::commands::{Commands, Place};
use crate::completion::WeakQueue;
use crate::memory::{Buffer, memfd};
use crate::message::{Description, Loan, Object, RingPlace};
use crate::region::{ProtectionDomain, WeakDomain};
use crate::shared::{Arena, CompletionConsumer, WorkQueue};

/// What this process has adopted.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    objects: HashSet<Object>,
    /// Completion queues may be adopted again, and with each of their queue pairs.
    queues: HashMap<u32, WeakQueue>,
    domains: HashMap<Pd, WeakDomain>,
    /// How many regions that this process has adopted are in a piece of card memory, or in memory
    /// that was lent.
    users: HashMap<Object, u32>,
}

impl Attached {
    /// Was this object there when the session was taken over, and not adopted since?
    fn check(&self, object: Object) -> Result<(), AdoptError> {
        match self.session.over() {
            Some(_) => Err(AdoptError::Gone),
            None if !self.taken.contains(&object) => Err(AdoptError::Unknown),
            None if self.adoptions.objects.contains(&object) => Err(AdoptError::Before),
            None => Ok(()),
        }
    }

    /// Notes that an object is this process's from here on.
    pub(crate) fn adopt(&mut self, object: Object) -> Result<(), AdoptError> {
        self.check(object)?;
        self.adoptions.objects.insert(object);
        Ok(())
    }

    /// What the session had when it was taken over, and what this process has not adopted.
    pub(crate) fn left(&self) -> Vec<Object> {
        let is_left = |object: &&Object| match object {
            Object::Pd(pd) => !self.adoptions.domains.get(pd).is_some_and(WeakDomain::is_kept),
            object => !self.adoptions.objects.contains(object),
        };
        self.taken.iter().filter(is_left).copied().collect()
    }

    /// The domain as it was adopted before, or as `adopt` makes it.
    pub(crate) fn adopted_domain(
        &mut self,
        pd: Pd,
        adopt: impl FnOnce() -> ProtectionDomain,
    ) -> ProtectionDomain {
        if let Some(domain) = self.adoptions.domains.get(&pd).and_then(WeakDomain::upgrade) {
            return domain;
        }
        let domain = adopt();
        self.adoptions.domains.insert(pd, domain.downgrade());
        domain
    }

    /// The completion queue as it was adopted before, if it is still there.
    pub(crate) fn adopted_queue(&self, cq: u32) -> Option<&WeakQueue> {
        self.adoptions.queues.get(&cq)
    }

    /// Goes on where the former process has read the queue.
    pub(crate) fn adopt_cq(&mut self, cq: u32) -> Result<(), AdoptError> {
        let object = Object::Cq(cq);
        if self.adoptions.queues.contains_key(&cq) {
            return Err(AdoptError::Before);
        }
        self.adopt(object)?;
        let consumer = self.found(cq).ok_or(AdoptError::Unknown)?;
        let (here, flushed, counted) = (VecDeque::new(), VecDeque::new(), 0);
        self.completion_queues.insert(cq, Completions { consumer, here, counted, flushed });
        Ok(())
    }

    /// Notes the handle of a completion queue that was adopted.
    pub(crate) fn keep_adopted(&mut self, cq: u32, queue: WeakQueue) {
        self.adoptions.queues.insert(cq, queue);
    }

    /// Goes on where the former process has posted to the queue pair, whose completion queues were
    /// adopted.
    pub(crate) fn adopt_qp(&mut self, qpn: u32) -> Result<AdoptedQueuePair, AdoptError> {
        self.check(Object::Qp(qpn))?;
        let described = self.session.describe(Object::Qp(qpn));
        let Some((Description::QueuePair { send, recv, managed }, _)) = described else {
            return Err(AdoptError::Unknown);
        };
        if managed {
            return Err(AdoptError::Chain);
        }
        let (info, [sent, received]) =
            self.unread_of(qpn, [send, recv]).ok_or(AdoptError::Unknown)?;
        let queues = [(send, info.signal_all, sent), (recv, true, received)]
            .map(|(ring, all, unread)| Posting::adopted(&self.arena, ring, all, &unread));
        let rings =
            [0, 1].map(|side| queues[side].as_ref().map_or_else(RingInit::default, Posting::local));
        for posting in queues.iter().flatten() {
            // Its former process may have ended before it rang.
            self.wakes |= self.arena.ring(posting.number());
        }
        let [send, recv] = queues;
        let queue_pair = QueuePair {
            state: info.state,
            send,
            recv,
            cqs: [info.send_cq, info.recv_cq],
            pd: info.pd,
            signal_all: info.signal_all,
            owed: 0,
            passes: (info.transport == Transport::Rc).then(Box::default),
        };
        self.queue_pairs.insert(qpn, queue_pair);
        self.kick();
        self.adopt(Object::Qp(qpn))?;
        Ok(AdoptedQueuePair { info, rings })
    }

    /// What the card says of a queue pair, and the completions of its sends and of its receives
    /// that this process finds: those of all requests whose slots are free and whose completions
    /// the former process has not taken, and of no others.
    fn unread_of(
        &mut self,
        qpn: u32,
        rings: [RingInit; 2],
    ) -> Option<(QpInfo, [Vec<Completion>; 2])> {
        let retired = |arena: &Arena| {
            let number = |ring: RingInit| RingPlace::of_addr(ring.addr).number;
            let used = rings.into_iter().filter(|ring| !ring.is_empty());
            used.map(|ring| WorkQueue::new(arena, number(ring)).retired()).collect::<Vec<_>>()
        };
        loop {
            let before = retired(&self.arena);
            // The card's process frees slots and writes their completions without answering
            // commands in between. Nobody posts, so that there is an end to that.
            let info = self.query_qp(qpn)?;
            let found = [(info.send_cq, false), (info.recv_cq, true)].map(|(cq, receives)| {
                let mut unread = self.unread(cq);
                unread.retain(|entry| entry.qpn == qpn && entry.kind.is_receive() == receives);
                unread
            });
            if retired(&self.arena) == before {
                return Some((info, found));
            }
        }
    }

    /// The entries of a completion queue.
    fn unread(&mut self, cq: u32) -> Vec<Completion> {
        match self.completion_queues.get(&cq) {
            Some(queue) => queue.consumer.unread().collect(),
            None => self.found(cq).iter().flat_map(CompletionConsumer::unread).collect(),
        }
    }

    /// Goes on where the former process has posted to the shared receive queue; returns its domain.
    pub(crate) fn adopt_srq(&mut self, srq: u32) -> Result<Pd, AdoptError> {
        self.check(Object::Srq(srq))?;
        let described = self.session.describe(Object::Srq(srq));
        let Some((Description::SharedReceives { pd, ring }, _)) = described else {
            return Err(AdoptError::Unknown);
        };
        let posting = Posting::adopted(&self.arena, ring, true, &[]).ok_or(AdoptError::Unknown)?;
        self.wakes |= self.arena.ring(posting.number());
        self.kick();
        self.shared_receives.insert(srq, posting);
        self.adopt(Object::Srq(srq))?;
        Ok(pd)
    }

    /// Maps the region's bytes, where that can be.
    pub(crate) fn adopt_region(&mut self, key: Key) -> Result<AdoptedRegion, AdoptError> {
        self.check(Object::Mr(key))?;
        let described = self.session.describe(Object::Mr(key));
        let Some((Description::Region { pd, bytes, piece, loan, .. }, file)) = described else {
            return Err(AdoptError::Unknown);
        };
        let len = bytes.len as usize;
        let (buffer, memory) = match bytes.place {
            Place::Device(at) | Place::Arena(at) => {
                let buffer = match (piece, file) {
                    // Of the user's card memory; a piece begins at a page.
                    (Some(start), Some(file)) => {
                        let offset = (at - start) as usize;
                        let whole = Buffer::map_only(file.as_fd(), start, offset + len).ok();
                        whole.and_then(|whole| Buffer::part(&Arc::new(whole), offset, len).ok())
                    }
                    (Some(_), None) if !self.session.is_machine() => None,
                    _ => Buffer::part(self.arena.memory(), at as usize, len).ok(),
                };
                (buffer, piece.map(Object::Dm))
            }
            Place::Lent { number, offset } => {
                if !matches!(loan, Some(Loan::Sealed | Loan::File)) {
                    return Err(AdoptError::Ended);
                }
                let whole = file.and_then(|file| {
                    let len = memfd::len_of(&file).ok()? as usize;
                    Buffer::map_only(file.as_fd(), 0, len).ok()
                });
                let part = |whole| Buffer::part(&Arc::new(whole), offset as usize, len).ok();
                (whole.and_then(part), Some(Object::Lent(number)))
            }
            _ => return Err(AdoptError::Unknown),
        };
        self.adopt(Object::Mr(key))?;
        if let Some(memory) = memory {
            self.adoptions.objects.insert(memory);
            *self.adoptions.users.entry(memory).or_default() += 1;
        }
        Ok(AdoptedRegion { pd, bytes, buffer, memory })
    }

    /// A region that was adopted is no more: what it was in goes with the last one. (It stays for
    /// regions of which this process knows nothing.)
    pub(crate) fn leave_memory(&mut self, memory: Object) {
        let left = self.adoptions.users.entry(memory).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        self.adoptions.users.remove(&memory);
        self.adoptions.objects.remove(&memory);
        self.release(memory);
    }

    /// Gives back a piece of card memory, or memory that was lent.
    pub(crate) fn release(&mut self, memory: Object) {
        match memory {
            Object::Dm(at) => {
                if let Err(error) = self.free_dm(at) {
                    tracing::debug!(%error, "card memory stays in the session");
                }
            }
            Object::Lent(number) => {
                self.session.take_back(number);
            }
            _ => {}
        }
    }
}
