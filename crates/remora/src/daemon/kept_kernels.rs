//! Kernels that outlive the daemon, as the memory of their session does: each has a file of memory
//! in the service manager's store, which nobody can change, with the request that has deployed it
//! and its module.
//!
//! A kernel that takes another's place is stored under a higher version before the other is
//! forgotten, so that one of them is there whenever the daemon is killed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::compiler::{Compiled, Customer, Job, Source};
use super::fd_store::Part;
use super::kernel_file::{self, NotRead};
use super::kernels::{deployed, install, note, wait};
use super::restore::Parts;
use super::server::Server;
use crate::message::{Code, KernelAnswer, KernelRequest};

impl Server {
    /// Has the store keep a kernel that was deployed, if it keeps the session.
    pub(super) fn store_kernel(&mut self, session: u32, mut request: KernelRequest, module: &[u8]) {
        let KernelRequest::Deploy { opcode, replace, .. } = &mut request else { return };
        // With the next daemon it takes the place where it has waited.
        *replace = true;
        let opcode = *opcode;
        let Some(held) = self.sessions.get(&session).filter(|held| !held.stored.is_empty()) else {
            return;
        };
        let former: Vec<Part> = held.stored.range(versions(opcode)).copied().collect();
        let version = match former.last() {
            Some(Part::Kernel(_, version)) => version.saturating_add(1),
            _ => 0,
        };
        match kernel_file::write(session, &request, module) {
            Ok(file) => self.put(session, Part::Kernel(opcode, version), file.as_fd()),
            Err(error) => tracing::warn!(%error, opcode, "a kernel does not outlive the daemon"),
        }
        former.into_iter().for_each(|part| self.unstore(session, part));
    }

    /// Has the store forget the kernel of an op-code; returns whether it had one.
    pub(super) fn unstore_kernel(&mut self, session: u32, opcode: u64) -> bool {
        let Some(held) = self.sessions.get(&session) else { return false };
        let stored: Vec<Part> = held.stored.range(versions(opcode)).copied().collect();
        let has_stored = !stored.is_empty();
        stored.into_iter().for_each(|part| self.unstore(session, part));
        has_stored
    }

    /// Has the kernels of a session run again that another daemon has left. Modules have to be
    /// compiled first, which begins when the daemon serves. Until then they wait: their op-codes
    /// are taken, and a client may replace or undeploy them.
    pub(super) fn restore_kernels(&mut self, session: u32, kernels: Parts) {
        let mut latest = BTreeMap::new();
        for (part, file) in kernels {
            let Part::Kernel(opcode, _) = part else { continue };
            if let Some((former, _)) = latest.insert(opcode, (part, file)) {
                self.unstore(session, former);
            }
        }
        for (part, file) in latest.into_values() {
            self.restore_kernel(session, part, file);
        }
        self.compiler.go_on();
    }

    fn restore_kernel(&mut self, session: u32, part: Part, file: OwnedFd) {
        let (opcode, request, module_bytes) = match checked(file.as_fd(), session, part) {
            Ok((opcode, request, module)) => (opcode, request, module.len() as u64),
            Err(NotRead::OtherLayout(layout)) => {
                // Another daemon may read it.
                return tracing::warn!(
                    session,
                    ?part,
                    layout,
                    reads = kernel_file::LAYOUT,
                    "a kernel stays stored, and does not run: its file is of another layout"
                );
            }
            Err(NotRead::Wrong(reason)) => return self.forget_kernel(session, part, &reason),
        };
        let waits =
            self.with_session(session, |driver, slot| wait(driver, slot, opcode, module_bytes));
        if let Some(Err(reason)) = waits {
            // The policy has changed, and may change back.
            return tracing::warn!(
                session,
                opcode,
                reason,
                "a kernel stays stored, and does not run"
            );
        }
        let KernelRequest::Deploy { code: Code::Builtin(name), .. } = &request else {
            let (customer, source) = (Customer::Restored(session, part), Source::Left(file));
            let Some(share) = self.instances(session) else { return };
            let Some(uid) = self.sessions.get(&session).map(|held| held.uid) else { return };
            return self.compiler.left.add(uid, Job { customer, source, share });
        };
        let built = self.builtin(session, name, &request);
        let compiled = built.map(|built| Compiled { request, module: Vec::new(), built });
        self.run_restored((session, part), compiled);
    }

    /// Has a kernel run again, unless its client has undeployed or replaced it meanwhile.
    pub(super) fn run_restored(
        &mut self,
        (session, part): (u32, Part),
        compiled: Result<Compiled, String>,
    ) {
        let Part::Kernel(opcode, _) = part else { return };
        let done = self.with_session(session, |driver, slot| {
            deployed(driver, slot, opcode).filter(|of| of.waits)?;
            let done = compiled.and_then(|Compiled { request, module, built }| {
                install(driver, slot, &request, (built, module.len() as u64))
            });
            if done != Ok(KernelAnswer::Done) {
                note(driver, slot, opcode, None);
            }
            Some(done)
        });
        match done.flatten() {
            None | Some(Ok(KernelAnswer::Done)) => {}
            Some(Ok(KernelAnswer::Full(limit))) => {
                tracing::warn!(session, opcode, limit, "a kernel stays stored, and does not run");
            }
            Some(failed) => self.forget_kernel(session, part, &format!("{failed:?}")),
        }
    }

    fn forget_kernel(&mut self, session: u32, part: Part, reason: &str) {
        tracing::warn!(session, ?part, reason, "a kernel does not outlive the daemon");
        self.unstore(session, part);
    }
}

fn versions(opcode: u64) -> std::ops::RangeInclusive<Part> {
    Part::Kernel(opcode, 0)..=Part::Kernel(opcode, u64::MAX)
}

/// The op-code, the request and the module in a kernel's file, which is to be this one's.
fn checked(
    file: BorrowedFd<'_>,
    session: u32,
    part: Part,
) -> Result<(u64, KernelRequest, Vec<u8>), NotRead> {
    let (of, request, module) = kernel_file::read(file)?;
    let KernelRequest::Deploy { opcode, .. } = request else {
        return Err(NotRead::Wrong("its file is no kernel’s".into()));
    };
    if of != session || !matches!(part, Part::Kernel(named, _) if named == opcode) {
        let whose = format!("its file is that of session {of}, op-code {opcode:#x}");
        return Err(NotRead::Wrong(whose));
    }
    Ok((opcode, request, module))
}
