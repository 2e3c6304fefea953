//! The near end: starts the far end, connects to it, and moves bytes one-sided.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::kernel::KernelClient;
use remora::nic::Access;
use remora::nic::queue::{
    Completion, Data, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora::{Connection, Device, MemoryRegion, QueuePair};

use super::agreed::{End, PeerRegion, Ready, params};
use super::asker::Askers;
use super::image::Image;
use super::rpc;
use crate::child::{self, Helper};
use crate::draws::Pauses;

const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of a call's result.
const RESULT_LEN: usize = 64 << 10;
/// Bytes of a WRITE that fills the peer's memory.
const PIECE: u64 = 1 << 20;
/// The most of a stream in flight: in messages, and in bytes.
const IN_FLIGHT: usize = 256;
const BYTES_IN_FLIGHT: usize = 16 << 20;

/// The sizes of memory, and the features and cores of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Bytes for structures at the far end, and at this end.
    pub memory: u64,
    /// Bytes of memory at this end.
    pub local: u64,
    /// Bytes for each stream at the far end.
    pub stream: u64,
    /// The number of kernels that the far end loads as WebAssembly.
    pub loaded: u64,
    /// Bytes that a store at the far end may take; 0 for none.
    pub store: u64,
    /// Whether the far end serves chains, too.
    pub chains: bool,
    /// Whether to pin each end to a core of its own.
    pub pin: bool,
}

/// The near end, connected to a far end that ends with it.
#[derive(Debug)]
pub struct Client {
    /// What the far end has.
    pub ready: Ready,
    /// The card of this end.
    pub device: Device,
    /// Registered memory for bytes to send and for the results of READs.
    pub local: MemoryRegion,
    /// Calls kernels.
    pub kernels: RefCell<KernelClient>,
    /// Calls on the queue pair of the streams.
    pub stream_kernels: RefCell<KernelClient>,
    /// Calls by TCP.
    pub rpc: RefCell<rpc::Client>,
    pauses: RefCell<Pauses>,
    askers: Option<Askers>,
    calls: End,
    streams: End,
    _connections: [Connection; 2],
    helper: Helper,
}

/// A WRITE stream: the number of messages, and their length.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Where the WRITEs go.
    pub to: PeerRegion,
    /// Bytes of each WRITE.
    pub size: u32,
    /// How many.
    pub count: usize,
    /// Whether the peer's application gets a completion for each message.
    pub told: bool,
}

impl Client {
    /// Starts the far end, and connects.
    ///
    /// # Errors
    /// The other process cannot be started, or does not answer.
    pub fn start(setup: Setup) -> Result<Client> {
        let Setup { memory, stream, loaded, store, .. } = setup;
        let numbers = [memory, stream, loaded, store].map(|number| number.to_string());
        let [memory, stream, loaded, store] = numbers.each_ref();
        let mut args = vec!["ways", "--memory", memory, "--stream", stream, "--loaded", loaded];
        args.extend(["--store", store]);
        if setup.pin {
            args.extend(["--pin", "1"]);
        }
        if setup.chains {
            args.push("--chains");
        }
        let mut helper = Helper::start(args)?;
        if setup.pin {
            // After the other end is started, which would inherit it.
            child::pin(0)?;
        }
        let line = helper.line().context("the other end did not start")?;
        let ready: Ready =
            serde_json::from_str(&line).context("cannot understand the other end's first line")?;
        let device = Device::open()?;
        let pd = device.alloc_pd()?;
        let local = pd.alloc(setup.local as usize, Access::LOCAL_WRITE)?;
        let connect = || -> Result<(End, Connection)> {
            let end = End::new(&device, &pd)?;
            let made =
                device.connect(end.qp.clone(), ready.card, &[], &params(&device)).wait(PATIENCE)?;
            Ok((end, made))
        };
        let ((calls, first), (streams, second)) = (connect()?, connect()?);
        let askers = || Askers::connect(&device, &pd, &ready);
        let askers = setup.chains.then(askers).transpose()?;
        let rpc = rpc::Client::connect(ready.tcp)?;
        let kernels = KernelClient::new(&pd, &calls.qp, &calls.recv_cq, 8, RESULT_LEN)?;
        let stream_kernels = KernelClient::new(&pd, &streams.qp, &streams.recv_cq, 1, RESULT_LEN)?;
        Ok(Client {
            ready,
            device,
            local,
            kernels: kernels.into(),
            stream_kernels: stream_kernels.into(),
            rpc: rpc.into(),
            pauses: Pauses::new(2).into(),
            askers,
            calls,
            streams,
            _connections: [first, second],
            helper,
        })
    }

