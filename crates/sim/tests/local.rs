//! The local shortcut: queue pairs of one card that are connected to each other do the same with it
//! as over the network.

use core::time::Duration;

use remora_nic::incident::Cause;
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{
    Completion, Data, FlushKind, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge,
    Status, UdDestination,
};
use remora_nic::wire::Transport;
use remora_nic::{Access, Config, Counters, Key, Path, Pd, Psn, Time};
use remora_sim::dice::Dice;
use remora_sim::endpoint::{ConnectOptions, Endpoint, QKEY, QueueOptions, connect, ring};
use remora_sim::memory::{Layout, Region};
use remora_sim::world::Host;
use remora_sim::{LinkOptions, World};

/// Bytes of each of the five parts of a region, so that requests under way do not touch each other.
const PART: u64 = 1 << 16;
const SOURCE: u64 = 0;
const ANSWERS: u64 = PART;
const TARGET: u64 = 2 * PART;
const READ_FROM: u64 = 3 * PART;
const RECEIVES: u64 = 4 * PART;

/// The FLUSH of the programs.
const GLOBAL: FlushKind = FlushKind { global: true, persistent: false, whole_region: false };

/// What a completion says: not when it was written, and of a failed request only how it ended.
fn what_it_says(entry: Completion) -> Completion {
    let Completion { wr_id, qpn, status, .. } = entry;
    match status {
        Status::Success => Completion { at: Time::ZERO, ..entry },
        _ => Completion { wr_id, qpn, status, ..Completion::default() },
    }
}

/// One end of a connection.
struct Side {
    end: Endpoint,
    region: Region,
    posted: u64,
}

/// A host, and connections from it to itself.
struct Rig {
    world: World,
    pd: Pd,
    sides: Vec<[Side; 2]>,
    ah: u32,
    connect: ConnectOptions,
    /// The burst has SENDs and WRITEs only, which may be direct.
    plain: bool,
    /// What the application has seen.
    log: Vec<String>,
}

fn world(local: bool) -> (World, Pd) {
    let mut world = World::new(3, LinkOptions::default());
    // With IPv6, since the identification in an IPv4 header is random.
    let mut config = Config::new("fd00::7".parse().unwrap());
    config.translation_entries = 1 << 20;
    config.local_shortcut = local;
    world.add_host(config);
    let pd = world.hosts[0].nic.alloc_pd().unwrap();
    (world, pd)
}

