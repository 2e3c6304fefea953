//! What the daemon answers to a client's requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use remora_nic::Nic;
use remora_nic::wire::Dialect;

use super::clients::Then;
use super::dma::Asker;
use super::engine::{Engine, zeroed};
use super::fd_store::Part;
use super::guarded::Guarded;
use super::lent::{LOANS_MAX, Lender, Lent, has_few_descriptors};
use super::objects::Ask;
use super::policy::Rule;
use super::running::client_of;
use super::server::Server;
use super::session_queues::{SessionQueues, User};
use super::sessions::Session;
use crate::commands::{Command, dispatch};
use crate::driver::Own;
use crate::event::Event;
use crate::impair::Impairments;
use crate::message::{
    Answer, CardInfo, DmaRequest, Hello, Keep, KernelAnswer, Loan, MessageError, NAME_MAX, Object,
    PassStatus, Request, SessionStatus, SessionToken, StatusPage, Welcome, decode, encode,
    of_other_version, parse_greeting,
};
use crate::shared::Arena;
use crate::wake_pipe::Wake;

/// Sessions in one answer.
const PAGE: usize = 64;

/// The most files of a session that are kept open, so that others can map them.
const FILES: usize = 16;
/// The same for a session that is kept, whose memory another process may take over.
pub(super) const KEPT_FILES: usize = 64;

/// The most connections of one user that have no session: they ask, or use card memory.
pub(super) const OBSERVERS: usize = 128;

/// Why a request is not carried out.
type Refusal = String;

