//! A card of its own that runs one program, and shows what it does.
//!
//! This is the card itself, [`Nic`], over plain bytes: no socket, no thread, no clock. A client, if
//! the program has one, is a queue pair of the same card.

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
use super::load::{Made, Target, Wanted, load};
use super::plan::{Piece, Plan};
use super::program::{Kind, Layout, LinkError, Program, RegionAt};
use super::verb::{Class, Verb};

/// Messages from the client that may be under way.
const CLIENT_DEPTH: u32 = 16;
/// The longest message, each way.
const MESSAGE_MAX: u64 = 1 << 16;
const CLIENT_STRIDE: u32 = ELEMENT_LEN as u32;
/// Failed requests of a queue that are kept.
const FAILURES_KEPT: usize = 16;
/// Pages that regions are mapped by: 2 MiB, as memory is one piece.
const PAGE: u32 = 21;

/// Why a program was not set up, or a message not sent.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SetupError {
    /// See [`LinkError`].
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The card refuses a queue.
    #[error("the card refuses a queue: {0}")]
    Create(#[from] CreateError),
    /// The card refuses memory.
    #[error("the card refuses memory: {0}")]
    Register(#[from] RegMrError),
    /// The card refuses a loop-back.
    #[error("the card refuses to connect a queue pair to itself: {0}")]
    LoopBack(#[from] remora_nic::ChainError),
    /// The card refuses a request.
    #[error("the card refuses a request: {0}")]
    Post(#[from] PostError),
    /// The program has no client.
    #[error("the program has no receive queue, so nobody can send it anything")]
    NoClient,
    /// A message is too long.
    #[error("a message is at most {MESSAGE_MAX} bytes long")]
    Message,
}

/// Bytes that changed, or were written as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Address.
    pub addr: u64,
    /// Before.
    pub before: Vec<u8>,
    /// After.
    pub after: Vec<u8>,
}

/// What became of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was carried out.
    Done,
    /// It waits.
    Blocked,
    /// It ended, or will end, with an error.
    Failed(Status),
}

/// An element that was fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its queue.
    pub queue: QueueId,
    /// Its index, which counts up without end.
    pub index: u32,
    /// Its first bytes as they were fetched.
    pub element: [u8; ELEMENT_LEN],
    /// What it wrote.
    pub changes: Vec<Change>,
    /// What became of it.
    pub end: End,
}

/// A card that runs one program.
#[derive(Debug)]
pub struct ChainCard {
    nic: Nic,
    memory: Watched,
    layout: Layout,
    client: Option<Client>,
    batch: TransmitBatch,
    /// What memory was when the last step that was told had ended.
    before: Vec<u8>,
    kinds: Vec<Kind>,
    /// Slots of each ring, and bytes from one to the next.
    slots: Vec<(u32, u32)>,
    polled: u64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    qpn: u32,
    cq: u32,
    /// Out, then in, message by message.
    buffers: RegionAt,
    sent: u32,
}

/// Plain bytes; writes are noted.
#[derive(Debug)]
struct Watched {
    bytes: Vec<u8>,
    writes: Option<Vec<(u64, Vec<u8>)>>,
}

impl ChainCard {
    /// Sets a program up, with these bytes as its imports. It runs when [`ChainCard::poll`] is
    /// called.
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

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of memory; none if they are not there.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        let end = (addr as usize).saturating_add(len);
        self.memory.bytes.get(addr as usize..end).unwrap_or_default()
    }

    /// A word of memory; zero if it is not there.
    pub fn word(&self, addr: u64) -> u64 {
        self.bytes(addr, 8).try_into().map_or(0, u64::from_le_bytes)
    }

    /// Completions that a queue has counted.
    pub fn completions(&self, queue: QueueId) -> u64 {
        self.nic.cq_count(self.layout.queues[queue.0].cq).unwrap_or(0)
    }

    /// The host writes.
    pub fn set(&mut self, addr: u64, bytes: &[u8]) {
        let at = addr as usize;
        if let Some(to) = self.memory.bytes.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
            self.before[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The client sends a message.
    ///
    /// # Errors
    /// There is no client, or no room for the message.
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

    /// The answers that the client has received since the last call.
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

    /// Requests that have failed since the last call, and how. (Those behind them are flushed.)
    pub fn failures(&mut self) -> Vec<(QueueId, Label, Status)> {
        let mut failures = Vec::new();
        for (i, queue) in self.layout.queues.iter().enumerate() {
            let mut entries = [Completion::default(); FAILURES_KEPT];
            let polled = self.nic.poll_cq(queue.cq, &mut entries).unwrap_or(0);
            let failed = entries[..polled].iter().filter(|entry| entry.status != Status::Flushed);
            failures.extend(
                failed.map(|entry| (QueueId(i), Label(entry.wr_id as usize), entry.status)),
            );
        }
        failures
    }

    /// Lets the card work a bounded while; false when it has nothing to do.
    pub fn poll(&mut self) -> bool {
        self.polled += 1;
        self.batch.clear();
        self.nic.poll_transmit(Time(self.polled), &mut self.memory, &mut self.batch, 64)
    }

    /// Lets it work until it has nothing to do, or for so many polls. Returns whether it came to
    /// rest.
    pub fn run(&mut self, polls: usize) -> bool {
        (0..polls).any(|_| !self.poll())
    }

    /// As [`ChainCard::run`], and returns what was done step by step, `most` steps at most.
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

    /// Joins a step with the writes that are its own: as many bytes as its element says. What a
    /// client's SEND wrote, its receive element is said to have.
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

    /// Bytes that an element writes.
    fn writes_of(&self, step: &ChainStep, queue: Option<usize>) -> u64 {
        let element = &step.element;
        let opcode = u16::from_le_bytes([element[0], element[1]]);
        match Verb::parse(opcode).map(|verb| (verb, verb.class())) {
            Some((_, Class::Copy)) if element[8] & INLINE != 0 => u64::from(le32(element, 28)),
            Some((_, Class::Copy)) => {
                // Further entries lie behind what was told of the element.
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

/// The flag of elements that hold their data, in the first byte of the flags.
const INLINE: u8 = SendFlags::INLINE.bits() as u8;
/// Steps of one poll that are kept.
const STEPS_A_POLL: usize = 1 << 12;

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// A card without a host, whose memory is laid out by a plan.
struct Planned {
    nic: Nic,
    pd: Pd,
    plan: Plan,
    /// Memory, as far as it was written.
    bytes: Vec<u8>,
}

impl Planned {
    fn register(&mut self, piece: Piece) -> Result<RegionAt, RegMrError> {
        let Piece { addr, len } = piece;
        // A region of no bytes is none; the gap behind a piece is its own.
        let len = len.max(1);
        let pages = PageTable::contiguous(PAGE, addr, len);
        let init = MrInit { iova: addr, len, access: Access::all(), pages };
        Ok(RegionAt { addr, key: self.nic.reg_mr(self.pd, init)? })
    }

    /// A queue's ring, where it was laid.
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
        })
    }

    /// A client, connected to the program's queue pair `server`.
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
