//! A work queue of an attached client: elements are written into shared memory, and published.

use std::sync::Arc;

use remora_nic::queue::element::{ELEMENT_LEN, TooLong, label};
use remora_nic::queue::{Completion, RingInit, SendFlags, Status, with_room};
use remora_nic::{MemoryFault, PostError};

use crate::memory::Buffer;
use crate::message::RingPlace;
use crate::shared::{Arena, WorkQueue};

/// One work queue.
#[derive(Debug)]
pub(super) struct Posting {
    memory: Arc<Buffer>,
    shared: WorkQueue,
    ring: usize,
    depth: u32,
    stride: u32,
    /// What the card's end may leave. A slot is free before the completion of its element has
    /// come, and may hold the next one by then: so these are twice as many as there are slots.
    requests: Box<[Request]>,
    /// The index behind the last element whose completion has come.
    seen: u32,
    /// The index of the element that is written next.
    written: u32,
    /// Nothing is published before an ENABLE.
    managed: bool,
}

/// What is known here of a request that was posted.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    wr_id: u64,
    /// Its success is reported.
    reported: bool,
}

impl Request {
    /// Is this its completion, if those of the requests before it have come? A failure is of the
    /// request that it names.
    #[inline]
    fn is_ended_by(self, entry: &Completion) -> bool {
        self.reported || entry.status != Status::Success && self.wr_id == entry.wr_id
    }
}

impl Posting {
    /// The queue whose ring the daemon has described; `None` if the ring is empty.
    pub(super) fn new(arena: &Arena, ring: RingInit, managed: bool) -> Option<Posting> {
        if ring.is_empty() {
            return None;
        }
        let place = RingPlace::of_addr(ring.addr);
        let shared = WorkQueue::new(arena, place.number);
        let written = shared.posted();
        let RingInit { depth, stride, .. } = ring;
        let (memory, ring) = (arena.memory().clone(), place.offset as usize);
        let requests = vec![Request::default(); 2 * depth as usize].into();
        let seen = written;
        Some(Posting { memory, shared, ring, depth, stride, requests, seen, written, managed })
    }

    /// As [`Posting::new`], behind another process, whose requests the ring may hold. Either all
    /// successes are reported, or those of elements that ask for it. `unread` are the completions
    /// that this process finds, the oldest first, of requests whose slots are free.
    pub(super) fn adopted(
        arena: &Arena,
        ring: RingInit,
        all_reported: bool,
        unread: &[Completion],
    ) -> Option<Posting> {
        let mut posting = Posting::new(arena, ring, false)?;
        // Of requests that are no more in the ring, their completions tell all.
        posting.requests.fill(Request { wr_id: 0, reported: true });
        let written = posting.written;
        for index in (1..=posting.depth).map(|back| written.wrapping_sub(back)) {
            let mut raw = [0; ELEMENT_LEN];
            if posting.memory.read_at(posting.slot(index), &mut raw).is_ok() {
                let (wr_id, flags) = label(&raw);
                let reported = all_reported || flags.contains(SendFlags::SIGNALED);
                *posting.request(index) = Request { wr_id, reported };
            }
        }
        posting.seen = posting.shared.retired();
        unread.iter().rev().for_each(|entry| posting.expect(entry));
        Some(posting)
    }

    /// A completion has not come yet, of the last request that can have it: the reverse of
    /// [`Posting::note_completion`].
    fn expect(&mut self, entry: &Completion) {
        let oldest = self.written.wrapping_sub(2 * self.depth);
        while self.seen != oldest {
            self.seen = self.seen.wrapping_sub(1);
            if self.request(self.seen).is_ended_by(entry) {
                break;
            }
        }
    }

    /// The ring, by its address in this process.
    pub(super) fn local(&self) -> RingInit {
        let addr = self.memory.addr() + self.ring as u64;
        RingInit { addr, depth: self.depth, stride: self.stride }
    }

    /// The number by which the queue's doorbell is rung.
    pub(super) fn number(&self) -> u32 {
        self.shared.number()
    }

    /// Does the queue run nothing before it is told to?
    pub(super) fn is_managed(&self) -> bool {
        self.managed
    }

    /// The index of the element that is written next.
    pub(super) fn next_index(&self) -> u32 {
        self.written
    }

