//! Runs one random world: creates it from a seed, runs it with faults, heals its network, and
//! checks the result.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use remora_nic::Time;
use thiserror::Error;

use crate::check::{Violation, counters, demand};
use crate::guests::Guests;
use crate::link_faults::Tally;
use crate::options::{Options, Verb};
use crate::stores::{StoreTally, Stores};
use crate::traffic::Traffic;
use crate::world::{Step, World};

/// The most simulated time between the healing of the network and the end of all work. The longest
/// legitimate wait is eight timeouts of a queue pair whose peer is gone.
const LIVENESS: Duration = Duration::from_secs(300);

/// The longest time after which an idle host looks after its queues again.
const IDLE_TICK: Duration = Duration::from_millis(5);

/// What happened in a world.
#[derive(Clone, Debug)]
pub struct Report {
    /// The options of the world.
    pub options: Options,
    /// What the network did.
    pub tally: Tally,
    /// Packets that the switch had no room for.
    pub dropped: u64,
    /// Work requests that succeeded, by verb.
    pub done: BTreeMap<Verb, u64>,
    /// The bytes of these requests.
    pub bytes: u64,
    /// Messages that were received.
    pub received: u64,
    /// Datagrams to a multicast group among them, without copies.
    pub heard: u64,
    /// Calls of kernels whose results arrived.
    pub answered: u64,
    /// Calls that ended because their results could not be sent in time.
    pub congested: u64,
    /// Guests that stopped before the end.
    pub stopped: usize,
    /// Atomics of guests that were answered.
    pub guest_atomics: u64,
    /// What stores and their clients have done.
    pub stores: StoreTally,
    /// Queue pairs that failed in ways that the options allow, by status.
    pub failed: BTreeMap<String, u64>,
    /// Packets sent again.
    pub retransmitted: u64,
    /// The simulated time with faults, and the time after them.
    pub phases: [Duration; 2],
    /// Steps of the world.
    pub steps: u64,
}

/// A checker found a violation.
#[derive(Clone, Debug, Error)]
#[error("seed {}: {phase} phase, at {} ns: {violation}", .options.seed, .at.0)]
pub struct Failure {
    /// The options of the world.
    pub options: Box<Options>,
    /// The phase that the world was in.
    pub phase: &'static str,
    /// The simulated time.
    pub at: Time,
    /// What the checker found.
    pub violation: Violation,
}

/// Runs the world of `seed`: checks safety while the network has faults, and liveness after it is
/// healed.
pub fn run(seed: u64) -> Result<Report, Failure> {
    run_world(Options::draw(seed))
}

/// Runs the world with these options.
pub fn run_world(options: Options) -> Result<Report, Failure> {
    let mut run = Run::new(options);
    match run.phases() {
        Ok(phases) => Ok(run.report(phases)),
        Err(violation) => Err(Failure {
            options: Box::new(run.options),
            phase: run.phase,
            at: run.world.now,
            violation,
        }),
    }
}

struct Run {
    options: Options,
    world: World,
    traffic: Traffic,
    guests: Guests,
    stores: Stores,
    phase: &'static str,
    /// By host: the number of ticks in a row in which it had nothing to do.
    idle: Vec<u32>,
}

impl Run {
    fn new(options: Options) -> Run {
        let (mut world, traffic, guests) = Traffic::set_up(&options);
        let stores = Stores::set_up(&mut world, &options.stores, options.seed);
        let idle = vec![0; options.hosts];
        Run { options, world, traffic, guests, stores, phase: "safety", idle }
    }

    fn phases(&mut self) -> Result<[Duration; 2], Violation> {
        let start = self.world.now;
        self.world.network.faults = self.options.faults;
        for host in 0..self.options.hosts {
            self.world.alarm(Duration::from_nanos(host as u64), host as u64);
        }
        self.work_until(start + self.options.broken_for)?;
        self.traffic.check_memory(&self.world)?;
        let healed = self.world.now;
        self.phase = "liveness";
        self.world.heal();
        self.stores.heal();
        self.traffic.healed = true;
        self.work_until(healed + LIVENESS)?;
        demand(self.traffic.is_done(), "liveness", || self.traffic.unfinished(&self.world))?;
        demand(self.guests.is_done(), "liveness", || self.guests.unfinished())?;
        demand(self.stores.is_done(), "liveness", || self.stores.unfinished())?;
        let end = self.world.now;
        self.phase = "closing";
        self.close()?;
        Ok([healed - start, end - healed])
    }