impl Rig {
    fn new(local: bool, dice: &mut Dice) -> Rig {
        use Transport::{Rc, Uc, Ud};
        let (mut world, pd) = world(local);
        let connect = ConnectOptions {
            mtu: dice.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]),
            max_rd_atomic: dice.pick(&[1, 4, 16]),
            max_dest_rd_atomic: 16,
            timeout: 8,
            retry_cnt: dice.pick(&[1, 7]),
            rnr_retry: dice.pick(&[0, 1, 3]),
            min_rnr_timer: 1,
            ..ConnectOptions::default()
        };
        let address = world.hosts[0].address;
        let ah = world.hosts[0].nic.create_ah(pd, Path::new(address, 1)).unwrap();
        let mut rig =
            Rig { world, pd, sides: Vec::new(), ah, connect, plain: false, log: Vec::new() };
        for (transport, shares) in [(Rc, false), (Rc, true), (Uc, false), (Ud, false)] {
            let sides = [rig.side(dice, transport, shares), rig.side(dice, transport, shares)];
            rig.sides.push(sides);
            rig.connect(rig.sides.len() - 1);
        }
        rig
    }

    fn side(&mut self, dice: &mut Dice, transport: Transport, shares: bool) -> Side {
        let host = &mut self.world.hosts[0];
        let layout = dice.pick(&[Layout::Contiguous, Layout::Scattered { shift: 12 }]);
        let mut region = Region::lay_out(&mut host.memory, dice, 5 * PART, layout);
        let access = Access::all().difference(Access::REMOTE_INVALIDATE);
        region.key = host.nic.reg_mr(self.pd, region.init(access)).unwrap();
        let bytes = remora_sim::dice::pattern(region.iova, region.len as usize);
        region.write(&mut host.memory, 0, &bytes);
        let srq = shares.then(|| {
            let ring = ring(host, 64, 4, 0);
            host.nic.create_srq(self.pd, ring).unwrap()
        });
        let queues = QueueOptions { completions: 1024, ..QueueOptions::default() };
        let end = Endpoint::create(&mut self.world, (0, self.pd), transport, &queues, srq);
        Side { end, region, posted: 0 }
    }

    fn connect(&mut self, pair: usize) {
        let [a, b] = &self.sides[pair];
        let psns = (Psn::new(0xFF_FFF0), Psn::new(77));
        connect(&mut self.world, (&a.end, &b.end), &self.connect, psns);
    }

    /// Posts a burst of receives and of one side's sends, and lets all happen that follows.
    fn burst(&mut self, dice: &mut Dice) {
        let (pair, s) = (dice.below(self.sides.len() as u64) as usize, dice.below(2) as usize);
        let disturbance = dice.below(12);
        match disturbance {
            0 => self.sides[pair][1 - s].end.go_to(&mut self.world, State::Error),
            1 => self.sides[pair][1 - s].end.go_to(&mut self.world, State::Reset),
            2 if self.sides[pair][s].end.state(&self.world) == State::Rts => {
                self.sides[pair][s].end.go_to(&mut self.world, State::Sqd);
            }
            _ => {}
        }
        let sends = dice.between(1..=12);
        self.plain = dice.coin();
        let receives = if dice.chance(0.8) { sends } else { dice.below(sends) };
        (0..receives).for_each(|_| self.receive(dice, pair, 1 - s));
        (0..sends).for_each(|_| self.send(dice, pair, s));
        self.settle();
        if self.sides[pair][s].end.state(&self.world) == State::Sqd {
            self.sides[pair][s].end.go_to(&mut self.world, State::Rts);
            self.settle();
        }
        let broken = self.sides[pair].iter().any(|s| s.end.state(&self.world) != State::Rts);
        if broken {
            for side in &self.sides[pair] {
                side.end.go_to(&mut self.world, State::Error);
            }
            self.settle();
            for side in &self.sides[pair] {
                side.end.go_to(&mut self.world, State::Reset);
            }
            self.connect(pair);
        }
    }

    fn receive(&mut self, dice: &mut Dice, pair: usize, s: usize) {
        let len = dice.pick(&[4096u64 + 40, 4096 + 40, 16 << 10, 64]);
        let lkey = self.key(dice, pair, s);
        let side = &mut self.sides[pair][s];
        let addr = side.region.iova + RECEIVES + dice.below(PART - len);
        // A receive buffer in two entries.
        let cut = dice.below(len) as u32;
        let sges = [
            Sge { addr, len: cut, lkey },
            Sge { addr: addr + u64::from(cut), len: len as u32 - cut, lkey },
        ];
        side.posted += 1;
        let request = RecvRequest { wr_id: side.posted, sges: &sges };
        let posted = side.end.post_recv(&mut self.world, &request);
        self.log.push(format!("{pair}.{s} receives: {posted:?}"));
    }

    /// The key of a side's region, or now and then a wrong one.
    fn key(&self, dice: &mut Dice, pair: usize, s: usize) -> Key {
        let key = self.sides[pair][s].region.key;
        if dice.chance(0.01) { key ^ 0x100 } else { key }
    }

    fn send(&mut self, dice: &mut Dice, pair: usize, s: usize) {
        let transport = self.sides[pair][s].end.transport;
        let lkey = self.key(dice, pair, s);
        let rkey = self.key(dice, pair, 1 - s);
        let mtu = u64::from(self.connect.mtu.bytes());
        let longest = if transport == Transport::Ud { mtu } else { 40 << 10 };
        let len = dice.pick(&[0, 1, 8, 200, mtu, mtu + 1, longest]).min(longest);
        let (own, peer) = (self.sides[pair][s].region.iova, self.sides[pair][1 - s].region.iova);
        let mut at = |part: u64, len: u64| dice.below((PART - len) / 8) * 8 + part;
        let word = RemoteAddress { addr: peer + at(TARGET, 8), rkey };
        let to = RemoteAddress { addr: peer + at(TARGET, len), rkey };
        let from = RemoteAddress { addr: peer + at(READ_FROM, len), rkey };
        let (source, answers) = (own + at(SOURCE, len), own + at(ANSWERS, len.max(8)));
        let imm = dice.coin().then(|| dice.number() as u32);
        let choices = match transport {
            Transport::Rc if self.plain => 2,
            Transport::Rc => 8,
            Transport::Uc => 2,
            _ => 1,
        };
        let ud = UdDestination { ah: self.ah, qpn: self.sides[pair][1 - s].end.qpn, qkey: QKEY };
        let (op, addr, len) = match dice.below(choices) {
            0 => {
                let to = (transport == Transport::Ud).then_some(ud);
                (SendOp::Send { imm, to }, source, len)
            }
            1 => (SendOp::Write { to, imm }, source, len),
            2 => (SendOp::Read { from }, answers, len),
            3 => (SendOp::FetchAdd { at: word, add: 3 }, answers, 8),
            4 => (SendOp::CompareSwap { at: word, compare: 0, swap: 1 }, answers, 8),
            5 => (SendOp::AtomicWrite { to: word }, source, 8),
            6 => (SendOp::Flush { at: to, len: len as u32, kind: GLOBAL }, 0, 0),
            _ => (
                SendOp::SendInvalidate { rkey: self.invalidatable(dice, pair, 1 - s) },
                source,
                len,
            ),
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, dice.coin());
        flags.set(SendFlags::SOLICITED, dice.coin());
        flags.set(SendFlags::FENCE, dice.chance(0.2) && transport == Transport::Rc);
        let sges = [Sge { addr, len: len as u32, lkey }];
        let inline = remora_sim::dice::pattern(addr, len as usize);
        let is_send = matches!(op, SendOp::Send { .. } | SendOp::Write { .. });
        let data = match op {
            SendOp::Flush { .. } => Data::Sges(&[]),
            _ if is_send && len <= 200 && dice.coin() => Data::Inline(&inline),
            _ => Data::Sges(&sges),
        };
        let side = &mut self.sides[pair][s];
        side.posted += 1;
        let request = SendRequest { wr_id: side.posted, op, data, flags };
        let posted = side.end.post_send(&mut self.world, &request);
        self.log.push(format!("{pair}.{s} {op:?}: {posted:?}"));
    }

    /// A key that the peer may invalidate, or one that it may not.
    fn invalidatable(&mut self, dice: &mut Dice, pair: usize, s: usize) -> Key {
        let region = &self.sides[pair][s].region;
        if dice.chance(0.1) {
            return region.key;
        }
        let init = region.init(Access::REMOTE_INVALIDATE);
        self.world.hosts[0].nic.reg_mr(self.pd, init).unwrap()
    }

    /// Lets everything happen, and notes what the application sees of it.
    fn settle(&mut self) {
        assert!(self.world.run(Duration::from_secs(60)), "it does not end");
        for side in self.sides.iter().flatten() {
            for cq in [side.end.send_cq, side.end.recv_cq] {
                for entry in Endpoint::drain(&mut self.world, 0, cq) {
                    // A message that fails has written all, some or none of its bytes.
                    if cq == side.end.recv_cq && entry.status != Status::Success {
                        let memory = &mut self.world.hosts[0].memory;
                        side.region.write(memory, RECEIVES, &[0; PART as usize]);
                    }
                    self.log.push(format!("{:?}", what_it_says(entry)));
                }
            }
            let state = side.end.state(&self.world);
            self.log.push(format!("{state:?}"));
        }
        let mut events = self.world.take_events(0);
        events.sort_by_key(|event| format!("{event:?}"));
        self.log.push(format!("{events:?}"));
    }

    fn counters(&self) -> &Counters {
        self.world.hosts[0].nic.counters()
    }
}

