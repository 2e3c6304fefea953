//! htsim's published results, beside the same matrices on the same trees: the time until the last
//! flow has ended. docs/worlds.md says where they are from, and what is not the same.

use remora_sim::net::time::US;
use remora_sim::world_file::{Experiment, Overrides};

/// The network that htsim's results are of: 16 hosts, trees of three tiers, 100 Gb/s and 1 µs a
/// link; queues and marks as its `main_uec.cpp` computes them.
const WORLD: &str = r#"
[topology]
shape = "fat-tree"
pods = 4
tors = 2
aggs = 2
cores = 2
hosts-per-tor = 2
host-rate = "100Gbps"
fabric-rate = "100Gbps"
delay = "1us"

[switch]
queue = 178450
mark-from = 37350
mark-to = 145250
routing = "spray"

[host]
transport = "TRANSPORT"
mtu = 4096
window = 64

[[workload]]
kind = "htsim"
file = "matrix.cm"
"#;

/// A matrix in htsim's format of these connections, 2 MB each, which all start at once.
fn matrix(connections: impl Iterator<Item = (u32, u32)>) -> String {
    let line = |(i, (src, dst)): (usize, (u32, u32))| {
        format!("{src}->{dst} id {} start 0 size 2000000\n", i + 1)
    };
    let lines: Vec<String> = connections.enumerate().map(line).collect();
    format!("Nodes 16\nConnections {}\n{}", lines.len(), lines.concat())
}

/// The µs until all flows of a matrix have ended.
fn ended(transport: &str, matrix: &str) -> f64 {
    let files = |_: &str| Ok(matrix.to_owned());
    let text = WORLD.replace("TRANSPORT", transport);
    let experiment = Experiment::parse(&text, &files, Overrides::default()).unwrap();
    let report = experiment.cluster.run(&experiment.flows.flows).unwrap();
    assert_eq!(report.done(), experiment.flows.flows.len(), "{report}");
    report.end() as f64 / US as f64
}

/// What Ultra Ethernet's transports (NSCC, RCCC) take in htsim, and how much longer, as a factor,
/// Remora's dialect may take with a window that does not change and with its own. Packets are 1.1 %
/// longer here; what is faster than htsim's is no fault, but faster than the line would be one.
#[test]
fn matrices_take_about_as_long_as_in_htsim() {
    let one = matrix([(0, 15)].into_iter());
    let incast = matrix((1..16).map(|src| (src, 0)));
    // Each to another pod, so that all cross the cores.
    let permutation = matrix((0..16).map(|src| (src, (src + 4) % 16)));
    let cases = [
        ("one.cm", one, [176.2, 177.4], [1.02, 1.02], 1.0),
        ("incast.cm", incast, [2479.0, 2464.0], [1.15, 1.06], 15.0),
        ("perm_16n_16c_2MB.cm", permutation, [194.0, 195.7], [1.08, 2.2], 1.0),
    ];
    for (name, matrix, htsim, factors, flows) in cases {
        // 4,096 of 4,206 bytes are payload.
        let line = flows * 2e6 * 8.0 / 1e5 * 4206.0 / 4096.0;
        for (transport, factor) in ["selective-fixed", "selective"].into_iter().zip(factors) {
            let took = ended(transport, &matrix);
            let most = f64::max(htsim[0], htsim[1]) * factor;
            assert!(line < took && took < most, "{name}, {transport}: {took}, {line} to {most}");
        }
    }
}
