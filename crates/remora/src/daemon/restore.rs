//! Takes up again what another daemon has left: sessions that are kept, with their card memory, the
//! memory files that they lend, their domains, and their regions under the same keys; and the card
//! memory that the programs of a user have together.
//!
//! All that is written down before the client has its answer, so that a daemon may be killed at any
//! moment. Kernels run again, too (`kept_kernels`). What cannot be made again is gone: queue pairs,
//! whose peers have seen their connection end, completion queues, windows, and regions in memory
//! that was reached by system calls in the client's process. A restored session waits for its
//! client, as one that is kept.
//!
//! Its arena is a new one, too: nothing that survives is in an arena, and a client of the daemon
//! before may not have looked since that one ended. What it finds in the arena that it has mapped
//! is what that daemon wrote last, and what it still writes there reaches nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use remora_nic::MrInit;
use rustix::event::epoll;

use super::admission::{new_arena, new_token, share};
use super::answers::KEPT_FILES;
use super::clients::Then;
use super::fd_store::{BehindStore, FdStore, Part, Stored, is_stored, name, parse};
use super::lent::{Lender, Lent};
use super::policy::Rule;
use super::record::{Entry, Head, Record};
use super::server::{STORE, Server};
use super::sessions::Session;
use crate::commands::Place;
use crate::driver::Own;
use crate::event::Event;
use crate::memory::reopened;
use crate::message::{Keep, Loan, Object};
use crate::wake_socket::Wake;

/// What a daemon has given back to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Sessions.
    pub sessions: u32,
    /// Regions of all of them.
    pub regions: u32,
    /// Sessions that could not be restored; the log says why.
    pub lost: u32,
}

/// The descriptors of one session.
pub(super) type Parts = BTreeMap<Part, OwnedFd>;

/// Why a session is lost.
type Refusal = String;

impl Server {
    /// Has kept sessions outlive this process in `store`, and gives back those that another daemon
    /// has left there: `descriptors` are what the service manager has passed, with their names. To
    /// be called before [`Server::run`].
    pub fn restore(
        &mut self,
        store: FdStore,
        descriptors: impl IntoIterator<Item = (String, OwnedFd)>,
    ) -> Restored {
        let mut sessions: BTreeMap<u32, Parts> = BTreeMap::new();
        let mut cards = Vec::new();
        for (name, descriptor) in descriptors {
            match parse(&name) {
                Some(Stored::Session(session, part)) => {
                    sessions.entry(session).or_default().insert(part, descriptor);
                }
                Some(Stored::User(uid)) => cards.push((uid, descriptor)),
                // Of a daemon of another version.
                None if is_stored(&name) => store.remove(&name),
                None => {}
            }
        }
        self.store = Some(store);
        for (uid, file) in cards {
            if let Err(reason) = self.dma.restore(uid, self.policy.rule(uid), file) {
                tracing::warn!(uid, reason, "a user’s card memory does not outlive the daemon");
                self.tell_store(Stored::User(uid), None);
            }
        }
        let mut restored = Restored::default();
        for (session, parts) in sessions {
            let stored: BTreeSet<Part> = parts.keys().copied().collect();
            self.last_session = self.last_session.max(session);
            match self.restore_session(session, parts) {
                Ok(regions) => {
                    restored.sessions += 1;
                    restored.regions += regions;
                }
                Err(reason) => {
                    tracing::warn!(session, reason, "a session does not outlive its daemon");
                    restored.lost += 1;
                    stored.into_iter().for_each(|part| {
                        self.tell_store(Stored::Session(session, part), None);
                    });
                }
            }
        }
        // Nobody is served yet.
        self.store.iter().for_each(FdStore::send_all);
        restored
    }