    /// Runs all hosts until all work is done, or until `end`.
    fn work_until(&mut self, end: Time) -> Result<(), Violation> {
        while !self.is_done() && self.world.now < end {
            match self.world.step() {
                Some(Step::Alarm(host)) => self.tick(host as usize)?,
                Some(_) => {}
                None => break,
            }
            self.guests.step(&mut self.world)?;
            self.stores.step(&mut self.world)?;
            self.events()?;
            if self.world.steps.is_multiple_of(20_000) {
                self.traffic.check_memory(&self.world)?;
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.traffic.is_done() && self.guests.is_done() && self.stores.is_done()
    }

    fn tick(&mut self, host: usize) -> Result<(), Violation> {
        let activity =
            |run: &Run| run.traffic.activity() + run.guests.activity() + run.stores.activity();
        let before = activity(self);
        self.traffic.tick(&mut self.world, host)?;
        self.guests.tick(&mut self.world, host)?;
        self.stores.tick(&mut self.world, host)?;
        let is_idle = activity(self) == before;
        let idle = &mut self.idle[host];
        *idle = if is_idle { *idle + 1 } else { 0 };
        let most = self.options.tick.saturating_mul(1 << (*idle / 4).min(20)).min(IDLE_TICK);
        let most = most.max(self.options.tick).as_nanos() as u64;
        let delay = Duration::from_nanos(self.world.dice().between(1..=most));
        self.world.alarm(delay, host as u64);
        Ok(())
    }

    fn events(&mut self) -> Result<(), Violation> {
        for host in 0..self.options.hosts {
            for event in self.world.take_events(host) {
                self.traffic.event(&mut self.world, host, &event)?;
            }
        }
        Ok(())
    }

    /// Lets all packets arrive and all timers run out.
    fn quiesce(&mut self) -> Result<(), Violation> {
        while self.world.step().is_some() {
            self.events()?;
        }
        Ok(())
    }

    /// Closes all connections and checks what is left.
    fn close(&mut self) -> Result<(), Violation> {
        self.stores.settle();
        self.quiesce()?;
        self.traffic.settle(&self.world)?;
        self.traffic.check_memory(&self.world)?;
        self.traffic.close(&mut self.world);
        self.quiesce()?;
        self.traffic.poll_all(&mut self.world)?;
        self.traffic.check_delivered()?;
        self.traffic.check_groups(&self.world)?;
        self.traffic.check_buffers(&self.world)?;
        self.traffic.check_memory(&self.world)?;
        self.traffic.check_words(&self.world)?;
        let may_stray =
            self.traffic.may_stray() || self.guests.stopped > 0 || !self.stores.is_empty();
        counters::check(&self.world, may_stray)?;
        self.guests.close(&mut self.world)?;
        self.stores.close(&mut self.world)?;
        self.traffic.tear_down(&mut self.world)?;
        counters::check_leaks(&self.world)
    }

    fn report(mut self, phases: [Duration; 2]) -> Report {
        let stats = self.traffic.stats;
        let again = self.world.hosts.iter().map(|h| h.nic.counters().tx_retransmitted).sum();
        Report {
            options: self.options,
            tally: self.world.network.tally,
            dropped: self.world.net().tally.dropped_full,
            done: stats.done,
            bytes: stats.bytes,
            received: stats.received,
            heard: stats.heard,
            answered: stats.answered,
            congested: stats.congested,
            stopped: self.guests.stopped,
            guest_atomics: self.guests.atomics,
            stores: self.stores.tally(),
            failed: stats.failed,
            retransmitted: again,
            phases,
            steps: self.world.steps,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { sent, lost, duplicated, reordered, corrupted, marked, .. } = self.tally;
        let dropped = self.dropped;
        write!(f, "{}", self.options)?;
        let Report { bytes, received, heard, answered, congested, .. } = self;
        write!(f, "  done    {bytes} bytes, {received} messages received, {heard} by groups, ")?;
        write!(f, "{answered} calls answered, {congested} held up;")?;
        self.done.iter().try_for_each(|(verb, n)| write!(f, " {verb:?} {n}"))?;
        writeln!(f)?;
        writeln!(
            f,
            "  packets {sent} sent, {} of them again; {lost} lost, {dropped} dropped by the \
             switch, {duplicated} duplicated, {reordered} reordered, {corrupted} corrupted, \
             {marked} marked",
            self.retransmitted
        )?;
        if !self.options.guests.is_empty() {
            writeln!(f, "  guests  {} of {} stopped", self.stopped, 2 * self.options.guests.len())?;
        }
        if !self.options.stores.is_empty() {
            let StoreTally { ended, open, lives, saved, evicted, .. } = self.stores;
            writeln!(
                f,
                "  store   {ended} operations ended, {open} open; {lives} lives, {saved} \
                 snapshots; {evicted} keys evicted"
            )?;
        }
        for (status, n) in &self.failed {
            let s = if *n == 1 { "" } else { "s" };
            writeln!(f, "  failed  {n} queue pair{s}: {status}")?;
        }
        let [broken, healed] = self.phases;
        writeln!(f, "  time    {broken:?} broken, {healed:?} healed; {} steps", self.steps)
    }
}
