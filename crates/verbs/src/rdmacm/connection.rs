//! The connection behind an id: calls on it under the card's lock, and the ways in which it ends.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use remora::nic::cm::message::{RejectReason, SidrStatus};
use remora::nic::cm::{CommandError, ConnId, SidrAnswer, SidrId};
use remora::raw;
use remora::raw::Commands;

use super::objects::{Id, News, Stage};
use super::{EINVAL, EIO, Errno, Result, manager};
use crate::abi::rdma_cma::*;
use crate::card::ListedCard;

/// Calls `act` with the id's connection, under the card's lock.
pub(super) fn with_connection<R>(
    id: &Arc<Id>,
    act: impl FnOnce(&mut dyn Commands, ConnId) -> core::result::Result<R, CommandError>,
) -> Result<R> {
    let card = id.card()?;
    let mut locked = card.lock();
    let conn = id.lock().conn.ok_or(EINVAL)?;
    let done = act(locked.commands(), conn)?;
    locked.kick();
    Ok(done)
}

pub(super) fn establish(id: &Arc<Id>) -> Result<()> {
    with_connection(id, |card, conn| card.establish(conn, &[]))?;
    id.lock().stage = Stage::Connected;
    manager::has_answered(id);
    Ok(())
}

/// Refuses a request; the card forgets the connection.
pub(super) fn refuse(id: &Arc<Id>, reason: RejectReason, data: &[u8]) -> Result<()> {
    let conn = id.lock().conn;
    with_connection(id, |card, conn| card.reject(conn, reason, data))?;
    let card = id.card()?;
    id.lock().conn = None;
    if let Some(conn) = conn {
        manager::current().tables().connections.remove(&(card.index, conn));
    }
    Ok(())
}

/// Ends the connection of an id on the card.
pub(super) fn end_connection(id: &Arc<Id>) {
    if let Ok(card) = id.card() {
        end_on(card, &mut card.lock(), id);
    }
}

fn end_on(card: &ListedCard, locked: &mut raw::LockedCard<'_>, id: &Id) {
    end_by(locked.commands(), card.index, id);
    locked.kick();
}

/// As [`end_connection`], by the commands of the card with this index.
pub(super) fn end_by(commands: &mut dyn Commands, card: usize, id: &Id) {
    let mut state = id.lock();
    let (conn, question) = (state.conn.take(), state.sidr.take());
    drop(state);
    let manager = manager::current();
    if let Some(conn) = conn {
        manager.tables().connections.remove(&(card, conn));
        if let Err(error) = commands.destroy_connection(conn) {
            tracing::debug!(%error, "a connection was gone before its id");
        }
    }
    if let Some(question) = question {
        manager.tables().questions.remove(&(card, question));
        drop_question(commands, question);
    }
}

/// Handles the end of peers' processes, and with them of their cards: their connections end as if
/// the peers had disconnected, and what is not established yet fails, whichever side has asked. It
/// looks at each connection, so those that have gone together are handled together.
pub(super) fn peers_are_gone(peers: &BTreeSet<IpAddr>) {
    if peers.is_empty() {
        return;
    }
    let ids: Vec<Arc<Id>> = {
        let manager = manager::current();
        let tables = manager.tables();
        tables.connections.values().chain(tables.questions.values()).cloned().collect()
    };
    for id in ids {
        let state = id.lock();
        let Some(peer) = state.route.map(|route| route.peer).filter(|at| peers.contains(at)) else {
            continue;
        };
        let stage = state.stage;
        drop(state);
        let stands = stage == Stage::Connected && !id.is_datagram();
        let begins = matches!(stage, Stage::Connecting | Stage::Replied);
        if stands || begins {
            // Before the program is told, which may then end.
            tracing::warn!(%peer, ?stage, "the process at the other end of a connection is gone");
        }
        if begins {
            end_connection(&id);
            unreachable(&id);
        } else if stands {
            disconnected(&id, false);
        }
    }
}

