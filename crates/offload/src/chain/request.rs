//! Work requests of a chain, with symbolic operands.

use remora_nic::queue::Opcode;

use super::place::{Place, Span, Word};

/// The 48 bits of an operand that a compare-and-swap can test beside an op-code (RedN §3.5).
pub const OPERAND_BITS: u32 = 48;

/// What a work request does: the op-codes of the card's elements that chains are made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Verb {
    /// SEND of the local bytes to the peer.
    Send = Opcode::Send as u16,
    /// WRITE of the local bytes to `remote`.
    Write = Opcode::Write as u16,
    /// WRITE that also takes a receive element of the peer.
    WriteImm = Opcode::WriteImm as u16,
    /// READ of `remote` into the local bytes.
    Read = Opcode::Read as u16,
    /// The word at `remote` becomes `operand` if it is `compare`.
    CompareSwap = Opcode::CompareSwap as u16,
    /// Adds `operand` to the word at `remote`.
    FetchAdd = Opcode::FetchAdd as u16,
    /// Nothing; what an element that may become another is until then.
    Noop = Opcode::NoOp as u16,
    /// Waits for completions of a queue.
    Wait = Opcode::Wait as u16,
    /// Lets a managed send queue run on.
    Enable = Opcode::Enable as u16,
    /// Lets a managed receive queue be used further.
    EnableRecv = Opcode::EnableRecv as u16,
    /// The word at `remote` becomes the larger of itself and `operand`.
    Max = Opcode::Max as u16,
    /// The word at `remote` becomes the smaller of itself and `operand`.
    Min = Opcode::Min as u16,
    /// Bitwise and.
    And = Opcode::And as u16,
    /// Bitwise or.
    Or = Opcode::Or as u16,
    /// Bitwise exclusive or.
    Xor = Opcode::Xor as u16,
    /// Adds `operand` to the word at `remote`.
    Add = Opcode::Add as u16,
}

/// Every verb with its name in listings and in the text form.
pub const VERBS: [(Verb, &str); 16] = [
    (Verb::Send, "send"),
    (Verb::Write, "write"),
    (Verb::WriteImm, "write_imm"),
    (Verb::Read, "read"),
    (Verb::CompareSwap, "cas"),
    (Verb::FetchAdd, "fetch_add"),
    (Verb::Noop, "noop"),
    (Verb::Wait, "wait"),
    (Verb::Enable, "enable"),
    (Verb::EnableRecv, "enable_recv"),
    (Verb::Max, "max"),
    (Verb::Min, "min"),
    (Verb::And, "and"),
    (Verb::Or, "or"),
    (Verb::Xor, "xor"),
    (Verb::Add, "add"),
];

impl Verb {
    /// The op-code in an element.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The verb of an op-code.
    pub fn parse(code: u16) -> Option<Verb> {
        VERBS.iter().map(|&(verb, _)| verb).find(|verb| verb.code() == code)
    }

    /// The verb of a name.
    pub fn named(name: &str) -> Option<Verb> {
        VERBS.iter().find(|(_, known)| *known == name).map(|&(verb, _)| verb)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        VERBS.iter().find(|(verb, _)| *verb == self).map_or("?", |&(_, name)| name)
    }

    /// How Table 2 of RedN counts it.
    pub const fn class(self) -> Class {
        match self {
            Verb::Send | Verb::Write | Verb::WriteImm | Verb::Read => Class::Copy,
            Verb::Wait | Verb::Enable | Verb::EnableRecv => Class::Order,
            Verb::Noop => Class::Nothing,
            _ => Class::Atomic,
        }
    }
}

/// The columns of RedN's Table 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// C: moves bytes.
    Copy,
    /// A: an atomic or calc verb.
    Atomic,
    /// E: WAIT or ENABLE.
    Order,
    /// A NOOP that stays one: fills a ring.
    Nothing,
}

