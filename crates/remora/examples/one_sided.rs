//! One process writes and reads another's memory, without the other's help.
//!
//! Here both devices live in one process, so that the example runs by itself:
//! `cargo run --example one_sided`.

use std::error::Error;
use std::time::Duration;

use remora::nic::Access;
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora::{ConnectionParams, Device, QueuePairOptions};

fn main() -> Result<(), Box<dyn Error>> {
    // The side that is read and written: it registers memory and connects; then it does nothing.
    let server = Device::open()?;
    let domain = server.alloc_pd()?;
    let events = server.create_cq(16)?;
    let passive = domain.create_qp(&QueuePairOptions::rc(&events))?;
    let memory =
        domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;

    // The side that reads and writes.
    let client = Device::open()?;
    let domain = client.alloc_pd()?;
    let done = client.create_cq(16)?;
    let active = domain.create_qp(&QueuePairOptions::rc(&done))?;
    let buffer = domain.alloc(4096, Access::LOCAL_WRITE)?;

    // Queue pair numbers and first PSNs are exchanged by any means; see the example `connect` for
    // RDMA connection management.
    let params = ConnectionParams::new(client.info().mtu);
    passive.connect(active.local(), &params)?;
    active.connect(passive.local(), &params)?;

    let text = b"written by a peer";
    buffer.write_at(0, text)?;
    let sges = [buffer.sge(0, text.len() as u32)];
    let requests = [
        SendOp::Write { to: memory.remote(100), imm: None },
        SendOp::Read { from: memory.remote(100) },
    ];
    for op in requests {
        let flags = SendFlags::SIGNALED;
        active.post_send(&SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags })?;
        let completion = done.spin(Duration::from_secs(5))?;
        assert_eq!(completion.status, Status::Success, "{}", completion.status);
    }

    let mut there = [0; 17];
    memory.read_at(100, &mut there)?;
    println!("in the server's memory: {}", String::from_utf8_lossy(&there));
    assert_eq!(&there, text);
    Ok(())
}
