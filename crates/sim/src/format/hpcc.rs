//! The files of HPCC's simulator (alibaba-edu/High-Precision-Congestion-Control): `topology.txt`
//! and `flow.txt` in, `fct.txt` out, as its `simulation/scratch/third.cc` reads and writes them.
//!
//! - A topology is the number of nodes, of switches and of links; the switches' numbers; and for
//!   each link its ends, rate (`100Gbps`), delay (`1000ns`, `0.001ms`) and loss.
//! - A list of flows is its length, and for each flow a line of its source, target, priority group,
//!   target port, bytes, and start in seconds. The group is the flow's class. ConWeave's lists
//!   leave the port out.
//! - A completion is a line of eight columns: the addresses in hexadecimal, the ports, bytes,
//!   start, completion time, and completion time alone, in nanoseconds.

use core::fmt::Write;
use std::collections::BTreeMap;

use super::words::{FormatError, Words, short};
use crate::flows::{Flow, Report};
use crate::net::time::NS;
use crate::net::topology::MOST;
use crate::net::{Cable, LineRate, Node, Ps, Topology, TopologyError};
use crate::units;

/// The target port that HPCC's analysis looks at.
pub(super) const PORT: u16 = 100;

/// A topology, and what its file says besides.
#[derive(Clone, PartialEq, Debug)]
pub struct HpccTopology {
    /// Hosts, switches and cables; the cables are in the order of the file.
    pub topology: Topology,
    /// By number in the file: the node.
    pub nodes: Vec<Node>,
    /// The cables that lose packets, by index, with the probability.
    pub losses: Vec<(usize, f64)>,
}

/// The flows of a file, and what it says of each besides.
#[derive(Clone, PartialEq, Debug)]
pub struct HpccFlows {
    /// The flows.
    pub flows: Vec<Flow>,
    /// By flow: the target port.
    pub ports: Vec<u16>,
    /// By flow: the priority group.
    pub groups: Vec<u8>,
}

/// Reads a `topology.txt`.
///
/// # Errors
/// If it is none, or one that [`Topology::check`] refuses.
pub fn read_topology(text: &str) -> Result<HpccTopology, FormatError> {
    let mut words = Words::of(text);
    if words.left("the number of nodes")? > 3 {
        let what = "a topology of HPCC's begins with a line of three numbers: nodes, switches and \
            links; those of other simulators (SimAI's, of nodes with several cards) are not read";
        return Err(words.error(what));
    }
    let total: u32 = words.value("the number of nodes")?;
    let switches: u32 = words.value("the number of switches")?;
    let links: u32 = words.value("the number of links")?;
    if total.max(links) > MOST || switches >= total {
        let what = format!(
            "{total} nodes, of them {switches} switches, and {links} links: there \
            is at least one host, and at most {MOST} of each"
        );
        return Err(words.error(what));
    }
    let nodes = read_nodes(&mut words, total, switches)?;
    let mut topology = Topology { hosts: total - switches, switches, cables: Vec::new() };
    let (mut losses, mut lines) = (Vec::new(), Vec::new());
    for i in 0..links as usize {
        let mut node = |what| {
            let number: u32 = words.value(what)?;
            let node = nodes.get(number as usize).copied();
            node.ok_or_else(|| {
                words.error(format!("there is no node {number}; the last is {}", total - 1))
            })
        };
        let (a, b) = (node("the first end of a link")?, node("the second end of a link")?);
        if a == b {
            return Err(words.error("the link leads from a node to itself"));
        }
        let (rate, delay) = (read_rate(&mut words)?, read_delay(&mut words)?);
        let loss: f64 = words.value("a link's loss")?;
        if !(0.0..=1.0).contains(&loss) {
            return Err(words.error(format!("a loss of {loss} is not from 0 to 1")));
        }
        if loss > 0.0 {
            losses.push((i, loss));
        }
        topology.cables.push(Cable { a, b, rate, delay });
        lines.push(words.line);
    }
    let read = HpccTopology { topology, nodes, losses };
    read.topology.check().map_err(|error| read.wrong(error, &lines))?;
    Ok(read)
}

