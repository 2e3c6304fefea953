//! The services of the far end besides memory and kernels: chains, one for each connection; the
//! same work by its CPU, requested by SEND (two-sided); and writers that keep its processor busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use remora::nic::Access;
use remora::nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora::offload::chain::offload::list::{self, NODE};
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::offload::table::{KEY_MAX, SLOT, Table, Value};
use remora::offload::chain::program::Program;
use remora::{
    Chain, CompletionChannel, CompletionQueue, Connection, ConnectionParams, Device, Listener,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions,
};

use super::agreed::params;
use super::rpc::word;

const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that offer the same look-up, for throughput.
pub const SAME: usize = 8;
/// Nodes that a list's chain without break examines.
pub const NODES: usize = 8;
/// Messages that may be under way to the CPU.
pub const REQUESTS: u32 = 64;
/// The most bytes of such a message.
const REQUEST_LEN: u32 = 64;
/// Keys of a writer, and bytes of its values.
const WRITER_KEYS: u64 = 10_000;
const WRITER_VALUE: usize = 64;

/// A look-up in one bucket, without collisions.
pub const ONE: Lookup = Lookup { buckets: 1, slots: 1, parallel: false };
/// Both ends make their connections in this order, and then the connection with the CPU.
pub const LOOKUPS: [Lookup; SAME + 2] = {
    let mut all = [ONE; SAME + 2];
    all[SAME] = Lookup::HOPSCOTCH;
    all[SAME + 1] = Lookup::HOPSCOTCH.in_parallel();
    all
};

/// The programs, in the order of their connections.
fn programs() -> Vec<Program> {
    let lookups = LOOKUPS.iter().map(Lookup::program);
    lookups.chain([list::unrolled(NODES), list::walking()]).collect()
}

/// The parameters of a client's connection to a chain: the client sends, and reaches no memory.
fn closed(device: &Device) -> ConnectionParams {
    params(device).access(Access::empty())
}

