//! [`Nic`]: the card as a value.
//!
//! Here are the commands on queue pairs, and the loop that gives ready ones their turns. The rest:
//!
//! - `receive`: judges what arrives, and hands it on.
//! - `shared`: doorbells, and what else an owner needs that writes and reads queues itself.
//! - Commands: `memory` (domains, regions, windows, address handles), `queues` (completion queues,
//!   shared receive queues), `multicast`, `xrc`, `chains`, `kernels`, `clients`, `connect`
//!   (connections by the communication manager), `restore` (objects that another card had).
//! - `local`: packets from the card to itself; `passes`: requests that it takes no part in.
//! - `look_ahead`: what the next packets and turns need is fetched side by side.
//! - `silence`: what its driver knows of peers that do not answer; `memory_use`: the memory that
//!   the card takes.
//! - `error`: errors that several commands share.

mod chains;
mod clients;
mod connect;
mod error;
mod kernels;
mod local;
mod look_ahead;
mod memory;
mod memory_use;
mod multicast;
mod passes;
mod queues;
mod receive;
mod restore;
mod shared;
mod silence;
mod xrc;

pub use crate::qp::PostError;
pub use crate::qp::{QpInfo, QpInit};
pub use crate::wire::multicast::{MULTICAST_QPN, group_address};
pub use error::{CreateError, DestroyError};
pub use kernels::{BindError, CallError};
pub use memory_use::StructureUse;
pub use multicast::McastError;
pub use passes::{Pass, PassEnd};
pub use queues::{ResizeSrqError, SrqInfo};

use local::HandOver;

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::card::Card;
use crate::chain::{ChainState, Mode, QpFlags, Queue};
use crate::client_rates::Clients;
use crate::cm::Cm;
use crate::config::Config;
use crate::counters::Counters;
use crate::env::Env;
use crate::event::Event;
use crate::incident::{Incident, Incidents};
use crate::kernel::{KernelState, Runner};
use crate::management;
use crate::memory::Memory;
use crate::memory::device::DeviceMemory;
use crate::memory::key::{Access, Pd};
use crate::memory::region::Regions;
use crate::multi_queue::MultiQueue;
use crate::numbered::{self, Numbered};
use crate::psn::Psn;
use crate::qp::state::{self, ModifyQpError, Mtu, QpAttr, State};
use crate::qp::{Cold, Qp, Qps, Requester, Responder, SendProgress, post};
use crate::queue::element::{self, RecvRequest, SendRequest};
use crate::queue::ring::Ring;
use crate::queue::sgl::SglPool;
use crate::queue::shared_receive::SharedReceiveQueue;
use crate::scheduler::Scheduler;
use crate::silence::Silent;
use crate::staging::Staging;
use crate::table::Table;
use crate::time::Time;
use crate::timers::Timers;
use crate::transmit::{Path, Transmit, TransmitBatch};
use crate::wire::icrc::IcrcChecker;
use crate::wire::{Bth, Dialect, Transport};

