//! A session by a device of a virtual machine: QEMU's `ivshmem-doorbell`, behind which a daemon on
//! the host serves.
//!
//! The device's memory (BAR 2) is the arena, with the [mailbox](crate::shared::mailbox) behind it.
//! Its registers (BAR 0) have the doorbells: a write reaches the daemon as a count in the kernel.
//! Both are files in the device's folder in `/sys`, so that no driver is needed. Without one there
//! are no interrupts either, and this client looks for news instead of being woken.
//!
//! One program has the device at a time, by a lock on the file of its memory. The system takes the
//! lock from a program that was killed, and a new system has none. So a program that greets is
//! alone, and the daemon takes a greeting for the end of the client before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::event::never;
use crate::memory::Buffer;
use crate::message::{Answer, Hello, PCI_DEVICES, encode, greeting, is_ivshmem};
use crate::shared::{MAILBOX, MailboxClient};

/// The register that rings: the peer's number in its upper half, the vector in its lower half.
const AT_DOORBELL: usize = 12;
/// The daemon's number among the peers of the device.
const DAEMON: u32 = 0;
/// The vectors of the daemon: the session's doorbell, and that of the mailbox.
const SESSION_VECTOR: u32 = 0;
const MAILBOX_VECTOR: u32 = 1;

/// How long a program that has the device before may take to have its last answer.
const QUIET: Duration = Duration::from_secs(1);
/// How long the daemon has for an answer. It ends a session with many objects before it greets.
const ANSWER: Duration = Duration::from_secs(30);
/// Looks for an answer before the first pause, and how long that is.
const LOOKS: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);
/// How often a thread that sleeps looks for news.
pub(super) const NEWS: Duration = Duration::from_millis(1);

/// An open device.
#[derive(Debug)]
pub(crate) struct Ivshmem {
    registers: Buffer,
    /// Where in their page the registers begin.
    at: usize,
    memory: File,
}

/// What wakes the daemon.
#[derive(Debug)]
pub(crate) enum Doorbell {
    /// A count in the kernel.
    Event(OwnedFd),
    /// A register of a device.
    Device(Arc<Ivshmem>),
}

/// The place of a socket in a session by a device.
#[derive(Debug)]
pub(super) struct Mail {
    mailbox: MailboxClient,
    device: Arc<Ivshmem>,
    /// Never readable.
    event: OwnedFd,
    /// The process whose session it is. A forked child has the same memory.
    process: u32,
}

impl Doorbell {
    /// Wakes the daemon.
    ///
    /// # Errors
    /// None that can be expected.
    pub(super) fn ring(&self) -> io::Result<()> {
        match self {
            Doorbell::Device(device) => device.ring(SESSION_VECTOR),
            Doorbell::Event(event) => match rustix::io::write(event, &1u64.to_ne_bytes()) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            },
        }
        Ok(())
    }
}

impl Ivshmem {
    /// Opens the device of this folder, for this process alone.
    fn open(folder: &Path) -> Result<Ivshmem, String> {
        if !is_ivshmem(folder) {
            let none = if folder == Path::new(PCI_DEVICES) { "there is no" } else { "it is no" };
            return Err(format!(
                "{none} PCI device 1af4:1110: give the virtual machine an ivshmem-doorbell \
                 (docs/nic.md, Virtual machines)"
            ));
        }
        let file = |name| {
            let path = folder.join(name);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            file.map_err(|error| format!("cannot open {}: {error}; it is for root", path.display()))
        };
        let memory = file("resource2")?;
        flock(&memory, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| "another program of this machine has the device".to_owned())?;
        enable(folder).map_err(|error| format!("cannot enable the device: {error}"))?;
        let at = first_byte(folder).ok_or("its file `resource` cannot be read")? as usize % PAGE;
        // SAFETY: the file is of a device, whose registers are one page, and stay.
        let registers = unsafe { Buffer::map_device(file("resource0")?.as_fd(), 0, PAGE) };
        let registers = registers.map_err(|error| error.to_string())?;
        Ok(Ivshmem { registers, at, memory })
    }

