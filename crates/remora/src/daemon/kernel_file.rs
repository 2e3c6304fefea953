//! The file of a kernel that is kept: memory which nobody can change.

use std::fmt::Display;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use thiserror::Error;

use crate::kernel::ModuleLimits;
use crate::memory::memfd;
use crate::message::{KernelRequest, decode, encode};

/// The longest module, in bytes.
pub(super) const MODULE_MAX: u64 = ModuleLimits::LENGTH_MAX as u64;
/// The longest file: a module, and the request.
const FILE_MAX: usize = MODULE_MAX as usize + (64 << 10);

/// What a file begins with.
const MAGIC: &[u8; 8] = b"rkernel\n";
/// How the rest is laid out: another number for each change of it, or of how a [`KernelRequest`] is
/// encoded. It follows as four bytes, the lowest first.
pub(super) const LAYOUT: u32 = 1;

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub(super) enum NotRead {
    #[error("its file has layout {0}, and this daemon reads layout {LAYOUT}")]
    OtherLayout(u32),
    #[error("{0}")]
    Wrong(String),
}

/// A file for a session's kernel: the request that has deployed it, and its module.
pub(super) fn write(session: u32, request: &KernelRequest, module: &[u8]) -> io::Result<OwnedFd> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&LAYOUT.to_le_bytes());
    bytes.extend(encode(&(session, request, module)));
    memfd::constant("remora-kernel", &bytes)
}

/// The session, the request and the module in a file.
pub(super) fn read(file: BorrowedFd<'_>) -> Result<(u32, KernelRequest, Vec<u8>), NotRead> {
    let unreadable =
        |error: &dyn Display| NotRead::Wrong(format!("its file cannot be read: {error}"));
    let bytes = memfd::read_constant(file, FILE_MAX).map_err(|error| unreadable(&error))?;
    let rest = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk);
    let (layout, rest) = rest.ok_or_else(|| NotRead::Wrong("its file is no kernel’s".into()))?;
    match u32::from_le_bytes(*layout) {
        LAYOUT => decode(rest).map_err(|error| unreadable(&error)),
        other => Err(NotRead::OtherLayout(other)),
    }
}
