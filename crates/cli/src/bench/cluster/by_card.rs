//! A client over the card: one call of a kernel after another.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use remora::Device;
use remora_store::client::StoreClient;
use remora_store::way::connect::ClientOptions;

use super::super::figure::median;
use super::load::{Work, key};

/// A client that finds its primary by itself.
#[derive(Debug)]
pub(super) struct ByCard(StoreClient);

impl ByCard {
    pub(super) fn connect(device: &Device, store: SocketAddr) -> Result<ByCard> {
        Ok(ByCard(StoreClient::connect(device, store, &ClientOptions::default())?))
    }

    /// The median time of so many puts, one after another, in µs.
    pub(super) fn latency(&mut self, work: Work, calls: usize) -> Result<f64> {
        let value = vec![b'v'; work.value];
        let mut times = Vec::with_capacity(calls);
        for number in (0..work.keys).cycle().take(calls) {
            let key = key(number);
            let start = Instant::now();
            self.0.put(key.as_bytes(), &value)?;
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(median(&times))
    }
}
