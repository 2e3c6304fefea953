//! Loops (RedN §3.4): unrolled loops that can be left, and recycled loops, whose ring the card
//! runs again and again without the host.
//!
//! A lap of a recycled ring restores the ring: it puts back the elements that it changed, and
//! raises the counts of its WAITs and ENABLEs, since the card's indices only rise. A loop continues
//! at an ENABLE of its own queue, the *gate*. A request leaves the loop by copying another ENABLE
//! over the gate.

use super::construct::{Block, Changed, Condition, Exit, Order, Writer};
use super::element::{Field, Label, QueueId};
use super::place::{Span, Word};
use super::program::{Program, Start};
use super::request::{Count, Request};
use super::verb::Verb;
use remora_nic::queue::MAX_SGE;

impl<'p> Writer<'p> {
    /// Repeats `body` as long as the condition holds, in a recycled ring. What is appended next
    /// runs after the loop. Costs, besides the test and `body`: a READ that puts the test back, an
    /// ADD, and the gate.
    ///
    /// # Panics
    /// If a loop is not possible here: see [`Writer::can_loop`].
    pub fn while_(&mut self, condition: Condition, body: impl FnOnce(&mut Self)) {
        self.recycled("while", |w, exit| {
            let leave = exit.leave();
            let switch = w.program.label("");
            w.test(condition, false, switch, leave);
            w.gate();
            body(w);
            w.recycle(None);
        });
    }

    /// Repeats `body` until it [breaks](Writer::break_), or for ever. What is appended next runs
    /// after the loop.
    ///
    /// # Panics
    /// If a loop is not possible here: see [`Writer::can_loop`].
    pub fn loop_(&mut self, body: impl FnOnce(&mut Self)) {
        self.recycled("loop", |w, _| {
            body(w);
            let gate = w.exit.take().map(|exit| exit.gate);
            w.recycle(gate);
        });
    }

    /// Writes a whole queue as a recycled ring: it starts again when `body` has ended, for ever. No
    /// other requests may be put into the queue.
    pub fn forever(program: &'p mut Program, queue: QueueId, body: impl FnOnce(&mut Self)) {
        let gate = program.label("again");
        let mut writer = Writer::new(program, queue, Order::Fetch);
        writer.recycling = true;
        body(&mut writer);
        writer.recycle(Some(gate));
        writer.finish();
    }

    /// Writes `body` out `times` times; the requests run in sequence unless `body`
    /// [breaks](Writer::break_). In a recycled loop or a conditional block it cannot break: see
    /// [`Writer::can_loop`].
    pub fn repeat(&mut self, times: u32, mut body: impl FnMut(&mut Self, u32)) {
        if !self.can_loop() {
            let outer = self.exit.take();
            (0..times).for_each(|round| body(self, round));
            self.exit = outer;
            return;
        }
        let (after, pattern) = self.continuation();
        let gate = self.program.label("");
        let outer = self.exit.replace(Exit { gate, pattern, used: false });
        self.construct("repeat", |w| (0..times).for_each(|round| body(w, round)));
        self.push(Request::enable(after, Count::Gate));
        // No request leaves by the last gate: it becomes a NOOP.
        if let Some(exit) = std::mem::replace(&mut self.exit, outer) {
            self.put(exit.gate, Request::noop().silent());
        }
        self.flush();
        self.queue = after;
    }

    /// Runs `body` in up to `times` rounds, each an `if` on the condition. Every round evaluates
    /// the condition, even after it was false once.
    pub fn unrolled_while(
        &mut self,
        times: u32,
        condition: Condition,
        mut body: impl FnMut(&mut Self, u32),
    ) {
        self.construct("unrolled while", |w| {
            for round in 0..times {
                w.if_(condition, |w| body(w, round));
            }
        });
    }

    /// Leaves the innermost loop once the enclosing blocks have ended.
    ///
    /// # Panics
    /// Outside of a loop that can be left: see [`Writer::in_loop`].
    pub fn break_(&mut self) {
        let exit = self.exit.as_mut().expect("break stands in a loop");
        exit.used = true;
        let leave = exit.leave();
        self.push(leave);
        if self.depth == 0 {
            self.join();
            self.close_gate();
        }
    }

    /// Whether a loop that can be left, or a recycled loop, is possible here. It is not possible in
    /// a recycled loop, whose ring must be one piece, nor in a conditional block.
    pub fn can_loop(&self) -> bool {
        self.depth == 0 && !self.recycling
    }

    /// Whether [`Writer::break_`] is possible here.
    pub fn in_loop(&self) -> bool {
        self.exit.is_some()
    }

    /// The queue in which the program continues after a loop, and an ENABLE of that queue, to be
    /// copied.
    fn continuation(&mut self) -> (QueueId, Label) {
        let after = self.program.managed("after", Start::Asleep);
        let patterns = self.program.patterns();
        let enable = Request::enable(after, Count::Gate);
        (after, self.program.push(patterns, enable))
    }

