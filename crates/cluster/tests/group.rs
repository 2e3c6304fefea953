//! Three nodes in one process, over three cards and a configuration service in memory.

mod group {
    pub(super) mod paced;
}
#[path = "../../remora/tests/support/until.rs"]
mod until;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use group::paced::{Pace, Paced};
use remora::connection::token::Token;
use remora::{Connection, ConnectionParams, Device, QueuePairOptions, Remote};
use remora_cluster::{
    Address, ChangeError, Configuration, Group, GroupLog, GroupOptions, InProcess, Node, NodeId,
    NotServing,
};
use remora_store::journal::JournalError;
use remora_store::replica::region_bytes;
use remora_store::scan::Cursor;
use remora_store::store::{Change, Expiry, Old, Options, Store, UpdateError, Value};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::clock::now_ms;
use until::until_some as until;

/// How long anything may take on a busy machine; nothing is asserted about it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The port of all nodes' cards.
const PORT: u16 = 7490;
const LIMIT: u64 = 16 << 20;

type Member = Node<Paced>;

/// The times of a group.
#[derive(Clone, Copy)]
struct Times {
    lease: Duration,
    patience: Duration,
}

/// Primaries go quickly.
const QUICK: Times = Times { lease: Duration::from_secs(2), patience: Duration::from_secs(10) };
/// The primary stays though the machine is busy, and clients do not wait long.
const CALM: Times = Times { lease: PATIENCE, patience: Duration::from_secs(2) };

struct Trial {
    service: InProcess,
    times: Times,
    devices: BTreeMap<NodeId, Device>,
    nodes: BTreeMap<NodeId, Member>,
    paces: BTreeMap<NodeId, Pace>,
}

fn options(me: NodeId, ring_bytes: u64, Times { lease, patience }: Times) -> GroupOptions {
    GroupOptions {
        me,
        port: PORT,
        ring_bytes,
        salt: 0x5a17,
        token: Token::new([3; 16]).unwrap(),
        lease,
        drift_ppm: 500,
        patience,
    }
}

impl Trial {
    fn new(nodes: u64, ring_bytes: u64) -> Trial {
        Trial::with(nodes, ring_bytes, QUICK)
    }

    fn with(nodes: u64, ring_bytes: u64, times: Times) -> Trial {
        let mut trial = Trial::of_nobody(nodes, times);
        (1..=nodes).for_each(|name| trial.start(NodeId(name), ring_bytes));
        trial
    }

    /// A group none of whose nodes is there yet.
    fn of_nobody(nodes: u64, times: Times) -> Trial {
        let names: Vec<_> = (1..=nodes).map(NodeId).collect();
        let service = InProcess::new(Configuration::first(names[0], names).unwrap());
        let (devices, nodes, paces) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Trial { service, times, devices, nodes, paces }
    }

    fn start(&mut self, name: NodeId, ring_bytes: u64) {
        self.start_sized(name, ring_bytes, LIMIT);
    }

    /// Starts a node whose store may take so many bytes.
    fn start_sized(&mut self, name: NodeId, ring_bytes: u64, limit: u64) {
        let device = Device::open().unwrap();
        let group = Group::new(&device, options(name, ring_bytes, self.times)).unwrap();
        self.devices.insert(name, device);
        let own = Options::new(limit, 7);
        let log = GroupLog(group.clone());
        let pace = self.paces.entry(name).or_default();
        let store =
            Arc::new(Store::new(Paced::new(own.memory_len(), pace.clone()), log, own).unwrap());
        let place = Address { memory: Some(limit), ..place(&group) };
        let coordinator = self.service.coordinator(name, place);
        let spaces = vec![TablespaceOptions::new("db0")];
        self.nodes.insert(name, Node::start(store, spaces, coordinator).unwrap());
    }

    /// The node that serves, once there is one with a tablespace.
    fn primary(&self) -> &Member {
        until("a primary serves", || {
            let serves = |node: &&Member| {
                node.group().check().is_ok() && node.store().tablespace("db0").is_some()
            };
            self.nodes.values().find(serves)
        })
    }

