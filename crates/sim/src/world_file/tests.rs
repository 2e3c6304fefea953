//! World files: what they say is what runs, and what is wrong is pointed at.

use super::*;
use crate::flows::Flow;
use crate::net::time::{MS, US};
use crate::net::{Change, LineRate, Ps, Routing};

const WORLD: &str = r#"
name = "small"
seed = 3
until = "20ms"

[topology]
shape = "leaf-spine"
leaves = 2
spines = 2
hosts-per-leaf = 4
host-rate = "100Gbps"
fabric-rate = "200Gbps"
delay = "1us"

[switch]
buffer = "2MB"
routing = "spray"
mark = "100KB"
mark-at = "100Gbps"

[host]
transport = "selective"
mtu = 4096
window = 64
timeout = "500us"

[[change]]
at = "10us"
cable = ["switch 0", "switch 2"]
learnt-after = "5us"

[record]
every = "2us"

[[workload]]
kind = "poisson"
sizes = "web-search"
load = 0.3
span = "200us"

[[workload]]
kind = "incast"
sources = "0..7"
target = 3
bytes = "64KB"
start = "50us"
"#;

fn none(name: &str) -> Result<String, String> {
    Err(format!("there is no file {name}"))
}

fn parse(text: &str) -> Result<Experiment, Mistake> {
    Experiment::parse(text, &none, Overrides::default())
}

#[test]
fn a_world_is_what_its_file_says() {
    let Experiment { cluster, flows, name, .. } = parse(WORLD).unwrap();
    assert_eq!((name.as_str(), cluster.topology.hosts, cluster.until), ("small", 8, 20 * MS));
    assert_eq!((cluster.net.seed, cluster.net.routing), (3, Routing::Spray));
    assert_eq!(
        (cluster.net.buffer.bytes, cluster.net.buffer.marking_bits),
        (2_000_000, 100_000_000_000)
    );
    let slow = parse(&WORLD.replace("mark-at = \"100Gbps\"", "mark-at = \"500Mbps\"")).unwrap();
    assert_eq!(slow.cluster.net.buffer.marking_bits, 500_000_000);
    // 4.096 µs · 2^7 are 524 µs.
    assert_eq!((cluster.transport.name, cluster.timeout), ("selective", 7));
    assert_eq!((cluster.mtu, cluster.window_packets), (Mtu::B4096, 64));
    let [(at, Change::Cable { link, works: false }), (later, Change::LearnCable { link: of })] =
        *cluster.changes
    else {
        panic!("{:?}", cluster.changes)
    };
    assert_eq!(link, of);
    assert_eq!((at, later), (10 * US, 15 * US));
    assert_eq!(cluster.record.as_ref().unwrap().every, 2 * US);
    let incast = flows.flows.iter().filter(|f| (f.start, f.bytes) == (50 * US, 64_000));
    assert_eq!(incast.count(), 7);
    assert_eq!(cluster.topology.cables[8].rate, LineRate::gigabits(200));
    let over = Overrides { seed: Some(9), threads: Some(2) };
    let other = Experiment::parse(WORLD, &none, over).unwrap();
    assert_eq!((other.cluster.net.seed, other.cluster.threads), (9, 2));
    assert_ne!(other.flows.flows, flows.flows, "another seed draws other flows");
}

/// Two threads do what one does, with all of a world's sections.
#[test]
fn a_world_runs_alike_on_one_and_two_threads() {
    let run = |threads| {
        let over = Overrides { threads: Some(threads), ..Overrides::default() };
        let Experiment { cluster, flows, .. } = Experiment::parse(WORLD, &none, over).unwrap();
        cluster.run(&flows.flows).unwrap()
    };
    let (one, two) = (run(1), run(2));
    assert!(one == two, "{one}{two}");
    assert_eq!(one.failed(), 0);
    assert!(one.done() > 7 && one.tally.marked > 0, "{one}");
}

