//! A client that reads 8 bytes at a time, beside clients that want all of the card.
//!
//! All are sessions of one daemon. Those that load the card are driven by one thread, which sleeps
//! most of the time: each has so much posted that the card is never without work for it. So what is
//! measured is the card's fairness, and not the system's. All requests go by the card; another row
//! has those that clients may carry out themselves, past the daemon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::fabric::FabricChoice;
use remora::nic::Access;
use remora::nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Status};
use remora::{
    CompletionQueue, ConnectionParams, Device, DeviceOptions, MemoryRegion, QueuePair,
    QueuePairOptions,
};
use remora_sim::percentile;

use super::super::daemon_process::Daemon;
use super::super::row::{Case, Row, Target};
use super::{PATIENCE, Wanted, again, spare_core};
use crate::child;
use crate::thread::spawn_scoped;

const NAMES: [&str; 2] = ["victim_p99", "victim_direct_p99"];
/// The clients that load the card.
const CLIENTS: usize = 16;
/// Bytes of their WRITEs; how many each has posted, and how many it posts at a time.
const BYTES: u32 = 64 << 10;
const DEPTH: u64 = 256;
const BATCH: u64 = 32;
/// The pause between two looks at their completions: long, since this thread takes time from the
/// others. The depth lasts longer.
const NAP: Duration = Duration::from_millis(2);
/// Reads before counting begins.
const WARM_UP: usize = 200;

/// The row of this file, if it is wanted.
pub(super) fn rows(wanted: &Wanted<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, by) in NAMES.into_iter().zip([FabricChoice::Udp, FabricChoice::Auto]) {
        if wanted.any(&[name]) {
            rows.extend(row(wanted, name, by)?);
        }
    }
    Ok(rows)
}

/// Without an alternative, all requests go by the card.
fn row(wanted: &Wanted<'_>, name: &'static str, by: FabricChoice) -> Result<Vec<Row>> {
    // This thread reads, on the first core.
    let daemon = Daemon::start(Some(spare_core(0).unwrap_or(1)), "auto")?;
    let attach = || DeviceOptions::new().attach(daemon.socket()).fabric(by).open();
    let reader = Pair::connect(&attach()?, &attach()?)?;
    let clients = (0..CLIENTS).map(|_| {
        let device = attach()?;
        Pair::connect(&device, &device)
    });
    let clients = clients.collect::<Result<Vec<Pair>>>()?;
    let time = Duration::from_secs_f64(wanted.extent.seconds);
    let moved = Moved::default();
    let rows = wanted.measure([Case::latency(
        name,
        "the card to itself",
        Target::AtMost(2.0),
        again(|| beside(&clients, &moved, || reader.p99_us(time))),
        again(|| reader.p99_us(time)),
    )])?;
    println!("{name}: {CLIENTS} clients moved {:.1} GB/s meanwhile", moved.rate());
    Ok(rows)
}

/// What the clients have moved while they loaded the card.
#[derive(Default)]
struct Moved {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Moved {
    /// In GB/s.
    fn rate(&self) -> f64 {
        let [bytes, time] =
            [&self.bytes, &self.nanoseconds].map(|count| count.load(Ordering::Relaxed) as f64);
        bytes / time
    }
}

/// Two queue pairs that are connected with each other.
struct Pair {
    queue: CompletionQueue,
    from: QueuePair,
    _to: QueuePair,
    here: MemoryRegion,
    there: MemoryRegion,
}

impl Pair {
    fn connect(one: &Device, other: &Device) -> Result<Pair> {
        let (queue, unused) = (one.create_cq(2 * DEPTH as usize)?, other.create_cq(1)?);
        let (near, far) = (one.alloc_pd()?, other.alloc_pd()?);
        let from = near.create_qp(&QueuePairOptions::rc(&queue).send_depth(2 * DEPTH as u32))?;
        let to = far.create_qp(&QueuePairOptions::rc(&unused))?;
        let params = ConnectionParams::new(one.info().mtu);
        from.connect(to.local(), &params)?;
        to.connect(from.local(), &params)?;
        let here = near.alloc(BYTES as usize, Access::all())?;
        let there = far.alloc(BYTES as usize, Access::all())?;
        Ok(Pair { queue, from, _to: to, here, there })
    }

    fn post(&self, op: SendOp, len: u32, flags: SendFlags) -> Result<()> {
        let sges = [self.here.sge(0, len)];
        self.from.post_send(&SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags })?;
        Ok(())
    }

    /// The 99th percentile of the time of a READ of 8 bytes, in µs.
    fn p99_us(&self, time: Duration) -> Result<f64> {
        let read = SendOp::Read { from: self.there.remote(0) };
        let mut times = Vec::with_capacity(1 << 16);
        let mut start = Instant::now();
        for count in 0.. {
            if count == WARM_UP {
                start = Instant::now();
                times.clear();
            }
            let before = Instant::now();
            self.post(read, 8, SendFlags::SIGNALED)?;
            ensure_success(&self.queue.spin(PATIENCE)?)?;
            times.push(before.elapsed().as_nanos() as f64 / 1e3);
            if count >= WARM_UP && start.elapsed() >= time {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        percentile(&times, 990).context("nothing was read")
    }

    /// Posts a batch of WRITEs, the last of which tells its end.
    fn post_writes(&self) -> Result<()> {
        let write = SendOp::Write { to: self.there.remote(0), imm: None };
        for _ in 1..BATCH {
            self.post(write, BYTES, SendFlags::empty())?;
        }
        self.post(write, BYTES, SendFlags::SIGNALED)
    }

    /// Takes completions; returns how many batches have ended.
    fn ended(&self) -> Result<u64> {
        let mut out = [Completion::default(); (DEPTH / BATCH) as usize];
        let found = self.queue.poll(&mut out)?;
        out[..found].iter().try_for_each(ensure_success)?;
        Ok(found as u64)
    }
}

fn ensure_success(done: &Completion) -> Result<()> {
    ensure!(done.status == Status::Success, "a request of the bench failed: {}", done.status);
    Ok(())
}

/// Runs `act` on the first core while `clients` write without a pause; adds the bytes that they
/// have written, and the time, to `moved`.
fn beside(clients: &[Pair], moved: &Moved, act: impl FnOnce() -> Result<f64>) -> Result<f64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = spawn_scoped(scope, "load", || keep_busy(clients, &stop, moved))?;
        let result = child::on_core(0, act);
        stop.store(true, Ordering::Relaxed);
        let load = load.join().ok().context("a thread panicked")?;
        load.context("the other clients could not go on")?;
        result
    })
}

/// Keeps every client's queue full until `stop` is set; then waits until all have ended.
fn keep_busy(clients: &[Pair], stop: &AtomicBool, moved: &Moved) -> Result<()> {
    let mut batches = 0;
    for client in clients {
        for _ in 0..DEPTH / BATCH {
            client.post_writes()?;
            batches += 1;
        }
    }
    let begin = Instant::now();
    let mut since = begin;
    while batches > 0 {
        thread::sleep(NAP);
        for client in clients {
            let ended = client.ended()?;
            batches -= ended;
            moved.bytes.fetch_add(ended * BATCH * u64::from(BYTES), Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                continue;
            }
            for _ in 0..ended {
                client.post_writes()?;
                batches += 1;
            }
            if ended > 0 {
                since = Instant::now();
            }
        }
        ensure!(since.elapsed() < PATIENCE, "the card has moved nothing for {PATIENCE:?}");
    }
    moved.nanoseconds.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    Ok(())
}
