//! Kernels of clients: built-in ones, and WebAssembly modules that clients send.
//!
//! A session's kernels answer calls that come by its own queue pairs, under op-codes of its own,
//! and use regions of the protection domains of those. Compiling a module takes up to seconds. So
//! another thread does it, one module at a time, and the client that has sent it is not served
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use remora_nic::kernel::Bound;
use remora_nic::nic::BindError;

use super::client_of;
use super::objects::Ask;
use super::server::Server;
use crate::commands::Commands;
use crate::driver::Own;
use crate::event::Event;
use crate::kernel::builtin::{Builtin, Kind};
use crate::kernel::{DeployError, Deployment, Grant, Program, Tap};
use crate::memory::{Buffer, memfd};
use crate::message::{
    Code, GRANTS_MAX, KERNEL_NAME_MAX, KernelAnswer, KernelRequest, KernelRow, Object,
};
use crate::threads::without_signals;

/// The longest module, in bytes.
const MODULE_MAX: u64 = 1 << 20;
/// Kernels in one answer.
const PAGE: usize = 16;

type Refusal = String;

/// What runs on the card for a session.
#[derive(Debug, Default)]
pub(crate) struct SessionKernels {
    opcodes: BTreeSet<u64>,
    /// What is bound to streams, by the card's numbers.
    pub(super) taps: BTreeMap<u32, Bound>,
    /// What the session's built-in kernels share.
    builtin: Option<Builtin>,
}

/// Code that is ready to run.
enum Built {
    Program(Box<dyn Program>),
    Tap(Box<dyn Tap>),
}

/// A module to be compiled, for a request of a client.
struct Job {
    client: u32,
    request: KernelRequest,
    module: Vec<u8>,
}

