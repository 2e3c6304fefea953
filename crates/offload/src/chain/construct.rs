//! Conditionals and loops, made of work requests that change each other (RedN §3.3, §3.4).
//!
//! A test is a compare-and-swap on the first word of another element: that word holds op-code and
//! operand side by side, so that one verb compares the operand and changes the op-code.

use super::element::{Field, Label, QueueId};
use super::place::{Place, Span, Word};
use super::program::{Mark, Program};
use super::request::{Count, Request};
use super::verb::{Class, Verb};
use remora_nic::queue::MAX_SGE;

/// Bytes of an operand that one compare-and-swap can test.
const OPERAND_BYTES: u32 = 6;

/// How it is made sure that an element is fetched after it was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// By WAIT and ENABLE between the two (RedN §3.1): for a card that fetches ahead up to where a
    /// queue is enabled.
    Doorbell,
    /// By nothing: this card's managed queues fetch each element when the one before has ended.
    Fetch,
}

/// One side of a comparison: 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A number below 2^48.
    Number(u64),
    /// The low 48 bits of a word in memory, copied when the test is made.
    Cell(Place),
    /// Somebody else puts it where it belongs: into [`Test::left`] or [`Test::right`].
    Injected,
}

/// What is asked of two operands. They are unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `>=`
    AtLeast,
    /// `>`
    Greater,
    /// `<=`
    AtMost,
}

impl Relation {
    /// What holds when this does not.
    #[must_use]
    pub fn negated(self) -> Relation {
        match self {
            Relation::Equal => Relation::NotEqual,
            Relation::NotEqual => Relation::Equal,
            Relation::Less => Relation::AtLeast,
            Relation::AtLeast => Relation::Less,
            Relation::Greater => Relation::AtMost,
            Relation::AtMost => Relation::Greater,
        }
    }
}

/// A predicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Of two operands of 48 bits.
    Compare(Operand, Relation, Operand),
    /// Are two pieces of memory of the same length equal? One compare-and-swap for 6 bytes.
    SameBytes(Span, Span),
}

/// Where a test takes its operands from, for who injects them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// The left operand, 6 bytes.
    pub left: Span,
    /// The right operand, 6 bytes.
    pub right: Span,
}

/// Requests that are to follow each other in a queue.
pub(crate) type Block = Vec<(Label, Request)>;

/// Writes requests and constructs to the end of one queue after the other.
#[derive(Debug)]
pub struct Writer<'p> {
    pub(crate) program: &'p mut Program,
    pub(crate) queue: QueueId,
    pub(crate) order: Order,
    pub(crate) block: Block,
    /// What requests of this queue change of others while they run.
    pub(crate) changed: Vec<Changed>,
    /// The innermost loop that can be left.
    pub(crate) exit: Option<Exit>,
    /// Conditional blocks around what is being written.
    pub(crate) depth: u32,
    /// It stands in a ring that is recycled.
    pub(crate) recycling: bool,
}

/// An element whose first bytes differ after a lap from what they were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) label: Label,
    /// The id too, and not only the op-code.
    pub(crate) id: bool,
}

/// How a loop is left: what is copied over the next ENABLE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// The ENABLE that goes on with the loop.
    pub(crate) gate: Label,
    /// The ENABLE that leaves it, as it stands somewhere else.
    pub(crate) pattern: Label,
    /// Something leaves by the gate.
    pub(crate) used: bool,
}

impl<'p> Writer<'p> {
    /// Writes to the end of a managed queue.
    pub fn new(program: &'p mut Program, queue: QueueId, order: Order) -> Writer<'p> {
        let (block, changed) = (Vec::new(), Vec::new());
        Writer { program, queue, order, block, changed, exit: None, depth: 0, recycling: false }
    }

    /// The program.
    pub fn program(&mut self) -> &mut Program {
        self.program
    }

    /// The queue that is being written.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Puts all that was written into its queue.
    pub fn finish(mut self) {
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        for (label, request) in std::mem::take(&mut self.block) {
            self.program.put(self.queue, label, request);
        }
    }

    /// A request.
    pub fn push(&mut self, request: Request) -> Label {
        let label = self.program.label("");
        self.put(label, request)
    }

    /// A request that was named before.
    pub fn put(&mut self, label: Label, request: Request) -> Label {
        self.block.push((label, request));
        label
    }

    /// Makes something and reports it as a construct.
    pub fn construct<T>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> T) -> T {
        let from = self.program.mark();
        let made = make(self);
        let to: Mark = self.program.mark();
        self.program.constructs.push((name.to_owned(), from, to));
        made
    }