    /// The queue pair on which kernels are called.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.calls.qp
    }

    /// The process id of the far end.
    pub fn peer_id(&self) -> u32 {
        self.helper.id()
    }

    /// Fills the peer's memory, by WRITEs.
    pub fn load(&self, image: &Image) -> Result<()> {
        let bytes = image.bytes();
        let piece = PIECE.min(self.local.len());
        for (i, part) in bytes.chunks(piece as usize).enumerate() {
            self.local.write_at(0, part)?;
            let to = remote(self.ready.memory, image.base() + i as u64 * piece);
            let op = SendOp::Write { to, imm: None };
            self.verb(op, self.local.sge(0, part.len() as u32))?;
        }
        Ok(())
    }

    /// READs from the peer's memory into local memory, from its first byte on.
    pub fn read(&self, addr: u64, len: u32) -> Result<()> {
        self.read_from(remote(self.ready.memory, addr), len)
    }

    /// As [`Client::read`], from any region.
    pub fn read_from(&self, from: RemoteAddress, len: u32) -> Result<()> {
        self.verb(SendOp::Read { from }, self.local.sge(0, len))
    }

    /// Pauses after a request, before the first poll for its answer.
    pub(super) fn pause(&self) {
        self.pauses.borrow_mut().pause();
    }

    fn verb(&self, op: SendOp, sge: Sge) -> Result<()> {
        let (data, flags) = (Data::Sges(&[sge]), SendFlags::SIGNALED);
        self.calls.qp.post_send(&SendRequest { wr_id: 0, op, data, flags })?;
        self.pause();
        let status = self.calls.cq.spin(PATIENCE)?.status;
        ensure!(status == Status::Success, "an operation failed: {status}");
        Ok(())
    }

    /// WRITEs messages from local memory, beginning at `from` and going through `to.len` bytes in
    /// turn, and waits until all are acknowledged; returns the time it took.
    pub fn stream(&self, from: u64, stream: Stream) -> Result<Duration> {
        let Stream { to, size, count, told } = stream;
        let places = (to.len.min(self.local.len() - from) / u64::from(size)).max(1) as usize;
        let messages = (0..count).map(|i| {
            let at = (i % places) as u64 * u64::from(size);
            (from + at, remote(to, to.addr + at), size, told.then_some((at / 8) as u32))
        });
        self.write_all(messages)
    }

    /// WRITEs pieces of local memory (from, to, length), and waits until all of them are
    /// acknowledged.
    pub fn write_all(
        &self,
        messages: impl Iterator<Item = (u64, RemoteAddress, u32, Option<u32>)>,
    ) -> Result<Duration> {
        let mut messages = messages.peekable();
        let mut done = [Completion::default(); 64];
        let (mut in_flight, mut bytes) = (0usize, 0usize);
        let start = Instant::now();
        while in_flight > 0 || messages.peek().is_some() {
            let mut batch = self.streams.qp.post_batch();
            while in_flight < IN_FLIGHT
                && bytes < BYTES_IN_FLIGHT
                && let Some((from, to, len, imm)) = messages.next()
            {
                let sges = [self.local.sge(from, len)];
                let op = SendOp::Write { to, imm };
                let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
                let request = SendRequest { wr_id: u64::from(len), op, data, flags };
                batch.post_send(&self.streams.qp, &request)?;
                in_flight += 1;
                bytes += len as usize;
            }
            drop(batch);
            let count = self.streams.cq.poll(&mut done)?;
            for completion in &done[..count] {
                let status = completion.status;
                ensure!(status == Status::Success, "a WRITE failed: {status}");
                in_flight -= 1;
                bytes -= completion.wr_id as usize;
            }
        }
        Ok(start.elapsed())
    }

    /// The chains' connections.
    pub fn askers(&self) -> Result<&Askers> {
        self.askers.as_ref().context("the other end serves no chains")
    }

    /// Runs `work` while the peer's host sleeps and wakes only for messages to its CPU.
    pub fn asleep<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        self.rpc.borrow_mut().call(rpc::Op::Sleep, &[], &mut Vec::new())?;
        let result = work();
        self.askers()?.cpu.tell(&[])?;
        result
    }

    /// Runs `work` while this many threads write on the peer's host.
    pub fn with_writers<R>(&self, writers: u64, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let call = |writers: u64| {
            self.rpc.borrow_mut().call(rpc::Op::Writers, &writers.to_le_bytes(), &mut Vec::new())
        };
        call(writers)?;
        let result = work();
        call(0)?;
        result
    }

    /// READs `len` bytes `count` times, from a place drawn anew each time, 8 READs at a time.
    pub fn read_many(
        &self,
        count: usize,
        len: u32,
        mut from: impl FnMut() -> u64,
    ) -> Result<Duration> {
        let mut done = [Completion::default(); 64];
        let (mut asked, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < count {
            let mut batch = self.calls.qp.post_batch();
            while asked < count.min(answered + 8) {
                let op = SendOp::Read { from: remote(self.ready.memory, from()) };
                let sges = [self.local.sge(0, len)];
                let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
                batch.post_send(&self.calls.qp, &SendRequest { wr_id: 0, op, data, flags })?;
                asked += 1;
            }
            drop(batch);
            let taken = self.calls.cq.poll(&mut done)?;
            let failed = done[..taken].iter().find(|c| c.status != Status::Success);
            ensure!(failed.is_none(), "a READ failed: {failed:?}");
            answered += taken;
        }
        Ok(start.elapsed())
    }

    /// Runs `work` while the peer's CPU answers RPCs and does not drive its card.
    pub fn with_rpcs<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        self.rpc.borrow_mut().call(rpc::Op::Begin, &[], &mut Vec::new())?;
        let result = work();
        self.rpc.borrow_mut().call(rpc::Op::End, &[], &mut Vec::new())?;
        result
    }

    /// Runs `work` while this many threads of the peer's application count what is streamed.
    pub fn with_threads<R>(&self, threads: usize, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let call = |threads: u64| {
            self.rpc.borrow_mut().call(rpc::Op::Threads, &threads.to_le_bytes(), &mut Vec::new())
        };
        call(threads as u64)?;
        let result = work();
        call(1)?;
        result
    }

    /// Waits until the peer's application has counted this many streamed messages; returns its
    /// estimate of the number of distinct values.
    pub fn wait_for_application(&self, count: u64) -> Result<f64> {
        let mut out = Vec::new();
        self.rpc.borrow_mut().call(rpc::Op::Streamed, &count.to_le_bytes(), &mut out)?;
        let estimate = out.try_into().ok().context("cannot understand the other end's answer")?;
        Ok(f64::from_le_bytes(estimate))
    }
}

/// The remote address `addr` in a region.
pub fn remote(place: PeerRegion, addr: u64) -> RemoteAddress {
    RemoteAddress { addr, rkey: place.rkey }
}
