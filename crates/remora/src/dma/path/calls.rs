//! Paths that are system calls of the card's process, for which the application does nothing.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::sys::{self, Part};
use super::{Application, Path, PathError, PathKind};
use crate::memory::process::Image;
use crate::memory::{Buffer, BufferError};

/// `process_vm_readv` and `process_vm_writev`: the system copies between two processes.
#[derive(Debug)]
pub struct ProcessVm {
    application: Image,
    addr: u64,
    len: u64,
}

/// `/proc/PID/mem`, or the file of the application's memory: a file, read and written at offsets.
#[derive(Debug)]
pub struct ByFile {
    kind: PathKind,
    file: Arc<OwnedFd>,
    /// Offset in the file of the memory's first byte.
    base: u64,
    len: u64,
}

impl ProcessVm {
    /// The memory of an application of the same user, which is not looked at: whether it is there
    /// is found by the first copy.
    ///
    /// # Errors
    /// The system does not permit to read it.
    pub fn of(application: &Application) -> io::Result<ProcessVm> {
        let Application { pid, addr, len, .. } = *application;
        Ok(ProcessVm { application: Image::reached(pid)?, addr, len })
    }

    fn pid(&self) -> i32 {
        self.application.pid.as_raw_nonzero().get()
    }

    /// An error if the application has ended, or runs another program: what its number leads to is
    /// other memory then.
    fn need_there(&self, addr: u64) -> io::Result<()> {
        let is_there = self.application.is_there(addr);
        is_there.then_some(()).ok_or_else(|| rustix::io::Errno::SRCH.into())
    }
}

impl ByFile {
    /// The application's `/proc/PID/mem`.
    ///
    /// # Errors
    /// The system does not permit to open it.
    pub fn of_process(application: &Application) -> io::Result<ByFile> {
        let path = format!("/proc/{}/mem", application.pid);
        let file = File::options().read(true).write(true).open(path)?;
        let file = Arc::new(OwnedFd::from(file));
        let Application { addr, len, .. } = *application;
        Ok(ByFile { kind: PathKind::ProcMem, file, base: addr, len })
    }

    /// The application's `/proc/self/mem`, which it has opened and passed on: it stays bound to the
    /// memory that the application had then.
    pub fn of_opened(application: &Application) -> io::Result<ByFile> {
        let path = ByFile::of_memory(application)?;
        Ok(ByFile { kind: PathKind::ProcMem, base: application.addr, ..path })
    }

    /// The file of the application's memory.
    ///
    /// # Errors
    /// It has none.
    pub fn of_memory(application: &Application) -> io::Result<ByFile> {
        let none = || io::Error::new(ErrorKind::Unsupported, "the memory has no file");
        let file = application.file.clone().ok_or_else(none)?;
        Ok(ByFile { kind: PathKind::Memfd, file, base: 0, len: application.len })
    }
}

impl Path for ProcessVm {
    fn kind(&self) -> PathKind {
        PathKind::ProcessVm
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn to_card(
        &mut self,
        from: u64,
        card: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), PathError> {
        let first = self.addr.wrapping_add(within(from, len, self.len)?);
        whole(Part::new(card, at, len)?, |part, done| {
            sys::read_process(self.pid(), first.wrapping_add(done), part)
        })
        // What was read of another process is of no use to anybody: the copy has failed.
        .and_then(|()| self.need_there(first))
        .map_err(|error| self.kind().failed(error))
    }

    fn to_host(
        &mut self,
        card: &Buffer,
        from: usize,
        at: u64,
        len: usize,
    ) -> Result<(), PathError> {
        let first = self.addr.wrapping_add(within(at, len, self.len)?);
        let part = Part::new(card, from, len)?;
        let write =
            |part: Part<'_>, done| sys::write_process(self.pid(), first.wrapping_add(done), part);
        let written = self.need_there(first).and_then(|()| whole(part, write));
        written.map_err(|error| self.kind().failed(error))
    }
}

impl Path for ByFile {
    fn kind(&self) -> PathKind {
        self.kind
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn to_card(
        &mut self,
        from: u64,
        card: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), PathError> {
        let first = self.base.wrapping_add(within(from, len, self.len)?);
        whole(Part::new(card, at, len)?, |part, done| {
            sys::read(self.file.as_fd(), Some(first.wrapping_add(done)), part)
        })
        .map_err(|error| self.kind.failed(error))
    }

    fn to_host(
        &mut self,
        card: &Buffer,
        from: usize,
        at: u64,
        len: usize,
    ) -> Result<(), PathError> {
        let first = self.base.wrapping_add(within(at, len, self.len)?);
        whole(Part::new(card, from, len)?, |part, done| {
            sys::write(self.file.as_fd(), Some(first.wrapping_add(done)), part)
        })
        .map_err(|error| self.kind.failed(error))
    }
}

/// `offset`, if `len` bytes from there on are within the application's memory.
pub(super) fn within(offset: u64, len: usize, whole: u64) -> Result<u64, BufferError> {
    let fits = offset.checked_add(len as u64).is_some_and(|end| end <= whole);
    let beyond = BufferError::OutOfRange { offset: offset as usize, len, buffer: whole as usize };
    if fits { Ok(offset) } else { Err(beyond) }
}

/// Calls until all of `part` is moved; the call is told how much was before. A call that moves
/// nothing is the end of the other side's memory.
fn whole(
    mut part: Part<'_>,
    mut call: impl FnMut(Part<'_>, u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while part.len() > 0 {
        match call(part, done) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(moved) => {
                part = part.behind(moved);
                done += moved as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who sets a path up does not wait for a page that the application's own server provides.
    #[test]
    fn a_process_is_reached_without_a_look_at_its_memory() {
        let pid = std::process::id() as i32;
        let nowhere = Application { pid, addr: 4096, len: 8, file: None };
        let mut path = ProcessVm::of(&nowhere).unwrap();
        let card = Buffer::new(8).unwrap();
        assert!(path.to_card(0, &card, 0, 8).is_err() && path.to_host(&card, 0, 0, 8).is_err());
    }
}
