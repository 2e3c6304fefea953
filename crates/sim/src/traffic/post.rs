//! Posts send requests: chooses verbs, lengths and memory.

use std::rc::Rc;

use remora_nic::memory::window::next_key;
use remora_nic::nic::PostError;
use remora_nic::qp::State;
use remora_nic::queue::{
    Data, FlushKind, RemoteAddress, SendFlags, SendOp, SendRequest, UdDestination,
};
use remora_nic::wire::Transport;
use remora_nic::{Access, MwBinding, MwType};

use super::receives::{entries, places};
use super::records::{Message, Op, Side, Traffic, WORDS};
use super::spans::cut;
use crate::check::Violation;
use crate::dice::pattern;
use crate::endpoint::QKEY;
use crate::options::Verb;
use crate::world::World;

impl Traffic {
    /// Posts as many requests of one end as there is room for.
    pub(super) fn post_sends(&mut self, world: &mut World, s: usize) -> Result<(), Violation> {
        while self.sides[s].left > 0 && self.sides[s].failed.is_none() {
            // At random, some requests wait until the next time.
            if !self.has_room(world, s) || self.dice.chance(0.05) || !self.post_one(world, s)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether the send queue has room for another request. Checked first, since preparing a
    /// request is costly.
    fn has_room(&self, world: &World, s: usize) -> bool {
        let side = &self.sides[s];
        let info = world.hosts[side.end.host].nic.query_qp(side.end.qpn);
        info.is_some_and(|info| info.sends < side.options.queues.sends)
    }

    /// Takes an end that is to give up to ERROR.
    pub(super) fn give_up(&mut self, world: &mut World, s: usize) {
        let side = &mut self.sides[s];
        if side.gives_up_after.is_some_and(|n| side.posted >= n) {
            side.gives_up_after = None;
            side.end.go_to(world, State::Error);
            side.failed = side.failed.or(Some(remora_nic::queue::Status::Flushed));
        }
    }

    fn post_one(&mut self, world: &mut World, s: usize) -> Result<bool, Violation> {
        let verb = self.choose_verb(s);
        let Some(op) = self.plan(world, s, verb) else { return Ok(false) };
        // Follows a READ with a fenced WRITE, or a WRITE with a READ, of the same bytes.
        let again = match verb {
            Verb::Read if self.dice.chance(0.3) => Some(Verb::Write),
            Verb::Write if self.sides[s].end.transport.is_reliable() => {
                self.dice.chance(0.2).then_some(Verb::Read)
            }
            _ => None,
        };
        let again = again.filter(|_| self.sides[s].left > 1 && self.has_room(world, s));
        let target = op.target.filter(|_| op.frees_target);
        let content = Rc::clone(&op.content);
        let op = Op { frees_target: op.frees_target && again.is_none(), ..op };
        let fence = self.dice.chance(0.05);
        let Some(id) = self.submit(world, s, op, fence)? else {
            self.free_target(s, target);
            return Ok(false);
        };
        let (Some(verb), Some(target)) = (again, target) else { return Ok(true) };
        let old = (verb == Verb::Read).then_some(content);
        let follower = self.plan_on(world, s, verb, target, old);
        let follower = match follower {
            Some(op) => self.submit(world, s, op, verb == Verb::Write)?,
            None => None,
        };
        if follower.is_none() {
            // No request follows, so the first one frees the target.
            if let Some(op) = self.sides[s].ops.get_mut(&id) {
                op.frees_target = true;
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn choose_verb(&mut self, s: usize) -> Verb {
        let verb = self.dice.pick(&self.sides[s].options.verbs);
        match verb {
            Verb::SendInvalidate if self.sides[s ^ 1].invalidatable.is_none() => Verb::Send,
            verb => verb,
        }
    }

    /// A random length, often one at a limit.
    pub(super) fn length(&mut self, s: usize) -> u64 {
        let options = &self.sides[s].options;
        let (most, mtu) = (options.message_max, u64::from(options.connect.mtu.bytes()));
        let unreliable = !options.transport.is_reliable();
        let len = match self.dice.below(8) {
            0 => 0,
            1 => mtu - 1 + self.dice.below(3),
            2 => mtu * self.dice.below(5) + self.dice.below(2),
            3 => most,
            _ => self.dice.scaled(0..=most),
        };
        let len = len.min(most);
        // A message of an unreliable service needs room for its id.
        if unreliable { len.max(8) } else { len }
    }

    /// Plans a request with this verb and takes its parts of the regions; `None` if there is no
    /// room.
    fn plan(&mut self, world: &mut World, s: usize, verb: Verb) -> Option<Op> {
        match verb {
            Verb::CompareSwap | Verb::FetchAdd => return self.plan_atomic(s, verb),
            Verb::AtomicWrite => return self.plan_word(world, s),
            Verb::Flush => return self.plan_flush(world, s),
            Verb::BindWindow => return self.plan_window(world, s),
            _ => {}
        }
        if verb.is_call() {
            return self.plan_call(world, s, verb);
        }
        let len = self.length(s);
        let one_sided = matches!(verb, Verb::Write | Verb::WriteImm | Verb::Read);
        if !one_sided {
            let group = self.choose_group(s);
            let len = group.map_or(len, |group| len.min(self.groups[group].longest));
            let op = self.plan_local(world, s, verb, len, None)?;
            return Some(Op { group, ..op });
        }
        let mut target = (0, len);
        match self.sides[s ^ 1].target.spans.take(&mut self.dice, len) {
            Some(start) => target.0 = start,
            // Unreliable WRITEs never free their targets: use an empty one.
            None if self.sides[s].end.transport == Transport::Uc => target.1 = 0,
            None => return None,
        }
        let op = self.plan_local(world, s, verb, target.1, Some(target));
        if op.is_none() {
            self.free_target(s, Some(target));
        }
        op
    }

    pub(super) fn free_target(&mut self, s: usize, target: Option<(u64, u64)>) {
        if let Some((start, len)) = target {
            self.sides[s ^ 1].target.spans.give_back(start, len);
        }
    }

    /// Plans a request with this verb on a part of the target region that is already taken.
    fn plan_on(
        &mut self,
        world: &mut World,
        s: usize,
        verb: Verb,
        target: (u64, u64),
        old: Option<Rc<[u8]>>,
    ) -> Option<Op> {
        let mut op = self.plan_local(world, s, verb, target.1, Some(target))?;
        if let Some(old) = old {
            op.content = old;
        }
        Some(op)
    }

    fn plan_local(
        &mut self,
        world: &mut World,
        s: usize,
        verb: Verb,
        len: u64,
        target: Option<(u64, u64)>,
    ) -> Option<Op> {
        let start = self.sides[s].local.spans.take(&mut self.dice, len)?;
        let sges = self.sides[s].options.queues.sges;
        let pieces = cut(&mut self.dice, start, len, sges);
        let content: Rc<[u8]> = match (verb, target) {
            (Verb::Read, Some((at, _))) => {
                let peer = &self.sides[s ^ 1];
                peer.target.region.read(&world.hosts[peer.end.host].memory, at, len).into()
            }
            _ => pattern(self.dice.number(), len as usize).into(),
        };
        let opens = &self.sides[s ^ 1].opens;
        let chosen = self.dice.below(opens.len() as u64) as usize;
        let key = opens[chosen];
        // The key to be invalidated belongs to the first queue's protection domain.
        let queue = if verb == Verb::SendInvalidate { 0 } else { chosen };
        Some(Op {
            verb,
            len,
            content,
            local: (start, len),
            pieces,
            target,
            key,
            frees_target: true,
            word: None,
            compare: 0,
            operand: 0,
            queue,
            group: None,
            call: None,
        })
    }

    fn plan_atomic(&mut self, s: usize, verb: Verb) -> Option<Op> {
        let start = self.sides[s].local.spans.take(&mut self.dice, 8)?;
        let peer = self.sides[s ^ 1].end.host;
        let word = self.dice.below(WORDS);
        let (word, compare, operand) = if verb == Verb::FetchAdd {
            (word, 0, self.dice.between(1..=9))
        } else {
            let word = WORDS + word;
            let seen = &self.hosts[self.sides[s].end.host].seen;
            let compare = seen.get(&(peer, word)).copied().unwrap_or(0);
            // A value that the word has never held.
            (word, compare, self.next_id << 8 | 1)
        };
        Some(Op {
            verb,
            len: 8,
            content: Rc::from([]),
            local: (start, 8),
            pieces: vec![(start, 8)],
            target: None,
            key: 0,
            frees_target: false,
            word: Some((peer, word)),
            compare,
            operand,
            queue: self.choose_queue(s),
            group: None,
            call: None,
        })
    }

    /// Plans an ATOMIC WRITE of a word in the peer's target region.
    fn plan_word(&mut self, world: &mut World, s: usize) -> Option<Op> {
        // Any part of this length contains an aligned word.
        const AMONG: u64 = 15;
        let start = self.sides[s ^ 1].target.spans.take(&mut self.dice, AMONG)?;
        let word = start.next_multiple_of(8);
        self.free_target(s, Some((start, word - start)));
        self.free_target(s, Some((word + 8, start + AMONG - (word + 8))));
        let op = self.plan_local(world, s, Verb::AtomicWrite, 8, Some((word, 8)));
        if op.is_none() {
            self.free_target(s, Some((word, 8)));
        }
        op
    }

    /// Plans a FLUSH of memory that other requests may use: it changes nothing.
    fn plan_flush(&mut self, world: &mut World, s: usize) -> Option<Op> {
        let region = &self.sides[s ^ 1].target.region;
        let (key, most) = (region.key, region.len);
        let len = self.length(s).min(most);
        let start = self.dice.below(most - len + 1);
        let op = self.plan_local(world, s, Verb::Flush, 0, None)?;
        let target = Some((start, len));
        Some(Op { len, target, frees_target: false, key, pieces: Vec::new(), ..op })
    }

    /// Plans the binding of a new window to this end's whole target region.
    fn plan_window(&mut self, world: &mut World, s: usize) -> Option<Op> {
        let op = self.plan_local(world, s, Verb::BindWindow, 0, None)?;
        let side = &mut self.sides[s];
        let nic = &mut world.hosts[side.end.host].nic;
        let made = nic.alloc_mw(side.end.pd, MwType::Type1).expect("room for a window");
        side.windows.push(made);
        Some(Op { key: next_key(made), pieces: Vec::new(), ..op })
    }

    /// Posts a planned request. Returns its id, or `None` if the queue is full.
    fn submit(
        &mut self,
        world: &mut World,
        s: usize,
        op: Op,
        fence: bool,
    ) -> Result<Option<u64>, Violation> {
        let id = self.id();
        let (mut op, message) = self.address(s, id, op);
        let signaled = self.is_signaled(s, &op);
        let solicited = self.dice.chance(0.2);
        let side = &self.sides[s];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, solicited);
        let sends_data = op.verb.sends_data();
        let inline = sends_data && op.len <= side.options.queues.inline as u64 && self.dice.coin();
        let sges = entries(&side.local.region, &op.pieces);
        let data = if inline { Data::Inline(&op.content) } else { Data::Sges(&sges) };
        let request = SendRequest { wr_id: id, op: self.send_op(s, id, &op), data, flags };
        if sends_data {
            self.write_source(world, s, &op);
        }
        match self.post(world, s, op.queue, &request) {
            Ok(()) => {}
            Err(PostError::Full) => {
                self.release(world, s, &op, false);
                if let Some(call) = &op.call {
                    self.free_call(s, call);
                }
                return Ok(None);
            }
            Err(other) => return Err(Violation::new("post", other.to_string())),
        }
        let signaled = signaled || self.sides[s].options.queues.signal_all;
        self.begin(s, id, &op);
        if let Some(call) = op.call.take() {
            self.begin_call(s, id, call);
        }
        let side = &mut self.sides[s];
        side.order.post(id, signaled);
        side.left -= 1;
        side.posted += 1;
        if op.verb == Verb::SendInvalidate {
            self.sides[s ^ 1].invalidatable = None;
        }
        let side = &mut self.sides[s];
        if let Some(message) = message {
            let message = Message { solicited, ..message };
            match op.group {
                _ if side.end.transport.is_reliable() => side.messages.push_back(message),
                None => drop(side.unreliable.insert(id, message)),
                Some(group) => self.sent_to_group(world.now, s, group, message),
            }
        }
        self.sides[s].ops.insert(id, op);
        Ok(Some(id))
    }

    /// Puts the id into an unreliable message, and returns what its receiver must see.
    fn address(&self, s: usize, id: u64, mut op: Op) -> (Op, Option<Message>) {
        let reliable = self.sides[s].end.transport.is_reliable();
        let message =
            matches!(op.verb, Verb::Send | Verb::SendImm | Verb::SendInvalidate | Verb::WriteImm);
        if !message {
            return (op, None);
        }
        if !reliable && op.verb == Verb::Send {
            let mut content = op.content.to_vec();
            content[..8].copy_from_slice(&id.to_le_bytes());
            op.content = content.into();
        }
        let imm = matches!(op.verb, Verb::SendImm | Verb::WriteImm).then_some(id as u32);
        let key =
            (op.verb == Verb::SendInvalidate).then(|| self.sides[s ^ 1].invalidatable).flatten();
        let content = Rc::clone(&op.content);
        let queue = op.queue;
        let message = Message { id, queue, verb: op.verb, content, imm, key, solicited: false };
        (op, Some(message))
    }

    /// Whether the request is signaled: because it must be, or by chance.
    fn is_signaled(&mut self, s: usize, op: &Op) -> bool {
        let side = &self.sides[s];
        let run = side.order.unsignaled();
        let most = (side.options.queues.sends as usize / 2).min(4);
        let large = op.len * 8 > side.options.message_max;
        run + 1 >= most || large || side.left <= 2 || self.dice.coin()
    }

    fn send_op(&self, s: usize, id: u64, op: &Op) -> SendOp {
        let (side, peer) = (&self.sides[s], &self.sides[s ^ 1]);
        let at = |start: u64| RemoteAddress { addr: peer.target.region.iova + start, rkey: op.key };
        let to_peer = UdDestination { ah: side.ah, qpn: peer.end.qpn, qkey: QKEY };
        let to = match op.group {
            Some(_) => self.to_group(s),
            None => (side.end.transport == Transport::Ud).then_some(to_peer),
        };
        let target = at(op.target.map_or(0, |t| t.0));
        let word = op.word.map_or(RemoteAddress::default(), |(host, word)| {
            let region = &self.hosts[host].words;
            RemoteAddress { addr: region.iova + word * 8, rkey: self.word_key(s, host, op.queue) }
        });
        let imm = Some(id as u32);
        match op.verb {
            Verb::Send => SendOp::Send { imm: None, to },
            Verb::SendImm => SendOp::Send { imm, to },
            Verb::SendInvalidate => {
                SendOp::SendInvalidate { rkey: peer.invalidatable.unwrap_or(0) }
            }
            Verb::Write => SendOp::Write { to: target, imm: None },
            Verb::WriteImm => SendOp::Write { to: target, imm },
            Verb::Read => SendOp::Read { from: target },
            Verb::CompareSwap => {
                SendOp::CompareSwap { at: word, compare: op.compare, swap: op.operand }
            }
            Verb::FetchAdd => SendOp::FetchAdd { at: word, add: op.operand },
            Verb::AtomicWrite => SendOp::AtomicWrite { to: target },
            Verb::Flush => {
                let (persistent, whole_region) = (id & 1 > 0, id & 2 > 0);
                let kind = FlushKind { global: true, persistent, whole_region };
                SendOp::Flush { at: target, len: op.len as u32, kind }
            }
            Verb::BindWindow => SendOp::BindMw { key: op.key, to: side.window() },
            Verb::Rpc | Verb::RpcWrite => super::calls::send_op(op.verb),
        }
    }

    /// Writes the request's content into its local memory.
    fn write_source(&mut self, world: &mut World, s: usize, op: &Op) {
        let side = &self.sides[s];
        let host = side.end.host;
        let mut rest = &op.content[..];
        for &(start, len) in &op.pieces {
            let (now, later) = rest.split_at(len as usize);
            side.local.region.write(&mut world.hosts[host].memory, start, now);
            rest = later;
        }
        let places = places(&side.local.region, &op.pieces);
        self.hosts[host].model.wrote(&places, &op.content);
    }

    /// Tells the memory oracle what the request will change.
    fn begin(&mut self, s: usize, id: u64, op: &Op) {
        let (side, peer) = (&self.sides[s], &self.sides[s ^ 1]);
        match (op.verb, op.target) {
            (Verb::Write | Verb::WriteImm | Verb::AtomicWrite, Some((start, len))) => {
                let places = places(&peer.target.region, &[(start, len)]);
                let content = Rc::clone(&op.content);
                self.hosts[peer.end.host].model.begins(id, places, content);
            }
            (Verb::Read, _) => {
                let places = places(&side.local.region, &op.pieces);
                let content = Rc::clone(&op.content);
                self.hosts[side.end.host].model.begins(id, places, content);
            }
            // The original is known only when the request completes.
            (Verb::CompareSwap | Verb::FetchAdd, _) => {
                let places = places(&side.local.region, &op.pieces);
                self.hosts[side.end.host].model.posted(id, places);
            }
            _ => {}
        }
    }
}

impl Side {
    /// A binding that permits all that the peer may do without a window.
    fn window(&self) -> MwBinding {
        let region = &self.target.region;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (lkey, addr, len) = (region.key, region.iova, region.len);
        MwBinding { lkey, addr, len, access, zero_based: false }
    }
}
