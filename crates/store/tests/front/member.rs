//! Redis' protocol at a node of a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use remora_store::front::keyspace::{Awaited, Cluster, ClusterGroup, ClusterNode, Health, Keeper};
use remora_store::front::slots::{Part, Range, Runs, Shard};

use crate::{Client, options, serve_with};

/// A node of a group: a backup at times, which follows its primary at times, and at times gives its
/// slots to another group.
#[derive(Debug, Default)]
struct Member {
    is_backup: AtomicBool,
    follows: AtomicBool,
    gives: AtomicBool,
    /// How many others hold what it has logged.
    holders: AtomicUsize,
}

impl Keeper for Member {
    fn is_awaited(&self) -> bool {
        true
    }

    fn is_kept(&self, _: &Awaited) -> Result<bool, String> {
        if self.is_backup.load(SeqCst) { Err("this node is a backup".to_owned()) } else { Ok(true) }
    }

    fn seen(&self) -> u64 {
        7
    }

    fn is_clustered(&self) -> bool {
        true
    }

    fn is_elsewhere(&self) -> bool {
        self.is_backup.load(SeqCst)
    }

    fn holders(&self, version: u64) -> usize {
        if version <= self.seen() { self.holders.load(SeqCst) } else { 0 }
    }

    fn is_readable(&self, _: Option<u16>) -> bool {
        self.follows.load(SeqCst)
    }

    fn with_shard(&self, act: &mut dyn FnMut(Option<&Shard>)) {
        if !self.gives.load(SeqCst) {
            return act(None);
        }
        let mut holdings = Runs::default();
        holdings.set(Range::ALL, Some(&Part::Giving { to: "b".to_owned() }));
        act(Some(&Shard {
            holdings: Some(holdings),
            transit: vec![b"foo".to_vec()],
            ..Shard::default()
        }));
    }

    fn cluster(&self) -> Option<Cluster> {
        let node = |id, is_me| {
            let address = Some(([127, 0, 0, 9], 7000 + id as u16).into());
            let (health, offset) = (Health::Online, None);
            ClusterNode { id, address, is_me, is_primary: id == 1, health, offset }
        };
        let group = ClusterGroup {
            is_mine: true,
            slots: vec![Range::ALL],
            nodes: vec![node(1, !self.is_backup.load(SeqCst)), node(2, true)],
            ..ClusterGroup::default()
        };
        Some(Cluster { groups: vec![group] })
    }

