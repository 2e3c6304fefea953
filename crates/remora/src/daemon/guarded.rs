//! A session's view of the card: its own objects, up to its quotas.
//!
//! Each command first asks whether what it names belongs to the session. What belongs to another
//! one looks as if it did not exist. Then the card carries the command out, and what it made is
//! noted. What a client lends is mapped in `lent`; it refuses what could end the daemon (SIGBUS).

use std::net::IpAddr;

use remora_nic::cm::message::RejectReason;
use remora_nic::cm::service::ServiceId;
use remora_nic::cm::{
    AcceptParams, AddressScope, CommandError, ConnId, ConnState, ConnectError, ConnectRequest,
    ListenError, ListenerId, ResolveError, ResolveRequest, SidrAnswer, SidrError, SidrId,
};
use remora_nic::kernel::Bound;
use remora_nic::nic::{
    BindError, CallError, InUse, McastError, ResizeSrqError, SrqInfo, StructureUse, group_address,
};
use remora_nic::qp::{ModifyQpError, QpAttr, State};
use remora_nic::queue::{Moderation, PollCqError, ResizeCqError, RingInit};
use remora_nic::{
    Access, ChainError, ChainLimits, ChainStep, Config, CreateError, DestroyError, Key,
    MemoryFault, MwType, Path, Pd, QpInfo, QpInit, RegMrError, Xrcd,
};

use super::engine::Engine;
use super::lent::ADDRESSES;
use super::objects::{Ask, Kind, window};
use super::record::Entry;
use super::running::client_of;
use crate::commands::{Bytes, CardCounters, Change, Commands, DM_COPY_MAX, Place, QpMade, SrqMade};
use crate::driver::Own;
use crate::message::{Object, RingPlace};
use crate::multicast::JoinError;
use crate::shared::arena::DATA;
use crate::shared::completions::{DEPTH_MAX, depth_for};

/// The card, for one session.
pub(crate) struct Guarded<'a> {
    pub(super) driver: &'a mut Own,
    pub(super) session: u16,
}