/// The card: a RoCE v2 network card as a plain value.
///
/// It has no clock, socket, thread, file or random source. Its methods are of four kinds:
///
/// 1. **Getters** take `&self` and change nothing: [`Nic::config`], [`Nic::counters`],
///    [`Nic::query_qp`]…
/// 2. **`handle_*`** say what happened to the card: [`Nic::handle_packets`],
///    [`Nic::handle_timeout`] and the doorbells.
/// 3. **Commands**, in the words of verbs: [`Nic::reg_mr`], [`Nic::create_qp`], [`Nic::modify_qp`],
///    [`Nic::post_send`], [`Nic::poll_cq`]… A command that fails has changed nothing.
/// 4. **`poll_*`** say what the card wants: [`Nic::poll_transmit`] packets to send,
///    [`Nic::poll_event`] events, [`Nic::poll_timeout`] the next wake-up.
///
/// After any `handle_*` or command the driver must poll, in this order: `poll_transmit` until it
/// returns that there is no more, `poll_event` until `None`, `poll_timeout`. Any number of calls of
/// the first three kinds may come between two polls, in any order: everything that becomes due is
/// kept, and leaves together (acknowledges coalesce, packets batch). Time must not run backwards
/// from call to call.
///
/// Memory is an argument ([`Memory`]) wherever the card reads or writes it. A packet to send only
/// refers to its payload: the driver must gather it before the next command that could deregister
/// it.
///
/// # Example
///
/// A WRITE from one queue pair to another of the same card, by a driver whose network is a slice of
/// bytes:
///
/// ```
/// use remora_nic::qp::{Mtu, QpAttr, State};
/// use remora_nic::queue::{
///     Completion, Data, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Status,
/// };
/// use remora_nic::wire::icrc::{Flow, Icrc};
/// use remora_nic::wire::{ICRC_LEN, ROCE_PORT, Transport};
/// use remora_nic::{
///     Access, Config, Datagram, Memory, MemoryFault, MrInit, Nic, PageTable, Path, PayloadRef,
///     Psn, QpFlags, QpInit, Time, TransmitBatch,
/// };
///
/// /// The memory that the card reaches, at bus addresses from 0 on.
/// struct Host(Vec<u8>);
///
/// impl Memory for Host {
///     fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
///         dst.copy_from_slice(&self.0[addr as usize..][..dst.len()]);
///         Ok(())
///     }
///     fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
///         self.0[addr as usize..][..src.len()].copy_from_slice(src);
///         Ok(())
///     }
///     // …and atomics, which this example has no use for.
/// #   fn compare_swap(&mut self, addr: u64, _: u64, _: u64) -> Result<u64, MemoryFault> {
/// #       Err(MemoryFault { addr })
/// #   }
/// #   fn fetch_add(&mut self, addr: u64, _: u64) -> Result<u64, MemoryFault> {
/// #       Err(MemoryFault { addr })
/// #   }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let address = [192, 0, 2, 1].into();
/// let (mut nic, mut host) = (Nic::new(Config::new(address), [7; 32]), Host(vec![0; 1 << 16]));
/// let (now, pd, cq) = (Time(0), nic.alloc_pd()?, nic.create_cq(16)?);
/// let (len, access) = (1 << 16, Access::all());
/// let pages = PageTable::contiguous(12, 0, len);
/// let rkey = nic.reg_mr(pd, MrInit { iova: 0, len, access, pages })?;
///
/// // Two queue pairs. Their rings are in the host's memory, of 16 elements of 64 bytes each.
/// let mut qps = [0; 2];
/// for (qpn, at) in qps.iter_mut().zip([0x1000, 0x2000]) {
///     let ring = |addr| RingInit { addr, depth: 16, stride: 64 };
///     *qpn = nic.create_qp(QpInit {
///         pd,
///         transport: Transport::Rc,
///         send_cq: cq,
///         recv_cq: cq,
///         srq: None,
///         sq: ring(at),
///         rq: ring(at + 0x800),
///         signal_all: false,
///         flags: QpFlags::empty(),
///         client: 0,
///     })?;
/// }
/// for (qpn, peer) in [(qps[0], qps[1]), (qps[1], qps[0])] {
///     let to_init =
///         QpAttr { state: Some(State::Init), access: Some(access), ..QpAttr::default() };
///     let to_receive = QpAttr {
///         state: Some(State::Rtr),
///         path: Some(Path::new(address, qpn)),
///         path_mtu: Some(Mtu::B1024),
///         dest_qp: Some(peer),
///         rq_psn: Some(Psn::new(0)),
///         max_dest_rd_atomic: Some(1),
///         min_rnr_timer: Some(1),
///         ..QpAttr::default()
///     };
///     let to_send = QpAttr {
///         state: Some(State::Rts),
///         sq_psn: Some(Psn::new(0)),
///         max_rd_atomic: Some(1),
///         timeout: Some(14),
///         retry_cnt: Some(7),
///         rnr_retry: Some(7),
///         ..QpAttr::default()
///     };
///     for attr in [to_init, to_receive, to_send] {
///         nic.modify_qp(now, &mut host, qpn, &attr)?;
///     }
/// }
///
/// let op = SendOp::Write { to: RemoteAddress { addr: 0x8000, rkey }, imm: None };
/// let (data, flags) = (Data::Inline(b"hello"), SendFlags::SIGNALED);
/// nic.post_send(&mut host, qps[0], &SendRequest { wr_id: 1, op, data, flags })?;
///
/// // The driver: takes packets from the card, seals them, and hands them to the card at their
/// // destination, until no card has more to send.
/// let mut batch = TransmitBatch::new();
/// loop {
///     batch.clear();
///     nic.poll_transmit(now, &mut host, &mut batch, 64);
///     if batch.is_empty() {
///         break;
///     }
///     for packet in batch.packets() {
///         let mut bytes = packet.header().to_vec();
///         match batch.payload(packet) {
///             PayloadRef::Segments(segments) => {
///                 for segment in segments {
///                     bytes.extend(&host.0[segment.addr as usize..][..segment.len as usize]);
///                 }
///             }
///             PayloadRef::Bytes(owned) => bytes.extend(owned),
///         }
///         bytes.resize(packet.datagram_len() - ICRC_LEN, 0); // padding
///         let (src_port, dst_port) = (ROCE_PORT, ROCE_PORT);
///         let flow = Flow { src: address, dst: address, src_port, dst_port };
///         bytes.extend(Icrc::start(&flow, 0, packet.datagram_len(), &bytes).finish());
///         let (src, dst, bytes) = (address, address, &bytes[..]);
///         let datagram = Datagram { src, src_port, dst, ip_id: None, tos: 0, bytes };
///         nic.handle_packets(now, &mut host, [datagram]);
///     }
/// }
///
/// let mut completions = [Completion::default(); 1];
/// assert_eq!(nic.poll_cq(cq, &mut completions)?, 1);
/// assert_eq!((completions[0].wr_id, completions[0].status), (1, Status::Success));
/// assert_eq!(&host.0[0x8000..0x8005], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Nic {
    card: Card,
    kernels: Runner,
    qps: Qps,
    device_memory: DeviceMemory,
    icrc: IcrcChecker,
    cm: Cm,
    hand_over: HandOver,
    /// Multicast groups, by address, and the queue pairs attached to them.
    groups: BTreeMap<IpAddr, Vec<u32>>,
}

