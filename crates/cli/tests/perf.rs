//! `remora perf` and `remora bench`, as a user runs them. The measured values are not checked here.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use remora::offload::cpu::{self, Level};
use remora::{ConnectionParams, Device, QueuePairOptions};
use serde_json::Value;

/// How long anything may take. Only a hang takes that long: nothing is concluded from time.
const PATIENCE: Duration = Duration::from_secs(120);

fn remora(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args.split(' ')).stdin(Stdio::null());
    command
}

fn run(args: &str) -> Output {
    remora(args).output().unwrap()
}

fn json(args: &str) -> Value {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`remora {args}`: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error output of a run that fails.
fn failure(args: &str) -> String {
    let output = run(args);
    assert!(!output.status.success(), "`remora {args}` should fail");
    String::from_utf8(output.stderr).unwrap()
}

/// A server that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Server {
        let mut child = remora("perf serve").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Server { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn latency_of_every_verb() {
    for verb in ["write", "read", "send", "atomic"] {
        let row = json(&format!("perf {verb} lat --iters 40 --no-pin --json"));
        assert_eq!(row["test"], format!("{verb} lat"));
        assert_eq!((&row["bytes"], &row["iterations"]), (&8.into(), &40.into()));
        let figures = ["min_us", "median_us", "p99_us", "p999_us", "max_us"];
        let values: Vec<f64> = figures.iter().map(|f| row[f].as_f64().unwrap()).collect();
        assert!(values[0] > 0.0 && values.is_sorted(), "{verb}: {row}");
    }
}

#[test]
fn bandwidth_of_every_verb_on_several_queue_pairs() {
    for verb in ["write", "read", "send", "atomic"] {
        let size = if verb == "atomic" { "" } else { " --size 5000" };
        let row =
            json(&format!("perf {verb} bw{size} --qps 3 --iters 50 --depth 10 --no-pin --json"));
        assert_eq!((&row["iterations"], &row["qps"]), (&150.into(), &3.into()), "{row}");
        assert!(row["gbps"].as_f64().unwrap() > 0.0 && row["mmsgps"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn sizes_from_one_byte_to_many_packets() {
    for (verb, size) in [("write", "1"), ("send", "1"), ("write", "65"), ("read", "1M")] {
        for mode in ["lat", "bw"] {
            json(&format!("perf {verb} {mode} --size {size} --iters 5 --no-pin --json"));
        }
    }
}

#[test]
fn a_small_path_mtu_is_honoured() {
    let row = json("perf write bw --size 10K --mtu 256 --iters 20 --no-pin --json");
    assert_eq!(row["mtu"], 256);
}

#[test]
fn a_thousand_queue_pairs() {
    let row = json("perf write bw --size 64 --qps 1000 --iters 8 --depth 8 --no-pin --json");
    assert_eq!(row["iterations"], 8000);
}

#[test]
fn a_time_instead_of_a_number() {
    let row = json("perf write lat --duration 0.01 --no-pin --json");
    assert!(row["iterations"].as_u64().unwrap() > 0);
}

#[test]
fn one_server_serves_several_clients_one_after_the_other() {
    let server = Server::start();
    for test in ["write lat", "send bw", "atomic bw"] {
        json(&format!("perf {test} {} --iters 20 --no-pin --json", server.address));
    }
}

#[test]
fn a_huge_plan_is_refused_and_the_server_serves_on() {
    let server = Server::start();
    let node: SocketAddr = server.address.parse().unwrap();
    let device = Device::open().unwrap();
    let cq = device.create_cq(8).unwrap();
    let qp = device.alloc_pd().unwrap().create_qp(&QueuePairOptions::rc(&cq)).unwrap();
    // Bandwidth of SENDs of 1 GiB, on 1024 queue pairs with 1024 in flight each.
    let mut plan = b"perf\x01\x03\x01\0".to_vec();
    plan.extend([1_u32 << 30, 1024, 1024].map(u32::to_be_bytes).concat());
    let params = ConnectionParams::new(device.info().mtu);
    let refusal = device.connect(qp, node, &plan, &params).wait(PATIENCE).unwrap_err();
    assert!(refusal.to_string().contains("at most 4294967296 bytes in all"), "{refusal}");
    json(&format!("perf write lat {} --iters 20 --no-pin --json", server.address));
}

#[test]
fn the_table_and_the_counters() {
    let output = run("perf write lat --iters 10 --no-pin --stats");
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("median µs") && table.contains("verified"), "{table}");
    let counters = String::from_utf8(output.stderr).unwrap();
    assert_eq!(counters.matches("│ rx_packets ").count(), 2, "of both ends: {counters}");
}

#[test]
fn mistakes_are_reported() {
    let cases = [
        ("perf write lat --size 0", "the least is 1 B"),
        ("perf write bw --mtu 100", "an MTU is 256"),
        ("perf atomic lat --size 16", "8 bytes"),
        ("perf write lat --qps 2", "one queue pair"),
        ("perf write bw --size 1G --qps 5", "at most 4294967296 bytes in all"),
        ("perf write lat --bind nosuch0", "nosuch0"),
        ("perf write lat no.such.name.invalid", "no.such.name.invalid"),
    ];
    for (args, words) in cases {
        let said = failure(args);
        assert!(said.contains(words), "`remora {args}` says: {said}");
    }
}

#[test]
fn an_address_without_a_server_is_reported() {
    let server = Server::start();
    let ip = server.address.split(':').next().unwrap();
    let said = failure(&format!("perf write lat {ip}:9 --no-pin"));
    assert!(said.contains("cannot connect") && said.contains(ip), "{said}");
}

#[test]
fn kernels_are_measured_beside_their_baselines() {
    let folder = std::env::temp_dir().join(format!("remora-kernels-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (json, page) = (folder.join("rows.json"), folder.join("page.html"));
    let mut command = remora("bench kernels --quick --no-pin");
    let output = command.arg("--json").arg(&json).arg("--html").arg(&page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let rows = rows.as_array().unwrap();
    let has = |name: &str| rows.iter().any(|row| row["name"].as_str().unwrap().starts_with(name));
    let bounded = ["traversal_8", "get_64B", "consistency_4KiB", "stream_hyperloglog"];
    let more = ["stream_filter", "stream_shuffle", "wasm_get", "wasm_call_ns", "wasm_1000"];
    for name in bounded.iter().chain(&more) {
        assert!(has(name) && page.contains(name), "{name} is missing");
    }
    for figure in ["fig7", "fig8", "fig9", "fig10", "fig11", "fig13a", "fig13"] {
        assert!(has(figure) && page.contains(&format!("id=\"{figure}\"")), "{figure} is missing");
    }
    for row in rows {
        assert!(row["ratio"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(page.matches("<svg").count(), 7);
    assert!(page.contains(&format!("processor: {}", cpu::level())), "the page names the level");
}

const GOODPUT: [&str; 4] =
    ["goodput_loss_0", "goodput_loss_0.01%", "goodput_loss_0.1%", "goodput_loss_1%"];

const TRANSPORT_ROWS: [&str; 6] = [
    "write_latency_8B",
    "write_bandwidth_1MiB",
    "write_rate_64B",
    "oversubscribed_send_64KB",
    "oversubscribed_send_64KB_sleep",
    "oversubscribed_send_8B_sleep",
];

#[test]
fn the_bench_prints_and_writes_its_rows() {
    let file = std::env::temp_dir().join(format!("remora-bench-{}.json", std::process::id()));
    let level = Level::all().next().unwrap().name();
    let mut command = remora(&format!("bench transport --quick --cpu {level} --json"));
    let output = command.arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let names: Vec<&str> =
        rows.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names[..6], TRANSPORT_ROWS);
    assert_eq!(names[6..], GOODPUT);
    for row in rows.as_array().unwrap() {
        let ratio =
            row["ours"]["median"].as_f64().unwrap() / row["peer"]["median"].as_f64().unwrap();
        assert!((row["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9 * ratio);
        assert!(row["peer"]["name"].is_string() && row["unit"].is_string());
        assert_eq!(row["cpu"], level);
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("write_rate_64B") && printed.contains(&format!("processor: {level}")));
}

#[test]
fn figures_alone_name_the_processor() {
    let page = std::env::temp_dir().join(format!("remora-fig7-{}.html", std::process::id()));
    let mut command = remora("bench kernels --quick --no-pin --only fig7 --html");
    let output = command.arg(&page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&page).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.matches("processor: ").count(), 1, "{printed}");
}

#[test]
fn a_bench_of_nothing_says_so() {
    for bench in ["local", "transport", "loss"] {
        let said = failure(&format!("bench {bench} --quick --only tpyo"));
        assert!(said.contains("nothing is called `tpyo`"), "{bench}: {said}");
    }
}

#[test]
fn a_level_of_processor_that_there_is_none_of_is_refused() {
    for arguments in ["devinfo", "bench transport --quick"] {
        let output = remora(arguments).env(cpu::VARIABLE, "v9").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("REMORA_CPU=v9 names no level"),
            "{said}"
        );
    }
}

const CHAIN_ROWS: [&str; 9] = [
    "if_elements",
    "while_elements",
    "hash_get_64B",
    "hash_get_collision",
    "hash_get_sequential",
    "hash_get_two_sided",
    "get_p99_16_writers",
    "get_p99_16_writers_two_sided",
    "get_p99_16_writers_event",
];
/// A point of each figure, and the number of its rows: one for each way but Remora's.
const CHAIN_POINTS: [(&str, usize); 7] = [
    ("fig8: 64", 2),
    ("table3: CAS", 1),
    ("fig10: 64 KiB", 5),
    ("fig11: 64 B", 5),
    ("table4: 1 KiB", 2),
    ("fig13: 8", 4),
    ("fig15: 16", 7),
];

#[test]
fn the_bench_of_chains_writes_its_rows_and_a_page() {
    let path = |end: &str| {
        std::env::temp_dir().join(format!("remora-chains-{}.{end}", std::process::id()))
    };
    let (json, html) = (path("json"), path("html"));
    let mut command = remora("bench chains --quick --json");
    let output = command.arg(&json).arg("--html").arg(&html).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names[..CHAIN_ROWS.len()], CHAIN_ROWS);
    for (point, ways) in CHAIN_POINTS {
        let count = names.iter().filter(|name| **name == point).count();
        assert_eq!(count, ways, "{point}: {names:?}");
    }
    for row in rows {
        let median = |side: &str| row[side]["median"].as_f64().unwrap();
        assert!(median("ours") > 0.0 && median("peer") > 0.0, "{row}");
    }
    assert_eq!(page.matches("<svg").count(), CHAIN_POINTS.len());
    assert!(page.contains("RedN’s Table 3") && page.contains("ConnectX-5"));
}
