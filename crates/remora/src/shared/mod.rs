//! What a client and the daemon that owns the card share: one memory file for a session, the
//! *arena*. Posting, polling and doorbells are accesses to it, without a system call.
//!
//! - [`arena`]: the file, its layout, the doorbells, and who wakes whom;
//! - [`parts`]: which pages of it are in use (the daemon's side);
//! - [`queue`]: the indices of a work queue;
//! - [`completions`]: a completion queue's entries;
//! - [`events`]: the ring by which the daemon tells the client what has happened.
//!
//! [`mailbox`] is how a client in a virtual machine, which has no socket, sends commands.
//!
//! [`gates`] are memory that three processes share, for requests that the daemon takes no part in.
//!
//! Both sides use the same files, so that they agree on each byte. Of two ends of a ring, the
//! client's are called *consumer*, the daemon's *producer*.
//!
//! **The daemon trusts nothing here.** A client can write anything anywhere in its arena at any
//! time. So the daemon keeps its own state (indices that it produces, depths, offsets) to itself.
//! A value that the client writes is loaded once, by an atomic, held against what it may be, and
//! used only then; what the daemon writes it never reads back. What a client spoils are its own
//! queues.

pub mod arena;
pub mod completions;
pub mod events;
pub mod gates;
pub mod mailbox;
pub mod parts;
pub mod queue;

#[cfg(test)]
mod tests;

pub use arena::{Arena, ArenaError, Doorbells};
pub use completions::{CompletionConsumer, CompletionProducer, Notice};
pub use events::{EventConsumer, EventProducer};
pub use gates::Gates;
pub use mailbox::{MAILBOX, MailboxClient, MailboxServer};
pub use parts::Parts;
pub use queue::{WorkQueue, WorkQueueState};
