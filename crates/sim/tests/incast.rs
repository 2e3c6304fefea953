//! Incasts of many more hosts than the queue before their target has room for packets.

use remora_sim::world_file::{Experiment, Overrides};

/// The example, with a transport.
fn large_incast(transport: &str) -> Experiment {
    let text = include_str!("../../../examples/worlds/large-incast.toml");
    let text = text.replace("\"selective\"", &format!("\"{transport}\""));
    let files = |_: &str| unreachable!("the world names no files");
    Experiment::parse(&text, &files, Overrides::default()).unwrap()
}

/// No connection ends because others keep the queue full, whatever decides how much they send.
#[test]
fn all_flows_of_a_large_incast_end() {
    for transport in ["selective", "selective-fixed", "dctcp", "swift"] {
        let experiment = large_incast(transport);
        assert_eq!(experiment.cluster.transport.name, transport);
        let report = experiment.cluster.run(&experiment.flows.flows).unwrap();
        assert_eq!((report.done(), report.failed()), (1023, 0), "{transport}: {report}");
    }
}
