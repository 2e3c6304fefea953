//! Compiling the modules of clients, one at a time, in a thread beside the one that serves them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::fd_store::Part;
use super::kernel_file;
use crate::event::Event;
use crate::kernel::{Loader, MemoryShare, ModuleLimits, Program, Tap};
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

/// Where a module is.
pub(super) enum Source {
    /// A client has sent it with this request.
    Sent(KernelRequest, Vec<u8>),
    /// It is in the file of a kept kernel, which is read when it is its turn.
    Left(OwnedFd),
}

/// A module to be compiled.
pub(super) struct Job {
    pub(super) customer: Customer,
    pub(super) source: Source,
    /// What the memory of its instances counts for.
    pub(super) share: Arc<MemoryShare>,
}

/// Code that is ready to run, the request that it is for, and its module.
pub(super) struct Compiled {
    pub(super) request: KernelRequest,
    pub(super) module: Vec<u8>,
    pub(super) built: Built,
}

type Done = (Customer, Result<Compiled, Refusal>);

/// The thread that compiles.
#[derive(Debug)]
pub(super) struct Compiler {
    loader: Loader,
    pub(super) waiting: VecDeque<Job>,
    /// What another daemon has left. It takes turns with what clients wait for, so that neither
    /// holds the other up for long.
    pub(super) left: VecDeque<Job>,
    is_turn_of_left: bool,
    pub(super) is_busy: bool,
    sender: Sender<Done>,
    pub(super) done: Receiver<Done>,
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
        let (is_turn_of_left, is_busy) = (false, false);
        Ok(Compiler { loader, waiting, left, is_turn_of_left, is_busy, sender, done, event })
    }

    /// Begins with the next job, if none is under way.
    pub(super) fn go_on(&mut self) {
        while !self.is_busy {
            let Some(Job { customer, source, share }) = self.next() else { return };
            let (sender, event) = (self.sender.clone(), Arc::clone(&self.event));
            let loader = self.loader;
            let run = move || {
                let compiled = catch_unwind(AssertUnwindSafe(|| compile(loader, source, share)));
                let compiled = compiled.unwrap_or_else(|_| Err("the compiler failed".into()));
                sender.send((customer, compiled)).ok();
                crate::event::wake(&event);
            };
            let thread = std::thread::Builder::new().name("remora-compile".into());
            match without_signals(|| thread.spawn(run)) {
                Ok(_) => self.is_busy = true,
                Err(error) => {
                    let refusal = format!("there is no thread to compile the module: {error}");
                    self.sender.send((customer, Err(refusal))).ok();
                    crate::event::wake(&self.event);
                }
            }
        }
    }

    /// Forgets what a client that has gone wanted compiled.
    pub(super) fn forget(&mut self, client: u32) {
        self.waiting.retain(|job| !matches!(job.customer, Customer::Client(n) if n == client));
    }

    /// The next job: of those that wait and those that are left by turns.
    fn next(&mut self) -> Option<Job> {
        let of_left = self.is_turn_of_left && !self.left.is_empty() || self.waiting.is_empty();
        self.is_turn_of_left = !of_left;
        if of_left { self.left.pop_front() } else { self.waiting.pop_front() }
    }
}

/// Compiles a module, with what it is for.
fn compile(loader: Loader, source: Source, share: Arc<MemoryShare>) -> Result<Compiled, Refusal> {
    let (request, module) = match source {
        Source::Sent(request, module) => (request, module),
        Source::Left(file) => {
            let (_, request, module) =
                kernel_file::read(file.as_fd()).map_err(|error| error.to_string())?;
            (request, module)
        }
    };
    let built = build(loader, &request, &module, share)?;
    Ok(Compiled { request, module, built })
}

/// Compiles a module.
fn build(
    loader: Loader,
    request: &KernelRequest,
    module: &[u8],
    share: Arc<MemoryShare>,
) -> Result<Built, Refusal> {
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
        loader(module, limits, Some(share)).map_err(|error| error.to_string())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kernel::{LoadRefusal, Loadable, no_loader};

    fn share() -> Arc<MemoryShare> {
        Arc::new(MemoryShare::new(0))
    }

    #[test]
    fn modules_of_clients_and_those_that_are_left_take_turns() {
        let mut compiler = Compiler::new(no_loader).unwrap();
        let job = |customer| {
            let source = Source::Sent(KernelRequest::List(0), Vec::new());
            Job { customer, source, share: share() }
        };
        compiler.left.extend((0..3).map(|n| job(Customer::Restored(n, Part::Kernel(0, 0)))));
        compiler.waiting.extend((0..4).map(|n| job(Customer::Client(n))));
        let order: String = std::iter::from_fn(|| compiler.next())
            .map(|job| match job.customer {
                Customer::Client(n) => format!("c{n} "),
                Customer::Restored(n, _) => format!("l{n} "),
            })
            .collect();
        assert_eq!(order, "c0 l0 c1 l1 c2 l2 c3 ");
    }

    #[test]
    fn what_a_client_that_has_gone_wanted_is_forgotten() {
        let mut compiler = Compiler::new(no_loader).unwrap();
        for client in [1, 2, 1, 3] {
            let source = Source::Sent(KernelRequest::List(0), Vec::new());
            compiler.waiting.push_back(Job {
                customer: Customer::Client(client),
                source,
                share: share(),
            });
        }
        compiler.forget(1);
        let left = std::iter::from_fn(|| compiler.next()).map(|job| job.customer);
        assert!(matches!(left.collect::<Vec<_>>()[..], [Customer::Client(2), Customer::Client(3)]));
    }

    #[test]
    fn a_compiler_that_panics_has_refused() {
        fn panics(
            _: &[u8],
            _: ModuleLimits,
            _: Option<Arc<MemoryShare>>,
        ) -> Result<Arc<dyn Loadable>, LoadRefusal> {
            panic!("on purpose")
        }
        let mut compiler = Compiler::new(panics).unwrap();
        let code = Code::Module { memory: 0, table: 0, instances: 1 };
        let (name, grants) = (String::new(), Vec::new());
        let request =
            KernelRequest::Deploy { opcode: 1, replace: false, name, budget: 1, grants, code };
        let source = Source::Sent(request, Vec::new());
        compiler.waiting.push_back(Job { customer: Customer::Client(1), source, share: share() });
        compiler.go_on();
        let (_, compiled) = compiler.done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(compiled.err().as_deref(), Some("the compiler failed"));
    }
}
