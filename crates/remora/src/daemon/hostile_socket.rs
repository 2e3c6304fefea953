//! Clients that send anything over the daemon's socket, with any descriptors, for fuzzing: a card,
//! a daemon, and connections that come and go.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use remora_nic::nic::InUse;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::server::{Server, ServerOptions};
use crate::device::DeviceOptions;
use crate::event::Event;
use crate::memory::memfd;
use crate::message::{
    Answer, ClientRequest, DmaRequest, Hello, Join, Keep, Loan, MessageError, MessageSocket,
    Welcome, decode, encode, greeting, parse_answer_to_greeting,
};

/// Steps that one input makes at most.
const STEPS: usize = 64;
/// Connections that an input has at a time.
const CONNECTIONS: usize = 4;
/// The step that ends a connection.
const CLOSE: u8 = 0;
/// Bytes of the memory files that clients send.
const FILE: u64 = 8192;

/// What clients do. The input is a list of steps: what (u8: the connection in its upper two bits),
/// which descriptors go with it (u8: a bit for each of seven kinds), how many bytes (u8), and those
/// bytes. The daemon answers each. Returns how often it has given each answer.
///
/// # Panics
/// If the daemon breaks a promise; if the system has no memory, descriptors or threads.
pub fn hostile_socket(data: &[u8]) -> BTreeMap<&'static str, u64> {
    let mut world = World::new();
    let mut rest = data;
    for _ in 0..STEPS {
        let [what, with, len, bytes @ ..] = rest else { break };
        let (bytes, behind) = bytes.split_at(bytes.len().min(usize::from(*len)));
        rest = behind;
        world.step(*what, *with, bytes);
    }
    world.end();
    world.answers
}

/// A daemon, and the other ends of its connections.
struct World {
    server: Server,
    ends: [Option<MessageSocket>; CONNECTIONS],
    /// What the last welcome on each connection has said.
    welcomes: [Option<Welcome>; CONNECTIONS],
    /// A client that asks only, and that no input reaches.
    bystander: MessageSocket,
    /// Descriptors of five kinds.
    files: [OwnedFd; 5],
    /// The first of the descriptors that came last.
    came: Option<OwnedFd>,
    answers: BTreeMap<&'static str, u64>,
}

impl World {
    fn new() -> World {
        let device = DeviceOptions::new().embedded().open().expect("a card");
        let (listener, _) = MessageSocket::pair().expect("descriptors");
        let listener = listener.as_fd().try_clone_to_owned().expect("descriptors");
        let server = Server::serve(device, listener, ServerOptions::default());
        let mut server = server.expect("a new card serves nobody else");
        let bystander = connect(&mut server);
        let observer = Hello { observer: true, ..Hello::default() };
        bystander.send(&greeting(&observer), &[]).expect("the daemon has not looked yet");
        let mut world = World {
            server,
            ends: Default::default(),
            welcomes: Default::default(),
            bystander,
            files: files(),
            came: None,
            answers: BTreeMap::new(),
        };
        world.serve();
        world.bystander_gets(|answer| *answer == Answer::Done);
        world
    }

