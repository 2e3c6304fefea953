//! What the manager remembers of one connection. [`super::receive`], [`super::command`] and
//! [`super::repeat`] act on it.

use core::net::IpAddr;
use core::time::Duration;

use super::PeerCard;
use super::listener::ListenerId;
use super::mad::MAD_LEN;
use super::message::{Answered, Attribute, INFO_LEN, Rej, RejectReason, Req};
use super::state::ConnState;
use crate::Time;
use crate::wire::Dialect;

/// A connection, by the communication id that this side has given it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnId(pub(super) u32);

/// Which side asked for the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Active,
    Passive(ListenerId),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: ConnState,
    pub(super) side: Side,
    pub(super) peer: IpAddr,
    /// The identity of the peer's card, once it is known; until then 0.
    pub(super) guid: u64,
    /// What both cards offer beyond the standard; on the active side until the reply comes, what
    /// this card offers.
    pub(super) dialect: Dialect,
    /// The peer's communication id, once it is known.
    pub(super) remote_id: Option<u32>,
    pub(super) local_qpn: u32,
    /// Are its queue pairs XRC ones?
    pub(super) extended: bool,
    /// The peer's queue pair, once it is known.
    pub(super) remote_qpn: Option<u32>,
    /// The transaction that is under way.
    pub(super) transaction_id: u64,
    /// The last message, in case the peer has not received it.
    pub(super) last: Option<(Attribute, Box<[u8; MAD_LEN]>)>,
    /// How long to wait before the last message is repeated.
    pub(super) wait: Duration,
    /// The wait that the connection began with, which an MRA does not change.
    pub(super) first_wait: Duration,
    /// How many times a message is repeated.
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    /// For how long late messages may still come.
    pub(super) time_wait: Duration,
    /// When the connection's timer is due.
    pub(super) deadline: Time,
    /// The caller has destroyed it: there are no more events, and it is removed once it is closed.
    pub(super) released: bool,
    /// It takes a place in its listener's backlog.
    pub(super) waits: bool,
}

/// What a connection begins with.
pub(super) struct Beginning {
    pub(super) side: Side,
    pub(super) peer: IpAddr,
    pub(super) local_qpn: u32,
    pub(super) transaction_id: u64,
    pub(super) wait: Duration,
    pub(super) max_retries: u8,
    pub(super) time_wait: Duration,
}

impl Connection {
    pub(super) fn new(state: ConnState, beginning: Beginning) -> Connection {
        let Beginning { side, peer, local_qpn, transaction_id, wait, max_retries, time_wait } =
            beginning;
        Connection {
            state,
            side,
            peer,
            guid: 0,
            dialect: Dialect::STANDARD,
            remote_id: None,
            local_qpn,
            extended: false,
            remote_qpn: None,
            transaction_id,
            last: None,
            wait,
            first_wait: wait,
            max_retries,
            retries_left: max_retries,
            time_wait,
            deadline: Time::NEVER,
            released: false,
            waits: false,
        }
    }

    /// The peer's card.
    pub(super) fn card(&self) -> PeerCard {
        (self.peer, self.guid)
    }

    /// Is `req` the request that this connection began with? A request with its ids but another
    /// transaction or queue pair is a new one.
    pub(super) fn began_with(&self, transaction_id: u64, req: &Req) -> bool {
        self.side != Side::Active
            && self.transaction_id == transaction_id
            && self.remote_qpn == Some(req.local_qpn)
    }

    /// Does a message from `peer` with this id of the peer's belong to this connection?
    pub(super) fn is_between(&self, peer: IpAddr, remote_id: u32) -> bool {
        self.peer == peer && self.remote_id.is_none_or(|id| id == remote_id)
    }

    /// Which of the peer's messages a rejection would now answer.
    pub(super) fn unanswered(&self) -> Answered {
        match self.state {
            ConnState::ReqReceived | ConnState::MraReqSent => Answered::Req,
            ConnState::RepReceived | ConnState::MraRepSent => Answered::Rep,
            _ => Answered::Other,
        }
    }
}

/// A rejection with only the fields that every rejection has; the rest is zero.
pub(super) fn rejection(
    local_comm_id: u32,
    remote_comm_id: u32,
    rejected: Answered,
    reason: RejectReason,
) -> Rej {
    let (info_len, info, private_data) = (0, [0; INFO_LEN], [0; Rej::PRIVATE_DATA]);
    Rej { local_comm_id, remote_comm_id, rejected, info_len, reason, info, private_data }
}

/// The time that an exponent stands for: 4.096 µs, doubled `exponent` times.
pub(super) fn standard_time(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << u64::from(exponent.min(31)))
}