impl<'a> Guarded<'a> {
    /// The card of `driver` for `session`; `None` if there is no such session.
    pub(crate) fn new(driver: &'a mut Own, session: u16) -> Option<Guarded<'a>> {
        driver.engine.as_deref_mut()?.session(session)?;
        Some(Guarded { driver, session })
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        self.driver.engine.as_deref_mut().expect("found when the view was made")
    }

    pub(super) fn client(&self) -> u16 {
        client_of(self.session)
    }

    pub(super) fn has(&mut self, object: Object) -> bool {
        let session = self.session;
        self.engine().objects.holds(session, object)
    }

    /// Does a queue pair belong to another session?
    fn is_foreign(&mut self, qpn: u32) -> bool {
        !self.has(Object::Qp(qpn)) && self.engine().objects.owner(Object::Qp(qpn)).is_some()
    }

    fn groups(&mut self) -> &mut std::collections::BTreeSet<(u32, IpAddr)> {
        let session = self.session;
        &mut self.engine().session(session).expect("found when the view was made").groups
    }

    fn admits(&mut self, ask: Ask) -> Result<(), usize> {
        let session = self.session;
        self.engine().admits(session, ask)
    }

    pub(super) fn admits_object(&mut self, ask: Ask) -> Result<(), CreateError> {
        self.admits(ask).map_err(|limit| CreateError::Full { limit })
    }

    /// Notes an object that was made.
    pub(super) fn own(&mut self, object: Object) {
        self.own_of(object, 0, None);
    }

    fn own_of(&mut self, object: Object, amount: u64, lent: Option<u32>) {
        let session = self.session;
        self.engine().own(session, object, (amount, lent));
    }

    /// Notes that an object was destroyed, if it was.
    fn disown<E>(&mut self, object: Object, destroyed: Result<(), E>) -> Result<(), E> {
        if destroyed.is_ok() {
            self.engine().disown(object);
        }
        destroyed
    }

    /// Makes an object that counts as one of the others.
    fn make<T: Copy>(
        &mut self,
        kind: Kind,
        make: impl FnOnce(&mut Own) -> Result<T, CreateError>,
        object: impl FnOnce(T) -> Object,
    ) -> Result<T, CreateError> {
        self.admits_object(Ask::Other(kind))?;
        let made = make(self.driver)?;
        self.own(object(made));
        Ok(made)
    }

    fn destroy(
        &mut self,
        object: Object,
        destroy: impl FnOnce(&mut Own) -> Result<(), DestroyError>,
    ) -> Result<(), DestroyError> {
        if !self.has(object) {
            return Err(DestroyError::Unknown);
        }
        let destroyed = destroy(self.driver);
        self.disown(object, destroyed)
    }

    /// Takes memory of the arena for a ring, of which the client has said depth and stride.
    pub(super) fn take_ring(
        &mut self,
        ring: RingInit,
    ) -> Result<(Option<RingPlace>, RingInit), CreateError> {
        if !ring.is_valid() {
            return Err(CreateError::BadRing);
        }
        if ring.is_empty() {
            return Ok((None, RingInit { addr: 0, ..ring }));
        }
        let session = self.session;
        let taken = self.engine().take_ring(session, ring.len());
        let (place, addr) = taken.map_err(|_| CreateError::NoMemory { bytes: ring.len() })?;
        Ok((Some(place), RingInit { addr, ..ring }))
    }

    /// Has a completion queue that was made reach the session.
    fn export(&mut self, cq: u32, depth: u32) -> Result<(), CreateError> {
        let session = self.session;
        if self.engine().add_cq(session, cq, depth).is_err() {
            self.driver.nic.destroy_cq(cq).ok();
            return Err(CreateError::NoMemory { bytes: depth as usize * 64 });
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, rings: [Option<RingPlace>; 2]) {
        let session = self.session;
        for place in rings.into_iter().flatten() {
            self.engine().give_back(session, place.number);
        }
    }

    fn check_qp(&mut self, init: &QpInit) -> Result<(), CreateError> {
        self.admits_object(Ask::Qp)?;
        if !self.has(Object::Pd(init.pd)) {
            return Err(CreateError::UnknownPd);
        }
        if !self.has(Object::Cq(init.send_cq)) || !self.has(Object::Cq(init.recv_cq)) {
            return Err(CreateError::UnknownCq);
        }
        match init.srq {
            Some(srq) if !self.has(Object::Srq(srq)) => Err(CreateError::UnknownSrq),
            _ => Ok(()),
        }
    }

    /// The bus address of bytes that the session may register, and the number of the lent memory
    /// that they are in.
    fn bus(&mut self, bytes: &Bytes) -> Result<(u64, Option<u32>), RegMrError> {
        let session = self.session;
        match bytes.place {
            Place::Device(addr) => {
                let bus = self.engine().dm_bus(session, addr, bytes.len);
                Ok((bus.ok_or(RegMrError::Place)?, None))
            }
            Place::Arena(offset) if offset >= DATA as u64 => {
                let bus = self.engine().arena_bus(session, offset, bytes.len);
                Ok((bus.ok_or(RegMrError::Place)?, None))
            }
            Place::Lent { number, offset } => {
                let of = self.engine().session(session).ok_or(RegMrError::Place)?;
                let lent = of.lent.get(&number).ok_or(RegMrError::Place)?;
                Ok((lent.bus(offset, bytes.len).ok_or(RegMrError::Place)?, Some(number)))
            }
            _ => Err(RegMrError::Place),
        }
    }

    /// Are `len` bytes at `addr` within a piece of card memory of the session's?
    fn has_dm(&mut self, addr: u64, len: u64) -> bool {
        let session = self.session;
        self.engine().is_dm(session, addr, len)
    }

    fn bound_to(&mut self, to: Bound) -> Result<(), BindError> {
        let object = match to {
            Bound::Receive(qpn) | Bound::Send(qpn) => Object::Qp(qpn),
            Bound::Region(key) => Object::Mr(key),
        };
        if self.has(object) { Ok(()) } else { Err(BindError::Unknown) }
    }

    fn conn<R>(
        &mut self,
        conn: ConnId,
        act: impl FnOnce(&mut Own) -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        if !self.has(Object::Connection(conn)) {
            return Err(CommandError::UnknownConnection);
        }
        act(self.driver)
    }
}

impl Commands for Guarded<'_> {
    fn alloc_pd(&mut self) -> Result<Pd, CreateError> {
        self.make(Kind::Pd, |card| card.alloc_pd(), Object::Pd)
    }

    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), DestroyError> {
        self.destroy(Object::Pd(pd), |card| card.dealloc_pd(pd))
    }

