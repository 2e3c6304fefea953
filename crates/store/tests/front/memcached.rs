//! memcached's protocols.

use remora_store::front::server::Options;

use crate::{Client, options, serve};

#[test]
fn text() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    client.ask("set k 5 0 3\r\nabc\r\n", "STORED\r\n");
    client.ask("get k no\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n");
    client.ask("add k 0 0 1\r\nx\r\nreplace no 0 0 1\r\nx\r\n", "NOT_STORED\r\nNOT_STORED\r\n");
    client.ask("append k 0 0 1\r\nd\r\nget k\r\n", "STORED\r\nVALUE k 5 4\r\nabcd\r\nEND\r\n");
    client.ask("set n 0 0 2 noreply\r\n10\r\nincr n 5\r\ndecr n 6\r\n", "15\r\n9\r\n");
    client.ask("get n\r\n", "VALUE n 0 2\r\n9 \r\nEND\r\n");
    client.ask("touch k 100\r\ntouch no 0\r\n", "TOUCHED\r\nNOT_FOUND\r\n");
    client.ask("delete k\r\ndelete k\r\n", "DELETED\r\nNOT_FOUND\r\n");
    client.ask("bogus\r\nget\r\nset k\r\n", "ERROR\r\nERROR\r\nERROR\r\n");
    client.ask("set k a 0 1\r\nflush_all\r\n", "CLIENT_ERROR bad command line format\r\nOK\r\n");
    client.ask("set k 0 -1 1\r\nx\r\nget k\r\n", "STORED\r\nEND\r\n");
    client.ask(format!("get {}\r\n", "k".repeat(251)), "CLIENT_ERROR bad command line format\r\n");
    client.ask("GET a\r\nDELETE a\r\nPUT\r\n", "ERROR\r\nERROR\r\nERROR\r\n");
    for line in ["GET / HTTP/1.1", "PUT /a HTTP/1.1", "POST a", "Host: a"] {
        let mut browser = Client::memcached(&server);
        browser.ask(format!("{line}\r\n"), "");
        browser.expect_end("");
    }
}

/// After `noreply`, the next answer is that of the next request, whatever became of this one.
#[test]
fn nothing_is_answered_to_noreply() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    client.ask("set n 0 0 1\r\nx\r\n", "STORED\r\n");
    let long = "k".repeat(251);
    for request in [
        "incr n 1 noreply".to_owned(),
        "incr n x noreply".to_owned(),
        "incr none 1 noreply".to_owned(),
        "touch n abc noreply".to_owned(),
        "flush_all abc noreply".to_owned(),
        "delete n 5 noreply".to_owned(),
        "cas n 0 0 1 x noreply".to_owned(),
        "set n 0 0 -1 noreply".to_owned(),
        "touch n noreply".to_owned(),
        "incr n noreply".to_owned(),
        format!("incr {long} 1 noreply"),
        format!("touch {long} 1 noreply"),
        format!("delete {long} noreply"),
        format!("set {long} 0 0 1 noreply\r\nx"),
        format!("set k 0 0 20000000 noreply\r\n{}", "x".repeat(20_000_000)),
    ] {
        client.ask(format!("{request}\r\nget n\r\n"), "VALUE n 0 1\r\nx\r\nEND\r\n");
    }
    // What follows the bytes that were announced is a line, whenever it comes.
    let too_long = "set n 0 0 2 noreply\r\nlong\r\nget n\r\n";
    client.ask(too_long, "ERROR\r\nVALUE n 0 1\r\nx\r\nEND\r\n");
    client.send("set n 0 0 1\r\nxyz");
    client.expect("CLIENT_ERROR bad data chunk\r\n");
    client.ask("delete n\r\n", "DELETED\r\n");
    client.ask("set n 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("set n 0 0 1\r\nxyzdelete n\r\n", "CLIENT_ERROR bad data chunk\r\nDELETED\r\n");
    // A line whose words are too few, or too many, does not say so.
    client.ask("set noreply\r\nincr noreply\r\ntouch noreply\r\n", "ERROR\r\n".repeat(3));
}

