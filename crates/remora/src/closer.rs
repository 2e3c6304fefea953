//! Closes what strangers have sent, in a thread for which nobody waits.
//!
//! The sender of a descriptor decides how long it takes to close it. A socket may linger until its
//! last bytes have arrived (`SO_LINGER`), a file waits for its server, which may be a program of
//! the sender's (FUSE), and a pipe for a process that is in the middle of a read or a write.
//! Nothing that is done to it before changes that for certain: the sender has it, too, and may have
//! it linger again. And what lies in a connection and was not received is closed with it.
//!
//! So is anything else done for which a stranger can have others wait.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use crate::threads::without_signals;

/// So many things may wait before no others should be taken that have to be closed.
const MOST: usize = 256;
/// How long the thread waits for more to do before it ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// Closes things in a thread of its own, which there is as long as it has something to do.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: Arc<Queue>,
    /// The process that has the thread: a forked child has none.
    process: u32,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    comes: Condvar,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    works: VecDeque<Work>,
    /// There is a thread.
    is_served: bool,
    /// It does something.
    in_work: bool,
}

impl Default for Closer {
    fn default() -> Closer {
        Closer { queue: Arc::default(), process: std::process::id() }
    }
}

impl Closer {
    /// Has something closed, by its being dropped, at some time from now on.
    pub(crate) fn close(&self, thing: impl Send + 'static) {
        self.run(move || drop(thing));
    }

    /// Ends a connection at once, as its other end sees it, and has it closed.
    pub(crate) fn close_connection(&self, connection: impl Into<OwnedFd>) {
        let connection = connection.into();
        if self.process == std::process::id() {
            // One that has ended already is no error.
            shutdown(connection.as_fd(), Shutdown::Both).ok();
        }
        self.close(connection);
    }

    /// Has something done at some time from now on, behind what was asked for before.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        // In a child, the parent's lock may be held by a thread that the child does not have. What
        // the child drops the parent has still.
        if self.process == std::process::id() {
            self.queue.lock().works.push_back(Box::new(work));
            self.start();
        }
    }

    /// Does so much wait that nothing else should be taken?
    pub(crate) fn is_full(&self) -> bool {
        self.start();
        self.queue.lock().works.len() >= MOST
    }

    /// Does nothing wait, and is nothing being done?
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.queue.lock();
        waiting.works.is_empty() && !waiting.in_work
    }

    /// Wakes the thread, or starts it, if something waits. (If the system has none, what waits is
    /// left to a later call.)
    fn start(&self) {
        let mut waiting = self.queue.lock();
        if waiting.works.is_empty() || mem::replace(&mut waiting.is_served, true) {
            drop(waiting);
            return self.queue.comes.notify_one();
        }
        drop(waiting);
        let queue = Arc::clone(&self.queue);
        let thread = std::thread::Builder::new().name("remora-close".into());
        let started = without_signals(|| thread.spawn(move || queue.serve()));
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to close what others have sent");
            self.queue.lock().is_served = false;
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        while let Some(work) = self.next() {
            work();
        }
    }

    /// The next thing to do; if there is none for a while, the thread is over.
    fn next(&self) -> Option<Work> {
        let mut waiting = self.lock();
        waiting.in_work = false;
        let is_empty = |waiting: &mut Waiting| waiting.works.is_empty();
        let (mut waiting, _) = self
            .comes
            .wait_timeout_while(waiting, PATIENCE, is_empty)
            .unwrap_or_else(PoisonError::into_inner);
        let next = waiting.works.pop_front();
        (waiting.is_served, waiting.in_work) = (next.is_some(), next.is_some());
        next
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waiting", self.works.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;

    /// A socket whose last `close` waits for an hour, or until the other end, which comes behind
    /// it, is closed.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65_536]).is_ok() {}
        set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (socket.into(), other)
    }

    #[test]
    fn nobody_waits_for_what_lingers() {
        let (closer, (slow, other)) = (Closer::default(), lingering());
        let (mut reader, writer) = std::io::pipe().unwrap();
        closer.close(slow);
        closer.close(writer);
        assert!(!closer.is_idle());
        // All is closed in time, one behind the other.
        drop(other);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        while !closer.is_idle() {
            std::thread::yield_now();
        }
        let (told, hears) = mpsc::channel::<()>();
        closer.close(told);
        assert!(hears.recv().is_err(), "another thread has closed it");
    }

    #[test]
    fn the_other_end_sees_the_end_of_a_connection_at_once() {
        let (closer, (slow, other)) = (Closer::default(), lingering());
        let (one, mut end) = std::os::unix::net::UnixStream::pair().unwrap();
        closer.close(slow);
        closer.close_connection(one);
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
        assert!(!closer.is_full());
        (0..MOST).for_each(|_| closer.close(()));
        assert!(closer.is_full());
        drop(other);
    }
}
