//! A store's process: it begins with what the disk has, serves, writes its log, and crashes.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use remora::Remote;
use remora_nic::{Access, MrInit, PageTable};
use remora_offload::chain::link::RegionAt;
use remora_offload::kernel::{AsyncProgram, Executor, ExecutorLimits};
use remora_store::disk::{Fault, Faulty};
use remora_store::log::{Committer, Fsync, Recovered, open};
use remora_store::memory::Memory;
use remora_store::service::Logged;
use remora_store::snapshot::Snapshots;
use remora_store::stats::Stats;
use remora_store::store;
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::kernel::StoreKernels;
use remora_store::way::long::LongCalls;
use remora_store::{log, way::call::Operation};

use super::CHECKER;
use super::connection::Doors;
use super::options::{SPACES_MAX, StoreOptions};
use super::order::{number_of, number_of_ms};
use super::value::{key_of, value_of};
use crate::check::store::{self as judge, Event, FOR_EVER, KeyState, Life, Wrong};
use crate::check::{Violation, demand, undecided};
use crate::dice::Dice;
use crate::objects::Object;
use crate::shared_memory::SharedMemory;
use crate::world::World;

/// The most bytes of index and items.
const LIMIT: u64 = 1 << 20;
/// log2 of the pages in which the card sees the store's memory.
const PAGE: u32 = 16;
/// How long blocks stay for readers that come late, in ms: as live.
const QUARANTINE_MS: u64 = 1000;
/// Buckets that are looked at for what has expired, each time.
const SWEPT: u32 = 16;

/// The tablespaces that worlds' clients use, again from the first where there are fewer.
pub(super) type Spaces = [TablespaceId; SPACES_MAX];
type Kept = Logged<SharedMemory, Faulty>;

/// A store, from its first life to its last.
pub(super) struct Server {
    pub(super) options: StoreOptions,
    disk: Arc<Faulty>,
    dice: Dice,
    /// Nanoseconds of the world's clock.
    clock: Arc<AtomicU64>,
    up: Option<Up>,
    /// What the last life has left on the card, in the order from the last to be destroyed.
    left: Vec<Object>,
    gone: Option<SharedMemory>,
    /// The life that is, or was the last.
    pub(super) life: u64,
    /// What each key was when the life began, and what clients did to it since.
    first: Vec<Option<KeyState>>,
    pub(super) history: Vec<Vec<Event>>,
    pub(super) saved: u64,
    /// Keys that went by themselves in lives that are over.
    pub(super) evicted: u64,
    /// Whether any may have gone so in the life that is, or was the last.
    may_vanish: bool,
    /// The network is healed, and so is the disk.
    is_healed: bool,
}

struct Up {
    kept: Arc<Kept>,
    committer: Committer<Faulty>,
    memory: SharedMemory,
    spaces: Spaces,
    doors: Doors,
    own: Vec<Object>,
}

impl Server {
    pub(super) fn new(world: &World, options: &StoreOptions, mut dice: Dice) -> Server {
        let none = vec![None; options.keys];
        Server {
            options: options.clone(),
            disk: Arc::new(Faulty::new(dice.number())),
            dice,
            clock: world.clock.clone(),
            up: None,
            left: Vec::new(),
            gone: None,
            life: 0,
            first: none,
            history: vec![Vec::new(); options.keys],
            saved: 0,
            evicted: 0,
            may_vanish: false,
            is_healed: false,
        }
    }

    /// What is open to clients, in which life, while the store is up.
    pub(super) fn doors(&self) -> Option<(Doors, u64, Spaces)> {
        self.up.as_ref().map(|up| (up.doors, self.life, up.spaces))
    }

