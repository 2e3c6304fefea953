//! In which order the card learns of what sessions post.

use remora_nic::queue::RingInit;
use remora_nic::wire::Transport;
use remora_nic::{Config, Event, Nic, Pd, QpFlags, QpInit, Time};

use super::super::engine::Engine;
use crate::event::Event as Doorbell;
use crate::memory::HostMemory;
use crate::message::Quotas;
use crate::shared::Arena;
use crate::shared::arena::{DATA, GROUP, NEAR, PAGE};
use crate::wake_socket::Wake;

/// Receive queues of the session.
const MANY: u32 = 2048;
/// Where the bits of far doorbells are in an arena.
const AT_FAR: usize = 2048;

/// An engine and its card, and what queues are made of.
struct Fixture {
    engine: Engine,
    nic: Nic,
    memory: HostMemory,
    pd: Pd,
    cq: u32,
}

impl Fixture {
    fn new() -> Fixture {
        let mut nic = Nic::new(Config::new(std::net::Ipv4Addr::LOCALHOST.into()), [7; 32]);
        // SAFETY: the card's rings lie in arenas, which the engine keeps.
        let memory = unsafe { HostMemory::new() };
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_exported_cq(8).unwrap());
        Fixture { engine: Engine::new().unwrap(), nic, memory, pd, cq }
    }

    /// Adds a session with room for so many rings: its number and its client's arena.
    fn attach(&mut self, rings: usize) -> (u16, Arena) {
        let (arena, file) = Arena::create(DATA + rings * PAGE).unwrap();
        let events = (Doorbell::new().unwrap(), Wake::new().unwrap());
        let client = arena.clone();
        (self.engine.attach(arena, file, events, Quotas::default()).unwrap(), client)
    }

    /// Takes a ring of a session: the number of its record, and the ring.
    fn ring(&mut self, session: u16) -> (u32, RingInit) {
        let (place, addr) = self.engine.take_ring(session, 8 * 64).unwrap();
        (place.number, RingInit { addr, depth: 8, stride: 64 })
    }

    /// Makes a shared receive queue: the number of its record, and its handle.
    fn shared_receives(&mut self, session: u16) -> (u32, u32) {
        let (number, ring) = self.ring(session);
        let srq = self.nic.create_srq(self.pd, ring).unwrap();
        self.engine.set_srq(session, srq, number, (0, 0));
        (number, srq)
    }

    /// Makes a queue pair of these rings that sends to itself.
    fn queue_pair(&mut self, session: u16, send: (u32, RingInit), recv: Option<(u32, RingInit)>) {
        let rq = recv.map(|(_, ring)| ring).unwrap_or_default();
        let init = QpInit { sq: send.1, rq, ..of_rings(self.pd, self.cq) };
        let qpn = self.nic.create_qp(init).unwrap();
        self.engine.add_qp(session, qpn, Some(send.0), recv.map(|(number, _)| number));
        self.nic.loop_back(qpn, qpn, remora_nic::Access::all()).unwrap();
    }

    fn look(&mut self) -> bool {
        self.engine.look((Time::ZERO, &mut self.nic, &mut self.memory))
    }

    fn look_again(&mut self) {
        self.engine.look_again((Time::ZERO, &mut self.nic, &mut self.memory));
    }

    fn take_doorbells(&mut self) {
        self.engine.take_doorbells(Time::ZERO, &mut self.nic, &mut self.memory);
    }

    /// How far the card knows a queue to be posted.
    fn rung(&mut self, session: u16, number: u32) -> u32 {
        self.engine.work(session, number).unwrap().rung
    }
}

/// A client posts to a queue, up to `index`, and rings.
fn post(client: &Arena, number: u32, index: u32) {
    crate::shared::WorkQueue::new(client, number).publish(index);
    client.ring(number);
}

/// A client that rings for nothing has the daemon look at few of its queues before others' sends,
/// and one that has posted to all of them has all of them taken.
#[test]
fn few_useless_doorbells_are_taken_before_a_send() {
    let mut card = Fixture::new();
    let (session, client) = card.attach(MANY as usize + 8);
    let send = card.ring(session);
    card.queue_pair(session, send, None);
    let receives: Vec<u32> = (0..MANY).map(|_| card.shared_receives(session).0).collect();
    let mut ring_all = |index: u32, posts: bool| {
        for number in &receives {
            if posts {
                post(&client, *number, index);
            }
            client.ring(*number);
        }
        post(&client, send.0, index);
        card.take_doorbells();
        let rung = receives.iter().filter(|number| card.rung(session, **number) == index);
        let far = (0..256).map(|word| client.memory().load_u64(AT_FAR + word * 8).unwrap());
        (rung.count() as u32, far.map(u64::count_ones).sum::<u32>())
    };
    assert_eq!(ring_all(1, true), (MANY, 0), "all that was posted is there");
    let (_, left) = ring_all(2, false);
    assert!(left > MANY / 2, "{left} of them were not looked at");
}

