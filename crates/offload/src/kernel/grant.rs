//! What a kernel may reach, and trying which of it opens an address.

use remora_nic::{AccessError, Key};

use super::CallStatus;

/// A region that a kernel may use, in the protection domain of the invocation's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The region's key.
    pub key: Key,
    /// It may be written, too.
    pub write: bool,
}

/// The status that stands for a refused access.
pub(super) fn refused(_: AccessError) -> CallStatus {
    CallStatus::ACCESS
}

/// Tries `access` with the granted keys, the one that was used last first.
#[inline]
pub(super) fn granted<R>(
    grants: &[Grant],
    hint: &mut usize,
    write: bool,
    mut access: impl FnMut(Key) -> Result<R, AccessError>,
) -> Result<R, CallStatus> {
    // Not by a remainder: a division would be a third of what a short access costs.
    let first = *hint;
    for at in (first..grants.len()).chain(0..first) {
        let Some(grant) = grants.get(at).filter(|g| g.write || !write) else { continue };
        match access(grant.key) {
            Ok(result) => {
                *hint = at;
                return Ok(result);
            }
            // The address was right: no other region will do.
            Err(AccessError::Memory | AccessError::Permission) => return Err(CallStatus::ACCESS),
            Err(_) => {}
        }
    }
    Err(CallStatus::ACCESS)
}
