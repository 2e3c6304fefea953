//! A queue pair's methods for requests that are futures, one for each kind.

use remora_nic::queue::{MAX_MESSAGE, SendOp};

use super::queue::Requests;
use super::table::SlotId;
use super::{Outcome, Request, RequestError, Source, Work};
use crate::queue_pair::QueuePair;
use crate::remote::Remote;
use crate::slice::MemorySlice;

/// Bytes of a word that atomics work on.
const WORD: usize = 8;

/// Requests as futures: see [`crate::request`]. If a request cannot be posted, its future says why.
impl QueuePair {
    /// RDMA READ: fetches all of `from` to the beginning of `into`.
    pub fn read(&self, into: impl Into<MemorySlice>, from: Remote) -> Request {
        let into = into.into();
        let refused = check(from.len, into.len() as u64);
        let into = into.get(..from.len as usize).unwrap_or(into);
        let op = SendOp::Read { from: from.into() };
        self.ask(Some(op), into.into(), refused)
    }

    /// RDMA WRITE: puts all of `from` at the beginning of `to`.
    pub fn write<'a>(&self, from: impl Into<Source<'a>>, to: Remote) -> Request {
        self.write_with(from.into(), to, None)
    }

    /// RDMA WRITE WITH IMMEDIATE: as [`QueuePair::write`], and ends a [`QueuePair::recv`] of the
    /// peer, whose completion has `imm`.
    pub fn write_imm<'a>(&self, from: impl Into<Source<'a>>, to: Remote, imm: u32) -> Request {
        self.write_with(from.into(), to, Some(imm))
    }

    fn write_with(&self, from: Source<'_>, to: Remote, imm: Option<u32>) -> Request {
        let refused = check(from.len(), to.len);
        self.ask(Some(SendOp::Write { to: to.into(), imm }), from, refused)
    }

    /// SEND: sends a message, which ends a [`QueuePair::recv`] of the peer.
    pub fn send<'a>(&self, message: impl Into<Source<'a>>) -> Request {
        self.ask(Some(SendOp::Send { imm: None, to: None }), message.into(), None)
    }

    /// SEND WITH IMMEDIATE: as [`QueuePair::send`]; the peer's completion has `imm`.
    pub fn send_imm<'a>(&self, message: impl Into<Source<'a>>, imm: u32) -> Request {
        self.ask(Some(SendOp::Send { imm: Some(imm), to: None }), message.into(), None)
    }

    /// Receives the peer's next message at the beginning of `into`. The completion says how long
    /// the message is ([`len`]), and has its [immediate] data if it has any. Receive requests are
    /// filled in the order in which they were posted.
    ///
    /// [`len`]: remora_nic::queue::Completion::len
    /// [immediate]: remora_nic::queue::Completion::imm
    pub fn recv(&self, into: impl Into<MemorySlice>) -> Request {
        self.ask(None, into.into().into(), None)
    }

    /// Replaces the 64-bit word at the beginning of `at` by `swap` if it equals `compare`; the
    /// result is the word as it was before. Words are in the byte order of the peer, and lie at
    /// addresses that are multiples of 8.
    pub fn compare_swap(&self, at: Remote, compare: u64, swap: u64) -> Request<u64> {
        self.atomic(at, SendOp::CompareSwap { at: at.into(), compare, swap })
    }

    /// Adds to the 64-bit word at the beginning of `at`, modulo 2^64; the result is the word as it
    /// was before. [`QueuePair::compare_swap`] says how words lie.
    pub fn fetch_add(&self, at: Remote, add: u64) -> Request<u64> {
        self.atomic(at, SendOp::FetchAdd { at: at.into(), add })
    }

    fn atomic(&self, at: Remote, op: SendOp) -> Request<u64> {
        let data = Source::from(&[]);
        let work = Work { op: Some(op), data, more: None, is_atomic: true };
        Request::new(self, work, check(WORD as u64, at.len))
    }

    fn ask<T: Outcome>(
        &self,
        op: Option<SendOp>,
        data: Source<'_>,
        refused: Option<RequestError>,
    ) -> Request<T> {
        let refused = refused.or_else(|| check(data.len(), u64::from(MAX_MESSAGE)));
        Request::new(self, Work { op, data, more: None, is_atomic: false }, refused)
    }

    /// Receives a message into `into` that describes memory of the peer.
    pub(crate) fn recv_remote_into(&self, into: MemorySlice) -> Request<Remote> {
        self.ask(None, (&into).into(), None).into_memory(into)
    }

    /// A request that fails with `error`, and is not posted.
    pub(crate) fn refused<T: Outcome>(&self, error: RequestError) -> Request<T> {
        self.ask(None, Source::from(&[]), Some(error))
    }

    /// The word of a slot, which takes the result of an atomic.
    pub(super) fn result_word(
        &self,
        requests: &Requests,
        id: SlotId,
    ) -> Result<MemorySlice, RequestError> {
        let words = match requests.words.get() {
            Some(words) => words,
            None => {
                let slots = self.ring(remora_nic::Queue::Send).depth as usize;
                let made = self.pd().alloc(slots * WORD, remora_nic::Access::LOCAL_WRITE)?;
                requests.words.get_or_init(|| made)
            }
        };
        let at = id.index as usize * WORD;
        Ok(words.slice(at..at + WORD))
    }
}

/// The error, if `len` bytes do not fit into `room`.
fn check(len: u64, room: u64) -> Option<RequestError> {
    (len > room).then_some(RequestError::NoRoom { len, room })
}
