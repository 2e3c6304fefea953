//! A card that several clients share: who has how much of it, and rates.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use remora_nic::queue::{Data, RemoteAddress, SendFlags, SendOp, SendRequest, Sge};
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{ChainError, ChainLimits, Config, Psn, Rate, RateLimits, TurnOrder};
use remora_offload::kernel::{Context, ExecutorLimits};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use remora_sim::kernel::kernel_pair;
use remora_sim::{A, B, LinkOptions, Pair, PairOptions};

/// A queue pair of host A with its client and its peer at host B.
struct Flow {
    end: Endpoint,
    from: Sge,
    to: RemoteAddress,
    done: usize,
}

/// Two hosts with a link of 10 Gbit/s, which is slower than the cards.
fn pair() -> Pair {
    let link = LinkOptions {
        latency: Duration::from_micros(1),
        jitter: Duration::ZERO,
        bits_per_second: 10_000_000_000,
    };
    Pair::new(&PairOptions { link, ..PairOptions::default() })
}

impl Flow {
    fn new(t: &mut Pair, client: u16, len: u32) -> Flow {
        Flow::of_level(t, (client, 0), len)
    }

    fn of_level(t: &mut Pair, (client, service_level): (u16, u8), len: u32) -> Flow {
        let options = ConnectOptions { service_level, ..ConnectOptions::default() };
        Flow::with(t, client, &options, len)
    }

    fn that_speaks(t: &mut Pair, dialect: Dialect, len: u32) -> Flow {
        Flow::with(t, 0, &ConnectOptions { dialect, ..ConnectOptions::default() }, len)
    }

    fn with(t: &mut Pair, client: u16, options: &ConnectOptions, len: u32) -> Flow {
        let pds = t.ends.map(|end| end.pd);
        let queues = QueueOptions { client, signal_all: true, ..QueueOptions::default() };
        let end = Endpoint::create(&mut t.world, (A, pds[A]), Transport::Rc, &queues, None);
        let peer = Endpoint::create(&mut t.world, (B, pds[B]), Transport::Rc, &queues, None);
        let psns = (Psn::new(5), Psn::new(9));
        connect(&mut t.world, (&end, &peer), options, psns);
        Flow { end, from: t.sge(A, 0, len), to: t.remote(B, 0), done: 0 }
    }

    /// Posts WRITEs until the ring is full.
    fn post(&self, t: &mut Pair) {
        while self.post_one(t) {}
    }

    /// Posts a WRITE; returns whether there was room for it.
    fn post_one(&self, t: &mut Pair) -> bool {
        self.post_op(t, SendOp::Write { to: self.to, imm: None })
    }

    /// Posts a request; returns whether there was room for it.
    fn post_op(&self, t: &mut Pair, op: SendOp) -> bool {
        let (sges, flags) = ([self.from], SendFlags::empty());
        let request = SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags };
        self.end.post_send(&mut t.world, &request).is_ok()
    }

    fn bytes(&self) -> u64 {
        self.done as u64 * u64::from(self.from.len)
    }
}

/// Keeps all queues full for a time. Drivers ask the card for few packets at a time, as fast as the
/// link takes them, so that the card decides who sends.
fn keep_busy(t: &mut Pair, flows: &mut [Flow], rounds: usize) {
    for flow in flows.iter() {
        flow.post(t);
    }
    for _ in 0..rounds {
        t.world.run(Duration::from_micros(20));
        for flow in flows.iter_mut() {
            flow.done += Endpoint::drain(&mut t.world, A, flow.end.send_cq).len();
            flow.post(t);
        }
    }
}

/// Takes turns by hand and counts the payload bytes of each flow's packets: the card's own
/// decisions, without a network.
fn turns(t: &mut Pair, flows: &[Flow], packets: usize) -> Vec<u64> {
    let mut batch = remora_nic::TransmitBatch::new();
    let mut bytes = vec![0; flows.len()];
    let mut seen = 0;
    let now = t.world.now;
    while seen < packets {
        batch.clear();
        let host = &mut t.world.hosts[A];
        host.nic.poll_transmit(now, &mut host.memory, &mut batch, 1);
        assert!(!batch.is_empty(), "a queue is empty");
        for packet in batch.packets() {
            let psn_and_dest = &packet.header()[4..8];
            let dest = u32::from_be_bytes(psn_and_dest.try_into().unwrap()) & 0xFF_FFFF;
            let of = flows.iter().position(|flow| {
                let info = t.world.hosts[A].nic.query_qp(flow.end.qpn).unwrap();
                info.attr.dest_qp == Some(dest)
            });
            bytes[of.expect("a packet of a flow")] += packet.payload_len() as u64;
            seen += 1;
        }
    }
    bytes
}

