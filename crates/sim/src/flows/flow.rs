//! A flow: one message from host to host.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::net::Ps;

/// How a flow's bytes are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verb {
    /// The source WRITEs them to the target.
    #[default]
    Write,
    /// The source fetches them from the target by a call of its kernel GET.
    Get,
    /// The source reads the value of this key in the target's store. Values of other lengths are
    /// those of other keys.
    StoreGet(u32),
    /// The source sets the value of this key in the target's store.
    StorePut(u32),
}

impl Verb {
    /// The key in the target's store.
    pub fn key(self) -> Option<u32> {
        match self {
            Verb::StoreGet(key) | Verb::StorePut(key) => Some(key),
            Verb::Write | Verb::Get => None,
        }
    }
}

/// What a host hears of the flows that another flow waits for, wherever they end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hears {
    /// That they have arrived at their targets.
    Arrivals,
    /// That they are complete at their sources.
    Ends,
}

/// Work for a processor of a flow's source: such flows take turns on it, in the order in which they
/// are ready, and then in that of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// The processor, by its number.
    pub processor: u32,
    /// How long the flow has it, in picoseconds.
    pub span: Ps,
    /// The flow begins with its turn, and not behind it.
    pub at_once: bool,
}

/// A message from one host to another: a WRITE, on a connection of its own. Or an operation of the
/// source that a kernel of the other carries out ([`Verb`]). Or, from a host to
/// itself and without bytes, a wait: it takes no network, and is over as soon as it has begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The host that sends it.
    pub src: u32,
    /// The host that it is for.
    pub dst: u32,
    /// Its length in bytes, from 1 to [`Flow::LONGEST`]; 0 for a wait.
    pub bytes: u64,
    /// When it begins, in picoseconds from the start of the run; for one that waits for others, the
    /// time that passes between the last of those and it.
    pub start: Ps,
    /// Flows before it in the list that must have arrived at `src`, or, if `src` has sent them,
    /// must be complete.
    pub after: Vec<u32>,
    /// How many of those must; `None`: all.
    pub needs: Option<u32>,
    /// It waits for flows that need not begin or end at `src`, and hears of them at once: no
    /// network does that, but htsim's triggers do. A run with such flows has one part.
    pub hears: Option<Hears>,
    /// How its bytes are asked for. Those that `src` fetches go the other way.
    pub verb: Verb,
    /// For switches and cards' hardware, messages from `src` to `dst` with the same number are of
    /// one queue pair, if they do not overlap; `None`: it is of one of its own.
    pub connection: Option<u32>,
    /// Its class from 0 to 7, the higher the more urgent, for cards and for switches that heed
    /// classes; `None`: that of its length, if [`Cluster::short_first`](super::Cluster), or 0.
    pub class: Option<u8>,
    /// What its source has to do, from [`Flow::start`] on, before it begins.
    pub work: Option<Work>,
}

/// Why a list of flows cannot be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FlowError {
    /// A host does not exist.
    #[error("flow {flow}: there is no host {host}; the last is {last}")]
    NoSuchHost {
        /// The flow, by its index.
        flow: usize,
        /// The host that it names.
        host: u32,
        /// The last host.
        last: u32,
    },
    /// The flow leads from a host to itself.
    #[error("flow {flow} goes from host {host} to itself")]
    ToItself {
        /// The flow, by its index.
        flow: usize,
        /// The host.
        host: u32,
    },
    /// The flow has no bytes, or too many.
    #[error("flow {flow} has {bytes} bytes; one has 1 to {}", Flow::LONGEST)]
    Length {
        /// The flow, by its index.
        flow: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// There is no such class.
    #[error("flow {flow} is of class {class}; the highest is 7")]
    Class {
        /// The flow, by its index.
        flow: usize,
        /// Its class.
        class: u8,
    },
    /// The flow starts too late for the clock.
    #[error("flow {flow} starts later than {} s after the start", Flow::LATEST / 1_000_000_000_000)]
    Late {
        /// The flow, by its index.
        flow: usize,
    },
    /// What the flow waits for takes too long for the clock.
    #[error(
        "flow {flow}: the waits before it add up to more than {} s",
        Flow::FURTHEST / 1_000_000_000_000
    )]
    Far {
        /// The flow, by its index.
        flow: usize,
    },
    /// The flow waits for one that does not end at its source, or that is not before it.
    #[error("flow {flow} waits for flow {other}, which is not before it, or not at its source")]
    Order {
        /// The flow, by its index.
        flow: usize,
        /// The flow that it waits for.
        other: u32,
    },
    /// The flow needs none of those that it waits for, or more than there are.
    #[error("flow {flow} needs {needs} of the {of} flows that it waits for")]
    Needs {
        /// The flow, by its index.
        flow: usize,
        /// How many it needs.
        needs: u32,
        /// How many there are.
        of: usize,
    },
    /// The value is longer than an answer of a store's kernel.
    #[error("flow {flow}: a store's value of {bytes} bytes; the longest is {}", Flow::VALUE)]
    Value {
        /// The flow, by its index.
        flow: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// The values of stores exist, and would take too much memory.
    #[error(
        "the values of stores take {bytes} bytes of memory; the most is {most}",
        most = Flow::STORED
    )]
    Stored {
        /// The bytes of all keys' values.
        bytes: u64,
    },
    /// There are more flows than fit a machine's memory.
    #[error("{flows} flows need about {gib} GiB of memory; the most is {most}",
        most = Flow::MOST)]
    TooMany {
        /// The flows.
        flows: usize,
        /// What their connections take, in GiB.
        gib: usize,
    },
}

