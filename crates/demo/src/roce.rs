//! The client of the demo: moves the file one-sided, and compares every byte.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use remora::connection::token::Token;
use remora::nic::Access;
use remora::nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Status};
use remora::{Device, MemoryRegion};
use remora_command::node::address::RegionAddress;
use remora_command::node::client::{CONNECT_PATIENCE, RemoteRegion};

use super::figures::{Bandwidth, Figures, Latency, ROUNDS, SAMPLES, SAMPLING_TIME, WARM_UP};

/// The bytes of a work request, and the number of requests in flight.
const PIECE: u64 = 1 << 20;
const IN_FLIGHT: usize = 16;
/// The longest wait for a completion; the card itself gives up much sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// One region of the node, and local memory of the same size.
pub(super) struct Client {
    region: RemoteRegion,
    local: MemoryRegion,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Read,
    Write,
}

/// Moves the file in both directions, compares, and measures.
pub(super) fn run(
    device: &Device,
    data: &RegionAddress,
    scratch: &RegionAddress,
    token: Option<Token>,
    file: &File,
) -> Result<(Figures, u32)> {
    let open = |address| RemoteRegion::open(device, address, token, CONNECT_PATIENCE);
    let data = Client::new(open(data)?)?;
    let mut reads = Vec::new();
    let mut crc32 = 0;
    for _ in 0..ROUNDS {
        data.local.buffer().context("local memory without a buffer")?.fill(0);
        reads.push(data.stream(Verb::Read)?);
        crc32 = data.compare(file).context("the bytes that were READ differ from the file")?;
    }
    // The bytes of the file as they arrived are written to the node.
    let scratch = Client { region: open(scratch)?, local: data.local.clone() };
    let scratch = scratch.with_memory_of(&data)?;
    let mut writes = Vec::new();
    for _ in 0..ROUNDS {
        writes.push(scratch.stream(Verb::Write)?);
    }
    scratch.local.buffer().context("local memory without a buffer")?.fill(0);
    scratch.stream(Verb::Read)?;
    scratch
        .compare(file)
        .context("the bytes that were written and READ back differ from the file")?;
    let bytes = data.region.len();
    let figures = Figures {
        read_8b: scratch.latency(Verb::Read)?,
        write_8b: scratch.latency(Verb::Write)?,
        read: Bandwidth::of(bytes, reads),
        write: Bandwidth::of(bytes, writes),
    };
    Ok((figures, crc32))
}

impl Client {
    fn new(region: RemoteRegion) -> Result<Client> {
        let local = region.pd().alloc(region.len().max(8) as usize, Access::LOCAL_WRITE)?;
        Ok(Client { region, local })
    }

    /// Registers the memory again: a region belongs to the protection domain of one connection.
    fn with_memory_of(self, other: &Client) -> Result<Client> {
        let own = Client::new(self.region)?;
        let mut piece = vec![0; PIECE as usize];
        for (at, len) in own.pieces() {
            let piece = &mut piece[..len as usize];
            other.local.read_at(at as usize, piece)?;
            own.local.write_at(at as usize, piece)?;
        }
        Ok(own)
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> + use<> {
        let bytes = self.region.len();
        (0..bytes).step_by(PIECE as usize).map(move |at| (at, (bytes - at).min(PIECE) as u32))
    }

    fn post(&self, verb: Verb, at: u64, len: u32) -> Result<()> {
        let sges = [self.local.sge(at, len)];
        let remote = self.region.remote(at);
        let op = match verb {
            Verb::Read => SendOp::Read { from: remote },
            Verb::Write => SendOp::Write { to: remote, imm: None },
        };
        let data = Data::Sges(&sges);
        let request = SendRequest { wr_id: at, op, data, flags: SendFlags::SIGNALED };
        Ok(self.region.queue_pair().post_send(&request)?)
    }

    /// Moves all bytes, and returns the time it took.
    fn stream(&self, verb: Verb) -> Result<Duration> {
        let start = Instant::now();
        let mut done = [Completion::default(); IN_FLIGHT];
        let mut in_flight = 0;
        let mut pieces = self.pieces().peekable();
        let mut moved = start;
        while in_flight > 0 || pieces.peek().is_some() {
            while in_flight < IN_FLIGHT
                && let Some((at, len)) = pieces.next()
            {
                self.post(verb, at, len)?;
                in_flight += 1;
            }
            let count = self.region.cq().poll(&mut done)?;
            for Completion { status, .. } in &done[..count] {
                ensure!(*status == Status::Success, "a transfer failed: {status}");
            }
            in_flight -= count;
            if count > 0 {
                moved = Instant::now();
            } else if moved.elapsed() > PATIENCE {
                bail!("a transfer neither completes nor fails");
            }
        }
        Ok(start.elapsed())
    }

    /// Compares local memory with the file, byte by byte; returns the checksum of the memory.
    fn compare(&self, file: &File) -> Result<u32> {
        let (mut here, mut there) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
        let mut crc = crc32fast::Hasher::new();
        for (at, len) in self.pieces() {
            let (here, there) = (&mut here[..len as usize], &mut there[..len as usize]);
            self.local.read_at(at as usize, here)?;
            file.read_exact_at(there, at).context("cannot read the file")?;
            if let Some(wrong) = here.iter().zip(&*there).position(|(a, b)| a != b) {
                bail!(
                    "byte {} is {:#04x} instead of {:#04x}",
                    at + wrong as u64,
                    here[wrong],
                    there[wrong]
                );
            }
            crc.update(here);
        }
        Ok(crc.finalize())
    }

    /// Measures operations of 8 bytes, one at a time, each until its completion.
    fn latency(&self, verb: Verb) -> Result<Latency> {
        let len = self.region.len().min(8) as u32;
        let mut samples = Vec::with_capacity(SAMPLES);
        let begin = Instant::now();
        for i in 0..WARM_UP + SAMPLES {
            let start = Instant::now();
            self.post(verb, 0, len)?;
            let status = self.region.cq().spin(PATIENCE)?.status;
            ensure!(status == Status::Success, "a transfer of {len} bytes failed: {status}");
            if i >= WARM_UP {
                samples.push(start.elapsed());
            }
            if begin.elapsed() > SAMPLING_TIME {
                break;
            }
        }
        Ok(Latency::of(samples))
    }
}