    /// The memory for the arena, and that for the mailbox.
    fn memory(&self) -> Result<(Buffer, Buffer), String> {
        let len = self.memory.metadata().map_err(|error| error.to_string())?.len() as usize;
        let arena = len.checked_sub(MAILBOX).filter(|arena| *arena > 0);
        let arena = arena.ok_or("its memory is too small")?;
        // SAFETY: the file is of a device, whose memory has these bytes, and stays.
        let map = |at: usize, len| unsafe {
            Buffer::map_device(self.memory.as_fd(), at as u64, len).map_err(|e| e.to_string())
        };
        Ok((map(0, arena)?, map(arena, MAILBOX)?))
    }

    fn ring(&self, vector: u32) {
        let register = self.registers.word32(self.at + AT_DOORBELL);
        // What was written before is in memory when the daemon is told.
        fence(Ordering::SeqCst);
        let value = DAEMON << 16 | vector;
        register.expect("a register of the page").store(value.to_le(), Ordering::Release);
    }
}

const PAGE: usize = 4096;

/// Has the device answer accesses to its memory. Firmware mostly has done so.
fn enable(folder: &Path) -> io::Result<()> {
    let file = folder.join("enable");
    match fs::read_to_string(&file) {
        Ok(text) if text.trim_end() == "0" => fs::write(file, "1"),
        _ => Ok(()),
    }
}

/// The physical address of the device's registers.
fn first_byte(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("resource")).ok()?;
    let first = text.split_whitespace().next()?.strip_prefix("0x")?;
    u64::from_str_radix(first, 16).ok()
}

impl Mail {
    /// Opens the device of this folder, for this process alone; returns the memory of the arena,
    /// too.
    ///
    /// # Errors
    /// Why the device leads to no daemon.
    pub(super) fn open(folder: &Path) -> Result<(Mail, Buffer), String> {
        let device = Arc::new(Ivshmem::open(folder)?);
        let (arena, mailbox) = device.memory()?;
        let mailbox = MailboxClient::open(mailbox).ok_or("no daemon has made its memory")?;
        let event = never().map_err(|error| error.to_string())?;
        Ok((Mail { mailbox, device, event, process: std::process::id() }, arena))
    }

    /// What wakes the daemon.
    pub(super) fn doorbell(&self) -> Doorbell {
        Doorbell::Device(self.device.clone())
    }

    /// Greets the daemon; returns its answer.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn greet(&mut self, hello: &Hello) -> io::Result<Vec<u8>> {
        // The daemon may be about a request of the program before.
        self.device.ring(MAILBOX_VECTOR);
        let start = Instant::now();
        while !self.mailbox.is_quiet() && start.elapsed() < QUIET {
            std::thread::sleep(PAUSE);
        }
        self.mailbox.greet(&greeting(hello)).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.answer()
    }

    /// Sends a request, and puts its answer, which may be a farewell, in its place.
    ///
    /// # Errors
    /// The daemon does not answer, or this is another process.
    pub(super) fn exchange(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        if self.process != std::process::id() {
            return Err(io::Error::other("it is another process’s"));
        }
        self.mailbox.send(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        *bytes = self.answer()?;
        Ok(())
    }

    fn answer(&self) -> io::Result<Vec<u8>> {
        self.device.ring(MAILBOX_VECTOR);
        let (start, mut bytes) = (Instant::now(), Vec::new());
        for look in 0u32.. {
            if self.mailbox.receive(&mut bytes) {
                break;
            }
            if let Some(reason) = self.mailbox.dismissal() {
                return Ok(encode(&Answer::Farewell(&reason)));
            }
            match look {
                0..LOOKS => std::hint::spin_loop(),
                _ if start.elapsed() > ANSWER => return Err(io::Error::other(SILENT)),
                _ => std::thread::sleep(PAUSE),
            }
        }
        Ok(bytes)
    }

    /// Why the daemon has ended the session, if it has.
    pub(super) fn dismissal(&self) -> Option<String> {
        self.mailbox.dismissal()
    }
}

const SILENT: &str = "the daemon does not answer: it has ended, or the device was made without \
                      `vectors=2`";

impl Drop for Mail {
    /// Ends the session's use, as the closing of a socket does.
    fn drop(&mut self) {
        if self.process == std::process::id() && self.mailbox.send(&[]).is_ok() {
            self.device.ring(MAILBOX_VECTOR);
        }
    }
}

impl AsFd for Mail {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
