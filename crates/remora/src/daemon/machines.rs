//! Virtual machines: QEMU gets a device ([`ivshmem`](super::ivshmem)), and programs in the machine
//! have sessions by it, one at a time.
//!
//! A program that connects as QEMU has all of the device's memory, so that it is what the policy's
//! user is, and the guest may be anybody. A guest's requests come by the mailbox; they are checked
//! as those of any client, and fewer are admitted (`answers`).
//!
//! A program in a machine ends by an empty request, or by being followed by another one, or with
//! its machine: QEMU's socket closes. The panic of a guest ends nobody, since QEMU goes on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, SocketType};

use super::admission::Wanted;
use super::answers::{NO_SESSION, NO_SUCH_SESSION};
use super::clients::{Client, Line, Then};
use super::ivshmem::{MACHINES, Machine, MachineDevice, Qemu};
use super::server::{NO_DESCRIPTORS, REQUESTS, ServeError, Server, TURN, listen, mode};
use crate::event::Event;
use crate::message::{
    Answer, Hello, MessageError, encode, is_greeting, of_other_version, parse_greeting,
};
use crate::shared::Arena;

/// Why something is not done.
type Refusal = String;

/// What is watched of a machine.
const LISTENER: u64 = 0;
const QEMU: u64 = 1;
const LETTERS: u64 = 2;
const WATCHED: u64 = 3;

