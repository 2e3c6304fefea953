//! Two groups of nodes in one process, and slots that move between them while clients write:
//! nothing acknowledged is lost, and nothing that was deleted comes back.

#[allow(dead_code, reason = "the tests of clients over the card use the rest")]
mod shards {
    pub(crate) mod client;
    pub(crate) mod trial;
}

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use remora_store::front::keyspace::Keeper;
use remora_store::front::slots::slot_of;
use shards::client::{Client, Reply};
use shards::trial::{GroupStore, Trial, until};

/// Writes, deletes and reads keys that nobody else does, and looks at every answer.
fn write(mut client: Client, writer: u64, is_over: &AtomicBool) -> BTreeMap<String, Option<u64>> {
    let mut held: BTreeMap<String, Option<u64>> = BTreeMap::new();
    let mut draw = writer;
    for number in 0.. {
        if is_over.load(Relaxed) {
            break;
        }
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = format!("{writer}.{}", (draw >> 40) % 200);
        let entry = held.entry(key.clone()).or_default();
        let read = client.ask(&["GET", &key]);
        let expected = entry.map_or(Reply::Null, |value| Reply::Text(value.to_string()));
        assert_eq!(read, expected, "{key}");
        if draw >> 62 == 0 {
            client.ask(&["DEL", &key]);
            *entry = None;
        } else {
            assert_eq!(client.ask(&["SET", &key, &number.to_string()]), Reply::Text("OK".into()));
            *entry = Some(number);
        }
    }
    held
}

/// Runs `act` while clients write; then all is as they left it, and each key with one group only.
fn while_clients_write(trial: &mut Trial, act: impl FnOnce(&mut Trial)) {
    let is_over = AtomicBool::new(false);
    let all = thread::scope(|scope| {
        // These know one node each, and remember nothing: their map is always an old one.
        let writer = |number| {
            let (client, is_over) = (trial.client(), &is_over);
            scope.spawn(move || write(client, number, is_over))
        };
        let writers: Vec<_> = (1..=3).map(writer).collect();
        // A panic of its own ends the writers, too.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(trial)));
        is_over.store(true, Relaxed);
        let all: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        all
    });
    let mut client = trial.client();
    let mut there = BTreeSet::new();
    for (key, value) in all.into_iter().flatten() {
        let expected = value.map_or(Reply::Null, |value| Reply::Text(value.to_string()));
        assert_eq!(client.ask(&["GET", &key]), expected, "{key}");
        there.extend(value.map(|_| key));
    }
    let mut seen = BTreeSet::new();
    for group in ["a", "b"] {
        for key in trial.keys_of(group) {
            assert!(seen.insert(key.clone()), "{key} is with both groups");
        }
    }
    assert!(seen.is_superset(&there));
}

/// Another group has claimed the slots of one that came back later: that one serves nobody for
/// them, says so, and has all it had when the map is mended.
#[test]
fn slots_that_the_map_gives_to_another_group_are_not_served() {
    let trial = Trial::new(&["a", "b"], 1);
    assert_eq!(trial.client().ask(&["SET", "key", "1"]), Reply::Text("OK".into()));
    let mut client = Client::new(trial.primary_front("a"));
    let moved = |said| match said {
        Reply::Error(reason) if reason.starts_with("MOVED") => Some(reason),
        _ => None,
    };
    trial.say_owner("b");
    let at = until("the group does not serve them", || moved(client.direct(&["GET", "key"]).ok()?));
    assert!(at.ends_with(&trial.primary_front("b").to_string()), "{at}");
    assert!(moved(client.direct(&["SET", "key", "2"]).unwrap()).is_some());
    let said = until("it says why", || match client.direct(&["INFO", "persistence"]).ok()? {
        Reply::Text(entries) => {
            entries.lines().find(|line| line.contains("by the log")).map(str::to_owned)
        }
        _ => None,
    });
    assert!(
        said.starts_with("cluster_moves:slots 0-16383 are here by the log of group a"),
        "{said}"
    );
    trial.say_owner("a");
    until("it serves them again", || {
        (client.direct(&["GET", "key"]).ok()? == Reply::Text("1".into())).then_some(())
    });
}