impl Flow {
    /// The most bytes of a flow.
    pub const LONGEST: u64 = 1 << 31;
    /// The most bytes of a value in a store.
    pub const VALUE: u64 = 1_000_000;
    /// The most bytes of all values in all stores.
    pub const STORED: u64 = 1 << 30;
    /// The latest start: 1000 s.
    pub const LATEST: Ps = 1_000_000_000_000_000;
    /// The latest moment to which what flows wait for may add up: 10⁷ s, about half of what the
    /// clock can say.
    pub const FURTHEST: Ps = 10_000 * Flow::LATEST;
    /// The most flows of a run.
    pub const MOST: usize = 4_000_000;
    /// What a flow takes of memory, in bytes: two queue pairs and their rings.
    pub const MEMORY: usize = 2600;

    /// A flow that waits for no other.
    pub fn new(src: u32, dst: u32, bytes: u64, start: Ps) -> Flow {
        let (after, needs, hears) = (Vec::new(), None, None);
        let (verb, connection, class, work) = (Verb::Write, None, None, None);
        Flow { src, dst, bytes, start, after, needs, hears, verb, connection, class, work }
    }

    /// A value that `src` fetches from `dst`; it ends when `src` has it.
    pub fn fetch(src: u32, dst: u32, bytes: u64, start: Ps) -> Flow {
        Flow { verb: Verb::Get, ..Flow::new(src, dst, bytes, start) }
    }

