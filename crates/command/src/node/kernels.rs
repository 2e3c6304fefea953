//! Kernels that are loaded into a node's card while it runs.
//!
//! A client that calls or loads kernels connects to `@kernels`, whose text lists them. A kernel is
//! called by its op-code. [`MANAGE`] is an op-code of the node itself, which its host answers: the
//! parameters are a token that permits the request, and the payload is a [`Request`] as JSON after
//! its length (u32, little-endian), followed by the module. The result is an [`Answer`] as JSON.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use remora::connection::token::Token;
use remora::kernel::builtin::{Builtin, Kind};
use remora::kernel::{
    Binding, Bound, CallFailure, CallStatus, DeployError, Deployment, Fallback, FallbackCall,
    Grant, LoadRefusal, Loader, ModuleLimits, Program, Tap, no_loader,
};
use remora::nic::{Access, CreateError};
use remora::{Device, MemoryRegion, ProtectionDomain, RegisterError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::beside::beside;
use super::client::RemoteRegion;
use super::start::NodeOptions;
use crate::failure::told;
use crate::foreign::parse_json;
use crate::thread::spawn_scoped;

/// The op-code by which kernels are loaded and unloaded. Higher op-codes belong to the node, too.
pub const MANAGE: u64 = 1 << 63;
/// The longest request in bytes, with its module.
pub const REQUEST_MAX: usize = 1 << 20;
/// The most kernels that a node runs.
pub const KERNELS_MAX: usize = 256;
/// The most regions that a kernel may be granted.
pub const GRANTS_MAX: usize = 8;
/// The length of the region that lists the kernels, in bytes.
pub(crate) const LIST_BYTES: u64 = 512 << 10;
/// The most modules that wait to be compiled; one more is refused.
const WAITING_MAX: usize = 4;
/// The longest name of a kernel, in bytes.
const NAME_MAX: usize = 64;
/// The distance of the addresses at which files are registered for kernels.
const FILE_SPAN: u64 = 1 << 48;
/// The longest answer, in bytes.
const ANSWER_MAX: usize = 16 << 10;

/// A request to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Load the module that follows, or a built-in kernel.
    Load(Load),
    /// Unload a kernel.
    Unload {
        /// Its op-code.
        opcode: u64,
    },
}

/// The kernel to load, and its limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Its op-code, below [`MANAGE`].
    pub opcode: u64,
    /// A name for people.
    pub name: String,
    /// Steps that an invocation may take.
    pub budget: u64,
    /// Bytes of memory that an instance may have.
    pub memory: u64,
    /// Replace the kernel that has the op-code.
    pub replace: bool,
    /// The regions it may use, and whether it may write them.
    pub grants: Vec<(String, bool)>,
    /// The name of a built-in kernel, to be loaded instead of a module.
    #[serde(default)]
    pub builtin: Option<String>,
    /// The region whose WRITEs pass through the kernel.
    #[serde(default)]
    pub tap: Option<String>,
}

/// A node's answer: the kernel that was loaded or unloaded, or the reason why not.
pub type Answer = Result<KernelRow, String>;

/// A kernel, as a node lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelRow {
    /// Its op-code.
    pub opcode: u64,
    /// Its name.
    pub name: String,
    /// Steps that an invocation may take.
    pub budget: u64,
    /// Bytes of memory that an instance may have; 0 for a built-in kernel.
    pub memory: u64,
    /// The regions it may use.
    pub grants: Vec<GrantRow>,
    /// The region whose WRITEs pass through it.
    pub tap: Option<TapRow>,
    /// Invocations so far.
    pub calls: u64,
    /// Invocations that ended with an error.
    pub failed: u64,
    /// Invocations in flight.
    pub running: u32,
}

/// A region that a kernel may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRow {
    /// Its name.
    pub region: String,
    /// Its first address, for use in parameters.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
    /// The kernel may also write it.
    pub writable: bool,
}

/// A region whose WRITEs pass through a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TapRow {
    /// Its name.
    pub region: String,
    /// Payloads that have passed through, one a packet as a rule.
    pub payloads: u64,
    /// The reason, if the kernel no longer sees them.
    pub stopped: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Error)]
