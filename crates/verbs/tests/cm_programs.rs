//! The programs of the distribution that connect by address, unmodified, as two processes.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use remora::nic::cm::AddressScope;
use remora::nic::cm::CmEvent;
use remora::nic::cm::message::RejectReason;
use remora::nic::cm::service::PortSpace;

use cm::{Program, alone, is_installed, pair, pair_at, port};

/// An address of this machine outside loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: the kernel only chooses the source address.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[test]
fn rping() {
    if !is_installed("rping") {
        return;
    }
    let said = pair("rping -s -v -V -C 10 -p PORT", "rping -c -a 127.0.0.1 -v -V -C 10 -p PORT");
    assert_eq!(said.lines().filter(|line| line.contains("ping data")).count(), 10, "{said}");
    let bound = "rping -s -a 127.0.0.1 -C 3 -S 1000 -p PORT";
    pair(bound, "rping -c -a 127.0.0.1 -C 3 -S 1000 -p PORT");
    pair("rping -s -a ::1 -C 3 -p PORT", "rping -c -a ::1 -C 3 -p PORT");
    if let Some(own) = own_address() {
        pair("rping -s -C 3 -p PORT", &format!("rping -c -a {own} -C 3 -p PORT"));
        let bound = format!("rping -s -a {own} -C 3 -p PORT");
        pair(&bound, &format!("rping -c -a {own} -C 3 -p PORT"));
    }
}

#[test]
fn a_persistent_rping_serves_several_clients() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let mut server = Program::start(&format!("rping -s -P -p {port}"));
    server.listens(port);
    // They ping at the same time, but connect one after the other: of two requests that come while
    // its main thread is not running, this server forgets the first (linux-rdma/rdma-core#1568).
    let mut clients = [(); 3].map(|()| {
        let mut client = Program::start(&format!("rping -c -a 127.0.0.1 -v -p {port}"));
        client.says("rdma-ping-1:");
        client
    });
    let others = || Program::start(&format!("rping -c -a 127.0.0.1 -C 20 -p {port}")).end();
    let (code, said) = others();
    assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
    // All clients are still served.
    for client in &mut clients {
        let so_far = client.said().lines().count();
        client.goes_on(so_far);
    }
    clients.iter_mut().for_each(Program::kill);
    let (code, said) = others();
    assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
    server.kill();
}

#[test]
fn many_connections() {
    if !is_installed("ucmatose") {
        return;
    }
    // These programs have a fixed port.
    const PORT: u16 = 7471;
    for (server, client) in [
        ("ucmatose", "ucmatose -s 127.0.0.1"),
        ("ucmatose -c 200 -C 3", "ucmatose -s 127.0.0.1 -c 200 -C 3"),
        ("ucmatose -S 20000", "ucmatose -s 127.0.0.1 -S 20000"),
        ("ucmatose -P ib", "ucmatose -s 127.0.0.1 -P ib"),
        ("ucmatose -b ::0", "ucmatose -s ::1"),
        ("ucmatose -m", "ucmatose -s 127.0.0.1 -m -t 8 -a 14"),
    ] {
        let said = pair_at(PORT, server, client);
        assert!(said.contains("return status 0"), "{said}");
    }
}

/// The row `rdma_cm_1000` of the benchmark.
#[test]
fn a_thousand_connections() {
    if !is_installed("ucmatose") {
        return;
    }
    pair("ucmatose -c 1000 -C 1 -p PORT", "ucmatose -s 127.0.0.1 -c 1000 -C 1 -p PORT");
}

#[test]
fn datagrams() {
    if !is_installed("udaddy") {
        return;
    }
    for options in ["", " -c 10", " -S 1000 -C 50"] {
        let (server, client) =
            (format!("udaddy{options}"), format!("udaddy -s 127.0.0.1{options}"));
        let said = pair_at(7174, &server, &client);
        assert!(said.contains("return status 0"), "{said}");
    }
}

