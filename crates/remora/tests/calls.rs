//! Calls of kernels as futures.

#[path = "support/executor.rs"]
mod executor;

use std::pin::Pin;
use std::time::Duration;

use executor::{block_on, poll_once, run_all};
use remora::kernel::{CallFailure, CallStatus};

use remora::nic::qp::{Mtu, QpAttr, State};
use remora::nic::queue::Status;
use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(30);
const ECHO: u64 = 1;
const SUM: u64 = 2;

struct Pair {
    server: Device,
    domain: ProtectionDomain,
    qp: QueuePair,
    /// The server's end.
    there: ProtectionDomain,
    passive: QueuePair,
}

fn pair() -> Pair {
    pair_with(QueuePairOptions::new(), None)
}

/// A pair whose caller has these options, and whose path MTU is this one, or the device's.
fn pair_with(options: QueuePairOptions, mtu: Option<Mtu>) -> Pair {
    // Its kernels are code of this process, which no daemon's card runs.
    let server = DeviceOptions::new().embedded().open().unwrap();
    let device = Device::open().unwrap();
    let echo = |call: Context| async move {
        let bytes = call.params(|params| Ok(params.to_vec())).await?;
        call.output(|out| out.extend_from_slice(&bytes)).await
    };
    server.deploy(ECHO, Deployment::new("echo", []), echo).unwrap();
    let sum = |call: Context| async move {
        let mut sum = 0u64;
        let add = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        while let Some(part) = call.payload(|bytes, _| add(bytes)).await? {
            sum += part;
        }
        call.output(|out| out.extend_from_slice(&sum.to_le_bytes())).await
    };
    server.deploy(SUM, Deployment::new("sum", []), sum).unwrap();
    let (there, domain) = (server.alloc_pd().unwrap(), device.alloc_pd().unwrap());
    let passive = there.create_qp(&QueuePairOptions::new()).unwrap();
    let qp = domain.create_qp(&options.send_sges(2).inline(64)).unwrap();
    let params = ConnectionParams::new(mtu.unwrap_or(device.info().mtu)).kernels(true);
    passive.connect(qp.local(), &params).unwrap();
    qp.connect(passive.local(), &params).unwrap();
    Pair { server, domain, qp, there, passive }
}

#[test]
fn calls_in_flight_are_awaited_in_any_order() {
    let pair = pair();
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 8, 4096).unwrap();
    for round in 0..50usize {
        let params = |i: usize| vec![(round + i) as u8; [3, 20, 2000][(round + i) % 3]];
        let mut calls: Vec<_> = (0..8).map(|i| (i, client.call(ECHO, &params(i)))).collect();
        assert!(matches!(block_on(client.call(ECHO, b"")), Err(CallFailure::Full(8))));
        calls.rotate_left(round % 8);
        for (i, call) in calls {
            assert_eq!(block_on(call).unwrap(), params(i));
        }
    }
    let unknown = client.call(77, b"").wait(TIMEOUT);
    assert!(matches!(unknown, Err(CallFailure::Status(CallStatus::NO_KERNEL))));
    for _ in 0..20 {
        let long = client.call(ECHO, &[0; 5000]).wait(TIMEOUT);
        assert!(long.unwrap_err().to_string().contains("path MTU"));
    }
    assert_eq!(client.call(ECHO, b"still").wait(TIMEOUT).unwrap(), b"still");
}

/// Nothing of it is posted, so the connection goes on.
#[test]
fn a_call_longer_than_the_path_mtu_is_refused() {
    for mtu in [Mtu::B256, Mtu::B1024] {
        let pair = pair_with(QueuePairOptions::new(), Some(mtu));
        let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 2, 4096).unwrap();
        let memory = pair.domain.alloc(5000, Access::LOCAL_WRITE).unwrap();
        let most = mtu.bytes() as usize - 40;
        for len in [most + 1, 3000, 70_000] {
            let params = vec![1; len];
            for call in [client.call(ECHO, &params), client.call_with(SUM, &params, &memory)] {
                let why = call.wait(TIMEOUT).unwrap_err().to_string();
                let (most, len) = (most.to_string(), len.to_string());
                assert!(
                    why.contains(&most) && why.contains(&len) && why.contains("path MTU"),
                    "{why}"
                );
            }
        }
        let params = vec![1; most];
        assert_eq!(client.call(ECHO, &params).wait(TIMEOUT).unwrap(), params);
        let sum = client.call_with(SUM, &params, &memory).wait(TIMEOUT).unwrap();
        assert_eq!(sum, 0u64.to_le_bytes());
    }
}

