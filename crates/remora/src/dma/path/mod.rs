//! The paths between an application's memory and the card's.
//!
//! The card's process moves the bytes; the application is another process, or the same. Which path
//! is possible depends on how the application's memory was made and on what the system permits;
//! which is best is measured ([`choose`](super::choose)).
//!
//! [`calls`] has the paths that are system calls of the card's process alone; for pipes and
//! datagrams, a [`courier`] on the application's side does its half. `sys` has the calls of both.
//! `through` is the path through the engine.

pub mod calls;
pub mod courier;
mod sys;
mod through;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

pub use through::Through;

use crate::memory::memfd::{self, MapError};
use crate::memory::{Buffer, BufferError};

/// A way between an application's memory and the card's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PathKind {
    /// The card's process maps the application's memory and copies.
    Mapping,
    /// The application posts a descriptor, the engine's thread copies, the application polls.
    Engine,
    /// `process_vm_readv` and `process_vm_writev`.
    ProcessVm,
    /// `/proc/PID/mem`, read and written.
    ProcMem,
    /// The file of the application's memory, read and written.
    Memfd,
    /// A pipe, into which pages are spliced.
    Pipe,
    /// Datagrams over loopback.
    Udp,
}

impl PathKind {
    /// All of them; of equals, an earlier one is preferred.
    pub const ALL: [PathKind; 7] = [
        PathKind::Mapping,
        PathKind::Engine,
        PathKind::ProcessVm,
        PathKind::ProcMem,
        PathKind::Memfd,
        PathKind::Pipe,
        PathKind::Udp,
    ];

    /// The name by which a person forces it.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Mapping => "mapping",
            PathKind::Engine => "engine",
            PathKind::ProcessVm => "process_vm",
            PathKind::ProcMem => "proc_mem",
            PathKind::Memfd => "memfd",
            PathKind::Pipe => "pipe",
            PathKind::Udp => "udp",
        }
    }

    /// What moves the bytes, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            PathKind::Mapping => "the card maps the memory and copies",
            PathKind::Engine => "a descriptor to the engine’s thread, which copies",
            PathKind::ProcessVm => "process_vm_readv, process_vm_writev",
            PathKind::ProcMem => "/proc/PID/mem, read and written",
            PathKind::Memfd => "the memory’s file, read and written",
            PathKind::Pipe => "vmsplice into a pipe, read",
            PathKind::Udp => "datagrams over loopback",
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no path.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "`{0}` is no path between host and card: say mapping, engine, process_vm, proc_mem, memfd, \
     pipe or udp"
)]
pub struct UnknownPath(pub String);

impl FromStr for PathKind {
    type Err = UnknownPath;

    fn from_str(name: &str) -> Result<PathKind, UnknownPath> {
        let found = PathKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPath(name.into()))
    }
}

/// Why bytes were not moved, or not all of them.
#[derive(Debug, Error)]
pub enum PathError {
    /// They are not within the memory of the one side or the other.
    #[error(transparent)]
    Access(#[from] BufferError),
    /// The system refused, or the other process has gone.
    #[error("the {kind} path failed: {source}")]
    System {
        /// The path.
        kind: PathKind,
        /// The system's reason.
        source: io::Error,
    },
}

impl PathKind {
    pub(crate) fn failed(self, source: io::Error) -> PathError {
        PathError::System { kind: self, source }
    }
}

/// A way to an application's memory that is set up. Offsets count from the memory's first byte.
pub trait Path: fmt::Debug + Send {
    /// Which way it is.
    fn kind(&self) -> PathKind;

    /// Bytes of the application's memory that it reaches.
    fn len(&self) -> u64;

    /// Does it reach nothing?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The application's memory itself, where it is mapped.
    fn mapped(&self) -> Option<Arc<Buffer>> {
        None
    }

    /// Copies `len` bytes of the application from `from` on to the card's bytes from `at` on.
    ///
    /// # Errors
    /// Not all bytes could be moved; some may have been.
    fn to_card(&mut self, from: u64, card: &Buffer, at: usize, len: usize)
    -> Result<(), PathError>;

    /// Copies `len` of the card's bytes from `from` on to the application's from `at` on.
    ///
    /// # Errors
    /// Not all bytes could be moved; some may have been.
    fn to_host(&mut self, card: &Buffer, from: usize, at: u64, len: usize)
    -> Result<(), PathError>;
}

/// An application's memory, as a card's process is told of it.
#[derive(Clone, Debug)]
pub struct Application {
    /// The application's process.
    pub pid: i32,
    /// Where the memory is in that process.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its file, if it has one, whose first byte is the memory's.
    pub file: Option<Arc<OwnedFd>>,
}

impl Application {
    /// New memory of this process that every path can reach: a sealed file, and its mapping.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn of_this_process(len: usize) -> Result<(Application, Arc<Buffer>), MapError> {
        let file = memfd::sealed("remora-host", len as u64)?;
        let buffer = Arc::new(Buffer::map_only(file.as_fd(), 0, len)?);
        let pid = std::process::id() as i32;
        let application =
            Application { pid, addr: buffer.addr(), len: len as u64, file: Some(Arc::new(file)) };
        Ok((application, buffer))
    }

    /// The memory of a buffer of this process, which has no file.
    pub fn of_buffer(buffer: &Buffer) -> Application {
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        Application { pid: std::process::id() as i32, addr, len, file: None }
    }
}

/// The application's memory, mapped by the card's process, or its own.
#[derive(Debug)]
pub struct Mapping {
    bytes: Arc<Buffer>,
}

impl Mapping {
    /// A buffer of this process.
    pub fn own(bytes: Arc<Buffer>) -> Mapping {
        Mapping { bytes }
    }

    /// Maps an application's memory.
    ///
    /// # Errors
    /// It has no file of sealed length.
    pub fn of(application: &Application) -> Result<Mapping, MapError> {
        let file = application.file.as_ref().ok_or(MapError::NotMemory)?;
        let bytes = Buffer::map_only(file.as_fd(), 0, application.len as usize)?;
        Ok(Mapping { bytes: Arc::new(bytes) })
    }
}

impl Path for Mapping {
    fn kind(&self) -> PathKind {
        PathKind::Mapping
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn mapped(&self) -> Option<Arc<Buffer>> {
        Some(self.bytes.clone())
    }

    fn to_card(
        &mut self,
        from: u64,
        card: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), PathError> {
        Ok(card.copy_at(at, &self.bytes, from as usize, len)?)
    }

    fn to_host(
        &mut self,
        card: &Buffer,
        from: usize,
        at: u64,
        len: usize,
    ) -> Result<(), PathError> {
        Ok(self.bytes.copy_at(at as usize, card, from, len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_both_ways() {
        for kind in PathKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "pcie".parse::<PathKind>().unwrap_err().to_string();
        assert!(PathKind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
    }
}
