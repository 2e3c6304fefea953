//! A daemon whose turns are taken one by one.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

/// A server whose turns the test takes, at a socket of this name.
fn server(name: &str) -> (Server, PathBuf) {
    let file = format!("remora-turns-{}-{name}.sock", std::process::id());
    let path = std::env::temp_dir().join(file);
    let options = ServerOptions { socket: Some(path.clone()), ..ServerOptions::default() };
    (Server::new(DeviceOptions::new().embedded().open().unwrap(), options).unwrap(), path)
}

/// However many sessions there have been, none gets the number of one that is there.
#[test]
fn a_number_of_a_session_is_not_given_twice() {
    let (mut server, path) = server("numbers");
    let mut attach = |last: u32| {
        server.last_session = last;
        let asker = Asker { socket: MessageSocket::connect(&path).unwrap() };
        asker.send(&greeting(&Hello::default()), &[]);
        while !asker.socket.wait(Some(Duration::ZERO)).unwrap() {
            server.turn().unwrap();
        }
        match decode::<Answer<'_>>(&asker.receive().0).unwrap() {
            Answer::Welcome(welcome) => (asker, welcome.session),
            other => panic!("{other:?}"),
        }
    };
    let sessions = [6, u32::MAX, 6, 5].map(&mut attach);
    assert_eq!(sessions.map(|(_, number)| number), [7, 0, 8, 6]);
}

/// Those who connect without end hold up nobody: some are looked at, and then all else is.
#[test]
fn some_connections_to_a_machines_socket_are_taken_at_a_time() {
    let name = |what| format!("remora-machines-{}-{what}.sock", std::process::id());
    let [socket, path] = ["nic", "machine"].map(|what| std::env::temp_dir().join(name(what)));
    let options = ServerOptions { socket: Some(socket), ..ServerOptions::default() };
    let mut server = Server::new(DeviceOptions::new().embedded().open().unwrap(), options).unwrap();
    server.serve_machine(path.clone()).unwrap();
    let mut machines: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    machines.iter().for_each(|machine| machine.set_nonblocking(true).unwrap());
    // The first one has the device, and the others are sent away.
    let mut sent_away =
        || machines[1..].iter_mut().filter_map(|m| m.read(&mut [0; 8]).ok()).count();
    assert!(server.turn().unwrap());
    assert_eq!(sent_away(), 63);
    assert!(server.turn().unwrap());
    assert_eq!(sent_away(), 99);
}
