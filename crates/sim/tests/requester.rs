//! The requester and the completer: requests whose packets are lost, late or refused.

use core::time::Duration;

use remora_nic::qp::State;
use remora_nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora_nic::wire::opcode::Follows;
use remora_nic::wire::{Aeth, Extensions, Nak, Op, Operation, Position, Syndrome, Transport};
use remora_nic::{Config, Psn, Silence};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use remora_sim::link_faults::LinkOptions;
use remora_sim::world::Host;
use remora_sim::{A, B, Fate, Pair, PairOptions, Rule, statuses};

#[test]
fn a_write_a_read_and_a_send_arrive() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 10_000);
    t.write(A, 0, 20_000, 10_000);
    t.run();
    // Expect: the bytes are at B, with one completion.
    assert_eq!(t.bytes(B, 20_000, 10_000), bytes);
    assert_eq!(t.sent(A).len(), 1);
    t.read(A, 20_000, 40_000, 10_000);
    t.receive(B, 60_000, 20_000);
    t.send(A, 0, 10_000);
    t.run();
    // Expect: both complete in order, and the same bytes are back at A and in B's receive element.
    assert!(t.sent(A).iter().all(|c| c.status == Status::Success && c.len == 10_000));
    assert_eq!(t.bytes(A, 40_000, 10_000), bytes);
    assert_eq!(t.bytes(B, 60_000, 10_000), bytes);
    assert_eq!(t.received(B)[0].len, 10_000);
    t.tear_down();
}

#[test]
fn message_sizes_around_the_mtu_arrive_whole() {
    // Expect: for each length the right bytes and the right number of packets, with no
    // retransmission.
    for len in [0, 1, 3, 4, 1023, 1024, 1025, 2047, 2048, 2049, 32 * 1024, 33 * 1024 + 5] {
        let mut t = Pair::standard();
        let bytes = t.fill(A, 7, len);
        let other = t.fill(B, 100_001, len);
        t.write(A, 7, 200_003, len as u32);
        t.read(A, 100_001, 300_001, len as u32);
        t.receive(B, 400_005, len as u32);
        t.send(A, 7, len as u32);
        t.run();
        assert_eq!(statuses(&t.sent(A)), [Status::Success; 3]);
        assert_eq!(t.bytes(B, 200_003, len), bytes);
        assert_eq!(t.bytes(B, 400_005, len), bytes);
        assert_eq!(t.bytes(A, 300_001, len), other);
        assert_eq!(t.received(B)[0].len, len as u32);
        let packets = len.div_ceil(1024).max(1) as usize;
        assert_eq!(t.seen(|p| p.is(Operation::Write)).len(), packets);
        assert_eq!(t.seen(|p| p.is(Operation::ReadResponse)).len(), packets);
        t.tear_down();
    }
}

#[test]
fn a_lost_data_packet_gets_a_sequence_nak_and_is_sent_again() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 10_000);
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::Write)));
    t.write(A, 0, 20_000, 10_000);
    t.run();
    // Expect: one NAK for PSN 102, no timeout, and the bytes arrive.
    let naks = t.seen(|p| p.is_nak(Nak::PsnSequence));
    assert_eq!(naks.iter().map(|n| n.bth.psn.value()).collect::<Vec<_>>(), [102]);
    assert_eq!(t.world.hosts[A].nic.counters().timeouts, 0);
    assert_eq!(t.bytes(B, 20_000, 10_000), bytes);
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    t.tear_down();
}

#[test]
fn a_lost_acknowledge_costs_a_timeout_and_the_message_is_received_once() {
    let mut t = Pair::standard();
    t.fill(A, 0, 100);
    t.receive(B, 0, 100);
    t.receive(B, 1000, 100);
    t.rule(Rule::first(1, Fate::Drop, |p| p.is_ack()));
    t.send(A, 0, 100);
    t.run();
    // Expect: the SEND is repeated and acknowledged as a duplicate, and one receive element is
    // used.
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    assert_eq!(t.received(B).len(), 1);
    assert_eq!(t.world.hosts[B].nic.counters().rx_duplicates, 1);
    assert_eq!(t.world.hosts[A].nic.counters().timeouts, 1);
    t.tear_down();
}