    fn save(&self, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A backup leads to the primary, or shows its own keys, and no answer of it costs the connection.
#[test]
fn a_backup_answers_and_keeps_its_clients() {
    let member = Arc::new(Member { follows: true.into(), ..Member::default() });
    let server = serve_with(&options(), member.clone());
    let mut client = Client::redis(&server);
    client.ask("SET foo 1\r\n", "+OK\r\n");
    member.is_backup.store(true, SeqCst);
    client.ask("GET foo\r\n", "-MOVED 12182 127.0.0.9:7001\r\n");
    client.ask("DBSIZE\r\n", ":1\r\n");
    client.ask("KEYS *\r\nRANDOMKEY\r\n", "*1\r\n$3\r\nfoo\r\n$3\r\nfoo\r\n");
    client.ask("SCAN 0\r\n", "*2\r\n$1\r\n0\r\n*1\r\n$3\r\nfoo\r\n");
    client.ask("FLUSHDB\r\n", "-READONLY You can't write against a read only replica.\r\n");
    client.ask("MULTI\r\nDBSIZE\r\n", "+OK\r\n+QUEUED\r\n");
    let aborted = "-EXECABORT Transaction discarded: this node is not its group's primary.\r\n";
    client.ask("EXEC\r\n", aborted);
    member.follows.store(false, SeqCst);
    client.ask("DBSIZE\r\n", "-CLUSTERDOWN This node does not hear from its group's primary");
    client.expect(", or has none of its keys yet\r\n");
    client.ask("READONLY\r\nGET foo\r\n", "+OK\r\n-MOVED 12182 127.0.0.9:7001\r\n");
    member.is_backup.store(false, SeqCst);
    client.ask("DBSIZE\r\n", ":1\r\n");
}

/// `WAIT` answers once as many nodes as it names hold what its client has changed, or when its time
/// is over. It holds no other client up.
#[test]
fn a_client_waits_for_other_nodes() {
    let member = Arc::new(Member::default());
    let server = serve_with(&options(), member.clone());
    let (mut client, mut other) = (Client::redis(&server), Client::redis(&server));
    client.ask("SET foo 1\r\nWAIT 0 0\r\nWAIT 1 1\r\n", "+OK\r\n:0\r\n:0\r\n");
    client.send("SET foo 2\r\nWAIT 2 0\r\nGET foo\r\n");
    client.expect("+OK\r\n");
    other.ask("SET foo 3\r\nWAIT 0 0\r\n", "+OK\r\n:0\r\n");
    member.holders.store(1, SeqCst);
    other.ask("WAIT 1 0\r\nWAIT 2 1\r\n", ":1\r\n:1\r\n");
    member.holders.store(2, SeqCst);
    client.expect(":2\r\n$1\r\n3\r\n");
    let put_aside = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:2\r\n";
    client.ask("MULTI\r\nSET foo 4\r\nWAIT 9 0\r\nEXEC\r\n", put_aside);
    client.send("PING\r\nWAIT 9 0\r\n");
    client.expect("+PONG\r\n");
    member.is_backup.store(true, SeqCst);
    client.expect("-ERR WAIT cannot be used with replica instances: ask the primary\r\n");
}

/// A command is led to where its keys are, which are in one slot.
#[test]
fn keys_of_a_command_are_in_one_slot() {
    let member = Arc::new(Member { follows: true.into(), ..Member::default() });
    let server = serve_with(&options(), member.clone());
    let mut client = Client::redis(&server);
    client.ask("BITOP OR foo foo{foo}\r\n", ":0\r\n");
    member.gives.store(true, SeqCst);
    let crosses = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    client.ask("BITOP OR bar {bar} other\r\n", crosses);
    client.ask("MULTI\r\nBITOP OR bar other\r\n", format!("+OK\r\n{crosses}"));
    client.ask("DISCARD\r\n", "+OK\r\n");
    member.gives.store(false, SeqCst);
    member.is_backup.store(true, SeqCst);
    for request in [
        "BITOP OR foo foo",
        "BITFIELD foo SET u8 0 1",
        "BITFIELD_RO foo",
        "BITPOS foo 0",
        "DUMP foo",
        "RESTORE foo 0 x",
        "LCS foo foo IDX",
        "OBJECT IDLETIME foo",
        "MEMORY USAGE foo",
    ] {
        client.ask(format!("{request}\r\n"), "-MOVED 12182 127.0.0.9:7001\r\n");
    }
}

/// What a client sends before it knows that a change has to be tried again does not overtake it.
#[test]
fn a_read_does_not_overtake_a_change_of_a_key_on_its_way() {
    let member = Arc::new(Member::default());
    let server = serve_with(&options(), member.clone());
    let mut client = Client::redis(&server);
    client.ask("MSET foo 1 bar 1\r\n", "+OK\r\n");
    member.gives.store(true, SeqCst);
    let again = "-TRYAGAIN A key is on its way to another node\r\n";
    client.ask("GET foo\r\n", "$1\r\n1\r\n");
    client.ask("SET foo 2\r\nGET bar\r\nGET foo\r\n", format!("{again}$1\r\n1\r\n{again}"));
    client.ask("GET foo\r\n", "$1\r\n1\r\n");
    member.gives.store(false, SeqCst);
    client.ask("SET foo 2\r\nGET foo\r\n", "+OK\r\n$1\r\n2\r\n");
}
