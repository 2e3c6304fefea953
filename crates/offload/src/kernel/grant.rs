//! The memory that a kernel may use, and finding the grant that covers an address. (`scatter` opens
//! grants to be written beforehand, and writes to nothing else.)

use remora_nic::{AccessError, Key};

use super::CallStatus;

/// A region that a kernel may use, in the protection domain of the invocation's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The region's key.
    pub key: Key,
    /// The kernel may write the region.
    pub write: bool,
}

/// The status of a refused access.
pub(super) fn refused(_: AccessError) -> CallStatus {
    CallStatus::ACCESS
}

/// Tries `access` with the granted keys, starting with the grant that was used last.
#[inline]
pub(super) fn granted<R>(
    grants: &[Grant],
    hint: &mut usize,
    write: bool,
    mut access: impl FnMut(Key) -> Result<R, AccessError>,
) -> Result<R, CallStatus> {
    // A comparison instead of a remainder, whose division costs a third of a short access.
    let first = *hint;
    for at in (first..grants.len()).chain(0..first) {
        let Some(grant) = grants.get(at).filter(|g| g.write || !write) else { continue };
        match access(grant.key) {
            Ok(result) => {
                *hint = at;
                return Ok(result);
            }
            // This grant's region holds the address, so no other grant can help.
            Err(AccessError::Memory | AccessError::Permission) => return Err(CallStatus::ACCESS),
            Err(_) => {}
        }
    }
    Err(CallStatus::ACCESS)
}
