//! How many packets a second a world of so many hosts delivers: `packets HOSTS MICROSECONDS
//! [THREADS [MTU]]`. The fat trees and the load are those of SRNIC's Fig. 12.

use std::env;
use std::time::Instant;

use remora_nic::qp::Mtu;
use remora_sim::flows::{Cluster, Sizes, poisson};
use remora_sim::net::{BufferOptions, FatTree, Marking, time::US};

fn main() {
    let mut args = env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (hosts, span) = (args.next().unwrap_or(16) as u32, args.next().unwrap_or(1000));
    let (threads, mtu) = (args.next().unwrap_or(1) as u8, args.next().unwrap_or(1024));
    let topology = FatTree::srnic(hosts).expect("16, 64, 256, 1024 or 4096 hosts");
    let mut cluster = Cluster { threads, ..Cluster::new(topology) };
    cluster.mtu = if mtu == 4096 { Mtu::B4096 } else { Mtu::B1024 };
    cluster.net.buffer = BufferOptions {
        marking: Some(Marking::step(300_000)),
        marking_bits: 100_000_000_000,
        ..BufferOptions::default()
    };
    cluster.until = span * US;
    let sizes = Sizes::cache_follower();
    let flows = poisson(hosts, cluster.host_bits(), 0.7, &sizes, span * US, 1).expect("a load");
    let start = Instant::now();
    let report = cluster.run(&flows).expect("a cluster that runs");
    let whole = start.elapsed().as_secs_f64();
    let (packets, run) = (report.tally.delivered, report.run_seconds);
    println!("{report}");
    println!(
        "{hosts} hosts, {threads} threads: {packets} packets in {run:.2} s of {whole:.2}: \
         {:.0} K/s, {:.2} M hops/s, trace {:x}",
        packets as f64 / run / 1e3,
        report.tally.hops as f64 / run / 1e6,
        report.trace.hash
    );
}
