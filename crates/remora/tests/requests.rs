//! Requests as futures, between two devices of one process.

#[path = "support/executor.rs"]
mod executor;
#[path = "support/until.rs"]
mod until;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use executor::{block_on, poll_once, run_all};
use remora::CreateQpError;
use remora::nic::PostError;
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{CompletionFlags, Status, WorkKind};
use remora::prelude::*;
use until::until;

const TIMEOUT: Duration = Duration::from_secs(30);

struct End {
    device: Device,
    domain: ProtectionDomain,
    qp: QueuePair,
    memory: MemoryRegion,
}

fn end(options: &QueuePairOptions<'_>) -> End {
    let device = Device::open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let qp = domain.create_qp(options).unwrap();
    let memory = domain.alloc(1 << 16, Access::all()).unwrap();
    End { device, domain, qp, memory }
}

fn connect(a: &QueuePair, b: &QueuePair, device: &Device) {
    let params = ConnectionParams::new(device.info().mtu);
    a.connect(b.local(), &params).unwrap();
    b.connect(a.local(), &params).unwrap();
}

fn pair_of(options: &QueuePairOptions<'_>) -> (End, End) {
    let (a, b) = (end(options), end(options));
    connect(&a.qp, &b.qp, &a.device);
    (a, b)
}

fn pair() -> (End, End) {
    pair_of(&QueuePairOptions::new())
}

/// The status of a request that has failed.
fn status<T>(result: Result<T, RequestError>) -> Status {
    match result {
        Err(RequestError::Status(status)) => status,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it ended well"),
    }
}

#[test]
fn each_verb_is_a_future() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    a.memory.write_at(0, b"to the peer").unwrap();
    block_on(async {
        let wrote = a.qp.write(a.memory.slice(0..11), peer.slice(8..)).await.unwrap();
        assert_eq!((wrote.status, wrote.qpn), (Status::Success, a.qp.qpn()));
        let read = a.qp.read(a.memory.slice(100..), peer.slice(11..19)).await.unwrap();
        assert_eq!(read.len, 8);
        assert_eq!(a.memory.slice(100..109).to_vec().unwrap(), b"the peer\0");

        let message = b.qp.recv(b.memory.slice(1000..1100));
        a.qp.send_imm(b"hello", 7).await.unwrap();
        let message = message.await.unwrap();
        assert_eq!((message.len, message.imm()), (5, Some(7)));
        assert_eq!(b.memory.slice(1000..1005).to_vec().unwrap(), b"hello");

        let told = b.qp.recv(b.memory.slice(..0));
        a.qp.write_imm(b"!", peer.slice(2000..), 9).await.unwrap();
        let told = told.await.unwrap();
        assert_eq!((told.kind, told.imm()), (WorkKind::RecvWriteImm, Some(9)));
        assert!(told.flags.contains(CompletionFlags::IMM));

        let word = peer.slice(4096..4104);
        assert_eq!(a.qp.fetch_add(word, 5).await.unwrap(), 0);
        assert_eq!(a.qp.compare_swap(word, 5, 40).await.unwrap(), 5);
        assert_eq!(a.qp.compare_swap(word, 5, 99).await.unwrap(), 40);
        assert_eq!(b.memory.buffer().unwrap().load_u64(4096).unwrap(), 40);
    });
}

#[test]
fn many_requests_in_flight_are_awaited_in_any_order() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    for i in 0..128 {
        b.memory.write_at(i * 8, &(i as u64 * 3).to_le_bytes()).unwrap();
    }
    let mut reads: Vec<(usize, Request)> = (0..128)
        .map(|i| (i, a.qp.read(a.memory.slice(i * 8..i * 8 + 8), peer.slice(i * 8..i * 8 + 8))))
        .collect();
    // 128 places, each visited once.
    let mut at = 0;
    while !reads.is_empty() {
        at = (at + 37) % reads.len();
        let (i, read) = reads.swap_remove(at);
        block_on(read).unwrap();
        let word = a.memory.slice(i * 8..i * 8 + 8).to_vec().unwrap();
        assert_eq!(word, (i as u64 * 3).to_le_bytes());
    }
    let adds: Vec<Request<u64>> = (0..64).map(|_| a.qp.fetch_add(peer.slice(8000..), 1)).collect();
    let before: Vec<u64> = adds.into_iter().rev().map(|add| block_on(add).unwrap()).collect();
    assert_eq!(before, (0..64).rev().collect::<Vec<u64>>(), "each has a word of its own");
}

