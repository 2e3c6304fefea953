//! The nodes of a cluster, by futures.
//!
//! A node remembers one request of a client. So a caller takes a lane for a call: what is known of
//! the cluster, and the numbers under which its groups know this lane. A future that is dropped in
//! the middle of a call takes its lane along.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remora::kernel::CallFailure;

use super::awaited_node::{Awaited, AwaitedNode};
use super::error::StoreError;
use super::fleet::{PAUSE, READ_ATTEMPT, Way};
use super::operations::{self, About, Caller};
use super::permits::{Permit, Permits};
use super::route::{Fleet, Route, Routed};
use super::timer::Timer;
use crate::tablespace::TablespaceId;
use crate::way::call::{Call, Operation};
use crate::way::connect::ConnectError;
use crate::way::one_sided::OneSidedCounters;

/// A client's connections to the nodes.
#[derive(Clone, Debug)]
pub(super) struct AwaitedNodes(Arc<Nodes>);

#[derive(Debug)]
struct Nodes {
    timer: Timer,
    /// Where the client came in; those that follow are made as it was.
    home: Awaited,
    connections: Mutex<BTreeMap<SocketAddr, Awaited>>,
}

impl AwaitedNodes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Awaited>> {
        self.0.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to a node.
    async fn connect(&self, at: SocketAddr) -> Result<Awaited, StoreError> {
        if let Some(known) = self.lock().get(&at) {
            return Ok(known.clone());
        }
        let link = self.0.home.link();
        let made = Awaited::connect(&link.device, at, &link.options).await?;
        // Somebody else may have been faster.
        Ok(self.lock().entry(at).or_insert(made).clone())
    }

    /// Whether this is the connection to a node that there is now.
    fn is_known(&self, at: SocketAddr, which: &Awaited) -> bool {
        self.lock().get(&at).is_some_and(|known| known.is(which))
    }

    /// A connection is of no more use.
    fn forget(&self, at: SocketAddr, which: &Awaited) {
        let mut known = self.lock();
        if known.get(&at).is_some_and(|known| known.is(which)) {
            known.remove(&at);
        }
    }
}

impl Fleet for AwaitedNodes {
    async fn call_at(
        &mut self,
        (at, within): (SocketAddr, Duration),
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let late = || StoreError::Call(CallFailure::Timeout(within));
        let timer = &self.0.timer;
        let node = timer.within(within, self.connect(at)).await.ok_or_else(late)??;
        let called = timer.within(within, (&node).call(operation, call, out)).await;
        let done = called.unwrap_or_else(|| Err(late()));
        if done.as_ref().is_err_and(StoreError::is_broken) {
            self.forget(at, &node);
        }
        done
    }

    async fn pause(&mut self) {
        self.0.timer.sleep(PAUSE).await;
    }
}

/// A client of a cluster; a clone is another handle.
#[derive(Debug)]
pub(super) struct AwaitedCluster {
    shared: Arc<Shared>,
    /// What this handle reads without a kernel.
    readers: BTreeMap<SocketAddr, AwaitedNode>,
    /// Reads of connections that are gone.
    counted: OneSidedCounters,
}

#[derive(Debug)]
struct Shared {
    nodes: AwaitedNodes,
    permits: Permits,
    /// Those that nobody uses, and one that nobody has used yet.
    lanes: Mutex<Vec<Route>>,
    first: Route,
    timeout: Duration,
}

impl Clone for AwaitedCluster {
    fn clone(&self) -> AwaitedCluster {
        let (readers, counted) = (BTreeMap::new(), OneSidedCounters::default());
        AwaitedCluster { shared: self.shared.clone(), readers, counted }
    }
}

/// A lane, taken for an operation.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    shared: &'a Shared,
    routed: Routed<AwaitedNodes>,
    /// A call is under way.
    is_busy: bool,
    _permit: Permit<'a>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if !self.is_busy {
            let route = std::mem::take(&mut self.routed.route);
            self.shared.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(route);
        }
    }
}

impl Caller for Lane<'_> {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        self.is_busy = true;
        let done = self.routed.call(operation, call, out).await;
        self.is_busy = false;
        done
    }

    fn tablespace(&self) -> TablespaceId {
        self.routed.tablespace()
    }
}