#[test]
fn a_mistake_is_pointed_at() {
    let wrong = |from: &str, to: &str| {
        assert!(WORLD.contains(from), "{from}");
        let text = WORLD.replace(from, to);
        let mistake = parse(&text).unwrap_err();
        assert!(!mistake.help.is_empty() && mistake.at.end <= text.len());
        (text[mistake.at].to_owned(), mistake.message, mistake.help)
    };
    let place = |from: &str, to: &str| wrong(from, to).0;
    assert_eq!(place("\"100Gbps\"\nfabric", "\"0Gbps\"\nfabric"), "\"0Gbps\"");
    assert_eq!(place("\"1us\"", "\"2s\""), "\"2s\"");
    assert_eq!(place("leaf-spine\"", "torus\""), "\"torus\"");
    assert_eq!(place("\"spray\"", "\"sprai\""), "\"sprai\"");
    assert_eq!(place("\"selective\"", "\"tcp\""), "\"tcp\"");
    assert_eq!(place("mtu = 4096", "mtu = 1500"), "1500");
    assert_eq!(place("\"0..7\"", "\"0..8\""), "\"0..8\"");
    assert_eq!(place("target = 3", "target = 8"), "8");
    assert_eq!(place("\"switch 2\"", "\"switch 1\""), "[\"switch 0\", \"switch 1\"]");
    assert_eq!(place("load = 0.3", "load = nan"), "nan");
    assert_eq!(place("buffer =", "bufer ="), "bufer");
    assert_eq!(place("spines = 2", "spines = 0"), "0");
    assert_eq!(place("\"web-search\"", "\"web-serch\""), "\"web-serch\"");
    assert_eq!(place("mark = ", "mark-at = "), "mark-at");
    let (_, message, help) = wrong("window = 64", "windows = 64");
    assert!(message.contains("`windows`") && help.contains("`window`"), "{message} {help}");
    let (_, message, _) = wrong("delay = \"1us\"", "");
    assert_eq!(message, "[topology] has no `delay`");
    assert_eq!(place("[switch]", "[switch"), "");
    let (place, message, help) = wrong("leaves = 2", "leafs = 2");
    assert_eq!(
        (place.as_str(), message.as_str()),
        ("leafs", "[topology] has no `leaves`, but `leafs`")
    );
    assert!(help.contains("`leaves`"), "{help}");
    let (_, message, help) = wrong("timeout = \"500us\"", "timeout = \"1000000s\"");
    assert!(message.contains("1000000s") && help.contains("less than 1000000s"), "{help}");
}

/// Several random workloads of one file draw apart, and the first as if it stood alone.
#[test]
fn no_two_workloads_draw_the_same() {
    let world = |rest: &str| {
        let topology = "shape = \"star\"\nhosts = 8\nrate = \"100Gbps\"\ndelay = \"1us\"\n";
        parse(&format!("seed = 4\n[topology]\n{topology}{rest}")).unwrap().flows.flows
    };
    let poisson = "[[workload]]\nkind = \"poisson\"\nsizes = \"web-search\"\nload = 0.5\n\
        span = \"300us\"\n";
    let permutation = "[[workload]]\nkind = \"permutation\"\nbytes = 9\n";
    let gets = "[[workload]]\nkind = \"gets\"\nclients = \"1..7\"\nserver = 0\n\
        sizes = \"web-search\"\ncalls = 9\n";
    let store = "[[workload]]\nkind = \"store\"\nclients = \"2..7\"\nservers = \"0..1\"\n\
        sizes = \"1KB\"\noperations = 9\ngets = 0.5\n";
    // What was drawn of a flow.
    type Drawn = (u32, u32, u64, Ps, Option<u32>);
    let drawn = |flow: &Flow| -> Drawn {
        let Flow { src, dst, bytes, start, verb, .. } = *flow;
        (src, dst, bytes, start, verb.key())
    };
    for kind in [poisson, permutation, gets, store] {
        let alone: Vec<Drawn> = world(kind).iter().map(drawn).collect();
        let three: Vec<Drawn> = world(&kind.repeat(3)).iter().map(drawn).collect();
        let (first, rest) = three.split_at(alone.len());
        assert_eq!(first, alone, "the first section is as it would be alone");
        let second = &rest[..first.len().min(rest.len())];
        assert!(first != second && !rest.ends_with(first), "{kind}");
        assert!(!rest.ends_with(second), "{kind}");
        let seeded = format!("{kind}seed = 7\n").repeat(2);
        let seeded: Vec<Drawn> = world(&seeded).iter().map(drawn).collect();
        let (one, other) = seeded.split_at(seeded.len() / 2);
        assert_eq!(one, other, "a seed of its own is what the section draws from");
    }
    let starts = |flows: &[Flow]| flows.iter().map(|flow| flow.start).collect::<Vec<Ps>>();
    let both = starts(&world(&poisson.repeat(2)));
    let first = starts(&world(poisson));
    assert!(both[first.len()..].iter().all(|start| !first.contains(start)), "no common start");
}

