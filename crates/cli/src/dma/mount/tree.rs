//! The file system: one directory, with a file for each channel, and one of registers.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use remora::dma::Direction;

use super::channel::{STAGE, Worker};
use crate::dma::registers::registers;

/// How long the system may believe what it was told of a file: nothing of it changes.
const FOR_LONG: Duration = Duration::from_secs(3600);
/// The file of registers.
const CONTROL: u64 = 2;
const CONTROL_NAME: &str = "xdma0_control";
/// The first channel's file; others follow.
const FIRST: u64 = 3;

/// The name of a channel's file, as XDMA's driver has it.
pub(super) fn name(direction: Direction, number: u32) -> String {
    format!("xdma0_{direction}_{number}")
}

/// The directory.
#[derive(Debug)]
pub(super) struct Tree {
    registers: Vec<u8>,
    files: Vec<(String, Worker)>,
    /// What a channel's file is long: the card's memory, or nothing for a stream.
    len: u64,
    streaming: bool,
    made: SystemTime,
    owner: (u32, u32),
    /// Other users may use the files, too.
    is_shared: bool,
}

impl Tree {
    /// Files of so many channels each way, to a card of so many bytes.
    pub(super) fn new(channels: u32, streaming: bool, card_bytes: u64, is_shared: bool) -> Tree {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Tree {
            registers: registers(channels, streaming),
            files: Vec::new(),
            len: if streaming { 0 } else { card_bytes },
            streaming,
            made: SystemTime::now(),
            owner,
            is_shared,
        }
    }

    /// Adds a channel's file.
    pub(super) fn add(&mut self, direction: Direction, number: u32, worker: Worker) {
        self.files.push((name(direction, number), worker));
    }

    /// The names of all files.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let channels = self.files.iter().map(|(name, _)| name.clone());
        std::iter::once(CONTROL_NAME.into()).chain(channels)
    }

    /// Where the system cuts a write. It hands over as many pages as a stage has: those of a buffer
    /// that begins within a page hold a page less, and a byte. What is a packet does not depend on
    /// where a program's buffer begins.
    fn longest_write(&self) -> usize {
        if self.streaming { STAGE - rustix::param::page_size() + 1 } else { STAGE }
    }

    fn file(&self, node: INodeNo) -> Option<&Worker> {
        let place = usize::try_from(node.0.checked_sub(FIRST)?).ok()?;
        self.files.get(place).map(|(_, worker)| worker)
    }

    fn node_of(&self, name: &OsStr) -> Option<INodeNo> {
        let place = self.names().position(|own| OsStr::new(&own) == name)?;
        Some(INodeNo(CONTROL + place as u64))
    }

    fn attributes(&self, node: INodeNo) -> Option<FileAttr> {
        let perm = if self.is_shared { 0o666 } else { 0o600 };
        let (kind, perm, size) = match node {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            INodeNo(CONTROL) => (FileType::RegularFile, perm, self.registers.len() as u64),
            channel => {
                self.file(channel)?;
                (FileType::RegularFile, perm, self.len)
            }
        };
        let at = self.made;
        Some(FileAttr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            atime: at,
            mtime: at,
            ctime: at,
            crtime: at,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: STAGE as u32,
            flags: 0,
        })
    }
}

impl Filesystem for Tree {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A system that permits less says how much, and gets that.
        let most = self.longest_write() as u32;
        config.set_max_write(most).or_else(|most| config.set_max_write(most)).ok();
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = self.node_of(name).filter(|_| parent == INodeNo::ROOT);
        match node.and_then(|node| self.attributes(node)) {
            Some(attributes) => reply.entry(&FOR_LONG, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(node) {
            Some(attributes) => reply.attr(&FOR_LONG, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// A file that is cut or touched stays as it is, like a device; owners and rights are those of
    /// the mount.
    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        self.getattr(request, node, file, reply);
    }

    fn create(
        &self,
        _: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        // The card has the channels that it has.
        reply.error(Errno::EPERM);
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut flags = FopenFlags::empty();
        if node.0 >= FIRST {
            // Each read and write is a transfer, and no page of the system's stands between.
            flags |= FopenFlags::FOPEN_DIRECT_IO;
            if self.streaming {
                flags |= FopenFlags::FOPEN_STREAM;
            }
        }
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if node.0 == CONTROL {
            let end = self.registers.len();
            let start = usize::try_from(offset).map_or(end, |offset| offset.min(end));
            return reply
                .data(&self.registers[start..end.min(start.saturating_add(size as usize))]);
        }
        match self.file(node) {
            Some(file) if file.direction == Direction::CardToHost => file.read(offset, size, reply),
            // As XDMA's driver: a channel has one direction.
            Some(_) => reply.error(Errno::EINVAL),
            None => reply.error(Errno::EISDIR),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(node) {
            Some(file) if file.direction == Direction::HostToCard => {
                file.write(offset, data, reply);
            }
            Some(_) => reply.error(Errno::EINVAL),
            // The registers are read only.
            None => reply.error(Errno::EPERM),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A write has come to the card when it returns.
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if node != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name.to_owned()));
        let files = self.names().zip(CONTROL..);
        let files = files.map(|(name, node)| (INodeNo(node), FileType::RegularFile, name));
        let all = dots.into_iter().chain(files).zip(1..);
        for ((node, kind, name), next) in all.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(node, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
