//! Loading: what is a kernel, and what is refused.

use std::sync::Arc;

use thiserror::Error;
use wasmtime::{ExternType, InstancePre, Linker, ValType};

use super::engine::Host;
use super::guest::Guest;
use super::imports;
use super::program::ModuleProgram;
use super::tap::ModuleTap;
use crate::kernel::CallStatus;

/// The longest module, in bytes.
pub const MODULE_MAX: usize = 1 << 20;
/// The most memory that an instance may be allowed, in bytes.
pub(super) const MEMORY_MAX: usize = 16 << 20;
/// A page of a guest's memory, in bytes.
const PAGE: u64 = 64 << 10;

/// How much an instance of a module may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of memory; more than 16 MiB count as 16 MiB.
    pub memory: usize,
    /// Elements of its table (of functions that are called by number).
    pub table: usize,
    /// Instances that are kept for the queue pairs that have called last.
    pub instances: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 4 << 20, table: 4096, instances: 64 }
    }
}

/// Why a module was not loaded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    /// Too long.
    #[error("the module has {0} bytes; a kernel may have {MODULE_MAX}")]
    TooBig(usize),
    /// No module, or one that uses what is not offered (bulk memory, say).
    #[error("this is no WebAssembly module that can be run here: {0}")]
    Invalid(String),
    /// An import that the card does not offer.
    #[error("the module imports `{0}`, which is not offered")]
    Import(String),
    /// An import of another type than it has.
    #[error("the module imports something with another type than it has: {0}")]
    ImportType(String),
    /// No entry.
    #[error("the module exports no function `kernel` without parameters that returns an i32")]
    NoKernel,
    /// Something else than a function as `tap`.
    #[error(
        "the module exports a `tap` that is no function without parameters that returns an i32"
    )]
    BadTap,
    /// It is to be bound to a stream, and is no tap.
    #[error(
        "the module exports no function `tap`: it can be called, and not bound to a stream of \
         WRITEs"
    )]
    NoTap,
    /// It is to be bound to a stream, and cannot begin.
    #[error("the module cannot be started: {0}")]
    Start(CallStatus),
    /// More memory than it may have.
    #[error("the module begins with {wanted} bytes of memory; this kernel may have {limit}")]
    Memory {
        /// What it wants.
        wanted: u64,
        /// What it may have.
        limit: usize,
    },
    /// A larger table than it may have.
    #[error("the module begins with a table of {wanted} elements; this kernel may have {limit}")]
    Table {
        /// What it wants.
        wanted: u64,
        /// What it may have.
        limit: usize,
    },
    /// This machine cannot run WebAssembly.
    #[error("WebAssembly cannot be run on this machine: {0}")]
    Engine(String),
}

/// A module that was loaded: checked, compiled, and ready to be deployed, any number of times.
#[derive(Clone)]
pub struct Module {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) host: &'static Host,
    pub(super) plain: InstancePre<Guest>,
    pub(super) suspending: InstancePre<Guest>,
    /// If it exports a `tap`.
    pub(super) tapping: Option<InstancePre<Guest>>,
    pub(super) limits: Limits,
}

impl Module {
    /// Loads a module with the usual [`Limits`].
    ///
    /// This compiles it, which takes milliseconds: it is not for the thread that drives a card.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(bytes: &[u8]) -> Result<Module, LoadError> {
        Module::load_with(bytes, Limits::default())
    }

    /// Loads a module.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_with(bytes: &[u8], limits: Limits) -> Result<Module, LoadError> {
        if bytes.len() > MODULE_MAX {
            return Err(LoadError::TooBig(bytes.len()));
        }
        let host = Host::get()?;
        let limits = Limits { memory: limits.memory.min(MEMORY_MAX), ..limits };
        let module = wasmtime::Module::from_binary(&host.engine, bytes)
            .map_err(|error| LoadError::Invalid(format!("{error:#}")))?;
        judge_imports(&module)?;
        judge_exports(&module)?;
        judge_resources(&module, &limits)?;
        let link = |linker: &Linker<Guest>| {
            let linked = linker.instantiate_pre(&module);
            linked.map_err(|error| LoadError::ImportType(format!("{error:#}")))
        };
        let (plain, suspending) = (link(&host.plain)?, link(&host.suspending)?);
        let tap = module.get_export("tap");
        let tapping = tap.map(|_| link(&host.tapping)).transpose()?;
        Ok(Module { inner: Arc::new(Inner { host, plain, suspending, tapping, limits }) })
    }

    /// The module as code of a kernel.
    pub fn program(&self) -> ModuleProgram {
        ModuleProgram::new(self.inner.clone())
    }

    /// An instance of the module that is to be bound to a stream of WRITEs: its `tap` is called for
    /// each payload, with `budget` steps, [`PAYLOAD_STEPS`](super::PAYLOAD_STEPS) at most. It is
    /// made here, so that this is not for the thread that drives a card.
    ///
    /// # Errors
    /// The module exports no `tap`, or its instance cannot be made.
    pub fn tap(&self, budget: u64) -> Result<ModuleTap, LoadError> {
        ModuleTap::new(&self.inner, budget)
    }

    /// What its instances may have.
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }
}

fn judge_imports(module: &wasmtime::Module) -> Result<(), LoadError> {
    let offered =
        |module: &str, name: &str| module == imports::MODULE && imports::NAMES.contains(&name);
    match module.imports().find(|import| !offered(import.module(), import.name())) {
        Some(i) => Err(LoadError::Import(format!("{}.{}", i.module(), i.name()))),
        None => Ok(()),
    }
}

fn judge_exports(module: &wasmtime::Module) -> Result<(), LoadError> {
    if !module.get_export("kernel").is_some_and(is_entry) {
        return Err(LoadError::NoKernel);
    }
    if module.get_export("tap").is_some_and(|tap| !is_entry(tap)) {
        return Err(LoadError::BadTap);
    }
    Ok(())
}

/// Is it a function without parameters that returns an i32?
fn is_entry(export: ExternType) -> bool {
    let ExternType::Func(function) = export else { return false };
    let mut results = function.results();
    function.params().len() == 0
        && matches!((results.next(), results.next()), (Some(ValType::I32), None))
}

fn judge_resources(module: &wasmtime::Module, limits: &Limits) -> Result<(), LoadError> {
    let wants = module.resources_required();
    let wanted = wants.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE);
    if wanted > limits.memory as u64 {
        return Err(LoadError::Memory { wanted, limit: limits.memory });
    }
    let wanted = wants.max_initial_table_size.unwrap_or(0);
    if wanted > limits.table as u64 {
        return Err(LoadError::Table { wanted, limit: limits.table });
    }
    Ok(())
}

impl core::fmt::Debug for Module {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Module").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}
