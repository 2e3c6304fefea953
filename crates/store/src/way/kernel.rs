//! The store's kernels: each operation under an op-code of its own, in one round trip and without
//! the application of the node.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use remora::Device;
use remora::kernel::{CallStatus, Context, DeployError, Deployment};

use super::call::{Call, LIMIT_AT, Operation, Refused};
use super::clock::ms_of;
use super::execute::{Effort, LATER, execute_with};
use super::info::{self, SpaceInfo};
use super::long::LongCalls;
use super::payload::{Gathered, gather};
use crate::journal::Journal;
use crate::memory::Memory;
use crate::stats::{Counts, Op, Stats, Way};
use crate::store::Store;

/// The most bytes of a call that is looked at where it came, without a copy in memory of its own.
const SHORT: usize = 512;
/// The longest answer of a kernel, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// How long a kernel waits before it looks again whether a change is durable.
const DURABLE_LOOK: Duration = Duration::from_micros(20);

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The status that the client gets.
    pub status: Result<(), CallStatus>,
    /// The position in the log that has to be durable before the client may be told; 0 for none.
    pub until: u64,
    /// Whether it has changed the store.
    pub has_changed: bool,
}

impl Executed {
    /// The end of an operation that waits for nothing, if it has changed nothing; else for its
    /// position.
    pub fn new(operation: Operation, done: Result<u64, CallStatus>) -> Executed {
        let has_changed = done.is_ok() && operation.changes();
        let until = if has_changed { done.unwrap_or(0) } else { 0 };
        Executed { status: done.map(drop), until, has_changed }
    }
}

/// A store that kernels serve.
pub trait Served: Send + Sync + 'static {
    /// Whether short calls are carried out on the card, while it waits. If not, a thread does it:
    /// where locks are taken under which others use the card.
    fn is_quick(&self) -> bool {
        true
    }

    /// Carries out a call at a time in ms of Unix time, whose answer may have so many bytes: see
    /// [`execute`](super::execute::execute).
    fn execute(
        &self,
        effort: Effort,
        operation: Operation,
        bytes: &[u8],
        place: (u64, usize),
        out: &mut Vec<u8>,
    ) -> Executed;

    /// Whether the client may be told what its call came to. The card waits meanwhile.
    ///
    /// # Errors
    /// It may never be, and gets this status.
    fn is_durable(&self, executed: &Executed) -> Result<bool, CallStatus>;

    /// What the store counts, with names.
    fn counts(&self) -> Vec<(&'static str, u64)>;

    /// The tablespaces, and their blocks by size.
    fn tablespaces(&self) -> Vec<SpaceInfo>;
}

/// A store without a log, or one whose answers do not wait for it.
impl<M: Memory + 'static, J: Journal + 'static> Served for Store<M, J> {
    fn execute(
        &self,
        effort: Effort,
        operation: Operation,
        bytes: &[u8],
        place: (u64, usize),
        out: &mut Vec<u8>,
    ) -> Executed {
        Executed::new(operation, execute_with(effort, self, operation, bytes, place, out))
    }

    fn is_durable(&self, _: &Executed) -> Result<bool, CallStatus> {
        Ok(true)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("evicted", self.evicted()),
            ("expired", self.expired()),
            ("used_bytes", self.used_bytes()),
            ("limit_bytes", self.limit()),
            ("index_bytes", self.index_bytes()),
            ("damaged", self.damaged()),
        ]
    }

    fn tablespaces(&self) -> Vec<SpaceInfo> {
        let all = Store::tablespaces(self).into_iter();
        all.map(|space| (space.clone(), self.classes(space.id))).collect()
    }
}

/// What the kernels of a store share.
pub struct StoreKernels<S> {
    store: Arc<S>,
    stats: Arc<Stats>,
    /// Kernels of a card run one at a time, whichever thread drives it.
    counts: Arc<Counts>,
    long: Arc<LongCalls>,
    clock: Box<Clock>,
}

/// Says what time it is.
type Clock = dyn Fn() -> SystemTime + Send + Sync;