/// A pair with windows so large that no acknowledge is needed.
fn unbounded() -> Pair {
    Pair::new(&PairOptions {
        config: |config| config.window_packets = u16::MAX,
        ..PairOptions::default()
    })
}

#[test]
fn a_greedy_client_with_many_queue_pairs_has_its_share_only() {
    let mut t = unbounded();
    let mut flows: Vec<Flow> = (0..20).map(|_| Flow::new(&mut t, 1, 1 << 19)).collect();
    flows.push(Flow::new(&mut t, 2, 1 << 19));
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 10_000);
    let greedy: u64 = bytes[..20].iter().sum();
    let share = greedy as f64 / bytes[20] as f64;
    // Expect: each client has half. Without clients the one would have 20 times as much.
    assert!((0.97..1.03).contains(&share), "{share} {bytes:?}");
    let (least, most) = (bytes[..20].iter().min().unwrap(), bytes[..20].iter().max().unwrap());
    assert!(most - least <= 32 << 10, "the queue pairs of a client take turns: {bytes:?}");
}

#[test]
fn queue_pairs_of_one_owner_take_turns_as_ever() {
    let mut t = unbounded();
    let flows: Vec<Flow> = (0..5).map(|_| Flow::new(&mut t, 0, 1 << 19)).collect();
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 5000);
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most - least <= 16 << 10, "{bytes:?}");
}

#[test]
fn the_owner_is_a_client_like_others() {
    let mut t = unbounded();
    // The owner's are ready before there is a client.
    let mut flows: Vec<Flow> = (0..3).map(|_| Flow::new(&mut t, 0, 1 << 19)).collect();
    flows.iter().for_each(|flow| flow.post(&mut t));
    flows.push(Flow::new(&mut t, 9, 1 << 19));
    flows[3].post(&mut t);
    let bytes = turns(&mut t, &flows, 5000);
    let share = bytes[..3].iter().sum::<u64>() as f64 / bytes[3] as f64;
    assert!((0.97..1.03).contains(&share), "{share} {bytes:?}");
}

#[test]
fn small_messages_do_not_wait_behind_a_greedy_clients() {
    let mut t = unbounded();
    let flows: Vec<Flow> = (0..50).map(|_| Flow::new(&mut t, 1, 1 << 19)).collect();
    let small = Flow::new(&mut t, 2, 8);
    flows.iter().for_each(|flow| flow.post(&mut t));
    let flows: Vec<Flow> = flows.into_iter().chain([small]).collect();
    for _ in 0..32 {
        turns(&mut t, &flows, 64);
        let small = &flows[50];
        let op = SendOp::Write { to: small.to, imm: None };
        let (sges, flags) = ([small.from], SendFlags::empty());
        let request = SendRequest { wr_id: 0, op, data: Data::Sges(&sges), flags };
        small.end.post_send(&mut t.world, &request).unwrap();
        // Expect: it leaves within two turns of the others (16 KiB and less each), and not within
        // fifty.
        let bytes = turns(&mut t, &flows, 33);
        assert_eq!(bytes[50], 8, "{bytes:?}");
    }
}

