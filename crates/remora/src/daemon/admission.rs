//! Who may attach, and to which session: a new one, or one that is there already, as far as the
//! policy allows.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::answers::{NO_SESSION, NO_SUCH_SESSION, Refusal, no_descriptors, number_after_sign};
use super::clients::Then;
use super::policy::Rule;
use super::running::client_of;
use super::server::Server;
use super::session_queues::User;
use super::sessions::Session;
use crate::driver::Own;
use crate::event::Event;
use crate::message::{
    Answer, Hello, Keep, MessageError, NAME_MAX, Object, Quotas, SessionToken, Welcome,
    is_session_name, of_other_version, parse_greeting,
};
use crate::shared::Arena;
use crate::text::printable;
use crate::wake_socket::Wake;

/// The most connections of one user that have no session: they ask, or use card memory.
pub(super) const OBSERVERS: usize = 128;

/// A session to be added.
pub(super) struct Wanted {
    /// Its client.
    pub(super) client: u32,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) pid: i32,
    pub(super) keep: Keep,
    pub(super) is_machine: bool,
}

impl Server {
    pub(super) fn greet(&mut self, number: u32, message: &[u8]) -> Then {
        let hello = match parse_greeting(message) {
            Ok(hello) => hello,
            Err(error) => {
                if let (MessageError::Version { .. }, Some(client)) =
                    (error, self.clients.get(number))
                {
                    client.send(&of_other_version(), &[]).ok();
                }
                return Then::Drop(error.to_string());
            }
        };
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        client.greet_by = None;
        let (uid, pid) = (client.uid, client.pid);
        if hello.observer {
            if self.clients.observers(uid) > OBSERVERS {
                return Then::Drop(format!("user {uid} has {OBSERVERS} connections that ask only"));
            }
            return self.send(number, &Answer::Done, &[]);
        }
        let session = match (hello.join, hello.token) {
            (Some(join), _) => self
                .join(uid, &join)
                .and_then(|of| self.room_for_guest(of))
                .inspect(|of| self.end_passes_of(*of)),
            (None, Some(token)) => self.take_over(number, (uid, pid), &hello, &token),
            (None, None) => self.begin(number, (uid, pid), &hello),
        };
        let (takes_over, is_new) =
            (hello.token.is_some(), hello.token.is_none() && hello.join.is_none());
        match session {
            Ok(session) if is_new => self.welcome_to_new(number, session),
            Ok(session) => self.welcome(number, session, takes_over.then_some(hello.keep)),
            Err(refusal) => Then::Drop(refusal),
        }
    }

    /// Welcomes a client to a session that was made for it. If it does not hear of it, nobody knows
    /// the token: the session ends, even if it was to be kept.
    pub(super) fn welcome_to_new(&mut self, number: u32, session: u32) -> Then {
        let then = self.welcome(number, session, None);
        if let Then::Drop(_) = then {
            self.end_session(session);
        }
        then
    }

    /// The name of a new session: the one that the client wants, or one made for its process.
    pub(super) fn free_name(
        &self,
        (uid, pid): (u32, i32),
        wanted: Option<&str>,
    ) -> Result<String, Refusal> {
        let holder = |name: &str| self.sessions.values().find(|h| h.uid == uid && h.name == name);
        let name = match wanted {
            Some(name) => checked_name(name)?,
            // A process may have several.
            None => match default_name(pid) {
                name if holder(&name).is_some() => {
                    format!("{name}.{}", self.last_session.wrapping_add(1))
                }
                name => name,
            },
        };
        if let Some(held) = holder(&name) {
            return Err(format!(
                "a session of the name {name} is there: show its token to take it over, or end it \
                 (remora nic evict %{})",
                held.number
            ));
        }
        Ok(name)
    }

    /// What holds for another session of user `uid`.
    fn rule_of_another(&self, uid: u32) -> Result<Rule, Refusal> {
        let rule = *self.policy.rule(uid);
        let mine = self.sessions.values().filter(|held| held.uid == uid).count();
        let all = self.sessions.len();
        if all >= self.policy.sessions() as usize || mine >= rule.sessions as usize {
            return Err("there are as many sessions as the daemon’s policy allows".into());
        }
        Ok(rule)
    }

