//! The results that requests can have.

use remora_nic::queue::Completion;

use super::error::RequestError;
use crate::remote::Remote;
use crate::slice::MemorySlice;

/// The type of a request's result. The trait is sealed.
pub trait Outcome: sealed::FromEnd {}

impl Outcome for Completion {}
impl Outcome for u64 {}
impl Outcome for Remote {}

mod sealed {
    use super::{Completion, MemorySlice, Remote, RequestError};

    pub trait FromEnd: Sized {
        /// Makes the result of the completion and the memory that the request has filled.
        fn from_end(end: Completion, memory: Option<&MemorySlice>) -> Result<Self, RequestError>;
    }

    impl FromEnd for Completion {
        fn from_end(end: Completion, _: Option<&MemorySlice>) -> Result<Completion, RequestError> {
            Ok(end)
        }
    }

    /// The word as it was before an atomic.
    impl FromEnd for u64 {
        fn from_end(_: Completion, memory: Option<&MemorySlice>) -> Result<u64, RequestError> {
            Ok(memory.map_or(Ok(0), MemorySlice::load_u64)?)
        }
    }

    /// Memory that the peer has described in a message.
    impl FromEnd for Remote {
        fn from_end(end: Completion, memory: Option<&MemorySlice>) -> Result<Remote, RequestError> {
            let mut bytes = [0; Remote::LEN];
            let len = (end.len as usize).min(bytes.len());
            memory.map_or(Ok(()), |memory| memory.read(&mut bytes[..len]))?;
            Ok(Remote::from_bytes(&bytes[..len])?)
        }
    }
}
