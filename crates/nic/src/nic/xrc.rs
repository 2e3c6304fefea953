//! Commands on XRC (InfiniBand annex A14): domains, shared receive queues that peers name, and
//! targets, which are the receiving ends of connections.
//!
//! A sender is a queue pair of service [`Transport::Xrc`] that [`Nic::create_qp`] makes. It posts
//! by [`Nic::post_xrc_send`].

use super::{CreateError, DestroyError, Nic, PostError, QpInit};
use crate::chain::QpFlags;
use crate::chain::Queue;
use crate::handles::{Domain, Xrcd};
use crate::memory::Memory;
use crate::memory::key::Pd;
use crate::queue::element::{self, SendRequest};
use crate::queue::ring::{Ring, RingInit};
use crate::queue::shared_receive::{SharedReceiveQueue, XrcSrq};
use crate::wire::Transport;

/// XRC.
impl Nic {
    /// Makes an XRC domain.
    ///
    /// # Errors
    /// [`CreateError::Full`] if the card has as many XRC domains as its limit.
    pub fn alloc_xrcd(&mut self) -> Result<Xrcd, CreateError> {
        let limit = self.card.config.max_xrcds;
        let made = self.card.xrcds.insert_with(|_| Domain { users: 0 });
        made.map(Xrcd).ok_or(CreateError::Full { limit })
    }

    /// Destroys an XRC domain.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such XRC domain, [`DestroyError::Busy`] if it still
    /// has objects.
    pub fn dealloc_xrcd(&mut self, xrcd: Xrcd) -> Result<(), DestroyError> {
        let users = self.card.xrcds.get(xrcd.0).ok_or(DestroyError::Unknown)?.users;
        if users > 0 {
            return Err(DestroyError::Busy { users });
        }
        self.card.xrcds.remove(xrcd.0);
        Ok(())
    }

    /// Makes a shared receive queue that peers name by its [`Nic::srq_number`]. Its elements
    /// complete into `cq`. Everything else is as for [`Nic::create_srq`].
    ///
    /// # Errors
    /// As [`Nic::create_srq`]; [`CreateError::UnknownXrcd`] and [`CreateError::UnknownCq`] if there
    /// is no such object.
    pub fn create_xrc_srq(
        &mut self,
        pd: Pd,
        xrcd: Xrcd,
        cq: u32,
        ring: RingInit,
    ) -> Result<u32, CreateError> {
        if !ring.is_valid() || ring.is_empty() {
            return Err(CreateError::BadRing);
        }
        let card = &mut self.card;
        let domain = card.pds.get_mut(pd.0).ok_or(CreateError::UnknownPd)?;
        let xrc_domain = card.xrcds.get_mut(xrcd.0).ok_or(CreateError::UnknownXrcd)?;
        let queue = card.cqs.get_mut(cq).ok_or(CreateError::UnknownCq)?;
        let limit = card.config.max_srqs.min(1 << 16);
        let srqn = card.xrc_srqs.insert_with(|_| 0).ok_or(CreateError::Full { limit })?;
        let xrc = Some(XrcSrq { xrcd, cq, srqn });
        let srq = SharedReceiveQueue::new(pd, Ring::new(ring), xrc);
        let Some(handle) = card.srqs.insert_with(|_| srq) else {
            card.xrc_srqs.remove(srqn);
            return Err(CreateError::Full { limit });
        };
        if let Some(named) = card.xrc_srqs.get_mut(srqn) {
            *named = handle;
        }
        domain.users += 1;
        xrc_domain.users += 1;
        queue.add_user(pd);
        Ok(handle)
    }

    /// The number by which peers name an XRC shared receive queue, 24 bits.
    pub fn srq_number(&self, srq: u32) -> Option<u32> {
        self.card.srqs.get(srq)?.xrc.map(|xrc| xrc.srqn)
    }

    /// Notes at the domain and the completion queue that an XRC shared receive queue is gone.
    pub(super) fn leave_xrc(&mut self, xrc: XrcSrq) {
        self.card.xrc_srqs.remove(xrc.srqn);
        if let Some(domain) = self.card.xrcds.get_mut(xrc.xrcd.0) {
            domain.users -= 1;
        }
        if let Some(queue) = self.card.cqs.get_mut(xrc.cq) {
            queue.remove_user();
        }
    }

    /// Makes an XRC target, in RESET. It has neither queues of its own nor a protection domain.
    /// Returns its number.
    ///
    /// # Errors
    /// [`CreateError::UnknownXrcd`] if there is no such XRC domain, [`CreateError::Full`] if the
    /// card has as many queue pairs as its limit.
    pub fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<u32, CreateError> {
        self.create_xrc_target_for(0, xrcd)
    }

    /// As [`Nic::create_xrc_target`], for a client: see [`QpInit::client`].
    ///
    /// # Errors
    /// As [`Nic::create_xrc_target`].
    pub fn create_xrc_target_for(&mut self, client: u16, xrcd: Xrcd) -> Result<u32, CreateError> {
        if self.card.xrcds.get(xrcd.0).is_none() {
            return Err(CreateError::UnknownXrcd);
        }
        // No handle is zero, so that these fields name no object.
        let init = QpInit {
            pd: Pd(0),
            transport: Transport::Xrc,
            send_cq: 0,
            recv_cq: 0,
            srq: None,
            sq: RingInit::default(),
            rq: RingInit::default(),
            signal_all: false,
            flags: QpFlags::empty(),
            client,
        };
        let qpn = self.insert_qp(init)?;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.cold.xrcd = Some(xrcd);
        }
        self.count_users(qpn, 1);
        Ok(qpn)
    }

    /// As [`Nic::post_send`], to the shared receive queue `srqn` of an XRC queue pair's peer.
    ///
    /// # Errors
    /// As [`Nic::post_send`].
    pub fn post_xrc_send(
        &mut self,
        mem: &mut dyn Memory,
        qpn: u32,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::UnknownQueue)?;
        let encode = |raw: &mut [u8]| element::encode_send(request, srqn, raw);
        qp.post(&mut self.card, mem, Queue::Send, encode).map(|_| ())
    }
}
