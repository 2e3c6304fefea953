//! Joins and leaves multicast groups, for the queue pairs of a live device.
//!
//! The card's socket is bound to the card's address, and gets no datagrams for groups. So the
//! device has one more socket for each group that a queue pair is attached to.

use std::net::IpAddr;
use std::sync::Arc;

use remora_nic::nic::{McastError, group_address};

use crate::driver::Own;
pub(crate) mod refusal;

pub use refusal::JoinError;

impl Own {
    /// Attaches a queue pair; the first one of a group has the device join the group.
    pub(crate) fn join_group(&mut self, qpn: u32, gid: IpAddr) -> Result<(), JoinError> {
        self.nic.attach_mcast(qpn, gid)?;
        let Some(group) = group_address(gid) else { return Ok(()) };
        if self.groups.iter().any(|socket| socket.addr() == group) {
            return Ok(());
        }
        match self.fabric.udp.join(group) {
            Ok(socket) => {
                // An event loop is given the card again, with the new socket.
                self.end_loop();
                let others = self.groups.iter().cloned();
                self.groups = others.chain([Arc::new(socket)]).collect();
                self.regrouped = true;
                Ok(())
            }
            Err(source) => {
                self.nic.detach_mcast(qpn, gid)?;
                Err(JoinError::System { group, card: self.fabric.udp.addr(), source })
            }
        }
    }

    /// Detaches a queue pair; the last one of a group has the device leave the group.
    pub(crate) fn leave_group(&mut self, qpn: u32, gid: IpAddr) -> Result<(), McastError> {
        self.nic.detach_mcast(qpn, gid)?;
        let wanted: Vec<IpAddr> = self.nic.mcast_groups().collect();
        self.end_loop();
        let joined = self.groups.iter().filter(|socket| wanted.contains(&socket.addr()));
        self.groups = joined.cloned().collect();
        self.regrouped = true;
        Ok(())
    }

    /// Detaches a queue pair from all its groups.
    pub(crate) fn leave_all_groups(&mut self, qpn: u32) {
        let groups: Vec<IpAddr> = self.nic.mcast_groups().collect();
        for group in groups {
            // An error means that the queue pair was not attached to this group.
            self.leave_group(qpn, group).ok();
        }
    }
}
