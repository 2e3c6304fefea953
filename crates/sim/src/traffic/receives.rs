//! Receive buffers: posts them, and checks the messages that arrive in them.

use core::ops::Range;
use std::rc::Rc;

use remora_nic::nic::PostError;
use remora_nic::queue::{Completion, CompletionFlags, RecvRequest, Sge, Status, WorkKind};
use remora_nic::wire::{Dialect, Transport};

use super::records::{Buffer, GRH, Message, Side, Traffic};
use super::spans::cut;
use crate::check::memory::{Places, Rest};
use crate::check::{Violation, demand};
use crate::endpoint::Half;
use crate::memory::Region;
use crate::options::Verb;
use crate::world::World;

const CHECKER: &str = "messages";

/// The places on the bus of pieces of a region.
pub(super) fn places(region: &Region, pieces: &[(u64, u64)]) -> Places {
    pieces.iter().flat_map(|(start, len)| region.pieces(*start, *len)).collect()
}

/// Scatter/gather entries for pieces of a region.
pub(super) fn entries(region: &Region, pieces: &[(u64, u64)]) -> Vec<Sge> {
    let entry = |&(start, len): &(u64, u64)| Sge {
        addr: region.iova + start,
        len: len as u32,
        lkey: region.key,
    };
    pieces.iter().map(entry).collect()
}

/// The first `len` bytes in `places`.
fn gather(world: &World, host: usize, places: &[Range<u64>], len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize);
    for place in places {
        let take = (place.end - place.start).min(len - bytes.len() as u64);
        bytes.extend_from_slice(world.hosts[host].memory.slice(place.start, take as usize));
    }
    bytes
}

impl Traffic {
    /// Posts receive buffers of one end, at the speed of its options.
    pub(super) fn post_receives(&mut self, world: &mut World, s: usize) {
        let side = &self.sides[s];
        let speed = if self.healed { 1.0 } else { side.options.receiver_speed };
        let sges = side.options.queues.sges.min(4);
        let (end, p) = (side.end, side.pool);
        // The ends of XRC connections have no receive queues.
        let takes = end.half == Half::Both && (side.failed.is_none() || end.srq.is_some());
        if takes {
            let post = |world: &mut World, request: &RecvRequest<'_>| end.post_recv(world, request);
            self.fill_pool(world, p, (speed, sges), post);
        }
    }