    /// All nodes but the primary.
    fn backups(&self) -> Vec<NodeId> {
        let primary = self.primary().group().status().me;
        self.nodes.keys().copied().filter(|node| *node != primary).collect()
    }

    /// Writes until the group has it: on a busy machine, the primary may change meanwhile.
    fn put(&self, key: &str, value: &str) {
        until("a write is acknowledged", || {
            let primary = self.primary();
            let version = put(primary, key, value).ok()?;
            primary.wait(version).ok()
        });
    }

    /// Asks the primary for other members, again and again, until they are and it serves.
    fn change(
        &self,
        what: &str,
        ask: impl Fn(&Group) -> Result<(), ChangeError>,
        is_done: impl Fn(&[NodeId]) -> bool,
    ) {
        until(what, || {
            let primary = self.primary();
            let latest = primary.group().status().configuration?;
            if is_done(&latest.members) && latest.is_established() {
                return Some(());
            }
            // What is under way already is refused.
            let _ = ask(primary.group());
            None
        });
    }

    /// Waits until all nodes have carried out the log as the primary has it.
    fn settle(&self) {
        let last = self.primary().group().status().last;
        until("all nodes follow", || {
            let has = |node: &Member| node.group().status().applied >= last;
            self.nodes.values().all(has).then_some(())
        });
    }
}

/// (Also where something fails: nodes that stand still could not end.)
impl Drop for Trial {
    fn drop(&mut self) {
        self.paces.values().for_each(|pace| pace.set(Duration::ZERO));
    }
}

fn place(group: &Group) -> Address {
    Address::new(group.address())
}

fn put(node: &Member, key: &str, value: &str) -> Result<u64, UpdateError> {
    let space = node.store().tablespace("db0").expect("the primary has made it");
    let put =
        Change::Put { value: Value::Given(value.as_bytes()), flags: 0, expiry: Expiry::Default };
    let updated = node.store().update(space, key.as_bytes(), now_ms(), &mut |_, _| put)?;
    Ok(updated.version)
}

fn get(node: &Member, key: &str) -> Option<String> {
    let space = node.store().tablespace("db0")?;
    let mut value = Vec::new();
    node.store().get(space, key.as_bytes(), now_ms(), &mut value)?;
    Some(String::from_utf8(value).unwrap())
}

/// All that a node has, with versions.
fn contents(node: &Member) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let space = node.store().tablespace("db0").unwrap();
    let mut cursor = Cursor::START;
    loop {
        cursor = node.store().scan(space, cursor, now_ms(), 100, &mut |item| {
            all.insert(item.key.to_vec(), (item.version, item.stored.to_vec()));
            std::ops::ControlFlow::Continue(())
        });
        if cursor == Cursor::END {
            return all;
        }
    }
}

#[test]
fn what_is_put_at_the_primary_is_on_all_nodes() {
    let trial = Trial::new(3, 1 << 16);
    // Many laps of the ring.
    for number in 0..3000 {
        trial.put(&format!("key {}", number % 700), &format!("value {number}"));
    }
    trial.settle();
    let primary = trial.primary();
    let expected = contents(primary);
    assert_eq!(expected.len(), 700);
    for node in trial.nodes.values() {
        assert_eq!(contents(node), expected, "{}", node.group().status().me);
    }
    assert_eq!(primary.group().read(|| get(primary, "key 1")).unwrap().unwrap(), "value 2801");
}

#[test]
fn a_backup_takes_no_changes_and_says_who_does() {
    let trial = Trial::new(3, 1 << 16);
    trial.put("a", "1");
    trial.settle();
    let primary = trial.primary();
    let me = primary.group().status().me;
    let backup = trial.nodes.values().find(|node| node.group().status().me != me).unwrap();
    let refused = NotServing::Backup { node: me, at: Some(primary.group().address()) };
    assert_eq!(backup.group().read(|| ()), Err(refused.clone()));
    let failed = JournalError::Failed(refused.to_string());
    assert_eq!(put(backup, "a", "2"), Err(UpdateError::Journal(failed)));
    assert_eq!(get(backup, "a").unwrap(), "1");
}

