use std::sync::Mutex;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::daemon::policy::Policy;
use crate::dma::path::{PathError, PathKind};
use crate::dma::{Address, Channel, Flags};
use crate::memory::Buffer;

/// A file whose reads last as long as somebody likes.
#[derive(Debug)]
struct Silent(Arc<Mutex<()>>);

impl Path for Silent {
    fn kind(&self) -> PathKind {
        PathKind::Memfd
    }

    fn len(&self) -> u64 {
        4096
    }

    fn to_card(&mut self, _: u64, _: &Buffer, _: usize, _: usize) -> Result<(), PathError> {
        drop(self.0.lock().unwrap());
        Ok(())
    }

    fn to_host(&mut self, _: &Buffer, _: usize, _: u64, _: usize) -> Result<(), PathError> {
        Ok(())
    }
}

const ALLOC: DmaRequest = DmaRequest::Alloc { near: false, len: 64 };

/// A client of this process's user.
fn asker(client: u32) -> Asker {
    let uid = rustix::process::geteuid().as_raw();
    Asker { client, uid, pid: 1, sessions: 0, session_bytes: 0, living: true }
}

fn ask(cards: &mut DmaCards, client: u32, request: DmaRequest) -> Option<DmaAnswer> {
    let who = asker(client);
    let rule = *Policy::default().rule(who.uid);
    cards.answer(who, &rule, request, Vec::new()).map(|answered| answered.unwrap().0)
}

/// The cards of one user, whose engine is in a call as long as `silence` is locked.
fn in_a_call(silence: &Arc<Mutex<()>>, clients: &[u32]) -> (DmaCards, Channel) {
    let mut cards = DmaCards::new(1);
    for client in clients {
        ask(&mut cards, *client, DmaRequest::Open).unwrap();
    }
    let service = cards.cards[&asker(0).uid].service.as_ref().unwrap();
    let silent = Box::new(Silent(silence.clone()));
    let region = service.engine().grant(Owner::default(), silent, true).unwrap();
    let mut channel = service.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    channel.copy(region.at(0), Address::Card(0), 8, Flags::empty()).unwrap();
    channel.submit();
    while service.engine_within(Duration::ZERO).is_some() {
        std::thread::yield_now();
    }
    (cards, channel)
}

/// Others of the user wait for such a call, and no other user.
#[test]
fn an_engine_in_a_call_does_not_hold_the_daemon_up() {
    let silence = Arc::new(Mutex::new(()));
    let silent = silence.lock().unwrap();
    let (mut cards, _channel) = in_a_call(&silence, &[1, 2]);
    assert_eq!(ask(&mut cards, 1, ALLOC), None);
    cards.end(2);
    let [left] = &cards.clients(0, |_| true).0[..] else { panic!("one client is left") };
    assert_eq!(left.channels, None, "nobody knows");
    assert_eq!(ask(&mut cards, 1, DmaRequest::List(0)), None);
    assert!(cards.next_try().is_some());
    drop(silent);
    let mut answers = Vec::new();
    while answers.len() < 2 {
        for Later { client, request, .. } in cards.take_later() {
            answers.extend(ask(&mut cards, client, request));
        }
    }
    assert!(answers.iter().any(|answer| matches!(answer, DmaAnswer::Piece { .. })));
    let told = |answer: &DmaAnswer| match answer {
        DmaAnswer::Channels { channels, .. } => Some(channels.len()),
        _ => None,
    };
    assert_eq!(answers.iter().find_map(told), Some(1), "that of this test");
    let mut its_channels = || cards.clients(0, |_| true).0.remove(0).channels;
    let its = std::iter::repeat_with(&mut its_channels).flatten().next();
    assert_eq!(its, Some(Vec::new()));
    while !cards.cards[&asker(0).uid].gone.is_empty() {
        assert!(cards.take_later().is_empty());
    }
    assert!(cards.next_try().is_none());
}

/// What waits is done though somebody else finds the engine free first.
#[test]
fn what_waits_for_an_engine_is_due_when_another_client_has_reached_it() {
    let silence = Arc::new(Mutex::new(()));
    for has_gone in [false, true] {
        let silent = silence.lock().unwrap();
        let (mut cards, _channel) = in_a_call(&silence, &[1, 2]);
        if has_gone {
            cards.end(1);
        } else {
            assert_eq!(ask(&mut cards, 1, ALLOC), None);
        }
        drop(silent);
        while cards.clients(2, |_| true).0[0].channels.is_none() {}
        let at = cards.next_try().expect("what waits is not forgotten");
        assert!(at <= Instant::now(), "and is due");
        let mut answers = Vec::new();
        while cards.next_try().is_some() {
            for Later { client, request, .. } in cards.take_later() {
                answers.extend(ask(&mut cards, client, request));
            }
        }
        assert_eq!(answers.len(), usize::from(!has_gone));
        assert_eq!(cards.take_ended().len(), usize::from(has_gone));
    }
}

/// An engine's thread, and its descriptors, are there for clients; all else stays.
#[test]
fn a_card_without_clients_has_no_thread_and_what_it_had() {
    let rule = *Policy::default().rule(rustix::process::geteuid().as_raw());
    let mut cards = DmaCards::new(2);
    let ask = |cards: &mut DmaCards, uid, request| {
        let answered = cards.answer(Asker { uid, ..asker(uid) }, &rule, request, Vec::new());
        answered.unwrap().map(|(answer, _)| answer)
    };
    for uid in [7, 8] {
        ask(&mut cards, uid, DmaRequest::Open).unwrap();
    }
    let refused = ask(&mut cards, 9, DmaRequest::Open).unwrap_err();
    assert!(refused.contains("2 users"), "{refused}");
    let service = cards.cards[&7].service.as_ref().unwrap();
    let mut channel = service.open(ChannelOptions::new(Direction::HostToCard)).unwrap();
    channel.fill(5, Address::Card(64), 8, Flags::empty()).unwrap();
    channel.submit();
    while channel.completed(1).count == 0 {
        std::thread::yield_now();
    }
    let counters = service.engine().counters();
    cards.end(7);
    while !cards.cards[&7].gone.is_empty() {
        assert!(cards.take_later().is_empty());
    }
    assert_eq!(cards.take_ended(), [7]);
    assert!(cards.cards[&7].service.is_none() && cards.cards[&8].service.is_some());
    let ask_all = |cards: &mut DmaCards| ask(cards, 7, DmaRequest::List(0)).unwrap();
    let told = ask_all(&mut cards);
    ask(&mut cards, 7, DmaRequest::Open).unwrap();
    assert_eq!(ask_all(&mut cards), told, "one with a thread tells the same");
    assert_eq!(cards.cards[&7].service.as_ref().unwrap().engine().counters(), counters);
    assert_eq!(cards.cards[&7].memory.bytes().load_u64(64), Ok(5));
}

#[test]
fn files_of_others_are_granted_if_the_policy_says_so() {
    let own = rustix::process::geteuid().as_raw();
    let usual = *Policy::default().rule(own);
    for (uid, lend_files, expected) in
        [(own, false, true), (own + 1, false, false), (own + 1, true, true)]
    {
        let file = memfd_create("granted", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let who = Asker { uid, ..asker(1) };
        let memory = Application { pid: 1, addr: 0, len: 4096, file: None };
        let rule = Rule { lend_files, ..usual };
        let path = path_to(Loan::File, memory, vec![file], (who, &rule));
        assert_eq!(path.is_ok(), expected, "user {uid}, {lend_files}");
    }
}
