//! Opens world files, shows the mistakes in them, runs what they say, and writes figures and pages.
//! [`remora_sim::world_file`] parses what a file says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use remora::offload::chain::text::Diagnostic;
use remora::printable;
use remora_sim::flows::Report;
use remora_sim::net::time::NEVER;
use remora_sim::world_file::{Experiment, Mistake, Overrides};
use serde::Serialize;

use super::progress::Progress;
use crate::failure::told;
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

/// The files that a command writes with what its runs have come to.
#[derive(Debug, Args)]
pub(super) struct Files {
    /// Write all figures to a file as JSON
    #[arg(long, value_name = "FILE", value_parser = output::file())]
    json: Option<PathBuf>,
    /// Write a page: figures, and completion times by size; of one world, the topology, queues and
    /// rates over time, too
    #[arg(long, value_name = "FILE", value_parser = output::file())]
    pub(super) page: Option<PathBuf>,
}

impl Files {
    /// Those that are asked for.
    pub(super) fn paths(&self) -> Vec<&Path> {
        self.json.iter().chain(&self.page).map(PathBuf::as_path).collect()
    }

    /// Writes the files that are asked for.
    pub(super) fn write(
        &self,
        figures: &impl Serialize,
        page: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if let Some(path) = &self.json {
            output::write_json(path, figures)?;
        }
        if let Some(path) = &self.page {
            write(path, page()?)?;
            println!("The page: {}", path.display());
        }
        Ok(())
    }
}

/// Reads a file that is neither endless nor huge.
pub(super) fn read(path: &Path) -> Result<String> {
    let told = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(told)?;
    let len = file.take(LONGEST + 1).read_to_end(&mut bytes).with_context(told)?;
    if len as u64 > LONGEST {
        bail!("{} has more than {}", path.display(), output::bytes(LONGEST));
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + right.iter().filter(|byte| **byte == b'\n').count();
        anyhow!("{}, line {line}: there are bytes that are no text (UTF-8)", path.display())
    })
}

/// Reads a world file; shows the mistake in it as a compiler would. None of `outputs`, which are to
/// be written later, may be a file that it reads.
pub(super) fn load(path: &Path, chosen: Chosen, outputs: &[&Path]) -> Result<Experiment> {
    Source::read(path, outputs)?.load(chosen)
}

/// An error if a file that is read would be written, too.
pub(super) fn keep_input(input: &Path, outputs: &[&Path]) -> Result<()> {
    let Ok(own) = fs::canonicalize(input) else { return Ok(()) };
    let is_own = |output: &&&Path| fs::canonicalize(output).is_ok_and(|output| output == own);
    match outputs.iter().find(is_own) {
        Some(output) => {
            bail!("{} is read, and would be overwritten: write another file", output.display())
        }
        None => Ok(()),
    }
}

/// As [`load`], of a text that is, or will be, in a file.
pub(super) fn parse(
    path: &Path,
    text: &str,
    chosen: Chosen,
    outputs: &[&Path],
) -> Result<Experiment> {
    Source::new(path, text.to_owned(), outputs).load(chosen)
}

/// The text of a world file, and of those that it names: each is read once, also for many runs.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: String,
    outputs: &'a [&'a Path],
    named: RefCell<BTreeMap<PathBuf, String>>,
}