    fn create_cq(&mut self, entries: usize) -> Result<u32, CreateError> {
        self.admits_object(Ask::Completions(entries as u64))?;
        let limit = self.driver.nic.config().max_cqe.min(DEPTH_MAX as usize);
        let depth = depth_for(entries).ok_or(CreateError::Size { limit })?;
        let cq = self.driver.nic.create_exported_cq(entries)?;
        self.export(cq, depth)?;
        self.own_of(Object::Cq(cq), entries as u64, None);
        Ok(cq)
    }

    fn create_counting_cq(&mut self, errors: usize) -> Result<u32, CreateError> {
        self.admits_object(Ask::Completions(errors as u64))?;
        let limit = self.driver.nic.config().max_cqe.min(DEPTH_MAX as usize);
        let depth = depth_for(errors).ok_or(CreateError::Size { limit })?;
        let cq = self.driver.nic.create_exported_counting_cq(errors)?;
        self.export(cq, depth)?;
        self.own_of(Object::Cq(cq), errors as u64, None);
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: u32) -> Result<(), DestroyError> {
        self.destroy(Object::Cq(cq), |card| card.destroy_cq(cq))?;
        self.engine().remove_cq(cq);
        Ok(())
    }

    fn resize_cq(&mut self, cq: u32, entries: usize) -> Result<(), ResizeCqError> {
        if !self.has(Object::Cq(cq)) {
            return Err(ResizeCqError::UnknownCq);
        }
        let before = self.engine().objects.amount(Object::Cq(cq));
        let more = (entries as u64).saturating_sub(before);
        self.admits(Ask::Entries(more)).map_err(|limit| ResizeCqError::Size { limit })?;
        let limit = self.driver.nic.config().max_cqe;
        let depth = depth_for(entries).ok_or(ResizeCqError::Size { limit })?;
        self.driver.resize_cq(cq, entries)?;
        let session = self.session;
        if let Err(refused) = self.engine().resize_cq(session, cq, depth) {
            // As before: what waits has fitted there.
            self.driver.resize_cq(cq, before as usize).ok();
            return Err(refused);
        }
        self.engine().disown(Object::Cq(cq));
        self.own_of(Object::Cq(cq), entries as u64, None);
        Ok(())
    }

    /// Sessions are notified by the engine, and not by the card.
    fn modify_cq(&mut self, cq: u32, moderation: Moderation) -> Result<(), PollCqError> {
        if !self.has(Object::Cq(cq)) {
            return Err(PollCqError::UnknownCq);
        }
        self.engine().moderate_cq(cq, moderation);
        Ok(())
    }

    fn cq_count(&mut self, cq: u32) -> Option<u64> {
        self.has(Object::Cq(cq)).then(|| self.driver.cq_count(cq))?
    }

