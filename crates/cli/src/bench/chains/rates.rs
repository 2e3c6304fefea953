//! What the card does by itself: chains by their order (Figure 8), rates of verbs and constructs
//! (Table 3). One thread drives the card, and no packet leaves it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remora::nic::Queue;
use remora::offload::chain::element::QueueId;
use remora::offload::chain::place::Word;
use remora::offload::chain::program::{Kind, Program, Start};
use remora::offload::chain::request::{Count, Request};
use remora::offload::chain::verb::Verb;
use remora::{Chain, Device, ProtectionDomain};

use super::super::figure::{Figure, Point, Style, median_us};
use super::super::row::{Case, Run, Target};
use super::extent::Extent;
use super::programs;

/// The longest that a chain may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The numbers of verbs in the chains of Figure 8.
const LENGTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Bytes of a READ or WRITE, as in the paper.
const IO: u32 = 64;
/// Slots of a queue of one verb, whose doorbell is rung again and again.
const VERBS: u32 = 256;
/// Polls before a program starts. The device's background thread wakes while no other thread polls;
/// after these polls it leaves the card to the measuring thread. Otherwise the two would change
/// places while the program starts.
const POLLS: u32 = 64;
/// The constructs of a program without a loop.
const WRITTEN_OUT: usize = 256;

/// The paper's rates, in millions a second (Table 3): a port of a ConnectX-5.
const PAPER: [(&str, f64); 8] = [
    ("CAS", 8.4),
    ("ADD", 8.4),
    ("READ", 65.0),
    ("WRITE", 63.0),
    ("MAX", 63.0),
    ("if", 0.7),
    ("while, unrolled", 0.7),
    ("while, recycled", 0.3),
];

/// A device of the benchmark's own.
pub(super) struct Bench {
    device: Device,
    pd: ProtectionDomain,
}

/// A loaded program, and the queue whose completions show its progress.
struct Loaded<'a> {
    bench: &'a Bench,
    chain: Chain,
    queue: QueueId,
}

impl Bench {
    pub(super) fn new() -> Result<Bench> {
        let device = Device::open()?;
        let pd = device.alloc_pd()?;
        Ok(Bench { device, pd })
    }