/// Commands and getters.
impl Nic {
    /// A card. Its keys come from `seed`, which a live driver takes from the system's random
    /// source.
    pub fn new(config: Config, seed: [u8; 32]) -> Nic {
        let answers = config.max_qps.saturating_mul(usize::from(crate::qp::MAX_RD_ATOMIC));
        let mut rng = ChaCha8Rng::from_seed(seed);
        // What peers see of these numbers must not tell them what the keys come from: each kind has
        // a generator of its own.
        let cm_seed = rng.next_u64();
        let mut numbers = || ChaCha8Rng::from_rng(&mut rng);
        let (qpns, srqns) = (numbers(), numbers());
        Nic {
            qps: Numbered::new(config.max_qps, config.qpn_bits, qpns),
            device_memory: DeviceMemory::new(config.device_memory.clone()),
            icrc: IcrcChecker::new(),
            cm: Cm::new(config.cm, cm_seed).beside(config.neighbours.clone()),
            groups: BTreeMap::new(),
            kernels: Runner::NONE,
            hand_over: HandOver::default(),
            card: Card {
                pds: Table::new(config.max_pds),
                regions: Regions::new(config.translation_entries, config.max_mrs, config.max_mws),
                cqs: Table::new(config.max_cqs),
                completed: VecDeque::new(),
                srqs: Table::new(config.max_srqs),
                taken: VecDeque::new(),
                xrcds: Table::new(config.max_xrcds),
                xrc_srqs: Numbered::new(config.max_srqs, numbered::BITS, srqns),
                ahs: Table::new(config.max_ahs),
                outstanding: MultiQueue::new(config.max_outstanding),
                answers: MultiQueue::new(answers),
                sgls: SglPool::default(),
                scheduler: Scheduler::new(&config),
                late: Vec::new(),
                unsettled: None,
                timers: Timers::default(),
                silent: Silent::default(),
                cq_timers: Timers::default(),
                counters: Counters::default(),
                incidents: Incidents::default(),
                events: VecDeque::new(),
                rng,
                fetched: Vec::new(),
                kernel: KernelState::new(),
                chains: ChainState::new(config.max_budgets),
                clients: Clients::default(),
                staging: Staging::default(),
                passes_ended: Vec::new(),
                config,
            },
        }
    }

    /// The settings and limits that the card was made with.
    pub fn config(&self) -> &Config {
        &self.card.config
    }