    fn create_qp(&mut self, init: QpInit) -> Result<QpMade, CreateError> {
        self.check_qp(&init)?;
        let (send, sq) = self.take_ring(init.sq)?;
        let (recv, rq) = self.take_ring(init.rq).inspect_err(|_| self.give_back([send, None]))?;
        match self.driver.create_qp_in(QpInit { sq, rq, client: self.client(), ..init }) {
            Ok(made) => {
                self.own(Object::Qp(made.qpn));
                let (session, number) = (self.session, |place: RingPlace| place.number);
                self.engine().add_qp(session, made.qpn, send.map(number), recv.map(number));
                if !init.flags.is_empty() {
                    self.engine().set_managed(session, made.qpn);
                }
                let told = |place: Option<RingPlace>, ring| RingInit {
                    addr: place.map_or(0, RingPlace::to_addr),
                    ..ring
                };
                Ok(QpMade { sq: told(send, sq), rq: told(recv, rq), ..made })
            }
            Err(refused) => {
                self.give_back([send, recv]);
                Err(refused)
            }
        }
    }

    fn modify_qp(&mut self, qpn: u32, attr: QpAttr) -> Result<(), ModifyQpError> {
        if !self.has(Object::Qp(qpn)) {
            return Err(ModifyQpError::UnknownQp);
        }
        let resets = attr.state == Some(State::Reset);
        self.driver.modify_qp(qpn, attr)?;
        if resets {
            self.engine().reset_qp(qpn);
        } else {
            self.driver.take_posted(qpn);
        }
        Ok(())
    }

    fn query_qp(&mut self, qpn: u32) -> Option<QpInfo> {
        self.has(Object::Qp(qpn)).then(|| self.driver.query_qp(qpn))?
    }

    fn destroy_qp(&mut self, qpn: u32) -> Result<(), DestroyError> {
        if self.leaves(Object::Qp(qpn)) {
            return Ok(());
        }
        self.destroy(Object::Qp(qpn), |card| card.destroy_qp(qpn))?;
        self.engine().remove_qp(qpn);
        Ok(())
    }

    fn attach_mcast(&mut self, qpn: u32, group: IpAddr) -> Result<(), JoinError> {
        if !self.has(Object::Qp(qpn)) {
            return Err(McastError::UnknownQp.into());
        }
        let group = group_address(group).ok_or(McastError::Address)?;
        let session = self.session;
        self.engine().room_for_group(session, group).map_err(|limit| McastError::Full { limit })?;
        self.driver.attach_mcast(qpn, group)?;
        self.groups().insert((qpn, group));
        Ok(())
    }

    fn detach_mcast(&mut self, qpn: u32, group: IpAddr) -> Result<(), McastError> {
        if !self.has(Object::Qp(qpn)) {
            return Err(McastError::UnknownQp);
        }
        let group = group_address(group).ok_or(McastError::Address)?;
        self.driver.detach_mcast(qpn, group)?;
        self.groups().remove(&(qpn, group));
        Ok(())
    }

    fn detach_all(&mut self, qpn: u32) {
        if self.has(Object::Qp(qpn)) {
            self.driver.detach_all(qpn);
            self.groups().retain(|(member, _)| *member != qpn);
        }
    }

    fn settle(&mut self) {
        Own::settle(self.driver);
    }

    fn create_srq(&mut self, pd: Pd, ring: RingInit) -> Result<SrqMade, CreateError> {
        self.make_srq(pd, None, ring)
    }

    fn create_xrc_srq(
        &mut self,
        pd: Pd,
        xrcd: Xrcd,
        cq: u32,
        ring: RingInit,
    ) -> Result<SrqMade, CreateError> {
        self.make_srq(pd, Some((xrcd, cq)), ring)
    }

    fn resize_srq(&mut self, srq: u32, ring: RingInit) -> Result<RingInit, ResizeSrqError> {
        if !self.has(Object::Srq(srq)) {
            return Err(ResizeSrqError::UnknownSrq);
        }
        // The ring that the client posted to is left behind.
        self.driver.take_posted_srq(self.session, srq);
        let (place, inner) = self.take_ring(ring).map_err(|error| match error {
            CreateError::NoMemory { bytes } => ResizeSrqError::NoMemory { bytes },
            _ => ResizeSrqError::BadRing,
        })?;
        let Some(place) = place else { return Err(ResizeSrqError::BadRing) };
        if let Err(refused) = self.driver.resize_srq_in(srq, inner) {
            self.give_back([Some(place), None]);
            return Err(refused);
        }
        let session = self.session;
        let engine = self.engine();
        let indices = engine.srq_indices(srq);
        engine.set_srq(session, srq, place.number, indices);
        Ok(RingInit { addr: place.to_addr(), ..ring })
    }