    /// Gives the client a new session; returns its number.
    fn begin(
        &mut self,
        client: u32,
        (uid, pid): (u32, i32),
        hello: &Hello,
    ) -> Result<u32, Refusal> {
        let (arena, file) = new_arena(&self.policy.rule(uid).quotas)?;
        let doorbell = Event::new().map_err(no_descriptors)?;
        // When there is room for the new one, so that none ends for nothing.
        if hello.anew {
            self.end_former(uid, hello.name.as_deref());
        }
        let name = self.free_name((uid, pid), hello.name.as_deref())?;
        let keep = hello.keep;
        let wanted = Wanted { client, name, uid, pid, keep, is_machine: false };
        self.add_session(wanted, (arena, file, doorbell))
    }

    /// Adds a session with this arena; returns its number.
    pub(super) fn add_session(
        &mut self,
        wanted: Wanted,
        (arena, file, doorbell): (Arena, OwnedFd, Event),
    ) -> Result<u32, Refusal> {
        let Wanted { client, name, uid, pid, keep, is_machine } = wanted;
        let rule = self.rule_of_another(uid)?;
        let tokens = (new_token()?, new_token()?);
        arena.set_epoch(1);
        let events = (doorbell, Wake::new().map_err(no_descriptors)?);
        let attached = self.device.live.command_own(|driver| {
            let engine = driver.engine.as_deref_mut()?;
            let slot = engine.attach(arena, file, events, rule.quotas);
            Some(slot.inspect(|slot| share(driver, *slot, (uid, &rule))))
        });
        let slot = match attached {
            Some(Ok(slot)) => slot,
            Some(Err(error)) => return Err(format!("the daemon cannot add a session: {error}")),
            None => return Err("the daemon ends".into()),
        };
        // If it sleeps, it must tell the new session so.
        self.device.live.background.wake();
        let number = self.free_session();
        let held = Session {
            number,
            slot,
            name,
            uid,
            pid,
            is_machine,
            token: tokens.0,
            share: tokens.1,
            epoch: 1,
            keep: rule.keep(keep),
            client: Some(client),
            ends: None,
            stored: BTreeSet::new(),
            builtin: None,
            instances: None,
        };
        tracing::info!(session = number, name = held.name, uid, pid, "a session begins");
        self.sessions.insert(number, held);
        self.note_granted(uid);
        self.keep_stored(number);
        Ok(number)
    }

    /// A number that no session has. They are given one after the other, so that none is given
    /// again soon: but there is an end to them, and sessions may be kept for ever.
    fn free_session(&mut self) -> u32 {
        loop {
            self.last_session = self.last_session.wrapping_add(1);
            if !self.sessions.contains_key(&self.last_session) {
                return self.last_session;
            }
        }
    }

    /// Gives the client a session that is there; returns its number.
    fn take_over(
        &mut self,
        client: u32,
        (uid, pid): (u32, i32),
        hello: &Hello,
        token: &SessionToken,
    ) -> Result<u32, Refusal> {
        let wanted = |held: &&mut Session| {
            hello.name.as_ref().is_none_or(|name| *name == held.name)
                && held.check(uid, token).is_ok()
        };
        let found = self.sessions.values_mut().find(wanted);
        let session = found.map(|held| held.number);
        let session =
            session.ok_or_else(|| self.evicted.reason(uid, token).unwrap_or(NO_SUCH_SESSION))?;
        self.hand_over(session, client, pid)?;
        Ok(session)
    }

    /// Gives the client a session that it may have, with all that is in it.
    pub(super) fn hand_over(&mut self, session: u32, client: u32, pid: i32) -> Result<(), Refusal> {
        // What got in beside the former client does not get in beside this one.
        let share = new_token()?;
        let held = self.sessions.get_mut(&session).ok_or(NO_SUCH_SESSION)?;
        // The former client may still look at its socket, and would take this one's wake-ups.
        let wake = Wake::new().map_err(no_descriptors)?;
        let old = held.take_over(client, pid);
        held.share = share;
        let (slot, epoch) = (held.slot, held.epoch);
        self.device.live.command_own(|driver| {
            if let Some(of) = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot)) {
                of.arena.set_epoch(epoch);
                of.wake = wake;
            }
        });
        self.end_passes_of(session);
        self.keep_stored(session);
        if old.is_some() {
            self.drop_clients(session, "another process has taken the session over");
        }
        Ok(())
    }

    /// Tells a client what is in its session. `keep` is how long one that it has taken over shall
    /// be kept behind it. That holds once the client can have all: if descriptors are short, the
    /// session stays as it was.
    pub(super) fn welcome(&mut self, number: u32, session: u32, keep: Option<Keep>) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        client.session = Some(session);
        let Some(held) = self.sessions.get(&session) else { return Then::Stay };
        let slot = held.slot;
        let (share, epoch) = (held.share, held.epoch);
        // A process that has joined neither takes the session over nor learns what is in it.
        let is_guest = held.client != Some(number);
        let token = if is_guest { SessionToken::default() } else { held.token };
        let gathered = self.device.live.command_own(|driver| gather(driver, slot, is_guest));
        let (quotas, objects, descriptors) = match gathered {
            Ok(gathered) => gathered,
            Err(refusal) => return Then::Drop(refusal),
        };
        if let Some(keep) = keep {
            self.keep_for(session, keep);
        }
        self.watch_process(number);
        let welcome = Welcome {
            session,
            token,
            share,
            epoch,
            quotas,
            card: self.card(),
            clock_start_ns: self.device.live.clock.start_ns(),
            now_ns: self.device.live.clock.now().0,
            more: objects.len() == OBJECTS,
            objects,
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.send(number, &Answer::Welcome(welcome), &descriptors)
    }
}

