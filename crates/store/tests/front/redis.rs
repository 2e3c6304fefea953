//! Redis' protocol.

use std::sync::Arc;

use remora_store::front::keyspace::Forgetful;
use remora_store::front::server::{Options, ServeError, Server};
use remora_store::tablespace::TablespaceOptions;

use crate::{Client, options, serve, serve_spaces};

#[test]
fn values_come_back() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\n\0b\r\n", "+OK\r\n");
    client.ask("GET k\r\n", "$5\r\na\r\n\0b\r\n");
    client.ask("get nothing\r\n", "$-1\r\n");
    client.ask("MGET k nothing\r\n", "*2\r\n$5\r\na\r\n\0b\r\n$-1\r\n");
    client.ask("DEL k nothing\r\n", ":1\r\n");
    client.ask("EXISTS k\r\n", ":0\r\n");
}

#[test]
fn requests_in_pieces_and_in_heaps() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for byte in b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nxy\r\nGET k\r\n" {
        client.send([*byte]);
    }
    client.expect("+OK\r\n$2\r\nxy\r\n");
    let count = 20_000;
    client.send("INCR n\r\n".repeat(count));
    let answers: String = (1..=count).map(|number| format!(":{number}\r\n")).collect();
    client.expect(answers);
}

/// What `redis-server` was found to answer where this server answered otherwise.
#[test]
fn odd_requests_are_answered_as_redis_does() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("WATCH k\r\nMULTI\r\nSET k 1\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n");
    let discarded = "-EXECABORT Transaction discarded because of: wrong number of arguments for \
                     'exec' command\r\n";
    client.ask("EXEC now\r\n", discarded);
    client.ask("EXEC\r\nGET k\r\n", "-ERR EXEC without MULTI\r\n$-1\r\n");
    client.ask("EXEC now\r\n", discarded);
    client.ask("WAIT -1 0\r\nWAIT 0 -1\r\n", ":0\r\n-ERR timeout is negative\r\n");
    client.ask("WAIT 0 x\r\n", "-ERR timeout is not an integer or out of range\r\n");
    client.ask("ASKING\r\n", "-ERR This instance has cluster support disabled\r\n");
    client.ask("COMMAND INFO nope\r\nFUNCTION LIST\r\n", "*1\r\n$-1\r\n*0\r\n");
    client.ask("INCRBYFLOAT f 1e17\r\n", "$18\r\n100000000000000000\r\n");
    client.ask("INCRBYFLOAT f 1.0e+0\r\n", "$18\r\n100000000000000001\r\n");
    client.ask("INCRBYFLOAT f 1e400\r\n", "-ERR increment would produce NaN or Infinity\r\n");
}

/// In Redis' words, except that tracking cannot be turned on.
#[test]
fn clients_that_cache_learn_that_nothing_is_tracked() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CLIENT GETREDIR\r\nCLIENT TRACKING off\r\n", ":-1\r\n+OK\r\n");
    let info = "*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n\
                $8\r\nprefixes\r\n*0\r\n";
    client.ask("CLIENT TRACKINGINFO\r\n", info);
    let refused = "-ERR Client tracking is not supported: do not cache on this side\r\n";
    client.ask("CLIENT TRACKING ON BCAST\r\n", refused);
    client.ask("CLIENT TRACKING maybe\r\n", "-ERR syntax error\r\n");
    client.ask("CLIENT UNBLOCK 3 TIMEOUT\r\n", ":0\r\n");
    let reason = "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n";
    client.ask("CLIENT UNBLOCK 3 x\r\n", reason);
    client.ask("CLIENT UNBLOCK a\r\n", "-ERR value is not an integer or out of range\r\n");
    client.ask("OBJECT FREQ nothing\r\n", "$-1\r\n");
}

