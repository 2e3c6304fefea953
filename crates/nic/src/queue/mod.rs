//! Queues: work-queue elements in rings in memory, completion queues on the card.

pub mod completion;
pub mod element;
pub(crate) mod ring;

pub use completion::{
    Completion, CompletionFlags, Moderation, PollCqError, ResizeCqError, Status, WorkKind,
};
pub use element::{
    BadElement, Data, ELEMENT_LEN, FlushKind, INLINE_FIRST, MAX_INLINE, MAX_SGE, Opcode,
    RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, UdDestination,
};
pub use ring::RingInit;
