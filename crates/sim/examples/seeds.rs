//! Runs many random worlds and prints those that fail: `seeds FIRST COUNT`.
//!
//! With a COUNT of 1 it prints the whole report.

use std::time::Instant;
use std::{env, panic, process};

fn main() {
    let mut args = env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (first, count) = (args.next().unwrap_or(1), args.next().unwrap_or(1000));
    let mut failed = 0;
    for seed in first..first + count {
        let start = Instant::now();
        match panic::catch_unwind(|| remora_sim::run(seed)) {
            Ok(Ok(report)) if count == 1 => println!("{report}"),
            Ok(Ok(_)) => {}
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
    println!("{failed} of {count} worlds failed");
    process::exit(i32::from(failed > 0));
}
