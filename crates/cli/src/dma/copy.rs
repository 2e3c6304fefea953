//! `remora dma copy`: moves bytes between files, memory of processes, and card memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use remora::daemon::DmaClient;
use remora::dma::MemoryKind;
use remora::dma::choose::{Bench, chosen, open};
use remora::dma::path::{Application, Path, PathKind};
use remora::memory::Buffer;
use remora_command::size::parse_size;
use serde::Serialize;

use super::daemon::{self, DaemonArgs};
use super::files::CARD;
use crate::failure::wrong_line;
use crate::output;
use crate::sink::Sink;

/// Bytes that are moved at a time.
const PIECE: usize = 1 << 20;

/// `remora dma copy`.
#[derive(Debug, Args)]
pub(super) struct Copy {
    /// From where: FILE, - for standard input, card:ADDRESS, or pid:PROCESS:ADDRESS
    from: CopyEnd,
    /// To where: FILE, - for standard output, card:ADDRESS, or pid:PROCESS:ADDRESS
    to: CopyEnd,
    /// Bytes to copy [default: to the end of the file]
    #[arg(long, value_parser = parse_size)]
    len: Option<u64>,
    /// The card whose memory is meant: the directory that `remora dma files` was given
    #[arg(long, value_name = "DIR", env = "REMORA_DMA_CARD")]
    card: Option<PathBuf>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// The way between host and card [default: the best here; see `remora dma paths`]
    #[arg(long, value_name = "NAME")]
    path: Option<PathKind>,
    /// Print one line of JSON about the copy, to standard error if the bytes go to standard output
    #[arg(long)]
    json: bool,
}

/// One end of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
enum CopyEnd {
    Standard,
    File(PathBuf),
    Card(u64),
    Process { pid: i32, addr: u64 },
}

impl FromStr for CopyEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<CopyEnd, String> {
        if text == "-" {
            return Ok(CopyEnd::Standard);
        }
        if let Some(address) = text.strip_prefix("card:") {
            return Ok(CopyEnd::Card(number(address)?));
        }
        if let Some((pid, addr)) = text.strip_prefix("pid:").and_then(|rest| rest.split_once(':')) {
            let pid = pid.parse().map_err(|_| format!("`{pid}` is no process id"))?;
            return Ok(CopyEnd::Process { pid, addr: number(addr)? });
        }
        Ok(CopyEnd::File(text.into()))
    }
}

/// A number as addresses are written, in hexadecimal behind `0x`; or a size.
fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)
            .map_err(|_| format!("`{text}` is no address: write it as 0x1000 or 4K")),
        None => parse_size(text).map_err(|error| error.to_string()),
    }
}

impl fmt::Display for CopyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyEnd::Standard => write!(f, "-"),
            CopyEnd::File(path) => write!(f, "{}", path.display()),
            CopyEnd::Card(address) => write!(f, "card:{address:#x}"),
            CopyEnd::Process { pid, addr } => write!(f, "pid:{pid}:{addr:#x}"),
        }
    }
}

#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    bytes: u64,
    /// By which path bytes came to the card, and from it; none if they were there.
    to_card: Option<&'static str>,
    to_host: Option<&'static str>,
    seconds: f64,
    gb_per_s: f64,
}

impl Copy {
    pub(super) fn run(self) -> Result<()> {
        self.check().map_err(wrong_line)?;
        let bench = Bench::new(PIECE).context("cannot set up a card to copy through")?;
        let target = self.target()?;
        let card = match &target {
            Target::Own => bench.card().bytes(),
            Target::Files(bytes) => bytes,
            Target::Daemon(card) => card.memory(),
        };
        let paths = Paths { bench: &bench, target: &target };
        let (mut source, mut sink) = (self.source(&paths)?, self.sink(&paths)?);
        let mut left = self.len.unwrap_or(u64::MAX);
        let backwards = self.goes_backwards(left);
        let stage = bench.card().range(MemoryKind::Near).start as usize;
        let (mut done, mut moving) = (0, Duration::ZERO);
        while left > 0 {
            let wanted = left.min(PIECE as u64) as usize;
            let got = source.fetch(&bench, wanted)?;
            if got == 0 {
                break;
            }
            let start = Instant::now();
            let piece = if backwards { left - got as u64 } else { done };
            // Where the bytes lie on the card between the two halves of the copy.
            let (bytes, at) = match (&self.from, &self.to) {
                (CopyEnd::Card(address), _) | (_, CopyEnd::Card(address)) => {
                    (card, on_card(*address, piece)?)
                }
                _ => (bench.card().bytes(), stage),
            };
            source.copy_to_card(piece, bytes, at, got)?;
            if let (CopyEnd::Card(_), CopyEnd::Card(to)) = (&self.from, &self.to) {
                // (A copy between ranges that overlap would read what it has written.)
                bench.card().bytes().copy_at(stage, card, at, got)?;
                card.copy_at(on_card(*to, piece)?, bench.card().bytes(), stage, got)?;
            }
            sink.copy_to_host(piece, bytes, at, got)?;
            moving += start.elapsed();
            sink.store(&bench, got)?;
            done += got as u64;
            left -= got as u64;
        }
        ensure!(
            self.len.is_none_or(|len| len == done),
            "{} has only {done} bytes, not {}",
            self.from,
            self.len.unwrap_or(0)
        );
        sink.write.take().map_or(Ok(()), Sink::finish)?;
        self.report(done, moving, &source, &sink)
    }

