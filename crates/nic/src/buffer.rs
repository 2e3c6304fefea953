//! Bytes on the card, shared by the messages that send them.

/// Bytes on the card that a kernel sends. Messages refer to them, without a copy, until they are
/// acknowledged.
pub type Buffer = triomphe::Arc<Vec<u8>>;

/// Bytes that a kernel may still change, as it has the only reference to them. A draft becomes a
/// [`Buffer`] when it is sent. A buffer to which only one reference is left becomes a draft again,
/// without an atomic operation for each change.
pub type Draft = triomphe::UniqueArc<Vec<u8>>;
