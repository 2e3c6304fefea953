//! What all sessions of a user have together of what the card has for all of them: see `policy`.
//! What one session may have is in `objects`.

use std::collections::BTreeSet;
use std::net::IpAddr;

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

    /// May a session join a multicast group? Otherwise returns the limit: that of its memberships,
    /// or that of the groups which the sessions of its user are in. (Each group is a socket of the
    /// daemon's, and the card has room for some.)
    pub(crate) fn room_for_group(&self, session: u16, group: IpAddr) -> Result<(), usize> {
        let of = self.sessions.get(usize::from(session)).and_then(Option::as_ref);
        if of.is_none_or(|of| of.groups.len() >= GROUPS) {
            return Err(GROUPS);
        }
        let (user, mine) = self.of_user(session);
        let joined = mine.flat_map(|of| &of.groups).map(|(_, group)| group);
        let joined: BTreeSet<&IpAddr> = joined.collect();
        let most = user.groups as usize;
        let has_room = joined.len() < most || joined.contains(&group);
        if has_room { Ok(()) } else { Err(most) }
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
