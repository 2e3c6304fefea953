//! A plain interpreter of chains: the reference that tests compare the card with.
//!
//! The interpreter knows queues, counts and a flat memory, and nothing of packets or time. Where
//! more than one queue can go on, a number from the caller chooses the next one, so that a test can
//! try any order.

use super::element::{Field, QueueId, sge};
use super::link::{Layout, LinkError, QueueAt, RegionAt};
use super::plan::{Piece, Plan};
use super::program::{Kind, Program};
use super::verb::Verb;

/// Elements of a plain queue that are fetched at once, as a card that prefetches does.
const PREFETCH: usize = 8;
const SIGNALED: u16 = 1;
const INLINE: u16 = 8;

/// Why an element failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The op-code does not exist, or this queue cannot execute it.
    Opcode,
    /// A key does not cover the memory, or the address of an atomic is not a multiple of 8.
    Memory,
    /// More local entries than fit the slot, or more data than the receiver takes.
    Length,
    /// A WAIT or ENABLE of a queue that does not exist, or past its end.
    Order,
}

/// How an element ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The interpreter executed it.
    Done,
    /// The element failed, and its queue has stopped.
    Failed(Fault),
}

/// One element that the interpreter executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The element's queue.
    pub queue: QueueId,
    /// The element's index; indices count up without end.
    pub index: u32,
    /// The element's slot, as it was fetched.
    pub element: Vec<u8>,
    /// Pieces of memory that the element changed: address and length in bytes.
    pub wrote: Vec<(u64, u32)>,
    /// How the element ended.
    pub end: End,
}

#[derive(Clone, Debug)]
struct Ring {
    at: QueueAt,
    kind: Kind,
    managed: bool,
    depth: u32,
    stride: u32,
    next: u32,
    enabled: u32,
    completed: u64,
    stopped: bool,
    /// Elements that are fetched but have not run.
    fetched: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    at: RegionAt,
    len: u64,
}

/// An interpreter with one program.
#[derive(Clone, Debug)]
pub struct Model {
    memory: Vec<u8>,
    layout: Layout,
    rings: Vec<Ring>,
    regions: Vec<Region>,
    /// Messages that wait for a receive element.
    inbox: Vec<Vec<u8>>,
    /// Messages that the program has sent to the client.
    sent: Vec<Vec<u8>>,
    wrote: Vec<(u64, u32)>,
    /// Managed queues fetch ahead, too: up to where they are enabled.
    ahead: bool,
}

impl Model {
    /// Sets up `program` with `imports` as the memory it takes from outside.
    ///
    /// # Errors
    /// The program cannot be linked.
    pub fn new(program: &Program, imports: &[&[u8]]) -> Result<Model, LinkError> {
        Plan::check(program, imports.len())?;
        let plan = Plan::new(program, imports.iter().map(|import| import.len()));
        let key = |i: usize| 0x100 + i as u32;
        let regions: Vec<Region> = (plan.pieces().enumerate())
            .map(|(i, Piece { addr, len })| Region { at: RegionAt { addr, key: key(i) }, len })
            .collect();
        let (rings, others) = regions.split_at(plan.rings.len());
        let queue = |(i, region): (usize, &Region)| QueueAt {
            qpn: 0x10 + i as u32,
            cq: 0x40 + i as u32,
            ring: region.at,
        };
        let layout = Layout {
            queues: rings.iter().enumerate().map(queue).collect(),
            data: others[0].at,
            imports: others[1..].iter().map(|region| region.at).collect(),
        };
        let image = program.link(&layout)?;
        let memory = plan.load(&image, imports);
        let rings = (program.queues().iter().enumerate())
            .map(|(i, queue)| Ring {
                at: layout.queues[i],
                kind: queue.kind,
                managed: queue.managed,
                depth: queue.depth(),
                stride: program.stride(QueueId(i)),
                next: 0,
                enabled: image.enabled[i],
                completed: 0,
                stopped: false,
                fetched: Vec::new(),
            })
            .collect();
        let (inbox, sent, wrote) = Default::default();
        Ok(Model { memory, layout, rings, regions, inbox, sent, wrote, ahead: false })
    }

    /// Has managed queues fetch all elements up to where they are enabled at once, as those of a
    /// card for which [`Order::Doorbell`](super::construct::Order) is.
    #[must_use]
    pub fn fetching_ahead(mut self) -> Model {
        self.ahead = true;
        self
    }

