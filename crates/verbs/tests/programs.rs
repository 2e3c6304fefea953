//! The distribution's examples and perftest, unmodified, as two processes.

mod pair;

use pair::{is_installed, run, run_until};

/// Runs each variant of a program, unless it is not installed.
fn variants(program: &str, variants: &[&str]) {
    if is_installed(program) {
        // On a busy machine perftest may fail to measure the processor's clock, and then fails
        // without a report unless `-F` is given.
        let bold = if program.starts_with("ib_") { " -F" } else { "" };
        for variant in variants {
            run(&format!("{program}{bold} {variant}"));
        }
    }
}

#[test]
fn rc_pingpong() {
    variants(
        "ibv_rc_pingpong",
        &[
            "-n 200",
            "-n 200 -g 0",
            "-n 200 -g 1",
            "-n 200 -g 1 -e",
            "-n 200 -g 0 -t",
            "-n 200 -g 0 -o",
            "-n 100 -g 0 -s 100000 -m 4096 -r 10",
            "-n 100 -g 0 -c",
            "-n 100 -g 0 -N",
        ],
    );
}

#[test]
fn uc_pingpong() {
    variants("ibv_uc_pingpong", &["-n 200", "-n 200 -g 0 -s 10000", "-n 200 -g 1 -e"]);
}

#[test]
fn ud_pingpong() {
    variants("ibv_ud_pingpong", &["-n 200", "-n 200 -g 0 -s 1000", "-n 200 -g 1 -e"]);
}

#[test]
fn srq_pingpong() {
    variants("ibv_srq_pingpong", &["-n 200", "-n 200 -g 0", "-n 200 -g 1 -e -q 4"]);
}

#[test]
fn xsrq_pingpong() {
    variants("ibv_xsrq_pingpong", &["-n 200", "-n 200 -g 0", "-n 200 -g 0 -e"]);
}

#[test]
fn asyncwatch() {
    if is_installed("ibv_asyncwatch") {
        run_until("ibv_asyncwatch", "async event FD");
    }
}

#[test]
fn latency() {
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"] {
        variants(program, &["-n 100", "-n 100 -x 0 --use_old_post_send"]);
    }
    variants("ib_send_lat", &["-n 100 -c UD", "-n 100 -c UC", "-n 100 -e", "-n 50 -a"]);
    variants("ib_send_lat", &["-n 100 --use-srq", "-n 100 -I 100 -s 64"]);
    variants("ib_write_lat", &["-n 100 -c UC", "-n 50 -a", "-n 100 -I 0"]);
    variants("ib_send_lat", &["-n 100 -c XRC"]);
    variants("ib_read_lat", &["-n 50 -a", "-n 100 -c XRC"]);
    variants("ib_atomic_lat", &["-n 100 -A CMP_AND_SWAP"]);
}

#[test]
fn bandwidth_of_sends() {
    variants(
        "ib_send_bw",
        &[
            "-n 200",
            "-n 200 -x 0 --use_old_post_send",
            "-n 200 -c UD",
            "-n 200 -c UC -s 100000",
            "-n 50 -c UC -a",
            "-n 100 -e",
            "-n 100 -q 64 -s 256",
            "-n 100 -b",
            "-n 100 -b -c UD -q 4",
            "-n 20 -a",
            "-n 200 --use-srq -q 4",
            "-n 200 -I 64 -s 32 -l 8 --use_old_post_send",
            "-n 200 -q 16 -s 64",
            "-n 100 -c XRC -q 2",
        ],
    );
}

/// perftest's own group is an IPv6 one, which it refuses on a card with an IPv4 address.
#[test]
fn multicast() {
    let group = "-M 0:0:0:0:0:0:0:0:0:0:255:255:239:9:9:9";
    variants("ib_send_bw", &[&format!("-n 200 -c UD -g {group}")]);
    variants("ib_send_lat", &[&format!("-n 200 -c UD -g {group}")]);
}

#[test]
fn bandwidth_of_writes() {
    variants(
        "ib_write_bw",
        &[
            "-n 200",
            "-n 200 -x 0 --use_old_post_send",
            "-n 200 -c UC",
            "-n 50 -c UC -a",
            "-n 20 -q 64",
            "-n 100 -b",
            "-n 20 -a",
            "-n 20 -s 1048576",
        ],
    );
}

#[test]
fn bandwidth_of_reads_and_atomics() {
    variants("ib_read_bw", &["-n 200", "-n 100 -e", "-n 20 -q 64", "-n 100 -b", "-n 20 -a"]);
    variants("ib_read_bw", &["-n 100 -o 4 --use_old_post_send"]);
    variants("ib_atomic_bw", &["-n 200", "-n 200 -A CMP_AND_SWAP", "-n 100 -e", "-n 20 -q 64"]);
}