/// Where the store keeps when a key was used; looks are no use, reads and TOUCH are.
#[test]
fn how_long_a_key_is_idle_is_told_where_it_is_known() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("SET k 1\r\nOBJECT IDLETIME none\r\n", "+OK\r\n$-1\r\n");
    let mut idle = |command: &str| -> u64 {
        client.send(format!("{command}\r\nOBJECT IDLETIME k\r\n"));
        client.line();
        client.line()[1..].trim_end().parse().expect("seconds")
    };
    while idle("PING") == 0 {
        std::thread::yield_now();
    }
    for look in ["TTL k", "TYPE k", "EXISTS k", "OBJECT FREQ k", "OBJECT REFCOUNT k"] {
        assert!(idle(look) > 0, "{look}");
    }
    // (A second may pass between both.)
    while idle("TOUCH k") > 0 {}
    client.ask("SELECT 1\r\nSET k 1\r\n", "+OK\r\n+OK\r\n");
    let unknown = "-ERR idle times are not kept for this key: they are in the tablespace of \
                   memcached's clients\r\n";
    client.ask("OBJECT IDLETIME k\r\n", unknown);
}

#[test]
fn clients_are_killed_by_type_and_user() {
    let server = serve(&options());
    let (mut client, mut other) = (Client::redis(&server), Client::redis(&server));
    other.ask("PING\r\n", "+PONG\r\n");
    client.ask("CLIENT KILL TYPE foo\r\n", "-ERR Unknown client type 'foo'\r\n");
    client.ask("CLIENT KILL USER nobody\r\n", "-ERR No such user 'nobody'\r\n");
    client.ask("CLIENT KILL TYPE replica USER default\r\n", ":0\r\n");
    client.ask("CLIENT KILL TYPE normal USER default\r\n", ":1\r\n");
    client.ask("PING\r\n", "+PONG\r\n");
    other.expect_end("");
}

#[test]
fn options_of_set() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("SET k 1 XX\r\n", "$-1\r\n");
    client.ask("SET k 1 NX\r\n", "+OK\r\n");
    client.ask("SET k 2 NX GET\r\n", "$1\r\n1\r\n");
    client.ask("SET k 2 IFEQ 3\r\n", "$-1\r\n");
    client.ask("SET k 2 IFEQ 1 GET EX 100\r\n", "$1\r\n1\r\n");
    client.ask("TTL k\r\n", ":100\r\n");
    client.ask("SET k 3 KEEPTTL\r\n", "+OK\r\n");
    client.ask("TTL k\r\n", ":100\r\n");
    client.ask("GETEX k PERSIST\r\n", "$1\r\n3\r\n");
    client.ask("TTL k\r\n", ":-1\r\n");
    client.ask("DELEX k IFEQ 4\r\n", ":0\r\n");
    client.ask("DELEX k IFEQ 3\r\n", ":1\r\n");
    client.ask("SET k v EX 0\r\n", "-ERR invalid expire time in 'set' command\r\n");
    client.ask("SET k v NX XX\r\n", "-ERR syntax error\r\n");
    client.ask("SET k v EX 9 KEEPTTL\r\n", "-ERR syntax error\r\n");
    client.ask("SET k v NX NX KEEPTTL KEEPTTL\r\n", "+OK\r\n");
    client.ask("SET k v XX XX\r\n", "+OK\r\n");
    client.ask("GETEX k PERSIST PERSIST\r\n", "$1\r\nv\r\n");
    let beyond = 1u64 << 47;
    // Redis' own suite has a time as late as this one.
    for end in [beyond - 1, beyond, 9_223_372_036_854_770_000] {
        client.ask(format!("PEXPIREAT k {end}\r\n"), ":1\r\n");
        client.ask("PEXPIRETIME k\r\n", format!(":{}\r\n", beyond - 1));
    }
    client.ask("SET k v EX\r\n", "-ERR syntax error\r\n");
    client.ask("SET k v PXAT 1\r\n", "+OK\r\n");
    client.ask("GET k\r\n", "$-1\r\n");
}

