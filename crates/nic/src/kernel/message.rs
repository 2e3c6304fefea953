//! Messages that kernels send.

use super::call::{CallStatus, StatusWord};
use crate::buffer::Buffer;
use crate::memory::key::{Key, Pd};
use crate::queue::{RemoteAddress, Status};

/// The bytes that a kernel sends.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// No bytes.
    #[default]
    None,
    /// Registered memory, by reference: its bytes are read when the packet is made.
    Memory {
        /// A key of the invocation's protection domain.
        key: Key,
        /// Address within the region.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// The first `len` bytes of a buffer.
    Buffer {
        /// The bytes.
        buffer: Buffer,
        /// How many of them are sent.
        len: u32,
    },
}

impl Payload {
    /// How many bytes there are.
    pub fn len(&self) -> u32 {
        match self {
            Payload::None => 0,
            Payload::Memory { len, .. } | Payload::Buffer { len, .. } => *len,
        }
    }

    /// Are there no bytes?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the buffer out, if there is one, and leaves [`Payload::None`].
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        matches!(self, Payload::Buffer { .. }).then(|| core::mem::take(self).into_buffer())?
    }

    /// The buffer, to be used again.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Payload::Buffer { buffer, .. } => Some(buffer),
            _ => None,
        }
    }
}

/// A message that a kernel has posted and that has no PSN yet.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) qpn: u32,
    pub(crate) pd: Pd,
    pub(crate) to: RemoteAddress,
    pub(crate) data: Payload,
    pub(crate) then: Then,
    pub(crate) token: u64,
    /// If the message tells of a call's end: the token of the messages with the results before it.
    pub(crate) parts: Option<u64>,
}

/// The notification that follows the data of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    Nothing,
    Immediate { cookie: u64, status: CallStatus },
    Word { at: RemoteAddress, word: StatusWord },
}

/// The token of messages whose end is reported to no kernel.
pub(crate) const NO_TOKEN: u64 = u64::MAX;
/// The token of a status word, whose buffer goes back to the card.
pub(crate) const WORD_TOKEN: u64 = u64::MAX - 1;

/// The two must differ.
const _: () = assert!(NO_TOKEN != WORD_TOKEN);

impl Posted {
    /// Drops the data of a message, which can no longer be read. The requester is still notified,
    /// with an error. Returns the status for the kernel.
    pub(crate) fn without_data(&mut self) -> Status {
        self.data = Payload::None;
        self.tell_failure();
        Status::LocalProtection
    }

    /// Has the requester be told that the results are not whole.
    pub(crate) fn tell_failure(&mut self) {
        match &mut self.then {
            Then::Nothing => {}
            Then::Immediate { status, .. } => *status = CallStatus::ACCESS,
            Then::Word { word, .. } => {
                word.status = CallStatus::ACCESS;
                word.len = 0;
            }
        }
    }
}
