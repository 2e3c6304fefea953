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

/// Why a queue pair was not attached to a group, or not detached from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum McastError {
    /// No such queue pair, or one of another service than UD.
    #[error("no such UD queue pair")]
    UnknownQp,
    /// The address is no multicast address.
    #[error("the address is no multicast address")]
    Address,
    /// It is not attached to this group.
    #[error("the queue pair is not attached to this group")]
    NotAttached,
    /// Too many groups, or members of the group.
    #[error("the card has no more room: its limit is {limit}")]
    Full {
        /// The limit.
        limit: usize,
    },
}

/// Multicast.
impl Nic {
    /// From now on a UD queue pair gets what is sent to a group, if it has the right Q_Key.
    /// Attaching it twice changes nothing. The driver is to join the group:
    /// [`Nic::mcast_groups`].
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

    /// Ends what [`Nic::attach_mcast`] began.
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

    /// The groups that queue pairs are attached to: those whose datagrams the driver is to hand
    /// in, with the group's address as their destination.
    pub fn mcast_groups(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.keys().copied()
    }

    /// A datagram for all members of a group.
    pub(super) fn handle_multicast(
        &mut self,
        now: Time,
        mem: &mut dyn Memory,
        bth: Bth,
        datagram: &Datagram<'_>,
    ) {
        let counters = &mut self.card.counters;
        let group = group_address(datagram.dst);
        let Some(members) = group.and_then(|group| self.groups.get(&group)) else {
            counters.drop_unknown_qp += 1;
            return;
        };
        let op = Op::lookup(bth.opcode, Dialect::Standard);
        let Some(op) = op.filter(|op| op.transport == Transport::Ud) else {
            counters.drop_opcode += 1;
            return;
        };
        let Ok(packet) = Packet::parse(bth, op, datagram.bytes) else {
            counters.drop_malformed += 1;
            return;
        };
        for member in members {
            if let Some(qp) = self.qps.get_mut(*member) {
                let mut env = Env { now, mem, card: &mut self.card, kernels: &mut self.kernels };
                qp.handle_incoming(&mut env, Incoming::of(&packet), datagram);
            }
        }
    }
}
