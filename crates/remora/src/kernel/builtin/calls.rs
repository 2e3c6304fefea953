//! Calls of the built-in kernels: each makes a call's parameters and reads its answer.
//!
//! Each borrows a [`KernelClient`] and uses the op-code that its kernel is usually deployed under.

use remora_nic::queue::Sge;
use remora_offload::kernel::builtin::{
    aggregate, consistency, filter, get, hyperloglog, opcode, shuffle, traversal,
};

use crate::kernel::{CallFailure, CallStatus, KernelClient};

/// A hash table at the peer, as [`get::Table`] lays it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteTable {
    /// Address of its first entry, at the peer.
    pub table: u64,
    /// Entries that keys hash to.
    pub heads: u32,
}

impl RemoteTable {
    /// Fetches a value; `false` if the key is not there.
    ///
    /// # Errors
    /// See [`CallFailure`].
    pub fn get(
        &self,
        client: &mut KernelClient,
        key: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, CallFailure> {
        found(client.call(opcode::GET, &self.params(key).to_bytes(), out))
    }

    /// The parameters of a call that looks for `key`.
    pub fn params(&self, key: u64) -> get::Params {
        let entry = get::Table::hash(key, self.heads);
        get::Params { table: self.table, key, entry, chain_max: 0 }
    }
}

/// Takes NOT_FOUND for an answer, and not for a failure.
fn found(result: Result<usize, CallFailure>) -> Result<bool, CallFailure> {
    match result {
        Ok(_) => Ok(true),
        Err(CallFailure::Status(CallStatus::NOT_FOUND)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Traverses a structure at the peer; `false` if it ends before a match.
///
/// # Errors
/// See [`CallFailure`].
pub fn traverse(
    client: &mut KernelClient,
    params: &traversal::Params,
    out: &mut Vec<u8>,
) -> Result<bool, CallFailure> {
    found(client.call(opcode::TRAVERSAL, &params.to_bytes(), out))
}

/// Reads an object, checksum included. The peer's card has checked the checksum.
///
/// # Errors
/// See [`CallFailure`].
pub fn read_consistent(
    client: &mut KernelClient,
    params: &consistency::Params,
    out: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let len = client.call(opcode::CONSISTENCY, &params.to_bytes(), out)?;
    if len == params.len as usize { Ok(()) } else { Err(CallFailure::Answer) }
}

/// Tells the peer where a session's partitions lie: `histogram` is 2^`bits`
/// [`shuffle::Partition`]s in registered memory.
///
/// # Errors
/// See [`CallFailure`].
pub fn shuffle_histogram(
    client: &mut KernelClient,
    session: u32,
    bits: u8,
    histogram: Sge,
) -> Result<(), CallFailure> {
    let params = shuffle::Params { ask: shuffle::Ask::Histogram, bits, session };
    client.call_with(opcode::SHUFFLE, &params.to_bytes(), histogram, &mut Vec::new())?;
    Ok(())
}

/// Sends values to be partitioned. Returns how many have been partitioned since the histogram.
///
/// # Errors
/// See [`CallFailure`].
pub fn shuffle_values(
    client: &mut KernelClient,
    session: u32,
    values: Sge,
) -> Result<u64, CallFailure> {
    let params = shuffle::Params { ask: shuffle::Ask::Values, bits: 0, session };
    let mut out = Vec::new();
    client.call_with(opcode::SHUFFLE, &params.to_bytes(), values, &mut out)?;
    let written = out.first_chunk().ok_or(CallFailure::Answer)?;
    Ok(u64::from_le_bytes(*written))
}

/// Calls the peer's sketch, with a payload to add or merge if there is one.
///
/// # Errors
/// See [`CallFailure`].
pub fn hyperloglog_ask(
    client: &mut KernelClient,
    params: &hyperloglog::Params,
    payload: Option<Sge>,
) -> Result<(hyperloglog::Report, Vec<u8>), CallFailure> {
    let mut out = Vec::new();
    let params = params.to_bytes();
    match payload {
        Some(payload) => client.call_with(opcode::HYPERLOGLOG, &params, payload, &mut out)?,
        None => client.call(opcode::HYPERLOGLOG, &params, &mut out)?,
    };
    let report = hyperloglog::Report::parse(&out).ok_or(CallFailure::Answer)?;
    Ok((report, out.split_off(hyperloglog::REPORT_LEN)))
}

/// Sends rows; appends the rows that match to `out`, and returns how many bytes those have.
///
/// # Errors
/// See [`CallFailure`].
pub fn filter_rows(
    client: &mut KernelClient,
    params: &filter::Params,
    rows: Sge,
    out: &mut Vec<u8>,
) -> Result<usize, CallFailure> {
    client.call_with(opcode::FILTER, &params.to_bytes(), rows, out)
}

/// Sends rows; returns their aggregates, one for each group.
///
/// # Errors
/// See [`CallFailure`].
pub fn aggregate_rows(
    client: &mut KernelClient,
    params: &aggregate::Params,
    rows: Sge,
) -> Result<Vec<aggregate::Group>, CallFailure> {
    let mut out = Vec::new();
    client.call_with(opcode::AGGREGATE, &params.to_bytes(), rows, &mut out)?;
    Ok(aggregate::Group::parse_all(&out))
}
