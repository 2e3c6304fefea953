//! `remora bench cluster`, as a user runs it. The measured values are not checked here.

mod support;

#[cfg(not(feature = "cluster"))]
#[test]
fn a_build_without_clusters_says_how_to_get_one() {
    let told = support::fail(["bench", "cluster", "--quick"]);
    assert!(told.contains("--features cluster") && told.contains("protoc"), "{told}");
}

#[cfg(feature = "cluster")]
mod with_clusters {
    use std::path::Path;

    use serde_json::Value;

    use crate::support::verbs::installed;
    use crate::support::{Folder, fail, run};

    /// Rows that have a figure of ours in any case.
    const ROWS: [&str; 11] = [
        "put_r3_latency",
        "put_r3_rate",
        "put_r3_rate_all",
        "put_r3_rate_wall",
        "get_r3",
        "get_r3_all",
        "get_r3_wall",
        "valkey_wait1",
        "put_r3_fsync",
        "failover_ms",
        "lost",
    ];
    /// A point of each figure, and its rows: one for each way but the first. The paper's is a way.
    const POINTS: [(&str, usize); 4] =
        [("fig7: update", 3), ("fig7c: 16", 3), ("fig8: 50 % updates", 3), ("fig10: 5", 3)];

    #[test]
    fn the_bench_of_groups_writes_its_rows_and_a_page() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let folder = Folder::new();
        let (json, html) = (folder.path("rows.json"), folder.path("page.html"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (json_name, html_name) = (text(&json), text(&html));
        let args = ["bench", "cluster", "--quick", "--json", &json_name, "--html", &html_name];
        let output = run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        for name in ROWS {
            let found: Vec<_> = rows.iter().filter(|row| row["name"] == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            let median = found[0]["ours"]["median"].as_f64();
            let least = if name == "lost" { -1.0 } else { 0.0 };
            assert!(median > Some(least), "{}", found[0]);
        }
        let lost = rows.iter().find(|row| row["name"] == "lost").unwrap();
        assert_eq!(lost["ours"]["median"].as_f64(), Some(0.0), "acknowledged writes are lost");
        for (point, ways) in POINTS {
            assert_eq!(rows.iter().filter(|row| row["name"] == point).count(), ways, "{point}");
        }
        let page = std::fs::read_to_string(&html).unwrap();
        assert_eq!(page.matches("<svg").count(), POINTS.len());
        assert!(page.contains("Caribou’s Figure 10") && !page.contains("NaN"));
        let told = fail(["bench", "cluster", "--quick", "--only", "fig99"]);
        assert!(told.contains("nothing is called `fig99`") && told.contains("fig8"), "{told}");
    }
}
