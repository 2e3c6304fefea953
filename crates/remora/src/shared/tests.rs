//! Both ends, in two threads; and a client that writes anything.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use remora_nic::queue::{Completion, CompletionFlags, Opcode, Status, WorkKind};

use crate::memory::memfd::{self, MapError};

use super::arena::{AT_EVENTS_CONSUMED, DATA, EVENTS, PAGE, QUEUES_MAX, record};
use super::events::{EVENT_MAX, WAITING_BYTES_MAX, WAITING_MAX};
use super::*;

fn arena() -> (Arena, Arena) {
    let (daemon, file) = Arena::create(DATA + 64 * PAGE).unwrap();
    let client = Arena::open(file.as_fd()).unwrap();
    (daemon, client)
}

fn entry(wr_id: u64) -> Completion {
    Completion { wr_id, ..Completion::default() }
}

#[test]
fn an_arena_is_sealed_and_of_one_layout() {
    let (_, file) = Arena::create(0).unwrap();
    assert!(rustix::fs::ftruncate(&file, 0).is_err(), "it cannot shrink under the daemon");
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let other = rustix::fs::memfd_create("other", flags).unwrap();
    rustix::fs::ftruncate(&other, (DATA + PAGE) as u64).unwrap();
    assert!(matches!(Arena::open(other.as_fd()), Err(ArenaError::Map(MapError::NotSealed))));
    let other = memfd::sealed("other", (DATA + PAGE) as u64).unwrap();
    assert!(matches!(Arena::open(other.as_fd()), Err(ArenaError::Layout)));
    let pipe = std::io::pipe().unwrap().0;
    assert!(Arena::open(pipe.as_fd()).is_err());
}

#[test]
fn each_doorbell_is_taken_once() {
    let (daemon, client) = arena();
    let mut doorbells = Doorbells::default();
    assert!(!doorbells.any(&daemon));
    let queues = [0, 63, 64, 447, 448, 703, 704, QUEUES_MAX - 1];
    for queue in queues {
        assert!(!client.ring(queue), "the daemon is awake");
        client.ring(queue);
    }
    assert!(doorbells.any(&daemon));
    let mut taken = Vec::new();
    while doorbells.take(&daemon, |queue| taken.push(queue)) {}
    assert_eq!(taken, queues);
    assert!(!doorbells.any(&daemon));
    daemon.will_sleep();
    assert!(client.ring(5), "a sleeper has to be woken");
    daemon.woke();
    assert!(!client.ring(5));
}

#[test]
fn completions_arrive_whole_and_in_order() {
    let (daemon, client) = arena();
    let mut producer = CompletionProducer::begin(&daemon, 3, DATA, 8);
    let mut consumer = CompletionConsumer::new(&client, 3, DATA, 8);
    let mut out = [Completion::default(); 4];
    assert_eq!(consumer.poll(&mut out), Ok((0, false)));
    let full = Completion {
        wr_id: u64::MAX - 1,
        status: Status::RetryExceeded,
        kind: WorkKind::Send(Opcode::RpcWrite),
        qpn: 0xff_fffe,
        len: 1 << 31,
        imm_or_key: 7,
        src_qp: 9,
        flags: CompletionFlags::all(),
        at: remora_nic::Time(u64::MAX),
    };
    producer.push(&full);
    for kind in [WorkKind::Recv, WorkKind::RecvWriteImm, WorkKind::Unread] {
        producer.push(&Completion { kind, ..full });
    }
    assert_eq!(producer.room(), 4);
    assert_eq!(consumer.poll(&mut out), Ok((4, false)));
    assert_eq!(out[0], full);
    assert_eq!(out[3], Completion { kind: WorkKind::Unread, ..full });
    assert_eq!(producer.room(), 8);
    producer.set_overrun();
    producer.push(&entry(1));
    assert_eq!(consumer.poll(&mut out), Ok((1, false)), "what is there comes first");
    assert!(consumer.poll(&mut out).is_err());
}

#[test]
fn entries_of_a_destroyed_queue_pair_are_passed_over() {
    let (daemon, client) = arena();
    let mut producer = CompletionProducer::begin(&daemon, 0, DATA, 4);
    let mut consumer = CompletionConsumer::new(&client, 0, DATA, 4);
    for i in 0..4 {
        producer.push(&Completion { qpn: 10 + i as u32 % 2, ..entry(i) });
    }
    consumer.forget(10);
    let mut out = [Completion::default(); 4];
    assert_eq!(consumer.poll(&mut out), Ok((2, false)));
    assert_eq!([out[0].wr_id, out[1].wr_id], [1, 3]);
    assert_eq!(producer.room(), 4);
}

