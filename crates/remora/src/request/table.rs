//! The requests of a queue pair that are in flight, and the tasks that wait for them.
//!
//! A request gets its slot before it is posted. It keeps the slot until its completion has been
//! taken, and its future has seen the completion or was dropped. The slot's number and generation
//! are the work request's id: a completion finds its slot by it, and a completion of other work
//! finds none. Slots are used again, so a table that is warm allocates nothing.
//!
//! When a queue pair fails, the card flushes its work (`qp/flush.rs` of `remora-nic`), and each
//! request ends by its completion, as any other does.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use remora_nic::Queue;
use remora_nic::queue::{Completion, PollCqError, Status};

/// Names a slot for as long as one request has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotId {
    pub(crate) index: u32,
    generation: u32,
}

impl SlotId {
    /// The id that the work request carries, and its completion too.
    pub(crate) fn wr_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn from_wr_id(wr_id: u64) -> SlotId {
        SlotId { index: wr_id as u32, generation: (wr_id >> 32) as u32 }
    }
}

/// The slots of both queues. `H` keeps what the card uses until the request has ended.
#[derive(Debug)]
pub(crate) struct Table<H> {
    /// Slots of the send queue, then slots of the receive queue.
    slots: Vec<Slot<H>>,
    send_slots: u32,
    free: [Vec<u32>; 2],
    /// Tasks that wait for a free slot, in the order in which they came.
    lines: [VecDeque<(u64, Waker)>; 2],
    next_place: u64,
    /// Set when the completion queue has lost entries: no request can end any more.
    lost: Option<PollCqError>,
}

#[derive(Debug)]
struct Slot<H> {
    generation: u32,
    state: SlotUse,
    held: Option<H>,
}

#[derive(Debug)]
enum SlotUse {
    Free,
    /// With the waker of the task that waits for the end, if one does.
    InFlight(Option<Waker>),
    /// In flight, and its future was dropped.
    Detached,
    Ended(Completion),
}

/// What a change of the table sets free. The caller drops and wakes it after unlocking the table.
#[derive(Debug)]
#[must_use = "a task may have to be woken"]
pub(crate) struct Freed<H> {
    pub(crate) held: Option<H>,
    /// The task of a request that has ended, and a task that may now have a slot.
    pub(crate) wakers: [Option<Waker>; 2],
    /// A waker that is no longer needed. Dropping it may drop a task, and so other requests.
    pub(crate) unneeded: Option<Waker>,
}

impl<H> Default for Freed<H> {
    fn default() -> Freed<H> {
        Freed { held: None, wakers: [None, None], unneeded: None }
    }
}

