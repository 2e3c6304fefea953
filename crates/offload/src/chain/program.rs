//! A program: queues of work requests, data, and what it takes from outside; and its linking.

use thiserror::Error;

use super::element::{Field, Label, QueueId, sge};
use super::place::{Base, ID_MASK, Place, Span, Word};
use super::request::{Count, Request};
use super::verb::{Class, Verb};
use remora_nic::queue::{MAX_SGE, RingInit, SendFlags};

/// The flag of elements that hold their data themselves.
const INLINE: u16 = SendFlags::INLINE.bits();

/// The queue of requests that are only copied.
const PATTERNS: &str = "patterns";

/// What kind of queue it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The send queue of a queue pair that is connected to itself: works on the card's own memory.
    Loop,
    /// The send queue towards the client.
    Reply,
    /// The receive queue of the connection with the client.
    Receive,
}

/// A queue of a program.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name in listings.
    pub name: String,
    /// Which queue of which queue pair it is.
    pub kind: Kind,
    /// Nothing runs until it is enabled, and each element is fetched when its turn has come.
    pub managed: bool,
    /// How far whoever starts the program enables (or posts) it.
    pub start: Start,
    pub(crate) slots: Vec<Label>,
    /// Local pieces: the most that a request has. (Known, as each address asks for it.)
    pieces: usize,
}

/// How far a queue may run when the program starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Nothing: another queue enables it.
    Asleep,
    /// Up to and with its first ENABLE of itself, or to its end if it has none.
    Running,
    /// So many elements.
    Elements(u32),
}

impl Queue {
    /// Its requests, in order.
    pub fn labels(&self) -> &[Label] {
        &self.slots
    }

    /// Slots of its ring: a power of two.
    pub fn depth(&self) -> u32 {
        self.slots.len().next_power_of_two() as u32
    }
}

/// Where a request stands, and what a listing says of it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) at: Option<(QueueId, u32)>,
    pub(crate) name: String,
    /// Nobody means it.
    pub(crate) forgotten: bool,
}

/// An address in the data that is known when the program is linked.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    offset: usize,
    value: Word,
}

/// A named piece of data.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub span: Span,
}

/// A program of work requests. Nothing of it has an address until it is [linked](Program::link).
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub(crate) entries: Vec<Entry>,
    queues: Vec<Queue>,
    data: Vec<u8>,
    relocations: Vec<Relocation>,
    items: Vec<Item>,
    imports: Vec<String>,
    pub(crate) constructs: Vec<(String, Mark, Mark)>,
}

/// A registered region, as a program reaches it: by local and remote key alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegionAt {
    /// Address of the first byte.
    pub addr: u64,
    /// Its key.
    pub key: u32,
}

/// A queue, as a program reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueAt {
    /// Its queue pair's number.
    pub qpn: u32,
    /// The completion queue that counts its completions.
    pub cq: u32,
    /// Its ring.
    pub ring: RegionAt,
}

/// Where all of a program lies.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// By [`QueueId`].
    pub queues: Vec<QueueAt>,
    /// The data.
    pub data: RegionAt,
    /// By [`Base::Import`].
    pub imports: Vec<RegionAt>,
}

/// A program's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Image {
    /// Rings, slot by slot.
    pub queues: Vec<Vec<u8>>,
    /// Data.
    pub data: Vec<u8>,
    /// How many elements of each queue may run at first.
    pub enabled: Vec<u32>,
}

/// Why a program cannot be linked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LinkError {
    /// A request was named and never put into a queue.
    #[error("the request {0} is named but stands in no queue: put it into one")]
    Unplaced(String),
    /// It has more queues towards a client than a connection.
    #[error("a program has at most one receive queue and one reply queue")]
    Clients,
    /// More local pieces than an element has.
    #[error("the request {0} has {1} local pieces: an element holds 16")]
    Pieces(String, usize),
    /// A layout for another program.
    #[error("the layout has {0}, the program {1}")]
    Layout(String, String),
}

impl Program {
    /// An empty one.
    pub fn new() -> Program {
        Program::default()
    }

    /// Adds a queue.
    pub fn queue(&mut self, name: &str, kind: Kind, managed: bool, start: Start) -> QueueId {
        let name = name.to_owned();
        self.queues.push(Queue { name, kind, managed, start, slots: Vec::new(), pieces: 0 });
        QueueId(self.queues.len() - 1)
    }

    /// Adds a managed queue that works on the card's own memory.
    pub fn managed(&mut self, name: &str, start: Start) -> QueueId {
        self.queue(name, Kind::Loop, true, start)
    }