    /// The counters of what has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.card.counters
    }

    /// How many queue pairs, regions and completion queues exist: for leak checks and `devinfo`.
    pub fn in_use(&self) -> InUse {
        InUse {
            qps: self.qps.len(),
            mrs: self.card.regions.len(),
            mws: self.card.regions.windows(),
            cqs: self.card.cqs.len(),
            srqs: self.card.srqs.len(),
            xrcds: self.card.xrcds.len(),
            mcast_groups: self.groups.len(),
            pds: self.card.pds.len(),
            ahs: self.card.ahs.len(),
            outstanding: self.card.outstanding.in_use(),
            answers: self.card.answers.in_use(),
            lists: self.card.sgls.in_use(),
            kernel_sends: self.card.kernel.in_flight,
            budgets: self.card.chains.budgets.len(),
        }
    }

    /// The communication manager, for its getters.
    pub fn cm(&self) -> &Cm {
        &self.cm
    }

    /// The communication manager, for its commands. Its messages leave by [`Nic::poll_transmit`],
    /// its events come by [`Nic::poll_event`]. The card calls its `handle_*` and `poll_*`; the
    /// driver must not.
    pub fn cm_mut(&mut self) -> &mut Cm {
        &mut self.cm
    }

    /// A random 24-bit PSN to start a connection with.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.card.rng.next_u32())
    }

    /// Makes a queue pair, in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CreateError::BadRing`] if a ring's sizes are not legal, or an XRC sender has a receive
    /// ring; [`CreateError::UnknownPd`] and [`CreateError::UnknownCq`] if there is no such object;
    /// [`CreateError::UnknownSrq`] if there is no such shared receive queue in the domain, it is
    /// one that peers name, or the queue pair is an XRC sender; [`CreateError::Full`] if the card
    /// has as many queue pairs as its limit.
    pub fn create_qp(&mut self, init: QpInit) -> Result<u32, CreateError> {
        let QpInit { pd, send_cq, recv_cq, srq, sq, rq, .. } = init;
        if !sq.is_valid() || !rq.is_valid() {
            return Err(CreateError::BadRing);
        }
        if self.card.pds.get(pd.0).is_none() {
            return Err(CreateError::UnknownPd);
        }
        if self.card.cqs.get(send_cq).is_none() || self.card.cqs.get(recv_cq).is_none() {
            return Err(CreateError::UnknownCq);
        }
        let xrc = init.transport == Transport::Xrc;
        let is_wrong = |s: &SharedReceiveQueue| s.pd != pd || s.xrc.is_some() || xrc;
        if srq.is_some_and(|h| self.card.srqs.get(h).is_none_or(is_wrong)) {
            return Err(CreateError::UnknownSrq);
        }
        // An XRC sender receives nothing.
        if xrc && !rq.is_empty() {
            return Err(CreateError::BadRing);
        }
        let qpn = self.insert_qp(init)?;
        self.count_users(qpn, 1);
        Ok(qpn)
    }

    /// Gives a queue pair a number.
    fn insert_qp(&mut self, init: QpInit) -> Result<u32, CreateError> {
        let QpInit { pd, transport, send_cq, recv_cq, srq, sq, rq, signal_all, flags, client } =
            init;
        let limit = self.qps.limit();
        let config = &self.card.config;
        let made = self.qps.insert_with(|qpn| Qp {
            qpn,
            pd,
            send_cq,
            recv_cq,
            srq: srq.unwrap_or(0),
            dest_qp: 0,
            sq: Ring::new(sq),
            rq: Ring::new(rq),
            tx: Requester::new(Psn::default(), config.window_packets),
            rx: Responder::new(Psn::default()),
            path: Path::new(config.address, qpn),
            mtu: Mtu::B1024 as u16,
            state: State::Reset,
            transport,
            dialect: Dialect::STANDARD,
            access: Access::empty(),
            mode: Mode::from_bits_truncate(flags.bits() & QpFlags::all().bits()),
            queued: false,
            signal_all,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            client,
            cold: Box::new(Cold::new()),
        });
        let qpn = made.ok_or(CreateError::Full { limit })?;
        if client != 0 {
            self.card.scheduler.share();
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.note_limits(&self.card);
            qp.follow(self.card.config.congestion, &self.card);
        }
        Ok(qpn)
    }

    /// Destroys a queue pair. Its work is forgotten without completions; completions that were
    /// delivered before stay.
    ///
    /// # Errors
    /// [`DestroyError::Unknown`] if there is no such queue pair, [`DestroyError::Busy`] if it is
    /// attached to a multicast group.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), DestroyError> {
        let groups = self.qps.get(qpn).ok_or(DestroyError::Unknown)?.cold.groups;
        if groups > 0 {
            return Err(DestroyError::Busy { users: groups });
        }
        self.count_users(qpn, -1);
        if let Some(mut qp) = self.qps.remove(qpn) {
            let cold = &qp.cold;
            let taps = u32::from(cold.receive_tap != 0) + u32::from(cold.send_tap != 0);
            self.card.kernel.taps -= taps;
            qp.set_limits(&mut self.card, None, Time::ZERO);
            qp.reset(&mut self.card, &mut self.kernels);
        }
        Ok(())
    }

    /// Changes a queue pair's attributes and state, by the table in [`crate::qp::state`].
    ///
    /// # Errors
    /// [`ModifyQpError::UnknownQp`] if there is no such queue pair, [`ModifyQpError::Range`] if a
    /// value is out of range, [`ModifyQpError::PrivilegedQkey`] if the Q_Key has its top bit set.
    /// By the table: [`ModifyQpError::Transition`] if the state cannot follow the current one,
    /// [`ModifyQpError::Missing`] if `attr` lacks what the transition needs,
    /// [`ModifyQpError::Extra`] if it has what the transition does not take.
    pub fn modify_qp(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        qpn: u32,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        let qp = self.qps.get_mut(qpn).ok_or(ModifyQpError::UnknownQp)?;
        let to = state::check(qp.service(), qp.state, attr)?;
        let env = &mut Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
        match connect::with_agreed(&self.cm, qp, to, attr) {
            Some(attr) => qp.modify(env, to, &attr),
            None => qp.modify(env, to, attr),
        }
        Ok(())
    }

    /// Takes a queue pair to ERROR on behalf of a driver whose client breaks the rules of its
    /// queues: its work is flushed, and [`Event::QpFatal`] is raised. In ERROR nothing happens.
    ///
    /// # Errors
    /// Only [`ModifyQpError::UnknownQp`].
    pub fn fail_qp(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        qpn: u32,
    ) -> Result<(), ModifyQpError> {
        let qp = self.qps.get_mut(qpn).ok_or(ModifyQpError::UnknownQp)?;
        if qp.state != State::Error {
            qp.fail(&mut Env { now, mem, card: &mut self.card, kernels: &mut self.kernels });
            self.card.events.push_back(Event::QpFatal(qpn));
        }
        Ok(())
    }

    /// The present properties of a queue pair.
    pub fn query_qp(&self, qpn: u32) -> Option<QpInfo> {
        self.qps.get(qpn).map(Qp::info)
    }

    /// What a queue pair's requests wait for.
    pub fn send_progress(&self, qpn: u32) -> Option<SendProgress> {
        self.qps.get(qpn).map(Qp::send_progress)
    }

    /// Posts a send request: writes its element into the ring and rings the doorbell.
    ///
    /// # Errors
    /// [`PostError::UnknownQueue`] if there is no such queue pair; [`PostError::State`] in RESET,
    /// INIT and RTR, unless the queue is managed; [`PostError::Full`] if the ring is full (that of
    /// a managed queue never is) or there is none; [`PostError::TooLong`] if the request has more
    /// entries or inline bytes than an element of the ring holds; [`PostError::Memory`] if the ring
    /// cannot be written.
    pub fn post_send(
        &mut self,
        mem: &mut dyn Memory,
        qpn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::UnknownQueue)?;
        let encode = |raw: &mut [u8]| element::encode_send(request, 0, raw);
        qp.post(&mut self.card, mem, Queue::Send, encode).map(|_| ())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`Nic::post_send`], but [`PostError::State`] only in RESET.
    pub fn post_recv(
        &mut self,
        mem: &mut dyn Memory,
        qpn: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::UnknownQueue)?;
        let encode = |raw: &mut [u8]| element::encode_recv(request, raw);
        qp.post(&mut self.card, mem, Queue::Recv, encode).map(|_| ())
    }

    /// Posts a receive request to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError::UnknownQueue`] if there is no such shared receive queue; [`PostError::Full`],
    /// [`PostError::TooLong`] and [`PostError::Memory`] as of [`Nic::post_send`].
    pub fn post_srq_recv(
        &mut self,
        mem: &mut dyn Memory,
        srq: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        let srq = self.card.srqs.get_mut(srq).ok_or(PostError::UnknownQueue)?;
        post(mem, &mut srq.ring, |raw| element::encode_recv(request, raw))
    }

    /// Notes that a protection domain has one object less.
    fn leave(&mut self, pd: Pd) {
        if let Some(domain) = self.card.pds.get_mut(pd.0) {
            domain.users -= 1;
        }
    }

    /// Adds `by` to the number of users of everything that a queue pair refers to.
    fn count_users(&mut self, qpn: u32, by: i32) {
        let Some(qp) = self.qps.get(qpn) else { return };
        let count = |users: &mut u32| *users = users.wrapping_add_signed(by);
        if let Some(xrcd) = qp.cold.xrcd {
            // An XRC target uses only its domain: the queues that its requests name are not its
            // own.
            if let Some(domain) = self.card.xrcds.get_mut(xrcd.0) {
                count(&mut domain.users);
            }
            return;
        }
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(queue) = self.card.cqs.get_mut(cq) {
                if by > 0 { queue.add_user(qp.pd) } else { queue.remove_user() }
            }
        }
        if let Some(srq) = self.card.srqs.get_mut(qp.srq) {
            count(&mut srq.users);
        }
        if let Some(domain) = self.card.pds.get_mut(qp.pd.0) {
            count(&mut domain.users);
        }
    }
}

