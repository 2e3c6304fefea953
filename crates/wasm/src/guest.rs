//! The host's state for an instance.

use std::sync::Arc;

use wasmtime::{Caller, Memory, ResourceLimiter};

use crate::error::Ended;
use crate::loan::Loan;
use remora_offload::kernel::{CallStatus, Context, MemoryShare, ModuleLimits, Passing};

/// The most bytes of memory that all instances of the process have together.
pub const TOTAL_MEMORY: usize = ModuleLimits::TOTAL_MEMORY;

/// Bytes of an element of a table.
pub(crate) const ELEMENT: usize = size_of::<usize>();

/// The memory of all instances.
static ALL: MemoryShare = MemoryShare::new(TOTAL_MEMORY);

/// The host's state for an instance.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The current invocation; between two invocations, the earlier one.
    pub(crate) context: Context,
    /// The `memory` that the module exports; `None` while the module is instantiated.
    pub(crate) memory: Option<Memory>,
    pub(crate) payload: Rest,
    /// The payload that passes, if the instance is bound to a stream.
    pub(crate) passing: Option<Passing>,
    /// The bytes to write in place of the payload.
    pub(crate) replaced: Vec<u8>,
    /// How host functions find the context that a plain call was polled with.
    pub(crate) loan: Arc<Loan>,
    limits: ModuleLimits,
    share: Option<Arc<MemoryShare>>,
    /// Bytes of its memory and tables.
    bytes: usize,
    /// Elements of its tables.
    elements: usize,
}

/// Is there room for so many more bytes of memory, of all instances and of those of a share?
pub(crate) fn has_room(share: Option<&MemoryShare>, bytes: usize) -> bool {
    ALL.has_room(bytes) && share.is_none_or(|share| share.has_room(bytes))
}

impl Guest {
    pub(crate) fn new(
        context: Context,
        limits: ModuleLimits,
        share: Option<Arc<MemoryShare>>,
    ) -> Guest {
        let (payload, loan) = (Rest::default(), Arc::default());
        let (passing, replaced) = (None, Vec::new());
        let (memory, bytes, elements) = (None, 0, 0);
        Guest { context, memory, payload, passing, replaced, loan, limits, share, bytes, elements }
    }

    /// Takes so many more bytes, for a memory or a table, of what this instance, those of its share
    /// and all of them together may have. (Dropping the guest gives them back.)
    fn take(&mut self, more: usize) -> wasmtime::Result<bool> {
        let bytes = self.bytes.saturating_add(more);
        if bytes > self.limits.memory || !ALL.take(more) {
            return Err(Ended(CallStatus::MEMORY).into());
        }
        if self.share.as_ref().is_some_and(|share| !share.take(more)) {
            ALL.give_back(more);
            return Err(Ended(CallStatus::MEMORY).into());
        }
        self.bytes = bytes;
        Ok(true)
    }

    /// Starts an invocation.
    pub(crate) fn begin(&mut self, context: Context) {
        self.context = context;
        self.payload.clear();
    }

    /// Sets the payload that passes.
    pub(crate) fn show(&mut self, passing: &Passing, bytes: &[u8]) {
        self.passing = Some(*passing);
        self.payload.give(bytes, &mut []);
        self.replaced.clear();
    }

    /// Appends to the bytes that replace the passing payload.
    pub(crate) fn replace(&mut self, with: &[u8]) -> Result<(), CallStatus> {
        if self.replaced.len() + with.len() > self.payload.len() {
            return Err(CallStatus::TOO_LONG);
        }
        self.replaced.extend_from_slice(with);
        Ok(())
    }
}

/// A piece of payload that the guest takes in smaller parts.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    bytes: Vec<u8>,
    taken: usize,
}

impl Rest {
    /// Copies as many bytes as fit into `dst`; returns their number.
    pub(crate) fn take(&mut self, dst: &mut [u8]) -> usize {
        let rest = &self.bytes[self.taken..];
        let len = rest.len().min(dst.len());
        dst[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Bytes of the whole piece, taken or not.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Starts a new piece: copies what fits into `dst`, and keeps the rest. Returns the number of
    /// bytes copied.
    pub(crate) fn give(&mut self, piece: &[u8], dst: &mut [u8]) -> usize {
        let len = piece.len().min(dst.len());
        dst[..len].copy_from_slice(&piece[..len]);
        self.clear();
        self.bytes.extend_from_slice(&piece[len..]);
        len
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }
}

/// A caller's memory and its state in the host.
///
/// # Errors
/// The caller has no memory, although a call passes a place in it.
pub(crate) fn open<'a>(
    caller: &'a mut Caller<'_, Guest>,
) -> wasmtime::Result<(&'a mut [u8], &'a mut Guest)> {
    let memory = caller.data().memory.ok_or(Ended(CallStatus::TRAP))?;
    Ok(memory.data_and_store_mut(caller))
}

/// A range of a guest's memory, by offset and length in bytes.
///
/// # Errors
/// The range is outside of the memory: a trap, as if the guest had accessed it.
pub(crate) fn range(memory: &mut [u8], at: u32, len: u32) -> wasmtime::Result<&mut [u8]> {
    let range = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..len as usize));
    Ok(range.ok_or(Ended(CallStatus::TRAP))?)
}

impl ResourceLimiter for Guest {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // Growth beyond the module's own limit fails in the guest, and takes nothing.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.take(desired.saturating_sub(current))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let more = desired.saturating_sub(current);
        // A module may have many tables, so the limit is for all of them together.
        self.elements = self.elements.saturating_add(more);
        if self.elements > self.limits.table {
            return Err(Ended(CallStatus::MEMORY).into());
        }
        self.take(more.saturating_mul(ELEMENT))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        ALL.give_back(self.bytes);
        if let Some(share) = &self.share {
            share.give_back(self.bytes);
        }
    }
}
