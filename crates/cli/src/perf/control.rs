//! The control connection: a queue pair of its own for the few messages around a test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use remora::nic::Access;
use remora::nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Status, WorkKind,
};
use remora::{CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair};
use remora::{QueuePairOptions, WaitError};

/// How long to wait for a silent peer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The number of messages that the peer may send before the first is taken.
const RECEIVES: u64 = 4;
/// Every control connection carries messages of at least this many bytes.
pub(super) const LEAST_ROOM: usize = 512;

/// One end of the control connection.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    /// Bytes of the longest message.
    room: u64,
    inbox: VecDeque<Vec<u8>>,
}

impl Control {
    /// An end for messages of at most `room` bytes. The caller connects [`Control::qp`], then calls
    /// [`Control::open`].
    pub(super) fn new(device: &Device, pd: &ProtectionDomain, room: usize) -> Result<Control> {
        let cq = device.create_cq(64)?;
        let qp = pd.create_qp(&QueuePairOptions::rc(&cq))?;
        let room = room.max(LEAST_ROOM) as u64;
        let region = pd.alloc(((RECEIVES + 1) * room) as usize, Access::LOCAL_WRITE)?;
        Ok(Control { qp, cq, region, room, inbox: VecDeque::new() })
    }

    /// Posts the receives. If a message comes before that, the peer's card sends it again.
    pub(super) fn open(&mut self) -> Result<()> {
        (0..RECEIVES).try_for_each(|i| self.post_recv(i))
    }

    fn post_recv(&self, i: u64) -> Result<()> {
        let sges = [self.region.sge(i * self.room, self.room as u32)];
        Ok(self.qp.post_recv(&RecvRequest { wr_id: i, sges: &sges })?)
    }

    /// Sends a message and waits until the peer's card has received it.
    pub(super) fn send(&mut self, message: &[u8], patience: Duration) -> Result<()> {
        ensure!(message.len() as u64 <= self.room, "a control message is too long");
        let at = RECEIVES * self.room;
        self.region.write_at(at as usize, message)?;
        let sges = [self.region.sge(at, message.len() as u32)];
        let op = SendOp::Send { imm: None, to: None };
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 0, op, data, flags })?;
        let end = Instant::now() + patience;
        loop {
            let completion = match self.cq.spin(end.saturating_duration_since(Instant::now())) {
                Err(WaitError::Timeout(_)) => bail!("the peer does not receive a control message"),
                other => other?,
            };
            if self.note(&completion)? {
                return Ok(());
            }
        }
    }

    /// Takes a message, if one has come.
    pub(super) fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        let mut out = [Completion::default()];
        if self.inbox.is_empty() && self.cq.poll(&mut out)? > 0 {
            self.note(&out[0])?;
        }
        Ok(self.inbox.pop_front())
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Vec<u8>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            ensure!(Instant::now() < end, "the peer has sent nothing for {patience:?}");
        }
    }

    /// Handles a completion; returns whether it was that of a sent message.
    fn note(&mut self, completion: &Completion) -> Result<bool> {
        ensure!(
            completion.status == Status::Success,
            "the control connection broke: {}",
            completion.status
        );
        if completion.kind != WorkKind::Recv {
            return Ok(true);
        }
        let mut message = vec![0; completion.len as usize];
        self.region.read_at((completion.wr_id * self.room) as usize, &mut message)?;
        self.inbox.push_back(message);
        self.post_recv(completion.wr_id)?;
        Ok(false)
    }
}
