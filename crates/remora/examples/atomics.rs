//! Four peers count on one word of a server's memory, and none is lost.
//!
//! `cargo run --example atomics`

use std::error::Error;
use std::time::Duration;

use remora::nic::Access;
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora::{ConnectionParams, Device, QueuePairOptions};

const PEERS: usize = 4;
const ADDS: u64 = 250;

fn main() -> Result<(), Box<dyn Error>> {
    let server = Device::open()?;
    let domain = server.alloc_pd()?;
    let events = server.create_cq(16)?;
    let counter = domain.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;

    let mut clients = Vec::new();
    for _ in 0..PEERS {
        let device = Device::open()?;
        let mine = device.alloc_pd()?;
        let done = device.create_cq(64)?;
        let queue_pair = mine.create_qp(&QueuePairOptions::rc(&done))?;
        let passive = domain.create_qp(&QueuePairOptions::rc(&events))?;
        let params = ConnectionParams::new(device.info().mtu);
        passive.connect(queue_pair.local(), &params)?;
        queue_pair.connect(passive.local(), &params)?;
        let before = mine.alloc(8, Access::LOCAL_WRITE)?;
        clients.push((queue_pair, passive, done, before));
    }
    for _ in 0..ADDS {
        for (queue_pair, _, _, before) in &clients {
            let op = SendOp::FetchAdd { at: counter.remote(0), add: 1 };
            let (sges, flags) = ([before.sge(0, 8)], SendFlags::SIGNALED);
            queue_pair.post_send(&SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags })?;
        }
        for (_, _, done, _) in &clients {
            let completion = done.spin(Duration::from_secs(5))?;
            assert_eq!(completion.status, Status::Success, "{}", completion.status);
        }
    }
    let counted = counter.buffer().expect("a region with a buffer").load_u64(0)?;
    println!("{PEERS} peers added {ADDS} each: {counted}");
    assert_eq!(counted, PEERS as u64 * ADDS);
    Ok(())
}