#[test]
fn mistakes_are_answered_as_redis_does() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("GET\r\n", "-ERR wrong number of arguments for 'get' command\r\n");
    client.ask(
        "sadd s 1 2\r\n",
        "-ERR unknown command 'sadd', with args beginning with: 's' '1' '2' \r\n",
    );
    client
        .ask("SET k abc\r\nINCR k\r\n", "+OK\r\n-ERR value is not an integer or out of range\r\n");
    client.ask("RENAME no k\r\n", "-ERR no such key\r\n");
    client.ask("SELECT 16\r\n", "-ERR DB index is out of range\r\n");
    client.ask("EXEC\r\n", "-ERR EXEC without MULTI\r\n");
    // The number is looked at when there is a key.
    client.ask("GETEX no EX 0\r\nGETEX no EX x\r\n", "$-1\r\n$-1\r\n");
    client.ask("GETEX no EX\r\n", "-ERR syntax error\r\n");
    client.ask("GETEX k EX 0\r\n", "-ERR invalid expire time in 'getex' command\r\n");
    client.ask("MEMORY USAGE k SAMPLES\r\n", "-ERR syntax error\r\n");
    let text = "-ERR count should be greater than or equal to -1\r\n";
    client.ask("SLOWLOG GET x\r\nSLOWLOG GET -2\r\n", [text, text].concat());
    let failed = "-ERR CONFIG SET failed (possibly related to argument 'timeout') - ";
    client.ask("CONFIG SET timeout 0 TIMEOUT 0\r\n", format!("{failed}duplicate parameter\r\n"));
    client.ask("CLIENT FOO\r\n", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n");
    client.ask("SCAN x\r\n", "-ERR invalid cursor\r\n");
    client
        .ask("SCAN -1 MATCH none\r\nSCAN \"\" MATCH none\r\n", "*2\r\n$1\r\n0\r\n*0\r\n".repeat(2));
    client.ask(
        "EXPIRE k 9223372036854775807\r\n",
        "-ERR invalid expire time in 'expire' command\r\n",
    );
    client.ask(
        "*1\r\n$3\r\nfoo\r\n*x\r\n",
        concat!(
            "-ERR unknown command 'foo', with args beginning with: \r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
    );
    client.expect_end("");
}

#[test]
fn what_clients_ask_about_the_server_and_themselves() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG GET appendfsync\r\n", "*2\r\n$11\r\nappendfsync\r\n$2\r\nno\r\n");
    client.ask(
        "CONFIG GET maxmemory-policy\r\n",
        "*2\r\n$16\r\nmaxmemory-policy\r\n$11\r\nallkeys-lru\r\n",
    );
    client.ask("CONFIG SET save \"\"\r\n", "+OK\r\n");
    client.send("CONFIG SET save \"60 1\"\r\n");
    assert!(client.line().starts_with("-ERR CONFIG SET failed"));
    for word in ["pubsub", "replica", "slave", "master"] {
        client.ask(format!("CLIENT LIST TYPE {word}\r\n"), "$0\r\n\r\n");
    }
    client.ask("CLIENT LIST TYPE x\r\n", "-ERR Unknown client type 'x'\r\n");
    for option in ["AUTH", "AUTH default", "setname"] {
        let word = option.split(' ').next().unwrap();
        let error = format!("-ERR Syntax error in HELLO option '{word}'\r\n");
        client.ask(format!("HELLO 3 {option}\r\n"), error);
    }
}

#[test]
fn both_versions_of_the_protocol() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("GET no\r\nHELLO 4\r\n", "$-1\r\n-NOPROTO unsupported protocol version\r\n");
    client.send("HELLO 3 SETNAME me\r\n");
    client.expect("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n");
    while client.line() != "*0\r\n" {}
    client.ask("GET no\r\n", "_\r\n");
    client.ask("CLIENT GETNAME\r\n", "$2\r\nme\r\n");
    client.ask("CONFIG GET databases\r\n", "%1\r\n$9\r\ndatabases\r\n$2\r\n16\r\n");
    client.ask("RESET\r\nGET no\r\n", "+RESET\r\n$-1\r\n");
}

