//! Many connections over a link that loses, doubles and reorders, by seed.
//!
//! A world draws its link and its callers' habits from one seed. In the end no connection may
//! hang, every failure must have caused an event, and nothing may be left behind.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::*;
use crate::cm::message::RejectReason;

/// An event of one connection, as one side's caller sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Saw {
    Request,
    Reply,
    Established,
    Rejected,
    Unreachable,
    Disconnected,
    /// The end of a connection that this side has asked for, without an answer.
    Unanswered,
    TimewaitExit,
}

struct Side {
    cm: Cm,
    ip: IpAddr,
    /// The events of each connection, by id.
    saw: BTreeMap<u32, Vec<Saw>>,
    next_qpn: u32,
}

struct World {
    seed: u64,
    rng: ChaCha8Rng,
    now: Time,
    sides: [Side; 2],
    /// Messages under way: when they arrive, a number to order them, to which side, the bytes.
    link: BTreeMap<(Time, u64), (usize, OutgoingMad)>,
    sent: u64,
    /// How many of 256 messages are lost, and how many are doubled.
    loss: u32,
    doubling: u32,
    /// How many of 256 decisions are unfriendly: reject, destroy, or do not answer now.
    unfriendly: u32,
}

const CONNECTIONS: u32 = 6;

impl World {
    fn new(seed: u64) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let side = |last, seed| {
            let max_retries = 7;
            let config =
                CmConfig { max_connections: 64, max_pending: 64, max_retries, ..config(last) };
            let mut cm = Cm::new(config, seed);
            cm.listen(PortSpace::Tcp.service_id(PORT)).unwrap();
            Side { cm, ip: ip(last), saw: BTreeMap::new(), next_qpn: 0x100 }
        };
        let sides = [side(1, rng.next_u64()), side(2, rng.next_u64())];
        let loss = rng.next_u32() % 160;
        let doubling = rng.next_u32() % 100;
        let unfriendly = [0, 30][rng.next_u32() as usize % 2];
        let (now, link, sent) = (Time::ZERO, BTreeMap::new(), 0);
        World { seed, rng, now, sides, link, sent, loss, doubling, unfriendly }
    }

    fn chance(&mut self, of_256: u32) -> bool {
        self.rng.next_u32() % 256 < of_256
    }

    fn connect(&mut self, from: usize) {
        let to = self.sides[1 - from].ip;
        let side = &mut self.sides[from];
        side.next_qpn += 1;
        let conn = side.cm.connect(self.now, &to_port(to, PORT, side.next_qpn)).unwrap();
        side.saw.insert(conn.0, Vec::new());
    }

    /// Runs until nothing is under way or due. Every world has an end.
    fn run(&mut self) {
        for _ in 0..20_000 {
            self.flush();
            let arrival = self.link.keys().next().map_or(Time::NEVER, |(at, _)| *at);
            let due = self.sides[0].cm.poll_timeout().min(self.sides[1].cm.poll_timeout());
            if arrival.min(due) == Time::NEVER {
                return;
            }
            self.now = self.now.max(arrival.min(due));
            if arrival <= due {
                let (_, (to, mad)) = self.link.pop_first().unwrap();
                let src = self.sides[1 - to].ip;
                self.sides[to].cm.handle_mad(self.now, src, CM_QPN, mad.bytes.as_slice());
            } else {
                self.sides[0].cm.handle_timeout(self.now);
                self.sides[1].cm.handle_timeout(self.now);
            }
        }
        panic!("seed {}: the world does not come to rest", self.seed);
    }

    /// Callers act and messages enter the link, until there is nothing left to do at this moment.
    fn flush(&mut self) {
        for at in [0, 1, 0, 1] {
            while let Some(event) = self.sides[at].cm.poll_event() {
                self.act(at, &event);
            }
            while let Some(mad) = self.sides[at].cm.poll_mad() {
                self.send(1 - at, mad);
            }
        }
    }

    fn send(&mut self, to: usize, mad: OutgoingMad) {
        let copies = match (self.chance(self.loss), self.chance(self.doubling)) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        };
        for _ in 0..copies {
            // Up to 8 ms each way: shorter than time-wait (67 ms), as the standard presumes.
            let delay = Duration::from_micros(u64::from(self.rng.next_u32() % 8000));
            self.sent += 1;
            self.link.insert((self.now + delay, self.sent), (to, mad.clone()));
        }
    }

    fn act(&mut self, at: usize, event: &CmEvent) {
        let unfriendly = self.chance(self.unfriendly);
        let conn = event.conn().expect("no resolutions here");
        let now = self.now;
        let side = &mut self.sides[at];
        let saw = side.saw.entry(conn.0).or_default();
        match event {
            CmEvent::ConnectRequest(_) => {
                saw.push(Saw::Request);
                side.next_qpn += 1;
                let result = match unfriendly {
                    true => side.cm.reject(now, conn, RejectReason::CONSUMER_DEFINED, b"no"),
                    false => side.cm.accept(now, conn, &params(side.next_qpn)),
                };
                // The peer may have given up before the caller took the event.
                let _ = result;
            }
            CmEvent::Replied(_) => {
                saw.push(Saw::Reply);
                let _ = match unfriendly {
                    true => side.cm.destroy(now, conn),
                    false => side.cm.establish(now, conn, b""),
                };
            }
            CmEvent::Established { .. } => saw.push(Saw::Established),
            CmEvent::Rejected { .. } => saw.push(Saw::Rejected),
            CmEvent::Unreachable { .. } => saw.push(Saw::Unreachable),
            CmEvent::Disconnected { timed_out, .. } => {
                saw.push(if *timed_out { Saw::Unanswered } else { Saw::Disconnected });
                let _ = side.cm.disconnect_reply(now, conn, b"");
            }
            CmEvent::TimewaitExit { .. } => saw.push(Saw::TimewaitExit),
            other => panic!("{other:?}"),
        }
    }

    fn states(&self, at: usize) -> Vec<(ConnId, ConnState)> {
        let cm = &self.sides[at].cm;
        self.sides[at]
            .saw
            .keys()
            .filter_map(|id| Some((ConnId(*id), cm.state(ConnId(*id))?)))
            .collect()
    }

    fn established(&self, at: usize) -> Vec<ConnId> {
        let all = self.states(at).into_iter();
        all.filter(|(_, state)| *state == ConnState::Established).map(|(conn, _)| conn).collect()
    }

    /// How many connections of a side have had this event.
    fn count(&self, at: usize, event: Saw) -> usize {
        self.sides[at].saw.values().filter(|saw| saw.contains(&event)).count()
    }

    /// Every connection is established on both sides, or is over after an event with the reason.
    fn check_settled(&self) {
        for at in [0, 1] {
            for (conn, state) in self.states(at) {
                let saw = &self.sides[at].saw[&conn.0];
                assert!(
                    matches!(state, ConnState::Established | ConnState::Closed),
                    "seed {}: {conn:?} of side {at} hangs in {state:?}, saw {saw:?}",
                    self.seed
                );
                let reason = [Saw::Rejected, Saw::Unreachable, Saw::Disconnected, Saw::Unanswered];
                let told = saw.iter().any(|saw| reason.contains(saw));
                assert_eq!(told, state == ConnState::Closed, "seed {}: {saw:?}", self.seed);
            }
        }
    }

    /// Each event comes at most once, and none comes after the one that ends the connection.
    fn check_events(&self) {
        for saw in self.sides.iter().flat_map(|side| side.saw.values()) {
            for (at, event) in saw.iter().enumerate() {
                assert!(!saw[..at].contains(event), "seed {}: {saw:?} twice", self.seed);
            }
            let both = [Saw::Disconnected, Saw::Unanswered].iter().all(|end| saw.contains(end));
            assert!(!both, "seed {}: {saw:?}", self.seed);
        }
    }

    fn destroy_all(&mut self) {
        for at in [0, 1] {
            for (conn, _) in self.states(at) {
                self.sides[at].cm.destroy(self.now, conn).unwrap();
            }
        }
    }
}

