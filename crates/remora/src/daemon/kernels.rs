//! Kernels of clients: built-in ones, and WebAssembly modules that clients send.
//!
//! A session's kernels answer calls that come by its own queue pairs, under op-codes of its own,
//! and use regions of the protection domains of those. Compiling a module takes up to seconds. So
//! another thread does it, one module at a time, and the client that has sent it is not served
//! meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use remora_nic::kernel::Bound;
use remora_nic::nic::BindError;

use super::answers::NO_SESSION;
use super::compiler::{Built, Compiled, Customer, Job, Source};
use super::ending::remove_tap;
use super::kernel_file::MODULE_MAX;
use super::objects::Ask;
use super::running::{Deployed, client_of};
use super::server::Server;
use crate::commands::Commands;
use crate::driver::Own;
use crate::kernel::builtin::{Builtin, Kind};
use crate::kernel::{DeployError, Deployment, Grant, MemoryShare, Program, Tap};
use crate::memory::{Buffer, memfd};
use crate::message::{
    Code, GRANTS_MAX, KERNEL_NAME_MAX, KernelAnswer, KernelRequest, KernelRow, Object,
};

/// Kernels in one answer.
const PAGE: usize = 16;

/// The most modules of a session that wait to be compiled.
const WAITING_MAX: usize = 16;

type Refusal = String;
/// What becomes of a request.
type KernelDone = Result<KernelAnswer, Refusal>;

