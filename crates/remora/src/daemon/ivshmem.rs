//! A virtual machine's device: QEMU's `ivshmem-doorbell`, with the memory and the doorbells that
//! QEMU gets from a Unix stream socket.
//!
//! QEMU only listens there. Each message is a number of 64 bits, with a descriptor or without: the
//! protocol's version, the machine's own number among its peers, −1 with the memory, and for each
//! vector of each peer the peer's number with an event. The daemon is the machine's only peer.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::event::Event;
use crate::memory::{Buffer, memfd};
use crate::message::{Hello, NAME_MAX};
use crate::shared::arena::{DATA, PAGE};
use crate::shared::mailbox::TooLong;
use crate::shared::{MAILBOX, MailboxServer};
use crate::text::printable;

/// Tokens of machines in the server's set of descriptors begin here, behind those of clients.
pub(super) const MACHINES: u64 = 1 << 32;

/// The version of the protocol.
const VERSION: i64 = 0;
/// Says that the descriptor is the memory's.
const MEMORY: i64 = -1;
/// The daemon's number among the peers, and the machine's.
const DAEMON: i64 = 0;
const MACHINE: i64 = 1;
/// The least bytes of a device's memory. (PCI wants a power of two.)
const LEAST: usize = (DATA + PAGE + MAILBOX).next_power_of_two();
/// The longest part of a session's name that is its machine's.
const MACHINE_NAME_MAX: usize = 24;

/// A place at which one virtual machine after the other gets the same device.
#[derive(Debug)]
pub(crate) struct Machine {
    path: PathBuf,
    pub(super) listener: OwnedFd,
    /// The machine that has the device.
    pub(super) qemu: Option<Qemu>,
    /// Made for the first machine.
    pub(super) device: Option<MachineDevice>,
    /// The session of the program that greeted last, which may have ended.
    pub(super) session: Option<u32>,
    /// Its place in the engine.
    pub(super) slot: Option<u16>,
    /// The connection of that program, which may have been dropped.
    pub(super) client: Option<u32>,
    /// A greeting, by its number, that waits for the end of the session before.
    pub(super) waiting: Option<(u32, Hello)>,
    /// When machines are accepted again, if one could not be.
    pub(super) accepts_again: Option<Instant>,
}

/// The process that runs a machine.
#[derive(Debug)]
pub(crate) struct Qemu {
    pub(super) stream: OwnedFd,
    pub(super) pid: i32,
}

/// The memory and the doorbells of a device.
#[derive(Debug)]
pub(crate) struct MachineDevice {
    /// Whose machines may have it.
    pub(super) uid: u32,
    pub(super) file: OwnedFd,
    /// Bytes of the arena, which the memory begins with.
    pub(super) arena_bytes: usize,
    pub(super) mailbox: MailboxServer,
    /// The number of the request that was taken last.
    last: u32,
    /// The session's doorbell.
    pub(super) doorbell: Event,
    /// Rung when something is in the mailbox.
    pub(super) letters: Event,
}

impl Machine {
    pub(super) fn new(path: PathBuf, listener: OwnedFd) -> Machine {
        let (qemu, device, session, slot) = (None, None, None, None);
        let (client, waiting, accepts_again) = (None, None, None);
        Machine { path, listener, qemu, device, session, slot, client, waiting, accepts_again }
    }

    /// The socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What a program's session in this machine is called: as its socket, and as the program.
    pub(super) fn session_name(&self, program: Option<&str>) -> String {
        let machine = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let mut name = printable(&machine);
        cut(&mut name, MACHINE_NAME_MAX);
        if let Some(program) = program {
            name.push('/');
            name.push_str(program);
            cut(&mut name, NAME_MAX);
        }
        name
    }

    /// Takes the next request into `message`; returns its number. `None`: there is none, or the one
    /// before is not done.
    pub(super) fn take(&mut self, message: &mut Vec<u8>) -> Option<(u32, Result<(), TooLong>)> {
        let device = self.device.as_mut().filter(|_| self.waiting.is_none())?;
        let (number, taken) = device.mailbox.receive(device.last, message)?;
        device.last = number;
        Some((number, taken))
    }
}

/// Cuts a name to this many bytes at most.
fn cut(name: &mut String, most: usize) {
    name.truncate((0..=most).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0));
}

impl MachineDevice {
    /// A device for machines of user `uid`, of as many bytes as a session's arena may have, or
    /// somewhat fewer.
    ///
    /// # Errors
    /// The process or the system has too many open files, or no room for the mapping.
    pub(super) fn new(uid: u32, arena_bytes: u64) -> io::Result<MachineDevice> {
        let most = usize::try_from(arena_bytes).unwrap_or(usize::MAX / 2);
        let len = (1 << most.max(1).ilog2()).max(LEAST);
        let file = memfd::sealed("remora-machine", len as u64)?;
        let arena_bytes = len - MAILBOX;
        let mailbox = Buffer::map_only(file.as_fd(), arena_bytes as u64, MAILBOX);
        let mailbox = MailboxServer::new(mailbox.map_err(io::Error::other)?);
        let (doorbell, letters) = (Event::new()?, Event::new()?);
        Ok(MachineDevice { uid, file, arena_bytes, mailbox, last: 0, doorbell, letters })
    }

    /// Tells QEMU of the device.
    ///
    /// # Errors
    /// It does not listen.
    pub(super) fn introduce(&self, qemu: &OwnedFd) -> io::Result<()> {
        tell(qemu, VERSION, None)?;
        tell(qemu, MACHINE, None)?;
        tell(qemu, MEMORY, Some(self.file.as_fd()))?;
        // By their order these are vectors 0 and 1.
        tell(qemu, DAEMON, Some(self.doorbell.as_fd()))?;
        tell(qemu, DAEMON, Some(self.letters.as_fd()))
    }
}

/// Sends one message of the protocol.
fn tell(qemu: &OwnedFd, number: i64, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if descriptor.is_some() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
        debug_assert!(pushed, "there is room for one");
    }
    let (bytes, flags) = (number.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let sent = sendmsg(qemu, &[IoSlice::new(&bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