/// A backup's clock may be ahead, and a change of the expiry be on its way to it.
#[test]
fn keys_expire_when_the_primary_says_so() {
    const HOUR: u64 = 3_600_000;
    let trial = Trial::new(3, 1 << 16);
    trial.put("stays", "1");
    trial.put("goes", "1");
    let primary = trial.primary();
    let space = primary.store().tablespace("db0").unwrap();
    let now = now_ms();
    let touch = |key: &str, expires_ms| {
        let touch = &mut |_: Option<&Old<'_>>, _: &mut Vec<u8>| Change::Touch { expires_ms };
        primary.store().update(space, key.as_bytes(), now, touch).unwrap();
    };
    ["stays", "goes"].into_iter().for_each(|key| touch(key, Some(now + HOUR)));
    trial.settle();
    let me = primary.group().status().me;
    let backups = || trial.nodes.values().filter(move |node| node.group().status().me != me);
    let has = |node: &Member, key: &str| {
        node.store().get(space, key.as_bytes(), now, &mut Vec::new()).is_some()
    };
    for backup in backups() {
        assert_eq!(backup.store().sweep(now + 2 * HOUR, u32::MAX).expired, 0);
        assert!(has(backup, "stays") && has(backup, "goes"));
    }
    touch("stays", None);
    assert_eq!(primary.store().sweep(now + 2 * HOUR, u32::MAX).expired, 1);
    trial.settle();
    for backup in backups() {
        assert!(has(backup, "stays") && !has(backup, "goes"));
    }
}

/// A node that comes back without its memory has a new number and, before the service knows it, the
/// address of the one that it was: it has not that one's vote.
#[test]
fn a_node_at_the_address_of_another_one_is_not_taken_for_it() {
    let mut trial = Trial::new(3, 1 << 16);
    trial.put("a", "1");
    let primary = trial.primary().group().status().me;
    let gone = *trial.nodes.keys().find(|name| **name != primary).unwrap();
    trial.nodes.remove(&gone);
    let stranger = NodeId(4);
    trial.start(stranger, 1 << 16);
    let is_linked = |trial: &Trial, node: NodeId, to: NodeId| {
        trial.nodes[&node].group().status().links.contains(&to)
    };
    until("the link ends", || (!is_linked(&trial, primary, gone)).then_some(()));
    let address = place(trial.nodes[&stranger].group());
    let _stays = trial.service.coordinator(gone, address);
    let said = until("the stranger is called", || {
        assert!(!is_linked(&trial, stranger, primary));
        trial.nodes[&stranger].group().status().last_refusal
    });
    let reason = format!("it calls {gone}, and this is {stranger}, at the same address");
    assert!(said.ends_with(&reason), "{said}");
    assert!(!is_linked(&trial, primary, gone));
}

#[test]
fn when_the_primary_goes_another_one_serves_what_was_acknowledged() {
    let mut trial = Trial::new(3, 1 << 16);
    for round in 0..2 {
        for number in 0..200 {
            trial.put(&format!("{round}.{number}"), &number.to_string());
        }
        let primary = trial.primary();
        let gone = primary.group().status().me;
        trial.nodes.remove(&gone);
        if round == 1 {
            // One of three is no majority.
            let (_, left) = trial.nodes.first_key_value().unwrap();
            until("the lease of the one before ends", || {
                (left.group().status().configuration?.primary != gone).then_some(())
            });
            assert!(left.group().check().is_err());
            return;
        }
        let next = trial.primary();
        for number in 0..200 {
            let key = format!("{round}.{number}");
            let read = next.group().read(|| get(next, &key));
            assert_eq!(read.unwrap(), Some(number.to_string()), "{key}");
        }
    }
}

/// A backup that no node reaches, while the service does, finds out, though nobody writes: what it
/// has grows old.
#[test]
fn a_backup_that_its_primary_does_not_reach_does_not_follow() {
    let trial = Trial::new(3, 1 << 16);
    trial.put("key", "value");
    trial.settle();
    let backup = trial.backups()[0];
    let until_follows = |follows: bool| {
        let is_so = || (trial.nodes[&backup].group().follows() == follows).then_some(());
        until(&format!("whether a backup follows is {follows}"), is_so);
    };
    until_follows(true);
    trial.devices[&backup].impair(&"loss=100%".parse().unwrap()).unwrap();
    until_follows(false);
    trial.devices[&backup].impair(&"off".parse().unwrap()).unwrap();
    until_follows(true);
}

