//! `remora world` and `remora sim`, as a user runs them.

mod support;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::Folder;

fn world(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).arg("world").args(args).output().unwrap()
}

fn example(name: &str) -> String {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../../examples/worlds").join(name).display().to_string()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs an example, and returns its figures and its page.
fn run(name: &str, more: &[&str]) -> (Value, String) {
    let folder = Folder::new();
    let (json, page) = (folder.path("out.json"), folder.path("out.html"));
    let (json, page) = (json.to_str().unwrap(), page.to_str().unwrap());
    let mut args = vec!["run", name, "--json", json, "--page", page];
    args.extend(more);
    let output = world(&args);
    assert!(output.status.success(), "{}", told(&output));
    let figures = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    (figures, fs::read_to_string(page).unwrap())
}

#[test]
fn an_incast_with_flow_control_loses_nothing_and_takes_what_its_port_takes() {
    let (figures, page) = run(&example("incast.toml"), &[]);
    assert_eq!((&figures["done"], &figures["failed"]), (&48.into(), &0.into()));
    let packets = &figures["packets"];
    assert_eq!((&packets["dropped_full"], &packets["sent_again"]), (&0.into(), &0.into()));
    assert!(packets["pauses"].as_u64().unwrap() > 0);
    // Sixteen messages of 250 packets by one port of 100 Gb/s, 1106 bytes each, and the first 16
    // longer: so long the last of each burst takes, and the ways.
    let port = 16.0 * (250.0 * 1106.0 + 16.0) * 0.08 / 1e3;
    let most = figures["times_us"]["max"].as_f64().unwrap();
    assert!(most > port && most < port + 8.0, "{most} and {port}");
    // The page has the topology, and each plot.
    for part in ["<h2>Topology", "Queues over time", "Slowdown by size", "Pauses", "host 0"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
    assert!(!page.contains("src=") && !page.contains("href="), "the page needs no other file");
}

#[test]
fn a_fat_tree_gives_the_same_on_two_threads_and_another_by_another_seed() {
    let world = example("fat-tree.toml");
    let (one, _) = run(&world, &[]);
    let (two, _) = run(&world, &["--threads", "2"]);
    assert_eq!(one["failed"], 0);
    assert_eq!(one["done"], one["flows"]);
    assert!(one["mean_slowdown"].as_f64().unwrap() > 1.0);
    for figure in ["trace", "packets", "classes", "stages", "waits", "times_us"] {
        assert_eq!(one[figure], two[figure], "{figure}");
    }
    let (other, _) = run(&world, &["--seed", "2"]);
    assert_ne!(one["trace"], other["trace"]);
}

#[test]
fn a_failing_link_loses_packets_and_no_flow() {
    let (figures, _) = run(&example("failing-link.toml"), &[]);
    assert_eq!(figures["done"], figures["flows"]);
    let packets = &figures["packets"];
    assert!(packets["dropped_down"].as_u64().unwrap() > 0, "{packets}");
    assert!(packets["sent_again"].as_u64() >= packets["dropped_down"].as_u64(), "{packets}");
}

#[test]
fn worlds_are_compared() {
    let folder = Folder::new();
    let text = fs::read_to_string(example("incast.toml")).unwrap();
    let other = folder.path("lossy.toml");
    let text = text.replace("\"incast\"\nabout", "\"without\"\nabout").replace("pfc = true", "");
    fs::write(&other, text.replace("-fixed", "")).unwrap();
    let page = folder.path("both.html");
    let both = [&*example("incast.toml"), other.to_str().unwrap()];
    let output = world(&["compare", both[0], both[1], "--page", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("without") && shown.contains("p99 completion"), "{shown}");
    assert!(fs::read_to_string(page).unwrap().contains("slowdown by size"));
    assert!(!world(&["compare", both[0]]).status.success(), "one world is none to compare");
}

#[test]
fn what_worlds_set_is_compared() {
    let folder = Folder::new();
    let text = fs::read_to_string(example("tuned.toml")).unwrap();
    let (own, json) = (folder.path("own.toml"), folder.path("both.json"));
    let tuning = text.split_once("\n[host.tuning]\n").unwrap().1.split_once("[[").unwrap().0;
    fs::write(&own, text.replace(tuning, "").replace("\"tuned\"", "\"own\"")).unwrap();
    let (own, json) = (own.to_str().unwrap(), json.to_str().unwrap());
    let output = world(&["compare", own, &example("tuned.toml"), "--json", json]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(row("additive").contains("20Mbps") && row("additive").contains("400Mbps"), "{shown}");
    assert!(row("least-rate").is_empty() && row("window").is_empty(), "{shown}");
    let both: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(both[1]["settings"]["increase-every"], "10us");
    assert_ne!(both[0]["trace"], both[1]["trace"], "what is set is what runs");
}

/// With several seeds, figures are the means of the runs that each seed has by itself.
#[test]
fn a_world_is_run_with_several_seeds() {
    let folder = Folder::new();
    let json = folder.path("out.json");
    let json = json.to_str().unwrap();
    let world_file = example("fat-tree.toml");
    let figures = |args: &[&str]| -> (Value, String) {
        let output = world(&[args, &["--json", json]].concat());
        assert!(output.status.success(), "{}", told(&output));
        let text = fs::read_to_string(json).unwrap();
        (serde_json::from_str(&text).unwrap(), String::from_utf8_lossy(&output.stdout).into())
    };
    let (all, shown) = figures(&["run", &world_file, "--seed", "5", "--seeds", "2"]);
    assert!(shown.contains("lowest") && shown.contains("seeds 5 to 6"), "{shown}");
    assert_eq!(all["seeds"], serde_json::json!([5, 6]));
    let (own, _) = figures(&["run", &world_file, "--seed", "6"]);
    assert_eq!(all["runs"][1]["trace"], own["trace"]);
    assert_ne!(all["runs"][0]["trace"], own["trace"]);
    let (spread, runs) = (&all["figures"]["p99_us"], &all["runs"]);
    let p99 = [0, 1].map(|i: usize| runs[i]["times_us"]["p99"].as_f64().unwrap());
    assert_eq!(spread["lowest"].as_f64().unwrap(), p99[0].min(p99[1]));
    assert_eq!(spread["highest"].as_f64().unwrap(), p99[0].max(p99[1]));
    assert!((spread["mean"].as_f64().unwrap() - (p99[0] + p99[1]) / 2.0).abs() < 1e-9);
    let incast = example("incast.toml");
    let (both, shown) = figures(&["compare", &incast, &incast, "--seeds", "2"]);
    assert!(shown.contains("(1.00)") && shown.contains("the lowest and the highest"), "{shown}");
    assert_eq!(both[1]["figures"]["failed"]["highest"], 0.0);
    let page = world(&["run", &incast, "--seeds", "2", "--page", json]);
    assert!(told(&page).contains("leave --page or --seeds out"), "{}", told(&page));
    // What is a stream is read once.
    let mut piped = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["world", "run", "/dev/stdin", "--seed", "5", "--seeds", "2", "--json", json])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(&fs::read(&world_file).unwrap()).unwrap();
    assert!(piped.wait().unwrap().success());
    let piped: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(piped["runs"][1]["trace"], own["trace"]);
    let many = world(&["run", &incast, "--seed", "18446744073709551615", "--seeds", "2"]);
    assert!(told(&many).contains("take a lower --seed"), "{}", told(&many));
}

/// What has arrived counts, of flows that a run ends before their end, too, and the time before the
/// first flow does not.
#[test]
fn goodput_is_of_what_arrived_from_the_first_flow_on() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let text = "until = \"2000100us\"\n[topology]\nshape = \"star\"\nhosts = 2\n\
        rate = \"100Gbps\"\ndelay = \"1us\"\n[[workload]]\nkind = \"flows\"\nstart = \"2s\"\n\
        [[workload.flow]]\nfrom = 0\nto = 1\nbytes = 100000000\n";
    fs::write(at("late.toml"), text).unwrap();
    let late = at("late.toml");
    let (figures, page) = run(&late, &[]);
    assert_eq!((&figures["done"], &figures["first_us"]), (&0.into(), &2_000_000.0.into()));
    // Half of it sends, at nearly the whole rate but for headers.
    let goodput = figures["gigabits_per_host"].as_f64().unwrap();
    assert!(goodput > 40.0 && goodput < 50.0, "{goodput}");
    let busy = page.split("% busy</title>").next().unwrap().rsplit(' ').nth(1).unwrap();
    assert!(busy.parse::<u32>().unwrap() > 90, "{busy}");
    let shown = world(&["run", &late]).stdout;
    assert!(String::from_utf8_lossy(&shown).contains("from 2000000.0 to 2000100.0 µs"));
    let output = world(&["compare", &late, &late]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = shown.lines().find(|line| line.contains("goodput")).unwrap();
    assert!(line.contains(&format!("{goodput:.2} (1.00)")), "{line}");
    let output = world(&["export", &late, "--qlen", &at("qlen.txt"), "--fct", &at("fct.txt")]);
    assert!(output.status.success(), "{}", told(&output));
    let queues = fs::read_to_string(at("qlen.txt")).unwrap();
    assert_eq!(queues.lines().next(), Some("time: 2000100000"));
    let port: Vec<u32> =
        queues.lines().nth(1).unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    assert_eq!(port[2..].iter().sum::<u32>(), 100, "a sample a microsecond");
}

/// What a format cannot say is told.
#[test]
fn losses_are_exported_and_failures_are_told() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let text = "[topology]\nshape = \"star\"\nhosts = 3\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[change]]\nat = \"0us\"\ncable = [\"host 2\", \"switch 0\"]\nloss = 0.25\n\
        [[workload]]\nkind = \"flows\"\n[[workload.flow]]\nfrom = 0\nto = 1\nbytes = 1\n";
    let fails = "[[change]]\nat = \"9us\"\nswitch = \"switch 0\"\n";
    for (more, is_told) in [("", false), (fails, true)] {
        fs::write(at("w.toml"), format!("{text}{more}")).unwrap();
        let output = world(&["export", &at("w.toml"), "--topology", &at("t.txt")]);
        assert!(output.status.success(), "{}", told(&output));
        assert_eq!(told(&output).contains("the format cannot say"), is_told);
        assert!(fs::read_to_string(at("t.txt")).unwrap().ends_with(" 0.25\n"));
    }
    let cable = ["--cable", "switch 0", "host 1"];
    fs::write(at("w.toml"), text).unwrap();
    let output =
        world(&[&["export", &at("w.toml"), "--pcapng", &at("p.pcapng")], &cable[..]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let packets = fs::read(at("p.pcapng")).unwrap();
    for name in ["switch 0 to host 1", "host 1 to switch 0"] {
        assert!(packets.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
}

/// A collective beside other traffic has figures of its own.
#[test]
fn each_workload_has_its_figures() {
    let folder = Folder::new();
    let file = folder.path("two.toml");
    let text = "[topology]\nshape = \"star\"\nhosts = 6\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[workload]]\nkind = \"ring-all-reduce\"\nhosts = \"0..3\"\nbytes = \"400KB\"\n\
        start = \"10us\"\n[[workload]]\nkind = \"flows\"\n[[workload.flow]]\nfrom = 4\nto = 5\n\
        bytes = 1000\n";
    fs::write(&file, text).unwrap();
    let (figures, page) = run(file.to_str().unwrap(), &[]);
    let [ring, one] = &figures["workloads"].as_array().unwrap()[..] else { panic!("{figures}") };
    assert_eq!(
        (&ring["kind"], &ring["flows"], &ring["done"]),
        (&"ring-all-reduce".into(), &24.into(), &24.into())
    );
    // Six steps of 100 KB, one behind the other, and the last is acknowledged.
    let whole = ring["whole_us"].as_f64().unwrap();
    let end = figures["end_us"].as_f64().unwrap();
    assert!((whole - (end - 10.0)).abs() < 1e-6, "{whole} {end}");
    assert!(whole > 6.0 * 8.0 && whole < 6.0 * 15.0, "{whole}");
    let rate = ring["gigabits"].as_f64().unwrap();
    assert!((rate - 24.0 * 0.1e6 * 8e-3 / whole).abs() < 0.01 * rate, "{rate}");
    assert_eq!(
        (&one["done"], &one["mean_us"], &one["p99_us"]),
        (&1.into(), &one["whole_us"], &one["mean_us"])
    );
    assert!(page.contains("By workload") && page.contains("<td>1. ring-all-reduce"));
    // A schedule begins with its first calculation.
    let goal = "num_ranks 2\nrank 0 {\na: calc 1000000\nb: send 8b to 1\nb requires a\n}\n\
        rank 1 {\nrecv 8b from 0\n}\n";
    fs::write(folder.path("trace.goal"), goal).unwrap();
    let text = "[topology]\nshape = \"star\"\nhosts = 2\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[workload]]\nkind = \"goal\"\nfile = \"trace.goal\"\n";
    fs::write(&file, text).unwrap();
    let (figures, _) = run(file.to_str().unwrap(), &[]);
    let schedule = &figures["workloads"][0];
    assert_eq!(schedule["whole_us"], figures["end_us"]);
    let (whole, mean) = (&schedule["whole_us"], &schedule["mean_us"]);
    let before = whole.as_f64().unwrap() - mean.as_f64().unwrap();
    assert!((before - 1000.0).abs() < 1e-6, "{schedule}");
}

/// Worlds whose flows fail are told from those that cannot be run, and from those that end early.
#[test]
fn flows_that_fail_have_a_status_of_their_own() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let file = |name: &str, end: &str, change: &str| {
        let text = format!(
            "name = \"{name}\"\n{end}\n[topology]\nshape = \"star\"\nhosts = 3\n\
             rate = \"100Gbps\"\ndelay = \"1us\"\n[host]\ntimeout = \"8us\"\n{change}\n\
             [[workload]]\nkind = \"calls\"\nclients = \"1..2\"\nserver = 0\nrequest = 64\n\
             answer = 64\ncalls = 2\n"
        );
        fs::write(at(name), text).unwrap();
        at(name)
    };
    let fails = "[[change]]\nat = \"0us\"\ncable = [\"switch 0\", \"host 1\"]\n";
    let (good, bad) = (file("good", "", ""), file("bad", "", fails));
    let early = file("early", "until = \"1us\"", "");
    let ran = |args: &[&str]| {
        let output = world(args);
        (output.status.code(), told(&output))
    };
    assert_eq!(ran(&["run", &good]), (Some(0), String::new()));
    // What is no flow's has no figure; and a page that cannot be written takes none along.
    let (json, taken) = (at("early.json"), at("page"));
    fs::create_dir(&taken).unwrap();
    let (status, said) = ran(&["run", &early, "--json", &json, "--page", &taken]);
    assert!(status == Some(1) && said.contains("cannot write"), "{said}");
    let figures: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    for figure in ["end_us", "times_us", "mean_slowdown", "p99_slowdown"] {
        assert!(figures[figure].is_null(), "{figure}: {figures}");
    }
    let (status, said) = ran(&["run", &early, "--page", &at("nowhere/page.html")]);
    assert!(status == Some(2) && said.contains("there is no folder"), "{said}");
    assert_eq!(ran(&["run", &early]).0, Some(0));
    let (status, said) = ran(&["run", &bad]);
    assert_eq!(status, Some(3), "{said}");
    // The first request of host 1 fails; its answer and the second call wait for it.
    assert!(said.contains("\"bad\": of 8 flows 1 have failed, 3 never end"), "{said}");
    let (status, said) = ran(&["compare", &good, &bad]);
    assert_eq!((status, said.contains("\"good\"")), (Some(3), false), "{said}");
    assert_eq!(ran(&["export", &bad, "--fct", &at("fct.txt")]).0, Some(3));
    assert!(String::from_utf8_lossy(&world(&["run", "--help"]).stdout).contains("3 if flows"));
}

/// A ring of switches whose ways wait for each other: figures and page are of the time until then.
#[test]
fn a_deadlock_has_its_figures_and_its_page() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let cable = |a: String, b: String| {
        let rest = "rate = \"100Gbps\"\ndelay = \"1us\"\n";
        format!("[[topology.cable]]\nends = [\"{a}\", \"{b}\"]\n{rest}")
    };
    let hosts = (0..8).map(|h| cable(format!("host {h}"), format!("switch {}", h / 2)));
    let ring = (0..4).map(|s| cable(format!("switch {s}"), format!("switch {}", (s + 1) % 4)));
    let flow = |src: u32| {
        format!("[[workload.flow]]\nfrom = {src}\nto = {}\nbytes = 2000000\n", (src + 4) % 8)
    };
    let flows: String = (0..64).map(|i| flow(i % 8)).collect();
    let text = format!(
        "[topology]\nshape = \"cables\"\nhosts = 8\nswitches = 4\n{}{}[switch]\nbuffer = 60000\n\
         pfc = true\n[host]\nwindow = 4096\n[[workload]]\nkind = \"flows\"\n{flows}",
        hosts.collect::<String>(),
        ring.collect::<String>()
    );
    fs::write(at("ring.toml"), text).unwrap();
    let output =
        world(&["run", &at("ring.toml"), "--json", &at("out.json"), "--page", &at("out.html")]);
    assert_eq!(output.status.code(), Some(3), "{}", told(&output));
    let words = told(&output);
    assert!(words.contains("come to a deadlock"), "{words}");
    let ways = ["switch 3 to switch 0", "switch 0 to switch 3"];
    let way = ways.into_iter().find(|way| words.contains(way)).expect(&words);
    let figures: Value =
        serde_json::from_str(&fs::read_to_string(at("out.json")).unwrap()).unwrap();
    let stuck = &figures["deadlock"];
    assert_eq!(stuck["links"].as_array().unwrap().len(), 4, "{stuck}");
    assert_eq!(stuck["found_us"], figures["stopped_us"]);
    let (done, left) = (figures["done"].as_u64(), stuck["flows_left"].as_u64());
    assert_eq!(done.unwrap() + left.unwrap(), 64);
    assert!(figures["packets"]["pauses"].as_u64() > Some(0));
    let page = fs::read_to_string(at("out.html")).unwrap();
    let row = format!("<td>{way}");
    for part in ["Deadlock of flow control", &row, "stroke=\"#000\"", "Queues"] {
        assert!(page.contains(part), "{part}");
    }
}

/// The arithmetic of HPCC's `analysis/fct_analysis.py`, in words of its own: by size, in rows of as
/// many flows each, the largest flow left out, what the slowdowns of a row do not exceed.
const ANALYSIS: &str = "
import sys

found = []
for line in open(sys.argv[1]):
    source, target, from_port, to_port, size, start, took, alone = line.split()
    int(source, 16), int(target, 16), int(from_port)
    if int(to_port) == 100 and int(start) + int(took) < 3_000_000_000:
        found.append((int(size), max(1.0, int(took) / int(alone))))
found = sorted(found)[:-1]
for part in range(20):
    row = found[part * len(found) // 20:(part + 1) * len(found) // 20]
    slow = sorted(slowdown for _, slowdown in row)
    at = [slow[int(len(slow) * share)] for share in (0.5, 0.95, 0.99)]
    print(row[-1][0], *('%.3f' % value for value in at))
";

/// What HPCC's simulator would write, its scripts can read: the columns that `third.cc` prints.
#[test]
fn hpccs_analysis_reads_what_is_exported() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let text = "[topology]\nshape = \"star\"\nhosts = 16\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [switch]\npfc = true\nbuffer = \"300KB\"\n[[workload]]\nkind = \"poisson\"\n\
        sizes = \"web-search\"\nload = 0.7\nspan = \"1ms\"\n";
    fs::write(at("w.toml"), text).unwrap();
    let [fct, pfc, qlen, json] = ["fct.txt", "pfc.txt", "qlen.txt", "out.json"].map(at);
    let output = world(&["export", &at("w.toml"), "--fct", &fct, "--pfc", &pfc, "--qlen", &qlen]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(world(&["run", &at("w.toml"), "--json", &json]).status.success());
    let figures: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let words = |path: &str| -> Vec<Vec<String>> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    };
    let number = |word: &String| word.parse::<u64>().unwrap();
    // Source and target, ports, bytes, start, time, time alone.
    let flows = words(&fct);
    assert_eq!(flows.len() as u64, figures["flows"].as_u64().unwrap());
    let mut found: Vec<(u64, f64)> = Vec::new();
    for flow in &flows {
        let [source, target, _, to, rest @ ..] = &flow[..] else { panic!("{flow:?}") };
        for address in [source, target] {
            // 11.0.N.1 is node N.
            assert_eq!((address.len(), &address[..4], &address[6..]), (8, "0b00", "01"));
            assert!(u32::from_str_radix(&address[4..6], 16).unwrap() < 16);
        }
        assert_eq!(to, "100", "the port of the flows that are not an incast's");
        let [size, _, took, alone] = [0, 1, 2, 3].map(|i| number(&rest[i]));
        found.push((size, (took as f64 / alone as f64).max(1.0)));
    }
    let mean = found.iter().map(|flow| flow.1).sum::<f64>() / found.len() as f64;
    let exact = figures["mean_slowdown"].as_f64().unwrap();
    assert!((mean / exact - 1.0).abs() < 0.01, "{mean} and {exact}");
    // A time, a node, whether it is a switch, a port from 1 on, and whether it is paused.
    let pauses = words(&pfc);
    assert!(!pauses.is_empty());
    for pause in &pauses {
        let [_, node, is_switch, port, is_paused] = [0, 1, 2, 3, 4].map(|i| number(&pause[i]));
        assert!(pause.len() == 5 && node <= 16 && port >= 1, "{pause:?}");
        assert_eq!((is_switch, is_paused & !1), (u64::from(node == 16), 0), "{pause:?}");
    }
    // A time; then for each port of the switch how often its queue had so many kilobytes.
    let queues = words(&qlen);
    assert_eq!((queues[0][0].as_str(), queues[0].len(), queues.len()), ("time:", 2, 17));
    // A sample a microsecond, from the one on in which the first flow begins.
    let first = flows.iter().map(|flow| number(&flow[5])).min().unwrap() / 1000;
    let samples = number(&queues[0][1]) / 1000 - first;
    for (port, queue) in (1..).zip(&queues[1..]) {
        assert_eq!((number(&queue[0]), number(&queue[1])), (16, port));
        assert_eq!(queue[2..].iter().map(number).sum::<u64>(), samples, "{queue:?}");
    }
    let Ok(python) = Command::new("python3").args(["-c", ANALYSIS, &fct]).output() else {
        return;
    };
    assert!(python.status.success(), "{}", told(&python));
    let analysed = String::from_utf8(python.stdout).unwrap();
    assert_eq!(analysed.trim_end(), rows(found).join("\n"));
}

/// A schedule's calculations are no flows of HPCC's, whose analysis would divide by their time
/// alone, which is zero.
#[test]
fn calculations_are_no_lines_of_an_export() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let goal = "num_ranks 2\nrank 0 {\na: calc 500\nb: send 1000b to 1\nb requires a\n\
        c: send 1b to 0\nd: recv 1b from 0\n}\n\
        rank 1 {\na: recv 1000b from 0\nb: calc 700\nb requires a\n}\n";
    fs::write(at("trace.goal"), goal).unwrap();
    let text = "[topology]\nshape = \"star\"\nhosts = 2\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [[workload]]\nkind = \"goal\"\nfile = \"trace.goal\"\n";
    fs::write(at("w.toml"), text).unwrap();
    let output = world(&["export", &at("w.toml"), "--fct", &at("fct.txt")]);
    assert!(output.status.success(), "{}", told(&output));
    // The only message, behind the calculation and alone in the network.
    let lines = fs::read_to_string(at("fct.txt")).unwrap();
    assert_eq!(lines, "0b000001 0b000101 10000 100 1000 500 4190 4190\n");
}

/// The rows that [`ANALYSIS`] prints.
fn rows(mut found: Vec<(u64, f64)>) -> Vec<String> {
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    found.pop();
    let n = found.len();
    let row = |part: usize| {
        let row = &found[part * n / 20..(part + 1) * n / 20];
        let mut slow: Vec<f64> = row.iter().map(|flow| flow.1).collect();
        slow.sort_by(f64::total_cmp);
        let at = |share: f64| slow[(slow.len() as f64 * share) as usize];
        format!("{} {:.3} {:.3} {:.3}", row[row.len() - 1].0, at(0.5), at(0.95), at(0.99))
    };
    (0..20).map(row).collect()
}

#[test]
fn a_mistake_is_shown_in_its_line() {
    let folder = Folder::new();
    let path = folder.path("wrong.toml");
    let text = fs::read_to_string(example("incast.toml")).unwrap();
    fs::write(&path, text.replace("rate = \"100Gbps\"", "rate = \"0Gbps\"")).unwrap();
    let output = world(&["run", path.to_str().unwrap()]);
    assert!(!output.status.success());
    let told = told(&output);
    for part in ["wrong.toml:9:8", "rate = \"0Gbps\"", "^^^", "1Mbps to 100Tbps", "nothing was"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let output = world(&["run", folder.path("nowhere.toml").to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read"));
}

/// HPCC's files in, and out again: the same columns, in the order of the ends.
#[test]
fn files_of_other_simulators_are_imported_and_exported() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let cables: String = (0..5).map(|host| format!("{host} 5 100Gbps 1000ns 0\n")).collect();
    fs::write(at("topology.txt"), format!("6 1 5\n5\n{cables}")).unwrap();
    let flows: String = (1..5).map(|host| format!("{host} 0 3 100 200000 2.0\n")).collect();
    fs::write(at("flow.txt"), format!("4\n{flows}")).unwrap();
    let import = ["import", "hpcc", &at("topology.txt"), &at("flow.txt"), "--to", &at("w.toml")];
    let output = world(&import);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&world(&import)).contains("--force"), "nothing is overwritten");
    let [fct, pfc, qlen, pcap] = ["fct.txt", "pfc.txt", "qlen.txt", "port.pcapng"].map(at);
    let output = world(&[
        "export",
        &at("w.toml"),
        "--fct",
        &fct,
        "--pfc",
        &pfc,
        "--qlen",
        &qlen,
        "--pcapng",
        &pcap,
        "--cable",
        "switch 0",
        "host 0",
        "--topology",
        &at("t2.txt"),
        "--flows",
        &at("f2.txt"),
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let fct = fs::read_to_string(fct).unwrap();
    assert_eq!(fct.lines().count(), 4);
    for line in fct.lines() {
        let columns: Vec<&str> = line.split(' ').collect();
        assert_eq!((columns.len(), columns[1], columns[3]), (8, "0b000001", "100"), "{line}");
        let number = |i: usize| columns[i].parse::<u64>().unwrap();
        assert_eq!((number(4), number(5)), (200_000, 2_000_000_000));
        assert!(number(6) >= number(7), "not faster than alone: {line}");
    }
    assert!(fs::read_to_string(qlen).unwrap().starts_with("time: "));
    assert_eq!(fs::read_to_string(at("f2.txt")).unwrap().lines().count(), 5);
    // The topology that was written is the one that was read.
    let again = world(&["import", "hpcc", &at("t2.txt"), &at("f2.txt"), "--to", &at("w2.toml")]);
    assert!(again.status.success(), "{}", told(&again));
    let pcap = fs::read(pcap).unwrap();
    assert_eq!(pcap[..4], [0x0A, 0x0D, 0x0D, 0x0A]);
    // Four messages of 196 packets come in, and acknowledges go out.
    assert!(pcap.len() > 4 * 200_000, "{}", pcap.len());
}

/// Queues and rates come out as a table: for each link an interval after the other, to the end, and
/// all bytes that it sent.
#[test]
fn series_are_exported_as_a_table() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let text = "[topology]\nshape = \"star\"\nhosts = 5\nrate = \"100Gbps\"\ndelay = \"1us\"\n\
        [record]\nevery = \"2us\"\n[[workload]]\nkind = \"incast\"\nsources = \"1..4\"\n\
        target = 0\nbytes = \"64KB\"\n";
    fs::write(at("w.toml"), text).unwrap();
    let output = world(&["export", &at("w.toml"), "--series", &at("series.csv")]);
    assert!(output.status.success(), "{}", told(&output));
    let series = fs::read_to_string(at("series.csv")).unwrap();
    let (heading, lines) = series.split_once('\n').unwrap();
    assert_eq!(heading, "time_us,from,to,queue_bytes,gigabits_per_second");
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(',').collect()).collect();
    let of = |from: &str, to: &str| -> Vec<[f64; 3]> {
        let own = lines.iter().filter(|line| (line[1], line[2]) == (from, to));
        own.map(|line| [0, 3, 4].map(|i| line[i].parse().unwrap())).collect()
    };
    let port = of("switch 0", "host 0");
    assert_eq!(lines.len(), 10 * port.len(), "ten links");
    assert!(port.iter().enumerate().all(|(i, line)| line[0] == 2.0 * (i + 1) as f64), "{port:?}");
    let longest = port.iter().map(|line| line[1]).fold(0.0, f64::max);
    assert!(longest > 100_000.0, "of 256 KB three quarters wait: {longest}");
    // Four messages of 63 packets, 1106 bytes each but for the last.
    let bytes: f64 = port.iter().map(|line| line[2] * 2.0 * 1000.0 / 8.0).sum();
    assert!((bytes / 277_000.0 - 1.0).abs() < 0.02, "{bytes}");
    assert!(of("host 1", "switch 0").iter().any(|line| line[2] > 20.0));
}

/// SRNIC's largest tree is drawn.
#[test]
fn four_thousand_servers_are_drawn() {
    let folder = Folder::new();
    let file = folder.path("large.toml");
    let text = "[topology]\nshape = \"srnic\"\nhosts = 4096\n[[workload]]\nkind = \"flows\"\n\
        [[workload.flow]]\nfrom = 0\nto = 4095\nbytes = 1000\n";
    fs::write(&file, text).unwrap();
    let (figures, page) = run(file.to_str().unwrap(), &[]);
    assert_eq!(figures["done"], 1);
    assert!(page.contains("<svg role=\"img\"") && !page.contains("too many to draw"));
    assert_eq!(page.matches("% busy</title>").count(), 6144);
}

/// Cards whose hardware takes time answer later than those without, each kind in its own time.
#[test]
fn cards_of_several_kinds_are_in_one_world() {
    let (figures, page) = run(&example("cards.toml"), &[]);
    assert_eq!((&figures["done"], &figures["failed"]), (&123.into(), &0.into()));
    assert_eq!(figures["packets"]["sent_again"], 0, "packets keep their order");
    // A call of 64 bytes crosses two cables each way.
    let least = figures["times_us"]["p50"].as_f64().unwrap();
    assert!(least > 4.0 && least < 10.0, "{least}");
    assert!(page.contains("<td>2 cx5, 2 software, 2 srnic"), "the page names the cards");
}

/// Kernels and stores under load: all answers come, and threads change nothing.
#[test]
fn kernels_and_stores_serve_under_load() {
    for name in ["gets.toml", "store.toml"] {
        let (one, page) = run(&example(name), &[]);
        assert_eq!((&one["done"], &one["failed"]), (&one["flows"], &0.into()), "{name}");
        assert!(one["flows"].as_u64().unwrap() > 1500, "{name}");
        let (two, _) = run(&example(name), &["--threads", "2"]);
        assert_eq!(one["trace"], two["trace"], "{name}");
        assert!(page.contains("slowdown"), "{name}");
    }
}

/// Bytes that are no text are told with their line, in a world's file and in those that it names.
#[test]
fn files_of_any_bytes_are_refused_with_a_line() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    fs::write(at("bytes.toml"), b"name = \"a\"\n\n# \xff\xfe\n").unwrap();
    let output = world(&["run", &at("bytes.toml")]);
    let said = told(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("bytes.toml, line 3: "), "{said}");
    fs::write(at("bytes.cm"), b"Nodes 4\n\xc3(").unwrap();
    let output = world(&["import", "htsim", &at("bytes.cm"), "--to", &at("to.toml")]);
    assert!(told(&output).contains("bytes.cm, line 2: "), "{}", told(&output));
    assert!(!folder.path("to.toml").exists());
}

/// The bench of worlds runs all transports, and writes its rows and a page with its three figures.
#[test]
fn the_bench_of_worlds_writes_figures() {
    let folder = Folder::new();
    let (json, page) = (folder.path("rows.json"), folder.path("page.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["bench", "worlds", "--simulated", "--quick", "--json"])
        .arg(&json)
        .arg("--html")
        .arg(&page)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let page = fs::read_to_string(page).unwrap();
    for figure in ["fig2", "fig2b", "fig2b_misses", "fig2_simulated"] {
        assert!(page.contains(&format!("id=\"{figure}\"")), "{figure}");
    }
    for figure in ["fig12a", "fig12b", "fig12c"] {
        let of = |row: &&Value| row["name"].as_str().unwrap().starts_with(figure);
        let of: Vec<&Value> = rows.iter().filter(of).collect();
        assert!(of.len() >= 8, "two sizes, and a row for each other transport: {}", of.len());
        assert!(of.iter().all(|row| row["ours"]["median"].as_f64().unwrap() >= 1.0), "{of:?}");
        assert!(page.contains(&format!("id=\"{figure}\"")));
    }
    assert!(page.contains("What the networks did") && page.contains("go-back-n, flow control"));
    assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
    let nothing = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["bench", "worlds", "--only", "fig99"])
        .output()
        .unwrap();
    assert!(told(&nothing).contains("nothing is called `fig99`"), "{}", told(&nothing));
}

/// A row that quick runs have not is no name that there is none of; figures of one way are rows.
#[test]
fn rows_of_the_bench_of_worlds_are_found_by_name() {
    let folder = Folder::new();
    let (json, page) = (folder.path("rows.json"), folder.path("page.html"));
    let bench = |only: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command.args(["bench", "worlds", "--quick", "--only", only, "--json"]).arg(&json);
        command.arg("--html").arg(&page).output().unwrap()
    };
    let said = told(&bench("fct_ours"));
    assert!(said.contains("`fct_ours` is of 256 servers: leave --quick out"), "{said}");
    for (only, name) in [("redn7", "redn7: "), ("hosts_4096_memory", "hosts_4096_memory")] {
        let output = bench(only);
        assert!(output.status.success(), "{}", told(&output));
        let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let named = |row: &Value| row["name"].as_str().unwrap().starts_with(name);
        assert!(!rows.is_empty() && rows.iter().all(named), "{rows:?}");
    }
}

/// Another build's random worlds are run as ours are; one that cannot run them is an error.
#[test]
fn another_build_stands_beside_random_worlds() {
    let folder = Folder::new();
    let json = folder.path("rows.json");
    let bench = |peer: &str| {
        Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["bench", "worlds", "--quick", "--only", "worlds_rate", "--peer", peer, "--json"])
            .arg(&json)
            .arg("--html")
            .arg(folder.path("page.html"))
            .output()
            .unwrap()
    };
    let output = bench(env!("CARGO_BIN_EXE_remora"));
    assert!(output.status.success(), "{}", told(&output));
    let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rate = |side: &str| rows[0][side]["median"].as_f64().unwrap();
    assert!(rate("ours") > 0.0 && rate("peer") > 0.0, "{rows:?}");
    let none = bench("false");
    assert!(!none.status.success() && told(&none).contains("false sim 1"), "{}", told(&none));
}

#[test]
fn worlds_of_groups_are_told_by_their_seeds() {
    let told = support::succeed(["sim", "7", "--of", "groups"]);
    assert!(told.starts_with("seed 7: a group of ") && told.ends_with("passed\n"), "{told}");
    assert_eq!(support::succeed(["sim", "7", "--of", "groups"]), told);
    let lines = support::succeed(["sim", "7", "--count", "3", "--of", "groups", "--json"]);
    let worlds: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seeds: Vec<_> = worlds.iter().map(|world| world["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [7, 8, 9]);
    assert!(worlds.iter().all(|world| world["passed"] == true), "{lines}");
    let cards = support::succeed(["sim", "7"]);
    assert!(cards.starts_with("seed 7: ") && cards.contains(" hosts, "), "{cards}");
}
