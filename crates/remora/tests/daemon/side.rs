//! One end of a connection between programs, which describe themselves to each other in a line.

use std::time::Duration;

use remora::nic::queue::{Data, RemoteAddress, SendFlags, SendOp, SendRequest, Status};
use remora::prelude::{
    Access, CompletionQueue, ConnectionParams, Device, MemoryRegion, QueuePair, QueuePairOptions,
};

use super::program::{read, written};

const LONG: Duration = Duration::from_secs(60);

/// Bytes of a side's memory.
pub(crate) const LEN: usize = 1 << 18;

pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) memory: MemoryRegion,
}

impl Side {
    pub(crate) fn on(device: Device) -> Side {
        let cq = device.create_cq(64).unwrap();
        let domain = device.alloc_pd().unwrap();
        let qp = domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
        let memory = domain.alloc(LEN, Access::all()).unwrap();
        Side { device, cq, qp, memory }
    }

    /// What a peer has to know.
    pub(crate) fn described(&self) -> String {
        let RemoteAddress { addr, rkey } = self.memory.remote(0);
        format!("{} {addr} {rkey}", written(self.qp.local()))
    }

    /// Connects to the peer that has described itself so; returns its memory.
    pub(crate) fn connect(&self, peer: &str) -> RemoteAddress {
        let (peer, numbers) = read(peer);
        let params = ConnectionParams::new(self.device.info().mtu).timeout(14).retry_cnt(1);
        self.qp.connect(peer, &params).unwrap();
        RemoteAddress { addr: numbers[0], rkey: numbers[1] as u32 }
    }

    pub(crate) fn does(&self, op: SendOp) -> Status {
        let sges = [self.memory.sge(0, LEN as u32)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        self.cq.spin(LONG).unwrap().status
    }

    /// Writes all of the peer's memory, once; returns how that ends, and whether it went past the
    /// card.
    pub(crate) fn writes(&self, to: RemoteAddress) -> (Status, bool) {
        let fetched = || self.device.counters().card.elements_fetched;
        let before = fetched();
        (self.does(SendOp::Write { to, imm: None }), fetched() == before)
    }

    /// Does a WRITE go past the card?
    pub(crate) fn goes_past(&self, to: RemoteAddress) -> bool {
        let (status, is_past) = self.writes(to);
        assert_eq!(status, Status::Success);
        is_past
    }
}
