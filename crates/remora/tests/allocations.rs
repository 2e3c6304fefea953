//! Calls of kernels, and READs, allocate nothing, on either card.

#[path = "support/counting.rs"]
mod counting;
mod support;

use counting::allocations;
use remora::nic::queue::{Completion, Data, SendFlags, SendOp, SendRequest, Status};
use remora::offload::kernel::builtin::{consistency, opcode};
use support::{PATIENCE, pair};

/// Rounds that are counted, after as many in which pools and queues may grow.
const ROUNDS: usize = 500;

#[test]
fn calls_and_reads_allocate_nothing() {
    let (a, b, mut client) = pair();
    b.device.deploy_builtin(&[b.memory.grant_read()]).unwrap();
    let data = [7; 4088];
    b.memory.write_at(0, &data).unwrap();
    b.memory.write_at(data.len(), &consistency::checksum(&data).to_le_bytes()).unwrap();
    let from = b.memory.remote(0);
    let params = consistency::Params { address: from.addr, len: 4096, readings: 0 }.to_bytes();
    let sges = [a.memory.sge(0, 4096)];
    let read = SendRequest {
        wr_id: 1,
        op: SendOp::Read { from },
        data: Data::Sges(&sges),
        flags: SendFlags::SIGNALED,
    };
    let mut done = [Completion::default(); 4];
    // All calls, and then all READs: each kind holds buffers until more of it is sent, and the
    // other kind would free them.
    let mut rounds = || {
        for _ in 0..ROUNDS {
            // Both cards are driven here, so that what one does follows what the other did.
            let ticket = client.begin(opcode::CONSISTENCY, &params).unwrap();
            while !client.is_done(&ticket).unwrap() {
                let found = b.recv_cq.poll(&mut done).unwrap();
                assert!(done[..found].iter().all(|done| done.status == Status::Success));
            }
            assert_eq!(client.finish_in_place(ticket).unwrap().len(), 4096);
        }
        for _ in 0..ROUNDS {
            a.qp.post_send(&read).unwrap();
            assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
        }
    };
    rounds();
    let before = allocations();
    rounds();
    // There should be none. On a busy machine, a pool may grow once more.
    let more = allocations() - before;
    assert!(more < ROUNDS / 10, "{more} allocations in {ROUNDS} calls and as many READs");
}
