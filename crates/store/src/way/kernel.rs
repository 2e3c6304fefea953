//! The store's kernels: each operation under an op-code of its own, in one round trip and without
//! the application of the node.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use remora::Device;
use remora::kernel::{CallStatus, Context, DeployError, Deployment};

use super::call::{Call, LIMIT_AT, Operation, Refused};
use super::execute::execute;
use super::info::{self, SpaceInfo};
use super::payload::{PayloadRoom, gather};
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

/// A store that kernels serve.
pub trait Served: Send + Sync + 'static {
    /// Carries out a call at `now`, in ms of Unix time: see [`execute`].
    ///
    /// # Errors
    /// The status that the client gets.
    fn execute(
        &self,
        operation: Operation,
        bytes: &[u8],
        now: u64,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, CallStatus>;

    /// Is the log's position durable, so that an answer may leave that depends on it?
    ///
    /// # Errors
    /// It will not be, since the log cannot be written.
    fn is_durable(&self, position: u64) -> Result<bool, CallStatus>;

    /// What the store counts, with names.
    fn counts(&self) -> Vec<(&'static str, u64)>;

    /// The tablespaces, and their blocks by size.
    fn tablespaces(&self) -> Vec<SpaceInfo>;
}

/// A store without a log, or one whose answers do not wait for it.
impl<M: Memory + 'static, J: Journal + 'static> Served for Store<M, J> {
    fn execute(
        &self,
        operation: Operation,
        bytes: &[u8],
        now: u64,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, CallStatus> {
        execute(self, operation, bytes, now, room, out)
    }

    fn is_durable(&self, _: u64) -> Result<bool, CallStatus> {
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

/// Milliseconds of Unix time, now.
pub fn now_ms() -> u64 {
    ms_of(SystemTime::now())
}

fn ms_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// What the kernels of a store share.
pub struct StoreKernels<S> {
    store: Arc<S>,
    stats: Arc<Stats>,
    /// Kernels of a card run one at a time, whichever thread drives it.
    counts: Arc<Counts>,
    room: Arc<PayloadRoom>,
    clock: Box<Clock>,
}

/// Says what time it is.
type Clock = dyn Fn() -> SystemTime + Send + Sync;

/// Deploys a kernel for each operation. What they do is counted in `stats`, and the bytes of their
/// calls have `room`.
///
/// # Errors
/// An op-code is taken, or the card has no room. Kernels that were deployed stay.
pub fn deploy(
    device: &Device,
    store: &Arc<impl Served>,
    stats: &Arc<Stats>,
    room: &Arc<PayloadRoom>,
) -> Result<(), DeployError> {
    let kernels = Arc::new(StoreKernels::new(store, stats, room, SystemTime::now));
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

impl<S: Served> StoreKernels<S> {
    /// Kernels for a store on any card, live or simulated: see [`deploy`]. `clock` says what time
    /// it is.
    pub fn new(
        store: &Arc<S>,
        stats: &Arc<Stats>,
        room: &Arc<PayloadRoom>,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> StoreKernels<S> {
        let (store, stats, room) = (store.clone(), stats.clone(), room.clone());
        let counts = stats.thread();
        StoreKernels { store, stats, counts, room, clock: Box::new(clock) }
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
        let long;
        let bytes = match len.await? {
            0 => {
                long = gather(&context, &self.room).await?;
                long.bytes()
            }
            len => &short[..len],
        };
        let done = self.carry_out(operation, &context, bytes, ms_of(began)).await;
        self.note(operation, &context, bytes, done, began);
        done
    }

    /// Carries out a call, with the answer in the kernel's results.
    async fn carry_out(
        &self,
        operation: Operation,
        context: &Context,
        bytes: &[u8],
        now: u64,
    ) -> Result<(), CallStatus> {
        let room = (context.max_len() as usize).min(ANSWER_MAX);
        let answered = context.output(|out| match operation {
            Operation::Info => {
                let call = Call::parse(bytes).map_err(|_| CallStatus::BAD_PARAMS)?;
                info::answer(self, &call, room, out).map(|()| 0)
            }
            operation => self.store.execute(operation, bytes, now, room, out),
        });
        let position = answered.await??;
        while position != 0 && !self.store.is_durable(position)? {
            context.pause(DURABLE_LOOK).await?;
        }
        Ok(())
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
        let room = [("payload_bytes", self.room.held()), ("payload_refused", self.room.refused())];
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
    // Condition and placement: a plain Put has neither.
    let depends = bytes.get(2..4).is_some_and(|codes| codes != [0, 0]);
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
