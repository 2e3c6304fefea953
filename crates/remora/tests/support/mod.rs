//! Two devices that agreed on kernels.
#![allow(dead_code, reason = "each test program uses a part")]

use std::time::Duration;

use remora::kernel::KernelClient;
use remora::nic::Access;
use remora::{
    CompletionQueue, ConnectionParams, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions,
};

const OPEN: Access = Access::all();
/// How long a test waits for an event that is sure to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A device with a queue pair and memory that is open to all.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) memory: MemoryRegion,
}

/// Opens one.
pub(crate) fn end() -> End {
    end_on(Device::open().unwrap())
}

/// The same on this device.
pub(crate) fn end_on(device: Device) -> End {
    let pd = device.alloc_pd().unwrap();
    let send_cq = device.create_cq(256).unwrap();
    let recv_cq = device.create_cq(256).unwrap();
    let rc = QueuePairOptions::rc(&send_cq);
    let options = rc.recv_cq(&recv_cq).send_sges(2);
    let qp = pd.create_qp(&options).unwrap();
    let memory = pd.alloc(4 << 20, OPEN).unwrap();
    End { device, pd, send_cq, recv_cq, qp, memory }
}

/// A client, and a server that knows nothing of what its card does.
pub(crate) fn pair() -> (End, End, KernelClient) {
    let (a, b) = (end(), end());
    let client = connect(&a, &b);
    (a, b, client)
}

/// Connects a client to a server.
pub(crate) fn connect(a: &End, b: &End) -> KernelClient {
    let params = ConnectionParams::new(a.device.info().mtu).kernels(true);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    KernelClient::new(&a.pd, &a.qp, &a.recv_cq, 8, 1 << 20).unwrap()
}

/// A second queue pair between the two, and a client for it.
pub(crate) fn another(a: &End, b: &End) -> ((End, QueuePair), KernelClient) {
    let rc = QueuePairOptions::rc(&b.send_cq);
    let qp = b.pd.create_qp(&rc.recv_cq(&b.recv_cq)).unwrap();
    let c = end();
    let params = ConnectionParams::new(a.device.info().mtu).kernels(true);
    c.qp.connect(qp.local(), &params).unwrap();
    qp.connect(c.qp.local(), &params).unwrap();
    let client = KernelClient::new(&c.pd, &c.qp, &c.recv_cq, 8, 1 << 20).unwrap();
    ((c, qp), client)
}
