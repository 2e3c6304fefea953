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
pub(crate) const STREAMED_MAX: u32 = 1024;
/// The stream filter keeps values below this: 1 of 256 values that are spread evenly.
pub(crate) const FILTER_BELOW: u64 = 1 << 56;
/// The op-code of the kernel `flaky`: a checked read whose first reading fails.
pub(crate) const FLAKY: u64 = 0x100;
/// The precision of the sketches: 16,384 registers.
pub(crate) const PRECISION: u8 = 14;

/// The store's tablespaces behind its first, in the order of their numbers from 1 on.
pub(crate) const TABLESPACES: [(&str, Codec); 4] = [
    ("compressed", Codec::Lz4 { head: 0 }),
    ("lineitem", Codec::None),
    ("short", Codec::None),
    ("long", Codec::None),
];

/// The line that the far end prints when it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) card: SocketAddr,
    pub(crate) tcp: SocketAddr,
    /// Memory for structures, which the kernels are granted.
    pub(crate) memory: PeerRegion,
    /// Memory for streams: plain, and with a receive kernel bound to it.
    pub(crate) plain: PeerRegion,
    pub(crate) hyperloglog: PeerRegion,
    pub(crate) filter: PeerRegion,
    pub(crate) shuffle: PeerRegion,
    /// Where the store is served, if there is one.
    pub(crate) store: Option<SocketAddr>,
    /// The most threads that can count what is streamed.
    pub(crate) threads: usize,
}

/// A region, as the peer addresses it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PeerRegion {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}

/// An end of a connection, on either side.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

impl End {
    pub(crate) fn new(device: &Device, pd: &ProtectionDomain) -> Result<End> {
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
pub(crate) fn params(device: &Device) -> ConnectionParams {
    ConnectionParams::new(device.info().mtu).kernels(true).timeout(17)
}