/// A group has no port to wait for, but the kernel lists it.
#[test]
fn groups() {
    if !is_installed("mckey") {
        return;
    }
    let _alone = alone();
    // All tests that run on this machine share its groups.
    let [high, low] = port().to_be_bytes();
    let group = format!("239.77.{high}.{low}");
    let in_table = format!("{:08X}", u32::from_ne_bytes([239, 77, high, low]));
    let mut member = Program::start(&format!("mckey -m {group} -C 5"));
    member.appears("/proc/net/igmp", &in_table);
    let (code, said) = Program::start(&format!("mckey -m {group} -s -C 5")).end();
    assert_eq!(code, Some(0), "{said}\nmember:\n{}", member.said());
    let (code, said) = member.end();
    assert!(code == Some(0) && said.contains("return status 0"), "{said}");
}

#[test]
fn endpoints() {
    if !is_installed("rdma_server") {
        return;
    }
    pair("rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT");
    pair("rdma_xserver -p PORT -c r", "rdma_xclient -s 127.0.0.1 -p PORT -c r");
    pair("rdma_xserver -p PORT -c x", "rdma_xclient -s 127.0.0.1 -p PORT -c x");
}

/// This program's server waits for the next client for ever.
#[test]
fn connection_times() {
    if !is_installed("cmtime") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let mut server = Program::start(&format!("cmtime -p {port} -c 50"));
    server.listens(port);
    let mut client = Program::start(&format!("cmtime -s 127.0.0.1 -p {port} -c 50"));
    let (code, said) = client.end();
    assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
    server.kill();
}

#[test]
fn streams() {
    if !is_installed("rstream") {
        return;
    }
    for options in ["-T b -S all -I 10", "-T a", "-T n", "-T v", "-T b -T v", "-T r", "-B 10000"] {
        let common = format!("-p PORT -S 5000 -C 20 -I 20 {options}");
        pair(&format!("rstream {common}"), &format!("rstream -s 127.0.0.1 {common}"));
    }
    for options in ["-T b", "-T a", "-T n", "-T v"] {
        let common = format!("-p PORT -S 5000 -C 10 -I 10 {options}");
        pair(&format!("riostream {common}"), &format!("riostream -s 127.0.0.1 {common}"));
    }
}

/// This program's server has no end either. Its echo test sends again if an answer takes longer
/// than a millisecond, and never catches up on a busy machine, so the test runs only a little of
/// it.
#[test]
fn datagrams_of_rsockets() {
    if !is_installed("udpong") {
        return;
    }
    for (address, options) in [
        ("127.0.0.1", "-C 2000"),
        ("127.0.0.1", "-T a -C 2000"),
        ("127.0.0.1", "-T b -C 2000"),
        ("::1", "-T n -C 2000"),
        ("127.0.0.1", "-T e -C 20"),
    ] {
        let (_alone, port) = (alone(), port());
        let mut server = Program::start(&format!("udpong -b {address} -p {port} {options}"));
        server.holds("udp", port);
        let client = format!("udpong -s {address} -p {port} -S 1000 {options}");
        let (code, said) = Program::start(&client).end();
        assert_eq!(code, Some(0), "{client}:\n{said}\nserver:\n{}", server.said());
        server.kill();
    }
    let (_alone, port) = (alone(), port());
    let (code, said) = Program::start(&format!("udpong -s 127.0.0.1 -p {port}")).end();
    assert!(code != Some(0) && said.contains("rsend: Connection refused"), "{said}");
}

#[test]
fn a_file_over_a_stream() {
    if !is_installed("rcopy") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join(format!("from-{port}")), dir.join(format!("to-{port}")));
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let mut server = Program::start(&format!("rcopy -p {port}"));
    server.listens(port);
    let (source, target) = (from.display(), to.display());
    let mut client = Program::start(&format!("rcopy {source} 127.0.0.1:{target} -p {port}"));
    let (code, said) = client.end();
    assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
    assert!(fs::read(&to).unwrap() == bytes, "the copy is not the file");
    server.kill();
    fs::remove_file(from).unwrap();
    fs::remove_file(to).unwrap();
}

