//! One card for several processes: the daemon's side.
//!
//! The daemon is a device like any other, with sessions besides. A client's posts and completions
//! go through memory that both share ([`shared`](crate::shared)); its commands come over a socket
//! ([`message`](crate::message)).
//!
//! - `engine` moves doorbells, completions and events between the card and the sessions, in the
//!   steps of the thread that drives the card; `session` has the queues of one session;
//! - `guarded` carries out a session's commands, on its own objects (`objects`, which knows the
//!   quotas, too) and on memory that it lends (`lent`).

pub(crate) mod engine;
mod guarded;
mod lent;
mod objects;
mod session;