/// Reports of what has happened to the card.
impl Nic {
    /// Acts on the acknowledge that came with the last request, if one did.
    #[inline(never)]
    fn settle(&mut self, now: Time, mem: &mut dyn Memory) {
        if let Some(unsettled) = self.card.unsettled
            && let Some(qp) = self.qps.get_mut(unsettled.qpn)
        {
            qp.settle(&mut Env { now, mem, card: &mut self.card, kernels: &mut self.kernels });
        }
        self.card.unsettled = None;
    }

    /// Does what is due at `now`: see [`Nic::poll_timeout`]. Calling it early or often does no
    /// harm.
    pub fn handle_timeout(&mut self, now: Time, mem: &mut dyn Memory) {
        self.settle(now, mem);
        if self.cm.poll_timeout() <= now {
            self.cm.handle_timeout(now);
        }
        while let Some((at, qpn)) = self.card.timers.pop(now) {
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            if self.card.timers.expire(&mut qp.tx.timer, qpn, at, now) {
                qp.handle_timeout(&mut Env {
                    now,
                    mem,
                    card: &mut self.card,
                    kernels: &mut self.kernels,
                });
            }
        }
        let qps = &self.qps;
        self.card.timers.sweep(|qpn, at| qps.get(qpn).is_some_and(|qp| qp.tx.timer.is_queued(at)));
        self.handle_cq_timeouts(now);
        self.handle_chain_timeouts(now);
        self.wake_clients(now);
        self.turn_kernels(now, mem);
    }