impl<H> Freed<H> {
    /// Lets go of the memory, then wakes the tasks.
    pub(crate) fn settle(self) {
        drop((self.held, self.unneeded));
        self.wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl<H> Table<H> {
    pub(crate) fn new(send_slots: u32, recv_slots: u32) -> Table<H> {
        let slot = |_| Slot { generation: 0, state: SlotUse::Free, held: None };
        Table {
            slots: (0..send_slots + recv_slots).map(slot).collect(),
            send_slots,
            // Slots are taken from the back, so that low numbers come first.
            free: [
                (0..send_slots).rev().collect(),
                (send_slots..send_slots + recv_slots).rev().collect(),
            ],
            lines: Default::default(),
            next_place: 0,
            lost: None,
        }
    }

    /// Takes a free slot, unless tasks that wait longer are to have it. `place` is the caller's
    /// place in line, if it has one.
    pub(crate) fn take(
        &mut self,
        queue: Queue,
        place: Option<u64>,
        held: impl FnOnce() -> H,
    ) -> Option<(SlotId, Freed<H>)> {
        let mut freed = Freed::default();
        let (free, line) = (&mut self.free[queue as usize], &mut self.lines[queue as usize]);
        match place {
            None if !line.is_empty() => return None,
            None => {}
            Some(place) => {
                let at = line.iter().take(free.len()).position(|(other, _)| *other == place)?;
                freed.unneeded = line.remove(at).map(|(_, waker)| waker);
            }
        }
        let index = free.pop()?;
        let slot = &mut self.slots[index as usize];
        // Never zero, so that the small ids that applications choose match no slot.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.state = SlotUse::InFlight(None);
        slot.held = Some(held());
        Some((SlotId { index, generation: slot.generation }, freed))
    }

    /// Puts a task in line for a slot, or replaces the waker of a task that is in line.
    pub(crate) fn line_up(
        &mut self,
        queue: Queue,
        place: &mut Option<u64>,
        waker: &Waker,
    ) -> Freed<H> {
        let line = &mut self.lines[queue as usize];
        if let Some(place) = *place
            && let Some((_, old)) = line.iter_mut().find(|(other, _)| *other == place)
        {
            let unneeded = replace(old, waker);
            return Freed { unneeded, ..Freed::default() };
        }
        line.push_back((self.next_place, waker.clone()));
        *place = Some(self.next_place);
        self.next_place += 1;
        Freed::default()
    }

    /// Takes a task out of the line.
    pub(crate) fn leave(&mut self, queue: Queue, place: u64) -> Freed<H> {
        let line = &mut self.lines[queue as usize];
        let at = line.iter().position(|(other, _)| *other == place);
        let unneeded = at.and_then(|at| line.remove(at)).map(|(_, waker)| waker);
        Freed { held: None, wakers: [None, self.next_in_line(queue)], unneeded }
    }

    /// Ends a request. A completion of other work, or a second one of the request, changes nothing.
    pub(crate) fn end(&mut self, completion: Completion) -> Freed<H> {
        let id = SlotId::from_wr_id(completion.wr_id);
        let Some(slot) = self.find(id) else { return Freed::default() };
        match &mut slot.state {
            SlotUse::InFlight(waker) => {
                let waker = waker.take();
                slot.state = SlotUse::Ended(completion);
                Freed { held: slot.held.take(), wakers: [waker, None], unneeded: None }
            }
            SlotUse::Detached => self.release(id),
            SlotUse::Free | SlotUse::Ended(_) => Freed::default(),
        }
    }

    /// Ends all requests in flight, as if they were flushed.
    pub(crate) fn flush(&mut self) -> Vec<Freed<H>> {
        let ids = self.slots.iter().zip(0..);
        let ids = ids.map(|(slot, index)| SlotId { index, generation: slot.generation });
        let ids: Vec<SlotId> = ids.collect();
        let flushed = |id: SlotId| Completion {
            wr_id: id.wr_id(),
            status: Status::Flushed,
            ..Completion::default()
        };
        ids.into_iter().map(|id| self.end(flushed(id))).collect()
    }

    /// How a request ended. If it has not, the task is woken when it does.
    pub(crate) fn look(
        &mut self,
        id: SlotId,
        waker: Option<&Waker>,
    ) -> (Poll<Result<Completion, PollCqError>>, Freed<H>) {
        let lost = self.lost;
        let mut freed = Freed::default();
        let Some(slot) = self.find(id) else { return (Poll::Pending, freed) };
        let end = match (&mut slot.state, lost) {
            (SlotUse::Ended(completion), _) => Poll::Ready(Ok(*completion)),
            (_, Some(lost)) => Poll::Ready(Err(lost)),
            (SlotUse::InFlight(old), None) => {
                match (old, waker) {
                    (Some(old), Some(new)) => freed.unneeded = replace(old, new),
                    (old, Some(new)) => *old = Some(new.clone()),
                    (_, None) => {}
                }
                Poll::Pending
            }
            (SlotUse::Free | SlotUse::Detached, None) => Poll::Pending,
        };
        (end, freed)
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, id: SlotId) -> Freed<H> {
        let Some(slot) = self.find(id) else { return Freed::default() };
        slot.state = SlotUse::Free;
        let held = slot.held.take();
        let queue = if id.index < self.send_slots { Queue::Send } else { Queue::Recv };
        self.free[queue as usize].push(id.index);
        Freed { held, wakers: [None, self.next_in_line(queue)], unneeded: None }
    }

    /// The request's future was dropped. If the request is in flight, it stays so, and its
    /// completion gives the slot back; returns whether it is.
    pub(crate) fn detach(&mut self, id: SlotId) -> (bool, Freed<H>) {
        let lost = self.lost.is_some();
        let Some(slot) = self.find(id) else { return (false, Freed::default()) };
        match std::mem::replace(&mut slot.state, SlotUse::Detached) {
            SlotUse::InFlight(unneeded) if !lost => (true, Freed { unneeded, ..Freed::default() }),
            SlotUse::InFlight(unneeded) => {
                let freed = self.release(id);
                (false, Freed { unneeded, ..freed })
            }
            _ => (false, self.release(id)),
        }
    }

    /// Notes that entries were lost, so that no request ends any more; returns the wakers of all
    /// tasks that wait.
    pub(crate) fn lose(&mut self, error: PollCqError) -> Vec<Waker> {
        self.lost = Some(error);
        let waiting = self.slots.iter_mut().filter_map(|slot| match &mut slot.state {
            SlotUse::InFlight(waker) => waker.take(),
            _ => None,
        });
        let lined_up = self.lines.iter().flatten().map(|(_, waker)| waker.clone());
        waiting.chain(lined_up).collect()
    }

    /// Why no request ends any more.
    pub(crate) fn lost(&self) -> Option<PollCqError> {
        self.lost
    }

    /// Takes out what the card used, once the queue pair is destroyed.
    pub(crate) fn give_up(&mut self) -> Vec<H> {
        self.slots.iter_mut().filter_map(|slot| slot.held.take()).collect()
    }

    /// Requests in flight, and ended requests whose future has not seen the end.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free[0].len() - self.free[1].len()
    }

    /// The task in line to wake after a slot became free: as many tasks at the head of the line may
    /// have a slot as slots are free, and all but the last of those were woken before.
    fn next_in_line(&self, queue: Queue) -> Option<Waker> {
        let at = self.free[queue as usize].len().checked_sub(1)?;
        self.lines[queue as usize].get(at).map(|(_, waker)| waker.clone())
    }

    fn find(&mut self, id: SlotId) -> Option<&mut Slot<H>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        (slot.generation == id.generation && id.generation != 0).then_some(slot)
    }
}