enum Refusal {
    #[error(
        "this is not permitted: load kernels as the user and on the machine of the node, or show \
         its token for that, with --kernel-token or REMORA_KERNEL_TOKEN"
    )]
    Permit,
    #[error("the request is malformed")]
    Malformed,
    #[error("op-codes from {MANAGE:#x} on are the node's own")]
    Reserved,
    #[error("a name has 1 to {NAME_MAX} letters, digits, dots, dashes and underscores")]
    Name,
    #[error("a kernel may be granted at most {GRANTS_MAX} regions")]
    Grants,
    #[error("the node runs {KERNELS_MAX} kernels already: unload one")]
    Full,
    #[error("{WAITING_MAX} modules wait to be compiled already: try again in a few seconds")]
    Busy,
    #[error("the node cannot start a thread to compile the module: {0}")]
    Thread(#[from] io::Error),
    #[error(
        "the module was not compiled: the node is stopping, has no thread for it, or its compiler \
         failed"
    )]
    Unfinished,
    #[error("the node has no region `{0}`, or has withdrawn it")]
    Region(String),
    #[error("region `{0}` is read-only: the node serves it without ,rw")]
    ReadOnly(String),
    #[error("there is no built-in kernel `{0}`; choose one of {all}", all = served().join(", "))]
    Builtin(String),
    #[error(
        "the built-in kernel `{0}` is for calls: of those, only hyperloglog can be bound to a \
         region's WRITEs"
    )]
    NoTap(&'static str),
    #[error("cannot bind a kernel to the WRITEs of region `{0}`: it is read-only")]
    NoWrites(String),
    #[error("the WRITEs of region `{0}` pass another kernel already: unload or replace that one")]
    Tapped(String),
    #[error("cannot grant region `{name}` to a kernel that is bound to another region: {source}")]
    Register { name: String, source: RegisterError },
    #[error(transparent)]
    Module(LoadRefusal),
    #[error("{0}; --replace loads the new kernel in its place")]
    Taken(DeployError),
    #[error(transparent)]
    Deploy(#[from] DeployError),
}

/// A loaded kernel: what the node keeps of it beside the card's own state.
#[derive(Debug)]
struct Loaded {
    memory: u64,
    grants: Vec<GrantRow>,
    tapping: Option<Tapping>,
}

/// A kernel through which a region's WRITEs pass.
#[derive(Debug)]
struct Tapping {
    region: String,
    binding: Arc<Binding>,
    /// Regions granted to the kernel, registered in the protection domain of the region's clients.
    granted: Vec<(String, MemoryRegion)>,
}

impl Tapping {
    fn row(&self) -> TapRow {
        let info = self.binding.info();
        let stopped = info.stopped.map(|status| status.to_string());
        TapRow { region: self.region.clone(), payloads: info.payloads, stopped }
    }
}

/// Regions that are opened to a kernel in the protection domain to which it is bound.
struct Granted {
    keys: Vec<Grant>,
    /// They stay open as long as these handles live.
    kept: Vec<(String, MemoryRegion)>,
    to: Bound,
}

/// The code of a kernel.
struct Code {
    program: Box<dyn Program>,
    tap: Option<Box<dyn Tap>>,
    /// Bytes of memory that an instance may have.
    memory: u64,
}

/// A module that waits to be compiled, and the call that brought it.
struct Waiting {
    call: FallbackCall,
    load: Load,
    module: Vec<u8>,
}

/// What serves calls for the host.
struct Serving<'a> {
    fallback: &'a Fallback,
    stopped: &'a (dyn Fn() -> bool + Sync),
    /// Says that the list of kernels may have changed.
    changed: &'a (dyn Fn() + Sync),
}

impl Serving<'_> {
    fn answer(&self, call: &FallbackCall, answer: Result<KernelRow, Refusal>) {
        (self.changed)();
        let answer: Answer = answer.map_err(|refusal| refusal.to_string());
        match serde_json::to_vec(&answer) {
            Ok(text) => self.fallback.answer(call, CallStatus::OK, &text),
            Err(_) => self.fallback.answer(call, CallStatus::TRAP, &[]),
        }
    }
}

/// A region as kernels see it.
#[derive(Debug)]
struct Opened {
    region: MemoryRegion,
    /// The same region as its clients see it.
    served: MemoryRegion,
    writable: bool,
}