#[test]
fn a_client_is_held_to_a_rate_of_bytes_and_no_other_client_is() {
    let mut t = pair();
    let mut flows: Vec<Flow> = (0..3).map(|_| Flow::new(&mut t, 1, 4096)).collect();
    flows.push(Flow::new(&mut t, 2, 4096));
    let (now, begin) = (t.world.now, t.world.now);
    // 100 MB/s for all three queue pairs of client 1 together.
    let bytes = Some(Rate { per_second: 100_000_000, burst: 1 });
    let limits = RateLimits { elements: None, bytes };
    t.world.hosts[A].nic.set_client_limits(now, 1, limits).unwrap();
    keep_busy(&mut t, &mut flows, 500);
    let elapsed = t.world.now.since(begin).as_nanos() as u64;
    let most = elapsed / 10;
    let slow: u64 = flows[..3].iter().map(Flow::bytes).sum();
    // Expect: exactly the rate, but for a message that has begun and one that is under way.
    assert!(slow <= most + 4096 && slow + 3 * 4096 >= most, "{slow} of {most}");
    // Expect: none of the three has starved.
    let (least, most) =
        (flows[..3].iter().map(Flow::bytes).min(), flows[..3].iter().map(Flow::bytes).max());
    assert!(most.unwrap() - least.unwrap() <= 4 * 4096, "{least:?} {most:?}");
    // Expect: the other client has the rest of the link: 1250 MB/s less headers.
    assert!(flows[3].bytes() > elapsed, "{} in {elapsed} ns", flows[3].bytes());
}

#[test]
fn a_client_is_held_to_a_rate_of_elements_until_it_is_lifted() {
    let mut t = pair();
    let mut flows: Vec<Flow> = (0..2).map(|_| Flow::new(&mut t, 1, 8)).collect();
    let (now, begin) = (t.world.now, t.world.now);
    let elements = Some(Rate { per_second: 1_000_000, burst: 10 });
    let limits = RateLimits { elements, bytes: None };
    t.world.hosts[A].nic.set_client_limits(now, 1, limits).unwrap();
    // A queue pair that is made later is held, too.
    flows.push(Flow::new(&mut t, 1, 8));
    keep_busy(&mut t, &mut flows, 100);
    let elapsed = t.world.now.since(begin).as_nanos() as usize;
    let most = elapsed / 1000 + 10;
    let done: usize = flows.iter().map(|flow| flow.done).sum();
    // A round trip of some 3 µs separates an element's begin from its completion.
    assert!(done <= most && done + 6 >= most, "{done} of {most}");
    t.world.hosts[A].nic.set_client_limits(t.world.now, 1, RateLimits::default()).unwrap();
    keep_busy(&mut t, &mut flows, 100);
    let after: usize = flows.iter().map(|flow| flow.done).sum::<usize>() - done;
    assert!(after > 2 * done, "{after} after {done}");
}

#[test]
fn a_queue_pair_is_held_to_rates_of_its_own() {
    let mut t = pair();
    let mut flows = [Flow::new(&mut t, 0, 1000), Flow::new(&mut t, 0, 1000)];
    let begin = t.world.now;
    let bytes = Some(Rate { per_second: 50_000_000, burst: 5000 });
    let limits = ChainLimits { bytes, ..ChainLimits::default() };
    t.world.hosts[A].nic.set_chain_limits(begin, flows[0].end.qpn, limits).unwrap();
    keep_busy(&mut t, &mut flows, 100);
    let most = t.world.now.since(begin).as_nanos() as u64 / 20 + 5000;
    let slow = flows[0].bytes();
    assert!(slow <= most + 1000 && slow + 2000 >= most, "{slow} of {most}");
    assert!(flows[1].bytes() > 5 * slow);
}

#[test]
fn a_rate_of_zero_is_refused() {
    let mut t = Pair::standard();
    let (now, qpn) = (t.world.now, t.ends[A].qpn);
    let nic = &mut t.world.hosts[A].nic;
    for (per_second, burst) in [(0, 1), (1, 0)] {
        let bytes = Some(Rate { per_second, burst });
        let limits = RateLimits { elements: None, bytes };
        assert_eq!(nic.set_client_limits(now, 1, limits), Err(ChainError::Rate));
        let limits = ChainLimits { bytes, ..ChainLimits::default() };
        assert_eq!(nic.set_chain_limits(now, qpn, limits), Err(ChainError::Rate));
    }
    t.tear_down();
}

