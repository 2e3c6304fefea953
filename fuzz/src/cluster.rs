//! A store on several machines: what strangers say to a node, what they write into etcd, and what
//! other groups' primaries, or clients that say they are one, ask of it while slots move.

use std::sync::{Arc, PoisonError, RwLock};

use remora_cluster::hostile;
use remora_cluster::migration::transferred;
use remora_store::front::keyspace::{
    Cluster, ClusterGroup, ClusterNode, Forgetful, Health, Keeper, Transfer,
};
use remora_store::front::redis::session::Session;
use remora_store::front::server_state::Turn;
use remora_store::front::slots::{Part, Range, Shard, Ticket, slot_of};

use crate::fronts::{empty, feed, turn};
use crate::resp::readable;
use crate::seeds::Seed;

/// Greetings and frames of nodes, and what they write into each other's memory.
///
/// # Panics
/// See [`hostile::wire`].
pub fn cluster_wire(data: &[u8]) {
    hostile::wire(data);
}

/// Inputs that come far.
pub fn cluster_wires() -> Vec<Seed> {
    let greetings = [("hello", 56), ("welcome", 24)].map(|(name, len)| {
        let mut data = b"RMg4".to_vec();
        data.resize(len, 1);
        Seed { name: name.to_owned(), data }
    });
    let steps = hostile::wires().into_iter().map(|(name, data)| Seed { name, data });
    greetings.into_iter().chain(steps).collect()
}

/// Documents and keys of etcd's.
///
/// # Panics
/// See [`hostile::documents`].
pub fn cluster_documents(data: &[u8]) {
    hostile::documents(data);
}

/// Documents as nodes write them.
pub fn cluster_documents_written() -> Vec<Seed> {
    let slots = concat!(
        r#"[[{"first":0,"last":99},{"group":"a","to":"b"}],"#,
        r#"[{"first":100,"last":16383},{"group":"b","to":null}]]"#
    );
    let entry = r#"{"epoch":3,"primary":2,"members":[1,2],"established":[1,2,3],"is_free":true}"#;
    let address = r#"{"card":"[::1]:7490","redis":"127.0.0.1:6379"}"#;
    let agreed = concat!(
        r#"{"version":4,"salt":5,"token":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"#,
        r#""ring_bytes":65536,"lease_ms":500}"#
    );
    let keys = "slots\na/configuration\na/nodes/5\na/nodes/x\n/\na/group";
    let all = [("slots", 0, slots), ("entry", 1, entry), ("address", 2, address)];
    let others = [("agreed", 3, agreed), ("keys", 3, keys)];
    let seed = |(name, kind, text): (&str, u8, &str)| Seed {
        name: name.to_owned(),
        data: [&[kind], text.as_bytes()].concat(),
    };
    all.into_iter().chain(others).map(seed).collect()
}

/// A node of a cluster of several groups, all of whose promises are kept at once.
#[derive(Debug, Default)]
struct Sharded(RwLock<Shard>);

