//! Guests: programs that share the cards with the applications of a random world, and some of
//! which stop at any step.
//!
//! When a program has stopped, the card's owner destroys its objects one after the other, as a
//! daemon does: queue pairs, regions, shared receive queues, completion queues, domains. Everything
//! else goes on meanwhile, between any two of these commands, too. What must hold:
//!
//! - No command of the owner is refused, and nothing is left over ([`crate::check::counters`]).
//! - A program whose peer has not stopped loses nothing: its messages arrive, in order and whole.
//!   That of one whose peer has stopped end with a status that says that nobody answers.
//! - The applications, whose memory is checked whole, notice nothing.
//!
//! A guest learns of completions as a daemon does, by [`remora_nic::Nic::poll_completed`].

use core::ops::Range;

use remora_nic::nic::QpInit;
use remora_nic::queue::{
    Completion, Data, Opcode, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge,
    Status, WorkKind,
};
use remora_nic::wire::Transport;
use remora_nic::{Access, Pd, Psn, QpFlags, RateLimits};

use crate::check::{Violation, demand};
use crate::dice::{Dice, pattern};
use crate::endpoint::{ConnectOptions, Endpoint, Half, connect, ring};
use crate::memory::{Layout, Region};
use crate::objects::Object;
use crate::world::{Host, World};

const CHECKER: &str = "guests";
/// The most queue pairs of a guest.
const QPS: u64 = 4;
/// Receive requests of a queue pair, or its part of those in a shared queue.
const RECEIVES: u64 = 8;
/// The most messages that a queue pair has under way.
const UNDER_WAY: u64 = 4;
/// Slots of each queue pair in each part of the region, and bytes of a slot. A peer can look at
/// what has arrived before it is overwritten: no queue pair gets further ahead than all receive
/// requests allow, and every third message needs none.
const SLOTS: u64 = 2 * QPS * RECEIVES;
const SLOT: u64 = 64;
/// The mark of a receive request in its id.
const RECEIVE: u64 = 1 << 32;

/// The parts of a region.
#[derive(Clone, Copy)]
enum Part {
    /// What is sent and written.
    Source,
    /// Receive buffers.
    Receives,
    /// Where the peer writes.
    Target,
    /// What the peer reads.
    Constant,
    /// Where READs go.
    Answers,
}

/// Two guests that talk to each other.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// The hosts of both; both may be the same host.
    pub hosts: [usize; 2],
    /// Their numbers as clients of the cards.
    pub clients: [u16; 2],
    /// Queue pairs of each, 1 to 4.
    pub queue_pairs: usize,
    /// The rates that they are held to.
    pub limits: RateLimits,
    /// They have shared receive queues.
    pub shared: bool,
    /// Messages of each queue pair.
    pub messages: u64,
    /// Every other one of their READs is an atomic.
    pub atomics: bool,
    /// By guest: the step of the world at which it stops.
    pub stops: [Option<u64>; 2],
    /// The attributes of their connections.
    pub connect: ConnectOptions,
    /// Connections may fail by chance.
    pub may_fail: bool,
}

/// All guests of a world.
pub(crate) struct Guests {
    /// Two neighbours in the list talk to each other.
    guests: Vec<Guest>,
    /// How many have stopped before the end.
    pub(crate) stopped: usize,
    /// Atomics that were answered.
    pub(crate) atomics: u64,
    dice: Dice,
}

struct Guest {
    host: usize,
    pd: Pd,
    cq: u32,
    srq: Option<u32>,
    region: Region,
    lines: Vec<Line>,
    messages: u64,
    atomics: bool,
    stops: Option<u64>,
    may_fail: bool,
    /// Once it has stopped: what is left of it, in the order from the last to be destroyed.
    left: Option<Vec<Object>>,
}

/// A queue pair of a guest.
struct Line {
    end: Endpoint,
    /// Messages posted, and done.
    posted: u64,
    done: u64,
    /// The number of the next message from the peer.
    next: u64,
    failed: bool,
}

/// What the `n`-th message of every queue pair is, an atomic instead of a READ if [`is_atomic`].
fn verb(n: u64) -> WorkKind {
    match n % 3 {
        0 => WorkKind::Recv,
        1 => WorkKind::RecvWriteImm,
        _ => WorkKind::Send(Opcode::Read),
    }
}

/// Is the `n`-th message of a queue pair an atomic, where there are any? Each adds one to a word
/// that no other queue pair adds to.
fn is_atomic(n: u64) -> bool {
    n % 6 == 5
}

/// What the `n`-th message of a queue pair consists of.
fn content(line: u64, n: u64) -> Vec<u8> {
    pattern(n << 3 | line, SLOT as usize)
}

