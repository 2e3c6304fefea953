//! What a server remembers of its clients: their password, whether they are answered, their end.

use std::io::Write as _;

use remora_store::front::server::Options;

use crate::memcached::{answer, binary};
use crate::{Client, options, serve, shown};

#[test]
fn nobody_is_locked_out_when_the_password_is_taken_away() {
    let server = serve(&Options { password: Some("secret".to_owned()), ..options() });
    let [mut one, mut other] = [Client::redis(&server), Client::redis(&server)];
    other.ask("GET k\r\n", "-NOAUTH Authentication required.\r\n");
    let (mut text, mut packed) = (Client::memcached(&server), Client::memcached(&server));
    packed.send(binary(0x20, &[], b"", b""));
    assert_eq!(answer(&mut packed).1, 0);
    one.ask("AUTH secret\r\nCONFIG SET requirepass \"\"\r\n", "+OK\r\n+OK\r\n");
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'requirepass') - \
                   it is not UTF-8\r\n";
    one.ask("CONFIG SET requirepass \"\\xff\\xfe\"\r\n", refused);
    other.ask("GET k\r\n", "$-1\r\n");
    text.ask("get k\r\n", "END\r\n");
    packed.send(binary(0, &[], b"k", b""));
    assert_eq!(answer(&mut packed).1, 1);
}

#[test]
fn passwords_are_not_among_slow_operations() {
    let server = serve(&Options { password: Some("secret0".to_owned()), ..options() });
    let mut client = Client::redis(&server);
    client.ask("AUTH secret0\r\n", "+OK\r\n");
    client.ask("CONFIG SET slowlog-log-slower-than 0\r\n", "+OK\r\n");
    client.ask("AUTH secret0\r\nAUTH default secret0\r\n", "+OK\r\n+OK\r\n");
    client.ask("CONFIG SET timeout 0 requirepass secret1\r\n", "+OK\r\n");
    client.ask("MULTI\r\nCONFIG SET requirepass secret2\r\n", "+OK\r\n+QUEUED\r\n");
    client.ask("EXEC\r\n", "*1\r\n+OK\r\n");
    let mut other = Client::memcached(&server);
    other.send(binary(0x21, &[], b"PLAIN", b"\0user\0secret2"));
    assert_eq!(answer(&mut other).1, 0);
    other.send(binary(1, &[0; 8], b"key", b"value"));
    assert_eq!(answer(&mut other).1, 0);
    Client::memcached(&server).ask("set k 0 0 9\r\nu secret2\r\n", "STORED\r\n");
    let words = |words: Vec<Vec<u8>>| shown(&words.join(&b' '));
    let listed = server.state().stats.slow(100).into_iter().map(|slow| words(slow.arguments));
    let listed: Vec<_> = listed.collect();
    assert!(listed.iter().all(|line| !line.contains("secret")), "{listed:?}");
    for line in ["CONFIG SET timeout (redacted) requirepass (redacted)", "memcached 0x01 key"] {
        assert!(listed.iter().any(|listed| listed == line), "{line}: {listed:?}");
    }
}

/// A client that is killed changes nothing any more, though it is ended a moment later.
#[test]
fn a_client_that_is_killed_changes_nothing() {
    let server = serve(&options());
    let [mut one, mut other] = [Client::redis(&server), Client::redis(&server)];
    other.ask("CLIENT ID\r\n", ":2\r\n");
    one.ask("CLIENT KILL ID 2\r\n", ":1\r\n");
    // (It may be gone already.)
    let _ = other.0.write_all(b"SET k 1\r\n");
    other.expect_end("");
    one.ask("GET k\r\n", "$-1\r\n");
    one.ask("CLIENT KILL ID 1 SKIPME no\r\n", ":1\r\n");
    one.expect_end("");
}

#[test]
fn what_is_not_to_be_answered_is_not() {
    let server = serve(&options());
    let mut one = Client::redis(&server);
    let skip = "CLIENT REPLY SKIP\r\n";
    one.ask(format!("{skip}PING\r\nPING\r\n"), "+PONG\r\n");
    one.ask(format!("{skip}{skip}ECHO a\r\nECHO b\r\n"), "$1\r\nb\r\n");
    let off = "CLIENT REPLY OFF\r\n";
    one.ask(format!("{off}{skip}PING\r\nPING\r\nCLIENT REPLY ON\r\n"), "+OK\r\n");
}