#[test]
fn transactions_see_nobody_and_notice_others() {
    let server = serve(&Options { threads: 2, ..options() });
    let [mut one, mut other] = [Client::redis(&server), Client::redis(&server)];
    one.ask("MULTI\r\nSET k 1\r\nINCR k\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    other.ask("GET k\r\n", "$-1\r\n");
    one.ask("EXEC\r\n", "*2\r\n+OK\r\n:2\r\n");
    one.ask("WATCH k\r\nMULTI\r\nINCR k\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n");
    other.ask("SET k 10\r\n", "+OK\r\n");
    one.ask("EXEC\r\nGET k\r\n", "*-1\r\n$2\r\n10\r\n");
    // To read a watched key does not disturb, though its tablespace notes it for memcached.
    one.ask("SET k 10\r\nWATCH k\r\nGET k\r\n", "+OK\r\n+OK\r\n$2\r\n10\r\n");
    other.ask("GET k\r\n", "$2\r\n10\r\n");
    one.ask("MULTI\r\nINCR k\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n:11\r\n");
    one.ask(
        "MULTI\r\nnothing\r\n",
        "+OK\r\n-ERR unknown command 'nothing', with args beginning with: \r\n",
    );
    one.ask("EXEC\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n");
    one.ask("WATCH k\r\nUNWATCH\r\nMULTI\r\n", "+OK\r\n+OK\r\n+OK\r\n");
    other.ask("SET k 12\r\n", "+OK\r\n");
    one.ask("GET k\r\nEXEC\r\n", "+QUEUED\r\n*1\r\n$2\r\n12\r\n");
}

/// A pair that cannot be stored leaves those before it unchanged.
#[test]
fn pairs_are_stored_together_or_not_at_all() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET proto-max-bulk-len 32mb\r\nSET a 0\r\n", "+OK\r\n+OK\r\n");
    let refused = "-ERR a key is 1 to 65536 bytes long\r\n";
    client.ask("MSET a 1 \"\" 2\r\nGET a\r\n", format!("{refused}$1\r\n0\r\n"));
    client.ask("MSETNX b 1 \"\" 2\r\nGET b\r\n", format!("{refused}$-1\r\n"));
    let long = vec![b'v'; (16 << 20) + 1];
    client.send("*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n");
    client.send(format!("${}\r\n", long.len()));
    client.send(long);
    let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    client.ask("\r\nGET a\r\n", format!("{refused}$1\r\n0\r\n"));
}

/// Nor does memory that suffices for the first pairs alone.
#[test]
fn pairs_for_which_memory_does_not_suffice_are_not_stored() {
    let spaces = TablespaceOptions::default();
    let server = serve_spaces(&options(), Arc::new(Forgetful), 8 << 20, spaces);
    let mut client = Client::redis(&server);
    client.ask("SET a 0\r\n", "+OK\r\n");
    let long = vec![b'v'; 3 << 20];
    for name in ["MSET", "MSETNX"] {
        let first = if name == "MSET" { "a" } else { "z" };
        client.send(format!("*9\r\n${}\r\n{name}\r\n", name.len()));
        client.send(format!("$1\r\n{first}\r\n$1\r\n1\r\n"));
        for key in ["b", "c", "d"] {
            client.send(format!("$1\r\n{key}\r\n${}\r\n", long.len()));
            client.send(&long);
            client.send("\r\n");
        }
        let refused = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        client.ask("GET a\r\nDBSIZE\r\n", format!("{refused}$1\r\n0\r\n:1\r\n"));
    }
}

/// Each MSETNX sets both keys or none, whichever thread serves it.
#[test]
fn changes_of_several_keys_are_one() {
    let server = serve(&Options { threads: 2, ..options() });
    let rounds = 200;
    let mut clients = [Client::redis(&server), Client::redis(&server)];
    let requests = |name: &str| -> String {
        (0..rounds).map(|round| format!("MSETNX a{round} {name} b{round} {name}\r\n")).collect()
    };
    clients[0].send(requests("x"));
    clients[1].send(requests("y"));
    let mut won = 0;
    for client in &mut clients {
        won += (0..rounds).filter(|_| client.line() == ":1\r\n").count();
    }
    assert_eq!(won, rounds);
    for round in 0..rounds {
        clients[0].send(format!("MGET a{round} b{round}\r\n"));
        let lines: Vec<_> = (0..5).map(|_| clients[0].line()).collect();
        assert_eq!(lines[2], lines[4], "round {round}");
    }
}

