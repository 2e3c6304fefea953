//! Ranks of an MPI program on two daemons, each in a network namespace of its own: all exchange
//! blocks with all.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::verbs::{described, installed, printed, remora_run};
use support::{Folder, Killed, command, skips};

/// Makes two network namespaces, joined by a pair of interfaces, with a daemon in each. Both end
/// with standard input. (A process in the background gets none, unless it is told.)
const NETWORK: &str = r#"
set -e
remora=$1 folder=$2
exec 3<&0
ip link set lo up
ip link add left type veth peer name right
ip addr add 192.0.2.1/24 dev left
ip link set left up
mkfifo "$folder/go"
unshare --net sh -c '
    read -r go < "$2/go"
    ip link set lo up
    ip addr add 192.0.2.2/24 dev right
    ip link set right up
    exec "$1" nic --child --json --bind 192.0.2.2 --socket "$2/right.sock"
' sh "$remora" "$folder" <&3 &
until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link set right netns $!
echo go > "$folder/go"
exec "$remora" nic --child --json --bind 192.0.2.1 --socket "$folder/left.sock"
"#;

/// The two daemons. They end with this value.
struct Daemons {
    child: Killed,
    folder: Folder,
}

impl Daemons {
    fn start() -> Daemons {
        let folder = Folder::new();
        let remora = command([""; 0]).get_program().to_owned();
        let mut network = Command::new("unshare");
        network.args(["--net", "sh", "-c", NETWORK, "sh"]);
        network.arg(remora).arg(folder.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
        network.env_remove("REMORA_NIC").env_remove("REMORA_ADDR");
        let mut child = Killed(network.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).take(2).filter(|line| line.contains("192.0.2."));
        assert_eq!(ready.count(), 2, "the daemons have not started");
        Daemons { child, folder }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
    }
}

/// Does the system permit namespaces, and interfaces in them? (Not those of another user namespace,
/// from which a daemon would not reach the ranks' memory.)
fn permits_namespaces() -> bool {
    let try_it = "ip link add left type veth peer name right";
    let tried =
        Command::new("unshare").args(["--net", "sh", "-c", try_it]).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

#[test]
fn ranks_of_two_daemons_exchange_all_with_all() {
    let tools = [
        ("mpirun", "openmpi-bin"),
        ("mpicc", "libopenmpi-dev"),
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
    ];
    if !installed(&tools) {
        return;
    }
    if !permits_namespaces() {
        skips::lacks("this user may make no network namespaces");
        return;
    }
    let daemons = Daemons::start();
    let (source, program) = (daemons.folder.path("main.c"), daemons.folder.path("main"));
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("mpicc").arg("-o").args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", described(&built));
    let wrapped = remora_run([&program]);
    let mut mpirun = Command::new("mpirun");
    // On this machine, as any user, on any number of processors.
    mpirun.args(["--oversubscribe", "--mca", "plm", "isolated"]);
    mpirun.args(["--mca", "pml", "ucx", "--mca", "btl", "self"]);
    for (number, socket) in ["left.sock", "right.sock"].into_iter().enumerate() {
        if number > 0 {
            mpirun.arg(":");
        }
        let nic = format!("REMORA_NIC={}", daemons.socket(socket).display());
        mpirun.args(["-n", "4", "env", &nic]).arg(wrapped.get_program()).args(wrapped.get_args());
    }
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        mpirun.env(name, "1");
    }
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "REMORA_ADDR", "REMORA_LIB_DIR", "REMORA_NIC"] {
        mpirun.env_remove(name);
    }
    // Verbs only: the ranks are on one machine, and would find shared memory.
    mpirun.envs([("UCX_TLS", "rc_verbs,ud_verbs,self"), ("UCX_NET_DEVICES", "remora0:1")]);
    assert_eq!(printed(&mut mpirun), "8 ranks, 12 sizes\n");
}

/// Each byte says from whom it is, to whom, and where in the block it stands.
const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
enum { LONGEST = 300000 };
static unsigned char byte_of(int from, int to, int at) {
    return 31 * from + 7 * to + at + (at >> 8);
}
int main(int argc, char **argv) {
    int rank, ranks, sizes = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *out = malloc((size_t)ranks * LONGEST), *in = malloc((size_t)ranks * LONGEST);
    for (int len = 1; len < LONGEST; len = 3 * len + 1, sizes++) {
        for (int to = 0; to < ranks; to++)
            for (int at = 0; at < len; at++)
                out[(size_t)to * len + at] = byte_of(rank, to, at);
        MPI_Alltoall(out, len, MPI_BYTE, in, len, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < len; at++)
                if (in[(size_t)from * len + at] != byte_of(from, rank, at)) {
                    fprintf(stderr, "rank %d: byte %d of %d from %d\n", rank, at, len, from);
                    MPI_Abort(MPI_COMM_WORLD, 3);
                }
    }
    if (rank == 0) printf("%d ranks, %d sizes\n", ranks, sizes);
    MPI_Finalize();
    return 0;
}
"#;