impl Server {
    /// Listens at `path` for QEMU, to give a virtual machine a device: `-chardev
    /// socket,path=PATH,id=ID -device ivshmem-doorbell,vectors=2,chardev=ID`. To be called before
    /// [`Server::run`].
    ///
    /// Programs in the machine attach by the device, and have sessions of the user who runs QEMU.
    /// What is kept stays in the device's memory, for the next machine that connects.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve_machine(&mut self, path: PathBuf) -> Result<(), ServeError> {
        let listener = listen(&path, SocketType::STREAM, mode(&self.policy))?;
        let machine = Machine::new(path, listener);
        watch_edges(&self.poll, &machine.listener, token(self.machines.len(), LISTENER))?;
        self.machines.push(machine);
        Ok(())
    }

    /// Does what a descriptor of a machine has become readable for.
    pub(super) fn serve_machine_event(&mut self, token: u64) {
        let at = ((token - MACHINES) / WATCHED) as usize;
        match (token - MACHINES) % WATCHED {
            LISTENER => self.accept_machines(at),
            QEMU => self.look_at_qemu(at),
            _ => self.open_letters(at),
        }
    }

    fn accept_machines(&mut self, at: usize) {
        for _ in 0..TURN {
            if self.closers.are_full() {
                return self.accept_machines_later(at, "too many connections wait to be closed");
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let stream = match rustix::net::accept_with(&self.machines[at].listener, flags) {
                Ok(stream) => stream,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return self.accept_machines_later(at, &error.to_string()),
            };
            let path = self.machines[at].path().display().to_string();
            match self.connect_machine(at, &stream) {
                Ok(pid) => {
                    tracing::info!(path, "a virtual machine has the device");
                    self.machines[at].qemu = Some(Qemu { stream, pid });
                }
                Err(reason) => {
                    tracing::warn!(path, reason, "a virtual machine gets no device");
                    self.closers.of(None).close_connection(stream);
                }
            }
        }
        // Others may wait, and are an edge when they are asked for anew.
        let (flags, data) = edges(token(at, LISTENER));
        if let Err(error) = epoll::modify(&self.poll, &self.machines[at].listener, data, flags) {
            tracing::error!(%error, "no other virtual machine gets the device");
        }
    }

    /// Accepts no machine for a while. (Those that wait are no edge until then.)
    fn accept_machines_later(&mut self, at: usize, reason: &str) {
        tracing::warn!(reason, "cannot accept a virtual machine: others have to go first");
        self.machines[at].accepts_again = Some(Instant::now() + NO_DESCRIPTORS);
    }

    /// When machines are accepted again where they were not.
    pub(super) fn next_machine(&self) -> Option<Instant> {
        self.machines.iter().filter_map(|machine| machine.accepts_again).min()
    }

    /// Accepts machines that had to wait.
    pub(super) fn accept_waiting_machines(&mut self, now: Instant) {
        for at in 0..self.machines.len() {
            if self.machines[at].accepts_again.take_if(|again| *again <= now).is_some() {
                self.accept_machines(at);
            }
        }
    }

    /// Gives the machine that has connected the device; returns the number of its process.
    fn connect_machine(&mut self, at: usize, stream: &OwnedFd) -> Result<i32, Refusal> {
        let text = |error: io::Error| error.to_string();
        let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| e.to_string())?;
        let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
        self.policy.check_attach(uid)?;
        let arena_bytes = self.policy.rule(uid).quotas.arena_bytes;
        if self.machines[at].qemu.is_some() {
            return Err("another one has it".into());
        }
        self.part_with_device_of_others(at, uid)?;
        let machine = &mut self.machines[at];
        let device = match machine.device.take() {
            Some(device) => device,
            None => {
                let device = MachineDevice::new(uid, arena_bytes).map_err(text)?;
                watch_edges(&self.poll, &device.letters, token(at, LETTERS)).map_err(text)?;
                device
            }
        };
        let device = machine.device.insert(device);
        device.introduce(stream).map_err(text)?;
        watch_edges(&self.poll, stream, token(at, QEMU)).map_err(text)?;
        Ok(pid)
    }

    /// Another user's device has to be free of sessions; then this one's machine gets a new one.
    /// What the other user's machines still have of theirs leads to nobody.
    fn part_with_device_of_others(&mut self, at: usize, uid: u32) -> Result<(), Refusal> {
        let machine = &mut self.machines[at];
        let Some(device) = machine.device.take_if(|device| device.uid != uid) else {
            return Ok(());
        };
        if machine.session.is_some_and(|session| self.sessions.contains_key(&session)) {
            let refusal = format!("a session of user {} is in it", device.uid);
            machine.device = Some(device);
            return Err(refusal);
        }
        // (Objects of the last session that are being destroyed have its memory for themselves.)
        (machine.session, machine.slot) = (None, None);
        epoll::delete(&self.poll, &device.letters).ok();
        self.closer(device.uid).close(device);
        Ok(())
    }

    /// QEMU says nothing. So this is its end.
    fn look_at_qemu(&mut self, at: usize) {
        let Some(qemu) = &self.machines[at].qemu else { return };
        // What is only looked at is not closed here.
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let said = rustix::net::recv(&qemu.stream, &mut [0; 8][..], flags);
        if matches!(said, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        let path = self.machines[at].path().display().to_string();
        tracing::info!(path, "a virtual machine has gone");
        if let Some(Qemu { stream, .. }) = self.machines[at].qemu.take() {
            epoll::delete(&self.poll, &stream).ok();
            self.closers.of(None).close_connection(stream);
        }
        self.machines[at].waiting = None;
        self.end_client(at);
    }

    /// The program in a machine has ended.
    fn end_client(&mut self, at: usize) {
        if let Some(client) = self.machines[at].client.take() {
            self.drop_client(client, None);
        }
    }

    /// Answers some of the requests of a machine. One that comes later rings again.
    pub(super) fn open_letters(&mut self, at: usize) {
        let mut message = Vec::new();
        for _ in 0..REQUESTS {
            let Some((number, taken)) = self.machines[at].take(&mut message) else { return };
            match taken {
                Ok(()) => self.open_letter(at, number, &message),
                Err(_) => self.farewell(at, number, "the request is longer than any may be"),
            }
        }
    }

    fn open_letter(&mut self, at: usize, number: u32, message: &[u8]) {
        if message.is_empty() {
            self.end_client(at);
            return self.reply(at, number, &encode(&Answer::Done));
        }
        if is_greeting(message) {
            self.end_client(at);
            return self.greet_machine(at, number, message);
        }
        let client = self.machines[at].client;
        let found = client.and_then(|client| Some((client, self.clients.get(client)?)));
        let Some((client, Client { line: Line::Mailbox { request, .. }, .. })) = found else {
            return self.farewell(at, number, NO_SESSION);
        };
        *request = Some(number);
        if let Then::Drop(reason) = self.answer(client, message, Vec::new()) {
            self.drop_client(client, Some(&reason));
        }
    }

    fn reply(&self, at: usize, number: u32, message: &[u8]) {
        if let Some(device) = &self.machines[at].device {
            device.mailbox.answer(number, message);
        }
    }

    fn farewell(&self, at: usize, number: u32, reason: &str) {
        self.reply(at, number, &encode(&Answer::Farewell(reason)));
    }

    fn greet_machine(&mut self, at: usize, number: u32, message: &[u8]) {
        match parse_greeting(message) {
            Ok(hello) => {
                self.machines[at].waiting = Some((number, hello));
                self.welcome_machine(at);
            }
            Err(MessageError::Version { .. }) => self.reply(at, number, &of_other_version()),
            Err(error) => self.farewell(at, number, &error.to_string()),
        }
    }

    /// Welcomes the programs in machines whose memory is free now.
    pub(super) fn welcome_those_that_wait(&mut self) {
        for at in 0..self.machines.len() {
            if self.machines[at].waiting.is_some() {
                self.welcome_machine(at);
                // What came behind the greeting has rung already.
                self.open_letters(at);
            }
        }
    }

    /// Welcomes the program that waits, unless objects of another session are in the memory still.
    fn welcome_machine(&mut self, at: usize) {
        let ends = |slot| self.endings.iter().any(|ending| ending.is_of(slot));
        if self.machines[at].slot.is_some_and(ends) {
            return;
        }
        let Some((number, hello)) = self.machines[at].waiting.take() else { return };
        let machine = &self.machines[at];
        let (Some(device), Some(qemu)) = (&machine.device, &machine.qemu) else { return };
        let client = self.clients.free_number();
        let who = (device.uid, qemu.pid);
        self.clients.add(client, Client::in_machine(device.mailbox.clone(), number, who));
        self.machines[at].client = Some(client);
        let takes_over = hello.token.is_some();
        let then = match self.session_in_machine(at, client, who, &hello) {
            Ok(session) if takes_over => self.welcome(client, session, Some(hello.keep)),
            Ok(session) => self.welcome_to_new(client, session),
            Err(refusal) => Then::Drop(refusal),
        };
        if let Then::Drop(reason) = then {
            self.drop_client(client, Some(&reason));
        }
    }

    /// Gives the client in a machine the session there, or a new one; returns its number.
    fn session_in_machine(
        &mut self,
        at: usize,
        client: u32,
        (uid, pid): (u32, i32),
        hello: &Hello,
    ) -> Result<u32, Refusal> {
        self.policy.check_attach(uid)?;
        if hello.observer || hello.join.is_some() {
            return Err("a program in a virtual machine has a session of its own".into());
        }
        let there = self.machines[at].session.and_then(|session| self.sessions.get(&session));
        match (&hello.token, there) {
            (Some(token), Some(held)) if held.check(uid, token).is_ok() => {
                let session = held.number;
                self.hand_over(session, client, pid)?;
                Ok(session)
            }
            (Some(_), _) => Err(NO_SUCH_SESSION.into()),
            (None, Some(held)) => Err(format!(
                "the device has the session {}, which is kept: show its token to take it over, or \
                 end it on the host (remora nic evict %{})",
                held.name, held.number
            )),
            (None, None) => self.begin_in_machine(at, client, (uid, pid), hello),
        }
    }

    fn begin_in_machine(
        &mut self,
        at: usize,
        client: u32,
        (uid, pid): (u32, i32),
        hello: &Hello,
    ) -> Result<u32, Refusal> {
        let machine = &self.machines[at];
        let device = machine.device.as_ref().ok_or(NO_SESSION)?;
        let name =
            self.free_name((uid, pid), Some(&machine.session_name(hello.name.as_deref())))?;
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(|e| e.to_string());
        let (file, doorbell) = (copy(&device.file)?, Event::from(copy(&device.doorbell)?));
        let arena = Arena::renew(file.as_fd(), device.arena_bytes);
        let arena = arena.map_err(|error| error.to_string())?;
        let keep = hello.keep;
        let wanted = Wanted { client, name, uid, pid, keep, is_machine: true };
        let session = self.add_session(wanted, (arena, file, doorbell))?;
        self.machines[at].session = Some(session);
        self.machines[at].slot = self.sessions.get(&session).map(|held| held.slot);
        Ok(session)
    }
}

/// Under what a descriptor of a machine is watched.
fn token(at: usize, what: u64) -> u64 {
    MACHINES + at as u64 * WATCHED + what
}

/// Has a descriptor watched for what can be read anew. What others share with this process is not
/// read: a count of a doorbell stays.
fn watch_edges(poll: &OwnedFd, fd: &impl AsFd, token: u64) -> io::Result<()> {
    let (flags, data) = edges(token);
    Ok(epoll::add(poll, fd, data, flags)?)
}

fn edges(token: u64) -> (epoll::EventFlags, epoll::EventData) {
    (epoll::EventFlags::IN | epoll::EventFlags::ET, epoll::EventData::new_u64(token))
}
