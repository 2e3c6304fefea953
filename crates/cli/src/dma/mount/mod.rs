//! `remora dma mount`: a directory of files as XDMA's driver has them, with a DMA engine behind
//! them.
//!
//! `tree` is the file system (FUSE); `channel` is what stands behind each file: a thread that turns
//! reads and writes into descriptors.

mod channel;
mod tree;

use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fuser::{Config, MountOption};
use remora::dma::Direction;
use remora::dma::path::Application;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use self::channel::{STAGE, Stage, Worker};
use self::tree::{Tree, name};
use super::SizeArgs;
use super::daemon::{CardEngine, DaemonArgs};
use crate::{output, stop};

/// `remora dma mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora dma mount DIR                                  until Ctrl-C; in another terminal:
  dma_to_device -d DIR/xdma0_h2c_0 -f data -s 4096 -a 0x1000
  dma_from_device -d DIR/xdma0_c2h_0 -f copy -s 4096 -a 0x1000
  dd if=data of=DIR/xdma0_h2c_0 bs=1M seek=16
  fio --name=w --filename=DIR/xdma0_h2c_0 --rw=write --bs=64k --size=64M

Where a daemon runs, the files are the channels of its card, and what they hold stays when the
command ends. To mount takes root, or the program fusermount3, or a namespace of one’s own:
  unshare -Urm sh -c 'remora dma mount DIR & sleep 1; dd if=data of=DIR/xdma0_h2c_0'")]
pub(super) struct Mount {
    /// The directory to mount on, which is there already
    dir: PathBuf,
    /// Channels in each direction
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
    channels: u32,
    /// Channels are streams, and not memory-mapped
    #[arg(long)]
    streaming: bool,
    /// Other users may use the files, too
    #[arg(long)]
    allow_other: bool,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Between two looks whether the mount is still there.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Waits; returns whether a signal has come.
fn stops_within(stop: &impl AsFd, time: Timespec) -> Result<bool> {
    match poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&time)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready.context("cannot wait for a signal")? > 0),
    }
}

#[derive(Serialize)]
struct Told {
    dir: PathBuf,
    files: Vec<String>,
    near_address: u64,
    near_bytes: u64,
    far_bytes: u64,
    /// The card is a daemon's.
    daemon: bool,
}

impl Mount {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::signals()?;
        let about = self.dir.metadata().with_context(|| {
            let dir = self.dir.display();
            format!(
                "cannot mount on {dir}: make the directory; or, if a mount is left, umount {dir}"
            )
        })?;
        ensure!(about.is_dir(), "{} is no directory", self.dir.display());
        let engine = CardEngine::new(self.daemon.card()?, self.sizes.sizes())?;
        let tree = self.tree(&engine)?;
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("remora-dma".into()), MountOption::DefaultPermissions];
        if self.allow_other {
            config.acl = fuser::SessionACL::All;
        }
        let files: Vec<String> = tree.names().collect();
        let mounted = fuser::spawn_mount(tree, &self.dir, &config).with_context(|| {
            format!(
                "cannot mount on {}: that takes root, or fusermount3 (Debian: fuse3), or a \
                 namespace of your own (unshare -Urm); `remora dma files` needs none of them",
                self.dir.display()
            )
        })?;
        self.tell(&engine, files)?;
        while !stops_within(&stop, LOOK)? {
            if mounted.guard.is_finished() {
                // Somebody else has unmounted it.
                return mounted.join().context("the files have gone");
            }
        }
        mounted
            .umount_and_join()
            .with_context(|| format!("cannot unmount {}: is it in use?", self.dir.display()))
    }

    /// The files, each with a channel and its thread.
    fn tree(&self, engine: &CardEngine) -> Result<Tree> {
        let sizes = engine.sizes();
        let len = 2 * self.channels as usize * STAGE;
        let (application, memory) = Application::of_this_process(len)?;
        let region = engine.grant(&application, &memory)?;
        let card_bytes = sizes.near + sizes.far;
        let mut tree = Tree::new(self.channels, self.streaming, card_bytes, self.allow_other);
        for number in 0..self.channels {
            for (side, direction) in
                [Direction::HostToCard, Direction::CardToHost].into_iter().enumerate()
            {
                let offset = (2 * number as usize + side) * STAGE;
                let stage = Stage { memory: memory.clone(), region, offset };
                let stream = self.streaming.then_some(number as u16);
                let channel = engine.open(channel::options(direction, stream))?;
                tree.add(direction, number, Worker::start(channel, stage, card_bytes)?);
            }
        }
        Ok(tree)
    }

    fn tell(&self, engine: &CardEngine, files: Vec<String>) -> Result<()> {
        let (sizes, daemon) = (engine.sizes(), matches!(engine, CardEngine::Daemons(_)));
        if self.json {
            return output::json_line(&Told {
                dir: self.dir.clone(),
                files,
                near_address: sizes.far,
                near_bytes: sizes.near,
                far_bytes: sizes.far,
                daemon,
            });
        }
        let kind = if self.streaming { "streams" } else { "memory" };
        let whose = if daemon { "a daemon’s card" } else { "a card of this command’s own" };
        println!(
            "{whose}: {} of far memory from 0, {} of near memory from {:#x}",
            output::bytes(sizes.far),
            output::bytes(sizes.near),
            sizes.far
        );
        let first = self.dir.join(name(Direction::HostToCard, 0));
        println!("{}: {} channels each way, {kind}; until Ctrl-C", first.display(), self.channels);
        Ok(())
    }
}
