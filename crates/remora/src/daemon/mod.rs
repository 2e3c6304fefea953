//! One card for several processes: the daemon's side.
//!
//! The daemon is a device like any other, with sessions besides. A client's posts and completions
//! go through memory that both share ([`shared`](crate::shared)); its commands come over a socket
//! ([`message`](crate::message)).
//!
//! - `engine` moves doorbells, completions and events between the card and the sessions, in the
//!   steps of the thread that drives the card;

pub(crate) mod engine;
