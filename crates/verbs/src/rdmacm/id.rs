//! The object behind a `struct rdma_cm_id`, and the wait for its acknowledges. Its state is in
//! [`super::objects`]; programs create and destroy it in [`super::connect`].

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::objects::{EventChannel, Id, IdState};
use super::{Result, Table, c_address};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card::{self, ListedCard};
use crate::handles::{self, Kind, Object};
use crate::process;

/// The memory of the handle.
pub(crate) struct CmId;

impl Object for CmId {
    type C = rdma_cm_id;
    const KIND: Kind = Kind::CmId;
}

impl Id {
    /// Makes an id and its handle, on `channel`.
    pub(crate) fn create(
        channel: Arc<EventChannel>,
        sync: bool,
        space: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<Arc<Id>> {
        let id = Arc::new(Id {
            c: AtomicUsize::new(0),
            space,
            qp_type,
            state: Mutex::new(IdState { sync, ..IdState::default() }),
            unacknowledged: AtomicUsize::new(0),
            acknowledged: Condvar::new(),
        });
        let c = rdma_cm_id { channel: channel.c(), ps: space, qp_type, ..rdma_cm_id::zeroed() };
        id.lock().channel = Some(channel);
        let slot = handles::create(c, CmId).ok_or(super::ENOMEM)?;
        id.c.store(slot.c() as usize, Ordering::Release);
        Table::insert(slot.c() as usize, id.clone());
        Ok(id)
    }

    /// Looks up an id by its handle.
    pub(crate) fn find(handle: *mut rdma_cm_id) -> Result<Arc<Id>> {
        Table::find(handle as usize)
    }

    /// Destroys the handle; of several callers, only the first gets `Ok`.
    pub(crate) fn end_handle(&self) -> Result<()> {
        let handle = self.c();
        Table::<Id>::remove(handle as usize)?;
        self.c.store(0, Ordering::Release);
        handles::destroy::<CmId>(handle)?;
        Ok(())
    }

    /// The handle; null once it is destroyed.
    pub(crate) fn c(&self) -> *mut rdma_cm_id {
        self.c.load(Ordering::Acquire) as *mut rdma_cm_id
    }

    /// Reads a field of the C struct, which the program may have changed.
    pub(crate) fn get<T>(&self, read: impl FnOnce(&rdma_cm_id) -> T) -> T {
        match self.c() {
            c if c.is_null() => read(&rdma_cm_id::zeroed()),
            // SAFETY: a slot of ids is never freed. The struct is copied, so that no reference to
            // it lives while the program writes.
            c => read(&unsafe { c.read() }),
        }
    }

    /// Changes the C struct. `write` must not call back into the program.
    pub(crate) fn set(&self, write: impl FnOnce(*mut rdma_cm_id)) {
        let c = self.c();
        if !c.is_null() {
            write(c);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, IdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A waiting request of this listener is done with: there is room for another.
    pub(super) fn admitted(&self) {
        let mut state = self.lock();
        state.waiting = state.waiting.saturating_sub(1);
    }

    /// Counts an event of the id that leaves the queue. Called with the queue locked.
    pub(super) fn count_event(&self) {
        self.unacknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// The program has acknowledged an event, or is not to see it.
    pub(super) fn uncount_event(&self) {
        let state = self.lock();
        self.unacknowledged.fetch_sub(1, Ordering::Relaxed);
        drop(state);
        self.acknowledged.notify_all();
    }

    /// The number of events that the program has not acknowledged yet.
    #[cfg(test)]
    pub(super) fn unacknowledged(&self) -> usize {
        self.unacknowledged.load(Ordering::Relaxed)
    }

    /// Waits until all events that have left the queue are acknowledged.
    pub(super) fn await_acknowledges(&self) {
        let mut state = self.lock();
        while self.unacknowledged.load(Ordering::Relaxed) > 0 {
            state = self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type == IBV_QPT_UD
    }

    /// Has the id on another channel; returns the one that it was on.
    pub(super) fn change_channel(
        &self,
        state: &mut IdState,
        to: &Arc<EventChannel>,
    ) -> Option<Arc<EventChannel>> {
        self.set(|c| {
            // SAFETY: `set` gives the C struct, and this is a plain field of it.
            unsafe { (*c).channel = to.c() };
        });
        state.channel.replace(to.clone())
    }

    pub(crate) fn channel(&self) -> Option<Arc<EventChannel>> {
        self.lock().channel.clone()
    }

    /// Binds the id to a card, which gives the program a context.
    pub(crate) fn attach(&self, card: usize) -> Result<()> {
        let context = super::verbs::context(card)?;
        self.lock().card = Some(card);
        let gid = process::current().cards().get(card).map(ListedCard::gid);
        self.set(|c| {
            // SAFETY: `set` gives the C struct, and these are plain fields of it.
            unsafe {
                (*c).verbs = context;
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = super::verbs::default_pd(card).unwrap_or(ptr::null_mut());
                }
                (*c).route.addr.ibaddr.sgid.raw = gid.unwrap_or_default();
                (*c).route.addr.ibaddr.pkey = 0xffff;
            }
        });
        Ok(())
    }

    /// The card to which it is bound.
    pub(crate) fn card(&self) -> Result<&'static ListedCard> {
        let index = self.lock().card.ok_or(super::EINVAL)?;
        process::current().cards().get(index).ok_or(super::ENODEV)
    }

    /// Shows the program its addresses.
    pub(crate) fn show_addresses(&self) {
        let state = self.lock();
        let (local, remote, route) = (state.local, state.remote, state.route);
        drop(state);
        self.set(|c| {
            // SAFETY: `set` gives the C struct, and these are plain fields of it.
            unsafe {
                if let Some(local) = local {
                    (*c).route.addr.src = c_address::to_c(local);
                }
                if let Some(remote) = remote {
                    (*c).route.addr.dst = c_address::to_c(remote);
                }
                if let Some(route) = route {
                    (*c).route.addr.ibaddr.dgid.raw = card::gid_of(route.peer);
                }
            }
        });
    }

    /// The id's queue pair; null if there is none.
    pub(crate) fn queue_pair(&self) -> *mut ibv_qp {
        self.get(|c| c.qp)
    }
}