/// The kernels of a node.
#[derive(Debug)]
pub(crate) struct NodeKernels {
    device: Device,
    /// The protection domain of the queue pairs that call kernels.
    pd: ProtectionDomain,
    /// Each of these tokens permits loading.
    permits: Vec<Token>,
    loader: Loader,
    loaded: Mutex<BTreeMap<u64, Loaded>>,
    opened: Mutex<BTreeMap<String, Opened>>,
    files: AtomicU64,
    /// Requests that were refused for lack of a permit.
    pub(crate) refused: AtomicU64,
}

impl NodeKernels {
    pub(crate) fn new(
        device: &Device,
        pd: &ProtectionDomain,
        options: &NodeOptions,
    ) -> NodeKernels {
        NodeKernels {
            device: device.clone(),
            pd: pd.clone(),
            permits: options.permits.clone(),
            loader: options.loader.unwrap_or(no_loader),
            loaded: Mutex::default(),
            opened: Mutex::default(),
            files: AtomicU64::new(1),
            refused: AtomicU64::new(0),
        }
    }

    /// The kernels, as clients see them in the list.
    pub(crate) fn list(&self) -> Vec<KernelRow> {
        let loaded = lock(&self.loaded);
        let kernels = self.device.kernels().into_iter();
        kernels
            .filter_map(|info| {
                let Loaded { memory, grants, tapping } = loaded.get(&info.opcode)?;
                Some(KernelRow {
                    opcode: info.opcode,
                    name: info.name,
                    budget: info.budget,
                    memory: *memory,
                    grants: grants.clone(),
                    tap: tapping.as_ref().map(Tapping::row),
                    calls: info.calls,
                    failed: info.failed,
                    running: info.running,
                })
            })
            .collect()
    }

    /// Opens a region to kernels, or closes it (`None`), which makes their keys stale. For clients,
    /// a file's addresses begin at 0; for kernels, each file gets addresses of its own.
    pub(crate) fn open(&self, name: &str, region: Option<&MemoryRegion>, writable: bool) {
        let mut opened = lock(&self.opened);
        opened.remove(name);
        let Some(region) = region else {
            // (Loading takes the two locks in the other order.)
            drop(opened);
            return self.forget(name);
        };
        let iova = match region.buffer() {
            Some(_) => region.addr(),
            None => self.files.fetch_add(1, Ordering::Relaxed) * FILE_SPAN,
        };
        let access = if writable { Access::LOCAL_WRITE } else { Access::empty() };
        match region.register_in(&self.pd, iova, access) {
            Ok(own) => {
                let served = region.clone();
                opened.insert(name.to_owned(), Opened { region: own, served, writable });
            }
            Err(error) => tracing::warn!(%error, region = name, "kernels cannot be granted it"),
        }
    }

    /// Withdraws a region from kernels that are bound to other regions, and unbinds those bound to
    /// it.
    fn forget(&self, name: &str) {
        for kernel in lock(&self.loaded).values_mut() {
            kernel.tapping.take_if(|tapping| tapping.region == name);
            if let Some(tapping) = &mut kernel.tapping {
                tapping.granted.retain(|(granted, _)| granted != name);
            }
        }
    }

    /// From now on calls for the host wait until [`NodeKernels::serve`] answers them.
    pub(crate) fn calls(&self) -> Fallback {
        self.device.serve_fallback()
    }

    /// Answers calls for the host until told to stop; calls `changed` after each change. Modules
    /// are compiled one at a time, while other calls are answered.
    pub(crate) fn serve(
        &self,
        fallback: &Fallback,
        stopped: &(dyn Fn() -> bool + Sync),
        changed: &(dyn Fn() + Sync),
    ) {
        let serving = Serving { fallback, stopped, changed };
        let (modules, waiting) = mpsc::sync_channel(WAITING_MAX);
        thread::scope(|scope| {
            let load = || self.load_modules(waiting, &serving);
            if let Err(error) = spawn_scoped(scope, "loader", load) {
                tracing::error!("modules cannot be loaded: {}", told(&error));
            }
            self.answer_calls(&serving, modules);
        });
    }

