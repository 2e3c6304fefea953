//! Requests as futures allocate nothing, on either side, once the first have been made.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/executor.rs"]
mod executor;

use std::time::Duration;

use counting::allocations;
use executor::block_on;
use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Rounds that are counted, after as many in which pools and queues may grow.
const ROUNDS: usize = 300;

#[test]
fn requests_allocate_nothing() {
    let (here, there) = (Device::open().unwrap(), Device::open().unwrap());
    let (mine, theirs) = (here.alloc_pd().unwrap(), there.alloc_pd().unwrap());
    let options = QueuePairOptions::new();
    let (qp, peer) = (mine.create_qp(&options).unwrap(), theirs.create_qp(&options).unwrap());
    let params = ConnectionParams::new(here.info().mtu);
    peer.connect(qp.local(), &params).unwrap();
    qp.connect(peer.local(), &params).unwrap();
    let memory = mine.alloc(4096, Access::all()).unwrap();
    let remote_memory = theirs.alloc(4096, Access::all()).unwrap();
    let remote = remote_memory.slice(..).remote();
    let awaited = || {
        block_on(async {
            for _ in 0..ROUNDS {
                let received = peer.recv(&remote_memory);
                qp.send(memory.slice(..64)).await.unwrap();
                received.await.unwrap();
                qp.write(memory.slice(..512), remote.slice(512..)).await.unwrap();
                drop(qp.write(b"not awaited.", remote.slice(..12)));
                qp.read(memory.slice(1024..), remote.slice(..2048)).await.unwrap();
                qp.fetch_add(remote.slice(8..16), 1).await.unwrap();
            }
        });
    };
    let waited = || {
        for _ in 0..ROUNDS {
            qp.write(&memory, remote).wait(TIMEOUT).unwrap();
        }
    };
    awaited();
    waited();
    let before = allocations();
    awaited();
    waited();
    // The executor allocates once. On a busy machine, a pool may grow once more.
    let more = allocations() - before;
    assert!(more < ROUNDS / 10, "{more} allocations in {ROUNDS} rounds of requests");
}
