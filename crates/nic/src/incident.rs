//! Incidents: why a request was refused or failed, in more detail than its completion status.
//!
//! The card keeps the last few; [`crate::Nic::poll_incident`] takes them. Requests that succeed
//! cost nothing. Each end keeps its own incidents: the responder knows which check failed, the
//! requester knows which NAK it got and how long it waited.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use thiserror::Error;

use crate::chain::EnableError;
use crate::memory::key::{AccessError, Key};
use crate::psn::Psn;
use crate::queue::{BadElement, Opcode, Status};
use crate::time::Time;
use crate::wire::{Nak, Op};

/// How many incidents the card keeps. When there are more, the oldest are forgotten, and counted as
/// `incidents_lost`.
pub const MAX_INCIDENTS: usize = 64;

/// One refused or failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Incident {
    /// The time, by the driver's clock.
    pub at: Time,
    /// The number of this card's queue pair.
    pub qpn: u32,
    /// What followed from it.
    pub outcome: Outcome,
    /// The op-code of the packet concerned; `None` if no packet is, or its op-code is unknown.
    pub op: Option<&'static Op>,
    /// The PSN of the packet concerned.
    pub psn: Option<Psn>,
    /// The check that failed.
    pub cause: Cause,
    /// The memory concerned.
    pub memory: Option<Touched>,
}

/// The memory that a request named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched {
    /// The key, local or remote.
    pub key: Key,
    /// The address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// The check that failed, and the memory concerned. A refusal carries it to where it is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blame {
    pub(crate) cause: Cause,
    pub(crate) memory: Option<Touched>,
}

impl Blame {
    pub(crate) fn at(cause: Cause, memory: Touched) -> Blame {
        Blame { cause, memory: Some(memory) }
    }
}

impl From<Cause> for Blame {
    fn from(cause: Cause) -> Blame {
        Blame { cause, memory: None }
    }
}

/// What followed from an incident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A peer's request was refused; the queue pair is in ERROR, or will be. Or a copy of one that
    /// had been answered was refused, which ends nothing here.
    Refused(Nak),
    /// A peer's unreliable message was dropped.
    Dropped,
    /// An unreliable message of this card, whose request was done, did not leave; the queue pair is
    /// in SQE.
    Lost,
    /// A send request of this card ends with this status.
    Failed {
        /// The id from the work request.
        wr_id: u64,
        /// The operation, if the element could be read.
        opcode: Option<Opcode>,
        /// The status of its completion.
        status: Status,
    },
}