    /// Is nothing left of the last life? Then the next one may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.up.is_none() && self.left.is_empty()
    }

    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.disk.fail_one_in(0);
    }

    fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::Relaxed) / 1_000_000
    }

    /// Is this the step at which the store crashes? If so, does its machine, too?
    pub(super) fn crashes_at(&mut self, step: u64) -> Option<bool> {
        let is_up = self.up.is_some();
        let due = self.options.crashes.iter().position(|(at, _)| *at <= step && is_up)?;
        Some(self.options.crashes.swap_remove(due).1)
    }

    fn log_options(&mut self) -> log::Options {
        log::Options {
            fsync: if self.options.waits_for_disk { Fsync::Always } else { Fsync::No },
            segment_bytes: self.options.segment_bytes,
            salt: self.dice.number(),
            retry_ms: 1,
            ..log::Options::default()
        }
    }

    /// Begins the next life with what the disk has, which is judged by what was done in the last.
    pub(super) fn begin(&mut self, world: &mut World) -> Result<(), Violation> {
        let own = store::Options { quarantine_ms: QUARANTINE_MS, ..store::Options::new(LIMIT, 7) };
        let at = self.options.host;
        let memory = world.hosts[at].memory.shared.add(own.memory_len());
        let log = self.log_options();
        let opened = open(&self.disk, memory.clone(), own, log, self.now_ms());
        if opened.is_err() && self.disk.crashed() {
            // It crashes while it begins: it begins again later. What it had read may have gone.
            self.may_vanish |= self.options.may_vanish();
            self.disk.restart();
            world.hosts[at].memory.shared.remove(&memory);
            return Ok(());
        }
        let recovered = opened.map_err(|e| Violation::new(CHECKER, format!("recovery: {e}")))?;
        let Recovered { store, committer, recovery } = recovered;
        self.may_vanish |= store.evicted() > 0;
        let contents = self.contents(&store)?;
        self.judge(&contents, number_of(world.now))?;
        let spaces = self.spaces(&store)?;
        let snapshots = Arc::new(Snapshots::new(&self.disk, &recovery, self.now_ms()));
        let kept = Arc::new(Logged::new(Arc::new(store), snapshots));
        self.deploy(world, &kept);
        let (doors, own) = open_doors(world, at, &memory);
        self.up = Some(Up { kept, committer, memory, spaces, doors, own });
        self.life += 1;
        if let Some(step) = self.options.disk_crashes.pop().filter(|_| !self.is_healed) {
            self.disk.fault_at(self.disk.steps() + step, Fault::Crash);
        }
        Ok(())
    }

    /// The tablespaces, those made that are not there.
    fn spaces<M: Memory>(&self, store: &store::Store<M, log::Log>) -> Result<Spaces, Violation> {
        let StoreOptions { codec, quota, eviction, spaces: count, .. } = self.options;
        let space = |at| {
            let name = name_of(at);
            let plain = TablespaceOptions::new(&name);
            let options = TablespaceOptions { codec, quota, eviction, ..plain };
            let space = store.tablespace(&name);
            space.map_or_else(|| store.create_tablespace(&options), Ok)
        };
        let spaces: Result<Vec<_>, _> = (0..count).map(space).collect();
        let spaces = spaces.map_err(|e| Violation::new(CHECKER, format!("no tablespace: {e}")))?;
        Ok(core::array::from_fn(|at| spaces[at % count]))
    }

    /// What each key is.
    fn contents<M: Memory>(
        &self,
        store: &store::Store<M, log::Log>,
    ) -> Result<Vec<Option<KeyState>>, Violation> {
        let StoreOptions { keys, spaces: count, value_max, .. } = self.options;
        let spaces: Vec<_> = (0..count).map(|at| store.tablespace(&name_of(at))).collect();
        let items: u64 = spaces.iter().flatten().map(|space| store.count(*space)).sum();
        demand(items <= keys as u64, CHECKER, || format!("{items} items of {keys} keys"))?;
        let value = |key| {
            let mut bytes = Vec::new();
            let name = key_of(key / count);
            let found = store.get(spaces[key % count]?, &name, self.now_ms(), &mut bytes);
            found.map(|found| KeyState {
                value: value_of(key, &bytes, value_max),
                until: found.expires_ms.map_or(FOR_EVER, number_of_ms),
            })
        };
        Ok((0..keys).map(value).collect())
    }

    /// Judges a life by what it has left, which was read at the moment of this number.
    fn judge(&mut self, last: &[Option<KeyState>], at: u64) -> Result<(), Violation> {
        let may_vanish = core::mem::take(&mut self.may_vanish);
        self.history.iter_mut().for_each(|events| events.retain(Event::says_something));
        let spaces = self.options.spaces;
        for space in 0..spaces {
            let keys: Vec<usize> = (space..self.options.keys).step_by(spaces).collect();
            let life = |&key: &usize| Life {
                first: self.first[key],
                events: &self.history[key],
                last: last[key],
            };
            let lives: Vec<Life<'_>> = keys.iter().map(life).collect();
            let judged = judge::judge(&lives, at, may_vanish);
            judged.map_err(|wrong| self.violation(wrong, &keys, &lives))?;
        }
        self.history.iter_mut().for_each(Vec::clear);
        self.first = last.to_vec();
        Ok(())
    }

    /// Says what is wrong with the lives of the keys of a tablespace.
    fn violation(&self, wrong: Wrong, keys: &[usize], lives: &[Life<'_>]) -> Violation {
        let told = |(key, life): (&usize, &Life<'_>)| {
            let events: String = life.events.iter().map(|event| format!("{event:?}\n")).collect();
            format!("key {key}, from {:?} to {:?}:\n{events}", life.first, life.last)
        };
        let (what, of) = match wrong {
            Wrong::Key(at) => ("has no order".to_owned(), at..at + 1),
            Wrong::Undecided(at) => (undecided(), at..at + 1),
            Wrong::Torn => ("has a flush that is torn".to_owned(), 0..keys.len()),
        };
        let told: String = keys.iter().zip(lives).map(told).skip(of.start).take(of.len()).collect();
        Violation::new(CHECKER, format!("life {} {what}: {told}", self.life))
    }

    fn deploy(&self, world: &mut World, kept: &Arc<Kept>) {
        let clock = self.clock.clone();
        let now =
            move || SystemTime::UNIX_EPOCH + Duration::from_nanos(clock.load(Ordering::Relaxed));
        let (stats, long) = (Arc::new(Stats::default()), Arc::new(LongCalls::without_thread(0)));
        let kernels = Arc::new(StoreKernels::new(kept, &stats, &long, now));
        with_executor(world, self.options.host, |executor, _| {
            for operation in Operation::ALL {
                let kernels = kernels.clone();
                let serve = move |context| kernels.clone().serve(operation, context);
                let program = Box::new(AsyncProgram::new(serve));
                let deployed = executor.deploy(operation.opcode(), operation.deployment(), program);
                deployed.expect("its op-code is free");
            }
        });
    }

    /// The process ends in the middle of what it does, and its machine if `with_machine`.
    pub(super) fn crash(&mut self, world: &mut World, with_machine: bool) {
        let Some(up) = self.up.take() else { return };
        self.disk.fail_one_in(0);
        undeploy(world, self.options.host);
        let evicted = up.kept.store().evicted();
        self.evicted += evicted;
        self.may_vanish = evicted > 0;
        self.left.extend(up.own);
        self.gone = Some(up.memory);
        if with_machine || self.disk.crashed() {
            self.disk.restart();
        }
    }

    /// What the store had for a client that is still connected goes with the rest.
    pub(super) fn inherit(&mut self, objects: Vec<Object>) {
        self.left.extend(objects);
    }

    /// Destroys the next object of the last life.
    pub(super) fn destroy_next(&mut self, world: &mut World) -> Result<(), Violation> {
        if let Some(object) = self.left.pop() {
            object.destroy(world, self.options.host, CHECKER)?;
        }
        if self.left.is_empty()
            && let Some(memory) = self.gone.take()
        {
            world.hosts[self.options.host].memory.shared.remove(&memory);
        }
        Ok(())
    }

    /// Lets the process look after its log, its snapshots and its memory. Returns whether its
    /// machine has crashed.
    pub(super) fn tick(&mut self) -> bool {
        let now_ms = self.now_ms();
        let Some(up) = &mut self.up else { return false };
        if !self.is_healed && self.options.disk_trouble > 0.0 {
            let begins = self.dice.chance(self.options.disk_trouble);
            let ends = self.dice.chance(0.1);
            if begins || ends {
                self.disk.fail_one_in(if begins { 3 } else { 0 });
            }
        }
        if self.dice.chance(self.options.commit) {
            up.committer.turn(now_ms);
        }
        let log = up.committer.log();
        // A save waits for the log, and the thread that writes it is this one.
        let is_durable = log.durable() == log.last();
        if is_durable && !self.disk.crashed() && self.dice.chance(self.options.snapshot) {
            let saved = up.kept.save(&|| now_ms);
            self.saved += u64::from(saved.is_ok());
        }
        // Seldom enough that readers come to what has expired.
        if !self.options.mixes || self.dice.chance(0.02) {
            up.kept.store().sweep(now_ms, SWEPT);
        }
        self.disk.crashed()
    }

    /// Writes all that was appended: calls that wait for it end.
    pub(super) fn settle(&mut self) {
        let now_ms = self.now_ms();
        if let Some(up) = &mut self.up {
            up.committer.finish(now_ms);
        }
    }

    /// Ends the last life by a crash of the machine, and judges what the disk has.
    pub(super) fn close(&mut self, world: &mut World) -> Result<(), Violation> {
        self.crash(world, true);
        while !self.left.is_empty() || self.gone.is_some() {
            self.destroy_next(world)?;
        }
        // What no fault can spoil any more.
        self.options.disk_crashes.clear();
        self.begin(world)?;
        self.crash(world, true);
        while !self.left.is_empty() || self.gone.is_some() {
            self.destroy_next(world)?;
        }
        Ok(())
    }
}

