//! Libraries that programs use on top of verbs, running on Remora: libfabric, UCX, and MPI on both.

mod support;

use std::fs;
use std::process::Command;

use support::Folder;
use support::verbs::{Running, described, free_port, installed, printed, remora_run};

/// Variables that restrict UCX to verbs. (Its RC transport connects over its UD transport.)
const UCX: [(&str, &str); 2] =
    [("UCX_TLS", "rc_verbs,ud_verbs,self"), ("UCX_NET_DEVICES", "remora0:1")];

/// How often libfabric's endpoints for datagrams over connections (RxM) look for a peer's end, in
/// microseconds. They empty the completion queue, and look then: if the program is descheduled
/// between the two, what has been completed meanwhile fails with the connection. By default they
/// look every 10 ms, and on a busy machine one run of ten ends so.
const RXM_LOOKS: (&str, &str) = ("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "1000000");

#[test]
fn libfabric() {
    if !installed(&[("fi_pingpong", "libfabric-bin")]) {
        return;
    }
    for endpoint in ["msg", "rdm", "dgram"] {
        let port = free_port().to_string();
        let fi_pingpong = |args: &[&str]| {
            let mut command = remora_run(["--", "fi_pingpong", "-p", "verbs", "-e", endpoint]);
            command.envs([RXM_LOOKS]).args(["-I", "50", "-c"]).args(args);
            command
        };
        let mut server = Running::start(&mut fi_pingpong(&["-B", &port]));
        server.listens_on_tcp(port.parse().unwrap());
        let out = printed(&mut fi_pingpong(&["-P", &port, "127.0.0.1"]));
        assert!(out.lines().any(|line| line.starts_with("1k ")), "{endpoint}: {out}");
        server.succeeds();
    }
}

/// Runs a pair of `ucx_perftest`, which prints figures at its end.
fn ucx_perftest(test: &[&str]) {
    let port = free_port().to_string();
    let perftest = |args: &[&str]| {
        let mut command = remora_run(["--", "ucx_perftest", "-p", &port]);
        command.envs(UCX).args(args);
        command
    };
    let mut server = Running::start(&mut perftest(&[]));
    server.listens_on_tcp(port.parse().unwrap());
    let out = printed(perftest(&["127.0.0.1", "-n", "200", "-w", "10"]).args(test));
    assert!(out.contains("Final:"), "{test:?}: {out}");
    server.succeeds();
}

#[test]
fn ucx() {
    if !installed(&[("ucx_perftest", "ucx-utils")]) {
        return;
    }
    for test in ["tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_am_lat", "stream_bw"] {
        ucx_perftest(&["-t", test, "-s", "4096"]);
    }
    ucx_perftest(&["-t", "tag_bw", "-s", "1000000"]);
    for test in ["ucp_fadd", "ucp_cswap"] {
        ucx_perftest(&["-t", test, "-s", "8"]);
    }
    for transport in ["rc_verbs", "ud_verbs"] {
        ucx_perftest(&["-d", "remora0:1", "-x", transport, "-t", "am_lat", "-s", "8"]);
    }
}

/// Runs two processes of an MPI program, with these options of `mpirun`.
fn mpi(options: &[&str], variables: &[(&str, &str)]) {
    let tools = [("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")];
    if !installed(&tools) {
        return;
    }
    let folder = Folder::new();
    let (source, program) = (folder.path("main.c"), folder.path("main"));
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("mpicc").arg("-o").args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", described(&built));
    let wrapped = remora_run([&program]);
    let mut mpirun = Command::new("mpirun");
    // On this machine, as any user, on any number of processors.
    mpirun.args(["--oversubscribe", "-n", "2", "--mca", "plm", "isolated"]).args(options);
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        mpirun.env(name, "1");
    }
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "REMORA_ADDR", "REMORA_LIB_DIR"] {
        mpirun.env_remove(name);
    }
    mpirun.envs(variables.iter().copied()).arg(wrapped.get_program()).args(wrapped.get_args());
    assert_eq!(printed(&mut mpirun), "the sum of 2 is 1\n");
}

#[test]
fn mpi_on_ucx() {
    mpi(&["--mca", "pml", "ucx", "--mca", "btl", "self"], &UCX);
}

#[test]
fn mpi_on_libfabric() {
    let provider = ["--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];
    let layers = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self"];
    mpi(&[&layers[..], &provider[..]].concat(), &[("FI_PROVIDER", "verbs;ofi_rxm")]);
}

const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { LONGEST = 1 << 20 };
int main(int argc, char **argv) {
    int rank, ranks, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    char *own = malloc(LONGEST), *other = malloc(LONGEST);
    for (int len = 1; len <= LONGEST; len *= 4) {
        memset(own, 10 * len + rank, len);
        MPI_Sendrecv(own, len, MPI_CHAR, 1 - rank, 0, other, len, MPI_CHAR, 1 - rank, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        memset(own, 10 * len + (1 - rank), len);
        if (memcmp(own, other, len)) MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (rank == 0) printf("the sum of %d is %d\n", ranks, sum);
    MPI_Finalize();
    return 0;
}
"#;

/// No thread can start while a library is being loaded, so the library must not wait for one then.
#[test]
fn a_library_opens_a_device_as_it_is_loaded() {
    if !installed(&[("cc", "gcc")]) {
        return;
    }
    let folder = Folder::new();
    let build = |name: &str, source: &str, options: &[&str]| {
        let (from, to) = (folder.path(&format!("{name}.c")), folder.path(name));
        fs::write(&from, source).unwrap();
        let built = Command::new("cc").arg("-o").args([&to, &from]).args(options).output().unwrap();
        assert!(built.status.success(), "{}", described(&built));
        to
    };
    let plugin = build("plugin.so", PLUGIN, &["-shared", "-fPIC", "-libverbs"]);
    let host = build("host", HOST, &["-ldl"]);
    assert_eq!(printed(remora_run([&host]).arg(plugin)), "opened\nloaded\n");
}

const PLUGIN: &str = r#"
#include <infiniband/verbs.h>
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    puts(devices && devices[0] && ibv_open_device(devices[0]) ? "opened" : "no device");
}
"#;

const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    puts(argc == 2 && dlopen(argv[1], RTLD_NOW) ? "loaded" : dlerror());
    return 0;
}
"#;