#[test]
fn comparisons() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    client.ask("cas k 0 0 1 1\r\nx\r\nset k 0 0 1\r\na\r\n", "NOT_FOUND\r\nSTORED\r\n");
    client.send("gets k\r\n");
    let line = client.line();
    let version = line.trim().rsplit(' ').next().unwrap().to_owned();
    client.expect("a\r\nEND\r\n");
    client.ask(format!("cas k 0 0 1 {version}\r\nb\r\n"), "STORED\r\n");
    client.ask(format!("cas k 0 0 1 {version}\r\nc\r\n"), "EXISTS\r\n");
    client.ask("get k\r\n", "VALUE k 0 1\r\nb\r\nEND\r\n");
    // To move its end leaves a key its version.
    client.send("gats 100 k\r\n");
    let line = client.line();
    let version = line.trim().rsplit(' ').next().unwrap().to_owned();
    client.expect("b\r\nEND\r\n");
    client.ask(format!("cas k 0 0 1 {version}\r\nc\r\n"), "STORED\r\n");
}

/// What is too long to be stored replaces nothing, and where it was to replace another version than
/// the one there, that stays.
#[test]
fn a_comparison_with_what_is_too_long_leaves_the_key() {
    let server = serve(&options());
    server.state().settings.bulk_bytes.store(4, std::sync::atomic::Ordering::SeqCst);
    let mut client = Client::memcached(&server);
    client.ask("set k 0 0 1\r\na\r\n", "STORED\r\n");
    let large = "SERVER_ERROR object too large for cache\r\n";
    client.ask("cas k 0 0 5 1\r\nlarge\r\n", large);
    client.ask("ms k 5 C1\r\nlarge\r\n", large);
    client.ask("get k\r\n", "VALUE k 0 1\r\na\r\nEND\r\n");
    let mut other = Client::memcached(&server);
    let mut set = binary(1, &[0; 8], b"k", b"large");
    set[23] = 1;
    other.send(set);
    assert_eq!(answer(&mut other).1, 3);
    client.ask("get k\r\n", "VALUE k 0 1\r\na\r\nEND\r\n");
    client.ask("set k 0 0 5\r\nlarge\r\nget k\r\n", format!("{large}END\r\n"));
}

#[test]
fn meta_commands() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    client.ask("mn\r\nmg k v\r\nms k 2 F7 T100 Oq\r\nhi\r\n", "MN\r\nEN\r\nHD Oq\r\n");
    client.ask("mg k s v t f k Oab\r\n", "VA 2 s2 t100 f7 kk Oab\r\nhi\r\n");
    client.ask("mg k q\r\nmg no q\r\nmn\r\n", "HD\r\nMN\r\n");
    client.ask("ms Zm9v 1 b k\r\nx\r\nmg foo k v\r\n", "HD kZm9v b\r\nVA 1 kfoo\r\nx\r\n");
    client.ask("ms k 1 s\r\nx\r\nmd k x\r\nmg k v\r\n", "HD s1\r\nHD\r\nVA 0\r\n\r\n");
    client.ask("ma n\r\nma n N0 J13 v\r\nma n MD D3 v\r\n", "NF\r\nVA 2\r\n13\r\nVA 2\r\n10\r\n");
    client.ask("md k q\r\nmd k\r\nmd k C5\r\n", "NF\r\nNF\r\n");
    client.ask(
        "mg k E5\r\nmg k v v\r\n",
        concat!("CLIENT_ERROR invalid flag\r\n", "CLIENT_ERROR duplicate flag\r\n",),
    );
}

