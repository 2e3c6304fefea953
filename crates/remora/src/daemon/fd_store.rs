//! Where descriptors outlive the daemon's process: the store of the service manager.
//!
//! systemd keeps descriptors that a service sends to its notification socket, under names, and
//! passes them to the service's next process, beside the sockets to listen on (`sd_notify(3)`,
//! `FDSTORE=1`; `sd_listen_fds_with_names(3)`).
//!
//! What it has no room for waits here, in order, until its socket is writable: the thread that
//! serves does not wait for it. The answers to clients do, so that a client knows of nothing that
//! is not written down, and there is an end to what waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

use crate::event::take_inherited;

/// The environment variable that names the service manager's socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// How long the service manager may take for a message.
const PATIENCE: Duration = Duration::from_secs(1);
/// The number of the first descriptor that a service manager passes.
const FIRST_PASSED: RawFd = 3;
/// What the names of this daemon's descriptors begin with.
const PREFIX: &str = "remora";

/// The service manager's end.
#[derive(Debug)]
pub struct FdStore {
    socket: OwnedFd,
    waiting: RefCell<VecDeque<Message>>,
    /// How many have waited.
    waited: Cell<u64>,
    /// Since when it has taken nothing of what waits.
    full_since: Cell<Option<Instant>>,
}

/// What the service manager is told.
#[derive(Debug)]
struct Message {
    text: String,
    descriptor: Option<OwnedFd>,
}

/// An answer that tells of something as stored.
#[derive(Debug)]
pub(super) struct BehindStore {
    pub(super) client: u32,
    pub(super) answer: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What a stored descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// What a session is, and which objects it has.
    Record,
    /// Memory that a session lends, by its number.
    Lent(u32),
    /// The kernel of an op-code, by its version. (The last of the parts: see `restore`.)
    Kernel(u64, u64),
}

/// Whose a stored descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// A session's, by its number.
    Session(u32, Part),
    /// A user's, by the user's number: the card memory of all the user's programs.
    User(u32),
}

/// The name of a stored descriptor.
pub(crate) fn name(stored: Stored) -> String {
    match stored {
        Stored::Session(session, Part::Record) => format!("{PREFIX}.{session}.record"),
        Stored::Session(session, Part::Lent(number)) => format!("{PREFIX}.{session}.lent.{number}"),
        Stored::Session(session, Part::Kernel(opcode, version)) => {
            format!("{PREFIX}.{session}.kernel.{opcode}.{version}")
        }
        Stored::User(uid) => format!("{PREFIX}.user.{uid}"),
    }
}

/// What a name says; `None` if no daemon has given it.
pub(crate) fn parse(name: &str) -> Option<Stored> {
    let words: Vec<&str> = name.split('.').collect();
    let (session, part) = match words[..] {
        [PREFIX, "user", uid] => return Some(Stored::User(uid.parse().ok()?)),
        [PREFIX, session, "record"] => (session, Part::Record),
        [PREFIX, session, "lent", number] => (session, Part::Lent(number.parse().ok()?)),
        [PREFIX, session, "kernel", opcode, version] => {
            (session, Part::Kernel(opcode.parse().ok()?, version.parse().ok()?))
        }
        _ => return None,
    };
    Some(Stored::Session(session.parse().ok()?, part))
}

/// Is this the name of a stored descriptor, and not of a socket to listen on? A daemon of another
/// version may have given it.
pub fn is_stored(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('.'))
}

/// Takes the descriptors that a service manager has passed to this process (`LISTEN_FDS` says how
/// many). To be called before the process makes descriptors of its own.
///
/// # Errors
/// There are fewer, or they were taken before.
pub fn take_passed(count: u16) -> io::Result<Vec<OwnedFd>> {
    take_inherited(FIRST_PASSED..FIRST_PASSED + RawFd::from(count))
}

