//! A program: queues of work requests, data, and imports from outside.

use remora_nic::queue::{MAX_SGE, RingInit};

use super::element::{Label, QueueId};
use super::place::{Base, Place, Span, Word};
use super::request::Request;
use super::verb::{Class, Verb};

/// Which queue of which queue pair a program's queue is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The send queue of a queue pair that is connected to itself: it works on the card's own
    /// memory.
    Loop,
    /// The send queue of the connection with the client.
    Reply,
    /// The receive queue of the connection with the client.
    Receive,
}

/// A queue of a program.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name in listings and pictures.
    pub name: String,
    /// Which queue of which queue pair it is.
    pub kind: Kind,
    /// Nothing runs before it is enabled, and each element is fetched only when its turn has come.
    pub managed: bool,
    /// How far the queue may run when the program starts.
    pub start: Start,
    pub(crate) slots: Vec<Label>,
    /// By index: the completions that are counted when that request has completed. Kept, since
    /// every WAIT through a request needs one.
    counted: Vec<u64>,
    /// The most local pieces that one of its requests has. Kept, since every address needs the
    /// stride.
    pieces: usize,
}

/// How far a queue may run when the program starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Not at all: another queue enables it.
    Asleep,
    /// Up to and including its first ENABLE of itself, or to its end if it has none.
    Running,
    /// Up to this number of elements.
    Elements(u32),
}

impl Queue {
    /// Its requests, in order.
    pub fn labels(&self) -> &[Label] {
        &self.slots
    }

    /// Slots of its ring, a power of two.
    pub fn depth(&self) -> u32 {
        self.slots.len().next_power_of_two() as u32
    }
}

/// A request, its queue and index, and its name in listings.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) at: Option<(QueueId, u32)>,
    pub(crate) name: String,
    /// The label is not used after all, so it needs no queue.
    pub(crate) forgotten: bool,
}

/// A word in the data that gets its value when the program is linked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relocation {
    pub(super) offset: usize,
    pub(super) value: Word,
}

/// A named piece of the program's data.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// The piece of memory.
    pub span: Span,
}

/// A program of work requests. Its addresses are symbolic until it is [linked](Program::link).
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub(crate) entries: Vec<Entry>,
    pub(super) queues: Vec<Queue>,
    /// The queue whose requests are only copied and never run.
    patterns: Option<QueueId>,
    pub(super) data: Vec<u8>,
    pub(super) relocations: Vec<Relocation>,
    items: Vec<Item>,
    pub(super) imports: Vec<String>,
    pub(crate) constructs: Vec<(String, Mark, Mark)>,
}

impl Program {
    /// An empty program.
    pub fn new() -> Program {
        Program::default()
    }

    /// Adds a queue. `name` is its name in listings.
    pub fn queue(&mut self, name: &str, kind: Kind, managed: bool, start: Start) -> QueueId {
        let name = name.to_owned();
        let (slots, counted) = (Vec::new(), Vec::new());
        self.queues.push(Queue { name, kind, managed, start, slots, counted, pieces: 0 });
        QueueId(self.queues.len() - 1)
    }

    /// Adds a managed queue of kind [`Kind::Loop`].
    pub fn managed(&mut self, name: &str, start: Start) -> QueueId {
        self.queue(name, Kind::Loop, true, start)
    }

