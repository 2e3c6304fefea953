//! Random worlds, as many as somebody asks for.

use std::env;
use std::panic::{RefUnwindSafe, catch_unwind};

use remora_sim::{Failure, Report};

/// Runs the worlds of some seeds, and fails with those that do not survive. `NAME_SEEDS` sets their
/// number and `NAME_FIRST` the first seed. The report of a single world is printed.
pub(crate) fn survive(
    name: &str,
    worlds: u64,
    run: impl Fn(u64) -> Result<Report, Failure> + RefUnwindSafe,
) {
    let number = |what: &str, default| {
        env::var(format!("{name}_{what}")).map_or(default, |value| value.parse().unwrap())
    };
    let (first, count): (u64, u64) = (number("FIRST", 1), number("SEEDS", worlds));
    let mut failures = Vec::new();
    for seed in first..first + count {
        match catch_unwind(|| run(seed)) {
            Ok(Ok(report)) if count == 1 => println!("{report}"),
            Ok(Ok(_)) => continue,
            Ok(Err(failure)) => println!("{}{failure}", failure.options),
            Err(_) => println!("seed {seed}: panic"),
        }
        failures.push(seed);
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed: {failures:?}", failures.len());
}
