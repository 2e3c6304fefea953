//! Kernels that outlive the daemon, as the memory of their session does: each has a file of memory
//! in the service manager's store, which nobody can change, with the request that has deployed it
//! and its module.
//!
//! A kernel that takes another's place is stored under a higher version before the other is
//! forgotten, so that one of them is there whenever the daemon is killed.

use std::os::fd::{AsFd, BorrowedFd};

use super::compiler::{Built, Customer, Job};
use super::fd_store::Part;
use super::kernels::{MODULE_MAX, install};
use super::restore::Parts;
use super::server::Server;
use crate::driver::Own;
use crate::memory::memfd;
use crate::message::{Code, KernelAnswer, KernelRequest, decode, encode};

/// The longest file: a module, and the request.
const FILE_MAX: usize = MODULE_MAX as usize + (64 << 10);

impl Server {
    /// Has the store keep a kernel that was deployed, if it keeps the session.
    pub(super) fn store_kernel(&mut self, session: u32, request: &KernelRequest, module: &[u8]) {
        let mut request = request.clone();
        let KernelRequest::Deploy { opcode, replace, .. } = &mut request else { return };
        // The next daemon has no other one in its place.
        *replace = false;
        let opcode = *opcode;
        let Some(held) = self.sessions.get(&session).filter(|held| !held.stored.is_empty()) else {
            return;
        };
        let former: Vec<Part> = held.stored.range(versions(opcode)).copied().collect();
        let version = match former.last() {
            Some(Part::Kernel(_, version)) => version.saturating_add(1),
            _ => 0,
        };
        match memfd::constant("remora-kernel", &encode(&(request, module))) {
            Ok(file) => self.put(session, Part::Kernel(opcode, version), file.as_fd()),
            Err(error) => tracing::warn!(%error, opcode, "a kernel does not outlive the daemon"),
        }
        former.into_iter().for_each(|part| self.unstore(session, part));
    }

    /// Has the store forget the kernel of an op-code.
    pub(super) fn unstore_kernel(&mut self, session: u32, opcode: u64) {
        let Some(held) = self.sessions.get(&session) else { return };
        let stored: Vec<Part> = held.stored.range(versions(opcode)).copied().collect();
        stored.into_iter().for_each(|part| self.unstore(session, part));
    }

    /// Has the kernels of a session run again that another daemon has left. Modules have to be
    /// compiled first, which begins when the daemon serves.
    pub(super) fn restore_kernels(&mut self, session: u32, kernels: Parts) {
        for (part, file) in kernels {
            let Some((request, module)) = read(file.as_fd()) else {
                tracing::warn!(session, ?part, "a kernel's file cannot be read");
                self.unstore(session, part);
                continue;
            };
            match &request {
                KernelRequest::Deploy { code: Code::Builtin(name), .. } => {
                    let built = self.builtin(session, name, &request);
                    self.run_restored((session, part), &request, built);
                }
                _ => {
                    let customer = Customer::Restored(session, part);
                    self.compiler.left.push_back(Job { customer, request, module });
                }
            }
        }
        self.compiler.go_on();
    }

    /// Has a kernel run again, unless its client has undeployed or replaced it meanwhile.
    pub(super) fn run_restored(
        &mut self,
        (session, part): (u32, Part),
        request: &KernelRequest,
        built: Result<Built, String>,
    ) {
        let Some(held) = self.sessions.get(&session) else { return };
        let Part::Kernel(opcode, _) = part else { return };
        if held.stored.range(versions(opcode)).next_back() != Some(&part) {
            return self.unstore(session, part);
        }
        let act = |driver: &mut Own, slot| built.map(|built| install(driver, slot, request, built));
        match self.with_session(session, act) {
            None | Some(Ok(KernelAnswer::Done)) => {}
            Some(failed) => {
                tracing::warn!(session, opcode, ?failed, "a kernel does not outlive the daemon");
                self.unstore(session, part);
            }
        }
    }
}

fn versions(opcode: u64) -> std::ops::RangeInclusive<Part> {
    Part::Kernel(opcode, 0)..=Part::Kernel(opcode, u64::MAX)
}

/// What stands in a kernel's file.
fn read(file: BorrowedFd<'_>) -> Option<(KernelRequest, Vec<u8>)> {
    let bytes = memfd::read_constant(file, FILE_MAX).ok()?;
    decode(&bytes).ok()
}