/// The check that failed. [`Display`](fmt::Display) says it in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Cause {
    /// A key, its bounds or its permissions were wrong.
    #[error(transparent)]
    Access(AccessError),
    /// The queue pair does not permit peers to do this, whatever the key.
    #[error("the queue pair does not permit its peer this access")]
    QpAccess,
    /// The op-code is unknown on this queue pair.
    #[error("op-code {0:#04x} is unknown here")]
    UnknownOpcode(u8),
    /// The packet cannot follow the one before, or is longer or shorter than its position allows.
    #[error("the packet cannot follow the one before it, or has an illegal length")]
    Sequence,
    /// Another number of bytes came than was expected.
    #[error("{got} bytes came where {expected} were to come")]
    Length {
        /// Bytes that came.
        got: u64,
        /// Bytes that were expected, or that fit at most.
        expected: u64,
    },
    /// A datagram longer than the path MTU.
    #[error("{len} bytes do not fit a datagram at a path MTU of {mtu}")]
    TooLong {
        /// Bytes of the datagram.
        len: u32,
        /// The path MTU.
        mtu: u16,
    },
    /// A message longer than the receive element.
    #[error("receive request {wr_id:#x} has room for {room} bytes, {got} came")]
    ReceiveTooShort {
        /// The id from the receive request.
        wr_id: u64,
        /// Bytes that have come so far.
        got: u64,
        /// Bytes that fit.
        room: u64,
    },
    /// The receive element is malformed or cannot be read.
    #[error("the element of receive request {wr_id:#x} is malformed or unreachable")]
    BadReceive {
        /// The id from the receive request.
        wr_id: u64,
    },
    /// The memory of a receive element cannot be written.
    #[error("the memory of receive request {wr_id:#x} cannot be written: {error}")]
    ReceiveMemory {
        /// The id from the receive request.
        wr_id: u64,
        /// Why the memory cannot be written.
        error: AccessError,
    },
    /// An XRC request names a shared receive queue that its domain does not have.
    #[error("no shared receive queue {srqn:#x} in the XRC domain")]
    UnknownSrq {
        /// The queue's number on the wire.
        srqn: u32,
    },
    /// An atomic's address is not a multiple of 8.
    #[error("the address is not a multiple of 8")]
    Alignment,
    /// More READs and atomics at once than agreed.
    #[error("more READs and atomics at once than the {agreed} agreed")]
    TooManyReads {
        /// The agreed number.
        agreed: u8,
    },
    /// An RPC or RPC WRITE does not begin with a legal header.
    #[error("the header before its parameters is malformed")]
    BadCall,
    /// The element is malformed.
    #[error("the work-queue element is malformed: {0}")]
    BadElement(BadElement),
    /// The queue pair's service, or its settings, do not have this operation.
    #[error("the queue pair has no such operation")]
    NotAllowed,
    /// No such address handle in this protection domain.
    #[error("no such address handle in this protection domain")]
    UnknownAddressHandle,
    /// A WAIT names no completion queue, or one that queue pairs of another protection domain use,
    /// too.
    #[error("a WAIT on {cq:#x}, which is no completion queue of its domain")]
    BadWait {
        /// The number that the WAIT has.
        cq: u32,
    },
    /// An ENABLE cannot be carried out.
    #[error("an ENABLE is refused: {0}")]
    BadEnable(EnableError),
    /// A WAIT has held its queue for as long as its limit allows.
    #[error("completion queue {cq:#x} has not counted {count} in the time allowed")]
    WaitExpired {
        /// The completion queue.
        cq: u32,
        /// The count that has not been reached.
        count: u64,
    },
    /// The chain has used up its budget.
    #[error("the chain has used up its budget: a loop does not end, or the budget is too small")]
    ChainBudget,
    /// The queue pair at the other end of a loop-back is gone, or in the error state.
    #[error("the queue pair at the other end is gone or in ERROR")]
    PeerGone,
    /// The driver could not read the packet's payload.
    #[error("the payload could not be read from memory")]
    Unreadable,
    /// The peer has refused the request.
    #[error("the peer says: {}", told(*.0))]
    Told(Nak),
    /// The peer did not answer, or packets did not arrive, as often as allowed.
    #[error("{sign} after {retries} retries in {elapsed:?}")]
    RetriesExhausted {
        /// The last sign of a loss.
        sign: LossSign,
        /// How many times it was sent again.
        retries: u8,
        /// The time since the first sign of a loss.
        elapsed: Duration,
    },
    /// The process that had the peer's card has ended.
    #[error("the process that had the peer’s card has ended")]
    CardGone,
    /// The peer had no receive element, as often as allowed.
    #[error("the peer had no receive request after {retries} tries in {elapsed:?}")]
    RnrRetriesExhausted {
        /// How many times it was sent again.
        retries: u8,
        /// The time since the first refusal.
        elapsed: Duration,
    },
}

/// The sign by which a requester has detected a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LossSign {
    /// No answer within the timeout.
    #[error("no answer")]
    Timeout,
    /// A NAK that says a packet is missing.
    #[error("the peer misses a packet")]
    SequenceNak,
    /// An answer that shows that an earlier one was lost.
    #[error("an answer is missing")]
    ImpliedNak,
}