    fn answer_calls(&self, serving: &Serving<'_>, modules: SyncSender<Waiting>) {
        while !(serving.stopped)() {
            let Some(call) = serving.fallback.next(Duration::from_millis(100)) else { continue };
            if call.opcode != MANAGE {
                serving.fallback.answer(&call, CallStatus::NO_KERNEL, &[]);
                continue;
            }
            let row = match self.request(&call) {
                Ok((Request::Load(load), module)) if load.builtin.is_none() => {
                    let module = module.to_vec();
                    match modules.try_send(Waiting { call, load, module }) {
                        Ok(()) => {}
                        Err(TrySendError::Full(Waiting { call, .. })) => {
                            serving.answer(&call, Err(Refusal::Busy));
                        }
                        Err(TrySendError::Disconnected(Waiting { call, .. })) => {
                            serving.answer(&call, Err(Refusal::Unfinished));
                        }
                    }
                    continue;
                }
                Ok((Request::Load(load), _)) => self.load(&load, || built_in(&load)),
                Ok((Request::Unload { opcode }, _)) => self.unload(opcode),
                Err(refusal) => Err(refusal),
            };
            serving.answer(&call, row);
        }
    }

    /// Loads modules, in their order, until told to stop.
    fn load_modules(&self, waiting: Receiver<Waiting>, serving: &Serving<'_>) {
        for Waiting { call, load, module } in waiting {
            if (serving.stopped)() {
                return;
            }
            let row = self.load(&load, || compiled(self.loader, &load, module, serving.stopped));
            serving.answer(&call, row);
        }
    }

    /// What a call asks for, and the module that comes with it.
    fn request<'a>(&self, call: &'a FallbackCall) -> Result<(Request, &'a [u8]), Refusal> {
        let shown = call.params.first_chunk().and_then(|bytes| Token::new(*bytes));
        // (Compares with all of them, so that the time does not tell how many match.)
        let permits = self.permits.iter().filter(|token| token.matches(shown.as_ref())).count();
        if permits == 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::Permit);
        }
        parse(&call.payload).ok_or(Refusal::Malformed)
    }

    fn unload(&self, opcode: u64) -> Result<KernelRow, Refusal> {
        let row = self.list().into_iter().find(|row| row.opcode == opcode);
        let row = row.ok_or(DeployError::Unknown(opcode))?;
        // Held throughout, as by a load, so that a load that follows at once is not forgotten.
        let mut loaded = lock(&self.loaded);
        self.device.undeploy(opcode)?;
        loaded.remove(&opcode);
        Ok(row)
    }

    fn load(
        &self,
        load: &Load,
        code: impl FnOnce() -> Result<Code, Refusal>,
    ) -> Result<KernelRow, Refusal> {
        judge(load)?;
        let opcode = load.opcode;
        let (grants, rows) = self.grants(&load.grants)?;
        let Code { program, tap, memory } = code()?;
        let deployment = Deployment::new(&load.name, grants).budget(load.budget);
        let mut loaded = lock(&self.loaded);
        let old = loaded.get(&opcode).filter(|_| load.replace);
        if old.is_none() {
            self.admit(&loaded, opcode)?;
        }
        // Binding may be refused, so it comes before deploying, which will not be; but it replaces
        // another binding only at the end.
        let mut tapping = None;
        let mut in_place = None;
        if let (Some(region), Some(tap)) = (&load.tap, tap) {
            let Granted { keys, kept, to } = self.grants_at(region, &rows)?;
            let there = old.and_then(|old| old.tapping.as_ref()).filter(|t| t.region == *region);
            let binding = if let Some(there) = there {
                in_place = Some((keys, tap));
                there.binding.clone()
            } else {
                let bound = self.device.bind_kernel(to, keys, tap);
                Arc::new(bound.map_err(|_| Refusal::Tapped(region.clone()))?)
            };
            tapping = Some(Tapping { region: region.clone(), binding, granted: kept });
        }
        if old.is_some() {
            self.device.replace_kernel(opcode, deployment, program)?;
        } else {
            self.device.deploy_program(opcode, deployment, program)?;
        }
        if let (Some(tapping), Some((keys, tap))) = (&tapping, in_place) {
            tapping.binding.replace(keys, tap);
        }
        loaded.insert(opcode, Loaded { memory, grants: rows, tapping });
        drop(loaded);
        let row = self.list().into_iter().find(|row| row.opcode == opcode);
        row.ok_or(Refusal::Deploy(DeployError::Unknown(opcode)))
    }

    /// Is there room for another kernel, and is its op-code free? What is bound to a region sees
    /// WRITEs at once, so this is asked before.
    fn admit(&self, loaded: &BTreeMap<u64, Loaded>, opcode: u64) -> Result<(), Refusal> {
        if loaded.len() >= KERNELS_MAX {
            return Err(Refusal::Full);
        }
        match self.device.kernels().iter().any(|kernel| kernel.opcode == opcode) {
            true => Err(Refusal::Taken(DeployError::Taken(opcode))),
            false => Ok(()),
        }
    }

    /// Registers the granted regions in the protection domain of the clients of `region`, at the
    /// same addresses.
    fn grants_at(&self, region: &str, grants: &[GrantRow]) -> Result<Granted, Refusal> {
        let opened = lock(&self.opened);
        let find = |name: &str| opened.get(name).ok_or_else(|| Refusal::Region(name.into()));
        let Opened { served, writable, .. } = find(region)?;
        if !writable {
            return Err(Refusal::NoWrites(region.into()));
        }
        let to = Bound::Region(served.key());
        let mut granted = Granted { keys: Vec::new(), kept: Vec::new(), to };
        for GrantRow { region: name, addr, writable: write, .. } in grants {
            let access = if *write { Access::LOCAL_WRITE } else { Access::empty() };
            let own = find(name)?.region.register_in(served.domain(), *addr, access);
            let own = own.map_err(|source| Refusal::Register { name: name.clone(), source })?;
            granted.keys.push(Grant { key: own.key(), write: *write });
            granted.kept.push((name.clone(), own));
        }
        Ok(granted)
    }

    /// The grants, for the card and for the list.
    fn grants(&self, wanted: &[(String, bool)]) -> Result<(Vec<Grant>, Vec<GrantRow>), Refusal> {
        let opened = lock(&self.opened);
        let grant = |(name, write): (String, bool)| {
            let Some(Opened { region, writable, .. }) = opened.get(&name) else {
                return Err(Refusal::Region(name));
            };
            if write && !writable {
                return Err(Refusal::ReadOnly(name));
            }
            let grant = Grant { key: region.key(), write };
            let (addr, bytes) = (region.addr(), region.len());
            Ok((grant, GrantRow { region: name, addr, bytes, writable: write }))
        };
        wanted.iter().cloned().map(grant).collect()
    }
}