#[test]
fn perftest_by_address() {
    if !is_installed("ib_send_bw") {
        return;
    }
    // perftest's client connects twice, the second time often before its own server listens again.
    // With -F, the program reports even if it cannot measure the processor's clock.
    for test in [
        "ib_send_bw -F -R -n 200 -p PORT",
        "ib_send_lat -F -R -n 100 -p PORT",
        "ib_write_bw -F -R -n 100 -q 8 -p PORT",
        "ib_read_lat -F -R -n 100 -p PORT",
        "ib_send_bw -F -R -n 200 -c UD -p PORT",
    ] {
        pair(test, &format!("{test} 127.0.0.1"));
    }
}

#[test]
fn a_request_to_a_port_without_a_listener_is_rejected() {
    if !is_installed("rping") {
        return;
    }
    let _alone = alone();
    let mut client = Program::start(&format!("rping -c -a 127.0.0.1 -C 1 -p {}", port()));
    let (code, said) = client.end();
    assert_ne!(code, Some(0));
    assert!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{said}");
}

/// A process's peers are told of its end, as hardware's driver does: by a disconnection, unless
/// requests that are under way have failed before, since the card knows that the process is gone.
#[test]
fn a_client_is_killed() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let mut server = Program::start(&format!("rping -s -v -p {port}"));
    server.listens(port);
    let mut client = Program::start(&format!("rping -c -a 127.0.0.1 -v -p {port}"));
    client.says("rdma-ping-5:");
    client.kill();
    let (code, said) = server.end();
    // On a shared card the client's memory may go first, and a request of the server's fails by it.
    let has_failed = cm::shares_a_card() && code != Some(0);
    let is_told = said.contains("DISCONNECT") || said.contains("status 12");
    assert!(is_told || has_failed, "{code:?}: {said}");
}

#[test]
fn a_port_is_taken() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let mut first = Program::start(&format!("rping -s -p {port}"));
    first.listens(port);
    let mut second = Program::start(&format!("rping -s -p {port}"));
    let (code, said) = second.end();
    assert_ne!(code, Some(0));
    // As Linux says it of a second id for all addresses.
    assert!(said.contains("Cannot assign requested address"), "{said}");
}

/// A server stops answering and is then killed: the client is told at once, and does not repeat its
/// request for another minute.
#[test]
fn a_server_is_killed_before_it_answers() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let mut server = Program::start(&format!("rping -s -p {port}"));
    server.listens(port);
    signal(&server, "-STOP");
    let log = "REMORA_LOG";
    let mut client = Program::start_with(&format!("rping -c -a 127.0.0.1 -p {port}"), |command| {
        command.env(log, "debug");
    });
    client.says("asks for a connection");
    server.kill();
    let (code, said) = client.end();
    assert_ne!(code, Some(0));
    // A card that programs share goes on, and refuses what nobody will answer.
    let shared = cm::shares_a_card() && said.contains("RDMA_CM_EVENT_REJECTED, error 28");
    assert!(shared || is_told_of_an_end(&said), "{said}");
}

/// Without being told that the other process has gone, a program says the same of its failure, when
/// all repetitions are over.
fn is_told_of_an_end(said: &str) -> bool {
    said.contains("the process at the other end of a connection is gone")
        && said.contains("RDMA_CM_EVENT_UNREACHABLE, error")
        && said.contains("-110")
}

