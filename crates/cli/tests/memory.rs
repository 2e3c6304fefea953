//! `remora node` and `remora mem` between processes.

mod support;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Folder, Node, command, fail, pattern, region_of, run, succeed, until};

#[test]
fn bytes_arrive_exactly_in_both_directions() {
    let folder = Folder::new();
    let data = folder.file("data", 5_000_003);
    let node = Node::start(["--region", &region_of("data", &data), "--region", "m=16M,rw"]);
    let (copy, back) = (folder.path("copy"), folder.path("back"));
    succeed(["mem", "read", &node.region("data"), "--out", copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == pattern(5_000_003));

    // To another place in memory, and a part of it back.
    let (region, data) = (node.region("m"), data.to_str().unwrap());
    succeed(["mem", "write", &region, "--offset", "1M", "--in", data]);
    let args = ["mem", "read", &region, "--offset", "1048579", "--len", "3000000", "--out"];
    succeed(args.iter().copied().chain([back.to_str().unwrap()]));
    assert!(fs::read(&back).unwrap() == pattern(5_000_003)[3..3_000_003]);
    let before = run(["mem", "read", &region, "--len", "1M", "--out", "-"]);
    assert!(before.status.success() && before.stdout == vec![0; 1 << 20]);
    assert_eq!(folder.names(), ["back", "copy", "data"]);
    node.finish();
}

#[test]
fn standard_input_is_written_as_far_as_there_is_room() {
    let node = Node::start(["--region", "m=3M,rw"]);
    let write = |bytes: Vec<u8>| {
        let mut child = command(["mem", "write", &node.region("m"), "--offset", "1", "--in", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || stdin.write_all(&bytes).ok());
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let room = (3 << 20) - 1;
    assert_eq!(write(pattern(room)), (true, String::new()));
    let back = run(["mem", "read", &node.region("m"), "--offset", "1", "--out", "-"]);
    assert!(back.stdout == pattern(room));
    let (fits, why) = write(pattern(room + 1));
    assert!(!fits && why.contains("the input is longer than the 3145727 bytes"), "{why}");
}

/// As in `remora mem read … --out - | head -c 10`.
#[test]
fn a_reader_that_goes_ends_a_command_quietly() {
    let node = Node::start(["--region", "m=3M"]);
    let (address, region) = (node.address(), node.region("m"));
    for args in [
        &["mem", "ls", &address, "--json"][..],
        &["mem", "read", &region, "--out", "-"],
        &["stats", &address, "--watch", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(args).stdout(writer).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(128 + 13), "{args:?}");
    }
}

#[test]
fn another_name_of_standard_output_is_standard_output() {
    let folder = Folder::new();
    let data = folder.file("data", 1000);
    let node = Node::start(["--region", &region_of("data", &data)]);
    let file = folder.path("file");
    // As /dev/stdout is, which a mistake would replace for all.
    let name = folder.path("stdout");
    std::os::unix::fs::symlink("/proc/self/fd/1", &name).unwrap();
    let script = "(echo before; \"$0\" mem read \"$1\" --out \"$3\"; echo after) > \"$2\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_remora"), &node.region("data")]).arg(&file);
    shell.arg(&name);
    assert!(shell.status().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), [b"before\n", &pattern(1000)[..], b"after\n"].concat());
}

/// The first signal ends a command that waits for its input; `nohup` keeps it.
#[test]
fn a_command_that_waits_for_its_input_can_be_stopped() {
    let node = Node::start(["--region", "m=3M,rw"]);
    let begin = |signal: &str, way: &str| {
        // (The test itself may have been started by `nohup`.)
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", "sh", "-c", &format!("{way} exec \"$@\""), "sh"])
            .arg(env!("CARGO_BIN_EXE_remora"))
            .args(["mem", "write", &node.region("m"), "--in", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let piece = signal.as_bytes().iter().copied().cycle().take(1 << 20).collect::<Vec<_>>();
        child.stdin.as_mut().unwrap().write_all(&piece).unwrap();
        let read = ["mem", "read", &node.region("m"), "--len", "1M", "--out", "-"];
        until("the first piece has come", || run(read).stdout == piece);
        let done = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(done.unwrap().success());
        child
    };
    for signal in ["-INT", "-TERM", "-1"] {
        let mut child = begin(signal, "");
        let stdin = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal}: {said}");
        assert_eq!(said, "remora: the transfer was stopped before its end\n");
    }
    let mut child = begin("-HUP", "trap '' HUP;");
    child.stdin.as_mut().unwrap().write_all(b"more").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    let all = run(["mem", "read", &node.region("m"), "--offset", "1M", "--len", "4", "--out", "-"]);
    assert_eq!(all.stdout, b"more");
}

#[test]
fn a_file_region_can_be_written_in_place() {
    let folder = Folder::new();
    let file = folder.file("file", 100_000);
    let node = Node::start(["--region", &(region_of("file", &file) + ",rw")]);
    let patch = folder.path("patch");
    fs::write(&patch, b"one-sided").unwrap();
    let (region, patch) = (node.region("file"), patch.to_str().unwrap());
    succeed(["mem", "write", &region, "--offset", "70000", "--in", patch]);
    let mut expected = pattern(100_000);
    expected[70_000..70_009].copy_from_slice(b"one-sided");
    assert!(fs::read(&file).unwrap() == expected);
    let why = fail(["mem", "write", &region, "--offset", "99999", "--in", patch]);
    assert!(why.contains("has 9 bytes") && why.contains("room for 1 "), "{why}");
    assert!(fs::read(&file).unwrap() == expected, "a write that does not fit writes nothing");
}

