//! Reads world files, shows the mistakes in them, and runs what they say.

use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use remora::offload::chain::text::Diagnostic;
use remora_sim::experiment::{Experiment, Mistake, Overrides};
use remora_sim::flows::{Report, Watch};
use remora_sim::net::time::US;

use crate::output;

/// The most bytes of a file that a world names.
const LONGEST: u64 = 1 << 30;

/// What the command line decides, whatever the file says.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Chosen {
    /// What is drawn at random comes from this seed [default: the file's]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Threads, 1 or 2; the result is the same [default: the file's, else 1]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: Option<u8>,
}

impl Chosen {
    fn overrides(self) -> Overrides {
        Overrides { seed: self.seed, threads: self.threads }
    }
}

/// Reads a file that is neither endless nor huge.
fn read(path: &Path) -> Result<String> {
    let told = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).with_context(told)?;
    let len = file.take(LONGEST + 1).read_to_string(&mut text).with_context(told)?;
    if len as u64 > LONGEST {
        bail!("{} has more than {}", path.display(), output::bytes(LONGEST));
    }
    Ok(text)
}

/// Reads a world file; shows the mistake in it as a compiler would.
pub(super) fn load(path: &Path, chosen: Chosen) -> Result<Experiment> {
    let text = read(path)?;
    parse(path, &text, chosen)
}

/// As [`load`], of a text that is, or will be, in a file.
pub(super) fn parse(path: &Path, text: &str, chosen: Chosen) -> Result<Experiment> {
    let beside = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let files = |name: &str| read(&beside.join(name)).map_err(|error| format!("{error:#}"));
    Experiment::parse(text, &files, chosen.overrides()).map_err(|mistake| {
        let Mistake { at, message, help } = mistake;
        let name = path.display().to_string();
        let colour = std::io::stderr().is_terminal();
        eprintln!("{}\n", Diagnostic { at, message, help }.render(&name, text, colour));
        anyhow!("{name} has a mistake: it was not run")
    })
}

/// Runs an experiment with a bar of its progress.
pub(super) fn simulate(experiment: &Experiment) -> Result<Report> {
    let Experiment { cluster, flows, name, .. } = experiment;
    let watch = Watch::default();
    let bar = progress(flows.flows.len() as u64);
    let waiter = thread::current();
    let done = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let done = cluster.run_watched(&flows.flows, &watch);
            waiter.unpark();
            done
        });
        while !running.is_finished() {
            bar.set_position(watch.ended());
            bar.set_message(format!("{:.1} µs", watch.at() as f64 / US as f64));
            thread::park_timeout(Duration::from_millis(100));
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    bar.finish_and_clear();
    done.with_context(|| format!("cannot run \"{name}\""))
}

fn progress(flows: u64) -> ProgressBar {
    if !output::has_viewer() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {pos} of {len} flows, {msg} simulated, {eta} left";
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(flows).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Writes a text to a file.
pub(super) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
