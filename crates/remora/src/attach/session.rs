//! A client's session with the process that has the card: one request and one answer at a time.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_nic::qp::Mtu;
use remora_nic::{Config, Key, Time};
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::ivshmem::{Doorbell, Mail};
use super::ways::Owner;
use crate::clock::Clock;
use crate::commands::{Command, Wire};
use crate::event::never;
use crate::live::DeviceInfo;
use crate::message::{
    Answer, ClientRequest, CompletionQueuePlace, Description, Hello, Keep, KernelAnswer,
    KernelRequest, Loan, MessageError, MessageSocket, Object, OpenXrcd, Opened, Pass, Ticket,
    Welcome, XrcdError, decode, encode, greeting, parse_answer_to_greeting,
};
use crate::shared::{Arena, ArenaError, Gates};

/// How long a daemon has for its welcome.
const GREETING: Duration = Duration::from_secs(5);
/// Between two attempts to send to a daemon that is slow to read.
const PAUSE: Duration = Duration::from_millis(1);
/// Attempts to send.
const ATTEMPTS: u32 = 5_000;

/// Why a device could not be attached to the card of another process.
#[derive(Debug, Error)]
pub enum AttachError {
    /// No process listens at the socket, or this one may not ask it.
    #[error("cannot attach to the card’s process at {path}: {source}; is `remora nic` running?")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The card's process did not answer as it should.
    #[error("the card’s process at {path} does not answer: {reason}")]
    Greeting {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A virtual machine's device leads to no card.
    #[error("cannot attach to a card by the device {path}: {reason}")]
    Device {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The card's process refuses.
    #[error("the card’s process refuses this program: {0}")]
    Refused(String),
    /// Its message cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The memory that it shares cannot be used.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// A client's end of a session.
#[derive(Debug)]
pub(crate) struct Session {
    line: Line,
    /// Why the session is over, if it is.
    over: Option<String>,
    /// What the daemon said when it refused a request last.
    refusal: Option<String>,
}

/// What carries requests and answers.
#[derive(Debug)]
pub(super) enum Line {
    Socket(MessageSocket),
    /// Of a virtual machine. Descriptors cannot pass.
    Mailbox(Mail),
}

/// What a session begins with.
pub(crate) struct Begun {
    pub(crate) session: Session,
    /// The socket at which the daemon listens, or the folder of a device.
    pub(crate) path: PathBuf,
    pub(crate) welcome: Welcome,
    /// The card's clock.
    pub(crate) clock: Clock,
    pub(crate) arena: Arena,
    /// Wakes the daemon.
    pub(crate) doorbell: Doorbell,
    /// Wakes this client.
    pub(crate) wake: OwnedFd,
    /// The session is to outlive this process.
    pub(crate) is_kept: bool,
    /// Entitles to the session.
    pub(crate) ticket: Ticket,
    /// What peers on the same card do need not go by the card.
    pub(crate) may_pass: bool,
}

impl Begun {
    /// The card's address, port and path MTU.
    pub(crate) fn info(&self) -> Result<DeviceInfo, AttachError> {
        let card = &self.welcome.card;
        let mtu = Mtu::from_code(card.mtu).ok_or(MessageError::Malformed)?;
        let (address, port, is_named) = (card.address, card.port, card.is_named);
        Ok(DeviceInfo { address, port, mtu, is_named })
    }

    /// The card's settings and limits.
    pub(crate) fn config(&mut self) -> Result<Config, AttachError> {
        let config = self.session.call(&Command::ConfigNow {});
        let reason = || self.session.over().unwrap_or("it does not tell its limits").to_owned();
        let path = &self.path;
        config.ok_or_else(|| AttachError::Greeting { path: path.clone(), reason: reason() })
    }

    /// Asks the daemon at `path`, a socket or the folder of a device, for a session.
    pub(crate) fn at(path: &Path, hello: &Hello) -> Result<Begun, AttachError> {
        if path.is_dir() {
            return Begun::by_device(path, hello);
        }
        let refused = |source| AttachError::Connect { path: path.into(), source };
        let silent = |reason: String| AttachError::Greeting { path: path.into(), reason };
        let socket = MessageSocket::connect(path).map_err(refused)?;
        socket.ask(&greeting(hello), &[]).map_err(|error| silent(error.to_string()))?;
        if !socket.wait(Some(GREETING)).map_err(|error| silent(error.to_string()))? {
            return Err(silent(format!("nothing came within {GREETING:?}")));
        }
        let mut bytes = Vec::new();
        let came = socket.receive(&mut bytes).map_err(|error| silent(error.to_string()))?;
        let came = came.ok_or_else(|| silent("it has ended the connection".into()))?;
        let welcome = welcome_of(&bytes)?;
        let mut came = came.into_iter();
        let mut next = || came.next();
        let (Some(arena), Some(doorbell), Some(wake)) = (next(), next(), next()) else {
            return Err(silent("it has sent other descriptors than those of a session".into()));
        };
        // Peers of the process that had the session may be within the memory that this one gets.
        if let Some(former) = next() {
            let mut gates =
                Gates::open(former.as_fd()).map_err(|error| silent(error.to_string()))?;
            gates.wait();
        }
        let arena = Arena::open(arena.as_fd())?;
        let session = Session::new(Line::Socket(socket));
        let (clock, doorbell) = (Clock::from(welcome.clock_start_ns), Doorbell::Event(doorbell));
        let is_kept = !matches!(hello.keep, Keep::No);
        let name = hello.name.clone().unwrap_or_default();
        let ticket = Ticket { name, token: welcome.token };
        let begun = Begun {
            session,
            path: path.into(),
            welcome,
            clock,
            arena,
            doorbell,
            wake,
            is_kept,
            ticket,
            may_pass: true,
        };
        begun.with_all_objects()
    }

    /// Asks for the objects that had no room in the welcome.
    fn with_all_objects(mut self) -> Result<Begun, AttachError> {
        let Begun { session, welcome, path, .. } = &mut self;
        while welcome.more {
            let last = welcome.objects.last().ok_or(MessageError::Malformed)?;
            let Some((objects, more)) = session.objects(*last) else {
                let reason = session.over().unwrap_or("it does not tell of its objects").into();
                return Err(AttachError::Greeting { path: path.clone(), reason });
            };
            welcome.objects.extend(objects);
            welcome.more = more;
        }
        Ok(self)
    }

    /// Asks the daemon behind a virtual machine's device for a session.
    fn by_device(path: &Path, hello: &Hello) -> Result<Begun, AttachError> {
        let failed = |reason: String| AttachError::Device { path: path.into(), reason };
        if hello.join.is_some() {
            return Err(failed("one process has it, without its forked children".into()));
        }
        let (mut mail, memory) = Mail::open(path).map_err(failed)?;
        let bytes = mail.greet(hello).map_err(|error| failed(error.to_string()))?;
        let welcome = welcome_of(&bytes)?;
        let name = hello.name.clone().unwrap_or_default();
        let begun = Begun {
            arena: Arena::of(memory)?,
            clock: Clock::showing(Time(welcome.now_ns)),
            doorbell: mail.doorbell(),
            wake: never().map_err(|error| failed(error.to_string()))?,
            is_kept: !matches!(hello.keep, Keep::No),
            ticket: Ticket { name, token: welcome.token },
            path: path.into(),
            session: Session::new(Line::Mailbox(mail)),
            welcome,
            may_pass: false,
        };
        begun.with_all_objects()
    }
}

/// The welcome that a daemon has answered to a greeting.
///
/// # Errors
/// It has refused, or is of another version.
pub(super) fn welcome_of(bytes: &[u8]) -> Result<Welcome, AttachError> {
    match parse_answer_to_greeting(bytes)? {
        Answer::Welcome(welcome) => Ok(welcome),
        Answer::Refused(reason) | Answer::Farewell(reason) => {
            Err(AttachError::Refused(reason.into()))
        }
        _ => Err(MessageError::Malformed.into()),
    }
}

impl Session {
    pub(super) fn new(line: Line) -> Session {
        Session { line, over: None, refusal: None }
    }

    /// Is it a virtual machine's, and the daemon in another system?
    pub(crate) fn is_machine(&self) -> bool {
        matches!(self.line, Line::Mailbox(_))
    }

    /// The process of the daemon, which may have to be let at this process's memory.
    pub(crate) fn daemon(&self) -> Option<i32> {
        let Line::Socket(socket) = &self.line else { return None };
        let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// Whose the daemon is.
    pub(crate) fn owner(&self) -> Owner {
        let Line::Socket(socket) = &self.line else { return Owner::Same };
        match rustix::net::sockopt::socket_peercred(socket) {
            Ok(peer) if peer.uid == rustix::process::geteuid() => Owner::Same,
            Ok(peer) if peer.uid.is_root() => Owner::Root,
            _ => Owner::Other,
        }
    }

    /// Why the session is over, if it is.
    pub(crate) fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// Ends the session, for this reason, unless it is over already.
    pub(crate) fn end(&mut self, reason: &str) {
        self.over.get_or_insert_with(|| reason.to_owned());
    }

    /// Ends the connection.
    pub(crate) fn hang_up(&mut self) {
        if let Line::Socket(socket) = &self.line {
            rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
        }
        self.end("it was closed");
    }

    /// Looks whether the daemon has ended the session unasked.
    pub(crate) fn look(&mut self) {
        if self.over.is_some() {
            return;
        }
        let socket = match &self.line {
            Line::Socket(socket) => socket,
            Line::Mailbox(mail) => {
                self.over = mail.dismissal();
                return;
            }
        };
        let mut bytes = Vec::new();
        match socket.receive(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(Some(_)) => match decode::<Answer<'_>>(&bytes) {
                Ok(Answer::Farewell(reason)) => self.end(reason),
                _ => self.end("it has sent something that was not asked for"),
            },
            Ok(None) => self.end("it has ended"),
            Err(error) => self.end(&error.to_string()),
        }
    }

    /// Asks, and gives the answer to `read`; `None` if the session is over.
    fn ask<R>(
        &mut self,
        request: &ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
        read: impl FnOnce(Answer<'_>) -> Option<R>,
    ) -> Option<R> {
        self.ask_for(request, descriptors, |answer, _| read(answer))
    }

    /// As [`Session::ask`], with the descriptors that come with the answer.
    fn ask_for<R>(
        &mut self,
        request: &ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
        read: impl FnOnce(Answer<'_>, Vec<OwnedFd>) -> Option<R>,
    ) -> Option<R> {
        if self.over.is_some() {
            return None;
        }
        let mut bytes = encode(request);
        let came = match self.exchange(&mut bytes, descriptors) {
            Ok(came) => came,
            Err(error) => {
                self.end(&error.to_string());
                return None;
            }
        };
        match decode::<Answer<'_>>(&bytes) {
            Ok(Answer::Farewell(reason)) => {
                self.end(reason);
                None
            }
            Ok(Answer::Refused(reason)) => {
                tracing::warn!(reason, "the card’s process refuses a request");
                self.refusal = Some(reason.to_owned());
                None
            }
            Ok(answer) => read(answer, came),
            Err(error) => {
                self.end(&error.to_string());
                None
            }
        }
    }

    /// Sends a message, and receives the next one in its place; returns the descriptors that come
    /// with it.
    fn exchange(
        &mut self,
        bytes: &mut Vec<u8>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Vec<OwnedFd>> {
        match &mut self.line {
            Line::Socket(socket) => exchange(socket, bytes, descriptors),
            Line::Mailbox(mail) => mail.exchange(bytes).map(|()| Vec::new()),
        }
    }

    /// Where a completion queue lies in the arena.
    pub(crate) fn completion_queue(&mut self, cq: u32) -> Option<CompletionQueuePlace> {
        self.ask(&ClientRequest::CompletionQueue(cq), &[], |answer| match answer {
            Answer::CompletionQueue(place) => Some(place),
            _ => None,
        })
    }

    /// Objects of the session behind this one, and whether there are others behind those.
    fn objects(&mut self, behind: Object) -> Option<(Vec<Object>, bool)> {
        self.ask(&ClientRequest::Objects(behind), &[], |answer| match answer {
            Answer::Objects { objects, more } => Some((objects, more)),
            _ => None,
        })
    }

    /// How an object was made, and the file of its memory.
    pub(crate) fn describe(&mut self, object: Object) -> Option<(Description, Option<OwnedFd>)> {
        self.ask_for(&ClientRequest::Describe(object), &[], |answer, came| match answer {
            Answer::Described(description) => Some((description?, came.into_iter().next())),
            _ => None,
        })
    }

    /// Lends memory to the card; returns its number.
    pub(crate) fn lend(&mut self, loan: Loan, file: Option<BorrowedFd<'_>>) -> Option<u32> {
        self.ask(&ClientRequest::Lend(loan), file.as_slice(), |answer| match answer {
            Answer::Lent(number) => Some(number),
            _ => None,
        })
    }

    /// Asks something of the card's kernels.
    ///
    /// # Errors
    /// Why it is refused, in words.
    pub(crate) fn kernel(
        &mut self,
        request: &KernelRequest,
        module: Option<BorrowedFd<'_>>,
    ) -> Result<KernelAnswer, String> {
        let request = ClientRequest::Kernel(request.clone());
        self.refusal = None;
        let answer = self.ask(&request, module.as_slice(), |answer| match answer {
            Answer::Kernel(answer) => Some(answer),
            _ => None,
        });
        answer.ok_or_else(|| {
            let reason = self.refusal.as_deref().or(self.over.as_deref());
            reason.unwrap_or("its answer is none to this request").to_owned()
        })
    }

    /// Opens the XRC domain that a file names.
    pub(crate) fn open_xrcd(&mut self, how: OpenXrcd, file: BorrowedFd<'_>) -> Opened {
        let opened = self.ask(&ClientRequest::OpenXrcd(how), &[file], |answer| match answer {
            Answer::Xrcd(opened) => Some(opened),
            _ => None,
        });
        opened.unwrap_or(Err(XrcdError::Gone))
    }

    /// Lends memory by passes, too, by these gates; returns whether the daemon agrees.
    pub(crate) fn share_gates(&mut self, gates: BorrowedFd<'_>) -> bool {
        self.ask(&ClientRequest::Gates, &[gates], |_| Some(())).is_some()
    }

    /// Asks for a pass for requests of a queue pair with this key of its peer's, and for the files
    /// of the gates and of the memory.
    pub(crate) fn pass(&mut self, qpn: u32, key: Key) -> Option<(Pass, [OwnedFd; 2])> {
        self.ask_for(&ClientRequest::Pass { qpn, key }, &[], |answer, came| match answer {
            Answer::Pass(Some(pass)) => Some((pass, came.try_into().ok()?)),
            _ => None,
        })
    }

    /// Tells of successful completions of requests that this process has carried out itself.
    pub(crate) fn counted(&mut self, cq: u32, count: u64) {
        self.ask(&ClientRequest::Counted { cq, count }, &[], |_| Some(()));
    }

    /// Takes lent memory back; returns whether the daemon has given it back, or has gone.
    pub(crate) fn take_back(&mut self, number: u32) -> bool {
        self.ask(&ClientRequest::TakeBack(number), &[], |_| Some(())).is_some()
            || self.over.is_some()
    }
}

impl Wire for Session {
    fn call<R: DeserializeOwned>(&mut self, command: &Command<'_>) -> Option<R> {
        let bytes = encode(command);
        self.ask(&ClientRequest::Command(&bytes), &[], |answer| match answer {
            Answer::Result(bytes) => decode(bytes).ok(),
            _ => None,
        })
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.line {
            Line::Socket(socket) => socket.as_fd(),
            Line::Mailbox(mail) => mail.as_fd(),
        }
    }
}

/// Sends a message by a socket, and receives the next one in its place; returns the descriptors
/// that come with it.
fn exchange(
    socket: &MessageSocket,
    bytes: &mut Vec<u8>,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<Vec<OwnedFd>> {
    let mut attempts = ATTEMPTS;
    while let Err(error) = socket.send(bytes, descriptors) {
        match error.kind() {
            ErrorKind::WouldBlock if attempts > 0 => attempts -= 1,
            // What it said before it ended is worth more.
            ErrorKind::BrokenPipe => break,
            _ => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
    loop {
        socket.wait(None)?;
        match socket.receive(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(Some(came)) => return Ok(came),
            Ok(None) => return Err(io::Error::other("it has ended")),
            Err(error) => return Err(error),
        }
    }
}
