//! A plain interpreter of chains, which the card is compared with.
//!
//! It knows queue pairs that are connected to themselves, over a small memory with one region, and
//! decides what the card must do: the bytes that change, the completions, and the order in which
//! queues take turns. It follows the documentation (`docs/chains.md`), shares no code with the
//! card, and is not optimised.

use std::collections::VecDeque;

use remora_nic::queue::Status;

/// Elements of one queue that run in one turn.
const TURN: u32 = 8;
/// Elements that run in one poll.
const POLL: u32 = 256;
/// Bytes that are moved in one turn.
const BYTES: u32 = 16 << 10;
const SLOT: usize = 64;
const SIGNALED: u16 = 1;
const INLINE: u16 = 8;

/// A completion: `wr_id`, status, and whether it is of a receive request.
pub(crate) type Entry = (u64, Status, bool);

/// A ring of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) base: usize,
    pub(crate) depth: u32,
    pub(crate) managed: bool,
    /// Elements that the owner has written.
    written: u32,
    /// The index up to which elements are posted or enabled.
    posted: u32,
    fetched: u32,
}

impl Ring {
    pub(crate) fn new(base: usize, depth: u32, managed: bool) -> Ring {
        Ring { base, depth, managed, written: 0, posted: 0, fetched: 0 }
    }

    fn waiting(&self) -> u32 {
        self.posted.wrapping_sub(self.fetched)
    }

    fn slot(&self, index: u32) -> usize {
        self.base + (index % self.depth) as usize * SLOT
    }
}

/// A queue pair, and the completion queue that both its queues use.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) qpn: u32,
    pub(crate) cq: u32,
    pub(crate) send: Ring,
    pub(crate) recv: Ring,
    failed: bool,
    ready: bool,
    count: u64,
    /// Queues that wait for this queue's completions; `wake_at` is the lowest count that one waits
    /// for.
    waiting: Vec<usize>,
    wake_at: u64,
    pub(crate) entries: Vec<Entry>,
}

impl Queue {
    pub(crate) fn new(qpn: u32, cq: u32, send: Ring, recv: Ring) -> Queue {
        let (failed, ready, count, waiting) = (false, false, 0, Vec::new());
        let (wake_at, entries) = (u64::MAX, Vec::new());
        Queue { qpn, cq, send, recv, failed, ready, count, waiting, wake_at, entries }
    }
}

/// The interpreter of a whole card.
#[derive(Debug)]
pub(crate) struct Interpreter {
    pub(crate) memory: Vec<u8>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) key: u32,
    turns: VecDeque<usize>,
    to_wake: VecDeque<usize>,
    /// Bytes that may still be moved in this turn.
    bytes: u32,
}

/// What a turn does after it has run an element.
enum After {
    Next,
    Blocked,
    Failed(Status),
}

use After::{Blocked, Failed, Next};

impl Interpreter {
    pub(crate) fn new(memory: Vec<u8>, queues: Vec<Queue>, key: u32) -> Interpreter {
        let (turns, to_wake) = (VecDeque::new(), VecDeque::new());
        let mut all = Interpreter { memory, queues, key, turns, to_wake, bytes: 0 };
        (0..all.queues.len()).for_each(|q| all.schedule(q));
        all
    }

    /// The owner writes an element; returns false if the ring is full.
    pub(crate) fn post(&mut self, q: usize, recv: bool, raw: &[u8]) -> bool {
        let queue = &mut self.queues[q];
        let failed = queue.failed;
        let ring = if recv { &mut queue.recv } else { &mut queue.send };
        let at = if ring.managed { ring.written } else { ring.posted };
        if !ring.managed && ring.waiting() >= ring.depth {
            return false;
        }
        let slot = ring.slot(at);
        ring.written = at.wrapping_add(1);
        if !ring.managed {
            ring.posted = ring.written;
            if recv {
                self.to_wake.push_back(q);
            }
            if !recv || failed {
                self.schedule(q);
            }
        }
        self.memory[slot..slot + raw.len()].copy_from_slice(raw);
        true
    }

