//! Traversal of a linked list (RedN Fig. 12).
//!
//! The client sends a key and the address of the first node. Each READ of a node scatters the
//! node's fields: the next node's address into the next READ, the key beside the op-code that a
//! test changes, and the value's address and length into the request that gives the answer.

use super::super::construct::Writer;
use super::super::element::{Field, Label};
use super::super::place::{Span, Word};
use super::super::program::{Program, Start};
use super::super::request::{Count, Request};
use super::super::verb::Verb;
use super::table::Value;
use super::{Service, key_bytes, raise};

/// Bytes of a node: address of the value, its length, a key of 48 bits, the next node.
pub const NODE: u64 = 32;
/// The key of the node that ends a list. No value has this key.
pub const END: u64 = 0;

/// The bytes of a list whose nodes lie one behind the other at address `base`. The last node ends
/// the list: it has no value and points to itself.
pub fn nodes(base: u64, values: &[(u64, Value)]) -> Vec<u8> {
    let node = |i: usize, key: u64, value: Value, next: usize| {
        debug_assert!(i <= values.len());
        [value.addr, u64::from(value.len), key, base + next as u64 * NODE]
    };
    let end = node(values.len(), END, Value::default(), values.len());
    let inner = values.iter().enumerate().map(|(i, (key, value))| node(i, *key, *value, i + 1));
    inner.chain([end]).flatten().flat_map(u64::to_le_bytes).collect()
}

/// The message of a client that looks for `key` in the list whose first node is at address `first`.
pub fn message(key: u64, first: u64) -> Vec<u8> {
    [&key_bytes(key)[..], &first.to_le_bytes()].concat()
}

/// A program that looks at `nodes` nodes, one request sequence for each. It looks at all of them,
/// even after it has found the key.
pub fn unrolled(nodes: usize) -> Program {
    let mut service = Service::new();
    let key = service.program.bytes("key", &[0; 6]);
    let names = |program: &mut Program| ["node", "key?", "found"].map(|name| program.label(name));
    let rounds: Vec<[Label; 3]> = (0..nodes).map(|_| names(&mut service.program)).collect();
    let rest = service.scratch;
    let first = rounds.first().map_or(rest, |round| round[0].field(Field::Remote));
    service.receive(&[key, first]);
    let serve = service.program.managed("serve", Start::Running);
    let (wait, clear, ready, send) =
        (service.wait(), service.clear(), service.ready(), service.send());
    let (table, answer, scratch) = (service.table, service.answer(), service.scratch);
    Writer::forever(&mut service.program, serve, |w| {
        w.push(wait);
        w.push(clear);
        for (i, &[read, test, found]) in rounds.iter().enumerate() {
            let next = rounds.get(i + 1).map_or(rest, |round| round[0].field(Field::Remote));
            let value = found.field(Field::Addr(0)).part(0, 16);
            let into = [value, found.field(Field::Id), scratch.part(0, 2), next];
            w.put(read, Request::read(table, &into).silent());
            w.inject(key, test.field(Field::CompareId).at);
            let (off, on) = (Word::Head(Verb::Noop, 0), Word::Head(Verb::Write, 0));
            let cas = Request::compare_swap(found.field(Field::Head).at, off, on);
            w.put(test, cas.silent());
            let found_it = Request::write_inline(Word::Number(0), 12, answer);
            w.put(found, found_it.silent().off());
            w.put_back(found);
        }
        w.push(ready);
        w.push(send);
    });
    service.program
}

/// Elements of a lap of the ring that walks the list, and of the ring that serves clients.
const WALK: u64 = 8;
const SERVE: u64 = 16;

/// A program that walks until it finds the key or the end of the list: each node is a lap of a
/// recycled ring, and the ring stops when its last ENABLE is replaced.
///
/// Each node overwrites the answer, so the answer is right when the walk ends. A word counts how
/// far the walking ring has come; the ring's own ENABLE and the ENABLE that starts the next walk
/// take their counts from it.
pub fn walking() -> Program {
    let mut service = Service::new();
    let program = &mut service.program;
    let (serve, walk) =
        (program.managed("serve", Start::Elements(4)), program.managed("walk", Start::Asleep));
    let patterns = program.patterns();
    let again = program.label("again");
    program.put(patterns, again, Request::enable(walk, Count::Number(0)));
    let back = program.label("back");
    program.put(patterns, back, Request::enable(serve, Count::Number(SERVE + 4)));
    let laps = program.word("how far", WALK);
    let names = ["node", "key?", "end?", "leave", "on"].map(|name| program.label(name));
    let [node, is_key, is_end, leave, on] = names;
    let pieces: [Span; 2] = [is_key.field(Field::CompareId), node.field(Field::Remote)];
    service.receive(&pieces);
    let (table, scratch) = (service.table, service.scratch);
    let answer = service.answer();

    let program = &mut service.program;
    let into = [
        answer.span(12),
        scratch.part(0, 4),
        leave.field(Field::Id),
        scratch.part(0, 2),
        node.field(Field::Remote),
    ];
    program.put(walk, node, Request::read(table, &into).silent());
    program.push(walk, Request::calc(Verb::Add, laps.at, Word::Number(WALK)).silent());
    program.push(walk, Request::write(&[laps], on.field(Field::Remote).at).silent());
    for (test, key) in [(is_key, 0), (is_end, END)] {
        let (off, on) = (Word::Head(Verb::Noop, key), Word::Head(Verb::Write, key));
        let cas = Request::compare_swap(leave.field(Field::Head).at, off, on);
        program.put(walk, test, cas.silent());
    }
    let leaves = Request::write(&[back.field(Field::Order)], on.field(Field::Order).at);
    program.put(walk, leave, leaves.silent().off());
    let off = program.bytes("off", &Verb::Noop.code().to_le_bytes());
    program.push(walk, Request::write(&[off], leave.field(Field::Opcode).at).silent());
    program.put(walk, on, Request::enable(walk, Count::Number(0)));

    let (wait, ready, send) = (service.wait(), service.ready(), service.send());
    let program = &mut service.program;
    let wait = program.push(serve, wait);
    // All but the count, which the walking ring writes.
    let but_count = again.field(Field::Order).part(0, 16);
    program.push(serve, Request::write(&[but_count], on.field(Field::Order).at).silent());
    let start = program.label("walk");
    program.push(serve, Request::write(&[laps], start.field(Field::Remote).at).silent());
    program.put(serve, start, Request::enable(walk, Count::Number(0)));
    let ready = program.push(serve, ready);
    let send = program.push(serve, send);
    for (label, by) in [(wait, 1), (ready, 1), (send, 1), (back, SERVE)] {
        program.push(serve, raise(label, by));
    }
    for _ in 10..SERVE {
        program.push(serve, Request::noop().silent());
    }
    service.program
}