    /// One step of a client's.
    fn step(&mut self, what: u8, with: u8, bytes: &[u8]) {
        let at = usize::from(what >> 6) % CONNECTIONS;
        // What another one does may have ended a connection.
        (0..CONNECTIONS).for_each(|at| _ = self.read(at));
        let act = what % 64 % 7;
        if act == CLOSE {
            self.ends[at] = None;
            return self.serve();
        }
        let message = match act {
            1 => greeting(&Hello::default()),
            2 => [&greeting(&Hello::default())[..6], bytes].concat(),
            3 => greeting(&self.takes_over(at, bytes)),
            4 => greeting(&self.joins(at)),
            5 => bytes.to_vec(),
            _ => encode(&ClientRequest::Command(bytes)),
        };
        if lends_this_process(&message) {
            return;
        }
        let server = &mut self.server;
        let end = self.ends[at].get_or_insert_with(|| connect(server));
        let mut descriptors: Vec<BorrowedFd<'_>> = self.files.iter().map(AsFd::as_fd).collect();
        // Its own end, and what the daemon shares with a client.
        descriptors.push(end.as_fd());
        descriptors.extend(self.came.as_ref().map(AsFd::as_fd));
        let wanted = descriptors.iter().zip(0..).filter(|(_, bit)| with >> bit & 1 == 1);
        let wanted: Vec<BorrowedFd<'_>> = wanted.map(|(descriptor, _)| *descriptor).collect();
        match end.send(&message, &wanted) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput && message.is_empty() => return,
            Err(error) => panic!("an end that the daemon has not closed: {error}"),
        }
        self.serve();
        assert!(self.read(at), "a request without an answer: {message:?}");
    }

    /// A greeting that takes over the session of the next connection.
    fn takes_over(&self, at: usize, bytes: &[u8]) -> Hello {
        let welcome = self.welcomes[(at + 1) % CONNECTIONS].as_ref();
        let keep = match bytes {
            [] | [0, ..] => Keep::No,
            [1, ..] => Keep::Forever,
            [seconds, ..] => Keep::Seconds((*seconds).into()),
        };
        Hello { token: welcome.map(|welcome| welcome.token), keep, ..Hello::default() }
    }

    /// A greeting that joins the session of the next connection.
    fn joins(&self, at: usize) -> Hello {
        let welcome = self.welcomes[(at + 1) % CONNECTIONS].as_ref();
        let join =
            welcome.map(|Welcome { session, share, .. }| Join { session: *session, token: *share });
        Hello { join, ..Hello::default() }
    }

    /// Lets the daemon look until no client waits and no session ends.
    fn serve(&mut self) {
        self.look(Duration::ZERO);
        while self.server.is_ending() || self.server.clients.iter().any(|client| client.waits) {
            self.look(Duration::from_millis(1));
        }
    }

    fn look(&mut self, limit: Duration) {
        assert!(self.server.look(Some(limit)).expect("descriptors are watched"), "nobody ends it");
    }

    /// Takes what the daemon has sent on a connection; returns whether there was anything.
    fn read(&mut self, at: usize) -> bool {
        let (mut message, mut any) = (Vec::new(), false);
        while let Some(end) = &self.ends[at] {
            match end.receive(&mut message) {
                Ok(Some(descriptors)) => {
                    self.came = descriptors.into_iter().next().or(self.came.take());
                    self.note(at, &message);
                }
                Ok(None) => self.ends[at] = None,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("the daemon keeps to what a message may be: {error}"),
            }
            any = true;
        }
        any
    }

    fn note(&mut self, at: usize, message: &[u8]) {
        let answer = match parse_answer_to_greeting(message) {
            Ok(answer) => answer,
            Err(MessageError::Version { .. }) => {
                return *self.answers.entry("other version").or_default() += 1;
            }
            Err(error) => panic!("the daemon has sent {message:?}: {error}"),
        };
        *self.answers.entry(name(&answer)).or_default() += 1;
        if let Answer::Welcome(welcome) = answer {
            self.welcomes[at] = Some(welcome);
        }
    }

    /// The bystander has an answer of this kind.
    fn bystander_gets(&mut self, is_right: impl Fn(&Answer<'_>) -> bool) {
        let mut message = Vec::new();
        self.bystander.receive(&mut message).expect("an answer");
        let answer = decode::<Answer<'_>>(&message).expect("an answer");
        assert!(is_right(&answer), "a client that has done nothing got {answer:?}");
    }

    /// All go, and nothing of them is left.
    fn end(&mut self) {
        let ask = encode(&ClientRequest::Status(0));
        self.bystander.send(&ask, &[]).expect("the daemon serves others");
        self.serve();
        self.bystander_gets(|answer| matches!(answer, Answer::Status(_)));
        self.ends = Default::default();
        self.came = None;
        self.serve();
        assert_eq!(self.server.clients.iter().count(), 1, "clients that have gone");
        let kept: Vec<u32> = self.server.sessions.keys().copied().collect();
        kept.into_iter().for_each(|session| self.server.end_session_now(session));
        assert!(self.server.dma.clients(0, |_| true).0.is_empty(), "users of card memory");
        assert_eq!(self.server.device.in_use(), InUse::default());
    }
}

/// A new connection, of which the daemon knows already.
fn connect(server: &mut Server) -> MessageSocket {
    let (one, other) = MessageSocket::pair().expect("descriptors");
    server.admit(other);
    one
}

/// Memory that can be lent, a file that can, and what cannot.
fn files() -> [OwnedFd; 5] {
    let file = memfd_create("remora-fuzz", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, FILE).expect("memory");
    let event = Event::new().and_then(|event| event.as_fd().try_clone_to_owned());
    [
        memfd::sealed("remora-fuzz", FILE).expect("memory"),
        file,
        std::io::pipe().expect("descriptors").0.into(),
        event.expect("descriptors"),
        File::open("/").expect("a folder").into(),
    ]
}

/// Would the request have the daemon reach memory of its client's process? Here that is the
/// daemon's own.
fn lends_this_process(message: &[u8]) -> bool {
    match decode(message) {
        Ok(ClientRequest::Lend(loan)) => loan == Loan::Process,
        Ok(ClientRequest::Dma(DmaRequest::Grant { loan, .. })) => loan == Loan::Process,
        _ => false,
    }
}

fn name(answer: &Answer<'_>) -> &'static str {
    match answer {
        Answer::Welcome(_) => "welcome",
        Answer::Result(_) => "result",
        Answer::Lent(_) => "lent",
        Answer::CompletionQueue(_) => "completion queue",
        Answer::Described(_) => "described",
        Answer::Objects { .. } => "objects",
        Answer::Xrcd(_) => "xrcd",
        Answer::Status(_) => "status",
        Answer::Regions { .. } => "regions",
        Answer::Passes(_) => "passes",
        Answer::DmaClients { .. } => "dma clients",
        Answer::Kernel(_) => "kernel",
        Answer::Dma(_) => "dma",
        Answer::Pass(_) => "pass",
        Answer::Done => "done",
        Answer::Refused(_) => "refused",
        Answer::Farewell(_) => "farewell",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hostile::words;

    #[test]
    fn any_messages_leave_the_daemon_whole() {
        let mut next = words();
        let mut answers = 0;
        for _ in 0..30 {
            // A greeting, so that there is a session, and short requests behind it.
            let mut steps = vec![1, 0, 0];
            for _ in 0..20 {
                let [what, with, len, rest @ ..] = next();
                steps.extend([what, with & next()[0], len % 16]);
                steps.extend(rest.iter().chain(&next()).chain(&next()).take(usize::from(len % 16)));
            }
            answers += hostile_socket(&steps).values().sum::<u64>();
        }
        assert!(answers > 100, "{answers}");
        hostile_socket(&[]);
        hostile_socket(&[255; 4096]);
    }
}
