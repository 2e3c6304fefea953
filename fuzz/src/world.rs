//! World files, and the files of other simulators. Any text is either refused with the place of its
//! mistake, or is a world whose flows fit its network, and which can be run.

use remora_sim::flows::{Cluster, ClusterError, Flow, Sizes};
use remora_sim::format::{goal, hpcc, htsim};
use remora_sim::net::time::{MS, US};
use remora_sim::net::{LineRate, Star, Topology};
use remora_sim::world_file::{Experiment, Overrides};

use crate::seeds::Seed;

/// Reads the input as a world file. Files that it names have the input as well.
///
/// # Panics
/// If a mistake has no place in the text, or flows do not fit the network.
pub fn world(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files = |name: &str| match name {
        "self" => Ok(text.to_string()),
        _ => Err(format!("there is no file {name}")),
    };
    match Experiment::parse(&text, &files, Overrides::default()) {
        Ok(Experiment { cluster, flows, .. }) => {
            assert_eq!(cluster.topology.check(), Ok(()));
            assert_eq!(Flow::check(&flows.flows, cluster.topology.hosts), Ok(()));
            run_some(cluster, &flows.flows);
        }
        Err(mistake) => {
            assert!(mistake.at.start <= mistake.at.end && mistake.at.end <= text.len());
            assert!(!mistake.message.is_empty() && !mistake.help.is_empty(), "{mistake:?}");
        }
    }
}

/// Runs a world for a while, if it is a small one.
///
/// # Panics
/// If bytes are missing from a flow that has ended.
fn run_some(mut cluster: Cluster, flows: &[Flow]) {
    const NODES: u32 = 64;
    const BYTES: u64 = 1 << 16;
    let Topology { hosts, switches, .. } = cluster.topology;
    let bytes = flows.iter().map(|flow| flow.bytes).fold(0, u64::saturating_add);
    if hosts.max(switches) > NODES || flows.len() > 64 || bytes > BYTES {
        return;
    }
    // Long enough for two looks for deadlocks.
    cluster.until = cluster.until.min(3 * MS);
    if let Err(error @ ClusterError::Missing { .. }) = cluster.run(flows) {
        panic!("{error}");
    }
}

/// Reads the input as each of the other simulators' files.
///
/// # Panics
/// If what was read is no topology or list of flows.
pub fn trace(data: &[u8]) {
    const HOSTS: u32 = 16;
    let text = String::from_utf8_lossy(data);
    let star = Star { hosts: HOSTS, rate: LineRate::gigabits(100), delay: US }.topology();
    let run = |flows: &[Flow], topology: &Topology| {
        assert_eq!(Flow::check(flows, topology.hosts), Ok(()));
        if topology.check().is_ok() {
            run_some(Cluster::new(topology.clone()), flows);
        }
    };
    if let Ok(of) = hpcc::read_topology(&text) {
        let whole = of.topology.check();
        assert!(hpcc::read_topology(&of.write()).is_ok(), "{whole:?}");
        run(&[], &of.topology);
    }
    if let Ok(topology) = htsim::read_topology(&text) {
        let of = hpcc::HpccTopology::of(topology);
        if let Ok(flows) = hpcc::read_flows(&text, &of) {
            run(&flows.flows, &of.topology);
        }
    }
    if let Ok(flows) = htsim::read_matrix(&text, HOSTS) {
        run(&flows, &star);
    }
    if let Ok(flows) = goal::read(&text, HOSTS) {
        run(&flows, &star);
    }
    if let Ok(sizes) = Sizes::parse(&text) {
        assert!(sizes.mean() <= sizes.longest() as f64 * (1.0 + 1e-9));
    }
}

