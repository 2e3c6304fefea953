//! The end of a session: everything that it has made is destroyed, in order. (When it comes is
//! decided in `server`, whose `expire` looks for it. The daemon's own end is there, too.)
//!
//! The caller holds the driver's lock for some objects at a time, so that a session with many does
//! not silence the others.

use remora_nic::kernel::Bound;
use remora_nic::{DestroyError, RateLimits};

use super::running::{SessionKernels, client_of};
use super::session_queues::SessionQueues;
use crate::commands::Commands;
use crate::destroy::destroy;
use crate::driver::Own;
use crate::message::Object;

/// Objects that are destroyed under one lock.
const AT_A_TIME: usize = 256;

/// What is left of a session to be destroyed.
#[derive(Debug)]
pub(crate) struct Ending {
    session: u16,
    /// The object that was looked at last, if there may be others behind it.
    behind: Option<Object>,
    /// Looks for objects: some are in use by others at the first look, and requests of peers may
    /// make new ones meanwhile.
    looks: u32,
    /// The session's mappings, when it has gone: to unmap them takes time.
    pub(super) remains: Option<SessionQueues>,
}

impl Ending {
    pub(crate) fn new(session: u16) -> Ending {
        Ending { session, behind: None, looks: 0, remains: None }
    }

    /// Is it the end of the session in this place of the engine?
    pub(crate) fn is_of(&self, session: u16) -> bool {
        self.session == session
    }

    /// Destroys some objects; returns whether the session has gone.
    pub(crate) fn step(&mut self, driver: &mut Own) -> bool {
        let Some(engine) = driver.engine.as_deref_mut() else { return true };
        if let Some(of) = engine.session(self.session) {
            of.ends = true;
        }
        let left = engine.objects.page(self.session, self.behind, AT_A_TIME);
        if self.behind.is_none() {
            self.looks += 1;
            if left.is_empty() || self.looks > 4 {
                if !left.is_empty() {
                    tracing::error!(?left, "objects of a session cannot be destroyed");
                }
                self.finish(driver);
                return true;
            }
        }
        self.behind = left.last().copied().filter(|_| left.len() == AT_A_TIME);
        left.into_iter().for_each(|object| self.destroy(driver, object));
        false
    }

    fn destroy(&self, driver: &mut Own, object: Object) {
        if leave(driver, self.session, object) {
            return;
        }
        let destroyed = destroy_of(driver, self.session, object);
        let Some(engine) = driver.engine.as_deref_mut() else { return };
        match destroyed {
            Err(error) => tracing::debug!(?object, %error, "is destroyed later"),
            Ok(()) => {
                match object {
                    Object::Qp(qpn) => engine.remove_qp(qpn),
                    Object::Srq(srq) => engine.remove_srq(srq),
                    Object::Cq(cq) => engine.remove_cq(cq),
                    _ => {}
                }
                engine.disown_of(self.session, object);
            }
        }
    }

    fn finish(&mut self, driver: &mut Own) {
        end_kernels(driver, self.session);
        let (client, now) = (client_of(self.session), driver.now());
        driver.nic.set_client_weight(client, 1);
        driver.nic.set_client_limits(now, client, RateLimits::default()).ok();
        let Some(engine) = driver.engine.as_deref_mut() else { return };
        if let Some(of) = engine.session(self.session) {
            of.lent.values().for_each(|lent| lent.give_back(&mut driver.memory));
        }
        for object in engine.objects.of(self.session) {
            engine.disown_of(self.session, object);
        }
        self.remains = engine.detach(self.session);
    }
}

/// Destroys an object of the session; one that has gone already is no error.
fn destroy_of(driver: &mut Own, session: u16, object: Object) -> Result<(), DestroyError> {
    // Memory that was lent is given back at the end, when no region is left.
    if let (Object::Dm(at), Some(engine)) = (object, driver.engine.as_deref_mut()) {
        engine.release_part(session, at);
    }
    destroy(driver, object)
}

/// Ends a binding. That of its stream may have ended before, and another may be there now.
pub(super) fn remove_tap(driver: &mut Own, number: u32, to: Bound) {
    if driver.bound_kernel(to) == Some(number) {
        driver.unbind_kernel(to).ok();
    }
    driver.kernels(|kernels, _| kernels.remove_tap(number));
}

/// The session ends: nothing runs for it any more.
fn end_kernels(driver: &mut Own, slot: u16) {
    let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
    let Some(of) = of else { return };
    let SessionKernels { opcodes, taps, .. } = std::mem::take(&mut of.kernels);
    (of.usage.kernels, of.usage.module_bytes) = (0, 0);
    for (opcode, _) in opcodes.into_iter().filter(|(_, of)| !of.waits) {
        let at = (client_of(slot), opcode);
        let ended = driver.kernels(|kernels, io| kernels.undeploy_for(io, at));
        if let Err(error) = ended {
            tracing::error!(%error, "a kernel of a session that ends");
        }
    }
    for (number, (to, _)) in taps {
        remove_tap(driver, number, to);
    }
}

/// A session holds an object no more; returns whether others do, so that it stays. A target is its
/// new owner's from then on, with its share of the card and its rates.
pub(super) fn leave(driver: &mut Own, session: u16, object: Object) -> bool {
    let Some(engine) = driver.engine.as_deref_mut() else { return false };
    let Some(owner) = engine.leave(session, object) else { return false };
    if let Object::Qp(qpn) = object {
        driver.nic.set_qp_client(qpn, client_of(owner));
    }
    true
}
