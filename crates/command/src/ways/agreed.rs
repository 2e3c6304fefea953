//! What both ends know in advance: how they connect, and the form in which the far end introduces
//! itself.

use std::net::SocketAddr;

use anyhow::Result;
use remora::{
    CompletionQueue, ConnectionParams, Device, ProtectionDomain, QueuePair, QueuePairOptions,
};
use remora_store::codec::Codec;
use serde::{Deserialize, Serialize};

/// The most messages that may be streamed to the application before it has read one.
pub const STREAMED_MAX: u32 = 1024;
/// The stream filter keeps values below this: 1 of 256 values that are spread evenly.
pub const FILTER_BELOW: u64 = 1 << 56;
/// The op-code of the kernel `flaky`: a checked read whose first reading fails.
pub const FLAKY: u64 = 0x100;
/// The precision of the sketches: 16,384 registers.
pub const PRECISION: u8 = 14;

/// The store's tablespaces behind its first, in the order of their numbers from 1 on.
pub const TABLESPACES: [(&str, Codec); 4] = [
    ("compressed", Codec::Lz4 { head: 0 }),
    ("lineitem", Codec::None),
    ("short", Codec::None),
    ("long", Codec::None),
];

/// The line that the far end prints when it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The card, and the port of connection management.
    pub card: SocketAddr,
    /// Where RPCs over TCP are answered.
    pub tcp: SocketAddr,
    /// Memory for structures, which the kernels are granted.
    pub memory: PeerRegion,
    /// Memory for streams: plain, and with a receive kernel bound to it.
    pub plain: PeerRegion,
    /// Its WRITEs pass HyperLogLog.
    pub hyperloglog: PeerRegion,
    /// Its WRITEs pass a filter.
    pub filter: PeerRegion,
    /// Its WRITEs pass the shuffle.
    pub shuffle: PeerRegion,
    /// Where the store is served, if there is one.
    pub store: Option<SocketAddr>,
    /// The most threads that can count what is streamed.
    pub threads: usize,
}

/// A region, as the peer addresses it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerRegion {
    /// Where it begins.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// Its bytes.
    pub len: u64,
}

/// An end of a connection, on either side.
#[derive(Debug)]
pub struct End {
    /// Completions of sends.
    pub cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
    /// The queue pair.
    pub qp: QueuePair,
}

impl End {
    /// A queue pair with completion queues of its own.
    pub fn new(device: &Device, pd: &ProtectionDomain) -> Result<End> {
        let (cq, recv_cq) = (device.create_cq(1024)?, device.create_cq(2 * STREAMED_MAX as usize)?);
        let options = QueuePairOptions::rc(&cq)
            .recv_cq(&recv_cq)
            .send_depth(512)
            .recv_depth(STREAMED_MAX)
            .send_sges(2);
        let qp = pd.create_qp(&options)?;
        Ok(End { cq, recv_cq, qp })
    }
}

/// The parameters of both ends. The acknowledge timeout is half a second: both ends spin, and on a
/// machine that is busy with other work each has to wait for its turn on a processor.
pub fn params(device: &Device) -> ConnectionParams {
    ConnectionParams::new(device.info().mtu).kernels(true).timeout(17)
}
