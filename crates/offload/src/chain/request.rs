//! Work requests of a chain, with symbolic operands.

use super::element::{Label, QueueId};
use super::place::{Place, Span, Word};
use super::verb::Verb;

/// Bytes of inline data that fit into the first 64 bytes of an element.
pub(super) const INLINE_MAX: u32 = 24;

/// The count of a WAIT or ENABLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// This number.
    Number(u64),
    /// For WAIT: the queue's completions up to and including this request's. For ENABLE: the index
    /// after this request.
    Through(Label),
    /// For ENABLE: up to and including the next ENABLE by which that queue enables itself, or to
    /// its end if there is none. The search starts after this request in its own queue, and at the
    /// beginning of another queue.
    Gate,
}

/// A work request with symbolic operands, made by the function that is named after its verb.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// The verb that the request executes.
    pub verb: Verb,
    /// The element holds NOOP until another request puts the verb there.
    pub off: bool,
    /// The 48 bits beside the op-code, which programs may use.
    pub id: u64,
    /// The request counts in its queue's completions.
    pub signaled: bool,
    /// The remote address, for verbs that have one.
    pub remote: Option<Place>,
    /// The value to swap in, the second operand, or immediate data.
    pub operand: Word,
    /// The value that a compare-and-swap expects.
    pub compare: Word,
    /// Local memory, at most 16 pieces.
    pub local: Vec<Span>,
    /// Inline data instead of `local`: a word, and the number of bytes in the element from that
    /// word on, at most 24.
    pub constant: Option<(Word, u32)>,
    /// For WAIT and ENABLE: the queue, and the count.
    pub order: Option<(QueueId, Count)>,
    /// The request only prepares other elements, so a conditional block may run it in any case.
    pub(crate) harmless: bool,
    /// For WAIT and ENABLE of another queue: how much the count rises with each lap of its own
    /// ring.
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

    /// NOOP: does nothing.
    pub fn noop() -> Request {
        Request::new(Verb::Noop)
    }

    /// SEND of `pieces`, one after the other.
    pub fn send(pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), ..Request::new(Verb::Send) }
    }

    /// WRITE of `pieces`, one after the other, to `to`.
    pub fn write(pieces: &[Span], to: Place) -> Request {
        Request { local: pieces.to_vec(), remote: Some(to), ..Request::new(Verb::Write) }
    }

    /// WRITE of an 8-byte constant to `to`.
    pub fn write_constant(constant: Word, to: Place) -> Request {
        Request::write_inline(constant, 8, to)
    }

    /// WRITE of `len` bytes of inline data, at most 24, to `to`. The first 8 bytes are a constant;
    /// other requests may put bytes into their place at
    /// [`Field::Addr`](super::element::Field::Addr).
    pub fn write_inline(constant: Word, len: u32, to: Place) -> Request {
        Request { constant: Some((constant, len.min(INLINE_MAX))), ..Request::write(&[], to) }
    }

    /// READ from `from` into `pieces`, one after the other.
    pub fn read(from: Place, pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), remote: Some(from), ..Request::new(Verb::Read) }
    }

    /// A receive element: a message is scattered into `pieces`, one after the other.
    pub fn receive(pieces: &[Span]) -> Request {
        Request { local: pieces.to_vec(), ..Request::noop() }
    }

    /// Compare-and-swap of the word at `at`: it becomes `swap` if it is `compare`.
    pub fn compare_swap(at: Place, compare: Word, swap: Word) -> Request {
        let verb = Request::new(Verb::CompareSwap);
        Request { remote: Some(at), compare, operand: swap, ..verb }
    }

    /// An atomic or calc verb with one operand, on the word at `at`.
    pub fn calc(verb: Verb, at: Place, operand: Word) -> Request {
        Request { remote: Some(at), operand, ..Request::new(verb) }
    }

    /// WAIT until `queue` has counted that many completions.
    pub fn wait(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::Wait).silent() }
    }

    /// ENABLE of the send queue `queue` up to an index.
    pub fn enable(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::Enable).silent() }
    }

    /// ENABLE of the receive queue `queue` up to an index.
    pub fn enable_recv(queue: QueueId, count: Count) -> Request {
        Request { order: Some((queue, count)), ..Request::new(Verb::EnableRecv).silent() }
    }

    /// The same request, with NOOP in its element until another request puts the verb there.
    #[must_use]
    pub fn off(self) -> Request {
        Request { off: true, ..self }
    }

    /// The same request with this id, of which 48 bits count.
    #[must_use]
    pub fn with_id(self, id: u64) -> Request {
        Request { id, ..self }
    }

    /// The same request, not counted in its queue's completions.
    #[must_use]
    pub fn silent(self) -> Request {
        Request { signaled: false, ..self }
    }

    /// The same request; its count rises by `raise` with each lap of a recycled ring.
    #[must_use]
    pub fn raised_by(self, raise: u64) -> Request {
        Request { raise, ..self }
    }

    /// The same request; the old word that an atomic returns goes to `to`.
    #[must_use]
    pub fn into_local(self, to: Span) -> Request {
        Request { local: vec![to], ..self }
    }

    /// The verb that the element holds at first.
    pub fn held(&self) -> Verb {
        if self.off { Verb::Noop } else { self.verb }
    }
}