#[test]
fn the_memory_of_a_dropped_request_lives_until_it_has_ended() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    let regions = a.device.in_use().mrs;
    for round in 0..300 {
        let memory = a.domain.alloc(1 << 16, Access::LOCAL_WRITE).unwrap();
        memory.write_at(65_000, &[round as u8; 8]).unwrap();
        let mut write = a.qp.write(&memory, peer);
        drop(memory);
        match round % 3 {
            0 => assert!(block_on(write).is_ok()),
            1 => assert!(!matches!(poll_once(&mut write), Poll::Ready(Err(_)))),
            _ => drop(write),
        }
    }
    // When this request has ended, all that were posted before it have.
    block_on(a.qp.write(b"x", peer.slice(..1))).unwrap();
    assert_eq!(b.memory.slice(65_000..65_008).to_vec().unwrap(), [(299 % 256) as u8; 8]);
    until("the memory is freed", || a.device.in_use().mrs == regions);
    let writes: Vec<Request> = (0..128).map(|_| a.qp.write(b"y", peer.slice(..1))).collect();
    for write in writes {
        block_on(write).unwrap();
    }
}

#[test]
fn a_dropped_receive_takes_its_message() {
    let (a, b) = pair();
    drop(b.qp.recv(b.memory.slice(..100)));
    let second = b.qp.recv(b.memory.slice(100..200));
    block_on(async {
        a.qp.send(b"lost").await.unwrap();
        a.qp.send(b"found").await.unwrap();
        assert_eq!(second.await.unwrap().len, 5);
    });
    assert_eq!(b.memory.slice(..4).to_vec().unwrap(), b"lost");
    assert_eq!(b.memory.slice(100..105).to_vec().unwrap(), b"found");
}

#[test]
fn a_request_more_than_the_queue_holds_waits_for_room() {
    let (a, b) = pair_of(&QueuePairOptions::new().send_depth(4));
    let peer = b.memory.slice(..).remote();
    let writes: Vec<Request> =
        (0..100u8).map(|i| a.qp.write(&[i; 8], peer.slice(usize::from(i) * 8..))).collect();
    assert!(format!("{:?}", writes[3]).contains("posted"));
    assert!(format!("{:?}", writes[4]).contains("waits for room"));
    for (i, write) in writes.into_iter().enumerate() {
        match i {
            // This request is dropped before it is posted.
            50 => drop(write),
            _ => assert!(block_on(write).is_ok()),
        }
    }
    for i in 0..100usize {
        let there = b.memory.slice(i * 8..i * 8 + 8).to_vec().unwrap();
        assert_eq!(there, [if i == 50 { 0 } else { i as u8 }; 8]);
    }
}

#[test]
fn a_failed_request_says_why_and_those_behind_it_are_flushed() {
    let (a, b) = pair();
    let stale = b.memory.slice(..8).remote();
    let wrong = remora::Remote { rkey: stale.rkey ^ 0x100, ..stale };
    let first = a.qp.write(b"bytes", wrong);
    let second = a.qp.write(b"bytes", stale);
    let received = a.qp.recv(&a.memory);
    assert_eq!(status(block_on(second)), Status::Flushed);
    assert_eq!(status(block_on(first)), Status::RemoteAccess);
    assert_eq!(status(block_on(received)), Status::Flushed);
    let third = a.qp.read(&a.memory, stale);
    assert_eq!(status(third.wait(TIMEOUT)), Status::Flushed);
}