impl Server {
    /// Carries a request out; `None` if its answer comes later.
    pub(super) fn kernel(
        &mut self,
        client: u32,
        request: KernelRequest,
        with: Vec<OwnedFd>,
    ) -> Option<KernelDone> {
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
                let done = match (&request, self.held(client)) {
                    // One that has no room to run may still be stored.
                    (KernelRequest::Undeploy(opcode), Some(session))
                        if self.unstore_kernel(session, *opcode) =>
                    {
                        done.map(|_| KernelAnswer::Done)
                    }
                    _ => done,
                };
                return Some(done.ok_or_else(|| NO_SESSION.into()));
            }
        };
        match code {
            Code::Builtin(name) => {
                let Some(session) = self.held(client) else {
                    return Some(Err(NO_SESSION.into()));
                };
                let built = self.builtin(session, name, &request);
                let module = Vec::new();
                Some(
                    built.and_then(|built| {
                        self.run_for(session, Compiled { request, module, built })
                    }),
                )
            }
            Code::Module { .. } => match self.admit_module(client, &request, with) {
                Ok((module, share)) => {
                    self.compile(client, Source::Sent(request, module), share);
                    None
                }
                Err(done) => Some(done),
            },
        }
    }

    /// Has a client's module compiled when it is its user's turn. The client waits.
    fn compile(&mut self, client: u32, source: Source, share: Arc<MemoryShare>) {
        let uid = self.clients.get(client).map_or(u32::MAX, |client| client.uid);
        let customer = Customer::Client(client);
        self.compiler.waiting.add(uid, Job { customer, source, share });
        self.pause(client);
        self.compiler.go_on();
    }

    /// A client's module, and what its instances have memory of, if there is room for it. That is
    /// asked again when it is compiled; but what has none is not worth a compiler's time.
    fn admit_module(
        &mut self,
        client: u32,
        request: &KernelRequest,
        with: Vec<OwnedFd>,
    ) -> Result<(Vec<u8>, Arc<MemoryShare>), KernelDone> {
        let no_session = || Err(NO_SESSION.into());
        let session = self.held(client).ok_or_else(no_session)?;
        let waits = |job: &Job| match job.customer {
            Customer::Client(other) => Some(other),
            Customer::Restored(..) => None,
        };
        let waiting: Vec<u32> = self.compiler.waiting.jobs().filter_map(waits).collect();
        let of_session = waiting.into_iter().filter(|other| self.held(*other) == Some(session));
        if of_session.count() >= WAITING_MAX {
            let words = format!("{WAITING_MAX} modules of the session wait to be compiled already");
            return Err(Err(words));
        }
        let module = module_bytes(with).map_err(Err)?;
        let room = |driver: &mut Own, slot| room(driver, slot, request, module.len() as u64);
        self.with_session(session, room).ok_or_else(no_session)??;
        let share = self.instances(session).ok_or_else(no_session)?;
        Ok((module, share))
    }

    /// What the instances of a session's modules have of the memory of all the user's.
    pub(super) fn instances(&mut self, session: u32) -> Option<Arc<MemoryShare>> {
        let uid = self.sessions.get(&session)?.uid;
        let rule = self.policy.rule(uid);
        let bytes = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let (of_user, most) = (bytes(rule.kernel_memory_bytes), bytes(rule.quotas.memory_bytes));
        let mut mine = self.sessions.values().filter(|held| held.uid == uid);
        let whole = mine.find_map(|held| held.instances.as_ref()?.whole().cloned());
        let whole = whole.unwrap_or_else(|| Arc::new(MemoryShare::new(of_user)));
        let held = self.sessions.get_mut(&session)?;
        let share = || Arc::new(MemoryShare::of(whole, most));
        Some(held.instances.get_or_insert_with(share).clone())
    }

    /// Has code of a client run; it outlives the daemon from then on, if the session does.
    fn run_for(&mut self, session: u32, compiled: Compiled) -> KernelDone {
        let Compiled { request, module, built } = compiled;
        let code = (built, module.len() as u64);
        let act = |driver: &mut Own, slot| install(driver, slot, &request, code);
        let answer = self.with_session(session, act).ok_or(NO_SESSION)??;
        if answer == KernelAnswer::Done {
            self.store_kernel(session, request, &module);
        }
        Ok(answer)
    }

    /// A built-in kernel. Those of a session share what they keep.
    pub(super) fn builtin(
        &mut self,
        session: u32,
        name: &str,
        request: &KernelRequest,
    ) -> Result<Built, Refusal> {
        let kind = Kind::named(name);
        let kind = kind.ok_or_else(|| format!("there is no built-in kernel {name}"))?;
        let held = self.sessions.get_mut(&session).ok_or(NO_SESSION)?;
        let shared = held.builtin.get_or_insert_with(Builtin::new);
        match request {
            KernelRequest::Bind { .. } => {
                let tap = shared.tap(kind);
                Ok(Built::Tap(tap.ok_or_else(|| kind.unbindable())?))
            }
            _ => Ok(Built::Program(shared.program(kind))),
        }
    }

    /// Answers those whose modules are compiled.
    pub(super) fn answer_compiled(&mut self) {
        self.compiler.event.drain().ok();
        while let Ok((customer, compiled)) = self.compiler.done.try_recv() {
            self.compiler.is_busy = false;
            match customer {
                Customer::Client(client) => {
                    let session = self.held(client).ok_or_else(|| "the session has ended".into());
                    let done = session.and_then(|of| self.run_for(of, compiled?));
                    self.go_on_with(client, done);
                }
                Customer::Restored(session, part) => {
                    self.run_restored((session, part), compiled);
                }
            }
        }
        self.compiler.go_on();
    }
}

/// The bytes of a module, which lie in a memory file.
fn module_bytes(with: Vec<OwnedFd>) -> Result<Vec<u8>, Refusal> {
    let [file] = <[OwnedFd; 1]>::try_from(with).map_err(|_| "a module is one memory file")?;
    let len = memfd::sealed_len(file.as_fd()).map_err(|error| error.to_string())?;
    if !(1..=MODULE_MAX).contains(&len) {
        return Err(format!("a module has 1 to {MODULE_MAX} bytes"));
    }
    let memory =
        Buffer::map_only(file.as_fd(), 0, len as usize).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; len as usize];
    memory.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn grants(list: &[(u32, bool)]) -> Vec<Grant> {
    list.iter().map(|&(key, write)| Grant { key, write }).collect()
}

