//! `remora bench cost`: a hot path of the card again and again, and nothing beside it.
//!
//! `./ci.sh cost` runs it under valgrind, which counts the instructions of [`counted`]. Two cards
//! hand each other packets in one thread, without sockets, clocks or other threads, so that every
//! run takes the same instructions.

use std::hint::black_box;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use remora::nic::kernel::{CallStatus, Header};
use remora::nic::qp::Mtu;
use remora::nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status,
};
use remora::nic::wire::Dialect;
use remora::nic::{Access, Psn, TransmitBatch};
use remora::offload::chain::link::RegionAt;
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::offload::table::{Table, Value};
use remora::offload::chain::program::Program;
use remora::offload::cpu;
use remora::offload::kernel::builtin::hyperloglog::Sketch;
use remora::offload::kernel::{Context, ExecutorLimits};
use remora_sim::chain::{SimChain, load, register};
use remora_sim::endpoint::{ConnectOptions, Endpoint, connect};
use remora_sim::kernel::kernel_pair;
use remora_sim::packet::seal;
use remora_sim::pair::{A, B, Pair, PairOptions};
use remora_sim::world::Host;

use super::chains::programs;
use crate::draws::Draws;

/// Operations before those that are counted: they fill pools and caches.
const FIRST: usize = 16;
/// Packets that a card is asked for at a time, as the live device does.
const BATCH: usize = 64;
/// The op-code of the kernel that is called.
const KERNEL: u64 = 0x77;
/// Buckets of the table of `hash_get`, and bytes of its value.
const BUCKETS: usize = 64;
const VALUE: u32 = 64;

/// Measures the cost of a hot path in instructions.
#[derive(Debug, Args)]
pub(super) struct Cost {
    /// What to do
    #[arg(value_enum)]
    row: Row,
    /// How often
    #[arg(default_value_t = 256)]
    times: usize,
}

/// The hot paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Row {
    /// A WRITE of 8 bytes, from its post to its completion
    #[value(name = "write_8B")]
    Write8,
    /// A SEND of 64 bytes and its receive element
    #[value(name = "send_64B")]
    Send64,
    /// A WRITE of 1 MiB
    #[value(name = "write_1MiB")]
    WriteLong,
    /// A WRITE of 8 bytes in the lossy dialect
    #[value(name = "write_8B_lossy")]
    WriteLossy8,
    /// A WRITE of 1 MiB in the lossy dialect
    #[value(name = "write_1MiB_lossy")]
    WriteLossyLong,
    /// A NOOP in a managed queue
    #[value(name = "noop")]
    Noop,
    /// An `if` whose condition holds
    #[value(name = "if")]
    If,
    /// A round of a recycled `while`
    #[value(name = "while_recycled")]
    While,
    /// A call of a kernel that answers with 8 bytes
    #[value(name = "kernel_call")]
    Call,
    /// A get from a hash table by a chain
    #[value(name = "hash_get")]
    Get,
    /// 4 KiB of values through HyperLogLog, at the level of the processor
    #[value(name = "hyperloglog_4KiB")]
    Sketch,
}

impl Cost {
    pub(super) fn run(&self) -> Result<()> {
        let times = self.times;
        match self.row {
            Row::Write8 => write(Two::new(), 8, times),
            Row::Send64 => send(64, times),
            Row::WriteLong => write(Two::new(), 1 << 20, times),
            Row::WriteLossy8 => write(Two::lossy(), 8, times),
            Row::WriteLossyLong => write(Two::lossy(), 1 << 20, times),
            Row::Noop => chain(times, &|count| programs::noops(count).0),
            Row::If => chain(times, &|count| programs::ifs(count, false).0),
            Row::While => chain(times, &|rounds| programs::recycled(rounds as u64).0),
            Row::Call => call(times),
            Row::Get => get(times)?,
            Row::Sketch => sketch(times),
        }
        println!("{}", cpu::level());
        Ok(())
    }
}

/// What is counted, by its name in the program: it stays a function of its own.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    black_box(());
}

/// Does something a few times, and counts it as often as asked for.
fn again(times: usize, mut once: impl FnMut()) {
    (0..FIRST).for_each(|_| once());
    counted(&mut || (0..times).for_each(|_| once()));
}

/// Two cards and what passes between them.
struct Two {
    pair: Pair,
    batch: TransmitBatch,
}

impl Two {
    fn new() -> Two {
        let pair = kernel_pair(Two::options(Dialect::STANDARD), ExecutorLimits::default(), None);
        Two { pair, batch: TransmitBatch::new() }
    }

    /// Two that speak the lossy dialect, and have no kernels.
    fn lossy() -> Two {
        Two { pair: Pair::new(&Two::options(Dialect::LOSSY)), batch: TransmitBatch::new() }
    }

    fn options(dialect: Dialect) -> PairOptions {
        let connect = ConnectOptions { mtu: Mtu::B4096, dialect, ..ConnectOptions::default() };
        PairOptions { connect, region: 2 << 20, ..PairOptions::default() }
    }

    /// Hands packets from card to card until neither has anything to do.
    fn exchange(&mut self) {
        while self.carry(A) | self.carry(B) {}
    }

