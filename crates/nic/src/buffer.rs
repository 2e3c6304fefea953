//! Bytes on the card, shared between those that send them.

/// Bytes on the card that a kernel sends. They are referred to, not copied, until acknowledged.
pub type Buffer = triomphe::Arc<Vec<u8>>;

/// Bytes that a kernel may still change, as nobody else refers to them. They become a [`Buffer`]
/// to be sent, and a buffer that nobody else refers to any more can be filled again, without an
/// atomic operation.
pub type Draft = triomphe::UniqueArc<Vec<u8>>;