/// The log and the memory of a random program, how many packets the network has had, and how many
/// messages needed none.
fn outcome(seed: u64, local: bool) -> (Vec<String>, Vec<u8>, u64, u64) {
    let mut dice = Dice::new(seed);
    let mut rig = Rig::new(local, &mut dice);
    for _ in 0..40 {
        rig.burst(&mut dice);
    }
    let packets = rig.world.network.tally.sent;
    if local {
        assert_eq!(rig.counters().local_packets, rig.counters().tx_packets);
        assert_eq!(rig.counters().local_packets, rig.counters().rx_packets);
    }
    let direct = rig.counters().local_messages;
    (rig.log, rig.world.hosts[0].memory.bytes().to_vec(), packets, direct)
}

#[test]
fn a_random_program_does_the_same_with_and_without_the_shortcut() {
    let mut statuses = std::collections::BTreeSet::new();
    let mut direct = 0;
    for seed in 0..40 {
        let (with, without) = (outcome(seed, true), outcome(seed, false));
        direct += with.3;
        assert_eq!(without.3, 0, "seed {seed}");
        assert_eq!(with.2, 0, "seed {seed}: packets have left the card");
        assert!(without.2 > 0, "seed {seed}: no packets without the shortcut");
        for (line, (a, b)) in with.0.iter().zip(&without.0).enumerate() {
            assert_eq!(a, b, "seed {seed}, line {line}");
        }
        assert_eq!(with.0.len(), without.0.len(), "seed {seed}");
        assert!(with.1 == without.1, "seed {seed}: the memory differs");
        let all = "Success Flushed LocalProtection LocalLength RemoteAccess RemoteInvalidRequest \
                   RetryExceeded RnrRetryExceeded RemoteOperation";
        for status in all.split_whitespace() {
            if with.0.iter().any(|line| line.contains(&format!("status: {status},"))) {
                statuses.insert(status);
            }
        }
    }
    // Expect: the programs have met all ways in which a request ends.
    assert_eq!(statuses.len(), 9, "{statuses:?}");
    assert!(direct > 1000, "{direct} messages were direct");
}