    /// Adds data. It begins at a multiple of 8 bytes.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> Span {
        let offset = self.data.len().next_multiple_of(8);
        self.data.resize(offset, 0);
        self.data.extend_from_slice(bytes);
        let span = Place { base: Base::Data, offset: offset as u64 }.span(bytes.len() as u32);
        self.items.push(Item { name: name.to_owned(), span });
        span
    }

    /// Adds data: 8-byte words, little-endian.
    pub fn words(&mut self, name: &str, words: &[Word]) -> Span {
        let span = self.bytes(name, &vec![0; 8 * words.len()]);
        for (i, &value) in words.iter().enumerate() {
            self.set_word(span.word(i as u64).at, value);
        }
        span
    }

    /// Adds an 8-byte word with this value.
    pub fn word(&mut self, name: &str, value: u64) -> Span {
        self.words(name, &[Word::Number(value)])
    }

    /// Sets the 8-byte word at `at`, which must lie in the data.
    pub fn set_word(&mut self, at: Place, value: Word) {
        debug_assert_eq!(at.base, Base::Data);
        self.relocations.push(Relocation { offset: at.offset as usize, value });
    }

    /// Names memory that the program takes from outside. Returns its first byte's place.
    pub fn import(&mut self, name: &str) -> Place {
        self.imports.push(name.to_owned());
        Place { base: Base::Import(self.imports.len() - 1), offset: 0 }
    }

    /// The queue whose requests are only copied and never run; created at first use.
    pub(crate) fn patterns(&mut self) -> QueueId {
        if let Some(patterns) = self.patterns {
            return patterns;
        }
        let patterns = self.managed("patterns", Start::Asleep);
        self.patterns = Some(patterns);
        patterns
    }

    pub(crate) fn patterns_queue(&self) -> Option<QueueId> {
        self.patterns
    }

    /// Says that a label is not used after all.
    pub(crate) fn forget(&mut self, label: Label) {
        self.entries[label.0].forgotten = true;
    }

    /// Names a request that is put into a queue later.
    pub fn label(&mut self, name: &str) -> Label {
        let name = name.to_owned();
        self.entries.push(Entry { request: Request::noop(), at: None, name, forgotten: false });
        Label(self.entries.len() - 1)
    }

    /// Puts a request at the end of a queue, under a label that was named before.
    pub fn put(&mut self, queue: QueueId, label: Label, request: Request) -> Label {
        let Queue { slots, counted, pieces, .. } = &mut self.queues[queue.0];
        *pieces = request.local.len().max(*pieces);
        counted.push(counted.last().unwrap_or(&0) + u64::from(request.signaled));
        let entry = &mut self.entries[label.0];
        (entry.request, entry.at) = (request, Some((queue, slots.len() as u32)));
        slots.push(label);
        label
    }

    /// Puts a request at the end of a queue.
    pub fn push(&mut self, queue: QueueId, request: Request) -> Label {
        let label = self.label("");
        self.put(queue, label, request)
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the program has no requests.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The request of a label.
    pub fn request(&self, label: Label) -> &Request {
        &self.entries[label.0].request
    }

    /// The queue of a request and its index there; `None` if it is in no queue.
    pub fn position(&self, label: Label) -> Option<(QueueId, u32)> {
        self.entries[label.0].at
    }

    /// The request's name; empty if it has none.
    pub fn name(&self, label: Label) -> &str {
        &self.entries[label.0].name
    }

    /// The queues, by [`QueueId`].
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The named pieces of the data.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The names of the memory that the program takes from outside.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// The length of the data in bytes.
    pub fn data_len(&self) -> usize {
        self.data.len().next_multiple_of(8)
    }

    /// Completions that `queue` has counted after the request at `index` has completed.
    pub fn completions(&self, queue: QueueId, index: u32) -> u64 {
        let counted = &self.queues[queue.0].counted;
        counted.get(index as usize).or(counted.last()).copied().unwrap_or(0)
    }

    /// The most local pieces that a request of `queue` has, and at least 1.
    pub fn sges(&self, queue: QueueId) -> usize {
        self.queues[queue.0].pieces.clamp(1, MAX_SGE)
    }

    /// Bytes from one slot of the queue's ring to the next.
    pub fn stride(&self, queue: QueueId) -> u32 {
        RingInit::stride_for(self.sges(queue), 0)
    }

    /// The number of elements of a queue that may run when the program starts.
    pub fn enabled(&self, queue: QueueId) -> u32 {
        let Queue { start, slots, .. } = &self.queues[queue.0];
        match *start {
            Start::Asleep => 0,
            Start::Elements(elements) => elements,
            Start::Running => self.next_gate(queue, 0).unwrap_or(slots.len() as u32),
        }
    }

    /// The index after the first ENABLE of `queue` by itself at index `from` or later.
    pub(crate) fn next_gate(&self, queue: QueueId, from: u32) -> Option<u32> {
        let slots = self.queues[queue.0].slots.iter().skip(from as usize);
        let is_gate = |label: &Label| {
            let request = self.request(*label);
            request.verb == Verb::Enable && request.order.is_some_and(|(to, _)| to == queue)
        };
        slots.clone().position(is_gate).map(|at| from + at as u32 + 1)
    }

    /// The cost of the requests since a [`Program::mark`].
    pub fn cost_since(&self, since: Mark) -> Cost {
        self.cost_between(since, self.mark())
    }

    fn cost_between(&self, from: Mark, to: Mark) -> Cost {
        let mut cost = Cost::default();
        for entry in &self.entries[from.0..to.0] {
            cost.add(entry.request.verb.class());
        }
        cost
    }

    /// The constructs of the program and their costs, in the order in which they begin.
    pub fn constructs(&self) -> impl Iterator<Item = (&str, Cost)> {
        let mut constructs: Vec<_> = self.constructs.iter().collect();
        constructs.sort_by_key(|(_, from, to)| (from.0, core::cmp::Reverse(to.0)));
        constructs.into_iter().map(|(name, from, to)| (&**name, self.cost_between(*from, *to)))
    }

    /// The cost of the whole program.
    pub fn cost(&self) -> Cost {
        self.cost_since(Mark(0))
    }

    /// Marks the current end of the program.
    pub fn mark(&self) -> Mark {
        Mark(self.entries.len())
    }
}

/// A point in the making of a program, for [`Program::cost_since`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(usize);

/// What a construct costs, in the columns of RedN's Table 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// C: copy verbs.
    pub copies: u32,
    /// A: atomic and calc verbs.
    pub atomics: u32,
    /// E: WAIT and ENABLE.
    pub orders: u32,
}

impl Cost {
    fn add(&mut self, class: Class) {
        match class {
            Class::Copy => self.copies += 1,
            Class::Atomic => self.atomics += 1,
            Class::Order => self.orders += 1,
            Class::Nothing => {}
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}C + {}A + {}E", self.copies, self.atomics, self.orders)
    }
}
