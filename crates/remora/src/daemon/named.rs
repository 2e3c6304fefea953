//! XRC domains by the files that name them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use remora_nic::Xrcd;
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::closer::Closer;

/// A file, as one user's processes name a domain by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FileId {
    uid: u32,
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// The file behind a descriptor. Nothing is asked of the server of a remote file system, or of
    /// one whose server is a program: it could let the daemon wait.
    pub(super) fn of(uid: u32, file: &OwnedFd) -> io::Result<FileId> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let about = statx(file, "", flags, StatxFlags::INO)?;
        Ok(FileId { uid, device: (about.stx_dev_major, about.stx_dev_minor), inode: about.stx_ino })
    }
}

/// The domains that files name. Each keeps its file's descriptor, so that no other file gets the
/// number meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Named {
    domains: HashMap<FileId, (Xrcd, OwnedFd)>,
    closer: Closer,
}

impl Named {
    /// The domain that a file names.
    pub(super) fn get(&self, id: &FileId) -> Option<Xrcd> {
        self.domains.get(id).map(|(xrcd, _)| *xrcd)
    }

    pub(super) fn add(&mut self, id: FileId, xrcd: Xrcd, file: OwnedFd) {
        self.domains.insert(id, (xrcd, file));
    }

    /// The domain is gone.
    pub(super) fn forget(&mut self, xrcd: Xrcd) {
        let gone = self.domains.extract_if(|_, (named, _)| *named == xrcd);
        gone.for_each(|(_, (_, file))| self.closer.close(file));
    }
}