/// What is said of slots in dispute holds for the next primary from its first moment on, whether it
/// sees the map then or not; for all others it serves.
#[test]
fn slots_in_dispute_are_not_served_by_the_next_primary_either() {
    let mut trial = Trial::new(&["a", "b"], 3);
    // Of the slots 12182 and 5061.
    for key in ["foo", "bar"] {
        assert_eq!(trial.client().ask(&["SET", key, "1"]), Reply::Text("OK".into()));
    }
    trial.say_owner_of("8192-16383".parse().unwrap(), "b");
    let b = trial.primary_front("b");
    let moved = Reply::Error(format!("MOVED 12182 {b}"));
    for at in trial.fronts_of("a") {
        let mut client = Client::new(at);
        until("each node knows the map", || {
            (client.direct(&["GET", "foo"]).ok()? == moved).then_some(())
        });
    }
    trial.blind("a", true);
    trial.kill_primary("a");
    let mut client = Client::new(trial.primary_front("a"));
    for _ in 0..100 {
        assert_eq!(client.direct(&["GET", "foo"]).unwrap(), moved);
    }
    assert_eq!(client.direct(&["GET", "bar"]).unwrap(), Reply::Text("1".into()));
    assert_eq!(client.direct(&["SET", "bar", "2"]).unwrap(), Reply::Text("OK".into()));
}

/// A node that has never seen the map cannot tell what is in dispute.
#[test]
fn a_primary_serves_no_slots_before_it_has_seen_the_map() {
    let mut trial = Trial::with_blind(&["a"], 3, |node| node.0 != 1);
    assert_eq!(trial.client().ask(&["SET", "foo", "1"]), Reply::Text("OK".into()));
    trial.kill_primary("a");
    let mut client = Client::new(trial.primary_front("a"));
    let refused = Reply::Error("CLUSTERDOWN Hash slot not served".into());
    for _ in 0..100 {
        assert_eq!(client.direct(&["GET", "foo"]).unwrap(), refused);
    }
    trial.blind("a", false);
    until("it serves them", || {
        (client.direct(&["GET", "foo"]).ok()? == Reply::Text("1".into())).then_some(())
    });
}

/// Keys that nobody writes: they make a move take its time.
fn fill(trial: &Trial, count: usize) {
    let mut client = trial.client();
    for number in 0..count {
        client.ask(&["SET", &format!("filler {number}"), "x"]);
    }
}

#[test]
fn slots_move_while_clients_write() {
    let mut trial = Trial::new(&["a", "b"], 1);
    fill(&trial, 1000);
    while_clients_write(&mut trial, |trial| {
        trial.move_slots("0-8191", "b");
        trial.wait_until_moved();
        trial.move_slots("4096-12287", "a");
        trial.wait_until_moved();
        trial.move_slots("0-16383", "b");
        trial.wait_until_moved();
        trial.move_slots("0-16383", "a");
        trial.wait_until_moved();
        trial.move_slots("10000-16383", "b");
        trial.wait_until_moved();
    });
    // Each node says the same of it.
    let mut client = trial.client();
    assert_eq!(client.ask(&["MSET", "x{t}", "1", "y{t}", "2"]), Reply::Text("OK".into()));
    let crosses = client.ask(&["MGET", "a", "b"]);
    assert!(matches!(&crosses, Reply::Error(text) if text.starts_with("CROSSSLOT")), "{crosses:?}");
    for at in trial.fronts() {
        until("each node knows the map", || {
            let said = Client::new(at).direct(&["CLUSTER", "NODES"]).ok()?;
            let Reply::Text(lines) = said else { panic!("{said:?}") };
            (lines.contains(" 0-9999") && lines.contains(" 10000-16383")).then_some(())
        });
    }
}

/// A command that takes long at a backup sees no part of a transaction, and holds nobody up.
#[test]
fn a_long_command_at_a_backup_holds_no_changes_up() {
    let trial = Trial::new(&["a"], 2);
    let (mut client, ok) = (trial.client(), Reply::Text("OK".into()));
    assert_eq!(client.ask(&["SET", "x{t}", "0"]), ok);
    trial.backup_keeper("a").with_shard(&mut |_| {
        for number in 1..10 {
            let value = number.to_string();
            assert_eq!(client.ask(&["MSET", "x{t}", &value, "y{t}", &value]), ok);
        }
    });
    let both = ["9", "9"].map(|text| Reply::Text(text.into())).into();
    assert_eq!(client.ask(&["MGET", "x{t}", "y{t}"]), Reply::Array(both));
}