#[test]
fn what_is_wrong_before_it_is_posted_the_future_says() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    let long = a.qp.write(a.memory.slice(..10), peer.slice(..9));
    assert!(matches!(block_on(long), Err(RequestError::NoRoom { len: 10, room: 9 })));
    let short = a.qp.read(a.memory.slice(..9), peer.slice(..10));
    assert!(matches!(block_on(short), Err(RequestError::NoRoom { len: 10, room: 9 })));
    let word = a.qp.fetch_add(peer.slice(..7), 1);
    assert!(matches!(block_on(word), Err(RequestError::NoRoom { .. })));
    let inline = a.qp.send(&[0; 2000]).wait(TIMEOUT);
    assert!(matches!(inline, Err(RequestError::Post(PostError::TooLong(_)))));

    let cq = a.device.create_cq(4).unwrap();
    let polled = a.domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    assert!(matches!(block_on(polled.send(b"")), Err(RequestError::Polled)));
    let half = a.domain.create_qp(&QueuePairOptions::new().recv_cq(&cq)).unwrap();
    assert!(matches!(block_on(half.recv(&a.memory)), Err(RequestError::Polled)));
    let no_room = a.domain.create_qp(&QueuePairOptions::new().recv_depth(0)).unwrap();
    assert!(matches!(block_on(no_room.recv(&a.memory)), Err(RequestError::Polled)));
    let shared = a.domain.create_srq(4, 1).unwrap();
    let silent = a.domain.create_qp(&QueuePairOptions::new().srq(&shared));
    assert!(matches!(silent, Err(CreateQpError::NoCompletionQueue)));
    let unconnected = half.send(b"").wait(TIMEOUT);
    assert!(matches!(unconnected, Err(RequestError::Post(PostError::State(State::Reset)))));
}

#[test]
fn a_request_outlives_every_handle() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    a.memory.write_at(0, b"still written").unwrap();
    let write = a.qp.write(a.memory.slice(..13), peer);
    let End { device, domain, qp, memory } = a;
    drop((device, domain, qp, memory));
    block_on(write).unwrap();
    assert_eq!(b.memory.slice(..13).to_vec().unwrap(), b"still written");
}

#[test]
fn a_queue_pair_that_is_dropped_leaves_nothing_behind() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    for _ in 0..20 {
        drop((a.qp.write(&a.memory, peer), a.qp.recv(&a.memory), a.qp.fetch_add(peer, 1)));
    }
    let End { device, domain, qp, memory } = a;
    drop((domain, qp, memory));
    until("all is gone", || device.in_use() == Default::default());
}

#[test]
fn a_wait_ends_in_time_and_the_request_goes_on() {
    let (a, b) = pair();
    let timeout = Duration::from_millis(20);
    let waited = b.qp.recv(b.memory.slice(..8)).wait(timeout);
    assert!(matches!(waited, Err(RequestError::Timeout(after)) if after == timeout));
    a.qp.send(b"late").wait(TIMEOUT).unwrap();
    assert_eq!(b.memory.slice(..4).to_vec().unwrap(), b"late");
    // A sender waits for a receiver that is not ready.
    let early = thread::scope(|scope| {
        let sent = scope.spawn(|| a.qp.send(b"early").wait(TIMEOUT));
        let received = b.qp.recv(b.memory.slice(..8)).wait(TIMEOUT).unwrap();
        sent.join().unwrap().unwrap();
        received
    });
    assert_eq!(early.len, 5);
}

/// The background threads, and the tasks that they wake, drive the devices.
#[test]
fn no_wake_up_is_lost() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    let echo = thread::spawn(move || {
        block_on(async {
            for _ in 0..2000 {
                let question = b.qp.recv(b.memory.slice(..64)).await.unwrap();
                b.qp.send(b.memory.slice(..question.len as usize)).await.unwrap();
            }
        });
        b
    });
    block_on(async {
        for i in 0..2000u32 {
            let answer = a.qp.recv(a.memory.slice(64..128));
            a.qp.send(&i.to_le_bytes()).await.unwrap();
            assert_eq!(answer.await.unwrap().len, 4);
            assert_eq!(a.memory.slice(64..68).to_vec().unwrap(), i.to_le_bytes());
        }
        a.qp.write(b"end", peer).await.unwrap();
    });
    drop(echo.join().unwrap());
}

/// A thread that polls another completion queue notes the news of requests, while the background
/// thread rests.
#[test]
fn a_thread_that_polls_for_itself_wakes_others() {
    let (a, b) = pair();
    let peer = b.memory.slice(..).remote();
    let queue = a.device.create_cq(16).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(queue.poll(&mut [Completion::default()]).unwrap(), 0);
            }
        });
        block_on(async {
            for i in 0..500u64 {
                assert_eq!(a.qp.fetch_add(peer.slice(..8), 1).await.unwrap(), i);
            }
        });
        // That thread has ended, and the tasks are still woken.
        done.store(true, Ordering::Relaxed);
        block_on(async {
            for i in 500..600u64 {
                assert_eq!(a.qp.fetch_add(peer.slice(..8), 1).await.unwrap(), i);
            }
        });
    });
}

