//! What HPCC's simulator writes besides completions, and its inputs from any world, so that both
//! simulators can be given the same.
//!
//! - `pfc.txt`: a line for each pause and resume: time in nanoseconds, node, whether it is a
//!   switch, its interface (from 1, in the order of the cables), 1 for a pause and 0 for its end.
//! - `qlen.txt`: `time: T` in nanoseconds, then for each port of a switch the switch, the
//!   interface, and in how many samples the queue was 0, 1, 2, … kilobytes long.

use core::fmt::Write;
use std::collections::BTreeMap;

use super::hpcc::{HpccFlows, HpccTopology, PORT};
use crate::flows::{Flow, Record};
use crate::net::time::NS;
use crate::net::{Cable, Node};

impl HpccTopology {
    /// A topology whose numbers are those of its hosts, then its switches.
    pub fn of(topology: crate::net::Topology) -> HpccTopology {
        let hosts = (0..topology.hosts).map(Node::Host);
        let nodes = hosts.chain((0..topology.switches).map(Node::Switch)).collect();
        HpccTopology { topology, nodes, losses: Vec::new() }
    }

    /// By node: its number in files.
    pub(super) fn numbers(&self) -> BTreeMap<Node, usize> {
        self.nodes.iter().enumerate().map(|(number, node)| (*node, number)).collect()
    }

    /// By link, as the network numbers them: the number of the node whose port it is, and of the
    /// port.
    fn ports(&self) -> Vec<(usize, usize)> {
        let numbers = self.numbers();
        let mut taken: BTreeMap<Node, usize> = BTreeMap::new();
        let cables = &self.topology.cables;
        let mut ports = BTreeMap::new();
        for (Cable { a, b, .. }, links) in cables.iter().zip(self.topology.links_of_cables()) {
            for (node, link) in [a, b].into_iter().zip(links) {
                let port = taken.entry(*node).or_insert(0);
                *port += 1;
                ports.insert(link, (numbers.get(node).copied().unwrap_or(0), *port));
            }
        }
        // Links are numbered from 0 on, without a gap.
        ports.into_values().collect()
    }

    /// Writes a `topology.txt`.
    pub fn write(&self) -> String {
        let numbers = self.numbers();
        let number = |node: &Node| numbers.get(node).copied().unwrap_or(0);
        let cables = &self.topology.cables;
        let switches: Vec<String> = (0..self.topology.switches)
            .map(|switch| number(&Node::Switch(switch)).to_string())
            .collect();
        let mut text = format!(
            "{} {} {}\n{}\n",
            self.nodes.len(),
            switches.len(),
            cables.len(),
            switches.join(" ")
        );
        let losses: BTreeMap<usize, f64> = self.losses.iter().copied().collect();
        for (i, Cable { a, b, rate, delay }) in cables.iter().enumerate() {
            let mbps = rate.bits().unwrap_or(0) as f64 / 1e6;
            let (ns, loss) = (*delay as f64 / NS as f64, losses.get(&i).copied().unwrap_or(0.0));
            // A String takes whatever is written.
            let _ = writeln!(text, "{} {} {mbps}Mbps {ns}ns {loss}", number(a), number(b));
        }
        text
    }
}

impl HpccFlows {
    /// Flows of the port that HPCC's analysis looks at, and of the group that their class is; or
    /// of its usual one.
    pub fn of(flows: Vec<Flow>) -> HpccFlows {
        let groups = flows.iter().map(|flow| flow.class.unwrap_or(3)).collect();
        HpccFlows { ports: vec![PORT; flows.len()], groups, flows }
    }

    /// Writes a `flow.txt`: the messages that wait for no others, in the order of their starts.
    /// Returns how many do wait, too, which the format cannot say.
    pub fn write(&self, of: &HpccTopology) -> (String, usize) {
        let numbers = of.numbers();
        let number = |host: u32| numbers.get(&Node::Host(host)).copied().unwrap_or(0);
        let all = self.flows.iter().zip(&self.ports).zip(&self.groups);
        let (mut free, waiting): (Vec<_>, Vec<_>) = all
            .filter(|((flow, _), _)| !flow.is_wait())
            .partition(|((f, _), _)| f.after.is_empty());
        free.sort_by_key(|((flow, _), _)| flow.start);
        let mut text = format!("{}\n", free.len());
        for ((flow, port), group) in free {
            let (from, to) = flow.way();
            let (src, dst) = (number(from), number(to));
            let start = flow.start as f64 / 1e12;
            let _ = writeln!(text, "{src} {dst} {group} {port} {} {start:.12}", flow.bytes);
        }
        (text, waiting.len())
    }
}

