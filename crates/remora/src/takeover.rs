//! Sessions that go from one process to another: what entitles to them, and what they have.

use remora_nic::Pd;

use crate::device::{Device, DeviceOptions};
use crate::message::{Keep, Kept, Object, Ticket};
use crate::region::ProtectionDomain;

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
    /// domain.
    pub fn adopt_pd(&self, pd: Pd) -> Option<ProtectionDomain> {
        let is_there = self.taken().contains(&Object::Pd(pd));
        is_there.then(|| ProtectionDomain::adopt(self.live.clone(), pd))
    }
}