/// A part of an element, as labels name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Field {
    /// Op-code and id: the word that a compare-and-swap tests and changes.
    Head,
    /// The op-code.
    Opcode,
    /// The free 48 bits.
    Id,
    /// Flags.
    Flags,
    /// The remote address; of WAIT and ENABLE, the count.
    Remote,
    /// The key of the remote address; of WAIT and ENABLE, whom they mean.
    Key,
    /// The value to swap in, or the second operand of a calc verb.
    Operand,
    /// What comes back in the completion.
    WrId,
    /// The address of local entry `0..16`.
    Addr(u8),
    /// The bytes of local entry `0..16`.
    Len(u8),
    /// The value a compare-and-swap expects.
    Compare,
    /// The 48 bits of `Compare` that stand against an element's id.
    CompareId,
    /// The whole first 64 bytes.
    Element,
    /// Op-code to count: what makes a WAIT or ENABLE, in one piece.
    Order,
}

impl Field {
    /// First byte in the slot, and bytes.
    pub const fn span(self) -> (u64, u32) {
        match self {
            Field::Head => (0, 8),
            Field::Opcode => (0, 2),
            Field::Id => (2, 6),
            Field::Flags => (8, 2),
            Field::Key => (12, 4),
            Field::Remote => (16, 8),
            Field::Operand => (24, 8),
            Field::WrId => (32, 8),
            Field::Addr(i) => (sge(i), 8),
            Field::Len(i) => (sge(i) + 8, 4),
            Field::Compare => (56, 8),
            Field::CompareId => (58, 6),
            Field::Element => (0, 64),
            Field::Order => (0, 24),
        }
    }

    /// The field of a name, as the text form has it. `src` and `dst` depend on the verb, as in the
    /// paper's figures: the source of a READ is remote, that of a WRITE local.
    pub fn named(name: &str, verb: Verb) -> Option<Field> {
        Some(match name {
            "head" => Field::Head,
            "opcode" => Field::Opcode,
            "id" => Field::Id,
            "flags" => Field::Flags,
            "remote" | "count" => Field::Remote,
            "key" => Field::Key,
            "operand" | "new" => Field::Operand,
            "wr_id" => Field::WrId,
            "addr" => Field::Addr(0),
            "len" => Field::Len(0),
            "src" if verb == Verb::Read => Field::Remote,
            "dst" if verb == Verb::Read => Field::Addr(0),
            "src" => Field::Addr(0),
            "dst" => Field::Remote,
            "compare" => Field::Compare,
            "old" => Field::CompareId,
            "element" => Field::Element,
            _ => return None,
        })
    }
}

/// Where entry `i` lies in a slot.
pub(crate) const fn sge(i: u8) -> u64 {
    if i == 0 { 40 } else { 64 + 16 * (i as u64 - 1) }
}

/// The index of a queue in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QueueId(pub(crate) usize);

impl QueueId {
    /// The queue at a place among [`super::program::Program::queues`].
    pub const fn from_index(index: usize) -> QueueId {
        QueueId(index)
    }

    /// Its place there.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A work request of a program, wherever it ends up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Label(pub(crate) usize);

/// Bytes that the first 64 of an element hold.
const INLINE_MAX: u32 = 24;

/// What a WAIT or ENABLE counts to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// So many.
    Number(u64),
    /// WAIT: the completions of the queue up to this request's. ENABLE: the index behind it.
    Through(Label),
    /// ENABLE: up to and with the next ENABLE by which that queue enables itself, or to its end if
    /// there is none; counted from here, or from the beginning of another queue.
    Gate,
}