/// That is what slots are given away for.
#[test]
fn a_group_whose_memory_is_full_gives_slots_away() {
    let trial = Trial::new(&["a", "b"], 1);
    let (mut client, mut count) = (trial.client(), 0);
    let mut at = Client::new(trial.primary_front("a"));
    for value in ["v".repeat(60_000), "v".repeat(100)] {
        let is_full = |said: Reply| match said {
            Reply::Error(reason) => {
                assert!(reason.starts_with("OOM"), "{reason}");
                true
            }
            _ => false,
        };
        while !is_full(at.direct(&["SET", &format!("key {count}"), &value]).unwrap()) {
            count += 1;
        }
    }
    trial.move_slots("0-8191", "b");
    trial.wait_until_moved();
    assert_eq!(client.ask(&["SET", "another", "1"]), Reply::Text("OK".into()));
    let kept = ["a", "b"].map(|group| trial.keys_of(group).len());
    assert_eq!(kept[0] + kept[1], count + 1);
    assert!(kept.iter().all(|keys| *keys > count / 4), "{kept:?}");
}

fn other(group: &str) -> &'static str {
    if group == "a" { "b" } else { "a" }
}

/// Ends a group's primary while keys are on their way to the group `to`. On a busy machine they may
/// be there before: then they go back.
fn kill_during_a_move(trial: &mut Trial, group: &str, to: &mut &str) {
    loop {
        if trial.is_moved() {
            *to = other(to);
            trial.move_slots("0-16383", to);
        }
        let before = trial.count_of(to);
        until("keys are on their way", || {
            (trial.is_moved() || trial.count_of(to) > before + 200).then_some(())
        });
        if !trial.is_moved() {
            return trial.kill_primary(group);
        }
    }
}

#[test]
fn a_move_outlives_the_primaries_of_both_groups() {
    let mut trial = Trial::new(&["a", "b"], 3);
    // So many that they are still on their way when both primaries have gone.
    fill(&trial, 20_000);
    while_clients_write(&mut trial, |trial| {
        let mut to = "a";
        for group in ["a", "b"] {
            kill_during_a_move(trial, group, &mut to);
        }
        trial.wait_until_moved();
        assert!(trial.keys_of(other(to)).is_empty());
    });
}

/// Slots of the first group begin to move to the other one: some keys have come, and most have not.
/// On a busy machine more may be there before that is seen: then they go back.
fn begin_move(trial: &Trial, ranges: &str) {
    let all = trial.count_of("a");
    loop {
        trial.move_slots(ranges, "b");
        until("keys are on their way", || (trial.count_of("b") > 0).then_some(()));
        if trial.count_of("a") > all * 3 / 4 {
            return;
        }
        trial.wait_until_moved();
        trial.move_slots(ranges, "a");
        trial.wait_until_moved();
    }
}

/// All nodes of the giving group are lost, with what they had in memory, and it begins anew: the
/// slots go on with the other group, and no key comes back.
#[test]
fn a_move_ends_where_the_giving_group_begins_anew() {
    let mut trial = Trial::new(&["a", "b"], 1);
    fill(&trial, 15_000);
    begin_move(&trial, "0-8191");
    trial.end("a");
    trial.begin_anew("a");
    trial.wait_until_moved();
    for group in ["a", "b"] {
        assert_eq!(trial.keys_of(group), Vec::<String>::new(), "group {group}");
    }
    // (A client that knows a node that has gone goes on with the others.)
    let mut client = trial.client();
    for (key, slot) in [("foo", 12_182), ("bar", 5061)] {
        assert_eq!(slot_of(key.as_bytes()), slot);
        assert_eq!(client.ask(&["SET", key, "1"]), Reply::Text("OK".into()));
    }
    assert_eq!(["a", "b"].map(|group| trial.keys_of(group)), [["foo"], ["bar"]]);
    trial.move_slots("8192-16383", "b");
    trial.wait_until_moved();
    assert_eq!(client.ask(&["GET", "foo"]), Reply::Text("1".into()));
}

