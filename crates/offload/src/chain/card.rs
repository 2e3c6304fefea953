//! A card that runs one program and shows each step of it.
//!
//! The card is the live device's card, [`Nic`], over plain bytes: no socket, no thread, no clock.
//! If the program has a client, that client is a queue pair of the same card. [`load`](super::load)
//! says how a program gets its queues.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::queue::{Completion, Data, RecvRequest, RingInit, SendFlags, SendOp, Sge};
use remora_nic::queue::{ELEMENT_LEN, SendRequest, Status};
use remora_nic::wire::Transport;
use remora_nic::{
    Access, Calc, ChainStep, Config, CreateError, Memory, MemoryFault, MrInit, Nic, PageTable, Pd,
    PostError, QpFlags, QpInit, Queue, RegMrError, StepEnd, Time, TransmitBatch,
};
use thiserror::Error;

use super::element::{Label, QueueId, sge};
use super::link::{Layout, LinkError, RegionAt};
use super::load::{Made, Target, Wanted, load};
use super::plan::{Piece, Plan};
use super::program::{Kind, Program};
use super::verb::{Class, Verb};

/// Messages of the client that may be under way, in each direction.
const CLIENT_DEPTH: u32 = 16;
/// The longest message in bytes, in each direction.
const MESSAGE_MAX: u64 = 1 << 16;
const CLIENT_STRIDE: u32 = ELEMENT_LEN as u32;
/// Failed requests that each queue keeps for [`ChainCard::failures`].
const FAILURES_KEPT: usize = 16;
/// Page size that regions are mapped with, as a power of two: 2 MiB, since memory is one piece.
const PAGE: u32 = 21;

/// Why a program cannot be set up, or a message cannot be sent.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SetupError {
    /// The program cannot be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The card refuses to create a queue.
    #[error("the card refuses a queue: {0}")]
    Create(#[from] CreateError),
    /// The card refuses to register memory.
    #[error("the card refuses memory: {0}")]
    Register(#[from] RegMrError),
    /// The card refuses to connect a queue pair to itself.
    #[error("the card refuses to connect a queue pair to itself: {0}")]
    LoopBack(#[from] remora_nic::ChainError),
    /// The card refuses a request of the client.
    #[error("the card refuses a request: {0}")]
    Post(#[from] PostError),
    /// The program has no client.
    #[error("the program has no receive queue for messages: add a queue of kind `receive`")]
    NoClient,
    /// The message is longer than a client's buffer.
    #[error("a message is at most {MESSAGE_MAX} bytes long")]
    Message,
}

/// Bytes of memory that a step wrote, whether or not their values changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Address of the first byte.
    pub addr: u64,
    /// The bytes before the step.
    pub before: Vec<u8>,
    /// The bytes after the step.
    pub after: Vec<u8>,
}

/// How an element ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The card executed it.
    Done,
    /// The element waits, and the card tries it again later.
    Blocked,
    /// The element ended, or will end, with an error.
    Failed(Status),
}

/// One element that the card fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The element's queue.
    pub queue: QueueId,
    /// The element's index; indices count up without end.
    pub index: u32,
    /// The element's first bytes, as the card fetched them.
    pub element: [u8; ELEMENT_LEN],
    /// What the element wrote.
    pub changes: Vec<Change>,
    /// How the element ended.
    pub end: End,
}

/// A request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The queue that it ran in.
    pub queue: QueueId,
    /// Its name. A completion tells it by its `wr_id`: `None` if the program has changed that to
    /// what names no request of this queue.
    pub label: Option<Label>,
    /// Why it failed.
    pub status: Status,
}

/// A card that runs one program.
#[derive(Debug)]
pub struct ChainCard {
    nic: Nic,
    memory: Watched,
    layout: Layout,
    client: Option<Client>,
    batch: TransmitBatch,
    /// Memory after the last step that was reported.
    before: Vec<u8>,
    kinds: Vec<Kind>,
    /// By label: the request's queue.
    homes: Vec<Option<QueueId>>,
    /// By queue: the ring's slots, and the bytes from one slot to the next.
    slots: Vec<(u32, u32)>,
    polled: u64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    qpn: u32,
    cq: u32,
    /// Outgoing messages, then incoming ones, each in a buffer of [`MESSAGE_MAX`] bytes.
    buffers: RegionAt,
    sent: u32,
}