impl Guests {
    /// Creates the guests. Returns them, and the memory that they use, by host.
    pub(crate) fn set_up(
        world: &mut World,
        options: &[GuestOptions],
        seed: u64,
    ) -> (Guests, Vec<(usize, Range<u64>)>) {
        let mut dice = Dice::new(seed ^ 0x6775_6573_7473);
        let (mut guests, mut used) = (Vec::new(), Vec::new());
        for pair in options {
            let first = guests.len();
            for of in [0, 1] {
                let at = pair.hosts[of];
                let before = world.hosts[at].memory.bytes().len() as u64;
                guests.push(Guest::create(world, pair, of, &mut dice));
                used.push((at, before..world.hosts[at].memory.bytes().len() as u64));
            }
            for line in 0..pair.queue_pairs {
                let [a, b] = [0, 1].map(|of| guests[first + of].lines[line].end);
                let psns = [(); 2].map(|()| Psn::new(dice.number() as u32));
                connect(world, (&a, &b), &pair.connect, (psns[0], psns[1]));
            }
        }
        guests.iter().for_each(|guest| guest.post_receives(world));
        (Guests { guests, stopped: 0, atomics: 0, dice }, used)
    }

    /// Lets the guests of a host look after their queues.
    pub(crate) fn tick(&mut self, world: &mut World, host: usize) -> Result<(), Violation> {
        while let Some(cq) = world.hosts[host].nic.poll_completed() {
            for entry in Endpoint::drain(world, host, cq) {
                self.completed(world, (host, cq), &entry)?;
            }
        }
        for at in 0..self.guests.len() {
            if self.guests[at].host == host && self.guests[at].left.is_none() {
                let peer = self.guests[at ^ 1].region.clone();
                self.guests[at].post(world, &peer);
            }
        }
        Ok(())
    }

    fn completed(
        &mut self,
        world: &mut World,
        (host, cq): (usize, u32),
        entry: &Completion,
    ) -> Result<(), Violation> {
        let of = |guest: &Guest| guest.host == host && guest.cq == cq;
        let at = self.guests.iter().position(of);
        let at = at.ok_or_else(|| Violation::new(CHECKER, format!("queue {cq:#x} is named")))?;
        if self.guests[at].left.is_some() {
            return Ok(());
        }
        let answers = self.guests[at ^ 1].left.is_none();
        let guest = &mut self.guests[at];
        let adds = entry.kind == WorkKind::Send(Opcode::FetchAdd);
        self.atomics += u64::from(adds && entry.status == Status::Success);
        match entry.wr_id & RECEIVE == 0 {
            true => guest.sent(world, entry, answers),
            false => guest.received(world, entry),
        }
        .map_err(|what| Violation::new(CHECKER, format!("guest {at}: {what}: {entry:?}")))
    }

    /// Lets guests stop, and destroys what those have left that have stopped, an object at a time.
    pub(crate) fn step(&mut self, world: &mut World) -> Result<(), Violation> {
        for at in 0..self.guests.len() {
            let guest = &mut self.guests[at];
            if guest.left.is_none() && guest.stops.is_some_and(|step| step <= world.steps) {
                guest.left = Some(guest.objects());
                self.stopped += 1;
            }
            // Any number of steps of the world may come between two objects.
            if guest.left.as_ref().is_some_and(|left| !left.is_empty()) && self.dice.coin() {
                guest.destroy_next(world)?;
            }
        }
        Ok(())
    }

    /// Have all guests that have not stopped done their work, and nothing is left of others?
    pub(crate) fn is_done(&self) -> bool {
        self.guests.iter().all(|guest| match &guest.left {
            None => guest.lines.iter().all(|line| line.failed || line.done == guest.messages),
            Some(left) => left.is_empty(),
        })
    }

    /// A number that changes whenever a guest has done something.
    pub(crate) fn activity(&self) -> u64 {
        self.guests.iter().flat_map(|g| &g.lines).map(|l| l.posted + l.done + l.next).sum()
    }

    /// Describes the work that is not done.
    pub(crate) fn unfinished(&self) -> String {
        let lines = |g: &Guest| -> Vec<_> {
            g.lines.iter().map(|l| (l.posted, l.done, l.next, l.failed)).collect()
        };
        let all = self.guests.iter().zip(0..);
        all.map(|(g, at)| format!("guest {at}: {:?} left, {:?}\n", g.left, lines(g))).collect()
    }