/// Keys of the first group that can be read and not be changed.
fn frozen(trial: &Trial, count: usize) -> BTreeSet<String> {
    let at = trial.primary_front("a");
    let mut client = Client::new(at);
    let is_frozen = |key: &String| {
        // A change without an effect, where it is taken.
        let said = client.direct(&["PERSIST", key]).unwrap();
        let is_frozen = matches!(&said, Reply::Error(text) if text.starts_with("TRYAGAIN"));
        assert!(!is_frozen || client.direct(&["GET", key]).unwrap() == Reply::Text("x".into()));
        is_frozen
    };
    (0..count).map(|number| format!("filler {number}")).filter(is_frozen).collect()
}

/// While nobody knows whether keys have come, nobody changes them, whichever node is the primary.
#[test]
fn keys_on_their_way_stay_as_they_are_when_the_primary_goes() {
    // So many that they are still on their way when the other group has lost its majority.
    const COUNT: usize = 15_000;
    let mut trial = Trial::new(&["a", "b"], 3);
    fill(&trial, COUNT);
    trial.kill_backup("b");
    begin_move(&trial, "0-16383");
    // The other group has no majority any more.
    trial.kill_primary("b");
    assert_ne!(trial.count_of("a"), 0, "all keys have gone before");
    let mut before = BTreeSet::new();
    until("the move is stuck", || {
        let now = frozen(&trial, COUNT);
        let same = !now.is_empty() && now == before;
        before = now;
        same.then_some(())
    });
    trial.kill_primary("a");
    assert_eq!(frozen(&trial, COUNT), before);
}