#[test]
fn a_later_acknowledge_replaces_a_lost_one() {
    let mut t = Pair::standard();
    t.rule(Rule::first(1, Fate::Drop, |p| p.is_ack()));
    t.write(A, 0, 0, 100);
    assert!(!t.world.run(Duration::from_micros(10)), "the first request must still wait");
    t.write(A, 0, 0, 100);
    t.run();
    // Expect: both complete, and no packet is sent again.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 2]);
    assert_eq!(t.world.hosts[A].nic.counters().tx_retransmitted, 0);
    t.tear_down();
}

#[test]
fn a_lost_read_response_is_asked_for_again() {
    // Expect: whichever response is lost, the bytes arrive, and responses that arrived are not
    // requested again.
    for lost in [1, 5, 10] {
        let mut t = Pair::standard();
        let bytes = t.fill(B, 0, 10 * 1024);
        t.rule(Rule::nth(lost, Fate::Drop, |p| p.is(Operation::ReadResponse)));
        t.read(A, 0, 50_000, 10 * 1024);
        t.run();
        assert_eq!(t.bytes(A, 50_000, 10 * 1024), bytes);
        assert_eq!(statuses(&t.sent(A)), [Status::Success]);
        let asked = t.seen(|p| p.is(Operation::ReadRequest));
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[1].bth.psn.value(), 100 + lost as u32 - 1);
        assert_eq!(asked[1].ext.reth.len, (11 - lost as u32) * 1024);
        t.tear_down();
    }
}

#[test]
fn a_lost_atomic_result_is_replayed_not_executed_again() {
    let mut t = Pair::standard();
    t.set(B, 64, &5u64.to_ne_bytes());
    t.rule(Rule::first(2, Fate::Drop, |p| p.is(Operation::AtomicAcknowledge)));
    t.fetch_add(A, 64, 10, 0);
    t.run();
    // Expect: one addition, and the original value at A.
    assert_eq!(t.word(B, 64), 15);
    assert_eq!(t.word(A, 0), 5);
    assert_eq!(t.seen(|p| p.is(Operation::FetchAdd)).len(), 3);
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    t.tear_down();
}

#[test]
fn an_acknowledge_that_passes_a_read_implies_a_loss() {
    let mut t = Pair::standard();
    let bytes = t.fill(B, 0, 100);
    t.rule(Rule::first(1, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    t.read(A, 0, 1000, 100);
    t.write(A, 0, 2000, 100);
    t.run();
    // Expect: no timeout, and both complete in order.
    let counters = *t.world.hosts[A].nic.counters();
    assert_eq!((counters.implied_naks, counters.timeouts), (1, 0));
    assert_eq!(t.bytes(A, 1000, 100), bytes);
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 2]);
    t.tear_down();
}

