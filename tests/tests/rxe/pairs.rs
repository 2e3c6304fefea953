//! The distribution's own programs at both ends: one in the machine, one on this host on Remora's
//! libibverbs and librdmacm. They run if `REMORA_VERBS_DIR` names the folder of those two.

use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use remora_tests::namespace::{HOST_V4, MACHINE_V4};
use remora_tests::program::Program;
use remora_tests::wire::{Fate, Towards, Wire};

use crate::World;
use crate::cm::REQ;

/// The longest time for a program.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a pair with its client on this host is started: the server may not listen yet.
const ATTEMPTS: u32 = 5;
/// How much earlier than its client a server in the machine starts; multiplied by the attempt.
const HEAD_START: Duration = Duration::from_millis(400);
/// How long a connection request stays on the wire; multiplied by the attempt. With -R, perftest's
/// server listens a second time for a second connection, and its client does not wait for that: 14
/// ms after the first connection are too short for an emulated machine.
const REQUEST_DELAY: Duration = Duration::from_millis(150);

/// A server and its client. `{to}` is the server's address, `{gid}` the GID index of each program.
/// (Few rounds for long messages, because the machine is emulated.)
pub(crate) const PAIRS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong -g {gid} -n 200", "ibv_rc_pingpong -g {gid} -n 200 {to}"),
    ("ibv_rc_pingpong -g {gid} -n 200 -e", "ibv_rc_pingpong -g {gid} -n 200 -e {to}"),
    ("ibv_uc_pingpong -g {gid} -n 200", "ibv_uc_pingpong -g {gid} -n 200 {to}"),
    ("ibv_ud_pingpong -g {gid} -n 200", "ibv_ud_pingpong -g {gid} -n 200 {to}"),
    ("ibv_srq_pingpong -g {gid} -n 200", "ibv_srq_pingpong -g {gid} -n 200 {to}"),
    ("ib_send_lat -F -x {gid} -n 200", "ib_send_lat -F -x {gid} -n 200 {to}"),
    ("ib_send_lat -F -x {gid} -n 200 -c UD", "ib_send_lat -F -x {gid} -n 200 -c UD {to}"),
    ("ib_send_lat -F -n 200 -R", "ib_send_lat -F -n 200 -R {to}"),
    ("ib_send_bw -F -x {gid} -n 50 -e", "ib_send_bw -F -x {gid} -n 50 -e {to}"),
    ("ib_write_lat -F -x {gid} -n 200", "ib_write_lat -F -x {gid} -n 200 {to}"),
    ("ib_write_bw -F -x {gid} -n 40 -q 8", "ib_write_bw -F -x {gid} -n 40 -q 8 {to}"),
    ("ib_write_bw -F -x {gid} -n 50 -c UC", "ib_write_bw -F -x {gid} -n 50 -c UC {to}"),
    ("ib_write_bw -F -n 50 -R", "ib_write_bw -F -n 50 -R {to}"),
    ("ib_read_lat -F -x {gid} -n 200", "ib_read_lat -F -x {gid} -n 200 {to}"),
    ("ib_read_bw -F -x {gid} -n 50", "ib_read_bw -F -x {gid} -n 50 {to}"),
    ("ib_read_bw -F -n 50 -R", "ib_read_bw -F -n 50 -R {to}"),
    ("ib_atomic_lat -F -x {gid} -n 200", "ib_atomic_lat -F -x {gid} -n 200 {to}"),
    ("ib_atomic_bw -F -n 200 -R", "ib_atomic_bw -F -n 200 -R {to}"),
    ("rping -s -a {to} -C 10 -p 7175", "rping -c -a {to} -C 10 -p 7175 -V"),
    ("ucmatose -b {to}", "ucmatose -s {to}"),
    ("udaddy -b {to}", "udaddy -s {to}"),
    ("rdma_server -p 7176", "rdma_client -s {to} -p 7176"),
    ("rstream -b {to} -I 20", "rstream -s {to} -I 20"),
];

/// Runs a pair, with the server in the machine or on this host.
pub(crate) fn run(world: &World, library: &Path, pair: &(&str, &str), server_here: bool) {
    let address = if server_here { HOST_V4 } else { MACHINE_V4 };
    let ours = if server_here { pair.0 } else { pair.1 };
    let theirs = if server_here { pair.1 } else { pair.0 };
    let of = |gid: u64, command: &str| {
        command.replace("{to}", &address.to_string()).replace("{gid}", &gid.to_string())
    };
    let gid_there = Program::in_machine(&world.machine, MACHINE_V4.into()).gid();
    let gid_here = {
        let mut command = world.with_library(library, HOST_V4.into());
        command.arg(world.image.join("verbs_peer"));
        Program::here(command, HOST_V4.into()).gid()
    };
    let theirs = of(gid_there, theirs);
    let mut here = world.with_library(library, HOST_V4.into());
    here.args(of(gid_here, ours).split(' ')).stdout(Stdio::null()).stderr(Stdio::inherit());
    // A client that comes too early gives up, and is started again.
    let end = Instant::now() + PATIENCE;
    if server_here {
        let mut server = here.spawn().expect("the server here");
        let output = loop {
            let output = world.machine.run(&theirs, PATIENCE);
            let good = output.as_ref().is_ok_and(|output| output.status == 0);
            if good || Instant::now() > end || server.try_wait().is_ok_and(|s| s.is_some()) {
                break output;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let status = wait_for(&mut server, end, "the server here");
        assert!(status.success(), "the server here: {status}");
        let output = output.expect("the client in the machine");
        assert_eq!(output.status, 0, "{theirs}: {}", output.text);
    } else {
        for attempt in 1..=ATTEMPTS {
            let server = world.machine.start(&theirs).expect("the machine");
            std::thread::sleep(HEAD_START * attempt);
            delay_requests(&world.wire, REQUEST_DELAY * attempt);
            let mut client = here.spawn().expect("the client here");
            let status = wait_for(&mut client, end, "the client here");
            if !status.success() {
                // The server may have served the first client already, so it is started again too.
                assert!(attempt < ATTEMPTS, "the client here: {status}");
                continue;
            }
            let output = server.finish(PATIENCE).expect("the server in the machine");
            // rping's server ends with an error when its client disconnects.
            let good = output.status == 0 || theirs.starts_with("rping");
            assert!(good, "{theirs}: {}", output.text);
            break;
        }
    }
}

/// From now on the wire to the machine stops for this long before it carries a connection request.
fn delay_requests(wire: &Wire, delay: Duration) {
    wire.judge(Towards::Machine, move |seen| {
        if seen.cm == Some(REQ) {
            std::thread::sleep(delay);
        }
        Fate::Pass
    });
}

/// Waits until a program has ended.
fn wait_for(program: &mut Child, end: Instant, who: &str) -> ExitStatus {
    while Instant::now() < end {
        if let Ok(Some(status)) = program.try_wait() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    program.kill().ok();
    program.wait().ok();
    panic!("{who} is not done in {PATIENCE:?}");
}

/// The name of a pair, for messages.
pub(crate) fn name(pair: &(&str, &str), server_here: bool) -> String {
    let way = if server_here { "kernel to remora" } else { "remora to kernel" };
    format!("{}, {way}", pair.1.replace(" {to}", "").replace(" -x {gid}", ""))
}