    /// The addresses, keys and queue pair numbers of the program.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `len` bytes of memory at `addr`.
    ///
    /// # Panics
    /// If they lie outside of memory.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        &self.memory[addr as usize..addr as usize + len]
    }

    /// The 8-byte word at `addr`.
    ///
    /// # Panics
    /// If it lies outside of memory.
    pub fn word(&self, addr: u64) -> u64 {
        u64::from_le_bytes(self.bytes(addr, 8).try_into().unwrap_or_default())
    }

    /// Writes `bytes` at `addr`, as the host would.
    pub fn set(&mut self, addr: u64, bytes: &[u8]) {
        self.memory[addr as usize..addr as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// Delivers a message from the client to the program.
    pub fn deliver(&mut self, message: &[u8]) {
        self.inbox.push(message.to_vec());
    }

    /// The messages that the program has sent to the client since the last call.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    /// Runs until no queue can go on, for at most `steps` steps, and returns the steps. `choose`
    /// gets the number of queues that can go on and returns the index of the one that does.
    pub fn run(&mut self, steps: usize, mut choose: impl FnMut(usize) -> usize) -> Vec<Step> {
        let mut done = Vec::new();
        while done.len() < steps {
            let able: Vec<usize> = (0..self.rings.len()).filter(|&i| self.is_able(i)).collect();
            if able.is_empty() {
                break;
            }
            let ring = able[choose(able.len()) % able.len()];
            done.push(self.step(ring));
        }
        done
    }

    /// Runs like [`Model::run`], taking the queues in turn.
    pub fn run_in_turn(&mut self, steps: usize) -> Vec<Step> {
        let mut turn = 0;
        self.run(steps, |_| {
            turn += 1;
            turn
        })
    }

    fn is_able(&self, i: usize) -> bool {
        let ring = &self.rings[i];
        let waits = ring.enabled.wrapping_sub(ring.next);
        if ring.stopped || waits == 0 || waits > 1 << 31 {
            return false;
        }
        if ring.kind == Kind::Receive {
            return !self.inbox.is_empty();
        }
        let slot = self.slot(i);
        let verb = Verb::parse(u16_at(&slot, 0));
        // A WAIT that cannot be executed fails instead of blocking.
        verb != Some(Verb::Wait) || self.waits_for(&slot).is_none_or(|(has, wants)| has >= wants)
    }

    fn waits_for(&self, slot: &[u8]) -> Option<(u64, u64)> {
        let cq = u32_at(slot, Field::Key.span().0);
        let ring = self.rings.iter().find(|ring| ring.at.cq == cq)?;
        Some((ring.completed, u64_at(slot, Field::Remote.span().0)))
    }

    /// The next element, as the interpreter fetches it.
    fn slot(&self, i: usize) -> Vec<u8> {
        let ring = &self.rings[i];
        ring.fetched.first().cloned().unwrap_or_else(|| self.in_memory(i, ring.next))
    }

    fn in_memory(&self, i: usize, index: u32) -> Vec<u8> {
        let ring = &self.rings[i];
        let at = ring.at.ring.addr + u64::from((index & (ring.depth - 1)) * ring.stride);
        self.bytes(at, ring.stride as usize).to_vec()
    }

    fn prefetch(&mut self, i: usize) {
        let ring = &self.rings[i];
        if ring.managed && !self.ahead || !ring.fetched.is_empty() {
            return;
        }
        let most = if ring.managed { u32::MAX } else { PREFETCH as u32 };
        let (first, end) = (ring.next, ring.next + (ring.enabled - ring.next).min(most));
        self.rings[i].fetched = (first..end).map(|index| self.in_memory(i, index)).collect();
    }

    fn step(&mut self, i: usize) -> Step {
        self.prefetch(i);
        let element = self.slot(i);
        self.wrote.clear();
        let index = self.rings[i].next;
        self.rings[i].next = index.wrapping_add(1);
        let end = match self.execute(i, &element) {
            Ok(()) => End::Done,
            Err(fault) => End::Failed(fault),
        };
        let ring = &mut self.rings[i];
        if !ring.fetched.is_empty() {
            ring.fetched.remove(0);
        }
        let waited = Verb::parse(u16_at(&element, 0)) == Some(Verb::Wait);
        if waited && !ring.managed {
            // Elements behind a WAIT are fetched again, since they may have changed meanwhile.
            ring.fetched.clear();
        }
        match end {
            End::Done => {
                let counts = u16_at(&element, Field::Flags.span().0) & SIGNALED != 0;
                ring.completed += u64::from(counts || ring.kind == Kind::Receive);
            }
            End::Failed(_) => ring.stopped = true,
        }
        let wrote = std::mem::take(&mut self.wrote);
        Step { queue: QueueId(i), index, element, wrote, end }
    }

    fn execute(&mut self, i: usize, slot: &[u8]) -> Result<(), Fault> {
        if self.rings[i].kind == Kind::Receive {
            let message = self.inbox.remove(0);
            return self.scatter(slot, &message);
        }
        let verb = Verb::parse(u16_at(slot, 0)).ok_or(Fault::Opcode)?;
        let (key, remote) = (u32_at(slot, 12), u64_at(slot, 16));
        match verb {
            Verb::Noop => Ok(()),
            Verb::Wait => self.waits_for(slot).map(|_| ()).ok_or(Fault::Order),
            Verb::Enable | Verb::EnableRecv => self.enable(verb, key, remote as u32),
            Verb::Send if self.rings[i].kind == Kind::Reply => {
                let bytes = self.gather(slot)?;
                self.sent.push(bytes);
                Ok(())
            }
            Verb::Write => {
                let bytes = self.gather(slot)?;
                self.store(remote, key, &bytes)
            }
            Verb::Read => {
                let len = pieces(slot)?.iter().map(|&(_, len, _)| u64::from(len)).sum();
                let bytes = self.load(remote, key, len)?;
                self.scatter(slot, &bytes)
            }
            Verb::Send | Verb::WriteImm => Err(Fault::Opcode),
            _ => self.change_word(verb, slot, remote, key),
        }
    }

    fn change_word(&mut self, verb: Verb, slot: &[u8], at: u64, key: u32) -> Result<(), Fault> {
        if !at.is_multiple_of(8) {
            return Err(Fault::Memory);
        }
        let before = u64_at(&self.load(at, key, 8)?, 0);
        let operand = u64_at(slot, Field::Operand.span().0);
        let after = match verb {
            Verb::CompareSwap => {
                let equal = before == u64_at(slot, Field::Compare.span().0);
                if equal { operand } else { before }
            }
            Verb::FetchAdd | Verb::Add => before.wrapping_add(operand),
            Verb::Max => before.max(operand),
            Verb::Min => before.min(operand),
            Verb::And => before & operand,
            Verb::Or => before | operand,
            Verb::Xor => before ^ operand,
            _ => return Err(Fault::Opcode),
        };
        if slot[11] > 0 && pieces(slot)?.iter().map(|piece| piece.1).sum::<u32>() != 8 {
            return Err(Fault::Length);
        }
        if after != before {
            self.store(at, key, &after.to_le_bytes())?;
        }
        if slot[11] > 0 { self.scatter(slot, &before.to_le_bytes()) } else { Ok(()) }
    }

    fn enable(&mut self, verb: Verb, qpn: u32, index: u32) -> Result<(), Fault> {
        let receives = verb == Verb::EnableRecv;
        let is_meant =
            |ring: &&mut Ring| ring.at.qpn == qpn && (ring.kind == Kind::Receive) == receives;
        let ring = self.rings.iter_mut().find(is_meant).ok_or(Fault::Order)?;
        let beyond = index.wrapping_sub(ring.next);
        let ahead = index.wrapping_sub(ring.enabled);
        if !ring.managed || (ahead <= 1 << 31 && beyond > ring.depth) {
            return Err(Fault::Order);
        }
        if ahead <= 1 << 31 {
            ring.enabled = index;
        }
        Ok(())
    }

    fn gather(&self, slot: &[u8]) -> Result<Vec<u8>, Fault> {
        if u16_at(slot, Field::Flags.span().0) & INLINE != 0 {
            let len = u32_at(slot, Field::Operand.span().0 + 4) as usize;
            return slot.get(40..40 + len).map(<[u8]>::to_vec).ok_or(Fault::Length);
        }
        let mut bytes = Vec::new();
        for (addr, len, key) in pieces(slot)? {
            bytes.extend_from_slice(&self.load(addr, key, u64::from(len))?);
        }
        Ok(bytes)
    }

    fn scatter(&mut self, slot: &[u8], mut bytes: &[u8]) -> Result<(), Fault> {
        for (addr, len, key) in pieces(slot)? {
            let (head, tail) = bytes.split_at(bytes.len().min(len as usize));
            self.store(addr, key, head)?;
            bytes = tail;
        }
        if bytes.is_empty() { Ok(()) } else { Err(Fault::Length) }
    }

    fn load(&self, addr: u64, key: u32, len: u64) -> Result<Vec<u8>, Fault> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.judge(addr, key, len)?;
        Ok(self.bytes(addr, len as usize).to_vec())
    }

    fn store(&mut self, addr: u64, key: u32, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.judge(addr, key, bytes.len() as u64)?;
        self.set(addr, bytes);
        self.wrote.push((addr, bytes.len() as u32));
        Ok(())
    }

    fn judge(&self, addr: u64, key: u32, len: u64) -> Result<(), Fault> {
        let region = self.regions.iter().find(|region| region.at.key == key);
        let region = region.ok_or(Fault::Memory)?;
        let from = addr.checked_sub(region.at.addr).ok_or(Fault::Memory)?;
        let end = from.checked_add(len).ok_or(Fault::Memory)?;
        if end <= region.len { Ok(()) } else { Err(Fault::Memory) }
    }
}

/// A slot's local entries: address, length in bytes, key.
fn pieces(slot: &[u8]) -> Result<Vec<(u64, u32, u32)>, Fault> {
    (0..slot[11])
        .map(|i| {
            let at = sge(i);
            let whole = i < 16 && at as usize + 16 <= slot.len().max(64);
            if !whole {
                return Err(Fault::Length);
            }
            Ok((u64_at(slot, at), u32_at(slot, at + 8), u32_at(slot, at + 12)))
        })
        .collect()
}

fn u16_at(bytes: &[u8], at: u64) -> u16 {
    u64_at(bytes, at) as u16
}

fn u32_at(bytes: &[u8], at: u64) -> u32 {
    u64_at(bytes, at) as u32
}

/// The little-endian word at `at`; bytes behind the end count as zero.
fn u64_at(bytes: &[u8], at: u64) -> u64 {
    let mut word = [0; 8];
    let from = bytes.get(at as usize..).unwrap_or_default();
    let len = from.len().min(8);
    word[..len].copy_from_slice(&from[..len]);
    u64::from_le_bytes(word)
}
