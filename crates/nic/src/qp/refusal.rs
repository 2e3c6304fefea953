//! Why a peer's request is not carried out.

use crate::env::Env;
use crate::incident::{Cause, Touched};
use crate::memory::key::AccessError;
use crate::wire::Nak;

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Told to the requester; ends the connection.
    Nak(Nak),
    /// The receiver is not ready: the requester is to wait.
    NotReady,
}

impl Refusal {
    #[cold]
    pub(super) fn access(env: &mut Env<'_>, error: AccessError, memory: Touched) -> Refusal {
        error.count(&mut env.card.counters);
        env.card.incidents.blame(Cause::Access(error), Some(memory));
        Refusal::Nak(match error {
            AccessError::Memory => Nak::RemoteOperational,
            _ => Nak::RemoteAccess,
        })
    }

    #[cold]
    pub(super) fn invalid(env: &mut Env<'_>, cause: Cause) -> Refusal {
        env.card.counters.refused_invalid_request += 1;
        env.card.incidents.blame(cause, None);
        Refusal::Nak(Nak::InvalidRequest)
    }
}