/// Of all clients that find a key stale or missing, one is told to fill it.
#[test]
fn leases() {
    let server = serve(&options());
    let [mut one, mut other] = [Client::memcached(&server), Client::memcached(&server)];
    one.ask("mg k N30 v\r\n", "VA 0 W\r\n\r\n");
    other.ask("mg k N30 v\r\n", "VA 0 Z\r\n\r\n");
    one.ask("ms k 1 T30\r\na\r\nmg k v\r\n", "HD\r\nVA 1\r\na\r\n");
    one.ask("md k I T30\r\n", "HD\r\n");
    other.ask("mg k v\r\n", "VA 1 X W\r\na\r\n");
    one.ask("mg k v\r\n", "VA 1 Z X\r\na\r\n");
    one.ask("ms k 1 T10\r\nb\r\nmg k v R30\r\n", "HD\r\nVA 1 W\r\nb\r\n");
    other.ask("mg k v R30\r\n", "VA 1 Z\r\nb\r\n");
}

/// Two clients that append to a key which neither finds lose nothing of each other's.
#[test]
fn what_is_made_by_appending_is_made_once() {
    let server = serve(&Options { threads: 2, ..options() });
    let rounds = 1000;
    let mut clients = [Client::memcached(&server), Client::memcached(&server)];
    let requests: String =
        (0..rounds).map(|round| format!("ms k{round} 1 MA N0\r\nx\r\n")).collect();
    clients.iter_mut().for_each(|client| client.send(&requests));
    clients.iter_mut().for_each(|client| client.expect("HD\r\n".repeat(rounds)));
    for round in 0..rounds {
        clients[0].ask(format!("mg k{round} v\r\n"), "VA 2\r\nxx\r\n");
    }
}

pub(crate) fn binary(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    [&bytes, extras, key, value].concat()
}

/// What an answer says: its op-code, status and body.
pub(crate) fn answer(client: &mut Client) -> (u8, u16, Vec<u8>) {
    use std::io::Read;
    let mut header = [0; 24];
    client.0.read_exact(&mut header).unwrap();
    assert_eq!((header[0], &header[12..16]), (0x81, &[1, 2, 3, 4][..]));
    let len = u32::from_be_bytes(header[8..12].try_into().unwrap());
    let mut body = vec![0; len as usize];
    client.0.read_exact(&mut body).unwrap();
    (header[1], u16::from_be_bytes([header[6], header[7]]), body)
}

#[test]
fn binary_requests() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    let set = binary(1, &[0, 0, 0, 9, 0, 0, 0, 0], b"k", b"value");
    set.iter().for_each(|byte| client.send([*byte]));
    assert_eq!(answer(&mut client), (1, 0, vec![]));
    client.send(binary(0, &[], b"k", b""));
    assert_eq!(answer(&mut client), (0, 0, b"\0\0\0\x09value".to_vec()));
    // To move an item's end does not change its version.
    client.send(binary(0x1c, &[0, 0, 0, 100], b"k", b""));
    let mut header = [0; 24];
    std::io::Read::read_exact(&mut client.0, &mut header).unwrap();
    let version: [u8; 8] = header[16..].try_into().unwrap();
    let mut set = binary(1, &[0, 0, 0, 9, 0, 0, 0, 0], b"k", b"other");
    set[16..24].copy_from_slice(&version);
    client.send(set);
    assert_eq!(answer(&mut client), (1, 0, vec![]), "nobody else has changed it");
    // Quiet gets that miss say nothing, unknown op-codes and wrong lengths are told.
    client.send([binary(9, &[], b"no", b""), binary(0x77, &[], b"", b"")].concat());
    assert_eq!(answer(&mut client).1, 0x81);
    client.send(binary(0, &[], b"", b""));
    assert_eq!(answer(&mut client).1, 4);
    client.send(b"not binary at all");
    client.expect_end("");
}

