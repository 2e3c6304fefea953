//! The sessions, as their clients know them: names, tokens, who has them, and what becomes of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fd_store::Part;
use super::record::Head;
use crate::kernel::MemoryShare;
use crate::kernel::builtin::Builtin;
use crate::message::{Keep, SessionToken};

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its number, which no other session ever has.
    pub(crate) number: u32,
    /// Its place in the engine.
    pub(crate) slot: u16,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    /// It is a virtual machine's, which `pid` runs.
    pub(crate) is_machine: bool,
    pub(crate) token: SessionToken,
    /// Entitles other processes of the user to use the session beside its client.
    pub(crate) share: SessionToken,
    /// How many clients it has had.
    pub(crate) epoch: u32,
    pub(crate) keep: Keep,
    /// The connection of its client; `None` if it is kept without one.
    pub(crate) client: Option<u32>,
    /// When it ends, if no client takes it over.
    pub(crate) ends: Option<Instant>,
    /// What of it is in the store of the service manager; nothing if it does not outlive the
    /// daemon.
    pub(crate) stored: BTreeSet<Part>,
    /// What the session's built-in kernels share.
    pub(crate) builtin: Option<Builtin>,
    /// What the instances of its modules have of the memory of all the user's.
    pub(crate) instances: Option<Arc<MemoryShare>>,
}

/// What becomes of a session whose client has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// It ends now.
    Ends,
    /// It is kept.
    Kept,
}

/// Why a client cannot have a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TakeError {
    /// There is no session of this name, or it is another user's, or the token is another one.
    None,
}

impl Session {
    /// The client has ended.
    pub(crate) fn leave(&mut self, now: Instant) -> Left {
        self.client = None;
        match self.keep {
            Keep::No | Keep::Seconds(0) => return Left::Ends,
            Keep::Seconds(seconds) => {
                self.ends = now.checked_add(Duration::from_secs(seconds.into()));
            }
            Keep::Forever => self.ends = None,
        }
        Left::Kept
    }

    /// Another client takes the session over; returns the connection of the one that it is taken
    /// from, if that one is still there.
    pub(crate) fn take_over(&mut self, client: u32, pid: i32) -> Option<u32> {
        self.epoch += 1;
        self.pid = pid;
        self.ends = None;
        self.client.replace(client)
    }

    /// May a client of user `uid` with this token take the session over?
    pub(crate) fn check(&self, uid: u32, token: &SessionToken) -> Result<(), TakeError> {
        if self.uid == uid && are_same(&self.token, token) { Ok(()) } else { Err(TakeError::None) }
    }

    /// May a client of user `uid` with this token use the session beside its client?
    pub(crate) fn admits(&self, uid: u32, token: &SessionToken) -> bool {
        self.uid == uid && self.client.is_some() && are_same(&self.share, token)
    }

    /// What outlives the daemon of this.
    pub(crate) fn head(&self) -> Head {
        Head {
            number: self.number,
            name: self.name.clone(),
            uid: self.uid,
            pid: self.pid,
            token: self.token,
            epoch: self.epoch,
            keep: self.keep,
        }
    }

    /// Has its time ended?
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.client.is_none() && self.ends.is_some_and(|ends| ends <= now)
    }
}

/// Compares tokens, in a time that does not depend on them.
fn are_same(one: &SessionToken, other: &SessionToken) -> bool {
    one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(keep: Keep) -> Session {
        Session {
            number: 1,
            slot: 0,
            name: "rank 0".into(),
            uid: 1000,
            pid: 1,
            is_machine: false,
            token: [7; 16],
            share: [9; 16],
            epoch: 1,
            keep,
            client: Some(3),
            ends: None,
            stored: BTreeSet::new(),
            builtin: None,
            instances: None,
        }
    }

    #[test]
    fn a_session_is_kept_as_long_as_was_asked() {
        let now = Instant::now();
        assert_eq!(held(Keep::No).leave(now), Left::Ends);
        assert_eq!(held(Keep::Seconds(0)).leave(now), Left::Ends);
        let mut forever = held(Keep::Forever);
        assert_eq!(forever.leave(now), Left::Kept);
        assert!(!forever.is_over(now + Duration::from_secs(1 << 30)));
        let mut minute = held(Keep::Seconds(60));
        assert!(!minute.is_over(now + Duration::from_secs(61)), "its client has it");
        assert_eq!(minute.leave(now), Left::Kept);
        assert!(!minute.is_over(now + Duration::from_secs(59)));
        assert!(minute.is_over(now + Duration::from_secs(60)));
    }

    #[test]
    fn the_same_user_with_the_token_takes_it_over() {
        let mut held = held(Keep::Seconds(60));
        assert_eq!(held.check(1000, &[7; 16]), Ok(()));
        assert_eq!(held.check(1001, &[7; 16]), Err(TakeError::None));
        assert_eq!(held.check(1000, &[8; 16]), Err(TakeError::None));
        assert!(held.admits(1000, &[9; 16]) && !held.admits(1001, &[9; 16]));
        assert!(!held.admits(1000, &[7; 16]), "each token is for one thing");
        assert_eq!(held.take_over(9, 77), Some(3), "the old client is fenced");
        assert_eq!((held.epoch, held.pid, held.client), (2, 77, Some(9)));
        let now = Instant::now();
        held.leave(now);
        assert!(!held.admits(1000, &[9; 16]), "there is no client to be beside");
        assert_eq!(held.take_over(10, 78), None);
        assert!(!held.is_over(now + Duration::from_secs(100)));
    }
}