/// A change of a cable and a switch is one of both.
#[test]
fn a_cable_and_a_switch_may_change_together() {
    let both = "cable = [\"switch 0\", \"switch 2\"]\nswitch = \"switch 3\"\n";
    let changes = |rest: &str| {
        let from = "cable = [\"switch 0\", \"switch 2\"]\n";
        let text = WORLD.replace(from, &format!("{both}{rest}"));
        let changes = parse(&text).map(|world| world.cluster.changes);
        changes.map(|all| all.into_iter().map(|(_, change)| change).collect::<Vec<Change>>())
    };
    for works in [false, true] {
        let found = changes(&format!("works = {works}\n")).unwrap();
        let [
            Change::Cable { works: cable, .. },
            Change::LearnCable { .. },
            Change::Switch { switch: 3, works: switch },
            Change::LearnSwitch { switch: 3, .. },
        ] = *found
        else {
            panic!("{found:?}")
        };
        assert_eq!((cable, switch), (works, works));
    }
    // A slower cable does not fail; the switch does.
    let found = changes("rate = \"1Gbps\"\n").unwrap();
    let rates = found.iter().filter(|change| matches!(change, Change::Rate { .. })).count();
    assert_eq!((rates, found.len()), (2, 4), "{found:?}");
    assert!(found.contains(&Change::Switch { switch: 3, works: false }), "{found:?}");
    let slow = WORLD.replace("learnt-after = \"5us\"", "rate = \"1Gbps\"\nworks = true");
    assert!(parse(&slow).is_err(), "whether a cable works is nothing that its rate says");
}

/// Flows have the class that they say, that their section says, or that HPCC's file has for them.
#[test]
fn workloads_say_their_class() {
    let world = |host: &str, rest: &str| {
        let topology = "shape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n";
        let text = format!("[topology]\n{topology}[host]\n{host}\n[[workload]]\n{rest}");
        let flows = |_: &str| Ok("2\n0 1 5 100 1000 0\n1 2 4 100 1000 0\n".to_owned());
        Experiment::parse(&text, &flows, Overrides::default())
            .map_err(|mistake| (text[mistake.at].to_owned(), mistake.message))
    };
    let classes = |host: &str, rest: &str| -> Vec<(Option<u8>, u8)> {
        let flows = world(host, rest).unwrap().flows;
        flows.flows.iter().map(|flow| flow.class).zip(flows.groups).collect()
    };
    let incast = "kind = \"incast\"\nsources = \"1..2\"\ntarget = 0\nbytes = 9\n";
    assert_eq!(classes("", incast), [(None, 3), (None, 3)]);
    assert_eq!(classes("", &format!("{incast}class = 6\n")), [(Some(6), 6), (Some(6), 6)]);
    let one = "[[workload.flow]]\nfrom = 0\nto = 1\nbytes = 9\n";
    let flows = format!("kind = \"flows\"\nclass = 2\n{one}{one}class = 7\n");
    assert_eq!(classes("", &flows), [(Some(2), 2), (Some(7), 7)]);
    let hpcc = "kind = \"hpcc\"\nfile = \"flow.txt\"\n";
    assert_eq!(classes("", hpcc), [(Some(5), 5), (Some(4), 4)]);
    assert_eq!(classes("", &format!("{hpcc}class = 1\n")), [(Some(1), 1), (Some(1), 1)]);
    for host in ["transport = \"irn\"", "short-first = true"] {
        assert_eq!(classes(host, hpcc), [(None, 5), (None, 4)], "{host}");
    }
    assert_eq!(world("", &format!("{incast}class = 8\n")).unwrap_err().0, "8");
    let (_, message) = world("transport = \"irn\"", &format!("{incast}class = 1\n")).unwrap_err();
    assert!(message.contains("`irn` is a model"), "{message}");
}

/// Bytes that exist take memory at both ends of each flow: too many are told where they are asked
/// for, and not found out by a machine without memory.
#[test]
fn bytes_that_do_not_fit_memory_are_refused() {
    let parse_with = |payload: &str, bytes: &str| {
        let topology = "shape = \"star\"\nhosts = 64\nrate = \"100Gbps\"\ndelay = \"1us\"\n";
        let text = format!(
            "[topology]\n{topology}[host]\npayload = \"{payload}\"\n\
             [[workload]]\nkind = \"permutation\"\nbytes = \"{bytes}\"\n"
        );
        parse(&text).map_err(|mistake| (text[mistake.at].to_owned(), mistake.message))
    };
    let (place, message) = parse_with("real", "2GB").unwrap_err();
    assert_eq!(place, "\"real\"");
    assert!(message.contains("239 GiB of memory") && message.contains("is 4 GiB"), "{message}");
    assert!(parse_with("hollow", "2GB").is_ok());
    assert!(parse_with("real", "32MiB").is_ok());
    assert!(parse_with("real", "33MiB").is_err());
}

