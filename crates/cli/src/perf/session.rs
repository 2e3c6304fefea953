//! Two connected ends, ready to run a test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::nic::queue::{
    Completion, Data, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora::nic::wire::Dialect;
use remora::nic::{Access, Psn, qp::Mtu};
use remora::{
    CompletionQueue, Connection, ConnectionParams, Device, IncomingConnection, MemoryRegion, Peer,
    ProtectionDomain, QueuePair, QueuePairOptions,
};

use super::control::{Control, PATIENCE};
use super::pattern;
use super::plan::{Mode, Plan, Verb};
use crate::failure::told;

/// The longest message that is sent inline.
const INLINE_MAX: u32 = 64;
/// The time from one look at the connection to the next.
const ASK: Duration = Duration::from_millis(20);
/// The bytes of the fixed part of an introduction, and of each queue pair in it.
const INTRODUCTION: usize = 16;
const PER_QP: usize = 8;

/// One end of a test.
pub(super) struct Session {
    pub(super) plan: Plan,
    pub(super) device: Device,
    pub(super) control: Control,
    pub(super) qps: Vec<QueuePair>,
    pub(super) send_cq: CompletionQueue,
    pub(super) recv_cq: CompletionQueue,
    /// The memory of messages: see [`Plan::inbox`] and [`Plan::outbox`].
    pub(super) region: MemoryRegion,
    /// The peer's region.
    remote: RemoteAddress,
    /// The agreed path MTU.
    pub(super) mtu: Mtu,
    /// The queue pairs speak the lossy dialect.
    pub(super) lossy: bool,
    /// How long nothing may be heard of the peer.
    pub(super) patience: Duration,
    /// When the connection is looked at next.
    ask_at: Instant,
    /// This process is to end.
    pub(super) stop: Arc<AtomicBool>,
    /// Disconnects when dropped, which comes after the queue pairs.
    pub(super) connection: Connection,
}

impl Session {
    /// Connects to a server; `mtu` is the largest path MTU to use.
    pub(super) fn connect(
        device: &Device,
        plan: Plan,
        mtu: Option<Mtu>,
        node: SocketAddr,
    ) -> Result<Session> {
        let half = Half::new(device, plan)?;
        let params = ConnectionParams::new(device.info().mtu);
        let qp = half.control.qp.clone();
        let connection = device
            .connect(qp, node, &plan.encode(), &params)
            .wait(PATIENCE)
            .with_context(|| format!("cannot connect to {node} (is `remora perf serve` there?)"))?;
        let link = device.info().mtu;
        half.meet(connection, mtu.map_or(link, |mtu| mtu.min(link)), true)
    }

    /// Accepts a client whose plan has been read.
    pub(super) fn accept(
        device: &Device,
        plan: Plan,
        incoming: IncomingConnection,
    ) -> Result<Session> {
        let half = match Half::new(device, plan) {
            Ok(half) => half,
            Err(error) => {
                incoming.reject(&told(&error));
                return Err(error);
            }
        };
        let params = ConnectionParams::new(device.info().mtu);
        let qp = half.control.qp.clone();
        let connection = incoming.accept(qp, &[], &params).wait(PATIENCE)?;
        half.meet(connection, device.info().mtu, false)
    }

    /// The peer's memory from `offset` on.
    pub(super) fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.remote.addr.wrapping_add(offset), rkey: self.remote.rkey }
    }

    /// The memory under the region.
    pub(super) fn buffer(&self) -> &remora::memory::Buffer {
        self.region.buffer().expect("the region was made with a buffer")
    }

    /// The request that queue pair `i` makes again and again.
    pub(super) fn work(&self, i: usize) -> Work {
        let plan = &self.plan;
        let (inbox, outbox) = (plan.inbox(i), plan.outbox(i));
        let (op, at) = match plan.verb {
            Verb::Write => (SendOp::Write { to: self.remote(inbox), imm: None }, outbox),
            Verb::Read => (SendOp::Read { from: self.remote(outbox) }, inbox),
            Verb::Send => (SendOp::Send { imm: None, to: None }, outbox),
            Verb::Atomic => (SendOp::FetchAdd { at: self.remote(inbox), add: 1 }, outbox),
        };
        let inline = matches!(plan.verb, Verb::Write | Verb::Send) && plan.size <= INLINE_MAX;
        Work { op, sges: [self.region.sge(at, plan.size)], at: at as usize, inline }
    }

    /// Checks that the control connection is still established, at most once in [`ASK`]: another
    /// process may have the card, and takes longer to answer than a message.
    pub(super) fn ensure_alive(&mut self) -> Result<()> {
        let now = Instant::now();
        if now < self.ask_at {
            return Ok(());
        }
        self.ask_at = now + ASK;
        ensure!(!self.stop.load(Ordering::Relaxed), "this process was told to end");
        let alive = self.connection.end() == remora::ConnectionEnd::Alive;
        ensure!(alive, "the peer has closed the connection");
        Ok(())
    }
}

/// A request that is posted many times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) op: SendOp,
    pub(super) sges: [Sge; 1],
    /// The place of the data in the region.
    pub(super) at: usize,
    /// Is the message short enough to travel in the element?
    pub(super) inline: bool,
}

impl Work {
    /// The request, with data from (or for) the region.
    pub(super) fn request(&self, wr_id: u64, flags: SendFlags) -> SendRequest<'_> {
        SendRequest { wr_id, op: self.op, data: Data::Sges(&self.sges), flags }
    }
}