/// The end of an item is a number without a sign: one after January 2038 has not passed.
#[test]
fn ends_that_are_far() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    for end in [1u32 << 31, 2_208_988_800, u32::MAX] {
        let end = end.to_be_bytes();
        client.send(binary(1, &[[0; 4], end].concat(), b"k", b"value"));
        assert_eq!(answer(&mut client), (1, 0, vec![]));
        client.send(binary(0x1c, &end, b"k", b""));
        assert_eq!(answer(&mut client).1, 0);
        client.send(binary(0, &[], b"k", b""));
        assert_eq!(answer(&mut client), (0, 0, b"\0\0\0\0value".to_vec()));
    }
    let counting = [[0, 0, 0, 0, 0, 0, 0, 1], [0; 8]].concat();
    client.send(binary(5, &[counting, (1u32 << 31).to_be_bytes().to_vec()].concat(), b"n", b""));
    assert_eq!(answer(&mut client).1, 0);
    client.send(binary(0, &[], b"n", b""));
    assert_eq!(answer(&mut client).1, 0);
}

#[test]
fn a_password_is_asked_for() {
    let server = serve(&Options { password: Some("secret".to_owned()), ..options() });
    let mut client = Client::memcached(&server);
    client.ask("get k\r\n", "CLIENT_ERROR unauthenticated\r\n");
    client.expect_end("");
    let mut client = Client::memcached(&server);
    client.ask("set k 0 0 10\r\nuser wrong\r\n", "CLIENT_ERROR authentication failure\r\n");
    client.expect_end("");
    let mut client = Client::memcached(&server);
    client.ask("set k 0 0 11\r\nuser secret\r\nget k\r\n", "STORED\r\nEND\r\n");
    let mut client = Client::memcached(&server);
    client.send(binary(0, &[], b"k", b""));
    assert_eq!(answer(&mut client).1, 0x20);
    client.expect_end("");
    let mut client = Client::memcached(&server);
    client.send(binary(0x21, &[], b"PLAIN", b"\0user\0secret"));
    assert_eq!(answer(&mut client).1, 0);
    client.send(binary(0, &[], b"k", b""));
    assert_eq!(answer(&mut client).1, 1);
}

#[test]
fn redis_and_memcached_share_a_database_if_they_are_told_to() {
    let server = serve(&Options { is_shared: true, ..options() });
    let [mut redis, mut memcached] = [Client::redis(&server), Client::memcached(&server)];
    memcached.ask("set k 0 0 2\r\n41\r\n", "STORED\r\n");
    redis.ask("INCR k\r\n", ":42\r\n");
    redis.ask("GET k\r\nGET no\r\n", "$2\r\n42\r\n$-1\r\n");
    memcached.ask("get k\r\n", "VALUE k 0 2\r\n42\r\nEND\r\n");
    // memcached's statistics are of its own clients' gets, and INFO's of all.
    memcached.ask("get no k\r\n", "VALUE k 0 2\r\n42\r\nEND\r\n");
    let sums = server.state().stats.sums();
    assert_eq!((sums.cmd_get, sums.get_hits, sums.get_misses), (3, 2, 1));
    assert_eq!((sums.hits, sums.misses), (3, 2));
    memcached.ask("flush_all\r\n", "OK\r\n");
    redis.ask("DBSIZE\r\n", ":0\r\n");
}

/// The lines of an answer, up to one that is `end`.
fn lines(client: &mut Client, request: &str, end: &str) -> Vec<String> {
    client.send(format!("{request}\r\n"));
    let mut all = Vec::new();
    loop {
        let line = client.line();
        if line.trim_end() == end {
            return all;
        }
        all.push(line);
    }
}

