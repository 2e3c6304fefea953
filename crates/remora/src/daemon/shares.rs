//! What all sessions of a user have together of what the card has for all of them: see `policy`.

use super::engine::Engine;
use super::session_queues::{SessionQueues, User};

/// The most memberships in multicast groups of one session, of the card's [`ALL_GROUPS`].
const GROUPS: usize = 128;
/// The groups of the card.
pub(super) const ALL_GROUPS: u32 = 1024;

impl Engine {
    /// Pieces of memory that all sessions of a session's user lend, and the most that they may.
    pub(crate) fn loans_of_user(&self, session: u16) -> (usize, usize) {
        let (user, mine) = self.of_user(session);
        (mine.map(|of| of.lent.len()).sum(), user.loans as usize)
    }

    /// The same of kernels.
    pub(crate) fn kernels_of_user(&self, session: u16) -> (usize, usize) {
        let (user, mine) = self.of_user(session);
        (mine.map(|of| of.usage.kernels as usize).sum(), user.kernels as usize)
    }

    /// May a session join another multicast group? Otherwise returns the limit.
    pub(crate) fn room_for_group(&self, session: u16) -> Result<(), usize> {
        let of = self.sessions.get(usize::from(session)).and_then(Option::as_ref);
        let (user, mine) = self.of_user(session);
        let most = user.groups as usize;
        if of.is_none_or(|of| of.groups.len() >= GROUPS) {
            return Err(GROUPS);
        }
        if mine.map(|of| of.groups.len()).sum::<usize>() >= most { Err(most) } else { Ok(()) }
    }

    fn of_user(&self, session: u16) -> (User, impl Iterator<Item = &SessionQueues>) {
        let of = self.sessions.get(usize::from(session)).and_then(Option::as_ref);
        let user = of.map_or_else(User::default, |of| of.user);
        (user, self.sessions.iter().flatten().filter(move |of| of.user.uid == user.uid))
    }

    /// Pieces of memory that all sessions lend.
    pub(crate) fn loans(&self) -> usize {
        self.sessions.iter().flatten().map(|of| of.lent.len()).sum()
    }
}