impl FdStore {
    /// The service manager that the environment names; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn from_environment() -> io::Result<Option<FdStore>> {
        let named = env::var_os(SOCKET_VARIABLE).filter(|name| !name.is_empty());
        named.map(|name| FdStore::at(&name)).transpose()
    }

    /// The service manager that listens at `name`: a path, or behind `@` a name without a file.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn at(name: &OsStr) -> io::Result<FdStore> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name)?,
            None => SocketAddrUnix::new(name)?,
        };
        let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &address)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        let (waiting, waited, full_since) = Default::default();
        Ok(FdStore { socket, waiting, waited, full_since })
    }

    /// Says that the daemon serves. Waits for the service manager.
    pub fn ready(&self) {
        self.send_or_lose("READY=1");
    }

    /// Says that the daemon ends. Waits for the service manager.
    pub(crate) fn stopping(&self) {
        self.send_all();
        self.send_or_lose("STOPPING=1");
    }

    /// Sends what waits. Waits for the service manager, a second at most if that does not listen.
    pub(crate) fn send_all(&self) {
        self.full_since.set(None);
        for next in self.waiting.take() {
            let descriptor = next.descriptor.as_ref().map(AsFd::as_fd);
            if let Err(error) = self.send(&next.text, descriptor, SendFlags::empty()) {
                return lose(&next.text, error);
            }
        }
    }

    /// Has a descriptor kept under a name.
    pub(crate) fn put(&self, name: &str, fd: BorrowedFd<'_>) {
        self.tell(store_text(name), Some(fd));
    }

    /// Has a descriptor forgotten.
    pub(crate) fn remove(&self, name: &str) {
        let stores = store_text(name);
        let mut waiting = self.waiting.borrow_mut();
        // What it was not told to keep it need not be told to forget.
        if let Some(at) = waiting.iter().position(|message| message.text == stores) {
            waiting.remove(at);
            return;
        }
        drop(waiting);
        self.tell(format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
    }

    /// How many messages have had to wait, from the beginning on.
    pub(crate) fn waited(&self) -> u64 {
        self.waited.get()
    }

    /// Does something wait until the socket is writable?
    pub(crate) fn is_full(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// When the service manager has had its time for what waits.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        self.full_since.get().map(|since| since + PATIENCE)
    }

    /// Sends what waits, as far as there is room. If the service manager has had its time, the rest
    /// is lost.
    pub(crate) fn flush(&self, now: Instant) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(next) = waiting.front() {
            let descriptor = next.descriptor.as_ref().map(AsFd::as_fd);
            match self.send(&next.text, descriptor, SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) if self.gives_up_at().is_none_or(|at| now < at) => return,
                Err(Errno::AGAIN) => {
                    waiting.drain(..).for_each(|message| lose(&message.text, Errno::AGAIN));
                }
                sent => {
                    sent.unwrap_or_else(|error| lose(&next.text, error));
                    waiting.pop_front();
                    self.full_since.set(Some(now));
                }
            }
        }
        self.full_since.set(None);
    }

    /// Sends a message, or has it wait behind others.
    fn tell(&self, text: String, fd: Option<BorrowedFd<'_>>) {
        let sent = match self.is_full() {
            true => Err(Errno::AGAIN),
            false => self.send(&text, fd, SendFlags::DONTWAIT),
        };
        match sent {
            Ok(()) => {}
            Err(Errno::AGAIN) => match fd.map(|fd| fd.try_clone_to_owned()).transpose() {
                Ok(descriptor) => {
                    self.full_since.set(self.full_since.get().or_else(|| Some(Instant::now())));
                    self.waited.set(self.waited.get() + 1);
                    self.waiting.borrow_mut().push_back(Message { text, descriptor });
                }
                Err(_) => lose(&text, Errno::MFILE),
            },
            Err(error) => lose(&text, error),
        }
    }

    fn send_or_lose(&self, text: &str) {
        self.send(text, None, SendFlags::empty()).unwrap_or_else(|error| lose(text, error));
    }

    fn send(
        &self,
        text: &str,
        descriptor: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> rustix::io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if descriptor.is_some() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
            debug_assert!(pushed, "there is room for one descriptor");
        }
        let bytes = [IoSlice::new(text.as_bytes())];
        sendmsg(&self.socket, &bytes, &mut control, flags | SendFlags::NOSIGNAL).map(drop)
    }
}

impl AsFd for FdStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What has a descriptor kept under a name.
fn store_text(name: &str) -> String {
    format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0")
}

fn lose(text: &str, error: Errno) {
    tracing::warn!(%error, text, "the service manager does not listen: what it was told is lost, \
        and with it what should outlive the daemon");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let kernel = Part::Kernel(u64::MAX, u64::MAX);
        for part in [Part::Record, Part::Lent(0), Part::Lent(u32::MAX), kernel] {
            let stored = Stored::Session(7, part);
            assert_eq!(parse(&name(stored)), Some(stored));
        }
        assert_eq!(parse(&name(Stored::User(1000))), Some(Stored::User(1000)));
        let others = ["remora-nic.socket", "", "remora", "remora.x.record", "remora.1.lent"];
        for other in others.into_iter().chain([
            "remora.1.arena",
            "remora.1.record.2",
            "remora.1.lent.2.3",
            "remora.1.kernel.2",
            "remora.1.kernel.2.3.4",
            "remora.user",
            "remora.user.x",
            "remora.user.1.record",
            "stored",
        ]) {
            assert_eq!(parse(other), None, "{other}");
        }
        assert!(is_stored("remora.1.arena"), "whatever it is");
        for other in ["remora-nic.socket", "remora", "stored", ""] {
            assert!(!is_stored(other), "{other}");
        }
    }

    /// A manager that reads when it is told to, and how many messages it has room for.
    fn slow() -> (std::os::unix::net::UnixDatagram, FdStore, usize) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("remora-notify-{}-{number}.sock", std::process::id());
        let path = env::temp_dir().join(name);
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let store = FdStore::at(path.as_os_str()).unwrap();
        std::fs::remove_file(path).unwrap();
        let room = (0..1_000_000).find(|_| {
            store.remove("filled");
            store.is_full()
        });
        (manager, store, room.unwrap())
    }

    fn heard(manager: &std::os::unix::net::UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up_and_hears_all_in_order() {
        let (manager, store, room) = slow();
        let (reader, writer) = io::pipe().unwrap();
        store.put("a", reader.as_fd());
        store.put("b", reader.as_fd());
        store.remove("b");
        store.remove("c");
        drop(writer);
        let now = Instant::now();
        store.flush(now);
        assert!(store.is_full());
        (0..room).for_each(|_| assert!(heard(&manager).contains("filled")));
        store.flush(now);
        assert!(!store.is_full() && store.gives_up_at().is_none());
        assert!(heard(&manager).contains("filled"));
        assert!(heard(&manager).starts_with("FDSTORE=1\nFDNAME=a"));
        assert_eq!(heard(&manager), "FDSTOREREMOVE=1\nFDNAME=c");
    }

    #[test]
    fn a_manager_that_never_reads_is_given_up() {
        let (_manager, store, _) = slow();
        let at = store.gives_up_at().unwrap();
        store.flush(at - Duration::from_millis(1));
        assert!(store.is_full());
        store.flush(at);
        assert!(!store.is_full() && store.gives_up_at().is_none());
    }

    #[test]
    fn a_manager_that_is_not_there_is_an_error() {
        assert!(FdStore::at(OsStr::new("/nonexistent/notify")).is_err());
        assert!(FdStore::at(OsStr::new("@remora-nobody-listens-here")).is_err());
    }
}