/// A backup answers reads from its copy, to a client that asks for that, as long as its group has
/// the slot.
#[test]
fn a_backup_is_read_where_that_is_wanted() {
    let trial = Trial::new(&["a", "b"], 3);
    let mut client = trial.client();
    assert_eq!(client.ask(&["SET", "foo", "1"]), Reply::Text("OK".into()));
    let (primary, ok) = (trial.primary_front("a"), Reply::Text("OK".into()));
    let is_backup = |at: &std::net::SocketAddr| *at != primary;
    let backup = trial.fronts_of("a").into_iter().find(is_backup).unwrap();
    let (mut reader, mut other) = (Client::new(backup), Client::new(backup));
    let moved = |at| Reply::Error(format!("MOVED 12182 {at}"));
    assert_eq!(reader.direct(&["READONLY"]).unwrap(), ok);
    until("the backup has what was written", || {
        (reader.direct(&["GET", "foo"]).unwrap() == Reply::Text("1".into())).then_some(())
    });
    until("the backup knows the first map", || {
        (reader.direct(&["SET", "foo", "2"]).unwrap() == moved(primary)).then_some(())
    });
    assert_eq!(other.direct(&["GET", "foo"]).unwrap(), moved(primary));
    // What is about a node's own keys costs no connection either.
    assert_eq!(other.direct(&["DBSIZE"]).unwrap(), Reply::Number(1));
    assert_eq!(other.direct(&["GET", "foo"]).unwrap(), moved(primary));
    trial.move_slots("12182", "b");
    trial.wait_until_moved();
    let owner = trial.primary_front("b");
    until("the backup knows the map", || {
        let said = reader.direct(&["GET", "foo"]).unwrap();
        // It is never told that the key is not there.
        assert_ne!(said, Reply::Null);
        (said == moved(owner)).then_some(())
    });
    assert_eq!(reader.direct(&["READWRITE"]).unwrap(), ok);
    assert_eq!(client.ask(&["GET", "foo"]), Reply::Text("1".into()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let trial = Trial::new(&["a", "b"], 1);
    let mut client = trial.client();
    assert_eq!(client.ask(&["SET", "foo", "1"]), Reply::Text("OK".into()));
    let [a, b] = ["a", "b"].map(|group| trial.primary_front(group));
    let says = |at, words: &[&str], what: &str| {
        // What a node has not heard of yet, it says later.
        until(&format!("{words:?}: {what}"), || {
            let said = Client::new(at).direct(words).unwrap();
            matches!(&said, Reply::Error(text) if text.contains(what)).then_some(())
        });
    };
    let ticket = trial.ticket("a");
    let ticket = ticket.as_str();
    says(b, &["CLUSTER", "TAKE", "a", ticket, "0-10"], "map does not say");
    says(b, &["CLUSTER", "OWN", "a", ticket, "0-10"], "was not announced");
    says(a, &["CLUSTER", "TAKE", "b", ticket, "0"], "is here already");
    says(b, &["CLUSTER", "TAKE", "a", "7", "0"], "no number of a session");
    says(b, &["CLUSTER", "TAKE", "a", "3.7", "0"], "group a has begun anew");
    says(b, &["CLUSTER", "TAKE", "a", ticket, "5-4"], "no slots");
    says(b, &["CLUSTER", "IMPORT", ticket, "foo", "0", "0", "v"], "session of these keys is over");
    says(b, &["CLUSTER", "IMPORT", ticket, "foo", "0", "0"], "wrong number");
    says(b, &["GET", "foo"], &format!("MOVED 12182 {a}"));
    says(a, &["SELECT", "1"], "not allowed in cluster mode");
    says(a, &["CLUSTER", "COUNTKEYSINSLOT", "16384"], "Invalid slot");
    let count = Client::new(a).direct(&["CLUSTER", "COUNTKEYSINSLOT", "12182"]);
    assert_eq!(count.unwrap(), Reply::Number(1));
    // Somebody with ASKING is served only where a slot is on its way.
    let mut rude = Client::new(b);
    assert_eq!(rude.direct(&["ASKING"]).unwrap(), Reply::Text("OK".into()));
    assert_eq!(rude.direct(&["GET", "foo"]).unwrap(), Reply::Error(format!("MOVED 12182 {a}")));
}

/// A node as `CLUSTER SHARDS` shows it.
#[derive(Debug)]
struct Shown {
    port: i64,
    is_primary: bool,
    offset: i64,
    health: String,
}

/// The nodes of the only group, as a node shows them; `None` if it has not read the map yet.
fn shards(of: SocketAddr) -> Option<Vec<Shown>> {
    let Ok(Reply::Array(groups)) = Client::new(of).direct(&["CLUSTER", "SHARDS"]) else {
        panic!("no answer")
    };
    let [Reply::Array(group)] = &groups[..] else { panic!("{groups:?}") };
    let [_, slots, _, Reply::Array(nodes)] = &group[..] else { panic!("{group:?}") };
    let all = Reply::Array([0, 16_383].map(Reply::Number).into());
    (*slots == all).then(|| nodes.iter().map(shown).collect())
}

fn shown(node: &Reply) -> Shown {
    let Reply::Array(fields) = node else { panic!("{node:?}") };
    let field = |name: &str| {
        let pair = fields.chunks(2).find(|pair| pair[0] == Reply::Text(name.to_owned()));
        pair.unwrap_or_else(|| panic!("no {name}: {fields:?}"))[1].clone()
    };
    let text = |name| match field(name) {
        Reply::Text(text) => text,
        other => panic!("{name}: {other:?}"),
    };
    let number = |name| match field(name) {
        Reply::Number(number) => number,
        other => panic!("{name}: {other:?}"),
    };
    let (port, health) = (number("port"), text("health"));
    let is_known = port != 0;
    assert_eq!(text("endpoint"), if is_known { "127.0.0.1" } else { "?" });
    assert_eq!(text("ip"), if is_known { "127.0.0.1" } else { "" });
    let (is_primary, offset) = (text("role") == "master", number("replication-offset"));
    Shown { port, is_primary, offset, health }
}

/// Keys that are always changed together.
const PAIRED: [&str; 8] = ["{x}0", "{x}1", "{x}2", "{x}3", "{x}4", "{x}5", "{x}6", "{x}7"];

/// Asks a node for these keys, whatever it is, until it is over or gone; how often it has answered.
fn read_together(front: SocketAddr, is_over: &AtomicBool) -> u32 {
    let (mut client, mut answers) = (Client::new(front), 0);
    let asked: Vec<_> = ["MGET"].into_iter().chain(PAIRED).collect();
    if client.direct(&["READONLY"]).is_err() {
        return 0;
    }
    while !is_over.load(Relaxed) {
        let Ok(said) = client.direct(&asked) else { return answers };
        if let Reply::Array(values) = said {
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            answers += 1;
        }
    }
    answers
}

/// While a client changes keys together, nobody sees some of them changed and others not: neither
/// at the primary nor at a backup, nor when another node has become the primary.
#[test]
fn what_is_changed_together_is_seen_together() {
    let mut trial = Trial::new(&["a"], 3);
    let (is_over, fronts) = (AtomicBool::new(false), trial.fronts());
    let answers: Vec<u32> = thread::scope(|scope| {
        let read = |front: &SocketAddr| {
            let (front, is_over) = (*front, &is_over);
            scope.spawn(move || read_together(front, is_over))
        };
        let readers: Vec<_> = fronts.iter().map(read).collect();
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut client = trial.client();
            for number in 0..600 {
                if number == 300 {
                    trial.kill_primary("a");
                }
                let value = number.to_string();
                let words = PAIRED.iter().flat_map(|key| [*key, &value]);
                let words: Vec<_> = ["MSET"].into_iter().chain(words).collect();
                assert_eq!(client.ask(&words), Reply::Text("OK".into()));
            }
        }));
        is_over.store(true, Relaxed);
        let answers = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answers
    });
    assert!(answers.iter().filter(|answers| **answers > 10).count() >= 2, "{answers:?}");
    let all: Vec<_> = ["MGET"].into_iter().chain(PAIRED).collect();
    let values = vec![Reply::Text("599".into()); PAIRED.len()];
    assert_eq!(trial.client().ask(&all), Reply::Array(values));
}

