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
//! - `wake` is how a client that sleeps is woken;
//! - [`server`] accepts clients (`clients`) and gives them sessions (`table`), as far as the
//!   [`policy`] admits them; `answers` answers their requests, and `ending` destroys what a session
//!   has left; [`Observer`] asks it from another process.

mod answers;
mod clients;
mod ending;
pub(crate) mod engine;
mod guarded;
mod hostile;
mod lent;
mod objects;
mod observer;
pub mod policy;
pub mod server;
mod session;
mod table;
mod wake;

#[doc(hidden)]
pub use hostile::hostile_arena;
pub use observer::{ObserveError, Observer, Status};
pub use policy::{Policy, PolicyError};
pub use server::{ServeError, Server, ServerOptions};

#[cfg(test)]
mod tests;