    /// Checks what has arrived, and destroys all guests.
    pub(crate) fn close(&mut self, world: &mut World) -> Result<(), Violation> {
        (0..world.hosts.len()).try_for_each(|host| self.tick(world, host))?;
        for pair in self.guests.chunks(2) {
            let both_go_on = pair.iter().all(|guest| guest.left.is_none());
            for line in pair.iter().flat_map(|guest| &guest.lines).filter(|_| both_go_on) {
                // All messages that take a receive element have come.
                let came = (line.next..pair[0].messages).all(|n| !takes_receive(n));
                demand(came || pair[0].may_fail, CHECKER, || {
                    format!("message {} of a queue pair has not come", line.next)
                })?;
            }
        }
        for guest in &mut self.guests {
            let objects = guest.objects();
            let left = guest.left.get_or_insert(objects).len();
            (0..left).try_for_each(|_| guest.destroy_next(world))?;
        }
        Ok(())
    }
}

/// Does the `n`-th message take a receive element?
fn takes_receive(n: u64) -> bool {
    verb(n).is_receive()
}

impl Guest {
    fn create(world: &mut World, options: &GuestOptions, of: usize, dice: &mut Dice) -> Guest {
        let (at, client) = (options.hosts[of], options.clients[of]);
        let now = world.now;
        let host = &mut world.hosts[at];
        host.nic.set_client_limits(now, client, options.limits).expect("good rates");
        let pd = host.nic.alloc_pd().expect("room for a protection domain");
        let layout = dice.pick(&[Layout::Contiguous, Layout::Scattered { shift: 12 }]);
        let mut region = Region::lay_out(&mut host.memory, dice, 5 * QPS * SLOTS * SLOT, layout);
        let access = Access::all().difference(Access::REMOTE_INVALIDATE);
        region.key = host.nic.reg_mr(pd, region.init(access)).expect("room for a region");
        let cq = host.nic.create_exported_cq(1024).expect("room for a completion queue");
        let srq = options.shared.then(|| {
            let ring = ring(host, (QPS * RECEIVES) as u32, 1, 0);
            host.nic.create_srq(pd, ring).expect("room for a shared receive queue")
        });
        let lines = (0..options.queue_pairs as u64).map(|line| {
            let bytes: Vec<u8> = (0..SLOTS).flat_map(|n| content(line, n)).collect();
            region.write(&mut host.memory, offset(Part::Constant, line, 0), &bytes);
            region.write(&mut host.memory, counter(line), &[0; 8]);
            let end = endpoint(host, (at, pd, client), cq, srq);
            Line { end, posted: 0, done: 0, next: 0, failed: false }
        });
        let lines = lines.collect();
        let GuestOptions { messages, atomics, may_fail, .. } = *options;
        let stops = options.stops[of];
        let left = None;
        Guest { host: at, pd, cq, srq, region, lines, messages, atomics, stops, may_fail, left }
    }

    fn objects(&self) -> Vec<Object> {
        let mut objects = vec![Object::Pd(self.pd), Object::Cq(self.cq)];
        objects.extend(self.srq.map(Object::Srq));
        objects.push(Object::Region(self.region.key));
        objects.extend(self.lines.iter().map(|line| Object::Qp(line.end.qpn)));
        objects
    }

    fn destroy_next(&mut self, world: &mut World) -> Result<(), Violation> {
        let Some(object) = self.left.as_mut().and_then(Vec::pop) else { return Ok(()) };
        object.destroy(world, self.host, CHECKER)
    }

    fn post_receives(&self, world: &mut World) {
        for line in 0..self.lines.len() as u64 {
            (0..RECEIVES).for_each(|slot| self.post_receive(world, line, slot));
        }
    }

    fn post_receive(&self, world: &mut World, line: u64, slot: u64) {
        let wr_id = RECEIVE | line << 8 | slot;
        let request = RecvRequest { wr_id, sges: &[self.sge(Part::Receives, line, slot)] };
        let end = &self.lines[line as usize].end;
        end.post_recv(world, &request).expect("room for each slot");
    }

    fn sge(&self, part: Part, line: u64, n: u64) -> Sge {
        let addr = self.region.iova + offset(part, line, n);
        Sge { addr, len: SLOT as u32, lkey: self.region.key }
    }