impl<'a> Source<'a> {
    /// Reads the world file.
    pub(super) fn read(path: &'a Path, outputs: &'a [&'a Path]) -> Result<Source<'a>> {
        keep_input(path, outputs)?;
        Ok(Source::new(path, read(path)?, outputs))
    }

    fn new(path: &'a Path, text: String, outputs: &'a [&'a Path]) -> Source<'a> {
        Source { path, text, outputs, named: RefCell::default() }
    }

    /// The world. Says what in it may not be meant.
    pub(super) fn load(&self, chosen: Chosen) -> Result<Experiment> {
        let experiment = self.load_again(chosen)?;
        let name = printable(&experiment.name);
        experiment.warnings.iter().for_each(|what| eprintln!("remora: \"{name}\": {what}"));
        Ok(experiment)
    }

    /// As [`Source::load`], without a word of what may not be meant.
    pub(super) fn load_again(&self, chosen: Chosen) -> Result<Experiment> {
        let Source { path, text, .. } = self;
        let files = |name: &str| self.named(name).map_err(|error| told(&error));
        let parsed = Experiment::parse(text, &files, chosen.overrides()).map(|mut experiment| {
            if experiment.name.is_empty() {
                let own = path.file_stem().unwrap_or_default();
                experiment.name = own.to_string_lossy().into_owned();
            }
            experiment
        });
        parsed.map_err(|mistake| {
            let Mistake { at, message, help, file } = mistake;
            let name = path.display().to_string();
            let colour = output::has_colours();
            eprintln!("{}\n", Diagnostic { at, message, help }.render(&name, text, colour));
            let whose = file.map_or(name, |file| printable(&file));
            anyhow!("{whose} has a mistake, and nothing was run or written")
        })
    }

    /// The text of a file that the world names.
    fn named(&self, name: &str) -> Result<String> {
        let file = self.path.parent().map_or_else(PathBuf::new, Path::to_owned).join(name);
        if let Some(text) = self.named.borrow().get(&file) {
            return Ok(text.clone());
        }
        keep_input(&file, self.outputs)?;
        // A pipe or a device may have no end, or nothing for ever.
        if fs::metadata(&file).is_ok_and(|about| !about.is_file()) {
            bail!("{} is no regular file", file.display());
        }
        let text = read(&file)?;
        self.named.borrow_mut().insert(file, text.clone());
        Ok(text)
    }
}

/// Runs an experiment with a bar of its progress.
pub(super) fn simulate(experiment: &Experiment) -> Result<Report> {
    simulate_of(experiment, &Progress::of(1))
}

/// Runs an experiment, as the next of several runs.
pub(super) fn simulate_of(experiment: &Experiment, progress: &Progress) -> Result<Report> {
    let Experiment { cluster, flows, name, .. } = experiment;
    let told = || format!("cannot run \"{}\"", printable(name));
    progress.run(cluster, &flows.flows).with_context(told)
}

/// What the help of commands that run worlds says of their exit statuses.
pub(super) const STATUSES: &str = "\
The exit status is 0 if all flows have ended, or were under way at the end that the file sets \
(`until`); 3 if flows have failed, or never end (as in a deadlock of flow control); 1 if a world \
could not be run.";
/// The status of a command whose worlds ran, but not all of whose flows came to an end.
const UNFINISHED: u8 = 3;

/// Says which worlds have flows that failed or never end; the command's exit status.
pub(super) fn status<'a>(ran: impl IntoIterator<Item = (&'a Experiment, &'a Report)>) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for (experiment, report) in ran {
        let (flows, done, failed) = (report.flows.len(), report.done(), report.failed());
        // Those that wait for one that has failed.
        let never = if experiment.cluster.until == NEVER { flows - done - failed } else { 0 };
        let name = printable(&experiment.name);
        if let Some(deadlock) = &report.deadlock {
            eprintln!("remora: \"{name}\": {deadlock}");
            status = ExitCode::from(UNFINISHED);
        } else if failed + never > 0 {
            eprintln!(
                "remora: \"{name}\": of {flows} flows {failed} have failed, {never} never end"
            );
            status = ExitCode::from(UNFINISHED);
        }
    }
    status
}

/// Writes a text to a file.
pub(super) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_read_is_not_written() {
        let dir = std::env::temp_dir().join(format!("remora-world-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (world, new) = (dir.join("small.toml"), dir.join("new"));
        fs::write(&world, "").unwrap();
        let same = dir.join("..").join(dir.file_name().unwrap()).join("small.toml");
        let outputs = [new.as_path(), same.as_path()];
        let error = keep_input(&world, &outputs).unwrap_err().to_string();
        assert!(error.contains("small.toml is read"), "{error}");
        keep_input(&world, &outputs[..1]).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_world_names_regular_files() {
        let dir = std::env::temp_dir().join(format!("remora-named-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("matrix"), "text").unwrap();
        let made = Command::new("mkfifo").arg(dir.join("pipe")).status().unwrap();
        assert!(made.success());
        let world = dir.join("small.toml");
        let source = Source::new(&world, String::new(), &[]);
        assert_eq!(source.named("matrix").unwrap(), "text");
        for name in ["/dev/null", ".", "pipe"] {
            let error = source.named(name).unwrap_err().to_string();
            assert!(error.ends_with("is no regular file"), "{error}");
        }
        let error = source.named("none").unwrap_err().to_string();
        assert!(error.starts_with("cannot read"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_world_without_a_name_is_called_as_its_file() {
        let text = "[topology]\nshape = \"star\"\nhosts = 2\nrate = \"1Gbps\"\ndelay = \"1us\"\n\
            [[workload]]\nkind = \"permutation\"\nbytes = 1\n";
        let chosen = Chosen { seed: None, threads: None };
        let name = |text: &str| parse(Path::new("a/small.toml"), text, chosen, &[]).unwrap().name;
        assert_eq!(name(text), "small");
        assert_eq!(name(&format!("name = \"other\"\n{text}")), "other");
    }
}
