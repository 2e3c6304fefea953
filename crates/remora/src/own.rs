//! The embedded card: carries commands out on the card that this process drives.

use std::fs::File;
use std::net::IpAddr;

use remora_nic::cm::message::RejectReason;
use remora_nic::cm::service::ServiceId;
use remora_nic::cm::{
    AcceptParams, AddressScope, CommandError, ConnId, ConnState, ConnectError, ConnectRequest,
    ListenError, ListenerId, ResolveError, ResolveRequest, SidrAnswer, SidrError, SidrId,
};
use remora_nic::kernel::Bound;
use remora_nic::nic::{
    BindError, CallError, InUse, McastError, ResizeSrqError, SrqInfo, StructureUse,
};
use remora_nic::qp::{ModifyQpError, QpAttr, State};
use remora_nic::queue::{
    Completion, Moderation, PollCqError, RecvRequest, ResizeCqError, RingInit, SendRequest,
};
use remora_nic::{
    Access, ChainError, ChainLimits, ChainStep, Config, CreateError, DestroyError, Key, Memory,
    MemoryFault, MrChange, MrInit, MwType, PageTable, Path, Pd, PostError, QpInfo, QpInit, Queue,
    RegMrError, Time, Translation, Xrcd,
};

use crate::commands::{Bytes, CardCounters, Change, Commands, DM_COPY_MAX, Place, QpMade, SrqMade};
use crate::driver::Own;
use crate::memory::{Buffer, CHECKED, FileError};
use crate::multicast::refusal::JoinError;
use crate::news::{Concerned, News};
use crate::rings::RingsOf;

/// log2 of the bytes of a page of the card: one page holds what a process can map, so that a region
/// takes one entry of the card's translation memory.
pub(crate) const PAGE_SHIFT: u32 = 47;

/// What is fast: it takes no command.
impl Own {
    /// Posts a send request; `srqn` names the shared receive queue of an XRC peer.
    #[inline]
    pub(crate) fn post_xrc_send(
        &mut self,
        qpn: u32,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        self.nic.post_xrc_send(&mut self.memory, qpn, srqn, request)
    }

    /// Would as many more send requests be taken now?
    pub(crate) fn check_sends(&self, qpn: u32, count: usize) -> Result<(), PostError> {
        let info = self.nic.query_qp(qpn).ok_or(PostError::UnknownQueue)?;
        if matches!(info.state, State::Reset | State::Init | State::Rtr) {
            return Err(PostError::State(info.state));
        }
        let room = info.depths.0.saturating_sub(info.sends);
        if count <= room as usize { Ok(()) } else { Err(PostError::Full) }
    }

    /// Posts a receive request.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        qpn: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        self.nic.post_recv(&mut self.memory, qpn, request)
    }

    /// Posts a receive request to a shared receive queue.
    #[inline]
    pub(crate) fn post_srq_recv(
        &mut self,
        srq: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        self.nic.post_srq_recv(&mut self.memory, srq, request)
    }

    /// Writes an element's bytes into the next slot of a ring; returns its index.
    pub(crate) fn post_element(
        &mut self,
        qpn: u32,
        queue: Queue,
        raw: &[u8],
    ) -> Result<u32, PostError> {
        self.nic.post_element(&mut self.memory, qpn, queue, raw)
    }

    /// The index of the element that is written next.
    pub(crate) fn next_index(&self, qpn: u32, queue: Queue) -> Option<u32> {
        self.nic.next_index(qpn, queue)
    }

    /// Lets a queue run up to `index`.
    pub(crate) fn doorbell(&mut self, qpn: u32, queue: Queue, index: u32) -> Result<(), PostError> {
        match queue {
            Queue::Send => self.nic.handle_send_doorbell(qpn, index),
            Queue::Recv => self.nic.handle_recv_doorbell(qpn, index),
        }
    }

    /// Takes completions.
    #[inline]
    pub(crate) fn poll_cq(
        &mut self,
        cq: u32,
        out: &mut [Completion],
    ) -> Result<usize, PollCqError> {
        self.nic.poll_cq(cq, out)
    }

    /// Has the next completion announced.
    #[inline]
    pub(crate) fn req_notify_cq(
        &mut self,
        cq: u32,
        solicited_only: bool,
    ) -> Result<(), PollCqError> {
        self.nic.req_notify_cq(cq, solicited_only)
    }

    /// How many completions wait.
    #[inline]
    pub(crate) fn cq_len(&self, cq: u32) -> Option<usize> {
        self.nic.cq_len(cq)
    }

    /// Does the card want to send?
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.nic.wants_transmit()
    }

    /// When the card's next timer is due, a packet that was held on purpose, or a notification that
    /// another process has let wait.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Time {
        let mut due = self.nic.poll_timeout().min(self.departed.next());
        if self.arriving.is_some() {
            due = due.min(self.impaired_until());
        }
        self.engine.as_ref().map_or(due, |engine| due.min(engine.next_notice()))
    }

    /// Makes a file reachable for the card, to be registered.
    pub(crate) fn add_file(&mut self, file: File) -> Result<Place, FileError> {
        Ok(Place::File(self.memory.add_file(file)?))
    }

    /// Ends what [`Own::add_file`] began.
    pub(crate) fn remove_file(&mut self, place: Place) {
        if let Place::File(base) = place {
            self.memory.remove_file(base);
        }
    }
}