    fn load(&self, program: &Program, queue: QueueId) -> Result<Loaded<'_>> {
        let chain = self.pd.load_chain(program, &[])?;
        (0..POLLS).for_each(|_| {
            self.device.progress();
        });
        Ok(Loaded { bench: self, chain, queue })
    }

    /// The rows of constructs: their elements a second, beside plain ones in such a queue.
    pub(super) fn cases<'a>(&'a self, extent: Extent) -> [Case<'a>; 2] {
        let case = |name, elements: usize, mut ours: Run<'a>| Case {
            name,
            unit: "M elements/s",
            peer: "NOOPs in a managed queue",
            target: Target::AtLeast(0.7),
            ours: Box::new(move || Ok(ours()? * elements as f64)),
            theirs: self.noops(extent),
        };
        [
            case("if_elements", programs::IF, self.ifs(extent, false)),
            case("while_elements", programs::ROUND, self.recycled(extent)),
        ]
    }

    /// `if`s whose condition holds, or rounds of an unrolled `while`.
    fn ifs(&self, extent: Extent, unrolled: bool) -> Run<'_> {
        let (program, queue) = programs::ifs(WRITTEN_OUT, unrolled);
        self.again_and_again(program, queue, WRITTEN_OUT, extent)
    }

    /// NOOPs in a managed queue.
    fn noops(&self, extent: Extent) -> Run<'_> {
        let count = WRITTEN_OUT * programs::IF;
        let (program, queue) = programs::noops(count);
        self.again_and_again(program, queue, count, extent)
    }

    /// Programs of `each` constructs without a loop: their constructs a second, in millions.
    fn again_and_again(
        &self,
        program: Program,
        queue: QueueId,
        each: usize,
        extent: Extent,
    ) -> Run<'_> {
        let end = program.completions(queue, end_of(&program, queue));
        let programs = (extent.rate / each).max(1);
        Box::new(move || {
            let mut time = Duration::ZERO;
            for _ in 0..programs {
                // Each program runs once, because what a test has switched on stays on.
                time += self.load(&program, queue)?.run(end)?;
            }
            Ok(millions(programs * each, time))
        })
    }

    /// Rounds of a loop.
    fn recycled(&self, extent: Extent) -> Run<'_> {
        let rounds = extent.rate;
        let (program, after) = programs::recycled(rounds as u64);
        Box::new(move || Ok(millions(rounds, self.load(&program, after)?.run(1)?)))
    }

    /// One verb, on 64 bytes if it moves bytes, again and again in a plain queue.
    fn verb(&self, verb: Verb, extent: Extent) -> Result<Run<'_>> {
        let mut program = Program::new();
        let [here, there] = ["here", "there"].map(|name| program.bytes(name, &[0; IO as usize]));
        let queue = program.queue("verbs", Kind::Loop, false, Start::Asleep);
        for _ in 0..VERBS {
            let request = match verb {
                Verb::Read => Request::read(there.at, &[here]),
                Verb::Write => Request::write(&[here], there.at),
                Verb::CompareSwap => {
                    Request::compare_swap(there.at, Word::Number(0), Word::Number(0))
                }
                verb => Request::calc(verb, there.at, Word::Number(1)),
            };
            program.push(queue, request);
        }
        let loaded = self.load(&program, queue)?;
        let rings = (extent.rate / VERBS as usize).max(1) as u32;
        let mut index = 0u32;
        Ok(Box::new(move || {
            let start = Instant::now();
            for _ in 0..rings {
                index += VERBS;
                loaded.ring(index, index.into())?;
            }
            Ok(millions((rings * VERBS) as usize, start.elapsed()))
        }))
    }

    /// Table 3.
    pub(super) fn verbs(&self, extent: Extent) -> Result<Figure> {
        use Verb::{Add, CompareSwap, Max, Read, Write};
        let mut ours = Vec::new();
        for verb in [CompareSwap, Add, Read, Write, Max] {
            ours.push(self.verb(verb, extent)?);
        }
        ours.extend([self.ifs(extent, false), self.ifs(extent, true), self.recycled(extent)]);
        let mut points = Vec::new();
        for (ours, (name, paper)) in ours.into_iter().zip(PAPER) {
            let theirs: Run<'_> = Box::new(move || Ok(paper));
            points.push(Point::measure(name.into(), extent.runs, &mut [ours, theirs])?);
        }
        let here = format!(
            "{:.1} million ifs a second and {:.1} million rounds of a recycled while, {:.0} × and \
             {:.0} × the ConnectX-5’s",
            points[5].median(0),
            points[7].median(0),
            points[5].median(0) / PAPER[5].1,
            points[7].median(0) / PAPER[7].1
        );
        Ok(Figure {
            id: "table3",
            origin: "RedN’s Table 3",
            title: "Verbs and constructs",
            about: "The number that one core executes a second, on 64 bytes if a verb moves bytes. \
                    Verbs run in a queue pair that is connected to itself; the paper’s cross a \
                    network, on 8 processing units. An if is a compare-and-swap, WAIT, ENABLE, \
                    the WRITE that it switches on, and WAIT (1C + 1A + 3E, as in Table 2). The \
                    recycled while counts to a number: a copy, a test, the exit from the loop, the \
                    ENABLE of the next round, an ADD, and a READ and an ADD that restore the ring.",
            x: "verb or construct",
            y: "rate",
            unit: "M/s",
            style: Style::Bars,
            ways: ["chain, one core", "ConnectX-5, as the paper says"].map(str::to_owned).into(),
            points,
            paper: "8.4 million CAS or ADD a second, 65 READ, 63 WRITE and MAX; 0.7 million ifs \
                    and unrolled whiles, 0.3 million recycled whiles",
            here,
        })
    }

    /// Figure 8.
    pub(super) fn orders(&self, extent: Extent) -> Result<Figure> {
        let mut points = Vec::new();
        for length in LENGTHS {
            let mut ways = Vec::new();
            for order in [Ordered::Queue, Ordered::Completion, Ordered::Doorbell] {
                ways.push(self.chain_of(order, length, extent));
            }
            points.push(Point::measure(length.to_string(), extent.runs, &mut ways)?);
        }
        let (first, last) = (&points[0], &points[points.len() - 1]);
        let verbs = f64::from(LENGTHS[LENGTHS.len() - 1] - 1);
        let each = |way: usize| (last.median(way) - first.median(way)) / verbs * 1e3;
        let here = format!(
            "one NOOP takes {:.2} µs; another {:.0} ns in queue order, {:.0} ns in completion \
             order, {:.0} ns in doorbell order",
            first.median(0),
            each(0),
            each(1),
            each(2)
        );
        Ok(Figure {
            id: "fig8",
            origin: "RedN’s Figure 8",
            title: "Cost by order",
            about: "A chain of NOOPs, from its doorbell to the moment at which its last completion \
                    has been counted: free to be fetched ahead; with a WAIT between each two; with \
                    WAIT and ENABLE between each two, fetched one by one.",
            x: "NOOPs in the chain",
            y: "latency",
            unit: "µs",
            style: Style::Lines,
            ways: ["queue order", "completion order", "doorbell order"].map(str::to_owned).into(),
            points,
            paper: "a NOOP takes 1.21 µs; another 0.17 µs in queue order, 0.19 µs in completion \
                    order, 0.54 µs in doorbell order",
            here,
        })
    }

    /// The chain is in its queue many times, and each call rings the doorbell for one of them.
    fn chain_of(&self, order: Ordered, length: u32, extent: Extent) -> Run<'_> {
        let mut program = Program::new();
        let managed = order == Ordered::Doorbell;
        let queue = program.queue("chain", Kind::Loop, managed, Start::Asleep);
        let mut noops = 0;
        let mut rings = Vec::new();
        for _ in 0..extent.calls {
            let start = end_of(&program, queue);
            for left in (0..length).rev() {
                program.push(queue, Request::noop());
                noops += 1;
                if left > 0 && order != Ordered::Queue {
                    program.push(queue, Request::wait(queue, Count::Number(noops)));
                }
                if left > 0 && managed {
                    let next = end_of(&program, queue) + 1 + piece(left - 1);
                    program.push(queue, Request::enable(queue, Count::Number(next.into())));
                }
            }
            rings.push(if managed { start + piece(length - 1) } else { end_of(&program, queue) });
        }
        Box::new(move || {
            // Loaded anew, because WAITs count from the queue's creation.
            let loaded = self.load(&program, queue)?;
            let mut done = 0;
            median_us(rings.len(), |i| {
                done += u64::from(length);
                loaded.ring(rings[i], done)
            })
        })
    }
}

