//! In which order the card learns of what sessions post.

use remora_nic::queue::RingInit;
use remora_nic::wire::Transport;
use remora_nic::{Config, Nic, QpFlags, QpInit, Time};

use super::super::engine::Engine;
use crate::event::Event;
use crate::memory::HostMemory;
use crate::message::Quotas;
use crate::shared::Arena;
use crate::shared::arena::{DATA, GROUP, NEAR, PAGE};
use crate::wake_pipe::Wake;

/// The client posts to a receive queue, then to a send queue, and the daemon comes by the send
/// queue's doorbell first.
#[test]
fn a_receive_is_there_for_what_is_sent_behind_it() {
    let (arena, file) = Arena::create(DATA + 1024 * PAGE).unwrap();
    let events = (Event::new().unwrap(), Wake::new().unwrap());
    let mut engine = Engine::new().unwrap();
    let client = arena.clone();
    let session = engine.attach(arena, file, events, Quotas::default()).unwrap();
    let mut nic = Nic::new(Config::new(std::net::Ipv4Addr::LOCALHOST.into()), [7; 32]);
    // SAFETY: the card's rings lie in the arena, which outlives it.
    let mut memory = unsafe { HostMemory::new() };
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_exported_cq(8).unwrap();
    let mut take = || engine.take_ring(session, 8 * 64).unwrap();
    let ring = |addr| RingInit { addr, depth: 8, stride: 64 };
    let (send, sq) = take();
    // Of the far doorbells, the daemon takes one group after the other.
    let other = std::iter::repeat_with(&mut take).find(|ring| ring.0.number == NEAR).unwrap();
    let far = std::iter::repeat_with(&mut take).find(|ring| ring.0.number == NEAR + GROUP);
    let (recv, rq) = far.unwrap();
    let qpn = nic
        .create_qp(QpInit {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            sq: ring(sq),
            rq: ring(rq),
            signal_all: true,
            flags: QpFlags::empty(),
            client: 0,
        })
        .unwrap();
    engine.add_qp(session, qpn, Some(send.number), Some(recv.number));
    nic.loop_back(qpn, qpn, remora_nic::Access::all()).unwrap();
    client.ring(other.0.number);
    for number in [recv.number, send.number] {
        crate::shared::WorkQueue::new(&client, number).publish(1);
        client.ring(number);
    }
    engine.take_doorbells(Time::ZERO, &mut nic, &mut memory);
    let mut rung = |number| engine.work(session, number).unwrap().rung;
    assert_eq!((rung(send.number), rung(recv.number)), (1, 1));
}