    fn arm_srq(&mut self, srq: u32, limit: u32) -> Result<(), DestroyError> {
        if !self.has(Object::Srq(srq)) {
            return Err(DestroyError::Unknown);
        }
        self.driver.arm_srq(srq, limit)
    }

    fn query_srq(&mut self, srq: u32) -> Option<SrqInfo> {
        self.has(Object::Srq(srq)).then(|| self.driver.query_srq(srq))?
    }

    fn srq_number(&mut self, srq: u32) -> Option<u32> {
        self.has(Object::Srq(srq)).then(|| self.driver.srq_number(srq))?
    }

    fn destroy_srq(&mut self, srq: u32) -> Result<(), DestroyError> {
        self.destroy(Object::Srq(srq), |card| card.destroy_srq(srq))?;
        self.engine().remove_srq(srq);
        Ok(())
    }

    fn alloc_xrcd(&mut self) -> Result<Xrcd, CreateError> {
        self.make(Kind::Xrcd, |card| card.alloc_xrcd(), Object::Xrcd)
    }

    fn dealloc_xrcd(&mut self, xrcd: Xrcd) -> Result<(), DestroyError> {
        if self.leaves_xrcd(xrcd)? {
            return Ok(());
        }
        self.destroy(Object::Xrcd(xrcd), |card| card.dealloc_xrcd(xrcd))
    }

    fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<u32, CreateError> {
        self.make_target(xrcd)
    }

    fn open_xrc_target(&mut self, xrcd: Xrcd, qpn: u32) -> Result<(), CreateError> {
        self.open_target(xrcd, qpn)
    }

    fn has_pd(&mut self, pd: Pd) -> bool {
        self.has(Object::Pd(pd))
    }

    fn mr_range(&mut self, pd: Pd, key: Key) -> Option<(u64, u64)> {
        self.has(Object::Mr(key)).then(|| self.driver.mr_range(pd, key))?
    }

    fn dm_piece(&mut self, addr: u64) -> Option<(u64, u64)> {
        let session = self.session;
        self.engine().dm_piece(session, addr)
    }

    fn reg_mr(&mut self, pd: Pd, bytes: Bytes, access: Access) -> Result<Key, RegMrError> {
        if !self.has(Object::Pd(pd)) {
            return Err(RegMrError::UnknownPd);
        }
        let asked = self.admits(Ask::Region(amount_of(&bytes)));
        asked.map_err(|limit| RegMrError::Full { limit })?;
        let (bus, lent) = self.bus(&bytes)?;
        let key = self.driver.reg_mr_at(pd, bus, &bytes, access)?;
        self.own_of(Object::Mr(key), amount_of(&bytes), lent);
        let session = self.session;
        self.engine().record_region(session, &Entry::Region { key, pd, bytes, access });
        Ok(key)
    }

    fn rereg_mr(&mut self, key: Key, change: Change) -> Result<Key, RegMrError> {
        if !self.has(Object::Mr(key)) {
            return Err(RegMrError::UnknownKey);
        }
        if let Some(pd) = change.pd
            && !self.has(Object::Pd(pd))
        {
            return Err(RegMrError::UnknownPd);
        }
        let session = self.session;
        let before = self.engine().region(session, key);
        let recorded = before.map(|before| before.changed(&change));
        let Some(bytes) = change.bytes else {
            let same = self.driver.rereg_mr_at(key, 0, &change)?;
            self.engine().forget_region(session, key);
            recorded.iter().for_each(|entry| self.engine().record_region(session, entry));
            return Ok(same);
        };
        let asked = self.admits(Ask::Region(amount_of(&bytes)));
        asked.map_err(|limit| RegMrError::Full { limit })?;
        let (bus, lent) = self.bus(&bytes)?;
        let new = self.driver.rereg_mr_at(key, bus, &change)?;
        self.engine().disown(Object::Mr(key));
        self.own_of(Object::Mr(new), amount_of(&bytes), lent);
        recorded.iter().for_each(|entry| self.engine().record_region(session, entry));
        Ok(new)
    }

