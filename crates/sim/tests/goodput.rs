//! The goodput table: one queue pair, 100 Gb/s, 1 µs, 1 MiB WRITEs.

use remora_sim::goodput::{LOSSES, goodput};

#[test]
fn goodput_at_each_loss_is_as_recorded() {
    let rows: Vec<String> = LOSSES.iter().map(|loss| goodput(*loss, 1).to_string()).collect();
    // Expect: exactly the recorded figures, since they depend only on the seed.
    insta::assert_snapshot!(rows.join("\n"));
}