/// Adds four sessions, each with a shared receive queue: their numbers, their arenas, and the
/// records and handles of the queues.
fn with_receives(card: &mut Fixture) -> [(u16, Arena, u32, u32); 4] {
    [(); 4].map(|()| {
        let (session, client) = card.attach(8);
        let (number, srq) = card.shared_receives(session);
        (session, client, number, srq)
    })
}

/// Sessions that were looked at before a send was found are looked at once more, and those behind
/// it are not: what they had posted before the send was there.
#[test]
fn few_sessions_are_looked_at_twice() {
    let mut card = Fixture::new();
    let clients = with_receives(&mut card);
    let send = card.ring(2);
    card.queue_pair(2, send, None);
    // The sender is looked at first from the second time on.
    let rounds: [(u32, bool, &[u16]); 3] =
        [(1, true, &[0, 1, 2]), (2, false, &[]), (3, true, &[2])];
    for (index, receives, expected) in rounds {
        post(&clients[2].1, send.0, index);
        assert!(card.look());
        for (_, client, number, _) in clients.iter().filter(|_| receives) {
            post(client, *number, index);
        }
        card.look_again();
        let taken = clients.iter().filter(|(at, _, number, _)| card.rung(*at, *number) == index);
        let taken: Vec<u16> = taken.map(|(at, ..)| *at).collect();
        assert_eq!(taken, expected, "{index}");
        card.take_doorbells();
        for (at, _, number, _) in clients.iter().filter(|_| receives) {
            assert_eq!(card.rung(*at, *number), index);
        }
    }
}

/// A send queue's doorbell without news is no send: no receive queue is looked at once more for it.
#[test]
fn a_send_doorbell_without_news_is_no_send() {
    let mut card = Fixture::new();
    let (session, client) = card.attach(8);
    let send = card.ring(session);
    card.queue_pair(session, send, None);
    for (index, sends) in [(1, 1), (1, 0), (2, 1)] {
        post(&client, send.0, index);
        assert!(card.look());
        assert_eq!(card.engine.sends.len(), sends);
        card.take_doorbells();
        assert_eq!(card.rung(session, send.0), index);
    }
}

/// Numbers of a session that has gone lead nowhere, and it is looked at no more.
#[test]
fn what_has_gone_is_known_no_more() {
    let mut card = Fixture::new();
    let clients = with_receives(&mut card);
    let Fixture { mut engine, cq, .. } = card;
    engine.add_cq(1, cq, 8).unwrap();
    engine.add_qp(2, 77, None, None);
    let owners = |engine: &Engine| {
        let events = clients.each_ref().map(|(.., srq)| Event::SrqLimitReached(*srq));
        let others = [Event::CompletionQueueNotify(cq), Event::QpFatal(77)];
        (events.map(|event| engine.session_of(&event)), others.map(|of| engine.session_of(&of)))
    };
    let all = [Some(0), Some(1), Some(2), Some(3)];
    assert_eq!(owners(&engine), (all, [Some(1), Some(2)]));
    engine.detach(1);
    assert_eq!(owners(&engine), ([all[0], None, all[2], all[3]], [None, Some(2)]));
    engine.detach(2);
    assert_eq!(owners(&engine), ([all[0], None, None, all[3]], [None, None]));
    let mut order = engine.looks.order.clone();
    order.sort_unstable();
    assert_eq!(order, [0, 3]);
}

fn of_rings(pd: Pd, cq: u32) -> QpInit {
    QpInit {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        sq: RingInit::default(),
        rq: RingInit::default(),
        signal_all: true,
        flags: QpFlags::empty(),
        client: 0,
    }
}

/// The client posts to a receive queue, then to a send queue, and the daemon comes by the send
/// queue's doorbell first.
#[test]
fn a_receive_is_there_for_what_is_sent_behind_it() {
    let mut card = Fixture::new();
    let (session, client) = card.attach(1024);
    let send = card.ring(session);
    // Of the far doorbells, the daemon takes one group after the other.
    let mut ring_of = |wanted: u32| {
        let rings = std::iter::repeat_with(|| card.ring(session));
        rings.take(MANY as usize).find(|(number, _)| *number == wanted).unwrap()
    };
    let (other, recv) = (ring_of(NEAR), ring_of(NEAR + GROUP));
    card.queue_pair(session, send, Some(recv));
    client.ring(other.0);
    for number in [recv.0, send.0] {
        post(&client, number, 1);
    }
    card.take_doorbells();
    assert_eq!((card.rung(session, send.0), card.rung(session, recv.0)), (1, 1));
}