    fn alloc_null_mr(&mut self, pd: Pd) -> Result<Key, RegMrError> {
        if !self.has(Object::Pd(pd)) {
            return Err(RegMrError::UnknownPd);
        }
        self.admits(Ask::Region(0)).map_err(|limit| RegMrError::Full { limit })?;
        let key = self.driver.alloc_null_mr(pd)?;
        self.own(Object::Mr(key));
        Ok(key)
    }

    fn dereg_mr(&mut self, key: Key) -> Result<(), DestroyError> {
        self.destroy(Object::Mr(key), |card| card.dereg_mr(key))
    }

    fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<Key, RegMrError> {
        if !self.has(Object::Pd(pd)) {
            return Err(RegMrError::UnknownPd);
        }
        self.admits(Ask::Window).map_err(|limit| RegMrError::Full { limit })?;
        let key = self.driver.alloc_mw(pd, kind)?;
        self.own(window(key));
        Ok(key)
    }

    fn dealloc_mw(&mut self, key: Key) -> Result<(), DestroyError> {
        self.destroy(window(key), |card| card.dealloc_mw(key))
    }

    /// Card memory of a session is a piece of its user's, at the address that is returned; for a
    /// virtual machine, a part of its arena.
    fn alloc_dm(&mut self, len: u64) -> Result<u64, CreateError> {
        self.admits_object(Ask::Other(Kind::Dm))?;
        let session = self.session;
        let limit = self.engine().dm_room(session);
        match usize::try_from(len) {
            Ok(bytes) if bytes > 0 => {
                let taken = self.engine().take_part(session, bytes);
                let at = taken.ok_or(CreateError::NoMemory { bytes })?;
                self.own_of(Object::Dm(at), len, None);
                Ok(at)
            }
            _ => Err(CreateError::Size { limit }),
        }
    }

    fn free_dm(&mut self, addr: u64) -> Result<(), DestroyError> {
        if !self.has(Object::Dm(addr)) {
            return Err(DestroyError::Unknown);
        }
        let session = self.session;
        let engine = self.engine();
        let users =
            engine.session(session).and_then(|of| of.dm.get(&addr)).map_or(0, |of| of.users);
        if users > 0 {
            return Err(DestroyError::Busy { users });
        }
        engine.release_part(session, addr);
        engine.disown_of(session, Object::Dm(addr));
        Ok(())
    }

    fn read_dm(&mut self, addr: u64, len: usize) -> Result<Vec<u8>, MemoryFault> {
        let fault = MemoryFault { addr };
        if len > DM_COPY_MAX || !self.has_dm(addr, len as u64) {
            return Err(fault);
        }
        let session = self.session;
        let of = self.engine().session(session).ok_or(fault)?;
        let mut bytes = vec![0; len];
        of.card_bytes().read_at(addr as usize, &mut bytes).map_err(|_| fault)?;
        Ok(bytes)
    }

    fn write_dm(&mut self, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { addr };
        if !self.has_dm(addr, data.len() as u64) {
            return Err(fault);
        }
        let session = self.session;
        let of = self.engine().session(session).ok_or(fault)?;
        of.card_bytes().write_at(addr as usize, data).map_err(|_| fault)
    }

    fn create_ah(&mut self, pd: Pd, path: Path) -> Result<u32, CreateError> {
        if !self.has(Object::Pd(pd)) {
            return Err(CreateError::UnknownPd);
        }
        self.make(Kind::Ah, |card| card.create_ah(pd, path), Object::Ah)
    }

