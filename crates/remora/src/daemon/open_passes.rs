//! Passes: who may write and read whose memory without the card, and by which gates.
//!
//! The card says when a pass is over (`Nic::poll_pass_end`); the engine shuts its gate before the
//! session whose memory it is learns what has happened. `passes` says to whom passes are
//! given.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use remora_nic::Key;
use remora_nic::nic::PassEnd;

use super::objects::leaves_some;
use crate::memory::memfd::MapError;
use crate::shared::Gates;
use crate::shared::gates::{GATES, SENDERS};

/// The most passes at a time, of all users.
pub(super) const MOST: usize = 4096;

/// All passes.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// The sessions that lend their memory so, by number.
    owners: BTreeMap<u16, Owner>,
    /// What they lent it by before: senders may be within still, when another process has it.
    former: BTreeMap<u16, Owner>,
    open: Vec<Open>,
    /// The last mark that was given, to no other pass.
    mark: u64,
}

/// A session whose memory others may reach.
#[derive(Debug)]
struct Owner {
    gates: Gates,
    file: OwnedFd,
    /// The clients that have had a pass and whose process may still be within, each at the place of
    /// its line.
    senders: Vec<Option<u32>>,
    /// Gates that were used before, and how many have been.
    free: Vec<u32>,
    used: u32,
}

/// A pass, whose gate is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// The user of both sessions.
    uid: u32,
    sender: u16,
    owner: u16,
    /// The queue pairs of either.
    ends: [u32; 2],
    key: Key,
    gate: u32,
}

/// Where a sender goes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    pub(crate) gate: u32,
    pub(crate) sender: u32,
    pub(crate) mark: u64,
}

impl Passes {
    /// A session lends its memory by these gates from now on.
    ///
    /// # Errors
    /// The file has none.
    pub(crate) fn share(&mut self, owner: u16, file: OwnedFd) -> Result<(), MapError> {
        let gates = Gates::open(file.as_fd())?;
        self.leave(owner);
        // Its client has waited for those within by the gates that it was told of.
        self.former.remove(&owner);
        let owned = Owner { gates, file, senders: Vec::new(), free: Vec::new(), used: 0 };
        self.owners.insert(owner, owned);
        Ok(())
    }

    /// Does the session lend its memory so?
    pub(crate) fn has(&self, owner: u16) -> bool {
        self.owners.contains_key(&owner)
    }

    /// The file of a session's gates.
    pub(crate) fn file(&self, owner: u16) -> Option<BorrowedFd<'_>> {
        self.owners.get(&owner).map(|owner| owner.file.as_fd())
    }

    /// The file of the gates by which others reached a session's memory before, all shut now: a
    /// client that takes the session over waits until nobody is within.
    pub(crate) fn former_file(&self, owner: u16) -> Option<BorrowedFd<'_>> {
        self.former.get(&owner).map(|owner| owner.file.as_fd())
    }

    /// Gives the session `sender`, whose only process is `client`, a pass to memory of `owner`, in
    /// the place of one that it may have for the same requests; `None` if there are as many as
    /// there may be, or the user `uid`, whose sessions these are, would leave too few to others.
    pub(crate) fn give(
        &mut self,
        uid: u32,
        (sender, client, owner): (u16, u32, u16),
        ends: [u32; 2],
        key: Key,
    ) -> Option<Gate> {
        let is_same = |open: &Open| (open.sender, open.ends, open.key) == (sender, ends, key);
        let before = self.open.len();
        self.end_those(is_same);
        let is_another = self.open.len() == before;
        if is_another {
            let mine = || self.open.iter().filter(|open| open.uid == uid).count();
            leaves_some(MOST, before, mine).ok()?;
        }
        let of = self.owners.get_mut(&owner)?;
        let line = of.line_of(client)?;
        let gate = of.take_gate()?;
        self.mark += 1;
        of.gates.admit(gate, self.mark);
        self.open.push(Open { uid, sender, owner, ends, key, gate });
        Some(Gate { gate, sender: line, mark: self.mark })
    }

    /// How many passes each session has to memory of each other one: the session that has them,
    /// the one whose memory it is, and the number.
    pub(crate) fn counts(&self) -> BTreeMap<(u16, u16), u32> {
        let mut counts = BTreeMap::new();
        for open in &self.open {
            *counts.entry((open.sender, open.owner)).or_default() += 1;
        }
        counts
    }

    /// Shuts the gates of passes that are over.
    pub(crate) fn end(&mut self, end: PassEnd) {
        self.end_those(|open| match end {
            PassEnd::QueuePair(qpn) => open.ends.contains(&qpn),
            PassEnd::Region(key) => open.key == key,
        });
    }

    /// A session's process has gone, or is not its only one any more: it neither reaches others'
    /// memory nor lends its own. A process that lives may be within for a while; its line says so
    /// to the owner, and stays its own, until it has [`Passes::gone`].
    pub(crate) fn leave(&mut self, session: u16) {
        self.end_those(|open| open.sender == session || open.owner == session);
        if let Some(owner) = self.owners.remove(&session) {
            self.former.insert(session, owner);
        }
    }

    /// A session has ended.
    pub(crate) fn forget(&mut self, session: u16) {
        self.leave(session);
        self.former.remove(&session);
    }

    /// Has a client a line in somebody's gates?
    pub(crate) fn has_line(&self, client: u32) -> bool {
        let mut owners = self.owners.values().chain(self.former.values());
        owners.any(|owner| owner.senders.contains(&Some(client)))
    }

    /// A client's process reaches nothing any more.
    pub(crate) fn gone(&mut self, client: u32) {
        for owner in self.owners.values_mut().chain(self.former.values_mut()) {
            if let Some(line) = owner.senders.iter().position(|of| *of == Some(client)) {
                owner.senders[line] = None;
                owner.gates.forget(line as u32);
            }
        }
    }

    fn end_those(&mut self, which: impl Fn(&Open) -> bool) {
        let owners = &mut self.owners;
        self.open.retain(|open| {
            let ends = which(open);
            if let Some(owner) = owners.get_mut(&open.owner).filter(|_| ends) {
                owner.gates.shut(open.gate);
                owner.free.push(open.gate);
            }
            !ends
        });
    }
}

