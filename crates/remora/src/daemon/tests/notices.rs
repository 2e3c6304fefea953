//! What clients are told of completions: all of them, together, or of errors only.

use remora_nic::queue::{Moderation, PollCqError};
use remora_nic::{Rate, RateLimits};

use super::*;

/// The next event, if there is one.
pub(super) fn event(client: &Client, events: &mut EventConsumer) -> Option<CardEvent> {
    let mut event = Vec::new();
    events.next(&client.arena, &mut event)?;
    Some(decode(&event).unwrap())
}

/// A queue pair that is connected to itself, with a region of card memory.
pub(super) fn looped(client: &Client) -> (Queues, u32) {
    let queues = client.queues();
    client.card().loop_back(queues.made.qpn, queues.made.qpn, Access::all()).unwrap();
    let at = client.card().alloc_dm(4096).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 4096 };
    let key = client.card().reg_mr(queues.pd, bytes, Access::all()).unwrap();
    (queues, key)
}

#[test]
fn entries_gather_until_there_are_enough_or_their_time_is_over() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (mut queues, key) = looped(&client);
    let mut events = EventConsumer::new(&client.arena);
    let told = Some(CardEvent::CompletionQueueNotify(queues.cq));
    let go = |queues: &mut Queues| {
        client.post(queues, &write(1, (0, key), (64, key), 8));
        client.completion(queues);
        // The entry is seen before the notice; another command comes behind both.
        client.card().alloc_pd().unwrap();
    };
    let no_time = Duration::ZERO;
    let three = Moderation { count: 3, period: no_time };
    client.card().modify_cq(queues.cq, three).unwrap();
    queues.completions.arm(false);
    for _ in 0..2 {
        go(&mut queues);
        assert_eq!(event(&client, &mut events), None);
    }
    go(&mut queues);
    assert_eq!(event(&client, &mut events), told);
    go(&mut queues);
    assert_eq!(event(&client, &mut events), None, "it is not armed");

    let gather = Moderation { count: 1000, period: Duration::from_millis(5) };
    client.card().modify_cq(queues.cq, gather).unwrap();
    queues.completions.arm(false);
    client.post(&mut queues, &write(1, (0, key), (64, key), 8));
    until("an event", || event(&client, &mut events).is_some());
    client.completion(&mut queues);

    // An error is told at once, since nothing may come behind it.
    let for_ever = Moderation { count: 1000, period: no_time };
    client.card().modify_cq(queues.cq, for_ever).unwrap();
    queues.completions.arm(false);
    client.post(&mut queues, &write(1, (0, key), (64, key ^ 0xff00), 8));
    until("it is told", || event(&client, &mut events) == told);
    assert_ne!(client.completion(&mut queues).status, Status::Success);
    let unknown = client.card().modify_cq(queues.cq ^ 1, three);
    assert_eq!(unknown, Err(PollCqError::UnknownCq));
}

/// Many notices in a row leave nothing behind that the daemon would look through at each step.
#[test]
fn what_was_held_back_and_told_is_not_held_any_more() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (mut queues, key) = looped(&client);
    let mut events = EventConsumer::new(&client.arena);
    let held = || {
        let mut driver = daemon.device.live.lock();
        let engine = driver.as_own().unwrap().engine.as_deref().unwrap();
        engine.sessions.iter().flatten().map(|of| of.held.len()).sum::<usize>()
    };
    let period = Duration::from_secs(3600);
    client.card().modify_cq(queues.cq, Moderation { count: 2, period }).unwrap();
    for _ in 0..10 {
        queues.completions.arm(false);
        for expected in [1, 0] {
            client.post(&mut queues, &write(1, (0, key), (64, key), 8));
            client.completion(&mut queues);
            client.card().alloc_pd().unwrap();
            assert_eq!(held(), expected);
        }
        assert!(event(&client, &mut events).is_some());
    }
    queues.completions.arm(false);
    client.post(&mut queues, &write(1, (0, key), (64, key), 8));
    client.completion(&mut queues);
    client.card().destroy_qp(queues.made.qpn).unwrap();
    client.card().destroy_cq(queues.cq).unwrap();
    assert_eq!(held(), 0, "the queue is gone");
}

#[test]
fn a_queue_that_counts_hands_errors_over() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut card = client.card();
    let (pd, cq) = (card.alloc_pd().unwrap(), card.create_counting_cq(4).unwrap());
    let made = card.create_qp(init(pd, cq)).unwrap();
    let place = client.asker.ask(&ClientRequest::CompletionQueue(cq), &[], |answer| match answer {
        Answer::CompletionQueue(place) => place,
        other => panic!("{other:?}"),
    });
    let (number, ring, depth) = (place.number, place.ring as usize, place.depth);
    let completions = CompletionConsumer::new(&client.arena, number, ring, depth);
    let mut queues = Queues { made, cq, pd, completions, posted: 0 };
    card.loop_back(made.qpn, made.qpn, Access::all()).unwrap();
    let at = card.alloc_dm(64).unwrap();
    let bytes = Bytes { place: Place::Device(at), iova: 0, len: 64 };
    let key = card.reg_mr(pd, bytes, Access::all()).unwrap();
    for round in 1..=5 {
        client.post(&mut queues, &write(round, (0, key), (8, key), 8));
        until("it is counted", || card.cq_count(cq) == Some(round));
    }
    assert!(!queues.completions.has_entry());
    client.post(&mut queues, &write(6, (0, key), (8, key ^ 0xff00), 8));
    let failed = client.completion(&mut queues);
    assert_eq!((failed.wr_id, failed.status), (6, Status::RemoteAccess));
    assert_eq!(card.cq_count(cq), Some(5));
}

#[test]
fn sessions_have_the_rates_and_the_weight_of_their_user() {
    let own = rustix::process::geteuid().as_raw();
    let text = format!(
        "[users.{own}]\nweight = 3\n[users.{own}.rates]\nelements_per_second = 1000000\n\
         elements_burst = 16\n"
    );
    let name = format!("remora-rates-{}.toml", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, text).unwrap();
    let daemon = Daemon::with(Policy::read(&file).unwrap());
    std::fs::remove_file(file).unwrap();
    let client = daemon.client();
    let (mut queues, key) = looped(&client);
    for round in 0..100 {
        client.post(&mut queues, &write(round, (0, key), (64, key), 8));
        assert_eq!(client.completion(&mut queues).status, Status::Success);
    }
    let status = daemon.observer().status()[0].sessions[0].clone();
    let elements = Some(Rate { per_second: 1_000_000, burst: 16 });
    assert_eq!(status.rates, RateLimits { elements, bytes: None });
    assert_eq!(status.weight, 3);
}
