//! Clients over the card that read by kernels, READs and chains while the primary is stopped past
//! its lease and goes on: its card answers then what lies in its memory, which is old by then.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use remora::Device;
use remora_store::client::StoreClient;
use remora_store::way::connect::ClientOptions;
use rustix::process::{Signal, kill_process};

use super::judge::{Node, PATIENCE, Trial, until};
use super::node::LEASE;

/// How often the primary is stopped.
const STOPS: usize = 4;
/// Longer than a lease, and shorter than a client waits for a READ: so one is answered that was
/// asked for before.
const STOPPED: Duration = Duration::from_millis(900);

pub(super) fn connect(nodes: &[SocketAddr]) -> StoreClient {
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let mut number = 0;
    until("a node lets a client in", || {
        number += 1;
        let at = nodes[number % nodes.len()];
        StoreClient::connect(&Device::open().unwrap(), at, &options).map_err(|e| e.to_string())
    })
}

/// Reads a number in one of the ways.
fn read(store: &mut StoreClient, way: usize) -> u64 {
    let mut value = Vec::new();
    let found = match way {
        0 => store.get(b"counter", &mut value),
        1 => store.get_one_sided(b"counter", &mut value),
        _ => store.get_by_chain(b"counter", &mut value),
    };
    match found.unwrap() {
        Some(_) => String::from_utf8(value).unwrap().parse().unwrap(),
        None => 0,
    }
}

pub(super) fn run(trial: &mut Trial) {
    assert!(STOPPED > LEASE);
    let doors = trial.doors();
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let reads = scope(|scope| {
        let (acknowledged, is_over, doors) = (&acknowledged, &is_over, &doors);
        scope.spawn(move || {
            let mut store = connect(doors);
            for sum in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                assert_eq!(store.count(b"counter", 1).unwrap(), sum, "each is added once");
                acknowledged.store(sum.cast_unsigned(), Ordering::SeqCst);
            }
        });
        let reader = |way| {
            scope.spawn(move || {
                let (mut store, mut reads) = (connect(doors), 0);
                while !is_over.load(Ordering::Relaxed) {
                    let least = acknowledged.load(Ordering::SeqCst);
                    let value = read(&mut store, way);
                    assert!(value >= least, "way {way} shows {value} after {least}");
                    reads += 1;
                }
                (reads, store.one_sided_counters())
            })
        };
        let readers: Vec<_> = (0..3).map(reader).collect();
        for _ in 0..STOPS {
            let before = acknowledged.load(Ordering::SeqCst);
            until("the counter rises", || {
                let now = acknowledged.load(Ordering::SeqCst);
                if now > before + 100 { Ok(()) } else { Err(format!("{now}, from {before}")) }
            });
            let serving = trial.serving();
            let pid = trial.nodes[&serving].pid();
            kill_process(pid, Signal::STOP).unwrap();
            sleep(STOPPED);
            kill_process(pid, Signal::CONT).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    let raised = acknowledged.load(Ordering::SeqCst);
    println!("{STOPS} stops: the counter was raised {raised} times, and read {reads:?}");
    assert!(reads[1].1.warm + reads[1].1.cold > 0, "READs lead to values: {reads:?}");
}

impl Trial {
    /// Where clients over the card reach the nodes.
    fn doors(&mut self) -> Vec<SocketAddr> {
        let ask = |node: &mut Node| node.ask("store")?.parse().ok();
        self.nodes.values_mut().filter_map(ask).collect()
    }

    /// The node that serves.
    fn serving(&mut self) -> usize {
        self.write(1);
        self.primary
    }
}