    /// Gives a session back; returns how many regions it has.
    fn restore_session(&mut self, session: u32, mut parts: Parts) -> Result<u32, Refusal> {
        let stored = parts.keys().copied().collect();
        let record = parts.remove(&Part::Record).ok_or("it has no record")?;
        let (mut record, head, entries) =
            Record::open(record).map_err(|error| error.to_string())?;
        let kernels = parts.split_off(&Part::Kernel(0, 0));
        let rule = *self.policy.rule(head.uid);
        if !rule.attach {
            return Err(format!("user {} may not attach any more", head.uid));
        }
        if head.number != session || head.keep == Keep::No {
            return Err("its record is that of another session".into());
        }
        let share = new_token()?;
        let (mut regions, mut lent) = (0, BTreeSet::new());
        let card = self.dma.card(head.uid);
        let slot = self.device.live.command_own(|driver| {
            let slot = attach(driver, &head, &rule)?;
            if let Some(of) = driver.engine.as_deref_mut().and_then(|e| e.session(slot)) {
                of.card = card;
            }
            let lost = fill(driver, slot, &head, &rule, (&entries, parts));
            lost.iter().for_each(|object| record.remove(*object));
            let is_region = |entry: &&Entry| matches!(entry.object(), Object::Mr(_));
            let lost = lost.iter().filter(|object| matches!(object, Object::Mr(_))).count();
            regions = entries.iter().filter(is_region).count() - lost;
            if let Some(of) = driver.engine.as_deref_mut().and_then(|e| e.session(slot)) {
                of.record = Some(record);
                lent.extend(of.lent.keys().copied());
            }
            Ok::<_, Refusal>(slot)
        })?;
        let Head { number, name, uid, pid, token, epoch, keep } = head;
        let (client, ends, builtin) = (None, None, None);
        let mut held = Session {
            number,
            slot,
            name,
            uid,
            pid,
            is_machine: false,
            token,
            share,
            epoch,
            keep,
            client,
            ends,
            stored,
            builtin,
            instances: None,
        };
        held.leave(Instant::now());
        tracing::info!(session, name = held.name, regions, "a session is restored");
        self.sessions.insert(number, held);
        self.unstore_all_but(number, &lent);
        self.restore_kernels(number, kernels);
        self.device.live.background.wake();
        Ok(regions as u32)
    }

    /// Has the store keep a session, or forget it, as its client wants now. A session that was not
    /// kept from its beginning does not outlive the daemon, and neither does that of a virtual
    /// machine, whose doorbells are this daemon's.
    pub(super) fn keep_stored(&mut self, session: u32) {
        let may = |held: &&mut Session| self.store.is_some() && !held.is_machine;
        let Some(held) = self.sessions.get_mut(&session).filter(may) else { return };
        let is_new = held.epoch == 1 && held.stored.is_empty();
        if held.keep == Keep::No {
            for part in std::mem::take(&mut held.stored) {
                self.tell_store(Stored::Session(session, part), None);
            }
            return;
        }
        let (head, slot) = (held.head(), held.slot);
        let record = self.device.live.command_own(|driver| {
            let of = driver.engine.as_deref_mut()?.session(slot)?;
            if is_new && of.record.is_none() {
                let record = Record::create(&head, &of.quotas);
                of.record = record.inspect_err(|error| tracing::warn!(%error, "no record")).ok();
                return of.record.as_ref()?.file().try_clone_to_owned().ok();
            }
            of.record.iter().for_each(|record| record.set_head(&head));
            None
        });
        if let Some(record) = record {
            self.put(session, Part::Record, record.as_fd());
        }
    }

    /// Has the store keep memory that a session lends, if it keeps the session.
    pub(super) fn store_lent(&mut self, session: u32, lent: u32, loan: Loan, file: BorrowedFd<'_>) {
        let is_stored = self.sessions.get(&session).is_some_and(|held| !held.stored.is_empty());
        if !is_stored || !matches!(loan, Loan::Sealed | Loan::File) {
            return;
        }
        // systemd keeps one of descriptors that share an open file description, under one name. The
        // same file may be lent twice.
        match file.try_clone_to_owned() {
            Ok(file) => self.put(session, Part::Lent(lent), reopened(file.into()).as_fd()),
            Err(error) => tracing::warn!(%error, "lent memory does not outlive the daemon"),
        }
    }

