//! What the daemon answers to a client's requests.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::clients::Then;
use super::dma::{Asker, Later};
use super::engine::{Engine, zeroed};
use super::fd_store::Part;
use super::guarded::Guarded;
use super::lent::{FEW_DESCRIPTORS, LOANS_MAX, Lent, has_few_descriptors};
use super::objects::{Ask, Kind};
use super::policy::Rule;
use super::server::Server;
use super::session_queues::SessionQueues;
use super::sessions::Session;
use crate::commands::{Command, dispatch};
use crate::driver::Own;
use crate::impair::Impairments;
use crate::message::{
    Answer, CardInfo, ClientRequest, DmaRequest, Keep, KernelAnswer, Loan, Object, PassStatus,
    SessionStatus, StatusPage, decode, encode,
};

/// Sessions in one answer.
const PAGE: usize = 64;

/// The most files of a session that are kept open, so that others can map them.
const FILES: usize = 16;
/// The same for a session that is kept, whose memory another process may take over.
pub(super) const KEPT_FILES: usize = 64;

/// Why a request is not carried out.
pub(super) type Refusal = String;

impl Server {
    /// Sends an answer. A client that does not read is dropped.
    pub(super) fn send(
        &mut self,
        number: u32,
        answer: &Answer<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Then {
        let message = encode(answer);
        if self.waits_for_store(number, &message, descriptors) {
            return Then::Stay;
        }
        self.send_bytes(number, &message, descriptors)
    }

    pub(super) fn send_bytes(
        &mut self,
        number: u32,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        match client.send(message, descriptors) {
            Ok(()) => Then::Stay,
            Err(error) => Then::Drop(format!("the answer cannot be sent: {error}")),
        }
    }

    pub(super) fn card(&self) -> CardInfo {
        let info = self.device.info();
        let (address, port, mtu) = (info.address, info.port, info.mtu.code());
        CardInfo { address, port, mtu, is_named: info.is_named }
    }

    pub(super) fn answer(
        &mut self,
        number: u32,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Then {
        let request = match decode::<ClientRequest<'_>>(message) {
            Ok(request) => request,
            Err(error) => return Then::Drop(error.to_string()),
        };
        let in_machine = self.clients.get(number).is_some_and(|client| client.is_in_machine());
        if in_machine && !is_for_machines(&request) {
            return self.send(number, &Answer::Refused(NOT_FOR_MACHINES), &[]);
        }
        let done = match request {
            ClientRequest::Command(bytes) => return self.command(number, bytes),
            ClientRequest::Lend(loan) => self.lend(number, loan, descriptors).map(Answer::Lent),
            ClientRequest::TakeBack(lent) => self.take_back(number, lent).map(|()| Answer::Done),
            ClientRequest::CompletionQueue(cq) => {
                let place = self
                    .with(number, |driver, slot| driver.engine.as_deref_mut()?.cq_place(slot, cq));
                let place = place.flatten().ok_or_else(|| "no such completion queue".to_owned());
                place.map(Answer::CompletionQueue)
            }
            ClientRequest::Describe(object) => return self.describe(number, object),
            ClientRequest::Objects(behind) => Ok(self.objects(number, behind)),
            ClientRequest::Gates => self.share_gates(number, descriptors).map(|()| Answer::Done),
            ClientRequest::Pass { qpn, key } => return self.answer_pass(number, qpn, key),
            ClientRequest::Counted { cq, count } => self.counted(number, cq, count),
            ClientRequest::OpenXrcd(how) => {
                self.open_xrcd(number, how, descriptors).map(Answer::Xrcd)
            }
            ClientRequest::Keep(keep) => match self.held(number) {
                Some(slot) => {
                    let keep = self.policy.rule(self.sessions[&slot].uid).keep(keep);
                    self.sessions.entry(slot).and_modify(|held| held.keep = keep);
                    self.keep_stored(slot);
                    Ok(Answer::Done)
                }
                None => Err(NO_SESSION.to_owned()),
            },
            ClientRequest::Status(from) => Ok(Answer::Status(self.status(number, from))),
            ClientRequest::Regions(session, from) => Ok(self.regions(number, session, from)),
            ClientRequest::Passes => Ok(Answer::Passes(self.passes(number))),
            ClientRequest::DmaClients(from) => Ok(self.dma_clients(number, from)),
            ClientRequest::Kernel(request) => match self.kernel(number, request, descriptors) {
                Some(done) => done.map(Answer::Kernel),
                None => return Then::Stay,
            },
            ClientRequest::Dma(request) => return self.dma(number, request, descriptors),
            ClientRequest::Evict(name) => self.evict(number, name).map(|()| Answer::Done),
            ClientRequest::Impair(text) => self.impair(number, text).map(|()| Answer::Done),
        };
        match done {
            Ok(answer) => self.send(number, &answer, &[]),
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        }
    }

    /// Answers a client that has waited, and looks at it again.
    pub(super) fn go_on_with(&mut self, number: u32, done: Result<KernelAnswer, Refusal>) {
        self.resume(number);
        let then = match done {
            Ok(answer) => self.send(number, &Answer::Kernel(answer), &[]),
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        };
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
        if let Command::AllocDm { len } = command
            && self.gets_ready(number, len, bytes)
        {
            return Then::Stay;
        }
        let result = self.with(number, |driver, slot| {
            Guarded::new(driver, slot).map(|mut card| dispatch(&mut card, command))
        });
        match result.flatten() {
            Some(result) => self.send(number, &Answer::Result(&result), &[]),
            None => Then::Drop(NO_SESSION.into()),
        }
    }

    /// Has device memory of the client's session be pieces of its user's card memory, and the next
    /// of them zeroed for the command in `bytes`: by another thread, since it takes time, and other
    /// programs of the user have the memory, too. Returns whether the client waits for that; then
    /// its command is carried out when the piece is ready.
    fn gets_ready(&mut self, number: u32, len: u64, bytes: &[u8]) -> bool {
        let held = self.held(number).and_then(|of| self.sessions.get(&of));
        let Some((uid, slot)) = held.filter(|of| !of.is_machine).map(|of| (of.uid, of.slot)) else {
            return false;
        };
        let had_memory = self.dma.memory(uid).is_some();
        let card = match self.dma.card_for(uid, self.policy.rule(uid)) {
            Ok(card) => card,
            Err(reason) => {
                tracing::warn!(uid, reason, "a user has no card memory");
                return false;
            }
        };
        if !had_memory {
            self.store_card(uid);
        }
        let is_full = card.pieces() >= self.policy.rule(uid).pieces as usize;
        let wanted = self.device.live.command_own(|driver| {
            let engine = driver.engine.as_deref_mut()?;
            engine.admits(slot, Ask::Other(Kind::Dm)).ok()?;
            let of = engine.session(slot)?;
            if of.dm.is_empty() {
                of.card = Some(card);
            }
            let is_ready = of.ready().as_ref().is_some_and(|(of_len, _)| *of_len == len);
            let card = of.card.clone().filter(|_| !is_ready && !is_full);
            card.map(|card| (card, Arc::clone(&of.ready)))
        });
        let Some((card, ready)) = wanted else { return false };
        let work = move || {
            let piece = zeroed(&card, len);
            *ready.lock().unwrap_or_else(PoisonError::into_inner) = Some((len, piece));
        };
        let message = encode(&ClientRequest::Command(bytes));
        self.have_done(number, uid, message, Box::new(work));
        true
    }

    fn lend(&mut self, number: u32, loan: Loan, with: Vec<OwnedFd>) -> Result<u32, Refusal> {
        let Some(client) = self.clients.get(number) else { return Err(NO_SESSION.into()) };
        let (uid, pid) = (client.uid, client.living());
        let lender = self.policy.rule(uid).lender(uid, pid);
        let is_kept = self.held(number).is_some_and(|of| self.sessions[&of].keep != Keep::No);
        let file = with.first().map(AsFd::as_fd).filter(|_| self.store.is_some());
        let file = file.and_then(|file| file.try_clone_to_owned().ok());
        let is_scarce = has_few_descriptors();
        let lent = self.with(number, |driver, slot| {
            let Own { engine: Some(engine), memory, .. } = driver else {
                return Err(NO_SESSION.to_owned());
            };
            let is_last_way = is_last_way(engine, slot, loan);
            if !is_last_way {
                room_for_loan(engine, slot)?;
            }
            room_for_any(engine, loan, is_scarce)?;
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
            if !is_last_way && let Err(refusal) = room_for_bytes(engine, slot, amount) {
                lent.give_back(memory);
                return Err(refusal);
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
            let uid = of.user.uid;
            engine.disown(Object::Lent(lent));
            Ok((gone, uid))
        });
        // To unmap much takes time.
        let (gone, uid) = done.ok_or(NO_SESSION)??;
        self.closer(uid).close(gone);
        if let Some(session) = self.held(number) {
            self.unstore(session, Part::Lent(lent));
        }
        Ok(())
    }

    /// Carries out requests whose engines were in a call, if they are not any more.
    pub(super) fn answer_later(&mut self) {
        for Later { client, request, descriptors } in self.dma.take_later() {
            self.resume(client);
            if let Then::Drop(reason) = self.dma(client, request, descriptors) {
                self.drop_client(client, Some(&reason));
            }
        }
    }

    /// Answers a request to the DMA engine of the client's user.
    fn dma(&mut self, number: u32, request: DmaRequest, with: Vec<OwnedFd>) -> Then {
        let Some(client) = self.clients.get(number) else { return Then::Stay };
        let (uid, pid, living) = (client.uid, client.pid, client.living().is_some());
        let sessions = self.sessions.values().filter(|held| held.uid == uid).count();
        let changes_bytes = matches!(request, DmaRequest::Grant { .. } | DmaRequest::Revoke(_));
        let session_bytes = if changes_bytes { self.session_bytes(uid) } else { 0 };
        let who = Asker { client: number, uid, pid, living, sessions, session_bytes };
        let had_memory = self.dma.memory(uid).is_some();
        let answered = self.dma.answer(who, self.policy.rule(uid), request, with);
        if !had_memory {
            self.store_card(uid);
        }
        if changes_bytes {
            self.note_granted(uid);
        }
        let Some(answered) = answered else {
            self.pause(number);
            return Then::Stay;
        };
        match answered {
            Ok((answer, descriptors)) => {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                self.send(number, &Answer::Dma(answer), &descriptors)
            }
            Err(refusal) => self.send(number, &Answer::Refused(&refusal), &[]),
        }
    }

    /// What counts of a user's sessions for the bytes that the user may have.
    fn session_bytes(&self, uid: u32) -> u64 {
        self.device
            .live
            .command_own(|driver| driver.engine.as_deref().map_or(0, |engine| engine.bytes_of(uid)))
    }

    /// Tells a user's sessions how many bytes the user's programs have granted to the DMA engine,
    /// which count for the same limit.
    pub(super) fn note_granted(&self, uid: u32) {
        let bytes = self.dma.granted(uid);
        self.device.live.command_own(|driver| {
            if let Some(engine) = driver.engine.as_deref_mut() {
                engine.set_granted(uid, bytes);
            }
        });
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
            let Own { engine: Some(engine), nic, clock, .. } = driver else { return Vec::new() };
            let page = seen.by_ref().take(PAGE);
            page.filter_map(|held| {
                let of = engine.session(held.slot)?;
                let lossy = of.lossy_connections(nic, *clock);
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

/// Is it the only loan of all memory of the session's process in this way? A session has such a
/// one beside its quota: by it the card reaches what can no more be lent piece by piece.
fn is_last_way(engine: &mut Engine, slot: u16, loan: Loan) -> bool {
    let is_of_process = matches!(loan, Loan::Process | Loan::ProcessFile);
    let of = engine.session(slot).filter(|_| is_of_process);
    of.is_some_and(|of| of.lent.values().all(|lent| lent.loan != loan))
}

/// May the session lend another piece of memory?
fn room_for_loan(engine: &mut Engine, slot: u16) -> Result<(), Refusal> {
    if let Err(limit) = engine.admits(slot, Ask::Lent(0)) {
        return Err(format!("the session’s quota of {limit} loans of memory is used up"));
    }
    let (of_user, most) = engine.loans_of_user(slot);
    if of_user >= most {
        return Err(format!("all {most} loans of memory of the session’s user are used up"));
    }
    Ok(())
}

/// May it lend so many bytes?
fn room_for_bytes(engine: &mut Engine, slot: u16, bytes: u64) -> Result<(), Refusal> {
    let of_session = engine.admits(slot, Ask::Lent(bytes));
    of_session.map_err(|limit| format!("the session’s quota of {limit} bytes is used up"))?;
    let of_user = engine.room_for_bytes(slot, bytes);
    of_user.map_err(|limit| format!("the {limit} bytes of the session’s user are used up"))
}

/// Has the daemon room for another piece of memory?
fn room_for_any(engine: &Engine, loan: Loan, has_few_descriptors: bool) -> Result<(), Refusal> {
    if engine.loans() >= LOANS_MAX {
        return Err(format!(
            "all sessions together lend {LOANS_MAX} pieces of memory, which is all that the \
             daemon can have: take others back first"
        ));
    }
    if has_few_descriptors && loan != Loan::Sealed {
        return Err(FEW_DESCRIPTORS.into());
    }
    Ok(())
}

pub(super) const NO_SESSION: &str = "the client has no session";
pub(super) const NO_SUCH_SESSION: &str = "there is no session of this name and token";
const NOT_FOR_MACHINES: &str = "the program is in a virtual machine, which uses card memory and \
                                built-in kernels of its own session only";

/// May a client in a virtual machine ask this? It commands its own session. What concerns the
/// process that `pid` names, which is not the guest's, or other sessions, or the daemon, is not
/// for it.
fn is_for_machines(request: &ClientRequest<'_>) -> bool {
    matches!(
        request,
        ClientRequest::Command(_)
            | ClientRequest::CompletionQueue(_)
            | ClientRequest::Describe(_)
            | ClientRequest::Objects(_)
            | ClientRequest::Keep(_)
            | ClientRequest::Kernel(_)
    )
}

pub(super) fn no_descriptors(error: std::io::Error) -> Refusal {
    format!("the daemon has no descriptors: {error}")
}

/// The session's number that is written with a percent sign, which no name looks like.
pub(super) fn number_after_sign(text: &str) -> Option<u32> {
    text.strip_prefix('%').and_then(number_of)
}

/// The number that is written in digits alone.
pub(super) fn number_of(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// May user `uid` see and end what is user `of`'s?
pub(super) fn may_see(uid: u32, of: u32) -> bool {
    uid == of || uid == 0 || uid == rustix::process::geteuid().as_raw()
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
        arena_bytes: of.arena_bytes(),
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