    /// Copies `from` to `to`, which is as long.
    pub fn copy(&mut self, from: Span, to: Place) -> Label {
        self.push(Request::write(&[from], to))
    }

    /// At the end of a lap, this request's op-code is to be what it was.
    pub fn put_back(&mut self, label: Label) {
        self.changed.push(Changed { label, id: false });
    }

    /// Copies an operand into an element that is going to use it.
    pub(crate) fn inject(&mut self, from: Span, to: Place) {
        let signaled = self.order == Order::Doorbell;
        self.push(Request { harmless: true, signaled, ..Request::write(&[from], to) });
    }

    /// What comes now is fetched after what came before has had its effect.
    pub fn barrier(&mut self) {
        if self.order == Order::Doorbell {
            self.join();
            self.push(Request::enable(self.queue, Count::Gate));
        }
    }

    /// What comes now runs after what came before has ended.
    pub fn join(&mut self) {
        let last = self.block.iter().rev().find(|(_, request)| request.signaled);
        if let (Order::Doorbell, Some(&(last, _))) = (self.order, last) {
            self.push(Request::wait(self.queue, Count::Through(last)));
        }
    }

    fn collect(&mut self, make: impl FnOnce(&mut Self)) -> Block {
        let outer = std::mem::take(&mut self.block);
        self.depth += 1;
        make(self);
        self.depth -= 1;
        std::mem::replace(&mut self.block, outer)
    }

    /// Runs `then` if the condition holds.
    pub fn if_(&mut self, condition: Condition, then: impl FnOnce(&mut Self)) -> Test {
        self.if_else(condition, then, |_| ())
    }

    /// Runs `then` if the condition holds, and `otherwise` if not.
    pub fn if_else(
        &mut self,
        condition: Condition,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) -> Test {
        let test = self.construct("if", |w| {
            let (mut then, mut otherwise) = (w.collect(then), w.collect(otherwise));
            let alone = otherwise.is_empty() && then.len() == 1 && is_switched(&then[0].1);
            let (switch, request) = if alone {
                then.remove(0)
            } else {
                let label = w.program.label("");
                (label, w.switches(&mut then, &mut otherwise))
            };
            let test = w.test(condition, true, switch, request);
            w.block.extend(then);
            w.block.extend(otherwise);
            w.join();
            test
        });
        self.close_gate();
        test
    }

    /// A request that switches `then` on and `otherwise` off: one READ puts op-codes into up to 16
    /// elements. Behind 15 it switches on another such.
    fn switches(&mut self, then: &mut Block, otherwise: &mut Block) -> Request {
        let mut codes = Vec::new();
        for (label, request) in then.iter_mut().filter(|(_, request)| is_switched(request)) {
            request.off = true;
            codes.push((*label, request.verb));
        }
        for (label, _) in otherwise.iter().filter(|(_, request)| is_switched(request)) {
            codes.push((*label, Verb::Noop));
        }
        self.changed.extend(codes.iter().map(|(label, _)| Changed { label: *label, id: false }));
        self.switch_all(&codes, then)
    }

    fn switch_all(&mut self, codes: &[(Label, Verb)], then: &mut Block) -> Request {
        let (here, further) = codes.split_at(codes.len().min(MAX_SGE));
        let mut here = here.to_vec();
        if !further.is_empty() {
            let (last, label) = (here.split_off(MAX_SGE - 1), self.program.label(""));
            let next = self.switch_all(&[&last, further].concat(), then);
            then.insert(0, (label, next.off()));
            here.push((label, Verb::Read));
            self.changed.push(Changed { label, id: false });
        }
        self.opcodes(&here)
    }

    /// A READ of op-codes into elements.
    fn opcodes(&mut self, codes: &[(Label, Verb)]) -> Request {
        let bytes: Vec<u8> = codes.iter().flat_map(|(_, verb)| verb.code().to_le_bytes()).collect();
        let table = self.program.bytes("op-codes", &bytes);
        let into: Vec<Span> = codes.iter().map(|(label, _)| label.field(Field::Opcode)).collect();
        Request::read(table.at, &into)
    }

    /// The test, and behind it `request`, which runs if the condition is as `wanted`.
    pub(crate) fn test(
        &mut self,
        condition: Condition,
        wanted: bool,
        switch: Label,
        request: Request,
    ) -> Test {
        let (left, relation, right) = match condition {
            Condition::SameBytes(left, right) => {
                return self.same_bytes(left, right, wanted, switch, request);
            }
            Condition::Compare(left, relation, right) if wanted => (left, relation, right),
            Condition::Compare(left, relation, right) => (left, relation.negated(), right),
        };
        match relation {
            Relation::Greater => self.compare(right, Relation::Less, left, switch, request),
            Relation::AtMost => self.compare(right, Relation::AtLeast, left, switch, request),
            _ => self.compare(left, relation, right, switch, request),
        }
    }