    fn destroy_ah(&mut self, ah: u32) -> Result<(), DestroyError> {
        self.destroy(Object::Ah(ah), |card| card.destroy_ah(ah))
    }

    fn loop_back(&mut self, a: u32, b: u32, access: Access) -> Result<(), ChainError> {
        if !self.has(Object::Qp(a)) || !self.has(Object::Qp(b)) {
            return Err(ChainError::UnknownQp);
        }
        self.driver.loop_back(a, b, access)?;
        self.driver.take_posted(a);
        self.driver.take_posted(b);
        Ok(())
    }

    fn set_chain_limits(&mut self, qpn: u32, limits: ChainLimits) -> Result<(), ChainError> {
        if !self.has(Object::Qp(qpn)) {
            return Err(ChainError::UnknownQp);
        }
        if let Some(budget) = limits.budget
            && !self.has(Object::Budget(budget))
        {
            return Err(ChainError::UnknownBudget);
        }
        self.driver.set_chain_limits(qpn, limits)
    }

    fn create_budget(&mut self, elements: u64) -> Result<u32, CreateError> {
        self.make(Kind::Budget, |card| card.create_budget(elements), Object::Budget)
    }

    fn refill_budget(&mut self, budget: u32) -> Result<(), ChainError> {
        if !self.has(Object::Budget(budget)) {
            return Err(ChainError::UnknownBudget);
        }
        self.driver.refill_budget(budget)
    }

    fn destroy_budget(&mut self, budget: u32) -> Result<(), DestroyError> {
        self.destroy(Object::Budget(budget), |card| card.destroy_budget(budget))
    }

    /// Nothing: steps of all sessions' chains would be seen.
    fn trace_chains(&mut self, _most: usize) {}

    fn poll_chain_step(&mut self) -> Option<ChainStep> {
        None
    }

    fn bind_kernel(&mut self, to: Bound, tap: u32) -> Result<(), BindError> {
        self.bound_to(to)?;
        let session = self.session;
        let of = self.engine().session(session).ok_or(BindError::Unknown)?;
        // The kernels of others are none of this session's.
        if !of.kernels.taps.contains_key(&tap) {
            return Err(BindError::Elsewhere);
        }
        self.driver.bind_kernel(to, tap)
    }

    fn unbind_kernel(&mut self, from: Bound) -> Result<u32, BindError> {
        self.bound_to(from)?;
        self.driver.unbind_kernel(from)
    }

    fn bound_kernel(&mut self, to: Bound) -> Option<u32> {
        self.bound_to(to).ok()?;
        self.driver.bound_kernel(to)
    }

    fn call_kernel(&mut self, qpn: u32, opcode: u64, call: &[u8]) -> Result<(), CallError> {
        if !self.has(Object::Qp(qpn)) {
            return Err(CallError::UnknownQp);
        }
        self.driver.call_kernel(qpn, opcode, call)
    }

    fn listen(&mut self, service: ServiceId, at: AddressScope) -> Result<ListenerId, ListenError> {
        self.admits(Ask::Other(Kind::Listener)).map_err(|_| ListenError::TooMany)?;
        let listener = self.driver.listen(service, at)?;
        self.own(Object::Listener(listener));
        Ok(listener)
    }

    fn unlisten(&mut self, listener: ListenerId) -> bool {
        let object = Object::Listener(listener);
        self.has(object) && {
            self.engine().disown(object);
            self.driver.unlisten(listener)
        }
    }

    fn connect(&mut self, request: ConnectRequest<'_>) -> Result<ConnId, ConnectError> {
        if self.admits(Ask::Other(Kind::Connection)).is_err() || self.is_foreign(request.local_qpn)
        {
            return Err(ConnectError::TooManyConnections);
        }
        let conn = self.driver.connect(request)?;
        self.own(Object::Connection(conn));
        Ok(conn)
    }

