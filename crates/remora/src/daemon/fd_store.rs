//! Where descriptors outlive the daemon's process: the store of the service manager.
//!
//! systemd keeps descriptors that a service sends to its notification socket, under names, and
//! passes them to the service's next process, beside the sockets to listen on (`sd_notify(3)`,
//! `FDSTORE=1`; `sd_listen_fds_with_names(3)`).

use std::env;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

/// The environment variable that names the service manager's socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// How long the service manager may take for a message.
const PATIENCE: Duration = Duration::from_secs(1);
/// What the names of this daemon's descriptors begin with.
const PREFIX: &str = "remora";

/// The service manager's end.
#[derive(Debug)]
pub struct FdStore {
    socket: OwnedFd,
}

/// What a stored descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// A session's arena.
    Arena,
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
        Stored::Session(session, Part::Arena) => format!("{PREFIX}.{session}.arena"),
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
        [PREFIX, session, "arena"] => (session, Part::Arena),
        [PREFIX, session, "record"] => (session, Part::Record),
        [PREFIX, session, "lent", number] => (session, Part::Lent(number.parse().ok()?)),
        [PREFIX, session, "kernel", opcode, version] => {
            (session, Part::Kernel(opcode.parse().ok()?, version.parse().ok()?))
        }
        _ => return None,
    };
    Some(Stored::Session(session.parse().ok()?, part))
}

/// Is this the name of a stored descriptor, and not of a socket to listen on?
pub fn is_stored(name: &str) -> bool {
    parse(name).is_some()
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
        Ok(FdStore { socket })
    }

    /// Says that the daemon serves.
    pub fn ready(&self) {
        self.tell("READY=1", &[]);
    }

    /// Says that the daemon ends.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1", &[]);
    }

    /// Has a descriptor kept under a name.
    pub(crate) fn put(&self, name: &str, fd: BorrowedFd<'_>) {
        self.tell(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[fd]);
    }

    /// Has a descriptor forgotten.
    pub(crate) fn remove(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]);
    }

    fn tell(&self, text: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(pushed, "there is room for one descriptor");
        }
        let bytes = [IoSlice::new(text.as_bytes())];
        if let Err(error) = sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL) {
            tracing::warn!(%error, text, "the service manager does not listen: what it was told \
                is lost, and with it what should outlive the daemon");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let kernel = Part::Kernel(u64::MAX, u64::MAX);
        for part in [Part::Arena, Part::Record, Part::Lent(0), Part::Lent(u32::MAX), kernel] {
            let stored = Stored::Session(7, part);
            assert_eq!(parse(&name(stored)), Some(stored));
        }
        assert_eq!(parse(&name(Stored::User(1000))), Some(Stored::User(1000)));
        let others = ["remora-nic.socket", "", "remora", "remora.x.arena", "remora.1.lent"];
        for other in others.into_iter().chain([
            "remora.1.arena.2",
            "remora.1.lent.2.3",
            "remora.1.kernel.2",
            "remora.1.kernel.2.3.4",
            "remora.user",
            "remora.user.x",
            "remora.user.1.arena",
            "stored",
        ]) {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_manager_that_is_not_there_is_an_error() {
        assert!(FdStore::at(OsStr::new("/nonexistent/notify")).is_err());
        assert!(FdStore::at(OsStr::new("@remora-nobody-listens-here")).is_err());
    }
}
