//! The store's process: what `remora store serve` starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use remora::Device;
use remora_command::{child, output, random};
use remora_store::log::Fsync;
use remora_store::service::{KeepOptions, Service, ServiceOptions};
use serde::{Deserialize, Serialize};

/// The most bytes that keys and values may take.
const MEMORY: u64 = 128 << 20;

/// The demo's store, which keeps each change on the disk before it acknowledges it.
#[derive(Debug, Args)]
pub struct StoreServer {
    /// Where the store keeps its log
    #[arg(long)]
    dir: PathBuf,
}

/// Where the store serves: what its process prints first.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Ready {
    pub(super) store: SocketAddr,
    pub(super) redis: Vec<SocketAddr>,
    pub(super) memcached: Vec<SocketAddr>,
}

impl StoreServer {
    pub(super) fn run(self) -> Result<()> {
        child::end_with_stdin()?;
        let device = Device::open()?;
        let mut options = ServiceOptions::new(MEMORY, u64::from_ne_bytes(random::bytes()?));
        options.keep = Some(KeepOptions::new(self.dir, Fsync::Always));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (options.fronts.redis, options.fronts.memcached) = (vec![any], vec![any]);
        let service = Service::start(&device, &options)?;
        let fronts = service.fronts();
        output::json_line(&Ready {
            store: service.address(),
            redis: fronts.map(|server| server.redis().to_vec()).unwrap_or_default(),
            memcached: fronts.map(|server| server.memcached().to_vec()).unwrap_or_default(),
        })?;
        loop {
            std::thread::park();
        }
    }
}