impl Server {
    /// Sends an answer. A client that does not read is dropped.
    pub(super) fn send(
        &mut self,
        number: u32,
        answer: &Answer<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        match client.send(&encode(answer), descriptors) {
            Ok(()) => Then::Stay,
            Err(error) => Then::Drop(format!("the answer cannot be sent: {error}")),
        }
    }

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
        let rule = *self.policy.rule(uid);
        if !rule.attach {
            return Then::Drop(format!("user {uid} may not attach: the daemon’s policy says so"));
        }
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
        let session = match session {
            Ok(session) => session,
            Err(refusal) => return Then::Drop(refusal),
        };
        self.welcome(number, session)
    }

    /// The name of a new session: the one that the client wants, or one made for its process.
    pub(super) fn free_name(
        &self,
        (uid, pid): (u32, i32),
        wanted: Option<&str>,
    ) -> Result<String, Refusal> {
        let taken = |name: &str| self.sessions.values().any(|h| h.uid == uid && h.name == name);
        let name = match wanted {
            Some(name) => checked_name(name)?,
            // A process may have several.
            None => match default_name(pid) {
                name if taken(&name) => format!("{name}.{}", self.last_session.wrapping_add(1)),
                name => name,
            },
        };
        if taken(&name) {
            return Err(format!(
                "a session of the name {name} is there: show its token to take it over, or end it \
                 (remora nic evict {name})"
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
        if hello.anew {
            self.end_former(uid, hello.name.as_deref());
        }
        let rule = self.rule_of_another(uid)?;
        let name = self.free_name((uid, pid), hello.name.as_deref())?;
        let room = usize::try_from(rule.quotas.arena_bytes).unwrap_or(usize::MAX);
        let (arena, file) = Arena::create(room).map_err(|error| error.to_string())?;
        let doorbell = Event::new().map_err(no_descriptors)?;
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
        self.last_session = self.last_session.wrapping_add(1);
        let number = self.last_session;
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
        self.keep_stored(number);
        Ok(number)
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
        let session = found.map(|held| held.number).ok_or(NO_SUCH_SESSION)?;
        self.hand_over(session, client, pid, hello.keep)?;
        Ok(session)
    }

    /// Gives the client a session that it may have, with all that is in it.
    pub(super) fn hand_over(
        &mut self,
        session: u32,
        client: u32,
        pid: i32,
        keep: Keep,
    ) -> Result<(), Refusal> {
        // Who got in beside the former client does not do so beside this one.
        let share = new_token()?;
        let held = self.sessions.get_mut(&session).ok_or(NO_SUCH_SESSION)?;
        // The former client may still look at its pipe, and would take wake-ups from this one.
        let wake = Wake::new().map_err(no_descriptors)?;
        let old = held.take_over(client, pid);
        held.share = share;
        held.keep = self.policy.rule(held.uid).keep(keep);
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

    pub(super) fn welcome(&mut self, number: u32, session: u32) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        client.session = Some(session);
        let Some(held) = self.sessions.get(&session) else { return Then::Stay };
        let slot = held.slot;
        let (share, epoch) = (held.share, held.epoch);
        // A process that has joined neither takes the session over nor learns what is in it.
        let is_guest = held.client != Some(number);
        let token = if is_guest { SessionToken::default() } else { held.token };
        let gathered = self.device.live.command_own(|driver| gather(driver, slot));
        let (quotas, objects, descriptors) = match gathered {
            Ok(gathered) => gathered,
            Err(refusal) => return Then::Drop(refusal),
        };
        let welcome = Welcome {
            session,
            token,
            share,
            epoch,
            quotas,
            card: self.card(),
            clock_start_ns: self.device.live.clock.start_ns(),
            now_ns: self.device.live.clock.now().0,
            objects: if is_guest { Vec::new() } else { objects },
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.send(number, &Answer::Welcome(welcome), &descriptors)
    }

    fn card(&self) -> CardInfo {
        let info = self.device.info();
        CardInfo { address: info.address, port: info.port, mtu: info.mtu.code() }
    }

    pub(super) fn answer(
        &mut self,
        number: u32,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Then {
        let request = match decode::<Request<'_>>(message) {
            Ok(request) => request,
            Err(error) => return Then::Drop(error.to_string()),
        };
        let in_machine = self.clients.get(number).is_some_and(|client| client.is_in_machine());
        if in_machine && !is_for_machines(&request) {
            return self.send(number, &Answer::Refused(NOT_FOR_MACHINES), &[]);
        }
        let done = match request {
            Request::Command(bytes) => return self.command(number, bytes),
            Request::Lend(loan) => self.lend(number, loan, descriptors).map(Answer::Lent),
            Request::TakeBack(lent) => self.take_back(number, lent).map(|()| Answer::Done),
            Request::CompletionQueue(cq) => {
                let place = self
                    .with(number, |driver, slot| driver.engine.as_deref_mut()?.cq_place(slot, cq));
                let place = place.flatten().ok_or_else(|| "no such completion queue".to_owned());
                place.map(Answer::CompletionQueue)
            }
            Request::Describe(object) => return self.describe(number, object),
            Request::Gates => self.share_gates(number, descriptors).map(|()| Answer::Done),
            Request::Pass { qpn, key } => return self.answer_pass(number, qpn, key),
            Request::Counted { cq, count } => self.counted(number, cq, count),
            Request::OpenXrcd(how) => self.open_xrcd(number, how, descriptors).map(Answer::Xrcd),
            Request::Keep(keep) => match self.held(number) {
                Some(slot) => {
                    let keep = self.policy.rule(self.sessions[&slot].uid).keep(keep);
                    self.sessions.entry(slot).and_modify(|held| held.keep = keep);
                    self.keep_stored(slot);
                    Ok(Answer::Done)
                }
                None => Err(NO_SESSION.to_owned()),
            },
            Request::Status(from) => Ok(Answer::Status(self.status(number, from))),
            Request::Regions(session, from) => Ok(self.regions(number, session, from)),
            Request::Passes => Ok(Answer::Passes(self.passes(number))),
            Request::DmaClients(from) => Ok(self.dma_clients(number, from)),
            Request::Kernel(request) => match self.kernel(number, request, descriptors) {
                Some(done) => done.map(Answer::Kernel),
                None => return Then::Stay,
            },
            Request::Dma(request) => return self.dma(number, request, descriptors),
            Request::Evict(name) => self.evict(number, name).map(|()| Answer::Done),
            Request::Impair(text) => self.impair(number, text).map(|()| Answer::Done),
        };
        match done {
            Ok(answer) => self.send(number, &answer, &[]),
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        }
    }

    /// Answers a client that has waited, and looks at it again.
    pub(super) fn go_on_with(&mut self, number: u32, done: Result<KernelAnswer, Refusal>) {
        let then = match done {
            Ok(answer) => self.send(number, &Answer::Kernel(answer), &[]),
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        };
        self.resume(number);
        if let Then::Drop(reason) = then {
            self.drop_client(number, Some(&reason));
        }
    }

    /// The number of the client's session.
    pub(super) fn held(&mut self, client: u32) -> Option<u32> {
        let session = self.clients.get(client)?.session?;
        self.sessions.contains_key(&session).then_some(session)
    }

    /// Commands the card, for the client's session; `None` if it has none.
    pub(super) fn with<R>(
        &mut self,
        client: u32,
        act: impl FnOnce(&mut Own, u16) -> R,
    ) -> Option<R> {
        let session = self.held(client)?;
        self.with_session(session, act)
    }

    /// Commands the card, for a session; `None` if it has ended.
    pub(super) fn with_session<R>(
        &mut self,
        session: u32,
        act: impl FnOnce(&mut Own, u16) -> R,
    ) -> Option<R> {
        let slot = self.sessions.get(&session)?.slot;
        Some(self.device.live.command_own(|driver| act(driver, slot)))
    }

    fn command(&mut self, number: u32, bytes: &[u8]) -> Then {
        let Ok(command) = decode::<Command<'_>>(bytes) else {
            return Then::Drop("the command cannot be read".into());
        };
        if let Command::AllocDm { len } = command {
            self.give_card(number, len);
        }
        let result = self.with(number, |driver, slot| {
            Guarded::new(driver, slot).map(|mut card| dispatch(&mut card, command))
        });
        match result.flatten() {
            Some(result) => self.send(number, &Answer::Result(&result), &[]),
            None => Then::Drop(NO_SESSION.into()),
        }
    }

    /// Has device memory of the client's session be pieces of its user's card memory, and gets the
    /// next of them ready: to zero it takes time, in which the card is free for others.
    fn give_card(&mut self, number: u32, len: u64) {
        let held = self.held(number).and_then(|of| self.sessions.get(&of));
        let Some((uid, slot)) = held.filter(|of| !of.is_machine).map(|of| (of.uid, of.slot)) else {
            return;
        };
        let had_memory = self.dma.memory(uid).is_some();
        let card = match self.dma.card_for(uid, self.policy.rule(uid)) {
            Ok(card) => card,
            Err(reason) => return tracing::warn!(uid, reason, "a user has no card memory"),
        };
        if !had_memory {
            self.store_card(uid);
        }
        let may_have = self.device.live.command_own(|driver| {
            let engine = driver.engine.as_deref_mut()?;
            engine.admits(slot, Ask::Other).ok()?;
            let of = engine.session(slot)?;
            if of.dm.is_empty() {
                of.card = Some(card.clone());
            }
            of.card.as_ref().map(|_| ())
        });
        let Some(piece) = may_have.and_then(|()| zeroed(&card, len)) else { return };
        self.device.live.command_own(|driver| {
            if let Some(of) = driver.engine.as_deref_mut().and_then(|all| all.session(slot)) {
                of.ready = Some((len, piece));
            }
        });
    }

    fn lend(&mut self, number: u32, loan: Loan, with: Vec<OwnedFd>) -> Result<u32, Refusal> {
        let Some(client) = self.clients.get(number) else { return Err(NO_SESSION.into()) };
        let (uid, pid) = (client.uid, client.living());
        let may_lend_process_file = self.policy.rule(uid).lend_process_memory;
        let lender = Lender { pid, uid, may_lend_process_file };
        let is_kept = self.held(number).is_some_and(|of| self.sessions[&of].keep != Keep::No);
        let file = with.first().map(AsFd::as_fd).filter(|_| self.store.is_some());
        let file = file.and_then(|file| file.try_clone_to_owned().ok());
        let is_scarce = has_few_descriptors();
        let lent = self.with(number, |driver, slot| {
            let Own { engine: Some(engine), memory, .. } = driver else {
                return Err(NO_SESSION.to_owned());
            };
            room_for_loan(engine, (slot, loan), is_scarce)?;
            let taken = Lent::take(loan, with, lender, memory);
            let mut lent = taken.map_err(|error| error.to_string())?;
            let files = engine.session(slot).map_or(KEPT_FILES, |of| of.lent.len());
            let most = match (is_kept, engine.passes.has(slot)) {
                (true, _) => KEPT_FILES,
                (false, true) => FILES,
                (false, false) => 0,
            };
            if files >= most || is_scarce {
                lent.close_file();
            }
            let amount = lent.quota_bytes();
            if let Err(limit) = engine.admits(slot, Ask::Lent(amount)) {
                lent.give_back(memory);
                return Err(format!("the session’s quota of {limit} bytes is used up"));
            }
            Ok(engine.add_lent(slot, lent))
        });
        let lent = lent.ok_or(NO_SESSION)??;
        if let Some((session, file)) = self.held(number).zip(file) {
            self.store_lent(session, lent, loan, file.as_fd());
        }
        Ok(lent)
    }

    fn take_back(&mut self, number: u32, lent: u32) -> Result<(), Refusal> {
        let done = self.with(number, |driver, slot| {
            let Own { engine: Some(engine), memory, .. } = driver else {
                return Err(NO_SESSION.to_owned());
            };
            let of = engine.session(slot).ok_or(NO_SESSION)?;
            let users = of.lent.get(&lent).ok_or("no such memory")?.users;
            if users > 0 {
                return Err(format!("{users} regions are in the memory: deregister them first"));
            }
            let gone = of.lent.remove(&lent).ok_or("no such memory")?;
            gone.give_back(memory);
            engine.disown(Object::Lent(lent));
            Ok(gone)
        });
        // Outside the card's lock: to unmap much takes time.
        drop(done.ok_or(NO_SESSION)??);
        if let Some(session) = self.held(number) {
            self.unstore(session, Part::Lent(lent));
        }
        Ok(())
    }

    /// Answers a request to the DMA engine of the client's user.
    fn dma(&mut self, number: u32, request: DmaRequest, with: Vec<OwnedFd>) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        let (uid, pid, living) = (client.uid, client.pid, client.living().is_some());
        let sessions = self.sessions.values().filter(|held| held.uid == uid).count();
        let who = Asker { client: number, uid, pid, living, sessions };
        let had_memory = self.dma.memory(uid).is_some();
        let answered = self.dma.answer(who, self.policy.rule(uid), request, with);
        if !had_memory {
            self.store_card(uid);
        }
        match answered {
            Ok((answer, descriptors)) => {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                self.send(number, &Answer::Dma(answer), &descriptors)
            }
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        }
    }

    /// Notes completions of requests that a client has carried out itself.
    fn counted(&mut self, number: u32, cq: u32, count: u64) -> Result<Answer<'static>, Refusal> {
        let counted = self.with(number, |driver, slot| {
            let engine = driver.engine.as_deref_mut()?;
            let is_its = engine.objects.holds(slot, Object::Cq(cq));
            is_its.then(|| driver.nic.count_completions(cq, count))
        });
        counted.flatten().map(|()| Answer::Done).ok_or_else(|| "no such completion queue".into())
    }

    fn evict(&mut self, number: u32, name: &str) -> Result<(), Refusal> {
        let Some(client) = self.clients.get(number) else { return Ok(()) };
        let uid = client.uid;
        let by_number = name.parse().ok();
        let held = self.sessions.values().find(|held| {
            may_see(uid, held.uid) && (held.name == name || by_number == Some(held.number))
        });
        let Some(held) = held else { return Err(format!("there is no session {name}")) };
        let session = held.number;
        self.end_session_now(session);
        self.drop_clients(session, "the session was ended (remora nic evict)");
        Ok(())
    }

    /// Changes what the card does to packets, if the client is of the daemon's own user, or root.
    fn impair(&mut self, number: u32, text: &str) -> Result<(), Refusal> {
        let Some(client) = self.clients.get(number) else { return Ok(()) };
        if client.uid != 0 && client.uid != rustix::process::geteuid().as_raw() {
            return Err("only the user of the daemon, and root, may impair its card".to_owned());
        }
        let wanted = text.parse::<Impairments>().map_err(|error| error.to_string())?;
        self.device.impair(&wanted).map_err(|error| format!("cannot impair the card: {error}"))
    }

    /// Sessions from number `from` on, as far as one answer has room.
    fn status(&mut self, number: u32, from: u32) -> StatusPage {
        let uid = self.clients.get(number).map_or(u32::MAX, |client| client.uid);
        let now = Instant::now();
        let (card, live, policy) = (self.card(), &self.device.live, &self.policy);
        let seen = self.sessions.range(from..).map(|(_, held)| held);
        let mut seen = seen.filter(|held| may_see(uid, held.uid));
        let sessions = live.command_own(|driver| {
            let Own { engine: Some(engine), nic, .. } = driver else { return Vec::new() };
            let page = seen.by_ref().take(PAGE);
            page.filter_map(|held| {
                let of = engine.session(held.slot)?;
                let lossy = of.sides.keys().filter(|qpn| speaks_lossy(nic, **qpn)).count() as u32;
                let status = describe(policy.rule(held.uid), held, of, now);
                Some(SessionStatus { lossy, ..status })
            })
            .collect()
        });
        let (impaired, is_impaired) = live.command_own(|driver| {
            (driver.impair_counters().map(|(_, count)| count), driver.is_impaired())
        });
        StatusPage { card, sessions, more: seen.next().is_some(), impaired, is_impaired }
    }
}

