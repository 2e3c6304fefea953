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
    pub(super) waiting: Turns,
    /// What another daemon has left. It takes turns with what clients wait for, so that neither
    /// holds the other up for long.
    pub(super) left: Turns,
    is_turn_of_left: bool,
    pub(super) is_busy: bool,
    sender: Sender<Done>,
    pub(super) done: Receiver<Done>,
    /// Notified when something is done.
    pub(super) event: Arc<Event>,
}

/// Jobs of users who take turns, so that none waits for all that another one wants.
#[derive(Debug, Default)]
pub(super) struct Turns(VecDeque<(u32, VecDeque<Job>)>);

impl Turns {
    /// Adds a job of user `uid`'s, behind that user's others.
    pub(super) fn add(&mut self, uid: u32, job: Job) {
        match self.0.iter_mut().find(|(of, _)| *of == uid) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.0.push_back((uid, [job].into())),
        }
    }

    /// The first job of the user whose turn it is.
    fn next(&mut self) -> Option<Job> {
        let (uid, mut jobs) = self.0.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.0.push_back((uid, jobs));
        }
        job
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.0.iter().flat_map(|(_, jobs)| jobs)
    }

    fn retain(&mut self, stays: impl Fn(&Job) -> bool) {
        self.0.iter_mut().for_each(|(_, jobs)| jobs.retain(&stays));
        self.0.retain(|(_, jobs)| !jobs.is_empty());
    }
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
        let (waiting, left) = (Turns::default(), Turns::default());
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
        if of_left { self.left.next() } else { self.waiting.next() }
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

    fn job(customer: Customer) -> Job {
        let source = Source::Sent(KernelRequest::List(0), Vec::new());
        Job { customer, source, share: share() }
    }

    /// Whose jobs come one after the other.
    fn order(compiler: &mut Compiler) -> String {
        std::iter::from_fn(|| compiler.next())
            .map(|job| match job.customer {
                Customer::Client(n) => format!("c{n} "),
                Customer::Restored(n, _) => format!("l{n} "),
            })
            .collect()
    }

    #[test]
    fn modules_of_clients_and_those_that_are_left_take_turns() {
        let mut compiler = Compiler::new(no_loader).unwrap();
        for n in 0..3 {
            compiler.left.add(7, job(Customer::Restored(n, Part::Kernel(0, 0))));
        }
        (0..4).for_each(|n| compiler.waiting.add(7, job(Customer::Client(n))));
        assert_eq!(order(&mut compiler), "c0 l0 c1 l1 c2 l2 c3 ");
    }

    #[test]
    fn users_take_turns_however_much_one_of_them_wants() {
        let mut compiler = Compiler::new(no_loader).unwrap();
        let jobs = [(7, 0), (7, 1), (7, 2), (7, 3), (8, 4), (8, 5), (9, 6)];
        for (uid, client) in jobs {
            compiler.waiting.add(uid, job(Customer::Client(client)));
        }
        assert_eq!(order(&mut compiler), "c0 c4 c6 c1 c5 c2 c3 ");
        for (uid, session) in jobs {
            compiler.left.add(uid, job(Customer::Restored(session, Part::Kernel(0, 0))));
        }
        assert_eq!(order(&mut compiler), "l0 l4 l6 l1 l5 l2 l3 ");
    }

    #[test]
    fn what_a_client_that_has_gone_wanted_is_forgotten() {
        let mut compiler = Compiler::new(no_loader).unwrap();
        for client in [1, 2, 1, 3] {
            compiler.waiting.add(client, job(Customer::Client(client)));
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
        let customer = Customer::Client(1);
        compiler.waiting.add(7, Job { customer, source, share: share() });
        compiler.go_on();
        let (_, compiled) = compiler.done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(compiled.err().as_deref(), Some("the compiler failed"));
    }
}
