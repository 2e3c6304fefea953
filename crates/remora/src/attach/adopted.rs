//! What is adopted of a session that was taken over, and why it may not be.

use remora_nic::queue::RingInit;
use remora_nic::{Pd, QpInfo};
use thiserror::Error;

use crate::commands::Bytes;
use crate::memory::Buffer;
use crate::message::Object;

/// Why an object of a session that was taken over cannot be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AdoptError {
    /// The session had no such object, or has it no more, or was not taken over.
    #[error("the session had no such object when it was taken over, or it was destroyed since")]
    Unknown,
    /// This process has adopted it before.
    #[error("this process has adopted the object before: go on with that handle")]
    Before,
    /// The queue pair is a chain's.
    #[error("the queue pair is part of a chain, which goes on without its program")]
    Chain,
    /// The region's memory was that of the former process.
    #[error("the region was in memory of a process, and ended with it: see REMORA_MEMORY")]
    Ended,
    /// The process that has the card has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// A queue pair that was adopted.
#[derive(Debug)]
pub(crate) struct AdoptedQueuePair {
    pub(crate) info: QpInfo,
    /// Its rings, by their addresses in this process.
    pub(crate) rings: [RingInit; 2],
}

/// A region that was adopted.
#[derive(Debug)]
pub(crate) struct AdoptedRegion {
    pub(crate) pd: Pd,
    pub(crate) bytes: Bytes,
    /// Its bytes, where they can be mapped.
    pub(crate) buffer: Option<Buffer>,
    /// What it is in, and what goes with it.
    pub(crate) memory: Option<Object>,
}