/// Has code run, whose module has so many bytes.
pub(super) fn install(
    driver: &mut Own,
    slot: u16,
    request: &KernelRequest,
    (built, module_bytes): (Built, u64),
) -> KernelDone {
    match (request, built) {
        (
            KernelRequest::Deploy { opcode, replace, name, budget, grants: list, .. },
            Built::Program(program),
        ) => {
            let most = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot));
            let steps = most.map_or(0, |of| of.user.kernel_steps).min(*budget);
            let deployment = Deployment::new(name.clone(), grants(list)).budget(steps);
            let code = (deployment, program, module_bytes);
            deploy(driver, slot, (*opcode, *replace), code)
        }
        (KernelRequest::Bind { to, grants: list, .. }, Built::Tap(tap)) => {
            bind(driver, slot, *to, (grants(list), tap, module_bytes))
        }
        _ => Ok(KernelAnswer::Unknown),
    }
}

/// Keeps an op-code, and room for a module of so many bytes, for a kernel that another daemon has
/// left, until it runs in the place that it replaces.
pub(super) fn wait(
    driver: &mut Own,
    slot: u16,
    opcode: u64,
    module_bytes: u64,
) -> Result<(), Refusal> {
    if let Err(limit) = room_for_another(driver, slot) {
        return Err(format!("there is no room for more than {limit} kernels"));
    }
    room_for_module(driver, slot, module_bytes)?;
    note(driver, slot, opcode, Some(Deployed { module_bytes, waits: true }));
    Ok(())
}

/// Notes what an op-code has from now on; returns what it had.
pub(super) fn note(
    driver: &mut Own,
    slot: u16,
    opcode: u64,
    now: Option<Deployed>,
) -> Option<Deployed> {
    let of = driver.engine.as_deref_mut()?.session(slot)?;
    let former = match now {
        Some(deployed) => {
            of.usage.add_kernel(deployed.module_bytes);
            of.kernels.opcodes.insert(opcode, deployed)
        }
        None => of.kernels.opcodes.remove(&opcode),
    };
    if let Some(former) = former {
        of.usage.remove_kernel(former.module_bytes);
    }
    former
}

/// The kernel of an op-code of a session.
pub(super) fn deployed(driver: &mut Own, slot: u16, opcode: u64) -> Option<Deployed> {
    driver.engine.as_deref_mut()?.session(slot)?.kernels.opcodes.get(&opcode).copied()
}

/// Is there room for what a request brings, a module of so many bytes? Otherwise returns the
/// answer.
fn room(
    driver: &mut Own,
    slot: u16,
    request: &KernelRequest,
    module_bytes: u64,
) -> Result<(), KernelDone> {
    let mut before = 0;
    if let KernelRequest::Deploy { opcode, replace: true, .. } = request {
        before = deployed(driver, slot, *opcode).map_or(0, |former| former.module_bytes);
    } else if let Err(limit) = room_for_another(driver, slot) {
        return Err(Ok(KernelAnswer::Full(limit as u64)));
    }
    room_for_module(driver, slot, module_bytes.saturating_sub(before)).map_err(Err)
}

fn deploy(
    driver: &mut Own,
    slot: u16,
    (opcode, replace): (u64, bool),
    (deployment, program, module_bytes): (Deployment, Box<dyn Program>, u64),
) -> KernelDone {
    let at = (client_of(slot), opcode);
    let former = deployed(driver, slot, opcode);
    let waits = former.is_some_and(|former| former.waits);
    if waits && !replace {
        return Ok(KernelAnswer::Taken);
    }
    if !replace && let Err(limit) = room_for_another(driver, slot) {
        return Ok(KernelAnswer::Full(limit as u64));
    }
    let before = former.map_or(0, |former| former.module_bytes);
    room_for_module(driver, slot, module_bytes.saturating_sub(before))?;
    // The card does not know of one that waits.
    let done = driver.kernels(|kernels, _| match replace && !waits {
        true => kernels.replace_for(at, deployment, program),
        false => kernels.deploy_for(at, deployment, program),
    });
    if let Err(error) = done {
        return Ok(refusal(error));
    }
    note(driver, slot, opcode, Some(Deployed { module_bytes, waits: false }));
    Ok(KernelAnswer::Done)
}