    /// Are all elements done that were written? (Their completions may not have come yet.)
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.written == self.shared.retired()
    }

    /// How many slots are free.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.depth.saturating_sub(self.written.wrapping_sub(self.shared.retired()))
    }

    /// Writes an element into the next slot; returns its index, and whether it is published, so
    /// that the doorbell is to be rung.
    #[inline]
    pub(super) fn post(
        &mut self,
        reported: bool,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, TooLong>,
    ) -> Result<(u32, bool), PostError> {
        let index = self.written;
        if !self.managed && self.room() == 0 {
            return Err(PostError::Full);
        }
        let at = self.slot(index);
        let wr_id = with_room(self.stride as usize, |raw| {
            let used = encode(raw)?;
            let written = self.memory.write_at(at, &raw[..used]);
            written.map_err(|_| PostError::Memory(MemoryFault { addr: at as u64 }))?;
            Ok::<_, PostError>(label(raw).0)
        })?;
        *self.request(index) = Request { wr_id, reported };
        self.written = index.wrapping_add(1);
        if !self.managed {
            self.shared.publish(self.written);
        }
        Ok((index, !self.managed))
    }

    /// Lets the queue run up to `index`.
    pub(super) fn doorbell(&mut self, index: u32) -> Result<(), PostError> {
        if index.wrapping_sub(self.shared.retired()) > self.depth {
            return Err(PostError::Full);
        }
        self.shared.publish(index);
        if !self.managed {
            self.written = index;
        }
        Ok(())
    }

    /// The queue begins again.
    pub(super) fn reset(&mut self) {
        (self.written, self.seen) = (0, 0);
    }

    /// A completion of the queue has come: of the first element that is reported, and those before
    /// it are done as well. A failure is of the element that it names.
    #[inline]
    pub(super) fn note_completion(&mut self, entry: &Completion) {
        while self.seen != self.written {
            let request = *self.request(self.seen);
            self.seen = self.seen.wrapping_add(1);
            if request.is_ended_by(entry) {
                break;
            }
        }
    }

    /// The numbers of the requests that are not done, as far as the card has said. Its process
    /// frees slots before it reports their requests, and may have ended in between: so a request
    /// that is to be reported is done by its report only.
    pub(super) fn left(&mut self) -> Vec<u64> {
        let (retired, posted) = (self.shared.retired(), self.shared.posted());
        let newer = posted.wrapping_sub(retired).min(self.depth);
        let unseen = posted.wrapping_sub(self.seen);
        let known = if unseen <= 2 * self.depth { unseen } else { newer };
        let left = (0..known).rev().filter_map(|back| {
            let request = *self.request(posted.wrapping_sub(back + 1));
            (back < newer || request.reported).then_some(request.wr_id)
        });
        left.collect()
    }

    #[inline]
    fn request(&mut self, index: u32) -> &mut Request {
        &mut self.requests[(index & (2 * self.depth - 1)) as usize]
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        self.ring + (index & (self.depth - 1)) as usize * self.stride as usize
    }
}

#[cfg(test)]
mod tests {
    use remora_nic::queue::element::{encode_recv, encode_send};
    use remora_nic::queue::{Data, RecvRequest, SendOp, SendRequest};

    use super::*;
    use crate::shared::arena::DATA;

    const DEPTH: u32 = 4;

    fn arena() -> (Arena, RingInit) {
        let (arena, _file) = Arena::create(DATA + 4096).unwrap();
        let addr = RingPlace { number: 1, offset: DATA as u64 }.to_addr();
        (arena, RingInit { addr, depth: DEPTH, stride: 64 })
    }

    /// A queue of both ends: the client's, and the daemon's.
    fn queue() -> (Posting, WorkQueue) {
        let (arena, ring) = arena();
        (Posting::new(&arena, ring, false).unwrap(), WorkQueue::new(&arena, 1))
    }

    fn post(posting: &mut Posting, wr_id: u64, reported: bool) {
        let request = RecvRequest { wr_id, sges: &[] };
        posting.post(reported, |raw| encode_recv(&request, raw)).unwrap();
    }

    fn entry(wr_id: u64, status: Status) -> Completion {
        Completion { wr_id, status, ..Completion::default() }
    }

    fn done(posting: &mut Posting, wr_id: u64, status: Status) {
        posting.note_completion(&entry(wr_id, status));
    }