/// More keys than a step of a walk takes, and one of any bytes.
#[test]
fn all_keys_can_be_dumped() {
    const KEYS: usize = 3000;
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    for key in 0..KEYS {
        client.send(format!("set key{key} 0 0 1 noreply\r\nx\r\n"));
    }
    client.ask("ms AAEgJQ== 300 b T1000\r\n", "");
    client.ask(format!("{}\r\n", "y".repeat(300)), "HD\r\n");
    let mut all = lines(&mut client, "lru_crawler metadump all", "END");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), KEYS + 1);
    let odd = all.iter().find(|line| line.starts_with("key=%00%01%20%25 exp=")).expect("any bytes");
    let word = |line: &str, name: &str| -> i64 {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.parse().ok()).expect("a number")
    };
    let (now, key7) = (word(odd, "la="), all.iter().find(|line| line.starts_with("key=key7 ")));
    assert!((now + 900..=now + 1001).contains(&word(odd, "exp=")), "{odd}");
    assert!(key7.is_some_and(|line| word(line, "exp=") == -1), "{key7:?}");
    // By sizes of blocks: those of the short values, of the long one, and of none.
    let [short, long] = [key7.unwrap(), odd].map(|line| word(line, "cls="));
    let of = |client: &mut Client, classes: String| {
        lines(client, &format!("lru_crawler metadump {classes}"), "END").len()
    };
    assert_eq!(of(&mut client, format!("{short},{long}")), KEYS + 1);
    assert_eq!(of(&mut client, long.to_string()), 1);
    assert_eq!(of(&mut client, (long + 1).to_string()), 0);
    let mut gets = lines(&mut client, "lru_crawler mgdump hash", "EN");
    gets.sort();
    gets.dedup();
    assert_eq!(gets.len(), KEYS + 1);
    assert!(gets.contains(&"mg AAEgJQ== b\r\n".to_owned()), "a key of any bytes");
    assert!(gets.contains(&"mg key2999\r\n".to_owned()));
    let size = word(key7.unwrap(), "size=");
    let items = lines(&mut client, &format!("stats cachedump {short} 5"), "END");
    assert_eq!(items.len(), 5);
    assert!(items.iter().all(|line| line.starts_with("ITEM key") && line.ends_with(" s]\r\n")));
    assert!(items[0].contains("b; 0 s]") && size > 0, "{items:?}");
    assert_eq!(lines(&mut client, &format!("stats cachedump {short} 0"), "END").len(), KEYS);
    client.ask("get key7\r\n", "VALUE key7 0 1\r\nx\r\nEND\r\n");
}

/// What tools adjust in memcached is answered as there, and nothing is done.
#[test]
fn what_is_adjusted_in_memcached_is_answered() {
    let server = serve(&options());
    let mut client = Client::memcached(&server);
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for (request, answer) in [
        ("lru_crawler enable", "OK\r\n"),
        ("lru_crawler disable", "OK\r\n"),
        ("lru_crawler sleep 100", "OK\r\n"),
        ("lru_crawler sleep 1000001", "CLIENT_ERROR sleep must be one second or less\r\n"),
        ("lru_crawler sleep x", bad),
        ("lru_crawler tocrawl 10", "OK\r\n"),
        ("lru_crawler tocrawl -1", bad),
        ("lru_crawler crawl 1,2", "OK\r\n"),
        ("lru_crawler crawl 0", "BADCLASS invalid class id\r\n"),
        ("lru_crawler metadump 1,x", "BADCLASS invalid class id\r\n"),
        ("lru_crawler metadump", "ERROR\r\n"),
        ("lru_crawler", "ERROR\r\n"),
        ("slabs reassign a b", bad),
        ("slabs reassign 1 2", "CLIENT_ERROR slab reassignment disabled\r\n"),
        ("slabs automove 1", "OK\r\n"),
        ("slabs automove 3", "ERROR\r\n"),
        ("slabs automove x", bad),
        ("slabs automove ratio 0.8", "OK\r\n"),
        ("slabs", "ERROR\r\n"),
        ("cache_memlimit 4", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 9999", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("cache_memlimit x", "ERROR\r\n"),
        ("cache_memlimit 4 noreply\r\nslabs automove 1 noreply\r\nmn", "MN\r\n"),
        ("stats cachedump", "CLIENT_ERROR bad command line\r\n"),
        ("stats cachedump a b", bad),
        ("stats cachedump 300 0", "CLIENT_ERROR Illegal slab id\r\n"),
    ] {
        client.ask(format!("{request}\r\n"), answer);
    }
}
