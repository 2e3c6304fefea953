//! The peer of `scan_like`: DuckDB on one thread, through Python's package `duckdb`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::super::program::Program;
use super::servers::TemporaryFile;
use super::tpch::Table;

/// What a row says without the peer.
pub(super) const MISSING: &str = "not measured: install Python’s package duckdb";
/// An interpreter of a virtual environment, as `docs/store.md` makes it.
const OWN: &str = "target/duckdb/bin/python";
/// Loads comments, a line each, and prints the matches and the middle time of some queries in s.
const SCRIPT: &str = "
import duckdb, sys, time
db = duckdb.connect()
db.execute('SET threads = 1')
lines = [line.rstrip('\\n') for line in open(sys.argv[1], encoding='utf-8')]
db.execute('CREATE TABLE orders (comment VARCHAR)')
db.execute('INSERT INTO orders SELECT unnest(?)', [lines])
query = \"SELECT count(*) FROM orders WHERE comment LIKE '%special%requests%'\"
times = []
for _ in range(9):
    start = time.perf_counter()
    count = db.execute(query).fetchone()[0]
    times.append(time.perf_counter() - start)
print(count, sorted(times)[4])
";

/// DuckDB, and the comments that it is asked about.
pub(super) struct DuckDb {
    python: PathBuf,
    comments: TemporaryFile,
}

impl DuckDb {
    /// Finds DuckDB, and writes the comments where it can read them; `None` if it is not installed.
    pub(super) fn find(comments: &Table) -> Result<Option<DuckDb>> {
        let has_package = |python: &PathBuf| {
            let mut command = Command::new(python);
            command.args(["-c", "import duckdb"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let Some(python) = [OWN, "python3"].map(PathBuf::from).into_iter().find(has_package) else {
            return Ok(None);
        };
        let lines = (0..comments.count()).map(|i| [comments.row(i), b"\n"].concat());
        let comments = TemporaryFile::new("comments", &lines.collect::<Vec<_>>().concat())?;
        Ok(Some(DuckDb { python, comments }))
    }

    /// The seconds of a query, which has to find this many comments.
    pub(super) fn query_s(&self, matches: u64) -> Result<f64> {
        let mut command = Command::new(&self.python);
        command.args(["-c", SCRIPT]).arg(self.comments.path());
        let printed = Program::start_plain(0, command)?.succeed()?;
        let (count, seconds) = printed.trim().split_once(' ').context("DuckDB printed no time")?;
        ensure!(count == matches.to_string(), "DuckDB finds {count} comments, not {matches}");
        seconds.parse().context("DuckDB printed no time")
    }
}