    /// Has the store forget a part of a session.
    pub(super) fn unstore(&mut self, session: u32, part: Part) {
        let held = self.sessions.get_mut(&session);
        if held.is_some_and(|held| held.stored.remove(&part)) {
            self.tell_store(Stored::Session(session, part), None);
        }
    }

    /// Has the store forget what a session lent and does not lend any more.
    fn unstore_all_but(&mut self, session: u32, lent: &BTreeSet<u32>) {
        let Some(held) = self.sessions.get(&session) else { return };
        let is_gone = |part: &Part| matches!(part, Part::Lent(number) if !lent.contains(number));
        let gone: Vec<Part> = held.stored.iter().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|part| self.unstore(session, part));
    }

    /// A session ends: the store forgets it, if there still is one. What is destroyed from now on
    /// is not written down.
    pub(super) fn forget(&self, held: &Session) {
        for part in &held.stored {
            self.tell_store(Stored::Session(held.number, *part), None);
        }
        self.device.live.command_own(|driver| {
            let engine = driver.engine.as_deref_mut();
            if let Some(of) = engine.and_then(|engine| engine.session(held.slot)) {
                of.record = None;
            }
        });
    }

    pub(super) fn put(&mut self, session: u32, part: Part, file: BorrowedFd<'_>) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.stored.insert(part);
        }
        self.tell_store(Stored::Session(session, part), Some(file));
    }

    /// Has the store keep a user's card memory.
    pub(super) fn store_card(&self, uid: u32) {
        if let Some(memory) = self.dma.memory(uid) {
            self.tell_store(Stored::User(uid), Some(memory));
        }
    }

    fn tell_store(&self, stored: Stored, file: Option<BorrowedFd<'_>>) {
        let name = name(stored);
        match (&self.store, file) {
            (Some(store), Some(file)) => store.put(&name, file),
            (Some(store), None) => store.remove(&name),
            (None, _) => {}
        }
    }
}

/// What the store has no room for.
impl Server {
    /// If the store has no room, waits for it. Returns whether that is so.
    pub(super) fn watch_store(&mut self) -> bool {
        let Some(store) = self.store.as_ref().filter(|store| store.is_full()) else { return false };
        if self.behind_store.is_none() {
            let data = epoll::EventData::new_u64(STORE);
            if let Err(error) = epoll::add(&self.poll, store, data, epoll::EventFlags::OUT) {
                tracing::error!(%error, "the service manager’s socket cannot be watched");
            }
            self.behind_store = Some(Vec::new());
        }
        true
    }

    /// What the store is told from now on belongs to another request.
    pub(super) fn begin_request(&mut self) {
        self.waited_before = self.store.as_ref().map_or(0, FdStore::waited);
    }

    /// Has an answer wait, and its client, until the store has taken what it was told for it;
    /// returns whether that is so.
    pub(super) fn waits_for_store(
        &mut self,
        number: u32,
        answer: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        let waited = self.store.as_ref().map_or(0, FdStore::waited);
        if waited == self.waited_before || !self.watch_store() {
            return false;
        }
        let copies = descriptors.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let Ok(descriptors) = copies else { return false };
        let answer = BehindStore { client: number, answer: answer.to_vec(), descriptors };
        self.behind_store.get_or_insert_default().push(answer);
        self.pause(number);
        true
    }

    /// Tells the store what has waited for it, and goes on with clients.
    pub(super) fn flush_store(&mut self) {
        let Some(store) = &self.store else { return };
        store.flush(Instant::now());
        if store.is_full() {
            return;
        }
        epoll::delete(&self.poll, store).ok();
        for BehindStore { client, answer, descriptors } in
            self.behind_store.take().unwrap_or_default()
        {
            self.resume(client);
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            if let Then::Drop(reason) = self.send_bytes(client, &answer, &descriptors) {
                self.drop_client(client, Some(&reason));
            }
        }
    }
}