/// Deploys a kernel for each operation. What they do is counted in `stats`; what takes long is left
/// to `long`.
///
/// # Errors
/// An op-code is taken, or the card has no room. Kernels that were deployed stay.
pub fn deploy(
    device: &Device,
    store: &Arc<impl Served>,
    stats: &Arc<Stats>,
    long: &Arc<LongCalls>,
) -> Result<(), DeployError> {
    let kernels = Arc::new(StoreKernels::new(store, stats, long, SystemTime::now));
    for operation in Operation::ALL {
        let kernels = kernels.clone();
        device.deploy(operation.opcode(), operation.deployment(), move |context| {
            kernels.clone().serve(operation, context)
        })?;
    }
    Ok(())
}

impl Operation {
    /// What its kernel is deployed with.
    pub fn deployment(self) -> Deployment {
        Deployment::new(format!("store {}", self.name()), [])
    }
}

/// Ends the kernels. A kernel holds the store, whose memory holds the device: until they are ended,
/// neither goes.
pub fn undeploy(device: &Device) {
    for operation in Operation::ALL {
        // One that was not deployed need not be ended.
        _ = device.undeploy(operation.opcode());
    }
}

/// The bytes of a call.
struct Bytes<'a> {
    /// Where they came as parameters.
    short: &'a [u8],
    /// Where they came as payload.
    gathered: Option<Arc<Gathered>>,
}

impl Bytes<'_> {
    fn get(&self) -> &[u8] {
        self.gathered.as_ref().map_or(self.short, |gathered| gathered.bytes())
    }

    /// The same, for another thread.
    fn share(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        match &self.gathered {
            Some(gathered) => gathered.clone(),
            None => Arc::new(self.short.to_vec()),
        }
    }
}