/// The examples, and worlds with the other shapes and workloads.
pub fn worlds() -> Vec<Seed> {
    let seed = |name: &str, text: &str| Seed { name: name.into(), data: text.into() };
    let star = "[topology]\nshape=\"star\"\nhosts=4\nrate=\"1Gbps\"\ndelay=\"1us\"\n";
    let load = |kind: &str| format!("{star}[[workload]]\nkind=\"{kind}\"\nbytes=9\n");
    vec![
        seed("incast", include_str!("../../examples/worlds/incast.toml")),
        seed("fat-tree", include_str!("../../examples/worlds/fat-tree.toml")),
        seed("failing-link", include_str!("../../examples/worlds/failing-link.toml")),
        seed("cards", include_str!("../../examples/worlds/cards.toml")),
        seed("gets", include_str!("../../examples/worlds/gets.toml")),
        seed("store", include_str!("../../examples/worlds/store.toml")),
        seed("htsim", "[topology]\nshape=\"htsim\"\nfile=\"self\"\n"),
        seed("hpcc", "[topology]\nshape=\"hpcc\"\nfile=\"self\"\n"),
        seed("htsim-flows", &format!("{star}[[workload]]\nkind=\"htsim\"\nfile=\"self\"\n")),
        seed("permutation", &load("permutation")),
        seed("all-to-all", &load("all-to-all")),
        seed("ring", &load("ring-all-reduce")),
        seed("halving", &load("halving-doubling")),
        seed("file", &format!("{star}[[workload]]\nkind=\"goal\"\nfile=\"self\"\n")),
        seed(
            "calls",
            &format!(
                "{star}[[workload]]\nkind=\"calls\"\nclients=\"1..3\"\nserver=0\nrequest=64\n\
                 answer=\"4KB\"\nthink=\"1us\"\ncalls=3\n"
            ),
        ),
        seed(
            "cables",
            "[topology]\nshape=\"cables\"\nhosts=2\nswitches=1\n[[topology.cable]]\n\
             ends=[\"host 0\",\"switch 0\"]\nrate=\"1Gbps\"\ndelay=\"1us\"\n[[topology.cable]]\n\
             ends=[\"host 1\",\"switch 0\"]\nrate=\"1Gbps\"\ndelay=\"1us\"\nloss=0.5\n\
             [[workload]]\n\
             kind=\"flows\"\n[[workload.flow]]\nfrom=0\nto=1\nbytes=1\n",
        ),
        seed("dumbbell", "[topology]\nshape=\"dumbbell\"\nside=2\nhost-rate=\"1Gbps\"\n"),
        seed("srnic", "[topology]\nshape=\"srnic\"\nhosts=16\n[switch]\nrouting=\"flowlet\"\n"),
    ]
}

/// A file of each format.
pub fn traces() -> Vec<Seed> {
    let seed = |name: &str, text: &str| Seed { name: name.into(), data: text.into() };
    vec![
        seed(
            "topology",
            "4 1 3\n3\n0 3 100Gbps 1000ns 0\n1 3 100Gbps 0.001ms 0\n2 3 25Gbps 1us 0.5\n",
        ),
        seed("flow", "2\n0 1 3 100 1000 0.000002\n2 1 3 100 50000 0\n"),
        seed(
            "topo",
            "Nodes 32\nTiers 2\nPodsize 32\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 8\n\
             Radix_Up 2\nDownlink_Latency_ns 1000\nTier 1\nDownlink_speed_Gbps 100\n\
             Radix_Down 4\nDownlink_Latency_ns 1000\n",
        ),
        seed(
            "cm",
            "Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 0 size 9 send_done_trigger 1\n\
             2->1 id 2 start 5 size 9 recv_done_trigger 1\n1->3 id 3 trigger 1 size 9\n\
             trigger id 1 barrier count 2\n",
        ),
        seed(
            "goal",
            "num_ranks 2\nrank 0 {\na: send 9b to 1 tag 1\nb: calc 10\na requires b\n}\n\
             rank 1 {\nc: recv 9b from 0 tag 1 // one\nd: calc 5 cpu 1\nd irequires c\n}\n",
        ),
        seed("sizes", "# bytes, per cent\n0 0\n100 50\n1000 100\n"),
    ]
}
