//! `CLIENT PAUSE`.

use remora_store::front::server::Options;

use super::{Client, options, serve};

/// Longer than any test takes, in ms.
const LONG: u64 = 1_000_000;

/// How many clients wait, as `INFO` says.
fn blocked(client: &mut Client) -> String {
    client.send("INFO clients\r\n");
    let lines: Vec<String> = (0..6).map(|_| client.line()).collect();
    let found = lines.iter().find_map(|line| line.strip_prefix("blocked_clients:"));
    found.unwrap_or_else(|| panic!("{lines:?}")).trim_end().to_owned()
}

/// Waits until so many clients wait.
fn await_blocked(client: &mut Client, count: u64) {
    while blocked(client) != count.to_string() {
        std::thread::yield_now();
    }
}

#[test]
fn writes_wait_for_the_end_of_a_pause() {
    let server = serve(&Options { threads: 2, ..options() });
    let mut one = Client::redis(&server);
    let mut others = [0, 1, 2].map(|key| (key, Client::redis(&server)));
    let mut last = Client::redis(&server);
    one.ask("SET k 0\r\n", "+OK\r\n");
    last.ask("MULTI\r\nINCR k\r\n", "+OK\r\n+QUEUED\r\n");
    one.ask(format!("CLIENT PAUSE {LONG} WRITE\r\n"), "+OK\r\n");
    for (key, other) in &mut others {
        // What is asked behind a change that waits does not overtake it.
        other.ask(format!("GET k\r\nAPPEND {key} x\r\nSTRLEN {key}\r\n"), "$1\r\n0\r\n");
    }
    last.send("EXEC\r\n");
    await_blocked(&mut one, 4);
    one.ask(
        "GET k\r\nMULTI\r\nGET k\r\nEXEC\r\n",
        "$1\r\n0\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n0\r\n",
    );
    one.ask("SET k\r\n", "-ERR wrong number of arguments for 'set' command\r\n");
    one.ask("CLIENT UNPAUSE\r\n", "+OK\r\n");
    for (_, other) in &mut others {
        other.expect(":1\r\n:1\r\n");
    }
    last.expect("*1\r\n:1\r\n");
    await_blocked(&mut one, 0);
    one.ask("EXISTS 0 1 2\r\n", ":3\r\n");
}

#[test]
fn all_commands_wait_but_the_one_that_ends_the_pause() {
    let server = serve(&Options { threads: 2, ..options() });
    let mut clients = [0; 3].map(|_| Client::redis(&server));
    clients[0].ask(format!("CLIENT PAUSE {LONG} WRITE\r\n"), "+OK\r\n");
    clients[1].send("SET k 1\r\n");
    await_blocked(&mut clients[0], 1);
    // The stricter of two pauses holds, until the later of both ends.
    clients[0].ask("CLIENT PAUSE 1\r\n", "+OK\r\n");
    clients[2].send("GET none\r\n");
    clients[0].ask("CLIENT UNPAUSE\r\n", "+OK\r\n");
    clients[1].expect("+OK\r\n");
    clients[2].expect("$-1\r\n");
    Client::redis(&server).ask("CLIENT PAUSE 1000000\r\nQUIT\r\n", "+OK\r\n+OK\r\n");
    Client::memcached(&server).ask("get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn a_pause_ends_by_itself() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for command in ["GET k\r\n", "MULTI\r\nCLIENT PAUSE 30 WRITE\r\nGET k\r\nEXEC\r\n"] {
        client.send(format!("CLIENT PAUSE 30\r\n{command}"));
        client.expect("+OK\r\n");
        if command.starts_with("GET") {
            client.expect("$-1\r\n");
        } else {
            client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$-1\r\n");
        }
    }
    client.ask("SET k 1\r\nGET k\r\n", "+OK\r\n$1\r\n1\r\n");
}