/// Fails unless the completion reports success.
pub(super) fn ensure_success(completion: &Completion) -> Result<()> {
    let Completion { status, qpn, .. } = *completion;
    ensure!(status == Status::Success, "queue pair {qpn:#x}: {status}");
    Ok(())
}

/// An end that does not know the other yet.
struct Half {
    plan: Plan,
    device: Device,
    pd: ProtectionDomain,
    control: Control,
    region: MemoryRegion,
}

impl Half {
    fn new(device: &Device, plan: Plan) -> Result<Half> {
        let pd = device.alloc_pd()?;
        let control = Control::new(device, &pd, INTRODUCTION + PER_QP * plan.qps as usize)?;
        let region = pd.alloc((2 * plan.half()) as usize, Access::all())?;
        Ok(Half { plan, device: device.clone(), pd, control, region })
    }

    /// Makes the queue pairs, exchanges introductions with the peer, and connects the queue pairs.
    /// The server receives first, so that its queue pairs are ready when the client learns of them.
    fn meet(mut self, connection: Connection, mtu: Mtu, client: bool) -> Result<Session> {
        let plan = self.plan;
        self.control.open()?;
        let entries = plan.qps as usize * (plan.depth as usize).next_power_of_two() + 64;
        let entries = entries.min(self.device.limits().max_cqe);
        let send_cq = self.device.create_cq(entries)?;
        let recv_cq = self.device.create_cq(entries)?;
        let receives = plan.verb == Verb::Send && (plan.mode == Mode::Lat || !client);
        let options = QueuePairOptions::rc(&send_cq)
            .recv_cq(&recv_cq)
            .send_depth(plan.depth)
            .recv_depth(if receives { plan.depth } else { 1 })
            .inline(INLINE_MAX as usize);
        let qps =
            (0..plan.qps).map(|_| self.pd.create_qp(&options)).collect::<Result<Vec<_>, _>>()?;
        let mine = self.introduction(mtu, &qps);
        pattern::fill(&self.region, &plan, if client { pattern::CLIENT } else { pattern::SERVER })?;
        if client {
            self.control.send(&mine, PATIENCE)?;
        }
        let hello = self.control.receive(PATIENCE)?;
        let (remote, their_mtu, peers) = parse_introduction(&hello, connection.peer(), qps.len())?;
        let mtu = mtu.min(their_mtu);
        // The cards have agreed on a dialect for the control connection; the others have the same.
        let lossy = connection.queue_pair().dialect().contains(Dialect::LOSSY);
        let params = ConnectionParams::new(mtu).lossy(lossy);
        for (qp, peer) in qps.iter().zip(peers) {
            qp.connect(peer, &params)?;
        }
        let mut session = Session {
            plan,
            device: self.device,
            control: self.control,
            qps,
            send_cq,
            recv_cq,
            region: self.region,
            remote,
            mtu,
            lossy,
            patience: if client { plan.patience() } else { plan.patience_of_server() },
            ask_at: Instant::now() + ASK,
            stop: Arc::default(),
            connection,
        };
        if receives {
            session.post_all_receives()?;
        }
        if !client {
            session.control.send(&mine, PATIENCE)?;
        }
        Ok(session)
    }

    fn introduction(&self, mtu: Mtu, qps: &[QueuePair]) -> Vec<u8> {
        let RemoteAddress { addr, rkey } = self.region.remote(0);
        let mut out = addr.to_be_bytes().to_vec();
        out.extend(rkey.to_be_bytes());
        out.extend(u32::from(mtu.code()).to_be_bytes());
        for local in qps.iter().map(QueuePair::local) {
            out.extend(local.qpn.to_be_bytes());
            out.extend(local.psn.value().to_be_bytes());
        }
        out
    }
}

impl Session {
    fn post_all_receives(&mut self) -> Result<()> {
        let mut batch = self.device.post_batch();
        for (i, qp) in self.qps.iter().enumerate() {
            let sges = [self.region.sge(self.plan.inbox(i), self.plan.size)];
            for _ in 0..self.plan.depth.next_power_of_two() {
                let request = remora::nic::queue::RecvRequest { wr_id: i as u64, sges: &sges };
                batch.post_recv(qp, &request)?;
            }
        }
        Ok(())
    }
}

fn parse_introduction(
    bytes: &[u8],
    peer: SocketAddr,
    qps: usize,
) -> Result<(RemoteAddress, Mtu, impl Iterator<Item = Peer>)> {
    ensure!(
        bytes.len() == INTRODUCTION + PER_QP * qps,
        "the peer's introduction has an unknown form"
    );
    let number =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let addr = u64::from(number(0)) << 32 | u64::from(number(4));
    let mtu = u8::try_from(number(12)).ok().and_then(Mtu::from_code);
    let mtu = mtu.context("the peer names an unknown MTU")?;
    let peers = bytes[INTRODUCTION..].chunks_exact(PER_QP).map(move |qp| {
        let number = |at: usize| u32::from_be_bytes([qp[at], qp[at + 1], qp[at + 2], qp[at + 3]]);
        Peer { address: peer.ip(), qpn: number(0), psn: Psn::new(number(4)) }
    });
    Ok((RemoteAddress { addr, rkey: number(8) }, mtu, peers))
}
