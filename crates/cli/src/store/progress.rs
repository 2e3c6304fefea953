//! How far a long command is, for a person at a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use remora_store::log;

use crate::output;

/// How often what shows that a command goes on is drawn.
const TICK: Duration = Duration::from_millis(200);

/// Rows and bytes that were moved.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    rows: u64,
}

impl Progress {
    /// Of `bytes` in all, if that is known.
    pub(super) fn new(verb: &'static str, bytes: Option<u64>) -> Progress {
        let known = "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}, {msg}, \
                     {binary_bytes_per_sec}, {eta} left";
        let unknown = "{prefix} {spinner} {elapsed}: {binary_bytes}, {msg}, {binary_bytes_per_sec}";
        let bar = match bytes {
            _ if !output::has_viewer() => ProgressBar::hidden(),
            Some(bytes) => ProgressBar::new(bytes).with_style(style(known)),
            None => ProgressBar::no_length().with_style(style(unknown)),
        };
        let bar = bar.with_prefix(verb).with_message("0 rows");
        if bytes.is_none() && output::has_viewer() {
            // Where nobody knows how long it takes, and little may come, it is seen to go on.
            bar.enable_steady_tick(TICK);
        }
        Progress { bar, began: Instant::now(), rows: 0 }
    }

    /// Where what is moved is shown on the terminal itself, nothing is to stand between.
    pub(super) fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), began: Instant::now(), rows: 0 }
    }

    /// So many rows were moved, and so many bytes of all.
    pub(super) fn at(&mut self, rows: u64, bytes: u64) {
        self.rows = rows;
        self.bar.set_position(bytes);
        self.bar.set_message(output::counted(rows, "row"));
    }

    /// Says what was moved, in a line for a person.
    pub(super) fn finish(self, verb: &str, bytes: u64) -> String {
        self.bar.finish_and_clear();
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = (self.rows as f64 / seconds.max(1e-9)).round() as u64;
        format!(
            "{} {verb}, {}, in {seconds:.2} s: {} a second",
            output::counted(self.rows, "row"),
            output::bytes(bytes),
            output::counted(rate, "row")
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows how far a store is that reads its directory back, until it is done.
pub(super) fn reading_back() -> log::Progress {
    if !output::has_viewer() {
        return log::Progress::default();
    }
    let template = "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}, \
                    {binary_bytes_per_sec}, {eta} left";
    let bar = ProgressBar::new(0).with_style(style(template)).with_prefix("Reading back");
    log::Progress::new(move |read, all| {
        if read == all {
            return bar.finish_and_clear();
        }
        bar.set_length(all);
        bar.set_position(read);
    })
}

fn style(template: &str) -> ProgressStyle {
    // The templates are fixed, and right.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