#[test]
fn long_messages_within_the_card_are_paid_for_in_full() {
    let config = |config: &mut remora_nic::Config| config.local_shortcut = true;
    let mut t = Pair::new(&PairOptions { config, ..PairOptions::default() });
    let pd = t.ends[A].pd;
    let flows = [(1, 200_000), (2, 5000)].map(|(client, len)| {
        let queues = QueueOptions { client, signal_all: true, ..QueueOptions::default() };
        let [end, peer] =
            [(); 2].map(|()| Endpoint::create(&mut t.world, (A, pd), Transport::Rc, &queues, None));
        let psns = (Psn::new(5), Psn::new(9));
        connect(&mut t.world, (&end, &peer), &ConnectOptions::default(), psns);
        Flow { end, from: t.sge(A, 0, len), to: t.remote(A, 1 << 19), done: 0 }
    });
    let (mut flows, now) = (flows, t.world.now);
    let mut batch = remora_nic::TransmitBatch::new();
    for _ in 0..2000 {
        for flow in &mut flows {
            flow.post(&mut t);
            flow.done += Endpoint::drain(&mut t.world, A, flow.end.send_cq).len();
        }
        let host = &mut t.world.hosts[A];
        host.nic.poll_transmit(now, &mut host.memory, &mut batch, 64);
    }
    assert_eq!((batch.len(), t.world.hosts[A].nic.counters().local_packets), (0, 0));
    let share = flows[0].bytes() as f64 / flows[1].bytes() as f64;
    assert!((0.97..1.03).contains(&share), "{share}");
}