/// Most backups stand still: the primary takes what its ring has room for, and refuses the rest.
/// What is read waits for what is not decided. When they go on, all that was taken is decided.
#[test]
fn a_full_ring_refuses_changes_until_the_backups_go_on() {
    let trial = Trial::with(3, 1 << 10, CALM);
    (0..50).for_each(|number| trial.put(&format!("key {}", number % 5), &number.to_string()));
    trial.settle();
    let (primary, backups) = (trial.primary(), trial.backups());
    backups.iter().for_each(|node| trial.paces[node].stand_still());
    let mut taken = Vec::new();
    let mut fill = || loop {
        match put(primary, "key 0", &format!("taken {}", taken.len())) {
            Ok(version) => taken.push(version),
            Err(refused) => return refused,
        }
    };
    let (before, mut refused) = (primary.group().status().counters.full, None);
    let read = until("what is read waits in vain", || {
        // (The ring may be full for a moment before the backups have come to a stand.)
        refused = Some(fill());
        primary.group().read(|| ()).err()
    });
    assert_eq!(read, NotServing::Nobody);
    assert!(primary.group().status().counters.full > before);
    let reason = "no majority of the group takes changes at the moment: try again";
    assert_eq!(refused, Some(UpdateError::Journal(JournalError::Failed(reason.to_owned()))));
    let last = Some(format!("taken {}", taken.len() - 1));
    let read = std::thread::scope(|scope| {
        let look = || primary.group().read(|| get(primary, "key 0")).ok();
        let reader = scope.spawn(move || until("what is read is decided", look));
        backups.iter().for_each(|node| trial.paces[node].set(Duration::ZERO));
        reader.join().unwrap()
    });
    assert_eq!(read, last);
    for version in taken {
        until("what was taken is decided", || primary.wait(version).ok());
    }
    trial.put("after", "1");
    trial.settle();
    let expected = contents(primary);
    trial.nodes.values().for_each(|node| assert_eq!(contents(node), expected));
    assert_eq!(expected.len(), 6);
    assert_eq!(get(primary, "key 0"), last);
    for number in 1..5 {
        assert_eq!(get(primary, &format!("key {number}")), Some((45 + number).to_string()));
    }
}

/// The primary does not wait for a backup that is slower than the other one: when the ring no
/// longer has what it lacks, it gets a copy. It ends with what all have.
#[test]
fn a_slow_backup_is_left_behind_and_gets_a_copy() {
    let trial = Trial::with(3, 1 << 12, CALM);
    trial.put("a", "1");
    trial.settle();
    let (primary, slow) = (trial.primary(), trial.backups()[0]);
    trial.paces[&slow].set(Duration::from_millis(5));
    let count = || primary.group().status().counters;
    let (before, mut number) = (count(), 0);
    let mut put_until = |what: &str, holds: &dyn Fn() -> bool| {
        until(what, || {
            for _ in 0..20 {
                trial.put(&format!("key {}", number % 300), &format!("value {number}"));
                number += 1;
            }
            holds().then_some(())
        });
    };
    put_until("it is left behind", &|| count().overrun > before.overrun);
    put_until("it is sent a copy", &|| count().snapshots > before.snapshots);
    trial.paces[&slow].set(Duration::ZERO);
    trial.settle();
    let expected = contents(primary);
    trial.nodes.values().for_each(|node| assert_eq!(contents(node), expected));
}

