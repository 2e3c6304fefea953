//! The example of the crate `ibverbs`, between two processes: each sends the other a number.
//!
//! The endpoints travel over standard streams: a process prints its own as a line of JSON, and
//! reads the other's. The test that starts the two processes passes them on.

use std::io;

use ibverbs::{QueuePairEndpoint, ibv_qp_type, ibv_wc};

fn main() {
    let ours: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).expect("a number");

    let devices = ibverbs::devices().unwrap();
    let context = devices.iter().next().expect("no rdma device available").open().unwrap();
    let cq = context.create_cq(16, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    // The acknowledge timeout is 67 ms: the example's 65 µs suit hardware, but not a machine that
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
    // Nothing is sent before both processes are ready to receive: the test says when.
    println!("ready");
    io::stdin().read_line(&mut line).unwrap();
    // SAFETY: as above; each of the two requests has its own half of the memory.
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
    // The test closes standard input when the other process has received everything.
    io::stdin().read_line(&mut line).unwrap();
}
