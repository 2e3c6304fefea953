//! A node of a cluster that has, gives and takes slots: any bytes of Redis' clients and of other
//! groups' primaries. Keys of slots that it has no part in, or not these ones, are never there.

use std::sync::Arc;

use remora_store::front::keyspace::{Cluster, ClusterGroup, ClusterNode, Keeper, Transfer};
use remora_store::front::resp::session::Session;
use remora_store::front::slots::{Holdings, Part, Range, Shard, slot_of};
use remora_store::front::world::Turn;

use crate::fronts::{feed, turn_of};
use crate::resp::{of_line, readable};
use crate::seeds::Seed;

/// The session in which slots come.
const TICKET: u64 = 7;

thread_local! {
    static TURN: std::cell::RefCell<Turn> =
        std::cell::RefCell::new(turn_of(Arc::new(Parted { shard: shard() })));
}

/// A group that has a quarter of the slots, gives one, gets one, and has no part in the last.
#[derive(Debug)]
struct Parted {
    shard: Shard,
}

fn shard() -> Shard {
    let mut holdings = Holdings::default();
    let to = || "b".to_owned();
    let parts =
        [Part::Owned, Part::Giving { to: to() }, Part::Taking { from: to(), ticket: TICKET }];
    for (index, part) in parts.iter().enumerate() {
        let first = index as u16 * 4096;
        holdings.set(Range { first, last: first + 4095 }, Some(part));
    }
    Shard { holdings: Some(holdings), transit: Vec::new() }
}

impl Keeper for Parted {
    fn is_awaited(&self) -> bool {
        false
    }

    fn wait(&self, _version: u64) -> Result<(), String> {
        Ok(())
    }

    fn save(&self, _background: bool) -> Result<(), String> {
        Err("nothing is kept".to_owned())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn with_shard(&self, act: &mut dyn FnMut(Option<&Shard>)) {
        act(Some(&self.shard));
    }

    fn transfer(&self, step: &Transfer<'_>) -> Result<u64, String> {
        if step.ranges.iter().all(|range| range.first <= range.last) {
            return Err("the group keeps its slots".to_owned());
        }
        panic!("ranges that are none: {step:?}")
    }

    fn cluster(&self) -> Option<Cluster> {
        let group = |name: &str, number: u16| ClusterGroup {
            name: name.to_owned(),
            is_mine: name == "a",
            epoch: 1,
            slots: vec![Range { first: number * 8192, last: number * 8192 + 8191 }],
            nodes: vec![ClusterNode {
                id: number.into(),
                address: Some(([127, 0, 0, 1], number).into()),
                is_me: name == "a",
                is_primary: true,
            }],
        };
        Some(Cluster { groups: vec![group("a", 0), group("b", 1)] })
    }
}

/// The first byte says how long the pieces are; the rest is what a client sends.
///
/// # Panics
/// If a reply cannot be read, or a key is there whose slot is not here.
pub fn slots(data: &[u8]) {
    let Some((piece, input)) = data.split_first() else { return };
    TURN.with_borrow_mut(|turn| {
        crate::fronts::empty(turn);
        let mut session = Session::detached(&turn.world);
        let piece = usize::from(*piece).max(1);
        let replies = feed(input, piece, |input, out| session.run(turn, input, out));
        readable(&replies);
        let Some(space) = turn.world.keyspace.known("db0") else { return };
        let shard = shard();
        let mut cursor = 0;
        loop {
            cursor = turn.world.keyspace.scan(space, cursor, 100, turn.now, &mut |key, _| {
                let part = shard.part(slot_of(key));
                let is_here = matches!(part, Some(Part::Owned | Part::Taking { .. }));
                assert!(is_here, "{} has come", key.escape_ascii());
                true
            });
            if cursor == 0 {
                return;
            }
        }
    });
}

/// A request of each kind: it has the slots of `b` and `f`, gives `c` and `g`, and takes `d`, `h`
/// and `foo`.
const REQUESTS: [&str; 18] = [
    "CLUSTER HELP",
    "CLUSTER INFO",
    "CLUSTER MYID",
    "CLUSTER NODES",
    "CLUSTER SHARDS",
    "CLUSTER SLOTS",
    "CLUSTER KEYSLOT {a}b",
    "CLUSTER COUNTKEYSINSLOT 12182",
    "CLUSTER GETKEYSINSLOT 12182 3",
    "CLUSTER TAKE b 7 0-10 12",
    "CLUSTER OWN b 7 0-10 12",
    "CLUSTER IMPORT 7 foo 0 0 v",
    "ASKING",
    "READONLY",
    "READWRITE",
    "MSET {a}1 1 {a}2 2",
    "MGET a b c d",
    "FLUSHALL",
];

/// A request of each kind.
pub fn slots_requests() -> Vec<Seed> {
    let mut seeds: Vec<_> = REQUESTS.into_iter().map(of_line).collect();
    let keys = ('a'..='h').map(|key| format!("ASKING\r\nSET {key} 1\r\nGET {key}\r\n"));
    let data = format!("\u{40}{}", keys.collect::<String>()).into_bytes();
    seeds.push(Seed { name: "keys-of-all-parts".to_owned(), data });
    let data = b"\x40ASKING\r\nMULTI\r\nSET d 1\r\nGET d\r\nEXEC\r\nCLUSTER IMPORT 7 d 0 0 v\r\n";
    seeds.push(Seed { name: "transaction-that-was-asked".to_owned(), data: data.to_vec() });
    seeds
}