/// A node is lost; another one comes in its place, gets a copy of the store since the ring does not
/// remember its beginning, and has a vote.
#[test]
fn a_node_that_is_lost_is_replaced() {
    let mut trial = Trial::new(3, 1 << 14);
    let lost = *trial.nodes.last_key_value().unwrap().0;
    trial.primary();
    trial.nodes.remove(&lost);
    for number in 0..2000 {
        trial.put(&format!("key {}", number % 500), &format!("value {number}"));
    }
    let new = NodeId(4);
    trial.start(new, 1 << 14);
    trial.change("the node joins", |group| group.join(new), |members| members.contains(&new));
    trial.change("the lost one goes", |group| group.leave(lost), |members| members.len() == 3);
    let primary = trial.primary();
    trial.put("after", "the copy");
    trial.settle();
    assert!(primary.group().status().counters.snapshots > 0);
    let expected = contents(primary);
    assert_eq!(contents(&trial.nodes[&new]), expected);
    assert_eq!(expected.len(), 501);
}

/// A node that comes takes the place of one that was lost, without a word from anybody.
#[test]
fn the_members_are_tended_to() {
    let mut trial = Trial::new(3, 1 << 16);
    trial.put("a", "1");
    let primary = trial.primary().group().status().me;
    let lost = *trial.nodes.keys().find(|node| **node != primary).unwrap();
    trial.nodes.remove(&lost);
    let new = NodeId(4);
    trial.start(new, 1 << 16);
    until("the new node has the lost one's place", || {
        trial.nodes.values().for_each(|node| node.tend(3));
        let latest = trial.primary().group().status().configuration?;
        let is_replaced = latest.members.contains(&new) && !latest.members.contains(&lost);
        (is_replaced && latest.members.len() == 3 && latest.is_established()).then_some(())
    });
    trial.put("b", "2");
    trial.settle();
    assert_eq!(get(&trial.nodes[&new], "a").unwrap(), "1");
    assert_eq!(get(&trial.nodes[&new], "b").unwrap(), "2");
}

/// One of the members has less memory than the others. The group takes as much as that one has, and
/// all go on; when it has gone and its place is another's, the group takes more.
#[test]
fn a_group_takes_no_more_than_its_smallest_member() {
    const LEAST: u64 = LIMIT / 4;
    let mut trial = Trial::of_nobody(3, QUICK);
    trial.start(NodeId(1), 1 << 16);
    trial.start(NodeId(2), 1 << 16);
    trial.start_sized(NodeId(3), 1 << 16, LEAST);
    let value = "x".repeat(8000);
    let mut number = 0;
    until("the group takes nothing more", || {
        trial.nodes.values().for_each(|node| node.tend(3));
        let primary = trial.primary();
        match put(primary, &number.to_string(), &value) {
            Ok(version) => number += u32::from(primary.wait(version).is_ok()),
            Err(UpdateError::Memory { limit: LEAST, .. }) => return Some(()),
            Err(_) => {}
        }
        None
    });
    trial.settle();
    let held = contents(trial.primary());
    assert!(held.len() > 100);
    for node in trial.nodes.values() {
        assert_eq!(contents(node), held, "{}", node.group().status().me);
    }
    if trial.primary().group().status().me != NodeId(3) {
        trial.nodes.remove(&NodeId(3));
        trial.start(NodeId(4), 1 << 16);
        until("the group takes more", || {
            trial.nodes.values().for_each(|node| node.tend(3));
            put(trial.primary(), "more", &value).ok()
        });
    }
}

/// A backup that becomes the primary takes no more than the others have memory for, before anybody
/// tends the group.
#[test]
fn a_primary_begins_with_the_memory_of_all() {
    const LEAST: u64 = LIMIT / 4;
    let mut trial = Trial::of_nobody(3, QUICK);
    // The one that is the primary comes last, so that it knows the others.
    trial.start_sized(NodeId(3), 1 << 16, LEAST);
    [2, 1].into_iter().for_each(|name| trial.start(NodeId(name), 1 << 16));
    trial.put("a", "1");
    assert_eq!(trial.primary().store().limit(), LEAST);
}

