//! Send completions: checks each one and tells the checkers what it means.

use remora_nic::queue::{Completion, Opcode, Status, WorkKind};

use super::receives::places;
use super::records::{Op, Traffic};
use crate::check::memory::Rest;
use crate::check::{Violation, demand};
use crate::options::Verb;
use crate::world::World;

const CHECKER: &str = "completions";

impl Traffic {
    /// Handles a completion of end `s`'s send queue.
    pub(super) fn send_completed(
        &mut self,
        world: &mut World,
        s: usize,
        entry: &Completion,
    ) -> Result<(), Violation> {
        let ended = self.sides[s].order.complete(entry.wr_id, entry.status)?;
        for end in ended {
            let Some(op) = self.sides[s].ops.remove(&end.id) else {
                return Err(Violation::new(CHECKER, format!("request {} is unknown", end.id)));
            };
            match end.status {
                Status::Success => {
                    if end.id == entry.wr_id {
                        judge(entry, &op)?;
                    }
                    self.succeeded(world, s, end.id, &op)?;
                }
                status => self.ended_badly(world, s, end.id, &op, status)?,
            }
        }
        Ok(())
    }

    fn succeeded(
        &mut self,
        world: &mut World,
        s: usize,
        id: u64,
        op: &Op,
    ) -> Result<(), Violation> {
        *self.stats.done.entry(op.verb).or_default() += 1;
        self.stats.bytes += op.local.1;
        let side = &self.sides[s];
        let (host, peer) = (side.end.host, self.sides[s ^ 1].end.host);
        let reliable = side.end.transport.is_reliable();
        match op.verb {
            Verb::Write | Verb::WriteImm | Verb::AtomicWrite if reliable => {
                self.hosts[peer].model.done(id, &world.hosts[peer].memory)?;
            }
            Verb::Read => self.hosts[host].model.done(id, &world.hosts[host].memory)?,
            Verb::CompareSwap | Verb::FetchAdd => self.atomic_done(world, s, id, op)?,
            Verb::BindWindow => self.sides[s].opens.push(op.key),
            _ => {}
        }
        self.release(world, s, op, reliable);
        Ok(())
    }

    fn atomic_done(&mut self, world: &World, s: usize, id: u64, op: &Op) -> Result<(), Violation> {
        let side = &self.sides[s];
        let host = side.end.host;
        let memory = &world.hosts[host].memory;
        let bytes = side.local.region.read(memory, op.local.0, 8);
        self.hosts[host].model.received(id, &bytes, Rest::Untouched, memory)?;
        let original = u64::from_ne_bytes(bytes.try_into().expect("8 bytes were read"));
        let Some(word) = op.word else { return Ok(()) };
        let history = self.words.entry(word).or_default();
        if op.verb == Verb::FetchAdd {
            history.added(original, op.operand);
            return Ok(());
        }
        history.swapped(original, op.compare, op.operand);
        let now = if original == op.compare { op.operand } else { original };
        self.hosts[host].seen.insert(word, now);
        Ok(())
    }

    fn ended_badly(
        &mut self,
        world: &mut World,
        s: usize,
        id: u64,
        op: &Op,
        status: Status,
    ) -> Result<(), Violation> {
        if status != Status::Flushed {
            *self.stats.failed.entry(format!("{status:?}")).or_default() += 1;
        }
        let side = &mut self.sides[s];
        side.failed = side.failed.or(Some(status));
        side.doubtful.insert(id);
        let side = &self.sides[s];
        let (host, peer) = (side.end.host, self.sides[s ^ 1].end.host);
        let impatient = side.options.connect.rnr_retry < 7;
        let known = match status {
            Status::RetryExceeded | Status::Flushed => true,
            Status::RnrRetryExceeded => impatient,
            _ => false,
        };
        let legal = known && (side.closing || self.options.may_fail(&side.options));
        demand(legal, CHECKER, || {
            format!("request {id} of end {s} ({:?}) ended with {status:?}", op.verb)
        })?;
        match op.verb {
            Verb::Write | Verb::WriteImm | Verb::AtomicWrite => {
                // Packets of the request may still be on their way: it is checked at the end.
                self.unsettled.push((peer, id));
            }
            Verb::Read => self.hosts[host].model.given_up(id, &world.hosts[host].memory)?,
            Verb::CompareSwap | Verb::FetchAdd => {
                let memory = &world.hosts[host].memory;
                self.hosts[host].model.returned(id, &[], Rest::Anything, memory)?;
                if let Some(word) = op.word {
                    let history = self.words.entry(word).or_default();
                    match op.verb {
                        Verb::FetchAdd => history.perhaps_added(op.operand),
                        _ => history.perhaps_swapped(op.compare, op.operand),
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Frees the request's parts of the regions. Overwrites its source, so that a packet made from
    /// it later is noticed.
    pub(super) fn release(&mut self, world: &mut World, s: usize, op: &Op, frees_target: bool) {
        let (start, len) = op.local;
        let side = &mut self.sides[s];
        side.local.spans.give_back(start, len);
        if op.verb.sends_data() {
            let junk = vec![self.dice.number() as u8; len as usize];
            let host = side.end.host;
            side.local.region.write(&mut world.hosts[host].memory, start, &junk);
            let places = places(&side.local.region, &[(start, len)]);
            self.hosts[host].model.wrote(&places, &junk);
        }
        if let Some((start, len)) = op.target.filter(|_| op.frees_target && frees_target) {
            self.sides[s ^ 1].target.spans.give_back(start, len);
        }
    }

    /// Checks failed requests after all packets have arrived: each has written all, some or none
    /// of its bytes.
    pub(crate) fn settle(&mut self, world: &World) -> Result<(), Violation> {
        for (host, id) in core::mem::take(&mut self.unsettled) {
            self.hosts[host].model.given_up(id, &world.hosts[host].memory)?;
        }
        for (host, id) in core::mem::take(&mut self.unsettled_words) {
            let memory = &world.hosts[host].memory;
            self.hosts[host].model.returned(id, &[], Rest::Anything, memory)?;
        }
        Ok(())
    }
}

/// Checks that a completion matches the posted request.
fn judge(entry: &Completion, op: &Op) -> Result<(), Violation> {
    let opcode = match op.verb {
        Verb::Send => Opcode::Send,
        Verb::SendImm => Opcode::SendImm,
        Verb::SendInvalidate => Opcode::SendInvalidate,
        Verb::Write => Opcode::Write,
        Verb::WriteImm => Opcode::WriteImm,
        Verb::Read => Opcode::Read,
        Verb::CompareSwap => Opcode::CompareSwap,
        Verb::FetchAdd => Opcode::FetchAdd,
        Verb::AtomicWrite => Opcode::AtomicWrite,
        Verb::Flush => Opcode::Flush,
        Verb::BindWindow => Opcode::BindMw,
        Verb::Rpc => Opcode::Rpc,
        Verb::RpcWrite => Opcode::RpcWrite,
    };
    let right = entry.kind == WorkKind::Send(opcode) && u64::from(entry.len) == op.len;
    demand(right, CHECKER, || format!("{opcode:?} of {} bytes was reported as {entry:?}", op.len))
}
