//! A client with many shared receive queues.

use super::crashes::local;
use super::notices::looped;
use super::*;

/// Queues that the client has, and how many messages come to each of those that take any.
const QUEUES: usize = 300;
const MESSAGES: u64 = 100;

/// A receive or a send of 8 bytes.
fn element(opcode: u8, wr_id: u64, at: (u64, u32)) -> [u8; 64] {
    let mut element = write(wr_id, at, (0, 0), 8);
    element[0] = opcode;
    element
}

/// Each slot is free when its completion is seen, whichever of the queues it was of.
#[test]
fn slots_are_free_when_their_completions_are_seen() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (base, key) = looped(&client);
    let mut card = client.card();
    let ring = RingInit { addr: 0, depth: 4, stride: 64 };
    let srqs: Vec<_> = (0..QUEUES).map(|_| card.create_srq(base.pd, ring).unwrap()).collect();
    for made in [&srqs[0], &srqs[QUEUES / 2], &srqs[QUEUES - 1]] {
        let of_srq = |init| QpInit { srq: Some(made.srq), rq: RingInit::default(), ..init };
        let (mut sender, mut receiver) = (client.queues(), client.queues_of(base.pd, of_srq));
        client.connect(&sender, &receiver.made);
        client.connect(&receiver, &sender.made);
        let from = local(&client, &sender);
        let (shared, at) = client.work_queue(&made.ring);
        for message in 0..MESSAGES {
            let posted = message as u32 + 1;
            let slot = at + (message as usize % 4) * 64;
            let receive = element(0, message, (0, key));
            client.arena.memory().write_at(slot, &receive).unwrap();
            shared.publish(posted);
            client.ring(shared.number());
            client.post(&mut sender, &element(1, message, (0, from)));
            let came = client.completion(&mut receiver);
            assert_eq!((came.wr_id, came.status), (message, Status::Success));
            assert_eq!(shared.retired(), posted, "its slot is free");
            assert_eq!(client.completion(&mut sender).status, Status::Success);
        }
    }
}

/// The client has posted, and resizes the queue before the daemon has come by its doorbell.
#[test]
fn what_was_posted_goes_with_the_queue_to_another_ring() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (base, key) = looped(&client);
    let mut card = client.card();
    let ring = |depth| RingInit { addr: 0, depth, stride: 64 };
    let made = card.create_srq(base.pd, ring(4)).unwrap();
    let (shared, at) = client.work_queue(&made.ring);
    for wr_id in 0..3 {
        let receive = element(0, wr_id, (0, key));
        client.arena.memory().write_at(at + wr_id as usize * 64, &receive).unwrap();
    }
    shared.publish(3);
    let resized = card.resize_srq(made.srq, ring(8)).unwrap();
    assert_eq!(client.work_queue(&resized).0.posted(), 3, "the client goes on behind them");
    assert_eq!(card.query_srq(made.srq).unwrap().waiting, 3);
}
