//! Who gets a pass: requests of clients that want to lend their memory so, or to reach that of
//! others.
//!
//! A mapping cannot be taken back from a process that has it. So passes are for processes that may
//! read each other's memory anyway: those of one user, in the same user and process namespaces. And
//! they are for sessions that one process uses, since only that one knows what it has under way.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use remora_nic::Key;

use super::answers::NO_SESSION;
use super::clients::Then;
use super::open_passes::Gate;
use super::server::Server;
use crate::driver::Own;
use crate::message::{Answer, Object, Pass};

/// A pass, whose memory it opens, and the files of the gates and of the memory.
type Given = (Pass, [OwnedFd; 2]);

impl Server {
    /// A client lends its memory by the gates that come along.
    pub(super) fn share_gates(&mut self, number: u32, with: Vec<OwnedFd>) -> Result<(), String> {
        let Ok([file]) = <[OwnedFd; 1]>::try_from(with) else {
            return Err("gates are one descriptor".into());
        };
        let session = self.held(number).ok_or(NO_SESSION)?;
        if self.only_process_of(session) != Some(number) {
            return Err("several processes use the session".into());
        }
        let shared = self.with(number, |driver, slot| {
            let engine = driver.engine.as_deref_mut()?;
            Some(engine.passes.share(slot, file).map_err(|error| error.to_string()))
        });
        shared.flatten().ok_or(NO_SESSION)?
    }

    /// Answers a client that wants to carry out requests itself.
    pub(super) fn answer_pass(&mut self, number: u32, qpn: u32, key: Key) -> Then {
        match self.give_pass(number, qpn, key) {
            Some((pass, files)) => {
                let files = [files[0].as_fd(), files[1].as_fd()];
                self.send(number, &Answer::Pass(Some(pass)), &files)
            }
            None => self.send(number, &Answer::Pass(None), &[]),
        }
    }

    fn give_pass(&mut self, number: u32, qpn: u32, key: Key) -> Option<Given> {
        let session = self.held(number)?;
        self.only_process_of(session).filter(|only| *only == number)?;
        let dest = self.with(number, |driver, slot| peer_of(driver, slot, qpn))??;
        let owner = self.sessions.values().find(|held| held.slot == dest)?.number;
        let other = self.only_process_of(owner)?;
        let mut who = |at| self.clients.get(at).and_then(|at| Some((at.uid, at.living()?)));
        let (Some((uid, pid)), Some((other_uid, other_pid))) = (who(number), who(other)) else {
            return None;
        };
        if uid != other_uid || !may_read_each_other(pid, other_pid) {
            return None;
        }
        self.with(number, |driver, slot| give(driver, (slot, number, dest), qpn, key))?
    }

    /// The client of a session that no other process uses.
    fn only_process_of(&self, session: u32) -> Option<u32> {
        match self.clients.of_session(session)[..] {
            [only] if self.sessions.get(&session)?.client == Some(only) => Some(only),
            _ => None,
        }
    }

    /// May a client be within the memory of others?
    pub(super) fn has_sent(&self, client: u32) -> bool {
        self.device.live.command_own(|driver| {
            driver.engine.as_deref().is_some_and(|engine| engine.passes.has_line(client))
        })
    }

    /// A client has closed its connection, or its process has ended: so it is within nobody's
    /// memory.
    pub(super) fn forget_sender(&mut self, client: u32) {
        self.device.live.command_own(|driver| {
            if let Some(engine) = driver.engine.as_deref_mut() {
                engine.passes.gone(client);
            }
        });
    }

    /// A session's processes have changed: from here on all its requests go by the card.
    pub(super) fn end_passes_of(&mut self, session: u32) {
        let Some(slot) = self.sessions.get(&session).map(|held| held.slot) else { return };
        self.device.live.command_own(|driver| {
            if let Some(engine) = driver.engine.as_deref_mut() {
                engine.passes.leave(slot);
            }
        });
    }
}

/// The session that has the peer of a session's queue pair, on this card.
fn peer_of(driver: &mut Own, slot: u16, qpn: u32) -> Option<u16> {
    let engine = driver.engine.as_deref_mut()?;
    if !engine.objects.holds(slot, Object::Qp(qpn)) {
        return None;
    }
    let dest = driver.nic.query_qp(qpn)?.attr.dest_qp?;
    engine.objects.owner(Object::Qp(dest))
}

/// Gives a pass for memory of the session `owner`, which must be a whole file that the daemon has
/// mapped.
fn give(
    driver: &mut Own,
    (sender, client, owner): (u16, u32, u16),
    qpn: u32,
    key: Key,
) -> Option<Given> {
    let engine = driver.engine.as_deref_mut()?;
    if engine.objects.owner(Object::Mr(key)) != Some(owner) {
        return None;
    }
    let number = engine.objects.lent(Object::Mr(key))?;
    let lent = engine.session(owner)?.lent.get(&number)?;
    let (memory, base) = (lent.file()?.try_clone_to_owned().ok()?, lent.bus(0, 0)?);
    let gates = engine.passes.file(owner)?.try_clone_to_owned().ok()?;
    let pass = driver.nic.pass(qpn, key)?;
    if engine.objects.owner(Object::Qp(pass.dest_qp)) != Some(owner) {
        return None;
    }
    let uid = engine.session(sender)?.user.uid;
    let Gate { gate, sender, mark } =
        engine.passes.give(uid, (sender, client, owner), [qpn, pass.dest_qp], key)?;
    let (iova, len, access) = (pass.iova, pass.len, pass.access);
    let pass = Pass { gate, sender, mark, offset: pass.bus - base, iova, len, access };
    Some((pass, [gates, memory]))
}

/// May two processes of one user read each other's memory, as far as their namespaces go? The
/// system shows those only to a process that may itself.
fn may_read_each_other(one: i32, other: i32) -> bool {
    let namespace = |pid: i32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    ["user", "pid"].iter().all(|kind| {
        let found = namespace(one, kind);
        found.is_some() && found == namespace(other, kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_cannot_be_looked_at_are_apart() {
        let own = std::process::id() as i32;
        assert!(may_read_each_other(own, own));
        assert!(!may_read_each_other(own, 0) && !may_read_each_other(-1, -1));
    }
}
