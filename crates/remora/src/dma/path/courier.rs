//! Pipes and datagrams: paths for which the application's side does something, too.
//!
//! A *courier* works on the application's side, a thread or a process. The card's side writes what
//! it wants into a mailbox, a page that both map; the courier does its half, and says when it is
//! done. Both sides look again and again and do not sleep, so that a path's own cost is seen.
//!
//! The courier reads a request once and checks it: it moves only bytes of the memory that it was
//! made for.

use std::hint;
use std::io::{self, ErrorKind, PipeReader, PipeWriter};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::fcntl_setpipe_size;

use super::calls::within;
use super::sys::{self, Part};
use super::{Path, PathError, PathKind};
use crate::memory::memfd;
use crate::memory::{Buffer, BufferError};
use crate::threads::without_signals;

/// Bytes of a datagram; two of them fit into a socket's usual buffer, with the system's own.
const DATAGRAM: usize = 32 << 10;
/// Datagrams that are sent before the receiver confirms them.
const UNCONFIRMED: usize = 2;
/// Bytes that a pipe is asked to hold. If it cannot, it holds what it does.
const PIPE: usize = 1 << 20;
/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 12;
/// The longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(5);

// Words of the mailbox. The card's side writes the request, and its number last.
const NUMBER: usize = 0;
const WHAT: usize = 8;
const AT: usize = 16;
const LEN: usize = 24;
const DONE: usize = 64;
const MAILBOX: usize = 4096;

/// What the courier is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum What {
    SplicePipe = 1,
    ReadPipe = 2,
    Send = 3,
    Receive = 4,
}

impl What {
    fn of(number: u64) -> Option<What> {
        [What::SplicePipe, What::ReadPipe, What::Send, What::Receive]
            .into_iter()
            .find(|what| *what as u64 == number)
    }
}

/// One side's ends of the two pipes and of the pair of sockets, and the mailbox.
#[derive(Debug)]
struct Ends {
    mailbox: Buffer,
    out: OwnedFd,
    into: OwnedFd,
    socket: OwnedFd,
}

/// The application's side.
#[derive(Debug)]
pub struct Courier {
    ends: Ends,
    memory: Arc<Buffer>,
    last: u64,
}

/// The card's side: a path by pipes, or one by datagrams.
#[derive(Debug)]
pub struct Link {
    kind: PathKind,
    ends: Ends,
    last: u64,
    len: u64,
    /// A copy has failed: bytes of it may still be on their way, and would be taken for others.
    failed: bool,
    /// The courier, if it is a thread that this path has started.
    _thread: Option<CourierThread>,
}

#[derive(Debug)]
struct CourierThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Both sides for an application's memory: the courier is to be driven by a thread of the
/// application ([`Courier::serve`]), the link is the card's path. The kind is a pipe or UDP.
///
/// # Errors
/// The system has no more pipes, sockets or memory.
pub fn pair(kind: PathKind, memory: Arc<Buffer>) -> io::Result<(Courier, Link)> {
    let file = memfd::sealed("remora-courier", MAILBOX as u64)?;
    let mailbox = || Buffer::map_only(file.as_fd(), 0, MAILBOX).map_err(io::Error::other);
    let (to_card, from_app) = pipe()?;
    let (to_app, to_host) = pipe()?;
    let (apps, cards) = sockets()?;
    let len = memory.len() as u64;
    let courier = Ends {
        mailbox: mailbox()?,
        out: from_app.into(),
        into: to_app.into(),
        socket: apps.into(),
    };
    let link = Ends {
        mailbox: mailbox()?,
        out: to_host.into(),
        into: to_card.into(),
        socket: cards.into(),
    };
    let courier = Courier { ends: courier, memory, last: 0 };
    Ok((courier, Link { kind, ends: link, last: 0, len, failed: false, _thread: None }))
}

