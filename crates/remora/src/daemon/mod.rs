//! One card for several processes: the daemon's side.
//!
//! The daemon is a device like any other, with sessions besides. A client's posts and completions
//! go through memory that both share ([`shared`](crate::shared)); its commands come over a socket
//! ([`message`](crate::message)).
//!
//! - `engine` moves doorbells, completions and events between the card and the sessions, in the
//!   steps of the thread that drives the card; `session_queues` has those of one session, and
//!   `doorbells` says in which order posts become known;
//! - `guarded` carries out a session's commands, on its own objects (`objects`, which knows the
//!   quotas, too) and on memory that it lends (`lent`).
//! - `kernels` runs on the card what clients send (`running`), and has modules compiled
//!   (`compiler`); `kept_kernels` has those of kept sessions outlive the daemon, each by a file
//!   (`kernel_file`);
//! - `shares` says what the sessions of one user may have together, and `overgrown` when to look
//!   for those that take more of their arenas than they were given;
//! - [`server`] accepts clients (`clients`) and gives them sessions (`sessions`), as far as the
//!   [`policy`] admits them (`admission`); `descriptors` looks at what comes with their messages;
//!   `answers` answers their requests, some of them by what was found before ([`rarely`](crate::rarely)), and
//!   `ending` destroys what a session has left; `evictions` ends sessions of programs that have
//!   them, and `evicted` knows who has asked for that; `descriptions` tell a client that takes a
//!   session over of its objects; `restore` gives sessions what another daemon has left in the
//!   service manager's store (`fd_store`), by their `record`; [`Observer`] (`observer`) asks it
//!   from another process;
//! - `machines` gives virtual machines a device (`ivshmem`) by which their programs have sessions;
//! - `dma` has the card's memory and the engines between it and programs' memory; [`DmaClient`]
//!   (`dma_client`) is the other end;
//! - `passes` lets sessions of one user write and read each other's memory themselves
//!   (`open_passes` are those there are);
//! - `join` lets forked children and other processes use a session; `xrc` shares domains among
//!   sessions, by the files that name them (`named`);
//! - `hostile` is a client, and `hostile_machine` a virtual machine, that writes anything into what
//!   it shares with the daemon, and `hostile_socket` clients that ask for anything, for fuzzing.

mod admission;
mod answers;
mod clients;
mod compiler;
mod descriptions;
mod descriptors;
mod dma;
mod dma_client;
mod doorbells;
mod ending;
pub(crate) mod engine;
mod evicted;
mod evictions;
mod fd_store;
mod guarded;
mod hostile;
mod hostile_machine;
mod hostile_socket;
mod ivshmem;
mod join;
mod kept_kernels;
mod kernel_file;
mod kernels;
mod lent;
mod machines;
mod named;
mod objects;
mod observer;
mod open_passes;
mod overgrown;
mod passes;
pub mod policy;
mod record;
mod restore;
mod running;
pub mod server;
mod session_queues;
mod sessions;
mod shares;
mod xrc;

pub use dma_client::{DmaChannel, DmaClient, DmaError, DmaStatus};
pub use fd_store::{FdStore, is_stored, take_passed};
#[doc(hidden)]
pub use hostile::{HOSTILE_KEY, hostile_arena};
#[doc(hidden)]
pub use hostile_machine::hostile_machine;
#[doc(hidden)]
pub use hostile_socket::hostile_socket;
pub use observer::{ObserveError, Observer, Status};
pub use policy::{Policy, PolicyError};
pub use restore::Restored;
pub use server::{ServeError, Server, ServerOptions};

#[cfg(test)]
mod tests;