/// Tasks in a few threads, on a few queue pairs with little room; some drop their requests.
#[test]
fn tasks_share_queue_pairs() {
    const TASKS: usize = 24;
    const QPS: usize = 3;
    let options = QueuePairOptions::new().send_depth(8).recv_depth(1);
    let (a, b) = pair_of(&options);
    let qps: Vec<(QueuePair, QueuePair)> = (0..QPS)
        .map(|_| (a.domain.create_qp(&options).unwrap(), b.domain.create_qp(&options).unwrap()))
        .collect();
    qps.iter().for_each(|(here, there)| connect(here, there, &a.device));
    let peer = b.memory.slice(..).remote();
    let regions = a.device.in_use().mrs + QPS;
    let task = |number: usize| -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (qp, domain) = (qps[number % QPS].0.clone(), a.domain.clone());
        Box::pin(async move {
            let mine = domain.alloc(64, Access::LOCAL_WRITE).unwrap();
            let there = peer.slice(4096 + number * 64..4096 + number * 64 + 64);
            for round in 0..200u64 {
                mine.write_at(0, &round.to_le_bytes()).unwrap();
                let wrote = qp.write(mine.slice(..8), there);
                if round % 7 == 0 {
                    // The same WRITE again; its future is dropped, perhaps before it was posted.
                    let mut again = qp.write(mine.slice(..8), there);
                    assert!(!matches!(poll_once(&mut again), Poll::Ready(Err(_))));
                }
                wrote.await.unwrap();
                qp.read(mine.slice(8..16), there.slice(..8)).await.unwrap();
                assert_eq!(mine.slice(8..16).to_vec().unwrap(), round.to_le_bytes());
                qp.fetch_add(peer.slice(..8), 1).await.unwrap();
            }
        })
    };
    run_all((0..TASKS).map(task).collect(), 4);
    assert_eq!(b.memory.buffer().unwrap().load_u64(0).unwrap(), TASKS as u64 * 200);
    // One more request on each queue pair, behind those that were dropped.
    for (qp, _) in &qps {
        block_on(qp.write(b"z", peer.slice(8..))).unwrap();
    }
    // Only the region with the words of atomics is left.
    until("the memory is freed", || a.device.in_use().mrs == regions);
}

#[test]
fn what_waits_on_a_connection_ends_with_it() {
    let (server, device) = (Device::open().unwrap(), Device::open().unwrap());
    let listener = server.listen(7480).unwrap();
    let address = SocketAddr::new(server.info().address, listener.port());
    let serving = thread::spawn(move || {
        block_on(async {
            let domain = server.alloc_pd().unwrap();
            let memory = domain.alloc(64, Access::all()).unwrap();
            let params = ConnectionParams::new(server.info().mtu);
            for _ in 0..2 {
                let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
                let request = listener.accept().await.unwrap();
                let connection = request.accept(qp, b"", &params).await.unwrap();
                connection.send_remote(memory.slice(8..).remote()).await.unwrap();
                let never = connection.queue_pair().recv(&memory);
                assert_eq!(status(never.await), Status::Flushed);
                connection.closed().await.unwrap();
            }
        });
    });
    let domain = device.alloc_pd().unwrap();
    let params = ConnectionParams::new(device.info().mtu);
    for _ in 0..2 {
        let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
        let connection = block_on(device.connect(qp.clone(), address, b"", &params)).unwrap();
        let remote = block_on(connection.recv_remote()).unwrap();
        assert_eq!(remote.len, 56);
        block_on(qp.write(b"bytes", remote)).unwrap();
        let memory = domain.alloc(8, Access::LOCAL_WRITE).unwrap();
        let never = qp.recv(&memory);
        drop(connection);
        assert_eq!(status(block_on(never)), Status::Flushed);
    }
    serving.join().unwrap();
}

#[test]
fn an_application_moves_a_queue_pair_to_the_error_state_and_its_tasks_learn_of_it() {
    let (a, _b) = pair();
    let qp = a.qp.clone();
    let waiting = thread::spawn(move || status(block_on(qp.recv(&a.memory))));
    a.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
    assert_eq!(waiting.join().unwrap(), Status::Flushed);
}