impl Server {
    /// Has a session kept behind its client as long as that one wants and the policy allows.
    fn keep_for(&mut self, session: u32, keep: Keep) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.keep = self.policy.rule(held.uid).keep(keep);
            self.keep_stored(session);
        }
    }
}

/// An arena as large as a session's quotas allow.
pub(super) fn new_arena(quotas: &Quotas) -> Result<(Arena, OwnedFd), Refusal> {
    let room = usize::try_from(quotas.arena_bytes).unwrap_or(usize::MAX);
    Arena::create(room).map_err(|error| error.to_string())
}

/// A token that nobody can guess.
pub(super) fn new_token() -> Result<SessionToken, Refusal> {
    let mut token = SessionToken::default();
    rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("the system has no random numbers: {error}"))?;
    Ok(token)
}

/// Objects in one answer.
pub(super) const OBJECTS: usize = 1024;

/// A session's quotas, objects and descriptors: the last one is that of the gates by which others
/// reached its memory before, if there are any. A guest gets neither objects nor gates.
type Gathered = (Quotas, Vec<Object>, Vec<OwnedFd>);

fn gather(driver: &mut Own, slot: u16, is_guest: bool) -> Result<Gathered, Refusal> {
    let engine = driver.engine.as_deref_mut().ok_or(NO_SESSION)?;
    let objects = engine.objects.page(slot, None, if is_guest { 0 } else { OBJECTS });
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(no_descriptors);
    let former = engine.passes.former_file(slot).filter(|_| !is_guest).map(copy).transpose()?;
    let of = engine.session(slot).ok_or(NO_SESSION)?;
    let shared = [of.file.as_fd(), of.doorbell.as_fd(), of.wake.reader()];
    let mut descriptors = shared.into_iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    descriptors.extend(former);
    Ok((of.quotas, objects, descriptors))
}

/// Gives a session its share of the card, and holds it to its rates.
pub(super) fn share(driver: &mut Own, slot: u16, (uid, rule): (u32, &Rule)) {
    if let Some(of) = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot)) {
        let Rule { loans, groups, kernels, kernel_steps, memory_bytes, .. } = *rule;
        let granted_bytes = 0;
        of.user = User { uid, loans, groups, kernels, kernel_steps, memory_bytes, granted_bytes };
    }
    let (client, now) = (client_of(slot), driver.now());
    driver.kernels(|kernels, _| kernels.set_user(client, uid));
    driver.nic.set_client_weight(client, rule.weight);
    if let Err(error) = driver.nic.set_client_limits(now, client, rule.rates) {
        tracing::error!(%error, "a session without its rates");
    }
}

/// A name that can be shown and typed, and that is no number to `remora nic evict`.
fn checked_name(name: &str) -> Result<String, Refusal> {
    if number_after_sign(name).is_some() {
        return Err(format!("{name} means a session’s number, and is no name: choose another one"));
    }
    if is_session_name(name) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "a session’s name has 1 to {NAME_MAX} bytes, of characters that a terminal shows as \
         themselves"
    ))
}

/// The program's name, and the process's number.
fn default_name(pid: i32) -> String {
    let mut name = String::new();
    let comm = File::open(format!("/proc/{pid}/comm"));
    if let Ok(file) = comm {
        std::io::Read::read_to_string(&mut std::io::Read::take(file, 64), &mut name).ok();
    }
    let name = printable(name.trim_end_matches('\n'));
    if name.is_empty() { format!("process-{pid}") } else { format!("{name}-{pid}") }
}