#[test]
fn a_call_that_cannot_be_posted_takes_no_place() {
    let pair = pair();
    let qp = pair.domain.create_qp(&QueuePairOptions::new()).unwrap();
    let client = AsyncKernelClient::new(&pair.domain, &qp, 2, 64).unwrap();
    for _ in 0..20 {
        let unconnected = client.call(ECHO, b"").wait(TIMEOUT);
        assert!(matches!(unconnected, Err(CallFailure::Request(RequestError::Post(_)))));
    }
}

#[test]
fn payload_comes_from_registered_memory() {
    let pair = pair();
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 2, 64).unwrap();
    let memory = pair.domain.alloc(100_000, Access::LOCAL_WRITE).unwrap();
    memory.buffer().unwrap().fill(3);
    let sum = block_on(client.call_with(SUM, b"", memory.slice(10..))).unwrap();
    assert_eq!(sum, (99_990u64 * 3).to_le_bytes());
}

#[test]
fn a_dropped_call_gives_its_place_back() {
    let pair = pair();
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 2, 4096).unwrap();
    for round in 0..100u8 {
        let mut dropped = client.call(ECHO, &[round; 8]);
        if round % 2 == 0 {
            drop(poll_once(&mut dropped));
        }
        drop(dropped);
        // The answer to the dropped call comes before the answer to this one.
        assert_eq!(client.call(ECHO, &[round]).wait(TIMEOUT).unwrap(), [round]);
    }
}

/// A call for which the send queue had no room is not posted when its future is dropped: its place
/// is free, and the receive element that was there for it serves another call.
#[test]
fn a_call_that_waits_for_room_gives_its_place_back() {
    let pair = pair_with(QueuePairOptions::new().send_depth(1), None);
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 4, 64).unwrap();
    let memory = pair.there.alloc(64, Access::LOCAL_WRITE).unwrap();
    for round in 0..8u8 {
        // The peer has no receive element yet, so this request keeps the queue's only place.
        let first = pair.qp.send(b"first");
        let mut waiting: Vec<_> = (0..4).map(|_| client.call(ECHO, b"never")).collect();
        waiting.iter_mut().skip(1).for_each(|call| drop(poll_once(call)));
        drop(waiting);
        let received = pair.passive.recv(memory.slice(..));
        first.wait(TIMEOUT).unwrap();
        received.wait(TIMEOUT).unwrap();
        assert_eq!(client.call(ECHO, &[round]).wait(TIMEOUT).unwrap(), [round]);
    }
}

#[test]
fn tasks_share_a_client() {
    const TASKS: usize = 8;
    let pair = pair();
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, TASKS * 2, 64).unwrap();
    let task = |number: usize| -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let client = client.clone();
        Box::pin(async move {
            for round in 0..200usize {
                let params = [number as u8, round as u8];
                let call = client.call(ECHO, &params);
                if (round + number).is_multiple_of(5) {
                    // This task may be the one that looks for ends.
                    let mut call = call;
                    drop(poll_once(&mut call));
                    drop(call);
                    continue;
                }
                assert_eq!(call.await.unwrap(), params);
            }
        })
    };
    run_all((0..TASKS).map(task).collect(), 4);
}

#[test]
fn a_broken_connection_ends_all_calls() {
    let pair = pair();
    // The kernel never answers.
    let never = |call: Context| async move {
        while call.opcode() == 9 {
            call.yield_now().await?;
        }
        Ok(())
    };
    let endless = Deployment::new("never", []).budget(u64::MAX);
    pair.server.deploy(9, endless, never).unwrap();
    let client = AsyncKernelClient::new(&pair.domain, &pair.qp, 4, 64).unwrap();
    let mut calls: Vec<_> = (0..3).map(|_| client.call(9, b"")).collect();
    assert!(poll_once(&mut calls[0]).is_pending());
    pair.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
    for call in calls {
        match block_on(call) {
            Err(CallFailure::Connection(status)) => assert_eq!(status, Status::Flushed),
            Err(CallFailure::Request(RequestError::Status(Status::Flushed))) => {}
            other => panic!("{other:?}"),
        }
    }
}