#[test]
fn psns_wrap() {
    let mut t = Pair::new(&PairOptions { psns: (0xFF_FFFD, 0xFF_FFFF), ..PairOptions::default() });
    let bytes = t.fill(A, 0, 10_000);
    t.rule(Rule::nth(4, Fate::Drop, |p| p.is(Operation::Write)));
    t.rule(Rule::nth(2, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    t.write(A, 0, 20_000, 10_000);
    t.read(A, 20_000, 40_000, 10_000);
    t.fetch_add(A, 0, 1, 60_000);
    t.run();
    // Expect: the same as with PSNs that do not wrap.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 3]);
    assert_eq!(t.bytes(A, 40_000, 10_000), bytes);
    t.tear_down();
}

#[test]
fn after_a_timeout_one_packet_leaves() {
    // A slow peer would otherwise get the full window again after each timeout. With a few queue
    // pairs, this is more than it can process in that time.
    let connect = ConnectOptions { retry_cnt: 6, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.is(Operation::Write)));
    t.write(A, 0, 0, 250_000);
    t.run();
    let mut rounds: Vec<usize> = Vec::new();
    for packet in t.seen(|p| p.is(Operation::Write)) {
        match rounds.last_mut() {
            Some(count) if packet.bth.psn.value() != 100 => *count += 1,
            _ => rounds.push(1),
        }
    }
    assert_eq!(rounds, [64, 1, 1, 1, 1, 1, 1]);
    t.tear_down();
}

#[test]
fn a_receiver_that_becomes_ready_is_waited_for() {
    let mut t = Pair::standard();
    let bytes = t.fill(A, 0, 3000);
    t.send(A, 0, 3000);
    t.world.run(Duration::from_micros(100));
    t.receive(B, 10_000, 3000);
    t.run();
    // Expect: RNR NAKs 20 µs (code 3: 30 µs) apart, then the message.
    let naks = t.seen(|p| p.is_rnr());
    assert!(naks.len() >= 3);
    assert!(naks.windows(2).all(|w| w[1].at.since(w[0].at) >= Duration::from_micros(30)));
    assert_eq!(t.bytes(B, 10_000, 3000), bytes);
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    t.tear_down();
}

#[test]
fn sequence_naks_of_a_receiver_that_is_not_ready_use_up_no_retries() {
    // Linux rxe sends such NAKs: it names the first packet behind the one that it was not ready
    // for. On a slow link the NAK arrives after the wait, and looks like a loss.
    let link = LinkOptions { latency: Duration::from_micros(50), ..LinkOptions::default() };
    let mut t = Pair::new(&PairOptions { link, ..PairOptions::default() });
    let bytes = t.fill(A, 0, 3000);
    t.send(A, 0, 3000);
    let op = Op::of(Transport::Rc, Operation::Acknowledge, Position::Only, Follows::empty());
    let syndrome = Syndrome::Nak(Nak::PsnSequence).byte();
    let ext = Extensions { aeth: Aeth { syndrome, msn: 0 }, ..Extensions::default() };
    for _ in 0..50 {
        t.world.run(Duration::from_micros(41));
        t.forge(B, 100, op, &ext, &[]);
    }
    assert!(t.seen(|p| p.is_rnr()).len() >= 10);
    t.receive(B, 10_000, 3000);
    t.run();
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    assert_eq!(t.bytes(B, 10_000, 3000), bytes);
    t.tear_down();
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_connection() {
    let connect = ConnectOptions { rnr_retry: 3, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.send(A, 0, 10);
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: one try and 3 retries, then an error and the rest flushed; B's queue pair stays up.
    assert_eq!(t.seen(|p| p.is_rnr()).len(), 4);
    assert_eq!(statuses(&t.sent(A)), [Status::RnrRetryExceeded, Status::Flushed]);
    assert_eq!(t.ends[A].state(&t.world), State::Error);
    assert_eq!(t.ends[B].state(&t.world), State::Rts);
    t.tear_down();
}

#[test]
fn a_peer_that_is_gone_ends_the_connection() {
    let connect = ConnectOptions { retry_cnt: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 10);
    t.read(A, 0, 100, 10);
    t.receive(A, 500, 10);
    t.run();
    // Expect: one try and 2 retries, 4.096 µs · 2^8 apart and up to half as much more, and then all
    // requests are flushed.
    let tries = t.seen(|p| p.is(Operation::Write));
    assert_eq!(tries.len(), 3);
    let wait = Duration::from_nanos(4096 << 8);
    let waits: Vec<_> = tries.windows(2).map(|w| w[1].at.since(w[0].at)).collect();
    assert!(waits[0] == wait && (wait..wait * 3 / 2).contains(&waits[1]), "{waits:?}");
    assert_eq!(statuses(&t.sent(A)), [Status::RetryExceeded, Status::Flushed]);
    assert_eq!(t.received(A)[0].status, Status::Flushed);
    t.tear_down();
}

/// Runs for a millisecond at a time; after each, the driver of A says what it knows of B.
fn run_with(t: &mut Pair, silence: Silence, millis: u32) -> u32 {
    let mut asked = 0;
    for _ in 0..millis {
        t.world.run(Duration::from_millis(1));
        let now = t.world.now;
        let Host { nic, memory, .. } = &mut t.world.hosts[A];
        while let Some(peer) = nic.poll_silent() {
            asked += 1;
            nic.handle_silence(now, memory, peer, silence);
        }
    }
    asked
}

#[test]
fn requests_to_a_peer_that_is_held_go_on_beyond_the_retries_for_a_minute() {
    let connect = ConnectOptions { retry_cnt: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 10);
    // Expect: without the driver's word, the third wait of a millisecond would end it.
    assert!(run_with(&mut t, Silence::Held, 50) > 3);
    assert_eq!(statuses(&t.sent(A)), []);
    assert!(t.world.hosts[A].nic.counters().retries_waited > 3);
    run_with(&mut t, Silence::Held, 61_000);
    assert_eq!(statuses(&t.sent(A)), [Status::RetryExceeded], "a minute is the longest");
    t.tear_down();
}

#[test]
fn a_peer_that_is_held_no_longer_answers_what_is_sent_again() {
    let connect = ConnectOptions { retry_cnt: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    let data = t.fill(A, 0, 5000);
    t.rule(Rule::first(40, Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 5000);
    run_with(&mut t, Silence::Held, 1000);
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    assert_eq!(t.bytes(B, 0, 5000), data);
    t.tear_down();
}

#[test]
fn requests_to_a_peer_that_is_gone_end_at_once() {
    let connect = ConnectOptions { retry_cnt: 7, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 10);
    // Expect: the first wait of a millisecond leads to the question, and the answer to the end.
    assert_eq!(run_with(&mut t, Silence::Gone, 3), 1);
    assert_eq!(statuses(&t.sent(A)), [Status::RetryExceeded]);
    assert_eq!(t.world.hosts[A].nic.counters().peers_gone, 1);
    t.tear_down();
}

#[test]
fn waits_grow_to_what_the_specification_allows() {
    let connect = ConnectOptions { retry_cnt: 7, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 10);
    t.run();
    let tries = t.seen(|p| p.is(Operation::Write));
    let wait = Duration::from_nanos(4096 << 8);
    let waits: Vec<_> = tries.windows(2).map(|w| w[1].at.since(w[0].at)).collect();
    assert_eq!((waits.len(), waits[0]), (7, wait));
    for (waited, least, most) in [(1, 2, 3), (2, 2, 3), (3, 4, 6), (4, 4, 8), (5, 4, 8), (6, 4, 8)]
    {
        let halves = wait * least / 2..wait * most / 2;
        assert!(halves.contains(&waits[waited]), "{waits:?}");
    }
    t.tear_down();
}

#[test]
fn a_card_has_a_shortest_wait_for_acknowledges() {
    let connect = ConnectOptions { retry_cnt: 1, ..ConnectOptions::default() };
    let config = |config: &mut Config| config.min_ack_timeout = Duration::from_millis(20);
    let mut t = Pair::new(&PairOptions { connect, config, ..PairOptions::default() });
    t.rule(Rule::all(Fate::Drop, |p| p.from == A));
    t.write(A, 0, 0, 10);
    t.run();
    // Expect: the queue pair asks for a millisecond, but the card waits for twenty.
    let tries = t.seen(|p| p.is(Operation::Write));
    assert_eq!(tries[1].at.since(tries[0].at), Duration::from_millis(20));
    t.tear_down();
}

#[test]
fn a_fenced_write_waits_for_the_read_before_it() {
    let mut t = Pair::standard();
    let old = t.fill(B, 0, 5000);
    let new = t.fill(A, 20_000, 5000);
    let (target, sge) = (t.remote(B, 0), t.sge(A, 20_000, 5000));
    t.rule(Rule::first(3, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    t.read(A, 0, 10_000, 5000);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    t.post(A, SendOp::Write { to: target, imm: None }, Data::Sges(&[sge]), flags);
    t.run();
    // Expect: the READ returns the bytes from before the WRITE, and the WRITE is sent after the
    // READ's last response.
    assert_eq!(t.bytes(A, 10_000, 5000), old);
    assert_eq!(t.bytes(B, 0, 5000), new);
    let write = t.seen(|p| p.is(Operation::Write))[0].at;
    assert!(t.seen(|p| p.is(Operation::ReadResponse)).iter().all(|p| p.at < write));
    t.tear_down();
}

#[test]
fn inline_data_is_sent_again_from_the_element() {
    let mut t = Pair::standard();
    let to = t.remote(B, 0);
    let data: Vec<u8> = (0..200).collect();
    t.rule(Rule::first(1, Fate::Drop, |p| p.is(Operation::Write)));
    t.post(A, SendOp::Write { to, imm: None }, Data::Inline(&data), SendFlags::SIGNALED);
    t.run();
    // Expect: the bytes arrive, although the first packet was lost and there is no buffer to read
    // again.
    assert_eq!(t.bytes(B, 0, 200), data);
    t.tear_down();
}

#[test]
fn unsignaled_work_is_reported_only_when_it_fails() {
    let connect = ConnectOptions { retry_cnt: 0, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    let (to, sge) = (t.remote(B, 0), t.sge(A, 0, 10));
    let write = SendOp::Write { to, imm: None };
    t.post(A, write, Data::Sges(&[sge]), SendFlags::empty());
    t.run();
    assert_eq!(statuses(&t.sent(A)), []);
    t.rule(Rule::all(Fate::Drop, |_| true));
    t.post(A, write, Data::Sges(&[sge]), SendFlags::empty());
    t.run();
    // Expect: no completion for the first request, and an error for the second.
    assert_eq!(statuses(&t.sent(A)), [Status::RetryExceeded]);
    t.tear_down();
}

/// A pair of cards with room for so few outstanding messages, and a second connection between them.
fn crowded(options: ConnectOptions) -> (Pair, Endpoint) {
    let config = |config: &mut Config| config.max_outstanding = 3;
    let mut t = Pair::new(&PairOptions { config, connect: options, ..PairOptions::default() });
    let other = connect_another(&mut t, &ConnectOptions::default());
    (t, other)
}

/// Connects two more queue pairs of the cards. Returns the one of the first card.
fn connect_another(t: &mut Pair, options: &ConnectOptions) -> Endpoint {
    let [other_a, other_b] = [A, B].map(|i| {
        let pd = t.ends[i].pd;
        Endpoint::create(&mut t.world, (i, pd), Transport::Rc, &QueueOptions::default(), None)
    });
    connect(&mut t.world, (&other_a, &other_b), options, (Psn::new(1), Psn::new(2)));
    other_a
}

/// Posts a WRITE to the second connection.
fn write_beside(t: &mut Pair, other: &Endpoint) {
    let (to, sge) = (t.remote(B, 0), t.sge(A, 0, 10));
    let op = SendOp::Write { to, imm: None };
    let flags = SendFlags::SIGNALED;
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&[sge]), flags };
    other.post_send(&mut t.world, &request).unwrap();
}

#[test]
fn a_queue_pair_continues_when_the_full_pool_has_room_again() {
    let (mut t, other) = crowded(ConnectOptions::default());
    for _ in 0..40 {
        t.write(A, 0, 0, 3000);
    }
    t.world.step();
    write_beside(&mut t, &other);
    t.run();
    // Expect: both finish, although the first one's messages had all the room that it may have when
    // the second began. The card does not loop meanwhile.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 40]);
    assert_eq!(Endpoint::drain(&mut t.world, A, other.send_cq).len(), 1);
    assert!(t.world.hosts[A].nic.counters().pool_full > 0);
}

#[test]
fn a_queue_pair_that_nobody_answers_leaves_the_others_room() {
    // It waits for ever.
    let (mut t, other) = crowded(ConnectOptions { timeout: 0, ..ConnectOptions::default() });
    let silent = t.ends[B].qpn;
    t.rule(Rule::all(Fate::Drop, move |packet| packet.bth.dest_qp == silent));
    for _ in 0..40 {
        t.write(A, 0, 0, 100);
    }
    t.run();
    for _ in 0..5 {
        write_beside(&mut t, &other);
    }
    t.run();
    assert_eq!(statuses(&t.sent(A)), []);
    assert_eq!(Endpoint::drain(&mut t.world, A, other.send_cq).len(), 5);
}

#[test]
fn many_queue_pairs_that_nobody_answers_leave_the_others_room() {
    let for_ever = ConnectOptions { timeout: 0, ..ConnectOptions::default() };
    let (mut t, other) = crowded(for_ever);
    let answered = t.world.hosts[A].nic.query_qp(other.qpn).unwrap().attr.dest_qp.unwrap();
    t.rule(Rule::all(Fate::Drop, move |packet| packet.from == A && packet.bth.dest_qp != answered));
    // Expect: they have the whole pool, the other still gets one message after the other through,
    // and is not passed over for those of them that wait, too.
    for _ in 0..8 {
        let silent = connect_another(&mut t, &for_ever);
        (0..5).for_each(|_| write_beside(&mut t, &silent));
        t.run();
    }
    (0..20).for_each(|_| write_beside(&mut t, &other));
    t.run();
    assert_eq!(Endpoint::drain(&mut t.world, A, other.send_cq).len(), 20);
}

#[test]
fn the_smallest_turn_still_moves_both_directions() {
    let options = PairOptions { config: |c| c.burst_bytes = 1, ..PairOptions::default() };
    let mut t = Pair::new(&options);
    for of in [A, B] {
        t.write(of, 0, 100_000, 5000);
        t.read(of, 0, 200_000, 5000);
        t.fetch_add(of, 300_000, 1, 400_000);
    }
    t.run();
    // Expect: answers and requests both progress, even with a turn of one byte.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 3]);
    assert_eq!(statuses(&t.sent(B)), [Status::Success; 3]);
    t.tear_down();
}

#[test]
fn congestion_marks_do_not_stop_the_sender_until_the_timer() {
    let mut t = Pair::standard();
    t.rule(Rule::all(Fate::Mark, |p| p.from == A));
    t.write(A, 0, 0, 1 << 20);
    t.run();
    // Expect: notifications, a smaller window, and still an acknowledge before the timer expires.
    let counters = *t.world.hosts[A].nic.counters();
    assert!(counters.rx_cnps > 1);
    assert_eq!(counters.timeouts, 0);
    t.tear_down();
}

#[test]
fn a_nak_overtaken_by_its_missing_packet_still_acknowledges() {
    let options = PairOptions {
        connect: ConnectOptions { timeout: 14, ..ConnectOptions::default() },
        ..PairOptions::default()
    };
    let mut t = Pair::new(&options);
    t.world.driver.receive_delay = Duration::from_micros(5);
    // B gets packets 2, 1 and 2 as one batch.
    let first =
        |p: &remora_sim::packet::Seen| p.op.is_some_and(|op| op.position == Position::First);
    t.rule(Rule::first(1, Fate::Delay(Duration::from_micros(1)), first));
    t.rule(Rule::first(1, Fate::Echo(Duration::from_micros(2)), |p| p.is(Operation::Write)));
    t.write(A, 0, 0, 2000);
    t.run();
    // Expect: done within the first round trip, without the timeout of 67 ms.
    assert_eq!(t.world.hosts[A].nic.counters().timeouts, 0);
    assert_eq!(statuses(&t.sent(A)), [Status::Success]);
    t.tear_down();
}

#[test]
fn a_refused_element_completes_in_order() {
    let queues = QueueOptions { inline: 0, ..QueueOptions::default() };
    let mut t = Pair::new(&PairOptions { queues, ..PairOptions::default() });
    t.write(A, 0, 0, 100);
    let mut sge = t.sge(A, 0, 100);
    sge.lkey ^= 1;
    let to = t.remote(B, 0);
    t.post(A, SendOp::Write { to, imm: None }, Data::Sges(&[sge]), SendFlags::empty());
    t.write(A, 0, 0, 100);
    t.run();
    // Expect: the request before it succeeds, it fails, and the request behind it is flushed.
    let expected = [Status::Success, Status::LocalProtection, Status::Flushed];
    assert_eq!(statuses(&t.sent(A)), expected);
    t.tear_down();
}

#[test]
fn a_window_with_overlapping_reads_respects_the_peers_limit() {
    let connect =
        ConnectOptions { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    let bytes = t.fill(B, 0, 100_000);
    t.rule(Rule::nth(40, Fate::Drop, |p| p.is(Operation::ReadResponse)));
    t.rule(Rule::nth(3, Fate::Drop, |p| p.is(Operation::ReadRequest)));
    t.read(A, 0, 100_000, 100_000);
    t.read(A, 0, 300_000, 100_000);
    for i in 0..10 {
        t.fetch_add(A, 200_000, 1, 500_000 + i * 8);
    }
    t.run();
    // Expect: never more than two READs at once, so B refuses none.
    assert_eq!(statuses(&t.sent(A)), [Status::Success; 12]);
    assert_eq!(t.bytes(A, 100_000, 100_000), bytes);
    assert_eq!(t.bytes(A, 300_000, 100_000), bytes);
    assert_eq!(t.world.hosts[B].nic.counters().refused_too_many_reads, 0);
    t.tear_down();
}
