//! Sessions that are ended though their programs have them: by `remora nic evict`, and those whose
//! arenas have grown beyond what they may.

use std::time::{Instant, SystemTime};

use super::answers::{Refusal, may_see, number_after_sign, number_of};
use super::evicted::Evictor;
use super::server::Server;
use super::sessions::Session;

/// Arenas that are looked at under one lock.
const AT_A_TIME: usize = 64;
/// Why a session is ended whose arena has grown.
const OVERGROWN: &str = "the session was ended: its program has written to parts of the arena that \
                         it was not given";

impl Server {
    /// Ends the session that a text means.
    pub(super) fn evict(&mut self, number: u32, name: &str) -> Result<(), Refusal> {
        let Some(client) = self.clients.get(number) else { return Ok(()) };
        let by = Evictor { uid: client.uid, pid: client.living() };
        let session = self.named(by.uid, name)?;
        let reason = by.reason(SystemTime::now());
        if let Some(held) = self.sessions.get(&session) {
            self.evicted.add(held, &reason);
        }
        self.end_session_now(session);
        self.drop_clients(session, &reason);
        Ok(())
    }

    /// The only session that user `uid` may see and that `text` means: by its name, or by its
    /// number, with a percent sign before it or without.
    fn named(&self, uid: u32, text: &str) -> Result<u32, Refusal> {
        let number = number_after_sign(text).or_else(|| number_of(text));
        let is_meant = |held: &&Session| {
            let by_name = held.name == text && number_after_sign(text).is_none();
            may_see(uid, held.uid) && (by_name || number == Some(held.number))
        };
        let mut meant: Vec<&Session> = self.sessions.values().filter(is_meant).collect();
        meant.sort_unstable_by_key(|held| held.number);
        match meant[..] {
            [] => Err(format!("there is no session {text}")),
            [one] => Ok(one.number),
            [one, other, ..] => {
                let about = |held: &Session| {
                    format!("%{} (named {}, of user {})", held.number, held.name, held.uid)
                };
                let (count, one, other) = (meant.len(), about(one), about(other));
                Err(format!(
                    "{text} may mean {count} sessions, {one} and {other} among them: say which by \
                     its number, with the percent sign"
                ))
            }
        }
    }

    /// When arenas are to be looked at next, if there are any.
    pub(super) fn next_arena_watch(&self) -> Option<Instant> {
        (!self.sessions.is_empty()).then(|| self.arenas.next())
    }

    /// Ends the sessions whose arenas have grown beyond what they may. (A machine's is all of its
    /// device's memory, which its guest may use as it likes; there are as many devices as the
    /// daemon was told to have.)
    pub(super) fn end_overgrown(&mut self, now: Instant) {
        let Some(page) = self.arenas.begin(now) else { return };
        let held = self.sessions.values().filter(|held| !held.is_machine);
        let slots: Vec<(u32, u16)> = held.map(|held| (held.number, held.slot)).collect();
        for some in slots.chunks(AT_A_TIME) {
            let overgrown: Vec<u32> = self.device.live.command_own(|driver| {
                let Some(engine) = driver.engine.as_deref_mut() else { return Vec::new() };
                let mut is_over =
                    |slot| engine.session(slot).is_some_and(|of| of.is_overgrown(page));
                some.iter().filter(|(_, slot)| is_over(*slot)).map(|(number, _)| *number).collect()
            });
            for session in overgrown {
                self.end_session(session);
                self.drop_clients(session, OVERGROWN);
            }
        }
    }
}
