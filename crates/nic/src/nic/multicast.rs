//! Multicast: datagrams for all queue pairs that are attached to a group.

use core::net::IpAddr;

use thiserror::Error;

use super::Nic;
use crate::env::Env;
use crate::memory::Memory;
use crate::qp::Incoming;
use crate::time::Time;
use crate::transmit::Datagram;
use crate::wire::multicast::group_address;
use crate::wire::{Bth, Dialect, Op, Packet, Transport};

/// Why a queue pair could not be attached to a group or detached from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum McastError {
    /// There is no such queue pair, or it is not a UD queue pair.
    #[error("no such UD queue pair")]
    UnknownQp,
    /// The address is no multicast address.
    #[error("the address is no multicast address")]
    Address,
    /// The queue pair is not attached to this group.
    #[error("the queue pair is not attached to this group")]
    NotAttached,
    /// There are too many groups, or the group has too many members.
    #[error("the card has no more room: its limit is {limit}")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Multicast.
impl Nic {
    /// Attaches a UD queue pair to a group: from now on it receives the group's datagrams that have
    /// its Q_Key. Attaching it twice changes nothing. The driver must join the group: see
    /// [`Nic::mcast_groups`].
    ///
    /// # Errors
    /// [`McastError::Address`] if `gid` is no multicast address, [`McastError::UnknownQp`] if there
    /// is no such UD queue pair, [`McastError::Full`] if the card has as many groups, or the group
    /// as many members, as the limit.
    pub fn attach_mcast(&mut self, qpn: u32, gid: IpAddr) -> Result<(), McastError> {
        let group = group_address(gid).ok_or(McastError::Address)?;
        let qp = self.qps.get_mut(qpn).filter(|qp| qp.transport == Transport::Ud);
        let qp = qp.ok_or(McastError::UnknownQp)?;
        let limit = self.card.config.max_mcast;
        if self.groups.len() >= limit && !self.groups.contains_key(&group) {
            return Err(McastError::Full { limit });
        }
        let members = self.groups.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= limit {
            return Err(McastError::Full { limit });
        }
        members.push(qpn);
        qp.cold.groups += 1;
        Ok(())
    }

    /// Detaches a queue pair from a group: the opposite of [`Nic::attach_mcast`].
    ///
    /// # Errors
    /// [`McastError::Address`] if `gid` is no multicast address, [`McastError::UnknownQp`] if there
    /// is no such queue pair, [`McastError::NotAttached`] if it is not attached to the group.
    pub fn detach_mcast(&mut self, qpn: u32, gid: IpAddr) -> Result<(), McastError> {
        let group = group_address(gid).ok_or(McastError::Address)?;
        let qp = self.qps.get_mut(qpn).ok_or(McastError::UnknownQp)?;
        let members = self.groups.get_mut(&group).ok_or(McastError::NotAttached)?;
        let at = members.iter().position(|m| *m == qpn).ok_or(McastError::NotAttached)?;
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        qp.cold.groups -= 1;
        Ok(())
    }

    /// The groups that queue pairs are attached to. The driver must join these groups and hand in
    /// their datagrams, with the group's address as the destination.
    pub fn mcast_groups(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.keys().copied()
    }

    /// Hands a datagram to all members of its group.
    pub(super) fn handle_multicast(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        bth: Bth,
        datagram: &Datagram<'_>,
    ) {
        let counters = &mut self.card.counters;
        let group = group_address(datagram.dst);
        // The destination address names the group. A group without members here gets nothing
        // (soft-RoCE's `rxe_rcv_mcast_pkt`).
        let Some(members) = group.and_then(|group| self.groups.get(&group)) else {
            counters.drop_unknown_qp += 1;
            return;
        };
        // Only datagrams can be sent to a group.
        let op = Op::lookup(bth.opcode, Dialect::STANDARD);
        let Some(op) = op.filter(|op| op.transport == Transport::Ud) else {
            counters.drop_opcode += 1;
            return;
        };
        let Ok(packet) = Packet::parse(bth, op, datagram.bytes) else {
            counters.drop_malformed += 1;
            return;
        };
        // Each member checks the rest for itself: its state, its Q_Key, the length.
        for member in members {
            if let Some(qp) = self.qps.get_mut(*member) {
                let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
                qp.handle_incoming(&mut env, Incoming::of(&packet), datagram);
            }
        }
    }
}
