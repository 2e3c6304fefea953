//! `remora mem`: reads and writes a node's regions, one-sided.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use remora_command::node::REGIONS_DOCUMENT;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::server::RegionInfo;
use remora_command::node::transfer::Transfer;
use remora_command::size::parse_size;

use crate::remote::RemoteArgs;
use crate::sink::Sink;
use crate::stop::Input;
use crate::{output, stop};

/// `remora mem`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora mem ls 127.0.0.2                                       the regions of a node
  remora mem read 127.0.0.2/data --out copy.csv                 a whole region
  remora mem read 127.0.0.2/data --offset 4K --len 100 --out -  100 bytes to standard output
  remora mem write 127.0.0.2/scratch --in image.bin             a file to the start of a region

NODE is the address that `remora node` prints. A node beyond loopback needs its token: pass it by
--token, or set REMORA_TOKEN.")]
pub(crate) struct Mem {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the regions of a node
    Ls(List),
    /// READ from a region into a file
    Read(ReadRegion),
    /// WRITE a file into a region
    Write(WriteRegion),
}

impl Mem {
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Ls(command) => command.run(),
            What::Read(command) => command.run(),
            What::Write(command) => command.run(),
        }
    }
}

#[derive(Debug, Args)]
struct List {
    /// The node: HOST or HOST:PORT
    node: NodeAddress,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl List {
    fn run(self) -> Result<()> {
        let device = self.remote.open(self.node)?;
        let address = RegionAddress { node: self.node, name: REGIONS_DOCUMENT.into() };
        let regions: Vec<RegionInfo> = self.remote.connect(&device, &address)?.read_document()?;
        if self.json {
            output::json_line(&regions)?;
        } else {
            let mut table = output::table(["region", "bytes", "access", "from"]);
            for region in &regions {
                let access = match (&region.withdrawn, region.writable) {
                    (Some(why), _) => format!("withdrawn: {why}"),
                    (None, true) => "read, write".into(),
                    (None, false) => "read".into(),
                };
                let from = if region.file { "file" } else { "memory" };
                let (name, bytes) = (region.name.clone(), output::grouped(region.bytes));
                table.add_row([name, bytes, access, from.into()]);
            }
            output::align_right(&mut table, [1]);
            println!("{table}");
        }
        self.remote.device.finish(&device);
        Ok(())
    }
}

#[derive(Debug, Args)]
struct ReadRegion {
    /// The region: NODE/NAME, where NODE is HOST or HOST:PORT
    region: RegionAddress,
    /// First byte to read; K, M, G, T are powers of 1024
    #[arg(long, default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Bytes to read [default: to the end of the region]
    #[arg(long, value_parser = parse_size)]
    len: Option<u64>,
    /// Where to put them; - is standard output. The file appears only when it is complete
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl ReadRegion {
    fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let device = self.remote.open(self.region.node)?;
        let region = self.remote.connect(&device, &self.region)?;
        let end = match self.len {
            Some(len) => self.offset.saturating_add(len),
            None => region.len().max(self.offset),
        };
        let mut sink = Sink::create(&self.out)?;
        let progress = if sink.is_shown() {
            ProgressBar::hidden()
        } else {
            progress(Some(end - self.offset), "READ")
        };
        Transfer::new(&region)?.stop_on(&stop).read(self.offset..end, &mut |part| {
            progress.inc(part.len() as u64);
            sink.write_all(part)
        })?;
        let is_shown = sink.is_shown();
        sink.finish()?;
        progress.finish_and_clear();
        if !is_shown {
            tell("READ", end - self.offset, &progress);
        }
        drop(region);
        self.remote.device.finish(&device);
        Ok(())
    }
}

#[derive(Debug, Args)]
struct WriteRegion {
    /// The region: NODE/NAME, where NODE is HOST or HOST:PORT
    region: RegionAddress,
    /// Where in the region to begin; K, M, G, T are powers of 1024
    #[arg(long, default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// What to write; - is standard input
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl WriteRegion {
    fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let (mut source, len) = open_input(&self.input, &stop)?;
        let device = self.remote.open(self.region.node)?;
        let region = self.remote.connect(&device, &self.region)?;
        let room = region.len().saturating_sub(self.offset);
        if let Some(len) = len {
            // The length is known beforehand, so nothing is written if it does not fit.
            let input = self.input.display();
            ensure!(
                len <= room,
                "{input} has {len} bytes, but {} has room for {room} from offset {} on",
                self.region,
                self.offset
            );
        }
        let progress = progress(len, "WRITE");
        let written = Transfer::new(&region)?.stop_on(&stop).write(
            self.offset,
            &mut source,
            &mut |done| progress.set_position(done),
        )?;
        progress.finish_and_clear();
        tell("WRITE", written, &progress);
        drop(region);
        self.remote.device.finish(&device);
        Ok(())
    }
}

/// The input, which ends with an error once `stop` is true, and its length if it is known.
fn open_input(path: &Path, stop: &Arc<AtomicBool>) -> Result<(Input, Option<u64>)> {
    let unreadable = || format!("cannot read {}", path.display());
    if path == Path::new("-") {
        let own = io::stdin().as_fd().try_clone_to_owned().with_context(unreadable)?;
        return Ok((Input::new(own, stop.clone()), None));
    }
    let file = File::open(path).with_context(unreadable)?;
    let about = file.metadata().with_context(unreadable)?;
    ensure!(!about.is_dir(), "cannot read {}: it is a directory", path.display());
    let len = about.is_file().then_some(about.len());
    Ok((Input::new(file, stop.clone()), len))
}

/// A progress bar, if standard error is a terminal.
fn progress(len: Option<u64>, verb: &'static str) -> ProgressBar {
    if !output::has_viewer() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => (
            ProgressBar::new(len),
            "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
        ),
        None => {
            (ProgressBar::no_length(), "{msg} {spinner} {binary_bytes}, {binary_bytes_per_sec}")
        }
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(verb)
}

/// Prints a summary for a person.
fn tell(verb: &str, bytes: u64, progress: &ProgressBar) {
    if output::has_viewer() {
        let seconds = progress.elapsed().as_secs_f64();
        let rate = bytes as f64 / seconds.max(1e-9) / 1e9;
        eprintln!("{verb} of {} bytes in {seconds:.2} s, {rate:.2} GB/s", output::grouped(bytes));
    }
}