/// Two connected queue pairs of one host, the second of which has not been brought up.
fn half_connected() -> (World, Endpoint, Endpoint, Region) {
    let (mut world, pd) = world(true);
    let mut dice = Dice::new(1);
    let host = &mut world.hosts[0];
    let mut region = Region::lay_out(&mut host.memory, &mut dice, PART, Layout::Contiguous);
    region.key = host.nic.reg_mr(pd, region.init(Access::all())).unwrap();
    let queues = QueueOptions { signal_all: true, ..QueueOptions::default() };
    let [a, b] =
        [(); 2].map(|()| Endpoint::create(&mut world, (0, pd), Transport::Rc, &queues, None));
    let options = ConnectOptions::default();
    a.bring_up(&mut world, &b, &options, (Psn::new(1), Psn::new(2)));
    (world, a, b, region)
}

fn write(world: &mut World, from: &Endpoint, region: &Region) {
    let sges = [Sge { addr: region.iova, len: 100, lkey: region.key }];
    let to = RemoteAddress { addr: region.iova + 1000, rkey: region.key };
    let op = SendOp::Write { to, imm: None };
    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags: SendFlags::empty() };
    from.post_send(world, &request).unwrap();
}

fn sent(world: &mut World, of: &Endpoint) -> Vec<Status> {
    Endpoint::drain(world, 0, of.send_cq).iter().map(|c| c.status).collect()
}