/// The built-in kernels that a node serves: all but those that send on behalf of their host.
pub fn served() -> Vec<&'static str> {
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::ShuffleSend);
    kinds.map(Kind::name).collect()
}

/// The code of a built-in kernel, with a tap if it is to be bound.
fn built_in(Load { builtin, tap, .. }: &Load) -> Result<Code, Refusal> {
    let name = builtin.as_deref().unwrap_or_default();
    let kind = Kind::named(name).filter(|kind| served().contains(&kind.name()));
    let kind = kind.ok_or_else(|| Refusal::Builtin(name.into()))?;
    let shared = Builtin::new();
    // (A histogram belongs to the queue pair that it came by, and a region's clients call no
    // kernels.)
    let offered = || shared.tap(kind).filter(|_| kind != Kind::Shuffle);
    let tap = match tap {
        Some(_) => Some(offered().ok_or(Refusal::NoTap(kind.name()))?),
        None => None,
    };
    Ok(Code { program: shared.program(kind), tap, memory: 0 })
}

/// The code of a module, with a tap if it is to be bound.
fn compiled(
    loader: Loader,
    load: &Load,
    module: Vec<u8>,
    stopped: &dyn Fn() -> bool,
) -> Result<Code, Refusal> {
    let (budget, tapped) = (load.budget, load.tap.is_some());
    let memory = usize::try_from(load.memory).unwrap_or(usize::MAX);
    let compile = move || {
        let limits = ModuleLimits { memory, ..ModuleLimits::default() };
        let module = loader(&module, limits, None)?;
        let tap = tapped.then(|| module.tap(budget)).transpose()?;
        Ok((module, tap))
    };
    let made = beside("compiler", stopped, compile)?.ok_or(Refusal::Unfinished)?;
    let (module, tap) = made.map_err(Refusal::Module)?;
    let memory = module.limits().memory as u64;
    Ok(Code { program: module.program(), tap, memory })
}