/// What others than sessions' own clients want to know of what goes past the card.
impl Server {
    /// The passes of sessions that the client may see.
    fn passes(&mut self, number: u32) -> Vec<PassStatus> {
        let uid = self.clients.get(number).map_or(u32::MAX, |client| client.uid);
        let seen = self.sessions.values().filter(|held| may_see(uid, held.uid));
        let numbers: BTreeMap<u16, u32> = seen.map(|held| (held.slot, held.number)).collect();
        let counts = self.device.live.command_own(|driver| {
            driver.engine.as_deref().map(|engine| engine.passes.counts()).unwrap_or_default()
        });
        let rows = counts.into_iter().filter_map(|((sender, owner), passes)| {
            let (session, of) = (*numbers.get(&sender)?, *numbers.get(&owner)?);
            Some(PassStatus { session, of, passes })
        });
        rows.collect()
    }

    fn dma_clients(&mut self, number: u32, from: u32) -> Answer<'static> {
        let uid = self.clients.get(number).map_or(u32::MAX, |client| client.uid);
        let (clients, more) = self.dma.clients(from, |of| may_see(uid, of));
        Answer::DmaClients { clients, more }
    }
}

/// May the session lend another piece of memory?
fn room_for_loan(
    engine: &mut Engine,
    (slot, loan): (u16, Loan),
    has_few_descriptors: bool,
) -> Result<(), Refusal> {
    if let Err(limit) = engine.admits(slot, Ask::Lent(0)) {
        return Err(format!("the session’s quota of {limit} loans of memory is used up"));
    }
    let (of_user, most) = engine.loans_of_user(slot);
    if of_user >= most {
        return Err(format!("all {most} loans of memory of the session’s user are used up"));
    }
    if engine.loans() >= LOANS_MAX {
        return Err(format!(
            "all sessions together lend {LOANS_MAX} pieces of memory, which is all that the \
             daemon can have: take others back first"
        ));
    }
    if has_few_descriptors && loan != Loan::Sealed {
        return Err("the daemon keeps its last descriptors for other clients: lend memory files, \
                    or give the daemon a higher limit (ulimit -n)"
            .into());
    }
    Ok(())
}

