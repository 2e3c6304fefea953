//! `remora dma files`: a card's memory and channels as named files, as XDMA's driver has them.
//!
//! `DIR/xdma0_h2c_0` and so on are links to the card's memory, a file of memory: an offset in it is
//! a card address, `pwrite` there is the copy to the card, and `pread` the copy from it. Streaming
//! channels are pipes: what is written to `xdma0_h2c_N` is read from `xdma0_c2h_N`.
//! `DIR/xdma0_control` has the registers by which Xilinx's scripts count channels.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::dma::{CardMemory, MemoryKind};
use remora::memory::{Buffer, memfd};
use rustix::fs::{FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use serde::Serialize;

use super::SizeArgs;
use super::registers::{self, registers};
use crate::{output, stop};

/// The name of the file that is the card's memory.
pub(super) const CARD: &str = "xdma0_card";

/// `remora dma files`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora dma files DIR                                  until Ctrl-C; in another terminal:
  dma_to_device -d DIR/xdma0_h2c_0 -f data -s 4096 -a 0x1000
  dma_from_device -d DIR/xdma0_c2h_0 -f copy -s 4096 -a 0x1000
  dd if=data of=DIR/xdma0_h2c_0 bs=1M seek=16 conv=notrunc
  fio --name=w --filename=DIR/xdma0_h2c_0 --rw=write --bs=64k --size=64M

Scripts that name /dev/xdma0_h2c_0 find it if DIR is /dev, which root may write.")]
pub(super) struct Files {
    /// The directory, which is there already
    dir: PathBuf,
    /// Channels in each direction
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
    channels: u32,
    /// Channels are streams, and not memory-mapped
    #[arg(long)]
    streaming: bool,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told<'a> {
    dir: &'a Path,
    files: Vec<String>,
    near_address: u64,
    near_bytes: u64,
    far_address: u64,
    far_bytes: u64,
    near_is_there: bool,
}

/// Files that are removed when the command ends.
#[derive(Debug, Default)]
struct Made {
    paths: Vec<PathBuf>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.paths {
            // What somebody else has removed need not be removed.
            fs::remove_file(path).ok();
        }
    }
}

impl Files {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::on_signals()?;
        let dir = self.dir.display();
        ensure!(self.dir.is_dir(), "there is no directory {dir}: make it (mkdir -p {dir})");
        let card = CardMemory::new(self.sizes.sizes())?;
        let mut made = Made::default();
        let control = self.control()?;
        self.link(&mut made, CARD, card.as_fd().as_raw_fd())?;
        self.link(&mut made, "xdma0_control", control.as_raw_fd())?;
        // Kept open, so that bytes stay in a pipe when their writer has gone.
        let mut pipes = Vec::new();
        for number in 0..self.channels {
            // (The link first: once there is a pipe, one that is left would lead to it.)
            for direction in ["c2h", "h2c"] {
                let name = format!("xdma0_{direction}_{number}");
                if !self.streaming {
                    self.link(&mut made, &name, card.as_fd().as_raw_fd())?;
                } else if direction == "h2c" {
                    pipes.push(self.pipe(&mut made, &name)?);
                } else {
                    let pipe = format!("xdma0_h2c_{number}");
                    self.name(&mut made, &name, |path| symlink(pipe, path))?;
                }
            }
        }
        self.tell(&card, &made)?;
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn tell(&self, card: &CardMemory, made: &Made) -> Result<()> {
        let (near, far) = (card.range(MemoryKind::Near), card.range(MemoryKind::Far));
        let file = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into();
        if self.json {
            return output::json_line(&Told {
                dir: &self.dir,
                files: made.paths.iter().map(file).collect(),
                near_address: near.start,
                near_bytes: near.end - near.start,
                far_address: far.start,
                far_bytes: far.end - far.start,
                near_is_there: card.near_is_there(),
            });
        }
        let mut table = output::table(["memory", "card addresses", "size", "pages"]);
        let pages = if card.near_is_there() { "there" } else { "come when touched" };
        for (kind, range, pages) in [("far", far, "come when touched"), ("near", near, pages)] {
            let size = output::bytes(range.end - range.start);
            let range = format!("{:#x}–{:#x}", range.start, range.end - 1);
            table.add_row([kind.to_owned(), range, size, pages.to_owned()]);
        }
        output::align_right(&mut table, [2]);
        let kind = if self.streaming { "streams" } else { "memory" };
        println!("{table}");
        println!(
            "{}: {} channels each way, {kind}; until Ctrl-C",
            self.dir.join("xdma0_h2c_0").display(),
            self.channels
        );
        Ok(())
    }

    /// A name for a descriptor of this process.
    fn link(&self, made: &mut Made, name: &str, descriptor: i32) -> Result<()> {
        let target = format!("/proc/{}/fd/{descriptor}", std::process::id());
        self.name(made, name, |path| symlink(target, path))
    }

    fn pipe(&self, made: &mut Made, name: &str) -> Result<OwnedFd> {
        let mode = Mode::RUSR | Mode::WUSR;
        self.name(made, name, |path| Ok(mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0)?))?;
        let path = self.dir.join(name);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        open(&path, flags, Mode::empty()).with_context(|| format!("cannot open {}", path.display()))
    }

    /// Makes a file by `make`. What is left of an earlier run is replaced; other files are not.
    fn name(
        &self,
        made: &mut Made,
        name: &str,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<()> {
        let path = self.dir.join(name);
        if fs::symlink_metadata(&path).is_ok() {
            ensure!(
                is_left(&path),
                "{} is there already: another card’s, or a file of yours; choose another directory",
                path.display()
            );
            fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        make(&path).with_context(|| format!("cannot make {}", path.display()))?;
        made.paths.push(path);
        Ok(())
    }

    /// The registers, as a file of memory.
    fn control(&self) -> Result<OwnedFd> {
        let len = registers::BYTES;
        let file = memfd::sealed("remora-control", len as u64).context("no memory")?;
        let memory = Buffer::map(file.as_fd(), 0, len)?;
        memory.write_at(0, &registers(self.channels, self.streaming))?;
        Ok(file)
    }
}

/// Has an earlier run left it: is it a link to nothing, or a pipe from which nobody reads?
fn is_left(path: &Path) -> bool {
    let is_pipe = |about: fs::Metadata| about.file_type().is_fifo();
    match fs::metadata(path).map(is_pipe) {
        Ok(true) => {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            open(path, flags, Mode::empty()).is_err_and(|error| error == Errno::NXIO)
        }
        Ok(false) => false,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}