impl Incident {
    /// The name of the counter that has counted it: see [`crate::Counters::iter`].
    pub fn counter(&self) -> &'static str {
        let ours = matches!(self.outcome, Outcome::Failed { .. });
        match self.cause {
            Cause::Access(_) if ours => "elements_protection",
            Cause::Access(AccessError::Key) => "refused_key",
            Cause::Access(AccessError::Domain) => "refused_domain",
            Cause::Access(AccessError::Bounds) => "refused_bounds",
            Cause::Access(AccessError::Permission) | Cause::QpAccess => "refused_permission",
            Cause::Access(AccessError::Memory) | Cause::Unreadable => "refused_memory",
            Cause::BadReceive { .. } => "elements_invalid",
            Cause::ReceiveMemory { .. } => "elements_protection",
            Cause::TooManyReads { .. } => "refused_too_many_reads",
            Cause::BadCall => "refused_bad_call",
            Cause::UnknownSrq { .. } => "refused_xrc_srq",
            Cause::BadElement(_)
            | Cause::NotAllowed
            | Cause::TooLong { .. }
            | Cause::UnknownAddressHandle => "elements_invalid",
            Cause::BadWait { .. } => "chain_bad_wait",
            Cause::BadEnable(_) => "chain_bad_enable",
            Cause::WaitExpired { .. } => "chain_wait_expired",
            Cause::ChainBudget => "chain_budget",
            Cause::PeerGone => "chain_peer_gone",
            Cause::Length { .. } if ours => "bad_responses",
            Cause::UnknownOpcode(_)
            | Cause::Sequence
            | Cause::Length { .. }
            | Cause::ReceiveTooShort { .. }
            | Cause::Alignment => match self.outcome {
                Outcome::Dropped => "drop_uc_sequence",
                _ => "refused_invalid_request",
            },
            Cause::Told(_) => "rx_naks",
            Cause::RetriesExhausted { sign, .. } => match sign {
                LossSign::Timeout => "timeouts",
                LossSign::SequenceNak => "rx_naks",
                LossSign::ImpliedNak => "implied_naks",
            },
            Cause::CardGone => "peers_gone",
            Cause::RnrRetriesExhausted { .. } => "rx_rnr_naks",
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {:#x}", self.qpn)?;
        match self.outcome {
            Outcome::Refused(_) => f.write_str(" refused its peer's request")?,
            Outcome::Dropped => f.write_str(" dropped its peer's message")?,
            Outcome::Lost => f.write_str(" lost a message of its own")?,
            Outcome::Failed { wr_id, opcode, .. } => {
                write!(f, " failed request {wr_id:#x}")?;
                if let Some(opcode) = opcode {
                    write!(f, " ({opcode:?})")?;
                }
            }
        }
        match (self.op, self.psn) {
            (Some(op), Some(psn)) => write!(f, " at packet {op}, PSN {psn}")?,
            (None, Some(psn)) => write!(f, " at PSN {psn}")?,
            _ => {}
        }
        write!(f, ": {}", self.cause)?;
        if let Some(Touched { key, addr, len }) = self.memory {
            write!(f, " (key {key:#x}, address {addr:#x}, {len} bytes)")?;
        }
        match self.outcome {
            Outcome::Refused(nak) => write!(f, "; told the peer: {}", told(nak))?,
            Outcome::Dropped | Outcome::Lost => {}
            Outcome::Failed { status, .. } => write!(f, "; {status}")?,
        }
        write!(f, "; counted as {}", self.counter())
    }
}

/// What a NAK says, in words.
fn told(nak: Nak) -> &'static str {
    match nak {
        Nak::PsnSequence => "a packet is missing",
        Nak::InvalidRequest => "invalid request",
        Nak::RemoteAccess => "remote access error",
        Nak::RemoteOperational => "remote operational error",
    }
}

/// The incidents that are kept, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    ring: VecDeque<Incident>,
}

impl Incidents {
    /// Keeps an incident. Returns whether an older one was forgotten for it.
    #[cold]
    pub(crate) fn push(&mut self, incident: Incident) -> bool {
        let lost = self.ring.len() >= MAX_INCIDENTS;
        if lost {
            self.ring.pop_front();
        }
        self.ring.push_back(incident);
        lost
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<Incident> {
        self.ring.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(psn: u32) -> Incident {
        Incident {
            at: Time(0),
            qpn: 0x1234,
            outcome: Outcome::Refused(Nak::RemoteAccess),
            op: Op::lookup(0x0A, crate::wire::Dialect::STANDARD),
            psn: Some(Psn::new(psn)),
            cause: Cause::Access(AccessError::Bounds),
            memory: Some(Touched { key: 7, addr: 0x1000, len: 20 }),
        }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut incidents = Incidents::default();
        for psn in 0..MAX_INCIDENTS as u32 {
            assert!(!incidents.push(incident(psn)));
        }
        assert!(incidents.push(incident(1000)));
        assert_eq!(incidents.pop().and_then(|i| i.psn), Some(Psn::new(1)));
    }

    #[test]
    fn a_person_can_read_it() {
        let told = "queue pair 0x1234 refused its peer's request at packet RC RDMA WRITE Only, \
                    PSN 5: the access lies outside its region (key 0x7, address 0x1000, 20 bytes); \
                    told the peer: remote access error; counted as refused_bounds";
        assert_eq!(incident(5).to_string(), told);
        let outcome =
            Outcome::Failed { wr_id: 9, opcode: Some(Opcode::Read), status: Status::RetryExceeded };
        let elapsed = Duration::from_millis(12);
        let cause = Cause::RetriesExhausted { sign: LossSign::Timeout, retries: 7, elapsed };
        let failed = Incident { outcome, cause, op: None, memory: None, ..incident(5) };
        let told = "queue pair 0x1234 failed request 0x9 (Read) at PSN 5: no answer after 7 \
                    retries in 12ms; transport retry counter exceeded: the peer did not answer; \
                    counted as timeouts";
        assert_eq!(failed.to_string(), told);
    }
}