/// All services, at work.
#[derive(Debug)]
pub struct Served {
    _chains: Vec<(Chain, Connection)>,
    cpu: Cpu,
    writers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Served {
    /// Accepts the connections.
    pub fn accept(
        device: &Device,
        pd: &ProtectionDomain,
        listener: &Listener,
        memory: &MemoryRegion,
    ) -> Result<Served> {
        let accept = |qp: &QueuePair| -> Result<Connection> {
            let incoming = listener.accept().wait(PATIENCE).context("no client connects")?;
            Ok(incoming.accept(qp.clone(), &[], &closed(device)).wait(PATIENCE)?)
        };
        let mut chains = Vec::new();
        for program in programs() {
            let chain = pd.load_chain(&program, &[memory.clone(), memory.clone()])?;
            let connection = accept(chain.client().context("a service has a client")?)?;
            chain.start()?;
            chains.push((chain, connection));
        }
        let mut cpu = Cpu::new(device, pd, memory)?;
        cpu.connection = Some(accept(&cpu.qp)?);
        (0..REQUESTS.into()).try_for_each(|slot| cpu.receive(slot))?;
        Ok(Served { _chains: chains, cpu, writers: Vec::new(), stop: Arc::default() })
    }

    /// Answers the messages that have come for the CPU, and drives the card if there are none.
    pub fn look(&mut self) -> Result<()> {
        self.cpu.look().map(|_| ())
    }

    /// Sleeps, waking only to answer messages for the CPU, until an empty message comes. The card
    /// works on.
    pub fn sleep(&mut self) -> Result<()> {
        loop {
            self.cpu.recv_cq.arm(false)?;
            while let Looked::Answered = self.cpu.look()? {}
            if self.cpu.woken {
                self.cpu.woken = false;
                return Ok(());
            }
            self.cpu.channel.wait(PATIENCE)?;
        }
    }

    /// Lets this many threads write from now on, each to its own keys.
    pub fn write_with(&mut self, writers: u64) -> Result<()> {
        self.end_writers()?;
        self.stop = Arc::default();
        for which in 0..writers {
            let stop = self.stop.clone();
            let name = format!("writer {which}");
            let write = move || write(which, &stop);
            self.writers.push(crate::thread::spawn(&name, write)?);
        }
        Ok(())
    }

    fn end_writers(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.drain(..).try_for_each(|writer| {
            writer.join().map_err(|_| anyhow!("a writer has failed; its error is above"))
        })
    }
}

/// Runs a writer: sets the values of its keys, one after the other.
fn write(which: u64, stop: &AtomicBool) {
    let mut table = Table::new(4 * WRITER_KEYS as usize, 4);
    let mut values = vec![0u8; WRITER_KEYS as usize * WRITER_VALUE];
    let mut round = 0u8;
    while !stop.load(Ordering::Relaxed) {
        round = round.wrapping_add(1);
        for (i, value) in values.chunks_exact_mut(WRITER_VALUE).enumerate() {
            value.fill(round);
            let key = (which * WRITER_KEYS + i as u64 + 1) & KEY_MAX;
            let at = Value { addr: value.as_ptr() as u64, len: WRITER_VALUE as u32 };
            if table.insert(key, at).is_err() {
                // At this load factor, a table has room for every key.
                debug_assert!(false, "no room for a writer's key");
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
        std::hint::black_box(&values);
    }
}

/// The far end's CPU as a server of look-ups: the two-sided way.
#[derive(Debug)]
struct Cpu {
    qp: QueuePair,
    cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: CompletionChannel,
    memory: MemoryRegion,
    requests: MemoryRegion,
    connection: Option<Connection>,
    /// Answers sent since their completions were last checked.
    sent: u32,
    /// An empty message has come.
    woken: bool,
}

#[derive(PartialEq, Eq)]
enum Looked {
    Nothing,
    Answered,
}

impl Cpu {
    fn new(device: &Device, pd: &ProtectionDomain, memory: &MemoryRegion) -> Result<Cpu> {
        let channel = device.create_channel()?;
        let (cq, recv_cq) = (device.create_cq(1024)?, device.create_cq_on(&channel, 1024)?);
        let qp = pd.create_qp(
            &QueuePairOptions::rc(&cq)
                .recv_cq(&recv_cq)
                .send_depth(2 * REQUESTS)
                .recv_depth(REQUESTS),
        )?;
        let requests = pd.alloc((REQUESTS * REQUEST_LEN) as usize, Access::LOCAL_WRITE)?;
        let memory = memory.clone();
        let connection = None;
        Ok(Cpu { qp, cq, recv_cq, channel, memory, requests, connection, sent: 0, woken: false })
    }

    fn look(&mut self) -> Result<Looked> {
        let mut done = [Completion::default(); 32];
        let count = self.recv_cq.poll(&mut done)?;
        for completion in &done[..count] {
            let status = completion.status;
            ensure!(status == Status::Success, "the client's connection broke: {status}");
            self.answer(completion)?;
        }
        Ok(if count > 0 { Looked::Answered } else { Looked::Nothing })
    }

    /// Finds the requested value, and sends it from its place in memory.
    fn answer(&mut self, completion: &Completion) -> Result<()> {
        let slot = completion.wr_id as usize * REQUEST_LEN as usize;
        let mut request = [0; REQUEST_LEN as usize];
        let request = &mut request[..completion.len as usize];
        self.requests.read_at(slot, request)?;
        self.receive(completion.wr_id)?;
        if request.is_empty() {
            self.woken = true;
            return Ok(());
        }
        let found = match request.len() {
            // By length: key and first node of a list, or the key for each bucket and the buckets'
            // addresses.
            14 => self.list(key(request), word(request, 6)?)?,
            _ => self.lookup(key(request), &[word(request, 12)?, word(request, 20)?])?,
        };
        let Value { addr, len } = found.unwrap_or_default();
        let entry = [Sge { addr, len, lkey: self.memory.key() }];
        let (op, data) = (SendOp::Send { imm: None, to: None }, Data::Sges(&entry));
        let flags = SendFlags::SIGNALED;
        self.qp.post_send(&SendRequest { wr_id: 0, op, data, flags })?;
        self.sent += 1;
        while self.sent >= REQUESTS {
            let mut done = [Completion::default(); 64];
            self.sent -= self.cq.poll(&mut done)? as u32;
        }
        Ok(())
    }

    fn receive(&self, slot: u64) -> Result<()> {
        let sges = &[self.requests.sge(slot * u64::from(REQUEST_LEN), REQUEST_LEN)];
        Ok(self.qp.post_recv(&RecvRequest { wr_id: slot, sges })?)
    }

    fn words<const N: usize>(&self, addr: u64) -> Result<[u64; N]> {
        let mut words = [[0; 8]; N];
        let at = addr.checked_sub(self.memory.addr()).context("an address below the memory")?;
        self.memory.read_at(at as usize, words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }

    fn lookup(&self, key: u64, buckets: &[u64]) -> Result<Option<Value>> {
        for bucket in buckets {
            let [addr, len, its_key] = self.words::<{ SLOT as usize / 8 }>(*bucket)?;
            if its_key == key {
                return Ok(Some(Value { addr, len: len as u32 }));
            }
        }
        Ok(None)
    }

    fn list(&self, key: u64, first: u64) -> Result<Option<Value>> {
        let mut at = first;
        loop {
            let [addr, len, its_key, next] = self.words::<{ NODE as usize / 8 }>(at)?;
            match its_key {
                list::END => return Ok(None),
                found if found == key => return Ok(Some(Value { addr, len: len as u32 })),
                _ => at = next,
            }
        }
    }
}

fn key(request: &[u8]) -> u64 {
    let mut key = [0; 8];
    key[..6].copy_from_slice(&request[..6]);
    u64::from_le_bytes(key)
}