    fn accept(&mut self, conn: ConnId, params: AcceptParams<'_>) -> Result<(), CommandError> {
        if self.is_foreign(params.qpn) {
            return Err(CommandError::UnknownConnection);
        }
        self.conn(conn, |card| card.accept(conn, params))
    }

    fn establish(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        self.conn(conn, |card| card.establish(conn, data))
    }

    fn notify_established(&mut self, conn: ConnId) -> Result<(), CommandError> {
        self.conn(conn, |card| card.notify_established(conn))
    }

    fn reject(
        &mut self,
        conn: ConnId,
        reason: RejectReason,
        data: &[u8],
    ) -> Result<(), CommandError> {
        let rejected = self.conn(conn, |card| card.reject(conn, reason, data));
        self.disown(Object::Connection(conn), rejected)
    }

    fn mra(&mut self, conn: ConnId, service_timeout: u8) -> Result<(), CommandError> {
        self.conn(conn, |card| card.mra(conn, service_timeout))
    }

    fn disconnect(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        self.conn(conn, |card| card.disconnect(conn, data))
    }

    fn disconnect_reply(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        self.conn(conn, |card| card.disconnect_reply(conn, data))
    }

    fn destroy_connection(&mut self, conn: ConnId) -> Result<(), CommandError> {
        let destroyed = self.conn(conn, |card| card.destroy_connection(conn));
        self.disown(Object::Connection(conn), destroyed)
    }

    fn connection_state(&mut self, conn: ConnId) -> Option<ConnState> {
        self.has(Object::Connection(conn)).then(|| self.driver.connection_state(conn))?
    }

    fn resolve_sidr(&mut self, request: ResolveRequest<'_>) -> Result<SidrId, ResolveError> {
        self.admits(Ask::Other(Kind::Sidr)).map_err(|_| ResolveError::TooMany)?;
        let sidr = self.driver.resolve_sidr(request)?;
        self.own(Object::Sidr(sidr));
        Ok(sidr)
    }

    fn sidr_reply(&mut self, sidr: SidrId, answer: SidrAnswer<'_>) -> Result<(), SidrError> {
        if !self.has(Object::Sidr(sidr)) || self.is_foreign(answer.qpn) {
            return Err(SidrError::Unknown);
        }
        let replied = self.driver.sidr_reply(sidr, answer);
        // The card forgets a peer's question in time; one of the session's own is given up.
        if replied == Err(SidrError::Unknown) {
            self.driver.cancel_sidr(sidr).ok();
            self.engine().disown(Object::Sidr(sidr));
        }
        self.disown(Object::Sidr(sidr), replied)
    }

    fn cancel_sidr(&mut self, sidr: SidrId) -> Result<(), SidrError> {
        if !self.has(Object::Sidr(sidr)) {
            return Err(SidrError::Unknown);
        }
        let cancelled = self.driver.cancel_sidr(sidr);
        self.disown(Object::Sidr(sidr), cancelled)
    }

    /// What the session has made; of what is shared, nothing is told.
    fn in_use(&mut self) -> InUse {
        let session = self.session;
        self.engine().session(session).map_or(InUse::default(), |of| of.usage.in_use())
    }

    fn config(&mut self) -> Config {
        self.driver.config()
    }

    fn memory_use(&mut self) -> Vec<StructureUse> {
        let now = self.driver.now();
        self.engine().memory_use.get(now).unwrap_or_else(|| {
            let InUse { qps, cqs, srqs, .. } = self.driver.nic.in_use();
            let found = self.driver.memory_use();
            self.engine().memory_use.put(found, qps + cqs + srqs, now)
        })
    }

    fn card_counters(&mut self) -> CardCounters {
        self.driver.card_counters()
    }
}

/// What a region counts of the session's memory. One of all that a process has, or will have (an
/// implicit one, on demand), is no amount of memory.
fn amount_of(bytes: &Bytes) -> u64 {
    if bytes.len < ADDRESSES { bytes.len } else { 0 }
}
