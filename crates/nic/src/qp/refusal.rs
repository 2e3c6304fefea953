//! Why a peer's request, or an element of this queue pair, is not carried out.

use crate::env::Env;
use crate::incident::{Blame, Cause, Touched};
use crate::memory::key::AccessError;
use crate::queue::element::BadElement;
use crate::queue::{Sge, Status};
use crate::wire::Nak;

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The requester is told by a NAK, and the connection ends. (Boxed, so that a request that is
    /// carried out pays for no room that only a refusal needs.)
    Nak(Nak, Box<Blame>),
    /// The receiver is not ready: the requester waits and repeats the request.
    NotReady,
}

impl Refusal {
    #[cold]
    pub(super) fn nak(nak: Nak, blame: impl Into<Blame>) -> Refusal {
        Refusal::Nak(nak, Box::new(blame.into()))
    }

    /// The key does not open the range, which is the requester's mistake ("remote access error"),
    /// or the memory behind it cannot be reached, which is not ("remote operational error").
    #[cold]
    pub(super) fn access(env: &mut Env<'_>, error: AccessError, memory: Touched) -> Refusal {
        error.count(&mut env.card.counters);
        let nak = match error {
            AccessError::Memory => Nak::RemoteOperational,
            _ => Nak::RemoteAccess,
        };
        Refusal::nak(nak, Blame::at(Cause::Access(error), memory))
    }

    /// The queue pair does not permit this operation to its peer, whatever the key permits.
    #[cold]
    pub(super) fn not_permitted(env: &mut Env<'_>, memory: Touched) -> Refusal {
        AccessError::Permission.count(&mut env.card.counters);
        Refusal::nak(Nak::RemoteAccess, Blame::at(Cause::QpAccess, memory))
    }

    /// A request that breaks a rule of the protocol.
    #[cold]
    pub(super) fn invalid(env: &mut Env<'_>, cause: Cause) -> Refusal {
        env.card.counters.refused_invalid_request += 1;
        Refusal::nak(Nak::InvalidRequest, cause)
    }
}

/// Why an element of this queue pair ends with an error.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: Status,
    /// The check that failed. If the peer is on the same card and has refused the request, the peer
    /// keeps an incident of its own.
    pub(super) blame: Blame,
    /// The NAK with which a peer on the same card has refused the request.
    pub(super) nak: Option<Nak>,
}

impl Failure {
    #[cold]
    pub(super) fn new(status: Status, blame: impl Into<Blame>) -> Failure {
        Failure { status, blame: blame.into(), nak: None }
    }

    /// The bytes are not an element.
    pub(super) fn malformed(bad: BadElement) -> Failure {
        let status = match bad {
            BadElement::Length => Status::LocalLength,
            _ => Status::LocalQpOperation,
        };
        Failure::new(status, Cause::BadElement(bad))
    }

    /// An entry's key does not open the memory that the entry names.
    pub(super) fn local(error: AccessError, Sge { addr, len, lkey }: Sge) -> Failure {
        let memory = Touched { key: lkey, addr, len: len.into() };
        Failure::new(Status::LocalProtection, Blame::at(Cause::Access(error), memory))
    }

    /// The peer, which is on the same card, has refused the request.
    pub(super) fn told(nak: Nak) -> Failure {
        Failure { nak: Some(nak), ..Failure::new(status_of(nak), Cause::Told(nak)) }
    }
}

/// The status with which a request ends that the peer has refused.
pub(super) fn status_of(nak: Nak) -> Status {
    match nak {
        Nak::RemoteAccess => Status::RemoteAccess,
        Nak::RemoteOperational => Status::RemoteOperation,
        Nak::InvalidRequest | Nak::PsnSequence => Status::RemoteInvalidRequest,
    }
}
