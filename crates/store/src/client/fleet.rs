//! The nodes of a cluster, by polling.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::error::StoreError;
use super::node::PolledNode;
use super::operations::{self, About};
use super::route::{Fleet, Routed};
use super::{Link, now};
use crate::way::call::{Call, Operation};
use crate::way::connect::ClientOptions;
use crate::way::one_sided::OneSidedCounters;

/// How long a node may take for a read without a kernel, before a kernel leads on.
pub(super) const READ_ATTEMPT: Duration = Duration::from_secs(1);
/// How long to wait before the next attempt.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Connections to the nodes of a cluster.
#[derive(Debug)]
pub(super) struct PolledNodes {
    /// Where the client came in.
    pub(super) home: PolledNode,
    is_home_broken: bool,
    others: BTreeMap<SocketAddr, PolledNode>,
    /// Reads of connections that are gone.
    counted: OneSidedCounters,
}

/// A client of a cluster.
pub(super) type PolledCluster = Routed<PolledNodes>;

impl PolledNodes {
    fn new(home: PolledNode) -> PolledNodes {
        let (is_home_broken, others) = (false, BTreeMap::new());
        PolledNodes { home, is_home_broken, others, counted: OneSidedCounters::default() }
    }

    /// A connection to a node.
    fn node(
        &mut self,
        (at, within): (SocketAddr, Duration),
    ) -> Result<&mut PolledNode, StoreError> {
        let Link { device, store, options, .. } = &self.home.link;
        if *store == at && !self.is_home_broken {
            self.home.set_timeout(within);
            return Ok(&mut self.home);
        }
        let node = match self.others.entry(at) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let options = ClientOptions { timeout: within, ..options.clone() };
                place.insert(PolledNode::connect(device, at, &options)?)
            }
        };
        node.set_timeout(within);
        Ok(node)
    }

    /// The connection to a node, if there is one.
    fn known(&mut self, at: SocketAddr) -> Option<&mut PolledNode> {
        match self.home.link.store == at && !self.is_home_broken {
            true => Some(&mut self.home),
            false => self.others.get_mut(&at),
        }
    }

    /// A connection is of no more use.
    fn forget(&mut self, at: SocketAddr) {
        if self.home.link.store == at && !self.is_home_broken {
            self.is_home_broken = true;
        } else if let Some(gone) = self.others.remove(&at) {
            self.counted.add(gone.counters());
        }
    }

    fn counters(&self) -> OneSidedCounters {
        let mut all = self.counted;
        let nodes = self.others.values().chain([&self.home]);
        nodes.for_each(|node| all.add(node.counters()));
        all
    }
}

impl Fleet for PolledNodes {
    async fn call_at(
        &mut self,
        to: (SocketAddr, Duration),
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        use super::operations::Caller as _;
        let done = self.node(to)?.calls.call(operation, call, out).await;
        if done.as_ref().is_err_and(StoreError::is_broken) {
            self.forget(to.0);
        }
        done
    }

    async fn pause(&mut self) {
        thread::sleep(PAUSE);
    }
}

/// Which way a value is read without a kernel.
#[derive(Clone, Copy)]
pub(super) enum Way {
    OneSided,
    Chain,
}

impl PolledCluster {
    pub(super) fn new(home: PolledNode, timeout: Duration) -> Result<PolledCluster, StoreError> {
        let at = home.link.store;
        now(Routed::begin(PolledNodes::new(home), at, timeout))
    }

    /// Reads a value at its primary, without a kernel if it can be.
    pub(super) fn get_by(
        &mut self,
        way: Way,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let (from, mut untold, mut asked) = (out.len(), 0, None);
        let within = self.timeout.min(READ_ATTEMPT);
        if let Some(at) = self.primary_of(key) {
            let read = self.fleet.node((at, within)).and_then(|node| match way {
                Way::OneSided => node.read_one_sided(key, out),
                Way::Chain => node.read_by_chain(key, out),
            });
            match read {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {
                    if let Some(node) = self.fleet.known(at) {
                        untold = node.untold();
                        asked = Some((at, node.link.queue_pair.qpn()));
                    }
                }
                // The node has ceased to be the primary, or has gone: a kernel leads on.
                Err(error) => {
                    tracing::debug!("{at} is not read without a kernel: {error}");
                    out.truncate(from);
                    if error.ends_reading() {
                        self.fleet.forget(at);
                    }
                }
            }
        }
        let found = now(operations::get_told(self, key, untold, out))?;
        let (Some(found), Some((at, qpn))) = (found, asked) else { return Ok(found) };
        // What another connection was told says nothing of this one's memory.
        if self.primary_of(key) == Some(at)
            && let Some(node) = self.fleet.known(at)
            && node.link.queue_pair.qpn() == qpn
        {
            node.set_timeout(within);
            let learnt = match way {
                Way::OneSided => {
                    node.learn(&found);
                    Ok(())
                }
                Way::Chain => node.learn_by_chain(&found),
            };
            if let Err(error) = learnt {
                tracing::debug!("{at} does not tell of its memory: {error}");
            }
        }
        Ok(Some(found))
    }

    pub(super) fn counters(&self) -> OneSidedCounters {
        self.fleet.counters()
    }
}