    /// Reports that the driver could not read the payload of `packet`, and has not sent it. The
    /// request that the packet is part of ends with an error, and so does the queue pair. If the
    /// packet answers a READ, the request is the peer's.
    pub fn handle_fault(&mut self, now: Time, mem: &mut dyn Memory, packet: &Transmit) {
        let Some(qp) = self.qps.get_mut(packet.qpn()) else { return };
        let Some(header) = packet.header().first_chunk() else { return };
        qp.handle_fault(
            &mut Env { now, mem, card: &mut self.card, kernels: &mut self.kernels },
            &Bth::parse(header),
        );
    }
}

/// What the card wants.
impl Nic {
    /// Adds packets to `batch` until it holds `limit` or nothing is ready. Returns whether more is
    /// ready. Ready queue pairs take turns (SRNIC §4.3).
    pub fn poll_transmit(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        batch: &mut TransmitBatch,
        limit: usize,
    ) -> bool {
        if let Some(unsettled) = &mut self.card.unsettled {
            let waited = core::mem::replace(&mut unsettled.waited, true);
            if waited || self.card.scheduler.is_idle() && !self.has_other_work() {
                self.settle(now, mem);
            }
        }
        self.turn_kernels(now, mem);
        let more = self.cm.has_mads()
            && management::transmit(&mut self.cm, &mut self.card.counters, batch, limit);
        let mut round = self.card.scheduler.round(limit);
        self.run_errands(now, mem);
        while batch.len() < limit
            && let Some(qpn) = round.next(&mut self.card.scheduler)
        {
            self.look_at_turns(mem);
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            qp.queued = false;
            if qp.mode.intersects(Mode::IN_CARD) {
                self.turn_in_card((now, &mut *mem), qpn, &mut round, batch);
            } else {
                let kernels = &mut self.kernels;
                let mut env = Env { now, mem: &mut *mem, card: &mut self.card, kernels };
                batch.set_sender(qpn);
                if qp.turn(&mut env, batch) {
                    qp.schedule(&mut self.card);
                }
            }
            if self.card.scheduler.is_shared() {
                self.card.scheduler.end_turn();
            }
            self.run_errands(now, mem);
        }
        batch.finish();
        let unsettled = self.card.unsettled.is_some();
        more || unsettled || !self.card.scheduler.is_idle() || self.kernels.due() == Time::ZERO
    }