    /// The owner enables a managed queue; returns false if that is refused.
    pub(crate) fn enable_by_owner(&mut self, q: usize, recv: bool, index: u32) -> bool {
        let ring = if recv { &self.queues[q].recv } else { &self.queues[q].send };
        ring.managed && self.enable(q, recv, index)
    }

    /// Runs one poll.
    pub(crate) fn poll(&mut self) {
        let mut turns = self.turns.len().max(64);
        let mut left = POLL;
        self.wake();
        while turns > 0 && left > 0 {
            turns -= 1;
            let Some(q) = self.turns.pop_front() else { break };
            self.queues[q].ready = false;
            let (again, ran) = self.turn(q);
            left = left.saturating_sub(ran);
            if again {
                self.schedule(q);
            }
            self.wake();
        }
    }

    fn wake(&mut self) {
        while let Some(q) = self.to_wake.pop_front() {
            self.schedule(q);
        }
    }

    fn schedule(&mut self, q: usize) {
        if !self.queues[q].ready {
            self.queues[q].ready = true;
            self.turns.push_back(q);
        }
    }

    fn turn(&mut self, q: usize) -> (bool, u32) {
        if self.queues[q].failed {
            return (self.flush(q), 1);
        }
        self.bytes = BYTES;
        let (mut left, mut ran) = (TURN, 0);
        while left > 0 {
            let ring = &self.queues[q].send;
            let to_wrap = ring.depth - ring.fetched % ring.depth;
            let most = if ring.managed { 1 } else { left };
            let batch = ring.waiting().min(to_wrap).min(most);
            if batch == 0 {
                return (false, ran);
            }
            let from = ring.slot(ring.fetched);
            let fetched = self.memory[from..from + batch as usize * SLOT].to_vec();
            for raw in fetched.chunks_exact(SLOT) {
                self.queues[q].send.fetched = self.queues[q].send.fetched.wrapping_add(1);
                match self.run(q, raw) {
                    Next => {
                        ran += 1;
                        left -= 1;
                        if le(raw, 8, 2) as u16 & SIGNALED != 0 {
                            self.complete(q, (le(raw, 32, 8), Status::Success, false));
                        }
                        if self.bytes == 0 {
                            return (true, ran);
                        }
                    }
                    Blocked => {
                        let ring = &mut self.queues[q].send;
                        ring.fetched = ring.fetched.wrapping_sub(1);
                        return (false, ran);
                    }
                    Failed(status) => {
                        self.complete(q, (le(raw, 32, 8), status, false));
                        self.queues[q].failed = true;
                        self.schedule(q);
                        return (false, ran);
                    }
                }
            }
        }
        (self.queues[q].send.waiting() > 0, ran)
    }

    fn flush(&mut self, q: usize) -> bool {
        for _ in 0..TURN {
            let queue = &mut self.queues[q];
            let recv = queue.send.waiting() == 0;
            let ring = if recv { &mut queue.recv } else { &mut queue.send };
            if ring.waiting() == 0 {
                return false;
            }
            let wr_id = le(&self.memory[ring.slot(ring.fetched)..], 32, 8);
            ring.fetched = ring.fetched.wrapping_add(1);
            self.complete(q, (wr_id, Status::Flushed, recv));
        }
        true
    }

    fn complete(&mut self, q: usize, entry: Entry) {
        let queue = &mut self.queues[q];
        queue.entries.push(entry);
        if entry.1 == Status::Success {
            queue.count += 1;
            if queue.count >= queue.wake_at {
                queue.wake_at = u64::MAX;
                self.to_wake.extend(queue.waiting.drain(..));
            }
        }
    }

