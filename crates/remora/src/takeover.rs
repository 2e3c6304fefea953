//! Sessions that go from one process to another: what entitles to them, and what they have.

use remora_nic::cm::ConnId;
use remora_nic::{DestroyError, Key, Pd};
use thiserror::Error;

use crate::attach::{AdoptError, Attached};
use crate::completion::{CompletionQueue, WeakQueue};
use crate::connection::Connection;
use crate::destroy::destroy;
use crate::device::{Device, DeviceOptions};
use crate::either::Driver;
use crate::message::{Keep, Kept, Object, Ticket};
use crate::queue_pair::QueuePair;
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::shared_receive::SharedReceiveQueue;

/// Some of what a session had stays in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{object:?} stays in the session: {reason}")]
pub struct ReleaseError {
    /// The first object that stays.
    pub object: Object,
    /// Why it does.
    pub reason: DestroyError,
}

impl DeviceOptions {
    /// Takes a session over that another process of this user has, or has left ([`Device::ticket`]
    /// entitles to it): its memory, queue pairs, connections, chains and kernels, which go on
    /// meanwhile. If the former process still runs, its device has come to its end. From now on the
    /// session outlives this process as `keep` says. [`Device::taken`] lists what it has.
    ///
    /// Opening the device fails if there is no such session.
    ///
    /// ```no_run
    /// use remora::message::Keep;
    /// use remora::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // What a program does that serves by its card: its next one finds the ticket in a file.
    /// let file = "/run/user/1000/store.ticket";
    /// let device = match std::fs::read_to_string(file) {
    ///     Ok(ticket) => DeviceOptions::new().take_over(ticket.parse()?, Keep::Forever).open()?,
    ///     Err(_) => DeviceOptions::new().keep("store", Keep::Forever).open()?,
    /// };
    /// let ticket = device.ticket().ok_or("the card is this process's own")?;
    /// std::fs::write(file, ticket.to_string())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn take_over(mut self, ticket: Ticket, keep: Keep) -> DeviceOptions {
        self.kept = Some(Kept { name: ticket.name, keep });
        self.token = Some(ticket.token);
        self
    }
}

impl Device {
    /// Entitles another process of this user to take the device's session over
    /// ([`DeviceOptions::take_over`]), while this one runs or, if the session is kept, behind its
    /// end. `None` if the card is this process's own, and for a guest of another one's session.
    pub fn ticket(&self) -> Option<Ticket> {
        let driver = self.live.lock();
        let attached = driver.attached().filter(|attached| !attached.is_guest());
        attached.map(|attached| attached.ticket().clone())
    }

    /// What the device's session had when this process took it over: nothing if it did not.
    pub fn taken(&self) -> Vec<Object> {
        self.live.lock().attached().map_or_else(Vec::new, |attached| attached.taken().to_vec())
    }

    /// A protection domain of a session that was taken over: new objects in it work with those that
    /// are there, which their keys and numbers name. It stays in the session when it is dropped,
    /// since what the former process has made may run on. `None` if [`Device::taken`] has no such
    /// domain. [`Device::release_rest`] destroys domains that were dropped, too.
    pub fn adopt_pd(&self, pd: Pd) -> Option<ProtectionDomain> {
        let is_there = self.taken().contains(&Object::Pd(pd));
        is_there.then(|| self.domain(pd))
    }

    fn domain(&self, pd: Pd) -> ProtectionDomain {
        let mut driver = self.live.lock();
        let Some(attached) = driver.attached_mut() else {
            return ProtectionDomain::adopt(self.live.clone(), pd);
        };
        attached.adopted_domain(pd, || ProtectionDomain::adopt(self.live.clone(), pd))
    }