impl<S: Served> StoreKernels<S> {
    /// Kernels for a store on any card, live or simulated: see [`deploy`]. `clock` says what time
    /// it is.
    pub fn new(
        store: &Arc<S>,
        stats: &Arc<Stats>,
        long: &Arc<LongCalls>,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> StoreKernels<S> {
        let (store, stats, long) = (store.clone(), stats.clone(), long.clone());
        let counts = stats.thread();
        StoreKernels { store, stats, counts, long, clock: Box::new(clock) }
    }

    /// The kernel of an operation.
    ///
    /// # Errors
    /// The status that the client gets.
    pub async fn serve(
        self: Arc<Self>,
        operation: Operation,
        context: Context,
    ) -> Result<(), CallStatus> {
        let began = (self.clock)();
        let mut short = [0; SHORT];
        let len = context.params(|params| {
            let room = short.get_mut(..params.len()).ok_or(CallStatus::BAD_PARAMS)?;
            room.copy_from_slice(params);
            Ok(params.len())
        });
        let len = len.await?;
        let (gathered, came) = match len {
            0 => {
                let waited = || (self.clock)().duration_since(began).unwrap_or_default();
                let gathered = gather(&context, &self.long.room, waited).await?;
                (Some(Arc::new(gathered)), (self.clock)())
            }
            _ => (None, began),
        };
        let bytes = Bytes { short: &short[..len], gathered };
        let done = self.carry_out(operation, &context, &bytes, ms_of(came)).await;
        self.note(operation, &context, bytes.get(), done, began);
        done
    }

    /// Carries out a call, with the answer in the kernel's results.
    async fn carry_out(
        self: &Arc<Self>,
        operation: Operation,
        context: &Context,
        bytes: &Bytes<'_>,
        now: u64,
    ) -> Result<(), CallStatus> {
        let place = (now, (context.max_len() as usize).min(ANSWER_MAX));
        let mut executed = Executed::new(operation, Err(LATER));
        if self.store.is_quick() {
            let short = context.output(|out| {
                let start = out.len();
                let executed = self.execute(Effort::Short, operation, bytes.get(), place, out);
                if executed.status.is_err() {
                    out.truncate(start);
                }
                executed
            });
            executed = short.await?;
            self.counts.long_calls.add(u64::from(executed.status == Err(LATER)));
        }
        if executed.status == Err(LATER) {
            executed = self.carry_out_long(operation, context, bytes, place.1).await?;
        }
        while !self.store.is_durable(&executed)? {
            context.pause(DURABLE_LOOK).await?;
        }
        executed.status
    }

    fn execute(
        &self,
        effort: Effort,
        operation: Operation,
        bytes: &[u8],
        place: (u64, usize),
        out: &mut Vec<u8>,
    ) -> Executed {
        if operation != Operation::Info {
            return self.store.execute(effort, operation, bytes, place, out);
        }
        let call = Call::parse(bytes).map_err(|_| CallStatus::BAD_PARAMS);
        let told = call.and_then(|call| info::answer(self, &call, place.1, out));
        Executed::new(operation, told.map(|()| 0))
    }

    /// Lets a thread carry out a call, whose answer may have `room` bytes. It may come to it later:
    /// what expires is judged by the time then.
    async fn carry_out_long(
        self: &Arc<Self>,
        operation: Operation,
        context: &Context,
        bytes: &Bytes<'_>,
        room: usize,
    ) -> Result<Executed, CallStatus> {
        let (kernels, bytes) = (self.clone(), bytes.share());
        let call = move || {
            let (mut out, bytes) = (Vec::new(), (*bytes).as_ref());
            let place = (ms_of((kernels.clock)()), room);
            (kernels.execute(Effort::Any, operation, bytes, place, &mut out), out)
        };
        let (executed, answer) = self.long.carry_out(context, call).await?;
        if executed.status.is_ok() {
            context.output(|out| out.extend_from_slice(&answer)).await?;
        }
        Ok(executed)
    }

    /// Counts a call, and lists it if it took long. The clock is the one that the call needs
    /// anyway: when it is set, a latency is wrong.
    fn note(
        &self,
        operation: Operation,
        context: &Context,
        bytes: &[u8],
        done: Result<(), CallStatus>,
        began: SystemTime,
    ) {
        let took = (self.clock)().duration_since(began).unwrap_or_default();
        let counts = &self.counts;
        counts.commands.add(1);
        counts.latencies(Way::Kernel, kind(operation, bytes)).record(took.as_nanos() as u64);
        match (operation, done) {
            (Operation::Get, Ok(())) => counts.hits.add(1),
            (Operation::Get, Err(CallStatus::NOT_FOUND)) => counts.misses.add(1),
            (Operation::Put | Operation::Count, Ok(())) => counts.stored.add(1),
            (_, Ok(()) | Err(CallStatus::NOT_FOUND)) => {}
            (_, Err(status)) if status == Refused::Condition.status() => {}
            (_, Err(_)) => counts.errors.add(1),
        }
        if operation == Operation::Get
            && let Ok(()) | Err(CallStatus::NOT_FOUND) = done
            && let Some(read) = bytes.get(LIMIT_AT..).and_then(<[u8]>::first_chunk)
        {
            counts.one_sided_hits.add(u32::from_le_bytes(*read).into());
        }
        let (took_us, slow_us) = (took.as_micros() as u64, self.stats.slow_us());
        if slow_us >= 0 && took_us >= slow_us as u64 {
            let key = Call::parse(bytes).map_or(&[][..], |call| call.key);
            let arguments = [operation.name().as_bytes(), key];
            let peer = format!("queue pair {}", context.qpn());
            self.stats.note(took_us, ms_of(began) / 1000, arguments.into_iter(), &peer, "");
        }
    }
}

impl<S: Served> info::Source for StoreKernels<S> {
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let room = &self.long.room;
        let room = [("payload_bytes", room.held()), ("payload_refused", room.refused())];
        self.store.counts().into_iter().chain(room).collect()
    }

    fn tablespaces(&self) -> Vec<SpaceInfo> {
        self.store.tablespaces()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }
}

/// The operation that a call's latency is counted under.
fn kind(operation: Operation, bytes: &[u8]) -> Op {
    let depends = Call::depends(bytes);
    match operation {
        Operation::Get => Op::Get,
        Operation::Put if depends => Op::Update,
        Operation::Put => Op::Put,
        Operation::Count => Op::Update,
        Operation::Delete => Op::Delete,
        Operation::Touch => Op::Touch,
        Operation::Scan => Op::Scan,
        _ => Op::Other,
    }
}