#[test]
fn a_peer_that_is_not_ready_yet_is_waited_for() {
    let (mut world, a, b, region) = half_connected();
    write(&mut world, &a, &region);
    world.run(Duration::from_millis(3));
    assert_eq!(sent(&mut world, &a), []);
    b.bring_up(&mut world, &a, &ConnectOptions::default(), (Psn::new(2), Psn::new(1)));
    world.run(Duration::from_secs(1));
    // Expect: a retry has done it.
    assert_eq!(sent(&mut world, &a), [Status::Success]);
    assert!(world.hosts[0].nic.counters().timeouts > 0);
}

#[test]
fn a_peer_that_never_comes_or_is_gone_exceeds_the_retries() {
    for destroys in [false, true] {
        let (mut world, a, b, region) = half_connected();
        if destroys {
            world.hosts[0].nic.destroy_qp(b.qpn).unwrap();
        }
        let begin = world.now;
        write(&mut world, &a, &region);
        world.run(Duration::from_secs(1));
        assert_eq!(sent(&mut world, &a), [Status::RetryExceeded]);
        // Expect: after all retries, of 1 ms each, and not at once.
        let counters = world.hosts[0].nic.counters();
        assert_eq!(counters.timeouts, 8);
        assert!(world.now.since(begin) >= Duration::from_millis(8));
        assert_eq!(counters.drop_unknown_qp > 0, destroys);
    }
}

#[test]
fn a_queue_pair_may_be_its_own_peer() {
    let (mut world, a, _, region) = half_connected();
    a.modify(&mut world, &QpAttr { state: Some(State::Reset), ..QpAttr::default() });
    a.bring_up(&mut world, &a, &ConnectOptions::default(), (Psn::new(9), Psn::new(9)));
    for _ in 0..50 {
        write(&mut world, &a, &region);
    }
    world.run(Duration::from_secs(1));
    assert_eq!(sent(&mut world, &a), [Status::Success; 50]);
    assert_eq!(world.network.tally.sent, 0);
}

#[test]
fn the_shortcut_is_switched_while_requests_are_under_way() {
    let (mut world, a, b, region) = half_connected();
    b.bring_up(&mut world, &a, &ConnectOptions::default(), (Psn::new(2), Psn::new(1)));
    for round in 0..40 {
        world.hosts[0].nic.set_local_shortcut(round % 2 == 1);
        write(&mut world, &a, &region);
        // Less than a round trip of the network.
        world.run(Duration::from_nanos(700));
    }
    world.run(Duration::from_secs(1));
    assert_eq!(sent(&mut world, &a), [Status::Success; 40]);
    let counters = world.hosts[0].nic.counters();
    let local = counters.local_packets + counters.local_messages;
    assert!(local > 0 && world.network.tally.sent > 0);
    let Host { memory, .. } = &world.hosts[0];
    assert_eq!(region.read(memory, 0, 100), region.read(memory, 1000, 100));
}

#[test]
fn payload_that_cannot_be_read_fails_its_request() {
    let (mut world, a, b, region) = half_connected();
    b.bring_up(&mut world, &a, &ConnectOptions::default(), (Psn::new(2), Psn::new(1)));
    let lies = region.pieces(0, 10)[0].clone();
    world.hosts[0].memory.break_range(lies);
    write(&mut world, &a, &region);
    world.run(Duration::from_secs(1));
    assert_eq!(sent(&mut world, &a), [Status::LocalProtection]);
}