/// A peer calls a kernel that does not come to an end, and another client has always more to send.
#[test]
fn steps_of_kernels_count_for_the_client_that_is_called() {
    const OP: u64 = 7;
    const STEP_BYTES: u64 = 512;
    let config = |config: &mut remora_nic::Config| config.window_packets = u16::MAX;
    let options = PairOptions { config, ..PairOptions::default() };
    let limits = ExecutorLimits { turn_steps: 64, ..ExecutorLimits::default() };
    let mut t = kernel_pair(options, limits, None);
    let steps = Arc::new(AtomicU64::new(0));
    let (at, taken) = (t.remote(B, 0).addr, Arc::clone(&steps));
    let endless = move |context: Context| {
        let taken = Arc::clone(&taken);
        async move {
            loop {
                context.read(at, &mut [0; 8]).await?;
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    t.deploy(B, OP, endless).unwrap();
    let header = t.header(b"", 8, 0);
    t.call(OP, &header, b"");
    while t.counted("kernel_calls") == 0 {
        t.world.step();
    }
    // Another client of that card: before it comes, the kernel has all of the card.
    let (pds, queues) = (t.ends.map(|end| end.pd), QueueOptions::default());
    let of = |client| QueueOptions { client, ..queues };
    let end = Endpoint::create(&mut t.world, (B, pds[B]), Transport::Rc, &of(2), None);
    let peer = Endpoint::create(&mut t.world, (A, pds[A]), Transport::Rc, &queues, None);
    let psns = (Psn::new(5), Psn::new(9));
    connect(&mut t.world, (&end, &peer), &ConnectOptions::default(), psns);
    let flow = Flow { end, from: t.sge(B, 0, 1 << 19), to: t.remote(A, 0), done: 0 };
    flow.post(&mut t);
    let (mut batch, mut bytes, now) = (remora_nic::TransmitBatch::new(), 0, t.world.now);
    let before = steps.load(Ordering::Relaxed);
    while bytes < 4 << 20 {
        batch.clear();
        let host = &mut t.world.hosts[B];
        host.nic.poll_transmit(now, &mut host.memory, &mut batch, 1);
        bytes += batch.packets().iter().map(|packet| packet.payload_len() as u64).sum::<u64>();
    }
    let spent = (steps.load(Ordering::Relaxed) - before) * STEP_BYTES;
    let share = spent as f64 / bytes as f64;
    assert!((0.95..1.05).contains(&share), "{share}: {spent} and {bytes}");
}

/// Others' turns that go by between a small request of a client and its completion: none, where the
/// card learns of it between two turns. So it waits for the turn at most in which it was posted.
#[test]
fn a_small_request_waits_for_one_turn_of_others_long_messages() {
    const TURN: u32 = 16 << 10;
    let config = |config: &mut remora_nic::Config| config.local_shortcut = true;
    let mut t = Pair::new(&PairOptions { config, ..PairOptions::default() });
    let pd = t.ends[A].pd;
    let mut flow = |clients: [u16; 2], len: u32| {
        let [end, peer] = clients.map(|client| {
            let queues = QueueOptions { client, signal_all: true, ..QueueOptions::default() };
            Endpoint::create(&mut t.world, (A, pd), Transport::Rc, &queues, None)
        });
        let psns = (Psn::new(5), Psn::new(9));
        connect(&mut t.world, (&end, &peer), &ConnectOptions::default(), psns);
        Flow { end, from: t.sge(A, 0, len), to: t.remote(A, 1 << 19), done: 0 }
    };
    let mut hungry: Vec<Flow> = (1..=16).map(|client| flow([client; 2], 4 * TURN)).collect();
    // READs, whose answers are another client's turns.
    let modest = flow([17, 18], 8);
    let (now, mut batch) = (t.world.now, remora_nic::TransmitBatch::new());
    for poll in 0..1000 {
        for flow in &mut hungry {
            flow.post(&mut t);
            flow.done += Endpoint::drain(&mut t.world, A, flow.end.send_cq).len();
        }
        // At first all have come together, and what their turns cost is not known.
        let asks = poll > 40 && poll % 4 == 0;
        if asks {
            let op = SendOp::Read { from: modest.to };
            assert!(modest.post_op(&mut t, op));
        }
        let before = written(&t, &hungry);
        let host = &mut t.world.hosts[A];
        host.nic.poll_transmit(now, &mut host.memory, &mut batch, 64);
        let turns = (written(&t, &hungry) - before) / TURN;
        let done = Endpoint::drain(&mut t.world, A, modest.end.send_cq).len();
        assert_eq!((done, turns), if asks { (1, 0) } else { (0, 1) }, "poll {poll}");
    }
    assert_eq!(batch.len(), 0);
    let [least, most] =
        [u64::min, u64::max].map(|pick| hungry.iter().map(Flow::bytes).reduce(pick));
    assert!(most.unwrap() - least.unwrap() <= u64::from(4 * TURN), "{least:?} {most:?}");
}

/// How far queue pairs have come, in bytes of whole packets.
fn written(t: &Pair, flows: &[Flow]) -> u32 {
    let nic = &t.world.hosts[A].nic;
    let packets = flows.iter().map(|flow| nic.query_qp(flow.end.qpn).unwrap());
    packets.map(|info| info.attr.sq_psn.unwrap().value()).sum::<u32>() * 1024
}

/// As [`unbounded`]; level 1 has three shares beside level 0, and level 5 goes before both.
fn with_levels() -> Pair {
    let config = |config: &mut Config| {
        config.window_packets = u16::MAX;
        config.service_levels[1].weight = 3;
        config.service_levels[5].priority = 1;
    };
    Pair::new(&PairOptions { config, ..PairOptions::default() })
}

/// Queue pairs of these clients and service levels, which have had the turns of coming up.
fn flows_of(t: &mut Pair, of: &[(u16, u8)]) -> Vec<Flow> {
    let flows = of.iter().map(|of| Flow::of_level(t, *of, 1 << 19)).collect();
    let (now, host) = (t.world.now, &mut t.world.hosts[A]);
    let mut batch = remora_nic::TransmitBatch::new();
    while host.nic.poll_transmit(now, &mut host.memory, &mut batch, 1) {}
    assert!(batch.is_empty(), "nothing was posted");
    flows
}

#[test]
fn service_levels_share_by_weight() {
    let mut t = with_levels();
    let flows = flows_of(&mut t, &[(0, 0), (0, 0), (0, 1)]);
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 10_000);
    let share = bytes[2] as f64 / (bytes[0] + bytes[1]) as f64;
    assert!((2.97..3.03).contains(&share), "{share} {bytes:?}");
    assert!(bytes[0].abs_diff(bytes[1]) <= 32 << 10, "a level's take turns: {bytes:?}");
}

#[test]
fn a_service_level_of_higher_priority_has_all_that_it_wants() {
    let mut t = with_levels();
    let flows = flows_of(&mut t, &[(0, 0), (0, 1), (0, 5)]);
    flows[..2].iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 100);
    assert!(bytes[0] > 0 && bytes[1] > 0, "{bytes:?}");
    flows[2].post(&mut t);
    let bytes = turns(&mut t, &flows, 5000);
    assert_eq!((bytes[0], bytes[1]), (0, 0));
}

/// A client does not take what is another's by the level of its queue pairs.
#[test]
fn service_levels_are_among_the_queue_pairs_of_a_client() {
    let mut t = with_levels();
    let flows = flows_of(&mut t, &[(1, 0), (1, 5), (2, 0)]);
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 10_000);
    let share = (bytes[0] + bytes[1]) as f64 / bytes[2] as f64;
    assert!((0.97..1.03).contains(&share) && bytes[0] == 0, "{share} {bytes:?}");
}