/// A work request with symbolic operands. Made by the functions of its verbs' names.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// What it is to do.
    pub verb: Verb,
    /// Its element holds NOOP until somebody puts the verb there.
    pub off: bool,
    /// The free 48 bits.
    pub id: u64,
    /// It counts in its queue's completions.
    pub signaled: bool,
    /// Remote memory, for the verbs that have it.
    pub remote: Option<Place>,
    /// Value to swap in, second operand, immediate data.
    pub operand: Word,
    /// Value that compare-and-swap expects.
    pub compare: Word,
    /// Local bytes, at most 16 pieces.
    pub local: Vec<Span>,
    /// Local bytes that the element holds itself, instead of `local`: a word, and how many bytes
    /// there are from it on, at most 24.
    pub constant: Option<(Word, u32)>,
    /// WAIT, ENABLE: the queue and the count.
    pub order: Option<(QueueId, Count)>,
    /// It only prepares other elements, so a conditional block may run it in any case.
    pub(crate) harmless: bool,
    /// WAIT, ENABLE of another queue: how much the count rises with each lap of its own.
    pub raise: u64,
}

impl Request {
    fn new(verb: Verb) -> Request {
        Request {
            verb,
            off: false,
            id: 0,
            signaled: true,
            remote: None,
            operand: Word::Number(0),
            compare: Word::Number(0),
            local: Vec::new(),
            constant: None,
            order: None,
            harmless: false,
            raise: 1,
        }
    }

    /// Nothing.
    pub fn noop() -> Request {
        Request::new(Verb::Noop)
    }

    /// SEND of `pieces`, one behind the other.
    pub fn send(pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), ..Request::new(Verb::Send) }
    }

    /// WRITE of `pieces`, one behind the other, to `to`.
    pub fn write(pieces: &[Span], to: Place) -> Request {
        Request { local: pieces.to_vec(), remote: Some(to), ..Request::new(Verb::Write) }
    }

    /// WRITE of a constant of 8 bytes to `to`.
    pub fn write_constant(constant: Word, to: Place) -> Request {
        Request::write_inline(constant, 8, to)
    }

    /// WRITE of `len` bytes, at most 24, that the element itself holds; the first are a constant,
    /// and others may be put in their places at [`Field::Addr`].
    pub fn write_inline(constant: Word, len: u32, to: Place) -> Request {
        Request { constant: Some((constant, len.min(INLINE_MAX))), ..Request::write(&[], to) }
    }

    /// READ from `from` into `pieces`, one after the other.
    pub fn read(from: Place, pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), remote: Some(from), ..Request::new(Verb::Read) }
    }

    /// A receive element: a message goes into `pieces`, one after the other.
    pub fn receive(pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), ..Request::noop() }
    }

    /// Compare-and-swap of the word at `at`.
    pub fn compare_swap(at: Place, compare: Word, swap: Word) -> Request {
        let verb = Request::new(Verb::CompareSwap);
        Request { remote: Some(at), compare, operand: swap, ..verb }
    }

    /// An atomic or calc verb with one operand, on the word at `at`.
    pub fn calc(verb: Verb, at: Place, operand: Word) -> Request {
        Request { remote: Some(at), operand, ..Request::new(verb) }
    }

    /// WAIT until `queue` has completed so many signaled requests.
    pub fn wait(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::Wait).silent() }
    }

    /// ENABLE `queue` up to an index.
    pub fn enable(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::Enable).silent() }
    }

    /// ENABLE the receive queue `queue` up to an index.
    pub fn enable_recv(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::EnableRecv).silent() }
    }

    /// NOOP until another request puts its verb there.
    #[must_use]
    pub fn off(self) -> Request {
        Request { off: true, ..self }
    }

    /// With these free 48 bits.
    #[must_use]
    pub fn with_id(self, id: u64) -> Request {
        Request { id, ..self }
    }

    /// It does not count in its queue's completions.
    #[must_use]
    pub fn silent(self) -> Request {
        Request { signaled: false, ..self }
    }

    /// In a recycled queue its count rises by this with each lap.
    #[must_use]
    pub fn raised_by(self, raise: u64) -> Request {
        Request { raise, ..self }
    }

    /// What comes back (the word before an atomic) goes to `to`.
    #[must_use]
    pub fn into_local(self, to: Span) -> Request {
        Request { local: vec![to], ..self }
    }

    /// The verb that its element holds at first.
    pub fn held(&self) -> Verb {
        if self.off { Verb::Noop } else { self.verb }
    }
}
