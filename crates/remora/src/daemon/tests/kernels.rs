//! Kernels that clients deploy by hand.

use super::*;
use crate::kernel::Loadable as _;
pub(super) use crate::message::{Code, KernelAnswer, KernelRequest};

impl Client {
    pub(super) fn kernel(&self, request: KernelRequest, with: &[BorrowedFd<'_>]) -> KernelAnswer {
        self.asker.ask(&ClientRequest::Kernel(request), with, |answer| match answer {
            Answer::Kernel(answer) => answer,
            other => panic!("{other:?}"),
        })
    }

    /// The op-codes and names of those that run.
    pub(super) fn kernels(&self) -> Vec<(u64, String)> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let KernelAnswer::List { kernels, more } = self.kernel(KernelRequest::List(from), &[])
            else {
                panic!("no list of kernels");
            };
            from = kernels.last().map_or(0, |last| last.opcode + 1);
            all.extend(kernels.into_iter().map(|row| (row.opcode, row.name)));
            if !more {
                return all;
            }
        }
    }
}

/// Has the built-in kernel `name` deployed.
pub(super) fn builtin(opcode: u64, name: &str) -> KernelRequest {
    deployed(opcode, name, Code::Builtin(name.into()))
}

pub(super) fn deployed(opcode: u64, name: &str, code: Code) -> KernelRequest {
    let (replace, budget, grants) = (false, 1000, vec![]);
    KernelRequest::Deploy { opcode, replace, name: name.into(), budget, grants, code }
}

/// The same in the place of another.
pub(super) fn in_place(mut request: KernelRequest) -> KernelRequest {
    if let KernelRequest::Deploy { replace, .. } = &mut request {
        *replace = true;
    }
    request
}

/// Has a module deployed.
pub(super) fn loaded(opcode: u64, replace: bool) -> KernelRequest {
    let code = Code::Module { memory: 1 << 17, table: 16, instances: 1 };
    let request = deployed(opcode, "echo", code);
    if replace { in_place(request) } else { request }
}

/// The module [`echo::echo`] as it is sent, and how many bytes it has.
pub(super) fn echo_file() -> (OwnedFd, u64) {
    let module = echo::echo();
    let bytes = module.bytes();
    let file = crate::memory::memfd::sealed("module", bytes.len() as u64).unwrap();
    rustix::io::pwrite(&file, bytes, 0).unwrap();
    (file, bytes.len() as u64)
}