    /// Is an acknowledge held back, as [`TransmitBatch::set_answering`] allows?
    pub fn has_late_acknowledges(&self) -> bool {
        !self.card.late.is_empty()
    }

    /// Makes the acknowledges due that are held back.
    pub fn release_acknowledges(&mut self) {
        while let Some(qpn) = self.card.late.pop() {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.release_acknowledge(&mut self.card);
            }
        }
    }

    /// Does [`Nic::poll_event`] or [`Nic::poll_incident`] have something? This is cheaper than to
    /// call both, which usually have nothing.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.card.events.is_empty() || self.cm.has_events() || !self.card.incidents.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.card.events.pop_front().or_else(|| self.cm.poll_event().map(Event::Cm))
    }

    /// The next incident: why a request was refused or failed. A driver need not take incidents.
    pub fn poll_incident(&mut self) -> Option<Incident> {
        self.card.incidents.pop()
    }

    /// Is a queue pair ready for a turn, or a management datagram to be sent?
    pub fn wants_transmit(&self) -> bool {
        !self.card.scheduler.is_idle() || self.card.unsettled.is_some() || self.has_other_work()
    }

    /// Is there work other than queue pairs' turns: the communication manager's, kernels', chains'?
    fn has_other_work(&self) -> bool {
        self.cm.has_mads()
            || !self.card.kernel.posted.is_empty()
            || !self.card.chains.errands.is_empty()
            || self.kernels.due() == Time::ZERO
    }

    /// Are a few acknowledges all that [`Nic::wants_transmit`] is about? They may wait a moment for
    /// a request, to leave behind it.
    pub fn wants_acknowledge_only(&self) -> bool {
        /// For more queue pairs the answer is no, as looking at each would take too long.
        const FEW: usize = 4;
        let quiet = |qpn: u32| {
            self.qps.get(qpn).is_none_or(|qp| qp.rx.pending == 0 && qp.sq.waiting() == 0)
        };
        let scheduler = &self.card.scheduler;
        let few = (1..=FEW).contains(&scheduler.ready_len());
        few && !self.has_other_work() && scheduler.ready().all(quiet)
    }

    /// When to call [`Nic::handle_timeout`] next: [`Time::NEVER`] if nothing waits. The time may be
    /// earlier than necessary.
    pub fn poll_timeout(&self) -> Time {
        let timers = self.card.timers.next().min(self.card.cq_timers.next());
        let timers = timers.min(self.card.chains.timers.next()).min(self.card.clients.next());
        timers.min(self.cm.poll_timeout()).min(self.kernels_due())
    }
}

/// How much of the card is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct InUse {
    /// Queue pairs.
    pub qps: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Memory windows.
    pub mws: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Multicast groups with members.
    pub mcast_groups: usize,
    /// Protection domains.
    pub pds: usize,
    /// Address handles.
    pub ahs: usize,
    /// Messages outstanding.
    pub outstanding: usize,
    /// Peers' READs and atomics that are kept to be answered, or answered again.
    pub answers: usize,
    /// Copies of scatter/gather lists.
    pub lists: usize,
    /// Messages of kernels not yet acknowledged.
    pub kernel_sends: usize,
    /// Budgets of chains.
    pub budgets: usize,
}
