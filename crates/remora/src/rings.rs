//! The rings of a card's queues, which the card's owner keeps until the queues are destroyed.

use std::collections::HashMap;

use crate::memory::Buffer;

/// The queue, or the two queues, that memory holds the rings of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RingsOf {
    /// A queue pair, by its number.
    Qp(u32),
    /// A shared receive queue, by its handle.
    Srq(u32),
}

/// The memory of the rings that the card's owner has made, until the card has dropped the queues.
pub(crate) type Rings = HashMap<RingsOf, Buffer>;