/// Commands on rings that the caller has made.
impl Own {
    /// As [`Commands::create_qp`], with the rings of `init`, which stay until the queue pair is
    /// destroyed.
    pub(crate) fn create_qp_in(&mut self, init: QpInit) -> Result<QpMade, CreateError> {
        let qpn = self.nic.create_qp(init)?;
        Ok(QpMade { qpn, psn: self.nic.random_psn(), sq: init.sq, rq: init.rq })
    }

    /// As [`Commands::create_srq`] and [`Commands::create_xrc_srq`], in the ring `ring`.
    pub(crate) fn create_srq_in(
        &mut self,
        pd: Pd,
        xrc: Option<(Xrcd, u32)>,
        ring: RingInit,
    ) -> Result<SrqMade, CreateError> {
        let srq = match xrc {
            None => self.nic.create_srq(pd, ring)?,
            Some((xrcd, cq)) => self.nic.create_xrc_srq(pd, xrcd, cq, ring)?,
        };
        Ok(SrqMade { srq, ring })
    }

    /// As [`Commands::resize_srq`], to the ring `ring`.
    pub(crate) fn resize_srq_in(&mut self, srq: u32, ring: RingInit) -> Result<(), ResizeSrqError> {
        self.nic.resize_srq(&mut self.memory, srq, ring)
    }

    /// As [`Commands::reg_mr`], of memory that is contiguous on the card's bus from `bus` on.
    pub(crate) fn reg_mr_at(
        &mut self,
        pd: Pd,
        bus: u64,
        bytes: &Bytes,
        access: Access,
    ) -> Result<Key, RegMrError> {
        let pages = self.pages(bus, bytes.len)?;
        self.nic.reg_mr(pd, MrInit { iova: bytes.iova, len: bytes.len, access, pages })
    }

    /// As [`Commands::rereg_mr`]; other bytes are contiguous on the card's bus from `bus` on.
    pub(crate) fn rereg_mr_at(
        &mut self,
        key: Key,
        bus: u64,
        change: &Change,
    ) -> Result<Key, RegMrError> {
        let translation = |bytes: &Bytes| {
            let pages = self.pages(bus, bytes.len)?;
            Ok::<_, RegMrError>(Translation { iova: bytes.iova, len: bytes.len, pages })
        };
        let translation = change.bytes.as_ref().map(translation).transpose()?;
        self.nic.rereg_mr(key, MrChange { pd: change.pd, access: change.access, translation })
    }

    /// The page table of a range of the bus. It is refused before it is made where it would be too
    /// large: a sparse file may be as long as the bus.
    pub(crate) fn pages(&self, bus: u64, len: u64) -> Result<PageTable, RegMrError> {
        let limit = self.nic.config().translation_entries;
        let needed = PageTable::entries_for(PAGE_SHIFT, bus, len) as usize;
        if needed > limit {
            return Err(RegMrError::TranslationFull { needed, used: 0, limit });
        }
        if bus.checked_add(len).is_none() {
            return Err(RegMrError::Pages);
        }
        Ok(PageTable::contiguous(PAGE_SHIFT, bus, len))
    }