/// Packets handed over in the card keep the order of a READ and a SEND that ends its key.
#[test]
fn a_read_in_the_card_is_answered_before_a_later_send_ends_its_key() {
    let (mut world, a, b, region) = half_connected();
    b.bring_up(&mut world, &a, &ConnectOptions::default(), (Psn::new(2), Psn::new(1)));
    let receive = RecvRequest { wr_id: 2, sges: &[] };
    b.post_recv(&mut world, &receive).unwrap();
    let host = &mut world.hosts[0];
    let key = host.nic.reg_mr(a.pd, region.init(Access::all())).unwrap();
    let bytes = remora_sim::dice::pattern(8, 30_000);
    region.write(&mut host.memory, 0, &bytes);
    let sges = [Sge { addr: region.iova + 30_000, len: 30_000, lkey: region.key }];
    let from = RemoteAddress { addr: region.iova, rkey: key };
    let (read, ends) = (SendOp::Read { from }, SendOp::SendInvalidate { rkey: key });
    for (op, sges) in [(read, &sges[..]), (ends, &[])] {
        let data = Data::Sges(sges);
        let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::empty() };
        a.post_send(&mut world, &request).unwrap();
    }
    world.run(Duration::from_secs(1));
    assert_eq!(sent(&mut world, &a), [Status::Success; 2]);
    let got = Endpoint::drain(&mut world, 0, b.recv_cq)[0];
    assert_eq!((got.status, got.imm_or_key), (Status::Success, key));
    assert!(region.read(&world.hosts[0].memory, 30_000, 30_000) == bytes);
}

/// An unreliable message is done when it is made. If its memory turns out to be unreadable then, no
/// further message may seem to leave either.
#[test]
fn payload_that_cannot_be_read_stops_an_unreliable_sender() {
    for transport in [Transport::Uc, Transport::Ud] {
        let mut rig = Rig::new(true, &mut Dice::new(5));
        let at = rig.sides.iter().position(|[a, _]| a.end.transport == transport).unwrap();
        let [Side { end: a, region, .. }, Side { end: b, .. }] = &rig.sides[at];
        let (a, b, lies) = (*a, *b, region.pieces(0, 10)[0].clone());
        let sges = [Sge { addr: region.iova, len: 100, lkey: region.key }];
        let to = UdDestination { ah: rig.ah, qpn: b.qpn, qkey: QKEY };
        let op = SendOp::Send { imm: None, to: (transport == Transport::Ud).then_some(to) };
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        let world = &mut rig.world;
        world.hosts[0].memory.break_range(lies);
        a.post_send(world, &SendRequest { wr_id: 1, op, data, flags }).unwrap();
        world.run(Duration::from_secs(1));
        let incident = world.hosts[0].nic.poll_incident().expect("a reason");
        assert_eq!((incident.qpn, incident.cause), (a.qpn, Cause::Unreadable));
        assert_eq!(a.state(world), State::Sqe);
        a.post_send(world, &SendRequest { wr_id: 2, op, data, flags }).unwrap();
        world.run(Duration::from_secs(1));
        assert_eq!(sent(world, &a), [Status::Success, Status::Flushed]);
        assert_eq!(Endpoint::drain(world, 0, b.recv_cq), []);
    }
}

#[test]
fn packets_to_other_cards_leave_as_ever() {
    let mut dice = Dice::new(5);
    let mut rig = Rig::new(true, &mut dice);
    let other = rig.world.add_host(Config::new("fd00::8".parse().unwrap()));
    let away = Path::new(rig.world.hosts[other].address, 1);
    let ah = rig.world.hosts[0].nic.create_ah(rig.pd, away).unwrap();
    let [a, b] = &rig.sides[3];
    let (from, region) = (a.end, a.region.clone());
    // Datagrams here and there in one turn.
    for (i, ah) in [rig.ah, ah, rig.ah, ah, ah].into_iter().enumerate() {
        let to = Some(UdDestination { ah, qpn: b.end.qpn, qkey: QKEY });
        let sges = [Sge { addr: region.iova, len: 64, lkey: region.key }];
        let (op, flags) = (SendOp::Send { imm: None, to }, SendFlags::SIGNALED);
        let request = SendRequest { wr_id: i as u64, op, data: Data::Sges(&sges), flags };
        from.post_send(&mut rig.world, &request).unwrap();
    }
    rig.world.run(Duration::from_secs(1));
    assert_eq!(sent(&mut rig.world, &from), [Status::Success; 5]);
    assert_eq!((rig.counters().local_packets, rig.world.network.tally.sent), (2, 3));
    assert_eq!(rig.world.hosts[other].nic.counters().rx_packets, 3);
}