impl HpccTopology {
    /// What is wrong with the topology, in the file's numbers, and at the line of a link that has
    /// to do with it: `lines` are those of all links.
    fn wrong(&self, error: TopologyError, lines: &[usize]) -> FormatError {
        let numbers = self.numbers();
        let number = |node| numbers.get(&node).copied().unwrap_or(0);
        let (what, node) = match error {
            TopologyError::HostCables { host, cables } => {
                let node = Node::Host(host);
                (format!("node {} has {cables} links; a host has one", number(node)), Some(node))
            }
            TopologyError::NotConnected { host } => {
                let node = Node::Host(host);
                let ends = [Node::Host(0), node].map(number);
                (format!("there is no path from node {} to node {}", ends[0], ends[1]), Some(node))
            }
            TopologyError::OutOfReach { switch } => {
                let node = Node::Switch(switch);
                (format!("no host has a path to node {}", number(node)), Some(node))
            }
            other => (other.to_string(), None),
        };
        let is_of = |cable: &Cable| node.is_some_and(|node| [cable.a, cable.b].contains(&node));
        let link = self.topology.cables.iter().rposition(is_of);
        FormatError::new(link.map_or(1, |link| lines[link]), what)
    }
}

/// Which of the nodes are switches. Hosts and switches keep their order.
fn read_nodes(words: &mut Words<'_>, total: u32, switches: u32) -> Result<Vec<Node>, FormatError> {
    let mut is_switch = vec![false; total as usize];
    for _ in 0..switches {
        let number: u32 = words.value("the number of a switch")?;
        match is_switch.get_mut(number as usize) {
            Some(is_switch) if !*is_switch => *is_switch = true,
            Some(_) => return Err(words.error(format!("node {number} is named twice"))),
            None => return Err(words.error(format!("there is no node {number}"))),
        }
    }
    let mut next = [0, 0];
    let node = |is_switch: &bool| {
        let index = next[usize::from(*is_switch)];
        next[usize::from(*is_switch)] += 1;
        if *is_switch { Node::Switch(index) } else { Node::Host(index) }
    };
    Ok(is_switch.iter().map(node).collect())
}

fn read_rate(words: &mut Words<'_>) -> Result<LineRate, FormatError> {
    let word = words.word("a link's rate")?;
    let wrong = || words.error(format!("\"{}\" is not {}", short(word), units::RATE));
    units::rate(word).ok_or_else(wrong)
}

fn read_delay(words: &mut Words<'_>) -> Result<Ps, FormatError> {
    let word = words.word("a link's delay")?;
    let wrong = || words.error(format!("\"{}\" is not {}", short(word), units::DELAY));
    units::delay(word).ok_or_else(wrong)
}

/// Reads a `flow.txt` for a topology.
///
/// # Errors
/// If it is none, or names a node that is no host.
pub fn read_flows(text: &str, of: &HpccTopology) -> Result<HpccFlows, FormatError> {
    let mut words = Words::of(text);
    let count: u64 = words.value("the number of flows")?;
    if count > Flow::MOST as u64 {
        let gib = count.saturating_mul(Flow::MEMORY as u64) >> 30;
        let most = Flow::MOST;
        return Err(words.error(format!("{count} flows need {gib} GiB; the most is {most}")));
    }
    let mut read = HpccFlows { flows: Vec::new(), ports: Vec::new(), groups: Vec::new() };
    for _ in 0..count {
        read.read_flow(&mut words, of)?;
    }
    Ok(read)
}

impl HpccFlows {
    /// Reads a flow's line.
    fn read_flow(&mut self, words: &mut Words<'_>, of: &HpccTopology) -> Result<(), FormatError> {
        let columns = words.left("a flow's source")?;
        if !(5..=6).contains(&columns) {
            let what = format!(
                "a flow is a line of source, target, priority group, port, bytes and start, or of \
                 these without the port: here are {columns} words"
            );
            return Err(words.error(what));
        }
        let mut host = |what| {
            let number: u32 = words.value(what)?;
            match of.nodes.get(number as usize) {
                Some(Node::Host(host)) => Ok(*host),
                _ => Err(words.error(format!("node {number} is not a host"))),
            }
        };
        let (src, dst) = (host("a flow's source")?, host("a flow's target")?);
        let group: u8 = words.value("a priority group")?;
        let port = if columns == 6 { words.value("a port")? } else { PORT };
        let bytes: u64 = words.value("a number of bytes")?;
        let start: f64 = words.value("a start in seconds")?;
        let ps = (start * 1e12).round();
        if !(0.0..=Flow::LATEST as f64).contains(&ps) {
            return Err(words.error(format!("a start at {start} s is not from 0 to 1000")));
        }
        if group > 7 {
            return Err(words.error(format!("a priority group of {group} is not from 0 to 7")));
        }
        let flow = Flow { class: Some(group), ..Flow::new(src, dst, bytes, ps as Ps) };
        Flow::check(core::slice::from_ref(&flow), of.topology.hosts)
            .map_err(|error| words.error(error))?;
        self.flows.push(flow);
        self.ports.push(port);
        self.groups.push(group);
        Ok(())
    }
}