    /// Memory for rings that follow each other.
    fn ring_memory(&mut self, rings: &mut [RingInit]) -> Result<Option<Buffer>, CreateError> {
        if rings.iter().any(|ring| !ring.is_valid()) {
            return Err(CreateError::BadRing);
        }
        let bytes = rings.iter().map(RingInit::len).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let memory = self.rings.make(bytes).map_err(|_| CreateError::NoMemory { bytes })?;
        let mut addr = memory.addr();
        for ring in rings {
            ring.addr = if ring.is_empty() { 0 } else { addr };
            addr += ring.len() as u64;
        }
        Ok(Some(memory))
    }

    /// Keeps the memory of rings if their queues were made, and gives it back otherwise.
    fn keep_rings(&mut self, of: Option<RingsOf>, memory: Option<Buffer>) {
        match (of, memory) {
            (Some(of), Some(memory)) => self.rings.keep(of, memory),
            (None, Some(memory)) => self.rings.give_back(memory),
            (_, None) => {}
        }
    }

    /// Makes a shared receive queue with a ring of its own.
    fn make_srq(
        &mut self,
        pd: Pd,
        xrc: Option<(Xrcd, u32)>,
        ring: RingInit,
    ) -> Result<SrqMade, CreateError> {
        let mut rings = [ring];
        let memory = self.ring_memory(&mut rings)?;
        let made = self.create_srq_in(pd, xrc, rings[0]);
        self.keep_rings(made.as_ref().ok().map(|made| RingsOf::Srq(made.srq)), memory);
        made
    }
}

/// The bus address of bytes that this process can reach by itself.
fn bus(place: Place) -> Result<u64, RegMrError> {
    match place {
        Place::Process(addr) | Place::Device(addr) => Ok(addr),
        Place::Checked(addr) => Ok(addr | CHECKED),
        Place::File(base) => Ok(base),
        Place::Arena(_) | Place::Lent { .. } => Err(RegMrError::Place),
    }
}

impl Concerned for Own {
    fn news(&mut self) -> &mut News {
        &mut self.news
    }
}

