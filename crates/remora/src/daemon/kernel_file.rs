//! The file of a kernel that is kept: memory which nobody can change.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::kernel::ModuleLimits;
use crate::memory::memfd;
use crate::message::{KernelRequest, decode, encode};

/// The longest module, in bytes.
pub(super) const MODULE_MAX: u64 = ModuleLimits::LENGTH_MAX as u64;
/// The longest file: a module, and the request.
const FILE_MAX: usize = MODULE_MAX as usize + (64 << 10);

/// A file for a session's kernel: the request that has deployed it, and its module.
pub(super) fn write(session: u32, request: &KernelRequest, module: &[u8]) -> io::Result<OwnedFd> {
    memfd::constant("remora-kernel", &encode(&(session, request, module)))
}

/// The session, the request and the module in a file.
pub(super) fn read(file: BorrowedFd<'_>) -> Result<(u32, KernelRequest, Vec<u8>), String> {
    let bytes = memfd::read_constant(file, FILE_MAX);
    let bytes = bytes.map_err(|error| format!("its file cannot be read: {error}"))?;
    decode(&bytes).map_err(|error| format!("its file cannot be read: {error}"))
}
