//! Limits per user: how much of the card all sessions of one user may take together (see
//! `policy`). What one session may have is in `objects`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::engine::Engine;
use super::objects::{Kind, leaves_some};
use super::session_queues::{SessionQueues, User};

/// The most memberships in multicast groups of one session, of the card's [`ALL_GROUPS`].
const GROUPS: usize = 128;
/// The groups of the card.
pub(super) const ALL_GROUPS: u32 = 1024;

impl Engine {
    /// May a session's user have another object of a kind? Otherwise returns how many it has.
    pub(super) fn room_for_user(&self, session: u16, kind: Kind) -> Result<(), usize> {
        let mine = || self.of_user(session).1.map(|of| of.usage.of(kind)).sum();
        leaves_some(self.pools.of(kind), self.objects.all.of(kind), mine)
    }

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

    /// May all sessions of a session's user have so much more memory together? Otherwise returns
    /// the limit. What counts is what [the sessions have](Engine::bytes_of), and what the user's
    /// programs have granted to the user's DMA engine.
    pub(crate) fn room_for_bytes(&self, session: u16, more: u64) -> Result<(), u64> {
        let (user, _) = self.of_user(session);
        let Some(most) = user.memory_bytes else { return Ok(()) };
        let others = user.granted_bytes.saturating_add(more);
        if self.bytes_of(user.uid).saturating_add(others) <= most { Ok(()) } else { Err(most) }
    }

    /// What the daemon maps, touches or keeps for a user's sessions: parts of arenas that are in
    /// use, memory that is lent, and modules.
    pub(crate) fn bytes_of(&self, uid: u32) -> u64 {
        let bytes = |of: &SessionQueues| of.usage.kept_bytes().saturating_add(of.arena_bytes());
        let mine = self.sessions.iter().flatten().filter(|of| of.user.uid == uid);
        mine.map(bytes).fold(0, u64::saturating_add)
    }

    /// Notes how many bytes a user's programs have granted to the user's DMA engine.
    pub(crate) fn set_granted(&mut self, uid: u32, bytes: u64) {
        for of in self.sessions.iter_mut().flatten().filter(|of| of.user.uid == uid) {
            of.user.granted_bytes = bytes;
        }
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

#[cfg(test)]
mod tests {
    use remora_nic::Config;

    use super::*;
    use crate::daemon::objects::{Ask, Pools};
    use crate::event::Event;
    use crate::message::{Object, Quotas};
    use crate::shared::Arena;
    use crate::shared::arena::{DATA, PAGE};
    use crate::wake_socket::Wake;

    /// An engine with a session of each of these users.
    fn engine(users: &[u32]) -> Engine {
        let mut engine = Engine::new().unwrap();
        for &uid in users {
            let (arena, file) = Arena::create(DATA + PAGE).unwrap();
            let events = (Event::new().unwrap(), Wake::new().unwrap());
            let session = engine.attach(arena, file, events, Quotas::default()).unwrap();
            engine.session(session).unwrap().user = User { uid, ..User::default() };
        }
        engine
    }

    #[test]
    fn however_much_some_users_take_others_have_room() {
        let mut engine = engine(&[7, 7, 8, 9]);
        let card = Config { max_ahs: 12, ..Config::new(std::net::Ipv4Addr::LOCALHOST.into()) };
        engine.pools = Pools::new(&card);
        let mut ahs = 0;
        let mut take_all = |engine: &mut Engine, session| {
            let before = ahs;
            while engine.admits(session, Ask::Other(Kind::Ah)).is_ok() {
                engine.own(session, Object::Ah(ahs), (0, None));
                ahs += 1;
            }
            ahs - before
        };
        // Sessions 0 and 1 are of one user, which has half of all by its first one.
        assert_eq!([0, 1, 2, 3].map(|session| take_all(&mut engine, session)), [6, 0, 3, 2]);
        assert_eq!(engine.admits(2, Ask::Other(Kind::Ah)), Err(3));
        assert_eq!(engine.admits(0, Ask::Qp), Ok(()), "it has enough of those");
        engine.disown(Object::Ah(0));
        assert_eq!(engine.admits(3, Ask::Other(Kind::Ah)), Err(2));
        assert_eq!(engine.objects.all.of(Kind::Ah), 10);
    }

    #[test]
    fn bytes_are_bounded_by_user() {
        let mut engine = engine(&[7, 7, 8]);
        let (page, most) = (PAGE as u64, 3 * PAGE as u64);
        for session in [0, 1] {
            engine.session(session).unwrap().user.memory_bytes = Some(most);
        }
        engine.take_ring(0, 64).unwrap();
        engine.own(0, Object::Lent(1), (page, None));
        assert_eq!(engine.room_for_bytes(1, page + 1), Err(most));
        assert_eq!(engine.room_for_bytes(1, page), Ok(()));
        engine.session(0).unwrap().usage.add_kernel(page);
        assert!(engine.take_ring(1, 64).is_err(), "a ring is bytes, too");
        assert_eq!(engine.room_for_bytes(2, u64::MAX), Ok(()), "its user has no limit");
        engine.disown(Object::Lent(1));
        assert!(engine.take_ring(1, 64).is_ok());
    }
}