/// [`pair`], with a thread of this process as the courier.
///
/// # Errors
/// Those of [`pair`], and the system starts no more threads.
pub fn with_thread(kind: PathKind, memory: Arc<Buffer>) -> io::Result<Link> {
    let (mut courier, link) = pair(kind, memory)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let named = thread::Builder::new().name("remora-courier".into());
    let run = move || courier.serve(|| told.load(Ordering::Relaxed));
    let thread = Some(without_signals(|| named.spawn(run))?);
    Ok(Link { _thread: Some(CourierThread { stop, thread }), ..link })
}

impl Drop for CourierThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a courier's thread has panicked");
        }
    }
}

fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    for end in [reader.as_fd(), writer.as_fd()] {
        fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
    }
    // A user may have too many large pipes already; a small one does the same in more calls.
    fcntl_setpipe_size(&writer, PIPE).ok();
    Ok((reader, writer))
}

/// Two sockets of loopback that are connected to each other.
fn sockets() -> io::Result<(UdpSocket, UdpSocket)> {
    let (one, other) =
        (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

impl Courier {
    /// Serves requests until `stop` says so, or the card's side has gone.
    pub fn serve(&mut self, stop: impl Fn() -> bool) {
        let mut looks = 0;
        while !stop() {
            if self.turn() {
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Does its half of a request, if there is a new one. Returns whether there was.
    pub fn turn(&mut self) -> bool {
        let number = word(&self.ends.mailbox, NUMBER);
        if number == self.last {
            return false;
        }
        self.last = number;
        let what = What::of(word(&self.ends.mailbox, WHAT));
        let (at, len) = (word(&self.ends.mailbox, AT), word(&self.ends.mailbox, LEN));
        let part = Part::new(&self.memory, at as usize, len as usize);
        if let (Some(what), Ok(part)) = (what, part) {
            let done = match what {
                What::SplicePipe => splice_all(self.ends.out.as_fd(), part),
                What::ReadPipe => read_all(self.ends.into.as_fd(), part),
                What::Send => send_all(self.ends.socket.as_fd(), part),
                What::Receive => receive_all(self.ends.socket.as_fd(), part),
            };
            if let Err(error) = done {
                // The card's side waits in vain, and gives up by itself.
                tracing::debug!(%error, ?what, "a courier could not do its half");
                return true;
            }
            set_word(&self.ends.mailbox, DONE, number);
        }
        true
    }
}

impl Link {
    /// Moves bytes by `half`, this side's half, once the courier is asked for its own.
    fn exchange(
        &mut self,
        what: What,
        (at, len): (u64, usize),
        half: impl FnOnce(&Ends) -> io::Result<()>,
    ) -> Result<(), PathError> {
        if self.failed {
            return Err(self.kind.failed(io::Error::other("it failed before: set up another")));
        }
        self.ask(what, at, len);
        // The next request must not find the courier in this one.
        let done = half(&self.ends).and_then(|()| self.wait());
        self.failed = done.is_err();
        done.map_err(|error| self.kind.failed(error))
    }

    /// Asks the courier for its half.
    fn ask(&mut self, what: What, at: u64, len: usize) {
        self.last += 1;
        set_word(&self.ends.mailbox, WHAT, what as u64);
        set_word(&self.ends.mailbox, AT, at);
        set_word(&self.ends.mailbox, LEN, len as u64);
        set_word(&self.ends.mailbox, NUMBER, self.last);
    }

    /// Waits until the courier has done its half.
    fn wait(&self) -> io::Result<()> {
        until(|| Ok((word(&self.ends.mailbox, DONE) == self.last).then_some(())))
    }
}

impl Path for Link {
    fn kind(&self) -> PathKind {
        self.kind
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn to_card(
        &mut self,
        from: u64,
        card: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), PathError> {
        let (from, part) = (within(from, len, self.len)?, Part::new(card, at, len)?);
        if self.kind == PathKind::Pipe {
            let half = |ends: &Ends| read_all(ends.into.as_fd(), part);
            return self.exchange(What::SplicePipe, (from, len), half);
        }
        self.exchange(What::Send, (from, len), |ends| receive_all(ends.socket.as_fd(), part))
    }

    fn to_host(
        &mut self,
        card: &Buffer,
        from: usize,
        at: u64,
        len: usize,
    ) -> Result<(), PathError> {
        let (at, part) = (within(at, len, self.len)?, Part::new(card, from, len)?);
        if self.kind == PathKind::Pipe {
            let half = |ends: &Ends| splice_all(ends.out.as_fd(), part);
            return self.exchange(What::ReadPipe, (at, len), half);
        }
        self.exchange(What::Receive, (at, len), |ends| send_all(ends.socket.as_fd(), part))
    }
}

fn splice_all(pipe: BorrowedFd<'_>, mut part: Part<'_>) -> io::Result<()> {
    while part.len() > 0 {
        part = part.behind(until(|| moved(sys::splice(pipe, part)))?);
    }
    Ok(())
}

fn read_all(pipe: BorrowedFd<'_>, mut part: Part<'_>) -> io::Result<()> {
    while part.len() > 0 {
        part = part.behind(until(|| moved(sys::read(pipe, None, part)))?);
    }
    Ok(())
}

/// Sends in datagrams, and waits for a confirmation of every few.
fn send_all(socket: BorrowedFd<'_>, mut part: Part<'_>) -> io::Result<()> {
    let mut confirmation = [0];
    for sent in 1.. {
        part = part.behind(until(|| moved(sys::write(socket, None, part.first(DATAGRAM))))?);
        if part.len() == 0 {
            break;
        }
        if sent % UNCONFIRMED == 0 {
            until(|| match rustix::io::read(socket, &mut confirmation) {
                Err(error) => moved(Err(error.into())),
                Ok(len) => Ok(Some(len)),
            })?;
        }
    }
    Ok(())
}

fn receive_all(socket: BorrowedFd<'_>, mut part: Part<'_>) -> io::Result<()> {
    for received in 1.. {
        part = part.behind(until(|| moved(sys::read(socket, None, part)))?);
        if part.len() == 0 {
            break;
        }
        if received % UNCONFIRMED == 0 {
            until(|| moved(rustix::io::write(socket, &[1]).map_err(Into::into)))?;
        }
    }
    Ok(())
}

/// What a call has moved; `None` if it would have to wait.
fn moved(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

/// Tries until there is a result; for so long, the other side may do nothing.
fn until<T>(mut attempt: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if let Some(result) = attempt()? {
                return Ok(result);
            }
            hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(ErrorKind::TimedOut.into());
        }
        // Where cores are few, the other side may need this one.
        thread::yield_now();
    }
}

fn word(mailbox: &Buffer, at: usize) -> u64 {
    whole(mailbox.load_u64(at))
}

fn set_word(mailbox: &Buffer, at: usize, value: u64) {
    whole(mailbox.store_u64(at, value));
}

fn whole<T>(access: Result<T, BufferError>) -> T {
    access.expect("a mailbox has its words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_courier_moves_only_bytes_of_its_memory() {
        let memory = Arc::new(Buffer::new(4096).unwrap());
        let (mut courier, mut link) = pair(PathKind::Pipe, memory).unwrap();
        for (what, at, len) in [(What::SplicePipe, 4000, 97), (What::Receive, u64::MAX, 2)] {
            link.ask(what, at, len);
            assert!(courier.turn());
            assert_eq!(word(&link.ends.mailbox, DONE), 0, "nothing was done");
        }
        set_word(&link.ends.mailbox, WHAT, 99);
        set_word(&link.ends.mailbox, NUMBER, 99);
        assert!(courier.turn() && !courier.turn());
    }

    #[test]
    fn a_path_that_has_failed_stays_so() {
        let memory = Arc::new(Buffer::new(4096).unwrap());
        let (courier, mut link) = pair(PathKind::Pipe, memory).unwrap();
        drop(courier);
        let card = Buffer::new(4096).unwrap();
        assert!(link.to_card(0, &card, 0, 8).is_err());
        let error = link.to_card(0, &card, 0, 8).unwrap_err().to_string();
        assert!(error.contains("it failed before"), "{error}");
    }
}
