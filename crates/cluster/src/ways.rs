//! A node's ways in over the card, for clients of the store: kernels, READs and chains.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use remora::kernel::DeployError;
use remora::threads::without_signals;
use remora::{Device, MemoryRegion};
use remora_store::stats::Stats;
use remora_store::way::door::{Behind, ChainMaker, Door, DoorError, DoorOptions};
use remora_store::way::hello::StoreKind;
use remora_store::way::kernel::{deploy, undeploy};
use remora_store::way::long::LongCalls;
use remora_store::way::region::Region;
use remora_store::way::{chain, payload};
use thiserror::Error;

use crate::kernels::GroupStore;
use crate::slots::Slots;

/// Why a node has no ways in over the card.
#[derive(Debug, Error)]
pub enum WaysError {
    /// The kernels cannot be deployed.
    #[error("the store's kernels cannot be deployed: {0}")]
    Deploy(#[from] DeployError),
    /// Nobody can be let in.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}; if there is a limit on processes, raise it")]
    Thread(#[from] io::Error),
}

/// A node's ways in over the card. Dropping it ends the connections of all clients.
pub struct CardWays {
    device: Device,
    address: SocketAddr,
    long: Arc<LongCalls>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for CardWays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardWays").field("address", &self.address).finish_non_exhaustive()
    }
}

impl CardWays {
    /// Lets clients in. `memory` is the store's, for those who READ it and for chains.
    ///
    /// # Errors
    /// See [`WaysError`].
    pub fn start(
        slots: &Arc<Slots<Region>>,
        memory: (MemoryRegion, MemoryRegion),
        door: DoorOptions,
        stats: &Arc<Stats>,
    ) -> Result<CardWays, WaysError> {
        let group = &slots.group;
        let device = group.device.clone();
        let long = Arc::new(LongCalls::start(payload::TOTAL_MIN)?);
        let address = SocketAddr::new(device.info().address, door.port);
        let chains = Some((memory.1, Box::new(chain::program) as Box<ChainMaker>));
        let gate = group.gate.clone();
        let readers = slots.store.memory().readers().clone();
        let behind = Behind { memory: memory.0, readers, chains, gate, kind: StoreKind::Member };
        let door = Door::open(&device, door, behind)?;
        let store = Arc::new(GroupStore::new(slots.clone()));
        let mut ways = CardWays { device, address, long, stop: Arc::default(), thread: None };
        deploy(&ways.device, &store, stats, &ways.long)?;
        let (stop, counts) = (ways.stop.clone(), stats.thread());
        let serve = move || {
            if let Err(error) = door.serve(&counts, &|| stop.load(Ordering::Relaxed)) {
                tracing::error!("no clients are let in over the card any more: {error}");
            }
        };
        let named = thread::Builder::new().name("cluster clients".to_owned());
        ways.thread = Some(without_signals(|| named.spawn(serve))?);
        Ok(ways)
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for CardWays {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        undeploy(&self.device);
        self.long.end();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}
