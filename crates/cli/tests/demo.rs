//! `remora demo`, with little data.

mod support;

use serde_json::Value;
use support::{Folder, fail, succeed};

#[test]
fn the_demo_verifies_what_it_moved() {
    let told: Value = serde_json::from_str(&succeed(["demo", "--size", "3M", "--json"])).unwrap();
    assert_eq!((&told["verified"], &told["bytes"]), (&true.into(), &(3 << 20).into()));
    for way in ["roce", "tcp"] {
        assert!(told[way]["read"]["median_gb_s"].as_f64() > Some(0.0), "{told}");
        assert!(told[way]["write_8b"]["median_us"].as_f64() > Some(0.0), "{told}");
    }
    let lookups = told["lookups"].as_array().unwrap();
    assert_eq!(lookups.len(), 3, "expected a kernel, READs and an RPC: {told}");
    for way in lookups {
        assert!(way["table"]["median_us"].as_f64() > Some(0.0), "{told}");
        assert!(way["list"]["median_us"].as_f64() > Some(0.0), "{told}");
    }
    let store = &told["store"];
    let ways = store["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 5, "expected three ways by the card, and two protocols: {told}");
    assert!(ways.iter().all(|way| way["get"]["median_us"].as_f64() > Some(0.0)), "{told}");
    let rows = |name: &str| store[name].as_u64().unwrap();
    assert!(0 < rows("selected") && rows("selected") < rows("rows"), "{told}");
    assert!(rows("selected_bytes") < rows("all_bytes"), "{told}");
}

#[test]
fn the_demo_takes_a_file_that_the_user_names() {
    let folder = Folder::new();
    let file = folder.file("mine", 1_234_567);
    let told = succeed(["demo", "--file", file.to_str().unwrap()]);
    assert!(told.contains("All 1 234 567 bytes are right"), "{told}");
    let empty = folder.file("empty", 0);
    assert!(fail(["demo", "--file", empty.to_str().unwrap()]).contains("it is empty"));
}
