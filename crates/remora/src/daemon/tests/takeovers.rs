//! Kept sessions between two clients: nothing that the first one did is lost, and nothing ends for
//! a second one that cannot have it.

use std::fs::File;

use remora_nic::Access;
use remora_nic::queue::Status;

use super::{Asker, Client, Daemon, sealed, until, write};
use crate::commands::{Bytes, Commands, Place};
use crate::message::{Answer, Hello, Keep, Loan, MessageSocket, decode, greeting};

fn kept(keep: Keep) -> Hello {
    Hello { name: Some("kept".into()), keep, ..Hello::default() }
}

#[test]
fn what_a_killed_client_has_posted_and_not_rung_is_carried_out() {
    let daemon = Daemon::start();
    let client = Client::attach(&daemon, &kept(Keep::Forever)).unwrap();
    let peer = daemon.client();
    let (mut queues, theirs) = (client.queues(), peer.queues());
    client.connect(&queues, &theirs.made);
    peer.connect(&theirs, &queues.made);
    let (file, memory) = sealed(4096);
    let region = |of: &Client, pd| {
        let number = of.lend(Loan::Sealed, &file);
        let bytes = Bytes { place: Place::Lent { number, offset: 0 }, iova: 0, len: 4096 };
        of.card().reg_mr(pd, bytes, Access::all()).unwrap()
    };
    let (own, there) = (region(&client, queues.pd), region(&peer, theirs.pd));
    memory.write_at(0, b"posted").unwrap();
    client.publish(&mut queues, &write(1, (0, own), (100, there), 6));
    let token = client.welcome.token;
    drop(client);
    let mut bytes = [0; 6];
    until("the WRITE is carried out", || {
        memory.read_at(100, &mut bytes).unwrap();
        bytes == *b"posted"
    });
    let next = Client::attach(&daemon, &Hello { token: Some(token), ..kept(Keep::No) }).unwrap();
    assert_eq!(next.completion(&mut queues).status, Status::Success);
}

/// Descriptors of this process, as long as it has any.
fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// In a process whose limit of descriptors is low: takes a session over while so few are left that
/// the daemon cannot hand all of it out.
pub(super) fn without_descriptors_a_session_stays() {
    let daemon = Daemon::start();
    let client = Client::attach(&daemon, &kept(Keep::Forever)).unwrap();
    let mut token = client.welcome.token;
    drop(client);
    let (mut later, mut free) = (Vec::new(), 0);
    loop {
        // (With none free it is not to succeed; if it does, the session is still needed.)
        let keep = if free == 0 { Keep::Forever } else { Keep::No };
        let taking = greeting(&Hello { token: Some(token), ..kept(keep) });
        let taker = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
        // The daemon has accepted the taker before one that came later, which stays: its end would
        // give the daemon descriptors at any time.
        later.push(daemon.observer());
        let mut taken = all_descriptors();
        taken.truncate(taken.len() - free);
        taker.send(&taking, &[]);
        taker.socket.wait(None).unwrap();
        drop(taken);
        let (bytes, _) = taker.receive();
        match decode::<Answer<'_>>(&bytes).unwrap() {
            Answer::Farewell(reason) => {
                assert!(reason.contains("descriptors"), "{reason}");
                free += 1;
            }
            Answer::Welcome(_) if free > 0 => break,
            // Descriptors of a client that has gone have come back meanwhile.
            Answer::Welcome(welcome) => token = welcome.token,
            other => panic!("{other:?}"),
        }
        drop(taker);
        until("the session is kept", || {
            let sessions = &daemon.observer().status()[0].sessions;
            sessions.iter().any(|session| session.name == "kept" && !session.attached)
        });
    }
    drop(later);
    daemon.wait_until_empty();
}

/// A former client's session ends when there is room for the new one, and not before.
pub(super) fn without_descriptors_a_former_session_stays() {
    let daemon = Daemon::start();
    drop(Client::attach(&daemon, &kept(Keep::Forever)).unwrap());
    let anew = Asker { socket: MessageSocket::connect(&daemon.path).unwrap() };
    let later = daemon.observer();
    let taken = all_descriptors();
    anew.send(&greeting(&Hello { anew: true, ..kept(Keep::No) }), &[]);
    anew.socket.wait(None).unwrap();
    drop(taken);
    let (bytes, _) = anew.receive();
    assert!(matches!(decode(&bytes), Ok(Answer::Farewell(_))), "{bytes:?}");
    assert_eq!(later.status()[0].sessions[0].name, "kept");
    let refused = later.refusal(&crate::message::ClientRequest::Evict("kept"), &[]);
    assert_eq!(refused, None);
    daemon.wait_until_empty();
}