    fn run(&mut self, q: usize, raw: &[u8]) -> After {
        let (opcode, flags) = (le(raw, 0, 2), le(raw, 8, 2) as u16);
        let (remote, operand) = (le(raw, 16, 8), le(raw, 24, 8));
        match opcode {
            16 => return Next,
            17 => return self.wait(q, le(raw, 12, 4) as u32, remote),
            18 | 19 => {
                let target = le(raw, 12, 4) as u32;
                let found = self.queues.iter().position(|queue| queue.qpn == target);
                let done = found.is_some_and(|at| self.enable(at, opcode == 19, remote as u32));
                return if done { Next } else { Failed(Status::LocalQpOperation) };
            }
            1..=12 | 20..=25 | 32 | 33 => {}
            _ => return Failed(Status::LocalQpOperation),
        }
        let atomic = matches!(opcode, 7 | 8 | 20..=25);
        let inline = flags & INLINE != 0;
        let entries = if inline { 0 } else { raw[11] };
        let bare = matches!(opcode, 9 | 10 | 12);
        let len = match entries {
            _ if inline => operand >> 32,
            1 => le(raw, 48, 4),
            _ => 0,
        };
        let too_many = entries > 1 || inline && (atomic || opcode == 6 || bare || len > 24);
        if too_many {
            return Failed(Status::LocalQpOperation);
        }
        let len = if opcode == 12 { operand >> 32 } else { len };
        let no_word = atomic && entries == 1 && len != 8 || opcode == 11 && len != 8;
        if len > 1 << 31 || no_word || bare && entries > 0 {
            return Failed(Status::LocalLength);
        }
        match opcode {
            1 | 2 | 4 | 5 | 6 => self.message(q, raw, opcode, inline, len),
            _ if atomic => self.atomic(raw, opcode, entries == 1),
            _ => Failed(Status::LocalQpOperation),
        }
    }

    fn wait(&mut self, q: usize, cq: u32, count: u64) -> After {
        let Some(on) = self.queues.iter().position(|queue| queue.cq == cq) else {
            return Failed(Status::LocalQpOperation);
        };
        if self.queues[on].count >= count {
            return Next;
        }
        for (at, queue) in self.queues.iter_mut().enumerate() {
            if at != on {
                queue.waiting.retain(|waits| *waits != q);
            } else if !queue.waiting.contains(&q) {
                queue.waiting.push(q);
            }
        }
        let queue = &mut self.queues[on];
        queue.wake_at = queue.wake_at.min(count);
        Blocked
    }

    fn enable(&mut self, q: usize, recv: bool, index: u32) -> bool {
        let queue = &mut self.queues[q];
        let failed = queue.failed;
        let ring = if recv { &mut queue.recv } else { &mut queue.send };
        if !ring.managed || failed {
            return false;
        }
        let ahead = index.wrapping_sub(ring.posted);
        if ahead != 0 && ahead < 1 << 31 {
            if index.wrapping_sub(ring.fetched) > ring.depth {
                return false;
            }
            ring.posted = index;
        }
        if recv {
            self.to_wake.push_back(q)
        } else {
            self.schedule(q)
        }
        true
    }

    /// Whether a key covers these bytes.
    fn opens(&self, key: u64, addr: u64, len: u64) -> bool {
        let end = addr.checked_add(len);
        key == u64::from(self.key) && end.is_some_and(|end| end <= self.memory.len() as u64)
    }