/// Writes a `pfc.txt`.
pub fn write_pfc(record: &Record, of: &HpccTopology) -> String {
    let ports = of.ports();
    let mut text = String::new();
    for note in &record.notes.pauses {
        let (node, port) = ports[note.link as usize];
        let is_switch = u8::from(note.link >= of.topology.hosts);
        let (at, kind) = (note.at / NS, u8::from(note.paused));
        let _ = writeln!(text, "{at} {node} {is_switch} {port} {kind}");
    }
    text
}

/// Writes a `qlen.txt`.
pub fn write_qlen(record: &Record, of: &HpccTopology) -> String {
    let ports = of.ports();
    let time = record.last() / NS;
    let mut text = format!("time: {time}\n");
    let first = of.topology.hosts as usize;
    let links = record.links.iter().zip(&ports).skip(first);
    let mut lines: Vec<_> = links.map(|(link, port)| (*port, &link.histogram)).collect();
    lines.sort_unstable_by_key(|(port, _)| *port);
    for ((node, port), histogram) in lines {
        let _ = write!(text, "{node} {port}");
        histogram.iter().for_each(|count| _ = write!(text, " {count}"));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::{Cluster, RecordOptions, incast};
    use crate::format::hpcc::{read_flows, read_topology};
    use crate::net::time::US;
    use crate::net::{BufferOptions, LeafSpine, LineRate, PfcOptions};

    #[test]
    fn what_is_written_is_read_back() {
        let rate = LineRate::gigabits(100);
        let shape = LeafSpine {
            leaves: 2,
            spines: 2,
            hosts_per_leaf: 2,
            host_rate: LineRate::gigabits(25),
            fabric_rate: rate,
            delay: US / 2,
        };
        let mut of = HpccTopology::of(shape.topology());
        of.losses.push((5, 0.25));
        assert_eq!(read_topology(&of.write()), Ok(of.clone()));
        let classes = incast(0..4, 1, 5000).into_iter().zip([3, 0, 7]);
        let flows = classes.map(|(flow, class)| Flow { class: Some(class), ..flow }).collect();
        let flows = HpccFlows::of(flows);
        let (text, left) = flows.write(&of);
        assert_eq!((read_flows(&text, &of), left), (Ok(flows), 0));
    }

    #[test]
    fn pauses_and_queues_have_the_nodes_and_interfaces_of_the_file() {
        let star = crate::net::Star { hosts: 9, rate: LineRate::gigabits(100), delay: US };
        let mut cluster = Cluster::new(star.topology());
        cluster.net.buffer = BufferOptions { bytes: 300_000, ..BufferOptions::default() };
        cluster.net.pfc = Some(PfcOptions::default());
        cluster.record = Some(RecordOptions { every: US, captures: vec![] });
        let report = cluster.run(&incast(1..9, 0, 102_400)).unwrap();
        let (record, of) = (report.record.unwrap(), HpccTopology::of(star.topology()));
        let pfc = write_pfc(&record, &of);
        let first: Vec<u64> =
            pfc.lines().next().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        // A host, which is paused at its only interface.
        assert!(first[0] > 1000 && (1..9).contains(&first[1]), "{first:?}");
        assert_eq!(first[2..], [0, 1, 1]);
        let count = |kind: &str| pfc.lines().filter(|line| line.ends_with(kind)).count() as u64;
        assert_eq!(count(" 1"), report.tally.pauses);
        assert_eq!(count(" 0"), count(" 1"), "all went on");
        let qlen = write_qlen(&record, &of);
        // The switch is node 9, and host 0's cable its first.
        let port = qlen.lines().find(|line| line.starts_with("9 1 ")).unwrap();
        assert!(port.split(' ').count() > 50, "{port}");
        assert_eq!(qlen.lines().count(), 1 + 9);
        let samples: u64 = port.split(' ').skip(2).map(|n| n.parse::<u64>().unwrap()).sum();
        assert_eq!(samples, record.samples);
    }
}