/// A workload may be of some hosts: it is the one that so many hosts alone would have.
#[test]
fn a_workload_may_be_of_some_hosts() {
    let flows = |hosts: u32, rest: &str| {
        let topology = "shape = \"star\"\nrate = \"100Gbps\"\ndelay = \"1us\"\n";
        let text = format!("[topology]\n{topology}hosts = {hosts}\n[[workload]]\n{rest}");
        let read = parse(&text).map_err(|mistake| (text[mistake.at].to_owned(), mistake.message));
        read.map(|world| world.flows.flows)
    };
    let poisson = "kind = \"poisson\"\nsizes = \"hadoop\"\nload = 0.5\nspan = \"100us\"\n";
    for kind in ["permutation", "all-to-all", "ring-all-reduce", "halving-doubling", "poisson"] {
        let rest = match kind {
            "poisson" => poisson.to_owned(),
            _ => format!("kind = \"{kind}\"\nbytes = 4000\n"),
        };
        let (alone, some) = (flows(4, &rest), flows(9, &format!("{rest}hosts = \"3..6\"\n")));
        let moved = |flow: Flow| Flow { src: flow.src + 3, dst: flow.dst + 3, ..flow };
        let moved: Vec<Flow> = alone.unwrap().into_iter().map(moved).collect();
        assert_eq!(some.unwrap(), moved, "{kind}");
        let wrong = flows(9, &format!("{rest}hosts = \"3..9\"\n")).unwrap_err();
        assert_eq!(wrong.0, "\"3..9\"");
    }
    let three = "kind = \"halving-doubling\"\nbytes = 4000\nhosts = \"0..2\"\n";
    assert_eq!(flows(8, three).unwrap_err().1, "3 hosts are no power of two");
    let one = flows(8, &format!("{poisson}hosts = 2\n")).unwrap_err().1;
    assert!(one.contains("needs two hosts"), "{one}");
}

/// Patterns on a part of the hosts, in the order in which these are named.
#[test]
fn workloads_are_put_on_sets_of_hosts() {
    let head = "[topology]\nshape = \"star\"\nhosts = 8\nrate = \"1Gbps\"\ndelay = \"1us\"\n\
                [[workload]]\nbytes = 1000\n";
    let ways = |rest: &str| -> Vec<(u32, u32)> {
        let flows = parse(&format!("{head}{rest}")).unwrap().flows.flows;
        flows.iter().map(|flow| (flow.src, flow.dst)).collect()
    };
    let incast = |sources: &str| ways(&format!("kind = \"incast\"\ntarget = 0\n{sources}"));
    assert_eq!(incast("sources = \"1-7/3\""), [(1, 0), (4, 0), (7, 0)]);
    assert_eq!(incast("sources = \"!1-6\""), [(7, 0)]);
    let ring = ways("kind = \"ring-all-reduce\"\nhosts = \"0,4,2\"\n");
    assert!(ring.iter().all(|way| [(0, 4), (4, 2), (2, 0)].contains(way)), "{ring:?}");
    let some = ways("kind = \"permutation\"\nhosts = \"!3,!6\"\n");
    assert!(
        some.len() == 6 && some.iter().all(|(a, b)| ![3, 6].contains(a) && ![3, 6].contains(b))
    );
    for (hosts, why) in [
        ("0-3,2", "host 2 is named twice"),
        ("0-8", "there is no host 8"),
        ("!0-7", "no host is left"),
        ("all", "\"all\" names no hosts"),
    ] {
        let text = format!("{head}kind = \"halving-doubling\"\nhosts = \"{hosts}\"\n");
        let mistake = parse(&text).unwrap_err();
        assert_eq!(text[mistake.at.clone()], format!("\"{hosts}\""));
        assert_eq!(mistake.message, format!("`hosts` is \"{hosts}\": {why}"));
    }
}