#[test]
fn service_levels_that_mean_the_same_take_turns() {
    let mut t = unbounded();
    let flows = flows_of(&mut t, &[(0, 0), (0, 3), (0, 15)]);
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 3000);
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most - least <= 16 << 10, "{bytes:?}");
}

/// As [`unbounded`], with the shortest message first.
fn shortest_first() -> Pair {
    let config = |config: &mut Config| {
        config.window_packets = u16::MAX;
        config.turn_order = TurnOrder::ShortestFirst;
    };
    Pair::new(&PairOptions { config, ..PairOptions::default() })
}

/// A message's length is known from its first turn on. Then the longer one waits, but for one turn
/// in eight.
#[test]
fn the_message_with_the_least_left_goes_first() {
    let bytes = |mut t: Pair| {
        let flows = [1 << 18, 7 << 14].map(|len| Flow::new(&mut t, 0, len));
        let (now, host) = (t.world.now, &mut t.world.hosts[A]);
        let mut batch = remora_nic::TransmitBatch::new();
        while host.nic.poll_transmit(now, &mut host.memory, &mut batch, 1) {}
        flows.iter().for_each(|flow| assert!(flow.post_one(&mut t)));
        turns(&mut t, &flows, 9 * 16)
    };
    assert_eq!(bytes(unbounded()), [5 << 14, 4 << 14]);
    assert_eq!(bytes(shortest_first()), [2 << 14, 7 << 14]);
}

/// The order is that of a client's own messages.
#[test]
fn a_client_with_long_messages_has_its_share_whatever_the_order() {
    let mut t = shortest_first();
    let flows = [(1, 1 << 19), (2, 1 << 15), (2, 1 << 15)];
    let flows = flows.map(|(client, len)| Flow::new(&mut t, client, len));
    flows.iter().for_each(|flow| flow.post(&mut t));
    let bytes = turns(&mut t, &flows, 1000);
    let share = bytes[0] as f64 / (bytes[1] + bytes[2]) as f64;
    assert!((0.95..1.05).contains(&share), "{share} {bytes:?}");
}

/// Of two messages the second is shorter by a packet: is it done first? Both are written, or read
/// from the peer, whose card then has the turns.
fn shorter_is_first(mut t: Pair, dialect: Dialect, is_read: bool) -> bool {
    let lengths = [7 << 14, (7 << 14) - 1024];
    let flows = lengths.map(|len| Flow::that_speaks(&mut t, dialect, len));
    for (wr_id, flow) in (0..).zip(&flows) {
        let op = match is_read {
            true => SendOp::Read { from: flow.to },
            false => SendOp::Write { to: flow.to, imm: None },
        };
        let (sges, flags) = ([flow.from], SendFlags::empty());
        let request = SendRequest { wr_id, op, data: Data::Sges(&sges), flags };
        flow.end.post_send(&mut t.world, &request).unwrap();
    }
    t.world.driver.transmit_batch = 1;
    // The peer has both requests before it answers one.
    t.world.driver.receive_delay = Duration::from_nanos(100);
    let is_done =
        |t: &mut Pair, flow: &Flow| !Endpoint::drain(&mut t.world, A, flow.end.send_cq).is_empty();
    loop {
        t.world.step().expect("both messages are done in the end");
        match [is_done(&mut t, &flows[0]), is_done(&mut t, &flows[1])] {
            [false, false] => {}
            [true, true] => panic!("both at a time: nothing tells which had its turns first"),
            [_, second] => return second,
        }
    }
}

#[test]
fn writes_and_answers_have_their_order() {
    for dialect in [Dialect::STANDARD, Dialect::LOSSY] {
        assert!(!shorter_is_first(unbounded(), dialect, false), "{dialect:?}");
        assert!(shorter_is_first(shortest_first(), dialect, false), "{dialect:?}");
    }
    // In the standard dialect a READ is asked for in pieces, which all are as long.
    assert!(!shorter_is_first(unbounded(), Dialect::LOSSY, true));
    assert!(shorter_is_first(shortest_first(), Dialect::LOSSY, true));
}
