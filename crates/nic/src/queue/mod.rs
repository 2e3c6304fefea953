//! Queues: work-queue elements in rings in memory, completion queues on the card.
//!
//! - [`element`] is a work request in memory, and `ring` the queue of such elements.
//! - [`completion`] reports how a request ended.
//! - `outstanding` is the card's copy of a request that it has issued, with `sgl` for longer
//!   scatter/gather lists; `answer` is its copy of a peer's READ or atomic.

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