    /// Adds data; it begins at a multiple of 8.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> Span {
        let offset = self.data.len().next_multiple_of(8);
        self.data.resize(offset, 0);
        self.data.extend_from_slice(bytes);
        let span = Place { base: Base::Data, offset: offset as u64 }.span(bytes.len() as u32);
        self.items.push(Item { name: name.to_owned(), span });
        span
    }

    /// Adds data of 8-byte words, little-endian.
    pub fn words(&mut self, name: &str, words: &[Word]) -> Span {
        let span = self.bytes(name, &vec![0; 8 * words.len()]);
        for (i, &value) in words.iter().enumerate() {
            self.set_word(span.word(i as u64).at, value);
        }
        span
    }

    /// A word of 8 bytes.
    pub fn word(&mut self, name: &str, value: u64) -> Span {
        self.words(name, &[Word::Number(value)])
    }

    /// Puts a value into the data; `at` lies in it.
    pub fn set_word(&mut self, at: Place, value: Word) {
        debug_assert_eq!(at.base, Base::Data);
        self.relocations.push(Relocation { offset: at.offset as usize, value });
    }

    /// Names memory that is not the program's own.
    pub fn import(&mut self, name: &str) -> Place {
        self.imports.push(name.to_owned());
        Place { base: Base::Import(self.imports.len() - 1), offset: 0 }
    }

    /// The queue of requests that are only copied, never run.
    pub(crate) fn patterns(&mut self) -> QueueId {
        self.patterns_queue().unwrap_or_else(|| self.managed(PATTERNS, Start::Asleep))
    }

    pub(crate) fn patterns_queue(&self) -> Option<QueueId> {
        self.queues.iter().position(|queue| queue.name == PATTERNS).map(QueueId)
    }

    /// A label that is not used after all.
    pub(crate) fn forget(&mut self, label: Label) {
        self.entries[label.0].forgotten = true;
    }

    /// Names a request that is put into a queue later.
    pub fn label(&mut self, name: &str) -> Label {
        let name = name.to_owned();
        self.entries.push(Entry { request: Request::noop(), at: None, name, forgotten: false });
        Label(self.entries.len() - 1)
    }

    /// Puts a named request at the end of a queue.
    pub fn put(&mut self, queue: QueueId, label: Label, request: Request) -> Label {
        let Queue { slots, pieces, .. } = &mut self.queues[queue.0];
        *pieces = request.local.len().max(*pieces);
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

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A request.
    pub fn request(&self, label: Label) -> &Request {
        &self.entries[label.0].request
    }

    /// Where a request stands: its queue and its place there.
    pub fn position(&self, label: Label) -> Option<(QueueId, u32)> {
        self.entries[label.0].at
    }

    /// A request's name; empty if it has none.
    pub fn name(&self, label: Label) -> &str {
        &self.entries[label.0].name
    }

    /// The queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The data's named pieces.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// What it takes from outside.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// Bytes of its data.
    pub fn data_len(&self) -> usize {
        self.data.len().next_multiple_of(8)
    }

    /// Completions that a queue counts up to and with the request at `index`.
    pub fn completions(&self, queue: QueueId, index: u32) -> u64 {
        let slots = &self.queues[queue.0].slots;
        let upto = slots.iter().take(index as usize + 1);
        upto.filter(|label| self.request(**label).signaled).count() as u64
    }

    /// Local pieces of a queue's requests: the most that one has, and at least one.
    pub fn sges(&self, queue: QueueId) -> usize {
        self.queues[queue.0].pieces.clamp(1, MAX_SGE)
    }

    /// Bytes from slot to slot of a queue's ring.
    pub fn stride(&self, queue: QueueId) -> u32 {
        RingInit::stride_for(self.sges(queue), 0)
    }

    /// How many elements of a queue run when the program starts.
    pub fn enabled(&self, queue: QueueId) -> u32 {
        let Queue { start, slots, .. } = &self.queues[queue.0];
        match *start {
            Start::Asleep => 0,
            Start::Elements(elements) => elements,
            Start::Running => self.next_gate(queue, 0).unwrap_or(slots.len() as u32),
        }
    }

    /// The index behind the first ENABLE of `queue` itself that stands at `from` or later.
    pub(crate) fn next_gate(&self, queue: QueueId, from: u32) -> Option<u32> {
        let slots = self.queues[queue.0].slots.iter().skip(from as usize);
        let is_gate = |label: &Label| {
            let request = self.request(*label);
            request.verb == Verb::Enable && request.order.is_some_and(|(to, _)| to == queue)
        };
        slots.clone().position(is_gate).map(|at| from + at as u32 + 1)
    }

    /// Gives everything its address.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn link(&self, layout: &Layout) -> Result<Image, LinkError> {
        let has = (layout.queues.len(), layout.imports.len());
        let wants = (self.queues.len(), self.imports.len());
        if has != wants {
            let count = |(queues, imports)| format!("{queues} queues and {imports} imports");
            return Err(LinkError::Layout(count(has), count(wants)));
        }
        if let Some(entry) =
            self.entries.iter().find(|entry| entry.at.is_none() && !entry.forgotten)
        {
            return Err(LinkError::Unplaced(entry.name.clone()));
        }
        let mut data = self.data.clone();
        data.resize(self.data_len(), 0);
        for &Relocation { offset, value } in &self.relocations {
            let value = value.resolve(|place| self.address(layout, place));
            data[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        let mut image = Image { data, ..Image::default() };
        for id in (0..self.queues.len()).map(QueueId) {
            image.queues.push(self.ring(layout, id)?);
            image.enabled.push(self.enabled(id));
        }
        Ok(image)
    }

    fn ring(&self, layout: &Layout, id: QueueId) -> Result<Vec<u8>, LinkError> {
        let (queue, stride) = (&self.queues[id.0], self.stride(id) as usize);
        let mut ring = vec![0; queue.slots.len() * stride];
        for (&label, slot) in queue.slots.iter().zip(ring.chunks_exact_mut(stride)) {
            self.encode(layout, label, slot)?;
        }
        Ok(ring)
    }

    /// The address of a place.
    pub fn address(&self, layout: &Layout, place: Place) -> u64 {
        let base = match place.base {
            Base::Data => layout.data.addr,
            Base::Import(import) => layout.imports[import].addr,
            Base::Request(label) => {
                let (queue, index) = self.entries[label.0].at.unwrap_or((QueueId(0), 0));
                let slot = u64::from(index) * u64::from(self.stride(queue));
                layout.queues[queue.0].ring.addr + slot
            }
        };
        base.wrapping_add(place.offset)
    }

    fn key(&self, layout: &Layout, place: Place) -> u32 {
        match place.base {
            Base::Data => layout.data.key,
            Base::Import(import) => layout.imports[import].key,
            Base::Request(label) => {
                let (queue, _) = self.entries[label.0].at.unwrap_or((QueueId(0), 0));
                layout.queues[queue.0].ring.key
            }
        }
    }

    fn encode(&self, layout: &Layout, label: Label, slot: &mut [u8]) -> Result<(), LinkError> {
        let request = self.request(label);
        let mut put = |at: u64, bytes: &[u8]| {
            slot[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        let word = |word: Word| word.resolve(|place| self.address(layout, place)).to_le_bytes();
        let pieces = request.local.len();
        if pieces > MAX_SGE {
            return Err(LinkError::Pieces(self.name(label).to_owned(), pieces));
        }
        let (mut remote, mut key) = (0, 0);
        if let Some(place) = request.remote {
            (remote, key) = (self.address(layout, place), self.key(layout, place));
        }
        if let Some((queue, count)) = request.order {
            let at = layout.queues[queue.0];
            key = if request.verb == Verb::Wait { at.cq } else { at.qpn };
            remote = self.count(label, queue, count);
        }
        put(0, &word(Word::Head(request.held(), request.id & ID_MASK)));
        put(Field::Flags.span().0, &u16::from(request.signaled).to_le_bytes());
        put(11, &[pieces as u8]);
        put(Field::Key.span().0, &key.to_le_bytes());
        put(Field::Remote.span().0, &remote.to_le_bytes());
        put(Field::Operand.span().0, &word(request.operand));
        put(Field::WrId.span().0, &(label.0 as u64).to_le_bytes());
        if let Some((constant, len)) = request.constant {
            put(Field::Flags.span().0, &(u16::from(request.signaled) | INLINE).to_le_bytes());
            put(Field::Operand.span().0 + 4, &len.to_le_bytes());
            put(Field::Addr(0).span().0, &word(constant));
        }
        if request.verb == Verb::CompareSwap {
            put(Field::Compare.span().0, &word(request.compare));
        }
        for (i, piece) in request.local.iter().enumerate() {
            let at = sge(i as u8);
            put(at, &self.address(layout, piece.at).to_le_bytes());
            put(at + 8, &piece.len.to_le_bytes());
            put(at + 12, &self.key(layout, piece.at).to_le_bytes());
        }
        Ok(())
    }

    /// What a WAIT or ENABLE holds that stands at `label` and means `queue`.
    fn count(&self, label: Label, queue: QueueId, count: Count) -> u64 {
        let waits = self.request(label).verb == Verb::Wait;
        match count {
            Count::Number(number) => number,
            Count::Through(label) => match self.position(label) {
                Some((queue, index)) if waits => self.completions(queue, index),
                Some((_, index)) => u64::from(index) + 1,
                None => 0,
            },
            Count::Gate => {
                let from = match self.position(label) {
                    Some((own, index)) if own == queue => index + 1,
                    _ => 0,
                };
                let end = self.queues[queue.0].slots.len() as u32;
                u64::from(self.next_gate(queue, from).unwrap_or(end))
            }
        }
    }

    /// What requests from `since` on cost; see [`Program::mark`].
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

    /// The constructs it was made of, in the order of their beginnings, and their costs.
    pub fn constructs(&self) -> impl Iterator<Item = (&str, Cost)> {
        let mut constructs: Vec<_> = self.constructs.iter().collect();
        constructs.sort_by_key(|(_, from, to)| (from.0, core::cmp::Reverse(to.0)));
        constructs.into_iter().map(|(name, from, to)| (&**name, self.cost_between(*from, *to)))
    }

    /// The cost of all of it.
    pub fn cost(&self) -> Cost {
        self.cost_since(Mark(0))
    }

    /// A moment in the making of a program.
    pub fn mark(&self) -> Mark {
        Mark(self.entries.len())
    }
}

/// A moment in the making of a program.
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
