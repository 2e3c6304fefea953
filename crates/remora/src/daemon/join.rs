//! Clients that use a session beside its first one: forked children, and processes that were given
//! the command descriptor of an open device.

use super::lent::has_few_descriptors;
use super::server::Server;
use crate::message::Join;

/// The most connections of one session.
const GUESTS: usize = 256;

impl Server {
    /// The session that a client of user `uid` joins.
    pub(super) fn join(&self, uid: u32, join: &Join) -> Result<u32, String> {
        let held = self.sessions.get(&join.session).filter(|held| held.admits(uid, &join.token));
        held.map(|held| held.number).ok_or_else(|| "there is no such session to be joined".into())
    }

    /// The session, if another process may join it.
    pub(super) fn room_for_guest(&self, session: u32) -> Result<u32, String> {
        match self.clients.of_session(session).len() {
            GUESTS.. => Err(format!("{GUESTS} processes have the session, which is the most")),
            // Each takes some, and one user's could take all.
            _ if self.policy.shares() && has_few_descriptors() => Err(
                "the daemon keeps its last descriptors for other users: give it a higher limit \
                 (ulimit -n)"
                    .into(),
            ),
            _ => Ok(session),
        }
    }

    /// Ends the connections of all that have a session, or have lost it just now.
    pub(super) fn drop_clients(&mut self, session: u32, reason: &str) {
        for client in self.clients.of_session(session) {
            self.drop_client(client, Some(reason));
        }
    }
}