/// Writes an `fct.txt`: the messages that have ended, in the order in which they did. What is
/// fetched goes the way of its bytes.
pub fn write_fct(report: &Report, flows: &HpccFlows, of: &HpccTopology) -> String {
    let mut numbers = vec![0; of.topology.hosts as usize];
    for (number, node) in (0u32..).zip(&of.nodes) {
        if let Node::Host(host) = node {
            numbers[*host as usize] = number;
        }
    }
    let address = |host: u32| {
        let number = numbers[host as usize];
        0x0B00_0001 + ((number / 256) << 16) + ((number % 256) << 8)
    };
    // HPCC counts the ports of a source for each of its targets.
    let mut ports: BTreeMap<(u32, u32), u16> = BTreeMap::new();
    let mut lines = Vec::new();
    let all = report.flows.iter().zip(&flows.flows).zip(&flows.ports);
    for ((done, flow), dport) in all.filter(|((_, flow), _)| !flow.is_wait()) {
        let next = ports.entry(flow.way()).or_insert(10_000);
        let sport = *next;
        *next = next.wrapping_add(1);
        if let (Some(ended), Some(time)) = (done.ended, done.time()) {
            lines.push((ended, flow, sport, *dport, time, done.alone));
        }
    }
    lines.sort_by_key(|(ended, ..)| *ended);
    let mut text = String::new();
    for (ended, flow, sport, dport, time, alone) in lines {
        let (from, to) = flow.way();
        let (src, dst) = (address(from), address(to));
        let (start, time, alone) = ((ended - time) / NS, time / NS, alone / NS);
        let bytes = flow.bytes;
        // A String takes whatever is written.
        let _ =
            writeln!(text, "{src:08x} {dst:08x} {sport} {dport} {bytes} {start} {time} {alone}");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flows::Cluster;

    const TOPOLOGY: &str = "4 1 3\n3\n0 3 100Gbps 1000ns 0\n1 3 100Gbps 0.001ms 0\n\
        2 3 25Gbps 1us 0.000000\n";
    const FLOWS: &str = "2\n0 1 3 100 1000 0.000002\n2 1 3 100 50000 0\n";

    #[test]
    fn a_mark_of_bytes_and_comments_are_no_words() {
        let text = "\u{feff}# mine\n3 1 2\n  # switches\n2\n0 2 1Gbps 1us 0\n1 2 1Gbps 1us 0\n#\n";
        let read = read_topology(text).unwrap();
        let plain = "3 1 2\n2\n0 2 1Gbps 1us 0\n1 2 1Gbps 1us 0\n";
        assert_eq!(Ok(read.clone()), read_topology(plain));
        let error = read_topology(&text.replace("1us 0\n#", "x 0\n#")).unwrap_err();
        assert_eq!(error.line, 6, "{error}");
        assert_eq!(read_flows("# one\n1\n0 1 3 100 9 0\n", &read).unwrap().flows.len(), 1);
    }

    /// ConWeave's flows have no port, and a start in whole seconds looks like a number of bytes.
    #[test]
    fn a_flow_is_a_line_with_a_port_or_without() {
        let of = read_topology(TOPOLOGY).unwrap();
        let read = |text: &str| read_flows(text, &of);
        let flows = read("2 \n0 1 3 999 2\n1 2 3 100 2000000 2.000001000\n").unwrap();
        assert_eq!((flows.ports, flows.groups), (vec![100, 100], vec![3, 3]));
        let bytes: Vec<u64> = flows.flows.iter().map(|flow| flow.bytes).collect();
        assert_eq!(bytes, [999, 2_000_000]);
        assert_eq!(flows.flows[0].start, 2_000_000_000_000);
        assert_eq!(read("1 0 1 3 7 999 2").unwrap().ports, [7]);
        for text in ["1\n0 1 3 999\n2\n", "1\n0 1 3 100 999 2 5\n"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("line 2: a flow is a line of"), "{error}");
        }
    }

    #[test]
    fn topologies_of_other_simulators_are_told_apart() {
        let error = read_topology("10 8 2 2 12 A100\n8 9\n").unwrap_err().to_string();
        assert!(error.starts_with("line 1: a topology of HPCC's") && error.contains("SimAI"));
    }

    #[test]
    fn files_in_and_out() {
        let of = read_topology(TOPOLOGY).unwrap();
        assert_eq!((of.topology.hosts, of.topology.switches), (3, 1));
        assert_eq!(of.topology.check(), Ok(()));
        assert!(of.topology.cables.iter().all(|cable| cable.delay == 1_000_000));
        let flows = read_flows(FLOWS, &of).unwrap();
        assert_eq!(flows.flows[0], Flow { class: Some(3), ..Flow::new(0, 1, 1000, 2_000_000) });
        let report = Cluster::new(of.topology.clone()).run(&flows.flows).unwrap();
        // As `a_message_takes_what_arithmetic_says` of the flows has it.
        let first = write_fct(&report, &flows, &of).lines().next().unwrap().to_owned();
        assert_eq!(first, "0b000001 0b000101 10000 100 1000 2000 4189 4189");
        assert_eq!(write_fct(&report, &flows, &of).lines().count(), 2);
    }

    #[test]
    fn source_ports_count_by_source_and_target() {
        let of = read_topology(TOPOLOGY).unwrap();
        let text = "3\n0 1 3 100 1000 0\n0 2 3 100 1000 0.001\n0 1 3 100 1000 0.002\n";
        let flows = read_flows(text, &of).unwrap();
        let report = Cluster::new(of.topology.clone()).run(&flows.flows).unwrap();
        let text = write_fct(&report, &flows, &of);
        let ports: Vec<&str> = text.lines().filter_map(|l| l.split(' ').nth(2)).collect();
        assert_eq!(ports, ["10000", "10000", "10001"]);
    }

    /// As in a list of flows that is written, from the host that has the bytes.
    #[test]
    fn what_is_fetched_goes_the_way_of_its_bytes() {
        let of = read_topology(TOPOLOGY).unwrap();
        let flows = HpccFlows::of(vec![Flow::new(1, 0, 1000, 0), Flow::fetch(0, 1, 3000, 0)]);
        let report = Cluster::new(of.topology.clone()).run(&flows.flows).unwrap();
        let text = write_fct(&report, &flows, &of);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        assert_eq!(words[0][..5], ["0b000101", "0b000001", "10000", "100", "1000"]);
        assert_eq!(words[1][..5], ["0b000101", "0b000001", "10001", "100", "3000"]);
    }

    #[test]
    fn an_error_names_its_line() {
        let of = read_topology(TOPOLOGY).unwrap();
        let wrong = |from: &str, to: &str| {
            read_topology(&TOPOLOGY.replace(from, to)).unwrap_err().to_string()
        };
        assert_eq!(wrong("0.001ms", "fast"), "line 4: \"fast\" is not a delay from 0 to 1s");
        assert_eq!(
            wrong("25Gbps", "0Gbps"),
            "line 5: \"0Gbps\" is not a rate from 1Mbps to 100Tbps"
        );
        assert_eq!(wrong("2 3 25", "2 7 25"), "line 5: there is no node 7; the last is 3");
        assert!(wrong("4 1 3", "4 4 3").starts_with("line 1: 4 nodes"));
        assert!(wrong("4 1 3", "4 1 9").contains("the file ends"));
        // Nodes have the file's numbers: the switch is node 1 here, and host 2 is node 3.
        let apart = "5 2 3\n1 4\n0 1 1Gbps 1us 0\n2 1 1Gbps 1us 0\n3 4 1Gbps 1us 0\n";
        let wrong_links =
            |from: &str, to: &str| read_topology(&apart.replace(from, to)).unwrap_err().to_string();
        assert_eq!(wrong_links("", ""), "line 5: there is no path from node 0 to node 3");
        assert_eq!(wrong_links("3 4 1G", "3 1 1G"), "line 1: no host has a path to node 4");
        assert_eq!(wrong_links("3 4 1G", "1 4 1G"), "line 1: node 3 has 0 links; a host has one");
        let twice = format!("{}2 4 1Gbps 1us 0\n", apart.replace("5 2 3", "5 2 4"));
        let twice = read_topology(&twice).unwrap_err().to_string();
        assert_eq!(twice, "line 6: node 2 has 2 links; a host has one");
        assert!(wrong("0.000000", "2").starts_with("line 5: a loss of 2"));
        let wrong = |from: &str, to: &str| {
            read_flows(&FLOWS.replace(from, to), &of).unwrap_err().to_string()
        };
        assert_eq!(wrong("2 1 3", "3 1 3"), "line 3: node 3 is not a host");
        assert!(wrong("50000", "0").starts_with("line 3: "));
        let group = wrong("2 1 3", "2 1 8");
        assert_eq!(group, "line 3: a priority group of 8 is not from 0 to 7");
        assert!(wrong("2\n", "1000000000\n").contains("2421 GiB"));
        assert!(wrong("0.000002", "-1").starts_with("line 2: a start"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9 \nGbpsn.e+-]{0,200}", any: String) {
            for text in [&text, &any] {
                if let Ok(of) = read_topology(text) {
                    let _ = of.topology.check();
                }
                let of = read_topology(TOPOLOGY).unwrap();
                let _ = read_flows(text, &of);
            }
        }
    }
}
