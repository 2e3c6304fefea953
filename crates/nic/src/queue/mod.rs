//! Queues: work-queue elements in rings in memory, completion queues on the card.
//!
//! [`element`] is what a work request is in memory, and `ring` where; [`completion`] tells its end.
//! In between, the card keeps a copy: `outstanding` of what it has issued, with `sgl` for the
//! longer scatter/gather lists, and `answer` of what peers have asked.

pub(crate) mod answer;
pub mod completion;
pub mod element;
mod opcode;
pub(crate) mod outstanding;
pub(crate) mod ring;
pub(crate) mod sgl;
pub(crate) mod shared_receive;

pub use completion::{
    Completion, CompletionError, CompletionFlags, Moderation, PollCqError, ResizeCqError, Status,
    WorkKind,
};
pub use element::{
    BadElement, Data, ELEMENT_LEN, FlushKind, INLINE_FIRST, MAX_INLINE, MAX_MESSAGE, MAX_SGE,
    RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, UdDestination,
};
pub use opcode::Opcode;
pub use ring::RingInit;
