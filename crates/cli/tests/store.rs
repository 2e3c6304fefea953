//! `remora store`, as people use it: served, killed and started again.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::{Folder, command, fail, run, succeed};

/// A store that is served; it ends with the test.
struct Served {
    child: Child,
    ready: Value,
}

impl Served {
    fn start(more: &[&str]) -> Served {
        let mut command = command(["store", "serve", "--json", "--until-eof", "--memory", "64M"]);
        command.args(more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Served { child, ready: serde_json::from_str(&line).unwrap() }
    }

    fn in_folder(folder: &Path) -> Served {
        Served::start(&["--dir", folder.to_str().unwrap(), "--fsync", "always"])
    }

    /// Its address, as the commands take it.
    fn node(&self) -> String {
        self.ready["store"].as_str().unwrap().to_owned()
    }

    /// Where Redis' clients are served.
    fn redis(&self) -> String {
        self.ready["redis"][0].as_str().unwrap().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn put(node: &str, key: &str, value: &str) {
    succeed(["store", "put", node, key, value]);
}

fn get(node: &str, key: &str) -> String {
    succeed(["store", "get", node, key])
}

#[test]
fn keys_are_set_read_and_removed() {
    let served = Served::start(&["--redis", "0"]);
    let node = served.node();
    put(&node, "greeting", "hello");
    assert_eq!(get(&node, "greeting"), "hello");
    let about: Value =
        serde_json::from_str(&succeed(["store", "get", &node, "greeting", "--json"])).unwrap();
    assert_eq!((about["found"].as_bool(), about["bytes"].as_u64()), (Some(true), Some(5)));
    // Redis' clients see the same keys.
    let mut redis = TcpStream::connect(served.redis()).unwrap();
    redis.write_all(b"GET greeting\r\nSET price:1 24\r\n").unwrap();
    let lines: Vec<String> = BufReader::new(redis).lines().take(3).map(Result::unwrap).collect();
    assert_eq!(lines, ["$5", "hello", "+OK"]);
    let mut keys: Vec<String> =
        succeed(["store", "scan", &node]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["greeting", "price:1"]);

    let version = about["version"].to_string();
    assert!(fail(["store", "put", &node, "greeting", "x", "--if-absent"]).contains("condition"));
    succeed(["store", "put", &node, "greeting", ", world", "--append", "--if-version", &version]);
    assert_eq!(get(&node, "greeting"), "hello, world");
    assert!(fail(["store", "put", &node, "greeting", "x", "--if-value", "hello"]).contains("cond"));
    succeed(["store", "put", &node, "greeting", "bye", "--if-value", "hello, world"]);
    assert_eq!(succeed(["store", "get", &node, "greeting", "--if-value", "bye"]), "bye");
    succeed(["store", "put", &node, "brief", "x", "--expire", "0"]);
    assert!(fail(["store", "get", &node, "brief"]).contains("no key `brief`"));
    // What is put anew does not end with what was there; what is put behind it does.
    let ends = || {
        let about = succeed(["store", "get", &node, "fading", "--json"]);
        serde_json::from_str::<Value>(&about).unwrap()["expires_ms"].is_u64()
    };
    succeed(["store", "put", &node, "fading", "x", "--expire", "1000"]);
    succeed(["store", "put", &node, "fading", "y", "--append"]);
    assert!(ends());
    succeed(["store", "put", &node, "fading", "z"]);
    assert!(!ends());
    assert_eq!(succeed(["store", "delete", &node, "greeting", "none"]), "1 of 2 keys deleted\n");
    assert!(!run(["store", "delete", &node, "greeting"]).status.success());
}

#[test]
fn rows_are_selected_next_to_the_data() {
    let (served, folder) = (Served::start(&[]), Folder::new());
    let (node, schema) = (served.node(), folder.path("orders.schema"));
    std::fs::write(&schema, "id u32\nprice decimal(9, 2)\ncomment text\n").unwrap();
    let schema = schema.to_str().unwrap();
    for (id, price, comment) in [(1u32, 1250i32, "plain"), (2, 4000, "special"), (3, 99, "")] {
        let row = [&id.to_le_bytes()[..], &price.to_le_bytes(), comment.as_bytes()].concat();
        let file = folder.path("row");
        std::fs::write(&file, row).unwrap();
        let key = format!("order:{id}");
        succeed(["store", "put", &node, &key, "--in", file.to_str().unwrap()]);
    }
    let scan = |more: &[&str]| {
        let all = [&["store", "scan", &node, "--schema", schema], more].concat();
        let mut lines: Vec<String> = succeed(all).lines().map(str::to_owned).collect();
        lines[1..].sort();
        lines
    };
    assert_eq!(
        scan(&["--where", "price < 20"]),
        ["key\tid\tprice\tcomment", "order:1\t1\t12.50\tplain", "order:3\t3\t0.99\t"]
    );
    assert_eq!(
        scan(&["--where", "comment like '%cia%'", "--select", "price, id"]),
        ["key\tprice\tid", "order:2\t40.00\t2"]
    );
    let given = ["--parameter", "-1", "--parameter", "special"];
    let wanted = ["--where", "price > $1 and comment = $2", "--select", "id"];
    assert_eq!(scan(&[&wanted[..], &given].concat()), ["key\tid", "order:2\t2"]);
    // What is no row is looked at, too.
    succeed(["store", "put", &node, "greeting", "hello"]);
    let whole = run(["store", "scan", &node, "--schema", schema]);
    let told = String::from_utf8(whole.stderr).unwrap();
    assert!(told.contains("3 rows came, of 4 keys looked at\n1 value skipped: no row"), "{told}");
    let one = run(["store", "scan", &node, "--schema", schema, "--where", "id = 2"]);
    let told = String::from_utf8(one.stderr).unwrap();
    assert!(told.contains("1 row came, of 4 keys looked at"), "{told}");
    for (wanted, is_told) in [("id = 2", false), ("id = 9", true)] {
        let count = ["--select", "count", "--where", wanted];
        let count = run([&["store", "scan", &node, "--schema", schema], &count[..]].concat());
        let told = String::from_utf8(count.stderr).unwrap();
        assert_eq!(told.contains("1 value skipped: no row of the schema"), is_told, "{told}");
    }
    // Single keys are read and changed on a condition, too.
    let holds = |more: &[&str], predicate: &str| {
        let rest = ["--schema", schema, "--if-where", predicate];
        run([&["store"], more, &rest].concat()).status.success()
    };
    assert!(holds(&["get", &node, "order:1"], "price = 12.5"));
    assert!(!holds(&["get", &node, "order:1"], "price = 12"));
    assert!(!holds(&["put", &node, "order:2", "x"], "comment = 'plain'"));
    assert!(!holds(&["delete", &node, "order:2"], "comment = 'plain'"));
    let answers = scan(&["--select", "count, sum(price), max(price)", "--json"]);
    let answers: Value = serde_json::from_str(&answers[0]).unwrap();
    assert_eq!(answers["count"], "3");
    assert_eq!(answers["sum(price)"], "53.49");
    assert_eq!(answers["max(price)"], "40.00");
    let wrong = fail(["store", "scan", &node, "--schema", schema, "--where", "prise < 20"]);
    assert!(wrong.contains("no column `prise`") && wrong.contains("^^^^^"), "{wrong}");
}

/// Also those that are longer than any answer of the store.
#[test]
fn rows_of_any_length_are_scanned() {
    let (served, folder) = (Served::start(&[]), Folder::new());
    let (node, schema) = (served.node(), folder.path("notes.schema"));
    std::fs::write(&schema, "id u32\nnote text\n").unwrap();
    let (schema, file) = (schema.to_str().unwrap(), folder.path("row"));
    let lengths = [(1u32, 10), (2, 100_000), (3, 3 << 20), (4, 5 << 20), (5, 20)];
    let mut rows = Vec::new();
    for (id, len) in lengths {
        let note = "x".repeat(len);
        std::fs::write(&file, [&id.to_le_bytes()[..], note.as_bytes()].concat()).unwrap();
        let key = format!("note:{id}");
        succeed(["store", "put", &node, &key, "--in", file.to_str().unwrap()]);
        rows.push(format!("{key}\t{id}\t{note}"));
    }
    let scan = |more: &[&str]| {
        let said = succeed([&["store", "scan", &node, "--schema", schema], more].concat());
        let mut lines: Vec<String> = said.lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert!(scan(&[]) == rows, "all of them");
    assert!(scan(&["--where", "id between 2 and 3"]) == rows[1..3], "those that are selected");
    assert_eq!(scan(&["--where", "id > 3", "--select", "id"]), ["note:4\t4", "note:5\t5"]);
    assert_eq!(scan(&["--limit", "4"]).len(), 4);
}

#[test]
fn a_password_of_nobody_is_refused() {
    let refused = fail(["store", "serve", "--password", "secret"]);
    assert!(refused.contains("add --redis or --memcached"), "{refused}");
}

#[test]
fn what_was_acknowledged_outlives_a_kill() {
    let folder = Folder::new();
    let home = folder.path("home");
    let missing = fail(["store", "serve", "--dir", home.to_str().unwrap()]);
    assert!(missing.contains("mkdir"), "{missing}");
    std::fs::create_dir(&home).unwrap();
    let mut served = Served::in_folder(&home);
    let busy = fail(["store", "serve", "--port", "7490", "--dir", home.to_str().unwrap()]);
    assert!(!busy.is_empty());
    for n in 0..20 {
        put(&served.node(), &format!("key {n}"), &format!("value {n}"));
    }
    served.child.kill().unwrap();
    drop(served);
    let served = Served::in_folder(&home);
    assert!(served.ready["records"].as_u64() >= Some(20), "{}", served.ready);
    for n in 0..20 {
        assert_eq!(get(&served.node(), &format!("key {n}")), format!("value {n}"));
    }
}

/// A store that ends while its disk refuses says that changes are lost.
#[test]
fn an_end_that_loses_changes_is_an_error() {
    let folder = Folder::new();
    let home = folder.path("home");
    std::fs::create_dir(&home).unwrap();
    let mut served = Served::start(&["--dir", home.to_str().unwrap(), "--fsync", "everysec"]);
    std::fs::remove_dir_all(&home).unwrap();
    // It may find out before this change comes, and refuse it; its first one, of a tablespace, it
    // has taken.
    run(["store", "put", &served.node(), "key", "value"]);
    drop(served.child.stdin.take());
    assert_eq!(served.child.wait().unwrap().code(), Some(1));
}

/// What a store of damaged files has before the damage can be read and copied. Nothing is changed.
#[test]
fn what_comes_before_damage_is_served_to_be_read() {
    let folder = Folder::new();
    let home = folder.path("home");
    std::fs::create_dir(&home).unwrap();
    {
        let served = Served::in_folder(&home);
        ["one", "two", "three"].iter().for_each(|key| put(&served.node(), key, "a value"));
    }
    let files = || -> Vec<(PathBuf, Vec<u8>)> {
        let names = std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            names.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    };
    let (log, mut bytes) = files().pop().unwrap();
    let three = bytes.windows(5).position(|word| word == b"three").unwrap();
    bytes[three] ^= 1;
    std::fs::write(log, bytes).unwrap();
    let damaged = files();
    let dir = ["--dir", home.to_str().unwrap()];
    let refused = fail([&["store", "serve", "--port", "7490"], &dir[..]].concat());
    assert!(refused.contains("is damaged at byte") && refused.contains("--damaged"), "{refused}");
    let served = Served::start(&[&dir[..], &["--damaged", "--redis", "0"]].concat());
    assert!(served.ready["read_only"].as_str().unwrap().contains("is damaged at byte"));
    let node = served.node();
    assert_eq!((get(&node, "one"), get(&node, "two")), ("a value".into(), "a value".into()));
    assert!(fail(["store", "get", &node, "three"]).contains("three"));
    assert_eq!(succeed(["store", "scan", &node]).lines().count(), 2);
    let refused = fail(["store", "put", &node, "four", "x"]);
    assert!(refused.contains("read-only"), "{refused}");
    let mut redis = TcpStream::connect(served.redis()).unwrap();
    redis.write_all(b"SET four x\r\nSAVE\r\nGET one\r\n").unwrap();
    let lines: Vec<String> = BufReader::new(redis).lines().take(3).map(Result::unwrap).collect();
    assert!(
        lines[0].contains("is damaged at byte") && lines[1].starts_with("-ERR nothing"),
        "{lines:?}"
    );
    assert_eq!(lines[2], "$7");
    let dump = folder.path("dump");
    succeed(["store", "dump", &node, "--format", "json", "--out", dump.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&dump).unwrap().matches("a value").count(), 2);
    drop(served);
    assert!(files() == damaged, "the directory has changed");
}

#[test]
fn a_token_is_asked_for() {
    let token = "00112233445566778899aabbccddeeff";
    let served = Served::start(&["--token", token]);
    let refused = fail(["store", "get", &served.node(), "key"]);
    assert!(refused.contains("token"), "{refused}");
    let with = ["store", "put", &served.node(), "key", "value", "--token", token];
    succeed(with);
}

#[test]
fn files_are_loaded_and_dumped() {
    let (served, folder) = (Served::start(&["--redis", "0"]), Folder::new());
    let node = served.node();
    let file = |name: &str, text: &str| {
        let path = folder.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schema = file("orders.schema", "id u32\nprice decimal(9, 2)\ncomment text\n");
    let rows: String = (0..3000).map(|n| format!("{n},{}.50,\"no, {n}\"\n", n % 50)).collect();
    let orders = file("orders.csv", &format!("id,price,comment\n{rows}"));
    succeed(["store", "tablespace", &node, "create", "orders", "--quota", "8M", "--codec", "lz4"]);
    let to = ["--schema", &schema, "--tablespace", "orders"];
    let said = succeed([&["store", "load", &node, &orders, "--key", "id"], &to[..]].concat());
    assert!(said.starts_with("3 000 rows loaded"), "{said}");
    let wanted = ["--where", "price < 1 and comment like '%, 15%'", "--select", "count"];
    let found = succeed([&["store", "scan", &node, "--json"], &to[..], &wanted[..]].concat());
    assert_eq!(found, "{\"count\":\"3\"}\n", "150, 1500 and 1550");
    let wanted = ["--where", "id < 3", "--select", "max( price )"];
    let found = succeed([&["store", "scan", &node, "--json"], &to[..], &wanted[..]].concat());
    assert!(found.contains("\"2.50\""), "{found}");

    // What was dumped can be loaded again, whatever it is written as.
    let dumped = folder.path("dumped.csv");
    let out = dumped.to_str().unwrap();
    succeed([&["store", "dump", &node, "--out", out], &to[..]].concat());
    let text = std::fs::read_to_string(&dumped).unwrap();
    assert!(text.starts_with("key,id,price,comment\n"), "{}", &text[..40]);
    let sorted = |lines: &str| {
        let mut lines: Vec<String> = lines.lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected: String =
        (0..3000).map(|n| format!("\n{n},{n},{}.50,\"no, {n}\"", n % 50)).collect();
    assert_eq!(sorted(&text), sorted(&format!("head{expected}")));
    succeed(["store", "put", &node, "brief", "x", "--expire", "1000"]);
    let resp = succeed(["store", "dump", &node, "--format", "resp"]);
    let mut redis = TcpStream::connect(served.redis()).unwrap();
    redis.write_all(b"FLUSHALL\r\n").unwrap();
    redis.write_all(resp.as_bytes()).unwrap();
    redis.write_all(b"TTL brief\r\n").unwrap();
    let lines: Vec<String> = BufReader::new(redis).lines().take(3).map(Result::unwrap).collect();
    assert_eq!(lines[..2], ["+OK", "+OK"]);
    assert!([":999", ":1000"].contains(&lines[2].as_str()), "{lines:?}");
    let json = succeed(["store", "dump", &node, "--format", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["key"], &json["value"]), (&"brief".into(), &"x".into()));
    assert!(json["expires_ms"].as_u64() > Some(0));
    succeed(["store", "tablespace", &node, "drop", "orders"]);
    let gone = fail(["store", "scan", &node, "--tablespace", "orders"]);
    assert!(gone.contains("no tablespace `orders`; there are: db0"), "{gone}");
}

/// A pipe is read once, from its first byte on.
#[test]
fn what_comes_by_a_pipe_is_loaded() {
    let (served, folder) = (Served::start(&[]), Folder::new());
    let (node, pipe) = (served.node(), folder.path("pipe"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let path = pipe.to_str().unwrap();
    let said = std::thread::scope(|threads| {
        threads.spawn(|| std::fs::write(&pipe, "key,value\na,1\nb,2\n").unwrap());
        succeed(["store", "load", &node, path])
    });
    assert!(said.starts_with("2 rows loaded"), "{said}");
    assert_eq!(succeed(["store", "get", &node, "a"]), "1");
}

/// What was dumped before is still there when a later dump fails.
#[test]
fn a_dump_that_fails_leaves_the_file_as_it_was() {
    let folder = Folder::new();
    let backup = folder.path("backup.csv");
    std::fs::write(&backup, "key,value\na,1\n").unwrap();
    let store = Served::start(&[]);
    let out = backup.to_str().unwrap();
    fail(["store", "dump", &store.node(), "--tablespace", "none", "--out", out]);
    assert_eq!(std::fs::read_to_string(&backup).unwrap(), "key,value\na,1\n");
    assert_eq!(std::fs::read_dir(backup.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn what_redis_has_saved_is_loaded_and_dumped() {
    let (served, folder) = (Served::start(&[]), Folder::new());
    let node = served.node();
    let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/data/redis-7.0.15.rdb");
    let said = succeed(["store", "load", &node, saved]);
    assert!(said.starts_with("10 rows loaded") && said.contains("2 of type hash"), "{said}");
    assert_eq!(get(&node, "int16"), "30000");
    let in_db5 = ["store", "get", &node, "expires", "--tablespace", "db5"];
    assert_eq!(succeed(in_db5), "later");
    let refused = fail(["store", "load", &node, saved, "--tablespace", "db0"]);
    assert!(refused.contains("several databases"), "{refused}");
    // What is dumped has all of it; what is damaged is not begun with.
    let dumped = folder.path("dumped.rdb");
    let out = dumped.to_str().unwrap();
    succeed(["store", "dump", &node, "--format", "rdb", "--out", out]);
    for space in ["db0", "db5"] {
        succeed(["store", "tablespace", &node, "flush", space]);
    }
    let bytes = std::fs::read(&dumped).unwrap();
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&dumped, damaged).unwrap();
    assert!(fail(["store", "load", &node, out]).contains("checksum"));
    assert_eq!(succeed(["store", "scan", &node]), "");
    std::fs::write(&dumped, bytes).unwrap();
    assert!(succeed(["store", "load", &node, out]).starts_with("10 rows loaded"));
    let about = succeed([&in_db5[..], &["--json"]].concat());
    let about: Value = serde_json::from_str(&about).unwrap();
    assert_eq!(about["expires_ms"], 4_102_444_800_123u64);
    // What was to stay there stays where a tablespace lets its keys go.
    succeed(["store", "dump", &node, "--format", "rdb", "--tablespace", "db0", "--out", out]);
    succeed(["store", "tablespace", &node, "create", "brief", "--expire", "1000"]);
    succeed(["store", "load", &node, out, "--tablespace", "brief"]);
    let about = succeed(["store", "get", &node, "int16", "--tablespace", "brief", "--json"]);
    let about: Value = serde_json::from_str(&about).unwrap();
    assert_eq!(about["expires_ms"], Value::Null);
    let wrong = fail(["store", "load", &node, out, "--key", "id"]);
    assert!(wrong.contains("leave out --schema and --key"), "{wrong}");
}

#[test]
fn a_file_that_is_no_table_is_refused_where_it_is_wrong() {
    let (served, folder) = (Served::start(&[]), Folder::new());
    let node = served.node();
    let load = |text: &str, more: &[&str]| {
        let path = folder.path("rows.csv");
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_owned();
        fail([&["store", "load", &node, path.as_str()], more].concat())
    };
    let schema = folder.path("schema");
    std::fs::write(&schema, "price u8\n").unwrap();
    let with = ["--schema", schema.to_str().unwrap()];
    let wrong = load("key,price\na,1\nb,256\n", &with);
    assert!(wrong.contains("rows.csv, line 3") && wrong.contains("`price`: `256`"), "{wrong}");
    let wrong = load("key,price\na,1\nb\n", &with);
    assert!(wrong.contains("line 3: there are 1 fields, and 2 columns"), "{wrong}");
    let wrong = load("key,prize\n", &with);
    assert!(wrong.contains("no column `price`; there are: key, prize"), "{wrong}");
    let wrong = load("a,b,c\n", &[]);
    assert!(wrong.contains("without --schema"), "{wrong}");
    let long = "k".repeat(70_000);
    let wrong = load(&format!("key,value\n{long},x\n"), &[]);
    assert!(wrong.contains("rows.csv, line 2"), "{wrong}");
    let unknown = load("key,value\n", &["--tablespace", "none"]);
    assert!(unknown.contains("no tablespace `none`"), "{unknown}");
    if cfg!(not(feature = "parquet")) {
        let wrong = load("PAR1", &[]);
        assert!(wrong.contains("--features parquet"), "{wrong}");
    }
}

#[test]
fn a_store_says_what_it_has_done() {
    let served = Served::start(&[]);
    let node = served.node();
    put(&node, "key", "value");
    get(&node, "key");
    assert!(fail(["store", "get", &node, "none"]).contains("no key"));
    let told: Value = serde_json::from_str(&succeed(["store", "info", &node, "--json"])).unwrap();
    assert_eq!((&told["counts"]["hits"], &told["counts"]["misses"]), (&1.into(), &1.into()));
    assert_eq!(told["tablespaces"][0]["name"], "db0");
    assert_eq!(told["tablespaces"][0]["keys"], 1);
    let gets = told["latencies"].as_array().unwrap().iter();
    let gets = gets.filter(|l| (&l["way"], &l["operation"]) == (&"kernel".into(), &"get".into()));
    assert_eq!(gets.map(|l| l["count"].as_u64().unwrap()).sum::<u64>(), 2);
    let shown = succeed(["store", "info", &node, "--classes", "--slow"]);
    for word in ["hits", "p99 µs", "tablespace", "in use"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    // The command for memory nodes finds the store, too.
    let stats: Value = serde_json::from_str(&succeed(["stats", &node, "--json"])).unwrap();
    assert!(stats["hits"].as_u64() >= Some(1), "{stats}");
    let ip = node.rsplit_once(':').unwrap().0;
    assert_eq!(stats["tablespaces"][0]["classes"][0]["used"], 1);
    assert!(stats["latencies"][0]["p99_ns"].as_u64() > Some(0), "{stats}");
    let shown = succeed(["stats", ip, "--memory"]);
    for word in ["used_bytes", "p99 µs", "there are"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let list = succeed(["store", "tablespace", &node, "list"]);
    assert!(list.contains("db0") && list.contains("refuses"), "{list}");
    let kept = fail(["store", "tablespace", &node, "drop", "db0"]);
    assert!(kept.contains("flush it instead"), "{kept}");
    succeed(["store", "tablespace", &node, "flush", "db0"]);
    assert!(fail(["store", "get", &node, "key"]).contains("no key"));
}