#[test]
fn scans_show_every_key_once() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for key in 0..1000 {
        client.send(format!("SET key:{key} v\r\n"));
    }
    client.expect("+OK\r\n".repeat(1000));
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        client.send(format!("SCAN {cursor} MATCH key:* COUNT 100\r\n"));
        assert_eq!(client.line(), "*2\r\n");
        client.line();
        cursor = client.line().trim().to_owned();
        let count: usize = client.line()[1..].trim().parse().unwrap();
        for _ in 0..count {
            client.line();
            seen.push(client.line());
        }
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 1000);
    client.ask("DBSIZE\r\nFLUSHALL\r\nDBSIZE\r\n", ":1000\r\n+OK\r\n:0\r\n");
}

#[test]
fn a_digest_is_of_what_the_databases_hold() {
    let (one, other) = (serve(&options()), serve(&options()));
    let mut clients = [Client::redis(&one), Client::redis(&other)];
    let digests = |clients: &mut [Client; 2]| {
        clients.each_mut().map(|client| {
            client.send("DEBUG DIGEST\r\n");
            client.line()
        })
    };
    let nothing = format!("+{:040}\r\n", 0);
    assert_eq!(digests(&mut clients), [nothing.clone(), nothing.clone()]);
    clients[0].ask("MSET a 1 b 2\r\nSET c 3\r\nDEL c\r\n", "+OK\r\n+OK\r\n:1\r\n");
    clients[1].ask("SET b 2\r\nSET a 1\r\n", "+OK\r\n+OK\r\n");
    let [same, also] = digests(&mut clients);
    assert_eq!(same, also);
    assert_ne!(same, nothing);
    for change in ["SET a 2", "PEXPIREAT a 99999999999999", "MOVE a 1", "RENAME a c"] {
        clients[1].send(format!("{change}\r\n"));
        clients[1].line();
        assert_ne!(digests(&mut clients)[1], same, "{change}");
        clients[1].send("FLUSHALL\r\nMSET a 1 b 2\r\n");
        clients[1].expect("+OK\r\n+OK\r\n");
        assert_eq!(digests(&mut clients)[1], same, "{change}");
    }
    let wrong = "-ERR unknown subcommand 'reload'. Try DEBUG HELP.\r\n";
    clients[0].ask("DEBUG reload\r\n", wrong);
}

#[test]
fn a_password_is_asked_for() {
    let server = serve(&Options { password: Some("secret".to_owned()), ..options() });
    let mut client = Client::redis(&server);
    client.ask("GET k\r\n", "-NOAUTH Authentication required.\r\n");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    client.ask("AUTH wrong\r\n", wrong);
    client.ask("AUTH secretsecret\r\n", wrong);
    client.ask("AUTH nobody secret\r\n", wrong);
    client.ask("AUTH secret\r\nGET k\r\n", "+OK\r\n$-1\r\n");
    let mut client = Client::redis(&server);
    client.ask("*1000\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n");
    client.expect_end("");
    assert_eq!(server.state().stats.sums().auth_refused, 3);
}

#[test]
fn other_machines_need_a_password() {
    let public = "0.0.0.0:0".parse().unwrap();
    let open = Options { redis: vec![public], ..Options::default() };
    let keyspace = || {
        let server = serve(&options());
        server.state().keyspace.clone()
    };
    let keeper = Arc::new(remora_store::front::keyspace::Forgetful);
    let refused = Server::start(&open, keyspace(), keeper.clone());
    assert!(matches!(refused, Err(ServeError::Open(_))), "{refused:?}");
    let none = Options { threads: 0, ..options() };
    let refused = Server::start(&none, keyspace(), keeper);
    assert!(matches!(refused, Err(ServeError::Threads(0))), "{refused:?}");
}

#[test]
fn an_address_that_is_taken_is_named_with_what_to_do() {
    let taken = serve(&options());
    let (redis, memcached) = (taken.redis()[0], taken.memcached()[0]);
    let said = |options: Options| {
        let keeper = Arc::new(remora_store::front::keyspace::Forgetful);
        let refused = Server::start(&options, taken.state().keyspace.clone(), keeper);
        refused.unwrap_err().to_string()
    };
    let why = said(Options { redis: vec![redis], ..Options::default() });
    assert!(why.contains(&format!("cannot listen on {redis} for Redis’s clients: ")), "{why}");
    assert!(why.contains("stop it") && why.contains("--redis ADDR:PORT"), "{why}");
    let why = said(Options { memcached: vec![memcached], ..Options::default() });
    assert!(why.contains(&format!("cannot listen on {memcached} for memcached’s ")), "{why}");
    assert!(why.contains("--memcached ADDR:PORT"), "{why}");
}

