//! Work requests of a chain, with symbolic operands.

use super::element::{Label, QueueId};
use super::place::{Place, Span, Word};
use super::verb::Verb;

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
    /// and others may be put in their places at [`Field::Addr`](super::element::Field::Addr).
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