fn live_a_life(seed: u64) -> World {
    let mut world = World::new(seed);
    for n in 0..CONNECTIONS {
        world.connect(n as usize % 2);
    }
    world.run();
    world.check_settled();
    // If the passive side has given the connection up before the RTU arrives, the active side alone
    // is established, until data or a disconnection shows it. Otherwise the sides agree.
    if world.loss == 0 {
        assert_eq!(world.established(0).len(), world.established(1).len(), "seed {seed}");
    }

    for at in [0, 1] {
        for conn in world.established(at) {
            if world.chance(160) {
                world.sides[at].cm.disconnect(world.now, conn, b"").unwrap();
            }
        }
    }
    world.run();
    world.check_settled();
    world.check_events();

    world.destroy_all();
    world.run();
    for side in &world.sides {
        let cm = &side.cm;
        let left = (cm.connections(), cm.by_peer.len(), cm.by_qpn.len(), cm.timers.len());
        assert_eq!(left, (0, 0, 0, 0), "seed {seed}: something is left behind");
    }
    world
}

#[test]
fn every_connection_has_an_end_whatever_the_link() {
    let (mut established, mut unanswered) = (0, 0);
    for seed in 0..400 {
        let world = live_a_life(seed);
        established += world.count(1, Saw::Established);
        let unheard = world.count(0, Saw::Unanswered) + world.count(1, Saw::Unanswered);
        assert!(unheard == 0 || world.loss > 0, "seed {seed}: the peer has answered");
        unanswered += unheard;
    }
    assert!(established > 600, "only {established} connections were ever established");
    assert!(unanswered > 0, "every end was answered");
}

#[test]
fn a_good_link_connects_all() {
    let mut world = World::new(1);
    (world.loss, world.unfriendly) = (0, 0);
    for n in 0..CONNECTIONS {
        world.connect(n as usize % 2);
    }
    world.run();
    assert_eq!(world.established(0).len(), CONNECTIONS as usize);
    assert_eq!(world.established(1).len(), CONNECTIONS as usize);
}

#[test]
fn a_seed_makes_one_world() {
    let digest = |seed| {
        let world = live_a_life(seed);
        let [a, b] = world.sides;
        (world.now, world.sent, a.saw, b.saw, *a.cm.counters(), *b.cm.counters())
    };
    for seed in [3, 14, 159] {
        assert_eq!(digest(seed), digest(seed));
    }
}
