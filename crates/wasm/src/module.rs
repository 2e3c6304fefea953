//! Loading: checks and compiles a module, or says why it is refused.

use std::sync::Arc;

use remora_offload::kernel::{LoadRefusal, Loadable, MemoryShare, ModuleLimits, Program, Tap};
use wasmtime::{ExternType, Linker, ValType};

use crate::admission::admit;
use crate::engine::Host;
use crate::error::LoadError;
use crate::guest::{ELEMENT, Guest};
use crate::imports;
use crate::limits::MODULE_MAX;
use crate::linked::Linked;
use crate::program::ModuleProgram;
use crate::tap::ModuleTap;

/// Bytes of a page of a guest's memory.
const PAGE: u64 = 64 << 10;

/// What every module begins with.
const MAGIC: &[u8] = b"\0asm";
/// Bytes that an error shows of what is no module.
const SHOWN: usize = 8;

/// A loaded module: checked, compiled, and ready to be deployed any number of times.
///
/// ```
/// use std::time::Duration;
///
/// use remora::prelude::*;
/// use remora_wasm::Module;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A kernel that answers with its parameters. (`guest/` has kernels in Rust and C.)
/// let module = Module::load(&wat::parse_str(
///     r#"(module
///         (import "remora" "params" (func $params (param i32 i32) (result i32)))
///         (import "remora" "output" (func $output (param i32 i32) (result i32)))
///         (memory (export "memory") 1)
///         (func (export "kernel") (result i32)
///             (drop (call $params (i32.const 0) (i32.const 5)))
///             (call $output (i32.const 0) (i32.const 5))))"#,
/// )?)?;
/// let server = Device::open()?;
/// server.load_kernel(17, Deployment::new("echo", []), &module)?;
///
/// # let (device, timeout) = (Device::open()?, Duration::from_secs(10));
/// # let (mine, theirs) = (device.alloc_pd()?, server.alloc_pd()?);
/// # let qp = mine.create_qp(&QueuePairOptions::new().inline(128))?;
/// # let passive = theirs.create_qp(&QueuePairOptions::new())?;
/// # let params = ConnectionParams::new(device.info().mtu).kernels(true);
/// # passive.connect(qp.local(), &params)?;
/// # qp.connect(passive.local(), &params)?;
/// // A peer, whose queue pair `qp` is connected to one of the server's, calls it.
/// let client = AsyncKernelClient::new(&mine, &qp, 4, 8)?;
/// assert_eq!(client.call(17, b"hello").wait(timeout)?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Module {
    pub(crate) linked: Arc<Linked>,
}

