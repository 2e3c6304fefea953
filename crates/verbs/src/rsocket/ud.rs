//! The queue pair of a datagram socket, its buffers and its completion queues.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use super::options::Sizes;
use super::stream::{Buffer, set_nonblocking};
use super::wire::{self, SLOT};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card::ListedCard;
use crate::ibverbs::{ah, channel, cq, poll, post, qp, recv};
use crate::rdmacm::{EINVAL, Errno, Result, connect, queue_pair};

/// Marks a work request as a receive.
const RECV: u64 = 1 << 63;
/// Bytes of the header (GRH) before a received datagram.
const GRH: usize = 40;
/// Completions taken at a time.
const BATCH: usize = 16;

/// The path to a queue pair of a peer.
#[derive(Debug)]
pub(super) struct Way {
    ah: *mut ibv_ah,
    pub(super) card: IpAddr,
    pub(super) qpn: u32,
}

// SAFETY: verbs check the handle.
unsafe impl Send for Way {}

impl Drop for Way {
    fn drop(&mut self) {
        ah::destroy_ah(self.ah);
    }
}

/// A queue pair for datagrams.
#[derive(Debug)]
pub(super) struct Endpoint {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    events: *mut ibv_comp_channel,
    pub(super) comp_fd: c_int,
    /// Is the completion queue armed: that of sends, that of receives?
    armed: [bool; 2],
    send: Option<Buffer>,
    recv: Option<Buffer>,
    free: Vec<usize>,
    /// The sends that were posted, and those of them that are done.
    posted: u64,
    done: u64,
    /// A send has failed, and has stopped the send queue.
    stopped: bool,
    /// Ways that no longer lead to a peer, kept until as many sends are done as were posted before:
    /// a send whose address handle is gone fails.
    retired: VecDeque<(u64, Way)>,
    slots: usize,
    inline: usize,
    /// The address of the queue pair's card, and the most that one of its packets carries.
    pub(super) card: IpAddr,
    mtu: usize,
}

// SAFETY: verbs check the handles.
unsafe impl Send for Endpoint {}

fn made<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() { Err(Errno::last()) } else { Ok(pointer) }
}

impl Endpoint {
    /// Makes a queue pair on a card.
    pub(super) fn new(card: &ListedCard, sizes: Sizes) -> Result<Endpoint> {
        let mut id = ptr::null_mut();
        // SAFETY: the id has room for the handle.
        let created = unsafe {
            connect::rdma_create_id(ptr::null_mut(), &mut id, ptr::null_mut(), RDMA_PS_UDP)
        };
        Errno::check(created)?;
        // From here on, a failure drops this value, which destroys what was made.
        let mut endpoint = Endpoint {
            id,
            qp: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            events: ptr::null_mut(),
            comp_fd: -1,
            armed: [false; 2],
            send: None,
            recv: None,
            free: Vec::new(),
            posted: 0,
            done: 0,
            stopped: false,
            retired: VecDeque::new(),
            slots: 0,
            inline: 0,
            card: card.address,
            mtu: card.mtu.bytes() as usize,
        };
        endpoint.fill(card.index, sizes)?;
        Ok(endpoint)
    }

    fn fill(&mut self, card: usize, sizes: Sizes) -> Result<()> {
        queue_pair::bind_to_card(self.id, card)?;
        // SAFETY: the socket's own id, bound to a card.
        let (context, pd) = unsafe { ((*self.id).verbs, (*self.id).pd) };
        self.events = made(channel::create_comp_channel(context))?;
        // SAFETY: the channel was just made.
        self.comp_fd = unsafe { (*self.events).fd };
        set_nonblocking(self.comp_fd)?;
        let bounded = |queue: u32, buffer: usize| (queue as usize).min(buffer / SLOT).max(4);
        let sends = bounded(sizes.send_queue, sizes.send_buffer);
        self.slots = bounded(sizes.recv_queue, sizes.recv_buffer);
        let queue = |entries: usize| {
            made(cq::create_cq(context, entries as c_int, ptr::null_mut(), self.events, 0))
        };
        (self.send_cq, self.recv_cq) = (queue(sends)?, queue(self.slots)?);
        self.send = Some(Buffer::new(pd, sends * SLOT, IBV_ACCESS_LOCAL_WRITE)?);
        self.recv = Some(Buffer::new(pd, self.slots * (GRH + SLOT), IBV_ACCESS_LOCAL_WRITE)?);
        self.free = (0..sends).collect();
        let mut init = ibv_qp_init_attr {
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            cap: ibv_qp_cap {
                max_send_wr: sends as u32,
                max_recv_wr: self.slots as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            qp_type: IBV_QPT_UD,
            sq_sig_all: 1,
            ..ibv_qp_init_attr::zeroed()
        };
        // SAFETY: the attributes live through the call.
        Errno::check(unsafe { queue_pair::rdma_create_qp(self.id, pd, &mut init) })?;
        // SAFETY: the socket's own id, which has a queue pair now.
        self.qp = unsafe { (*self.id).qp };
        self.inline = init.cap.max_inline_data.min(sizes.inline) as usize;
        (0..self.slots).try_for_each(|slot| self.post_recv(slot))
    }

    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives as long as this value.
        unsafe { (*self.qp).qp_num }
    }