impl Owner {
    /// A gate that is shut; `None` if all are open.
    fn take_gate(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let fresh = self.used;
            self.used = (fresh + 1).min(GATES);
            (fresh < GATES).then_some(fresh)
        })
    }

    /// The line of a sender; `None` if all are taken.
    fn line_of(&mut self, sender: u32) -> Option<u32> {
        let place = |of: Option<u32>| self.senders.iter().position(|found| *found == of);
        let line = place(Some(sender)).or_else(|| place(None)).unwrap_or(self.senders.len());
        if line >= SENDERS as usize {
            return None;
        }
        if line == self.senders.len() {
            self.senders.push(None);
        }
        self.senders[line] = Some(sender);
        Some(line as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes of which session 1 lends its memory, and its view of the gates.
    fn lent() -> (Passes, Gates) {
        let (gates, file) = Gates::create().unwrap();
        let mut passes = Passes::default();
        passes.share(1, file).unwrap();
        (passes, gates)
    }

    fn is_open(gates: &Gates, gate: Gate) -> bool {
        gates.is_open(gate.gate, gate.mark)
    }

    #[test]
    fn a_pass_ends_with_either_queue_pair_with_the_key_and_with_either_session() {
        let ends = |act: &dyn Fn(&mut Passes)| {
            let (mut passes, gates) = lent();
            let gone = passes.give(7, (0, 0, 1), [10, 20], 5).unwrap();
            let stays = passes.give(7, (2, 2, 1), [11, 21], 6).unwrap();
            act(&mut passes);
            assert!(!is_open(&gates, gone));
            is_open(&gates, stays)
        };
        assert!(ends(&|passes| passes.end(PassEnd::QueuePair(10))));
        assert!(ends(&|passes| passes.end(PassEnd::QueuePair(20))));
        assert!(ends(&|passes| passes.end(PassEnd::Region(5))));
        assert!(ends(&|passes| passes.leave(0)));
        assert!(!ends(&|passes| passes.leave(1)), "whose memory it was");
    }

    #[test]
    fn gates_are_given_again_and_marks_are_not() {
        let (mut passes, gates) = lent();
        let first = passes.give(7, (0, 0, 1), [10, 20], 5).unwrap();
        let again = passes.give(7, (0, 0, 1), [10, 20], 5).unwrap();
        assert!(first.gate == again.gate && first.mark != again.mark, "{first:?} {again:?}");
        assert!(!is_open(&gates, first) && is_open(&gates, again));
        assert_eq!(passes.open.len(), 1);
        assert_eq!(passes.give(7, (0, 0, 3), [1, 2], 5), None, "session 3 lends nothing so");
    }

    #[test]
    fn however_many_one_user_takes_others_have_some() {
        let mut passes = Passes::default();
        for owner in 1..=4 {
            passes.share(owner, Gates::create().unwrap().1).unwrap();
        }
        let mut key = 0;
        let mut take_all = |passes: &mut Passes, uid, owner| {
            let before = key;
            while passes.give(uid, (10 + owner, 0, owner), [10, 20], key).is_some() {
                key += 1;
            }
            key - before
        };
        // Each owner has so many gates.
        let taken =
            [(7, 1), (7, 2), (8, 3), (9, 4)].map(|(uid, of)| take_all(&mut passes, uid, of));
        assert_eq!(taken, [GATES, MOST as u32 / 2 - GATES, 1024, 512]);
        assert_eq!(take_all(&mut passes, 7, 3), 0);
        let again = passes.give(7, (11, 0, 1), [10, 20], 0);
        assert!(again.is_some(), "in the place of one that it has");
        passes.forget(1);
        assert_ne!(take_all(&mut passes, 9, 4), 0, "there are more left");
    }

    #[test]
    fn there_are_only_so_many() {
        let (mut passes, gates) = lent();
        for sender in 0..SENDERS as u16 {
            let of = (sender + 2, u32::from(sender) + 2, 1);
            assert!(passes.give(7, of, [10, 20], 5).is_some());
        }
        assert_eq!(passes.give(7, (999, 999, 1), [10, 20], 5), None, "there is no line left");
        passes.leave(7);
        assert_eq!(passes.give(7, (999, 999, 1), [10, 20], 5), None, "7 may still be within");
        passes.gone(7);
        let line = passes.give(7, (999, 999, 1), [10, 20], 5).unwrap().sender;
        assert_eq!(line, 5, "that of the one that has gone");
        for key in 0..GATES {
            passes.give(7, (2, 2, 1), [10, 20], 100 + key);
        }
        assert_eq!(passes.open.len(), GATES as usize);
        passes.leave(1);
        assert!((0..GATES).all(|gate| !(1..5000).any(|mark| gates.is_open(gate, mark))));
    }
}