impl Module {
    /// Loads a module with the default [`ModuleLimits`].
    ///
    /// This compiles the module, which takes milliseconds, or seconds for a long one: do not call
    /// it on the thread that drives a card.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(bytes: &[u8]) -> Result<Module, LoadError> {
        Module::load_with(bytes, ModuleLimits::default())
    }

    /// Loads a module with these limits. See [`Module::load`].
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_with(bytes: &[u8], limits: ModuleLimits) -> Result<Module, LoadError> {
        Module::load_within(bytes, limits, None)
    }

    /// Loads a module whose instances have memory of a share. See [`Module::load`].
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_within(
        bytes: &[u8],
        limits: ModuleLimits,
        share: Option<Arc<MemoryShare>>,
    ) -> Result<Module, LoadError> {
        if bytes.len() > MODULE_MAX {
            return Err(LoadError::TooBig(bytes.len()));
        }
        if !bytes.is_empty() && !bytes.starts_with(MAGIC) {
            return Err(LoadError::NoModule(bytes[..bytes.len().min(SHOWN)].into()));
        }
        let host = Host::get()?;
        let most = share.as_ref().map_or(usize::MAX, |share| share.limit());
        let memory = limits.memory.min(ModuleLimits::MEMORY_MAX).min(most);
        let limits = ModuleLimits { memory, ..limits };
        let counted = admit(bytes)?.map(|counted| counted.rewrite(bytes)).transpose();
        let counted = counted.map_err(|error| LoadError::Invalid(error.to_string()))?;
        let module = counted.as_deref().unwrap_or(bytes);
        let module = wasmtime::Module::from_binary(&host.engine, module)
            .map_err(|error| LoadError::Compiler(format!("{error:#}")))?;
        judge_imports(&module)?;
        judge_exports(&module)?;
        let first_bytes = judge_resources(&module, &limits)?;
        let link = |linker: &Linker<Guest>| {
            let linked = linker.instantiate_pre(&module);
            linked.map_err(|error| LoadError::ImportType(format!("{error:#}")))
        };
        let (plain, suspending) = (link(&host.plain)?, link(&host.suspending)?);
        let tap = module.get_export("tap");
        let tapping = tap.map(|_| link(&host.tapping)).transpose()?;
        let bytes = bytes.into();
        let linked = Linked { host, plain, suspending, tapping, limits, share, first_bytes, bytes };
        Ok(Module { linked: Arc::new(linked) })
    }

    /// The code of a kernel that runs this module.
    pub fn program(&self) -> ModuleProgram {
        ModuleProgram::new(self.linked.clone())
    }

    /// An instance of the module to be bound to a stream of WRITEs. Its `tap` is called for each
    /// payload with `budget` steps, at most [`PAYLOAD_STEPS`](crate::PAYLOAD_STEPS). This creates
    /// the instance: do not call it on the thread that drives a card.
    ///
    /// # Errors
    /// The module exports no `tap`, or its instance cannot be created.
    pub fn tap(&self, budget: u64) -> Result<ModuleTap, LoadError> {
        ModuleTap::new(&self.linked, budget)
    }
}

impl Loadable for Module {
    fn bytes(&self) -> &[u8] {
        &self.linked.bytes
    }

    fn limits(&self) -> ModuleLimits {
        self.linked.limits
    }

    fn program(&self) -> Box<dyn Program> {
        Box::new(Module::program(self))
    }

    fn tap(&self, budget: u64) -> Result<Box<dyn Tap>, LoadRefusal> {
        Ok(Box::new(Module::tap(self, budget)?))
    }
}

/// Loads a module: the [`Loader`](remora_offload::kernel::Loader) of a program that serves a card.
///
/// # Errors
/// See [`LoadError`].
pub fn load(
    bytes: &[u8],
    limits: ModuleLimits,
    share: Option<Arc<MemoryShare>>,
) -> Result<Arc<dyn Loadable>, LoadRefusal> {
    Ok(Arc::new(Module::load_within(bytes, limits, share)?))
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

/// Whether an export is a function without parameters that returns an i32.
fn is_entry(export: ExternType) -> bool {
    let ExternType::Func(function) = export else { return false };
    let mut results = function.results();
    function.params().len() == 0
        && matches!((results.next(), results.next()), (Some(ValType::I32), None))
}

/// Refuses a module that begins with too much. Returns the bytes that an instance begins with, or
/// more, where its tables differ.
fn judge_resources(module: &wasmtime::Module, limits: &ModuleLimits) -> Result<usize, LoadError> {
    let wants = module.resources_required();
    let wanted = wants.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE);
    if wanted > limits.memory as u64 {
        return Err(LoadError::Memory { wanted, limit: limits.memory });
    }
    let elements = wants.max_initial_table_size.unwrap_or(0);
    if elements > limits.table as u64 {
        return Err(LoadError::Table { wanted: elements, limit: limits.table });
    }
    let tables = u64::from(wants.num_tables).saturating_mul(elements * ELEMENT as u64);
    Ok(usize::try_from(wanted.saturating_add(tables)).unwrap_or(usize::MAX))
}

impl core::fmt::Debug for Module {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Module").field("limits", &self.linked.limits).finish_non_exhaustive()
    }
}