impl Commands for Own {
    fn alloc_pd(&mut self) -> Result<Pd, CreateError> {
        self.nic.alloc_pd()
    }

    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), DestroyError> {
        self.nic.dealloc_pd(pd)
    }

    fn create_cq(&mut self, entries: usize) -> Result<u32, CreateError> {
        self.nic.create_cq(entries)
    }

    fn create_counting_cq(&mut self, errors: usize) -> Result<u32, CreateError> {
        self.nic.create_counting_cq(errors)
    }

    fn destroy_cq(&mut self, cq: u32) -> Result<(), DestroyError> {
        self.nic.destroy_cq(cq)
    }

    fn resize_cq(&mut self, cq: u32, entries: usize) -> Result<(), ResizeCqError> {
        self.nic.resize_cq(cq, entries)
    }

    fn modify_cq(&mut self, cq: u32, moderation: Moderation) -> Result<(), PollCqError> {
        self.nic.modify_cq(cq, moderation)
    }

    fn cq_count(&mut self, cq: u32) -> Option<u64> {
        self.nic.cq_count(cq)
    }

    fn create_qp(&mut self, init: QpInit) -> Result<QpMade, CreateError> {
        let mut rings = [init.sq, init.rq];
        let memory = self.ring_memory(&mut rings)?;
        let made = self.create_qp_in(QpInit { sq: rings[0], rq: rings[1], ..init });
        self.keep_rings(made.as_ref().ok().map(|made| RingsOf::Qp(made.qpn)), memory);
        made
    }

    fn modify_qp(&mut self, qpn: u32, attr: QpAttr) -> Result<(), ModifyQpError> {
        if attr.state == Some(State::Reset) {
            Own::settle(self);
        }
        let now = self.now();
        self.nic.modify_qp(now, &mut self.memory, qpn, &attr)
    }

    fn query_qp(&mut self, qpn: u32) -> Option<QpInfo> {
        self.nic.query_qp(qpn)
    }

    fn destroy_qp(&mut self, qpn: u32) -> Result<(), DestroyError> {
        Own::settle(self);
        self.nic.destroy_qp(qpn)?;
        self.rings.remove(RingsOf::Qp(qpn));
        Ok(())
    }

    fn attach_mcast(&mut self, qpn: u32, group: IpAddr) -> Result<(), JoinError> {
        self.join_group(qpn, group)
    }

    fn detach_mcast(&mut self, qpn: u32, group: IpAddr) -> Result<(), McastError> {
        self.leave_group(qpn, group)
    }

    fn detach_all(&mut self, qpn: u32) {
        self.leave_all_groups(qpn);
    }

    fn settle(&mut self) {
        Own::settle(self);
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
        let mut rings = [ring];
        let memory = self.ring_memory(&mut rings).map_err(|error| match error {
            CreateError::NoMemory { bytes } => ResizeSrqError::NoMemory { bytes },
            _ => ResizeSrqError::BadRing,
        })?;
        let resized = self.resize_srq_in(srq, rings[0]);
        self.keep_rings(resized.is_ok().then_some(RingsOf::Srq(srq)), memory);
        resized.map(|()| rings[0])
    }

    fn arm_srq(&mut self, srq: u32, limit: u32) -> Result<(), DestroyError> {
        self.nic.arm_srq(srq, limit)
    }

    fn query_srq(&mut self, srq: u32) -> Option<SrqInfo> {
        self.nic.query_srq(srq)
    }

    fn srq_number(&mut self, srq: u32) -> Option<u32> {
        self.nic.srq_number(srq)
    }

    fn destroy_srq(&mut self, srq: u32) -> Result<(), DestroyError> {
        self.nic.destroy_srq(srq)?;
        self.rings.remove(RingsOf::Srq(srq));
        Ok(())
    }

    fn alloc_xrcd(&mut self) -> Result<Xrcd, CreateError> {
        self.nic.alloc_xrcd()
    }

    fn dealloc_xrcd(&mut self, xrcd: Xrcd) -> Result<(), DestroyError> {
        self.nic.dealloc_xrcd(xrcd)
    }

    fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<u32, CreateError> {
        self.nic.create_xrc_target(xrcd)
    }

    /// Nobody shares this card: all holders of a target are in this process.
    fn open_xrc_target(&mut self, _xrcd: Xrcd, _qpn: u32) -> Result<(), CreateError> {
        Err(CreateError::UnknownXrcd)
    }

    fn has_pd(&mut self, pd: Pd) -> bool {
        self.nic.has_pd(pd)
    }

    fn mr_range(&mut self, pd: Pd, key: Key) -> Option<(u64, u64)> {
        self.nic.mr_range(pd, key)
    }

    fn dm_piece(&mut self, addr: u64) -> Option<(u64, u64)> {
        self.nic.dm_piece(addr)
    }

    fn reg_mr(&mut self, pd: Pd, bytes: Bytes, access: Access) -> Result<Key, RegMrError> {
        self.reg_mr_at(pd, bus(bytes.place)?, &bytes, access)
    }

    fn rereg_mr(&mut self, key: Key, change: Change) -> Result<Key, RegMrError> {
        let bus = change.bytes.map_or(Ok(0), |bytes| bus(bytes.place))?;
        self.rereg_mr_at(key, bus, &change)
    }

    fn alloc_null_mr(&mut self, pd: Pd) -> Result<Key, RegMrError> {
        self.nic.alloc_null_mr(pd)
    }

    fn dereg_mr(&mut self, key: Key) -> Result<(), DestroyError> {
        self.nic.dereg_mr(key)
    }

    fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<Key, RegMrError> {
        self.nic.alloc_mw(pd, kind)
    }

    fn dealloc_mw(&mut self, key: Key) -> Result<(), DestroyError> {
        self.nic.dealloc_mw(key)
    }

    fn alloc_dm(&mut self, len: u64) -> Result<u64, CreateError> {
        self.nic.alloc_dm(len)
    }

    fn free_dm(&mut self, addr: u64) -> Result<(), DestroyError> {
        self.nic.free_dm(addr)
    }

    fn read_dm(&mut self, addr: u64, len: usize) -> Result<Vec<u8>, MemoryFault> {
        if len > DM_COPY_MAX || !self.nic.is_dm(addr, len as u64) {
            return Err(MemoryFault { addr });
        }
        let mut bytes = vec![0; len];
        self.memory.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    fn write_dm(&mut self, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        if !self.nic.is_dm(addr, data.len() as u64) {
            return Err(MemoryFault { addr });
        }
        self.memory.write(addr, data)
    }

    fn create_ah(&mut self, pd: Pd, path: Path) -> Result<u32, CreateError> {
        self.nic.create_ah(pd, path)
    }

    fn destroy_ah(&mut self, ah: u32) -> Result<(), DestroyError> {
        // Programs destroy the handle of their last datagram when it is posted.
        Own::settle(self);
        self.nic.destroy_ah(ah)
    }

    fn loop_back(&mut self, a: u32, b: u32, access: Access) -> Result<(), ChainError> {
        self.nic.loop_back(a, b, access)
    }

    fn set_chain_limits(&mut self, qpn: u32, limits: ChainLimits) -> Result<(), ChainError> {
        let now = self.now();
        self.nic.set_chain_limits(now, qpn, limits)
    }

    fn create_budget(&mut self, elements: u64) -> Result<u32, CreateError> {
        self.nic.create_budget(elements)
    }

    fn refill_budget(&mut self, budget: u32) -> Result<(), ChainError> {
        self.nic.refill_budget(budget)
    }

    fn destroy_budget(&mut self, budget: u32) -> Result<(), DestroyError> {
        self.nic.destroy_budget(budget)
    }

    fn trace_chains(&mut self, most: usize) {
        self.nic.trace_chains(most);
    }

    fn poll_chain_step(&mut self) -> Option<ChainStep> {
        self.nic.poll_chain_step()
    }

    fn bind_kernel(&mut self, to: Bound, tap: u32) -> Result<(), BindError> {
        self.nic.bind_kernel(to, tap)
    }

    fn unbind_kernel(&mut self, from: Bound) -> Result<u32, BindError> {
        self.nic.unbind_kernel(from)
    }

    fn bound_kernel(&mut self, to: Bound) -> Option<u32> {
        self.nic.bound_kernel(to)
    }

    fn call_kernel(&mut self, qpn: u32, opcode: u64, call: &[u8]) -> Result<(), CallError> {
        let now = self.now();
        self.nic.call_kernel(now, &mut self.memory, qpn, opcode, call)
    }

    fn listen(&mut self, service: ServiceId, at: AddressScope) -> Result<ListenerId, ListenError> {
        self.nic.cm_mut().listen_at(service, at)
    }

    fn unlisten(&mut self, listener: ListenerId) -> bool {
        self.nic.cm_mut().unlisten(listener)
    }

    fn connect(&mut self, request: ConnectRequest<'_>) -> Result<ConnId, ConnectError> {
        let now = self.now();
        self.nic.connect(now, &request)
    }

    fn accept(&mut self, conn: ConnId, params: AcceptParams<'_>) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.accept(now, conn, &params)
    }

    fn establish(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().establish(now, conn, data)
    }

    fn notify_established(&mut self, conn: ConnId) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().notify_established(now, conn)
    }

    fn reject(
        &mut self,
        conn: ConnId,
        reason: RejectReason,
        data: &[u8],
    ) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().reject(now, conn, reason, data)
    }

    fn mra(&mut self, conn: ConnId, service_timeout: u8) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().mra(now, conn, service_timeout)
    }

    fn disconnect(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().disconnect(now, conn, data)
    }

    fn disconnect_reply(&mut self, conn: ConnId, data: &[u8]) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().disconnect_reply(now, conn, data)
    }

    fn destroy_connection(&mut self, conn: ConnId) -> Result<(), CommandError> {
        let now = self.now();
        self.nic.cm_mut().destroy(now, conn)
    }

    fn connection_state(&mut self, conn: ConnId) -> Option<ConnState> {
        self.nic.cm().state(conn)
    }

    fn resolve_sidr(&mut self, request: ResolveRequest<'_>) -> Result<SidrId, ResolveError> {
        let now = self.now();
        self.nic.cm_mut().resolve_sidr(now, &request)
    }

    fn sidr_reply(&mut self, sidr: SidrId, answer: SidrAnswer<'_>) -> Result<(), SidrError> {
        let now = self.now();
        self.nic.cm_mut().sidr_reply(now, sidr, &answer)
    }

    fn cancel_sidr(&mut self, sidr: SidrId) -> Result<(), SidrError> {
        self.nic.cm_mut().cancel_sidr(sidr)
    }

    fn config(&mut self) -> Config {
        self.nic.config().clone()
    }

    fn in_use(&mut self) -> InUse {
        self.nic.in_use()
    }

    fn memory_use(&mut self) -> Vec<StructureUse> {
        let mut all = self.nic.memory_use();
        let (slots, bytes) = self.received.allocated();
        all.push(StructureUse::new("receive_buffer", slots, bytes));
        all.push(StructureUse::new("send_staging", 1, self.egress.allocated_bytes()));
        all
    }

    fn card_counters(&mut self) -> CardCounters {
        CardCounters { card: *self.nic.counters(), management: *self.nic.cm().counters() }
    }
}