fn judge(Load { opcode, name, grants, .. }: &Load) -> Result<(), Refusal> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if *opcode >= MANAGE {
        return Err(Refusal::Reserved);
    }
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(fits) {
        return Err(Refusal::Name);
    }
    if grants.len() > GRANTS_MAX { Err(Refusal::Grants) } else { Ok(()) }
}

/// Splits a request into what is asked and the module.
fn parse(bytes: &[u8]) -> Option<(Request, &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (text, module) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((serde_json::from_slice(text).ok()?, module))
}

/// A request's bytes.
fn emit(request: &Request, module: &[u8]) -> Result<Vec<u8>, ManageError> {
    let text = serde_json::to_vec(request).map_err(ManageError::Request)?;
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    let bytes = [&len, &text[..], module].concat();
    if bytes.len() > REQUEST_MAX { Err(ManageError::TooLong(module.len())) } else { Ok(bytes) }
}

/// The lists are still whole if a thread has panicked with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// --- the client's side -------------------------------------------------------------------------

/// Why a kernel was not loaded or unloaded.
#[derive(Debug, Error)]
pub enum ManageError {
    /// The module is too long.
    #[error("the module has {0} bytes; a node takes less than {REQUEST_MAX}")]
    TooLong(usize),
    /// The request cannot be written as JSON.
    #[error("cannot write the request as JSON: {0}")]
    Request(serde_json::Error),
    /// The answer is not what a node answers.
    #[error("the node does not answer as it should (is it of another version?): {0}")]
    Answer(String),
    /// The memory of the call cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// The card has no room.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The node refuses.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// The card has no kernel for the request, and does not hand it to the node.
    #[error(
        "the node takes no kernels: its card is that of another process (`remora nic`), which does \
         not hand it such requests; start the node with a card of its own: REMORA_NIC=off remora \
         node …"
    )]
    Elsewhere,
}

/// Sends a request, with a token that permits it, to the node whose `@kernels` region this is.
///
/// # Errors
/// See [`ManageError`].
pub fn manage(
    region: &RemoteRegion,
    permit: Option<Token>,
    request: &Request,
    module: &[u8],
) -> Result<KernelRow, ManageError> {
    let bytes = emit(request, module)?;
    let payload = region.pd().alloc(bytes.len(), Access::LOCAL_WRITE)?;
    payload.write_at(0, &bytes).map_err(CallFailure::Room)?;
    let mut client = region.kernels(ANSWER_MAX)?;
    // Compiling a module may take long.
    client.timeout = Duration::from_secs(60);
    let shown = permit.map_or([0; 16], |token| token.to_bytes());
    let mut answer = Vec::new();
    let payload = payload.sge(0, bytes.len() as u32);
    client.call_with(MANAGE, &shown, payload, &mut answer).map_err(|failure| match failure {
        CallFailure::Status(CallStatus::NO_KERNEL) => ManageError::Elsewhere,
        failure => failure.into(),
    })?;
    let answer: Answer = parse_json(&answer).map_err(ManageError::Answer)?;
    answer.map_err(ManageError::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(opcode: u64, name: &str, grants: usize) -> Load {
        let (name, grants) = (name.to_owned(), vec![("data".to_owned(), true); grants]);
        let (replace, builtin, tap) = (false, None, Some("stream".to_owned()));
        Load { opcode, name, budget: 1, memory: 2, replace, grants, builtin, tap }
    }

    #[test]
    fn requests_survive_emit_and_parse_and_nonsense_is_refused() {
        let load = Request::Load(load(7, "get", 1));
        let bytes = emit(&load, b"module").unwrap();
        assert_eq!(parse(&bytes), Some((load.clone(), &b"module"[..])));
        for len in 0..bytes.len() - 6 {
            assert_eq!(parse(&bytes[..len]), None, "{len}");
        }
        let mut wrong = bytes;
        wrong[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(parse(&wrong), None);
        assert!(matches!(emit(&load, &[0; REQUEST_MAX]), Err(ManageError::TooLong(_))));
    }

    #[test]
    fn names_op_codes_and_grants_are_checked() {
        assert!(judge(&load(1, "get.v2", 8)).is_ok());
        for (opcode, name, grants) in
            [(MANAGE, "get", 0), (1, "", 0), (1, "a b", 0), (1, "a\x1b", 0), (1, "get", 9)]
        {
            assert!(judge(&load(opcode, name, grants)).is_err(), "{opcode} {name:?} {grants}");
        }
    }
}
