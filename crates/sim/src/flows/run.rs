//! Runs flows, on the threads that the cluster has.

use std::sync::{Barrier, Mutex, atomic::AtomicU64};
use std::thread::Builder;

use remora::threads::without_signals;

use super::cards::Cards;
use super::cluster::{Cluster, ClusterError};
use super::division::Division;
use super::flow::{Flow, Hears};
use super::published::Models;
use super::report::Report;
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
    /// flow whose bytes were not all in their places then. A network that comes to a deadlock is none:
    /// see [`Report::deadlock`].
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
        let (parts, threads) = (division.parts(), division.threads);
        let shared = Shared {
            cluster: self,
            flows,
            awaited: awaited(flows),
            division: &division,
            atlas: Atlas::default(),
            ends: Mutex::new(vec![Default::default(); flows.len()]),
            barrier: Barrier::new(threads),
            mail: (0..parts).map(|_| Mutex::new(Vec::new())).collect(),
            nexts: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            failed: Mutex::new(None),
            deadlock: Mutex::default(),
            paused: Mutex::default(),
            waits: Mutex::default(),
            sampled: AtomicU64::new(0),
            watch,
        };
        let shared = &shared;
        let run = match self.transport.how {
            How::Card { .. } => Rounds::<Cards<'_>>::run,
            How::Published(_) => Rounds::<Models<'_>>::run,
        };
        let mut report = Report::new(flows);
        std::thread::scope(|scope| {
            // At most one: if it does not start, nobody waits for it at the barrier.
            let start = |thread| {
                let named = Builder::new().name(format!("world-{thread}"));
                without_signals(|| named.spawn_scoped(scope, move || run(shared, thread)))
            };
            let others: Vec<_> = (1..threads).map(start).collect::<Result<_, _>>()?;
            let mut outcomes = run(shared, 0);
            for other in others {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcomes.extend(other);
            }
            outcomes.into_iter().for_each(|outcome| report.add(outcome));
            Ok(())
        })
        .map_err(|error: std::io::Error| ClusterError::Thread(error.to_string()))?;
        if let Some(error) = locked(&shared.failed).take() {
            return Err(error);
        }
        let deadlock = locked(&shared.deadlock).take();
        let report = report.stop(self.until, deadlock);
        report.with_ideals(self, &shared.atlas, &shared.awaited).whole()
    }
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
