//! etcd that asks for certificates and passwords, and is killed and comes back meanwhile: its
//! members know nobody then that they knew before.

mod etcd {
    pub(super) mod member;
}
#[path = "../../remora/tests/support/skips.rs"]
mod skips;
#[path = "../../remora/tests/support/until.rs"]
mod until;

use std::sync::Arc;
use std::time::Duration;

use etcd::member::{Etcd, ask_for_passwords};
use remora::Device;
use remora_cluster::etcd::{Etcd as Way, EtcdGroup, EtcdOptions, Origin, overview};
use remora_cluster::{
    Address, EtcdMap, Group, GroupLog, GroupOptions, MapService, Node, NodeId, SlotMap,
};
use remora_store::memory::Heap;
use remora_store::store::{Change, Expiry, Options, Store, Value};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::clock::now_ms;
use until::until_ok;

const USER: (&str, &str) = ("remora", "open sesame");

/// A group of this node alone.
fn start(group: EtcdGroup) -> Node<Heap> {
    let (me, lease) = (NodeId(7), Duration::from_millis(500));
    let options = EtcdOptions { group, lease, size: 1, ring_bytes: 1 << 16, origin: Origin::New };
    let (way, terms) = Way::connect(&options, me).unwrap();
    let options = GroupOptions {
        me,
        port: 7490,
        ring_bytes: terms.ring_bytes,
        salt: terms.salt,
        token: terms.token,
        lease: terms.lease,
        drift_ppm: 500,
        patience: Duration::from_secs(2),
    };
    let group = Group::new(&Device::open().unwrap(), options).unwrap();
    let own = Options::new(16 << 20, 7);
    let log = GroupLog(group.clone());
    let store = Arc::new(Store::new(Heap::new(own.memory_len()), log, own).unwrap());
    let way = way.announce(Address::new(group.address()));
    Node::start(store, vec![TablespaceOptions::new("db0")], Box::new(way)).unwrap()
}

fn put(node: &Node<Heap>, value: &[u8]) -> Result<(), String> {
    node.group().check().map_err(|reason| reason.to_string())?;
    let space = node.store().tablespace("db0").ok_or("there is no tablespace yet")?;
    let put = Change::Put { value: Value::Given(value), flags: 0, expiry: Expiry::Default };
    let updated = node.store().update(space, b"key", now_ms(), &mut |_, _| put);
    let version = updated.map_err(|error| error.to_string())?.version;
    node.wait(version).map_err(|error| error.to_string())
}

#[test]
fn a_node_outlives_an_etcd_that_forgets_who_has_shown_a_password() {
    if !skips::has("etcd", "etcd-server") || !skips::has("openssl", "openssl") {
        return;
    }
    let mut etcd = Etcd::start_with_certificates();
    let nobody = etcd.group("safe/a");
    ask_for_passwords(&etcd.group("safe"), USER);
    // Its certificate names nobody whom etcd knows.
    assert!(overview(&nobody).is_err());
    let user = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
    let stranger = EtcdGroup { user: user(USER.0, "wrong"), ..nobody.clone() };
    assert!(overview(&stranger).unwrap_err().to_string().contains("authentication failed"));
    let elsewhere =
        EtcdGroup { name: "other/a".to_owned(), user: user(USER.0, USER.1), ..nobody.clone() };
    assert!(overview(&elsewhere).unwrap_err().to_string().contains("permission denied"));

    let group = EtcdGroup { user: user(USER.0, USER.1), ..nobody };
    let node = start(group.clone());
    let mut map = EtcdMap::new(&group).unwrap();
    until_ok("the node serves", || put(&node, b"1"));
    assert_eq!(map.replace(0, &SlotMap::default()), Ok(true));
    for _ in 0..2 {
        etcd.kill(0);
        until_ok("the lease ends", || match put(&node, b"2") {
            Ok(()) => Err("it serves".to_owned()),
            Err(_) => Ok(()),
        });
        etcd.start_member(0);
        until_ok("the node serves again", || put(&node, b"3"));
        until_ok("the map is seen again", || map.look().map(|_| ()));
    }
    until_ok("the node is there", || {
        let there = overview(&group).map_err(|error| error.to_string())?;
        there.nodes.contains_key(&NodeId(7)).then_some(()).ok_or("it is not".to_owned())
    });
}
