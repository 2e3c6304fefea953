//! What the threads of a run share.

use core::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::barrier::Barrier;
use super::cluster::{Cluster, ClusterError};
use super::division::Division;
use super::flow::Flow;
use super::report::Deadlock;
use super::watch::Watch;
use crate::net::deadlock::{Paused, Waits};
use crate::net::{Atlas, Parcel};

/// What the two ends of a flow must know of each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    pub(super) src_qpn: u32,
    pub(super) dst_qpn: u32,
    pub(super) dst_addr: u64,
    pub(super) dst_key: u32,
}

/// What all threads of a run share.
pub(super) struct Shared<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) flows: &'a [Flow],
    /// By flow: does another wait for it at its target?
    pub(super) awaited: Vec<bool>,
    pub(super) division: &'a Division,
    /// The paths of the network, which all parts share.
    pub(super) atlas: Atlas,
    /// By flow, where cards carry them.
    pub(super) ends: Mutex<Vec<Ends>>,
    pub(super) barrier: Barrier,
    /// By part: what others have sent it.
    pub(super) mail: Vec<Mutex<Vec<Parcel>>>,
    /// By thread: when something happens next.
    pub(super) nexts: Vec<AtomicU64>,
    pub(super) failed: Mutex<Option<ClusterError>>,
    pub(super) deadlock: Mutex<Option<Deadlock>>,
    /// In a look for deadlocks: what all parts have to say.
    pub(super) paused: Mutex<Paused>,
    pub(super) waits: Mutex<Waits>,
    /// The moment up to which the part that has come furthest has taken samples.
    pub(super) sampled: AtomicU64,
    pub(super) watch: &'a Watch,
}

/// The lock. A thread that has panicked ends the run of all.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