    #[test]
    fn a_request_whose_slot_is_free_is_done_by_its_report_only() {
        let (mut posting, daemon) = queue();
        (0..4).for_each(|wr_id| post(&mut posting, wr_id, true));
        daemon.retire(3);
        done(&mut posting, 0, Status::Success);
        assert_eq!(posting.left(), [1, 2, 3]);
        // The slots hold other requests, and the reports of the former have not come.
        (4..7).for_each(|wr_id| post(&mut posting, wr_id, true));
        assert_eq!(posting.left(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_silent_request_is_done_when_its_slot_is_free() {
        let (mut posting, daemon) = queue();
        (0..4).for_each(|wr_id| post(&mut posting, wr_id, wr_id == 2));
        assert_eq!(posting.left(), [0, 1, 2, 3]);
        daemon.retire(2);
        assert_eq!(posting.left(), [2, 3]);
        done(&mut posting, 2, Status::Success);
        assert_eq!(posting.left(), [3], "one behind a report is not");
    }

    #[test]
    fn a_failure_is_of_the_request_that_it_names() {
        let (mut posting, daemon) = queue();
        (0..4).for_each(|wr_id| post(&mut posting, wr_id, wr_id == 3));
        daemon.retire(1);
        done(&mut posting, 1, Status::Flushed);
        assert_eq!(posting.left(), [2, 3]);
    }

    /// Another process's end of a queue with so many requests, of which these are reported, and the
    /// first `retired` have their slots back; and the completions that it finds.
    fn adopted(
        requests: u64,
        reported: impl Fn(u64) -> bool,
        retired: u32,
        unread: &[Completion],
    ) -> Posting {
        let (arena, ring) = arena();
        let mut former = Posting::new(&arena, ring, false).unwrap();
        let daemon = WorkQueue::new(&arena, 1);
        for wr_id in 0..requests {
            let flags = if reported(wr_id) { SendFlags::SIGNALED } else { SendFlags::empty() };
            daemon.retire(retired.min(wr_id as u32));
            let (op, data) = (SendOp::Send { imm: None, to: None }, Data::Inline(&[]));
            let request = SendRequest { wr_id, op, data, flags };
            former.post(false, |raw| encode_send(&request, 0, raw)).unwrap();
        }
        daemon.retire(retired);
        Posting::adopted(&arena, ring, false, unread).unwrap()
    }

    #[test]
    fn a_request_of_a_former_process_whose_completion_is_unread_is_not_done() {
        let found = [entry(1, Status::Success), entry(2, Status::Success)];
        let mut posting = adopted(5, |_| true, 3, &found);
        assert_eq!(posting.left(), [1, 2, 3, 4]);
        done(&mut posting, 1, Status::Success);
        done(&mut posting, 2, Status::Success);
        assert_eq!(posting.left(), [3, 4]);
        done(&mut posting, 3, Status::Success);
        assert_eq!(posting.left(), [4]);
    }

    #[test]
    fn silent_requests_of_a_former_process_are_passed_over() {
        let reported = |wr_id: u64| wr_id != 1;
        let found = [entry(0, Status::Success), entry(2, Status::Success)];
        assert_eq!(adopted(4, reported, 3, &found).left(), [0, 2, 3]);
        assert_eq!(adopted(4, reported, 3, &found[1..]).left(), [2, 3]);
        // One that has failed is not silent, whichever it is.
        let found = [found[0], entry(1, Status::RemoteAccess), entry(2, Status::Flushed)];
        let mut posting = adopted(4, reported, 3, &found);
        for (entry, left) in found.iter().zip([&[2, 3_u64][..], &[2, 3], &[3]]) {
            posting.note_completion(entry);
            assert_eq!(posting.left(), left, "behind {}", entry.wr_id);
        }
    }

    #[test]
    fn completions_of_requests_whose_slots_hold_others_come_first() {
        let found: Vec<_> = (0..4).map(|wr_id| entry(wr_id, Status::Success)).collect();
        let mut posting = adopted(7, |_| true, 4, &found);
        found.iter().for_each(|entry| posting.note_completion(entry));
        assert_eq!(posting.left(), [4, 5, 6]);
    }

    #[test]
    fn what_the_card_has_not_seen_has_its_slots() {
        let (mut posting, daemon) = queue();
        assert_eq!(posting.room(), DEPTH);
        (0..3).for_each(|wr_id| post(&mut posting, wr_id, true));
        assert_eq!(posting.room(), 1);
        daemon.retire(2);
        assert_eq!(posting.room(), 3);
    }
}