/// A waker may be the last owner of a task, and that task may own requests of the same queue pair.
#[test]
fn a_waker_that_is_replaced_may_end_other_requests() {
    struct Task(#[expect(dead_code, reason = "it is only dropped")] Vec<Request>);
    impl Wake for Task {
        fn wake(self: Arc<Task>) {}
    }
    let (a, b) = pair_of(&QueuePairOptions::new().recv_depth(2));
    let task = || Waker::from(Arc::new(Task(vec![b.qp.recv(&b.memory), b.qp.recv(&b.memory)])));
    let mut first = b.qp.recv(b.memory.slice(..8));
    for waker in [task(), task()] {
        let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    // The waker of the second task is dropped with the request.
    drop(first);
    let mut waits = b.qp.recv(b.memory.slice(8..16));
    for waker in [task(), task()] {
        assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // Two for the requests that were dropped.
    let sent: Vec<Request> = (0..3).map(|_| a.qp.send(b"message")).collect();
    assert_eq!(block_on(waits).unwrap().len, 7);
    for message in sent {
        block_on(message).unwrap();
    }
}

/// A future that is dropped leaves nothing of its task behind, whether news ever comes or not.
#[test]
fn a_dropped_future_that_waited_for_a_client_forgets_its_task() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Task>) {}
    }
    let device = Device::open().unwrap();
    let listener = device.listen(7000).unwrap();
    let task = Arc::new(Task);
    let waker = Waker::from(task.clone());
    // Two of one task wait; the one that is left is still woken.
    let mut kept = Box::pin(listener.accept());
    assert!(kept.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let before = Arc::strong_count(&task);
    for _ in 0..100 {
        let mut waits = Box::pin(listener.accept());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(Arc::strong_count(&task), before + 1);
    }
    assert_eq!(Arc::strong_count(&task), before);
    drop(kept);
    assert_eq!(Arc::strong_count(&task), before - 1);
}

#[test]
fn reset_ends_what_is_in_flight() {
    let (_a, b) = pair();
    let waits = b.qp.recv(b.memory.slice(..64));
    drop(b.qp.recv(b.memory.slice(64..128)));
    b.qp.modify(&QpAttr { state: Some(State::Reset), ..QpAttr::default() }).unwrap();
    assert_eq!(status(waits.wait(TIMEOUT)), Status::Flushed);
    // All places are free again.
    let a = end(&QueuePairOptions::new());
    connect(&a.qp, &b.qp, &a.device);
    let peer = a.memory.slice(..).remote();
    for _ in 0..300 {
        b.qp.write(b"again", peer.slice(..5)).wait(TIMEOUT).unwrap();
    }
    let receives: Vec<Request> = (0..128).map(|_| b.qp.recv(b.memory.slice(..64))).collect();
    for received in receives {
        a.qp.send(b"one").wait(TIMEOUT).unwrap();
        assert_eq!(received.wait(TIMEOUT).unwrap().len, 3);
    }
}

/// The server gives a client up that believes to be connected, as its last message was lost.
#[test]
fn a_connection_that_is_refused_late_ends_its_requests() {
    // A daemon's card is not this test's to impair.
    let own_card = || DeviceOptions::new().embedded().open().unwrap();
    let server = own_card();
    let listener = server.listen(7473).unwrap();
    let to = SocketAddr::new(server.info().address, listener.port());
    let params = ConnectionParams::new(server.info().mtu);
    let (has_asked, asked) = std::sync::mpsc::channel();
    let (is_deaf, deaf) = std::sync::mpsc::channel();
    let client = thread::spawn(move || {
        let device = own_card();
        let qp = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::new()).unwrap();
        has_asked.send(device.clone()).unwrap();
        let connection = device.connect(qp, to, b"", &params).wait(TIMEOUT).unwrap();
        is_deaf.send(()).unwrap();
        status(connection.recv_remote().wait(TIMEOUT).map(drop))
    });
    let device: Device = asked.recv().unwrap();
    let request = listener.accept().wait(TIMEOUT).unwrap();
    device.impair(&"out,loss=100%".parse().unwrap()).unwrap();
    let qp = server.alloc_pd().unwrap().create_qp(&QueuePairOptions::new()).unwrap();
    let mut accepting = request.accept(qp, b"", &params);
    assert!(poll_once(&mut accepting).is_pending());
    deaf.recv_timeout(TIMEOUT).unwrap();
    drop(accepting);
    assert_eq!(client.join().unwrap(), Status::Flushed);
}
