//! What a client asks of the kernels of another process's card.

use remora_nic::Key;
use remora_nic::kernel::Bound;
use remora_nic::nic::BindError;
use serde::{Deserialize, Serialize};

/// The longest name of a kernel, in bytes.
pub const KERNEL_NAME_MAX: usize = 64;
/// The most regions that a kernel may be granted.
pub const GRANTS_MAX: usize = 64;

/// A request. Those with a [`Code::Module`] come with a memory file, sealed against shrinking, that
/// has the module's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KernelRequest {
    /// Runs code for the calls of an op-code that come by the session's queue pairs. Answer:
    /// [`KernelAnswer::Done`].
    Deploy {
        /// The op-code.
        opcode: u64,
        /// In the place of the kernel that has it.
        replace: bool,
        /// A name for people.
        name: String,
        /// The most steps of an invocation.
        budget: u64,
        /// The regions that it may use, and whether it may write them.
        grants: Vec<(Key, bool)>,
        /// What runs.
        code: Code,
    },
    /// Ends a kernel. Answer: [`KernelAnswer::Done`].
    Undeploy(u64),
    /// The session's kernels from this op-code on. Answer: [`KernelAnswer::List`].
    List(u64),
    /// Has the payload of WRITEs pass through code. Answer: [`KernelAnswer::Number`].
    Bind {
        /// The stream: one of a queue pair or a region of the session.
        to: Bound,
        /// The most steps for each payload.
        budget: u64,
        /// The regions that it may use, and whether it may write them.
        grants: Vec<(Key, bool)>,
        /// What runs.
        code: Code,
    },
    /// Ends the binding of this number. Answer: [`KernelAnswer::Done`].
    Unbind(u32),
    /// What the binding of this number has seen. Answer: [`KernelAnswer::Tap`].
    Tap(u32),
}

/// What a kernel runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Code {
    /// The built-in kernel of this name.
    Builtin(String),
    /// A WebAssembly module, with the limits of its instances.
    Module {
        /// Bytes of memory and tables.
        memory: u64,
        /// Elements of tables.
        table: u64,
        /// Instances that are kept.
        instances: u64,
    },
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KernelAnswer {
    /// It is done.
    Done,
    /// The number of the binding.
    Number(u32),
    /// A kernel has the op-code already.
    Taken,
    /// No kernel has it.
    Unknown,
    /// There is no room for more than so many.
    Full(u64),
    /// The stream cannot be bound.
    Bind(BindError),
    /// Some of the kernels, by op-code.
    List {
        /// The kernels.
        kernels: Vec<KernelRow>,
        /// There are others, with higher op-codes.
        more: bool,
    },
    /// What a binding has seen.
    Tap {
        /// Payloads.
        payloads: u64,
        /// The code of the error that stopped it.
        stopped: Option<u8>,
    },
}

/// A kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelRow {
    /// Its op-code.
    pub opcode: u64,
    /// Its name.
    pub name: String,
    /// The regions that it may use, and whether it may write them.
    pub grants: Vec<(Key, bool)>,
    /// The most steps of an invocation.
    pub budget: u64,
    /// Invocations so far.
    pub calls: u64,
    /// Invocations that failed.
    pub failed: u64,
    /// Invocations in flight.
    pub running: u32,
}