/// What flow control has no use for is a mistake where it stands.
#[test]
fn limits_of_queues_and_flow_control_exclude_each_other() {
    for (line, value) in [("queue = \"100KB\"", "\"100KB\""), ("alpha = 0.5", "0.5")] {
        let with = |pfc: &str| WORLD.replace("[switch]", &format!("[switch]\n{line}\n{pfc}"));
        assert!(parse(&with("")).is_ok() && parse(&with("pfc = false")).is_ok());
        let text = with("pfc = true");
        let mistake = parse(&text).unwrap_err();
        assert_eq!(&text[mistake.at], value);
        assert!(mistake.help.contains("`pfc-alpha`"), "{}", mistake.help);
    }
}

/// What only all flows together show is told at the workload that they come from.
#[test]
fn a_wrong_flow_is_told_at_its_workload() {
    let told = |text: &str| {
        let mistake = parse(text).unwrap_err();
        (mistake.at.start, mistake.message)
    };
    let text = WORLD.replace("start = \"50us\"", "start = \"999999s\"");
    let (at, message) = told(&text);
    assert_eq!(Some(at), text.rfind("[[workload]]"), "{message}");
    assert!(message.contains("starts later"), "{message}");
    let gets = "[[workload]]\nkind = \"gets\"\nclients = \"1..2\"\nserver = 0\nsizes = 100\n";
    let text = WORLD.replace("\"selective\"", "\"srnic\"") + gets;
    let (at, message) = told(&text);
    assert_eq!(Some(at), text.rfind("[[workload]]"), "{message}");
}

#[test]
fn a_cable_may_have_another_rate_and_lose_packets_at_once() {
    let change = "learnt-after = \"5us\"";
    let both = parse(&WORLD.replace(change, "rate = \"1Gbps\"\nloss = 0.1")).unwrap();
    let changes: Vec<Change> = both.cluster.changes.iter().map(|(_, change)| *change).collect();
    let rates = changes.iter().filter(|change| matches!(change, Change::Rate { .. }));
    assert_eq!((changes.len(), rates.count()), (4, 2), "{changes:?}");
}

/// A cable that is slow from the start on is judged as a slow one: alone, a flow loses nothing.
#[test]
fn a_cable_that_begins_slow_is_a_slow_cable() {
    let world = |at: &str| {
        format!(
            "[topology]\nshape = \"star\"\nhosts = 2\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [[change]]\nat = \"{at}\"\ncable = [\"switch 0\", \"host 1\"]\nrate = \"10Gbps\"\n\
             [[workload]]\nkind = \"incast\"\nsources = \"0\"\ntarget = 1\nbytes = \"64KB\"\n"
        )
    };
    let Experiment { cluster, flows, topology, .. } = parse(&world("0us")).unwrap();
    assert_eq!((&topology.topology, cluster.changes.len()), (&cluster.topology, 0));
    assert_eq!(cluster.host_rates(), [100_000_000_000, 10_000_000_000]);
    let report = cluster.run(&flows.flows).unwrap();
    let slowdown = report.flows[0].slowdown().unwrap();
    assert!((slowdown - 1.0).abs() < 1e-3, "{slowdown}");
    let Experiment { cluster, flows, .. } = parse(&world("1ns")).unwrap();
    assert_eq!((cluster.changes.len(), cluster.host_bits()), (2, 100_000_000_000));
    let later = cluster.run(&flows.flows).unwrap();
    assert_eq!(later.flows[0].ended, report.flows[0].ended);
    assert!(later.flows[0].slowdown() > Some(5.0), "as of the rate at the start");
}

#[test]
fn what_takes_too_much_memory_is_refused_before_it_is_built() {
    let message = |from: &str, to: &str| parse(&WORLD.replace(from, to)).unwrap_err().message;
    let hosts = message("hosts-per-leaf = 4", "hosts-per-leaf = 4000000000");
    assert!(hosts.starts_with("8000000000 hosts") && hosts.contains("GiB"), "{hosts}");
    // Each part of a large network has tables of all its cables.
    let spines = "hosts-per-leaf = 16\nleaves = 500\nspines = 4000";
    let tables = "shape = \"leaf-spine\"\nhost-rate = \"1Gbps\"\nfabric-rate = \"1Gbps\"\n\
        delay = \"1us\"\n";
    let load = "[[workload]]\nkind = \"permutation\"\nbytes = 1\n";
    let wide = parse(&format!("[topology]\n{tables}{spines}\n{load}")).unwrap_err().message;
    assert!(wide.starts_with("8000 hosts, 4500 switches and 2008000 cables"), "{wide}");
    assert!(wide.contains("about 37.5 GiB"), "{wide}");
    let flows = message("bytes = \"64KB\"", "bytes = \"64KB\"\ntimes = 1000000");
    assert!(flows.contains("8000000 flows need about 19 GiB"), "{flows}");
    let flows = message("span = \"200us\"", "span = \"1000s\"");
    assert!(flows.contains("flows, which need about"), "{flows}");
}