#[test]
fn a_queue_moves_with_what_waits_in_it() {
    let (daemon, client) = arena();
    let mut producer = CompletionProducer::begin(&daemon, 0, DATA, 4);
    let mut consumer = CompletionConsumer::new(&client, 0, DATA, 4);
    let mut out = [Completion::default(); 8];
    for i in 0..6 {
        producer.push(&entry(i));
        if i < 3 {
            consumer.poll(&mut out).unwrap();
        }
        producer.room();
    }
    assert!(!producer.move_to(&daemon, 0, DATA + PAGE, 2), "three wait");
    assert!(producer.move_to(&daemon, 0, DATA + PAGE, 16));
    consumer.move_to(&client, DATA + PAGE, 16);
    producer.push(&entry(6));
    assert_eq!(consumer.poll(&mut out), Ok((4, false)));
    assert_eq!(out[..4].iter().map(|entry| entry.wr_id).collect::<Vec<_>>(), [3, 4, 5, 6]);
}

#[test]
fn an_armed_queue_notifies_once() {
    let (daemon, client) = arena();
    let mut producer = CompletionProducer::begin(&daemon, 0, DATA, 64);
    let consumer = CompletionConsumer::new(&client, 0, DATA, 64);
    producer.push(&entry(0));
    assert!(producer.takes_notice(1) == Notice::No, "not armed");
    consumer.arm(false);
    assert!(producer.takes_notice(1) == Notice::No, "the entry was there before");
    producer.push(&entry(1));
    assert!(producer.takes_notice(1) == Notice::Now);
    producer.push(&entry(2));
    assert!(producer.takes_notice(1) == Notice::No, "once");
    consumer.arm(true);
    producer.push(&entry(3));
    assert!(producer.takes_notice(1) == Notice::No, "not solicited");
    producer.push(&Completion { flags: CompletionFlags::SOLICITED, ..entry(4) });
    producer.push(&entry(5));
    assert!(producer.takes_notice(1) == Notice::Now);
    consumer.arm(true);
    producer.push(&Completion { status: Status::Flushed, ..entry(6) });
    assert!(producer.takes_notice(1) == Notice::Now, "errors are");
}

#[test]
fn events_of_any_length_wait_for_room() {
    let (daemon, client) = arena();
    let (mut producer, mut consumer) = (EventProducer::default(), EventConsumer::new(&client));
    let event = |i: usize| vec![i as u8; i * 7 % (EVENT_MAX + 1)];
    assert!(!consumer.any(&client));
    for i in 0..3000 {
        assert!(!producer.push(&daemon, &event(i)), "the client does not sleep");
    }
    assert!(producer.waits());
    let (mut got, mut bytes) = (0, Vec::new());
    while got < 3000 {
        assert!(consumer.any(&client));
        let told = consumer.next(&client, &mut bytes).unwrap();
        assert_eq!(bytes, event(got), "{got}");
        got += 1;
        assert_eq!(told, producer.waits());
        producer.flush(&daemon);
    }
    assert_eq!(consumer.next(&client, &mut bytes), None);
    producer.push(&daemon, &[0; EVENT_MAX + 1]);
    assert_eq!((producer.lost(), consumer.any(&client)), (1, false));
    consumer.will_sleep(&client, 1);
    assert!(producer.push(&daemon, b"wake"));
    consumer.woke(&client, 1);
    assert!(!producer.push(&daemon, b"no need"));
}

#[test]
fn who_has_lost_the_session_takes_no_wake_up_from_the_next_one() {
    let (daemon, client) = arena();
    let (mut producer, consumer) = (EventProducer::default(), EventConsumer::new(&client));
    consumer.will_sleep(&client, 1);
    consumer.will_sleep(&client, 2);
    consumer.woke(&client, 1);
    assert!(producer.push(&daemon, b"the second one sleeps"));
    consumer.will_sleep(&client, 1);
    consumer.woke(&client, 1);
    assert!(producer.push(&daemon, b"it still does"));
    consumer.woke(&client, 2);
    assert!(!producer.push(&daemon, b"it does not"));
}

/// What waits for a client that does not read is bounded by number and by bytes; it gets all that
/// waited, and later events find room again.
#[test]
fn few_bytes_of_events_wait() {
    for (len, waiting_max) in [(EVENT_MAX, WAITING_BYTES_MAX / EVENT_MAX), (8, WAITING_MAX)] {
        let (daemon, client) = arena();
        let (mut producer, mut consumer) = (EventProducer::default(), EventConsumer::new(&client));
        let event = vec![7; len];
        // So many are in the ring.
        let written = EVENTS as usize / len.div_ceil(56);
        for round in 0..2 {
            for _ in 0..written + waiting_max + 5 {
                producer.push(&daemon, &event);
            }
            assert_eq!(producer.lost(), 5 * (round + 1), "of {len} bytes");
            let (mut got, mut bytes) = (0, Vec::new());
            while consumer.next(&client, &mut bytes).is_some() {
                assert_eq!(bytes, event);
                got += 1;
                producer.flush(&daemon);
            }
            assert_eq!((got, producer.waits()), (written + waiting_max, false));
        }
    }
}

