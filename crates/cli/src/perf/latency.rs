//! One operation at a time.
//!
//! WRITE and SEND are a ping-pong, and half a round trip is counted; for WRITE each side polls its
//! memory for the last byte, which holds a number that changes. READ and atomics are carried out by
//! the server's card alone, and the whole round trip is counted.

use std::time::Instant;

use anyhow::{Result, ensure};
use remora::nic::queue::{Completion, Data, RecvRequest, SendFlags, SendRequest};

use super::plan::{Until, Verb};
use super::session::{Session, Work, ensure_success};

/// Operations before counting begins.
const WARM_UP: u64 = 500;
/// Looks at memory between checks of the time and the connection.
const LOOKS: u32 = 256;

/// The times that operations took.
#[derive(Debug)]
pub(super) struct Latency {
    /// Operations in all, warm-up included.
    pub(super) messages: u64,
    /// Operations that were counted.
    pub(super) counted: u64,
    /// Times in nanoseconds, in rising order; a regular sample of them if there were very many.
    pub(super) samples: Vec<u64>,
}

/// Runs the client's side.
pub(super) fn measure(session: &mut Session, until: Until) -> Result<Latency> {
    let mut side = Side::new(session);
    let halves = if side.plays_to_and_fro() { 2 } else { 1 };
    let warm_up = match until {
        Until::Messages(n) => n.min(WARM_UP),
        Until::Elapsed(_) => WARM_UP,
    };
    for _ in 0..warm_up {
        side.client_turn()?;
    }
    let mut samples = Samples::default();
    let start = Instant::now();
    let mut before = start;
    loop {
        side.client_turn()?;
        let now = Instant::now();
        samples.add((now - before).as_nanos() as u64 / halves);
        before = now;
        let over = match until {
            Until::Messages(n) => samples.seen >= n,
            Until::Elapsed(time) => now - start >= time,
        };
        if over {
            break;
        }
    }
    side.drain()?;
    samples.kept.sort_unstable();
    let (messages, counted) = (warm_up + samples.seen, samples.seen);
    Ok(Latency { messages, counted, samples: samples.kept })
}

/// Answers a client of WRITE or SEND latency until the client says that it is done.
pub(super) fn answer(session: &mut Session) -> Result<u64> {
    let mut side = Side::new(session);
    while side.server_turn()? {}
    side.drain()?;
    Ok(side.received)
}

/// One side of the ping-pong.
struct Side<'a> {
    session: &'a mut Session,
    work: Work,
    /// The message, if it is sent inline.
    bytes: Vec<u8>,
    posted: u64,
    retired: u64,
    received: u64,
}

impl Side<'_> {
    fn new(session: &mut Session) -> Side<'_> {
        let work = session.work(0);
        let mut bytes = vec![0; if work.inline { session.plan.size as usize } else { 0 }];
        session.buffer().read_at(work.at, &mut bytes).expect("the outbox lies in the region");
        Side { session, work, bytes, posted: 0, retired: 0, received: 0 }
    }

    fn plays_to_and_fro(&self) -> bool {
        matches!(self.session.plan.verb, Verb::Write | Verb::Send)
    }

    fn client_turn(&mut self) -> Result<()> {
        if !self.plays_to_and_fro() {
            self.post(0, true)?;
            return self.drain();
        }
        self.post(number_of(self.posted), false)?;
        ensure!(self.wait(false)?, "the peer ended the test early");
        Ok(())
    }

    fn server_turn(&mut self) -> Result<bool> {
        if !self.wait(true)? {
            return Ok(false);
        }
        self.post(number_of(self.posted), false)?;
        Ok(true)
    }

    /// Sends the next message, whose last byte is `number`.
    fn post(&mut self, number: u8, signaled: bool) -> Result<()> {
        let plan = self.session.plan;
        while self.posted - self.retired >= u64::from(plan.depth) {
            self.retire_some()?;
        }
        let chunk = u64::from(plan.chunk());
        let signaled = signaled || (self.posted + 1).is_multiple_of(chunk);
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let request = if let Some(last) = self.bytes.last_mut() {
            *last = number;
            let data = Data::Inline(&self.bytes);
            SendRequest { wr_id: self.posted + 1, op: self.work.op, data, flags }
        } else {
            if self.plays_to_and_fro() {
                let last = self.work.at + plan.size as usize - 1;
                self.session.buffer().write_at(last, &[number])?;
            }
            self.work.request(self.posted + 1, flags)
        };
        self.session.qps[0].post_send(&request)?;
        self.posted += 1;
        Ok(())
    }

    /// Waits for the peer's next message. `false`: the client says that it is done.
    fn wait(&mut self, server: bool) -> Result<bool> {
        let number = number_of(self.received);
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                if self.has_come(number)? {
                    self.received += 1;
                    return Ok(true);
                }
            }
            if server && self.session.control.poll()?.is_some() {
                return Ok(false);
            }
            self.take_completions()?;
            self.session.ensure_alive()?;
            let since = start.get_or_insert_with(Instant::now).elapsed();
            let patience = self.session.patience;
            ensure!(since < patience, "no message from the peer for {patience:?}");
        }
    }

    /// Looks for the peer's next message, and drives the device if it has not come.
    fn has_come(&mut self, number: u8) -> Result<bool> {
        let session = &*self.session;
        let size = session.plan.size;
        if session.plan.verb == Verb::Write {
            let mut last = [0];
            session.buffer().read_at(size as usize - 1, &mut last)?;
            if last[0] != number {
                session.device.progress();
            }
            return Ok(last[0] == number);
        }
        let mut out = [Completion::default()];
        if session.recv_cq.poll(&mut out)? == 0 {
            return Ok(false);
        }
        ensure_success(&out[0])?;
        let sges = [session.region.sge(0, size)];
        session.qps[0].post_recv(&RecvRequest { wr_id: 0, sges: &sges })?;
        Ok(true)
    }

    /// Takes completions until all signaled requests have completed.
    fn drain(&mut self) -> Result<()> {
        let chunk = u64::from(self.session.plan.chunk());
        let reported =
            if self.plays_to_and_fro() { self.posted / chunk * chunk } else { self.posted };
        while self.retired < reported {
            self.retire_some()?;
        }
        Ok(())
    }

    fn retire_some(&mut self) -> Result<()> {
        // The card's retries take longer than a message should.
        let done = self.session.send_cq.spin(3 * self.session.patience)?;
        ensure_success(&done)?;
        self.retired = done.wr_id;
        Ok(())
    }

    /// Takes the completions that are in the queue.
    fn take_completions(&mut self) -> Result<()> {
        let mut out = [Completion::default(); 16];
        let found = self.session.send_cq.poll(&mut out)?;
        for done in &out[..found] {
            ensure_success(done)?;
            self.retired = done.wr_id;
        }
        Ok(())
    }
}

/// The last byte of message `i`: never the same twice in a row, and not 0 at first.
fn number_of(i: u64) -> u8 {
    (i % 255) as u8 + 1
}

/// Samples at regular distances, at most [`Samples::MAX`] of them.
#[derive(Debug)]
struct Samples {
    seen: u64,
    kept: Vec<u64>,
    /// Only every n-th time is kept.
    every: u64,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { seen: 0, kept: Vec::with_capacity(1 << 16), every: 1 }
    }
}

impl Samples {
    const MAX: usize = 1 << 23;

    fn add(&mut self, sample: u64) {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        self.kept.push(sample);
        if self.kept.len() == Samples::MAX {
            let mut i = 0;
            self.kept.retain(|_| {
                i += 1;
                i % 2 == 0
            });
            self.every *= 2;
        }
    }
}
