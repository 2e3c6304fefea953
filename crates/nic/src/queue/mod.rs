//! Queues: work-queue elements in rings in memory, completion queues on the card.
//!
//! - [`element`]: a work request in memory, 64 bytes; `opcode`: the op-codes of elements.
//! - `ring`: the queue of such elements; `shared_receive`: a ring that queue pairs share.
//! - [`completion`]: completions, which report how a request ended, and their queues.
//! - `outstanding`: the card's copy of a request that it has issued; `sgl`: its scatter/gather
//!   list.
//! - `answer`: the card's copy of a peer's READ or atomic.

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
    RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, UdDestination,
};
pub use opcode::Opcode;
pub use ring::{RingInit, with_room};
