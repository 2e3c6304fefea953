//! Compiling the modules of clients, one at a time, in a thread beside the one that serves them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::fd_store::Part;
use crate::event::Event;
use crate::kernel::{Program, Tap};
use crate::message::KernelRequest;
use crate::threads::without_signals;

type Refusal = String;

/// Code that is ready to run.
pub(super) enum Built {
    Program(Box<dyn Program>),
    Tap(Box<dyn Tap>),
}

/// Whom a module is compiled for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Customer {
    /// A client, which waits for its answer.
    Client(u32),
    /// A session that another daemon has left, with this part in the store.
    Restored(u32, Part),
}

/// A module to be compiled, for a request.
pub(super) struct Job {
    pub(super) customer: Customer,
    pub(super) request: KernelRequest,
    pub(super) module: Vec<u8>,
}

/// The thread that compiles.
#[derive(Debug)]
pub(super) struct Compiler {
    pub(super) waiting: VecDeque<Job>,
    /// What another daemon has left, for which nobody waits: it comes last.
    pub(super) left: VecDeque<Job>,
    pub(super) is_busy: bool,
    sender: Sender<(Job, Result<Built, Refusal>)>,
    pub(super) done: Receiver<(Job, Result<Built, Refusal>)>,
    /// Notified when something is done.
    pub(super) event: Arc<Event>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("customer", &self.customer).finish_non_exhaustive()
    }
}

impl Compiler {
    pub(super) fn new() -> io::Result<Compiler> {
        let (sender, done) = mpsc::channel();
        let event = Arc::new(Event::new()?);
        let (waiting, left) = (VecDeque::new(), VecDeque::new());
        Ok(Compiler { waiting, left, is_busy: false, sender, done, event })
    }

    /// Begins with the next job, if none is under way.
    pub(super) fn go_on(&mut self) {
        while !self.is_busy {
            let next = self.waiting.pop_front().or_else(|| self.left.pop_front());
            let Some(job) = next else { return };
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
    use crate::message::Code;
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
