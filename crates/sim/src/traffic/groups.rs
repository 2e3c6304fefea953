//! Multicast: datagram queue pairs that join a group, leave it, and send to it. Each member, the
//! sender included, gets a datagram at most once, and no other queue pair gets it.

use remora_nic::nic::MULTICAST_QPN;
use remora_nic::queue::UdDestination;
use remora_nic::{Path, Time};

use super::records::{Group, Membership, Message, SentToGroup, Traffic};
use crate::check::{Violation, demand};
use crate::endpoint::QKEY;
use crate::world::World;

const CHECKER: &str = "multicast";

impl Traffic {
    /// Makes end `s` a member of its group, if it has one.
    pub(super) fn enrol(&mut self, world: &mut World, s: usize, group: Option<usize>) {
        let Some(group) = group else { return };
        let side = &mut self.sides[s];
        let nic = &mut world.hosts[side.end.host].nic;
        let path = Path::new(self.groups[group].address, s as u32);
        let ah = nic.create_ah(side.end.pd, path).expect("room for an address handle");
        nic.attach_mcast(side.end.qpn, self.groups[group].address).expect("room for a member");
        side.membership = Some(Membership { group, ah, joined: true, left: None });
    }

    /// Lets a member leave its group or join it again, at random.
    pub(super) fn move_member(&mut self, world: &mut World, s: usize) -> Result<(), Violation> {
        let side = &mut self.sides[s];
        let Some(member) = &mut side.membership else { return Ok(()) };
        if self.options.restless == 0.0 || !self.dice.chance(self.options.restless) {
            return Ok(());
        }
        let (address, qpn) = (self.groups[member.group].address, side.end.qpn);
        let nic = &mut world.hosts[side.end.host].nic;
        let moved = if member.joined {
            member.left = Some(world.now);
            nic.detach_mcast(qpn, address)
        } else {
            nic.attach_mcast(qpn, address)
        };
        member.joined = !member.joined;
        moved.map_err(|why| Violation::new(CHECKER, format!("end {s}: {why}")))
    }

    /// The group for the next datagram of end `s`, if it goes to a group.
    pub(super) fn choose_group(&mut self, s: usize) -> Option<usize> {
        let group = self.sides[s].membership.as_ref()?.group;
        self.dice.coin().then_some(group)
    }

    /// The destination of datagrams from end `s` to its group.
    pub(super) fn to_group(&self, s: usize) -> Option<UdDestination> {
        let ah = self.sides[s].membership.as_ref()?.ah;
        Some(UdDestination { ah, qpn: MULTICAST_QPN, qkey: QKEY })
    }

    /// Records a datagram that end `s` has posted to a group.
    pub(super) fn sent_to_group(&mut self, at: Time, s: usize, group: usize, message: Message) {
        self.groups[group].sent.insert(message.id, SentToGroup { message, from: s, at });
    }

    /// Checks a datagram that end `s` received and that its peer did not send: one of its group.
    pub(super) fn heard(&mut self, s: usize, id: u64) -> Result<Option<Message>, Violation> {
        let Some(member) = &self.sides[s].membership else { return Ok(None) };
        let group = &mut self.groups[member.group];
        let Some(SentToGroup { message, from, at }) = group.sent.get(&id) else { return Ok(None) };
        let was_in = member.joined || member.left.is_some_and(|left| left >= *at);
        demand(was_in, CHECKER, || {
            format!("end {s} got datagram {id} of end {from}, posted after it had left")
        })?;
        let first = group.heard.insert((id, s));
        demand(first || self.options.faults.duplicate > 0.0, CHECKER, || {
            format!("end {s} got datagram {id} of end {from} twice")
        })?;
        self.stats.heard += u64::from(first);
        Ok(Some(message.clone()))
    }

    /// If the network loses nothing, a member that never left has received all datagrams, except
    /// those that found no receive element.
    pub(crate) fn check_groups(&self, world: &World) -> Result<(), Violation> {
        let faults = &self.options.faults;
        if faults.loss + faults.corrupt + faults.outage > 0.0 {
            return Ok(());
        }
        let mut missed = vec![0; self.hosts.len()];
        for (s, side) in self.sides.iter().enumerate() {
            let Some(member) = &side.membership else { continue };
            if member.left.is_none() {
                let Group { sent, heard, .. } = &self.groups[member.group];
                let missing = sent.keys().filter(|id| !heard.contains(&(**id, s))).count();
                missed[side.end.host] += missing as u64;
            }
        }
        for (i, (missed, host)) in missed.into_iter().zip(&world.hosts).enumerate() {
            let dropped = host.nic.counters().drop_no_receive;
            demand(missed <= dropped, CHECKER, || {
                format!("members at host {i} missed {missed} datagrams, {dropped} were dropped")
            })?;
        }
        Ok(())
    }

    /// Lets all members leave their groups.
    pub(super) fn disband(&self, world: &mut World) -> Result<(), Violation> {
        let failed = |e: &dyn core::fmt::Debug| Violation::new("leaks", format!("{e:?}"));
        for side in &self.sides {
            let Some(member) = &side.membership else { continue };
            let nic = &mut world.hosts[side.end.host].nic;
            if member.joined {
                let address = self.groups[member.group].address;
                nic.detach_mcast(side.end.qpn, address).map_err(|e| failed(&e))?;
            }
            nic.destroy_ah(member.ah).map_err(|e| failed(&e))?;
        }
        Ok(())
    }
}
