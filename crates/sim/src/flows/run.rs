//! Runs flows, on the threads that the cluster has.

use std::panic::resume_unwind;
use std::sync::{Mutex, atomic::AtomicU64};
use std::thread::Builder;

use remora::threads::without_signals;

use super::barrier::{Barrier, Broken};
use super::cards::Cards;
use super::cluster::{Cluster, ClusterError};
use super::division::Division;
use super::flow::{Flow, Hears};
use super::published::Models;
use super::report::{Outcome, Report};
use super::rounds::Rounds;
use super::shared::{Shared, locked};
use super::transport::How;
use super::watch::Watch;
use crate::net::Atlas;

impl Cluster {
    /// Runs flows until all have ended.
    ///
    /// # Errors
    /// If the topology or a flow is wrong, a thread cannot be started, or a card has completed a
    /// flow whose bytes were not all in their places then. A network that comes to a deadlock is
    /// none: see [`Report::deadlock`].
    ///
    /// # Panics
    /// If a card does, on whichever thread.
    pub fn run(&self, flows: &[Flow]) -> Result<Report, ClusterError> {
        self.run_watched(flows, &Watch::default())
    }

    /// As [`Cluster::run`]; `watch` tells other threads how far it has come.
    ///
    /// # Errors
    /// As those of [`Cluster::run`].
    pub fn run_watched(&self, flows: &[Flow], watch: &Watch) -> Result<Report, ClusterError> {
        self.topology.check()?;
        Flow::check(flows, self.topology.hosts)?;
        self.check(flows)?;
        // What is heard at once leaves no time in which parts could run apart.
        let division = match flows.iter().any(|flow| flow.hears.is_some()) {
            true => Division::whole(&self.topology),
            false => self.division()?,
        };
        let shared = Shared {
            cluster: self,
            flows,
            awaited: awaited(flows),
            division: &division,
            atlas: Atlas::default(),
            ends: Mutex::new(vec![Default::default(); flows.len()]),
            barrier: Barrier::new(division.threads),
            mail: (0..division.parts()).map(|_| Mutex::new(Vec::new())).collect(),
            nexts: (0..division.threads).map(|_| AtomicU64::new(0)).collect(),
            failed: Mutex::new(None),
            deadlock: Mutex::default(),
            paused: Mutex::default(),
            waits: Mutex::default(),
            sampled: AtomicU64::new(0),
            watch,
        };
        let mut report = Report::new(flows);
        run_parts(&shared)?.into_iter().for_each(|outcome| report.add(outcome));
        if let Some(error) = locked(&shared.failed).take() {
            return Err(error);
        }
        let deadlock = locked(&shared.deadlock).take();
        let report = report.stop(self.until, deadlock);
        report.with_ideals(self, &shared.atlas, &shared.awaited).whole()
    }
}

/// Runs all parts, on as many threads as they are divided among. A panic on one of these is the
/// caller's.
fn run_parts(shared: &Shared<'_>) -> Result<Vec<Outcome>, ClusterError> {
    let of_thread = match shared.cluster.transport.how {
        How::Card { .. } => Rounds::<Cards<'_>>::run,
        How::Published(_) => Rounds::<Models<'_>>::run,
    };
    let run = move |thread| shared.barrier.run(|| of_thread(shared, thread));
    let ran: Result<Vec<_>, std::io::Error> = std::thread::scope(|scope| {
        // At most one: if it does not start, nobody waits for it at the barrier.
        let start = |thread| {
            let named = Builder::new().name(format!("world-{thread}"));
            without_signals(|| named.spawn_scoped(scope, move || run(thread)))
        };
        let others = (1..shared.division.threads).map(start).collect::<Result<Vec<_>, _>>()?;
        let own = run(0);
        let others = others.into_iter().map(|other| other.join().and_then(|ran| ran));
        Ok([own].into_iter().chain(others).collect())
    });
    let mut outcomes = Vec::new();
    for ran in ran.map_err(|error| ClusterError::Thread(error.to_string()))? {
        match ran {
            Ok(some) => outcomes.extend(some),
            // Another one's panic has ended this thread.
            Err(panic) if panic.is::<Broken>() => {}
            Err(panic) => resume_unwind(panic),
        }
    }
    Ok(outcomes)
}

/// By flow: does another wait for it at its target?
fn awaited(flows: &[Flow]) -> Vec<bool> {
    let mut awaited = vec![false; flows.len()];
    for flow in flows {
        for other in flow.after.iter().map(|other| *other as usize) {
            let is_heard = flow.hears == Some(Hears::Arrivals);
            awaited[other] |= flows[other].dst == flow.src || is_heard;
        }
    }
    awaited
}