#[test]
fn refusals_say_why() {
    let folder = Folder::new();
    let data = folder.file("data", 10_000);
    let data_path = data.to_str().unwrap();
    let node = Node::start(["--region", &region_of("data", &data)]);
    let copy = folder.path("copy");
    let copy = copy.to_str().unwrap();
    let why = fail(["mem", "write", &node.region("data"), "--in", data_path]);
    assert!(why.contains("is read-only") && why.contains(",rw"), "{why}");
    let why = fail(["mem", "read", &node.region("nothing"), "--out", copy]);
    assert!(why.contains("has no region `nothing`"), "{why}");
    let why = fail([
        "mem",
        "read",
        &node.region("data"),
        "--offset",
        "9999",
        "--len",
        "2",
        "--out",
        copy,
    ]);
    assert!(why.contains("bytes 9999 to 10001 are not within"), "{why}");
    let why = fail(["mem", "read", &node.region("data"), "--out", "/nowhere/at/all"]);
    assert!(why.contains("cannot write"), "{why}");
    let why = fail(["mem", "write", &node.region("data"), "--in", "/nowhere/at/all"]);
    assert!(why.contains("cannot read /nowhere/at/all"), "{why}");
    let why = fail(["mem", "read", "nonsense", "--out", copy]);
    assert!(why.contains("does not name a region"), "{why}");
    assert_eq!(folder.names(), ["data"], "no half file is left");
    let (_, said) = node.finish();
    assert!(said.contains("it has no region `nothing`"), "{said}");
}

#[test]
fn a_node_with_a_token_admits_only_clients_that_show_it() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let node = Node::start(["--region", "m=1M", "--token", TOKEN]);
    assert_eq!(node.ready["token"], TOKEN);
    let address = node.address();
    let wrong = fail(["mem", "ls", &address, "--token", "00000000000000000000000000000001"]);
    assert!(wrong.contains("no token or a wrong one"), "{wrong}");
    let none = fail(["mem", "ls", &address]);
    assert!(none.contains("no token or a wrong one"), "{none}");
    let form = fail(["mem", "ls", &address, "--token", "sesame"]);
    assert!(form.contains("32 hexadecimal digits"), "{form}");
    succeed(["mem", "ls", &address, "--token", TOKEN]);
    let by_environment = command(["mem", "ls", &address]).env("REMORA_TOKEN", TOKEN).output();
    assert!(by_environment.unwrap().status.success());
    let (_, said) = node.finish();
    assert!(!said.contains(TOKEN), "tokens do not belong in a log");
}

#[test]
fn files_and_sizes_that_cannot_be_served_are_refused_at_the_start() {
    let folder = Folder::new();
    let empty = folder.file("empty", 0);
    for (region, words) in [
        (region_of("a", &folder.path("missing")), "No such file"),
        (region_of("a", &empty), "the file is empty"),
        (region_of("a", &folder.path(".")), "it is not a regular file"),
        ("a=99999T".to_owned(), "cannot make region `a`"),
        ("a/b=1M".to_owned(), "is not a name for a region"),
        ("a".to_owned(), "write NAME=FILE or NAME=SIZE"),
    ] {
        let why = fail(["node", "--region", &region]);
        assert!(why.contains(words), "{region}: {why}");
    }
    let twice = fail(["node", "--region", "a=1M", "--region", "a=2M"]);
    assert!(twice.contains("two regions are called `a`"), "{twice}");
}

#[test]
fn a_list_and_counters_can_be_read_one_sided() {
    let node = Node::start(["--region", "b=2K,rw", "--region", "a=1500"]);
    let address = node.address();
    let list: Value = serde_json::from_str(&succeed(["mem", "ls", &address, "--json"])).unwrap();
    assert_eq!((&list[0]["name"], &list[0]["bytes"]), (&"a".into(), &1500.into()));
    assert_eq!((&list[1]["name"], &list[1]["writable"]), (&"b".into(), &true.into()));
    assert_eq!(list.as_array().unwrap().len(), 2, "the node's own regions are not listed");
    let stats: Value = serde_json::from_str(&succeed(["stats", &address, "--json"])).unwrap();
    assert_eq!(stats["node"], *address);
    assert!(
        stats["counters"]["rx_packets"].is_u64() && stats["events"]["clients_admitted"].is_u64()
    );
    assert!(succeed(["stats", &address, "--all"]).contains("drop_icrc"));
    assert!(succeed(["mem", "ls", &address]).contains("1 500"));
}

#[test]
fn a_port_without_a_node_is_reported() {
    let node = Node::start(["--region", "m=1M"]);
    let other_port = format!("{}:7", node.address());
    let why = fail(["mem", "ls", &other_port]);
    assert!(why.contains("no memory node listens on its port 7"), "{why}");
}

#[test]
fn the_device_describes_itself() {
    let info: Value = serde_json::from_str(&succeed(["devinfo", "--json"])).unwrap();
    assert_eq!((&info["hca_id"], &info["state"]), (&"remora0".into(), &"PORT_ACTIVE".into()));
    assert_eq!((&info["max_mtu"], &info["max_sge"]), (&4096.into(), &16.into()));
    assert!(info["gid[0]"].as_str().unwrap().starts_with("::ffff:127."));
    assert!(succeed(["devinfo"]).contains("page_table_entries:"));
    let why = fail(["devinfo", "--bind", "no-such-interface"]);
    assert!(
        why.contains("no interface or address of this machine is `no-such-interface`"),
        "{why}"
    );
}