#[test]
fn topologies_that_do_not_hold_together_are_refused() {
    let world = |cables: &str| {
        let flow = "[[workload]]\nkind=\"flows\"\n[[workload.flow]]\nfrom=0\nto=1\nbytes=1\n";
        format!("[topology]\nshape=\"cables\"\nhosts=2\nswitches=2\n{cables}\n{flow}")
    };
    let cable = |a, b| {
        format!("[[topology.cable]]\nends=[\"{a}\",\"{b}\"]\nrate=\"1Gbps\"\ndelay=\"1us\"\n")
    };
    let message = |cables: &[String]| parse(&world(&cables.concat())).map_err(|m| m.message);
    let place = |cables: &[String]| {
        let text = world(&cables.concat());
        text[parse(&text).unwrap_err().at].to_owned()
    };
    let (a, b) = (cable("host 0", "switch 0"), cable("host 1", "switch 1"));
    let apart = [a.clone(), b.clone()];
    assert_eq!(message(&apart).unwrap_err(), "there is no path from host 0 to host 1");
    assert_eq!(place(&apart), "[\"host 1\",\"switch 1\"]");
    let twice = [a.clone(), b.clone(), cable("host 1", "switch 0")];
    assert_eq!(message(&twice).unwrap_err(), "host 1 has 2 cables; a host has one");
    assert_eq!(place(&twice), "[\"host 1\",\"switch 0\"]");
    assert_eq!(place(&[cable("switch 1", "switch 1")]), "[\"switch 1\",\"switch 1\"]");
    assert_eq!(place(std::slice::from_ref(&a)), "[topology]", "it has no cable");
    let far = message(&[a.clone(), cable("host 1", "switch 7")]).unwrap_err();
    assert_eq!(far, "there is no switch 7");
    let star = [a.clone(), cable("host 1", "switch 0")].concat();
    let island = star + &cable("switch 1", "switch 2");
    let island = world(&island).replace("switches=2", "switches=3");
    let mistake = parse(&island).unwrap_err();
    assert_eq!(mistake.message, "no host has a path to switch 1");
    assert_eq!(&island[mistake.at], "[\"switch 1\",\"switch 2\"]");
    let whole = [a, b, cable("switch 0", "switch 1")];
    assert_eq!(message(&whole).unwrap().flows.flows, [Flow::new(0, 1, 1, 0)]);
    // A cable that loses packets does so from the start on, in both directions.
    let lossy = |loss: &str| parse(&world(&format!("{}loss={loss}\n", whole.concat())));
    let of = lossy("0.25").unwrap();
    let loss = |link| (0, Change::Loss { link, probability: 0.25 });
    let links = of.cluster.topology.links_of_cables()[2];
    assert_eq!(of.cluster.changes, links.map(loss));
    assert!(of.topology.write().ends_with(" 0.25\n"), "and in HPCC's file");
    assert!(lossy("1.5").is_err());
}

