//! The log on several machines (Caribou §3.2): one primary orders all changes and writes them
//! one-sided into its backups' rings; what a majority holds is acknowledged.
//!
//! The protocol is Zab's primary order over the memory of others: docs/cluster.md says what it
//! promises and why it keeps that. A [`Replica`] is a value without clock, thread or socket.
//! Its driver hands in what happened and carries out its [`Output`]s.
//!
//! - [`Configuration`]: members, primary, epoch. [`ConfigurationService`]: who decides on them;
//!   [`Registry`]: the same as a value. [`Lease`]: until when a primary may answer; [`Silence`]:
//!   from when others may take over.
//! - [`History`], [`Mark`]: the end of the log in a ring. [`region_bytes`]: the memory it lies in.
//! - [`Requests`]: retries take effect once.
//! - [`Message`], [`Output`]: what nodes tell each other, and what a replica wants done.
//! - [`Replica`]: one node's part (`member`), as a `backup` or as the `primary`; `role`: what it
//!   remembers as that; `transaction`: records that are committed together; `disk`: whether its
//!   disk answers.

pub use crate::request::RequestId;

mod backup;
mod configuration;
mod disk;
mod history;
mod lease;
mod member;
mod message;
mod primary;
mod region;
mod requests;
mod returning;
mod role;
mod service;
mod transaction;

pub use configuration::{
    Configuration, MEMBERS_MAX, NoConfiguration, NodeId, are_members, is_majority, members_of,
};
pub use history::{History, Mark};
pub use lease::{Lease, Silence};
pub use member::{Counters, Fate, Options, Replica, Standing, apply, with_fields};
pub use message::{Answer, Message, Output, Snapshot};
pub use primary::{AppendError, ChangeError};
pub use region::region_bytes;
pub use requests::{ANSWER_MAX, CLIENTS_MAX, NoRequest, Requests};
pub use service::{ConfigurationService, Entry, Event, Registry, Request};
