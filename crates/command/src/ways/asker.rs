//! The near end of connections on which it asks by SEND: connections of chains, and of the far
//! end's CPU.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::nic::Access;
use remora::nic::queue::{Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use remora::{
    CompletionQueue, Connection, Device, MemoryRegion, PostBatch, ProtectionDomain, QueuePair,
    QueuePairOptions,
};

use super::agreed::{Ready, params};
use super::served::{REQUESTS, SAME};

const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const ANSWER_MAX: u32 = 64 << 10;

/// Connections to everything that the far end serves.
#[derive(Debug)]
pub struct Askers {
    /// Look-ups in one bucket, on connections that report to one completion queue.
    pub one: Vec<Asker>,
    /// Look-ups in two buckets, one after the other.
    pub sequential: Asker,
    /// Look-ups in two buckets, in two queues.
    pub parallel: Asker,
    /// Look-ups in lists, without break.
    pub unrolled: Asker,
    /// Look-ups in lists, with break.
    pub walking: Asker,
    /// The far end's CPU.
    pub cpu: Asker,
}

impl Askers {
    /// Connects, in the order in which the far end accepts.
    pub fn connect(device: &Device, pd: &ProtectionDomain, ready: &Ready) -> Result<Askers> {
        let shared = device.create_cq(4096)?;
        let connect = |which, cq| Asker::connect(device, pd, ready, (which, cq));
        let one = (0..SAME).map(|which| connect(which, Some(&shared))).collect::<Result<_>>()?;
        Ok(Askers {
            one,
            sequential: connect(0, None)?,
            parallel: connect(0, None)?,
            unrolled: connect(0, None)?,
            walking: connect(0, None)?,
            cpu: connect(0, None)?,
        })
    }
}

/// One connection.
#[derive(Debug)]
pub struct Asker {
    /// Its index among the connections that report to the same completion queue.
    which: u64,
    qp: QueuePair,
    cq: CompletionQueue,
    recv_cq: CompletionQueue,
    answers: MemoryRegion,
    /// Messages sent since their completions were last checked.
    sent: Cell<u32>,
    _connection: Connection,
}

impl Asker {
    fn connect(
        device: &Device,
        pd: &ProtectionDomain,
        ready: &Ready,
        (which, recv_cq): (usize, Option<&CompletionQueue>),
    ) -> Result<Asker> {
        let which = which as u64;
        let cq = device.create_cq(1024)?;
        let recv_cq = recv_cq.cloned().map_or_else(|| device.create_cq(1024), Ok)?;
        let qp = pd.create_qp(
            &QueuePairOptions::rc(&cq)
                .recv_cq(&recv_cq)
                .send_depth(4 * REQUESTS)
                .recv_depth(REQUESTS)
                .inline(64),
        )?;
        let answers = pd.alloc(ANSWER_MAX as usize, Access::LOCAL_WRITE)?;
        let connection =
            device.connect(qp.clone(), ready.card, &[], &params(device)).wait(PATIENCE)?;
        let asker =
            Asker { which, qp, cq, recv_cq, answers, sent: Cell::new(0), _connection: connection };
        // One more receive is posted with each message.
        (0..REQUESTS / 2).try_for_each(|_| asker.receive(&mut asker.qp.post_batch(), which))?;
        Ok(asker)
    }

    /// Posts a receive. All answers go to the same place, because each is used, or not, before the
    /// next is asked for.
    fn receive(&self, batch: &mut PostBatch<'_>, wr_id: u64) -> Result<()> {
        let request = RecvRequest { wr_id, sges: &[self.answers.sge(0, ANSWER_MAX)] };
        Ok(batch.post_recv(&self.qp, &request)?)
    }

    fn send(&self, batch: &mut PostBatch<'_>, message: &[u8]) -> Result<()> {
        let op = SendOp::Send { imm: None, to: None };
        let (data, flags) = (Data::Inline(message), SendFlags::SIGNALED);
        self.sent.set(self.sent.get() + 1);
        Ok(batch.post_send(&self.qp, &SendRequest { wr_id: 0, op, data, flags })?)
    }

    /// Checks the completions of sent messages from time to time.
    fn tidy(&self) -> Result<()> {
        let mut done = [Completion::default(); REQUESTS as usize];
        while self.sent.get() >= REQUESTS {
            let count = self.cq.poll(&mut done)?;
            self.sent.set(self.sent.get() - count as u32);
            let failed = done[..count].iter().find(|c| c.status != Status::Success);
            ensure!(failed.is_none(), "a message was not taken: {failed:?}");
        }
        Ok(())
    }

    /// Asks, waits, and returns the length of the answer.
    pub fn ask(&self, message: &[u8]) -> Result<u32> {
        self.tidy()?;
        let mut batch = self.qp.post_batch();
        self.receive(&mut batch, self.which)?;
        self.send(&mut batch, message)?;
        drop(batch);
        let answer = self.recv_cq.spin(PATIENCE).context("no answer")?;
        ensure!(answer.status == Status::Success, "no answer: {}", answer.status);
        Ok(answer.len)
    }

    /// The bytes of the last answer.
    pub fn answer(&self, len: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.answers.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends a message that has no answer.
    pub fn tell(&self, message: &[u8]) -> Result<()> {
        self.tidy()?;
        self.send(&mut self.qp.post_batch(), message)
    }
}

/// Asks `count` times, `each` at a time on each of these connections, which report to one
/// completion queue; returns the time it took.
pub fn ask_many(
    askers: &[Asker],
    each: usize,
    count: usize,
    mut message: impl FnMut() -> Vec<u8>,
) -> Result<Duration> {
    let recv_cq = &askers.first().context("no connection to ask on")?.recv_cq;
    let mut done = [Completion::default(); 64];
    let (mut asked, mut answered) = (0, 0);
    let start = Instant::now();
    let mut free: Vec<usize> = (0..askers.len() * each).map(|i| i % askers.len()).collect();
    while answered < count {
        let mut batch = askers[0].qp.post_batch();
        for which in free.drain(..).take(count - asked) {
            askers[which].receive(&mut batch, which as u64)?;
            askers[which].send(&mut batch, &message())?;
            asked += 1;
        }
        drop(batch);
        let taken = recv_cq.poll(&mut done)?;
        for answer in &done[..taken] {
            ensure!(answer.status == Status::Success, "no answer: {}", answer.status);
            askers[answer.wr_id as usize].tidy()?;
            free.push(answer.wr_id as usize);
        }
        answered += taken;
    }
    Ok(start.elapsed())
}