/// Adds a session with a new arena; returns its place in the engine.
fn attach(driver: &mut Own, head: &Head, rule: &Rule) -> Result<u16, Refusal> {
    let engine = driver.engine.as_deref_mut().ok_or("the daemon ends")?;
    let (arena, file) = new_arena(&rule.quotas)?;
    arena.set_epoch(head.epoch);
    let events = || Ok::<_, std::io::Error>((Event::new()?, Wake::new()?));
    let events = events().map_err(|error| error.to_string())?;
    let slot =
        engine.attach(arena, file, events, rule.quotas).map_err(|error| error.to_string())?;
    share(driver, slot, (head.uid, rule));
    Ok(slot)
}

/// Makes a session's objects again, those first that others stand on; returns those that cannot be
/// made.
fn fill(
    driver: &mut Own,
    slot: u16,
    head: &Head,
    rule: &Rule,
    (entries, mut files): (&[Entry], Parts),
) -> Vec<Object> {
    let lender = rule.lender(head.uid, None);
    let is_region = |entry: &Entry| matches!(entry, Entry::Region { .. });
    let (regions, others): (Vec<Entry>, Vec<Entry>) = entries.iter().copied().partition(is_region);
    let mut lost = Vec::new();
    for entry in others.into_iter().chain(regions) {
        let file = match entry {
            Entry::Lent { number, .. } => files.remove(&Part::Lent(number)),
            _ => None,
        };
        if make(driver, slot, entry, (lender, file)).is_none() {
            tracing::info!(?entry, "does not outlive the daemon");
            lost.push(entry.object());
        }
    }
    lost
}

/// Makes an object again.
fn make(
    driver: &mut Own,
    slot: u16,
    entry: Entry,
    (lender, file): (Lender, Option<OwnedFd>),
) -> Option<()> {
    match entry {
        Entry::Pd(pd) => {
            driver.nic.restore_pd(pd).ok()?;
            driver.engine.as_deref_mut()?.own(slot, Object::Pd(pd), (0, None));
        }
        Entry::Dm { at, len } => {
            let engine = driver.engine.as_deref_mut()?;
            engine.restore_part(slot, at, len).then_some(())?;
            engine.own(slot, Object::Dm(at), (len, None));
        }
        Entry::Lent { number, loan } => {
            let lent = Lent::take(loan, vec![file?], lender, &mut driver.memory);
            let mut lent = lent.inspect_err(|error| tracing::warn!(%error, "lent memory")).ok()?;
            let files = driver.engine.as_deref_mut()?.session(slot)?.lent.len();
            if files >= KEPT_FILES {
                lent.close_file();
            }
            driver.engine.as_deref_mut()?.restore_lent(slot, number, lent).then_some(())?;
        }
        Entry::Region { key, pd, bytes, access } => {
            let engine = driver.engine.as_deref_mut()?;
            let (bus, lent) = match bytes.place {
                Place::Device(at) => (engine.dm_bus(slot, at, bytes.len)?, None),
                Place::Lent { number, offset } => {
                    let lent = engine.session(slot)?.lent.get(&number)?;
                    (lent.bus(offset, bytes.len)?, Some(number))
                }
                _ => return None,
            };
            let pages = driver.pages(bus, bytes.len).ok()?;
            let init = MrInit { iova: bytes.iova, len: bytes.len, access, pages };
            driver.nic.restore_mr(key, pd, init).ok()?;
            let engine = driver.engine.as_deref_mut()?;
            engine.own(slot, Object::Mr(key), (bytes.len, lent));
            engine.record_region(slot, &entry);
        }
    }
    Some(())
}
