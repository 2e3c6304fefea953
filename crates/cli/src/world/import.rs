//! `remora world import`: a world file of another simulator's files.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use remora_sim::format::htsim;

use super::load::{self, Chosen};
use crate::failure::wrong_line;
use crate::output;

/// `remora world import`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora world import hpcc topology.txt flow.txt --to world.toml
  remora world import htsim leaf_spine.topo incast.cm --to world.toml
  remora world import goal trace.goal --hosts 16 --to world.toml

The world file names the files, which stay where they are; edit it for switches and transports.")]
pub(super) struct Import {
    /// Whose files
    format: Format,
    /// The topology, if the format has one, and the flows
    #[arg(required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,
    /// Hosts of a star, for flows without a topology
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// The world file to write
    #[arg(long, value_name = "WORLD.toml")]
    to: PathBuf,
    /// Overwrite it
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// HPCC's topology.txt and flow.txt
    Hpcc,
    /// htsim's .topo and .cm
    Htsim,
    /// A GOAL schedule as text
    Goal,
}

impl Import {
    pub(super) fn run(self) -> Result<()> {
        let text = self.world().map_err(wrong_line)?;
        if self.to.exists() && !self.force {
            bail!("{} is there already; --force overwrites it", self.to.display());
        }
        for file in &self.files {
            load::keep_input(file, &[self.to.as_path()])?;
            File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        }
        // What cannot be read is told before anything is written.
        let chosen = Chosen { seed: None, threads: None };
        let experiment = load::parse(&self.to, &text, chosen, &[self.to.as_path()])?;
        load::write(&self.to, text)?;
        self.tell_left_out()?;
        println!(
            "{}: {}, {}, {}",
            self.to.display(),
            output::counted(experiment.cluster.topology.hosts.into(), "host"),
            output::counted(experiment.cluster.topology.switches.into(), "switch"),
            output::counted(experiment.flows.flows.len() as u64, "flow")
        );
        Ok(())
    }

    /// Says what the files have that the world does not take from them as it is.
    fn tell_left_out(&self) -> Result<()> {
        for file in self.files.iter().filter(|_| self.format == Format::Htsim) {
            let left = htsim::left_out(&load::read(file)?).join(", ");
            if !left.is_empty() {
                let file = file.display();
                eprintln!(
                    "{file}: left out: {left}; [switch] and `class` are for the world to say"
                );
            }
        }
        Ok(())
    }

    fn world(&self) -> Result<String> {
        let (topology, flows) = match *self.files.as_slice() {
            [ref topology, ref flows] if self.format != Format::Goal => (Some(topology), flows),
            [ref flows] if self.format != Format::Hpcc => (None, flows),
            _ => bail!("hpcc takes a topology and flows; goal takes one file; htsim one or both"),
        };
        let kind = match self.format {
            Format::Hpcc => "hpcc",
            Format::Htsim => "htsim",
            Format::Goal => "goal",
        };
        let stem = flows.file_stem().unwrap_or_default().to_string_lossy();
        let mut text = format!("name = {}\n\n[topology]\n", quoted(&stem));
        match topology {
            Some(file) => {
                let file = quoted(&self.beside(file));
                writeln!(text, "shape = \"{kind}\"\nfile = {file}")?;
            }
            None => {
                let hosts = self.hosts;
                writeln!(text, "shape = \"star\"\nhosts = {hosts}\nrate = \"100Gbps\"")?;
                writeln!(text, "delay = \"1us\"")?;
            }
        }
        // The buffer and the flow control of HPCC's simulator, as it is published.
        let switch = match self.format {
            Format::Hpcc => "buffer = \"32MiB\"\npfc = true",
            Format::Htsim | Format::Goal => "buffer = \"32MiB\"",
        };
        writeln!(text, "\n[switch]\n{switch}\n\n[host]\ntransport = \"go-back-n\"\nmtu = 1024")?;
        let file = quoted(&self.beside(flows));
        writeln!(text, "\n[[workload]]\nkind = \"{kind}\"\nfile = {file}")?;
        Ok(text)
    }

    /// A file's name as the world file has it: from the folder of that file.
    fn beside(&self, file: &Path) -> String {
        let folder = self.to.parent().unwrap_or(Path::new(""));
        let name = match file.strip_prefix(folder) {
            Ok(name) if !folder.as_os_str().is_empty() => name.to_owned(),
            _ if folder.as_os_str().is_empty() => file.to_owned(),
            _ => std::path::absolute(file).unwrap_or_else(|_| file.to_owned()),
        };
        name.to_string_lossy().into_owned()
    }
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings_of_toml() {
        assert_eq!(quoted("a \"b\" \\ \n"), "\"a \\\"b\\\" \\\\ \\u000A\"");
    }
}
