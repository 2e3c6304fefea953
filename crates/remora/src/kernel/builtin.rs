//! The catalogue of the built-in kernels: by name ([`Kind`]), and how they are deployed.
//!
//! `builtin/calls.rs` calls them: functions that make the parameters of a call and read its answer.
//! What the kernels do is in the crate `remora-offload` ([`remora_offload::kernel::builtin`]).

mod calls;

use remora_offload::kernel::builtin::{
    aggregate, consistency, filter, get, hyperloglog, shuffle, shuffle_send, traversal,
};

use super::{AsyncProgram, DeployError, Deployment, Grant, Program, Tap};
use crate::device::Device;

pub use calls::{
    RemoteTable, aggregate_rows, filter_rows, hyperloglog_ask, read_consistent, shuffle_histogram,
    shuffle_values, traverse,
};
pub use remora_offload::kernel::builtin::opcode;

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

    /// What is said of it where it is to be bound to a stream, if it has no tap.
    pub(crate) fn unbindable(self) -> String {
        format!("{} cannot be bound to a stream", self.name())
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