    /// Does `src` fetch the bytes from `dst`?
    pub fn fetches(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::StoreGet(_))
    }

    /// Does a kernel of `dst` carry it out? Then it ends when `src` has the answer.
    pub fn is_call(&self) -> bool {
        self.verb != Verb::Write
    }

    /// The host that sends the bytes, and the one that gets them.
    pub fn way(&self) -> (u32, u32) {
        if self.fetches() { (self.dst, self.src) } else { (self.src, self.dst) }
    }

    /// A wait at `host` for `after`, and for `span` picoseconds more.
    pub fn wait(host: u32, after: Vec<u32>, span: Ps) -> Flow {
        Flow { after, ..Flow::new(host, host, 0, span) }
    }

    /// Is it a wait, and no message?
    pub fn is_wait(&self) -> bool {
        self.src == self.dst && self.bytes == 0
    }

    /// By flow a class from 0 to 7, the shorter the higher, such that the flows of each class have
    /// about as many bytes in all (Homa, SIGCOMM 2018, §3.4).
    pub fn classes(flows: &[Flow]) -> Vec<u8> {
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|flow| flows[*flow].bytes);
        let all: u128 = flows.iter().map(|flow| u128::from(flow.bytes)).sum();
        let mut classes = vec![0; flows.len()];
        let (mut before, mut last) = (0, (0, 7));
        for flow in order {
            let bytes = flows[flow].bytes;
            // Flows of one length have one class.
            let class = if bytes == last.0 { last.1 } else { 7 - (before * 8 / all.max(1)) as u8 };
            (classes[flow], last) = (class, (bytes, class));
            before += u128::from(bytes);
        }
        classes
    }

    /// When the first of some flows begins, or what its source has to do before it ([`Work`]), in
    /// picoseconds from the start of the run.
    pub fn first(flows: &[Flow]) -> Ps {
        let free = flows.iter().filter(|flow| flow.after.is_empty());
        free.map(|flow| flow.start).min().unwrap_or(0)
    }

    /// How many flows must have ended before it begins.
    pub(super) fn needed(&self) -> u32 {
        self.needs.unwrap_or(self.after.len() as u32)
    }

    /// Checks a list of flows for a network of so many hosts.
    pub fn check(flows: &[Flow], hosts: u32) -> Result<(), FlowError> {
        if flows.len() > Flow::MOST {
            let gib = flows.len().saturating_mul(Flow::MEMORY) >> 30;
            return Err(FlowError::TooMany { flows: flows.len(), gib });
        }
        let stored = stored(flows);
        if stored > Flow::STORED {
            return Err(FlowError::Stored { bytes: stored });
        }
        // All work together takes longer than any wait for a processor.
        let spans = flows.iter().filter_map(|flow| flow.work).map(|work| work.span);
        let work = spans.fold(0, Ps::saturating_add);
        // By flow: when it begins at the earliest.
        let mut begins: Vec<Ps> = Vec::with_capacity(flows.len());
        for flow in 0..flows.len() {
            Flow::check_one(flows, flow, hosts)?;
            let at = flows[flow].begins(&begins);
            if at.saturating_add(work) > Flow::FURTHEST {
                return Err(FlowError::Far { flow });
            }
            begins.push(at);
        }
        Ok(())
    }

    /// When it begins at the earliest, if no message and no work takes any time: `begins` has that
    /// of all flows before it.
    fn begins(&self, begins: &[Ps]) -> Ps {
        let mut before: Vec<Ps> = self.after.iter().map(|other| begins[*other as usize]).collect();
        before.sort_unstable();
        let last = (self.needed() as usize).checked_sub(1).and_then(|i| before.get(i));
        last.unwrap_or(&0).saturating_add(self.start)
    }

    /// Checks a flow by itself, and that what it waits for is before it.
    fn check_one(flows: &[Flow], flow: usize, hosts: u32) -> Result<(), FlowError> {
        let this = &flows[flow];
        let Flow { src, dst, bytes, start, after, needs, .. } = this;
        if let Some(host) = [*src, *dst].into_iter().find(|host| *host >= hosts) {
            return Err(FlowError::NoSuchHost { flow, host, last: hosts.saturating_sub(1) });
        }
        if src == dst && *bytes > 0 {
            return Err(FlowError::ToItself { flow, host: *src });
        }
        if (*bytes == 0 && src != dst) || *bytes > Flow::LONGEST {
            return Err(FlowError::Length { flow, bytes: *bytes });
        }
        if this.verb.key().is_some() && *bytes > Flow::VALUE {
            return Err(FlowError::Value { flow, bytes: *bytes });
        }
        if let Some(class) = this.class.filter(|class| *class > 7) {
            return Err(FlowError::Class { flow, class });
        }
        if *start > Flow::LATEST {
            return Err(FlowError::Late { flow });
        }
        if let Some(needs) = *needs
            && (needs == 0 || needs as usize > after.len())
        {
            return Err(FlowError::Needs { flow, needs, of: after.len() });
        }
        for other in after {
            let before = flows[..flow].get(*other as usize);
            let ends_here = |f: &Flow| match this.hears {
                None => f.src == *src || f.dst == *src && !f.is_call(),
                Some(Hears::Arrivals) => !f.is_call() && !f.is_wait(),
                Some(Hears::Ends) => true,
            };
            if !before.is_some_and(ends_here) {
                return Err(FlowError::Order { flow, other: *other });
            }
        }
        Ok(())
    }
}

impl FlowError {
    /// The flow that is wrong, by its index; `None` if all together are.
    pub fn flow(&self) -> Option<usize> {
        match *self {
            FlowError::NoSuchHost { flow, .. }
            | FlowError::ToItself { flow, .. }
            | FlowError::Length { flow, .. }
            | FlowError::Class { flow, .. }
            | FlowError::Late { flow }
            | FlowError::Far { flow }
            | FlowError::Order { flow, .. }
            | FlowError::Needs { flow, .. }
            | FlowError::Value { flow, .. } => Some(flow),
            FlowError::Stored { .. } | FlowError::TooMany { .. } => None,
        }
    }
}

/// The bytes of all values that flows ask stores for.
fn stored(flows: &[Flow]) -> u64 {
    let key = |flow: &Flow| Some((flow.dst, flow.verb.key()?, flow.bytes));
    let all: BTreeSet<_> = flows.iter().filter_map(key).collect();
    all.iter().fold(0, |sum, (.., bytes)| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_as_many_bytes_and_shorter_flows_the_higher() {
        let flows: Vec<Flow> = (1..=1000).rev().map(|i| Flow::new(0, 1, 1000 * i, 0)).collect();
        let classes = Flow::classes(&flows);
        assert!(classes.is_sorted(), "the list begins with the longest");
        let all: u64 = flows.iter().map(|flow| flow.bytes).sum();
        for class in 0..8 {
            let of = flows.iter().zip(&classes).filter(|(_, own)| **own == class);
            let bytes: u64 = of.map(|(flow, _)| flow.bytes).sum();
            assert!((bytes as f64 / all as f64 - 0.125).abs() < 0.005, "{class}: {bytes}");
        }
        let alike = Flow::classes(&[Flow::new(0, 1, 5, 0), Flow::new(1, 0, 5, 0)]);
        assert_eq!(alike, [7, 7]);
        assert_eq!(Flow::classes(&[Flow::wait(0, vec![], 5)]), [7]);
    }
}