fn end_of(program: &Program, queue: QueueId) -> u32 {
    program.queues()[queue.index()].labels().len() as u32
}

/// The elements that one ENABLE releases: a NOOP, and, if any NOOPs are left, the WAIT and ENABLE
/// after it.
fn piece(left: u32) -> u32 {
    if left > 0 { 3 } else { 1 }
}

/// The orders of RedN's §3.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ordered {
    Queue,
    Completion,
    Doorbell,
}

impl Loaded<'_> {
    /// Starts the program and waits until its queue has completed this many requests; returns the
    /// time it took.
    fn run(&self, completions: u64) -> Result<Duration> {
        let start = Instant::now();
        self.chain.start()?;
        self.wait_for(completions)?;
        Ok(start.elapsed())
    }

    /// Rings its queue, and waits until it has completed this many requests.
    fn ring(&self, index: u32, completions: u64) -> Result<()> {
        let mut queues = self.chain.queue_pairs();
        let qp = queues.nth(self.queue.index()).context("a program has its queues")?;
        qp.doorbell(Queue::Send, index)?;
        self.wait_for(completions)
    }

    fn wait_for(&self, completions: u64) -> Result<()> {
        let mut start = None;
        let mut looks = 0u32;
        while self.chain.completions(self.queue)? < completions {
            self.bench.device.progress();
            looks += 1;
            if looks.is_multiple_of(1024) {
                let since = *start.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < PATIENCE, "a chain does not end");
            }
        }
        Ok(())
    }
}

fn millions(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e6
}
