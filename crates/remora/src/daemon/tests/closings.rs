//! Clients whose descriptors take long to close: nobody else waits for that.

use std::io::IoSlice;
use std::mem::MaybeUninit;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::closer::Closer;
use crate::closer::tests::lingering;

/// A server that looks when it is told to.
fn server(policy: Policy) -> Server {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("remora-closings-{}-{number}.sock", std::process::id());
    let socket = Some(std::env::temp_dir().join(name));
    let device = DeviceOptions::new().embedded().open().unwrap();
    Server::new(device, ServerOptions { socket, policy, loader: None }).unwrap()
}

/// A connection to it.
fn connect(server: &mut Server) -> Asker {
    let (socket, other) = MessageSocket::pair().unwrap();
    server.admit(other);
    Asker { socket }
}

/// Sends more descriptors than a message may have.
fn send_many(client: &Asker, slow: &OwnedFd) {
    let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let all = [slow.as_fd(); 253];
    assert!(control.push(SendAncillaryMessage::ScmRights(&all)));
    let bytes = [IoSlice::new(b"many")];
    sendmsg(&client.socket, &bytes, &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn what_lingers_in_a_connection_holds_nobody_up() {
    let mut server = server(Policy::default());
    let (slow, _other) = lingering();
    let [unread, many, rude] = std::array::from_fn(|_| connect(&mut server));
    // One is dropped for its first message and leaves others unread, of one's descriptors only some
    // are taken, and one is dropped for a message that comes with such.
    unread.send(b"no greeting", &[]);
    (0..3).for_each(|_| unread.send(b"unread", &[slow.as_fd()]));
    send_many(&many, &slow);
    rude.send(&greeting(&Hello::default()), &[]);
    let pipe = std::io::pipe().unwrap();
    rude.send(&[0xff; 8], &[slow.as_fd(), pipe.0.as_fd()]);
    (0..3).for_each(|_| rude.send(b"unread", &[slow.as_fd()]));
    // What is left of it is the daemon's.
    Closer::default().close(slow);
    drop(pipe);
    until("all are dropped", || {
        server.look(Some(Duration::ZERO)).unwrap();
        server.clients.iter().count() == 0
    });
    assert!(many.farewell().contains("too many descriptors"));
    assert!(!unread.farewell().is_empty());
    assert!(matches!(decode(&rude.receive().0), Ok(Answer::Welcome(_))));
    assert!(!rude.farewell().is_empty());
    for client in [unread, many, rude] {
        assert!(client.receive().0.is_empty(), "the end of the connection is seen");
    }
}

/// Of users who may not attach, the daemon closes what they send before it knows them.
#[test]
fn what_lingers_of_a_stranger_holds_nobody_up() {
    let mut server = server(super::hogs::policy_with("attach = false"));
    let (slow, _other) = lingering();
    let (socket, other) = MessageSocket::pair().unwrap();
    let stranger = Asker { socket };
    stranger.send(b"hello", &[slow.as_fd()]);
    Closer::default().close(slow);
    server.admit(other);
    assert!(!stranger.farewell().is_empty());
    assert!(stranger.receive().0.is_empty());
}

/// Nobody knows the token of a session whose client has gone before it was welcomed.
#[test]
fn a_session_of_which_nobody_has_heard_is_not_kept() {
    let mut server = server(Policy::default());
    let client = connect(&mut server);
    client.send(&greeting(&Hello { keep: Keep::Forever, ..Hello::default() }), &[]);
    drop(client);
    server.look(Some(Duration::ZERO)).unwrap();
    assert!(server.sessions.is_empty());
}