/// Files of other simulators, and where their mistakes are told.
#[test]
fn files_that_a_world_names_are_read() {
    let world = "[topology]\nshape = \"hpcc\"\nfile = \"topology.txt\"\n\
        [[workload]]\nkind = \"hpcc\"\nfile = \"flow.txt\"\n";
    let files = |name: &str| match name {
        "topology.txt" => Ok("3 1 2\n1\n0 1 100Gbps 1us 0\n2 1 100Gbps 1us 0.5\n".to_owned()),
        "flow.txt" => Ok("1\n0 2 3 200 5000 0.001\n".to_owned()),
        _ => none(name),
    };
    let read = Experiment::parse(world, &files, Overrides::default()).unwrap();
    assert_eq!(read.flows.ports, [200]);
    assert_eq!(read.flows.flows, [Flow { class: Some(3), ..Flow::new(0, 1, 5000, MS) }]);
    assert_eq!(read.cluster.changes.len(), 2, "the lossy cable, in both directions");
    // Of two cables beside each other, the one that the file says loses packets.
    let beside = |name: &str| match name {
        "topology.txt" => Ok("4 2 4\n1 3\n0 1 1Gbps 1us 0\n2 3 1Gbps 1us 0\n\
            1 3 1Gbps 1us 0.25\n3 1 1Gbps 1us 0.5\n"
            .to_owned()),
        other => files(other),
    };
    let read = Experiment::parse(world, &beside, Overrides::default()).unwrap();
    let loss = |(_, change): &(Ps, Change)| match change {
        Change::Loss { link, probability } => (*link, *probability),
        other => panic!("{other:?}"),
    };
    let losses: Vec<_> = read.cluster.changes.iter().map(loss).collect();
    assert_eq!(losses, [(4, 0.25), (5, 0.25), (6, 0.5), (7, 0.5)]);
    let other = world.replace("flow.txt", "topology.txt");
    let mistake = Experiment::parse(&other, &files, Overrides::default()).unwrap_err();
    assert!(mistake.message.starts_with("topology.txt, line 1: "), "{mistake:?}");
    assert_eq!(&other[mistake.at], "\"topology.txt\"");
    let apart = |name: &str| match name {
        "topology.txt" => Ok("4 2 2\n1 3\n0 1 1Gbps 1us 0\n2 3 1Gbps 1us 0\n".to_owned()),
        other => files(other),
    };
    let mistake = Experiment::parse(world, &apart, Overrides::default()).unwrap_err();
    assert_eq!(mistake.message, "topology.txt, line 4: there is no path from node 0 to node 2");
    assert_eq!(&world[mistake.at], "\"topology.txt\"");
    let missing = world.replace("flow.txt", "flows.txt");
    let mistake = Experiment::parse(&missing, &files, Overrides::default()).unwrap_err();
    assert_eq!(mistake.message, "there is no file flows.txt");
}

/// A workload of which no flow comes is a mistake in its section, whatever others do.
#[test]
fn a_workload_without_flows_is_refused() {
    let world = |workload: &str| {
        format!(
            "[topology]\nshape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [[workload]]\nkind = \"permutation\"\nbytes = 1\n[[workload]]\n{workload}"
        )
    };
    for workload in [
        "kind = \"incast\"\nsources = 2\ntarget = 2\nbytes = 1",
        "kind = \"poisson\"\nsizes = 1000\nload = 1e-30\nspan = \"1us\"",
        "kind = \"all-to-all\"\nhosts = 1\nbytes = 1",
        "kind = \"flows\"",
    ] {
        let text = world(workload);
        let mistake = parse(&text).unwrap_err();
        assert_eq!(mistake.message, "no flow comes of it", "{workload}");
        assert!(mistake.at.start > text.find("bytes = 1\n[[").unwrap(), "{workload}");
    }
}

#[test]
fn help_says_all_that_there_is_and_the_true_bounds() {
    let world = "[topology]\nshape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[workload]]\nkind = \"permutation\"\nbytes = 1\n";
    let help = |text: &str| parse(text).unwrap_err().help;
    assert!(help(&format!("{world}[other]\n")).contains("`record`"));
    let none = help(&world.replace("hosts = 4", "hosts = 0"));
    assert_eq!(none, "it should be a number from 1 to 65536");
    let named = |length| format!("name = \"{}\"\n{world}", "x".repeat(length));
    assert_eq!(parse(&named(1024)).unwrap().name.len(), 1024);
    assert!(help(&named(1025)).contains("1024 bytes"));
    let switch = help(&format!("{world}[[change]]\nat = \"1us\"\nswitch = \"switch 1\"\n"));
    assert_eq!(switch, "it should be one from \"switch 0\" to \"switch 0\"");
}

/// A topology in HPCC's format can say what is lost from the start on.
#[test]
fn losses_from_the_start_are_those_of_the_topology() {
    let world = "[topology]\nshape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[change]]\nat = \"0us\"\ncable = [\"host 2\", \"switch 0\"]\nloss = 0.25\n\
        [[change]]\nat = \"1us\"\ncable = [\"host 3\", \"switch 0\"]\nloss = 0.5\n\
        [[workload]]\nkind = \"permutation\"\nbytes = 1\n";
    assert_eq!(parse(world).unwrap().topology.losses, [(2, 0.25)]);
}