/// Plain bytes as the card's memory; records writes while a trace runs.
#[derive(Debug)]
struct Watched {
    bytes: Vec<u8>,
    writes: Option<Vec<(u64, Vec<u8>)>>,
}

impl ChainCard {
    /// Sets up `program` with `imports` as the memory it takes from outside. The program starts to
    /// run at the next [`ChainCard::poll`].
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(program: &Program, imports: &[&[u8]]) -> Result<ChainCard, SetupError> {
        Plan::check(program, imports.len())?;
        let mut nic = Nic::new(Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST)), [7; 32]);
        let pd = nic.alloc_pd()?;
        let plan = Plan::new(program, imports.iter().map(|import| import.len()));
        let mut target = Planned { nic, pd, plan, bytes: Vec::new() };
        let imported = target.plan.imports.clone();
        let imported = imported.into_iter().zip(imports).map(|(piece, bytes)| {
            let region = target.register(piece)?;
            target.write(region, bytes).map(|()| region)
        });
        let imported = imported.collect::<Result<_, _>>()?;
        let loaded = load(&mut target, program, imported)?;
        let client = loaded.client.map(|at| target.client(at.qpn)).transpose()?;
        let Planned { nic, mut bytes, plan, .. } = target;
        bytes.resize(plan.end as usize, 0);
        let queues = || program.queues().iter().enumerate();
        let slots =
            queues().map(|(i, queue)| (queue.depth(), program.stride(QueueId(i)))).collect();
        let mut card = ChainCard {
            nic,
            before: bytes.clone(),
            memory: Watched { bytes, writes: None },
            layout: loaded.layout.clone(),
            client,
            batch: TransmitBatch::new(),
            kinds: queues().map(|(_, queue)| queue.kind).collect(),
            homes: program.entries.iter().map(|entry| entry.at.map(|at| at.0)).collect(),
            slots,
            polled: 0,
        };
        card.post_receives()?;
        loaded.start(|qpn, queue, index| match queue {
            Queue::Send => card.nic.handle_send_doorbell(qpn, index),
            Queue::Recv => card.nic.handle_recv_doorbell(qpn, index),
        })?;
        Ok(card)
    }

    fn post_receives(&mut self) -> Result<(), SetupError> {
        let Some(client) = self.client else { return Ok(()) };
        for i in 0..u64::from(CLIENT_DEPTH) {
            let addr = client.buffers.addr + (u64::from(CLIENT_DEPTH) + i) * MESSAGE_MAX;
            let sge = Sge { addr, len: MESSAGE_MAX as u32, lkey: client.buffers.key };
            let request = RecvRequest { wr_id: i, sges: &[sge] };
            self.nic.post_recv(&mut self.memory, client.qpn, &request)?;
        }
        Ok(())
    }

    /// The addresses, keys and queue pair numbers of the program.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `len` bytes of memory at `addr`; an empty slice if they lie outside of it.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        let end = (addr as usize).saturating_add(len);
        self.memory.bytes.get(addr as usize..end).unwrap_or_default()
    }

    /// The 8-byte word at `addr`; 0 if it lies outside of memory.
    pub fn word(&self, addr: u64) -> u64 {
        self.bytes(addr, 8).try_into().map_or(0, u64::from_le_bytes)
    }

    /// The number of completions that the completion queue of `queue` has counted.
    pub fn completions(&self, queue: QueueId) -> u64 {
        self.nic.cq_count(self.layout.queues[queue.0].cq).unwrap_or(0)
    }

    /// Writes `bytes` at `addr`, as the host would. Does nothing if they lie outside of memory.
    pub fn set(&mut self, addr: u64, bytes: &[u8]) {
        let at = addr as usize;
        if let Some(to) = self.memory.bytes.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
            self.before[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Sends a message from the client to the program.
    ///
    /// # Errors
    /// The program has no client, the message is too long, or the client's queue is full.
    pub fn send(&mut self, message: &[u8]) -> Result<(), SetupError> {
        let Some(client) = &mut self.client else { return Err(SetupError::NoClient) };
        if message.len() as u64 > MESSAGE_MAX {
            return Err(SetupError::Message);
        }
        let slot = u64::from(client.sent % CLIENT_DEPTH);
        let addr = client.buffers.addr + slot * MESSAGE_MAX;
        client.sent = client.sent.wrapping_add(1);
        let sge = Sge { addr, len: message.len() as u32, lkey: client.buffers.key };
        let op = SendOp::Send { imm: None, to: None };
        let (data, flags) = (Data::Sges(&[sge]), SendFlags::SIGNALED);
        let request = SendRequest { wr_id: u64::MAX, op, data, flags };
        let qpn = client.qpn;
        self.set(addr, message);
        Ok(self.nic.post_send(&mut self.memory, qpn, &request)?)
    }

    /// The messages that the client has received since the last call.
    pub fn answers(&mut self) -> Vec<Vec<u8>> {
        let Some(client) = self.client else { return Vec::new() };
        let mut completions = [Completion::default(); CLIENT_DEPTH as usize];
        let polled = self.nic.poll_cq(client.cq, &mut completions).unwrap_or(0);
        let received = completions[..polled]
            .iter()
            .filter(|entry| entry.kind.is_receive() && entry.status == Status::Success);
        let mut answers = Vec::new();
        for entry in received {
            let slot = u64::from(CLIENT_DEPTH) + entry.wr_id;
            let addr = client.buffers.addr + slot * MESSAGE_MAX;
            answers.push(self.bytes(addr, entry.len as usize).to_vec());
            let sge = Sge { addr, len: MESSAGE_MAX as u32, lkey: client.buffers.key };
            let request = RecvRequest { wr_id: entry.wr_id, sges: &[sge] };
            if let Err(error) = self.nic.post_recv(&mut self.memory, client.qpn, &request) {
                debug_assert!(false, "a buffer that came back has room: {error}");
            }
        }
        answers
    }

    /// The requests that have failed since the last call. Requests that were flushed because an
    /// earlier one failed are not among them.
    pub fn failures(&mut self) -> Vec<Failure> {
        let mut failures = Vec::new();
        for queue in (0..self.layout.queues.len()).map(QueueId) {
            let mut entries = [Completion::default(); FAILURES_KEPT];
            let polled = self.nic.poll_cq(self.layout.queues[queue.0].cq, &mut entries);
            let entries = entries[..polled.unwrap_or(0)].iter();
            let failed = entries.filter(|entry| entry.status != Status::Flushed);
            failures.extend(failed.map(|entry| Failure {
                queue,
                label: self.label_in(queue, entry.wr_id),
                status: entry.status,
            }));
        }
        failures
    }

    /// The label that `wr_id` is the number of, if its request stands in `queue`.
    fn label_in(&self, queue: QueueId, wr_id: u64) -> Option<Label> {
        let label = usize::try_from(wr_id).ok()?;
        (*self.homes.get(label)? == Some(queue)).then_some(Label(label))
    }

    /// Lets the card work for a bounded time. Returns false if the card has nothing to do.
    pub fn poll(&mut self) -> bool {
        self.polled += 1;
        self.batch.clear();
        self.nic.poll_transmit(Time(self.polled), &mut self.memory, &mut self.batch, 64)
    }

    /// Calls [`ChainCard::poll`] at most `polls` times. Returns whether the card came to rest.
    pub fn run(&mut self, polls: usize) -> bool {
        (0..polls).any(|_| !self.poll())
    }

    /// Runs like [`ChainCard::run`], and returns at most `most` steps of what the card did.
    pub fn trace(&mut self, most: usize) -> Vec<Step> {
        self.nic.trace_chains(STEPS_A_POLL);
        self.memory.writes = Some(Vec::new());
        self.before.copy_from_slice(&self.memory.bytes);
        let mut steps = Vec::new();
        loop {
            let more = self.poll();
            let mut writes = self.memory.writes.replace(Vec::new()).unwrap_or_default().into_iter();
            while let Some(step) = self.nic.poll_chain_step() {
                self.tell(&step, &mut writes, &mut steps);
            }
            if !more || steps.len() >= most {
                break;
            }
        }
        self.memory.writes = None;
        self.nic.trace_chains(0);
        steps.truncate(most);
        steps
    }

    /// Adds a step with the writes that belong to it: as many bytes as its element says. What a
    /// SEND of the client wrote is added to the receive element that took it.
    fn tell(
        &mut self,
        step: &ChainStep,
        writes: &mut impl Iterator<Item = (u64, Vec<u8>)>,
        steps: &mut Vec<Step>,
    ) {
        let end = match step.end {
            StepEnd::Done | StepEnd::Issued => End::Done,
            StepEnd::Blocked => End::Blocked,
            StepEnd::Failed(status) => End::Failed(status),
        };
        let receives = step.queue == Queue::Recv;
        let queue = (0..self.kinds.len()).find(|&i| {
            self.layout.queues[i].qpn == step.qpn && (self.kinds[i] == Kind::Receive) == receives
        });
        let done = end == End::Done && !receives;
        let mut left = if done { self.writes_of(step, queue) } else { 0 };
        let mut changes = Vec::new();
        while left > 0 {
            let Some((addr, after)) = writes.next() else { break };
            left = left.saturating_sub(after.len() as u64);
            let at = addr as usize..addr as usize + after.len();
            let before = self.before[at.clone()].to_vec();
            self.before[at].copy_from_slice(&after);
            changes.push(Change { addr, before, after });
        }
        match (queue, steps.last_mut()) {
            (Some(queue), _) => {
                let queue = QueueId(queue);
                steps.push(Step { queue, index: step.index, element: step.element, changes, end });
            }
            (None, Some(last)) if self.kinds[last.queue.0] == Kind::Receive => {
                last.changes.extend(changes);
            }
            (None, _) => {}
        }
    }

    /// The number of bytes that an element writes.
    fn writes_of(&self, step: &ChainStep, queue: Option<usize>) -> u64 {
        let element = &step.element;
        let opcode = u16::from_le_bytes([element[0], element[1]]);
        match Verb::parse(opcode).map(|verb| (verb, verb.class())) {
            Some((_, Class::Copy)) if element[8] & INLINE != 0 => u64::from(le32(element, 28)),
            Some((_, Class::Copy)) => {
                // The trace holds the first entry only; the others are read from the ring.
                let slot = queue.map_or(0, |queue| self.slot(queue, step.index));
                let at = |i: u8| if i == 0 { None } else { Some(slot + sge(i) + 8) };
                let len = |i: u8| match at(i) {
                    None => u64::from(le32(element, 48)),
                    Some(at) => u64::from(le32(&self.before, at as usize)),
                };
                (0..element[11]).map(len).sum()
            }
            Some((_, Class::Atomic)) => 8 + 8 * u64::from(element[11]),
            _ => 0,
        }
    }

    fn slot(&self, queue: usize, index: u32) -> u64 {
        let (depth, stride) = self.slots[queue];
        self.layout.queues[queue].ring.addr + u64::from((index & (depth - 1)) * stride)
    }
}

/// The inline flag in the first byte of an element's flags: the element holds its data itself.
const INLINE: u8 = SendFlags::INLINE.bits() as u8;
/// Steps that the card keeps in one poll.
const STEPS_A_POLL: usize = 1 << 12;

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// A card without a host, with memory laid out by a plan.
struct Planned {
    nic: Nic,
    pd: Pd,
    plan: Plan,
    /// Memory, up to the last byte that was laid out.
    bytes: Vec<u8>,
}

impl Planned {
    fn register(&mut self, piece: Piece) -> Result<RegionAt, RegMrError> {
        let Piece { addr, len } = piece;
        // A region has at least one byte; the gap behind a piece belongs to no other piece.
        let len = len.max(1);
        let pages = PageTable::contiguous(PAGE, addr, len);
        let init = MrInit { iova: addr, len, access: Access::all(), pages };
        Ok(RegionAt { addr, key: self.nic.reg_mr(self.pd, init)? })
    }

    /// Registers a queue's ring at its planned place.
    fn ring(&mut self, wanted: Wanted) -> Result<(RingInit, RegionAt), RegMrError> {
        let Wanted { queue, depth, stride, .. } = wanted;
        let region = self.register(self.plan.rings[queue.index()])?;
        Ok((RingInit { addr: region.addr, depth, stride }, region))
    }

    fn create(
        &mut self,
        (send_cq, recv_cq): (u32, u32),
        (sq, rq): (RingInit, RingInit),
        flags: QpFlags,
    ) -> Result<u32, CreateError> {
        self.nic.create_qp(QpInit {
            pd: self.pd,
            transport: Transport::Rc,
            send_cq,
            recv_cq,
            srq: None,
            sq,
            rq,
            signal_all: false,
            flags,
            client: 0,
        })
    }

    /// Creates a client, connected to the program's queue pair `server`.
    fn client(&mut self, server: u32) -> Result<Client, SetupError> {
        let buffers = self.plan.piece(2 * u64::from(CLIENT_DEPTH) * MESSAGE_MAX);
        let buffers = self.register(buffers)?;
        let mut ring = || {
            let piece = self.plan.piece(u64::from(CLIENT_DEPTH * CLIENT_STRIDE));
            RingInit { addr: piece.addr, depth: CLIENT_DEPTH, stride: CLIENT_STRIDE }
        };
        let rings = (ring(), ring());
        let cq = self.nic.create_cq(4 * CLIENT_DEPTH as usize)?;
        let qpn = self.create((cq, cq), rings, QpFlags::empty())?;
        self.nic.loop_back(server, qpn, Access::empty())?;
        Ok(Client { qpn, cq, buffers, sent: 0 })
    }
}

impl Target for Planned {
    type Error = SetupError;

    fn counting_cq(&mut self) -> Result<u32, SetupError> {
        Ok(self.nic.create_counting_cq(FAILURES_KEPT)?)
    }

    fn data(&mut self, _len: usize) -> Result<RegionAt, SetupError> {
        Ok(self.register(self.plan.data)?)
    }

    fn queue_pair(
        &mut self,
        send: Option<Wanted>,
        recv: Option<Wanted>,
    ) -> Result<Made, SetupError> {
        let send_ring = send.map(|queue| self.ring(queue)).transpose()?;
        let recv_ring = recv.map(|queue| self.ring(queue)).transpose()?;
        let cq = |queue: Option<Wanted>| queue.or(send).or(recv).map_or(0, |queue| queue.cq);
        let flag = |queue: Option<Wanted>, flag| {
            if queue.is_some_and(|queue| queue.managed) { flag } else { QpFlags::empty() }
        };
        let flags = flag(send, QpFlags::MANAGED_SEND) | flag(recv, QpFlags::MANAGED_RECV);
        let init = |ring: Option<(RingInit, _)>| ring.map_or_else(RingInit::default, |ring| ring.0);
        let rings = (init(send_ring), init(recv_ring));
        let qpn = self.create((cq(send), cq(recv)), rings, flags)?;
        let region = |ring: Option<(_, RegionAt)>| ring.map(|ring| ring.1);
        Ok(Made { qpn, send: region(send_ring), recv: region(recv_ring) })
    }

    fn loop_back(&mut self, qpn: u32) -> Result<(), SetupError> {
        Ok(self.nic.loop_back(qpn, qpn, Access::all())?)
    }

    fn write(&mut self, region: RegionAt, bytes: &[u8]) -> Result<(), SetupError> {
        let at = region.addr as usize..region.addr as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(at.end), 0);
        self.bytes[at].copy_from_slice(bytes);
        Ok(())
    }
}

impl Watched {
    fn word(&mut self, addr: u64) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn replace(&mut self, addr: u64, with: impl FnOnce(u64) -> u64) -> Result<u64, MemoryFault> {
        let before = self.word(addr)?;
        self.write(addr, &with(before).to_le_bytes())?;
        Ok(before)
    }
}

impl Memory for Watched {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { addr };
        let end = (addr as usize).checked_add(dst.len()).ok_or(fault)?;
        dst.copy_from_slice(self.bytes.get(addr as usize..end).ok_or(fault)?);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let fault = MemoryFault { addr };
        let end = (addr as usize).checked_add(src.len()).ok_or(fault)?;
        self.bytes.get_mut(addr as usize..end).ok_or(fault)?.copy_from_slice(src);
        if let Some(writes) = &mut self.writes {
            writes.push((addr, src.to_vec()));
        }
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        self.replace(addr, |word| if word == compare { swap } else { word })
    }

    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        self.replace(addr, |word| word.wrapping_add(add))
    }

    fn calculate(&mut self, addr: u64, calc: Calc, operand: u64) -> Result<u64, MemoryFault> {
        self.replace(addr, |word| calc.of(word, operand))
    }
}