    /// An error if the options do not go together.
    fn check(&self) -> Result<()> {
        if let (CopyEnd::Card(_) | CopyEnd::Process { .. }, None) = (&self.from, self.len) {
            bail!("how many bytes of {} shall be copied? Pass --len", self.from);
        }
        let is_one = self.card.is_none() || !self.daemon.is_named();
        ensure!(is_one, "--card names another card than --socket: pass one");
        Ok(())
    }

    /// Would pieces from the start overwrite what is still to be read?
    fn goes_backwards(&self, len: u64) -> bool {
        let (from, to) = match (&self.from, &self.to) {
            (CopyEnd::Card(from), CopyEnd::Card(to)) => (from, to),
            (CopyEnd::Process { pid, addr }, CopyEnd::Process { pid: other, addr: to })
                if pid == other =>
            {
                (addr, to)
            }
            _ => return false,
        };
        to.checked_sub(*from).is_some_and(|distance| 0 < distance && distance < len)
    }

    fn report(&self, bytes: u64, moving: Duration, source: &End, sink: &End) -> Result<()> {
        let seconds = moving.as_secs_f64();
        let report = Report {
            from: self.from.to_string(),
            to: self.to.to_string(),
            bytes,
            to_card: source.path.as_ref().map(|path| path.kind().name()),
            to_host: sink.path.as_ref().map(|path| path.kind().name()),
            seconds,
            gb_per_s: bytes as f64 / seconds.max(1e-9) / 1e9,
        };
        let to_person = self.to == CopyEnd::Standard;
        if self.json && !to_person {
            return output::json_line(&report);
        }
        if self.json {
            return Ok(output::json_line_to(&mut io::stderr(), &report)?);
        }
        let ways: Vec<_> = report.to_card.into_iter().chain(report.to_host).collect();
        let by = if ways.is_empty() { "on the card".into() } else { ways.join(", then ") };
        eprintln!(
            "{} bytes in {:.6} s, {:.2} GB/s: {by}",
            output::grouped(bytes),
            report.seconds,
            report.gb_per_s
        );
        Ok(())
    }

    /// The card that is meant: one is needed where an end lies on it.
    fn target(&self) -> Result<Target> {
        let on_card = |place: &CopyEnd| matches!(place, CopyEnd::Card(_));
        if let Some(folder) = &self.card {
            return Ok(Target::Files(card_of(folder)?));
        }
        if !on_card(&self.from) && !on_card(&self.to) {
            return Ok(Target::Own);
        }
        let card = self.daemon.card()?.context(
            "no card is named, and no daemon runs: start one (remora nic), or pass --card DIR, \
             with the directory of `remora dma files DIR`",
        )?;
        Ok(Target::Daemon(card))
    }

    fn source(&self, paths: &Paths<'_>) -> Result<End> {
        let unreadable = || format!("cannot read {}", self.from);
        let stream: Option<Box<dyn Read>> = match &self.from {
            CopyEnd::Standard => Some(Box::new(io::stdin().lock())),
            CopyEnd::File(path) => Some(Box::new(File::open(path).with_context(unreadable)?)),
            CopyEnd::Card(_) | CopyEnd::Process { .. } => None,
        };
        Ok(End { path: self.path_of(&self.from, paths)?, read: stream, write: None })
    }

    fn sink(&self, paths: &Paths<'_>) -> Result<End> {
        let path = self.path_of(&self.to, paths)?;
        let write = match &self.to {
            CopyEnd::Standard => Some(Sink::create("-".as_ref())?),
            CopyEnd::File(path) => Some(Sink::create(path)?),
            CopyEnd::Card(_) | CopyEnd::Process { .. } => None,
        };
        Ok(End { path, read: None, write })
    }