/// Counts the keys that a node has, in all ways, until it is over; how often it has answered.
fn count_keys(front: SocketAddr, expected: i64, is_over: &AtomicBool) -> u32 {
    let (mut client, mut answers) = (Client::new(front), 0);
    until("a node has all keys", || {
        (client.direct(&["DBSIZE"]).ok()? == Reply::Number(expected)).then_some(())
    });
    let slot = slot_of(PAIRED[0].as_bytes()).to_string();
    let ways = [
        &["DBSIZE"][..],
        &["KEYS", "*"],
        &["CLUSTER", "COUNTKEYSINSLOT", &slot],
        &["CLUSTER", "GETKEYSINSLOT", &slot, "1000"],
    ];
    while !is_over.load(Relaxed) {
        for words in ways {
            let count = match client.direct(words).unwrap() {
                Reply::Number(count) => count,
                Reply::Array(keys) => keys.len() as i64,
                other => panic!("{words:?}: {other:?}"),
            };
            assert_eq!(count, expected, "{words:?}");
            answers += 1;
        }
    }
    answers
}

/// While keys get other names, each with its old one gone in the same step, a node that is asked
/// for all that it has shows each of them once.
#[test]
fn all_keys_of_a_node_are_those_of_one_time() {
    let trial = Trial::new(&["a"], 3);
    let words = PAIRED.iter().flat_map(|key| [*key, "x"]);
    let words: Vec<_> = ["MSET"].into_iter().chain(words).collect();
    assert_eq!(trial.client().ask(&words), Reply::Text("OK".into()));
    let (is_over, primary) = (AtomicBool::new(false), trial.primary_front("a"));
    let answers: Vec<u32> = thread::scope(|scope| {
        let is_over = &is_over;
        let count = |front| scope.spawn(move || count_keys(front, PAIRED.len() as i64, is_over));
        let readers: Vec<_> = trial.fronts().into_iter().map(count).collect();
        let mut client = Client::new(primary);
        for number in 0..600 {
            client.direct(&["MULTI"]).unwrap();
            for key in PAIRED {
                let other = format!("{key}.");
                let names = if number % 2 == 0 { [key, &other] } else { [&other, key] };
                client.direct(&["RENAME", names[0], names[1]]).unwrap();
            }
            let done = vec![Reply::Text("OK".into()); PAIRED.len()];
            assert_eq!(client.direct(&["EXEC"]).unwrap(), Reply::Array(done));
        }
        is_over.store(true, Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answers| *answers > 10), "{answers:?}");
}

/// Puts so many bytes into a store, by another thread than the test's if it is an `other`.
fn put(store: &GroupStore, key: &str, len: usize, other: bool) -> Result<(), String> {
    let put = || {
        let space = store.tablespace("db0").unwrap();
        let done = store.put(space, key.as_bytes(), &vec![b'x'; len], 0, None, 1);
        done.map(|_| ()).map_err(|error| error.to_string())
    };
    if !other {
        return put();
    }
    thread::scope(|scope| scope.spawn(put).join().unwrap())
}

/// What other threads change while a transaction is under way takes nothing of its room, and has
/// room of its own: a quarter of the ring's 1 MiB is the transaction's.
#[test]
fn what_others_change_during_a_transaction_is_no_part_of_it() {
    let trial = Trial::new(&["a"], 3);
    assert_eq!(trial.client().ask(&["SET", "key", "1"]), Reply::Text("OK".into()));
    let (keeper, store) = trial.primary_store("a");
    keeper.together(&mut || {
        // Before its first change, others' are of no transaction, long as they may be.
        put(&store, "other 0", 150 << 10, true).unwrap();
        put(&store, "own 0", 200 << 10, false).unwrap();
        put(&store, "other 1", 100 << 10, true).unwrap();
        put(&store, "own 1", 50 << 10, false).unwrap();
        let long = put(&store, "own 2", 50 << 10, false).unwrap_err();
        assert!(long.contains("a transaction changes at most"), "{long}");
        // What there is no room for may be tried again, when the transaction is over.
        let full = until("the ring is full", || put(&store, "other 2", 60 << 10, true).err());
        assert!(full.contains("try again"), "{full}");
    });
    until("there is room again", || put(&store, "other 2", 60 << 10, true).ok());
    for (key, len) in [("own 0", 200 << 10), ("own 1", 50 << 10), ("other 1", 100 << 10)] {
        let value = Reply::Text("x".repeat(len));
        assert_eq!(trial.client().ask(&["GET", key]), value, "{key}");
    }
}

/// A transaction that has begun goes on; what others change meanwhile needs the lease.
#[test]
fn what_others_change_during_a_transaction_needs_the_lease() {
    let trial = Trial::new(&["a"], 3);
    assert_eq!(trial.client().ask(&["SET", "key", "1"]), Reply::Text("OK".into()));
    let (keeper, store) = trial.primary_store("a");
    keeper.together(&mut || {
        put(&store, "own 0", 10, false).unwrap();
        trial.lose_service("a");
        put(&store, "own 1", 10, false).unwrap();
        let refused = put(&store, "other", 10, true).unwrap_err();
        assert!(refused.contains("has no primary that serves"), "{refused}");
    });
}

/// The primary knows how far the others are, a backup how far it is itself; a lost node
/// has failed.
#[test]
fn shards_are_shown_as_they_are() {
    let mut trial = Trial::new(&["a"], 3);
    trial.client().ask(&["SET", "a", &"x".repeat(1000)]);
    let is_as_long = |node: &Shown, offset| node.offset >= offset && node.health == "online";
    let primary = until("the primary shows that the others have all", || {
        let nodes = shards(trial.primary_front("a"))?;
        let offset = nodes[0].offset;
        assert_eq!(nodes.len(), 3);
        let are_ready = nodes.iter().all(|node| is_as_long(node, offset));
        (are_ready && nodes[0].is_primary && offset > 1000).then_some(nodes)
    });
    assert!(!primary[1].is_primary && !primary[2].is_primary);
    for front in trial.fronts() {
        let own = i64::from(front.port());
        until("each knows how far it is itself", || {
            let nodes = shards(front)?;
            let me = nodes.iter().find(|node| node.port == own)?;
            is_as_long(me, primary[0].offset).then_some(())
        });
    }
    trial.kill_backup("a");
    until("the lost one has failed", || {
        let nodes = shards(trial.primary_front("a"))?;
        assert_eq!(nodes.len(), 3);
        let lost = nodes.iter().find(|node| node.health == "fail")?;
        let others = nodes.iter().filter(|node| node.health == "online");
        (lost.port == 0 && lost.offset == 0 && others.count() == 2).then_some(())
    });
}
