//! Conditionals, made of work requests that change each other (RedN §3.3), and the [`Writer`] that
//! puts constructs into a program.
//!
//! A test is a compare-and-swap on the first word of another element. That word holds the op-code
//! beside a 48-bit operand, so one compare-and-swap compares the operand and changes the op-code.
//! Loops are in `loops.rs`, moves of data in [`super::mov`].

use super::element::{Field, Label, QueueId};
use super::place::{Place, Span, Word};
use super::program::{Mark, Program};
use super::request::{Count, Request};
use super::verb::{Class, Verb};
use remora_nic::queue::MAX_SGE;

/// Bytes of an operand that one compare-and-swap can test.
const OPERAND_BYTES: u32 = 6;

/// How a program makes sure that an element is fetched only after another request has changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// WAIT and ENABLE between the two (RedN §3.1): for cards that prefetch up to the index to
    /// which a queue is enabled.
    Doorbell,
    /// Nothing between the two: this card's managed queues fetch each element when the one before
    /// it has ended.
    Fetch,
}

/// One side of a comparison: an unsigned number of 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A number below 2^48.
    Number(u64),
    /// The low 48 bits of a word in memory, copied when the test runs.
    Cell(Place),
    /// Another request, or a client's message, writes it into [`Test::left`] or [`Test::right`].
    Injected,
}

/// How two operands are compared. Both are unsigned.
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
    /// The relation that holds exactly when this one does not.
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

/// The condition of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// A relation of two 48-bit operands.
    Compare(Operand, Relation, Operand),
    /// Two pieces of memory of the same length are equal. Costs one compare-and-swap for each 6
    /// bytes.
    SameBytes(Span, Span),
}

impl Condition {
    /// The number of requests that a test of the condition has at least.
    pub fn least_requests(self) -> usize {
        match self {
            Condition::Compare(..) => 1,
            // Two copies and a compare-and-swap for each piece.
            Condition::SameBytes(left, _) => 3 * pieces(left),
        }
    }
}

/// The number of compare-and-swaps that test so much memory.
fn pieces(span: Span) -> usize {
    span.len.max(1).div_ceil(OPERAND_BYTES) as usize
}

/// Where a test takes its operands from, for requests that inject them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// The left operand, 6 bytes.
    pub left: Span,
    /// The right operand, 6 bytes.
    pub right: Span,
}

/// Requests that will follow each other in a queue.
pub(crate) type Block = Vec<(Label, Request)>;

/// Appends requests and constructs to a queue, and to the queues that continue it.
#[derive(Debug)]
pub struct Writer<'p> {
    pub(crate) program: &'p mut Program,
    pub(crate) queue: QueueId,
    pub(crate) order: Order,
    pub(crate) block: Block,
    /// Elements that the queue's requests change while they run.
    pub(crate) changed: Vec<Changed>,
    /// How the innermost loop is left, if it can be left.
    pub(crate) exit: Option<Exit>,
    /// The number of conditional blocks around the current position.
    pub(crate) depth: u32,
    /// The current position is in a ring that is recycled.
    pub(crate) recycling: bool,
}

/// An element whose first word differs after a lap from its value before the lap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) label: Label,
    /// The id has changed as well as the op-code.
    pub(crate) id: bool,
}

/// How a loop is left: by copying another ENABLE over its next ENABLE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// The ENABLE that continues the loop.
    pub(crate) gate: Label,
    /// The ENABLE that leaves the loop; it stands in the queue of patterns and is copied from
    /// there.
    pub(crate) pattern: Label,
    /// A request leaves the loop by this gate.
    pub(crate) used: bool,
}

impl<'p> Writer<'p> {
    /// A writer that appends to the managed queue `queue`.
    pub fn new(program: &'p mut Program, queue: QueueId, order: Order) -> Writer<'p> {
        let (block, changed) = (Vec::new(), Vec::new());
        Writer { program, queue, order, block, changed, exit: None, depth: 0, recycling: false }
    }

    /// The program that is being written.
    pub fn program(&mut self) -> &mut Program {
        self.program
    }

    /// The queue that requests are appended to.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Puts all written requests into their queue.
    pub fn finish(mut self) {
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        for (label, request) in std::mem::take(&mut self.block) {
            self.program.put(self.queue, label, request);
        }
    }

    /// Appends a request without a name, and returns its label.
    pub fn push(&mut self, request: Request) -> Label {
        let label = self.program.label("");
        self.put(label, request)
    }

    /// Appends a request under a label that was named before.
    pub fn put(&mut self, label: Label, request: Request) -> Label {
        self.block.push((label, request));
        label
    }

    /// Runs `make` and records what it appends as a construct called `name`, for
    /// [`Program::constructs`].
    pub fn construct<T>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> T) -> T {
        let from = self.program.mark();
        let made = make(self);
        let to: Mark = self.program.mark();
        self.program.constructs.push((name.to_owned(), from, to));
        made
    }