/// How a node greets one that it calls in an epoch, whose region is as long as its own.
fn hello(to: NodeId, epoch: u32, ring_bytes: u64) -> [u8; 56] {
    let len = u32::try_from(region_bytes(ring_bytes)).unwrap();
    let (me, to, region) = (77u64.to_le_bytes(), to.0.to_le_bytes(), [0; 12]);
    let (epoch, len) = (epoch.to_le_bytes(), len.to_le_bytes());
    let parts = [&b"RMg4"[..], &me, &to, &epoch, &region[..8], &len, &region[8..], &[3; 16]];
    parts.concat().try_into().unwrap()
}

/// A node that was let in writes here until this one hears of a later epoch, and not once more: the
/// former primary's card goes on, whatever becomes of its process.
#[test]
fn a_connection_of_an_earlier_epoch_writes_nothing_more() {
    const RING: u64 = 1 << 16;
    let mut trial = Trial::new(3, RING);
    trial.put("a", "1");
    let epoch = |trial: &Trial, node: &NodeId| {
        trial.nodes[node].group().status().configuration.unwrap().epoch
    };
    let primary = trial.primary().group().status().me;
    let node = trial.backups()[0];
    let before = epoch(&trial, &node);
    let device = Device::open().unwrap();
    let queue_pair = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::new()).unwrap();
    let params = ConnectionParams::new(device.info().mtu).timeout(10);
    let address = place(trial.nodes[&node].group()).card;
    let greeting = hello(node, before, RING);
    let connection = device.connect(queue_pair.clone(), address, &greeting, &params);
    let connection = connection.wait(PATIENCE).unwrap();
    // The last place for answers: a group of three has nobody for it.
    let region = Remote::from_bytes(&connection.private_data()[4..24]).unwrap();
    let place = region.get(512..520).unwrap();
    queue_pair.write(&[0; 8], place).wait(PATIENCE).unwrap();
    trial.nodes.remove(&primary);
    until("the node hears of another primary", || (epoch(&trial, &node) > before).then_some(()));
    assert!(queue_pair.write(&[0; 8], place).wait(PATIENCE).is_err());
    trial.put("a", "2");
}

/// How a node of a version to come would greet, both ways.
fn greeting() -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[..4].copy_from_slice(b"RMg5");
    bytes
}

/// Lets everybody in who calls, with that greeting, until it is over.
fn greet(device: &Device, is_over: &AtomicBool) {
    let listener = device.listen(PORT).unwrap();
    let domain = device.alloc_pd().unwrap();
    let mut guests: Vec<Connection> = Vec::new();
    while !is_over.load(Relaxed) {
        let Ok(incoming) = listener.accept().wait(Duration::from_millis(50)) else { continue };
        let queue_pair = domain.create_qp(&QueuePairOptions::new()).unwrap();
        let params = ConnectionParams::new(device.info().mtu);
        // A node that is told that this one has another version may go before all is done.
        guests.extend(incoming.accept(queue_pair, &greeting()[..24], &params).wait(PATIENCE));
    }
}

/// A member of another version takes no part: it is told why when it calls, the primary says so of
/// it when it is called, and the others serve.
#[test]
fn a_node_of_another_version_is_left_out() {
    let mut trial = Trial::of_nobody(3, QUICK);
    let (device, is_over) = (Device::open().unwrap(), AtomicBool::new(false));
    let card = SocketAddr::new(device.info().address, PORT);
    let address = Address::new(card);
    let _known = trial.service.coordinator(NodeId(3), address);
    std::thread::scope(|scope| {
        // (Also where something here fails, so that the thread ends.)
        let _end = AtEnd(&is_over);
        scope.spawn(|| greet(&device, &is_over));
        [1, 2].into_iter().for_each(|name| trial.start(NodeId(name), 1 << 16));
        trial.put("a", "1");
        until("the primary says whom it does not understand", || {
            let told = trial.primary().group().status().last_refusal?;
            (told.contains("is not reached") && told.contains("another version")).then_some(())
        });
        let queue_pair = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::new()).unwrap();
        let params = ConnectionParams::new(device.info().mtu);
        let node = place(trial.primary().group()).card;
        let refused = device.connect(queue_pair, node, &greeting(), &params).wait(PATIENCE);
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("another version: start all from one release"), "{told}");
        trial.put("a", "2");
    });
}

/// Says at its end that all is over.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