/// A client stops and is killed before it knows that it is accepted: the server is told at once.
#[test]
fn a_client_is_killed_before_it_is_ready() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let logged = |command: &mut Command| {
        command.env("REMORA_LOG", "debug");
    };
    let mut server = Program::start_with(&format!("rping -s -p {port}"), logged);
    server.listens(port);
    // It answers only when the client has stopped.
    signal(&server, "-STOP");
    let client = format!("rping -c -a 127.0.0.1 -p {port}");
    let mut client = Program::start_with(&client, logged);
    client.says("asks for a connection");
    signal(&client, "-STOP");
    signal(&server, "-CONT");
    server.says("accepts a connection");
    client.kill();
    let (code, said) = server.end();
    assert_ne!(code, Some(0));
    let shared = cm::shares_a_card() && said.contains("RDMA_CM_EVENT_REJECTED, error 28");
    assert!(shared || is_told_of_an_end(&said), "{said}");
}

/// So is one that asks for a datagram service, when the server is killed before it answers.
#[test]
fn a_server_of_datagrams_is_killed_before_it_answers() {
    /// These programs have a fixed port.
    const PORT: u16 = 7174;
    if !is_installed("udaddy") {
        return;
    }
    let _alone = alone();
    let mut server = Program::start("udaddy");
    server.listens(PORT);
    signal(&server, "-STOP");
    let mut client = Program::start_with("udaddy -s 127.0.0.1", |command| {
        command.env("REMORA_LOG", "debug");
    });
    client.says("asks for a datagram service");
    server.kill();
    let (_, said) = client.end();
    let shared = cm::shares_a_card() && said.contains("RDMA_CM_EVENT_UNREACHABLE, error");
    assert!(shared || is_told_of_an_end(&said), "{said}");
}

