//! Programs for RDMA hardware, unmodified, as two processes on Remora: tools of the distribution,
//! and the crate `ibverbs` from the registry.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use support::skips;
use support::verbs::{Running, described, free_port, installed, printed, remora_run};

/// Runs a `qperf` server and its client, for some of its tests. Each test prints figures, or fails.
fn qperf(tests: &[&str]) {
    if !installed(&[("qperf", "qperf")]) {
        return;
    }
    let port = free_port().to_string();
    let mut server = Running::start(&mut remora_run(["--", "qperf", "--listen_port", &port]));
    server.listens_on_tcp(port.parse().unwrap());
    let client = |args: &[&str]| {
        let mut command = remora_run(["--", "qperf", "--listen_port", &port, "--time", "1"]);
        printed(command.arg("127.0.0.1").args(args))
    };
    for test in tests {
        let out = client(&[test]);
        let figures: Vec<&str> = out.lines().filter(|line| line.contains(" = ")).collect();
        assert!(!figures.is_empty(), "{test}: {out}");
        for figure in figures {
            let value = figure.split(" = ").nth(1).unwrap().trim();
            assert!(!value.starts_with("0 "), "{test} measured nothing: {out}");
        }
    }
    client(&["quit"]);
    server.succeeds();
}

#[test]
fn qperf_of_reliable_connections() {
    qperf(&["rc_bw", "rc_bi_bw", "rc_lat"]);
}

#[test]
fn qperf_of_one_sided_operations() {
    qperf(&["rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat"]);
    qperf(&["rc_rdma_write_poll_lat"]);
}

#[test]
fn qperf_of_atomics() {
    qperf(&["rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"]);
}

#[test]
fn qperf_of_unreliable_services() {
    qperf(&["ud_bw", "ud_bi_bw", "ud_lat", "uc_bw", "uc_lat"]);
}

/// Runs `fio` with its engine `rdma`, which connects by rdma_cm and moves memory by `verb`. The
/// engine allows no retries when a receive is not posted yet, so the server's queue must be deeper.
fn fio(verb: &str) {
    if !installed(&[("fio", "fio")]) {
        return;
    }
    let port = free_port();
    let job = |more: &[&str]| {
        let mut command = remora_run(["--", "fio", "--name=job", "--ioengine=rdma"]);
        command.args(["--bs=64k", "--size=8m", "--thread"]);
        command.arg(format!("--port={port}")).arg(format!("--verb={verb}")).args(more);
        // fio may leave files, which must not be in the source tree.
        command.current_dir(std::env::temp_dir());
        command
    };
    // For this engine, the side that "reads" is the server, whatever the verb; it takes the verb
    // from the client.
    let mut server = Running::start(&mut job(&["--rw=read", "--iodepth=64"]));
    server.listens_by_cm(port);
    let out = printed(&mut job(&["--rw=write", "--iodepth=2", "--hostname=127.0.0.1"]));
    assert!(out.contains("err= 0") && out.contains("io=8192KiB"), "{out}");
    server.succeeds();
}

#[test]
fn fio_writes() {
    fio("write");
}

#[test]
fn fio_reads() {
    fio("read");
}

#[test]
fn fio_sends() {
    fio("send");
}

/// Builds `tests/ibverbs-crate` (later runs build only what has changed). `None`, with a reason, if
/// the registry cannot be reached or tools for the crate's own build are missing.
fn ibverbs_crate() -> Option<[std::path::PathBuf; 2]> {
    let tools = [("cmake", "cmake"), ("pkg-config", "pkg-config"), ("cc", "gcc")];
    if !installed(&tools) {
        return None;
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ibverbs-crate");
    let remora = Path::new(env!("CARGO_BIN_EXE_remora"));
    let target = remora.parent()?.parent()?.join("ibverbs-crate");
    let cargo = |args: &[&str]| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(args).args(["--locked", "--manifest-path"]).arg(package.join("Cargo.toml"));
        cargo.current_dir(&package).env("CARGO_TARGET_DIR", &target).output().unwrap()
    };
    let fetched = cargo(&["fetch", "--quiet"]);
    if !fetched.status.success() {
        let why = described(&fetched);
        skips::lacks(&format!("the crate `ibverbs` cannot be fetched: {why}"));
        return None;
    }
    let built = cargo(&["build", "--quiet"]);
    if !built.status.success() {
        let report = described(&built);
        let lacks = ["libclang", "libnl", "Could NOT find", "clang"];
        assert!(lacks.iter().any(|word| report.contains(word)), "{report}");
        skips::has_not(&format!("no tools to build `ibverbs`: {report}"));
        return None;
    }
    Some([target.join("debug/ibverbs-crate"), target.join("debug/loopback")])
}

/// One of two processes that exchange their endpoints through the test.
struct Talker {
    running: Running,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Talker {
    fn start(program: &Path, number: &str) -> Talker {
        let mut command = remora_run(["--".as_ref(), program.as_os_str(), number.as_ref()]);
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let (input, output) = running.streams();
        Talker { running, input, output: BufReader::new(output) }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn end(self) {
        drop(self.input);
        self.running.succeeds();
    }
}

#[test]
fn the_crate_ibverbs_between_two_processes() {
    let Some([program, loopback]) = ibverbs_crate() else { return };
    // First the crate's own example, within one process.
    let out = printed(&mut remora_run(["--".as_ref(), loopback.as_os_str()]));
    assert!(out.contains("sent") && out.contains("received"), "{out}");
    // Then the same between two processes.
    let mut one = Talker::start(&program, "17");
    let mut two = Talker::start(&program, "42");
    let (of_one, of_two) = (one.hear(), two.hear());
    assert!(of_one.starts_with('{') && of_two.starts_with('{'), "{of_one}{of_two}");
    one.input.write_all(of_two.as_bytes()).unwrap();
    two.input.write_all(of_one.as_bytes()).unwrap();
    assert_eq!((one.hear().trim(), two.hear().trim()), ("ready", "ready"));
    one.input.write_all(b"go\n").unwrap();
    two.input.write_all(b"go\n").unwrap();
    assert_eq!((one.hear().trim(), two.hear().trim()), ("42", "17"));
    one.end();
    two.end();
}