    /// A completion queue of a session that was taken over, which goes on where the former process
    /// has read it. As all that is adopted, it is this process's from here on, and is destroyed
    /// when the last handle is dropped. It may be adopted several times, also by
    /// [`Device::adopt_qp`]: all are handles of one queue.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_cq(&self, cq: u32) -> Result<CompletionQueue, AdoptError> {
        let mut driver = self.live.lock();
        let attached = driver.attached_mut().ok_or(AdoptError::Unknown)?;
        if let Some(queue) = attached.adopted_queue(cq).and_then(WeakQueue::upgrade) {
            return Ok(queue);
        }
        attached.adopt_cq(cq)?;
        let queue = CompletionQueue::adopt(self.live.clone(), cq);
        attached.keep_adopted(cq, queue.downgrade());
        Ok(queue)
    }

    /// A queue pair of a session that was taken over, with its connection: requests that the former
    /// process has posted are carried out, and new ones follow them. Its completion queues are
    /// adopted, too; [`QueuePair::query`] names them. Requests that are futures need a queue pair
    /// that this process has made.
    ///
    /// ```no_run
    /// # use remora::message::{Keep, Object};
    /// # use remora::prelude::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ticket = "".parse()?;
    /// let device = DeviceOptions::new().take_over(ticket, Keep::Forever).open()?;
    /// for object in device.taken() {
    ///     if let Object::Qp(number) = object {
    ///         let qp = device.adopt_qp(number)?;
    ///         let done = device.adopt_cq(qp.query().send_cq)?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_qp(&self, qpn: u32) -> Result<QueuePair, AdoptError> {
        let adopted = self.adopting(|attached| attached.adopt_qp(qpn))?;
        let cq = |cq| self.adopt_cq(cq).ok();
        let queues = cq(adopted.info.send_cq).zip(cq(adopted.info.recv_cq));
        let queues = queues.ok_or(AdoptError::Unknown)?;
        let domain = self.domain(adopted.info.pd);
        Ok(QueuePair::adopt(domain, qpn, &adopted, queues))
    }

    /// A shared receive queue of a session that was taken over.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_srq(&self, srq: u32) -> Result<SharedReceiveQueue, AdoptError> {
        let pd = self.adopting(|attached| attached.adopt_srq(srq))?;
        Ok(SharedReceiveQueue::adopt(self.domain(pd), srq))
    }

    /// A region of a session that was taken over, under its key and at its addresses, by which
    /// peers and requests go on to name it. Where the card has its bytes mapped, this process has
    /// them, too ([`MemoryRegion::buffer`]). When the last region in a piece of memory is dropped,
    /// the memory goes with it.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_region(&self, key: Key) -> Result<MemoryRegion, AdoptError> {
        let adopted = self.adopting(|attached| attached.adopt_region(key))?;
        Ok(MemoryRegion::adopt(self.domain(adopted.pd), key, adopted))
    }

    /// A connection of a session that was taken over, by RDMA connection management, whose queue
    /// pair was adopted. Of its peer only the address is known, and no private data.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt_connection(
        &self,
        connection: ConnId,
        queue_pair: QueuePair,
    ) -> Result<Connection, AdoptError> {
        self.adopting(|attached| attached.adopt(Object::Connection(connection)))?;
        Ok(Connection::adopt(self.live.clone(), connection, queue_pair))
    }

    /// Destroys what the session had when it was taken over, and this process has not adopted:
    /// connections and listeners first, domains last. Kernels go on.
    ///
    /// # Errors
    /// Objects that were adopted stand on some of it, which stays; the first of these is named.
    pub fn release_rest(&self) -> Result<(), ReleaseError> {
        let left = self.live.lock().attached().map_or_else(Vec::new, Attached::left);
        let mut stays = Ok(());
        for object in left {
            let released = self.live.command(|driver| release(driver, object));
            if let Err(reason @ DestroyError::Busy { .. }) = released {
                stays = stays.and(Err(ReleaseError { object, reason }));
            }
        }
        stays
    }

    fn adopting<R>(
        &self,
        adopt: impl FnOnce(&mut Attached) -> Result<R, AdoptError>,
    ) -> Result<R, AdoptError> {
        self.live.lock().attached_mut().map_or(Err(AdoptError::Unknown), adopt)
    }
}

/// Destroys an object; one that has gone already is no error.
fn release(driver: &mut Driver, object: Object) -> Result<(), DestroyError> {
    if let (Object::Dm(_) | Object::Lent(_), Some(attached)) = (object, driver.attached_mut()) {
        attached.release(object);
    }
    destroy(driver, object)
}
