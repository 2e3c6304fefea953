//! Streams: values partitioned as they arrive (Figure 11), counted as they arrive (Figure 13), and
//! filtered, beside plain WRITEs and beside the same work on a CPU.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use remora::kernel::builtin::{hyperloglog_ask, shuffle_histogram};
use remora::nic::queue::RemoteAddress;
use remora::offload::kernel::builtin::{hyperloglog, shuffle};

use super::super::figure::{Figure, Point, Style};
use super::super::row::{Case, Run, Target};
use super::extent::{Extent, SCRATCH, STRUCTURES, size_label};
use crate::draws::Draws;
use crate::ways::Client;
use crate::ways::agreed::{FILTER_BELOW, PRECISION, PeerRegion, STREAMED_MAX};
use crate::ways::client::{Stream, remote};

/// The low bits that choose one of 256 partitions.
const BITS: u8 = 8;
const MASK: u64 = (1 << BITS) - 1;
/// Bytes of each WRITE of a long stream.
const MESSAGE: u32 = 1 << 20;
/// Bytes that the rows of streams send in a run.
const ROW: u64 = 8 << 20;
/// Inputs of Figure 11, in MiB.
const INPUTS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Payload of the WRITEs of Figure 13.
const PAYLOADS: [u32; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The values to send, which also lie in registered memory from [`SCRATCH`] on.
#[derive(Debug)]
pub(super) struct Input {
    values: Vec<u64>,
}

impl Input {
    /// Draws values, and checks that each kernel does what the CPU does.
    pub(super) fn prepare(client: &Client, extent: Extent) -> Result<Input> {
        let mut draws = Draws::new(11);
        let count = extent.input.max(extent.stream) / 8;
        let values: Vec<u64> = (0..count).map(|_| draws.number()).collect();
        for (i, values) in values.chunks(1 << 16).enumerate() {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            client.local.write_at(SCRATCH as usize + (i << 19), &bytes)?;
        }
        let input = Input { values };
        input.verify_shuffles(client)?;
        input.verify_filter(client)?;
        Ok(input)
    }

    fn of(&self, bytes: u64) -> &[u64] {
        &self.values[..(bytes / 8) as usize]
    }

    /// Partitions a megabyte at the peer and here, and compares.
    fn verify_shuffles(&self, client: &Client) -> Result<()> {
        let plan = Plan::of(client, self.of(MESSAGE.into()));
        let mut expected = vec![0u8; MESSAGE as usize];
        plan.partition(self.of(MESSAGE.into()), |at, bytes| {
            expected[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        plan.by_kernel(client)?;
        ensure!(
            read_all(client, client.ready.memory, plan.base, MESSAGE)? == expected,
            "the shuffle kernel put values into wrong places"
        );
        plan.by_software(client, self.of(MESSAGE.into()))?;
        ensure!(
            read_all(client, client.ready.memory, plan.base, MESSAGE)? == expected,
            "the partitions at the peer differ from those written"
        );
        Ok(())
    }

    fn verify_filter(&self, client: &Client) -> Result<()> {
        let to = client.ready.filter;
        client.stream(SCRATCH, Stream { to, size: MESSAGE, count: 1, told: false })?;
        let kept = self.of(MESSAGE.into()).iter().filter(|value| **value < FILTER_BELOW);
        let kept: Vec<u8> = kept.flat_map(|value| value.to_le_bytes()).collect();
        let got = read_all(client, to, to.addr, kept.len() as u32)?;
        ensure!(got == kept, "the filter kernel kept wrong values");
        Ok(())
    }
}

fn read_all(client: &Client, place: PeerRegion, addr: u64, len: u32) -> Result<Vec<u8>> {
    let mut out = vec![0; len as usize];
    client.read_from(remote(place, addr), len)?;
    client.local.read_at(0, &mut out)?;
    Ok(out)
}

/// The destinations of values.
struct Plan {
    /// The address of the partitions at the peer.
    base: u64,
    sizes: Vec<u64>,
    bytes: u64,
}

impl Plan {
    fn of(client: &Client, values: &[u64]) -> Plan {
        let mut sizes = vec![0; 1 << BITS];
        values.iter().for_each(|value| sizes[(value & MASK) as usize] += 1);
        let base = client.ready.memory.addr + STRUCTURES;
        Plan { base, sizes, bytes: values.len() as u64 * 8 }
    }

    /// StRoM's way: the histogram by RPC, then WRITEs through the receive kernel.
    fn by_kernel(&self, client: &Client) -> Result<Duration> {
        let start = Instant::now();
        let histogram = shuffle::Partition::histogram(self.base, &self.sizes);
        client.local.write_at(0, &histogram)?;
        let sge = client.local.sge(0, histogram.len() as u32);
        shuffle_histogram(&mut client.stream_kernels.borrow_mut(), 0, BITS, sge)?;
        client.stream(SCRATCH, long_stream(client.ready.shuffle, self.bytes))?;
        Ok(start.elapsed())
    }

    /// Barthels et al.'s way: partition here, in a pass through buffers of 16 values, then WRITE
    /// each partition to its place.
    fn by_software(&self, client: &Client, values: &[u64]) -> Result<Duration> {
        let own = SCRATCH + client.local.len().saturating_sub(SCRATCH) / 2;
        let start = Instant::now();
        self.partition(values, |at, bytes| {
            Ok(client.local.write_at((own + at) as usize, bytes)?)
        })?;
        let mut at = 0;
        let partitions = self.sizes.iter().filter(|size| **size > 0).map(|size| {
            let piece = (own + at, remote(client.ready.memory, self.base + at), size * 8);
            at += size * 8;
            piece
        });
        client.write_all(partitions.flat_map(|(from, to, len)| pieces(from, to, len)))?;
        Ok(start.elapsed())
    }

    /// Passes 16 values of a partition at a time to `write`, with their place.
    fn partition(
        &self,
        values: &[u64],
        mut write: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        const ROOM: usize = shuffle::BUFFER;
        let mut next = Vec::with_capacity(self.sizes.len());
        let mut at = 0;
        for size in &self.sizes {
            next.push(at);
            at += size * 8;
        }
        let mut buffers = vec![([[0u8; 8]; ROOM], 0usize); self.sizes.len()];
        for value in values {
            let which = (value & MASK) as usize;
            let (buffer, len) = &mut buffers[which];
            buffer[*len % ROOM] = value.to_le_bytes();
            *len += 1;
            if *len == ROOM {
                write(next[which], buffer.as_flattened())?;
                next[which] += ROOM as u64 * 8;
                *len = 0;
            }
        }
        for ((buffer, len), at) in buffers.iter().zip(next).filter(|((_, len), _)| *len > 0) {
            write(at, buffer[..*len].as_flattened())?;
        }
        Ok(())
    }
}

/// Splits a partition into WRITEs of at most a megabyte.
fn pieces(
    from: u64,
    to: RemoteAddress,
    len: u64,
) -> impl Iterator<Item = (u64, RemoteAddress, u32, Option<u32>)> {
    (0..len).step_by(MESSAGE as usize).map(move |at| {
        let piece = (len - at).min(MESSAGE.into()) as u32;
        (from + at, RemoteAddress { addr: to.addr + at, ..to }, piece, None)
    })
}

fn long_stream(to: PeerRegion, bytes: u64) -> Stream {
    let size = u64::from(MESSAGE).min(bytes) as u32;
    Stream { to, size, count: (bytes / u64::from(size)) as usize, told: false }
}

/// The rate of a stream in Gb/s.
fn gbps(stream: Stream, time: Duration) -> f64 {
    stream.count as f64 * f64::from(stream.size) * 8.0 / time.as_secs_f64() / 1e9
}

fn stream_run(client: &Client, stream: Stream) -> Run<'_> {
    Box::new(move || Ok(gbps(stream, client.stream(SCRATCH, stream)?)))
}

/// The rows of streams: 1 MiB WRITEs through a kernel, beside plain ones.
pub(super) fn cases<'a>(client: &'a Client, input: &'a Input, extent: Extent) -> [Case<'a>; 3] {
    let long = move |to| long_stream(to, ROW.min(extent.stream));
    let case = |name, least, ours| Case {
        name,
        unit: "Gb/s",
        peer: "plain WRITE, 1 MiB",
        target: Target::AtLeast(least),
        ours,
        theirs: stream_run(client, long(client.ready.plain)),
    };
    let bytes = ROW.min(extent.input);
    let shuffled = move || {
        let plan = Plan::of(client, input.of(bytes));
        Ok(bytes as f64 * 8.0 / plan.by_kernel(client)?.as_secs_f64() / 1e9)
    };
    [
        case("stream_hyperloglog", 0.85, stream_run(client, long(client.ready.hyperloglog))),
        case("stream_filter", 0.85, stream_run(client, long(client.ready.filter))),
        case("stream_shuffle", 0.5, Box::new(shuffled)),
    ]
}

/// Figure 11.
pub(super) fn shuffles(client: &Client, input: &Input, extent: Extent) -> Result<Figure> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut points = Vec::new();
    for bytes in INPUTS.map(|mib| mib << 20).into_iter().filter(|bytes| *bytes <= extent.input) {
        let values = input.of(bytes);
        let plan = Plan::of(client, values);
        let plain = long_stream(client.ready.plain, bytes);
        let ways: &mut [Run<'_>] = &mut [
            Box::new(|| Ok(ms(plan.by_kernel(client)?))),
            Box::new(|| Ok(ms(plan.by_software(client, values)?))),
            Box::new(|| Ok(ms(client.stream(SCRATCH, plain)?))),
        ];
        points.push(Point::measure(size_label(bytes), extent.runs, ways)?);
    }
    let last = &points[points.len() - 1];
    let here = format!(
        "for {}, the kernel takes {:.2} × the time of a plain WRITE, software and WRITEs {:.2} ×",
        last.x,
        last.median(0) / last.median(2),
        last.median(1) / last.median(2)
    );
    Ok(Figure {
        id: "fig11",
        origin: "StRoM’s Figure 11",
        title: "Shuffle",
        about: "Values of 8 bytes are partitioned by their low 8 bits and sent: by the peer's card \
                as they arrive, or here, in a pass over the data, before they are WRITTEN \
                (Barthels et al.), a WRITE for each partition. Sizes of partitions are known in \
                both. A plain WRITE of the same data partitions nothing.",
        x: "size of the input",
        y: "time",
        unit: "ms",
        style: Style::Lines,
        ways: ["kernel", "partitioned here, then WRITTEN", "plain WRITE"].map(str::to_owned).into(),
        points,
        paper: "the kernel comes close to the plain WRITE; partitioning on the CPU takes longer by \
                the pass over the data",
        here,
    })
}

/// Figure 13a: counting by the receiving CPU, by number of threads up to the number of cores.
pub(super) fn threads(client: &Client, input: &Input, extent: Extent) -> Result<Figure> {
    let count = (extent.stream / u64::from(MESSAGE)) as usize;
    let mut points = Vec::new();
    let powers = (0..).map(|bit| 1usize << bit);
    for threads in powers.take_while(|threads| *threads <= client.ready.threads) {
        let ways: &mut [Run<'_>] = &mut [
            by_kernel(client, MESSAGE, count),
            Box::new(move || {
                client.with_threads(threads, || by_application(client, MESSAGE, count))
            }),
            stream_run(client, long_stream(client.ready.plain, extent.stream)),
        ];
        points.push(Point::measure(threads.to_string(), extent.runs, ways)?);
    }
    debug_assert!(input.values.len() as u64 * 8 >= extent.stream);
    let (one, most) = (&points[0], &points[points.len() - 1]);
    let here = format!(
        "one thread counts {:.1} Gb/s, {} of them count {:.1}, the kernel {:.1}",
        one.median(1),
        most.x,
        most.median(1),
        most.median(0)
    );
    Ok(Figure {
        id: "fig13a",
        origin: "StRoM’s Figure 13a",
        title: "HyperLogLog on the CPU",
        about: "WRITEs of 1 MiB are counted by threads of the peer's application, each message by \
                one of them as soon as it arrives. The first thread drives the card, too, and \
                shares its core with it; the system chooses the cores of the others, beside the \
                asking process. The kernel and a plain WRITE for comparison.",
        x: "threads of the application",
        y: "bandwidth",
        unit: "Gb/s",
        style: Style::Bars,
        ways: ["kernel", "counted by the receiving CPU", "plain WRITE"].map(str::to_owned).into(),
        points,
        paper: "8 threads are needed for about 25 Gb/s",
        here,
    })
}

/// The rate in Gb/s of a stream that the peer's card counts.
fn by_kernel(client: &Client, size: u32, count: usize) -> Run<'_> {
    let stream = Stream { to: client.ready.hyperloglog, size, count, told: false };
    Box::new(move || {
        reset(client)?;
        let time = client.stream(SCRATCH, stream)?;
        close(estimate(client)?, distinct(stream))?;
        Ok(gbps(stream, time))
    })
}