    /// Posts free buffers of a pool in up to `most` pieces each: all of them, or a random part if
    /// `speed` is less than 1.
    pub(super) fn fill_pool(
        &mut self,
        world: &mut World,
        p: usize,
        (speed, sges): (f64, usize),
        post: impl Fn(&mut World, &RecvRequest<'_>) -> Result<(), PostError>,
    ) {
        while !self.pools[p].free.is_empty() && self.dice.chance(speed) {
            let id = self.id();
            let pool = &mut self.pools[p];
            let Some(slot) = pool.free.pop() else { return };
            let pieces = cut(&mut self.dice, slot * pool.slot, pool.slot, sges);
            let request = RecvRequest { wr_id: id, sges: &entries(&pool.region, &pieces) };
            if post(world, &request).is_err() {
                pool.free.push(slot);
                return;
            }
            let places = places(&pool.region, &pieces);
            self.hosts[pool.host].model.posted(id, places.clone());
            pool.posted.insert(id, Buffer { slot, places });
            if let Some(order) = &mut pool.order {
                order.post(id);
            }
        }
    }

    /// Checks a receive element that end `s` got back; on XRC it comes from the shared queue
    /// `queue`.
    pub(super) fn receive_completed(
        &mut self,
        world: &mut World,
        s: usize,
        queue: Option<usize>,
        entry: &Completion,
    ) -> Result<(), Violation> {
        let side = &self.sides[s];
        let pool = queue.and_then(|queue| self.pool_of(side.end.host, queue)).unwrap_or(side.pool);
        let pool = &mut self.pools[pool];
        demand(entry.qpn == side.end.qpn, CHECKER, || {
            format!("a completion of another queue pair: {entry:?}")
        })?;
        if let Some(order) = &mut pool.order {
            order.complete(entry.wr_id)?;
        }
        let buffer = pool.posted.remove(&entry.wr_id).ok_or_else(|| {
            Violation::new(CHECKER, format!("receive element {} was not posted", entry.wr_id))
        })?;
        pool.free.push(buffer.slot);
        match entry.status {
            Status::Success => self.message_arrived(world, s, queue, entry, &buffer),
            Status::Flushed => self.buffer_returned(world, s, queue, entry.wr_id),
            other => {
                Err(Violation::new(CHECKER, format!("a receive element ended with {other:?}")))
            }
        }
    }

    fn message_arrived(
        &mut self,
        world: &mut World,
        s: usize,
        queue: Option<usize>,
        entry: &Completion,
        buffer: &Buffer,
    ) -> Result<(), Violation> {
        self.stats.received += 1;
        let host = self.sides[s].end.host;
        let transport = self.sides[s].end.transport;
        let reliable = transport.is_reliable();
        let message = if reliable {
            let at = self.sides[s ^ 1].next_message(queue);
            at.and_then(|at| self.sides[s ^ 1].messages.remove(at))
        } else {
            self.identify(world, s, entry, buffer)?
        };
        let message = message.ok_or_else(|| {
            Violation::new(CHECKER, format!("no end has sent this message: {entry:?}"))
        })?;
        judge(entry, &message, transport)?;
        let memory = &world.hosts[host].memory;
        let model = &mut self.hosts[host].model;
        if message.verb == Verb::WriteImm {
            // The buffer holds no bytes of the message; its completion shows that the data is in
            // place.
            let rest = if reliable { Rest::Untouched } else { Rest::Anything };
            model.received(entry.wr_id, &[], rest, memory)?;
            return model.done(message.id, memory);
        }
        let rest = if transport == Transport::Uc { Rest::Anything } else { Rest::Untouched };
        let mut content = Rc::clone(&message.content);
        if transport == Transport::Ud {
            // Other tests check the content of the GRH; here it only must be one.
            let grh = gather(world, host, &buffer.places, GRH);
            content = grh.iter().chain(content.iter()).copied().collect();
        }
        model.received(entry.wr_id, &content, rest, memory)?;
        if let Some(key) = message.key {
            let side = &mut self.sides[s];
            world.hosts[host].nic.dereg_mr(key).map_err(|_| {
                Violation::new(
                    CHECKER,
                    format!("the invalidated key {key:#x} names no region of this end"),
                )
            })?;
            side.keys.retain(|k| *k != key);
            side.offer_key(world);
        }
        Ok(())
    }

    /// Identifies a message of an unreliable service by its immediate data or its first eight
    /// bytes.
    fn identify(
        &mut self,
        world: &World,
        s: usize,
        entry: &Completion,
        buffer: &Buffer,
    ) -> Result<Option<Message>, Violation> {
        let Some(id) = self.message_id(world, s, entry, buffer) else { return Ok(None) };
        match self.sides[s ^ 1].unreliable.get(&id) {
            Some(message) => Ok(Some(message.clone())),
            None => self.heard(s, id),
        }
    }

    fn message_id(
        &self,
        world: &World,
        s: usize,
        entry: &Completion,
        buffer: &Buffer,
    ) -> Option<u64> {
        let side = &self.sides[s];
        if entry.flags.contains(CompletionFlags::IMM) {
            return Some(entry.imm_or_key.into());
        }
        let skip = if side.end.transport == Transport::Ud { GRH } else { 0 };
        let bytes = gather(world, side.end.host, &buffer.places, skip + 8);
        Some(u64::from_le_bytes(bytes.get(skip as usize..)?.try_into().ok()?))
    }

    /// Checks a buffer that came back without a message.
    fn buffer_returned(
        &mut self,
        world: &World,
        s: usize,
        queue: Option<usize>,
        id: u64,
    ) -> Result<(), Violation> {
        let side = &self.sides[s];
        let host = side.end.host;
        let reliable = side.end.transport.is_reliable();
        // In the lossy dialect, several buffers may hold parts of later messages.
        let lossy = side.options.connect.dialect.contains(Dialect::LOSSY);
        let rest = if reliable && !lossy { Rest::Untouched } else { Rest::Anything };
        // The buffer may hold a part of the next message.
        let peer = &self.sides[s ^ 1];
        let next = peer.next_message(queue).map(|at| &peer.messages[at]);
        let next = next.map_or(Rc::from([]), |m| Rc::clone(&m.content));
        self.hosts[host].model.returned(id, &next, rest, &world.hosts[host].memory)
    }

    /// Checks that every receive element of queue pairs without a shared queue came back, and that
    /// elements left in shared queues are untouched.
    pub(crate) fn check_buffers(&mut self, world: &World) -> Result<(), Violation> {
        for pool in &mut self.pools {
            let left = pool.order.as_ref().map_or(0, |order| order.len());
            demand(left == 0, CHECKER, || format!("{left} receive elements did not come back"))?;
            let memory = &world.hosts[pool.host].memory;
            for id in pool.posted.keys() {
                self.hosts[pool.host].model.returned(*id, &[], Rest::Untouched, memory)?;
            }
        }
        Ok(())
    }

    /// Checks that all messages that were acknowledged to their requester have arrived.
    pub(crate) fn check_delivered(&self) -> Result<(), Violation> {
        for (s, side) in self.sides.iter().enumerate() {
            for message in &side.messages {
                let id = message.id;
                let doubtful = side.ops.contains_key(&id) || side.doubtful.contains(&id);
                demand(doubtful, CHECKER, || {
                    format!("message {} of end {s} was acknowledged but did not arrive", message.id)
                })?;
            }
        }
        Ok(())
    }
}

impl Side {
    /// The message that the peer must receive next; on XRC, from this shared queue.
    fn next_message(&self, queue: Option<usize>) -> Option<usize> {
        self.messages.iter().position(|m| queue.is_none_or(|queue| m.queue == queue))
    }
}

/// Checks that a receive completion matches the message.
fn judge(entry: &Completion, message: &Message, transport: Transport) -> Result<(), Violation> {
    let Message { id, verb, imm, key, solicited, .. } = message;
    let kind = if *verb == Verb::WriteImm { WorkKind::RecvWriteImm } else { WorkKind::Recv };
    let grh = if transport == Transport::Ud { GRH } else { 0 };
    let mut flags = CompletionFlags::empty();
    flags.set(CompletionFlags::IMM, imm.is_some());
    flags.set(CompletionFlags::INVALIDATED, key.is_some());
    flags.set(CompletionFlags::SOLICITED, *solicited);
    flags.set(CompletionFlags::GRH, grh > 0);
    let value = imm.or(*key).unwrap_or(0);
    let right = entry.kind == kind
        && u64::from(entry.len) == message.content.len() as u64 + grh
        && entry.flags == flags
        && (imm.is_none() && key.is_none() || entry.imm_or_key == value);
    demand(right, CHECKER, || {
        let len = message.content.len();
        format!("message {id} ({verb:?}, {len} bytes, {flags:?}, {value:#x}) came as {entry:?}")
    })
}
