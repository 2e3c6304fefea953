//! What cards of the lossy dialect keep of requests and answers, where these end late or never.

use core::time::Duration;

use remora_nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora_nic::wire::{Dialect, Operation, Transport};
use remora_nic::{Config, Psn};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use remora_sim::packet::Seen;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule};

fn options() -> PairOptions {
    let connect = ConnectOptions { dialect: Dialect::LOSSY, ..ConnectOptions::default() };
    PairOptions { connect, ..PairOptions::default() }
}

/// All requests of A have succeeded, and there were so many.
fn succeeded(pair: &mut Pair, count: usize) {
    let sent = pair.sent(A);
    assert!(sent.iter().all(|c| c.status == Status::Success), "{sent:?}");
    assert_eq!(sent.len(), count);
}

/// What a card keeps of work that is under way: messages, of requests and of answers.
fn outstanding(pair: &Pair, of: usize) -> usize {
    pair.world.hosts[of].nic.in_use().outstanding
}

/// A further connection from B to A, and how B asks for a WRITE on it.
fn another(pair: &mut Pair, dialect: Dialect) -> Endpoint {
    let [near, far] = [B, A].map(|i| {
        let pd = pair.ends[i].pd;
        Endpoint::create(&mut pair.world, (i, pd), Transport::Rc, &QueueOptions::default(), None)
    });
    let options = ConnectOptions { dialect, ..ConnectOptions::default() };
    connect(&mut pair.world, (&near, &far), &options, (Psn::new(1), Psn::new(2)));
    near
}

fn write_from(pair: &mut Pair, end: &Endpoint) {
    let (to, sges) = (pair.remote(A, 0), [pair.sge(B, 0, 10)]);
    let (op, flags) = (SendOp::Write { to, imm: None }, SendFlags::SIGNALED);
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags };
    end.post_send(&mut pair.world, &request).unwrap();
}

/// The statuses of what B has asked for on a further connection.
fn ended(pair: &mut Pair, end: &Endpoint) -> Vec<Status> {
    Endpoint::drain(&mut pair.world, B, end.send_cq).iter().map(|entry| entry.status).collect()
}

/// A peer has gone and never acknowledges its answer: that takes no room from requests of others.
#[test]
fn an_answer_to_a_peer_that_has_gone_starves_nobody() {
    let config = |config: &mut Config| config.max_outstanding = 1;
    let mut pair = Pair::new(&PairOptions { config, ..options() });
    let others = [Dialect::LOSSY, Dialect::STANDARD].map(|of| another(&mut pair, of));
    let served = pair.ends[B].qpn;
    let acknowledges = move |seen: &Seen| seen.bth.dest_qp == served && seen.syndrome().is_some();
    pair.rule(Rule::all(Fate::Drop, acknowledges));
    pair.read(A, 0, 0, 64);
    pair.run();
    succeeded(&mut pair, 1);
    assert_eq!(outstanding(&pair, B), 1, "the answer is kept");
    for _ in 0..3 {
        others.iter().for_each(|end| write_from(&mut pair, end));
    }
    pair.run();
    for end in &others {
        assert_eq!(ended(&mut pair, end), [Status::Success; 3]);
    }
    assert!(pair.world.hosts[B].nic.counters().pool_full > 0);
    pair.world.hosts[B].nic.destroy_qp(served).unwrap();
    assert_eq!(outstanding(&pair, B), 0, "the answer goes with its queue pair");
}

/// A queue pair that is destroyed gives the room of its requests to those that wait for it.
#[test]
fn a_queue_pair_that_is_destroyed_feeds_the_starved() {
    for dialect in [Dialect::LOSSY, Dialect::STANDARD] {
        let config = |config: &mut Config| config.max_outstanding = 3;
        let mut pair = Pair::new(&PairOptions { config, ..options() });
        let [stuck, waits] = [dialect; 2].map(|of| another(&mut pair, of));
        pair.rule(Rule::all(Fate::Drop, |seen| seen.from == B));
        for end in [&stuck, &waits] {
            write_from(&mut pair, end);
            write_from(&mut pair, end);
            pair.world.step();
        }
        assert_eq!(outstanding(&pair, B), 3, "{dialect:?}: one of them has to wait");
        pair.world.hosts[B].nic.destroy_qp(stuck.qpn).unwrap();
        pair.world.step();
        assert_eq!(outstanding(&pair, B), 2, "{dialect:?}: those of the other");
        pair.world.network.heal();
        pair.run();
        assert_eq!(ended(&mut pair, &waits), [Status::Success; 2], "{dialect:?}");
    }
}

/// A peer acknowledges all answers but the oldest, and asks for more: the card keeps a bounded
/// number of them, and goes on when the oldest has arrived.
#[test]
fn a_peer_that_never_gets_the_oldest_answer_has_few_kept() {
    const READS: usize = 500;
    let mut options = options();
    options.queues = QueueOptions { sends: 512, completions: 1024, ..QueueOptions::default() };
    options.connect.timeout = 0;
    let agreed = usize::from(options.connect.max_dest_rd_atomic);
    let mut pair = Pair::new(&options);
    pair.fill(B, 0, 8);
    let lost = Psn::new(options.psns.1);
    pair.rule(Rule::all(Fate::Drop, move |seen| {
        seen.from == B && seen.is(Operation::ReadResponse) && seen.bth.psn == lost
    }));
    for _ in 0..READS {
        pair.read(A, 0, 8, 8);
    }
    pair.world.run(Duration::from_millis(5));
    let kept = outstanding(&pair, B);
    assert!((agreed..=4 * agreed).contains(&kept), "{kept} answers are kept");
    assert!(pair.sent(A).is_empty());
    pair.world.network.heal();
    pair.run();
    succeeded(&mut pair, READS);
    assert_eq!(outstanding(&pair, B), 0);
    pair.tear_down();
}