/// A load is of payload: what headers and acknowledges make too much of is told.
#[test]
fn a_load_that_links_cannot_carry_is_warned_of() {
    let warnings = |transport: &str, load: f64, mtu: u32| {
        let text = format!(
            "[topology]\nshape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [host]\ntransport = \"{transport}\"\nmtu = {mtu}\n[[workload]]\nkind = \"poisson\"\n\
             sizes = 1000000\nload = {load}\nspan = \"1ms\"\n"
        );
        parse(&text).unwrap().warnings
    };
    // 66 + 16 bytes beside 1024; in the lossy dialect 66 + 44; a model's acknowledges have 90.
    assert!(warnings("go-back-n", 0.92, 1024).is_empty());
    assert!(warnings("go-back-n", 0.93, 1024)[0].contains("a load of 0.93 is 1.00"));
    assert!(
        warnings("selective", 0.91, 1024).len() == 1
            && warnings("selective", 0.91, 4096).is_empty()
    );
    assert!(warnings("irn", 0.84, 1024).is_empty() && warnings("irn", 0.85, 1024).len() == 1);
}

/// A model has no payload, no card, no classes; a host that serves values needs a card.
#[test]
fn what_a_model_has_not_is_pointed_at() {
    let world = |host: &str, workload: &str| {
        format!(
            "[topology]\nshape = \"star\"\nhosts = 4\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [host]\n{host}\n[[workload]]\n{workload}"
        )
    };
    let incast = "kind = \"incast\"\nsources = \"1..3\"\ntarget = 0\nbytes = 1000";
    for (line, place) in [
        ("payload = \"real\"", "\"real\""),
        ("card = \"cx5\"", "\"cx5\""),
        ("short-first = true", "true"),
        ("turns = \"shortest-first\"", "\"shortest-first\""),
    ] {
        let card = format!("transport = \"selective\"\n{line}");
        assert!(parse(&world(&card, incast)).is_ok(), "{line}");
        let text = world(&card.replace("selective", "srnic"), incast);
        let mistake = parse(&text).unwrap_err();
        assert_eq!(&text[mistake.at], place);
        assert!(mistake.message.contains("`srnic` is a model"), "{}", mistake.message);
    }
    let gets = "kind = \"gets\"\nclients = \"1..3\"\nserver = 0\nsizes = \"64B\"\ncalls = 5";
    let text = world("transport = \"irn\"", gets);
    assert!(parse(&text).unwrap_err().message.contains("`irn` is a model"));
    let Experiment { cluster, flows, .. } = parse(&world("", gets)).unwrap();
    let report = cluster.run(&flows.flows).unwrap();
    assert_eq!((report.done(), flows.flows.len()), (15, 15), "{report}");
}

#[test]
fn clients_ask_the_stores_that_a_file_says() {
    let world = |store: &str| {
        format!(
            "[topology]\nshape = \"star\"\nhosts = 6\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
             [[workload]]\nkind = \"store\"\nclients = \"2..5\"\nservers = \"0..1\"\n{store}"
        )
    };
    let rest = "sizes = \"1KB\"\noperations = 10\nkeys = 50\ngets = 0.5\ndepth = 2\nskew = 1";
    let Experiment { cluster, flows, .. } = parse(&world(rest)).unwrap();
    let report = cluster.run(&flows.flows).unwrap();
    assert_eq!((report.done(), flows.flows.len()), (80, 80), "{report}");
    let gets = flows.flows.iter().filter(|flow| flow.fetches()).count();
    assert!((20..60).contains(&gets), "{gets}");
    let wrong = |from: &str, to: &str| {
        let text = world(rest).replace(from, to);
        let mistake = parse(&text).unwrap_err();
        (text[mistake.at].to_owned(), mistake.message)
    };
    assert_eq!(wrong("\"0..1\"", "\"0..2\"").1, "host 2 is a client and has a store");
    assert_eq!(wrong("1KB", "2MB").1, "values of 2000000 bytes");
    assert_eq!(wrong("gets = 0.5", "gets = 1.5").0, "1.5");
    assert_eq!(wrong("keys = 50", "keys = 0").0, "0");
    assert!(wrong("operations = 10", "").1.ends_with("has no `operations`"));
    let (_, many) = wrong("operations = 10", "operations = 1000000000");
    assert!(many.starts_with("8000000000 flows need about"), "{many}");
    let text = world(&rest.replace("1KB", "1MB").replace("keys = 50", "keys = 5000"));
    let mistake = parse(&text.replace("operations = 10", "operations = 1000")).unwrap_err();
    assert!(mistake.message.starts_with("the values of stores take"), "{}", mistake.message);
}
