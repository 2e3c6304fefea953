//! Many clients, and sessions that have as many objects as their quotas admit.

use std::collections::HashSet;

use super::*;
use crate::message::Ticket;

/// More than one message has room for.
const MANY: usize = 20_000;

#[test]
fn a_session_with_many_objects_is_taken_over_and_ends() {
    let daemon = Daemon::start();
    let hello = Hello { name: Some("many".into()), keep: Keep::Forever, ..Hello::default() };
    let first = Client::attach(&daemon, &hello).unwrap();
    let mut card = first.card();
    let domains: HashSet<Object> =
        (0..MANY).map(|_| Object::Pd(card.alloc_pd().unwrap())).collect();
    let ticket = Ticket { name: "many".into(), token: first.welcome.token };
    drop(first);

    let options = DeviceOptions::new().attach(&daemon.path);
    let device = options.take_over(ticket, Keep::No).open().unwrap();
    assert_eq!(device.taken().len(), MANY);
    assert_eq!(device.taken().iter().copied().collect::<HashSet<_>>(), domains);
    drop(device);
    daemon.wait_until_empty();
}

#[test]
fn two_hundred_clients_come_and_go() {
    let daemon = Daemon::start();
    let clients: Vec<Client> = (0..200).map(|_| daemon.client()).collect();
    let queues: Vec<Queues> = clients.iter().map(Client::queues).collect();
    for (client, queues) in clients.iter().zip(&queues) {
        let (file, _) = sealed(4096);
        let number = client.lend(Loan::Sealed, &file);
        let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 4096 };
        client.card().reg_mr(queues.pd, bytes, Access::all()).unwrap();
    }
    assert_eq!(daemon.device.in_use().qps, 200);
    let pages = daemon.observer().status();
    assert_eq!(pages.iter().map(|page| page.sessions.len()).sum::<usize>(), 200);
    drop((clients, queues));
    daemon.wait_until_empty();
}