    /// Hands on what a card has to send. Returns whether it had anything to do.
    fn carry(&mut self, from: usize) -> bool {
        let Two { pair, batch } = self;
        let now = pair.world.now;
        let mut busy = false;
        loop {
            batch.clear();
            let Host { nic, memory, address, .. } = &mut pair.world.hosts[from];
            let (more, address) = (nic.poll_transmit(now, memory, batch, BATCH), *address);
            for packet in batch.packets() {
                let Host { memory, .. } = &mut pair.world.hosts[from];
                let wire = seal(packet, batch, memory, address, 0).expect("its memory is there");
                let Host { nic, memory, .. } = &mut pair.world.hosts[1 - from];
                nic.handle_packets(now, memory, [wire.datagram()]);
            }
            busy |= more || !batch.is_empty();
            if !more {
                return busy;
            }
        }
    }

    /// Takes the completions of a queue, all of them successes.
    fn take(&mut self, of: usize, cq: u32) -> usize {
        let mut done = [Completion::default(); 8];
        let count = self.pair.world.hosts[of].nic.poll_cq(cq, &mut done).expect("a queue");
        assert!(done[..count].iter().all(|completion| completion.status == Status::Success));
        count
    }

    /// Lets one request of A end.
    fn finish(&mut self) {
        self.exchange();
        let cq = self.pair.ends[A].send_cq;
        assert_eq!(self.take(A, cq), 1, "the request is done");
    }
}

fn write(mut two: Two, len: u32, times: usize) {
    again(times, || {
        two.pair.write(A, 0, 0, len);
        two.finish();
    });
}

fn send(len: u32, times: usize) {
    let mut two = Two::new();
    let cq = two.pair.ends[B].recv_cq;
    again(times, || {
        two.pair.receive(B, 0, len);
        two.pair.send(A, 0, len);
        two.finish();
        assert_eq!(two.take(B, cq), 1);
    });
}

/// Runs a program of so many constructs.
fn chain(times: usize, program: &dyn Fn(usize) -> Program) {
    let mut two = Two::new();
    let pd = two.pair.ends[B].pd;
    for (count, is_counted) in [(FIRST, false), (times, true)] {
        let loaded = load(&mut two.pair.world, (B, pd), &program(count), &[]);
        let mut run = || {
            loaded.start(&mut two.pair.world);
            two.exchange();
        };
        if is_counted { counted(&mut run) } else { run() }
    }
}

fn call(times: usize) {
    let mut two = Two::new();
    let answer = |context: Context| async move {
        context.output(|out| out.extend_from_slice(&[7; 8])).await?;
        Ok::<(), CallStatus>(())
    };
    two.pair.deploy(B, KERNEL, answer).expect("room for a kernel");
    let header: Header = two.pair.header(&[], 8, 0);
    again(times, || {
        two.pair.call(KERNEL, &header, &[]);
        two.finish();
        assert!(two.pair.status(0).is_some(), "the kernel has answered");
    });
}

/// Serves a table by a chain at B, to a client at A.
fn get(times: usize) -> Result<()> {
    let mut two = Two::new();
    let world = &mut two.pair.world;
    let host = &mut world.hosts[B];
    let pd = host.nic.alloc_pd()?;
    let memory = register(host, pd, 1 << 14, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let mut table = Table::new(BUCKETS, 1);
    let at = memory.addr + (1 << 13);
    ensure!(table.insert(1, Value { addr: at, len: VALUE }).is_ok(), "the table is full");
    let bytes = table.bytes();
    host.memory.slice_mut(memory.addr, bytes.len()).copy_from_slice(&bytes);
    let served: SimChain = load(world, (B, pd), &Lookup::HOPSCOTCH.program(), &[memory, memory]);
    let host = &mut world.hosts[A];
    let pd = host.nic.alloc_pd()?;
    let buffer: RegionAt = register(host, pd, 1 << 13, Access::LOCAL_WRITE);
    let message = Lookup::HOPSCOTCH.message(1, &table.addresses(memory.addr, 1));
    host.memory.slice_mut(buffer.addr, message.len()).copy_from_slice(&message);
    let transport = two.pair.ends[A].transport;
    let end = Endpoint::create(world, (A, pd), transport, &Default::default(), None);
    let closed = ConnectOptions { access: Access::empty(), ..ConnectOptions::default() };
    let client = served.client.expect("a look-up has a client");
    connect(world, (&end, &client), &closed, (Psn::new(7), Psn::new(9)));
    served.start(world);
    let sge = |offset, len| [Sge { addr: buffer.addr + offset, len, lkey: buffer.key }];
    let (from, into) = (sge(0, message.len() as u32), sge(4096, 4096));
    again(times, || {
        let world = &mut two.pair.world;
        let request = RecvRequest { wr_id: 0, sges: &into };
        end.post_recv(world, &request).expect("room for a request");
        let (op, data) = (SendOp::Send { imm: None, to: None }, Data::Sges(&from));
        let flags = SendFlags::SIGNALED;
        let request = SendRequest { wr_id: 0, op, data, flags };
        end.post_send(world, &request).expect("room for a request");
        two.exchange();
        assert_eq!((two.take(A, end.send_cq), two.take(A, end.recv_cq)), (1, 1));
    });
    Ok(())
}

fn sketch(times: usize) {
    let (mut sketch, mut draws) = (Sketch::new(14), Draws::new(1));
    // As many values as raise the floor, as in a long stream.
    (0..1 << 20).for_each(|_| sketch.add(draws.number()));
    let values: Vec<u8> = (0..512).flat_map(|_| draws.number().to_le_bytes()).collect();
    again(times, || sketch.add_all(black_box(&values)));
}