impl Sharded {
    fn set(&self, shard: Shard) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = shard;
    }

    fn shard(&self) -> Shard {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Keeper for Sharded {
    fn is_awaited(&self) -> bool {
        false
    }

    fn save(&self, background: bool) -> Result<(), String> {
        Forgetful.save(background)
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

    fn cluster(&self) -> Option<Cluster> {
        let group = |name: &str, number: u8| ClusterGroup {
            name: name.to_owned(),
            is_mine: number == 1,
            epoch: 3,
            slots: vec![Range {
                first: 8192 * u16::from(number),
                last: 8192 * u16::from(number) + 8191,
            }],
            nodes: vec![ClusterNode {
                id: number.into(),
                address: Some(([127, 0, 0, number], 6379).into()),
                is_me: number == 1,
                is_primary: true,
                health: Health::Online,
                offset: Some(number.into()),
            }],
        };
        Some(Cluster { groups: vec![group("b", 0), group("a", 1)] })
    }

    fn with_shard(&self, act: &mut dyn FnMut(Option<&Shard>)) {
        act(Some(&self.0.read().unwrap_or_else(PoisonError::into_inner)));
    }

    fn transfer(&self, asked: &Transfer<'_>) -> Result<u64, String> {
        let mut shard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let held = shard.holdings.as_ref().ok_or("the group has no slots yet")?;
        // The map says that all may come that is asked for.
        let (next, _) = transferred(held, asked, &asked.ranges)?;
        shard.holdings = Some(next);
        Ok(0)
    }
}

thread_local! {
    static NODE: std::cell::RefCell<(Arc<Sharded>, Turn)> = std::cell::RefCell::new({
        let keeper = Arc::new(Sharded::default());
        (keeper.clone(), turn(keeper))
    });
}

/// What the group is for its slots at first, a quarter of them each; and a key that is on its way.
fn first() -> Shard {
    let parts = [
        Some(Part::Owned),
        Some(Part::Giving { to: "b".to_owned() }),
        Some(Part::Taking { from: "b".to_owned(), ticket: Ticket { founding: 2, number: 7 } }),
        None,
    ];
    let transit = vec![format!("way{}", tag(1)).into_bytes()];
    let mut shard = Shard { transit, ..Shard::default() };
    let holdings = shard.holdings.get_or_insert_default();
    for (quarter, part) in (0..).zip(parts) {
        holdings.set(Range { first: quarter * 4096, last: quarter * 4096 + 4095 }, part.as_ref());
    }
    shard
}

/// The first byte says how long the pieces are; the rest is what a client sends to a node whose
/// slots move.
///
/// # Panics
/// If a reply cannot be read, if the group's part in its slots makes no sense afterwards, or if it
/// has a key of a slot in which it has no part.
pub fn cluster_slots(data: &[u8]) {
    let Some((piece, input)) = data.split_first() else { return };
    let piece = usize::from(*piece).max(1);
    NODE.with_borrow_mut(|(keeper, turn)| {
        empty(turn);
        keeper.set(first());
        let mut session = Session::detached(&turn.server);
        let replies = feed(input, piece, |input, out| session.run(turn, input, out));
        readable(&replies);
        let shard = keeper.shard();
        assert!(shard.holdings.as_ref().is_some_and(|held| held.is_sound()));
        let space = turn.server.keyspace.tablespace("db0").expect("it is there");
        let mut cursor = 0;
        loop {
            cursor = turn.server.keyspace.scan(space, cursor, 64, turn.now, &mut |key, _| {
                assert!(shard.part(slot_of(key)).is_some(), "{} is here", key.escape_ascii());
                true
            });
            if cursor == 0 {
                break;
            }
        }
    });
}

/// A tag of keys whose slot is in this quarter.
fn tag(quarter: u16) -> String {
    let tags = (0..).map(|number: u32| format!("{{{number}}}"));
    let mut tags = tags.filter(|tag| slot_of(tag.as_bytes()) / 4096 == quarter);
    tags.next().expect("there are as many tags as one likes")
}

/// What groups' primaries and clients ask. In the place of words in braces come tags of the
/// quarters of slots that they name.
const REQUESTS: [(&str, &str); 16] = [
    ("take", "CLUSTER TAKE b 2.8 8192-12287"),
    ("take-anew", "CLUSTER TAKE b 3.1 8192-12287"),
    ("retake", "CLUSTER RETAKE b 3.1 0-4095 8192-16383"),
    ("take-none", "CLUSTER TAKE b 2.8 5-4"),
    ("take-all", "CLUSTER TAKE b 2.9 12288-16383 8192 8193"),
    ("own", "CLUSTER OWN b 2.7 8192-12287"),
    ("own-more", "CLUSTER OWN b 2.7 8192-16383 0-4095"),
    ("late", "CLUSTER TAKE b 2.6 9000"),
    ("import", "CLUSTER IMPORT 2.7 k{taken} 5 0 value k{taken}2 0 9999999999999 v"),
    ("import-late", "CLUSTER IMPORT 2.6 k{taken} 5 0 value"),
    ("import-wrong", "CLUSTER IMPORT 2.7 k{taken} 4294967296 0 value"),
    ("asking", "ASKING\r\nSET k{taken} 1\r\nASKING\r\nGET k{taken}\r\nGET k{taken}"),
    ("multi", "MULTI\r\nSET a{own} 1\r\nGET b{own}\r\nEXEC"),
    ("split", "SET a{give} 1\r\nMGET a{give} b{give}\r\nSET way{2} 1\r\nGET way{2}"),
    ("crosses", "MSET a 1 b 2 c 3\r\nMGET a b\r\nFLUSHALL\r\nSELECT 1"),
    ("maps", "CLUSTER SLOTS\r\nCLUSTER SHARDS\r\nCLUSTER NODES\r\nREADONLY\r\nCLUSTER INFO"),
];

/// The requests as they are sent.
pub fn cluster_requests() -> Vec<Seed> {
    let seed = |(name, text): (&str, &str)| {
        let text = text.replace("{own}", &tag(0)).replace("{give}", &tag(1));
        let text = text.replace("{taken}", &tag(2));
        let sent = format!("{text}\r\n");
        Seed { name: name.to_owned(), data: [&[255], sent.as_bytes()].concat() }
    };
    REQUESTS.into_iter().map(seed).collect()
}
