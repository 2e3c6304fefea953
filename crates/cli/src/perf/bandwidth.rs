//! Many operations in flight.
//!
//! Each queue pair has a few *turns*, which together fill its depth. A turn is a chunk of requests,
//! of which the last is signaled; on its completion the turn is posted again. So the loop never
//! scans all queue pairs, and one batch posts to many of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use remora::nic::queue::{Completion, Data, RecvRequest, SendFlags, SendRequest};

use super::plan::{Until, Verb};
use super::session::{Session, Work, ensure_success};

/// The most requests posted in one batch, before completions are polled.
const BATCH: u32 = 512;
/// Completions taken in one call.
const TAKE: usize = 64;
/// Steps between polls of the control connection, on the passive side.
const LOOKS: u32 = 256;

/// The amount of data moved, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bandwidth {
    pub(super) messages: u64,
    pub(super) time: Duration,
}

/// A queue pair and the requests it has left.
struct Lane {
    work: Work,
    left: u64,
}

/// Runs the client's side.
pub(super) fn measure(session: &mut Session, until: Until) -> Result<Bandwidth> {
    let plan = session.plan;
    let per_lane = match until {
        Until::Messages(n) => n,
        Until::Elapsed(_) => u64::MAX,
    };
    let lanes = (0..plan.qps as usize).map(|i| Lane { work: session.work(i), left: per_lane });
    let mut lanes: Vec<Lane> = lanes.collect();
    let turns = plan.depth / plan.chunk();
    let mut ready: Vec<u32> = (0..turns).flat_map(|_| (0..plan.qps).rev()).collect();
    let mut inline = vec![0; plan.size.min(64) as usize];
    session.buffer().read_at(lanes[0].work.at, &mut inline)?;
    let mut out = [Completion::default(); TAKE];
    let (mut posted, mut done, patience) = (0, 0, 3 * session.patience);
    let start = Instant::now();
    let mut last_seen = start;
    while !ready.is_empty() || done < posted {
        posted += post(session, &mut lanes, &mut ready, &inline)?;
        let found = session.send_cq.poll(&mut out)?;
        for completion in &out[..found] {
            ensure_success(completion)?;
            done += completion.wr_id >> 32;
            ready.push(completion.wr_id as u32);
        }
        let now = Instant::now();
        if found > 0 {
            last_seen = now;
        }
        ensure!(now - last_seen < patience, "no completion for {patience:?}");
        if matches!(until, Until::Elapsed(time) if now - start >= time) {
            ready.clear();
        }
    }
    Ok(Bandwidth { messages: done, time: start.elapsed() })
}

/// Posts the turns that are ready; returns the number of requests.
fn post(session: &Session, lanes: &mut [Lane], ready: &mut Vec<u32>, inline: &[u8]) -> Result<u64> {
    if ready.is_empty() {
        return Ok(0);
    }
    let chunk = session.plan.chunk();
    let mut posted = 0;
    let mut batch = session.device.post_batch();
    while posted < u64::from(BATCH) {
        let Some(i) = ready.pop() else { break };
        let lane = &mut lanes[i as usize];
        let count = lane.left.min(u64::from(chunk));
        lane.left -= count;
        for nth in 1..=count {
            let (wr_id, flags) = if nth == count {
                (count << 32 | u64::from(i), SendFlags::SIGNALED)
            } else {
                (0, SendFlags::empty())
            };
            let request = if lane.work.inline {
                SendRequest { wr_id, op: lane.work.op, data: Data::Inline(inline), flags }
            } else {
                lane.work.request(wr_id, flags)
            };
            batch.post_send(&session.qps[i as usize], &request)?;
        }
        posted += count;
    }
    Ok(posted)
}

/// Serves a client until the client says that it is done; returns the number of messages received.
pub(super) fn serve(session: &mut Session) -> Result<u64> {
    let (mut received, patience) = (0, session.patience);
    let mut last_moved = Instant::now();
    loop {
        let mut moved = false;
        for _ in 0..LOOKS {
            if session.plan.verb == Verb::Send {
                let taken = take(session)?;
                received += taken;
                // (A long message is under way for long before it is received.)
                moved |= taken > 0 || session.device.progress();
            } else {
                // What goes by another process's card is not seen here.
                moved |= session.device.progress() | session.device.is_attached();
            }
        }
        let over = session.control.poll()?.is_some();
        if over {
            // The client says so only when everything is acknowledged.
            loop {
                let taken = take(session)?;
                received += taken;
                if taken == 0 {
                    return Ok(received);
                }
            }
        }
        if moved {
            last_moved = Instant::now();
        }
        session.ensure_alive()?;
        ensure!(last_moved.elapsed() < patience, "nothing from the client for {patience:?}");
    }
}

/// Takes receive completions and posts the requests again.
fn take(session: &Session) -> Result<u64> {
    let mut out = [Completion::default(); TAKE];
    let found = session.recv_cq.poll(&mut out)?;
    if found == 0 {
        return Ok(0);
    }
    let mut batch = session.device.post_batch();
    for completion in &out[..found] {
        ensure_success(completion)?;
        let i = completion.wr_id as usize;
        let sges = [session.region.sge(session.plan.inbox(i), session.plan.size)];
        batch.post_recv(&session.qps[i], &RecvRequest { wr_id: i as u64, sges: &sges })?;
    }
    Ok(found as u64)
}
