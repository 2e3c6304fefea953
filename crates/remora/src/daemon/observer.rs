//! Asking a daemon what it serves, and ending sessions, without a session of one's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::impair::{Direction, ImpairCounters};
use crate::message::{
    Answer, CardInfo, ClientRequest, DaemonPlace, DmaClientStatus, Hello, MessageError,
    MessageSocket, PassStatus, RegionStatus, SessionStatus, StatusPage, encode, greeting,
    parse_answer_to_greeting, place,
};

/// How long a daemon has for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a daemon.
#[derive(Debug)]
pub struct Observer {
    socket: MessageSocket,
    path: PathBuf,
}

/// What a daemon serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its card.
    pub card: CardInfo,
    /// What was done on purpose to its packets.
    pub impaired: [(Direction, ImpairCounters); 2],
    /// Whether anything is to be done to packets now.
    pub is_impaired: bool,
    /// The sessions that the asking user may see, by their numbers.
    pub sessions: Vec<SessionStatus>,
    /// Which of these write and read whose memory themselves.
    pub passes: Vec<PassStatus>,
    /// Programs of users that the asking one may see, which use the card's memory.
    pub dma_clients: Vec<DmaClientStatus>,
}

/// Why a daemon cannot be asked.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// None listens.
    #[error("no daemon listens at {}: start one (remora nic)", .0.display())]
    None(PathBuf),
    /// The environment says that there is none.
    #[error("REMORA_NIC is off: name the daemon’s socket (--socket)")]
    Off,
    /// It is in another system: this one is a virtual machine, and has a device of the daemon's.
    #[error("the daemon behind {} is on this machine’s host: ask it there", .0.display())]
    OnHost(PathBuf),
    /// It cannot be reached.
    #[error("cannot ask the daemon at {}: {source}", path.display())]
    System {
        /// Its socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It does not answer.
    #[error("the daemon at {} does not answer within {PATIENCE:?}", .0.display())]
    Silent(PathBuf),
    /// It has refused, or has ended.
    #[error("the daemon refuses: {0}")]
    Refused(String),
    /// Its answer cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl Observer {
    /// Connects to the daemon at `path`, or at the usual places.
    ///
    /// # Errors
    /// See [`ObserveError`].
    pub fn connect(path: Option<&Path>) -> Result<Observer, ObserveError> {
        let places = match (path, place()) {
            (Some(path), _) => vec![path.to_owned()],
            (None, DaemonPlace::Off) => return Err(ObserveError::Off),
            (None, DaemonPlace::Named(path)) => vec![path],
            (None, DaemonPlace::Usual(places)) => places,
        };
        let first = places.first().cloned().unwrap_or_default();
        for path in places {
            if path.is_dir() {
                return Err(ObserveError::OnHost(path));
            }
            match MessageSocket::connect(&path) {
                Ok(socket) => return Observer::greet(socket, path),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) => {}
                Err(source) => return Err(ObserveError::System { path, source }),
            }
        }
        Err(ObserveError::None(first))
    }

    fn greet(socket: MessageSocket, path: PathBuf) -> Result<Observer, ObserveError> {
        let observer = Observer { socket, path };
        let hello = Hello { observer: true, ..Hello::default() };
        observer.exchange(&greeting(&hello), |_| Some(()))?;
        Ok(observer)
    }

    /// Where the daemon listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the daemon serves.
    ///
    /// # Errors
    /// See [`ObserveError`].
    pub fn status(&self) -> Result<Status, ObserveError> {
        let StatusPage { card, impaired, is_impaired, sessions, .. } = self.sessions()?;
        let passes = self.exchange(&encode(&ClientRequest::Passes), |answer| match answer {
            Answer::Passes(passes) => Some(passes),
            _ => None,
        })?;
        let [arriving, leaving] = impaired;
        let impaired = [(Direction::In, arriving), (Direction::Out, leaving)];
        let dma_clients = self.dma_clients()?;
        Ok(Status { card, impaired, is_impaired, sessions, passes, dma_clients })
    }

    /// One page of all sessions.
    fn sessions(&self) -> Result<StatusPage, ObserveError> {
        let (mut sessions, mut from) = (Vec::new(), 0);
        loop {
            let page =
                self.exchange(&encode(&ClientRequest::Status(from)), |answer| match answer {
                    Answer::Status(page) => Some(page),
                    _ => None,
                })?;
            sessions.extend(page.sessions.iter().cloned());
            let last = sessions.last().map(|last: &SessionStatus| last.session);
            match behind(from, last, page.more) {
                Some(next) => from = next,
                None => return Ok(StatusPage { sessions, ..page }),
            }
        }
    }

    /// The regions of a session, by its number, and how the card reaches each.
    ///
    /// # Errors
    /// See [`ObserveError`].
    pub fn regions(&self, session: u32) -> Result<Vec<RegionStatus>, ObserveError> {
        let (mut regions, mut from) = (Vec::new(), 0);
        loop {
            let ask = encode(&ClientRequest::Regions(session, from));
            let (page, more) = self.exchange(&ask, |answer| match answer {
                Answer::Regions { regions, more } => Some((regions, more)),
                _ => None,
            })?;
            regions.extend(page);
            let last = regions.last().map(|last: &RegionStatus| last.key);
            match behind(from, last, more) {
                Some(next) => from = next,
                None => return Ok(regions),
            }
        }
    }

    fn dma_clients(&self) -> Result<Vec<DmaClientStatus>, ObserveError> {
        let (mut clients, mut from) = (Vec::new(), 0);
        loop {
            let ask = encode(&ClientRequest::DmaClients(from));
            let (page, more) = self.exchange(&ask, |answer| match answer {
                Answer::DmaClients { clients, more } => Some((clients, more)),
                _ => None,
            })?;
            clients.extend(page);
            let last = clients.last().map(|last: &DmaClientStatus| last.connection);
            match behind(from, last, more) {
                Some(next) => from = next,
                None => return Ok(clients),
            }
        }
    }

    /// Ends the session of this name, or number: `%7` is number 7 only, `7` also a session that is
    /// named so. Its client is told.
    ///
    /// # Errors
    /// There is no such session that this user may end, several are meant, or as for
    /// [`Observer::status`].
    pub fn evict(&self, name: &str) -> Result<(), ObserveError> {
        self.exchange(&encode(&ClientRequest::Evict(name)), |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
    }

    /// Has the daemon's card do this to packets from now on, as a bad network would; `off` ends it.
    ///
    /// # Errors
    /// This user may not, the text is no impairment, or as for [`Observer::status`].
    pub fn impair(&self, text: &str) -> Result<(), ObserveError> {
        self.exchange(&encode(&ClientRequest::Impair(text)), |answer| match answer {
            Answer::Done => Some(()),
            _ => None,
        })
    }

    fn exchange<R>(
        &self,
        message: &[u8],
        read: impl FnOnce(Answer<'_>) -> Option<R>,
    ) -> Result<R, ObserveError> {
        Ok(self.exchange_with(message, &[], read)?.0)
    }

    /// Asks, with descriptors; returns what `read` makes of the answer, and the descriptors that
    /// came with it.
    pub(super) fn exchange_with<R>(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
        read: impl FnOnce(Answer<'_>) -> Option<R>,
    ) -> Result<(R, Vec<OwnedFd>), ObserveError> {
        let system = |source| ObserveError::System { path: self.path.clone(), source };
        self.socket.ask(message, descriptors).map_err(system)?;
        if !self.socket.wait(Some(PATIENCE)).map_err(system)? {
            // An answer that comes later would be taken for that to another request.
            rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).ok();
            return Err(ObserveError::Silent(self.path.clone()));
        }
        let mut bytes = Vec::new();
        let ended = || ObserveError::Refused("it has ended".into());
        let came = self.socket.receive(&mut bytes).map_err(system)?.ok_or_else(ended)?;
        match parse_answer_to_greeting(&bytes)? {
            Answer::Refused(reason) | Answer::Farewell(reason) => {
                Err(ObserveError::Refused(reason.into()))
            }
            answer => Ok((read(answer).ok_or(MessageError::Malformed)?, came)),
        }
    }
}

/// Where the next page begins, if there is one behind a page that began at `from` and ends with the
/// number `last`.
fn behind(from: u32, last: Option<u32>, more: bool) -> Option<u32> {
    last.filter(|last| more && *last >= from)?.checked_add(1)
}

impl AsFd for Observer {
    /// The socket, which hangs up when the daemon ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
