//! The example of the crate `ibverbs`, between two processes: each sends the other a number.
//!
//! The endpoints travel over standard streams: a process prints its own, a line of JSON, and reads
//! the other's. Who starts the two passes them on.

use std::io;

use ibverbs::{QueuePairEndpoint, ibv_qp_type, ibv_wc};

fn main() {
    let ours: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).expect("a number");

    let devices = ibverbs::devices().unwrap();
    let context = devices.iter().next().expect("no rdma device available").open().unwrap();
    let cq = context.create_cq(16, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    // 67 ms to wait for an answer: the crate's own 65 µs are for hardware, not for a machine that
    // is busy with tests.
    let prepared = pd
        .create_qp(&cq, &cq, ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(1)
        .set_timeout(14)
        .build()
        .unwrap();

    println!("{}", serde_json::to_string(&prepared.endpoint()).unwrap());
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let theirs: QueuePairEndpoint = serde_json::from_str(&line).unwrap();
    let mut queue_pair = prepared.handshake(theirs).unwrap();

    let mut memory = pd.allocate::<u64>(2).unwrap();
    memory[1] = ours;
    // SAFETY: the memory is not touched until both requests have completed.
    unsafe { queue_pair.post_receive(&mut memory, ..1, 2) }.unwrap();
    // Nothing is sent before both are ready to receive: who started us says when.
    println!("ready");
    io::stdin().read_line(&mut line).unwrap();
    // SAFETY: as above; the two requests have a half of the memory each.
    unsafe { queue_pair.post_send(&mut memory, 1.., 1) }.unwrap();

    let mut completed = [ibv_wc::default(); 16];
    let (mut sent, mut received) = (false, false);
    while !sent || !received {
        for completion in cq.poll(&mut completed).unwrap() {
            assert!(completion.error().is_none(), "{:?}", completion.error());
            match completion.wr_id() {
                1 => sent = true,
                2 => received = true,
                other => panic!("nobody posted {other}"),
            }
        }
    }
    println!("{}", memory[0]);
    // Until the other has all of ours: its end of our input says so.
    io::stdin().read_line(&mut line).unwrap();
}