    /// The switch holds the left operand beside its op-code, the compare-and-swap the right one. If
    /// equality is to keep it from running, it starts as itself and becomes NOOP. Of an inequality,
    /// MAX first puts the larger of both beside the op-code, and that stands against the left one.
    fn compare(
        &mut self,
        left: Operand,
        relation: Relation,
        right: Operand,
        switch: Label,
        request: Request,
    ) -> Test {
        let starts_off = matches!(relation, Relation::Equal | Relation::AtLeast);
        let ordered = matches!(relation, Relation::Less | Relation::AtLeast);
        let (before, after) = states(request.verb, starts_off);
        let (cas, head) = (self.program.label(""), switch.field(Field::Head));
        let (id, expected) = (switch.field(Field::Id), cas.field(Field::CompareId));
        let max = ordered.then(|| self.program.label(""));
        let second = max.map_or(expected, |max| max.field(Field::Operand).part(2, OPERAND_BYTES));
        self.changed.push(Changed { label: switch, id: ordered });
        let wants: &[Span] = if ordered { &[id, expected] } else { &[id] };
        let (x, y) = (self.place(left, wants), self.place(right, &[second]));
        if matches!(left, Operand::Cell(_)) || matches!(right, Operand::Cell(_)) {
            self.barrier();
        }
        if let Some(max) = max {
            self.put(max, Request::calc(Verb::Max, head.at, Word::Head(before, y)).silent());
        }
        let expect = if ordered { x } else { y };
        let (expect, swap) = (Word::Head(before, expect), Word::Head(after, expect));
        self.put(cas, Request::compare_swap(head.at, expect, swap));
        self.barrier();
        self.put(switch, Request { off: starts_off, id: x, ..request });
        Test { left: id, right: second }
    }

    /// Copies an operand to where it is wanted, or says what stands there from the beginning.
    fn place(&mut self, operand: Operand, wanted: &[Span]) -> u64 {
        match operand {
            Operand::Number(number) => number,
            Operand::Injected => 0,
            Operand::Cell(cell) => {
                wanted.iter().for_each(|to| self.inject(cell.span(OPERAND_BYTES), to.at));
                0
            }
        }
    }

    /// Each compare-and-swap but the last switches on the next.
    fn same_bytes(
        &mut self,
        left: Span,
        right: Span,
        wanted: bool,
        switch: Label,
        request: Request,
    ) -> Test {
        let pieces = left.len.max(1).div_ceil(OPERAND_BYTES) as usize;
        let tests: Vec<Label> = (0..pieces).map(|_| self.program.label("")).collect();
        let tested = |i: usize| tests.get(i + 1).copied().unwrap_or(switch);
        for (i, cas) in tests.iter().enumerate() {
            let at = i as u64 * u64::from(OPERAND_BYTES);
            let len = OPERAND_BYTES.min(left.len - at as u32);
            self.inject(left.part(at, len), tested(i).field(Field::Id).at);
            self.inject(right.part(at, len), cas.field(Field::CompareId).at);
        }
        self.barrier();
        for (i, &cas) in tests.iter().enumerate() {
            let last = i + 1 == pieces;
            let verb = if last { request.verb } else { Verb::CompareSwap };
            let (before, after) = states(verb, wanted || !last);
            let head = tested(i).field(Field::Head);
            let (compare, swap) = (Word::Head(before, 0), Word::Head(after, 0));
            let test = Request::compare_swap(head.at, compare, swap);
            self.put(cas, if i == 0 { test } else { test.off() });
            self.changed.push(Changed { label: tested(i), id: true });
            self.barrier();
        }
        self.put(switch, if wanted { request.off() } else { request });
        Test { left: tested(0).field(Field::Id), right: tests[0].field(Field::CompareId) }
    }

    /// Runs `body` `times` times as long as the condition holds: each round is an `if`, and all
    /// rounds are looked at.
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
}

/// What a switch holds before and after its test has found equality.
fn states(verb: Verb, starts_off: bool) -> (Verb, Verb) {
    if starts_off { (Verb::Noop, verb) } else { (verb, Verb::Noop) }
}

/// Does a condition have to switch it?
fn is_switched(request: &Request) -> bool {
    let acts = !matches!(request.verb.class(), Class::Order | Class::Nothing);
    acts && !request.off && !request.harmless
}