#[test]
fn clients_are_listed_and_killed() {
    let server = serve(&options());
    let [mut one, mut other] = [Client::redis(&server), Client::redis(&server)];
    other.ask("CLIENT SETNAME victim\r\nCLIENT ID\r\n", "+OK\r\n:2\r\n");
    one.send("CLIENT LIST\r\n");
    let lines: Vec<_> = (0..3).map(|_| one.line()).collect();
    assert!(lines[2].contains("name=victim") && lines[2].contains("db=0"), "{lines:?}");
    one.line();
    one.ask("CLIENT KILL ID 2\r\n", ":1\r\n");
    other.expect_end("");
    one.ask("CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\n", "+OK\r\n");
    one.ask("CLIENT REPLY SKIP\r\nPING\r\nPING\r\n", "+PONG\r\n");
}

#[test]
fn operations_are_counted_and_slow_ones_listed() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET slowlog-log-slower-than 0\r\n", "+OK\r\n");
    client.ask("SET k v\r\nGET k\r\nGET no\r\n", "+OK\r\n$1\r\nv\r\n$-1\r\n");
    client.send("SLOWLOG GET 1\r\n");
    assert_eq!(client.line(), "*1\r\n");
    let lines: Vec<_> = (0..12).map(|_| client.line()).collect();
    assert!(lines.contains(&"GET\r\n".to_owned()), "{lines:?}");
    client.line();
    let sums = server.state().stats.sums();
    assert_eq!((sums.hits, sums.misses, sums.connections), (1, 1, 1));
    client.send("INFO latencystats\r\n");
    client.line();
    client.line();
    let mut latencies = String::new();
    for _ in 0..3 {
        latencies += &client.line();
    }
    assert!(latencies.contains("latency_percentiles_usec_redis_get:p50="), "{latencies}");
}

/// A request, as an array of bulk strings.
pub(crate) fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

const ORDERS: &[u8] = b"id u32 # a comment\nprice decimal(9, 2)\ncomment text";

#[test]
fn rows_are_selected_next_to_the_data() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for (id, cents, comment) in [(1u32, 2350u32, "one special"), (2, 2400, "two"), (3, 99, "three")]
    {
        let row = [&id.to_le_bytes()[..], &cents.to_le_bytes(), comment.as_bytes()].concat();
        client.ask(request(&[b"SET", format!("k{id}").as_bytes(), &row]), "+OK\r\n");
    }
    client.ask("SET short x\r\n", "+OK\r\n");
    let mut scan = |more: &[&[u8]], answer: &str| {
        let begin: &[&[u8]] = &[b"REMORA.SCAN", b"db0", b"0", b"SCHEMA", ORDERS];
        client.ask(request(&[begin, more].concat()), answer);
    };
    let one = "*4\r\n$2\r\nk1\r\n$1\r\n1\r\n$5\r\n23.50\r\n$11\r\none special\r\n";
    let both: &[u8] = b"price < 24 and comment like '%special%'";
    scan(&[b"WHERE", both], &format!("*2\r\n$1\r\n0\r\n*1\r\n{one}"));
    let three = "*2\r\n$1\r\n0\r\n*1\r\n*3\r\n$2\r\nk3\r\n$5\r\nthree\r\n$4\r\n0.99\r\n";
    let select: &[u8] = b"comment, price";
    scan(&[b"select", select, b"where", b"price < $1", b"parameters", b"1", b"1.5"], three);
    scan(&[b"WHERE", b"false", b"COUNT", b"1000000000"], "*2\r\n$1\r\n0\r\n*0\r\n");
    for (more, error) in [
        (
            &[b"WHERE", &b"prise < 2"[..]] as &[&[u8]],
            "where:1:1: there is no column `prise`; the schema has id, price, comment",
        ),
        (&[b"WHERE", b"price <"], "where:1:8: "),
        (&[b"SELECT", b"count"], "a step of a walk has no aggregates"),
        (&[b"SELECT", b"id, none"], "select:1:5: there is no column `none`"),
        (&[b"SCHEMA", b"id u32\nname what"], "schema:2:6: "),
        (&[b"WHERE", b"comment matches 'a.{30}$'"], ""),
        (&[b"WHERE", b"\xff"], "a name or a text is not UTF-8"),
        (&[b"PARAMETERS", b"9", b"x"], "syntax error"),
        (&[b"LIMIT", b"9"], "syntax error"),
        (&[b"COUNT", b"0"], "syntax error"),
    ] {
        let begin: &[&[u8]] = &[b"REMORA.SCAN", b"db0", b"0", b"SCHEMA", ORDERS];
        let mut client = Client::redis(&server);
        client.send(request(&[begin, more].concat()));
        let line = client.line();
        assert!(line.starts_with("-ERR ") && line.contains(error), "{line} not {error}");
        client.ask("PING\r\n", "+PONG\r\n");
    }
    let mut client = Client::redis(&server);
    client.ask("REMORA.SCAN none 0 SCHEMA x\r\n", "-ERR there is no tablespace `none`\r\n");
    client.ask("REMORA.SCAN db0 x SCHEMA x\r\n", "-ERR invalid cursor\r\n");
    client.ask(
        "REMORA.SCAN db0 0 WHERE true\r\n",
        "-ERR SCHEMA is missing: it says what a row's bytes mean\r\n",
    );
}

