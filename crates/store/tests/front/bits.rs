//! Bits of values: what Redis' documents say, and what the store's limits make of it. (`beside` has
//! bits of random values.)

use super::redis::request;
use super::{Client, options, serve};

#[test]
fn bits_are_as_documented() {
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("SET k foobar\r\nBITCOUNT k\r\nBITCOUNT k 0 0\r\n", "+OK\r\n:26\r\n:4\r\n");
    client.ask("BITCOUNT k 1 1\r\nBITCOUNT k 5 30 BIT\r\n", ":6\r\n:17\r\n");
    client.ask(
        "SET l \"\\x00\\xff\\xf0\"\r\nBITPOS l 1 0\r\nBITPOS l 1 2\r\n",
        "+OK\r\n:8\r\n:16\r\n",
    );
    client.ask("BITPOS l 1 2 -1 BYTE\r\nBITPOS l 1 7 15 BIT\r\n", ":16\r\n:8\r\n");
    client.ask("SET a foobar\r\nSET b abcdef\r\n", "+OK\r\n+OK\r\n");
    client.ask("BITOP AND d a b\r\nGET d\r\n", ":6\r\n$6\r\n`bc`ab\r\n");
    client.ask("BITFIELD f INCRBY i5 100 1 GET u4 0\r\n", "*2\r\n:1\r\n:0\r\n");
    let steps = "INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1";
    for found in [[1, 1], [2, 2], [3, 3], [0, 3]] {
        let [wraps, stays] = found;
        client.ask(format!("BITFIELD g {steps}\r\n"), format!("*2\r\n:{wraps}\r\n:{stays}\r\n"));
    }
    client.ask("BITFIELD g OVERFLOW FAIL INCRBY u2 102 1\r\n", "*1\r\n$-1\r\n");
}

/// The longest value there is has bits to its end, and no command makes a longer one.
#[test]
fn values_of_any_length_have_bits() {
    const BITS: usize = 8 << 24;
    let server = serve(&options());
    let mut client = Client::redis(&server);
    client.ask("CONFIG SET proto-max-bulk-len 512mb\r\n", "+OK\r\n");
    let last = BITS - 1;
    client.ask(format!("SETBIT k {last} 1\r\nSTRLEN k\r\n"), format!(":0\r\n:{}\r\n", BITS / 8));
    client.ask("BITPOS k 1\r\nBITCOUNT k\r\nBITPOS k 0\r\n", format!(":{last}\r\n:1\r\n:0\r\n"));
    client.ask("BITOP NOT k k\r\nBITPOS k 0\r\n", format!(":{}\r\n:{last}\r\n", BITS / 8));
    client.ask("BITCOUNT k 3 -1 BIT\r\n", format!(":{}\r\n", last - 3));
    client.ask(format!("BITFIELD k GET u9 {last}\r\n"), "*1\r\n:0\r\n");
    let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    client.ask(format!("SETBIT k {BITS} 1\r\n"), refused);
    client.ask(format!("BITFIELD k SET u9 {last} 0\r\n"), refused);
    client.ask(format!("BITCOUNT k\r\nGETBIT k {BITS}\r\n"), format!(":{last}\r\n:0\r\n"));
    // A key that is named very often is read once.
    let mut words: Vec<&[u8]> = vec![b"BITOP", b"XOR", b"d"];
    words.resize(200_000, b"k");
    client.ask(request(&words), format!(":{}\r\n", BITS / 8));
    client.ask("BITCOUNT d\r\nBITPOS d 0\r\n", format!(":{last}\r\n:{last}\r\n"));
}