/// Replaces a waker by another, unless both wake the same task; returns the old one if replaced.
fn replace(old: &mut Waker, new: &Waker) -> Option<Waker> {
    (!old.will_wake(new)).then(|| std::mem::replace(old, new.clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), count.into())
    }

    fn woken(count: &Count) -> usize {
        count.0.load(Ordering::Relaxed)
    }

    /// Stands for what the card uses: its count says how many hold it.
    type Held = Arc<()>;

    fn entry(id: SlotId) -> Completion {
        Completion { wr_id: id.wr_id(), len: id.index, ..Completion::default() }
    }

    #[test]
    fn a_request_ends_and_gives_back_what_it_held() {
        let mut table: Table<Held> = Table::new(2, 1);
        let (held, (told, waker)) = (Arc::new(()), count());
        let (id, _) = table.take(Queue::Send, None, || held.clone()).unwrap();
        assert!(table.look(id, Some(&waker)).0.is_pending());
        assert_eq!(Arc::strong_count(&held), 2);
        table.end(entry(id)).settle();
        assert_eq!((Arc::strong_count(&held), woken(&told)), (1, 1));
        assert_eq!(table.look(id, None).0, Poll::Ready(Ok(entry(id))));
        assert_eq!(table.in_use(), 1);
        table.release(id).settle();
        assert_eq!(table.in_use(), 0);
    }

    #[test]
    fn a_detached_request_keeps_its_slot_and_what_it_holds_until_it_ends() {
        let mut table: Table<Held> = Table::new(1, 0);
        let held = Arc::new(());
        let (id, _) = table.take(Queue::Send, None, || held.clone()).unwrap();
        let (in_flight, freed) = table.detach(id);
        freed.settle();
        assert!(in_flight && Arc::strong_count(&held) == 2);
        assert!(table.take(Queue::Send, None, || held.clone()).is_none());
        table.end(entry(id)).settle();
        assert_eq!((Arc::strong_count(&held), table.in_use()), (1, 0));

        let (ended, _) = table.take(Queue::Send, None, || held.clone()).unwrap();
        table.end(entry(ended)).settle();
        let (in_flight, freed) = table.detach(ended);
        freed.settle();
        assert!(!in_flight && table.in_use() == 0);
    }

    #[test]
    fn what_is_flushed_ends_or_gives_its_slot_back() {
        let mut table: Table<Held> = Table::new(2, 1);
        let held = Arc::new(());
        let [waits, dropped] =
            [(); 2].map(|()| table.take(Queue::Send, None, || held.clone()).unwrap().0);
        let (told, waker) = count();
        assert!(table.look(waits, Some(&waker)).0.is_pending());
        table.detach(dropped).1.settle();
        table.flush().into_iter().for_each(Freed::settle);
        assert_eq!((Arc::strong_count(&held), woken(&told), table.in_use()), (1, 1, 1));
        let Poll::Ready(Ok(end)) = table.look(waits, None).0 else { panic!("it has ended") };
        assert_eq!((end.status, end.wr_id), (Status::Flushed, waits.wr_id()));
        table.release(waits).settle();
        assert_eq!(table.in_use(), 0);
    }

    #[test]
    fn completions_of_other_work_change_nothing() {
        let mut table: Table<Held> = Table::new(1, 1);
        let (id, _) = table.take(Queue::Recv, None, Held::default).unwrap();
        for wr_id in [0, 1, 7, u64::MAX, id.wr_id() ^ 1 << 32] {
            table.end(Completion { wr_id, ..Completion::default() }).settle();
        }
        assert!(table.look(id, None).0.is_pending());
        // A completion of an earlier request in the same slot changes nothing either.
        table.end(entry(id)).settle();
        table.release(id).settle();
        let (next, _) = table.take(Queue::Recv, None, Held::default).unwrap();
        assert_eq!(next.index, id.index);
        table.end(entry(id)).settle();
        assert!(table.look(next, None).0.is_pending());
        let failed = Completion { status: Status::Flushed, ..entry(next) };
        table.end(failed).settle();
        table.end(entry(next)).settle();
        assert_eq!(table.look(next, None).0, Poll::Ready(Ok(failed)), "the first end counts");
    }

    #[test]
    fn slots_go_to_the_tasks_that_wait_longest() {
        let mut table: Table<Held> = Table::new(1, 0);
        let (first, _) = table.take(Queue::Send, None, Held::default).unwrap();
        let (told, wakers): (Vec<_>, Vec<_>) = (0..3).map(|_| count()).unzip();
        let mut places = [None; 3];
        for (place, waker) in places.iter_mut().zip(&wakers) {
            table.line_up(Queue::Send, place, waker).settle();
            table.line_up(Queue::Send, place, waker).settle();
        }
        table.end(entry(first)).settle();
        assert_eq!(
            told.iter().map(|count| woken(count)).sum::<usize>(),
            0,
            "the slot is not released yet"
        );
        table.release(first).settle();
        assert_eq!(told.iter().map(|count| woken(count)).collect::<Vec<_>>(), [1, 0, 0]);
        // A newcomer waits, and so does the second in line.
        assert!(table.take(Queue::Send, None, Held::default).is_none());
        assert!(table.take(Queue::Send, places[1], Held::default).is_none());
        // The first leaves the line: the second is woken.
        table.leave(Queue::Send, places[0].unwrap()).settle();
        assert_eq!(woken(&told[1]), 1);
        let (second, _) = table.take(Queue::Send, places[1], Held::default).unwrap();
        table.end(entry(second)).settle();
        table.release(second).settle();
        assert_eq!(woken(&told[2]), 1);
        let (third, _) = table.take(Queue::Send, places[2], Held::default).unwrap();
        table.end(entry(third)).settle();
        table.release(third).settle();
        assert!(table.take(Queue::Send, None, Held::default).is_some(), "the line is empty");
    }

    #[test]
    fn when_entries_are_lost_all_tasks_are_woken() {
        let mut table: Table<Held> = Table::new(1, 0);
        let (id, _) = table.take(Queue::Send, None, Held::default).unwrap();
        let ((told, waker), (lined_up, other)) = (count(), count());
        assert!(table.look(id, Some(&waker)).0.is_pending());
        table.line_up(Queue::Send, &mut None, &other).settle();
        table.lose(PollCqError::Overrun).into_iter().for_each(Waker::wake);
        assert_eq!((woken(&told), woken(&lined_up)), (1, 1));
        assert_eq!(table.look(id, None).0, Poll::Ready(Err(PollCqError::Overrun)));
        assert!(!table.detach(id).0);
    }
}
