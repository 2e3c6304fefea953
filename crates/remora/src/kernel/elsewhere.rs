//! Kernels on the card of another process: what can be sent there runs there.

use remora_nic::kernel::Bound;
use remora_nic::nic::BindError;

use super::builtin::Kind;
use super::{CallStatus, DeployError, Deployment, Grant, KernelInfo, Loadable, TapInfo};
use crate::attach::Attached;
use crate::message::{Code, KernelAnswer, KernelRequest, KernelRow};

/// What a kernel runs, as it is sent: its description, and a module's bytes.
pub(super) type Sent<'a> = (Code, Option<&'a [u8]>);

/// The built-in kernel `kind`.
pub(super) fn builtin(kind: Kind) -> Sent<'static> {
    (Code::Builtin(kind.name().into()), None)
}

/// A module.
pub(super) fn module(module: &dyn Loadable) -> Sent<'_> {
    let limits = module.limits();
    let code = Code::Module {
        memory: limits.memory as u64,
        table: limits.table as u64,
        instances: limits.instances as u64,
    };
    (code, Some(module.bytes()))
}

fn pairs(grants: &[Grant]) -> Vec<(u32, bool)> {
    grants.iter().map(|grant| (grant.key, grant.write)).collect()
}

/// Deploys a kernel, or replaces one.
pub(super) fn deploy(
    card: &mut Attached,
    opcode: u64,
    replace: bool,
    deployment: Deployment,
    (code, module): Sent<'_>,
) -> Result<(), DeployError> {
    let Deployment { name, grants, budget } = deployment;
    let grants = pairs(&grants);
    let request = KernelRequest::Deploy { opcode, replace, name, budget, grants, code };
    judge(opcode, card.kernel(&request, module))
}

/// Ends a kernel.
pub(super) fn undeploy(card: &mut Attached, opcode: u64) -> Result<(), DeployError> {
    judge(opcode, card.kernel(&KernelRequest::Undeploy(opcode), None))
}

fn judge(opcode: u64, answer: Result<KernelAnswer, String>) -> Result<(), DeployError> {
    match answer {
        Ok(KernelAnswer::Done) => Ok(()),
        Ok(KernelAnswer::Taken) => Err(DeployError::Taken(opcode)),
        Ok(KernelAnswer::Full(limit)) => Err(DeployError::Full(limit as usize)),
        Ok(KernelAnswer::Unknown) => Err(DeployError::Unknown(opcode)),
        Ok(other) => Err(DeployError::Refused(unexpected(&other))),
        Err(reason) => Err(DeployError::Refused(reason)),
    }
}

/// What is said of an answer to another question.
fn unexpected(answer: &KernelAnswer) -> String {
    format!("it answers {answer:?}, which is no answer to this request")
}

/// The session's kernels, by op-code.
pub(super) fn list(card: &mut Attached) -> Vec<KernelInfo> {
    let (mut all, mut from) = (Vec::new(), 0);
    while let Ok(KernelAnswer::List { kernels, more }) =
        card.kernel(&KernelRequest::List(from), None)
    {
        let last = kernels.last().map(|row| row.opcode);
        all.extend(kernels.into_iter().map(info));
        match last.and_then(|last| last.checked_add(1)) {
            Some(next) if more => from = next,
            _ => break,
        }
    }
    all
}

fn info(row: KernelRow) -> KernelInfo {
    let grants = row.grants.iter().map(|&(key, write)| Grant { key, write }).collect();
    let mut info =
        KernelInfo::new(row.opcode, Deployment { name: row.name, grants, budget: row.budget });
    (info.calls, info.failed, info.running) = (row.calls, row.failed, row.running);
    info
}

/// Binds a kernel to a stream; returns its number.
pub(super) fn bind(
    card: &mut Attached,
    to: Bound,
    (grants, budget): (&[Grant], u64),
    (code, module): Sent<'_>,
) -> Result<u32, BindError> {
    let request = KernelRequest::Bind { to, budget, grants: pairs(grants), code };
    match card.kernel(&request, module) {
        Ok(KernelAnswer::Number(number)) => Ok(number),
        Ok(KernelAnswer::Bind(error)) => Err(error),
        Ok(KernelAnswer::Full(limit)) => {
            Err(BindError::Refused(DeployError::Full(limit as usize).to_string()))
        }
        Ok(other) => Err(BindError::Refused(unexpected(&other))),
        Err(reason) => Err(BindError::Refused(reason)),
    }
}

/// What a binding has seen.
pub(super) fn tap(card: &mut Attached, number: u32) -> TapInfo {
    match card.kernel(&KernelRequest::Tap(number), None) {
        Ok(KernelAnswer::Tap { payloads, stopped }) => {
            let mut info = TapInfo::default();
            (info.payloads, info.stopped) = (payloads, stopped.map(CallStatus));
            info
        }
        _ => TapInfo::default(),
    }
}

/// Ends a binding.
pub(super) fn unbind(card: &mut Attached, number: u32) {
    card.kernel(&KernelRequest::Unbind(number), None).ok();
}