fn signal(program: &Program, signal: &str) {
    let sent = Command::new("kill").args([signal, &program.pid().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A peer's process may be stopped (a debugger, a snapshot) for seconds, whatever the program has
/// said of time-outs: the card sees that the peer is only held. A transfer then goes on. A peer
/// that has gone ends it.
#[test]
fn a_peer_is_stopped_or_killed() {
    if !is_installed("ib_write_bw") {
        return;
    }
    // 4.096 µs · 2^20 and 2^10, with seven retries: 34 s and 34 ms.
    for (timeout, stopped) in [(20, true), (10, true), (10, false)] {
        let (_alone, port) = (alone(), port());
        // perftest's output would stay in a buffer.
        let command = format!("stdbuf -oL ib_write_bw -F -D 6 -u {timeout} -p {port}");
        let mut server = Program::start(&command);
        server.holds("tcp", port);
        let mut client = Program::start(&format!("{command} 127.0.0.1"));
        client.says("BW average");
        if stopped {
            signal(&server, "-STOP");
            // Longer than the timeout that rdma_cm gives those who ask for none: 2.1 s.
            thread::sleep(Duration::from_secs(5));
            signal(&server, "-CONT");
        } else {
            server.kill();
        }
        let (code, said) = client.end();
        assert_eq!(code == Some(0), stopped, "{said}\nserver:\n{}", server.said());
        // A card that both share may find the memory gone (a remote operation error) before it
        // hears that the process is.
        let found = cm::shares_a_card() && said.contains("status 11");
        assert!(stopped || found || said.contains("status 12"), "{said}");
        if stopped {
            server.kill();
        }
    }
}

/// The op-codes of RoCE v2 packets over IPv4 in a capture.
fn opcodes(capture: &[u8]) -> Vec<u8> {
    let header = |at: &&[u8]| at[0] == 0x45 && at[9] == 17 && at[22..24] == 4791u16.to_be_bytes();
    capture.windows(29).filter(header).map(|at| at[28]).collect()
}

/// Programs that know nothing of it speak the lossy dialect where both cards offer it, on a network
/// that loses packets, too. Where one card offers nothing, all packets are standard. (Each has a
/// card of its own here: which dialects a shared one offers is its daemon's.)
#[test]
fn unmodified_programs_speak_the_lossy_dialect() {
    if !is_installed("rping") {
        return;
    }
    let loss = "loss=2%,seed=3";
    for (offer, client, bad, lossy) in [
        ("lossy", "lossy", "off", true),
        ("auto", "auto", loss, true),
        ("auto", "standard", loss, false),
        ("auto", "auto", "off", false),
    ] {
        let (_alone, port) = (alone(), port());
        let capture = cm::links().join(format!("dialect-{port}.pcapng"));
        let udp = |command: &mut Command| {
            command.env("REMORA_FABRIC", "udp").env("REMORA_IMPAIR", bad);
            command.env("REMORA_DIALECT", offer).env("REMORA_NIC", "off");
        };
        let served = format!("rping -s -v -V -C 50 -S 5000 -p {port}");
        let mut server = Program::start_with(&served, udp);
        server.listens(port);
        let asks = format!("rping -c -a 127.0.0.1 -V -C 50 -S 5000 -p {port}");
        let mut asker = Program::start_with(&asks, |command| {
            udp(command);
            command.env("REMORA_DIALECT", client).env("REMORA_PCAP", &capture);
        });
        let (code, said) = asker.end();
        assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
        assert_eq!(server.end().0, Some(0));
        let all = opcodes(&fs::read(&capture).unwrap());
        fs::remove_file(&capture).unwrap();
        // Those of connection management are datagrams' (0x64).
        let data = all.iter().filter(|opcode| **opcode != 0x64);
        let (ours, standard): (Vec<u8>, Vec<u8>) = data.partition(|opcode| **opcode >= 0xE0);
        assert!(ours.is_empty() != lossy && standard.is_empty() == lossy, "{client}: {all:x?}");
    }
}

/// Two processes cannot have one address and port: the log says so to the second, and what to do.
#[test]
fn an_address_is_taken() {
    let Some(own) = own_address().filter(|_| is_installed("rping")) else { return };
    let (_alone, port) = (alone(), port());
    let at = |command: &mut Command| {
        command.env("REMORA_ADDR", own.to_string());
    };
    let mut server = Program::start_with(&format!("rping -s -C 1 -p {port}"), at);
    server.listens(port);
    let second = format!("rping -c -a {own} -C 1 -p {port}");
    let (code, said) = Program::start_with(&second, at).end();
    assert_ne!(code, Some(0));
    assert!(said.contains("held by process") && said.contains("leave REMORA_ADDR out"), "{said}");
    // The advice of the message works.
    let (code, said) = Program::start(&second).end();
    assert_eq!(code, Some(0), "{said}\nserver:\n{}", server.said());
    assert_eq!(server.end().0, Some(0));
}

/// The peer's link has a smaller MTU: it refuses, and is asked again with smaller MTUs until one
/// fits.
#[test]
fn a_peer_with_a_smaller_mtu() {
    if !is_installed("rping") {
        return;
    }
    let (_alone, port) = (alone(), port());
    let device = remora::Device::open().expect("a card");
    let (said, asked) = mpsc::channel();
    device.set_cm_sink(Box::new(move |card, event| {
        let CmEvent::ConnectRequest(request) = event else { return };
        said.send(request.path_mtu).ok();
        let reason = match request.path_mtu {
            4.. => RejectReason::INVALID_MTU,
            _ => RejectReason::CONSUMER_DEFINED,
        };
        card.reject(request.conn, reason, &[]).expect("a request can be refused");
    }));
    // SAFETY: no memory is registered.
    let mut card = unsafe { device.card() };
    let service = PortSpace::Tcp.service_id(port);
    card.commands().listen(service, AddressScope::All).expect("a free port");
    drop(card);
    let address = device.info().address;
    let (code, said) = Program::start(&format!("rping -c -a {address} -C 1 -p {port}")).end();
    assert!(code != Some(0) && said.contains("RDMA_CM_EVENT_REJECTED, error 28"), "{said}");
    assert_eq!(asked.try_iter().collect::<Vec<u8>>(), [5, 4, 3]);
}