    /// The path between a place and the card, for places that are not on the card.
    fn path_of(&self, place: &CopyEnd, paths: &Paths<'_>) -> Result<Option<Box<dyn Path>>> {
        match *place {
            CopyEnd::Card(_) => Ok(None),
            CopyEnd::Standard | CopyEnd::File(_) => Ok(Some(paths.open(self.path)?)),
            CopyEnd::Process { pid, addr } => {
                let len = u64::MAX >> 8;
                let application = Application { pid, addr, len, file: None };
                let kind = self.path.unwrap_or(PathKind::ProcessVm);
                let path = open(kind, &application);
                Ok(Some(path.with_context(|| format!("no path {kind} to {place}"))?))
            }
        }
    }
}

/// The card that bytes are copied to, from, or through.
enum Target {
    /// That of this process.
    Own,
    /// That behind the files of another command.
    Files(Buffer),
    /// A daemon's.
    Daemon(DmaClient),
}

/// The paths between this process's memory and the card that is meant.
struct Paths<'a> {
    bench: &'a Bench,
    target: &'a Target,
}

impl Paths<'_> {
    /// The path that was asked for, or the best.
    fn open(&self, forced: Option<PathKind>) -> Result<Box<dyn Path>> {
        if let Target::Daemon(card) = self.target {
            let kind = daemon::chosen(card, forced)?;
            return daemon::open(card, self.bench, kind).with_context(|| format!("no path {kind}"));
        }
        let mut kind = chosen(forced)?;
        if kind == PathKind::Engine && matches!(self.target, Target::Files(_)) {
            ensure!(forced.is_none(), "the engine’s path reaches its own card only");
            kind = PathKind::Mapping;
        }
        self.bench.open(kind).with_context(|| format!("no path {kind}"))
    }
}

/// One end at work: a path to the card, and a stream behind the host's memory, if it has one.
struct End {
    path: Option<Box<dyn Path>>,
    read: Option<Box<dyn Read>>,
    write: Option<Sink>,
}

impl End {
    /// Fills host memory from the stream; returns how many bytes there are to move.
    fn fetch(&mut self, bench: &Bench, wanted: usize) -> Result<usize> {
        let Some(stream) = &mut self.read else { return Ok(wanted) };
        let mut bytes = Vec::with_capacity(wanted);
        stream.take(wanted as u64).read_to_end(&mut bytes).context("cannot read the source")?;
        bench.memory().write_at(0, &bytes)?;
        Ok(bytes.len())
    }

    /// Writes what has come to host memory to the stream.
    fn store(&mut self, bench: &Bench, len: usize) -> Result<()> {
        let Some(stream) = &mut self.write else { return Ok(()) };
        let mut bytes = vec![0; len];
        bench.memory().read_at(0, &mut bytes)?;
        stream.write_all(&bytes).and_then(|()| stream.flush()).context("cannot write")
    }

    /// Where the bytes are on the host's side: a process's memory goes on, the others' is a piece.
    fn host(&self, done: u64) -> u64 {
        if self.read.is_some() || self.write.is_some() { 0 } else { done }
    }

    fn copy_to_card(&mut self, done: u64, card: &Buffer, at: usize, len: usize) -> Result<()> {
        let from = self.host(done);
        let Some(path) = &mut self.path else { return Ok(()) };
        Ok(path.to_card(from, card, at, len)?)
    }

    fn copy_to_host(&mut self, done: u64, card: &Buffer, from: usize, len: usize) -> Result<()> {
        let at = self.host(done);
        let Some(path) = &mut self.path else { return Ok(()) };
        Ok(path.to_host(card, from, at, len)?)
    }
}

/// Where on the card a piece lies of what begins at `address`.
fn on_card(address: u64, piece: u64) -> Result<usize> {
    let at = address.checked_add(piece).context("no such address")?;
    usize::try_from(at).context("no such address")
}

/// The memory of the card whose files are in `folder`.
fn card_of(folder: &FilePath) -> Result<Buffer> {
    let path = folder.join(CARD);
    let file = File::options().read(true).write(true).open(&path);
    let file = file.with_context(|| {
        format!("no card is behind {}: does `remora dma files` run there?", path.display())
    })?;
    let len = file.metadata()?.len();
    Ok(Buffer::map(file.as_fd(), 0, usize::try_from(len)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_as_a_person_types_them() {
        let process = CopyEnd::Process { pid: 47, addr: 0x7f00 };
        for (text, place) in [
            ("-", CopyEnd::Standard),
            ("card:0x1000", CopyEnd::Card(4096)),
            ("card:4K", CopyEnd::Card(4096)),
            ("pid:47:0x7f00", process),
            ("cards", CopyEnd::File("cards".into())),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        for text in ["card:", "card:0xz", "pid:x:1", "pid:1:0x"] {
            assert!(text.parse::<CopyEnd>().is_err(), "{text}");
        }
    }
}