impl AwaitedCluster {
    /// A client that came in at a node.
    pub(super) async fn new(home: Awaited) -> Result<AwaitedCluster, ConnectError> {
        let failed = |reason: &dyn std::fmt::Display| ConnectError::Map(reason.to_string());
        let timer = Timer::start().map_err(|error| failed(&error))?;
        let (at, timeout, calls) = {
            let link = home.link();
            (link.store, link.options.timeout, link.options.calls)
        };
        let connections = Mutex::new([(at, home.clone())].into());
        let nodes = AwaitedNodes(Arc::new(Nodes { timer, home, connections }));
        let begun = Routed::begin(nodes.clone(), at, timeout).await;
        let first = begun.map_err(|error| failed(&error))?.route;
        let (permits, lanes) = (Permits::new(calls), Mutex::default());
        let shared = Arc::new(Shared { nodes, permits, lanes, first, timeout });
        Ok(AwaitedCluster {
            shared,
            readers: BTreeMap::new(),
            counted: OneSidedCounters::default(),
        })
    }

    /// The connection to the node where the client came in.
    pub(super) fn home(&self) -> &Awaited {
        &self.shared.nodes.0.home
    }

    /// A lane, as soon as one is free.
    pub(super) async fn lane(&self) -> Lane<'_> {
        let shared = &*self.shared;
        let permit = shared.permits.take().await;
        let free = shared.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let route = free.unwrap_or_else(|| shared.first.clone());
        let routed = Routed { fleet: shared.nodes.clone(), route, timeout: shared.timeout };
        Lane { shared, routed, is_busy: false, _permit: permit }
    }

    /// What reads a node's memory over the connection that there is now.
    async fn reader(&mut self, at: SocketAddr) -> Result<&mut AwaitedNode, StoreError> {
        let connection = self.shared.nodes.connect(at).await?;
        if let Some(old) = self.readers.get(&at)
            && !old.calls.is(&connection)
        {
            self.counted.add(old.counters());
            self.readers.remove(&at);
        }
        Ok(self.readers.entry(at).or_insert_with(|| AwaitedNode::new(connection)))
    }

    /// Reads a value at its primary, without a kernel if it can be.
    pub(super) async fn get_by(
        &mut self,
        way: Way,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let (from, shared) = (out.len(), self.shared.clone());
        let primary = self.lane().await.routed.primary_of(key);
        let (mut untold, mut asked) = (0, None);
        if let Some(at) = primary {
            let reading = async {
                let node = self.reader(at).await?;
                let read = node.read_by(way, key, out).await;
                Ok::<_, StoreError>((read, node.untold(), node.calls.clone()))
            };
            match shared.nodes.0.timer.within(READ_ATTEMPT.min(shared.timeout), reading).await {
                Some(Ok((Ok(Some(found)), ..))) => return Ok(Some(found)),
                Some(Ok((Ok(None), read, calls))) => {
                    untold = read;
                    asked = Some((at, calls));
                }
                // The node has ceased to be the primary, or has gone: a kernel leads on.
                failed => {
                    tracing::debug!("{at} is not read without a kernel: {failed:?}");
                    out.truncate(from);
                    let keeps = match &failed {
                        Some(Err(error) | Ok((Err(error), ..))) => !error.ends_reading(),
                        _ => false,
                    };
                    if !keeps && let Some(gone) = self.readers.remove(&at) {
                        self.counted.add(gone.counters());
                        shared.nodes.forget(at, &gone.calls);
                    }
                }
            }
        }
        let mut lane = self.lane().await;
        let found = operations::get_told(&mut lane, key, untold, out).await?;
        let still = lane.routed.primary_of(key);
        drop(lane);
        let (Some(found), Some((at, calls))) = (found, asked) else { return Ok(found) };
        // What another connection was told says nothing of this one's memory.
        if still == Some(at)
            && shared.nodes.is_known(at, &calls)
            && let Some(node) = self.readers.get_mut(&at)
        {
            let learning = node.learn_by(way, &found);
            let within = READ_ATTEMPT.min(shared.timeout);
            let learnt = shared.nodes.0.timer.within(within, learning).await;
            if !matches!(learnt, Some(Ok(()))) {
                tracing::debug!("{at} does not tell of its memory: {learnt:?}");
            }
        }
        Ok(Some(found))
    }

    pub(super) fn counters(&self) -> OneSidedCounters {
        let mut all = self.counted;
        self.readers.values().for_each(|node| all.add(node.counters()));
        all
    }
}