    /// Appends a copy of `from` to `to`; `to` gets as many bytes as `from` has.
    pub fn copy(&mut self, from: Span, to: Place) -> Label {
        self.push(Request::write(&[from], to))
    }

    /// Says that a request changes this one's op-code; the end of a lap puts the op-code back.
    pub fn put_back(&mut self, label: Label) {
        self.changed.push(Changed { label, id: false });
    }

    /// Copies an operand into an element that has not been fetched yet.
    pub(crate) fn inject(&mut self, from: Span, to: Place) {
        let signaled = self.order == Order::Doorbell;
        self.push(Request { harmless: true, signaled, ..Request::write(&[from], to) });
    }

    /// Orders requests: those appended next are fetched after the earlier ones have had their
    /// effect.
    pub fn barrier(&mut self) {
        self.join();
        self.part();
    }

    /// Has the requests that are appended next fetched only when this point is reached.
    pub(crate) fn part(&mut self) {
        if self.order == Order::Doorbell {
            self.push(Request::enable(self.queue, Count::Gate));
        }
    }

    /// Orders requests: those appended next run after the earlier ones have ended.
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
            if !alone {
                w.barrier();
            }
            w.block.extend(then);
            w.block.extend(otherwise);
            w.join();
            test
        });
        self.close_gate();
        test
    }

    /// A request that switches `then` on and `otherwise` off: one READ puts op-codes into up to 16
    /// elements. For more elements, the 16th is another request of this kind.
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
            self.put_first(then, label, next.off());
            here.push((label, Verb::Read));
            self.changed.push(Changed { label, id: false });
        }
        self.opcodes(&here)
    }

    /// Puts a request before a block that it changes.
    fn put_first(&mut self, block: &mut Block, label: Label, request: Request) {
        let outer = std::mem::replace(&mut self.block, vec![(label, request)]);
        self.barrier();
        let first = std::mem::replace(&mut self.block, outer);
        block.splice(0..0, first);
    }

    /// A READ that copies op-codes into elements.
    fn opcodes(&mut self, codes: &[(Label, Verb)]) -> Request {
        let bytes: Vec<u8> = codes.iter().flat_map(|(_, verb)| verb.code().to_le_bytes()).collect();
        let table = self.program.bytes("op-codes", &bytes);
        let into: Vec<Span> = codes.iter().map(|(label, _)| label.field(Field::Opcode)).collect();
        Request::read(table.at, &into)
    }

    /// Appends the test and then `request`, which runs if the condition's value is `wanted`.
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

    /// The switch holds the left operand beside its op-code, the compare-and-swap holds the right
    /// one. A switch that must not run on equality starts with its own op-code, and the test
    /// changes it to NOOP. For an inequality, a MAX first puts the larger operand beside the
    /// op-code, and the compare-and-swap compares that with the left operand.
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
        // A compare-and-swap that finds equality puts the right operand beside the op-code.
        let is_held = matches!(left, Operand::Number(_));
        self.changed.push(Changed { label: switch, id: ordered || is_held });
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

    /// Copies an operand to the places that use it. Returns the value that stands there at first.
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

    /// A chain of compare-and-swaps, one for each 6 bytes: each but the last switches on the next.
    fn same_bytes(
        &mut self,
        left: Span,
        right: Span,
        wanted: bool,
        switch: Label,
        request: Request,
    ) -> Test {
        let pieces = pieces(left);
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
}

/// The verb that a switch holds before its test, and the one it holds after a test that found
/// equality.
fn states(verb: Verb, starts_off: bool) -> (Verb, Verb) {
    if starts_off { (Verb::Noop, verb) } else { (verb, Verb::Noop) }
}

/// Whether a conditional block has to switch this request.
fn is_switched(request: &Request) -> bool {
    let acts = !matches!(request.verb.class(), Class::Order | Class::Nothing);
    acts && !request.off && !request.harmless
}