#[test]
fn a_key_is_read_if_a_predicate_holds() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    let row = [&7u32.to_le_bytes()[..], &2350u32.to_le_bytes(), b"one special"].concat();
    client.ask(request(&[b"SET", b"k", &row]), "+OK\r\n");
    client.ask("SET short x\r\n", "+OK\r\n");
    let mut get = |key: &[u8], more: &[&[u8]], answer: &[u8]| {
        let begin: &[&[u8]] = &[b"REMORA.GET", key, b"SCHEMA", ORDERS];
        client.ask(request(&[begin, more].concat()), answer);
    };
    let whole = [b"$19\r\n", &row[..], b"\r\n"].concat();
    get(b"k", &[], &whole);
    get(b"k", &[b"WHERE", b"price < 24 and id = $1", b"PARAMETERS", b"1", b"7"], &whole);
    get(b"k", &[b"WHERE", b"price > 24"], b"$-1\r\n");
    get(b"k", &[b"SELECT", b"comment, price"], b"*2\r\n$11\r\none special\r\n$5\r\n23.50\r\n");
    get(b"none", &[b"WHERE", b"true"], b"$-1\r\n");
    get(b"short", &[b"WHERE", b"true"], b"$-1\r\n");
    get(b"k", &[b"COUNT", b"1"], b"-ERR syntax error\r\n");
    client.ask(request(&[b"REMORA.GET", b"k", b"WHERE", b"true"]), "-ERR SCHEMA is missing");
}

/// Each row comes once, whatever the steps are.
#[test]
fn a_selection_is_walked_in_steps() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    for key in 0..500u32 {
        let set = request(&[b"SET", format!("k{key}").as_bytes(), &key.to_le_bytes()]);
        client.ask(set, "+OK\r\n");
    }
    let (mut cursor, mut rows, mut steps) = ("0".to_owned(), Vec::new(), 0);
    while steps == 0 || cursor != "0" {
        client.send(request(&[
            b"REMORA.SCAN",
            b"db0",
            cursor.as_bytes(),
            b"SCHEMA",
            b"n u32",
            b"WHERE",
            b"n < 100",
            b"COUNT",
            b"20",
        ]));
        assert_eq!(client.line(), "*2\r\n");
        client.line();
        cursor = client.line().trim().to_owned();
        let count: usize = client.line()[1..].trim().parse().unwrap();
        for _ in 0..count {
            let row: Vec<String> = (0..5).map(|_| client.line()).collect();
            rows.push(row[4].trim().parse::<u32>().unwrap());
        }
        steps += 1;
    }
    rows.sort_unstable();
    assert_eq!(rows, (0..100).collect::<Vec<_>>());
    assert!(steps >= 10, "{steps}");
}
