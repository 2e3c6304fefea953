//! The built-in kernels by name ([`Kind`]), how they are deployed, and their clients: functions
//! that make the parameters of a call and read its answer.
//!
//! Each client borrows a [`KernelClient`] and uses the op-code that its kernel is usually deployed
//! under.

use remora_nic::queue::Sge;
use remora_offload::kernel::builtin::{
    aggregate, consistency, filter, get, hyperloglog, shuffle, shuffle_send, traversal,
};

use super::{AsyncProgram, CallFailure, CallStatus, Deployment, Grant, KernelClient, Program, Tap};
use crate::device::Device;

pub use remora_offload::kernel::builtin::opcode;

use super::DeployError;

/// How many bits of a hash choose the sketch's register, unless a call asks for another number.
const PRECISION: u8 = 14;

impl Device {
    /// Deploys all built-in kernels under their usual op-codes, with the same grants; returns the
    /// state that they share with the host.
    ///
    /// # Errors
    /// One of the op-codes is taken: the kernels before it stay deployed.
    pub fn deploy_builtin(&self, grants: &[Grant]) -> Result<Builtin, DeployError> {
        let shared = Builtin::new();
        for kind in Kind::ALL {
            let deployment = Deployment::new(kind.name(), grants).budget(kind.budget());
            self.deploy_program(kind.opcode(), deployment, shared.program(kind))?;
        }
        Ok(shared)
    }
}

/// A built-in kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their modules say what they do")]
pub enum Kind {
    Get,
    Traversal,
    Consistency,
    Shuffle,
    ShuffleSend,
    HyperLogLog,
    Filter,
    Aggregate,
}

impl Kind {
    /// All built-in kernels.
    pub const ALL: [Kind; 8] = [
        Kind::Get,
        Kind::Traversal,
        Kind::Consistency,
        Kind::Shuffle,
        Kind::ShuffleSend,
        Kind::HyperLogLog,
        Kind::Filter,
        Kind::Aggregate,
    ];

    /// The kernel called `name`.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Traversal => "traversal",
            Kind::Consistency => "consistency",
            Kind::Shuffle => "shuffle",
            Kind::ShuffleSend => "shuffle_send",
            Kind::HyperLogLog => "hyperloglog",
            Kind::Filter => "filter",
            Kind::Aggregate => "aggregate",
        }
    }

    /// The op-code that the kernel is usually deployed under.
    pub fn opcode(self) -> u64 {
        match self {
            Kind::Get => opcode::GET,
            Kind::Traversal => opcode::TRAVERSAL,
            Kind::Consistency => opcode::CONSISTENCY,
            Kind::Shuffle => opcode::SHUFFLE,
            Kind::ShuffleSend => opcode::SHUFFLE_SEND,
            Kind::HyperLogLog => opcode::HYPERLOGLOG,
            Kind::Filter => opcode::FILTER,
            Kind::Aggregate => opcode::AGGREGATE,
        }
    }

    /// The usual budget in steps. Kernels that work on a stream have no limit: they end with it.
    pub fn budget(self) -> u64 {
        match self {
            Kind::Get | Kind::Traversal | Kind::Consistency => 1_000_000,
            _ => u64::MAX,
        }
    }
}

/// The state that built-in kernels share with the host.
#[derive(Clone, Debug)]
pub struct Builtin {
    /// The shuffle's histograms; [`shuffle::Shuffles::tap`] is its receive kernel.
    pub shuffle: shuffle::Shuffles,
    /// The sketch; [`hyperloglog::HyperLogLog::tap`] is its receive and send kernel.
    pub hyperloglog: hyperloglog::HyperLogLog,
}

impl Builtin {
    /// Empty state.
    pub fn new() -> Builtin {
        let (shuffle, hyperloglog) =
            (shuffle::Shuffles::new(), hyperloglog::HyperLogLog::new(PRECISION));
        Builtin { shuffle, hyperloglog }
    }

    /// A kernel's program, for [`Device::deploy_program`].
    pub fn program(&self, kind: Kind) -> Box<dyn Program> {
        match kind {
            Kind::Get => Box::new(AsyncProgram::new(get::get)),
            Kind::Traversal => Box::new(AsyncProgram::new(traversal::traversal)),
            Kind::Consistency => Box::new(AsyncProgram::new(consistency::consistency)),
            Kind::Shuffle => self.shuffle.program(),
            Kind::ShuffleSend => Box::new(AsyncProgram::new(shuffle_send::shuffle_send)),
            Kind::HyperLogLog => {
                let make = self.hyperloglog.clone();
                Box::new(AsyncProgram::new(move |context| make.clone().run(context)))
            }
            Kind::Filter => Box::new(AsyncProgram::new(filter::filter)),
            Kind::Aggregate => Box::new(AsyncProgram::new(aggregate::aggregate)),
        }
    }

    /// The kernel that is bound to a stream of WRITEs, if `kind` has one that needs no parameters:
    /// the shuffle (of session 0) and the sketch.
    pub fn tap(&self, kind: Kind) -> Option<Box<dyn Tap>> {
        match kind {
            Kind::Shuffle => Some(self.shuffle.tap(0)),
            Kind::HyperLogLog => Some(self.hyperloglog.tap()),
            _ => None,
        }
    }
}

impl Default for Builtin {
    fn default() -> Builtin {
        Builtin::new()
    }
}

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
