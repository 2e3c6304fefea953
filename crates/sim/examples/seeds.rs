//! Runs random worlds and prints those that fail: `seeds FIRST COUNT`. With a COUNT of 1 it prints
//! the whole report.

use std::collections::BTreeMap;
use std::time::Instant;
use std::{env, panic, process};

fn main() {
    let mut args = env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (first, count) = (args.next().unwrap_or(1), args.next().unwrap_or(1000));
    let mut failed = 0;
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        let start = Instant::now();
        match panic::catch_unwind(|| remora_sim::run(seed)) {
            Ok(Ok(report)) if count == 1 => println!("{report}"),
            Ok(Ok(report)) => add(&mut totals, &report),
            Ok(Err(failure)) => {
                failed += 1;
                println!("{}{failure}", failure.options);
            }
            Err(_) => {
                failed += 1;
                println!("seed {seed}: panic");
            }
        }
        let took = start.elapsed().as_secs_f64();
        if took > 3.0 {
            println!("seed {seed} took {took:.1} s");
        }
    }
    println!("{totals:#?}\n{failed} of {count} worlds failed");
    process::exit(i32::from(failed > 0));
}

fn add(totals: &mut BTreeMap<String, u64>, report: &remora_sim::Report) {
    let verbs = report.done.iter().map(|(verb, n)| (format!("{verb:?}"), *n));
    let failed = report.failed.iter().map(|(status, n)| (format!("failed: {status}"), *n));
    let rest = [
        ("bytes", report.bytes),
        ("packets", report.tally.sent),
        ("packets lost", report.tally.lost),
        ("packets corrupted", report.tally.corrupted),
        ("packets sent again", report.retransmitted),
        ("store: ended", report.stores.ended),
        ("store: open", report.stores.open),
        ("store: lives", report.stores.lives),
        ("store: snapshots", report.stores.saved),
    ];
    let rest = rest.map(|(name, n)| (name.to_owned(), n));
    for (name, n) in verbs.chain(failed).chain(rest) {
        *totals.entry(name).or_default() += n;
    }
}