/// The name of a tablespace.
fn name_of(space: usize) -> String {
    if space == 0 { "world".to_owned() } else { format!("world {space}") }
}

/// Opens a store's memory to clients and to chains, each in a domain of its own, so that the keys
/// of one open nothing to the others.
fn open_doors(world: &mut World, host: usize, memory: &SharedMemory) -> (Doors, Vec<Object>) {
    let nic = &mut world.hosts[host].nic;
    let (addr, len) = (memory.base(), memory.len());
    let mut register = || {
        let pd = nic.alloc_pd().expect("room for a protection domain");
        let pages = PageTable::contiguous(PAGE, addr, len);
        let init = MrInit { iova: addr, len, access: Access::REMOTE_READ, pages };
        (pd, nic.reg_mr(pd, init).expect("room for a region"))
    };
    let ((pd, key), (chain_pd, chain_key)) = (register(), register());
    let own =
        vec![Object::Pd(pd), Object::Region(key), Object::Pd(chain_pd), Object::Region(chain_key)];
    let memory = Remote { addr, len, rkey: key };
    let chain_memory = RegionAt { addr, key: chain_key };
    (Doors { host, pd, memory, chain_pd, chain_memory }, own)
}

/// Calls `act` with what runs a host's kernels.
fn with_executor<R>(
    world: &mut World,
    host: usize,
    act: impl FnOnce(&mut Executor, &mut remora_nic::kernel::KernelIo<'_>) -> R,
) -> R {
    let now = world.now;
    let crate::world::Host { nic, memory, .. } = &mut world.hosts[host];
    nic.with_kernels(now, memory, act).expect("the host runs kernels")
}

/// Makes a host run kernels, if it does not yet.
pub(super) fn make_runner(world: &mut World, host: usize) {
    let now = world.now;
    let crate::world::Host { nic, memory, .. } = &mut world.hosts[host];
    if nic.with_kernels(now, memory, |_: &mut Executor, _| ()).is_none() {
        nic.set_kernels(Box::new(Executor::new(ExecutorLimits::default())));
    }
}

/// The store's kernels end, and with them what they know of the store.
fn undeploy(world: &mut World, host: usize) {
    with_executor(world, host, |executor, io| {
        for operation in Operation::ALL {
            let ended = executor.undeploy(io, operation.opcode());
            ended.expect("it was deployed");
        }
        drop(executor.take_ended());
    });
}
