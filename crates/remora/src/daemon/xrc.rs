//! XRC among sessions: domains that files name, the targets in them, and the shared receive queues.
//!
//! A file names one domain for all sessions of a user: each that has the file's descriptor may use
//! it. Senders name any shared receive queue of the domain, whichever session has made it. A target
//! is there until the last of the sessions that hold it has destroyed it.

use std::os::fd::OwnedFd;

use remora_nic::queue::RingInit;
use remora_nic::{CreateError, DestroyError, Pd, Xrcd};

use super::answers::NO_SESSION;
use super::ending::leave;
use super::guarded::Guarded;
use super::lent::has_few_descriptors;
use super::named::FileId;
use super::objects::{Ask, Kind};
use super::server::Server;
use crate::commands::{Commands, SrqMade};
use crate::message::{Object, OpenXrcd, RingPlace, XrcdError};

impl Server {
    /// Opens the XRC domain that a client's file names.
    pub(super) fn open_xrcd(
        &mut self,
        client: u32,
        how: OpenXrcd,
        with: Vec<OwnedFd>,
    ) -> Result<Result<Xrcd, XrcdError>, String> {
        let Ok([file]) = <[OwnedFd; 1]>::try_from(with) else {
            return Err("an XRC domain is named by one descriptor".into());
        };
        let uid = self.clients.get(client).map_or(u32::MAX, |client| client.uid);
        let Ok(id) = FileId::of(uid, &file) else { return Ok(Err(XrcdError::File)) };
        // A domain that is made keeps it.
        let file = Some(file).filter(|_| !has_few_descriptors());
        let opened = self.with(client, |driver, slot| {
            Guarded::new(driver, slot).map(|mut card| card.open_named(how, id, file))
        });
        opened.flatten().ok_or_else(|| NO_SESSION.to_owned())
    }
}

impl Guarded<'_> {
    /// Opens the domain that a file names. One is made only of a file whose descriptor is given.
    fn open_named(
        &mut self,
        how: OpenXrcd,
        id: FileId,
        file: Option<OwnedFd>,
    ) -> Result<Xrcd, XrcdError> {
        match self.engine().named.get(&id) {
            Some(_) if how.creates && how.exclusive => Err(XrcdError::Exists),
            Some(xrcd) => {
                if !self.has(Object::Xrcd(xrcd)) {
                    self.admits_object(Ask::Other(Kind::Xrcd)).map_err(|_| XrcdError::Full)?;
                    let session = self.session;
                    self.engine().share(session, Object::Xrcd(xrcd));
                }
                Ok(xrcd)
            }
            None if !how.creates => Err(XrcdError::Missing),
            None => {
                let file = file.ok_or(XrcdError::Full)?;
                let xrcd = self.alloc_xrcd().map_err(|_| XrcdError::Full)?;
                self.engine().named.add(id, xrcd, file);
                Ok(xrcd)
            }
        }
    }

    /// The session holds the object no more, and others do.
    pub(super) fn leaves(&mut self, object: Object) -> bool {
        self.has(object) && leave(self.driver, self.session, object)
    }

    /// As [`Guarded::leaves`], for a domain in which the session must have nothing left.
    pub(super) fn leaves_xrcd(&mut self, xrcd: Xrcd) -> Result<bool, DestroyError> {
        let session = self.session;
        match self.engine().objects.users_within(session, xrcd) {
            0 => Ok(self.leaves(Object::Xrcd(xrcd))),
            users => Err(DestroyError::Busy { users: users as u32 }),
        }
    }

    /// Makes a target in a domain of the session's.
    pub(super) fn make_target(&mut self, xrcd: Xrcd) -> Result<u32, CreateError> {
        self.admits_object(Ask::Qp)?;
        if !self.has(Object::Xrcd(xrcd)) {
            return Err(CreateError::UnknownXrcd);
        }
        let qpn = self.driver.nic.create_xrc_target_for(self.client(), xrcd)?;
        self.own(Object::Qp(qpn));
        let session = self.session;
        let engine = self.engine();
        engine.objects.set_within(Object::Qp(qpn), xrcd);
        engine.add_qp(session, qpn, None, None);
        Ok(qpn)
    }

    /// Makes the session a holder of a target that another one has made.
    pub(super) fn open_target(&mut self, xrcd: Xrcd, qpn: u32) -> Result<(), CreateError> {
        let target = Object::Qp(qpn);
        if !self.has(Object::Xrcd(xrcd)) || !self.engine().objects.is_within(target, xrcd) {
            return Err(CreateError::UnknownXrcd);
        }
        if !self.has(target) {
            self.admits_object(Ask::Qp)?;
            let session = self.session;
            self.engine().share(session, target);
        }
        Ok(())
    }

    pub(super) fn make_srq(
        &mut self,
        pd: Pd,
        xrc: Option<(Xrcd, u32)>,
        ring: RingInit,
    ) -> Result<SrqMade, CreateError> {
        self.admits_object(Ask::Srq)?;
        if !self.has(Object::Pd(pd)) {
            return Err(CreateError::UnknownPd);
        }
        if let Some((xrcd, cq)) = xrc {
            if !self.has(Object::Xrcd(xrcd)) {
                return Err(CreateError::UnknownXrcd);
            }
            if !self.has(Object::Cq(cq)) {
                return Err(CreateError::UnknownCq);
            }
        }
        let (place, inner) = self.take_ring(ring)?;
        match self.driver.create_srq_in(pd, xrc, inner) {
            Ok(SrqMade { srq, .. }) => {
                self.driver.nic.export_srq(srq);
                self.own(Object::Srq(srq));
                if let Some((xrcd, _)) = xrc {
                    self.engine().objects.set_within(Object::Srq(srq), xrcd);
                }
                let addr = place.map_or(0, RingPlace::to_addr);
                if let Some(place) = place {
                    let session = self.session;
                    self.engine().set_srq(session, srq, place.number, (0, 0));
                }
                Ok(SrqMade { srq, ring: RingInit { addr, ..ring } })
            }
            Err(refused) => {
                self.give_back([place, None]);
                Err(refused)
            }
        }
    }
}