    fn message(&mut self, q: usize, raw: &[u8], opcode: u64, inline: bool, len: u64) -> After {
        let (remote, rkey) = (le(raw, 16, 8), le(raw, 12, 4));
        let (local, lkey) = (le(raw, 40, 8), le(raw, 52, 4));
        let local_is_good = inline || len == 0 || self.opens(lkey, local, len);
        let remote_is_good = len == 0 || self.opens(rkey, remote, len);
        // A message longer than a piece exceeds all memory, so the local check comes first.
        if len > 4096 && !local_is_good {
            return Failed(Status::LocalProtection);
        }
        self.bytes = self.bytes.saturating_sub((len as u32).max(64));
        let from = |memory: &[u8], at: u64| memory[at as usize..(at + len) as usize].to_vec();
        if opcode == 6 {
            if !remote_is_good {
                return Failed(Status::RemoteAccess);
            }
            if !local_is_good {
                return Failed(Status::LocalProtection);
            }
            if len > 0 {
                let bytes = from(&self.memory, remote);
                self.put(local, &bytes);
            }
            return Next;
        }
        if !local_is_good {
            return Failed(Status::LocalProtection);
        }
        let bytes = match len {
            0 => Vec::new(),
            _ if inline => raw[40..40 + len as usize].to_vec(),
            _ => from(&self.memory, local),
        };
        if matches!(opcode, 1 | 2) {
            return self.receive(q, &bytes);
        }
        if !remote_is_good {
            return Failed(Status::RemoteAccess);
        }
        if opcode == 5 {
            let (slot, wr_id) = match self.take_receive(q) {
                Ok(taken) => taken,
                Err(after) => return after,
            };
            let _ = slot;
            self.put(remote, &bytes);
            self.complete(q, (wr_id, Status::Success, true));
            return Next;
        }
        self.put(remote, &bytes);
        Next
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Takes a receive element; returns its bytes and its `wr_id`.
    fn take_receive(&mut self, q: usize) -> Result<(Vec<u8>, u64), After> {
        let ring = &mut self.queues[q].recv;
        if ring.waiting() == 0 {
            return Err(Blocked);
        }
        let slot = ring.slot(ring.fetched);
        ring.fetched = ring.fetched.wrapping_add(1);
        let raw = self.memory[slot..slot + SLOT].to_vec();
        let wr_id = le(&raw, 32, 8);
        if raw[11] > 1 {
            self.complete(q, (wr_id, Status::LocalQpOperation, true));
            return Err(Failed(Status::RemoteOperation));
        }
        Ok((raw, wr_id))
    }

    fn receive(&mut self, q: usize, bytes: &[u8]) -> After {
        let (raw, wr_id) = match self.take_receive(q) {
            Ok(taken) => taken,
            Err(after) => return after,
        };
        let len = bytes.len() as u64;
        let room = if raw[11] == 1 { le(&raw, 48, 4) } else { 0 };
        if len > room {
            self.complete(q, (wr_id, Status::LocalLength, true));
            return Failed(Status::RemoteInvalidRequest);
        }
        let to = le(&raw, 40, 8);
        if len > 0 && !self.opens(le(&raw, 52, 4), to, len) {
            self.complete(q, (wr_id, Status::LocalProtection, true));
            return Failed(Status::RemoteOperation);
        }
        self.put(to, bytes);
        self.complete(q, (wr_id, Status::Success, true));
        Next
    }

    fn atomic(&mut self, raw: &[u8], opcode: u64, returns: bool) -> After {
        let (at, back) = (le(raw, 16, 8), le(raw, 40, 8));
        let (x, compare) = (le(raw, 24, 8), le(raw, 56, 8));
        if returns && !self.opens(le(raw, 52, 4), back, 8) {
            return Failed(Status::LocalProtection);
        }
        if !at.is_multiple_of(8) {
            return Failed(Status::RemoteInvalidRequest);
        }
        if !self.opens(le(raw, 12, 4), at, 8) {
            return Failed(Status::RemoteAccess);
        }
        let word = le(&self.memory[at as usize..], 0, 8);
        let after = match opcode {
            7 if word == compare => x,
            7 => word,
            8 | 25 => word.wrapping_add(x),
            20 => word.max(x),
            21 => word.min(x),
            22 => word & x,
            23 => word | x,
            _ => word ^ x,
        };
        self.put(at, &after.to_le_bytes());
        if returns {
            self.put(back, &word.to_le_bytes());
        }
        Next
    }
}

/// The little-endian number in the `bytes` bytes at `at`.
fn le(raw: &[u8], at: usize, bytes: usize) -> u64 {
    raw[at..at + bytes].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