/// The two threads only sleep when the other one has been told; a lost wake-up hangs the test.
#[test]
fn posts_and_completions_race_without_loss() {
    const POSTS: u32 = 200_000;
    let (daemon, client) = arena();
    let doorbell = crate::event::Event::blocking().unwrap();
    let queue = WorkQueue::new(&daemon, 5);
    queue.begin();
    let mut producer = CompletionProducer::begin(&daemon, 6, DATA, 16);
    let mut consumer = CompletionConsumer::new(&client, 6, DATA, 16);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| serve(&daemon, &doorbell, &queue, &mut producer, &ended));
        let mine = WorkQueue::new(&client, 5);
        let (mut posted, mut done) = (0, 0);
        let mut out = [Completion::default(); 5];
        while done < POSTS {
            if posted < POSTS && posted - mine.retired() < 32 {
                posted += 1;
                mine.publish(posted);
                if client.ring(5) {
                    doorbell.notify().unwrap();
                }
            }
            let (taken, waits) = consumer.poll(&mut out).unwrap();
            for entry in &out[..taken] {
                assert_eq!(entry.wr_id, u64::from(done), "in order");
                done += 1;
            }
            if waits && client.ring(6) {
                doorbell.notify().unwrap();
            }
            if taken == 0 && posted - mine.retired() >= 32 {
                thread::yield_now();
            }
        }
        ended.store(true, Ordering::Release);
        doorbell.notify().unwrap();
    });
}

/// A daemon that completes each post: it sleeps whenever it finds nothing.
fn serve(
    arena: &Arena,
    doorbell: &crate::event::Event,
    queue: &WorkQueue,
    producer: &mut CompletionProducer,
    ended: &AtomicBool,
) {
    let (mut doorbells, mut done) = (Doorbells::default(), 0);
    while !ended.load(Ordering::Acquire) {
        let mut rung = false;
        doorbells.take(arena, |_| rung = true);
        let posted = queue.posted();
        let mut room = producer.room();
        if room == 0 && posted != done {
            producer.set_waits(true);
            room = producer.room();
        }
        for _ in 0..room.min(posted.wrapping_sub(done)) {
            producer.push(&entry(u64::from(done)));
            done += 1;
        }
        producer.set_waits(posted != done);
        queue.retire(done);
        if rung || posted != done && producer.room() > 0 {
            continue;
        }
        arena.will_sleep();
        if !doorbells.any(arena) && !ended.load(Ordering::Acquire) {
            doorbell.wait().unwrap();
        }
        arena.woke();
    }
}

#[test]
fn a_hostile_client_spoils_only_its_own_queues() {
    let (daemon, client) = arena();
    let mut producer = CompletionProducer::begin(&daemon, 1, DATA, 8);
    let mut events = EventProducer::default();
    let words = [0, 1, 7, 8, 9, u32::MAX, u32::MAX - 3, 1 << 31];
    let consumed = client.memory().word32(record(1)).unwrap();
    let events_consumed = client.memory().word32(AT_EVENTS_CONSUMED).unwrap();
    for round in 0..10_000usize {
        consumed.store(words[round % words.len()], Ordering::Relaxed);
        events_consumed.store(words[round * 3 % words.len()], Ordering::Relaxed);
        let room = producer.room();
        assert!(room <= 8, "{room}");
        if room > 0 {
            producer.push(&entry(1));
        }
        let _ = producer.takes_notice(1);
        if round < 5000 {
            events.push(&daemon, &[1; 100]);
        }
    }
    // Every bit of every doorbell, at once.
    for at in (512..576).chain(2048..4096).step_by(8) {
        client.memory().word(at).unwrap().store(u64::MAX, Ordering::Relaxed);
    }
    let (mut doorbells, mut most, mut all) = (Doorbells::default(), 0, 0);
    loop {
        let mut now = 0;
        let more = doorbells.take(&daemon, |queue| {
            assert!(queue < QUEUES_MAX);
            now += 1;
        });
        (most, all) = (most.max(now), all + now);
        if !more {
            break;
        }
    }
    assert_eq!(all, QUEUES_MAX);
    assert!(most <= 704, "a look takes {most} doorbells at most");
}