/// The rate in Gb/s of a stream that the peer's application counts.
fn by_application(client: &Client, size: u32, count: usize) -> Result<f64> {
    let stream = Stream { to: client.ready.plain, size, count, told: true };
    let start = Instant::now();
    client.stream(SCRATCH, stream)?;
    close(client.wait_for_application(count as u64)?, distinct(stream))?;
    Ok(gbps(stream, start.elapsed()))
}

/// The number of distinct values of a stream: all drawn values differ.
fn distinct(stream: Stream) -> u64 {
    stream.count as u64 * u64::from(stream.size) / 8
}

/// Figure 13b.
pub(super) fn sketches(client: &Client, input: &Input, extent: Extent) -> Result<Figure> {
    let mut points = Vec::new();
    for size in PAYLOADS {
        let count = (extent.stream / u64::from(size)).min(STREAMED_MAX.into()) as usize;
        let plain = Stream { to: client.ready.plain, size, count, told: false };
        let ways: &mut [Run<'_>] = &mut [
            by_kernel(client, size, count),
            Box::new(move || by_application(client, size, count)),
            stream_run(client, plain),
        ];
        points.push(Point::measure(size_label(size.into()), extent.runs, ways)?);
    }
    debug_assert!(input.values.len() as u64 * 8 >= extent.stream);
    let last = &points[points.len() - 1];
    let here = format!(
        "with 1 MiB, the kernel passes {:.0} % of a plain WRITE's {:.1} Gb/s; one core that \
         receives and counts reaches {:.1} Gb/s",
        last.median(0) / last.median(2) * 100.0,
        last.median(2),
        last.median(1)
    );
    Ok(Figure {
        id: "fig13",
        origin: "StRoM’s Figure 13b",
        title: "HyperLogLog",
        about: "Distinct values are counted while they are written: by the peer's card, or by the \
                peer's application, which gets a completion for each message (WRITE WITH \
                IMMEDIATE) and reads it at once. Every estimate is checked. Card and application \
                share one core at the peer.",
        x: "payload of a WRITE",
        y: "bandwidth",
        unit: "Gb/s",
        style: Style::Lines,
        ways: ["kernel", "counted by the receiving CPU", "plain WRITE"].map(str::to_owned).into(),
        points,
        paper: "the kernel costs nothing, and reaches line rate from some packet size on",
        here,
    })
}

fn ask(client: &Client, ask: hyperloglog::Ask) -> Result<hyperloglog::Report> {
    let params = hyperloglog::Params { ask, precision: PRECISION, store: 0 };
    let (report, _) = hyperloglog_ask(&mut client.kernels.borrow_mut(), &params, None)?;
    Ok(report)
}

fn reset(client: &Client) -> Result<()> {
    ask(client, hyperloglog::Ask::Reset).map(|_| ())
}

fn estimate(client: &Client) -> Result<f64> {
    ask(client, hyperloglog::Ask::Add).map(|report| report.estimate)
}

/// Checks that an estimate is within five standard errors of the truth.
fn close(estimate: f64, distinct: u64) -> Result<()> {
    let error = 5.0 * 1.04 / f64::from(1u32 << PRECISION).sqrt();
    let off = (estimate / distinct as f64 - 1.0).abs();
    ensure!(off <= error, "{estimate:.0} distinct values counted of {distinct}");
    Ok(())
}
