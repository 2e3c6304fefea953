//! Many clients of a store's kernels in one thread, each with calls in flight: for rates.
//!
//! Calls of all of them leave by one doorbell, and all answers come to one completion queue.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::kernel::{CallStatus, Header};
use remora::nic::Access;
use remora::nic::kernel::{HEADER_LEN, Notify};
use remora::nic::queue::{Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use remora::{
    CompletionQueue, Connection, ConnectionParams, Device, MemoryRegion, PostBatch, QueuePair,
    QueuePairOptions,
};
use remora_store::way::call::{Operation, Refused};
use remora_store::way::hello::{Hello, Purpose};

const PATIENCE: Duration = Duration::from_secs(20);
/// Room for a call, and for its answer.
const CALL_LEN: usize = 8 << 10;
const ANSWER_LEN: usize = 8 << 10;
/// A status word, on a cache line of its own.
const WORD_LEN: usize = 64;
/// The most bytes of header and parameters that travel in the send element itself.
const INLINE: usize = 128;
/// The most bytes of a call that travel as its parameters: with the header they fit the smallest
/// path MTU.
const PARAMS_MAX: usize = 200;

/// The clients.
pub(super) struct Callers {
    device: Device,
    lines: Vec<QueuePair>,
    receives: CompletionQueue,
    memory: MemoryRegion,
    /// Places for calls that are free, and when the call in each began.
    places: RefCell<(Vec<usize>, Vec<Instant>)>,
    _connections: Vec<Connection>,
}

/// A run of calls.
pub(super) struct Ran {
    pub(super) time: Duration,
    /// The time of each call, in µs.
    pub(super) each_us: Vec<f64>,
}

impl Ran {
    /// Thousands of calls a second.
    pub(super) fn rate(&self) -> f64 {
        self.each_us.len() as f64 / self.time.as_secs_f64() / 1e3
    }
}

impl Callers {
    /// Connects `lines` clients, each of which has up to `depth` calls in flight.
    pub(super) fn connect(
        device: &Device,
        store: SocketAddr,
        lines: usize,
        depth: usize,
    ) -> Result<Callers> {
        let domain = device.alloc_pd()?;
        let places = lines * depth;
        let receives = device.create_cq(2 * places)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = domain.alloc(places * (CALL_LEN + ANSWER_LEN + WORD_LEN), access)?;
        let (mut queue_pairs, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..lines {
            let sends = device.create_cq(16)?;
            // A call keeps its element until it is acknowledged, which may be after its answer.
            let room = 32 * depth as u32;
            let shape = QueuePairOptions::rc(&sends)
                .recv_cq(&receives)
                .send_depth(room)
                .recv_depth(room)
                .inline(INLINE);
            let queue_pair = domain.create_qp(&shape)?;
            let params =
                ConnectionParams::new(device.info().mtu).access(access).kernels(true).timeout(17);
            let hello = Hello { purpose: Purpose::Calls, token: None, ticket: 0 }.to_bytes();
            let made = device.connect(queue_pair.clone(), store, &hello, &params).wait(PATIENCE);
            connections.push(made.context("a client cannot connect to the store")?);
            for _ in 0..depth {
                queue_pair.post_recv(&RecvRequest { wr_id: 0, sges: &[] })?;
            }
            queue_pairs.push(queue_pair);
        }
        // A line's calls are spread over the others', so that few in flight are of many lines.
        let free = (0..places).rev().collect();
        let places = RefCell::new((free, vec![Instant::now(); places]));
        let (device, lines) = (device.clone(), queue_pairs);
        Ok(Callers { device, lines, receives, memory, places, _connections: connections })
    }

    /// Calls `count` times, up to `in_flight` calls at a time. `next` writes the bytes of a call
    /// and says which operation it is. Each has to succeed.
    pub(super) fn run(
        &self,
        count: usize,
        in_flight: usize,
        next: impl FnMut(&mut Vec<u8>) -> Result<Operation>,
    ) -> Result<Ran> {
        self.run_for(CallStatus::OK, count, in_flight, next)
    }

    /// As [`Callers::run`], with calls whose condition does not hold.
    pub(super) fn run_refused(
        &self,
        count: usize,
        in_flight: usize,
        next: impl FnMut(&mut Vec<u8>) -> Result<Operation>,
    ) -> Result<Ran> {
        self.run_for(Refused::Condition.status(), count, in_flight, next)
    }

    fn run_for(
        &self,
        wanted: CallStatus,
        count: usize,
        in_flight: usize,
        mut next: impl FnMut(&mut Vec<u8>) -> Result<Operation>,
    ) -> Result<Ran> {
        let mut places = self.places.borrow_mut();
        let (free, began) = &mut *places;
        let (mut bytes, mut done) = (Vec::new(), [Completion::default(); 64]);
        let (mut begun, mut each_us) = (0, Vec::with_capacity(count));
        let in_flight = in_flight.min(free.len());
        let start = Instant::now();
        let (mut looks, mut last) = (0u32, start);
        while each_us.len() < count {
            let room = (in_flight - (begun - each_us.len())).min(count - begun);
            if room > 0 {
                let mut batch = self.device.post_batch();
                for place in free.drain(free.len() - room..) {
                    bytes.clear();
                    let operation = next(&mut bytes)?;
                    began[place] = Instant::now();
                    self.begin(&mut batch, place, operation, &bytes)?;
                }
                begun += room;
            }
            let ended = self.receives.poll(&mut done)?;
            let now = Instant::now();
            for answer in &done[..ended] {
                ensure!(answer.status == Status::Success, "no answer: {}", answer.status);
                let (status, place) = CallStatus::from_immediate(answer.imm_or_key);
                ensure!(status == wanted, "a call of the store ended with: {status}");
                each_us.push((now - began[place as usize]).as_nanos() as f64 / 1e3);
                free.push(place as usize);
                last = now;
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                ensure!(last.elapsed() < PATIENCE, "the store does not answer");
            }
        }
        Ok(Ran { time: start.elapsed(), each_us })
    }

    fn begin(
        &self,
        batch: &mut PostBatch<'_>,
        place: usize,
        operation: Operation,
        bytes: &[u8],
    ) -> Result<()> {
        let at = place * (CALL_LEN + ANSWER_LEN + WORD_LEN);
        let (answer, word) = (at + CALL_LEN, at + CALL_LEN + ANSWER_LEN);
        let short = bytes.len() <= PARAMS_MAX;
        let header = Header {
            notify: Notify::Both(self.memory.remote(word as u64)),
            local: false,
            params_len: if short { bytes.len() as u16 } else { 0 },
            to: self.memory.remote(answer as u64),
            max_len: ANSWER_LEN as u32,
            cookie: place as u64,
        };
        let line = &self.lines[place % self.lines.len()];
        batch.post_recv(line, &RecvRequest { wr_id: 0, sges: &[] })?;
        let (head, len) = (header.to_bytes(), HEADER_LEN + bytes.len());
        let opcode = operation.opcode();
        let op = if short { SendOp::Rpc { opcode } } else { SendOp::RpcWrite { opcode } };
        let mut inline = [0; INLINE];
        let sge;
        let data = if short && len <= INLINE {
            inline[..HEADER_LEN].copy_from_slice(&head);
            inline[HEADER_LEN..len].copy_from_slice(bytes);
            Data::Inline(&inline[..len])
        } else {
            ensure!(len <= CALL_LEN, "a call of {len} bytes is longer than its place");
            self.memory.write_at(at, &head)?;
            self.memory.write_at(at + HEADER_LEN, bytes)?;
            sge = [self.memory.sge(at as u64, len as u32)];
            Data::Sges(&sge)
        };
        let flags = SendFlags::empty();
        Ok(batch.post_send(line, &SendRequest { wr_id: 0, op, data, flags })?)
    }
}