/// The connection of an id has ended, or has failed to come about. The program is told once: the
/// card and the end of the peer's process may both tell of it.
pub(super) fn over(id: &Arc<Id>, kind: rdma_cm_event_type, fill: impl FnOnce(&mut News)) {
    let before = mem::replace(&mut id.lock().stage, Stage::Disconnected);
    if before != Stage::Disconnected {
        manager::push(id, kind, fill);
    }
}

/// The connection has ended: `timed_out` if the program has asked for that, and the peer has not
/// answered.
pub(super) fn disconnected(id: &Arc<Id>, timed_out: bool) {
    over(id, RDMA_CM_EVENT_DISCONNECTED, |news| {
        news.status = if timed_out { -libc::ETIMEDOUT } else { 0 };
    });
}

/// The peer does not answer a request.
pub(super) fn unreachable(id: &Arc<Id>) {
    over(id, RDMA_CM_EVENT_UNREACHABLE, |news| news.status = -libc::ETIMEDOUT);
}

/// Tells all peers that this process ends.
pub(super) fn end_all() {
    let manager = manager::current();
    let ids: Vec<Arc<Id>> = manager.tables().connections.values().cloned().collect();
    for id in ids {
        let Ok(card) = id.card() else { continue };
        let Some(mut locked) = card.lock_at_end() else { return };
        end_on(card, &mut locked, &id);
    }
}

/// Forgets a question that this side has asked, or refuses one that a peer has asked.
pub(super) fn drop_question(card: &mut dyn Commands, question: SidrId) {
    if card.cancel_sidr(question).is_ok() {
        return;
    }
    let status = SidrStatus::Rejected;
    let no = SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
    if let Err(error) = card.sidr_reply(question, no) {
        tracing::debug!(%error, "a question was gone before its id");
    }
}

impl From<CommandError> for Errno {
    fn from(error: CommandError) -> Errno {
        if error == CommandError::Gone { EIO } else { EINVAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_QPT_RC;
    use crate::rdmacm::events::{complete, forget_event};
    use crate::rdmacm::objects::EventChannel;

    /// The end of the peer's process is seen at once, and the card gives the connection up later.
    #[test]
    fn the_end_of_a_connection_is_told_once() {
        let channel = EventChannel::create().unwrap();
        let id = Id::create(channel.clone(), false, RDMA_PS_TCP, IBV_QPT_RC).unwrap();
        id.lock().stage = Stage::Connected;
        disconnected(&id, false);
        disconnected(&id, true);
        let told = channel.take(|_| true);
        let kinds: Vec<_> = told.iter().map(|news| (news.kind, news.status)).collect();
        assert_eq!(kinds, [(RDMA_CM_EVENT_DISCONNECTED, 0)]);
        id.end_handle().unwrap();
        channel.end_handle().unwrap();
    }

    /// As Linux has it: the connection is over, and the status says that nobody has agreed. A
    /// synchronous `rdma_disconnect` fails by it.
    #[test]
    fn a_disconnection_that_is_not_answered_has_a_status() {
        let id = Id::create(EventChannel::create().unwrap(), true, RDMA_PS_TCP, IBV_QPT_RC);
        let id = id.unwrap();
        id.lock().stage = Stage::Connected;
        disconnected(&id, true);
        assert_eq!(complete(&id), Err(Errno(libc::ETIMEDOUT)));
        forget_event(&id);
        let channel = id.channel().unwrap();
        id.end_handle().unwrap();
        channel.end_handle().unwrap();
    }

    /// A process may refuse a request and end before the program has destroyed the id.
    #[test]
    fn the_failure_of_a_request_is_told_once() {
        let channel = EventChannel::create().unwrap();
        let id = Id::create(channel.clone(), false, RDMA_PS_TCP, IBV_QPT_RC).unwrap();
        id.lock().stage = Stage::Connecting;
        over(&id, RDMA_CM_EVENT_REJECTED, |news| news.status = 28);
        unreachable(&id);
        disconnected(&id, false);
        let told = channel.take(|_| true);
        let kinds: Vec<_> = told.iter().map(|news| (news.kind, news.status)).collect();
        assert_eq!(kinds, [(RDMA_CM_EVENT_REJECTED, 28)]);
        id.end_handle().unwrap();
        channel.end_handle().unwrap();
    }
}
