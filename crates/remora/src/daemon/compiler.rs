//! Compiling the modules of clients, one at a time, in a thread beside the one that serves them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::fd_store::Part;
use crate::event::Event;
use crate::kernel::{Loader, ModuleLimits, Program, Tap};
use crate::message::{Code, KernelRequest};
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
    loader: Loader,
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
    pub(super) fn new(loader: Loader) -> io::Result<Compiler> {
        let (sender, done) = mpsc::channel();
        let event = Arc::new(Event::new()?);
        let (waiting, left) = (VecDeque::new(), VecDeque::new());
        Ok(Compiler { loader, waiting, left, is_busy: false, sender, done, event })
    }

    /// Begins with the next job, if none is under way.
    pub(super) fn go_on(&mut self) {
        while !self.is_busy {
            let next = self.waiting.pop_front().or_else(|| self.left.pop_front());
            let Some(job) = next else { return };
            let (sender, event) = (self.sender.clone(), Arc::clone(&self.event));
            let loader = self.loader;
            let run = move || {
                let built = build(loader, &job.request, &job.module);
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
fn build(loader: Loader, request: &KernelRequest, module: &[u8]) -> Result<Built, Refusal> {
    let load = |code: &Code| {
        let Code::Module { memory, table, instances } = *code else {
            return Err("this is no module".to_owned());
        };
        let usual = ModuleLimits::default();
        let at_most = |wish: u64, most: usize| usize::try_from(wish).unwrap_or(most).min(most);
        let limits = ModuleLimits {
            memory: at_most(memory, ModuleLimits::MEMORY_MAX),
            table: at_most(table, usual.table),
            instances: at_most(instances, usual.instances),
        };
        loader(module, limits).map_err(|error| error.to_string())
    };
    match request {
        KernelRequest::Deploy { code, .. } => Ok(Built::Program(load(code)?.program())),
        KernelRequest::Bind { code, budget, .. } => {
            let tap = load(code)?.tap(*budget).map_err(|error| error.to_string())?;
            Ok(Built::Tap(tap))
        }
        _ => Err("this request has no module".into()),
    }
}
