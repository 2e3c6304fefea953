//! `remora store`, as people use it: served, killed and started again.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

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
    succeed(["store", "put", &node, "brief", "x", "--expire", "0"]);
    assert!(fail(["store", "get", &node, "brief"]).contains("no key `brief`"));
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
    let answers = scan(&["--select", "count, sum(price), max(price)", "--json"]);
    let answers: Value = serde_json::from_str(&answers[0]).unwrap();
    assert_eq!(answers["count"], "3");
    assert_eq!(answers["sum(price)"], "53.49");
    assert_eq!(answers["max(price)"], "40.00");
    let wrong = fail(["store", "scan", &node, "--schema", schema, "--where", "prise < 20"]);
    assert!(wrong.contains("no column `prise`") && wrong.contains("^^^^^"), "{wrong}");
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

#[test]
fn a_token_is_asked_for() {
    let token = "00112233445566778899aabbccddeeff";
    let served = Served::start(&["--token", token]);
    let refused = fail(["store", "get", &served.node(), "key"]);
    assert!(refused.contains("token"), "{refused}");
    let with = ["store", "put", &served.node(), "key", "value", "--token", token];
    succeed(with);
}