pub(super) const NO_SESSION: &str = "the client has no session";
pub(super) const NO_SUCH_SESSION: &str = "there is no session of this name and token";
const NOT_FOR_MACHINES: &str = "the program is in a virtual machine, which uses card memory and \
                                built-in kernels of its own session only";

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

/// May a client in a virtual machine ask this? It commands its own session. What concerns the
/// process that `pid` names, which is not the guest's, or other sessions, or the daemon, is not
/// for it.
fn is_for_machines(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Command(_)
            | Request::CompletionQueue(_)
            | Request::Describe(_)
            | Request::Keep(_)
            | Request::Kernel(_)
    )
}

fn no_descriptors(error: std::io::Error) -> Refusal {
    format!("the daemon has no descriptors: {error}")
}

/// A token that nobody can guess.
pub(super) fn new_token() -> Result<SessionToken, Refusal> {
    let mut token = SessionToken::default();
    rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("the system has no random numbers: {error}"))?;
    Ok(token)
}

/// May user `uid` see and end what is user `of`'s?
pub(super) fn may_see(uid: u32, of: u32) -> bool {
    uid == of || uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// A session's quotas, objects and descriptors.
type Gathered = (crate::message::Quotas, Vec<Object>, [OwnedFd; 3]);

fn gather(driver: &mut Own, slot: u16) -> Result<Gathered, Refusal> {
    let engine = driver.engine.as_deref_mut().ok_or(NO_SESSION)?;
    let objects = engine.objects.of(slot);
    let of = engine.session(slot).ok_or(NO_SESSION)?;
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(no_descriptors);
    let descriptors = [copy(of.file.as_fd())?, copy(of.doorbell.as_fd())?, copy(of.wake.reader())?];
    Ok((of.quotas, objects, descriptors))
}

/// Gives a session its share of the card, and holds it to its rates.
pub(super) fn share(driver: &mut Own, slot: u16, (uid, rule): (u32, &Rule)) {
    if let Some(of) = driver.engine.as_deref_mut().and_then(|engine| engine.session(slot)) {
        of.user = User { uid, loans: rule.loans, groups: rule.groups, kernels: rule.kernels };
    }
    let (client, now) = (client_of(slot), driver.now());
    driver.nic.set_client_weight(client, rule.weight);
    if let Err(error) = driver.nic.set_client_limits(now, client, rule.rates) {
        tracing::error!(%error, "a session without its rates");
    }
}

/// Does the queue pair have a connection that speaks the lossy dialect?
fn speaks_lossy(nic: &Nic, qpn: u32) -> bool {
    nic.speaks(qpn).is_some_and(|what| what.contains(Dialect::LOSSY))
}

/// What a session is and uses, without its connections.
fn describe(rule: &Rule, held: &Session, of: &SessionQueues, now: Instant) -> SessionStatus {
    let usage = &of.usage;
    let ways = [Loan::Sealed, Loan::File, Loan::Process, Loan::ProcessFile];
    let pieces = |way| of.lent.values().filter(|lent| lent.loan == way).count() as u32;
    let lent = ways.map(|way| (way, pieces(way))).into_iter().filter(|(_, count)| *count > 0);
    SessionStatus {
        session: held.number,
        name: held.name.clone(),
        uid: held.uid,
        pid: held.pid,
        is_machine: held.is_machine,
        attached: held.client.is_some(),
        keep: held.keep,
        ends_in_s: held.ends.map(|ends| ends.saturating_duration_since(now).as_secs() as u32),
        epoch: held.epoch,
        queue_pairs: usage.count(Object::Qp(0)) + usage.count(Object::Srq(0)),
        lossy: 0,
        kernels: usage.kernels,
        completion_queues: usage.count(Object::Cq(0)),
        regions: usage.count(Object::Mr(0)) + usage.count(Object::Mw(0)),
        registered_bytes: usage.registered_bytes,
        arena_bytes: of.parts.used() as u64,
        lent: lent.collect(),
        ways: of.ways.iter().filter(|(_, n)| **n > 0).map(|(way, n)| (*way, *n)).collect(),
        posted: of.counters.posted,
        completed: of.counters.completed,
        bytes: of.counters.bytes,
        refused: of.counters.refused,
        quotas: of.quotas,
        rates: rule.rates,
        weight: rule.weight,
    }
}

/// A name that can be shown and typed.
fn checked_name(name: &str) -> Result<String, Refusal> {
    let fits = (1..=NAME_MAX).contains(&name.len());
    if fits && name.chars().all(|c| !c.is_control()) {
        return Ok(name.to_owned());
    }
    Err(format!("a session’s name has 1 to {NAME_MAX} bytes, none of which is a control character"))
}

/// The program's name, and the process's number.
fn default_name(pid: i32) -> String {
    let mut name = String::new();
    let comm = File::open(format!("/proc/{pid}/comm"));
    if let Ok(file) = comm {
        std::io::Read::read_to_string(&mut std::io::Read::take(file, 64), &mut name).ok();
    }
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    if name.is_empty() { format!("process-{pid}") } else { format!("{name}-{pid}") }
}