/// The thread that compiles.
#[derive(Debug)]
pub(super) struct Compiler {
    waiting: VecDeque<Job>,
    is_busy: bool,
    sender: Sender<(Job, Result<Built, Refusal>)>,
    done: Receiver<(Job, Result<Built, Refusal>)>,
    /// Notified when something is done.
    pub(super) event: Arc<Event>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Compiler {
    pub(super) fn new() -> io::Result<Compiler> {
        let (sender, done) = mpsc::channel();
        let event = Arc::new(Event::new()?);
        Ok(Compiler { waiting: VecDeque::new(), is_busy: false, sender, done, event })
    }

    /// Begins with the next job, if none is under way.
    fn go_on(&mut self) {
        while !self.is_busy {
            let Some(job) = self.waiting.pop_front() else { return };
            let (sender, event) = (self.sender.clone(), Arc::clone(&self.event));
            let run = move || {
                let built = build(&job.request, &job.module);
                sender.send((job, built)).ok();
                crate::event::wake(&event);
            };
            let thread = std::thread::Builder::new().name("remora-compile".into());
            match without_signals(|| thread.spawn(run)) {
                Ok(_) => self.is_busy = true,
                // The job went with the closure; its client hears nothing, and can be ended.
                Err(error) => tracing::error!(%error, "no thread to compile a module"),
            }
        }
    }
}

/// Compiles a module.
#[cfg(feature = "wasm")]
fn build(request: &KernelRequest, module: &[u8]) -> Result<Built, Refusal> {
    use crate::kernel::wasm::{Module, ModuleLimits};
    let limits = |code: &Code| match *code {
        Code::Module { memory, table, instances } => {
            let usual = ModuleLimits::default();
            let at_most = |wish: u64, most: usize| usize::try_from(wish).unwrap_or(most).min(most);
            Some(ModuleLimits {
                memory: at_most(memory, 16 << 20),
                table: at_most(table, usual.table),
                instances: at_most(instances, usual.instances),
            })
        }
        Code::Builtin(_) => None,
    };
    let load = |code| {
        let limits = limits(code).ok_or_else(|| "this is no module".to_owned())?;
        Module::load_with(module, limits).map_err(|error| error.to_string())
    };
    match request {
        KernelRequest::Deploy { code, .. } => Ok(Built::Program(Box::new(load(code)?.program()))),
        KernelRequest::Bind { code, budget, .. } => {
            let tap = load(code)?.tap(*budget).map_err(|error| error.to_string())?;
            Ok(Built::Tap(Box::new(tap)))
        }
        _ => Err("this request has no module".into()),
    }
}

#[cfg(not(feature = "wasm"))]
fn build(_: &KernelRequest, _: &[u8]) -> Result<Built, Refusal> {
    Err("the daemon was built without kernels that are loaded".into())
}

impl Server {
    /// Carries a request out; `None` if its answer comes later.
    pub(super) fn kernel(
        &mut self,
        client: u32,
        request: KernelRequest,
        with: Vec<OwnedFd>,
    ) -> Option<Result<KernelAnswer, Refusal>> {
        let code = match &request {
            KernelRequest::Deploy { code, name, grants, .. } => {
                if name.len() > KERNEL_NAME_MAX || grants.len() > GRANTS_MAX {
                    return Some(Err(format!(
                        "a kernel has a name of {KERNEL_NAME_MAX} bytes and {GRANTS_MAX} regions \
                         at most"
                    )));
                }
                code
            }
            KernelRequest::Bind { code, grants, .. } if grants.len() <= GRANTS_MAX => code,
            KernelRequest::Bind { .. } => {
                return Some(Err(format!("a kernel has {GRANTS_MAX} regions at most")));
            }
            _ => {
                let done = self.with(client, |driver, slot| ask(driver, slot, &request));
                return Some(done.ok_or_else(|| "the client has no session".into()));
            }
        };
        match code {
            Code::Builtin(name) => {
                let name = name.clone();
                let done = self.with(client, |driver, slot| {
                    let built = builtin(driver, slot, &name, &request)?;
                    Ok(install(driver, slot, &request, built))
                });
                Some(done.unwrap_or_else(|| Err("the client has no session".into())))
            }
            Code::Module { .. } => match module_bytes(with) {
                Ok(module) => {
                    self.compiler.waiting.push_back(Job { client, request, module });
                    self.pause(client);
                    self.compiler.go_on();
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
        }
    }

    /// Answers those whose modules are compiled.
    pub(super) fn answer_compiled(&mut self) {
        self.compiler.event.drain().ok();
        while let Ok((job, built)) = self.compiler.done.try_recv() {
            self.compiler.is_busy = false;
            let Job { client, request, .. } = job;
            let done = self.with(client, |driver, slot| {
                built.map(|built| install(driver, slot, &request, built))
            });
            self.go_on_with(client, done.unwrap_or_else(|| Err("the session has ended".into())));
        }
        self.compiler.go_on();
    }
}

/// The bytes of a module, which lie in a memory file.
fn module_bytes(with: Vec<OwnedFd>) -> Result<Vec<u8>, Refusal> {
    let [file] = <[OwnedFd; 1]>::try_from(with).map_err(|_| "a module is one memory file")?;
    let len = memfd::len_of(&file).map_err(|error| error.to_string())?;
    if !(1..=MODULE_MAX).contains(&len) {
        return Err(format!("a module has 1 to {MODULE_MAX} bytes"));
    }
    let memory = Buffer::map(file.as_fd(), 0, len as usize).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; len as usize];
    memory.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// A built-in kernel.
fn builtin(
    driver: &mut Own,
    slot: u16,
    name: &str,
    request: &KernelRequest,
) -> Result<Built, Refusal> {
    let kind = Kind::named(name).ok_or_else(|| format!("there is no built-in kernel {name}"))?;
    let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
    let of = of.ok_or("the session has ended")?;
    let shared = of.kernels.builtin.get_or_insert_with(Builtin::new);
    match request {
        KernelRequest::Bind { .. } => {
            let tap = shared.tap(kind);
            Ok(Built::Tap(tap.ok_or_else(|| format!("{name} cannot be bound to a stream"))?))
        }
        _ => Ok(Built::Program(shared.program(kind))),
    }
}

fn grants(list: &[(u32, bool)]) -> Vec<Grant> {
    list.iter().map(|&(key, write)| Grant { key, write }).collect()
}

/// Has code run.
fn install(driver: &mut Own, slot: u16, request: &KernelRequest, built: Built) -> KernelAnswer {
    match (request, built) {
        (
            KernelRequest::Deploy { opcode, replace, name, budget, grants: list, .. },
            Built::Program(program),
        ) => {
            let deployment = Deployment::new(name.clone(), grants(list)).budget(*budget);
            deploy(driver, slot, (*opcode, *replace), (deployment, program))
        }
        (KernelRequest::Bind { to, grants: list, .. }, Built::Tap(tap)) => {
            bind(driver, slot, *to, (grants(list), tap))
        }
        _ => KernelAnswer::Unknown,
    }
}

fn deploy(
    driver: &mut Own,
    slot: u16,
    (opcode, replace): (u64, bool),
    (deployment, program): (Deployment, Box<dyn Program>),
) -> KernelAnswer {
    let at = (client_of(slot), opcode);
    if !replace && let Err(limit) = admits(driver, slot) {
        return KernelAnswer::Full(limit as u64);
    }
    let deployed = driver.kernels(|kernels, _| match replace {
        true => kernels.replace_for(at, deployment, program),
        false => kernels.deploy_for(at, deployment, program),
    });
    if let Err(error) = deployed {
        return refusal(error);
    }
    let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
    if let Some(of) = of
        && of.kernels.opcodes.insert(opcode)
    {
        of.usage.kernels += 1;
    }
    KernelAnswer::Done
}

fn bind(
    driver: &mut Own,
    slot: u16,
    to: Bound,
    (grants, tap): (Vec<Grant>, Box<dyn Tap>),
) -> KernelAnswer {
    let object = match to {
        Bound::Receive(qpn) | Bound::Send(qpn) => Object::Qp(qpn),
        Bound::Region(key) => Object::Mr(key),
    };
    let owner = driver.engine.as_deref().and_then(|engine| engine.objects.owner(object));
    if owner != Some(slot) {
        return KernelAnswer::Bind(BindError::Unknown);
    }
    if let Err(limit) = admits(driver, slot) {
        return KernelAnswer::Full(limit as u64);
    }
    let number = driver.kernels(|kernels, _| kernels.add_tap(grants, tap));
    if let Err(error) = driver.bind_kernel(to, number) {
        driver.kernels(|kernels, _| kernels.remove_tap(number));
        return KernelAnswer::Bind(error);
    }
    if let Some(of) = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot)) {
        of.kernels.taps.insert(number, to);
        of.usage.kernels += 1;
    }
    KernelAnswer::Number(number)
}

fn admits(driver: &mut Own, slot: u16) -> Result<(), usize> {
    driver.engine.as_deref_mut().map_or(Err(0), |engine| engine.admits(slot, Ask::Other))
}

fn refusal(error: DeployError) -> KernelAnswer {
    match error {
        DeployError::Taken(_) => KernelAnswer::Taken,
        DeployError::Full(limit) => KernelAnswer::Full(limit as u64),
        DeployError::Unknown(_) | DeployError::Elsewhere => KernelAnswer::Unknown,
    }
}

/// Requests without code.
fn ask(driver: &mut Own, slot: u16, request: &KernelRequest) -> KernelAnswer {
    let client = client_of(slot);
    match *request {
        KernelRequest::Undeploy(opcode) => {
            let at = (client, opcode);
            if let Err(error) = driver.kernels(|kernels, io| kernels.undeploy_for(io, at)) {
                return refusal(error);
            }
            let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
            if let Some(of) = of
                && of.kernels.opcodes.remove(&opcode)
            {
                of.usage.kernels -= 1;
            }
            KernelAnswer::Done
        }
        KernelRequest::List(from) => {
            let all = driver.kernels(|kernels, _| kernels.list_of(client));
            let mut rows = all.into_iter().filter(|info| info.opcode >= from);
            let kernels = rows.by_ref().take(PAGE).map(|info| KernelRow {
                opcode: info.opcode,
                name: info.name,
                grants: info.grants.iter().map(|grant| (grant.key, grant.write)).collect(),
                budget: info.budget,
                calls: info.calls,
                failed: info.failed,
                running: info.running,
            });
            KernelAnswer::List { kernels: kernels.collect(), more: rows.next().is_some() }
        }
        KernelRequest::Unbind(number) => {
            let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
            let Some((of, to)) =
                of.and_then(|of| of.kernels.taps.remove(&number).map(|to| (of, to)))
            else {
                return KernelAnswer::Unknown;
            };
            of.usage.kernels -= 1;
            remove_tap(driver, number, to);
            KernelAnswer::Done
        }
        KernelRequest::Tap(number) => {
            let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
            let is_own = of.is_some_and(|of| of.kernels.taps.contains_key(&number));
            match driver.kernels(|kernels, _| kernels.tap(number)).filter(|_| is_own) {
                Some(info) => KernelAnswer::Tap {
                    payloads: info.payloads,
                    stopped: info.stopped.map(|status| status.0),
                },
                None => KernelAnswer::Unknown,
            }
        }
        KernelRequest::Deploy { .. } | KernelRequest::Bind { .. } => KernelAnswer::Unknown,
    }
}

/// Ends a binding. That of its stream may have ended before, and another may be there now.
fn remove_tap(driver: &mut Own, number: u32, to: Bound) {
    if driver.bound_kernel(to) == Some(number) {
        driver.unbind_kernel(to).ok();
    }
    driver.kernels(|kernels, _| kernels.remove_tap(number));
}

/// The session ends: nothing runs for it any more.
pub(super) fn end(driver: &mut Own, slot: u16) {
    let of = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
    let Some(of) = of else { return };
    let SessionKernels { opcodes, taps, .. } = std::mem::take(&mut of.kernels);
    of.usage.kernels = 0;
    for opcode in opcodes {
        let at = (client_of(slot), opcode);
        let ended = driver.kernels(|kernels, io| kernels.undeploy_for(io, at));
        if let Err(error) = ended {
            tracing::error!(%error, "a kernel of a session that ends");
        }
    }
    for (number, to) in taps {
        remove_tap(driver, number, to);
    }
}
