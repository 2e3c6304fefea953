//! The completion queue of a queue pair's requests, and the tasks that take from it.
//!
//! The completion queue belongs to the requests alone. A task that polls a future takes all entries
//! that have come, for its own request and for others; if the queue is empty, it drives the device
//! one step. Before a future returns `Pending`, it arms the queue, under the same lock under which
//! it has found the queue empty, so that no entry comes in between. The next entry is then news
//! (see [`crate::wakes`]), and [`Requests::take_news`] wakes the tasks that wait for it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use remora_nic::CreateError;
use remora_nic::queue::Completion;

use super::table::{Freed, Table};
use crate::completion::CompletionQueue;
use crate::event_queue::Notify;
use crate::live::Live;
use crate::region::MemoryRegion;
use crate::wakes::{Concerned, Wakes};

/// Entries taken under one lock.
const AT_ONCE: usize = 16;

/// Regions that a request uses. They stay registered until the request has ended.
pub(crate) type HeldRegions = [Option<MemoryRegion>; 2];

/// The requests of one queue pair.
#[derive(Debug)]
pub(crate) struct Requests {
    cq: CompletionQueue,
    table: Mutex<Table<HeldRegions>>,
    /// A word for each slot, for the results of atomics; made for the first atomic.
    pub(crate) words: OnceLock<MemoryRegion>,
}

/// Notes news of a queue pair's requests when their completion queue has an entry.
#[derive(Debug)]
struct Bell {
    requests: Weak<Requests>,
    wakes: Arc<Wakes>,
}

impl Notify for Bell {
    fn push(&self, _: u32) {
        self.wakes.note(self.requests.clone());
    }
}

impl Requests {
    /// Room for `sends` send requests and `recvs` receive requests at a time.
    pub(crate) fn new(
        live: &Arc<Live>,
        sends: u32,
        recvs: u32,
    ) -> Result<Arc<Requests>, CreateError> {
        let entries = (sends + recvs).max(1) as usize;
        let cq = CompletionQueue::new(live.clone(), entries, None)?;
        let table = Mutex::new(Table::new(sends, recvs));
        let requests = Arc::new(Requests { cq, table, words: OnceLock::new() });
        let bell = Bell { requests: Arc::downgrade(&requests) as _, wakes: live.wakes.clone() };
        requests.cq.set_notify(Arc::new(bell));
        Ok(requests)
    }

    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table<HeldRegions>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all entries; if there are none, drives the device one step first. `arm` says that the
    /// caller is about to wait: the queue is armed, and the background thread works at once.
    pub(crate) fn step(&self, arm: bool) {
        let live = self.cq.live();
        let _here = live.wakes.here();
        self.take_all(true, arm);
        if arm {
            live.background.take_over();
        }
    }

    /// Takes all entries, and arms the queue for the next.
    pub(crate) fn arm(&self) {
        self.take_all(false, true);
    }

    fn take_all(&self, mut drive: bool, arm: bool) {
        let mut entries = [Completion::default(); AT_ONCE];
        loop {
            match self.cq.take(&mut entries, drive, arm) {
                Ok(0) => return,
                Ok(n) => entries[..n].iter().for_each(|entry| self.end(*entry)),
                Err(error) => {
                    let told = self.table().lose(error);
                    return told.into_iter().for_each(std::task::Waker::wake);
                }
            }
            if !arm {
                return;
            }
            drive = false;
        }
    }

    fn end(&self, entry: Completion) {
        let freed: Freed<HeldRegions> = self.table().end(entry);
        freed.settle();
    }

    /// Ends all requests in flight: the card has dropped them, and completes none.
    pub(crate) fn flush(&self) {
        let freed = self.table().flush();
        freed.into_iter().for_each(Freed::settle);
    }

    /// Lets go of the regions that requests hold, once the queue pair is destroyed and the card
    /// no longer uses them.
    pub(crate) fn give_up(&self) {
        let held = self.table().give_up();
        drop(held);
    }
}

impl Concerned for Requests {
    fn take_news(&self) {
        self.arm();
    }
}
