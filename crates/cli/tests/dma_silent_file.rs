//! A daemon and a file whose server is silent.
#![cfg(feature = "fuse")]

mod support;

use std::os::fd::AsFd;

use remora::daemon::Observer;
use remora::message::{
    ClientRequest, DmaRequest, Hello, Loan, MessageSocket, OpenXrcd, encode, greeting,
};
use rustix::process::Signal;
use support::mount::{Mounted, can_mount};
use support::nic::Daemon;
use support::{Folder, until};

/// The file's server may be the client. Whatever a client sends, and however it ends, the daemon
/// serves others meanwhile.
///
/// This process starts no other while it has the file: each would close its copy of it, and wait
/// for the server. So the test has a program of its own.
#[test]
fn a_file_whose_server_never_answers_does_not_hold_a_daemon_up() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let folder = Folder::new();
    let mounted = Mounted::start(&folder, &["--far", "2M"], None);
    let file = mounted.open("xdma0_control");
    mounted.signal(Signal::STOP);

    let socket = daemon.folder.path("nic.sock");
    let names = ClientRequest::OpenXrcd(OpenXrcd { creates: true, exclusive: false });
    let grants = DmaRequest::Grant { loan: Loan::File, addr: 0, len: 8, writable: true };
    let requests = [
        names,
        ClientRequest::Lend(Loan::File),
        ClientRequest::Lend(Loan::Sealed),
        ClientRequest::Gates,
        ClientRequest::Dma(grants),
    ];
    let hello = Hello::default();
    let mut clients = Vec::new();
    for request in requests.iter().map(encode).chain([vec![0xff; 64]]) {
        let client = MessageSocket::connect(&socket).unwrap();
        client.send(&greeting(&hello), &[]).unwrap();
        assert!(client.wait(None).unwrap());
        client.receive(&mut Vec::new()).unwrap().expect("a welcome");
        client.send(&request, &[file.as_fd()]).unwrap();
        clients.push(client);
    }
    // One that has not said who it is, and more descriptors than there may be.
    let stranger = MessageSocket::connect(&socket).unwrap();
    stranger.send(&greeting(&hello), &[file.as_fd(); 16]).unwrap();
    let observer = Observer::connect(Some(&socket)).unwrap();
    let is_served = || observer.status().unwrap().sessions.len();
    assert_eq!(is_served(), clients.len());
    drop((clients, stranger));
    until("their sessions have ended", || is_served() == 0);

    // The daemon's other thread still has some of them; with the server, all calls end.
    drop(mounted);
    drop(file);
}