    /// The path to a peer's queue pair, if this card can reach the peer's card.
    pub(super) fn way(&self, card: IpAddr, qpn: u32) -> Option<Way> {
        let alike =
            card.is_ipv4() == self.card.is_ipv4() && card.is_loopback() == self.card.is_loopback();
        if !alike || qpn == 0 {
            return None;
        }
        // SAFETY: the socket's own id.
        let pd = unsafe { (*self.id).pd };
        let ah = ah::create(pd, &queue_pair::address_vector(card, 0)).ok()?;
        Some(Way { ah, card, qpn })
    }

    /// Does a message of this length fit into a packet?
    pub(super) fn carries(&self, len: usize) -> bool {
        len <= self.mtu.min(SLOT)
    }

    /// Takes a way that is no longer used.
    pub(super) fn retire(&mut self, way: Way) {
        self.retired.push_back((self.posted, way));
        self.forget_ways();
    }

    fn forget_ways(&mut self) {
        while self.retired.front().is_some_and(|(after, _)| *after <= self.done) {
            self.retired.pop_front();
        }
    }

    pub(super) fn can_send(&self) -> bool {
        !self.stopped && !self.free.is_empty()
    }

    /// Sends a datagram: a header, then data. Call it only if [`Endpoint::can_send`].
    pub(super) fn send(&mut self, way: &Way, source: SocketAddr, data: &[u8]) -> Result<()> {
        let head = wire::datagram_header(source);
        let len = head.len() + data.len();
        let (slot, Some(send)) = (self.free.pop().ok_or(EINVAL)?, &self.send) else {
            return Err(EINVAL);
        };
        if !self.carries(len) {
            self.free.push(slot);
            return Err(Errno(libc::EMSGSIZE));
        }
        let at = send.byte(slot * SLOT);
        // SAFETY: the slot belongs to this endpoint, is not under way, and has room for both.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), at, head.len());
            ptr::copy_nonoverlapping(data.as_ptr(), at.add(head.len()), data.len());
        }
        let piece = ibv_sge { addr: at as u64, length: len as u32, lkey: send.keys().0 };
        let flags = if len <= self.inline { IBV_SEND_INLINE } else { 0 };
        self.post_send(way, slot, piece, flags)
    }

    /// Posts the send of a slot that was taken, which lies in `piece`.
    fn post_send(
        &mut self,
        way: &Way,
        slot: usize,
        mut piece: ibv_sge,
        flags: ibv_send_flags,
    ) -> Result<()> {
        let ud = ibv_send_wr_wr_ud { ah: way.ah, remote_qpn: way.qpn, remote_qkey: RDMA_UDP_QKEY };
        let mut request = ibv_send_wr {
            wr_id: slot as u64,
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: flags,
            wr: ibv_send_wr_wr { ud },
            ..ibv_send_wr::zeroed()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request and the piece live through the call; the memory of the piece is
        // registered, or the card does not find it.
        let posted = Errno::check(unsafe { post::post_send(self.qp, &mut request, &mut bad) });
        match posted {
            Ok(()) => self.posted += 1,
            Err(_) => self.free.push(slot),
        }
        posted
    }

    /// Handles completed sends. After one that has failed the card flushes those behind it, and
    /// then the queue is started again: what is lost is lost, as datagrams may be.
    fn on_sent(&mut self, sent: &[ibv_wc]) {
        self.free.extend(sent.iter().map(|wc| wc.wr_id as usize));
        self.done += sent.len() as u64;
        self.forget_ways();
        self.stopped |= sent.iter().any(|wc| wc.status != IBV_WC_SUCCESS);
        if self.stopped && self.done == self.posted {
            let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..ibv_qp_attr::zeroed() };
            if let Err(error) = qp::modify(self.qp, &attr, IBV_QP_STATE) {
                tracing::warn!(?error, "datagrams are lost: their queue pair has failed");
            }
            self.stopped = false;
        }
    }

    /// Fails a send, as if the memory that it names were gone.
    #[cfg(test)]
    pub(super) fn fail_a_send(&mut self, way: &Way) {
        let slot = self.free.pop().unwrap();
        self.post_send(way, slot, ibv_sge { addr: 8, length: 512, lkey: 0 }, 0).unwrap();
    }

    /// The state of the queue pair, once no sends are under way.
    #[cfg(test)]
    pub(super) fn state_at_rest(&self) -> Option<ibv_qp_state> {
        (self.done == self.posted).then(|| qp::query(self.qp).unwrap().0.qp_state)
    }

    fn post_recv(&self, slot: usize) -> Result<()> {
        let recv = self.recv.as_ref().ok_or(EINVAL)?;
        let addr = recv.byte(slot * (GRH + SLOT)) as u64;
        let mut piece = ibv_sge { addr, length: (GRH + SLOT) as u32, lkey: recv.keys().0 };
        let mut request = ibv_recv_wr {
            wr_id: RECV | slot as u64,
            sg_list: &raw mut piece,
            num_sge: 1,
            ..ibv_recv_wr::zeroed()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request lives through the call, the buffer as long as the queue pair.
        Errno::check(unsafe { recv::post_recv(self.qp, &mut request, &mut bad) })
    }

    /// Handles completed sends, and takes up to `room` datagrams; returns their number.
    pub(super) fn progress(
        &mut self,
        room: usize,
        mut arrived: impl FnMut(SocketAddr, Vec<u8>),
    ) -> usize {
        let mut done = [ibv_wc::zeroed(); BATCH];
        let mut poll = |cq, most: usize| -> Vec<ibv_wc> {
            // SAFETY: the endpoint's own queue, and no more entries than the call is told.
            let count = unsafe { poll::poll_cq(cq, most.min(BATCH) as c_int, done.as_mut_ptr()) };
            done[..usize::try_from(count).unwrap_or(0).min(BATCH)].to_vec()
        };
        let sent = poll(self.send_cq, BATCH);
        if !sent.is_empty() {
            self.on_sent(&sent);
        }
        let mut count = 0;
        for wc in poll(self.recv_cq, room) {
            let slot = (wc.wr_id & !RECV) as usize;
            let (Some(recv), IBV_WC_SUCCESS) = (&self.recv, wc.status) else { continue };
            let len = (wc.byte_len as usize).clamp(GRH, GRH + SLOT) - GRH;
            let mut bytes = vec![0; len];
            // SAFETY: the receive is complete, so the card no longer writes to the slot.
            unsafe {
                let from = recv.byte(slot * (GRH + SLOT) + GRH);
                ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
            }
            match wire::parse_datagram(&bytes) {
                Some((from, head)) => {
                    bytes.drain(..head);
                    arrived(from, bytes);
                    count += 1;
                }
                None => tracing::debug!("a datagram without the header of an rsocket"),
            }
            if let Err(error) = self.post_recv(slot) {
                tracing::debug!(?error, "cannot post a receive buffer for datagrams again");
            }
        }
        count
    }

    /// Arms the completion channel for the next completion; returns whether it has taken an event.
    /// The caller must then check once more for completions that came before.
    pub(super) fn arm(&mut self) -> bool {
        let mut taken = false;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the endpoint's own channel, and room for the results. It does not block.
        while unsafe { channel::get_cq_event(self.events, &mut cq, &mut context) } == 0 {
            channel::ack_cq_events(cq, 1);
            self.armed[usize::from(cq == self.recv_cq)] = false;
            taken = true;
        }
        for (armed, cq) in self.armed.iter_mut().zip([self.send_cq, self.recv_cq]) {
            // SAFETY: the endpoint's own queue.
            *armed = *armed || unsafe { cq::req_notify_cq(cq, 0) } == 0;
        }
        taken
    }

    /// The number of datagrams that may wait for the program.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        queue_pair::rdma_destroy_qp(self.id);
        for cq in [self.send_cq, self.recv_cq] {
            if !cq.is_null() {
                cq::destroy_cq(cq);
            }
        }
        if !self.events.is_null() {
            channel::destroy_comp_channel(self.events);
        }
        connect::rdma_destroy_id(self.id);
    }
}