fn bind(
    driver: &mut Own,
    slot: u16,
    to: Bound,
    (grants, tap, module_bytes): (Vec<Grant>, Box<dyn Tap>, u64),
) -> KernelDone {
    let object = match to {
        Bound::Receive(qpn) | Bound::Send(qpn) => Object::Qp(qpn),
        Bound::Region(key) => Object::Mr(key),
    };
    let owner = driver.engine.as_deref().and_then(|engine| engine.objects.owner(object));
    if owner != Some(slot) {
        return Ok(KernelAnswer::Bind(BindError::Unknown));
    }
    if let Err(limit) = room_for_another(driver, slot) {
        return Ok(KernelAnswer::Full(limit as u64));
    }
    room_for_module(driver, slot, module_bytes)?;
    let number = driver.kernels(|kernels, _| kernels.add_tap(grants, tap));
    if let Err(error) = driver.bind_kernel(to, number) {
        driver.kernels(|kernels, _| kernels.remove_tap(number));
        return Ok(KernelAnswer::Bind(error));
    }
    if let Some(of) = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot)) {
        of.kernels.taps.insert(number, (to, module_bytes));
        of.usage.add_kernel(module_bytes);
    }
    Ok(KernelAnswer::Number(number))
}

/// May the session have another kernel? Otherwise returns how many it, or its user, may have.
fn room_for_another(driver: &mut Own, slot: u16) -> Result<(), usize> {
    let engine = driver.engine.as_deref_mut().ok_or(0usize)?;
    engine.admits(slot, Ask::Kernel)?;
    let (of_user, most) = engine.kernels_of_user(slot);
    if of_user < most { Ok(()) } else { Err(most) }
}

/// May the daemon keep so many more bytes of modules for the session?
fn room_for_module(driver: &mut Own, slot: u16, bytes: u64) -> Result<(), Refusal> {
    let engine = driver.engine.as_deref_mut().ok_or(NO_SESSION)?;
    engine.admits(slot, Ask::Module(bytes)).map_err(|limit| {
        format!("the session’s quota of {limit} bytes of memory has no room for the module")
    })?;
    engine.room_for_bytes(slot, bytes).map_err(|limit| {
        format!("the {limit} bytes of memory of the session’s user have no room for the module")
    })
}

fn refusal(error: DeployError) -> KernelAnswer {
    match error {
        DeployError::Taken(_) => KernelAnswer::Taken,
        DeployError::Full(limit) => KernelAnswer::Full(limit as u64),
        // The last two are of a card of another process.
        DeployError::Unknown(_) | DeployError::Elsewhere | DeployError::Refused(_) => {
            KernelAnswer::Unknown
        }
    }
}

/// Requests without code.
fn ask(driver: &mut Own, slot: u16, request: &KernelRequest) -> KernelAnswer {
    let client = client_of(slot);
    match *request {
        KernelRequest::Undeploy(opcode) => {
            let waits = deployed(driver, slot, opcode).is_some_and(|of| of.waits);
            let at = (client, opcode);
            if !waits && let Err(error) = driver.kernels(|kernels, io| kernels.undeploy_for(io, at))
            {
                return refusal(error);
            }
            note(driver, slot, opcode, None);
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
            let Some((of, (to, module_bytes))) =
                of.and_then(|of| of.kernels.taps.remove(&number).map(|tap| (of, tap)))
            else {
                return KernelAnswer::Unknown;
            };
            of.usage.remove_kernel(module_bytes);
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