    fn recycled(&mut self, name: &str, make: impl FnOnce(&mut Self, Exit)) {
        assert!(self.can_loop(), "no recycled loop in another one or in a block");
        let (after, pattern) = self.continuation();
        let ring = self.program.managed(name, Start::Asleep);
        self.push(Request::enable(ring, Count::Gate));
        self.flush();
        let exit = Exit { gate: self.program.label(""), pattern, used: false };
        let outer = (self.order, self.exit.replace(exit), std::mem::take(&mut self.changed));
        (self.queue, self.order, self.recycling) = (ring, Order::Fetch, true);
        self.construct(name, |w| make(w, exit));
        self.flush();
        (self.order, self.exit, self.changed) = outer;
        (self.queue, self.recycling) = (after, false);
    }

    /// Ends a lap of a ring that another queue enables lap by lap. Its last element's completion
    /// counts the lap. Returns the elements of a lap.
    pub fn lap(&mut self) -> u64 {
        self.restore();
        let laps = (self.block.len()).next_power_of_two();
        while self.block.len() < laps {
            self.push(Request::noop().silent());
        }
        if let Some((_, last)) = self.block.last_mut() {
            last.signaled = true;
        }
        laps as u64
    }

    /// Appends the gate here if a request leaves the loop by it.
    pub(crate) fn close_gate(&mut self) {
        if self.depth == 0 && self.exit.is_some_and(|exit| exit.used) {
            self.part();
            self.gate();
        }
    }

    /// Appends the gate: the loop is left here if another ENABLE was copied over it, and continues
    /// otherwise.
    fn gate(&mut self) {
        let Some(exit) = self.exit else { return };
        self.put(exit.gate, Request::enable(self.queue, Count::Gate));
        self.exit = Some(Exit { gate: self.program.label(""), used: false, ..exit });
    }

    /// Ends a lap: the block becomes a ring that can be run for ever. If `last` is given, it labels
    /// a gate that becomes the ring's last element.
    pub(crate) fn recycle(&mut self, last: Option<Label>) {
        if let Some(exit) = self.exit.take() {
            // The gate of this label is never appended, and no request leaves by it.
            self.program.forget(exit.gate);
        }
        let gate_last = last.is_some();
        self.restore();
        let signaled = self.block.iter().filter(|(_, request)| request.signaled).count() as u64;
        let raised: Vec<Label> = self
            .block
            .iter()
            .filter(|(_, request)| request.order.is_some())
            .map(|(label, _)| *label)
            .chain(last)
            .collect();
        let len = self.block.len() + raised.len() + usize::from(gate_last);
        let laps = len.next_power_of_two();
        for label in raised {
            let by = match self.order_of(label) {
                Some((verb, to, _)) if to == self.queue && verb == Verb::Wait => signaled,
                Some((_, to, raise)) if to != self.queue => raise,
                _ => laps as u64,
            };
            let count = label.field(Field::Remote);
            self.push(Request::calc(Verb::Add, count.at, Word::Number(by)).silent());
        }
        while self.block.len() + usize::from(gate_last) < laps {
            self.push(Request::noop().silent());
        }
        if let Some(last) = last {
            self.put(last, Request::enable(self.queue, Count::Gate));
        }
        self.set_gates(laps as u64, last);
    }

    fn order_of(&self, label: Label) -> Option<(Verb, QueueId, u64)> {
        let (_, request) = self.block.iter().find(|(at, _)| *at == label)?;
        request.order.map(|(queue, _)| (request.verb, queue, request.raise))
    }

    /// Sets the counts of gates: each enables up to and including the next gate, the last one up to
    /// and including the first gate of the next lap. A gate that an ADD raises before the gate runs
    /// starts a lap lower.
    fn set_gates(&mut self, lap: u64, last: Option<Label>) {
        let queue = self.queue;
        let gates: Vec<usize> = (0..self.block.len())
            .filter(|&i| {
                let request = &self.block[i].1;
                let own = request.order.is_some_and(|(to, _)| to == queue);
                own && request.verb == Verb::Enable
            })
            .collect();
        for (i, &at) in gates.iter().enumerate() {
            let next = gates.get(i + 1).map_or(lap + gates[0] as u64, |&next| next as u64) + 1;
            let (label, request) = &mut self.block[at];
            let raised_before = if last == Some(*label) { lap } else { 0 };
            request.order = Some((queue, Count::Number(next - raised_before)));
        }
    }

    /// Appends READs that put back what a lap has changed.
    fn restore(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        for changed in changed.chunks(MAX_SGE) {
            let restore = restore(self, changed);
            self.push(restore);
        }
    }
}

impl Exit {
    /// The request that leaves the loop: it copies the pattern over the gate.
    pub(crate) fn leave(&self) -> Request {
        Request::write(&[self.pattern.field(Field::Order)], self.gate.field(Field::Order).at)
    }
}

/// A READ that puts back the original first words, or the original op-codes.
fn restore(writer: &mut Writer<'_>, changed: &[Changed]) -> Request {
    let (mut bytes, mut into): (Vec<u8>, Vec<Span>) = Default::default();
    for &Changed { label, id } in changed {
        let head = first_word(&writer.block, label).to_le_bytes();
        let field = if id { Field::Head } else { Field::Opcode };
        let to = label.field(field);
        bytes.extend_from_slice(&head[..to.len as usize]);
        into.push(to);
    }
    let table = writer.program.bytes("as before", &bytes);
    Request::read(table.at, &into).silent()
}

fn first_word(block: &Block, label: Label) -> u64 {
    let request = block.iter().find(|(at, _)| *at == label);
    request.map_or(0, |(_, request)| Word::Head(request.held(), request.id).resolve(|_| 0))
}