    /// Posts as many messages as may be under way.
    fn post(&mut self, world: &mut World, peer: &Region) {
        for line in 0..self.lines.len() as u64 {
            let Line { end, posted, done, failed, .. } = self.lines[line as usize];
            let until = self.messages.min(done + UNDER_WAY);
            for n in (posted..until).filter(|_| !failed) {
                let remote = |part| RemoteAddress {
                    addr: peer.iova + offset(part, line, n),
                    rkey: peer.key,
                };
                let (op, part) = match verb(n) {
                    WorkKind::Recv => (SendOp::Send { imm: None, to: None }, Part::Source),
                    WorkKind::RecvWriteImm => {
                        let (to, imm) = (remote(Part::Target), Some(n as u32));
                        (SendOp::Write { to, imm }, Part::Source)
                    }
                    _ if self.atomics && is_atomic(n) => {
                        let at = RemoteAddress { addr: peer.iova + counter(line), rkey: peer.key };
                        (SendOp::FetchAdd { at, add: 1 }, Part::Answers)
                    }
                    _ => (SendOp::Read { from: remote(Part::Constant) }, Part::Answers),
                };
                let host = &mut world.hosts[self.host];
                if takes_receive(n) {
                    let at = offset(Part::Source, line, n);
                    self.region.write(&mut host.memory, at, &content(line, n));
                }
                let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { SLOT as u32 };
                let sges = [Sge { len, ..self.sge(part, line, n) }];
                let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
                let request = SendRequest { wr_id: line << 24 | n, op, data, flags };
                end.post_send(world, &request).expect("room for each message under way");
                self.lines[line as usize].posted = n + 1;
            }
        }
    }

    /// A send request is complete. `answers` says that the peer has not stopped.
    fn sent(&mut self, world: &World, entry: &Completion, answers: bool) -> Result<(), String> {
        let (line, n) = (entry.wr_id >> 24, entry.wr_id & 0xFF_FFFF);
        let of = &mut self.lines[line as usize];
        if entry.status != Status::Success {
            let expected = matches!(entry.status, Status::RetryExceeded | Status::Flushed);
            of.failed = true;
            return match expected && (!answers || self.may_fail) {
                true => Ok(()),
                false => Err("failed".into()),
            };
        }
        if of.done != n || of.failed {
            return Err(format!("out of order: {} was due", of.done));
        }
        of.done += 1;
        let found = self.read(world, Part::Answers, line, n);
        let (is_right, what) = match self.atomics && is_atomic(n) {
            // Each atomic before has added one, once.
            true => (found[..8] == (n / 6).to_ne_bytes(), "an atomic finds another number"),
            false => (found == content(line, n % SLOTS), "a READ has other data"),
        };
        if takes_receive(n) || is_right { Ok(()) } else { Err(what.into()) }
    }

    /// A receive request is complete.
    fn received(&mut self, world: &mut World, entry: &Completion) -> Result<(), String> {
        if entry.status != Status::Success {
            let of = self.lines.iter_mut().find(|line| line.end.qpn == entry.qpn);
            // It is flushed behind a send request that has failed.
            let failed = of.is_some_and(|of| of.failed || entry.status == Status::Flushed);
            return if failed { Ok(()) } else { Err("failed".into()) };
        }
        let line = self.lines.iter().position(|line| line.end.qpn == entry.qpn);
        let line = line.ok_or("of no queue pair")?;
        let of = &mut self.lines[line];
        of.next += u64::from(!takes_receive(of.next));
        let n = of.next;
        of.next += 1;
        let (posted_by, slot) = (entry.wr_id >> 8 & 0xFF, entry.wr_id & 0xFF);
        let found = match entry.kind {
            WorkKind::Recv => self.read(world, Part::Receives, posted_by, slot),
            _ if entry.imm() != Some(n as u32) => return Err(format!("{n} was due")),
            _ => self.read(world, Part::Target, line as u64, n),
        };
        if entry.kind != verb(n) || found != content(line as u64, n) {
            return Err(format!("message {n} was due"));
        }
        self.post_receive(world, posted_by, slot);
        Ok(())
    }

    fn read(&self, world: &World, part: Part, line: u64, n: u64) -> Vec<u8> {
        self.region.read(&world.hosts[self.host].memory, offset(part, line, n), SLOT)
    }
}

/// Where the slot of a queue pair's `n`-th message is in a region.
fn offset(part: Part, line: u64, n: u64) -> u64 {
    ((part as u64 * QPS + line) * SLOTS + n % SLOTS) * SLOT
}

/// Where the word is that the peer's queue pair adds to: behind the receive buffers.
fn counter(line: u64) -> u64 {
    offset(Part::Receives, line, RECEIVES)
}

/// Creates a queue pair that reports all to one completion queue.
fn endpoint(
    host: &mut Host,
    (at, pd, client): (usize, Pd, u16),
    cq: u32,
    srq: Option<u32>,
) -> Endpoint {
    let sq = ring(host, UNDER_WAY as u32, 1, 0);
    let rq = if srq.is_none() { ring(host, RECEIVES as u32, 1, 0) } else { Default::default() };
    let qpn = host.nic.create_qp(QpInit {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq,
        sq,
        rq,
        signal_all: true,
        flags: QpFlags::empty(),
        client,
    });
    let qpn = qpn.expect("room for a queue pair");
    let (transport, half) = (Transport::Rc, Half::Both);
    Endpoint { host: at, pd, qpn, transport, send_cq: cq, recv_cq: cq, srq, half }
}
